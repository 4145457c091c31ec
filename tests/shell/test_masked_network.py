"""Masked training over the network: equal models, signed ones, and nobody in who does not belong."""

import asyncio
import base64
import dataclasses
import json
import os
import re
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from sites import (
    NAMES,
    STOPS,
    bundles_of,
    consortium,
    fedboost,
    in_time,
    rows,
    shared_out,
    terms,
    until,
    written,
)

from fedboost.errors import ConfigError, PeerError, Refused, SessionFailed
from fedboost.privacy.identity.certificates import to_pem
from fedboost.privacy.identity.issue import issue, new_root
from fedboost.protocol.messages import Leave
from fedboost.runtime.aggregator import connected
from fedboost.runtime.analyst import Connection, connect
from fedboost.runtime.local.cluster import ANYTHING
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model_file import Model
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import read_bundle, write_bundle
from fedboost.runtime.site import node
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.node import MAX_MISFITS
from fedboost.runtime.site.policy import Policy
from fedboost.wire.messages import encode_from_party

THREE = NAMES[:3]


def masked(parties, **settings):
    return terms(parties, protection="masked", **settings)


def many(parties):
    """So many names and tables."""
    table = rows(60 * parties)
    return {f"site-{i}": table.slice(60 * i, 60) for i in range(parties)}


@pytest.mark.parametrize("parties", [3, 5, 10])
def test_the_model_is_that_of_plain(tmp_path, parties):
    tables = many(parties)
    bundles = bundles_of(tmp_path / "keys", tables)

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
            return (await one.train(masked(tables))).model

    model, plain = in_time(scenario()), simulate(terms(), tables).model
    assert model.booster.to_xgboost() == plain.booster.to_xgboost()
    assert model.rounds == plain.rounds
    assert simulate(masked([]), tables).model.booster == plain.booster


def test_a_model_of_elected_features_is_that_of_the_simulation(tmp_path):
    tables = shared_out(3)

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles_of(tmp_path / "keys", tables)) as one:
            return (await one.train(masked(tables, vote_top_k=1))).model

    model = in_time(scenario())
    assert model.booster == simulate(terms(vote_top_k=1), tables).model.booster
    assert model.booster != simulate(terms(), tables).model.booster


def test_the_model_is_signed_by_every_party_and_no_other_model_is(tmp_path):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    roots, now = bundles["analyst"].roots, datetime.now(UTC)

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
            return (await one.train(masked(tables))).model

    model = in_time(scenario())
    assert Model.from_bytes(model.to_bytes()).verify(roots, now) == THREE
    other = dataclasses.replace(model, booster=simulate(terms(rounds=1), tables).model.booster)
    with pytest.raises(PeerError, match="party north signed other trees than those of the model"):
        other.verify(roots, now)
    weaker = dataclasses.replace(model, terms=model.terms.changed(protection="plain"))
    with pytest.raises(PeerError, match="signature of 'north' is wrong"):
        weaker.verify(roots, now)
    swapped = dict(zip(THREE, [*model.attestations.values()][::-1], strict=True))
    with pytest.raises(PeerError, match="signed for party north by party east"):
        dataclasses.replace(model, attestations=swapped).verify(roots, now)
    strangers = bundles_of(tmp_path / "others", THREE)["analyst"].roots
    with pytest.raises(PeerError, match="issued by another consortium"):
        model.verify(strangers, now)


def test_a_party_that_is_lost_fails_the_session_and_the_next_one_works(tmp_path):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
            training = asyncio.create_task(one.train(masked(tables, rounds=5000, **STOPS)))
            await until(lambda: one.log.named("session begins"))
            await asyncio.sleep(0.3)
            await one.stop_party("south")
            with pytest.raises(SessionFailed, match="party south was lost"):
                await training
            one.start_party("south", tables["south"])
            return (await one.train(masked(tables))).model

    assert in_time(scenario()).booster == simulate(terms(), tables).model.booster


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
    monkeypatch.setattr(node, "SAY_SO", 0.1)
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.1)


def refused_party(tmp_path, bundle, error, says):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables) | {"odd": bundle}

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
            with pytest.raises(error, match=says) as caught:
                await one.start_party("odd", tables["north"])
            assert "\n" not in str(caught.value)
            return (await one.train(masked(tables))).model

    assert in_time(scenario()).booster == simulate(terms(), tables).model.booster


def test_a_party_of_another_consortium_is_refused(tmp_path, quick, monkeypatch):
    bundle = read_bundle(bundle_from(tmp_path / "odd", "odd", "party"), "party")
    refused_party(tmp_path, bundle, ConfigError, "of another consortium")


def test_a_party_that_trusts_the_aggregator_but_is_of_another_consortium_is_refused(
    tmp_path, quick, monkeypatch
):
    odd = read_bundle(bundle_from(tmp_path / "odd", "odd", "party"), "party")
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    mixed = dataclasses.replace(odd, roots=bundles["north"].roots)
    monkeypatch.setattr(node, "read_again", lambda bundle: bundle)  # no folder holds the like

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles | {"odd": mixed}) as one:
            with pytest.raises(ConfigError, match="issued by another consortium"):
                await one.start_party("odd", tables["north"])

    in_time(scenario())


@pytest.mark.parametrize("role", ["analyst", "aggregator"])
def test_a_party_with_the_certificate_of_another_role_is_refused(tmp_path, quick, role):
    bundles = bundles_of(tmp_path / "of", THREE)
    tables = shared_out(3)

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles | {"odd": bundles[role]}) as one:
            with pytest.raises((Refused, ConfigError)) as caught:
                await one.start_party("odd", tables["north"])
            return str(caught.value)

    said = in_time(scenario())
    assert "\n" not in said
    assert role in said


def test_a_party_under_another_name_than_its_certificates_is_refused(tmp_path):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles | {"odd": bundles["south"]}) as one:
            with pytest.raises(Refused, match="party 'north' dials with the certificate of party 'south'"):
                await one.start_party("odd", tables["north"], as_name="north", state="odd")

    in_time(scenario())


def test_a_party_cannot_submit_terms_nor_an_analyst_of_others(tmp_path, quick):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    stranger = read_bundle(bundle_from(tmp_path / "odd", "odd", "analyst"), "analyst")

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
            for bundle, error, says in (
                (bundles["north"], Refused, "certificate of party 'north': it may not act as analyst"),
                (stranger, ConfigError, "of another consortium"),
            ):
                training = Connection(one.address, bundle).train(masked(tables), 5)
                with pytest.raises(error, match=says):
                    await asyncio.to_thread(lambda training=training: training.model)

    in_time(scenario())


def test_a_revoked_party_is_refused(tmp_path):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    shown = fedboost("keys", "show", tmp_path / "keys" / "south").out
    serial = re.search(r"serial +([0-9a-f]+)", shown).group(1)
    (tmp_path / "keys" / "aggregator" / "denied.txt").write_text(f"{serial}  # stolen\n")
    bundles["aggregator"] = read_bundle(tmp_path / "keys" / "aggregator", "aggregator")

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            with pytest.raises(Refused, match="'south' is denied"):
                await one.start_party("south", tables["south"])

    in_time(scenario())


def test_bundles_that_cannot_be_used_are_one_line_at_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {"north": rows()})
    head = 'party = "north"\naggregator = "localhost:1"\ndata = "north.parquet"\n'
    old = bundle_from(tmp_path / "old", "north", "party", ago=timedelta(days=5))
    for keys, says in (
        ("", "no keys"),
        ('keys = "nowhere"', "no such folder"),
        (f'keys = "{old}"', "expired on"),
        (f'keys = "{bundle_from(tmp_path / "an", "ana", "analyst")}"', "is the bundle of an analyst"),
        (f'keys = "{bundle_from(tmp_path / "so", "south", "party")}"', "the bundle of 'south'"),
    ):
        (tmp_path / "party.toml").write_text(head + keys)
        end = fedboost("party", "--config", "party.toml", "--wait", "0.1")
        assert end.code == 2
        assert end.err.count("\n") == 1
        assert says in end.err
    with pytest.raises(ConfigError, match="exclude each other"):
        connect("localhost:1", keys=old, insecure_loopback=True)
    with pytest.raises(ConfigError, match="no loopback address"):
        connect("192.0.2.1:7070", insecure_loopback=True)


# ---- what a site decides, and what it records -------------------------------------------------------


def test_a_sites_policy_is_told_to_the_analyst_and_nothing_leaves(tmp_path, monkeypatch):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
            await until(lambda: len(one.log.named("party here")) == 3)
            config = one.nodes["east"]._config
            policy = Policy.model_validate({**ANYTHING, "max_rounds": 2})
            one.nodes["east"]._config = config.model_copy(update={"policy": policy})
            with pytest.raises(SessionFailed, match=r"party east left: site east refuses: .*max_rounds = 2"):
                await one.train(masked(tables))
            return (await one.train(masked(tables, rounds=2))).model

    assert in_time(scenario()).parties == THREE


def test_the_audit_log_of_a_session_over_the_network(tmp_path):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    log = tmp_path / "north.audit.jsonl"

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name, table in tables.items():
                one.start_party(name, table, audit=log if name == "north" else None)
            training = await one.train(masked(tables))
            await one.stop_party("north")
            return training

    training = in_time(scenario())
    end = fedboost("audit", log)
    assert end.code == 0
    assert "masked" in end.out
    for name in THREE:
        assert name in end.out
    sent = training.traffic["north"][0]
    recorded = sum(int(size) for size in re.findall(r'"bytes":(\d+)', log.read_text()))
    assert 0.8 * sent < recorded <= sent
    entries = log.read_text().splitlines()
    log.write_text("\n".join(entries[:3] + entries[4:]) + "\n")
    broken = fedboost("audit", log)
    assert broken.code == 2
    assert broken.err.count("\n") == 1


# ---- offers that do not fit -------------------------------------------------------------------------

MISFIT = "its rows do not fit the terms; its own log says which column and why"


def test_what_rows_do_not_fit_is_told_to_the_site_alone_and_not_without_end(tmp_path):
    """Every refusal reads the same, is in the audit log as it left, and there are ten of them."""
    tables = shared_out(3)
    ages = tables["north"].column("age").to_pylist()
    tables["north"] = tables["north"].set_column(0, "age", pa.array([*ages[:-1], 4711e300]))
    audit = tmp_path / "north.audit.jsonl"
    fitting = {"label": "y", "numeric": ["dose"]}
    infinite, no_class = {"label": "y", "numeric": ["age"]}, {"label": "dose", "numeric": ["age"]}
    absent = {"label": "y", "numeric": ["nothing"]}
    offers = [absent, *[infinite, no_class] * (MAX_MISFITS // 2), fitting]

    async def scenario():
        said = []
        async with consortium(tmp_path / "c", {}) as one:
            for name, table in tables.items():
                one.start_party(name, table, audit=audit if name == "north" else None)
            await one.train(terms(THREE, columns=fitting))
            for columns in offers:
                with pytest.raises(SessionFailed) as caught:
                    await one.train(terms(["north"], columns=columns, rounds=1))
                said.append(str(caught.value).removeprefix("party north left: "))
            await one.stop_party("north")
            one.start_party("north", tables["north"])
            await one.train(terms(THREE, columns=fitting))
        return said, one.log.named("left the session")

    said, logged = in_time(scenario())
    assert said[0] == "column 'nothing' is missing"
    assert said[1:-1] == [MISFIT] * MAX_MISFITS
    assert re.fullmatch(r"its rows did not fit 10 offers, .* until it is started again", said[-1])
    reasons = [values["reason"] for values in logged]
    row = len(ages)
    assert reasons[1].endswith(f"32-bit float: it is 4.711e+303 in row {row}")
    assert "label column 'dose'" in reasons[2] or "label 'dose'" in reasons[2]
    events = [entry.event for entry in read_log(audit) if entry.event.kind == "ended"]
    assert [event.reason for event in events] == ["", *(f"party north: {words}" for words in said)]
    assert "4.711e" not in audit.read_text()
    told = fedboost("audit", audit).out
    assert " ".join(told.split()).count(MISFIT) == MAX_MISFITS


def test_a_refusal_is_recorded_before_it_leaves(tmp_path, monkeypatch):
    """The aggregator cannot take it and hang up before it is written down."""
    audit, recorded = tmp_path / "north.audit.jsonl", []
    encode = encode_from_party

    def listening(message):
        if isinstance(message, Leave):
            recorded.append(read_log(audit)[-1].event)
        return encode(message)

    monkeypatch.setattr(node, "encode_from_party", listening)

    async def scenario():
        async with consortium(tmp_path / "c", {}) as one:
            one.start_party("north", rows(), audit=audit)
            with pytest.raises(SessionFailed):
                await one.train(terms(["north"], columns={"label": "age", "numeric": ["dose"]}))

    in_time(scenario())
    assert [(event.kind, event.reason) for event in recorded] == [("ended", f"party north: {MISFIT}")]
    assert [entry.event.kind for entry in read_log(audit)] == ["admitted", "ended"]
    assert read_log(audit)[0].event.party == "north"


def test_levels_nobody_declared_are_in_the_log_of_their_site(tmp_path):
    tables = shared_out(3)
    wards = tables["north"].column("ward").to_pylist()
    tables["north"] = tables["north"].set_column(2, "ward", pa.array(["z", "z\n", *wards[2:]]))

    async def scenario():
        async with consortium(tmp_path / "c", tables) as one:
            return (await one.train(terms(THREE))).model, one.log.events

    model, events = in_time(scenario())
    assert model.parties == THREE
    assert [values for event, values in events if "declare" in event] == [
        {"party": "north", "column": "ward", "level": "z", "rows": 2}
    ]


# ---- secrets ----------------------------------------------------------------------------------------


def test_no_secret_is_in_any_log_file_error_or_message(tmp_path, monkeypatch):
    """Everything drawn, every private key, every derived key: in nothing that is written or sent."""
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    secrets, said = [], []

    def draw(size):
        drawn = os.urandom(size)
        secrets.append(drawn)
        return drawn

    derive = node.PartySession.__init__.__globals__["Handshake"].pair_keys

    def pair_keys(handshake, *arguments):
        keys = derive(handshake, *arguments)
        secrets.extend(keys.values())
        return keys

    monkeypatch.setattr(node, "urandom", draw)
    monkeypatch.setattr(node.PartySession.__init__.__globals__["Handshake"], "pair_keys", pair_keys)
    for direction in ("encode_from_party", "encode_to_party"):
        end = node if direction == "encode_from_party" else connected
        encode = getattr(end, direction)

        def listening(message, encode=encode):
            said.append(repr(message).encode())
            return encode(message)

        monkeypatch.setattr(end, direction, listening)
    log = tmp_path / "north.audit.jsonl"

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name, table in tables.items():
                one.start_party(name, table, audit=log if name == "north" else None)
            model = (await one.train(masked(tables))).model
            with pytest.raises(SessionFailed) as caught:
                await one.train(masked(tables, columns={"label": "y", "numeric": ["nothing"]}))
            await one.stop_party("north")
            return model, caught.value, one.log.events

    model, error, events = in_time(scenario())
    secrets += [
        base64.b64decode("".join(bundle.key.decode().splitlines()[1:-1])) for bundle in bundles.values()
    ]
    shown = b"".join([model.to_bytes(), str(error).encode(), repr(events).encode(), log.read_bytes()])
    shown += repr((bundles, model)).encode()
    assert len(secrets) > 100
    for secret in secrets:
        for form in (
            secret,
            secret.hex().encode(),
            base64.b64encode(secret)[:-4],
            repr(secret)[2:-1].encode(),
        ):
            assert form not in shown


# ---- models that are not what was signed ------------------------------------------------------------


def test_a_model_file_that_was_changed_is_refused():
    """XGBoost takes leaf values from another column than fedboost: both must be what was signed."""
    model = simulate(masked([]), shared_out(3)).model
    content = json.loads(model.to_bytes())
    tree = content["learner"]["gradient_booster"]["model"]["trees"][0]
    leaf = tree["left_children"].index(-1)
    tree["split_conditions"][leaf] = -9.0
    with pytest.raises(ConfigError, match="not as fedboost wrote it"):
        Model.from_bytes(json.dumps(content).encode())


def test_a_model_whose_signatures_were_taken_away_is_refused(tmp_path, monkeypatch):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    monkeypatch.setattr(Model, "facts", lambda model, facts=Model.facts: without_signatures(facts(model)))

    async def scenario():
        async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
            with pytest.raises(PeerError, match="signed by 0 parties; 3 are needed"):
                await one.train(masked(tables))

    in_time(scenario())


def without_signatures(facts):
    return {key: value for key, value in facts.items() if key != "fedboost.attestations"}
