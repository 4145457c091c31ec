"""What a site decides and records in a session over the network, and what nobody reads."""

import base64
import os
import re

import pyarrow as pa
import pytest
from anything import ANYTHING
from masked_consortia import THREE, masked
from refusals import refusal
from sites import bundles_of, consortium, fedboost, in_time, rows, shared_out, terms, until

from fedboost.errors import SessionFailed
from fedboost.protocol.messages import Leave
from fedboost.runtime.aggregator import parties
from fedboost.runtime.site import node
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.node import PartyMonitor
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.site.rows import MAX_MISFITS
from fedboost.runtime.site.store import NAME
from fedboost.wire.messages import decode_from_party

# ---- what a site decides, and what it records -------------------------------------------------------


@pytest.mark.slow
async def test_a_sites_policy_is_told_to_the_analyst_and_nothing_leaves(tmp_path, monkeypatch):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    async with consortium(tmp_path / "c", tables, bundles=bundles) as one:
        await until(lambda: len(one.log.named("party here")) == 3)
        config = one.nodes["east"]._config
        policy = Policy.model_validate({**ANYTHING, "max_rounds": 2})
        one.nodes["east"]._config = config.model_copy(update={"policy": policy})
        with pytest.raises(SessionFailed, match=r"party east left: site east refuses: .*max_rounds = 2"):
            await one.train(masked(tables))
        found = (await one.train(masked(tables, rounds=2))).model
    assert found.parties == THREE


def test_the_audit_log_of_a_session_over_the_network(tmp_path):
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    log = tmp_path / "c" / "state" / "north" / NAME

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            for name, table in tables.items():
                one.start_party(name, table)
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
    entries = [entry.line for entry in read_log(log)]
    recorded = sum(int(size) for size in re.findall(rb'"bytes":(\d+)', b"".join(entries)))
    assert 0.8 * sent < recorded <= sent
    file = tmp_path / "north.jsonl"
    file.write_bytes(b"".join(entries[:3] + entries[4:]))
    refusal("audit", file)


# ---- offers that do not fit -------------------------------------------------------------------------


MISFIT = "its rows do not fit the terms; its own log says which column and why"


@pytest.mark.slow
async def test_what_rows_do_not_fit_is_told_to_the_site_alone_and_not_without_end(tmp_path):
    """Every refusal reads the same, is in the audit log as it left, and there are ten of them."""
    tables = shared_out(3)
    ages = tables["north"].column("age").to_pylist()
    tables["north"] = tables["north"].set_column(0, "age", pa.array([*ages[:-1], 4711e300]))
    audit = tmp_path / "c" / "state" / "north" / NAME
    fitting = {"label": "y", "numeric": ["dose"]}
    infinite, no_class = {"label": "y", "numeric": ["age"]}, {"label": "dose", "numeric": ["age"]}
    absent = {"label": "y", "numeric": ["nothing"]}
    offers = [absent, *[infinite, no_class] * (MAX_MISFITS // 2), fitting]
    said = []
    async with consortium(tmp_path / "c", {}) as one:
        for name, table in tables.items():
            one.start_party(name, table)
        await one.train(terms(THREE, columns=fitting))
        for columns in offers:
            with pytest.raises(SessionFailed) as caught:
                await one.train(terms(["north"], columns=columns, rounds=1))
            said.append(str(caught.value).removeprefix("party north left: "))
        await one.stop_party("north")
        one.start_party("north", tables["north"])
        await one.train(terms(THREE, columns=fitting))
    logged = one.log.named("left the session")
    assert said[0].startswith(
        "column 'nothing' is missing; if north does not have it, add it to columns.absent"
    )
    assert said[1:-1] == [MISFIT] * MAX_MISFITS
    assert re.fullmatch(r"its rows did not fit 10 offers, .* until it is restarted", said[-1])
    reasons = [values["reason"] for values in logged]
    row = len(ages)
    assert reasons[1].endswith(f"32-bit float: it is 4.711e+303 in row {row}")
    assert "label column 'dose'" in reasons[2] or "label 'dose'" in reasons[2]
    events = [entry.event for entry in read_log(audit) if entry.event.kind == "ended"]
    assert [event.reason for event in events] == ["", *(f"party north: {words}" for words in said), ""]
    assert "4.711e" not in str(read_log(audit))
    told = fedboost("audit", audit).out
    assert " ".join(told.split()).count(MISFIT) == MAX_MISFITS


async def test_a_refusal_is_recorded_before_it_leaves(tmp_path, monkeypatch):
    """The aggregator cannot take it and hang up before it is written down."""
    audit, recorded = tmp_path / "c" / "state" / "north" / NAME, []
    sent = PartyMonitor.sent

    def listening(watch, data):
        if isinstance(decode_from_party(data), Leave):
            recorded.append(read_log(audit)[-1].event)
        return sent(watch, data)

    monkeypatch.setattr(PartyMonitor, "sent", listening)
    async with consortium(tmp_path / "c", {}) as one:
        one.start_party("north", rows())
        with pytest.raises(SessionFailed):
            await one.train(terms(["north"], columns={"label": "age", "numeric": ["dose"]}))
    assert [(event.kind, event.reason) for event in recorded] == [("ended", f"party north: {MISFIT}")]
    assert [entry.event.kind for entry in read_log(audit)] == ["admitted", "ended"]
    assert read_log(audit)[0].event.party == "north"


async def test_levels_nobody_declared_are_in_the_log_of_their_site(tmp_path):
    tables = shared_out(3)
    wards = tables["north"].column("ward").to_pylist()
    tables["north"] = tables["north"].set_column(2, "ward", pa.array(["z", "z\n", *wards[2:]]))
    async with consortium(tmp_path / "c", tables) as one:
        model, events = (await one.train(terms(THREE))).model, one.log.events
    assert model.parties == THREE
    assert [values for event, values in events if "declare" in event] == [
        {"party": "north", "column": "ward", "category": "z", "rows": 2}
    ]


# ---- secrets ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_no_secret_is_in_any_log_file_error_or_message(tmp_path, monkeypatch):
    """Everything drawn, every private key, every derived key: in nothing that is written or sent."""
    tables = shared_out(3)
    bundles = bundles_of(tmp_path / "keys", tables)
    secrets, said, greetings = [], [], []

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
        end = node if direction == "encode_from_party" else parties
        encode = getattr(end, direction)

        def listening(message, encode=encode):
            said.append(repr(message).encode())
            greetings.append(getattr(message, "greeting", b""))
            return encode(message)

        monkeypatch.setattr(end, direction, listening)
    log = tmp_path / "c" / "state" / "north" / NAME
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name, table in tables.items():
            one.start_party(name, table)
        model = (await one.train(masked(tables))).model
        with pytest.raises(SessionFailed) as caught:
            await one.train(masked(tables, columns={"label": "y", "numeric": ["nothing"]}))
        await one.stop_party("north")
        error, events = caught.value, one.log.events
    secrets += [
        base64.b64decode("".join(bundle.key.decode().splitlines()[1:-1])) for bundle in bundles.values()
    ]
    shown = b"".join(
        [model.to_bytes(), str(error).encode(), repr(events).encode(), repr(read_log(log)).encode()]
    )
    shown += repr((bundles, model)).encode()
    sent = b"".join(said)
    assert len(secrets) > 10
    for secret in secrets:
        for form in (
            secret,
            secret.hex().encode(),
            base64.b64encode(secret)[:-4],
            repr(secret)[2:-1].encode(),
        ):
            assert form not in shown
            assert form not in sent or any(secret in greeting for greeting in greetings)  # a nonce, by design
