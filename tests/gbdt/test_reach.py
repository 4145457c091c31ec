"""Prediction by parties that hold different columns: the whole model's, to the last bit."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import xgboost
from boosters import level_model, load, presence_model
from explained import by_definition
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import randomly, run
from list_trees import ListTree
from raised import raised

from fedboost.errors import LocalProtocolError, PeerError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.registry import make_objective
from fedboost.gbdt.reach import Decisions, Structure, joined, margins, reasons
from fedboost.gbdt.threads import BLOCK, Threads
from fedboost.gbdt.tree import Tree
from tests.gbdt.reference import reach as reference

PARTIES = ("bank", "clinic", "telco", "shop")
NUMBERS = [-3e38, -1, -0.5, -0.0, 0, 0.5, 1, 3e38, math.inf, -math.inf, math.nan]
LEVELS = [0, 1, 2, 63, 64, 127, 200, 255, 0.5, 1.7, -0.5, -1, 256, 1e30, math.inf, -math.inf, math.nan]
"""Numbers of levels, and what is none."""


def random_tree(rng, leaves, by_level, chain):
    """A tree over features, True for those by levels. chain: each split is of the leaf that came last."""
    tree = ListTree()
    tree.add_leaf(float(np.float32(rng.normal())), 1.0)
    for _ in range(leaves - 1):
        node = tree.leaves[-1 if chain else int(rng.integers(len(tree.leaves)))]
        feature, left = int(rng.integers(len(by_level))), len(tree.left)
        tree.left[node], tree.feature[node], tree.missing_left[node] = left, feature, bool(rng.integers(2))
        if by_level[feature]:
            tree.categories[node] = int.from_bytes(rng.bytes(32), "little") | 1
        else:
            tree.threshold[node] = float(np.float32(rng.choice([-1, -0.5, 0, 0.1, 0.5, 1, math.inf])))
        tree.add_leaf(float(np.float32(rng.normal())), 1.0)
        tree.add_leaf(float(np.float32(rng.normal())), 1.0)
    return tree.tree


def rows_of(rng, rows, by_level):
    columns = [rng.choice(np.array(LEVELS if level else NUMBERS, np.float32), rows) for level in by_level]
    return np.stack(columns, axis=1)


def shared_out(trees, X, holders, parties=PARTIES, threads=None):
    """The structure, and the leaf bits of each party, of rows whose columns these hold."""
    structure = Structure.of(trees, parties, np.array(holders, np.int64))
    bits = {}
    for place, party in enumerate(parties):
        columns = [number for number, holder in enumerate(holders) if holder == place]
        decisions = Decisions.of(structure, party, seen(trees, columns), columns)
        bits[party] = decisions.leaf_bits(X[:, columns], threads or Threads(1))
    return structure, bits


def seen(trees, columns):
    """Trees of which only the decisions by these columns are known, and no leaf value."""
    out = []
    for tree in trees:
        known = ~tree.inner | np.isin(tree.feature, columns)
        masked = {
            "feature": np.where(known, tree.feature, 99),
            "threshold": np.where(known, tree.threshold, math.inf),
            "categories": tree.categories * known[:, None],
            "missing_left": tree.missing_left & known,
        }
        out.append(tree.changed(value=0.0, **masked))
    return out


@st.composite
def cases(draw, most=100):
    """A model whose trees have at most so many leaves, rows of it, and who holds each column."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    by_level = draw(st.lists(st.booleans(), min_size=1, max_size=6))
    outputs, parallel = draw(st.sampled_from([1, 3])), draw(st.integers(1, 3))
    loss = make_objective("multi:softprob", {"num_class": "3"}) if outputs > 1 else None
    loss = loss or make_objective("binary:logistic", {"scale_pos_weight": "1"})
    rounds = draw(st.integers(0, 3))
    counts = [1, 1, 2, 3, 8, 9, 20, 31, 32, 33, 64, 65, 100]
    sizes = st.sampled_from([count for count in counts if count <= most])
    trees = [
        random_tree(rng, draw(sizes), by_level, draw(st.booleans()))
        for _ in range(rounds * outputs * parallel)
    ]
    names = tuple(f"f{number}" for number in range(len(by_level)))
    categorical = tuple(name for name, level in zip(names, by_level, strict=True) if level)
    booster = Booster(loss, 0.5, names, tuple(trees), parallel, categorical)
    count = draw(st.integers(1, 4))
    holders = [draw(st.integers(0, count - 1)) for _ in by_level]
    return booster, rows_of(rng, draw(st.sampled_from([0, 1, 40])), by_level), PARTIES[:count], holders


@given(cases())
@settings(max_examples=60)
def test_margins_are_those_of_the_whole_model(case):
    booster, X, parties, holders = case
    structure, bits = shared_out(booster.trees, X, holders, parties)
    leaves = joined(structure, bits, len(X))
    assert leaves.dtype == np.int32
    assert leaves.tolist() == [[reference.exit_leaf(row, tree) for tree in booster.trees] for row in X]
    assert margins(booster, leaves).tobytes() == booster.margins(X).tobytes()
    base = np.linspace(-1, 1, len(X)).astype(np.float32)
    assert margins(booster, leaves, base).tobytes() == booster.margins(X, base).tobytes()


@given(cases())
@settings(max_examples=12)
def test_leaf_bits_are_those_of_the_reference(case):
    booster, X, parties, holders = case
    _, bits = shared_out(booster.trees, X, holders, parties)
    for place, party in enumerate(parties):

        def own(tree, node, place=place):
            return holders[tree.feature[node]] == place

        assert [row.tobytes() for row in bits[party]] == [
            reference.leaf_bits(row, booster.trees, own) for row in X
        ]


@pytest.mark.parametrize(
    "more",
    [
        {"max_depth": 4},
        {"grow_policy": "lossguide", "max_leaves": 90, "max_depth": 16, "min_child_weight": 0.1},
    ],
)
def test_margins_of_trained_models(more):
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(size=(1500, 2)), rng.integers(0, 3, 1500), rng.integers(0, 80, 1500)])
    y = (X[:, 0] + np.sin(X[:, 3]) + X[:, 2] > 1).astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    X = X.astype(np.float32)
    session = run(
        X, y, randomly(len(X), 2), rounds=3, levels=(3, 80), num_parallel_tree=2, subsample=0.5, **more
    )
    booster = session.booster
    new = np.concatenate([X, rows_of(rng, 300, [False, False, True, True])])
    structure, bits = shared_out(booster.trees, new, [0, 1, 1, 2])
    leaves = joined(structure, bits, len(new))
    assert max(len(tree.leaves) for tree in booster.trees) > (64 if "max_leaves" in more else 8)
    assert margins(booster, leaves).tobytes() == booster.margins(new).tobytes()


# ---- fixed vectors ----------------------------------------------------------------------------------


def three_leaves():
    """x0 < 1 goes to node 1, which x1 < 2 parts into 3 and 4; node 2 is a leaf. Missing x0 goes left."""
    columns = {"feature": [0, 1, 0, 0, 0], "missing_left": [True, False, False, False, False]}
    columns |= {"threshold": [1.0, 2.0, 0, 0, 0], "value": [0, 0, 4.0, 1.0, 2.0]}
    return Tree.of_columns([1, 3, -1, -1, -1], **columns)


def test_the_bits_of_a_tree_of_three_leaves():
    X = np.array([[0, 0], [0, 2], [1, 0], [1, np.nan], [np.nan, 0]], np.float32)
    structure, bits = shared_out([three_leaves()], X, [0, 1], PARTIES[:2])
    assert bits["bank"].tolist() == [[0b011], [0b011], [0b100], [0b100], [0b011]]
    assert bits["clinic"].tolist() == [[0b101], [0b110], [0b101], [0b110], [0b101]]
    assert joined(structure, bits, 5).tolist() == [[3], [4], [2], [2], [3]]


@pytest.mark.parametrize("booster", [presence_model(), level_model(), level_model(1 << 255)])
def test_one_split_by_hand(booster):
    X = np.array([[0, number] for number in (*NUMBERS, *LEVELS)], np.float32)
    structure, bits = shared_out(booster.trees, X, [0, 1], PARTIES[:2])
    assert bits["bank"].shape == (len(X), 0)
    assert {*bits["clinic"].ravel().tolist()} == {0b01, 0b10}
    leaves = joined(structure, bits, len(X))
    assert margins(booster, leaves).tobytes() == booster.margins(X).tobytes()


# ---- sizes ------------------------------------------------------------------------------------------


def test_bytes_a_row_follow_from_the_structure():
    rng = np.random.default_rng(0)
    sizes = [1, 2, 8, 9, 33, 100]
    trees = [random_tree(rng, size, [False], chain=False) for size in sizes]
    structure, bits = shared_out(trees, rows_of(rng, 3, [False]), [1], PARTIES[:2])
    assert structure.size("bank") == 0
    assert structure.size("clinic") == 1 + 1 + 2 + 5 + 13  # a tree of one leaf has no node
    assert bits["clinic"].shape == (3, 22)


def test_bits_are_the_same_with_several_threads():
    rng = np.random.default_rng(1)
    trees = [random_tree(rng, 20, [False, True], chain=False) for _ in range(3)]
    X = rows_of(rng, BLOCK + 300, [False, True])
    structure, one = shared_out(trees, X, [0, 1], PARTIES[:2])
    _, two = shared_out(trees, X, [0, 1], PARTIES[:2], Threads(2))
    assert {party: bits.tobytes() for party, bits in one.items()} == {p: b.tobytes() for p, b in two.items()}
    travelled = {party: bits.tobytes() for party, bits in one.items()}
    leaves = joined(structure, travelled, len(X), Threads(2))
    assert leaves.tolist() == joined(structure, one, len(X)).tolist()


def test_rows_of_too_few_columns_are_refused():
    structure = Structure.of([three_leaves()], ("bank",), np.array([0, 0]))
    decisions = Decisions.of(structure, "bank", [three_leaves()], [0, 1])
    with raised(LocalProtocolError, "columns-too-few"):
        decisions.leaf_bits(np.zeros((2, 1), np.float32))


def test_what_a_party_knows_is_not_printed():
    structure = Structure.of([three_leaves()], ("bank",), np.array([0, 0]))
    shown = repr(Decisions.of(structure, "bank", [three_leaves()], [0, 1]))
    assert "bank" in shown
    assert "threshold" not in shown


# ---- wrong bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 9, 11])
def test_bits_of_another_size_are_refused(size):
    structure, bits = shared_out([three_leaves()], np.zeros((10, 2), np.float32), [0, 1], PARTIES[:2])
    with raised(PeerError, "leaf-bits-size", naming=[size]):
        joined(structure, {**bits, "clinic": bytes(size)}, 10)


@given(st.integers(0, 2**32), st.sampled_from(PARTIES[:3]))
@settings(max_examples=40)
def test_a_wrong_bit_is_refused_and_its_party_named(seed, liar):
    rng = np.random.default_rng(seed)
    by_level = [False, True, False]
    trees = [random_tree(rng, int(size), by_level, chain=False) for size in rng.choice([1, 5, 40, 70], 4)]
    X = rows_of(rng, 1100, by_level)
    structure, bits = shared_out(trees, X, [0, 1, 2], PARTIES[:3])
    leaves = joined(structure, bits, len(X))
    if not structure.size(liar):
        return
    row = int(rng.integers(len(X)))
    sent = [
        number
        for number, tree in enumerate(trees)
        if PARTIES.index(liar) in {tree.feature[node] for node, left in enumerate(tree.left) if left >= 0}
    ]
    tree = int(rng.choice(sent))
    start = sum(-(-len(trees[number].leaves) // 8) for number in sent if number < tree)
    place = reference.leaves_below(trees[tree], 0).index(leaves[row, tree])
    bits[liar][row, start + place // 8] ^= 1 << place % 8  # the exit leaf is shut off
    with raised(PeerError, "leaf-bits-impossible", naming=[liar, tree]):
        joined(structure, bits, len(X))


@pytest.mark.parametrize("liar", PARTIES[:2])
def test_two_open_leaves_are_refused(liar):
    structure, bits = shared_out([three_leaves()], np.zeros((1, 2), np.float32), [0, 1], PARTIES[:2])
    bits[liar][:] = 0b111
    with raised(PeerError, "leaf-bits-impossible", naming=[liar]):
        joined(structure, bits, 1)


def test_bits_behind_the_last_leaf_open_none():
    structure, bits = shared_out([three_leaves()], np.zeros((1, 2), np.float32), [0, 1], PARTIES[:2])
    bits = {party: part | 0b11111000 for party, part in bits.items()}
    assert joined(structure, bits, 1).tolist() == [[3]]


# ---- what each party contributes ------------------------------------------------------------------------


def covered(rng, trees):
    """The trees with covers that fit nothing, some of them 0."""
    drawn = [np.where(rng.random(len(t)) < 0.1, 0, rng.exponential(size=len(t))) for t in trees]
    return tuple(
        tree.changed(cover=cover.astype(np.float32)) for tree, cover in zip(trees, drawn, strict=True)
    )


@given(cases(most=20), st.integers(0, 2**32))
@settings(max_examples=40)
def test_reasons_are_shapleys_values_of_the_parties(case, seed):
    booster, X, parties, holders = case
    booster = replace(booster, trees=covered(np.random.default_rng(seed), booster.trees))
    structure, bits = shared_out(booster.trees, X, holders, parties)
    found = reasons(booster, structure, bits, len(X))
    shape = (len(X), booster.loss.outputs, len(parties) + 1)
    assert found.shape == (shape if booster.loss.outputs > 1 else (shape[0], shape[2]))
    for row in range(min(len(X), 3)):
        due = by_definition(booster, X[row], holders, len(parties))
        assert np.allclose(found[row], due, rtol=1e-12, atol=1e-12)
    total = booster.margins(X).T
    assert np.allclose(found.sum(axis=-1), total, rtol=1e-12, atol=1e-12)
    base = np.linspace(-1, 1, len(X)).astype(np.float32)
    if booster.loss.outputs == 1:
        based = reasons(booster, structure, bits, len(X), base)
        assert based[:, :-1].tolist() == found[:, :-1].tolist()
        assert np.allclose(based.sum(axis=1), booster.margins(X, base), rtol=1e-12, atol=1e-12)


def grown(label="binary", **settings):
    """A model that grew on rows with missing values and levels, and the rows."""
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(size=(600, 2)), rng.integers(0, 3, 600), rng.integers(0, 12, 600)])
    y = np.isin(X[:, 3], [1, 4, 7]) + 0.5 * (X[:, 2] == 2) + 0.2 * X[:, 0] - 0.1 * X[:, 1]
    y = np.digitize(y, [0.2, 0.7]) if label == "classes" else y > 0.6
    X[rng.random(X.shape) < 0.1] = np.nan
    settings = {"rounds": 4, "max_depth": 4, "levels": (3, 12), **settings}
    X = X.astype(np.float32)
    return run(X, y.astype(np.float32), randomly(600, 2), **settings).booster, X


SOFTMAX = {"label": "classes", "objective": "multi:softprob", "num_class": 3}
FOREST = {"num_parallel_tree": 3, "subsample": 0.5, "colsample_bynode": 0.6}


@pytest.mark.parametrize("kind", [{}, FOREST, SOFTMAX, SOFTMAX | FOREST], ids=str)
def test_reasons_of_parties_with_a_column_each_are_those_of_the_columns(kind):
    booster, X = grown(**kind)
    assert any(tree.by_category.any() for tree in booster.trees)
    structure, bits = shared_out(booster.trees, X, [0, 1, 2, 3])
    found = reasons(booster, structure, bits, len(X))
    assert found.tolist() == booster.contributions(X).tolist()
    kinds = {"feature_types": ["q", "q", "c", "c"], "enable_categorical": True}
    rows = xgboost.DMatrix(X, feature_names=list(booster.features), **kinds)
    theirs = load(booster.to_xgboost()).predict(rows, pred_contribs=True)
    assert np.abs(found - theirs).max() <= 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("holders", [[0, 0, 1, 1], [0, 1, 2, 1], [3, 0, 1, 2], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("kind", [{}, FOREST, SOFTMAX], ids=str)
def test_reasons_of_a_grown_model_are_shapleys_values(holders, kind):
    """The covers fit the trees here, and a party splits again and again by several columns."""
    booster, X = grown(**kind, max_depth=5)
    structure, bits = shared_out(booster.trees, X, holders)
    found = reasons(booster, structure, bits, len(X))
    for row in range(4):
        due = by_definition(booster, X[row], holders, len(PARTIES))
        assert np.allclose(found[row], due, rtol=1e-12, atol=1e-12)
    silent = {*range(len(PARTIES))} - {*holders}
    assert not found[..., [*silent]].any()
    assert found[..., holders].any()


def test_reasons_depend_on_no_other_row_and_on_no_threads(monkeypatch):
    booster, X = grown()
    structure, bits = shared_out(booster.trees, X, [0, 0, 1, 2])
    explained = partial(reasons, booster, structure)
    found = explained(bits, len(X))
    assert explained(bits, len(X), threads=Threads(2)).tolist() == found.tolist()
    for cells in (1, 1000):
        monkeypatch.setattr("fedboost.gbdt.reach._SIDES", cells)
        assert explained(bits, len(X), threads=Threads(2)).tolist() == found.tolist()
    one = {party: own[7:8] for party, own in bits.items()}
    assert explained(one, 1).tolist() == found[7:8].tolist()
