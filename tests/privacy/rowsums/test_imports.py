"""Without the packages that only encryption needs, what does not need them can be imported."""

import subprocess
import sys


def test_slots_and_segments_need_no_gmpy2():
    code = (
        "import sys; sys.modules['gmpy2'] = sys.modules['phe'] = None;"
        "import fedboost, fedboost.privacy.protections;"
        "import fedboost.privacy.rowsums.scheme, fedboost.privacy.rowsums.scheme"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
