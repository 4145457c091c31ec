"""Processes of a user without rights, who has no home and can write nothing of the package.

They run what a container or a service account runs. It takes root to become that user.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from compileall import compile_dir
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY, STRANGER = 65534, 65533


def become(user):
    """The beginning of a command line that runs the rest as this user, without rights."""
    who = (f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all", "--no-new-privs")
    return ["setpriv", *who]


@cache
def _runs(*command):
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_nobody = pytest.mark.skipif(
    not _runs(*become(NOBODY), sys.executable, "-c", "import numba"),
    reason="needs root, setpriv, and a Python that everybody can read",
)
needs_mounts = pytest.mark.skipif(
    not _runs("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"), reason="needs the right to mount"
)


@contextmanager
def open_folder():
    """A folder that everybody can read, which those of pytest are not, outside /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="fedboost-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def copy_package(folder):
    """Copy the package, compiled as an installation is, without its kernels."""
    shutil.copytree(
        ROOT / "fedboost", folder / "fedboost", ignore=shutil.ignore_patterns("kernels-*", "__pycache__")
    )
    compile_dir(folder / "fedboost", quiet=1)


def environment(source, **values):
    """What such an account has, and nothing more."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "HOME": "/nonexistent", **values}
