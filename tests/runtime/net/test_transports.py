"""One contract for all ways to reach an aggregator: directly, and in tunnels over WebSockets and gRPC."""

import asyncio

import pytest
from sites import bundles_of, in_time, shared_out, terms
from tunnelled import TRANSPORTS, over

TABLES = shared_out(3)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("transports") / "keys", TABLES)


@pytest.fixture(scope="module")
def booster(tmp_path_factory, bundles):
    """The model that training without a tunnel gives."""

    async def scenario():
        async with over("direct", tmp_path_factory.mktemp("direct"), TABLES, bundles) as one:
            return (await one.train(masked())).model.booster

    return in_time(scenario())


def masked(**settings):
    return terms([*TABLES], protection="masked", **settings)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_same_trees(tmp_path, bundles, booster, transport):
    async def scenario():
        async with over(transport, tmp_path, TABLES, bundles) as one:
            checked = await asyncio.to_thread(one.analyst.check, masked())
            status = await asyncio.to_thread(one.analyst.status)
            assert {member.name for member in status.members if member.since} == {*TABLES}
            return [site.party for site in checked], (await one.train(masked())).model.booster

    sites, found = in_time(scenario())
    assert sites == [*TABLES]
    assert found == booster
