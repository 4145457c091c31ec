"""What one peer may cost the aggregator: a flood is cut off and named, and the others' training goes on."""

import asyncio
import socket
from contextlib import suppress

import grpc
import pytest
from floods import ODD, TWO, dialled
from sites import bundles_of, consortium, rows, shared_out, status_of, terms, until

from fedboost.errors import Refused, SessionFailed
from fedboost.protocol import key_exchange
from fedboost.protocol.messages import Join, Leave, Report
from fedboost.runtime.aggregator import limits, sessions
from fedboost.runtime.aggregator.limits import Outgoing, Peers
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.net import channel
from fedboost.runtime.web.guard import Bucket
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import (
    TrainCommand,
    TrainRequest,
    decode_to_party,
    encode_from_party,
    encode_train_request,
)

TABLES = shared_out(2)
WIDE = {f"c{number}": ["x" * 250] for number in range(600)}
"""Columns that make terms of more bytes than a connection carries to somebody who does not read."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("limits") / "keys", (*TWO, ODD))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consortium"


@pytest.fixture
def prompt(monkeypatch):
    """Refusals of a flood come without much delay."""
    monkeypatch.setattr(limits, "REFUSAL_SECONDS", 0.05)


async def right_model(one, **settings):
    """Train with the two parties while something else goes on; the model is the simulation's."""
    training = await one.train(terms(TWO, **settings))
    assert training.model.booster == simulate(terms(**settings), TABLES).model.booster


# ---- floods -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_flood_of_calls_costs_its_peer_alone(folder, bundles, prompt):
    """Many connections, many calls on each: after its share the peer is refused, in one line of the log."""
    async with consortium(folder, TABLES, bundles=bundles) as one, dialled(one, ODD, 6) as opened:
        training = asyncio.create_task(right_model(one, rounds=30))
        await until(lambda: one.log.named("session begins"))
        held = one.attend(opened[0])
        await held.initial_metadata()
        calls = [one.attend(each) for each in opened for _ in range(30)]
        ends = await asyncio.gather(*map(status_of, calls))
        await training
        assert not held.done()
        assert not one.log.named("party gone")
        held.cancel()
    assert {code for code, _ in ends} == {grpc.StatusCode.PERMISSION_DENIED}
    told = [details for _, details in ends if "party 'odd' must wait" in details]
    assert len(told) > 100
    (line,) = one.log.named("peer refused")
    assert line["peer"] == "party 'odd'"
    assert "calls per second" in line["reason"] or "calls are open" in line["reason"]


@pytest.mark.slow
async def test_a_flood_of_messages_costs_its_party_the_connection(folder, bundles, prompt):
    message = encode_from_party(Leave("x" * 1000, "no such session"))

    async def flood(opened, one):
        call = one.attend(opened, ODD.encode())
        try:
            for _ in range(100_000):
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return await call.code()

    async with consortium(folder, TABLES, bundles=bundles) as one, dialled(one, ODD) as (opened,):
        training = asyncio.create_task(right_model(one, rounds=30))
        await until(lambda: one.log.named("session begins"))
        end = await flood(opened, one)
        again = await status_of(one.attend(opened, ODD.encode()))
        await training
    assert end != grpc.StatusCode.OK
    assert again[0] == grpc.StatusCode.PERMISSION_DENIED
    assert again[1].startswith("calls are refused for 10 s after a flood of messages: party 'odd' must wait")
    reason = "it broke the protocol: it keeps sending messages that were not requested"
    assert [line["reason"] for line in one.log.named("party gone") if line["party"] == ODD] == [reason]
    assert one.log.named("peer refused") == [], "the flood is in the log already"


@pytest.mark.slow
async def test_the_last_words_of_a_failed_session_are_no_flood(folder, bundles, monkeypatch):
    """The rest of a large report may still arrive after nobody waits for it; more than that is a flood."""
    monkeypatch.setattr(limits, "UNWANTED_SAVED", 5.0)
    monkeypatch.setattr(limits, "UNWANTED_PER_SECOND", 0.0)
    most = limits.LAST_WORDS
    late = encode_from_party(Report(1, 1, 0, b""))
    async with consortium(folder, TABLES, bundles=bundles) as one, dialled(one, ODD) as (opened,):
        call = one.attend(opened, ODD.encode())
        await call.initial_metadata()
        training = asyncio.create_task(one.train(terms(["north", ODD])))
        admit = decode_to_party(await call.read())
        await call.write(encode_from_party(Join(admit.session, admit.terms.digest)))
        await call.write(encode_from_party(Leave("enough", admit.session)))
        with pytest.raises(SessionFailed):
            await training
        for _ in range(most):
            await call.write(late)
        await right_model(one)
        assert not one.log.named("party gone")
        with suppress(grpc.aio.AioRpcError):
            for _ in range(10):
                await call.write(late)
        await until(lambda: one.log.named("party gone"))


@pytest.mark.slow
async def test_a_party_that_does_not_read_loses_its_connection_and_costs_no_memory(
    folder, bundles, monkeypatch
):
    monkeypatch.setattr(limits, "QUEUED_MESSAGES", 6)
    narrow = [("grpc.http2.bdp_probe", 0)]  # else gRPC itself takes in megabytes that nobody reads
    monkeypatch.setattr(channel, "CLIENT_OPTIONS", [*channel.CLIENT_OPTIONS, *narrow])
    columns = {"label": "y", "numeric": ["age"], "categorical": WIDE}
    agreement = terms([ODD], columns=columns)
    request = key_exchange.request(bundles["analyst"].signer, agreement, bytes(32), 0)
    wishes = TrainCommand.FOLLOW, TrainCommand.STOP
    wide, stop = (encode_train_request(TrainRequest(agreement.canonical(), wish, request)) for wish in wishes)

    async def submit(one, analyst):
        """Begin a session with the party that does not read, and give it up."""
        train = analyst.unary_stream(channel.TRAIN)
        begun, failed = (len(one.log.named(event)) for event in ("session begins", "session failed"))
        submitted = train(wide, metadata=[(channel.VERSION_KEY, str(WIRE_VERSION))])
        await until(lambda: one.log.named("session begins")[begun:] or gone(one))
        submitted.cancel()
        await train(stop, metadata=[(channel.VERSION_KEY, str(WIRE_VERSION))]).read()
        await until(lambda: one.log.named("session failed")[failed:] or gone(one))

    def gone(one):
        return [line["reason"] for line in one.log.named("party gone") if line["party"] == ODD]

    async with consortium(folder, TABLES, bundles=bundles) as one, dialled(one, ODD) as (deaf,):
        call = one.attend(deaf, ODD.encode())
        await call.initial_metadata()
        async with dialled(one, "analyst") as (analyst,):
            while not gone(one):
                await submit(one, analyst)
        (reason,) = gone(one)
        assert reason.startswith("it does not read its messages: 6 messages of ")
        await right_model(one)
        call.cancel()


async def test_whoever_says_nothing_is_refused_and_has_few_calls_open(folder, bundles, prompt, monkeypatch):
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(limits, "CALLS_AT_ONCE", 3)
    async with consortium(folder, TABLES, bundles=bundles) as one, dialled(one, ODD) as (opened,):
        version = [(channel.VERSION_KEY, str(WIRE_VERSION))]
        silent = [opened.stream_stream(channel.TRAIN)(metadata=version) for _ in range(5)]
        ends, log = [await status_of(call) for call in silent], one.log
    details = sorted(text for _, text in ends)
    assert details[2:] == ["no request arrived for 0.5 s"] * 3
    assert all(text.startswith("3 calls are open") for text in details[:2])
    assert [line["peer"] for line in log.named("peer refused")] == ["party 'odd'"]


@pytest.mark.slow
async def test_large_terms_in_a_row_count_as_many_calls(folder, prompt, monkeypatch):
    monkeypatch.setattr(limits, "SHARING_AN_ADDRESS", 1)
    columns = {"label": "y", "numeric": [f"{number:0>200}" for number in range(12_000)]}
    large = terms(["north"], columns=columns)
    async with consortium(folder, {}, memory=0.25) as one:
        refused = []
        for _ in range(3):
            with pytest.raises(Refused) as caught:
                await one.train(large)
            refused.append(str(caught.value))
        first, second, third = refused
    assert "for the sums of this session" in first
    assert "for the sums of this session" in second
    assert "bytes came too soon after the last one" in third


@pytest.mark.parametrize(("connections", "parties"), [(2112, 2048), (512, 480), (80, 75), (8, 8)])
def test_some_connections_are_no_partys(connections, parties):
    assert limits.party_connections(connections) == parties


async def test_an_analyst_gets_through_where_parties_take_all_that_they_may(folder, monkeypatch):
    monkeypatch.setattr(limits, "party_connections", lambda connections: len(TABLES))
    async with consortium(folder, TABLES) as one:
        await until(lambda: len(one.log.named("party here")) == len(TABLES))
        async with dialled(one, ODD) as (opened,):
            code, _ = await status_of(one.attend(opened))
        assert code == grpc.StatusCode.PERMISSION_DENIED
        (line,) = one.log.named("party refused")
        assert "2 parties are connected" in line["reason"]
        await right_model(one)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [True, False])
async def test_connections_that_say_nothing_are_closed(folder, bundles, monkeypatch, keys):
    monkeypatch.setattr(limits, "CONNECTIONS", 8)
    few = {"grpc.server_handshake_timeout_ms": 400}
    options = [(name, few.get(name, value)) for name, value in channel.SERVER_OPTIONS]
    monkeypatch.setattr(channel, "SERVER_OPTIONS", options)

    def is_closed(one):
        one.settimeout(0.01)
        try:
            while (data := one.recv(4096)) != b"":
                assert data
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    known = bundles if keys else None
    async with consortium(folder, TABLES, bundles=known) as one:
        await until(lambda: len(one.log.named("party here")) == 2)
        host, port = one.address.split(":")
        opened = [socket.create_connection((host, int(port))) for _ in range(30)]
        try:
            await asyncio.sleep(0.1)
            at_once = sum(await asyncio.to_thread(lambda: [is_closed(each) for each in opened]))
            await until(lambda: all(is_closed(each) for each in opened))
        finally:
            for each in opened:
                each.close()
        await right_model(one)
        found = at_once
    assert found >= 22


async def test_headers_are_bounded(folder):
    async with consortium(folder, TABLES) as one, dialled(one, ODD) as (opened,):
        large = [(channel.PARTY_KEY, b"x" * 3 * limits.METADATA_BYTES)]
        call = opened.stream_stream(channel.ATTEND)(metadata=large)
        code, _ = await status_of(call)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        await right_model(one)
        assert {line["party"] for line in one.log.named("party here")} == {*TWO}


# ---- sentences, memory ------------------------------------------------------------------------------


async def test_a_long_refusal_reaches_the_analyst(folder, monkeypatch):
    def refusing(name, offered):
        raise Refused("test", "ü" * 20_000)

    monkeypatch.setattr(sessions, "program_of", refusing)
    async with consortium(folder, {}) as one:
        with pytest.raises(Refused, match=r"^ü{100,}…$"):
            await one.train(terms(TWO))


@pytest.mark.slow
async def test_sums_that_need_too_much_memory_end_their_session_and_nothing_else(folder):
    async with consortium(folder, shared_out(2, rows(2000)), memory=0.0006) as one:
        with pytest.raises(SessionFailed, match=r"would need 0\.000\d+ GiB for the sums of this session"):
            await one.train(terms(TWO, max_depth=16, max_bin=256, min_child_weight=0))
        columns = {"label": "y", "numeric": [f"c{number}" for number in range(20)]}
        with pytest.raises(Refused, match="GiB for the sums of this session"):
            await one.train(terms(TWO, columns=columns))
        assert await one.train(terms(TWO))


# ---- the small pieces -------------------------------------------------------------------------------


def test_tokens_come_back_with_time_and_are_never_more_than_saved():
    bucket = Bucket(per_second=2.0, most=3.0, now=10.0)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(10.5), bucket.take(10.5)] == [True, False]
    assert not bucket.is_full(11.9)
    assert bucket.is_full(100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(99.0), "a clock that goes back gives nothing"


def test_a_peer_that_was_quiet_is_told_of_again():
    peer = Peers().find(b"a", lambda: "a", 0.0)
    while not peer.fault(0.0):
        pass
    peer.reported = True
    assert not peer.fault(1.0)
    assert peer.reported
    assert not peer.fault(100.0)
    assert not peer.reported


def test_a_party_that_is_barred_may_come_back_and_an_address_is_never_barred():
    peer, address = (Peers(share).find(b"a", lambda: "a", 0.0) for share in (1, 32))
    peer.bar(5.0)
    address.bar(5.0)
    assert peer.fault(5.0 + limits.BARRED_SECONDS - 0.1)
    assert not peer.fault(5.0 + limits.BARRED_SECONDS)
    assert not address.fault(5.0)


def test_peers_that_are_quiet_are_forgotten_and_floods_are_not(monkeypatch):
    monkeypatch.setattr(limits, "MAX_PEERS", 10)
    peers = Peers()
    flooding = peers.find(b"flood", lambda: "flood", 0.0)
    while not flooding.fault(0.0):
        pass
    waiting = peers.find(b"open", lambda: "open", 0.0)
    waiting.open = 1
    for number in range(100):
        peers.find(b"%d" % number, lambda: "quiet", 0.0)
    assert len(peers) <= 10
    assert peers.find(b"flood", lambda: "new", 0.0) is flooding
    assert peers.find(b"open", lambda: "new", 0.0) is waiting


def test_what_is_queued_is_bounded_in_bytes_but_a_single_message_always_goes(monkeypatch):
    monkeypatch.setattr(limits, "QUEUED_BYTES", 100)

    async def scenario():
        cuts = []
        outgoing = Outgoing(lambda: cuts.append(1))
        outgoing.put(b"x" * 1000)
        assert await outgoing.get() == b"x" * 1000
        outgoing.put(b"x" * 60)
        outgoing.put(b"x" * 40)
        assert not cuts
        outgoing.put(b"x")
        outgoing.put(b"x")
        assert cuts == [1]
        assert outgoing.fault.startswith("it does not read its messages: 2 messages of 100 bytes are unread")

    asyncio.run(scenario())
