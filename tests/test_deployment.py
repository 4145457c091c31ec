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
from images import Image, needs_images
from processes import ending, free_port
from sites import fedboost
from unprivileged import open_folder

import fedboost as fb

ROOT = Path(__file__).parents[1]


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
        self.port = free_port()
        for name in VOLUMES.values():
            (folder / name).mkdir(mode=0o700)
            if image is not None:
                os.chown(folder / name, image.user, image.user)

    def here(self, service: str, text: str) -> str:
        """A path or address inside a service's container, as it is on this machine."""
        for address in ("0.0.0.0:7070", "aggregator:7070", "localhost:7070"):
            text = text.replace(address, f"127.0.0.1:{self.port}")
        text = text.replace("/config/", f"{self.folder}/{service}/")
        return re.sub(rf"(?<![\w.])({'|'.join(VOLUMES)})\b", rf"{self.folder}\1", text)

    def volumes(self, service: str) -> list[tuple[Path, bool]]:
        """The folders that a service sees, and if it may write there."""
        parts = (volume.split(":") for volume in self.content["services"][service]["volumes"])
        return [(self.folder / VOLUMES[target], not rest) for _, target, *rest in parts]

    def start(self, service: str) -> "subprocess.Popen[str]":
        """Lay the service's config files and start its command."""
        values = self.content["services"][service]
        for config in values.get("configs", []):
            target = Path(self.here(service, config["target"]))
            target.parent.mkdir(exist_ok=True)
            file = ROOT / self.content["configs"][config["source"]]["file"]
            target.write_text(self.here(service, file.read_text()))
        python = [self.image.python if self.image else sys.executable]
        fedboost = [*python, "-m", "fedboost"]
        programs = {"fedboost": fedboost, "python": python, "sh": ["sh"]}
        name, *arguments = values["command"]
        words = [*programs[name], *(self.here(service, commands(word, fedboost)) for word in arguments)]
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
@pytest.mark.timeout(300)
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


def check_consortium(compose):
    tmp_path = compose.folder
    with ExitStack() as stack:
        assert compose.start("sites").wait(60) == 0, (tmp_path / "sites.log").read_text()
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
