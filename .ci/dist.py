"""Build a release: wheel, sdist, SBOM and SHA256SUMS. Two builds of a commit are equal byte for byte.

    python .ci/dist.py FOLDER [SOURCE]    (the last commit, unless a folder with sources is named)
    python .ci/dist.py --pin              (write constraints.txt, .ci/packages.txt and .ci/tools.txt)

constraints.txt has the versions that a new installation gets, .ci/packages.txt these with the hashes of all
their files, and .ci/tools.txt the tools in the same way. `make dist` runs this where these are installed.
Times in the files are SOURCE_DATE_EPOCH: that of the environment, otherwise the time of the last commit.
"""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"
TOOLS = ("build", "cyclonedx-bom", "hatchling")
"""Packages that build a release. Other versions may write other bytes."""


def main() -> None:
    """Build the release, or write the versions of packages."""
    if sys.argv[1:] == ["--pin"]:
        return pin()
    folder, *sources = map(Path, sys.argv[1:])
    if "SOURCE_DATE_EPOCH" not in os.environ:
        os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct").decode().strip()
    os.umask(0o022)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty; name an empty folder, or remove it")
    with tempfile.TemporaryDirectory(prefix="fedboost-dist-") as name:
        source = sources[0] if sources else last_commit(Path(name))
        content, version = sbom(source)
        run("build", "--no-isolation", "--outdir", str(folder.resolve()), str(source))
        (folder / f"fedboost-{version}.cdx.json").write_text(content)
    files = sorted(folder.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / SUMS).write_text("".join(lines))
    print("".join(lines), end="")


def last_commit(folder: Path) -> Path:
    """Extract the files of the last commit; SystemExit if other files are here."""
    if changed := git("status", "--porcelain").decode():
        sys.exit(f"a release is built from a commit; commit or remove\n{changed}")
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def sbom(source: Path) -> tuple[str, str]:
    """CycloneDX JSON of the packages that constraints.txt pins, and the version of fedboost.

    The tool lists the packages of this environment. Those that only build a release are left out. SystemExit
    if the others are not exactly the pinned ones.
    """
    pins = pinned((source / "constraints.txt").read_text())
    options = ["--mc-type", "application", "--output-reproducible", "--of", "JSON", "-o", "-"]
    project = str(source / "pyproject.toml")
    bom: dict[str, Any] = json.loads(
        run("cyclonedx_py", "environment", "--pyproject", project, *options, sys.executable)
    )
    listed = [part for part in bom["components"] if normal(part["name"]) in pins]
    found = {normal(part["name"]): part["version"] for part in listed}
    if wrong := sorted(f"{name}=={pins[name]}" for name in pins if found.get(name) != pins[name]):
        sys.exit(f"this environment lacks versions of constraints.txt: {', '.join(wrong)}; run `make dist`")
    root = bom["metadata"]["component"]
    root["purl"] = f"pkg:pypi/fedboost@{root['version']}"
    known = {root["bom-ref"], *(part["bom-ref"] for part in listed)}
    bom["components"] = listed
    bom["dependencies"] = [
        {**edge, "dependsOn": [ref for ref in edge.get("dependsOn", ()) if ref in known]}
        for edge in bom["dependencies"]
        if edge["ref"] in known
    ]
    return json.dumps(bom, indent=2, sort_keys=True, ensure_ascii=False) + "\n", root["version"]


def pin() -> None:
    """Install fedboost in an empty environment, write versions and hashes of what it needs."""
    file = ROOT / "constraints.txt"
    with tempfile.TemporaryDirectory(prefix="fedboost-pin-") as name:
        subprocess.run([sys.executable, "-m", "venv", name], check=True)
        pip = [str(Path(name) / "bin" / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", str(ROOT)], check=True)
        freeze = [*pip, "freeze", "--exclude", "fedboost"]
        frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
        file.write_text(head_of(file) + frozen)
        subprocess.run([*pip, "install", "--quiet", "uv"], check=True)
        uv = str(Path(name) / "bin" / "uv")
        hashed(uv, ROOT / ".ci" / "packages.txt", frozen)
        hashed(uv, ROOT / ".ci" / "tools.txt", "\n".join(TOOLS), "--constraint", str(file), "--upgrade")


def hashed(uv: str, file: Path, packages: str, *options: str) -> None:
    """Write the versions of packages and of all that they need, with hashes of the files for all systems."""
    command = [uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate", "--no-header"]
    command += ["--universal", "--python-version", "3.11", *options, "-"]
    done = subprocess.run(command, input=packages, check=True, capture_output=True, text=True)
    file.write_text(head_of(file) + done.stdout)


def head_of(file: Path) -> str:
    """The comments at the beginning of a file."""
    return "".join(line for line in file.read_text().splitlines(keepends=True) if line.startswith("#"))


def pinned(text: str) -> dict[str, str]:
    """The versions in constraints.txt, by normalized name."""
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(module: str, *arguments: str) -> str:
    """Run a module of this environment; what it printed. SystemExit if it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{module} failed with exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def git(*arguments: str) -> bytes:
    """What git prints about this clone."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
