"""Containers and services: contents of the images, rights of the units, and the compose file's services, run
by their very commands as processes on loopback."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import preloaded
import pytest
import yaml
from images import Image, build_context, needs_images
from processes import ending, free_port
from sites import fedboost
from unprivileged import open_folder

import fedboost as fb
from fedboost.cli.demo import columns_terms, patients
from fedboost.cli.output import REFUSED
from fedboost.runtime.config import AdderConfig, read_adder
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import read_terms

ROOT = Path(__file__).parents[1]
SITES = "north", "south", "east"
VOLUMES = {"/data": "data", "/keys": "keys", "/state": "state", "/memory": "memory", "/out": "out"}
"""Folders of the containers, and their names here."""


def commands(script: str, fedboost: list[str]) -> str:
    """The commands of a container's script as this machine has them."""
    return re.sub(r"\bfedboost (?=approve|party|keyholder)", f"{shlex.join(fedboost)} ", script)


class Compose:
    """docker-compose.yml with processes in place of the containers, with the rights of the image if given."""

    def __init__(self, folder: Path, image: Image | None = None) -> None:
        self.content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        self.folder, self.image = folder, image
        self.cluster = free_port()
        self.ports = {"aggregator:7070": free_port(), "adder:7071": free_port()}
        for name in VOLUMES.values():
            (folder / name).mkdir(mode=0o700)
            if image is not None:
                os.chown(folder / name, image.user, image.user)

    def here(self, service: str, text: str) -> str:
        """A path or address inside a service's container, as it is on this machine."""
        for address, port in self.ports.items():
            host, _, number = address.partition(":")
            text = re.sub(rf"\b({host}|localhost|0\.0\.0\.0):{number}\b", f"127.0.0.1:{port}", text)
        text = text.replace("scheduler:8786", f"127.0.0.1:{self.cluster}")
        text = text.replace("/config/", f"{self.folder}/{service}/")
        return re.sub(rf"(?<![\w.])({'|'.join(VOLUMES)})\b", rf"{self.folder}\1", text)

    def volumes(self, service: str) -> list[tuple[Path, bool]]:
        """The folders that a service sees, and if it may write there."""
        parts = (volume.split(":") for volume in self.content["services"][service]["volumes"])
        return [(self.folder / VOLUMES[target], not rest) for _, target, *rest in parts]

    def probed(self, service: str) -> SimpleNamespace:
        """The end of a service's health check."""
        _, _, *probe = self.content["services"][service]["healthcheck"]["test"]
        return fedboost(*(self.here(service, word) for word in probe), "--wait", "60")

    def awaited(self, service: str) -> list[str]:
        """The services that must be healthy before this one starts."""
        needs = self.content["services"][service].get("depends_on", {})
        conditions = needs if isinstance(needs, dict) else {}
        return [name for name, need in conditions.items() if need["condition"] == "service_healthy"]

    def start(self, service: str) -> "subprocess.Popen[str]":
        """Lay the service's config files and start its command."""
        values = self.content["services"][service]
        for config in values.get("configs", []):
            target = Path(self.here(service, config["target"]))
            target.parent.mkdir(exist_ok=True)
            file = ROOT / self.content["configs"][config["source"]]["file"]
            target.write_text(self.here(service, file.read_text()))
        python = [self.image.python if self.image else sys.executable]
        fedboost = [*python, "-m", "fedboost"] if self.image else preloaded.words()
        programs = {"fedboost": fedboost, "python": python, "sh": ["sh"]}
        name, *arguments = values["command"]
        words = [*programs[name], *(self.here(service, commands(word, fedboost)) for word in arguments)]
        if service == "scheduler":
            words = [word.replace("8786", str(self.cluster)) for word in words] + ["--host", "127.0.0.1"]
        env = self.image.environment if self.image else {**os.environ, "PYTHONPATH": str(ROOT)}
        if self.image:
            words = self.image.command(words, self.volumes(service))
        with (self.folder / f"{service}.log").open("w") as log:
            return subprocess.Popen(
                words,
                cwd=self.image.app if self.image else ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                text=True,
            )


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_images
def test_the_services_of_the_compose_file_train_a_model_without_rights_on_a_read_only_root_folder():
    with open_folder() as folder:
        check_consortium(Compose(folder, Image(folder, "party/Dockerfile")))
        for log in folder.glob("*.log"):
            assert "cannot be kept" not in log.read_text(), "kernels are in the image"


@pytest.mark.slow
@pytest.mark.skipif(not needs_images.args[0], reason="done as the images do it")
def test_the_services_of_the_compose_file_train_a_model(tmp_path):
    check_consortium(Compose(tmp_path))


def trained(compose, running, analyst, seconds=240):
    """Start these services, and the analyst's, which must end well."""
    logs = compose.folder
    with ExitStack() as stack:
        assert compose.start("sites").wait(60) == 0, (logs / "sites.log").read_text()
        for service in running:
            for needed in compose.awaited(service):
                assert compose.probed(needed).out == "serving\n"
            stack.enter_context(ending(compose.start(service)))
        process = stack.enter_context(ending(compose.start(analyst)))
        assert process.wait(seconds) == 0, (logs / f"{analyst}.log").read_text()
        ended = compose.probed("aggregator")
        assert (ended.code, ended.out) == (0, "serving\n"), ended.err
    return logs / "out"


def check_consortium(compose):
    model = fb.Model.load(trained(compose, ("aggregator", *SITES), "analyst") / "model.json")
    assert tuple(model.attestations) == model.parties == SITES
    assert model.protection == "masked"
    kept = [(compose.folder / "memory" / name).iterdir() for name in SITES]
    assert [{file.name for file in files} for files in kept] == [
        {"memory.sqlite", f"{name}.counter", f"{name}.counter-lock", f"{name}.lock"} for name in SITES
    ]


@pytest.mark.slow
@pytest.mark.long
def test_the_services_of_the_profile_with_a_key_holder_train_a_model(tmp_path):
    pytest.importorskip("phe")
    out = trained(Compose(tmp_path), ("aggregator", *SITES, "keyholder"), "encrypted")
    model = fb.Model.load(out / "encrypted.json")
    assert tuple(model.attestations) == model.parties == (*SITES, "keyholder")
    assert model.protection == "paillier"


@pytest.mark.slow
@pytest.mark.long
def test_the_services_of_the_profile_with_different_columns_train_parts_of_a_model(tmp_path):
    pytest.importorskip("phe")
    out = trained(Compose(tmp_path), ("aggregator", "clinic", "laboratory"), "joined")
    model = fb.PartyModel.load(out / "joined.json")
    assert tuple(model.attestations) == model.parties == ("clinic", "laboratory")
    parts = [*(tmp_path / "memory").glob("*/models/*.json")]
    assert fb.assemble([model, *parts]).protection == "paillier"


@pytest.mark.slow
@pytest.mark.long
def test_the_services_of_the_profile_with_workers_train_the_same_model(tmp_path):
    running = ("aggregator", "scheduler", "worker-1", "worker-2", "north-workers", "south", "east")
    model = fb.Model.load(trained(Compose(tmp_path), running, "clustered") / "clustered.json")
    assert tuple(model.attestations) == model.parties == SITES
    tables = {name: tmp_path / "data" / f"{name}.csv" for name in SITES}
    alone = fb.simulate(read_terms(ROOT / "examples/terms.toml"), tables)
    assert model.booster == alone.model.booster


@pytest.mark.slow
@pytest.mark.long
def test_the_services_of_the_profile_with_an_adder_train_the_same_model(tmp_path):
    running = ("aggregator", "adder", "north-adder", "south", "east")
    model = fb.Model.load(trained(Compose(tmp_path), running, "regional") / "regional.json")
    assert tuple(model.attestations) == model.parties == SITES
    tables = {name: tmp_path / "data" / f"{name}.csv" for name in SITES}
    alone = fb.simulate(read_terms(ROOT / "examples/terms.toml"), tables)
    assert model.booster == alone.model.booster
    here = [line for line in (tmp_path / "adder.log").read_text().splitlines() if "party here" in line]
    assert ["north" in line for line in here] == [True], "the others call the aggregator"


def test_the_party_of_the_profile_with_an_adder_can_do_without_it():
    file = ROOT / "examples/consortium/north-adder.toml"
    assert read_party(file, None).servers == (Server("adder:7071", "eu"), Server("aggregator:7070"))
    assert read_adder(ROOT / "examples/consortium/adder.toml").upstream == "aggregator:7070"


def test_only_its_party_can_call_the_workers_of_the_compose_file_and_it_sees_no_table():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    inside = {name for name, service in services.items() if "north" in service.get("networks", [])}
    assert inside == {"scheduler", "worker-1", "worker-2", "north-workers"}
    assert services["north-workers"]["networks"] == ["default", "north"]
    assert not any("/data" in volume for volume in services["north-workers"]["volumes"])


def test_the_terms_of_the_profile_with_different_columns_are_those_of_the_demo():
    terms = read_terms(ROOT / "examples/terms-columns.toml")
    assert terms == columns_terms(patients(), terms.trees.rounds, "paillier")


def test_every_service_of_the_compose_file_can_start():
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = content["services"]
    sites = {"north", "south", "east", "keyholder", "clinic", "laboratory", "north-workers", "north-adder"}
    cluster = {"scheduler", "worker-1", "worker-2", "clustered"}
    analysts = {"analyst", "encrypted", "joined", "regional"}
    assert set(services) == {"sites", "aggregator", "adder", *analysts, *sites, *cluster}
    for name, service in services.items():
        assert (ROOT / service["build"]["dockerfile"]).is_file(), name
        assert all(config["source"] in content["configs"] for config in service.get("configs", []))
        assert set(service.get("depends_on", [])) <= set(services)
        assert "ports" not in service, "nothing is published outside the compose network"


def test_services_have_no_rights_and_write_to_volumes_of_their_user_alone():
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for service in content["services"].values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"user", "privileged", "cap_add", "environment"} & set(service)
        parts = [volume.split(":") for volume in service.get("volumes", [])]
        assert {name for name, *_ in parts} <= set(content["volumes"]), (
            "named volumes: folders have other owners"
        )
        assert {target for _, target, *_ in parts} <= set(VOLUMES)
    for config in content["configs"].values():
        assert tomllib.loads((ROOT / config["file"]).read_text())["keys"].startswith("/keys/")


@pytest.mark.parametrize("role", ["party", "aggregator"])
def test_an_image_runs_as_a_user_without_rights_with_kernels_inside(role):
    build, image = (ROOT / role / "Dockerfile").read_text().split("\nFROM ")[-2:]
    (kernels,) = re.findall(r"^ENV FEDBOOST_CACHE=(\S+)", build, re.MULTILINE)
    assert "fedboost warm-up" in build[build.index(kernels) :]
    assert f"FEDBOOST_CACHE={kernels}\n" in image
    assert kernels.startswith(re.search(r"COPY --from=build (\S+)", image)[1])
    (owner,) = re.findall(r"^RUN install -d -o (\d+) -g \1 -m 700 ", image, re.MULTILINE)
    assert set(re.search(r"-m 700 (.+)", image)[1].split()) == set(VOLUMES)
    assert re.findall(r"^USER (.+)$", image, re.MULTILINE) == [f"{owner}:{owner}"]
    assert image.index("USER") > image.rindex("COPY"), "nothing is written as that user, or belongs to it"
    words = re.search(r"^ENTRYPOINT (.+)$", image, re.MULTILINE)[1]
    assert yaml.safe_load(words) == ["fedboost", role, "--config", f"/config/{role}.toml"]


SECRETS = (
    *("keys/north/key.pem", "party/key.pem", "fedboost/cli/keys/key.pem", "examples/north.key", "north.csr"),
    *("party/fedboost.state/north/memory.sqlite", "aggregator/aggregator.state/session.journal"),
    *("party/fedboost.state/north/north.counter", "examples/north.counter"),
    *("examples/memory.sqlite-wal", "party/north.audit.jsonl", "examples/north.audit.jsonl.1", "party.log"),
    *(
        "party/north.csv",
        "examples/rows.parquet",
        "fedboost/rows.csv.gz",
        "rows.xlsx",
        "examples/rows.feather",
    ),
    *("fedboost/runtime/local/rows.csv", "benchmarks/rows.tsv", "examples/rows.duckdb", "rows.zst"),
)


PINS = {"constraints.txt", ".ci/packages.txt", ".ci/tools.txt"}
"""Versions and hashes of packages."""


@pytest.fixture
def littered(tmp_path):
    """A folder with the sources' lists of what to leave out, and files that somebody left everywhere."""
    for name in (".gitignore", ".dockerignore"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for name in SECRETS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_images_get_the_package_and_nothing_of_a_site(littered):
    others = (
        ".git/config",
        ".ci/run",
        "tests/test_sdk.py",
        "party/party.toml",
        "model.json",
        ".venv/bin/python",
    )
    wanted = {"fedboost/cli/keys.py", *PINS, "dist/fedboost-1.0.cdx.json"}
    for name in (*others, *wanted, "dist/fedboost-1.0.tar.gz", "examples/constraints.txt"):
        (littered / name).parent.mkdir(parents=True, exist_ok=True)
        (littered / name).touch()
    assert build_context(littered) == wanted


def test_images_get_the_whole_package():
    paths = [
        path for folder in ("fedboost", "examples") for path in (ROOT / folder).rglob("*") if path.is_file()
    ]
    wanted = {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}
    seen = {name for name in build_context(ROOT) if not name.startswith("dist/")}  # the SBOM, if it was built
    assert seen == wanted | {"pyproject.toml", "README.md", "LICENSE", *PINS}


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_keys_memories_logs_and_tables_stay_out_of_the_repository(littered):
    subprocess.run(["git", "init", "--quiet"], cwd=littered, check=True)
    listed = ["git", "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(listed, cwd=littered, check=True, capture_output=True, text=True).stdout.split()
    assert sorted(seen) == [".dockerignore", ".gitignore"]


UNITS = {
    "party": ROOT / "party/fedboost-party.service",
    "aggregator": ROOT / "aggregator/fedboost-aggregator.service",
    "adder": ROOT / "aggregator/fedboost-adder.service",
}


def directives(unit):
    """The lines of a unit: name to values."""
    values = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            values.setdefault(name, []).append(value)
    return values


@pytest.mark.parametrize("role", UNITS)
def test_a_unit_gives_the_service_its_folders_and_no_rights(role):
    values = directives(UNITS[role])
    name = f"fedboost-{role}"
    (command,) = values["ExecStart"]
    assert command.startswith(f"/opt/fedboost/bin/fedboost {role} --config /etc/fedboost/{role}.toml")
    state = [] if role == "adder" else [name]  # an adder keeps nothing
    assert values["User"] == values["Group"] == values["CacheDirectory"] == [name]
    assert values.get("StateDirectory", []) == state
    assert values.get("StateDirectoryMode", []) == ["0700"] * len(state)
    assert values["CacheDirectoryMode"] == ["0700"]
    assert values["Environment"] == [f"FEDBOOST_CACHE=/var/cache/{name}"]
    assert values["Restart"] == ["on-failure"]
    assert values["RestartPreventExitStatus"] == [str(REFUSED)]
    assert values["ProtectSystem"] == ["strict"]
    assert values["NoNewPrivileges"] == values["PrivateTmp"] == ["yes"]
    assert values["CapabilityBoundingSet"] == [""]
    assert "MemoryDenyWriteExecute" not in values, "kernels are compiled as they run"


def test_the_units_differ_in_names_and_folders_alone():
    names = "Description", "User", "Group", "ExecStart", "StateDirectory", "CacheDirectory", "Environment"
    aggregator, adder = (directives(UNITS[role]) for role in ("aggregator", "adder"))
    differ = {name for name in aggregator | adder if aggregator.get(name) != adder.get(name)}
    assert differ <= {*names, "StateDirectoryMode", "TimeoutStopSec"}


def test_the_sample_of_an_adder_is_sound():
    sample = read_adder(ROOT / "aggregator/adder.toml")
    assert sample == AdderConfig(upstream="fed.example.org:7070", keys=ROOT / "keys/eu")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
@pytest.mark.parametrize("role", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(role, tmp_path):
    unit = tmp_path / UNITS[role].name
    unit.write_text(UNITS[role].read_text().replace("/opt/fedboost/bin/fedboost", "/bin/true"))
    end = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (end.returncode, end.stderr) == (0, "")
