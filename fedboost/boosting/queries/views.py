"""What a party is told of a question where parties hold different columns.

A split by a column of another party is seen as (node, left, holder): its feature is a number behind those of
all features, which stands for the holder, and bin, direction and categories are 0. Cut points of others are
seen as bin numbers, and their grids as numbers of cells. The label holder alone sees leaf values, and the
cells of residuals that they are in.

Where the terms hide columns (`Terms.hides_columns`) nobody but its owner knows a cut point: all are bin
numbers, in every view. And the label holder alone sees the exponents of scales.

Promises: the view of a view is the view itself; both ends compute the same; the public view, which a block's
parties share, follows from the view of each.
Refuses: splits by features of others that are told as if they were a party's own, or as of a party that holds
none (PeerError, `check`).
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isfinite
from typing import TypeVar

import numpy as np

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64, Scale
from fedboost.gbdt.cut_points import KEY_BITS, CutPoints, Grids, ends_of
from fedboost.gbdt.histogram import STATS, Flags, Layout
from fedboost.gbdt.tree import NO_CHILD, Splits, Tree
from fedboost.terms.terms import Terms

T = TypeVar("T")
Values = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class View:
    """features, parties: their numbers; place: the party's among those of the terms, -1 for none; own: bool
    [features], the party's; holders: int64 [features], the place in `terms.parties` of the holder of each in
    the party's block; has_labels: the party knows leaf values; hides: the terms hide columns."""

    features: int
    parties: int
    place: int
    own: Flags
    holders: Int64
    has_labels: bool
    hides: bool

    @property
    def public(self) -> "View":
        """The view that all parties of the block have in common."""
        return replace(self, place=-1, own=np.zeros_like(self.own), has_labels=False)

    @cached_property
    def own_features(self) -> Int64:
        """The numbers of the party's features, increasing."""
        return np.flatnonzero(self.own)

    @cached_property
    def _seen(self) -> Int64:
        """The number under which a feature is seen, of features and of holders behind them."""
        seen = np.where(self.own, np.arange(self.features), self.features + self.holders)
        return np.concatenate([seen, self.features + np.arange(self.parties)]).astype(np.int64)

    def splits(self, splits: Splits) -> Splits:
        """These splits as they are seen; the same object where nothing of them is hidden."""
        features = self._seen[splits.feature]
        elsewhere = features >= self.features
        if (features == splits.feature).all() and not (
            splits.columns[2:4, elsewhere].any() or splits.categories[elsewhere].any()
        ):
            return splits
        columns, categories = splits.columns.copy(), splits.categories.copy()
        columns[1] = features
        columns[2:4, elsewhere] = 0
        categories[elsewhere] = 0
        return Splits(columns, categories)

    def values(self, values: Values) -> Values:
        """These leaf values as they are seen: 0 without labels."""
        return values if self.has_labels else tuple((node, 0.0) for node, _ in values)

    def scale(self, scale: Scale) -> Scale:
        """This scale as it is seen: its bits alone, where its exponent would tell of labels."""
        return scale if self.has_labels or not self.hides else Scale(0, scale.bits)

    def cut_points(self, cut_points: CutPoints) -> CutPoints:
        """These cut points as they are seen: 1, 2, ... for features of others."""
        own = np.repeat(self.own, cut_points.sizes)
        values = np.where(own, cut_points.values, cut_points.numbered.values)
        return replace(cut_points, values=values.astype(np.float32))

    def grids(self, grids: Grids) -> Grids:
        """These grids of the numeric features as they are seen: of those of others only how many counts each
        cell has, in cells as narrow as these allow, from the first key on; and the cell of all keys."""
        sizes = np.diff(grids.offsets)
        told = np.repeat(self.own[: grids.features], sizes) | (grids.widths == KEY_BITS)
        widths = np.where(told, grids.widths, grids.subdivisions).astype(np.uint8)
        ends = ends_of(np.int64(1) << widths.astype(np.int64))
        starts = ends[:-1] - np.repeat(ends[grids.offsets[:-1]], sizes)
        return replace(grids, starts=np.where(told, grids.starts, starts).astype(np.uint32), widths=widths)

    def tree(self, tree: Tree) -> Tree:
        """A tree of the model, or those of a round, as they are seen: what `state.structure` hashes of it."""
        seen = [
            int(self._seen[feature]) if left != NO_CHILD else feature
            for feature, left in zip(tree.feature, tree.left, strict=True)
        ]
        inner = [left != NO_CHILD for left in tree.left]
        elsewhere = [is_inner and f >= self.features for is_inner, f in zip(inner, seen, strict=True)]
        thresholds = _masked(tree.threshold, elsewhere, float("inf"))
        if self.hides:
            thresholds = [0.0 if isfinite(threshold) else threshold for threshold in thresholds]
        return replace(
            tree,
            feature=seen,
            threshold=thresholds,
            missing_left=_masked(tree.missing_left, elsewhere, False),
            categories=_masked(tree.categories, elsewhere, 0),
            value=tree.value if self.has_labels else [0.0] * len(tree.value),
        )

    def check(self, splits: Splits) -> None:
        """Raise PeerError for a split by a feature of another party that is told as this party's own, or by
        one of a party that holds none of those that this party lacks."""
        elsewhere = splits.feature >= self.features
        if not self.own[splits.feature[~elsewhere]].all():
            raise PeerError("a split by a column that this party does not hold")
        if not np.isin(splits.feature[elsewhere] - self.features, self.holders[~self.own]).all():
            raise PeerError("a split by a column of a party that holds none")


def hidden_places(terms: Terms, cut_points: CutPoints, nodes: int) -> dict[str, Int64]:
    """Of each feature holder, the cells of the gradients' sums of its columns in the histograms of so many
    nodes: int64 [nodes * its bins]."""
    layout, places = Layout.of(cut_points), {}
    (block,) = terms.blocks
    for party in block.feature_holders:
        view = view_of(terms, party)
        assert view is not None
        own = np.flatnonzero(np.repeat(view.own, layout.value_bins + layout.missing))
        by_node = own + (layout.bins + 1) * np.arange(nodes)[:, None]
        places[party] = STATS * by_node.reshape(-1)
    return places


def _masked(values: list[T], where: list[bool], value: T) -> list[T]:
    return [value if masked else own for own, masked in zip(values, where, strict=True)]


def view_of(terms: Terms, party: str) -> View | None:
    """The view of a party; None where all parties have the same columns, and are told all."""
    return _view_of(terms, party) if terms.blocks else None


@lru_cache(maxsize=64)
def _view_of(terms: Terms, party: str) -> View:
    block, columns = terms.blocks.of(party), terms.columns
    assert block is not None
    number = {name: place for place, name in enumerate(columns.features)}
    holders = np.full(len(number), terms.parties.index(block.label_holder), np.int64)
    for holder in block.feature_holders:
        holders[[number[name] for name in columns.held[holder]]] = terms.parties.index(holder)
    place = terms.parties.index(party)
    shape = len(number), len(terms.parties), place
    return View(*shape, holders == place, holders, block.label_holder == party, terms.hides_columns)
