"""Frames between the parties of a scoring service: passed on in order, to the party that they name alone."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from sites import PATIENCE, Log

from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.wire.messages import MAX_LINK_FRAME, LinkFrame, decode_link, encode_link

MODEL, OTHER = b"m" * 32, b"o" * 32


@asynccontextmanager
async def serving(folder):
    server = AggregatorServer(AggregatorConfig(listen="127.0.0.1:0", state=folder), Log(), None)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Caller:
    """A party's call."""

    def __init__(self, opened, name):
        metadata = ((channel.PARTY_KEY, name.encode()), *channel.VERSIONS)
        self.call = opened.stream_stream(channel.LINK)(metadata=metadata)

    async def say(self, party, content=b"", gone=False):
        await self.call.write(encode_link(LinkFrame(party, content, gone)))

    async def hear(self):
        async with asyncio.timeout(PATIENCE):
            data = await self.call.read()
        return None if data is grpc.aio.EOF else decode_link(data)

    async def end(self):
        """The code of the error with which the call ended."""
        try:
            while await self.hear() is not None:
                pass
        except grpc.aio.AioRpcError as error:
            return dict(error.trailing_metadata()).get(channel.CAUSE_KEY)


@asynccontextmanager
async def callers(folder, *names, model=MODEL):
    """Calls of these parties, each of which has named the model."""
    async with serving(folder) as server, channel.dial(Server(server.address), None) as opened:
        made = []
        for place, name in enumerate(names):
            made.append(Caller(opened, name))
            await made[-1].say("", model)
            for earlier in names[:place]:
                assert await made[-1].hear() == LinkFrame(earlier)
            for other in made[:-1]:
                assert await other.hear() == LinkFrame(name)
        yield server, opened, made


async def test_frames_arrive_in_order_from_whom_they_are(tmp_path):
    async with callers(tmp_path, "bank", "telco", "shop") as (_, _, (bank, telco, shop)):
        for number in range(50):
            await bank.say("telco", b"%d" % number)
        await shop.say("telco", b"x")
        await telco.say("bank", b"back")
        heard = [await telco.hear() for _ in range(51)]
        from_bank = [frame.content for frame in heard if frame.party == "bank"]
        assert from_bank == [b"%d" % number for number in range(50)]
        assert [frame for frame in heard if frame.party == "shop"] == [LinkFrame("shop", b"x")]
        assert await bank.hear() == LinkFrame("telco", b"back")


async def test_who_is_gone_is_said(tmp_path):
    async with callers(tmp_path, "bank", "telco") as (_, _, (bank, telco)):
        telco.call.cancel()
        assert await bank.hear() == LinkFrame("telco", gone=True)
        await bank.say("telco", b"x")
        assert await bank.hear() == LinkFrame("telco", gone=True)
        await bank.say("nobody", b"x")
        assert await bank.hear() == LinkFrame("nobody", gone=True)


async def test_models_are_apart(tmp_path):
    async with callers(tmp_path, "bank") as (_, opened, (bank,)):
        telco = Caller(opened, "telco")
        await telco.say("", OTHER)
        await telco.say("bank", b"x")
        assert await telco.hear() == LinkFrame("bank", gone=True)
        await bank.say("telco", b"x")
        assert await bank.hear() == LinkFrame("telco", gone=True)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (encode_link(LinkFrame("telco", MODEL)), "link-first-frame"),
        (encode_link(LinkFrame("", b"short")), "link-first-frame"),
        (b"\xff\xff", "wire-not-message"),
        (encode_link(LinkFrame("", b"x" * (MAX_LINK_FRAME + 1))), "message-out-of-bounds"),
    ],
)
async def test_a_wrong_first_frame_ends_the_call(tmp_path, first, code):
    async with callers(tmp_path, "bank") as (_, opened, (bank,)):
        wrong = Caller(opened, "telco")
        await wrong.call.write(first)
        assert await wrong.end() == code
        await bank.say("telco", b"x")
        assert await bank.hear() == LinkFrame("telco", gone=True)


async def test_a_name_is_connected_once_a_model(tmp_path):
    async with callers(tmp_path, "bank", "telco") as (_, opened, (bank, telco)):
        again = Caller(opened, "telco")
        await again.say("", MODEL)
        assert await again.end() == "link-taken"
        await bank.say("telco", b"still")
        assert await telco.hear() == LinkFrame("bank", b"still")
        other = Caller(opened, "telco")
        await other.say("", OTHER)
        await other.say("bank", b"x")
        assert await other.hear() == LinkFrame("bank", gone=True)


async def test_a_party_that_breaks_the_protocol_is_cut_off_alone(tmp_path):
    async with callers(tmp_path, "bank", "telco") as (_, _, (bank, telco)):
        await telco.call.write(b"\xff\xff")
        assert await telco.end() == "wire-not-message"
        assert await bank.hear() == LinkFrame("telco", gone=True)


async def test_a_sender_waits_for_a_receiver_that_reads_slowly(tmp_path):
    """Else what it sends would fill the aggregator's memory, or the receiver would be cut off."""
    async with callers(tmp_path, "bank", "telco") as (_, _, (bank, telco)):
        content, number = b"x" * (MAX_LINK_FRAME - 100), 60

        async def send():
            for _ in range(number):
                await bank.say("telco", content)

        sending = asyncio.create_task(send())
        await asyncio.sleep(0.5)
        for _ in range(number):
            assert await telco.hear() == LinkFrame("bank", content)
        await sending
