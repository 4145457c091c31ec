"""The compose file's services run, by their very commands, as processes on loopback."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from processes import ending, free_port
from sites import fedboost

import fedboost as fb

ROOT = Path(__file__).parents[1]


FEDBOOST = [sys.executable, "-m", "fedboost"]


def commands(script: str) -> str:
    """The commands of a container's script as this machine has them."""
    return re.sub(r"\bfedboost (?=approve|party|keyholder)", f"{shlex.join(FEDBOOST)} ", script)


class Compose:
    """docker-compose.yml with the machine in place of the containers."""

    def __init__(self, folder: Path) -> None:
        self.content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        self.folder = folder
        self.port = free_port()

    def here(self, service: str, text: str) -> str:
        """A path or address inside a service's container, as it is on this machine."""
        for outer, inner in (
            ("0.0.0.0:7070", f"127.0.0.1:{self.port}"),
            ("aggregator:7070", f"127.0.0.1:{self.port}"),
            ("localhost:7070", f"127.0.0.1:{self.port}"),
            ("/config/", f"{self.folder}/{service}/"),
            ("/data", f"{self.folder}/data"),
            ("/keys", f"{self.folder}/keys"),
            ('"/state"', f'"{self.folder}/state"'),
            ('"/memory"', f'"{self.folder}/memory"'),
            ("/out/", f"{self.folder}/out/"),
        ):
            text = text.replace(outer, inner)
        return text

    def start(self, service: str) -> "subprocess.Popen[str]":
        """Lay the service's config files and start its command."""
        values = self.content["services"][service]
        for config in values.get("configs", []):
            target = Path(self.here(service, config["target"]))
            target.parent.mkdir(exist_ok=True)
            target.write_text(self.here(service, self.content["configs"][config["source"]]["content"]))
        programs = {"fedboost": FEDBOOST, "python": [sys.executable], "sh": ["sh"]}
        name, *arguments = values["command"]
        with (self.folder / f"{service}.log").open("w") as log:
            return subprocess.Popen(
                [*programs[name], *(self.here(service, commands(word)) for word in arguments)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                text=True,
            )


@pytest.mark.slow
def test_the_services_of_the_compose_file_train_a_model(tmp_path):
    compose = Compose(tmp_path)
    (tmp_path / "out").mkdir()
    with ExitStack() as stack:
        assert compose.start("sites").wait(60) == 0
        for service in ("aggregator", "north", "south", "east"):
            stack.enter_context(ending(compose.start(service)))
        analyst = stack.enter_context(ending(compose.start("analyst")))
        assert analyst.wait(90) == 0, (tmp_path / "analyst.log").read_text()
        _, _, *probe = compose.content["services"]["aggregator"]["healthcheck"]["test"]
        ended = fedboost(*(compose.here("aggregator", word) for word in probe))
        assert (ended.code, ended.out) == (0, "serving\n"), ended.err
    model = fb.Model.load(tmp_path / "out" / "model.json")
    assert tuple(model.attestations) == model.parties == ("north", "south", "east")
    assert model.protection == "masked"
    kept = [(tmp_path / "memory" / name).iterdir() for name in model.parties]
    assert [{file.name for file in files} for files in kept] == [
        {"memory.sqlite", f"{name}.audit.jsonl", f"{name}.lock", "terms", "approved"}
        for name in model.parties
    ]


@pytest.mark.slow
def test_the_services_of_the_profile_with_a_key_holder_train_a_model(tmp_path):
    pytest.importorskip("phe")
    compose = Compose(tmp_path)
    (tmp_path / "out").mkdir()
    with ExitStack() as stack:
        assert compose.start("sites").wait(60) == 0
        for service in ("aggregator", "north", "south", "east", "keyholder"):
            stack.enter_context(ending(compose.start(service)))
        analyst = stack.enter_context(ending(compose.start("encrypted")))
        assert analyst.wait(150) == 0, (tmp_path / "encrypted.log").read_text()
    model = fb.Model.load(tmp_path / "out" / "encrypted.json")
    assert tuple(model.attestations) == model.parties == ("north", "south", "east", "keyholder")
    assert model.protection == "paillier"


def test_every_service_of_the_compose_file_can_start():
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = content["services"]
    sites = {"north", "south", "east", "keyholder"}
    assert set(services) == {"sites", "aggregator", "analyst", "encrypted", *sites}
    for name, service in services.items():
        assert (ROOT / service["build"]["dockerfile"]).is_file(), name
        assert all(config["source"] in content["configs"] for config in service.get("configs", []))
        assert set(service.get("depends_on", [])) <= set(services)
        assert "ports" not in service, "nothing is published outside the compose network"
