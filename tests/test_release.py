"""What `make dist` builds: equal files on every machine, with an SBOM of what the package needs."""

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedboost.version import VERSION

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
SDIST = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
EPOCH = 1_700_000_000
PIN = re.compile(r"^([\w.-]+)==(\S+)$", re.MULTILINE)


def pins():
    """The packages of constraints.txt: normalized name to version."""
    text = (ROOT / "constraints.txt").read_text()
    return {canonicalize_name(name): version for name, version in PIN.findall(text)}


def hashed(name):
    """The packages of a file that are for this system: normalized name to version and hashes."""
    text = (ROOT / ".ci" / name).read_text().replace("\\\n", "")
    lines = [line.split("--hash=") for line in text.splitlines() if not line.startswith("#")]
    parts = [(Requirement(line[0]), [one.strip() for one in line[1:]]) for line in lines]
    return {
        canonicalize_name(one.name): (str(one.specifier).removeprefix("=="), hashes)
        for one, hashes in parts
        if one.marker is None or one.marker.evaluate()
    }


def requirements(texts):
    """Those of some requirements that hold here and are of no extra."""
    found = (Requirement(text) for text in texts or ())
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == VERSION
    (image,) = yaml.safe_load((ROOT / "kubernetes/example/kustomization.yaml").read_text())["images"]
    assert image["newTag"] == VERSION
    released = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == VERSION


def test_each_package_that_an_installation_needs_is_pinned_and_no_other():
    waiting, known = requirements(PROJECT["dependencies"]), {}
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        assert one.specifier.contains(pins().get(name, "0")), f"{one}: run `make constraints`"
        if name not in known:
            known[name] = requirements(metadata.requires(name))
            waiting += known[name]
    assert known.keys() == pins().keys()


@pytest.mark.parametrize("name", ["packages.txt", "tools.txt"])
def test_images_and_releases_install_packages_by_their_hashes(name):
    packages = hashed(name)
    if name == "packages.txt":
        assert {name: version for name, (version, _) in packages.items()} == pins(), "run `make constraints`"
    else:
        assert {"build", "cyclonedx-bom", "hatchling", "pathspec"} <= packages.keys()
        shared = packages.keys() & pins().keys()
        assert all(packages[name][0] == pins()[name] for name in shared)
    for _, hashes in packages.values():
        assert hashes
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes)


def built(folder, source, **environment):
    """The files of a release of these sources: name to content."""
    command = [sys.executable, str(ROOT / ".ci" / "dist.py"), str(folder), str(source)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, cwd="/")
    assert done.returncode == 0, done.stderr
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def sources(tmp_path_factory):
    """Two folders with the same sources. They differ in all that is not part of the content."""
    folders = [tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("another") / "deep" / "folder"]
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("pyproject.toml", ".gitignore", *SDIST):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / name, folder / name)
        here = "".join(f"{name}=={metadata.version(name)}\n" for name in pins())
        (folder / "constraints.txt").write_text(here)
        for path in [*folder.rglob("*")][:: 1 if number else -1]:
            path.chmod((0o755, 0o700)[number] if path.is_dir() else (0o644, 0o600)[number])
            os.utime(path, (EPOCH + 10**6 * number, EPOCH + 10**6 * number))
    return folders


@pytest.fixture
def releases(sources, tmp_path_factory):
    """A release of each of the two folders, in unlike environments."""
    one = built(tmp_path_factory.mktemp("one"), sources[0], TZ="UTC", LC_ALL="C", PYTHONHASHSEED="1")
    old = os.umask(0o077)
    try:
        other = built(tmp_path_factory.mktemp("other"), sources[1], TZ="Asia/Tokyo", PYTHONHASHSEED="2")
    finally:
        os.umask(old)
    return one, other


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_releases_are_equal_byte_for_byte(releases, sources, tmp_path):
    one, other = releases
    names = {f"fedboost-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl", ".cdx.json")}
    assert one.keys() == other.keys() == names | {"SHA256SUMS"}
    assert {name for name in one if one[name] != other[name]} == set()
    due = {name: hashlib.sha256(one[name]).hexdigest() for name in names}
    assert one["SHA256SUMS"].decode() == "".join(f"{due[name]}  {name}\n" for name in sorted(due))
    check_archives(one, sources, tmp_path)
    check_sbom(one)


def check_archives(release, sources, tmp_path):
    """They have the whole package and one time, and name no folder of the machine."""
    for name, content in release.items():
        (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / f"fedboost-{VERSION}-py3-none-any.whl") as wheel:
        seconds = {
            datetime.datetime(*one.date_time, tzinfo=datetime.UTC).timestamp() for one in wheel.infolist()
        }
        inside = {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(tmp_path / f"fedboost-{VERSION}.tar.gz") as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}
        seconds |= {one.mtime for one in archive}
    assert seconds == {EPOCH}
    for content in [*inside.values(), *members.values(), release[f"fedboost-{VERSION}.cdx.json"]]:
        assert not any(str(folder).encode() in content for folder in sources)
    package = (path for path in (ROOT / "fedboost").rglob("*") if "__pycache__" not in path.parts)
    due = {str(path.relative_to(ROOT)): path.read_bytes() for path in package if path.is_file()}
    assert {name: inside[name] for name in inside if ".dist-info/" not in name} == due
    assert {f"fedboost-{VERSION}/{name}" for name in due} <= members.keys()


def check_sbom(release):
    """It has what is pinned, and what needs it."""
    bom = json.loads(release[f"fedboost-{VERSION}.cdx.json"])
    assert (bom["bomFormat"], "serialNumber" in bom) == ("CycloneDX", False)
    told = bom["metadata"]["timestamp"]
    assert datetime.datetime.fromisoformat(told).timestamp() == EPOCH
    root = bom["metadata"]["component"]
    assert (root["name"], root["version"]) == ("fedboost", VERSION)
    parts = {canonicalize_name(part["name"]): part for part in bom["components"]}
    assert {name: part["version"] for name, part in parts.items()} == {n: metadata.version(n) for n in pins()}
    assert all(part["purl"].startswith("pkg:pypi/") for part in parts.values())
    assert {name for name, part in parts.items() if "licenses" not in part} <= {"protobuf"}, (
        "others state one"
    )
    edges = {edge["ref"]: {*edge["dependsOn"]} for edge in bom["dependencies"]}
    due = {parts[canonicalize_name(one.name)]["bom-ref"] for one in requirements(PROJECT["dependencies"])}
    assert edges[root["bom-ref"]] == due
    assert edges[parts["cffi"]["bom-ref"]] == {parts["pycparser"]["bom-ref"]}


@pytest.mark.long
@pytest.mark.slow
def test_an_sbom_of_other_versions_than_the_pinned_ones_is_refused(sources, tmp_path):
    shutil.copyfile(sources[0] / "pyproject.toml", tmp_path / "pyproject.toml")
    pinned = (sources[0] / "constraints.txt").read_text()
    (tmp_path / "constraints.txt").write_text(re.sub("numpy==.*", "numpy==0.0.1", pinned))
    command = [sys.executable, str(ROOT / ".ci" / "dist.py"), str(tmp_path / "out"), str(tmp_path)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "lacks versions of constraints.txt: numpy==0.0.1; run `make dist`" in done.stderr


@pytest.mark.parametrize("role", ["party", "aggregator"])
def test_images_have_the_pinned_versions_and_the_sbom(role):
    text = (ROOT / role / "Dockerfile").read_text()
    for name in ("packages.txt", "tools.txt"):
        assert f"--only-binary :all: --require-hashes -r .ci/{name} \\\n" in text
    assert '--constraint constraints.txt "$(echo /wheel/*.whl)${EXTRAS:+[$EXTRAS]}" \\\n' in text
    assert "python -m venv --without-pip /opt/fedboost" in text, "the SBOM does not list it"
    assert 'find . -path "./dist/$sbom" -exec cp {} /opt/fedboost/sbom' in text
    assert "COPY --from=build /opt/fedboost /opt/fedboost\n" in text
