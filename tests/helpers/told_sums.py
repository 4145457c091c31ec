"""What an aggregator is told of trees: sums over groups of bins, and over which rows each of them is.

`Recorded` trains in plain, with squared error, so that a sum of hessians counts rows; `sums_of` lists the
told sums, and `smallest_set` looks for the fewest rows of which some combination of them tells.
"""

from itertools import pairwise

import numpy as np
from apart_sessions import Apart
from scipy.optimize import Bounds, LinearConstraint, milp

from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.gbdt.histogram import STATS, Layout

SQUARED = {"objective": "reg:squarederror", "rounds": 2, "max_depth": 2, "max_bin": 5}


class Recorded(Apart):
    """A session whose sums are kept. cut_points: of the session; asked: each question about nodes, all splits
    of its tree, its sum; features: the bins of each row, by the cut points, int [features, rows]."""

    def __init__(self, *arguments, **settings):
        self.cut_points, self.asked = None, []
        super().__init__(*arguments, program=self.record, **settings)

    def record(self, terms, grown):
        steps, total, splits = boosting.train(terms, grown), None, []
        while True:
            try:
                query = steps.send(total)
            except StopIteration as done:
                return done.value
            total = yield query
            parts = query.parts
            for part, own in zip(parts, query.split(total) if len(parts) > 1 else [total], strict=True):
                if isinstance(part, StartQuery):
                    self.cut_points = part.cut_points
                if isinstance(part, HistogramQuery):
                    splits = [] if part.nodes == terms.roots else [*splits, *part.splits]
                    self.asked.append((part, [*splits], own))

    def bins(self, table):
        """The bin of each value of a table: int [features, rows]."""
        columns = [table.column(name).to_numpy() for name in self.terms.columns.numeric]
        for name, levels in self.terms.columns.categorical.items():
            columns.append(np.array([levels.index(value) for value in table.column(name).to_pylist()]))
        columns = [column.astype(np.float32) for column in columns]
        return self.cut_points.bin_rows(columns).by_feature.astype(np.int64)


def members(codes, layout, splits, node):
    """Which of these points, bins by feature, are in a node."""
    inside = {0: np.ones(codes.shape[1], np.bool_)}
    for split in splits:
        own, parent = codes[split.feature], inside[split.node]
        right = own > split.bin
        if layout.categorical[split.feature]:
            right = np.array([bool(split.categories >> int(bin_) & 1) for bin_ in own])
        right = np.where(own >= layout.value_bins[split.feature], not split.missing_left, right)
        inside[split.left], inside[split.left + 1] = parent & ~right, parent & right
    return inside[node]


def groups_of(marks, layout):
    """The bins that are told together, by feature."""
    sizes = layout.value_bins + layout.missing
    for feature, (first, size) in enumerate(zip(layout.offsets.tolist(), sizes.tolist(), strict=True)):
        own = marks[first : first + size].tolist()
        if layout.categorical[feature]:
            groups = [[b] for b in range(size) if own[b]] + [[b for b in range(size) if not own[b]]]
        else:
            begins = [b for b in range(size) if own[b]]
            groups = [list(range(a, b)) for a, b in pairwise([*begins, size])]
        yield from ((feature, group) for group in groups if group)


def sums_of(session, tree):
    """Each told sum of a tree: its node, feature and bins, its hessian, and the splits above. Where the terms
    have no floor each bin is a group."""
    layout = Layout.of(session.cut_points)
    for query, splits, total in session.asked:
        if query.tree != tree:
            continue
        marks = total[total.size - query.marks :].reshape(len(query.nodes), query.marks and layout.bins)
        sums = total[: total.size - query.marks].reshape(len(query.nodes), -1, STATS)
        for at, node in enumerate(query.nodes):
            own = marks[at] if query.grouped else np.ones(layout.bins, np.int64)
            for feature, group in groups_of(own, layout):
                first = int(layout.offsets[feature])
                told = sums[at, first : first + max(group) + 1, 1]
                yield node, feature, group, int(told[group].sum()) / query.hessian.factor, splits


def smallest_set(session, tree, codes, drawn, below):
    """The fewest rows, at least one and fewer than `below`, of a set that some combination of all told sums
    of a tree is over, whatever values rows have; None if there is none. codes: bins of rows, by feature;
    drawn: the rows that the tree grows on.

    A point stands for each combination of bins, so that what is a set follows from the tree alone and not
    from which values rows happen to have. A set is 0 or 1 at each point and in the span of the told ones."""
    layout = Layout.of(session.cut_points)
    sizes = (layout.value_bins + layout.missing).tolist()
    points = np.indices(sizes).reshape(len(sizes), -1)
    rows = np.zeros(points.shape[1])
    np.add.at(rows, np.ravel_multi_index(tuple(codes[:, drawn]), sizes), 1)
    told = []
    for node, feature, group, hessian, splits in sums_of(session, tree):
        told.append(members(points, layout, splits, node) & np.isin(points[feature], group))
        assert rows[told[-1]].sum() == hessian  # the set is what was summed
    _, values, basis = np.linalg.svd(np.array(told, np.float64))
    outside = basis[np.count_nonzero(values > 1e-9) :]
    found = milp(
        rows,
        integrality=np.ones(rows.size),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(outside, 0, 0), LinearConstraint(rows, 1, below - 1)],
    )
    return None if found.x is None else round(float(rows @ found.x))
