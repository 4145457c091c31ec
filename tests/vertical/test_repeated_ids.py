"""`repeated_ids`: a label holder has several rows of an id; the model is that of the joined table, bit for
bit."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fedboost as fb
from fedboost.boosting.queries import ids as reach
from fedboost.holders import alignment
from fedboost.holders.alignment import REPEATS
from fedboost.protocol.messages import Report
from fedboost.views.approval import summary
from tests.helpers import faults_apart, faults_hidden
from tests.helpers.alignments import ALIGN, JOINED, PLACES, refused
from tests.helpers.apart_sessions import LOST, SMALL, Apart, sealing
from tests.helpers.columns_apart import LAYOUTS, matched, of_people, terms_of, train_pooled
from tests.helpers.policies import policy

REPEATED = {"repeated_ids": True, "min_common_rows": 30}
ROWS_OF = {"common": 1, "label_holder": 2}
"""Which table of `of_people` is due."""


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS_OF)
@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        *((setting, "three holders") for setting in JOINED),
        *(("logistic", layout) for layout in ("two holders", "one a column")),
    ],
)
def test_the_model_is_that_of_the_joined_table(setting, layout, rows):
    label, settings = JOINED[setting]
    made = of_people(LAYOUTS[layout], share=0.95, label=label)
    columns = {"row_id": "id"} | settings.get("columns", {})
    apart = fb.simulate(matched(LAYOUTS[layout], **{**REPEATED, "rows": rows, **settings}), made[0])
    whole = train_pooled(made[ROWS_OF[rows]], **settings | {"columns": columns})
    assert apart.model.booster == whole.model.booster


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS_OF)
def test_the_model_is_that_of_the_joined_table_where_gradients_are_encrypted(rows):
    layout = LAYOUTS["three holders"]
    made = of_people(layout, people=60, rows=150)
    settings = {"protection": "paillier", "key_bits": 2048, "model": "whole", "rows": rows, **SMALL}
    apart = fb.simulate(matched(layout, **REPEATED, **settings), made[0])
    assert apart.model.booster == train_pooled(made[ROWS_OF[rows]], **SMALL).model.booster


def test_blocks_may_repeat_ids_too():
    layout = LAYOUTS["blocks"]
    tables, whole = {}, []
    for holder, others in layout.blocks:
        own, inner, _ = of_people(replace(layout, blocks=((holder, others),), cuts=(1.0,)))
        tables |= own
        whole.append(inner)
    apart = fb.simulate(matched(layout, **REPEATED), tables)
    assert apart.model.booster == train_pooled(pa.concat_tables(whole)).model.booster


def test_common_rows_are_counted_by_their_ids():
    tables, inner, _ = of_people(LAYOUTS["two holders"])
    ids = pc.count_distinct(inner["id"]).as_py()
    assert ids < inner.num_rows
    assert fb.simulate(matched(LAYOUTS["two holders"], **{**REPEATED, "min_common_rows": ids}), tables).model
    with pytest.raises(
        fb.FedboostError, match=f"parties bank, telco have only {ids} rows in common, but the terms"
    ):
        fb.simulate(matched(LAYOUTS["two holders"], **{**REPEATED, "min_common_rows": ids + 1}), tables)


# ---- what is refused ------------------------------------------------------------------------------------


def test_a_label_holder_that_repeats_ids_reads_which_key_allows_it():
    tables, _, _ = of_people(LAYOUTS["two holders"])
    with pytest.raises(fb.FedboostError) as raised:
        fb.simulate(matched(LAYOUTS["two holders"]), tables)
    assert raised.value.detail.startswith(
        "row_id 'id' must be unique, so keep one row per id, or set repeated_ids = true in the terms: "
    )


def test_other_parties_have_each_id_once():
    tables, _, _ = of_people(LAYOUTS["two holders"])
    tables["telco"] = pa.concat_tables([tables["telco"], tables["telco"].slice(0, 1)])
    with pytest.raises(fb.FedboostError) as raised:
        fb.simulate(matched(LAYOUTS["two holders"], **REPEATED), tables)
    assert raised.value.detail.startswith("row_id 'id' must be unique, so keep one row per id: ")


def test_terms_that_compare_no_ids_repeat_none():
    with pytest.raises(fb.ConfigError, match="repeated_ids is only for rows matched by their ids, not for"):
        terms_of(LAYOUTS["two holders"], repeated_ids=True)
    with pytest.raises(fb.ConfigError, match="repeated_ids is only for parties that hold different columns"):
        terms_of(repeated_ids=True)


def test_labels_with_noise_repeat_no_ids():
    """Rows of an id would be changed alike."""
    with pytest.raises(
        fb.ConfigError,
        match="repeated_ids with min_rows_per_bin: all rows of a bin could belong to a single id",
    ):
        matched(LAYOUTS["two holders"], **REPEATED, min_rows_per_bin=10)
    with pytest.raises(fb.ConfigError, match="repeated_ids with label_epsilon: one known label of an id"):
        matched(LAYOUTS["two holders"], **REPEATED, label_epsilon=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["two holders", "three holders", "one a column"])
@pytest.mark.parametrize("batch_bytes", [1 << 24, 12])
def test_a_prediction_is_that_of_the_left_joined_table(monkeypatch, layout, batch_bytes):
    """Other parties are asked about each id once."""
    monkeypatch.setattr(reach, "BATCH_BYTES", batch_bytes)
    layout = LAYOUTS[layout]
    tables, inner, left = of_people(layout, share=0.95)
    parts = fb.simulate(matched(layout, **REPEATED, model="parties"), tables).party_models
    asked = {**tables, "bank": tables["bank"].drop_columns(["y", "held_out"])}
    assert left.num_rows > inner.num_rows > pc.count_distinct(inner["id"]).as_py()
    whole = train_pooled(inner).model
    predicted, reasons = fb.predict_jointly(parts, asked, reasons=True)
    assert np.array_equal(predicted, whole.predict(left))
    if layout == LAYOUTS["one a column"]:
        assert np.array_equal(reasons[:, 1:], whole.shap_values(left))
    asked["bank"] = asked["bank"].slice(0, 80)
    assert np.array_equal(fb.predict_jointly(parts, asked), whole.predict(left.slice(0, 80)))


def test_a_prediction_with_a_model_of_terms_without_the_key_takes_each_id_once():
    layout = LAYOUTS["two holders"]
    tables, _, _ = of_people(layout)
    ids = tables["bank"]["id"].to_numpy()
    once = {**tables, "bank": tables["bank"].take(np.unique(ids, return_index=True)[1])}
    parts = fb.simulate(matched(layout, min_common_rows=30, model="parties"), once).party_models
    with pytest.raises(fb.FedboostError) as raised:
        fb.predict_jointly(parts, {**tables, "bank": tables["bank"].drop_columns(["y", "held_out"])})
    assert "must be unique, so keep one row per id: " in raised.value.detail


@pytest.mark.parametrize("party", ["bank", "telco"])
def test_the_policy_of_every_site_must_allow_it(party):
    terms = matched(LAYOUTS["two holders"], **{**REPEATED, "min_common_rows": 1000})
    terms = terms.with_parties(["bank", "telco"])
    keys = {"by_columns": True, "label_holders": "any", "protections": ["plain"], "min_parties": 2}
    assert [each.key for each in policy(**keys).breaches(terms, party=party)] == ["repeated_ids"]
    assert not [*policy(**keys, repeated_ids=True).breaches(terms, party=party)]
    keys["max_predicted_rows"] = 1000
    assert not [
        *policy(**keys).breaches(terms.changed(predict_with="5" * 64, predict_rows=1000), party=party)
    ]


def test_a_person_who_approves_is_told_what_others_learn():
    terms = matched(LAYOUTS["two holders"], **REPEATED).with_parties(["bank", "telco"])
    text = " ".join(summary(terms).split())
    assert (
        "the label holder may have several rows per id, and each other site learns how many for each" in text
    )


# ---- who lies -------------------------------------------------------------------------------------------


def people(**settings):
    tables = of_people(LAYOUTS["three holders"], people=40, rows=90, share=0.95)[0]
    columns = {"columns": {"row_id": "id"}, "rows": "common"}
    return Apart("three holders", tables=tables, **{**columns, **REPEATED, "min_common_rows": 20, **settings})


def telling(monkeypatch, change):
    """What the label holder says of its ids is changed before it is sealed."""

    def counts(_, send, ask):
        if send.kind != REPEATS:
            return None
        told = np.frombuffer(send.content, alignment.NUMBER).astype(np.int64)
        return change(told, ask.attempt).astype(alignment.NUMBER).tobytes()

    sealing(monkeypatch, counts)


def first(value):
    return lambda counts, attempt: np.append(value, counts[1:])


BAD = {
    "none of an id": (first(0), "label holder bank reports 0 rows"),
    "fewer than none": (first(-3), "label holder bank reports -3 rows"),
    "more than may be": (
        first(2**31 - 1),
        "rows with common ids, but the terms allow only 10,000,000; raise max_ids only if the label holder "
        "is known to have that many rows",
    ),
    "too few ids": (lambda counts, attempt: counts[1:], "bytes (how many rows each id has) instead of "),
    "too many ids": (
        lambda counts, attempt: np.append(counts, 1),
        "bytes (how many rows each id has) instead of ",
    ),
    "a row more": (
        lambda counts, attempt: counts + (np.arange(counts.size) == 0),
        " rows, but label holder ",
    ),
}


@pytest.mark.parametrize("lie", BAD)
def test_numbers_of_rows_that_cannot_be_are_refused_by_feature_holders(monkeypatch, lie):
    change, says = BAD[lie]
    telling(monkeypatch, change)
    error = refused(people())
    assert error.startswith(("party telco left: ", "party shop left: "))
    assert says in error


def test_a_label_holder_of_more_rows_than_max_ids_is_refused():
    rows = of_people(LAYOUTS["three holders"], people=40, rows=90, share=0.95)[1].num_rows
    assert (
        f"label holder bank has {rows} rows with common ids, but the terms allow only 60; raise"
        in refused(people(max_ids=60))
    )


def test_other_numbers_after_a_restart_are_refused(monkeypatch):
    """By a party that was not restarted itself."""

    def other(counts, attempt):
        return counts if attempt == 1 else np.roll(counts, 1)

    telling(monkeypatch, other)
    assert "the label holder's counts of repeated row ids have changed" in refused(people().dying("bank", 6))


# ---- restarts -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("turn", [ALIGN, PLACES, 4, 6, 8])
@pytest.mark.parametrize("party", ["bank", "telco"])
def test_after_a_restart_the_model_is_the_same(party, turn):
    apart = people().dying(party, turn).play()
    assert apart.session.phase == "done", apart.session.error
    assert apart.session.attempt == 2
    due = of_people(LAYOUTS["three holders"], people=40, rows=90, share=0.95)[1]
    assert apart.session.booster == train_pooled(due, **SMALL).model.booster


def test_all_processes_die_before_the_end():
    """The state is all that is left of the session, and it does not say how often ids are repeated."""

    def up(party, message):
        if (party, type(message)) != ("bank", Report) or (message.turn, message.attempt) != (8, 1):
            return None
        for name in apart.terms.parties:
            apart.crash(name)
        for name in ("telco", "shop"):
            for event in LOST:
                apart.arrive(name, event)
        return LOST

    apart = people()
    apart.up = up
    apart.play()
    assert apart.session.phase == "done", apart.session.error
    assert {len(made) for made in apart.made.values()} == {2}
    due = of_people(LAYOUTS["three holders"], people=40, rows=90, share=0.95)[1]
    assert apart.session.booster == train_pooled(due, **SMALL).model.booster


class World(faults_apart.World):
    """A session in which ids are repeated, and anything goes wrong."""

    def choose(self, seed):
        self.layout, self.setting = self.draw.choice(["two holders", "three holders"]), "logistic"
        self.aim = self.draw.choice([0.0, 0.1])
        self.by_id = self.draw.choice([faults_apart.REPEATED, faults_apart.REPEATED_LEFT])
        return faults_apart.apart(self.layout, self.setting, "wait", self.by_id)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_seed(seed):
    faults_apart.play(seed, World)


class Hidden(faults_hidden.World):
    """The same where gradients are encrypted."""

    def choose(self, seed):
        self.layout, self.setting, self.aim = (
            self.draw.choice(["two holders", "three holders"]),
            "logistic",
            0.1,
        )
        self.by_id = (faults_apart.REPEATED, faults_apart.REPEATED_LEFT, faults_apart.LEFT)[seed % 3]
        return faults_apart.apart(self.layout, self.setting, "wait", self.by_id, **faults_hidden.HIDDEN)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_seed_where_gradients_are_encrypted(seed):
    faults_hidden.play(seed, Hidden)


@pytest.mark.slow
@pytest.mark.long
def test_more_seeds_end_with_models():
    assert [
        outcome for outcome in (faults_apart.play(seed, World) for seed in range(12, 60)) if outcome.model
    ]
