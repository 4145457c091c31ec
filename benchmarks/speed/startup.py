"""How long does it take until something happens?

Wall seconds of whole processes, the start of Python included: `fedboost --help`, a Python that does nothing
but `import fedboost`, and one that calls a compiled kernel and finds it in the cache of an earlier run;
beside them a Python that does nothing, and those that import XGBoost or LightGBM. Each once to warm up, then
in turns.

The claims: the first two take less than 0.3 s, the first call of a kernel less than 1 s.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
from common import spread, verdict

KERNEL = """
import numpy
from fedboost.gbdt.kernels import elementwise
elementwise.exps(numpy.zeros(1))
"""
CASES: dict[str, tuple[list[str], float | None]] = {
    "fedboost --help": (["-m", "fedboost", "--help"], 0.3),
    "import fedboost": (["-c", "import fedboost"], 0.3),
    "first call of a kernel": (["-c", KERNEL], 1.0),
    "Python alone": (["-c", ""], None),
    "import xgboost": (["-c", "import xgboost"], None),
    "import lightgbm": (["-c", "import lightgbm"], None),
}
"""What Python is told, and less than how many seconds it is claimed to take."""


def main() -> None:
    """Start all of them in turns."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    if options.repeats < 1:
        common.fail("--repeats must be at least 1")
    for words, _ in CASES.values():
        seconds(words)
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(options.repeats):
        for name, (words, _) in CASES.items():
            found[name].append(seconds(words))
    rows = []
    for name, (_, most) in CASES.items():
        row = [name, spread(found[name], 2)]
        held = most is not None and statistics.median(found[name]) < most
        rows.append([*row, f"{most:g}", verdict(held)] if most is not None else [*row, "", ""])
    shown = common.Table(
        f"Wall seconds of a process: median (least - most) of {options.repeats}",
        ("process", "seconds", "claim", "holds"),
        rows,
    )
    common.publish(options, [shown], {"seconds": found})


def seconds(words: list[str]) -> float:
    """Of a Python from its start to its end."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        common.fail(f"python {words[0]} ...: {done.stderr.strip().splitlines()[-1]}")
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
