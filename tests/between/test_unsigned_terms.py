"""The attack: terms of a megabyte that nobody signed, or somebody else did, are read before that is found
out: the aggregator's one reader, or a party, is busy with them for most of a minute. Now the signature is
checked over the text as it was sent, and only then is the text read."""

import asyncio
import threading

import grpc
import pytest
from sites import bundles_of, consortium, in_time, shared_out, status_of, terms, until

from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import CHECK, SESSION
from fedboost.protocol.messages import Offer
from fedboost.runtime.aggregator import parties
from fedboost.runtime.aggregator.analysts import SMALL, Reader
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.audit import read_log
from fedboost.terms.terms import Terms
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import (
    CheckRequest,
    TrainCommand,
    TrainRequest,
    encode_check_request,
    encode_to_party,
    encode_train_request,
)
from fedboost.wire.v1 import fedboost_pb2 as pb

NORTH = shared_out(1)
AGREED = terms(["north"])


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("consortium") / "keys", ["north", "south"])


@pytest.fixture
def read(monkeypatch):
    """The texts that were read as terms."""
    texts, whole = [], Terms.from_canonical

    def noted(text):
        texts.append(text)
        return whole(text)

    monkeypatch.setattr(Terms, "from_canonical", noted)
    return texts


def signed(bundle, wish, agreed=AGREED):
    """A request that the owner of a bundle signed."""
    return key_exchange.request(bundle.signer, agreed, bytes(32), 0, wish)


METHODS = {SESSION: channel.TRAIN, CHECK: channel.CHECK}
ENCODERS = {
    SESSION: lambda text, request: encode_train_request(TrainRequest(text, TrainCommand.FOLLOW, request)),
    CHECK: lambda text, request: encode_check_request(CheckRequest(text, request)),
}


@pytest.mark.parametrize("wish", [SESSION, CHECK], ids=["train", "check"])
@pytest.mark.parametrize(
    ("caller", "request_of"),
    [
        ("analyst", lambda bundles, wish: None),
        ("analyst", lambda bundles, wish: signed(bundles["south"], wish)),
        ("analyst", lambda bundles, wish: signed(bundles["analyst"], CHECK if wish == SESSION else SESSION)),
        ("analyst", lambda bundles, wish: signed(bundles["analyst"], wish, AGREED.changed(rounds=7))),
        ("south", lambda bundles, wish: None),
        ("south", lambda bundles, wish: signed(bundles["analyst"], wish)),
    ],
    ids=[
        "unsigned",
        "another's",
        "another wish",
        "other terms",
        "a party",
        "a party's copy",
    ],
)
async def test_terms_that_their_sender_did_not_sign_are_not_read(
    tmp_path, bundles, read, wish, caller, request_of
):
    message = ENCODERS[wish](AGREED.canonical(), request_of(bundles, wish))
    at = consortium(tmp_path / "c", {}, bundles=bundles)
    async with at as one, channel.dial(Server(one.address), bundles[caller]) as opened:
        call = opened.unary_stream(METHODS[wish])
        code, said = await status_of(call(message, metadata=[(channel.VERSION_KEY, str(WIRE_VERSION))]))
    assert code == grpc.StatusCode.PERMISSION_DENIED, said
    assert read == []


@pytest.mark.slow
async def test_to_stop_a_session_its_terms_are_not_read(tmp_path, bundles, read):
    """A session is known by the digest of its terms, which is that of their text."""
    async with consortium(tmp_path / "c", NORTH, bundles=bundles) as one:
        training = one.analyst.train(AGREED.changed(rounds=5_000))
        await asyncio.to_thread(next, iter(training))
        before = len(read)
        await asyncio.to_thread(training.stop)
        await until(lambda: one.log.named("session failed"))
        after = len(read)
    assert before == after


@pytest.mark.parametrize("change", ["the text", "the request"])
async def test_a_party_does_not_read_what_an_aggregator_made_up(tmp_path, bundles, read, monkeypatch, change):
    """And its refusal is in the audit log as any other."""
    made_up = AGREED.canonical().replace('"rounds":3', '"rounds": 3')

    def encoded(message):
        data = encode_to_party(message)
        if not isinstance(message, Offer):
            return data
        if change == "the request":
            return encode_to_party(Offer(message.session, message.terms, message.attempt, None))
        offer = pb.ToParty.FromString(data)
        offer.admit.terms = made_up
        return offer.SerializeToString()

    monkeypatch.setattr(parties, "encode_to_party", encoded)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        one.start_party("north", NORTH["north"])
        training = asyncio.create_task(one.train(AGREED))
        await asyncio.wait([training])
        error, store, log = training.exception(), one.store("north"), one.log
    said = (
        "the signature of 'analyst' is invalid"
        if change == "the text"
        else "the terms are not signed by an analyst"
    )
    assert said in str(error)
    assert "party north left" in str(error)
    assert made_up not in read
    assert read.count(AGREED.canonical()) == 1  # at the aggregator
    (reason,) = [entry.event.reason for entry in read_log(store) if entry.event.kind == "ended"]
    assert said in reason
    assert log.named("left the session")


# ---- one at a time of a caller ----------------------------------------------------------------------


def reading(scenario):
    """Run with a reader."""

    async def run():
        return await scenario(Reader())

    return in_time(run())


def held(order, name):
    """Something that is read until it is let go."""
    go_on = threading.Event()

    def read():
        order.append(name)
        assert go_on.wait(10)
        return name

    return read, go_on


def test_what_is_small_does_not_wait_for_what_is_large_of_another():
    async def scenario(reader):
        order = []
        large, go_on = held(order, "large")
        first = asyncio.create_task(reader.run("ann", SMALL + 1, large))
        await until(lambda: order)
        told = await reader.run("bob", SMALL, lambda: "small")
        assert not first.done()
        go_on.set()
        return told, await first

    assert reading(scenario) == ("small", "large")


@pytest.mark.parametrize("size", [SMALL, SMALL + 1])
def test_of_one_caller_one_thing_is_read_at_a_time(size):
    """Also when the first call has ended meanwhile, and though its second thing would be read elsewhere."""

    async def scenario(reader):
        order = []
        first_read, go_on = held(order, "first")
        first = asyncio.create_task(reader.run("ann", SMALL + 1, first_read))
        await until(lambda: order)
        first.cancel()
        second = asyncio.create_task(reader.run("ann", size, lambda: order.append("second")))
        other = asyncio.create_task(reader.run("bob", SMALL, lambda: order.append("other")))
        await other
        assert order == ["first", "other"]
        go_on.set()
        await second
        return order

    assert reading(scenario) == ["first", "other", "second"]


def test_an_error_is_its_callers_and_the_next_is_read():
    async def scenario(reader):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await reader.run("ann", 1, lambda: 1 / 0)
        return await reader.run("ann", 1, lambda: "read")

    assert reading(scenario) == "read"
