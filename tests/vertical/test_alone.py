"""First rounds on the label holder's columns alone: nothing of them is relayed."""

from collections import Counter
from dataclasses import replace

import faults
import numpy as np
import pytest
from apart_sessions import LOST, Apart
from columns_apart import LAYOUTS, Layout, matched, pooled, scattered, terms_of, train_apart
from consortium import installed
from faults_apart import ROWS, World, apart, noting, own_terms, tables_of

import fedboost as fb
from fedboost.boosting.queries.base import view_of
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.histogram import Layout as Bins
from fedboost.gbdt.tree import Splits
from fedboost.holders.column_rows import ENCRYPTED, GRADIENTS, ROW_SET
from fedboost.protocol.messages import Ask
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Relayed

ALONE = 2
LABELLED = ("age", "income", "colour")
TWO = Layout((("bank", {"telco": ("minutes", "calls", "visits")}),))
THREE = Layout((("bank", {"telco": ("minutes",), "shop": ("calls", "visits")}),))
"""The label holder has the same columns in both."""
COLUMNS = {"label": "y", "numeric": ["age", "income"], "categorical": {"colour": ["red", "green", "blue"]}}
SETTINGS = {
    "logistic": ("binary", {}),
    "squared": ("number", {"objective": "reg:squarederror", "max_depth": 5}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "lossguide": ("binary", {"grow_policy": "lossguide", "max_leaves": 6, "max_depth": 5}),
    "symmetric": ("binary", {"grow_policy": "symmetric", "max_depth": 4}),
    "monotone": ("binary", {"monotone_constraints": {"age": -1, "income": 1}}),
    "paths": ("binary", {"interaction_constraints": [["age", "colour", "calls"], ["income", "visits"]]}),
    "sampled": (
        "binary",
        {
            "num_parallel_tree": 2,
            "subsample": 0.6,
            "colsample_bytree": 0.7,
            "colsample_bynode": 0.7,
            "columns": {"row_id": "id"},
        },
    ),
}


def splits_of(tree, names):
    """The nodes of a tree with the columns by name, and its leaf values."""
    features = [names[node] if split else None for node, split in zip(tree.feature, tree.inner, strict=True)]
    columns = tree.to_columns()
    return features, [columns[name] for name in columns if name not in ("feature", "cover")]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_first_trees_are_those_of_the_label_holder_alone(setting):
    """And the later ones, on all columns, are the same whoever holds the others."""
    label, settings = SETTINGS[setting]
    table = pooled(label=label)
    first, second = (train_apart(layout, table, alone_rounds=ALONE, **settings) for layout in (TWO, THREE))
    assert first.model.booster == second.model.booster
    own = {"rounds": ALONE, "max_depth": 3, "max_bin": 16, "protection": "plain", **settings}
    own["columns"] = COLUMNS | settings.get("columns", {})
    if groups := settings.get("interaction_constraints"):
        own["interaction_constraints"] = [[name for name in group if name in LABELLED] for group in groups]
    alone = fb.simulate(fb.Terms(**own), {"bank": table.drop(["minutes", "calls", "visits"])}).model
    trees = alone.booster.trees
    features = terms_of(TWO).columns.features
    for tree, of_all in zip(trees, first.model.booster.trees, strict=False):
        assert splits_of(tree, alone.terms.columns.features) == splits_of(of_all, features)
    later = first.model.booster.trees[len(trees) :]
    used = {
        features[f] for tree in later for f, left in zip(tree.feature, tree.left, strict=True) if left > 0
    }
    assert used - set(LABELLED), "no later tree splits by a column of others"


def test_all_rounds_may_be_alone():
    result = train_apart(THREE, pooled(), alone_rounds=4)
    assert set(result.model.importance()) <= set(LABELLED)


@pytest.mark.parametrize("alone", [2, 4])
def test_the_parts_of_such_a_model_predict_together(alone):
    """Also where all rounds are alone, so that only the label holder has a part."""
    table = pooled()
    tables, _ = scattered(THREE, table, share=1.0)
    result = fb.simulate(matched(THREE, alone_rounds=alone, model="parties"), tables)
    predicted = fb.predict_jointly(result.party_models, tables)
    order = tables["bank"]["id"].to_pylist()
    assert predicted.tolist() == result.model.predict(table.take(order)).tolist()


# ---- what is relayed ------------------------------------------------------------------------------------


class Logged(Apart):
    """A session of three holders whose sites keep a log of what they relay: party, tree, kind. A turn that
    ends a tree and begins the next is about the next."""

    def __init__(self, **settings):
        super().__init__("three holders", table=pooled(ROWS), **settings)
        self.relayed, self.tree = [], {}
        for name, site in self.sites.items():
            self.sites[name] = replace(site, record=self.note(name))
            self.ends[name] = PartySession(self.sites[name])

    def note(self, name):
        def record(entry):
            if isinstance(entry, Relayed):
                self.relayed.append((name, self.tree[entry.turn], entry.what))

        return record

    def tell(self, party, message):
        if isinstance(message, Ask):
            self.tree[message.turn] = max(
                (part.tree for part in message.query.parts if isinstance(part, HistogramQuery)),
                default=message.query.tree,
            )
        super().tell(party, message)


SESSION = {"rounds": 4, "max_depth": 3, "max_bin": 8, "alone_rounds": ALONE}


def relays(session):
    """The number of relays by sender, tree and kind; of trees alone."""
    counted = Counter(session.relayed)
    return {(name, tree, kind): n for (name, tree, kind), n in counted.items() if tree >= 0}


def test_nothing_of_these_rounds_leaves_any_party():
    session = Logged(**SESSION).play()
    assert session.session.phase == "done", session.error
    counted = relays(session)
    assert {tree for _, tree, _ in counted} == {2, 3}
    assert {(name, tree) for name, tree, kind in counted if kind == GRADIENTS} == {("bank", 2), ("bank", 3)}
    assert any(name != "bank" and kind == ROW_SET for name, _, kind in counted)


HIDDEN = {"protection": "paillier", "key_bits": 2048, "on_loss": "wait"}
SHORT = {"rounds": 2, "max_depth": 2, "max_bin": 4, "alone_rounds": 1}


@pytest.mark.slow
@pytest.mark.skipif(not installed("paillier"), reason="needs the extra paillier")
@pytest.mark.usefixtures("one_key")
@pytest.mark.parametrize("dies", [None, "bank", "telco"])
def test_nothing_is_encrypted_in_these_rounds(dies):
    """Nor after a restart in a later one; and the model is that of `plain`."""
    crashed = []

    def down(party, message):
        parts = message.query.parts if isinstance(message, Ask) and party == dies else ()
        if not crashed and any(isinstance(part, HistogramQuery) and part.tree == 1 for part in parts):
            crashed.append(party)
            session.crash(party, record=session.note(party))
            return LOST
        return None

    session = Logged(down=down, **HIDDEN, **SHORT)
    session.play()
    assert session.session.phase == "done", session.error
    assert crashed == [dies] * (dies is not None)
    encrypted = {(name, tree) for name, tree, kind in relays(session) if kind == ENCRYPTED}
    assert encrypted == {("bank", 1)}
    assert min(tree for _, tree, kind in relays(session) if kind == ROW_SET) == 1
    plain = train_apart(LAYOUTS["three holders"], pooled(ROWS), min_child_weight=0, **SHORT)
    assert session.session.booster == plain.model.booster


def test_a_restart_relays_nothing_of_these_rounds_either():
    """The label holder goes down its own trees by itself."""
    crashed = []

    def dies(party, message):
        about = (
            [part for part in message.query.parts if isinstance(part, HistogramQuery)]
            if isinstance(message, Ask)
            else []
        )
        if party == "bank" and about and about[-1].tree == 3 and about[-1].nodes != (0,) and not crashed:
            crashed.append(message)
            session.crash("bank", record=session.note("bank"))
            return LOST
        return None

    session = Logged(down=dies, on_loss="wait", **SESSION)
    session.play()
    assert crashed
    assert session.session.phase == "done", session.error
    assert session.session.booster == Logged(**SESSION).play().session.booster
    counted = relays(session)
    assert min(tree for _, tree, kind in counted if kind in (ROW_SET, GRADIENTS)) == 2


@pytest.mark.parametrize("party", ["bank", "telco"])
def test_splits_by_columns_of_others_are_refused_in_these_rounds(party):
    """An aggregator that has the rows of such a round parted by somebody else's column."""

    def forged(query):
        splits = query.splits
        if not (isinstance(query, HistogramQuery) and len(splits) and query.tree == 0):
            return query
        columns = splits.columns.copy()
        columns[1], columns[2:4] = 2, 0  # minutes, which telco holds
        return replace(query, splits=Splits(columns, splits.categories.copy()))

    def down(name, message):
        if isinstance(message, Ask) and name == party and len(message.query.parts) == 1:
            seen = forged(message.query).seen_by(session.terms, party)
            return [replace(message, query=seen)]
        return None

    session = Logged(down=down, **SESSION)
    session.play()
    assert session.left(party) == (
        "a split uses another party's column in a round that may use only columns of label holder bank"
    )


# ---- whatever goes wrong --------------------------------------------------------------------------------


class Alone(World):
    """One session whose first rounds are alone: every sum is what pooled rows answer of those columns."""

    def choose(self, seed):
        self.layout, self.setting = self.draw.choice(["two holders", "three holders"]), "logistic"
        self.aim, self.by_id = self.draw.choice([0.0, 0.1]), seed % 3 == 2
        return apart(self.layout, self.setting, "wait", self.by_id, alone_rounds=ALONE)

    @property
    def due_model(self):
        terms = own_terms(self.layout, self.setting, self.by_id, alone_rounds=ALONE)
        return fb.simulate(
            terms, tables_of(self.layout, self.setting, self.by_id)[0]
        ).model.booster.to_xgboost()

    def due_sum(self, run, roster):
        parts = run.pending.parts
        starts = [part for part in parts if isinstance(part, StartQuery)] or [run.state.start]
        if starts[0] is None or all(not self.is_alone(part) for part in parts):
            return super().due_sum(run, roster)
        layout = Bins.of(starts[0].cut_points)
        own = np.repeat(view_of(self.terms, "bank").own, layout.value_bins + layout.missing)
        assert not own.all()
        holder, sums = self.references["pooled"], []
        holder.go_to(replace(run.state, places=None))
        for part in parts:
            asked = replace(part, bins=layout.bins) if self.is_alone(part) else part
            answer = holder.answer(asked)
            if self.is_alone(part):
                answer = answer.reshape(len(part.nodes), -1, STATS)[:, np.append(own, True)].reshape(-1)
            sums.append(answer)
        return np.concatenate(sums)

    @staticmethod
    def is_alone(part):
        return isinstance(part, HistogramQuery) and part.tree < ALONE


def play(seed):
    told, due, worlds = set(), set(), []
    with noting(told):
        outcome = faults.play(seed, lambda seed: worlds.append(Alone(seed)) or worlds[0])
    world = worlds[0]
    with noting(due):
        fb.simulate(
            own_terms(world.layout, world.setting, world.by_id, alone_rounds=ALONE),
            tables_of(world.layout, world.setting, world.by_id)[0],
        )
    assert told <= due, f"seed {seed}: a row set that nobody was told before"
    return outcome


@pytest.mark.parametrize("seed", range(12))
def test_a_seed(seed):
    play(seed)


@pytest.mark.slow
@pytest.mark.long
def test_seeds_have_restarts_and_models():
    outcomes = [play(seed) for seed in range(12, 45)]
    counted = sum((outcome.faults for outcome in outcomes), Counter())
    assert {"restart", "crash", "drop", "restart at a relay", "crash at a relay"} <= set(counted)
    assert sum(outcome.model is not None for outcome in outcomes) > len(outcomes) // 2
