"""A floor under the rows of a bin: no combination of told sums is over fewer rows."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache

import faults
import numpy as np
import pyarrow as pa
import pytest
from apart_sessions import LOST, Apart
from columns_apart import LAYOUTS, Layout, matched, pooled, scattered, train_apart, train_pooled
from consortium import installed
from faults_apart import World, apart, tables_of
from told_sums import SQUARED, Recorded, smallest_set, sums_of

import fedboost as fb
from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import FedboostError
from fedboost.gbdt.histogram import Layout as Bins
from fedboost.gbdt.tree import Splits
from fedboost.holders.columns import OwnBins
from fedboost.protocol.messages import Ask

ROWS, FLOOR = 80, 6
COLUMNS = {"label": "y", "numeric": ["age", "calls"], "categorical": {"colour": ["blue", "green", "red"]}}


def small(seed=0, rows=ROWS):
    """Three columns of few values; one row is blue, some calls are missing."""
    draw = np.random.default_rng(seed)
    age, calls = draw.integers(0, 5, rows), draw.integers(0, 4, rows)
    colour = np.array(["green", "red"])[draw.integers(0, 2, rows)]
    colour[draw.integers(rows)] = "blue"
    score = age + 2.0 * (calls == 2) + 1.5 * (colour == "red") + draw.normal(size=rows)
    return pa.table(
        {
            "age": age.astype(np.float32),
            "calls": np.where(draw.random(rows) < 0.07, np.nan, calls).astype(np.float32),
            "colour": colour,
            "y": score.astype(np.float32),
            "id": np.arange(rows),
            "held_out": (np.arange(rows) % 4 == 0).astype(int),
            "weight": np.where(np.arange(rows) % 5 == 0, 0.0, 1.0),
        }
    )


def recorded(table, floor, columns=COLUMNS, **settings):
    """A session of the two columns' holders, and its table."""
    held = {"telco": ["calls", "colour"]}
    tables = {"bank": table.drop(["calls", "colour"]), "telco": table.select(held["telco"])}
    given = {**SQUARED, "min_child_weight": 0, **settings, "min_rows_per_bin": floor, "rows": "in_order"}
    terms = fb.Terms(columns={**columns, "held": held}, label_holder="bank", protection="plain", **given)
    session = Recorded(terms=terms.with_parties(["bank", "telco"]), tables=tables).play()
    assert session.session.phase == "done", session.error
    return session


def drawn_rows(session, tree):
    return session.made["bank"][-1]._own.sample(tree)[0]


# ---- what the sums are over -----------------------------------------------------------------------------

DRAWS = {
    "all rows": {},
    "half of the rows": {"subsample": 0.5, "columns": {"row_id": "id"}},
    "validation rows": {"columns": {"validation": "held_out"}},
    "deeper": {"max_depth": 3, "rounds": 1},
    "lossguide": {"grow_policy": "lossguide", "max_leaves": 6, "max_depth": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("seed", range(2))
def test_no_combination_of_sums_is_over_fewer_rows(draws, seed):
    table, settings = small(seed), dict(DRAWS[draws])
    session = recorded(table, FLOOR, {**COLUMNS, **settings.pop("columns", {})}, **settings)
    codes, parted = session.bins(table), 0
    for tree in range(session.terms.trees.rounds):
        assert smallest_set(session, tree, codes, drawn_rows(session, tree), FLOOR) is None
        parted += sum(node > 0 for node, *_ in sums_of(session, tree))
    assert parted, "no tree has a split"


def test_without_the_floor_some_are():
    """So the search finds them."""
    table = small()
    session = recorded(table, 1)
    assert smallest_set(session, 0, session.bins(table), drawn_rows(session, 0), FLOOR) == 1


def test_a_group_of_siblings_that_only_one_of_them_fills_would_be_found(monkeypatch):
    """Sums of groups that hold in the node that is asked for, whatever is left for its sibling."""
    from fedboost.gbdt import histogram

    joined = histogram.joined
    monkeypatch.setattr(
        histogram, "joined", lambda apart, counts, layout, least: joined(apart, counts[:1], layout, least)
    )
    found = []
    for seed in range(2):
        table = small(seed)
        session = recorded(table, FLOOR, max_depth=3)
        found += [
            smallest_set(session, t, session.bins(table), drawn_rows(session, t), FLOOR) for t in (0, 1)
        ]
    assert any(found)


def test_a_level_of_one_row_is_told_with_others_in_every_node():
    session = recorded(small(), 2, rounds=3)
    layout, alone = Bins.of(session.cut_points), set()
    blue = int(layout.offsets[2])
    for query, _, total in session.asked:
        marks = total[total.size - query.marks :].reshape(len(query.nodes), -1)
        alone.update(marks[:, blue].tolist())
    assert alone == {0}
    assert any(2 in tree.feature for tree in session.session.booster.trees)


def test_rows_of_weight_0_are_no_rows_of_a_sum():
    table = small()
    session = recorded(table, FLOOR, {**COLUMNS, "weight": "weight"})
    assert drawn_rows(session, 0).tolist() == (table["weight"].to_numpy() > 0).tolist()
    codes = session.bins(table)
    assert all(smallest_set(session, t, codes, drawn_rows(session, t), FLOOR) is None for t in range(2))


# ---- the model ------------------------------------------------------------------------------------------

SETTINGS = {
    "logistic": ("binary", {}),
    "squared": ("number", {"objective": "reg:squarederror"}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "lossguide": ("binary", {"grow_policy": "lossguide", "max_leaves": 6, "max_depth": 5}),
    "monotone": ("binary", {"monotone_constraints": {"age": -1, "income": 1}}),
    "sampled": ("binary", {"subsample": 0.6, "colsample_bynode": 0.7, "columns": {"row_id": "id"}}),
    "alone": ("binary", {"alone_rounds": 2}),
    "validated": ("binary", {"columns": {"validation": "held_out"}}),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_floor_of_one_row_is_none(setting):
    label, settings = SETTINGS[setting]
    table, layout = pooled(label=label), LAYOUTS["two holders"]
    with_key, without = (
        train_apart(layout, table, **key, **settings) for key in ({"min_rows_per_bin": 1}, {})
    )
    assert with_key.model.booster == without.model.booster
    if setting != "alone":
        assert with_key.model.booster == train_pooled(table, **settings).model.booster


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_model_does_not_depend_on_who_holds_what(setting):
    label, settings = SETTINGS[setting]
    table, names = pooled(label=label), ["two holders", "three holders"]
    names = names if setting == "alone" else [*names, "one a column"]
    boosters = [
        train_apart(LAYOUTS[name], table, min_rows_per_bin=15, **settings).model.booster
        for name in ([TWO_ALONE, THREE_ALONE] if setting == "alone" else names)
    ]
    assert all(booster == boosters[0] for booster in boosters)
    assert boosters[0] != train_apart(LAYOUTS["two holders"], table, **settings).model.booster


TWO_ALONE, THREE_ALONE = "two holders alone", "three holders alone"
LAYOUTS = LAYOUTS | {
    TWO_ALONE: Layout((("bank", {"telco": ("minutes", "calls", "visits")}),)),
    THREE_ALONE: Layout((("bank", {"telco": ("minutes",), "shop": ("calls", "visits")}),)),
}


def test_parts_of_such_a_model_are_the_model():
    """Thresholds are those of whole groups, at the holders too."""
    tables, _ = scattered(LAYOUTS["three holders"], pooled(), share=1.0)
    kept = fb.simulate(matched(LAYOUTS["three holders"], min_rows_per_bin=15, model="parties"), tables)
    whole = fb.simulate(matched(LAYOUTS["three holders"], min_rows_per_bin=15), tables)
    assert fb.assemble(kept.party_models.values()).booster == whole.model.booster
    predicted = fb.predict_jointly(kept.party_models, tables)
    order = tables["bank"]["id"].to_pylist()
    assert predicted.tolist() == whole.model.predict(pooled().take(order)).tolist()


HIDDEN = {"protection": "paillier", "key_bits": 2048, "model": "whole"}
SHORT = {"rounds": 2, "max_depth": 3, "max_bin": 8, "min_child_weight": 0, "min_rows_per_bin": 5}
needs_paillier = pytest.mark.skipif(not installed("paillier"), reason="needs the extra paillier")


@needs_paillier
@pytest.mark.usefixtures("one_key")
@pytest.mark.parametrize("alone", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_hidden_gradients_make_the_same_model(alone):
    """And the label holder's count of each leaf agrees."""
    table, settings = pooled(60), {**SHORT, "alone_rounds": alone}
    hidden = train_apart(LAYOUTS["three holders"], table, **HIDDEN, **settings)
    plain = train_apart(LAYOUTS["three holders"], table, **settings)
    assert hidden.model.booster == plain.model.booster
    assert plain.model.booster != train_pooled(table, **SHORT | {"min_rows_per_bin": 1}).model.booster


# ---- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [61, 1000])
def test_fewer_rows_than_the_floor_are_refused_in_one_line(floor):
    with pytest.raises(FedboostError) as error:
        train_apart(LAYOUTS["two holders"], pooled(60), min_rows_per_bin=floor)
    assert str(error.value) == (
        f"party bank left: a tree would be trained on only 60 rows, but the terms have min_rows_per_bin = "
        f"{floor}: lower it, or use more common rows"
    )


def played(**settings):
    return Apart("two holders", **{"max_depth": 3, "min_rows_per_bin": 5, **settings}).play()


def marked(change):
    """What telco tells, its marks changed by `change(marks, places)`: [nodes, bins], and its own bins."""
    honest = OwnBins.with_marks

    def tell(self, query, sums, groups):
        told = honest(self, query, sums, groups)
        if query.grouped and 0 not in self.places:
            marks = told[told.size - query.marks :].reshape(len(query.nodes), -1)
            change(marks, self.places, query)
        return told

    return tell


def two(marks, places, query):
    marks[0, places[0]] = 2


def no_first(marks, places, query):
    marks[0, places[0]] = 0


def elsewhere(marks, places, query):
    last = places[np.flatnonzero(marks[0, places])[-1]]
    marks[0, last] = 0  # its sum stands where no mark is


def finer(marks, places, query):
    if len(query.splits):
        marks[:, places] = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (two, "a mark is neither 0 nor 1"),
        (no_first, "the first bin of a column has no mark"),
        (elsewhere, "a bin without a mark has a sum"),
        (finer, "groups are not joined from those of the parent node"),
    ],
)
def test_marks_that_cannot_be_name_the_party(monkeypatch, change, words):
    monkeypatch.setattr(OwnBins, "with_marks", marked(change))
    monkeypatch.setattr(HistogramQuery, "fits", lambda self, answer: True)
    session = played(min_rows_per_bin=12)
    assert "party telco reported sums over impossible groups of bins, at or below node" in session.error
    assert words in session.error
    assert session.error.endswith("; contact that party before you train with it again")
    assert "\n" not in session.error


@needs_paillier
@pytest.mark.usefixtures("one_key")
@pytest.mark.parametrize("party", ["bank", "telco"])
def test_marks_of_others_are_nobody_elses_to_tell_where_sums_are_hidden(monkeypatch, party):
    honest = OwnBins.with_marks

    def tell(self, query, sums, groups):
        told = honest(self, query, sums, groups)
        if query.grouped and (0 in self.places) == (party == "bank"):
            foreign = np.setdiff1d(np.arange(query.bins), self.places)[0]
            told[told.size - query.marks + foreign] = 1
        return told

    monkeypatch.setattr(OwnBins, "with_marks", tell)
    session = played(**HIDDEN)
    assert session.error.startswith(f"party {party} broke the protocol: it sent unencrypted sums in turn")


def within_a_group(query):
    """The query with its first split moved into the group of bins that ends where it splits."""
    columns = query.splits.columns.copy()
    columns[2, 0] -= 1
    return replace(query, splits=Splits(columns, query.splits.categories.copy()))


@pytest.mark.parametrize("protection", ["plain", pytest.param("paillier", marks=needs_paillier)])
@pytest.mark.usefixtures("one_key")
def test_an_aggregator_that_splits_a_group_is_refused(protection):
    """The sums of both sides would be of fewer rows. Each holder refuses it of its own columns."""
    forged = []

    def down(name, message):
        query = message.query if isinstance(message, Ask) else None
        if not isinstance(query, HistogramQuery) or not len(query.splits) or forged:
            return None
        if not 0 <= query.splits.feature[0] < 5 or query.splits.columns[2, 0] == 0:
            return None
        forged.append(name)
        return [replace(message, query=within_a_group(query))]

    settings = {} if protection == "plain" else HIDDEN
    session = played(down=down, min_rows_per_bin=20, max_bin=16, table=pooled(200), **settings)
    assert forged
    assert session.left(forged[0]) == (
        "a split of node 0 separates bins that min_rows_per_bin = 20 keeps together"
    )


@pytest.mark.parametrize("again", [False, True])
def test_an_aggregator_that_ends_a_tree_by_other_splits_is_refused(again):
    """Leaf values that it makes up, and metrics, would tell of the rows of a leaf: splits within a group; or,
    `again`, those of a tree whose root it did not ask for."""

    def program(terms, grown):
        steps, total = boosting.train(terms, grown), None
        while True:
            query = steps.send(total)
            (end, *_) = [part for part in query.parts if isinstance(part, EndRoundQuery)] or [None]
            if end is not None and end.tree == 0:
                yield end if again else within_a_group(end)
                yield replace(end, tree=1)
            total = yield query

    session = played(program=program, max_depth=1, min_rows_per_bin=30, max_bin=16, table=pooled(100))
    reasons = {session.left(party) for party in session.terms.parties} - {None}
    (reason,) = reasons
    if again:
        assert reason == "the query splits a tree before the sums of its root were requested"
    else:
        assert reason.startswith("a split of node 0 separates bins that min_rows_per_bin = 30 keeps together")


# ---- restarts -------------------------------------------------------------------------------------------


HIDES = [needs_paillier, pytest.mark.slow]


@pytest.mark.parametrize(
    ("protection", "party", "nth"),
    [
        *(("plain", party, nth) for party in ("bank", "telco") for nth in range(4, 11, 2)),
        pytest.param("paillier", "telco", 6, marks=HIDES),
        pytest.param("paillier", "bank", 8, marks=HIDES),
    ],
)
@pytest.mark.usefixtures("one_key")
def test_groups_are_the_same_after_a_restart(protection, party, nth):
    """Those of the tree that grows too: sums are the same, question by question."""
    told = []

    def dies(name, message):
        told.extend([name] * (name == party and isinstance(message, Ask)))
        if len(told) == nth and name == party and None not in told:
            told.append(None)
            session.crash(party)
            return LOST
        return None

    settings = {**SHORT, **(HIDDEN if protection == "paillier" else {}), "on_loss": "wait", "subsample": 0.8}
    settings["columns"] = {"row_id": "id"}
    session = Apart("two holders", down=dies, **settings)
    session.play()
    assert None in told
    assert session.session.phase == "done", session.error
    whole = Apart("two holders", **{**SHORT, "subsample": 0.8, "columns": {"row_id": "id"}}).play()
    assert session.session.booster == whole.session.booster


# ---- whatever goes wrong --------------------------------------------------------------------------------


@lru_cache
def due_sums(terms, layout, setting):
    """Each sum of a session without faults, by its question."""
    due = {}

    def recording(terms, grown):
        steps, total = boosting.train(terms, grown), None
        while True:
            try:
                query = steps.send(total)
            except StopIteration as done:
                return done.value
            due[query.digest] = total = yield query

    played = Apart(terms=terms, tables=tables_of(layout, setting, False)[0], program=recording).play()
    return due, played.session.booster.to_xgboost()


class Floored(World):
    """One session with a floor: every sum is what it is without faults, groups too."""

    def choose(self, seed):
        self.layout, self.setting = self.draw.choice(["two holders", "three holders"]), "drawn"
        self.aim, self.by_id = self.draw.choice([0.0, 0.1]), False
        return apart(self.layout, self.setting, "wait", False, min_rows_per_bin=5)

    @property
    def due_model(self):
        return due_sums(self.terms, self.layout, self.setting)[1]

    def due_sum(self, run, roster):
        return due_sums(self.terms, self.layout, self.setting)[0][run.pending.digest]


@pytest.mark.parametrize("seed", range(12))
def test_a_seed(seed):
    faults.play(seed, Floored)


@pytest.mark.slow
def test_seeds_have_restarts_and_models():
    outcomes = [faults.play(seed, Floored) for seed in range(12, 45)]
    counted = sum((outcome.faults for outcome in outcomes), Counter())
    assert {"restart", "crash", "drop", "restart at a relay", "crash at a relay"} <= set(counted)
    assert sum(outcome.model is not None for outcome in outcomes) > len(outcomes) // 2
