"""Install the wheel into empty environments and do what the README says, as a user without rights.

Usage: python .ci/wheel.py [WHEEL] [PYTHON ...]    (this Python, unless others are named)

A wheel that is named is a release: its dependencies have the versions of constraints.txt and are those of the
SBOM beside it, and its kernels are compiled. Otherwise the wheel is built, its dependencies have the newest
versions, and kernels that were compiled here are copied; tests/test_kernel_cache.py has users without rights
compile them. Each environment holds these, nothing else. The folder is empty, there is no home folder, and
where this runs as root the commands do not, if another user can run this Python.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOBODY = 65534
"""The user and group that have no rights on any system."""
PATIENCE_SECONDS = 300.0
OF_VENV = ("pip", "setuptools")
"""Packages that an empty environment has."""


def main() -> None:
    """Build the wheel, and try it with each Python."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # which ends what runs, too
    with tempfile.TemporaryDirectory(prefix="fedboost-wheel-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        released = [Path(word) for word in sys.argv[1:] if word.endswith(".whl")]
        pythons = [word for word in sys.argv[1:] if not word.endswith(".whl")]
        if not released:
            build = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", name, str(ROOT)]
            run([sys.executable, "-m", *build])
        (wheel,) = released or folder.glob("*.whl")
        versions = ["--constraint", str(ROOT / "constraints.txt")] if released else []
        for number, python in enumerate(pythons or [sys.executable]):
            begin = time.monotonic()
            environment = folder / f"env-{number}"
            run([python, "-m", "venv", str(environment)])
            version = output([str(environment / "bin" / "python"), "--version"])
            pip = [str(environment / "bin" / "python"), "-m", "pip"]
            run([*pip, "install", "--quiet", *versions, str(wheel)])
            if released:
                check_sbom(wheel, environment / "bin" / "python")
            else:
                copy_kernels(environment / "bin" / "python")
            installed = time.monotonic()
            try_readme(environment / "bin", folder / f"empty-{number}")
            seconds = f"{installed - begin:.0f} s to install, {time.monotonic() - installed:.0f} s to run"
            user = "without rights" if user_without_rights(environment / "bin") else "of this process"
            print(f"{version}, user {user}: {wheel.name}: the README holds ({seconds})", flush=True)


def try_readme(programs: Path, folder: Path) -> None:
    """Run the demo, the README's session between organisations and its Python, in an empty folder."""
    folder.mkdir()
    os.chmod(folder, 0o777)
    text = (ROOT / "README.md").read_text()
    script, code = (
        re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M) for language in ("sh", "python")
    )
    session = script[-1].replace("7070", str(free_port())).replace("--analyst marie", "--analyst marie --yes")
    said = run(["fedboost", "demo"], programs, folder)
    (table,) = re.findall(
        r"model        logloss.*?pooled[^\n]*\n", (ROOT / "docs" / "tutorial.md").read_text(), re.S
    )
    assert table in said, f"docs/tutorial.md shows another table of the demo than\n{said}"
    for command in (
        ["fedboost", "--version"],
        ["bash", "-e", "-c", session],
        ["fedboost", "predict", "model.json", "fedboost-demo/new.csv", "--out", "predictions.csv"],
        ["python", "-c", code[0]],
    ):
        run(command, programs, folder)
    assert len((folder / "predictions.csv").read_text().splitlines()) == 143
    modules = (
        "import fedboost, pathlib; print((pathlib.Path(fedboost.__file__).parent / 'py.typed').exists())"
    )
    assert output([str(programs / "python"), "-c", modules]) == "True"


def check_sbom(wheel: Path, python: Path) -> None:
    """Compare the SBOM beside a wheel with what that Python's environment contains."""
    (file,) = wheel.parent.glob("*.cdx.json")
    bom = json.loads(file.read_text())
    parts = [bom["metadata"]["component"], *bom["components"]]
    listed = {(normal(part["name"]), part["version"]) for part in parts}
    frozen = json.loads(output([str(python), "-m", "pip", "list", "--format", "json"]))
    found = {(normal(part["name"]), part["version"]) for part in frozen if part["name"] not in OF_VENV}
    assert listed == found, f"{file} and the environment differ in {sorted(listed ^ found)}"


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def copy_kernels(python: Path) -> None:
    """Copy this package's compiled kernels, if there are any, to the package of that Python."""
    purelib = output([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    for compiled in (ROOT / "fedboost" / "__pycache__").glob("kernels-*"):
        shutil.copytree(compiled, Path(purelib, "fedboost", "__pycache__", compiled.name))


def run(command: list[str], programs: Path | None = None, folder: Path | None = None) -> str:
    """Run a command to its end, one of these programs without rights; what it printed. SystemExit if it
    fails."""
    unprivileged = user_without_rights(programs) if programs is not None else {}
    environment = dict(os.environ)
    if programs is not None:
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    with subprocess.Popen(
        command if programs is None or "/" in command[0] else [which(command[0], programs), *command[1:]],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **unprivileged,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
            end = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            end_group(process)
            printed, end = process.communicate()[0], f"did not end within {PATIENCE_SECONDS:.0f} s"
        finally:
            end_group(process)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)[:300]}\n{printed}{end}")
    return printed


def end_group(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started, e.g. the servers of a demo."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def user_without_rights(programs: Path) -> dict[str, Any]:
    """Arguments of subprocess for a user without rights; none where this is no root, or where that user
    cannot run this Python, as one under root's home."""
    if os.geteuid() != 0:
        return {}
    other: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    try:
        subprocess.run([programs / "python", "-c", ""], check=True, capture_output=True, **other)
    except (PermissionError, subprocess.CalledProcessError):
        return {}
    return other


def which(program: str, programs: Path) -> str:
    """The path of a program: that of the environment, if it has it."""
    return str(programs / program) if (programs / program).exists() else program


def output(command: list[str]) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
