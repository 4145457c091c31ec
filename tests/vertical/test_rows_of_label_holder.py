"""`rows = "label_holder"`: the model is that of the left-joined table, bit for bit, and the aggregator reads
nowhere which rows a feature holder has."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import fedboost as fb
from fedboost.holders.alignment import KNOWN
from fedboost.protocol.messages import Relay
from fedboost.views.approval import summary
from fedboost.wire.messages import encode_from_party
from tests.helpers import faults_apart
from tests.helpers.alignments import ALIGN, JOINED, LEFT, PLACES, matching
from tests.helpers.apart_sessions import SMALL, opening
from tests.helpers.columns_apart import (
    LAYOUTS,
    left_joined,
    matched,
    pooled,
    scattered,
    terms_of,
    train_pooled,
)
from tests.helpers.policies import policy

ROWS = 300
ALL = {"rows": "label_holder"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        *((setting, "three holders") for setting in JOINED),
        *(("logistic", layout) for layout in ("two holders", "one a column")),
    ],
)
def test_the_model_is_that_of_the_left_joined_table(setting, layout):
    label, settings = JOINED[setting]
    table = pooled(ROWS, label=label)
    tables, common = scattered(LAYOUTS[layout], table)
    joined = left_joined(LAYOUTS[layout], table, tables)
    assert joined.num_rows > common.num_rows
    columns = {"row_id": "id"} | settings.get("columns", {})
    apart = fb.simulate(matched(LAYOUTS[layout], **{**ALL, **settings}), tables)
    assert apart.model.booster == train_pooled(joined, **settings | {"columns": columns}).model.booster


def test_the_model_is_that_of_the_left_joined_table_where_gradients_are_encrypted():
    layout, table = LAYOUTS["three holders"], pooled(120)
    tables, _ = scattered(layout, table)
    encrypted = {"protection": "paillier", "key_bits": 2048, "model": "whole", **SMALL, "min_common_rows": 50}
    apart = fb.simulate(matched(layout, **ALL, **encrypted), tables)
    assert apart.model.booster == train_pooled(left_joined(layout, table, tables), **SMALL).model.booster


def test_columns_may_stand_in_a_file(tmp_path):
    layout, table = LAYOUTS["two holders"], pooled(ROWS)
    tables, _ = scattered(layout, table)
    parquet.write_table(tables["telco"], tmp_path / "telco.parquet", row_group_size=70)
    apart = fb.simulate(matched(layout, **ALL), tables | {"telco": tmp_path / "telco.parquet"})
    assert apart.model.booster == train_pooled(left_joined(layout, table, tables)).model.booster


def test_a_feature_holder_that_has_all_rows_changes_nothing():
    layout, table = LAYOUTS["two holders"], pooled(ROWS)
    tables, _ = scattered(layout, table, share=1.0)
    models = [fb.simulate(matched(layout, **rows), tables).model.booster for rows in ({}, ALL)]
    assert models[0] == models[1]


def test_each_feature_holder_must_know_enough_rows():
    """All of them: one that knows more does not make up for another."""
    layout, table = LAYOUTS["three holders"], pooled(ROWS)
    tables, _ = scattered(layout, table)
    own = tables["bank"]["id"].to_pylist()
    shared = [row for row, i in enumerate(tables["shop"]["id"].to_pylist()) if i in set(own)]
    tables["shop"] = tables["shop"].take(shared[:99])
    with pytest.raises(fb.FedboostError) as raised:
        fb.simulate(matched(layout, **ALL), tables)
    assert str(raised.value).startswith(
        "parties bank, shop have only 99 rows in common, but the terms require min_common_rows = 100: "
    )
    assert fb.simulate(matched(layout, **ALL, min_common_rows=99), tables).model


def test_blocks_are_refused():
    with pytest.raises(fb.ConfigError) as raised:
        matched(LAYOUTS["blocks"], **ALL)
    assert str(raised.value).endswith(
        'blocks with rows = "label_holder": it needs one label holder; set label_holder'
    )


def test_a_person_who_approves_is_told_whose_rows_take_part():
    text = " ".join(summary(matched(LAYOUTS["two holders"], **ALL).with_parties(["bank", "telco"])).split())
    assert (
        "rows all rows of label holder bank, matched by id; if another site does not have a row, its" in text
    )
    assert "each other site must have at least 100" in text


@pytest.mark.parametrize(
    ("rows", "party", "key"),
    [
        ("label_holder", "telco", "rows"),
        ("label_holder", "bank", None),
        ("common", "telco", None),
        ("in_order", "telco", None),
    ],
)
def test_a_feature_holders_policy_must_allow_it(rows, party, key):
    """It tells the label holder of each of its rows whether this site has it."""
    by_id = {"min_common_rows": 1000} if rows != "in_order" else {"min_common_rows": None}
    terms = matched(LAYOUTS["two holders"], rows=rows, **by_id).with_parties(["bank", "telco"])
    keys = {"by_columns": True, "label_holders": "any", "protections": ["plain"], "min_parties": 2}
    breaches = [breach.key for breach in policy(**keys).breaches(terms, party=party)]
    assert breaches == ([key] if key else [])
    breaches = policy(**keys, rows="label_holder").breaches(terms, party=party)
    assert [breach.key for breach in breaches] == ([] if "label_holder" in (rows, key) else ["rows"])


# ---- restarts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [ALIGN, PLACES, 5, 7])
@pytest.mark.parametrize("party", ["bank", "shop"])
def test_after_a_restart_the_model_is_the_same(party, turn):
    apart = matching(**LEFT).dying(party, turn)
    assert apart.play().session.attempt == 2
    joined = left_joined(LAYOUTS["three holders"], pooled(60), apart.tables)
    assert apart.session.booster == train_pooled(joined, **SMALL).model.booster


class World(faults_apart.World):
    """A session in which all rows of the label holder take part, and anything goes wrong."""

    def choose(self, seed):
        self.layout, self.setting = self.draw.choice(["two holders", "three holders"]), "logistic"
        self.aim, self.by_id = self.draw.choice([0.0, 0.1]), faults_apart.LEFT
        return faults_apart.apart(self.layout, self.setting, "wait", self.by_id)


@pytest.mark.parametrize("seed", range(12))
def test_a_seed(seed):
    faults_apart.play(seed, World)


# ---- what is in sight -----------------------------------------------------------------------------------


def bits_of(apart, party):
    """Which of the label holder's rows a party has, as it relays it."""
    holder = apart.made["bank"][0]._common._alignment
    ids, own = holder._ids, set(apart.tables[party]["id"].to_pylist())
    return np.packbits([int(ids[row]) in own for row in holder._order]).tobytes()


def test_the_aggregator_gets_no_bit_mask_and_the_label_holder_one_of_each(monkeypatch):
    opened = opening(monkeypatch)
    apart = matching(**LEFT).play()
    assert apart.session.phase == "done"
    masks = {party: bits_of(apart, party) for party in ("telco", "shop")}
    known = [(who, receive.sender, mask) for who, receive, mask in opened if receive.kind == KNOWN]
    assert known == [("bank", party, mask) for party, mask in masks.items()]
    said = b"\0".join(encode_from_party(message) for _, message in apart.sent if hasattr(message, "attempt"))
    assert not [party for party, mask in masks.items() if mask in said]
    assert {len(relay.to) for relay in apart.said(Relay, "telco") if relay.turn == PLACES} == {1}


def test_terms_with_ids_of_a_table_in_order_name_the_key():
    with pytest.raises(fb.ConfigError, match="min_common_rows is only for rows matched by their ids"):
        terms_of(LAYOUTS["two holders"], rows="in_order", min_common_rows=5)


def test_rows_that_a_feature_holder_lacks_have_missing_values_in_all_its_columns():
    """The helper of these tests does what a left join does."""
    layout, table = LAYOUTS["two holders"], pooled(50)
    tables, _ = scattered(layout, table)
    joined = left_joined(layout, table, tables)
    lacking = ~np.isin(joined["id"].to_numpy(), tables["telco"]["id"].to_numpy())
    assert lacking.any()
    assert pa.compute.is_null(joined["colour"]).to_numpy().tolist() == lacking.tolist()
