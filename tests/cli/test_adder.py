"""`fedboost adder`, `fedboost keys adder`, and the adders that `fedboost aggregator` runs on its machine."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from anything import ANYTHING
from commands import start
from processes import ending, wait_until
from raised import raised
from refusals import refused
from sites import Log, bundles_of, fedboost, shared_out, terms, written

from fedboost.errors import ConfigError
from fedboost.runtime.analyst import Connection
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.net.keys import read_bundle
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.site.node import PartyNode

TABLES = shared_out(3)
LOCAL = "local"
LONG = {"rounds": 40}
UPSTREAM = 'upstream = "127.0.0.1:1"\n'


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adder") / "keys"
    bundles_of(folder, TABLES, (LOCAL,))
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["europe", "Süd 1"])
def test_a_bundle_of_an_adder(here, name):
    for words in (("init-consortium",), ("adder", name)):
        done = fedboost("keys", *words)
        assert (done.code, done.err) == (0, "")
    (folder,) = (path for path in (here / "keys").iterdir() if path.is_dir())
    signer = read_bundle(folder, "adder").signer
    assert (signer.name, signer.role) == (name, "adder")
    with raised(ConfigError, "keys-role"):
        read_bundle(folder, "party")
    shown = fedboost("keys", "show", folder)
    assert shown.code == 0
    assert name in shown.out
    assert "adder" in shown.out


# ---- what is refused ------------------------------------------------------------------------------------


BAD = {
    "nothing": ("", "upstream"),
    "no upstream, as in an aggregator's file": ('listen = "127.0.0.1:0"\n', "upstream"),
    "an unknown key": (UPSTREAM + 'state = "folder"\n', "state"),
    "an upstream without a port": ('upstream = "aggregator"\n', "upstream"),
    "an address without a port": (UPSTREAM + 'listen = "127.0.0.1"\n', "listen"),
    "keys that are not there": (UPSTREAM + 'keys = "nowhere"\n', "nowhere"),
    "no keys": (UPSTREAM, "keys"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_of_an_adder_is_refused_in_one_sentence(here, text, said):
    (here / "adder.toml").write_text(text)
    refused(here, ["adder", "--config", "adder.toml"], said)


@pytest.mark.parametrize("bundle", ["north", "aggregator", "analyst"])
def test_a_bundle_of_another_role_is_refused(here, keys, bundle):
    (here / "adder.toml").write_text(f'{UPSTREAM}keys = "{keys / bundle}"\n')
    refused(here, ["adder", "--config", "adder.toml"], bundle, "adder")
    (here / "aggregator.toml").write_text(f'listen = "127.0.0.1:0"\nkeys = "{keys / "aggregator"}"\n')
    options = ["--adders", "2", "--adder-keys", str(keys / bundle)]
    refused(here, ["aggregator", "--config", "aggregator.toml", *options], bundle, "adder")


def test_the_adders_of_an_aggregator_need_keys_where_it_has_some(here, keys):
    (here / "aggregator.toml").write_text(f'listen = "127.0.0.1:0"\nkeys = "{keys / "aggregator"}"\n')
    refused(here, ["aggregator", "--config", "aggregator.toml", "--adders", "2"], "--adder-keys")


def test_a_port_in_use_is_refused(here):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (here / "adder.toml").write_text(f'{UPSTREAM}listen = "{address}"\n')
        refused(here, ["adder", "--config", "adder.toml", "--insecure-loopback"], address)


@pytest.mark.parametrize("key", ["listen", "upstream"])
def test_without_keys_all_is_on_one_machine(here, key):
    values = {"upstream": "127.0.0.1:1", "listen": "127.0.0.1:0", key: "192.0.2.1:7070"}
    (here / "adder.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    refused(here, ["adder", "--config", "adder.toml", "--insecure-loopback"], "192.0.2.1:7070")


# ---- a site's file ----------------------------------------------------------------------------------------

SITE = 'party = "north"\ndata = "rows.csv"\n'


def site(here, text):
    (here / "party.toml").write_text(SITE + text)
    return read_party(here / "party.toml")


def test_a_site_names_its_adders_in_the_order_of_their_addresses(here):
    config = site(here, 'aggregator = ["a:1", "b:2", "c:3"]\nthrough = ["eu", "", "eu"]\n')
    assert [one[:2] for one in config.servers] == [("a:1", "eu"), ("b:2", ""), ("c:3", "eu")]
    assert (config.adders, config.direct_server.address) == (("eu",), "b:2")
    assert site(here, 'aggregator = "a:1"\nthrough = "eu"\n').servers == (Server("a:1", "eu"),)
    assert site(here, 'aggregator = "a:1"\n').servers == (Server("a:1"),)


def test_a_site_without_the_aggregators_address_cannot_ask_it(here):
    config = site(here, 'aggregator = "a:1"\nthrough = "eu"\n')
    with raised(ConfigError, "aggregator-only-adders"):
        _ = config.direct_server


@pytest.mark.parametrize(
    "text",
    [
        'aggregator = ["a:1", "b:2"]\nthrough = ["eu"]\n',
        'aggregator = "a:1"\nthrough = ["eu", "us"]\n',
    ],
)
def test_a_site_needs_a_name_for_each_address(here, text):
    (here / "party.toml").write_text(SITE + text)
    refused(here, ["party", "--config", "party.toml"], "through")


@pytest.mark.parametrize("text", ["aggregator = []\n", 'aggregator = ["a:1", "b"]\n'])
def test_a_site_needs_addresses(here, text):
    (here / "party.toml").write_text(SITE + text)
    refused(here, ["party", "--config", "party.toml"], "aggregator")


# ---- processes ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_adder_says_where_it_listens_and_ends_when_it_is_told_to(here):
    (here / "adder.toml").write_text(f'{UPSTREAM}listen = "127.0.0.1:0"\n')
    arguments = "adder", "--config", "adder.toml", "--insecure-loopback", "--json"
    with ending(start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)) as process:
        said = json.loads(process.stdout.readline())
        assert said["event"] == "listening"
        host, port = said["address"].split(":")
        socket.create_connection((host, int(port))).close()
        process.terminate()
        assert process.wait(20) == 0


def adders_of(process):
    """The processes of adders that an aggregator started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_running(pid):
    """Whether there is such a process, not one that only waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def three_ports():
    """The first of three ports in a row that are free now, and that no other test gets from the system: those
    are above."""
    while True:
        first = random.randrange(20_000, 32_000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + 3):
                probes.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
async def test_an_aggregator_runs_adders_and_starts_one_again_that_was_killed(here, keys):
    port = three_ports()
    listen = f'listen = "127.0.0.1:{port}"\nkeys = "{keys / "aggregator"}"\n'
    (here / "aggregator.toml").write_text(listen)
    options = "--adders", "2", "--adder-keys", str(keys / LOCAL)
    arguments = "aggregator", "--config", "aggregator.toml", *options, "--json"
    log, tasks = Log(), []
    with (here / "log.txt").open("w") as errors:
        process = start(*arguments, stdout=subprocess.PIPE, stderr=errors)
        with ending(process):
            assert json.loads(process.stdout.readline())["address"] == f"127.0.0.1:{port}"
            for each in (1, 2):
                await asyncio.to_thread(wait_until, lambda each=each: answers(port + each))
            first = adders_of(process)
            assert len(first) == 2
            for number, (name, file) in enumerate(written(here, TABLES).items()):
                address = f"127.0.0.1:{port + 1 + number % 2}"
                values = {"party": name, "aggregator": address, "through": LOCAL, "data": file}
                config = PartyConfig(**values, state=here / "state", policy=ANYTHING)
                node = PartyNode(config, log, read_bundle(keys / name, "party"))
                tasks.append(asyncio.create_task(node.run(wait=60, once=False)))
            analyst = Connection(Server(f"127.0.0.1:{port}"), read_bundle(keys / "analyst", "analyst"))
            try:
                agreed = terms([*TABLES], protection="masked", **LONG)
                training = asyncio.create_task(asyncio.to_thread(lambda: analyst.train(agreed, 60).model))
                while not log.named("round"):
                    assert not training.done()
                    await asyncio.sleep(0.01)
                os.kill(first[0], signal.SIGKILL)
                assert (await training).booster == simulate(terms(**LONG), TABLES).model.booster
                await asyncio.to_thread(wait_until, lambda: len(adders_of(process)) == 2)
                second = adders_of(process)
                assert first[0] not in second
                assert first[1] in second
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    assert process.returncode == 0
    assert not any(map(is_running, {*first, *second}))
    assert "an adder process ended, and is started again" in (here / "log.txt").read_text()
