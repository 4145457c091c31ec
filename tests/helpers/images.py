"""What the images are, without Docker: the files of the build context, a root folder that cannot be written,
and the image's user. It takes root, and the right to mount.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from compileall import compile_dir
from functools import cache
from pathlib import Path

import pytest
from unprivileged import ROOT, become

from fedboost.kernel_cache import folders


def _read_only(*places):
    """Shell commands after which nothing of the machine can be written but the places and /tmp."""
    lines = ["set -e", "mount --make-rprivate /"]
    for place, writable in places:
        lines.append(f"mount --bind {place} {place}")
        lines += [] if writable else [f"mount -o remount,bind,ro {place}"]
    return "; ".join([*lines, "mount -o remount,bind,ro /", "mount -t tmpfs -o mode=1777 none /tmp"])


@cache
def _can_mount():
    command = ["unshare", "--mount", "sh", "-c", _read_only()]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_images = pytest.mark.skipif(
    not _can_mount() or not shutil.which("setpriv") or Path(sys.prefix).is_relative_to("/tmp"),
    reason="needs root, setpriv, the right to mount, and a Python outside /tmp",
)


def build_context(folder):
    """The files of a folder that `docker build` gets to see, by its .dockerignore."""
    lines = [
        line for line in (folder / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    rules = [(_pattern(line.lstrip("!")), line.startswith("!")) for line in lines]

    def is_seen(path):
        seen = True
        for pattern, includes in rules:
            if any(pattern.fullmatch(str(part)) for part in (path, *path.parents)):
                seen = includes
        return seen

    included = {line[1:].split("/")[0] for line in lines if line.startswith("!")}
    within = (path for name in included for path in (folder / name, *(folder / name).rglob("*")))
    paths = (path.relative_to(folder) for path in within if path.is_file())
    return {str(path) for path in paths if is_seen(path)}


def _pattern(text):
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(
        "".join(parts.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", text))
    )


class Image:
    """The image of a Dockerfile in a folder that everybody can read, and its processes."""

    def __init__(self, folder, dockerfile):
        self.app, self.kernels, self._home = folder / "app", folder / "kernels", folder / "python"
        self.user = int(re.search(r"^USER (\d+):\1$", (ROOT / dockerfile).read_text(), re.MULTILINE)[1])
        self.app.mkdir()
        self._home.mkdir()
        for name in build_context(ROOT):
            (self.app / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, self.app / name)
        compile_dir(self.app / "fedboost", quiet=1)  # as an installation does
        command = [sys.executable, "-m", "fedboost", "warm-up"]  # in the cache that all tests share
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        for compiled in folders().read:
            shutil.copytree(compiled, self.kernels / compiled.name, dirs_exist_ok=True)

    @property
    def environment(self):
        """The environment of its processes."""
        packages = os.pathsep.join(
            [str(self.app), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        )
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self._home / "lib"),
            "PYTHONPATH": packages,
            "FEDBOOST_CACHE": str(self.kernels),
        }

    @property
    def python(self):
        """The Python of its processes, which they may read wherever it is installed."""
        return str(self._home / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")

    def command(self, words, volumes):
        """The command line of a process with these volumes: folder, and if it may be written."""
        mounts = f"mount --bind {sys.base_prefix} {self._home}; {_read_only(*volumes)}"
        run = shlex.join([*become(self.user), *words])
        return ["unshare", "--mount", "sh", "-c", f"{mounts}; exec {run}"]
