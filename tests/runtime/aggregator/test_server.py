"""The aggregator over the network: models equal those of a simulation, and it lives on."""

import asyncio
import socket
import time

import pytest
import sites
from anything import ANYTHING
from consortia import TWO, expected
from sites import PATIENCE, Log, consortium, rows, shared_out, terms, until, written

from fedboost.errors import PeerError, SessionFailed
from fedboost.protocol.messages import Offer
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.net import channel
from fedboost.runtime.site import node as party_node
from fedboost.runtime.site import node as watch
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.node import PartyNode
from fedboost.wire.messages import decode_to_party


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consortium"


# ---- models -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("parties", [1, 3])
async def test_the_model_file_is_that_of_the_simulation(folder, parties):
    tables = shared_out(parties)
    async with consortium(folder, tables) as one:
        training = await one.train(terms(tables))
    result = simulate(terms(), tables)
    assert training.model.to_bytes() == result.model.to_bytes()
    assert [list(row) for row in training.history] == [list(row) for row in result.history]
    for over_grpc, simulated in zip(training.history, result.history, strict=True):
        assert over_grpc["seconds"] > 0
        assert over_grpc["logloss"] == simulated["logloss"]
    # But for the longer name of the session, in Offer and Join, the same bytes travel.
    longer = len("session-0123456789abcdef") - len("simulation")
    assert training.history[0]["bytes"] == result.history[0]["bytes"] + 2 * longer * parties
    assert [row["bytes"] for row in training.history[1:]] == [row["bytes"] for row in result.history[1:]]
    for name, (sent, received) in result.traffic.items():
        assert training.traffic[name] == (sent + longer, received + longer)


@pytest.mark.slow
async def test_every_session_on_a_connection_can_be_approved_by_somebody(folder, monkeypatch):
    tables, given_up = shared_out(3), []

    def person(text, stopped):
        given_up.append(stopped())
        return True

    monkeypatch.setattr(watch, "terminal_ask", person)
    monkeypatch.setattr(sites, "ANYTHING", {**ANYTHING, "approval": "ask"})
    async with consortium(folder, tables) as one:
        for number in (1, 2):
            await one.train(terms(tables, rounds=number))
    assert given_up == [False] * 6  # nobody is told that the session ended: the one before did


async def test_terms_may_name_some_of_the_parties_that_are_here(folder):
    tables = shared_out(3)
    two = {name: tables[name] for name in TWO}
    async with consortium(folder, tables) as one:
        training, log = await one.train(terms(TWO)), one.log
    assert training.model.to_bytes() == expected(two)
    assert {offer["party"] for offer in log.named("session offered")} == set(TWO)


# ---- the aggregator comes and goes ------------------------------------------------------------------


@pytest.mark.slow
async def test_the_aggregator_stops_cleanly_in_the_middle(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one:
        training = asyncio.create_task(one.train(terms(TWO, rounds=5000)))
        await until(lambda: one.log.named("session begins"))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await one.server.stop()
        seconds = time.monotonic() - began
        with pytest.raises(SessionFailed, match="the aggregator was stopped"):
            await training
        assert all(node.ended == ["the aggregator was stopped"] for node in one.nodes.values())
        found = seconds
    assert found < 3


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.slow
async def test_a_party_waits_for_the_aggregator_and_dials_again_when_it_was_away(folder, monkeypatch):
    monkeypatch.setattr(channel, "REPORT_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(party_node, "REDIAL", 0.05)
    folder.mkdir()
    address, log = f"127.0.0.1:{free_port()}", Log()
    (file,) = written(folder, {"north": rows()}).values()

    async def aggregate():
        server = AggregatorServer(AggregatorConfig(listen=address), log, None)
        await server.start()
        assert server.address == address
        try:
            train = connect(address, insecure_loopback=True).train(terms(["north"]), PATIENCE)
            return (await asyncio.to_thread(lambda: train.model)).to_bytes()
        finally:
            await server.stop()

    config = PartyConfig(
        party="north", aggregator=address, data=file, state=folder / "state", policy=ANYTHING
    )
    node = PartyNode(config, log, None)
    task = asyncio.create_task(node.run(PATIENCE, once=False))
    await until(lambda: log.named("waiting for the aggregator"))
    models = [await aggregate(), await aggregate()]
    task.cancel()
    ended = node.ended
    assert models == [expected({"north": rows()})] * 2
    assert ended == ["", ""]


async def test_a_party_that_is_to_attend_once_ends_after_one_session(folder):
    tables = shared_out(2)
    async with consortium(folder, {}) as one:
        tasks = [one.start_party(name, table, once=True) for name, table in tables.items()]
        await one.train(terms(TWO))
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        found = [node.ended for node in one.nodes.values()]
    assert found == [[""], [""]]


async def test_what_a_party_cannot_read_ends_the_session_but_not_the_party(folder, monkeypatch):
    """Terms of a newer aggregator, say."""
    tables = shared_out(2)
    read, unreadable = decode_to_party, [True]

    def decode(data, vouched):
        if unreadable and isinstance(read(data), Offer):
            unreadable.clear()
            raise PeerError("test", "terms this version of fedboost cannot follow")
        return read(data)

    async with consortium(folder, tables) as one:
        monkeypatch.setattr(party_node, "decode_to_party", decode)
        with pytest.raises(SessionFailed, match=r"party (north|south) left: terms this version"):
            await one.train(terms(TWO))
        training, log = await one.train(terms(TWO)), one.log
    assert training.model.to_bytes() == expected(tables)
    assert len(log.named("party here")) == 2


# ---- processes --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parties_of_any_name_have_files_of_their_own(tmp_path):
    names = ["aggregator", "a/b", "A/B", "..", 'Ünï "😀"']
    tables = dict(zip(names, shared_out(5).values(), strict=True))
    files = written(tmp_path, dict(zip("12345", tables.values(), strict=True)))
    agreement = terms(names, protection="masked")
    with LocalCluster(tmp_path, dict(zip(names, files.values(), strict=True))) as one:
        assert all("`fedboost approve terms.toml --config " in one.log(name) for name in names)
        one.approve(agreement)
        assert len([*one.state.rglob("memory.sqlite")]) == 5
        model = one.analyst.train(agreement).model
        assert model.booster == simulate(terms(), tables).model.booster
        assert model.protection == "masked"
        assert tuple(model.attestations) == model.parties
        assert all("session offered" in one.log(name) for name in names)
    assert [process.poll() is None for process in one.parties.values()] == [False] * 5


@pytest.mark.slow
def test_a_party_that_does_not_come_up_is_named_with_its_last_words(tmp_path):
    files = written(tmp_path, {"north": rows()}) | {"south": tmp_path / "nowhere.csv"}
    one = LocalCluster(tmp_path, files)
    with pytest.raises(SessionFailed, match=r"party south did not start: .*nowhere\.csv: no such file"), one:
        pass
    assert all(process.poll() is not None for process in one.parties.values())
