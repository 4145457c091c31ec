"""Parties over the network: those that cannot attend, and those that fail in a session."""

import asyncio
import time

import grpc
import pyarrow as pa
import pytest
from consortia import THREE, TWO, channel_to, expected, submit
from raised import raised
from sites import STOPS, consortium, in_time, rows, shared_out, status_of, terms, until

from fedboost.errors import ConfigError, Refused, SessionFailed
from fedboost.holders.columns import holder_for
from fedboost.protocol.messages import Join, Leave, Offer, Relay, Report, SessionEnded
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.net import channel
from fedboost.runtime.site import node
from fedboost.wire.codec import MAX_TO_AGGREGATOR, WIRE_VERSION
from fedboost.wire.messages import decode_to_party, encode_from_party, encode_to_party

NEWER = str(WIRE_VERSION + 1)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consortium"


@pytest.mark.parametrize(("left", "seconds"), [(0, 0), (20, 0), (21, 0.1), (10_000, 1)])
def test_an_analyst_whom_the_site_refuses_keeps_the_next_one_waiting_for_a_second_at_most(left, seconds):
    assert node.pause_after(left) == seconds


# ---- parties that cannot attend ---------------------------------------------------------------------


async def test_a_second_party_of_the_same_name_is_refused(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one:
        await until(lambda: len(one.log.named("party here")) == 2)
        with raised(Refused, "party-name-taken"):
            await one.start_party("twin", tables["north"], as_name="north", state="twin")
        found = await one.train(terms(TWO))
    assert found.model.to_bytes() == expected(tables)


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        ({"name": None}, "the party did not send a valid name"),
        ({"name": b""}, "the party did not send a valid name"),
        ({"name": b"x" * 257}, "the party did not send a valid name"),
        ({"name": b"\xff\xfe"}, "the party did not send a valid name"),
        ({"version": NEWER}, f"the aggregator uses version {WIRE_VERSION}, the party uses {NEWER}"),
        ({"version": None}, f"the aggregator uses version {WIRE_VERSION}, the party uses an unknown one"),
    ],
    ids=["none", "empty", "long", "no text", "newer", "no version"],
)
async def test_a_party_that_does_not_greet_well_is_told_why(folder, greeting, said):
    async with consortium(folder, {}) as one, channel_to(one) as opened:
        code, details = await status_of(one.attend(opened, **greeting))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert said in details
        assert "\n" not in details
        assert one.log.named("party here") == []


async def test_an_analyst_of_another_version_is_told_so(folder):
    async with consortium(folder, {}) as one, channel_to(one) as opened:
        code, details = await status_of(submit(opened, terms(TWO), version=NEWER))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert f"the aggregator uses version {WIRE_VERSION}, the analyst uses {NEWER}" in details


async def test_a_party_of_another_version_ends_with_one_clear_error(folder, monkeypatch):
    monkeypatch.setattr(channel, "VERSIONS", ((channel.VERSION_KEY, NEWER),))
    async with consortium(folder, {}) as one:
        with raised(ConfigError, "wire-version"):
            await one.start_party("north", rows())


# ---- parties that fail in a session -----------------------------------------------------------------


@pytest.mark.slow
async def test_a_site_whose_rows_do_not_fit_is_named_and_all_live_on(folder):
    tables = shared_out(3)
    words = pa.array(["sixty"] * tables["south"].num_rows)
    tables["south"] = tables["south"].set_column(0, "age", words)
    fitting = {"label": "y", "numeric": ["dose"]}
    async with consortium(folder, tables) as one:
        with pytest.raises(SessionFailed) as caught:
            await one.train(terms(THREE))
        training = await one.train(terms(THREE, columns=fitting))
        assert not any(task.done() for task in one.tasks.values())
        message = str(caught.value)
    said = "its rows do not fit the terms; its own log says which column and why"
    assert message == f"party south left: {said}"  # what is in a row stays at the site
    (left,) = one.log.named("left the session")
    assert left["party"] == "south"
    assert left["reason"].startswith(
        f"party south: {said}: column 'age' has type string, but the terms declare it numeric"
    )
    assert "sixty" in left["reason"]
    assert training.model.to_bytes() == expected(tables, columns=fitting)
    assert len(one.log.named("party here")) == 3


async def test_the_terms_of_one_session_do_not_bind_the_next(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one:
        with pytest.raises(SessionFailed, match="rows do not fit the terms"):
            await one.train(terms(TWO, columns={"label": "y", "positive": "7", "numeric": ["age"]}))
        found = await one.train(terms(TWO))
    assert found.model.to_bytes() == expected(tables)


@pytest.mark.slow
async def test_a_party_that_goes_in_the_middle_is_named_at_once(folder):
    tables = shared_out(3)
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
        training = await one.train(terms(THREE))
    assert seconds < 3
    assert training.model.to_bytes() == expected(tables)


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 40,
        b"",
        b"\x0a\xff",
        encode_to_party(SessionEnded("from a party?")) + b"\x08",
        b"\x1a\x03\x0a\x01\xff",
    ],
    ids=["noise", "empty", "cut off", "wrong direction", "no text"],
)
async def test_garbage_costs_its_sender_the_connection_and_nobody_else(folder, data):
    tables = shared_out(2)
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        odd = one.attend(opened)
        await odd.write(data)
        code, details = await status_of(odd)
        assert code == grpc.StatusCode.DATA_LOSS
        assert details
        await until(lambda: any(e["party"] == "odd" for e in one.log.named("party gone")))
        (gone,) = [e for e in one.log.named("party gone") if e["party"] == "odd"]
        assert "broke the protocol" in gone["reason"]
        found = await one.train(terms(TWO))
    assert found.model.to_bytes() == expected(tables)


async def test_garbage_within_a_session_fails_it_and_names_the_sender(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        odd = one.attend(opened)
        training = asyncio.create_task(one.train(terms([*TWO, "odd"], **STOPS)))
        assert isinstance(decode_to_party(await odd.read()), Offer)
        await odd.write(b"\xff" * 40)
        with pytest.raises(SessionFailed, match=r"party odd.*broke the protocol"):
            await training
        found = await one.train(terms(TWO))
    assert found.model.to_bytes() == expected(tables)


async def test_a_party_that_joins_twice_and_greets_otherwise_fails_the_session(folder):
    """It would swap a key."""
    tables = shared_out(1)
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        odd = one.attend(opened)
        training = asyncio.create_task(one.train(terms(["north", "odd"])))
        admit = decode_to_party(await odd.read())
        for greeting in (b"one", b"other"):
            await odd.write(encode_from_party(Join(admit.session, admit.terms.digest, greeting=greeting)))
            if greeting == b"one":  # once all have joined
                await odd.read()
        with pytest.raises(SessionFailed, match="party odd broke the protocol: it joined twice"):
            await training


async def test_a_message_over_the_limit_costs_its_sender_the_connection(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one:
        async with grpc.aio.insecure_channel(one.address) as opened:
            odd = one.attend(opened)
            await odd.write(bytes(MAX_TO_AGGREGATOR + 1))
            code, _ = await status_of(odd)
            assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DATA_LOSS)
        found = await one.train(terms(TWO))
    assert found.model.to_bytes() == expected(tables)


async def test_a_party_that_cannot_be_written_to_is_lost_at_once(folder, monkeypatch):
    """Here because a question is larger than messages may be."""
    options = {**dict(channel.SERVER_OPTIONS), "grpc.max_send_message_length": 100}
    monkeypatch.setattr(channel, "SERVER_OPTIONS", [*options.items()])
    tables = shared_out(1)
    async with consortium(folder, tables) as one:
        with pytest.raises(SessionFailed, match="party north was lost"):
            await one.train(terms(tables, **STOPS))


async def test_words_without_a_session_are_nobodys_business(folder):
    tables = shared_out(2)
    async with consortium(folder, tables) as one, channel_to(one) as opened:
        odd = one.attend(opened)
        for message in (Report(1, 1, 0, b"\x01"), Join("a", "b"), Leave("I have had enough")):
            await odd.write(encode_from_party(message))
        found = await one.train(terms(TWO))
    assert found.model.to_bytes() == expected(tables)


async def test_a_party_the_terms_do_not_name_cannot_meddle(folder):
    tables = shared_out(2)
    async with consortium(folder, {"north": tables["north"]}) as one, channel_to(one) as opened:
        odd = one.attend(opened)
        south = one.attend(opened, b"south")
        training = asyncio.create_task(one.train(terms(TWO)))
        admit = decode_to_party(await south.read())
        session = PartySession(
            Site(
                "south",
                holder_for(lambda terms: to_shard(tables["south"], terms, "south"), "south"),
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
        found = await training
    assert found.model.to_bytes() == expected(tables)


async def answer(call, session, message=None):
    """Take part over a raw connection to the end of the session."""
    while session.ended is None:
        message = message or decode_to_party(await call.read())
        for reply in session.handle(message):
            await call.write(encode_from_party(reply))
        message = None


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
            assert isinstance(bye, SessionEnded)
            training = asyncio.create_task(one.train(terms(TWO, columns=fitting)))
            second = decode_to_party(await odd.read())
            for message in last_words(first):
                await odd.write(encode_from_party(message))
            await asyncio.sleep(0.1)
            session = PartySession(
                Site(
                    "south",
                    holder_for(lambda terms: to_shard(tables["south"], terms, "south"), "south"),
                    bytes,
                )
            )
            await answer(odd, session, second)
            return await training

    model = in_time(scenario()).model
    both = {"north": bad, "south": tables["south"]}
    assert model.to_bytes() == expected(both, columns=fitting)


@pytest.mark.slow
def test_last_words_in_a_session_are_not_held_against_the_next(folder):
    slow_party_in_two_sessions(
        folder,
        lambda admit: [
            Join(admit.session, admit.terms.digest),
            Relay(3, 1, 1, b"12345", True, to=("north",)),
            Report(3, 1, 0, b"12345"),
        ],
    )


@pytest.mark.slow
def test_leaving_a_session_that_is_over_does_not_leave_the_next(folder):
    slow_party_in_two_sessions(folder, lambda admit: [Leave("my rows do not fit either", admit.session)])
