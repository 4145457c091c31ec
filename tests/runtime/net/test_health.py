"""The health service, and `fedboost status --health`, which queries it."""

import asyncio

import grpc
import pytest
from floods import ODD, TWO, dialled
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from refusals import refusal
from sites import bundles_of, consortium, fedboost, in_time

from fedboost.runtime.aggregator import parties
from fedboost.runtime.net import channel


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("limits") / "keys", (*TWO, ODD))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "consortium"


def messages():
    """The public messages of grpc.health.v1, made here from their description."""
    file = descriptor_pb2.FileDescriptorProto(name="h.proto", package="h", syntax="proto3")
    fields = {"Request": ("service", 9), "Response": ("status", 5)}
    for name, (field, kind) in fields.items():
        file.message_type.add(name=name).field.add(name=field, number=1, label=1, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"h.{name}")) for name in fields]


REQUEST, RESPONSE = messages()


@pytest.mark.parametrize("keys", [True, False])
async def test_the_health_service_says_whether_the_aggregator_serves(folder, bundles, keys):
    async def until_stopped(watched):
        assert RESPONSE.FromString(await anext(watched)).status == 2
        assert [answer async for answer in watched] == []

    known = bundles if keys else None
    async with consortium(folder, {}, bundles=known) as one, dialled(one, "analyst") as (opened,):
        check = opened.unary_unary(parties.CHECK)
        for name in ("", channel.SERVICE):
            answer = RESPONSE.FromString(await check(REQUEST(service=name).SerializeToString()))
            assert answer.status == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(REQUEST(service="other").SerializeToString())
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watch = opened.unary_stream("/grpc.health.v1.Health/Watch")
        unknown = watch(REQUEST(service="other").SerializeToString())
        assert [RESPONSE.FromString(answer).status async for answer in unknown] == [3]
        watched = aiter(watch(REQUEST().SerializeToString()))
        assert RESPONSE.FromString(await anext(watched)).status == 1
        await asyncio.gather(one.server.stop(), until_stopped(watched))


def test_the_option_health(folder, bundles):
    async def scenario():
        async with consortium(folder, {}, bundles=bundles) as one:
            for name in ("analyst", "north"):
                keys = bundles[name].folder
                ended = await asyncio.to_thread(
                    fedboost, "status", "--health", "--aggregator", one.address, "--keys", keys
                )
                assert (ended.code, ended.out, ended.err) == (0, "serving\n", "")
            keys = bundles["aggregator"].folder
            ended = await asyncio.to_thread(
                fedboost, "status", "--health", "--aggregator", one.address, "--keys", keys
            )
            assert ended.code == 2
            assert "is the bundle of an aggregator; use an analyst's" in ended.err
            return one.address

    address = in_time(scenario())
    arguments = ("--aggregator", address, "--insecure-loopback", "--wait", "0.3")
    assert f"no aggregator answers at {address} (waited 0.3 s)" in refusal("status", "--health", *arguments)
    assert "--json and --health cannot be combined" in refusal("status", "--health", "--json", *arguments)
