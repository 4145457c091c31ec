"""Masked training over the network: equal models, signed ones, and nobody in who does not belong."""

import asyncio
import dataclasses
import re
from datetime import UTC, datetime, timedelta

import pytest
from masked_consortia import THREE, masked
from raised import raised
from refusals import refusal
from sites import bundles_of, consortium, fedboost, rows, shared_out, terms, written

from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.privacy.identity import issue, new_root, to_pem
from fedboost.runtime.analyst import Connection, connect
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import read_bundle, write_bundle
from fedboost.runtime.net.routes import Server
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.site import node

TABLES = shared_out(3)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("consortium") / "keys", TABLES)


def many(parties):
    """So many names and tables."""
    table = rows(60 * parties)
    return {f"site-{i}": table.slice(60 * i, 60) for i in range(parties)}


@pytest.mark.slow
@pytest.mark.parametrize("parties", [3, 5, 10])
async def test_the_model_is_that_of_plain(tmp_path, parties):
    tables = many(parties)
    bundles = bundles_of(tmp_path / "keys", tables)
    async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
        model = (await one.train(masked(tables))).model
    plain = simulate(terms(), tables).model
    assert model.booster.to_xgboost() == plain.booster.to_xgboost()
    assert model.rounds == plain.rounds
    assert simulate(masked([]), tables).model.booster == plain.booster


@pytest.mark.parametrize("settings", [{"vote_top_k": 1}, {"grow_policy": "symmetric"}], ids=str)
async def test_a_model_of_other_trees_is_that_of_the_simulation(tmp_path, bundles, settings):
    async with consortium(tmp_path / "c", TABLES, bundles=bundles) as one:
        model = (await one.train(masked(TABLES, **settings))).model
    assert model.booster == simulate(terms(**settings), TABLES).model.booster
    assert model.booster != simulate(terms(), TABLES).model.booster


async def test_the_model_is_signed_by_every_party_and_no_other_model_is(tmp_path, bundles):
    roots, now = bundles["analyst"].roots, datetime.now(UTC)
    async with consortium(tmp_path / "c", TABLES, bundles=bundles) as one:
        model = (await one.train(masked(TABLES))).model
    assert Model.from_bytes(model.to_bytes()).verify(roots, now) == THREE
    weaker = dataclasses.replace(model, terms=model.terms.changed(protection="plain"))
    with raised(PeerError, "model-signature-wrong"):
        weaker.verify(roots, now)
    swapped = dict(zip(THREE, [*model.attestations.values()][::-1], strict=True))
    with raised(PeerError, "model-signature-wrong"):
        dataclasses.replace(model, attestations=swapped).verify(roots, now)


# ---- who does not get in ----------------------------------------------------------------------------


def bundle_from(folder, name, role, root=None, days=1, ago=timedelta(0)):
    """A bundle of a root of its own, or of this one; issued some time ago."""
    now = datetime.now(UTC) - ago
    key, certificate = root or new_root("others", now, 30)
    own, leaf = issue(key, certificate, name, role, now, days)
    write_bundle(folder, own, leaf, to_pem(certificate))
    return folder


@pytest.fixture
def quick(monkeypatch):
    """Faults are looked for at once."""
    monkeypatch.setattr(channel, "REPORT_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.1)


async def test_a_party_that_trusts_the_aggregator_but_is_of_another_consortium_is_refused(
    tmp_path, bundles, quick, monkeypatch
):
    odd = read_bundle(bundle_from(tmp_path / "odd", "odd", "party"), "party")
    mixed = dataclasses.replace(odd, roots=bundles["north"].roots)
    monkeypatch.setattr(node, "read_again", lambda bundle: bundle)  # no folder holds the like
    async with consortium(tmp_path / "c", TABLES, bundles=bundles | {"odd": mixed}) as one:
        with raised(ConfigError, "aggregator-wrong-server"):
            await one.start_party("odd", TABLES["north"])


@pytest.mark.parametrize("role", ["analyst", "aggregator"])
async def test_a_party_with_the_certificate_of_another_role_is_refused(tmp_path, bundles, quick, role):
    async with consortium(tmp_path / "c", TABLES, bundles=bundles | {"odd": bundles[role]}) as one:
        with pytest.raises((Refused, ConfigError)) as caught:
            await one.start_party("odd", TABLES["north"])
        said = str(caught.value)
    assert "\n" not in said
    assert role in said


async def test_a_party_cannot_submit_terms_nor_an_analyst_of_others(tmp_path, bundles, quick):
    stranger = read_bundle(bundle_from(tmp_path / "odd", "odd", "analyst"), "analyst")
    async with consortium(tmp_path / "c", TABLES, bundles=bundles) as one:
        for bundle, error, says in (
            (bundles["north"], Refused, "certificate of party 'north' is not valid for the role analyst"),
            (stranger, ConfigError, "to another consortium"),
        ):
            training = Connection(Server(one.address), bundle).train(masked(TABLES), 5)
            with pytest.raises(error, match=says):
                await asyncio.to_thread(lambda training=training: training.model)


async def test_a_revoked_party_is_refused(tmp_path):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    shown = fedboost("keys", "show", tmp_path / "keys" / "south").out
    serial = re.search(r"serial +([0-9a-f]+)", shown).group(1)
    (tmp_path / "keys" / "aggregator" / "denied.txt").write_text(f"{serial}  # stolen\n")
    bundles["aggregator"] = read_bundle(tmp_path / "keys" / "aggregator", "aggregator")
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        with raised(Refused, "certificate-not-admitted"):
            await one.start_party("south", tables["south"])


def test_bundles_that_cannot_be_used_are_one_line_at_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {"north": rows()})
    head = 'party = "north"\naggregator = "localhost:1"\ndata = "north.parquet"\n'
    old = bundle_from(tmp_path / "old", "north", "party", ago=timedelta(days=5))
    for keys, says in (
        ("", "no keys"),
        ('keys = "nowhere"', "does not exist"),
        (f'keys = "{old}"', "expired on"),
        (f'keys = "{bundle_from(tmp_path / "an", "ana", "analyst")}"', "is the bundle of an analyst"),
        (f'keys = "{bundle_from(tmp_path / "so", "south", "party")}"', "the bundle of 'south'"),
    ):
        (tmp_path / "party.toml").write_text(head + keys)
        assert says in refusal("party", "--config", "party.toml", "--wait", "0.1")
    with raised(ConfigError, "keys-or-insecure"):
        connect("localhost:1", keys=old, insecure_loopback=True)
    with raised(ConfigError, "keys-not-loopback"):
        connect("192.0.2.1:7070", insecure_loopback=True)


# ---- models that are not what was signed ------------------------------------------------------------


async def test_a_model_whose_signatures_were_taken_away_is_refused(tmp_path, bundles, monkeypatch):
    bytes_of = SignedModel.to_bytes
    monkeypatch.setattr(SignedModel, "to_bytes", lambda model: bytes_of(model, session=False))
    async with consortium(tmp_path / "c", TABLES, bundles=bundles) as one:
        with raised(PeerError, "model-too-few-signatures"):
            await one.train(masked(TABLES))
