"""Build a release: wheel, sdist, SBOM and SHA256SUMS. Two builds of a commit are equal byte for byte.

    python .ci/dist.py FOLDER [SOURCE]    (the last commit, unless a folder with sources is named)
    python .ci/dist.py --pin              (write constraints.txt: what a new installation gets)

`make dist` runs this in an environment that has exactly the versions of constraints.txt and .ci/dist.txt.
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


def main() -> None:
    """Build the release, or write constraints.txt."""
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
    """Install fedboost in an empty environment, and write the versions of its dependencies."""
    with tempfile.TemporaryDirectory(prefix="fedboost-pin-") as name:
        subprocess.run([sys.executable, "-m", "venv", name], check=True)
        python = str(Path(name) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
        frozen = subprocess.run(
            [python, "-m", "pip", "freeze", "--exclude", "fedboost"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    file = ROOT / "constraints.txt"
    comments = [line for line in file.read_text().splitlines(keepends=True) if line.startswith("#")]
    file.write_text("".join(comments) + frozen)


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
