"""Sessions of an aggregator: who waits for whom, and who is told."""

import asyncio

import pytest
from consortia import THREE, TWO, channel_to, expected, submit
from raised import raised
from sites import consortium, shared_out, terms, until

from fedboost.errors import Refused, SessionFailed
from fedboost.protocol.messages import Report
from fedboost.runtime.aggregator import analysts
from fedboost.runtime.site import node as party_node
from fedboost.wire.messages import Waiting, decode_train_event, encode_from_party


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consortium"


async def test_the_analyst_is_told_who_is_awaited_whenever_that_changes(folder):
    tables = shared_out(3)
    heard = []
    async with consortium(folder, {"north": tables["north"]}) as one:
        await until(lambda: one.log.named("party here"))
        training = asyncio.create_task(one.train(terms(THREE), heard.append))
        await until(lambda: heard == [("south", "east")])
        one.start_party("east", tables["east"])
        await until(lambda: heard[1:] == [("south",)])
        await one.stop_party("north")
        await until(lambda: heard[2:] == [("north", "south")])
        one.start_party("north", tables["north"])
        one.start_party("south", tables["south"])
        found = await training
    assert found.model.to_bytes() == expected(tables)


async def test_a_second_analyst_waits_its_turn(folder):
    tables = shared_out(2)
    heard = []
    async with consortium(folder, {"north": tables["north"]}) as one:
        first = asyncio.create_task(one.train(terms(TWO, rounds=1), heard.append))
        second = asyncio.create_task(one.train(terms(TWO, rounds=2), heard.append))
        await until(lambda: heard.count(("south",)) == 2)
        one.start_party("south", tables["south"])
        both = await first, await second
        assert heard[-1] == ()  # one of them, while the other's session ran
        found = both
    for number, training in enumerate(found, 1):
        assert training.model.to_bytes() == expected(tables, rounds=number)


@pytest.mark.parametrize("gives_up", [False, True])
async def test_an_analyst_who_waits_for_a_party_blocks_nobody(folder, gives_up):
    tables = shared_out(2)
    heard = []
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        await until(lambda: len(one.log.named("party here")) == 2)
        submitted = submit(opened, terms(["north", "nobody"]))
        assert await event_of(submitted) == Waiting(("nobody",), {"nobody": 0})
        if gives_up:
            submitted.cancel()
        found = await one.train(terms(TWO), heard.append)
    assert found.model.to_bytes() == expected(tables)
    assert () not in heard


async def test_so_many_analysts_may_wait_and_no_more(folder, monkeypatch):
    monkeypatch.setattr(analysts, "MAX_WAITING", 2)
    async with consortium(folder, {}) as one, channel_to(one) as opened:
        waiting = [submit(opened, terms(["nobody"])) for _ in range(2)]
        for submitted in waiting:
            await event_of(submitted)
        with raised(Refused, "queue-full"):
            await one.train(terms(["nobody"]))
        waiting[0].cancel()
        await until(lambda: one.server.analysts.waiters)
        again = submit(opened, terms(["nobody"]))
        assert await event_of(again) == Waiting(("nobody",), {"nobody": 0})


async def test_one_analyst_does_not_fill_the_room_of_those_that_wait(folder):
    async with consortium(folder, {}) as one:
        wait = one.server.analysts.until_ready
        waiting = [wait(terms(["nobody"]), "mal#1") for _ in range(analysts.MAX_WAITING_OF_ANALYST)]
        for each in waiting:
            assert await anext(each) == ("nobody",)
        with raised(Refused, "queue-share"):
            await anext(wait(terms(["nobody"]), "mal#2"))
        waiting.append(wait(terms(["nobody"]), "ann#3"))
        assert await anext(waiting[-1]) == ("nobody",)
        for each in waiting:
            await each.aclose()


async def test_who_need_not_wait_is_let_in_however_many_wait(folder, monkeypatch):
    """Also to stop a session."""
    monkeypatch.setattr(analysts, "MAX_WAITING", 1)
    tables = shared_out(1)
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        await until(lambda: one.log.named("party here"))
        waiting = submit(opened, terms(["nobody"]))
        assert await event_of(waiting)
        training = one.analyst.train(terms(["north"], rounds=5000))
        await asyncio.to_thread(next, iter(training))
        with raised(Refused, "queue-full"):
            await one.train(terms(["north"]))
        await asyncio.to_thread(training.stop)
        with pytest.raises(SessionFailed, match="the analyst stopped it"):
            await asyncio.to_thread(lambda: training.model)


@pytest.mark.slow
async def test_what_a_stranger_sends_is_not_in_the_account_of_a_session(folder):
    tables = shared_out(1)
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        odd = one.attend(opened)
        training = asyncio.create_task(one.train(terms(["north"], rounds=200)))
        await until(lambda: one.log.named("session begins"))
        for _ in range(20):
            await odd.write(encode_from_party(Report(1, 1, 0, b"\x01" * 1000)))
        found = await training
    assert set(found.traffic) == {"north"}


async def test_a_party_whose_old_connection_is_still_known_dials_again(folder, monkeypatch):
    """As after a router lost the connection on one side only."""
    monkeypatch.setattr(party_node, "REDIAL", 0.05)
    tables = shared_out(2)
    async with consortium(folder, {}) as one:
        one.start_party("north", tables["north"])
        await until(lambda: one.log.named("party here"))
        one.server.connected.outgoing["south"] = None  # what is left of a connection
        south = one.start_party("south", tables["south"])
        one.nodes["south"]._attended = True  # it had been let in before
        await until(lambda: one.log.named("connection lost"))
        del one.server.connected.outgoing["south"]
        training = await one.train(terms(TWO))
        assert not south.done()
        found = training
    assert found.model.to_bytes() == expected(tables)


async def event_of(call):
    return decode_train_event(await call.read())


@pytest.mark.slow
async def test_an_analyst_who_leaves_finds_the_session_again(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        submitted = submit(opened, terms(TWO))
        assert await event_of(submitted)
        submitted.cancel()
        first = await one.train(terms(TWO))
        second = await one.train(terms(TWO))  # whose model is delivered: this is a new session
        sessions = len(one.log.named("session begins"))
    assert [row["round"] for row in first.history] == list(range(terms(TWO).trees.rounds))
    assert first.model.to_bytes() == second.model.to_bytes() == expected(tables)
    assert sessions == 2


async def test_an_analyst_stops_its_session(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one:
        training = one.analyst.train(terms(TWO, rounds=5000))
        await asyncio.to_thread(next, iter(training))
        await asyncio.to_thread(training.stop)
        with pytest.raises(SessionFailed, match="the analyst stopped it"):
            await asyncio.to_thread(lambda: training.model)
        await one.train(terms(TWO))
        nodes = one.nodes
    assert [node.ended for node in nodes.values()] == [["the analyst stopped it", ""]] * 2
