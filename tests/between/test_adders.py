"""Adders over the network: the same model, losses, roles, limits, and what sites see."""

import pytest
from sites import bundles_of, consortium, shared_out, terms, until

from fedboost.protocol.adding import RegionSum
from fedboost.runtime.aggregator import adder
from fedboost.runtime.local.simulation import simulate

TABLES = shared_out(4)
EU, US = "eu", "us"
REGIONS = {"north": (EU, US), "south": (EU, US), "east": (US, EU), "west": ()}
"""Party -> the adders that it may call, in their order; the last one calls the aggregator."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("adders") / "keys", TABLES, (EU, US))


async def started(one):
    """The two adders, and the parties through them."""
    for name in (EU, US):
        await one.start_adder(name)
    for name, table in TABLES.items():
        one.start_party(name, table, through=REGIONS[name])
    await until(lambda: one.server.connected.names == {*TABLES})


def sent_up(monkeypatch):
    """The frames that adders send to the aggregator."""
    passed, tell = [], adder.AdderServer._tell
    monkeypatch.setattr(
        adder.AdderServer, "_tell", lambda one, frame: passed.append(frame) or tell(one, frame)
    )
    return passed


def expected(**settings):
    return simulate(terms(**settings), TABLES).model.booster


@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("keys", [True, False])
async def test_the_model_is_that_of_the_flat_session(tmp_path, bundles, protection, keys, monkeypatch):
    if protection == "masked" and not keys:
        pytest.skip("masks need keys")
    passed = sent_up(monkeypatch)
    async with consortium(tmp_path / "c", {}, bundles=bundles if keys else None) as one:
        await started(one)
        training = await one.train(terms([*TABLES], protection=protection))
        assert training.model.booster == expected()
        assert any(isinstance(frame, RegionSum) for frame in passed)
        moved = training.traffic
    async with consortium(tmp_path / "flat", TABLES, bundles=bundles if keys else None) as flat:
        await until(lambda: flat.server.connected.names == {*TABLES})
        apart = (await flat.train(terms([*TABLES], protection=protection))).traffic
    differ = [abs(moved[party][0] - apart[party][0]) for party in TABLES]
    assert max(differ) <= (2 * 3 if keys else 0), "only signatures have different lengths"
