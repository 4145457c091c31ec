"""Trees that grow by level arrays equal those grown node by node, whatever the settings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_growth import grow as grow_naively

from fedboost.boosting.programs.boosting import grow_tree
from fedboost.boosting.programs.initialisation import Scales
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import PeerError, TreeAborted
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.tree import NO_SPLITS, Splits
from fedboost.terms.terms import Terms

NUMERIC, LEVELS, ROWS = 3, 7, 60
GRADIENT, HESSIAN = Scale(4, 20), Scale(2, 18)


def terms(**changed):
    features = {
        "numeric": [f"x{number}" for number in range(NUMERIC)],
        "categorical": {"c": [str(level) for level in range(LEVELS)]},
    }
    base = {"columns": {"label": "y", **features}, "parties": ["a", "b"], "protection": "plain"}
    return Terms.read({**base, "objective": "reg:squarederror", **changed})


class Rows:
    """The rows of all parties: sums are computed naively from the splits in the queries."""

    def __init__(self, seed, roots, small):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 9, NUMERIC)
        missing = (*(rng.random(NUMERIC) < 0.5).tolist(), bool(seed % 2))
        cuts = [np.arange(size - 1, dtype=np.float32) for size in (*sizes, LEVELS)]
        self.cut_points = CutPoints.of(tuple(cuts), missing, (NUMERIC,))
        self.layout = Layout.of(self.cut_points)
        self.sizes = (self.layout.value_bins + self.layout.missing).tolist()
        self.codes = [rng.integers(0, size, ROWS) for size in self.sizes]
        bound = 4 if small else 1 << 18  # of small integers gains are often equal
        self.gradient = rng.integers(-bound, bound, (roots, ROWS))
        self.hessian = rng.integers(0, bound, (roots, ROWS))
        self.members = {root: (root, np.arange(ROWS)) for root in range(roots)}

    def answer(self, query):
        for split in query.splits:
            root, rows = self.members.pop(split.node)
            codes, bins = self.codes[split.feature][rows], self.layout.value_bins[split.feature]
            right = np.array([split.categories >> code & 1 for code in codes.tolist()], bool)
            left = ~right if split.feature == NUMERIC else codes <= split.bin
            left = np.where(codes == bins, split.missing_left, left)
            self.members |= {split.left: (root, rows[left]), split.left + 1: (root, rows[~left])}
        sums = [self.sums(node) for node in query.nodes]
        if not isinstance(query, HistogramQuery):
            totals = [[int(np.abs(part[::2]).sum()) for part in parts[:-1]] for parts in sums]
            votes = [[total > np.median(node) for total in node] for node in totals]
            return np.array(votes, np.int64).ravel()
        chosen = [elected.features for elected in query.elected] or [range(NUMERIC + 1)] * len(sums)
        asked = zip(sums, chosen, strict=True)
        return np.concatenate([p for own, features in asked for p in (*(own[f] for f in features), own[-1])])

    def sums(self, node):
        root, rows = self.members[node]
        gradient, hessian = self.gradient[root][rows], self.hessian[root][rows]
        parts = [np.zeros(2 * size, np.int64) for size in self.sizes]
        for part, codes in zip(parts, self.codes, strict=True):
            np.add.at(part, 2 * codes[rows], gradient)
            np.add.at(part, 2 * codes[rows] + 1, hessian)
        return [*parts, np.array([gradient[gradient > 0].sum(), hessian.sum()])]


def grown(program, rows, abort=None, lie=None):
    """The queries, the tree, and the splits that no party knows."""
    asked, answer = [], None
    while True:
        try:
            query = (
                program.throw(TreeAborted("test", "gone")) if len(asked) == abort else program.send(answer)
            )
        except StopIteration as end:
            return asked, *end.value
        asked.append(query)
        answer = rows.answer(query)
        if lie is not None and len(asked) == lie[0]:
            answer[lie[1]] += lie[2]


def by_arrays(of, rows):
    return grow_tree(of, ROWS, 0, rows.cut_points, Scales(GRADIENT, HESSIAN, UNIT), [])


def naively(of, rows):
    return grow_naively(of, ROWS, 0, rows.cut_points, Scales(GRADIENT, HESSIAN, UNIT))


shares = st.sampled_from([0.4, 0.7, 1.0])
SETTINGS = st.fixed_dictionaries(
    {"max_depth": st.integers(1, 4), "seed": st.integers(0, 9)},
    optional={
        "grow_policy": st.sampled_from(["depthwise", "lossguide"]),
        "max_leaves": st.integers(2, 7),
        "num_parallel_tree": st.integers(1, 3),
        "reg_lambda": st.sampled_from([0.0, 1.0, 3.0]),
        "reg_alpha": st.sampled_from([0.0, 0.5]),
        "max_delta_step": st.sampled_from([0.0, 0.2]),
        "gamma": st.sampled_from([0.0, 0.3]),
        "min_child_weight": st.sampled_from([0.0, 1.0, 4.0]),
        "colsample_bytree": shares,
        "colsample_bylevel": shares,
        "colsample_bynode": shares,
        "interaction_constraints": st.sampled_from(
            [[["x0", "x1"], ["x1", "c"]], [["x0"], ["x2", "c", "x1"]]]
        ),
        "monotone_constraints": st.sampled_from([{"x0": 1, "x2": -1}, {"x1": -1}]),
        "max_cat_to_onehot": st.sampled_from([1, 20]),
        "max_cat_threshold": st.sampled_from([2, 4, 64]),
        "vote_top_k": st.integers(1, 3),
    },
)


WITHOUT_VOTES = {
    *(f"colsample_by{part}" for part in ("tree", "level", "node")),
    *("interaction_constraints", "monotone_constraints"),
}


@pytest.mark.slow
@settings(deadline=None)
@given(SETTINGS, st.integers(0, 1 << 20), st.booleans(), st.none() | st.integers(2, 6))
def test_trees_are_those_that_grow_node_by_node(changed, seed, small, abort):
    compare(changed, seed, small, abort)


@pytest.mark.parametrize(
    "changed",
    [
        {"max_depth": 4},
        {"grow_policy": "lossguide", "max_leaves": 5, "num_parallel_tree": 2},
        {"colsample_bynode": 0.5, "interaction_constraints": [["x0", "x1"], ["x1", "c"]]},
        {"monotone_constraints": {"x0": 1, "x2": -1}, "reg_alpha": 0.5, "max_delta_step": 0.2},
        {"vote_top_k": 2, "max_cat_to_onehot": 20},
    ],
)
def test_trees_of_some_settings(changed):
    for seed in range(4):
        compare(changed, seed, bool(seed % 2), 3 if seed == 3 else None)


def compare(changed, seed, small, abort):
    if "vote_top_k" in changed:
        changed = {name: value for name, value in changed.items() if name not in WITHOUT_VOTES}
    of = terms(**changed)
    rows, same_rows = (Rows(seed, len(of.roots), small) for _ in range(2))
    asked, tree, last = grown(by_arrays(of, rows), rows, abort)
    naive_asked, naive, naive_last = grown(naively(of, same_rows), same_rows, abort)
    assert asked == naive_asked
    assert tree == naive
    assert last == naive_last


def test_the_settings_of_this_file_make_trees_that_differ():
    sizes = set()
    for depth in (1, 2, 4):
        rows = Rows(1, 1, False)
        _, tree, _ = grown(by_arrays(terms(max_depth=depth), rows), rows)
        sizes.add(len(tree))
    assert len(sizes) == 3


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ((1, 2, 1), "the bins of feature 1 do not sum to the same total"),
        ((1, -1, 1), "the sums over the rows of a node differ from the sums over its bins"),
        ((1, -2, -(1 << 40)), "the sums over the rows of a node differ from the sums over its bins"),
        ((2, -1, 1), "the sums over the rows of a node differ from the sums over its bins"),
        ((2, -2, 1 << 40), "a node has a larger sum of positive gradients than its parent"),
    ],
)
def test_sums_that_cannot_be(lie, says):
    rows, of = Rows(3, 1, False), terms(max_depth=3)
    with pytest.raises(PeerError, match=says):
        grown(by_arrays(of, rows), rows, lie=lie)


class Shifted(Rows):
    """Sums of all features, of the first node of the second level, moved by the same amounts."""

    def __init__(self, change, *arguments):
        super().__init__(*arguments)
        self.change, self.turns = change, 0

    def sums(self, node):
        parts = super().sums(node)
        return self.change(parts) if node else parts


def more(parts):
    """Another child than was told."""
    for part in parts[:-1]:
        part[1] += 1
    parts[-1][1] += 1
    return parts


def beyond(parts):
    """The same child, with a bin of more than the parent has."""
    cells = max(parts[:-1], key=len)
    cells[1], cells[3] = cells[1] - (1 << 20), cells[3] + (1 << 20)
    return parts


def beyond_the_parent(parts):
    cells = max(parts[:-1], key=len)
    moved = int(cells[3])
    cells[1], cells[3] = cells[1] + moved, 0
    return parts


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (more, "the sums of node [12] differ from the sums in its parent's split"),
        (beyond, "a bin has a negative sum of hessians"),
        (beyond_the_parent, "a bin has a negative sum of hessians"),
    ],
)
def test_children_that_cannot_be(change, says):
    """Also those whose siblings cannot be, which nobody is asked for."""
    rows, of = Shifted(change, 5, 1, False), terms(max_depth=3)
    with pytest.raises(PeerError, match=says):
        grown(by_arrays(of, rows), rows)


def test_the_splits_of_a_query_do_not_change_with_later_ones():
    rows, of = Rows(1, 1, False), terms(max_depth=4)
    asked, kept = [], []
    program, answer = by_arrays(of, rows), None
    try:
        while True:
            asked.append(program.send(answer))
            kept.append(Splits.of([*asked[-1].splits]))
            answer = rows.answer(asked[-1])
    except StopIteration:
        pass
    assert [query.splits for query in asked] == kept
    assert kept[0] == NO_SPLITS != kept[1]
    with pytest.raises(ValueError, match="read-only"):
        asked[1].splits.columns[0, 0] = 9
