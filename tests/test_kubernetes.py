"""Kubernetes manifests: what they refer to is there, nothing has rights that it does not need, and their
commands run, as processes on loopback."""

import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import preloaded
import pytest
import yaml
from commands import done
from processes import ending, free_port
from sites import shared_out, terms, written
from typer.main import get_command

import fedboost as fb
from fedboost.cli.main import whole
from fedboost.runtime.config import read_adder, read_aggregator
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import terms_to_toml

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "kubernetes"
ROLES = ("aggregator", "adder", "party")
GIVEN = {*(f"fedboost-{name}-keys" for name in (*ROLES, "probe")), "fedboost-party-data"}
"""What is no file of the repository: keys, and the table."""
VOLUMES = {"/config", "/keys", "/data", "/memory", "/state", "/tmp"}
"""Folders that the images have, the config files and /tmp."""


def manifests(role):
    """The manifests of a folder by kind."""
    files = [file for file in (MANIFESTS / role).glob("*.yaml") if file.name != "kustomization.yaml"]
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    kinds = [document["kind"] for document in documents]
    assert len(set(kinds)) == len(kinds)
    return dict(zip(kinds, documents, strict=True))


def kustomization(folder):
    return yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())


def pod(role):
    return manifests(role)["Deployment"]["spec"]["template"]["spec"]


def containers(role):
    """The containers of a role: the one that makes its keys its own, then the one that stays."""
    spec = pod(role)
    (keys,), (own,) = spec["initContainers"], spec["containers"]
    return keys, own


def dockerfile(role):
    """The content of the file of a role's image."""
    (image,) = {container["image"] for container in containers(role)}
    return (ROOT / image.removeprefix("fedboost-") / "Dockerfile").read_text()


def commands(role):
    """The commands of fedboost in the manifests of a role: its own, or that of the image, with arguments; and
    probes."""
    words = re.search(r"^ENTRYPOINT (.+)$", dockerfile(role), re.MULTILINE)[1]
    _, own = containers(role)
    probes = [own[name]["exec"]["command"] for name in own if name.endswith("Probe")]
    return [[*own.get("command", yaml.safe_load(words)), *own.get("args", [])], *probes]


@pytest.mark.parametrize("folder", [*ROLES, "example"])
def test_a_kustomization_names_all_files_and_no_others(folder):
    content = kustomization(folder)
    (config,) = content["configMapGenerator"]
    named = {*content["resources"], *config["files"], "kustomization.yaml"}
    assert {file.name for file in (MANIFESTS / folder).iterdir()} == named - {"../party"}
    assert all((MANIFESTS / folder / name).exists() for name in named)


@pytest.mark.parametrize("role", ROLES)
def test_manifests_refer_to_what_there_is(role):
    found, spec = manifests(role), pod(role)
    own = {"app.kubernetes.io/name": f"fedboost-{role}"}
    assert all(document["metadata"]["labels"] == own for document in found.values())
    deployment = found["Deployment"]["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"] == own
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == own
    config = kustomization(role)["configMapGenerator"][0]
    claims = {found[kind]["metadata"]["name"] for kind in found if kind == "PersistentVolumeClaim"}
    known = {config["name"], *claims, *GIVEN}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for volume in volumes.values():
        kinds = "configMap", "secret", "persistentVolumeClaim"
        (kind,) = [kind for kind in (*kinds, "emptyDir") if kind in volume]
        name = [volume[kind].get(key) for key in ("name", "secretName", "claimName") if key in volume[kind]]
        assert set(name) <= known
    mounts = [mount for container in containers(role) for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == set(volumes)
    assert config["files"] == [f"{role}.toml"]
    assert commands(role)[0][:4] == ["fedboost", role, "--config", f"/config/{role}.toml"]


def served(role, listen):
    """The port of a role's service, which reaches the address on which the process listens."""
    found = manifests(role)
    (port,) = found["Service"]["spec"]["ports"]
    (own,) = containers(role)[1]["ports"]
    assert port["targetPort"] == own["name"]
    assert listen == f"0.0.0.0:{own['containerPort']}"
    ingress = found["NetworkPolicy"]["spec"]["ingress"]
    assert ingress == [{"ports": [{"port": port["port"], "protocol": "TCP"}]}]
    assert found["Service"]["spec"]["selector"] == found["Service"]["metadata"]["labels"]
    return port


def test_an_adder_reaches_the_aggregator_and_stores_nothing():
    found, file = manifests("adder"), read_adder(MANIFESTS / "adder/adder.toml")
    served("adder", file.listen)
    upstream = manifests("aggregator")["Service"]
    (port,) = upstream["spec"]["ports"]
    assert file.upstream == f"{upstream['metadata']['name']}:{port['port']}"
    assert found["NetworkPolicy"]["spec"]["egress"] == manifests("party")["NetworkPolicy"]["spec"]["egress"]
    assert "PersistentVolumeClaim" not in found
    assert not any("persistentVolumeClaim" in volume for volume in pod("adder")["volumes"])
    assert dockerfile("adder") == dockerfile("aggregator")


def test_parties_reach_the_aggregator_and_nobody_reaches_a_party():
    found = manifests("aggregator")
    port = served("aggregator", read_aggregator(MANIFESTS / "aggregator/aggregator.toml").listen)
    assert found["NetworkPolicy"]["spec"]["egress"] == []
    party = manifests("party")
    assert "Service" not in party
    assert "ports" not in containers("party")[1]
    policy = party["NetworkPolicy"]["spec"]
    assert policy["ingress"] == []
    assert {entry["port"] for rule in policy["egress"] for entry in rule["ports"]} == {53, port["port"]}
    for document in (found, manifests("adder"), party):
        assert document["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    (address,) = read_party(MANIFESTS / "party/party.toml", None).aggregator
    assert address == f"{found['Service']['metadata']['name']}:{port['port']}"


@pytest.mark.parametrize("role", ROLES)
def test_containers_have_no_rights_and_write_to_volumes_alone(role):
    spec = pod(role)
    (user,) = re.findall(r"^USER (\d+):\1$", dockerfile(role), re.MULTILINE)
    rights = spec["securityContext"]
    assert rights["runAsNonRoot"] is True
    assert {rights[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for container in containers(role):
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert not {"privileged", "runAsUser"} & set(rights)
        assert container["resources"]["limits"]["memory"]
        assert "env" not in container
    _, own = containers(role)
    assert {mount["mountPath"] for mount in own["volumeMounts"]} <= VOLUMES
    deployment = manifests(role)["Deployment"]["spec"]
    assert deployment["replicas"] == 1
    stores = "PersistentVolumeClaim" in manifests(role)
    assert deployment.get("strategy") == ({"type": "Recreate"} if stores else None)


def test_the_sums_of_a_session_fit_the_container():
    limit = containers("aggregator")[1]["resources"]["limits"]["memory"]
    assert read_aggregator(MANIFESTS / "aggregator/aggregator.toml").memory < int(limit.removesuffix("Gi"))


@pytest.mark.parametrize("role", ROLES)
def test_commands_have_options_that_there_are(role):
    known = get_command(whole()).commands
    for name, command, *words in commands(role):
        assert name == "fedboost"
        options = {option for parameter in known[command].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_nothing_secret_is_a_file_of_the_repository():
    for file in MANIFESTS.rglob("*"):
        if file.is_file():
            assert file.suffix in (".yaml", ".toml")
            assert "PRIVATE KEY" not in file.read_text()
            assert "kind: Secret" not in file.read_text()


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
@pytest.mark.parametrize("folder", [*ROLES, "example"])
def test_kustomize_builds_them(folder):
    command = ["kubectl", "kustomize", str(MANIFESTS / folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    documents = {document["kind"]: document for document in yaml.safe_load_all(built)}
    volumes = documents["Deployment"]["spec"]["template"]["spec"]["volumes"]
    (config,) = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    assert config == documents["ConfigMap"]["metadata"]["name"]
    if folder == "example":
        (image,) = {c["image"] for c in documents["Deployment"]["spec"]["template"]["spec"]["containers"]}
        assert image == f"registry.example.org/fedboost-party:{fb.__version__}"
        assert documents["NetworkPolicy"]["spec"]["egress"][1]["to"]
        assert "fed.example.org" in documents["ConfigMap"]["data"]["party.toml"]


class Pod:
    """A pod as processes: its volumes are folders, its secrets files that the group can read."""

    def __init__(self, role, folder, ports, bundles):
        self.role, self.folder, self.ports = role, folder, ports
        self.folder.mkdir()
        for name in VOLUMES - {"/tmp"}:
            (folder / name.strip("/")).mkdir()
        for name, bundle in bundles.items():
            target = folder / "bundles" / name
            target.mkdir(parents=True)
            for file in bundle.iterdir():
                shutil.copy(file, target)
                (target / file.name).chmod(0o440)
        text = (MANIFESTS / role / f"{role}.toml").read_text()
        (folder / "config" / f"{role}.toml").write_text(self.here(text))

    def here(self, text):
        """A path or address of the container, as it is on this machine."""
        for number, port in self.ports.items():
            text = re.sub(rf"(0\.0\.0\.0|localhost|fedboost-[a-z]+):{number}\b", f"127.0.0.1:{port}", text)
        return re.sub(r"(?<![\w.])/(?=(config|keys|data|memory|state|bundles)\b)", f"{self.folder}/", text)

    def lay_keys(self):
        """What the first container does."""
        keys, _ = containers(self.role)
        shell, option, script = keys["command"]
        subprocess.run([shell, option, self.here(script)], check=True)

    def start(self, number=0, **pipes):
        """A command of the manifests: that of the image, or a probe."""
        words = [self.here(word) for word in commands(self.role)[number][1:]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [*preloaded.words(), *words], text=True, env=environment, stdin=subprocess.DEVNULL, **pipes
        )


@pytest.mark.slow
@pytest.mark.parametrize("through", [False, True])
def test_the_commands_of_the_pods_train_a_model(tmp_path, monkeypatch, through):
    """As on a cluster: keys from secrets, a probe, an approval in the pod of the party, a training; also
    through an adder."""
    folder = tmp_path
    monkeypatch.chdir(folder)
    done("keys", "init-consortium")
    members = (("adder", "eu"), ("party", "north"), ("analyst", "probe"), ("analyst", "marie"))
    for command in (("aggregator",), *members):
        done("keys", *command)
    keys, ports = folder / "keys", {7070: free_port(), 7071: free_port()}
    pods = {
        role: Pod(role, folder / role, ports, {role: keys / name, "probe": keys / "probe"})
        for role, name in (("aggregator", "aggregator"), ("adder", "eu"))[: 1 + through]
    }
    party = Pod("party", folder / "party", ports, {"party": keys / "north"})
    (folder / "one.toml").write_text(terms_to_toml(terms(["north"])))
    (file,) = written(folder, shared_out(1)).values()
    site = party.folder / "config/party.toml"
    text = site.read_text().replace("north.csv", "north.parquet")
    if through:  # as an overlay says
        text = text.replace(f":{ports[7070]}", f":{ports[7071]}") + 'through = ["eu"]\n'
    site.write_text(text)
    shutil.copy(file, party.folder / "data" / "north.parquet")
    with ExitStack() as stack:
        for one in (*pods.values(), party):
            one.lay_keys()
            one.lay_keys()  # a container that is started again
        for one in pods.values():
            stack.enter_context(ending(one.start(stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)))
        done("approve", "one.toml", "--config", str(site), "--analyst", "marie", "--yes")
        stack.enter_context(ending(party.start(stderr=subprocess.DEVNULL)))
        at = ("--aggregator", f"127.0.0.1:{ports[7070]}", "--keys", "keys/marie")
        done("train", "one.toml", *at, "--out", "m.json")
        for one in pods.values():
            probe = one.start(1, stdout=subprocess.PIPE)
            with ending(probe):
                assert probe.wait(60) == 0
                assert probe.stdout.read() == "serving\n"
    assert tuple(fb.Model.load(folder / "m.json").attestations) == ("north",)
    assert list((pods["aggregator"].folder / "state").iterdir())
    assert list((party.folder / "memory").rglob("memory.sqlite"))
