"""The same sessions over gRPC: equal models, clear failures, and an aggregator and parties that live on."""

import asyncio
import socket
import time

import grpc
import numpy as np
import pyarrow as pa
import pytest
import sites
from inprocess import pack
from sites import (
    NAMES,
    PATIENCE,
    STOPS,
    Log,
    consortium,
    in_time,
    rows,
    shared_out,
    status_of,
    terms,
    until,
    written,
)

from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.horizontal.holder import holder_of
from fedboost.protocol.messages import Admit, Bye, Join, Leave, Report
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.aggregator import analysts
from fedboost.runtime.aggregator.config import AggregatorConfig
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.analyst import connect
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.local.cluster import ANYTHING, LocalCluster
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.net import channel
from fedboost.runtime.site import node as party_node
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.node import PartyNode
from fedboost.wire.bounds import MAX_TO_AGGREGATOR, WIRE_VERSION
from fedboost.wire.messages import decode_to_party, encode_from_party, encode_to_party
from fedboost.wire.training import Waiting, decode_train_event, encode_train_request

TWO = NAMES[:2]
THREE = NAMES[:3]


def expected(tables, **settings):
    return simulate(terms(**settings), tables).model.to_bytes()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consortium"


# ---- models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [1, 3, 5])
def test_the_model_file_is_that_of_the_simulation(folder, parties):
    tables = shared_out(parties)

    async def scenario():
        async with consortium(folder, tables) as one:
            return await one.train(terms(tables))

    training, result = in_time(scenario()), simulate(terms(), tables)
    assert training.model.to_bytes() == result.model.to_bytes()
    assert [list(row) for row in training.history] == [list(row) for row in result.history]
    for over_grpc, simulated in zip(training.history, result.history, strict=True):
        assert over_grpc["seconds"] > 0
        assert over_grpc["logloss"] == simulated["logloss"]
    # But for the longer name of the session, in Admit and Join, the same bytes travel.
    longer = len("session-0123456789abcdef") - len("simulation")
    assert training.history[0]["bytes"] == result.history[0]["bytes"] + 2 * longer * parties
    assert [row["bytes"] for row in training.history[1:]] == [row["bytes"] for row in result.history[1:]]
    for name, (sent, received) in result.traffic.items():
        assert training.traffic[name] == (sent + longer, received + longer)


def test_regression_with_weights_is_the_same_too(folder):
    table = rows().append_column("w", pa.array([0.5, 1.0, 3.25] * 60))
    columns = {"label": "age", "numeric": ["dose"], "weight": "w", "categorical": {"ward": ["a", "b", "c"]}}
    settings = {"columns": columns, "objective": "reg:squarederror"}
    tables = shared_out(3, table)

    async def scenario():
        async with consortium(folder, tables) as one:
            return await one.train(terms(tables, **settings))

    assert in_time(scenario()).model.to_bytes() == expected(tables, **settings)


def test_sessions_follow_one_another_on_the_same_connections(folder):
    tables = shared_out(3)

    async def scenario():
        async with consortium(folder, tables) as one:
            trainings = [await one.train(terms(tables, rounds=n)) for n in (1, 2, 3)]
            return trainings, one.log

    trainings, log = in_time(scenario())
    for number, training in enumerate(trainings, 1):
        assert training.model.to_bytes() == expected(tables, rounds=number)
    assert len(log.named("party here")) == 3
    assert log.named("party gone")[3:] == []  # the three go when the test ends


def test_every_session_on_a_connection_can_be_approved_by_somebody(folder, monkeypatch):
    tables, given_up = shared_out(3), []

    def person(text, stopped):
        given_up.append(stopped())
        return True

    monkeypatch.setattr(party_node, "terminal_ask", person)
    monkeypatch.setattr(sites, "ANYTHING", {**ANYTHING, "approval": "ask"})

    async def scenario():
        async with consortium(folder, tables) as one:
            for number in (1, 2):
                await one.train(terms(tables, rounds=number))

    in_time(scenario())
    assert given_up == [False] * 6  # nobody is told that the session ended: the one before did


def test_terms_may_name_some_of_the_parties_that_are_here(folder):
    tables = shared_out(3)
    two = {name: tables[name] for name in TWO}

    async def scenario():
        async with consortium(folder, tables) as one:
            return await one.train(terms(TWO)), one.log

    training, log = in_time(scenario())
    assert training.model.to_bytes() == expected(two)
    assert {offer["party"] for offer in log.named("session offered")} == set(TWO)


# ---- waiting ----------------------------------------------------------------------------------------


def test_the_analyst_is_told_who_is_awaited_whenever_that_changes(folder):
    tables = shared_out(3)
    heard = []

    async def scenario():
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
            return await training

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def test_a_second_analyst_waits_its_turn(folder):
    tables = shared_out(2)
    heard = []

    async def scenario():
        async with consortium(folder, {"north": tables["north"]}) as one:
            first = asyncio.create_task(one.train(terms(TWO, rounds=1), heard.append))
            second = asyncio.create_task(one.train(terms(TWO, rounds=2), heard.append))
            await until(lambda: heard.count(("south",)) == 2)
            one.start_party("south", tables["south"])
            both = await first, await second
            assert heard[-1] == ()  # one of them, while the other's session ran
            return both

    for number, training in enumerate(in_time(scenario()), 1):
        assert training.model.to_bytes() == expected(tables, rounds=number)


def test_an_analyst_who_waits_for_a_party_blocks_nobody(folder):
    tables = shared_out(2)
    heard = []

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            await until(lambda: len(one.log.named("party here")) == 2)
            submitted = submit(opened, terms(["north", "nobody"]))
            assert await event_of(submitted) == Waiting(("nobody",))
            return await one.train(terms(TWO), heard.append)

    assert in_time(scenario()).model.to_bytes() == expected(tables)
    assert () not in heard


def test_so_many_analysts_may_wait_and_no_more(folder, monkeypatch):
    monkeypatch.setattr(analysts, "MAX_WAITING", 2)

    async def scenario():
        async with consortium(folder, {}) as one, channel_to(one) as opened:
            waiting = [submit(opened, terms(["nobody"])) for _ in range(2)]
            for submitted in waiting:
                await event_of(submitted)
            with pytest.raises(Refused, match="2 analysts are waiting already"):
                await one.train(terms(["nobody"]))
            waiting[0].cancel()
            await until(lambda: one.server.analysts.waiting == 1)
            again = submit(opened, terms(["nobody"]))
            assert await event_of(again) == Waiting(("nobody",))

    in_time(scenario())


def test_what_a_stranger_sends_is_not_in_the_account_of_a_session(folder):
    tables = shared_out(1)

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            odd = one.attend(opened)
            training = asyncio.create_task(one.train(terms(["north"], rounds=200)))
            await until(lambda: one.log.named("session begins"))
            for _ in range(20):
                await odd.write(encode_from_party(Report(1, 1, 0, b"\x01" * 1000)))
            return await training

    assert set(in_time(scenario()).traffic) == {"north"}


def test_a_party_whose_old_connection_is_still_known_dials_again(folder, monkeypatch):
    """As after a router lost the connection on one side only."""
    monkeypatch.setattr(party_node, "REDIAL", 0.05)
    tables = shared_out(2)

    async def scenario():
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
            return training

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def test_analysts_who_give_up_waiting_block_nobody(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            await until(lambda: len(one.log.named("party here")) == 2)
            submitted = submit(opened, terms(["north", "nobody"]))
            assert await event_of(submitted) == Waiting(("nobody",))
            submitted.cancel()
            return await one.train(terms(TWO))

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def channel_to(one):
    return grpc.aio.insecure_channel(one.address, options=channel.CLIENT_OPTIONS)


def submit(opened, terms, version=str(WIRE_VERSION)):
    """A raw call of an analyst."""
    call = opened.unary_stream(channel.TRAIN)
    return call(encode_train_request(terms.canonical()), metadata=[(channel.VERSION_KEY, version)])


async def event_of(call):
    return decode_train_event(await call.read())


def test_an_analyst_who_leaves_finds_the_session_again(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            submitted = submit(opened, terms(TWO))
            assert await event_of(submitted)
            submitted.cancel()
            first = await one.train(terms(TWO))
            second = await one.train(terms(TWO))  # whose model is delivered: this is a new session
            return first, second, len(one.log.named("session begins"))

    first, second, sessions = in_time(scenario())
    assert [row["round"] for row in first.history] == list(range(terms(TWO).trees.rounds))
    assert first.model.to_bytes() == second.model.to_bytes() == expected(tables)
    assert sessions == 2


def test_an_analyst_stops_its_session(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one:
            training = one.analyst.train(terms(TWO, rounds=5000))
            await asyncio.to_thread(next, iter(training))
            await asyncio.to_thread(training.stop)
            with pytest.raises(SessionFailed, match="the analyst stopped it"):
                await asyncio.to_thread(lambda: training.model)
            await one.train(terms(TWO))
            return one.nodes

    nodes = in_time(scenario())
    assert [node.ended for node in nodes.values()] == [["the analyst stopped it", ""]] * 2


# ---- parties that cannot attend ---------------------------------------------------------------------


def test_a_second_party_of_the_same_name_is_refused(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one:
            await until(lambda: len(one.log.named("party here")) == 2)
            with pytest.raises(Refused, match="a party named 'north' is connected already"):
                await one.start_party("twin", tables["north"], as_name="north", state="twin")
            return await one.train(terms(TWO))

    assert in_time(scenario()).model.to_bytes() == expected(tables)


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        ({"name": None}, "a party must give its name"),
        ({"name": b""}, "a party must give its name"),
        ({"name": b"x" * 257}, "a party must give its name"),
        ({"name": b"\xff\xfe"}, "a party must give its name"),
        ({"version": "4"}, "speaks wire version 3, the party 4"),
        ({"version": None}, "speaks wire version 3, the party names none"),
    ],
    ids=["none", "empty", "long", "no text", "newer", "no version"],
)
def test_a_party_that_does_not_greet_well_is_told_why(folder, greeting, said):
    async def scenario():
        async with consortium(folder, {}) as one, channel_to(one) as opened:
            code, details = await status_of(one.attend(opened, **greeting))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert said in details
            assert "\n" not in details
            assert one.log.named("party here") == []

    in_time(scenario())


def test_an_analyst_of_another_version_is_told_so(folder):
    async def scenario():
        async with consortium(folder, {}) as one, channel_to(one) as opened:
            code, details = await status_of(submit(opened, terms(TWO), version="4"))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert "speaks wire version 3, the analyst 4" in details

    in_time(scenario())


def test_a_party_of_another_version_ends_with_one_clear_error(folder, monkeypatch):
    monkeypatch.setattr(party_node, "WIRE_VERSION", 4)

    async def scenario():
        async with consortium(folder, {}) as one:
            with pytest.raises(ConfigError, match="wire version 3, the party 4; install the same version"):
                await one.start_party("north", rows())

    in_time(scenario())


# ---- parties that fail in a session -----------------------------------------------------------------


def test_a_site_whose_rows_do_not_fit_is_named_and_all_live_on(folder):
    tables = shared_out(3)
    words = pa.array(["sixty"] * tables["south"].num_rows)
    tables["south"] = tables["south"].set_column(0, "age", words)
    fitting = {"label": "y", "numeric": ["dose"]}

    async def scenario():
        async with consortium(folder, tables) as one:
            with pytest.raises(SessionFailed) as caught:
                await one.train(terms(THREE))
            training = await one.train(terms(THREE, columns=fitting))
            assert not any(task.done() for task in one.tasks.values())
            return str(caught.value), training, one

    message, training, one = in_time(scenario())
    said = "its rows do not fit the terms; its own log says which column and why"
    assert message == f"party south left: {said}"  # what is in a row stays at the site
    (left,) = one.log.named("left the session")
    assert left["party"] == "south"
    assert left["reason"].startswith(
        f"party south: {said}: column 'age' is string here, the terms say numeric"
    )
    assert "sixty" in left["reason"]
    assert training.model.to_bytes() == expected(tables, columns=fitting)
    assert len(one.log.named("party here")) == 3


def test_the_terms_of_one_session_do_not_bind_the_next(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one:
            with pytest.raises(SessionFailed, match="rows do not fit the terms"):
                await one.train(terms(TWO, columns={"label": "y", "positive": "7", "numeric": ["age"]}))
            return await one.train(terms(TWO))

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def test_a_party_that_goes_in_the_middle_is_named_at_once(folder):
    tables = shared_out(3)

    async def scenario():
        async with consortium(folder, tables) as one:
            heard = []
            submitted = terms(THREE, rounds=5000, **STOPS)
            training = asyncio.create_task(one.train(submitted, heard.append))
            await until(lambda: one.log.named("session begins"))
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await one.stop_party("east")
            with pytest.raises(SessionFailed, match="party east was lost: its connection"):
                await training
            seconds = time.monotonic() - began
            one.start_party("east", tables["east"])
            return seconds, await one.train(terms(THREE))

    seconds, training = in_time(scenario())
    assert seconds < 3
    assert training.model.to_bytes() == expected(tables)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 40,
        b"",
        b"\x0a\xff",
        encode_to_party(Bye("from a party?")) + b"\x08",
        b"\x1a\x03\x0a\x01\xff",
    ],
    ids=["noise", "empty", "cut off", "wrong direction", "no text"],
)
def test_garbage_costs_its_sender_the_connection_and_nobody_else(folder, data):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            odd = one.attend(opened)
            await odd.write(data)
            code, details = await status_of(odd)
            assert code == grpc.StatusCode.DATA_LOSS
            assert details
            await until(lambda: any(e["party"] == "odd" for e in one.log.named("party gone")))
            (gone,) = [e for e in one.log.named("party gone") if e["party"] == "odd"]
            assert "broke the protocol" in gone["reason"]
            return await one.train(terms(TWO))

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def test_garbage_within_a_session_fails_it_and_names_the_sender(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            odd = one.attend(opened)
            training = asyncio.create_task(one.train(terms([*TWO, "odd"], **STOPS)))
            assert isinstance(decode_to_party(await odd.read()), Admit)
            await odd.write(b"\xff" * 40)
            with pytest.raises(SessionFailed, match=r"party odd.*broke the protocol"):
                await training
            return await one.train(terms(TWO))

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def test_a_message_over_the_limit_costs_its_sender_the_connection(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one:
            async with grpc.aio.insecure_channel(one.address) as opened:
                odd = one.attend(opened)
                await odd.write(bytes(MAX_TO_AGGREGATOR + 1))
                code, _ = await status_of(odd)
                assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DATA_LOSS)
            return await one.train(terms(TWO))

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def test_a_party_that_cannot_be_written_to_is_lost_at_once(folder, monkeypatch):
    """Here because a question is larger than messages may be."""
    options = {**dict(channel.SERVER_OPTIONS), "grpc.max_send_message_length": 100}
    monkeypatch.setattr(channel, "SERVER_OPTIONS", [*options.items()])
    tables = shared_out(1)

    async def scenario():
        async with consortium(folder, tables) as one:
            with pytest.raises(SessionFailed, match="party north was lost"):
                await one.train(terms(tables, **STOPS))

    in_time(scenario())


def test_words_without_a_session_are_nobodys_business(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            odd = one.attend(opened)
            for message in (Report(1, 1, 0, b"\x01"), Join("a", "b"), Leave("I have had enough")):
                await odd.write(encode_from_party(message))
            return await one.train(terms(TWO))

    assert in_time(scenario()).model.to_bytes() == expected(tables)


def test_a_party_the_terms_do_not_name_cannot_meddle(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, {"north": tables["north"]}) as one, channel_to(one) as opened:
            odd = one.attend(opened)
            south = one.attend(opened, b"south")
            training = asyncio.create_task(one.train(terms(TWO)))
            admit = decode_to_party(await south.read())
            session = PartySession(
                Site(
                    "south",
                    holder_of(lambda terms: to_shard(tables["south"], terms, "south"), "south"),
                    bytes,
                )
            )
            for message in (
                Join(admit.session, admit.terms.digest),
                Report(1, 1, 0, bytes(8 * 385)),
                Leave("no"),
            ):
                await odd.write(encode_from_party(message))
            await answer(south, session, admit)
            return await training

    assert in_time(scenario()).model.to_bytes() == expected(tables)


async def answer(call, session, message=None):
    """Take part over a raw connection to the end of the session."""
    while session.ended is None:
        message = message or decode_to_party(await call.read())
        for reply in session.handle(message):
            await call.write(encode_from_party(reply))
        message = None


OUT_OF_ORDER = {
    "twice": lambda admit: [
        Join(admit.session, admit.terms.digest, greeting=key) for key in (b"one", b"other")
    ],
    "other terms": lambda admit: [Join(admit.session, "0" * 64)],
    "not asked": lambda admit: [Join(admit.session, admit.terms.digest), Report(7, 1, 0, b"")],
    "no first part": lambda admit: [Join(admit.session, admit.terms.digest), Report(1, 1, 1, b"")],
    "too short": lambda admit: [Join(admit.session, admit.terms.digest), Report(1, 1, 0, b"\x01")],
    "fewer than no rows": lambda admit: [
        Join(admit.session, admit.terms.digest),
        Report(1, 1, 0, pack(np.array([-(10**6)] + [0] * 384), (385, 64))),
    ],
}


@pytest.mark.parametrize("words", OUT_OF_ORDER.values(), ids=OUT_OF_ORDER)
def test_words_out_of_order_fail_the_session(folder, words):
    tables = shared_out(1)

    async def scenario():
        async with consortium(folder, tables) as one, channel_to(one) as opened:
            odd = one.attend(opened)
            training = asyncio.create_task(one.train(terms(["north", "odd"])))
            admit = decode_to_party(await odd.read())
            first, *others = words(admit)
            await odd.write(encode_from_party(first))
            if others:  # once all have joined
                await odd.read()
            for message in others:
                await odd.write(encode_from_party(message))
            with pytest.raises(SessionFailed) as caught:
                await training
            assert "\n" not in str(caught.value)
            return str(caught.value), await one.train(terms(["north"]))

    message, training = in_time(scenario())
    assert message
    assert "north" not in message
    assert training.model.to_bytes() == expected(tables)


def slow_party_in_two_sessions(folder, last_words):
    """North fails a session at once. Odd, slower, says its last words in it after the next one has begun."""
    tables = shared_out(2)
    bad = tables["north"].set_column(0, "age", pa.array(["x"] * tables["north"].num_rows))
    fitting = {"label": "y", "numeric": ["dose"]}

    async def scenario():
        async with consortium(folder, {"north": bad}) as one, channel_to(one) as opened:
            odd = one.attend(opened, b"south")
            with pytest.raises(SessionFailed, match="party north"):
                await one.train(terms(TWO))
            first, bye = [decode_to_party(await odd.read()) for _ in range(2)]
            assert isinstance(bye, Bye)
            training = asyncio.create_task(one.train(terms(TWO, columns=fitting)))
            second = decode_to_party(await odd.read())
            for message in last_words(first):
                await odd.write(encode_from_party(message))
            await asyncio.sleep(0.1)
            session = PartySession(
                Site(
                    "south",
                    holder_of(lambda terms: to_shard(tables["south"], terms, "south"), "south"),
                    bytes,
                )
            )
            await answer(odd, session, second)
            return await training

    model = in_time(scenario()).model
    both = {"north": bad, "south": tables["south"]}
    assert model.to_bytes() == expected(both, columns=fitting)


def test_last_words_in_a_session_are_not_held_against_the_next(folder):
    slow_party_in_two_sessions(
        folder, lambda admit: [Join(admit.session, admit.terms.digest), Report(3, 1, 0, b"12345")]
    )


def test_leaving_a_session_that_is_over_does_not_leave_the_next(folder):
    slow_party_in_two_sessions(folder, lambda admit: [Leave("my rows do not fit either", admit.session)])


# ---- the aggregator comes and goes ------------------------------------------------------------------


def test_the_aggregator_stops_cleanly_in_the_middle(folder):
    tables = shared_out(2)

    async def scenario():
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
            return seconds

    assert in_time(scenario()) < 3


def test_an_analyst_who_waits_hears_that_the_aggregator_went(folder):
    async def scenario():
        async with consortium(folder, {}) as one:
            heard = []
            training = asyncio.create_task(one.train(terms(TWO), heard.append, wait=1))
            await until(lambda: heard)
            await one.server.stop()
            with pytest.raises(ConfigError, match=r"no aggregator answers at .* \(waited 1 s\)"):
                await training
            assert heard[-1] == (f"the aggregator at {one.address}",)

    in_time(scenario())


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_party_waits_for_the_aggregator_and_dials_again_when_it_was_away(folder, monkeypatch):
    monkeypatch.setattr(party_node, "SAY_SO", 0.1)
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

    async def scenario():
        config = PartyConfig(
            party="north", aggregator=address, data=file, state=folder / "state", policy=ANYTHING
        )
        node = PartyNode(config, log, None)
        task = asyncio.create_task(node.run(PATIENCE, once=False))
        await until(lambda: log.named("waiting for the aggregator"))
        models = [await aggregate(), await aggregate()]
        task.cancel()
        return models, node.ended

    models, ended = in_time(scenario())
    assert models == [expected({"north": rows()})] * 2
    assert ended == ["", ""]


def test_a_party_that_is_to_attend_once_ends_after_one_session(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, {}) as one:
            tasks = [one.start_party(name, table, once=True) for name, table in tables.items()]
            await one.train(terms(TWO))
            await asyncio.wait_for(asyncio.gather(*tasks), 5)
            return [node.ended for node in one.nodes.values()]

    assert in_time(scenario()) == [[""], [""]]


def test_a_party_gives_up_on_an_aggregator_that_never_comes(folder):
    folder.mkdir()
    (file,) = written(folder, {"north": rows()}).values()
    address = f"127.0.0.1:{free_port()}"
    config = PartyConfig(party="north", aggregator=address, data=file, state=folder / "state")
    node = PartyNode(config, Log(), None)
    with pytest.raises(ConfigError, match=r"no aggregator answers at .* \(waited 0\.3 s\)"):
        in_time(node.run(0.3, once=False))


def test_what_a_party_cannot_read_ends_the_session_but_not_the_party(folder, monkeypatch):
    """Terms of a newer aggregator, say."""
    tables = shared_out(2)
    read, unreadable = decode_to_party, [True]

    def decode(data):
        if unreadable and isinstance(read(data), Admit):
            unreadable.clear()
            raise PeerError("terms this version of fedboost cannot follow")
        return read(data)

    async def scenario():
        async with consortium(folder, tables) as one:
            monkeypatch.setattr(party_node, "decode_to_party", decode)
            with pytest.raises(SessionFailed, match=r"party (north|south) left: terms this version"):
                await one.train(terms(TWO))
            return await one.train(terms(TWO)), one.log

    training, log = in_time(scenario())
    assert training.model.to_bytes() == expected(tables)
    assert len(log.named("party here")) == 2


# ---- programs ---------------------------------------------------------------------------------------


def test_a_program_the_aggregator_offers_runs_there(folder):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables, ["sites:half_as_many"]) as one:
            return await one.train(terms(TWO, rounds=4, program="sites:half_as_many"))

    training = in_time(scenario())
    assert training.model.booster == simulate(terms(rounds=2), tables).model.booster
    assert training.model.terms.session.program == "sites:half_as_many"


def test_a_program_that_is_not_offered_is_refused(folder):
    async def scenario():
        async with consortium(folder, {}, ["sites:half_as_many"]) as one:
            with pytest.raises(ConfigError) as caught:
                await one.train(terms(TWO, program="os:system"))
            return str(caught.value)

    assert in_time(scenario()) == (
        "program 'os:system' is not offered here (offered: boosting, sites:half_as_many)"
    )


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("fails_later", "'sites:fails_later' failed: ZeroDivisionError: a defect"),
        ("asks_nonsense", "'sites:asks_nonsense'"),
        ("asks_beyond_the_wire", "'sites:asks_beyond_the_wire'"),
        ("no_model", "'sites:no_model' returned no model"),
        ("no_generator", "'sites:no_generator'"),
    ],
)
def test_a_program_with_a_defect_ends_its_session_and_nothing_else(folder, program, said):
    tables = shared_out(2)

    async def scenario():
        async with consortium(folder, tables, [f"sites:{program}"]) as one:
            with pytest.raises(SessionFailed) as caught:
                await one.train(terms(TWO, program=f"sites:{program}"))
            training = await one.train(terms(TWO))
            assert len(one.log.named("party here")) == 2
            return str(caught.value), training

    message, training = in_time(scenario())
    assert said in message
    assert "\n" not in message
    assert training.model.to_bytes() == expected(tables)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("no_such_module:train", "cannot be loaded"),
        ("sites:no_such_function", "cannot be loaded"),
        ("sites:not_even_a_function", "cannot be loaded"),
        ("broken_on_import:train", "cannot be loaded"),
        ("sites", "write module:function"),
        (":train", "write module:function"),
    ],
)
def test_an_aggregator_does_not_start_with_a_program_it_cannot_load(tmp_path, monkeypatch, program, said):
    (tmp_path / "broken_on_import.py").write_text("def train(terms) return")
    monkeypatch.syspath_prepend(tmp_path)

    async def start():
        server = AggregatorServer(AggregatorConfig(listen="127.0.0.1:0", programs=(program,)), Log(), None)
        try:
            await server.start()
        finally:
            await server.stop()

    with pytest.raises(ConfigError, match=said) as caught:
        in_time(start())
    assert program in str(caught.value)
    assert "\n" not in str(caught.value)


def test_terms_without_parties_are_refused_by_the_analyst_and_by_the_aggregator(folder):
    async def scenario():
        async with consortium(folder, {}) as one, channel_to(one) as opened:
            with pytest.raises(ConfigError, match="name no parties"):
                connect(one.address, insecure_loopback=True).train(terms())
            code, details = await status_of(submit(opened, terms()))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert "name no parties" in details

    in_time(scenario())


def test_a_port_that_is_taken_is_a_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        async def start():
            server = AggregatorServer(AggregatorConfig(listen=address), Log(), None)
            try:
                await server.start()
            finally:
                await server.stop()

        with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
            in_time(start())


# ---- processes --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_of_their_own_make_the_model_of_the_simulation(tmp_path):
    tables = shared_out(3)
    with LocalCluster(tmp_path, written(tmp_path, tables), policy=ANYTHING) as one:
        model = one.analyst.train(terms(THREE, protection="masked")).model
        assert model.booster == simulate(terms(), tables).model.booster
        assert model.protection == "masked"
        assert tuple(model.attestations) == THREE
        assert set(one.parties) == set(THREE)
        assert "session offered" in one.log("north")
    assert [process.poll() is None for process in one.parties.values()] == [False] * 3


@pytest.mark.slow
def test_a_party_that_is_killed_is_named_within_seconds(tmp_path):
    tables = shared_out(2)
    with LocalCluster(tmp_path, written(tmp_path, tables), policy=ANYTHING) as one:
        training = one.analyst.train(terms(TWO, rounds=20_000, **STOPS))
        for row in training:
            if row["round"] == 3:
                one.parties["south"].kill()
                killed = time.monotonic()
                break
        with pytest.raises(SessionFailed, match="party south was lost"):
            _ = training.model
        assert time.monotonic() - killed < 5
        assert one.parties["north"].poll() is None
        one.start_party("south")
        model = one.analyst.train(terms(TWO)).model
        assert model.booster == simulate(terms(), tables).model.booster


@pytest.mark.slow
def test_parties_of_any_name_have_files_of_their_own(tmp_path):
    names = ["aggregator", "a/b", "A/B", "..", 'Ünï "😀"']
    tables = dict(zip(names, shared_out(5).values(), strict=True))
    files = written(tmp_path, dict(zip("12345", tables.values(), strict=True)))
    agreement = terms(names, protection="masked")
    with LocalCluster(tmp_path, dict(zip(names, files.values(), strict=True))) as one:
        assert all("`fedboost approve terms.toml --config " in one.log(name) for name in names)
        assert len(set(one.approve(agreement))) == 5
        model = one.analyst.train(agreement).model
        assert model.booster == simulate(terms(), tables).model.booster
        assert all("session offered" in one.log(name) for name in names)


def test_a_party_that_does_not_come_up_is_named_with_its_last_words(tmp_path):
    files = written(tmp_path, {"north": rows()}) | {"south": tmp_path / "nowhere.csv"}
    one = LocalCluster(tmp_path, files)
    with pytest.raises(SessionFailed, match=r"party south did not start: .*nowhere\.csv: no such file"), one:
        pass
    assert all(process.poll() is not None for process in one.parties.values())
