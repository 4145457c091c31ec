"""Grows the trees of a round at the aggregator. Leaves, histograms and nodes are arrays; each step is one
compiled call per level (`gbdt.kernels.level`).

Guarantees: of two siblings, parties report the histogram of the one with the smaller sum of hessians. The
other histogram is the parent's minus the reported one, for every feature in the parent's histogram. Cells are
only as wide as the parent's sums require.
Raises: PeerError for sums that contradict each other or the parent's sums."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.boosting.programs.initialisation import Scales
from fedboost.boosting.queries.base import view_of
from fedboost.boosting.queries.trees import Elected, HistogramQuery, VoteQuery
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt import histogram, sampling
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import STATS, Flags, Layout
from fedboost.gbdt.kernels import level as level_kernels
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.split import level_splits
from fedboost.gbdt.threads import SEARCH
from fedboost.gbdt.tree import (
    BITMAP_BYTES,
    LEAF,
    MIN_GAIN,
    NO_SPLITS,
    NODE,
    SPLIT_COLUMNS,
    Bytes,
    Int32,
    Leaves,
    SplitRule,
    Splits,
    Tree,
)
from fedboost.terms.terms import Terms

# ---- Groups of bins (`min_rows_per_bin`): a party reports one sum per group -----------------------------
# Guarantees: a sibling's sums are the parent's minus the child's, group by group. Splits separate only whole
# groups, and missing values that share a group with other values go to the same side.
# Raises: PeerError, naming the party with the column, for groups that are not unions of the parent's groups,
# and for sums outside of groups.


class BinGroups:
    """The groups of bins at each node, used if parties report one sum per group. Siblings have the same
    groups.

    The groups of children are unions of their parent's groups. The parent's sums are merged into these unions
    before the child's sums are subtracted, so that both have sums for the same groups."""

    def __init__(self, terms: Terms, layout: Layout, numbers: Int64) -> None:
        """Start without any groups. layout: positions of the features' bins; numbers: number of each of these
        features in the terms."""
        view = view_of(terms, terms.vertical.label_holder or "")
        assert view is not None
        self._holders = [terms.parties[place] for place in view.holders[numbers].tolist()]
        self._layout = layout
        self._of: dict[int, Flags] = {}

    def take_roots(self, answer: Int64, roots: int) -> Int64:
        """Record the groups in an answer about the roots, and return the sums in the answer."""
        sums, marks = self._parts(answer, roots)
        for root, own in enumerate(marks):
            self._of[root] = self._checked(root, own, None, sums.reshape(roots, -1)[root])
        return sums

    def take(self, answer: Int64, asks: Int64, families: Leaves, histograms: Int64) -> Int64:
        """Record the groups in an answer about children, and return the sums in the answer. The groups of a
        child also apply to its sibling. The parents' sums in `histograms` are merged into the same groups, in
        place.

        asks: the queried children (`level.list_queried_children`); families: the split leaves with their
        children; histograms: int64 [slots, cells]."""
        sums, marks = self._parts(answer, len(asks))
        told = zip(marks, sums.reshape(len(asks), -1), families[asks[:, 1]], strict=True)
        for own, of_node, family in told:
            node, left = int(family["node"]), int(family["left"])
            apart = self._checked(node, own, self._of[node], of_node)
            self._of[left] = self._of[left + 1] = apart
            parent = histograms[family["slot"]]
            # The finer sums of the parent are lost here. They are not needed later, because all groups at
            # lower levels are unions of these groups.
            parent[:] = histogram.grouped(parent, apart, self._layout)
        return sums

    def widen(self, columns: Int32, bitmaps: Bytes, features: Int32) -> None:
        """Change splits in place so that no split divides a group.

        Args:
            columns: as in `tree.Splits`.
            bitmaps: as in `tree.Splits`; empty if no feature is categorical.
            features: feature of each split, numbered as in the layout.
        """
        layout = self._layout
        for number, feature in enumerate(features.tolist()):
            apart, column = self._of[int(columns[0, number])], columns[:, number]
            if not layout.categorical[feature]:
                column[2] = histogram.whole(apart, layout, feature, int(column[2]))
                continue
            levels, with_missing = histogram.joined_levels(apart, layout, feature)
            if not levels:
                continue
            # The sum of the joined levels is in the lowest one, so the kernel chose a side for that one. The
            # others have sums of 0 and may lie on either side: they follow the lowest.
            right = bool(bitmaps[number, levels[0] >> 3] >> (levels[0] & 7) & 1)
            for level in levels:
                bit = np.uint8(1 << (level & 7))
                bitmaps[number, level >> 3] = bitmaps[number, level >> 3] & ~bit | bit * right
            if with_missing:
                column[3] = not right

    def _parts(self, answer: Int64, nodes: int) -> tuple[Int64, Int64]:
        sums = answer.size - nodes * self._layout.bins
        return answer[:sums], answer[sums:].reshape(nodes, -1)

    def _checked(self, node: int, marks: Int64, above: Flags | None, sums: Int64) -> Flags:
        """Convert marks to the groups that they describe. Raises PeerError if the groups are impossible.
        node: the node or its parent, shown in the message; above: groups of the parent, or None at a root."""
        fault = histogram.fault(marks, above, sums[:-STATS].reshape(-1, STATS), self._layout)
        if fault is not None:
            feature, what = fault
            raise PeerError(
                "party-wrong-sums",
                f"party {self._holders[feature]} reported sums over impossible groups of bins, at or below "
                f"node {node}: {what}; contact that party before you train with it again",
            )
        apart: Flags = marks == 1
        return apart


# ---- The growing trees of a round -----------------------------------------------------------------------
# Each leaf of a `Frontier` that may still split is in one of these arrays, in the order of node numbers:
# - fresh: the leaf's histogram and totals are known, but its best split is not;
# - waiting: its best split gains enough, but its turn has not come;
# - families: it was split, and at least one child may split again ("open": the child is not too deep, and its
#   hessians suffice for two children).
# All other leaves are final. In each turn `split` finds the best splits of the fresh leaves, and splits the
# leaves whose turn it is; children get the next node numbers, in the order of splits. `query` asks for one
# child of each family. `take` makes the open children the fresh leaves of the next level.
#
# Subtraction: the answer covers the child with the smaller sum of hessians (the left child if the sums are
# equal). Its sibling's sums are the parent's minus the child's, computed in the parent's slot. The invariant
# is that the slot of each fresh or waiting leaf has the exact sums over its rows. Integer sums make the
# difference exact; `write_children` checks that the child's bins sum to what the split left for it, and that
# the difference has no negative hessian. A new slot is needed only if both children are open, so there are
# never more slots than leaves.
#
# With `vote_top_k`, a slot contains only some features. Subtraction is possible for features in the parent's
# slot; for all other features, both open children are queried.
#
# One level, with the leaves that each call moves:
#
#     split    fresh, waiting  ->  families, waiting (lossguide: it is not their turn yet), final
#     query    families        ->  asks: one child of each, or both
#     take     families, asks  ->  fresh

REASONS = {
    level_kernels.FEATURES_DISAGREE: "the bins of feature {feature} do not sum to the same total as "
    "the bins of other features",
    level_kernels.NEGATIVE_BIN: "a bin has a negative sum of hessians",
    level_kernels.OTHER_ROWS: "the sums over the rows of a node differ from the sums over its bins",
    level_kernels.OTHER_TOTAL: "the sums of node {node} differ from the sums in its parent's split",
    level_kernels.NEGATIVE_POSITIVE: "a node has a larger sum of positive gradients than its parent",
    level_kernels.OTHER_SIBLING: "the sums of a node differ from its parent's sums minus its sibling's sums",
}

FIRST_ROOM = 126
"""Initial room for nodes below the roots of a growing tree: the nodes of a tree with six levels."""


class Columns:
    """Features by which each node may be split: a sample as in XGBoost, within interaction constraints."""

    def __init__(self, terms: Terms, tree: int, numbers: Int64 | None = None) -> None:
        """Prepare the limits for the trees of one round. tree: number of the round; numbers: numbers of the
        features that the trees use, in increasing order, or None for all."""
        self._terms, self._tree = terms, terms.first_tree + tree
        names = terms.columns.features
        self._features = names if numbers is None else tuple(names[number] for number in numbers)
        draws, groups = terms.draws, terms.trees.interaction_constraints or ()
        self._sampled = min(draws.colsample_bytree, draws.colsample_bylevel, draws.colsample_bynode) < 1.0
        features = self._features if groups else ()
        self._groups = np.array([[name in {*group} for name in features] for group in groups], np.bool_)
        self.by_path = len(groups) > 0
        """True if the features on the path to a node restrict the features by which the node may be split."""

    def restrict(self, leaves: Leaves, known: Flags, used: Flags) -> Flags:
        """Return the features by which each leaf may be split, bool [leaves, features]; empty if there is no
        limit.

        known: features with known histograms, bool [slots, features], or empty if all are known; used:
        features used on the path to a leaf, bool [slots, features], or empty without interaction
        constraints."""
        if not (self._sampled or self.by_path):
            return known[leaves["slot"]] if known.size else known
        allowed = np.ones((leaves.size, len(self._features)), np.bool_)
        for own, leaf in zip(allowed, leaves, strict=True):
            own &= self._drawn(leaf)
            if known.size:
                own &= known[leaf["slot"]]
            if self.by_path and leaf["depth"]:
                path = used[leaf["slot"]]
                # groups that contain the whole path: the next split must stay in one of them
                within = self._groups[(self._groups | ~path).all(axis=1)]
                own &= path | within.any(axis=0)
        return allowed

    def _drawn(self, leaf: np.void) -> Flags:
        draws, at = self._terms.draws, (self._terms.draws.seed, self._tree)
        root, depth, node = (int(leaf[name]) for name in ("root", "depth", "node"))
        features: tuple[int, ...] = tuple(range(len(self._features)))
        drawn = np.zeros(len(features), np.bool_)
        features = sampling.sampled_features(features, draws.colsample_bytree, *at, "tree", root)
        features = sampling.sampled_features(features, draws.colsample_bylevel, *at, "level", root, depth)
        drawn[[*sampling.sampled_features(features, draws.colsample_bynode, *at, "node", node)]] = True
        return drawn


class GrowthSettings:
    """Layout, cut points and limits for the trees of a session, in the form that the kernels expect."""

    def __init__(self, terms: Terms, cut_points: CutPoints, numbers: Int64 | None = None) -> None:
        """Derive the settings from the terms. cut_points: cut points of all features; numbers: numbers of the
        features that the trees use, in increasing order, or None for all."""
        self.is_part = numbers is not None
        self.numbers = np.arange(cut_points.sizes.size) if numbers is None else numbers
        self._terms = terms
        self._all = cut_points
        if numbers is not None:
            cut_points = cut_points.pick(numbers)
        self.layout = layout = Layout.of(cut_points)
        self.sizes = layout.value_bins + layout.missing
        self.features = layout.offsets, layout.value_bins, layout.missing, layout.categorical
        self.cuts = cut_points.values.astype(np.float64), cut_points.offsets
        self.categorical = bool(cut_points.categorical)
        trees, max_leaves = terms.trees, terms.max_leaves_per_round // len(terms.roots)
        by_gain = trees.grow_policy == "lossguide"
        self.shared = trees.grow_policy == "symmetric"
        """True if all leaves at one level of a tree share one split."""
        self.max_categories = trees.max_cat_to_onehot, trees.max_cat_threshold
        self.least_gain = MIN_GAIN, float(trees.gamma)
        """Gain that a split must exceed, and gain that it must reach."""
        self.limits = trees.max_cat_to_onehot, trees.max_depth, max_leaves, by_gain
        self.threads = SEARCH.get()
        self.histograms = np.empty((len(terms.roots), layout.cells), np.int64)
        """Room for the histograms of a growing tree. It grows in place, and the next tree uses it again."""

    def of_tree(self, number: int) -> "GrowthSettings":
        """Return the settings for the trees of one round. In the first `alone_rounds` rounds, the settings
        cover only the label holder's columns."""
        return self._alone if self._terms.vertical.grows_alone(number) else self

    @cached_property
    def _alone(self) -> "GrowthSettings":
        view = view_of(self._terms, self._terms.vertical.label_holder or "")
        assert view is not None
        return GrowthSettings(self._terms, self._all, view.own_features)


class GrowingTree:
    """Nodes of the growing trees of a round, roots first, and the splits not yet sent to any party."""

    def __init__(self, roots: int, ground: GrowthSettings, rule: SplitRule, groups: BinGroups | None) -> None:
        """Start with the roots. groups: groups of bins if parties report one sum per group, else None."""
        self._groups = groups
        signs = rule.signs[ground.numbers] if rule.signs.size else rule.signs
        self._ground, self._signs, self._rule = ground, signs, (*rule.scales, rule.learning_rate)
        self._nodes, self._size = np.zeros(roots + FIRST_ROOM, NODE), roots
        self._bitmaps = np.zeros((len(self._nodes) * ground.categorical, BITMAP_BYTES), np.uint8)
        self._pooled = np.empty((roots * ground.shared, STATS * (MAX_CODES + 1)), np.int64)
        self._counts = np.ones(roots, np.int64)
        """Number of leaves of each root's tree."""
        self.new_splits = NO_SPLITS
        """Splits not yet sent to any party."""

    def plant(self, cells: Int64, roots: Leaves, histograms: Int64) -> tuple[int, int, int]:
        """Store the sums of the roots (`level.write_roots`). Returns (reason, node, feature); reason is 0 if
        the sums are consistent."""
        sums = cells, self._ground.sizes, roots, histograms
        reason: tuple[int, int, int] = level_kernels.write_roots(*sums, self._nodes, *self._rule)
        return reason

    def split(
        self, fresh: Leaves, waiting: Leaves, allowed: Flags, histograms: Int64
    ) -> tuple[Leaves, Leaves]:
        """Split the leaves whose turn it is (`level.split_level`). Returns the leaves that still wait, and
        the families (split leaves with a child that may be split further).

        fresh: leaves whose best split is not known yet; waiting: leaves whose best split is known; allowed:
        features by which each fresh leaf may be split, bool [leaves, features]; histograms: int64 [slots,
        cells]."""
        # Make room for two children of every fresh and waiting leaf, in case all of them are split.
        room, ground = len(fresh) + len(waiting), self._ground
        if self._size + 2 * room > len(self._nodes):
            self._nodes = with_room(self._nodes, self._size + 2 * room)
            self._bitmaps = with_room(self._bitmaps, len(self._nodes))
        splits = np.empty((SPLIT_COLUMNS, room), np.int32)
        asked = ground.features, *self._rule[:2], ground.max_categories, self._signs, *ground.least_gain

        def find(share: tuple[int, int]) -> None:
            part = slice(*share)
            level_splits(fresh[part], (histograms, self._pooled), allowed[part], *asked)

        shares = ground.threads.shares(len(fresh), 0 if ground.shared else len(fresh) * histograms.shape[1])
        ground.threads.each(find, shares)
        still_waiting, families = np.empty((2, room), LEAF)
        if len(waiting):
            still_waiting[: len(waiting)] = waiting
        held, grown, made = level_kernels.split_level(
            fresh,
            still_waiting,
            len(waiting),
            families,
            self._counts,
            (self._nodes, self._size, self._bitmaps, splits),
            (histograms, self._pooled),
            ground.features,
            ground.cuts,
            self._signs,
            self._rule,
            ground.limits,
        )
        self._size += 2 * made
        # `columns` is a view of `splits`, so parties receive the changes below. The nodes have copies of
        # these numbers, so each change is made there as well.
        columns = splits[:, :made]
        if self._groups is not None:
            self._widen(self._groups, columns)
        # Kernels use feature numbers of the ground; parties and the model use feature numbers of the terms.
        if ground.is_part:
            columns[1] = ground.numbers[columns[1]]
            self._nodes["feature"][columns[0]] = columns[1]
        self.new_splits = Splits(columns, self._bitmaps[columns[0]] if ground.categorical else None)
        return still_waiting[:held], families[:grown]

    def _widen(self, groups: BinGroups, columns: Int32) -> None:
        """Move the most recent splits to borders between groups, in both `columns` and the nodes."""
        ground, (node, feature, *_) = self._ground, columns
        bitmaps = self._bitmaps[node[: len(node) * ground.categorical]]
        groups.widen(columns, bitmaps, feature)
        # Indexing by an array has copied the bitmaps, so they are written back.
        self._bitmaps[node[: len(bitmaps)]] = bitmaps
        values, starts = ground.cuts
        cuts = np.append(values, np.inf)
        # After the last bin there is no cut point: all present values go left (x < inf).
        is_last = columns[2] == ground.layout.value_bins[feature] - 1
        thresholds = cuts[np.where(is_last, values.size, starts[feature] + columns[2])]
        self._nodes["threshold"][node] = np.where(ground.layout.categorical[feature], 0.0, thresholds)
        self._nodes["missing_left"][node] = columns[3]

    @property
    def tree(self) -> Tree:
        return Tree(self._nodes[: self._size].copy(), self._bitmaps[: self._size].copy())


class Histograms:
    """Histograms of the leaves that may split, each in a slot (row) of an int64 [slots, cells] array."""

    def __init__(self, terms: Terms, ground: GrowthSettings, by_path: bool) -> None:
        roots, features = len(terms.roots), len(ground.sizes)
        self._features, self._threads = (ground.layout.offsets, ground.sizes), ground.threads
        self.cells, self._size = ground.histograms, roots
        self.known = np.ones((roots * bool(terms.histograms.vote_top_k), features), np.bool_)
        """Features whose histograms a slot contains, bool [slots, features]; empty if it contains all."""
        self.used = np.zeros((roots * by_path, features), np.bool_)
        """Features on the path to a leaf, bool [slots, features]; empty without interaction constraints."""

    def take(
        self, cells: Int64, asks: Int64, families: Leaves, both: int, elected: Flags
    ) -> tuple[tuple[int, int, int], Leaves]:
        """Store the sums of the queried children, and compute the sums of their siblings
        (`level.write_children`).

        Args:
            cells: the sums.
            asks: the queried children (`level.list_queried_children`).
            families: split leaves with an open child (a child that may be split further).
            both: number of families with two open children.
            elected: bool [families, features], features elected for each family; empty for all features.

        Returns:
            The arguments of `refuse` (reason, node, feature), and the open children.
        """
        # One open child takes its parent's slot, so only a second open child needs a new slot.
        if both:
            size = self._size + both
            with_room(self.cells, size, spare=False)
            self.known = with_room(self.known, size, spare=False)
            self.used = with_room(self.used, size, spare=False)
        children, marks = np.empty(len(families) + both, LEAF), (self.known, elected, self.used)
        sums = cells, asks, families, children, self.cells, self._size, *self._features, *marks
        # With elected features, a share could not count the cells of others, which change `known`.
        shares = self._threads.shares(len(families), 0 if elected.size else cells.size)
        taken = self._threads.each(lambda share: level_kernels.write_children(*sums, *share), shares)
        self._size += both
        return next((refused for refused in taken if refused[0]), taken[0]), children


class Frontier:
    """Growing trees of a round, and the leaves that may still be split."""

    def __init__(self, terms: Terms, rows: int, number: int, ground: GrowthSettings, scales: Scales) -> None:
        """Start with the roots as leaves. rows: upper bound on the number of rows in a sum; number: number of
        the round; ground: growth settings of the session."""
        ground, rule = ground.of_tree(number), terms.rule(*scales.pair)
        self._terms, self._rows, self._number = terms, rows, number
        self._scales, self._ground = scales, ground
        self._columns = Columns(terms, number, ground.numbers)
        self._histograms = Histograms(terms, ground, self._columns.by_path)
        has_floor = terms.vertical.min_rows_per_bin > 1
        self._groups = BinGroups(terms, ground.layout, ground.numbers) if has_floor else None
        self.growing = GrowingTree(len(terms.roots), ground, rule, self._groups)
        self._fresh = np.zeros(len(terms.roots), LEAF)
        """Leaves whose best split is not known yet; initially the roots."""
        self._waiting = self._families = self._fresh[:0]
        self._asks, self._both = np.zeros((0, 4), np.int64), 0
        """Queried children (`level.list_queried_children`), and number of families with two open children."""
        self._elected = self._histograms.known[:0]

    def take_roots(self, cells: Int64) -> None:
        if self._groups is not None:
            cells = self._groups.take_roots(cells, len(self._fresh))
        self._refuse(*self.growing.plant(cells, self._fresh, self._histograms.cells))

    def split(self) -> bool:
        """Split the leaves whose turn it is under `grow_policy`. Returns False if none of the children may be
        split further.

        - depthwise: all leaves whose best split gains enough.
        - symmetric: all leaves that their level's common split can separate.
        - lossguide: in each tree, the half of the leaves with the highest gains. Splitting only the best leaf
          would take a turn per split.
        """
        histograms = self._histograms
        allowed = self._columns.restrict(self._fresh, histograms.known, histograms.used)
        leaves = self._fresh, self._waiting
        self._waiting, self._families = self.growing.split(*leaves, allowed, histograms.cells)
        return len(self._families) > 0

    def vote_query(self, rows: int) -> VoteQuery:
        """Return the query that asks parties to vote on features for the open children."""
        size = len(self._ground.sizes), len(self._terms.parties)
        voters = tuple(self._voters.tolist())
        return VoteQuery(rows, self._number, self.growing.new_splits, voters, *size, *self._scales.pair)

    def elect(self, votes: Int64) -> None:
        """Elect features for each family by the votes for its children. Ties go to the lowest number."""
        self.growing.new_splits = NO_SPLITS  # the votes' query has sent them
        by_voter = votes.reshape(-1, len(self._ground.sizes))
        # Families are in the order of their left children, each followed by its right one. So the family of a
        # child is the last family whose left child is not after the child.
        family = np.searchsorted(self._families["left"], self._voters, side="right") - 1
        totals = np.zeros((self._families.size, by_voter.shape[1]), np.int64)
        np.add.at(totals, family, by_voter)
        first = np.argsort(-totals, axis=1, kind="stable")[:, : self._terms.histograms.vote_top_k]
        self._elected = np.zeros(totals.shape, np.bool_)
        np.put_along_axis(self._elected, first, True, axis=1)

    def query(self) -> HistogramQuery:
        """Return the query for one child of each family, or for both children if the parent's histogram lacks
        some of the elected features."""
        known = self._histograms.known
        self._asks, widths, possible, self._both = level_kernels.list_queried_children(
            self._families, known, self._elected
        )
        if not possible:
            raise PeerError(
                "sums-inconsistent", "a node has a smaller sum of positive gradients than its children"
            )
        elected: tuple[Elected, ...] = ()
        if self._elected.size:
            _, family, _, unknown = self._asks.T
            # The second child of a family (unknown = 1) is queried only for features that the parent's slot
            # lacks.
            slots = self._families["slot"][family]
            asked = self._elected[family] & ~(known[slots] & (unknown == 1)[:, None])
            elected = tuple(
                Elected(tuple(np.flatnonzero(own).tolist()), int(self._ground.sizes[own].sum()))
                for own in asked
            )
        nodes = tuple(self._asks[:, 0].tolist())
        # The widths follow from the children's totals. A child's positive gradients sum to at most P = (sum
        # of the parent's positive gradients) - max(sum of the sibling, 0). Its negative gradients sum to at
        # most P - (sum of the child) in magnitude, and no bin has a larger hessian sum than its node. If
        # columns are hidden, widths would reveal something about labels to feature holders, so none are sent.
        told = b"" if self._terms.hides_columns else widths.tobytes()
        answer = self._ground.layout.bins, *self._scales.pair, told, elected, self._scales.threshold
        splits, grouped = self.growing.new_splits, self._groups is not None
        return HistogramQuery(self._rows, self._number, splits, nodes, *answer, grouped)

    def take(self, cells: Int64) -> None:
        """Store the sum of the parties' answers to `query`. The open children become the fresh leaves."""
        if self._groups is not None:
            cells = self._groups.take(cells, self._asks, self._families, self._histograms.cells)
        asked = self._asks, self._families, self._both
        (reason, node, feature), self._fresh = self._histograms.take(cells, *asked, self._elected)
        # With blocks, a split's totals come from the party that has its column, and the sums over the rows of
        # its children also come from the label holder. The two differ if that party made up its totals.
        if reason == level_kernels.OTHER_TOTAL and self._terms.blocks:
            refuse_made_up(self._terms, self.growing.new_splits, node)
        self._refuse(reason, node, feature)
        self.growing.new_splits = NO_SPLITS  # the query has sent them

    def _refuse(self, reason: int, node: int, feature: int) -> None:
        refuse(reason, node, int(self._ground.numbers[feature]))

    @property
    def _voters(self) -> Int64:
        """Node numbers of the open children, in increasing order."""
        left, opens = self._families["left"], [self._families[name] for name in ("open_left", "open_right")]
        children: Int64 = (left[:, None] + np.arange(2))[np.stack(opens, axis=1) != 0]
        return children


def with_room(array: npt.NDArray[Any], size: int, spare: bool = True) -> npt.NDArray[Any]:
    """Enlarge an array in place to at least `size` rows, unless it is empty, and return the array. spare:
    True to at least double the number of rows whenever it grows."""
    if 0 < len(array) < size:
        # In place, so that a large array is never in memory twice. Nothing else may refer to it.
        array.resize((max(size, 2 * len(array)) if spare else size, *array.shape[1:]), refcheck=False)
    return array


def refuse_made_up(terms: Terms, splits: Splits, node: int) -> None:
    """Raise PeerError with a message that the sums over a node's rows differ from those reported by the party
    that holds the column of the parent's split."""
    above = int(np.flatnonzero((splits.left == node) | (splits.left + 1 == node))[0])
    name = terms.columns.features[splits.feature[above]]
    holders = [party for party in terms.parties if name in terms.blocks.columns_of(party).features]
    raise PeerError(
        "party-wrong-sums",
        f"the sums over the rows of node {node} differ from the sums that party {' or '.join(holders)} "
        f"reported for the column of the parent's split: contact this party before you train with it again",
    )


def refuse(reason: int, node: int, feature: int) -> None:
    """Raise PeerError with the message for `reason`, unless it is 0. node, feature: shown in the message."""
    if reason:
        raise PeerError("sums-inconsistent", REASONS[reason].format(node=node, feature=feature))
