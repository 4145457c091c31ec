"""The closed set of questions. Whatever a program wants to know, it asks with one of these.

Promises: each query says how many integers answer it and how large one row's share of any of them can be,
so both ends know the bits of a cell before anything is computed. `rows` is the number of rows behind the
sum, a public number; it bounds the cells.
Refuses: nothing itself; `check` says what the terms do not allow (Refused).
"""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, assert_never

import numpy as np

from fedboost.errors import Refused
from fedboost.fixedpoint import EXPONENT_CELLS, MAX_CELL_BITS, Int64, Scale, cell_bits
from fedboost.gbdt import histogram
from fedboost.gbdt.cut_points import KEY_BITS, RANGE_PARTS, SUBCELLS_PER_BIN, CutPoints, Grid
from fedboost.gbdt.histogram import STATS, Widths
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.metrics.by_set import TRAIN
from fedboost.gbdt.objectives.sensitivity import NOISE_BITS, SCALE
from fedboost.gbdt.sampling import SIZE_CELLS
from fedboost.gbdt.tree import Split
from fedboost.privacy.bit_packing import Run
from fedboost.protocol.noise import ROWS
from fedboost.protocol.terms import MOST_REFRESHING, Terms

START_BITS = 31
"""Bits of the gradients behind the base score, whatever gradient_bits: it is two integers, and a mean that
carries through the whole model."""
RESIDUAL_BITS = 8
RESIDUAL_TURNS = MOST_REFRESHING
"""Times that residuals are asked for: 24 bits of the key, sign, exponent and 15 bits of the mantissa."""
RESIDUAL_WIDTHS = tuple(KEY_BITS - RESIDUAL_BITS * turn for turn in range(RESIDUAL_TURNS))
EXPONENT_VECTORS = 3
"""Exponents are counted of gradients, hessians and weights."""


@dataclass(frozen=True)
class RowsQuery:
    """How many rows are there, and how large are gradients, hessians and weights where margins begin?

    Answer: the row count, then exponent counts of gradients, hessians and weights.
    """

    @property
    def cells(self) -> int:
        return 1 + EXPONENT_VECTORS * EXPONENT_CELLS

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS  # nobody knows the number of rows yet


@dataclass(frozen=True)
class QuantileQuery:
    """How many rows lie in each subcell of these grids (one a numeric feature)?"""

    rows: int
    grids: tuple[Grid, ...]

    @property
    def cells(self) -> int:
        return sum(grid.cells for grid in self.grids)

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.rows)


@dataclass(frozen=True)
class RangeQuery:
    """How many rows lie in each part of the range that the terms declare of each numeric feature
    (`bins.range_edges`)? Values beyond a range count in its first or last part, missing ones not at all.

    Asked where the answer gets noise, once.
    """

    rows: int
    features: int

    @property
    def cells(self) -> int:
        return self.features * RANGE_PARTS

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.rows)


@dataclass(frozen=True)
class KllQuery:
    """A KLL sketch of every numeric feature. The sum is, feature by feature, missing rows, number of cuts,
    cut keys.

    Sketches hold raw values of the rows: `plain` alone allows it.
    """

    rows: int
    features: int
    max_bin: int

    @property
    def cells(self) -> int:
        return self.features * (2 + self.max_bin)

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS


@dataclass(frozen=True)
class StartQuery:
    """These are the cut points. What are the sums of gradients and hessians where margins begin?"""

    rows: int
    cut_points: CutPoints
    gradient: Scale
    hessian: Scale

    @property
    def cells(self) -> int:
        return STATS

    @property
    def cell_bits(self) -> int:
        return cell_bits(max(self.gradient.limit, self.hessian.limit), self.rows)

    @cached_property
    def digest(self) -> bytes:
        """A hash of it: 32 bytes."""
        return digest(self)


@dataclass(frozen=True)
class Elected:
    """The features of a node whose bins are asked for, increasing, and how many bins they have together."""

    features: tuple[int, ...]
    bins: int


@dataclass(frozen=True)
class HistogramQuery:
    """Apply these splits to the tree that grows. What are the gradient histograms of these nodes?

    Gradients are taken and quantised when a tree's root is asked for. `bins` is the number of bins of all
    features. Answer: [node, bin, (gradient, hessian)], and of each node one pair more, behind its bins: the
    sums of the gradients above 0 and of the hessians over all its rows (`histogram.NodeSums`).

    widths: of each node, what its sums take, where that follows from sums that were opened before: bits of a
    gradient's sum, with the sign, and of a hessian's, without one. None where nothing is known but the rows.
    A pair travels as one cell of both widths, if there are so many bits.

    elected: of each node the features that are asked for, increasing, and how many bins they have. All
    features of all nodes where there are none.

    threshold: where rows are drawn by the sizes of their gradients, what those are measured by
    (`sampling.chances`); the gradients are of one threshold while a tree grows. Else 0.

    `rows` counts a row as often as a bootstrap may draw it.
    """

    rows: int
    tree: int
    splits: tuple[Split, ...]
    nodes: tuple[int, ...]
    bins: int
    gradient: Scale
    hessian: Scale
    widths: tuple[Widths, ...] = ()
    elected: tuple[Elected, ...] = ()
    threshold: float = 0.0

    @cached_property
    def cells(self) -> int:
        return sum(self.node_pairs) * STATS

    @cached_property
    def node_pairs(self) -> tuple[int, ...]:
        """Pairs of sums of each node."""
        bins = (one.bins for one in self.elected) if self.elected else (self.bins for _ in self.nodes)
        return tuple(of_node + 1 for of_node in bins)

    def by_node(self, answer: Int64) -> list[Int64]:
        """An answer, or the sum of answers, node by node."""
        return _cut(answer, [pairs * STATS for pairs in self.node_pairs])

    def by_run(self, cells: Int64) -> list[Int64]:
        """The cells of an answer, node by node."""
        return _cut(cells, [run.cells for run in self.runs])

    @cached_property
    def node_widths(self) -> tuple[Widths, ...]:
        """The widths of each node's sums."""
        gradient, hessian = (cell_bits(scale.limit, self.rows) for scale in (self.gradient, self.hessian))
        return self.widths or ((gradient, hessian - 1),) * len(self.nodes)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(
            Run(pairs, gradient + hessian)
            if gradient + hessian <= MAX_CELL_BITS
            else Run(pairs * STATS, max(gradient, hessian + 1))
            for pairs, (gradient, hessian) in zip(self.node_pairs, self.node_widths, strict=True)
        )


@dataclass(frozen=True)
class VoteQuery:
    """Apply these splits to the tree that grows. By which features would you split each of these nodes?

    Asked before the histograms of each level but the root's, where the terms have features elected. `parties`
    is how many answer. Answer: [node, feature], 1 for the vote_top_k features of highest gain by this party's
    own rows (fewer if fewer gain), 0 for others.
    """

    rows: int
    tree: int
    splits: tuple[Split, ...]
    nodes: tuple[int, ...]
    features: int
    parties: int
    gradient: Scale
    hessian: Scale

    @property
    def cells(self) -> int:
        return len(self.nodes) * self.features

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.parties)


@dataclass(frozen=True)
class ResidualQuery:
    """Apply these splits to the tree that has grown. What do the rows of these nodes weigh whose residuals,
    labels less margins, lie in each part of a cell of keys?

    Asked where leaf values are quantiles of residuals; tree -1: the labels, less base margins, of all rows.
    The cell of a node is the 2**width keys of float32 from its start. Answer: [node, part], of 2**8 equal
    parts of the cell, in units of this scale.
    """

    rows: int
    tree: int
    splits: tuple[Split, ...]
    nodes: tuple[int, ...]
    starts: tuple[int, ...]
    width: int
    weight: Scale

    def narrows(self, before: "ResidualQuery") -> bool:
        """Whether each node's cell is one of the parts of the cell that was asked for before."""
        pairs = zip(self.starts, before.starts, strict=False)
        within = all(start >> before.width == earlier >> before.width for start, earlier in pairs)
        return self.nodes == before.nodes and self.width == before.width - RESIDUAL_BITS and within

    @property
    def cells(self) -> int:
        return len(self.nodes) << RESIDUAL_BITS

    @property
    def cell_bits(self) -> int:
        return cell_bits(self.weight.limit, self.rows)


@dataclass(frozen=True)
class SumsQuery:
    """These splits are the tree, its structure drawn without a look at rows. What are the sums of gradients
    and hessians in its leaves?

    Asked where the answer gets noise, once a tree. Answer: [leaf, (gradient, hessian)], in units of
    `bounded.SCALE`.
    """

    rows: int
    tree: int
    splits: tuple[Split, ...]
    nodes: tuple[int, ...]

    @property
    def gradient(self) -> Scale:
        return SCALE

    hessian = gradient

    @property
    def cells(self) -> int:
        return len(self.nodes) * STATS

    @property
    def cell_bits(self) -> int:
        return cell_bits(SCALE.limit, self.rows)


@dataclass(frozen=True)
class EndRoundQuery:
    """Apply these splits, then move every row's margin by its leaf's value. What are the metrics now?

    Tree -1 is the constant that boosting starts from. Answer: the metric sums, then, if the terms ask for
    exponents, exponent counts of the new gradients, hessians and weights; then, if they ask for sizes, counts
    of the sizes of the new gradients of rows that trees grow on (`sampling.count_sizes`). Metric sums are of
    each of these sets of rows, one after the other; a set of a party's rows alone is 0 for all others.
    """

    rows: int
    tree: int
    splits: tuple[Split, ...]
    values: tuple[tuple[int, float], ...]
    metrics: tuple[str, ...]
    weight: Scale
    exponents: bool
    sets: tuple[str, ...] = (TRAIN,)
    sizes: bool = False

    @property
    def cells(self) -> int:
        of_metrics = len(self.sets) * metrics.cells(self.metrics)
        exponents = EXPONENT_VECTORS * EXPONENT_CELLS * self.exponents
        return of_metrics + exponents + SIZE_CELLS * self.sizes

    @property
    def cell_bits(self) -> int:
        return cell_bits(metrics.limit(self.metrics, self.weight), self.rows)


TreeQuery = HistogramQuery | VoteQuery
"""What is asked while a tree grows."""
OfTree = TreeQuery | ResidualQuery | SumsQuery
"""What is asked of a tree before its end."""
Query = RowsQuery | QuantileQuery | RangeQuery | KllQuery | StartQuery | OfTree | EndRoundQuery

CONSTANT_TREE = -1
MAX_ROWS = 1 << 48
"""Rows behind a sum: fewer than this."""
LARGEST_VALUE = float(np.finfo(np.float32).max)
"""Of a leaf, a float32 in the model. Margins moved by such values have squares that float64 holds."""
_DIGEST = "_digest"
MAX_CELLS = 1 << 27
"""Integers in one answer: a gigabyte at a party, far beyond what is worth sending."""


def runs(query: Query) -> tuple[Run, ...]:
    """The cells in which an answer travels."""
    return query.runs if isinstance(query, HistogramQuery) else (Run(query.cells, query.cell_bits),)


def fits(query: Query, answer: Int64) -> bool:
    """Whether the cells hold this answer, when no other party adds to it."""
    if not isinstance(query, HistogramQuery):
        return True
    nodes = zip(query.by_node(answer), query.node_widths, strict=True)
    return all(histogram.fit(sums, widths) for sums, widths in nodes)


def to_cells(query: Query, answer: Int64) -> Int64:
    """An answer as it is sealed: an integer for each cell."""
    if not isinstance(query, HistogramQuery):
        return answer
    out = np.empty(sum(run.cells for run in query.runs), np.int64)
    nodes = zip(query.by_node(answer), query.by_run(out), query.node_widths, strict=True)
    for sums, cells, widths in nodes:
        histogram.join(sums, widths[1], cells)
    return out


def from_cells(query: Query, total: Int64) -> Int64:
    """The sum of answers, from the cells of the sealed ones: [query.cells]."""
    if not isinstance(query, HistogramQuery):
        return total
    out = np.empty(query.cells, np.int64)
    nodes = zip(query.by_run(total), query.by_node(out), query.node_widths, strict=True)
    for cells, sums, widths in nodes:
        histogram.part(cells, widths[1], sums)
    return out


def _cut(values: Int64, sizes: list[int]) -> list[Int64]:
    """So many values after the other."""
    return [values[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


def digest(query: object) -> bytes:
    """A hash of everything a query, or what holds queries, says: 32 bytes. It is kept with the query."""
    kept: dict[str, Any] = getattr(query, "__dict__", {})
    if _DIGEST not in kept:
        text = json.dumps(query, default=_members, separators=(",", ":"))
        kept[_DIGEST] = hashlib.sha256(text.encode()).digest()
    known: bytes = kept[_DIGEST]
    return known


def same(one: object, other: object) -> bool:
    """Whether two queries, or what holds queries, say the same."""
    return digest(one) == digest(other)


def _members(value: object) -> object:
    """What a query is made of, where JSON does not know: under the name of its kind, so that no two kinds
    look alike."""
    if isinstance(value, np.ndarray):
        return {value.dtype.str: value.tobytes().hex()}
    if isinstance(value, Split):  # most of what is asked about; the general way takes twice as long
        of = value.node, value.feature, value.bin, value.missing_left, value.left, value.categories
        return {"Split": of}
    kind = type(value)
    return {kind.__name__: [getattr(value, member) for member in kind.__dataclass_fields__]}  # type: ignore[attr-defined]


BY_PARTY = f"{EndRoundQuery.__name__} by party"
"""What the end of a round is called that asks for metrics of single parties, too."""


def name_of(query: Query) -> str:
    """What a query is called where it is written down."""
    by_party = isinstance(query, EndRoundQuery) and any(metrics.OF_PARTY in of for of in query.sets)
    return BY_PARTY if by_party else type(query).__name__


def tree_of(query: Query) -> int:
    """The tree a query belongs to; what comes before the first tree belongs to the constant."""
    return query.tree if isinstance(query, OfTree | EndRoundQuery) else CONSTANT_TREE


def stage_of(query: Query) -> int:
    """Where in the session a query stands: two a tree, its histograms and its end."""
    return 2 * tree_of(query) + isinstance(query, EndRoundQuery)


def check(query: Query, terms: Terms) -> None:
    """Raise Refused if the terms do not allow the query, whoever asks."""
    features, numeric = len(terms.columns.features), len(terms.columns.numeric)
    if query.cells > MAX_CELLS:
        raise Refused(f"an answer of {query.cells} integers, at most {MAX_CELLS} are given; lower max_depth")
    if terms.noise is None and isinstance(query, RangeQuery | SumsQuery):
        raise Refused("sums that would need noise, and the terms have none")
    if terms.noise is not None:
        about_trees = HistogramQuery if terms.noise.method == "hist" else SumsQuery
        if not isinstance(query, RangeQuery | StartQuery | EndRoundQuery | about_trees):
            raise Refused("sums without noise, or about trees of another method, and the terms say otherwise")
        if query.rows != ROWS:  # else a refusal would tell whether there are so many
            raise Refused("sums over a number of rows, which nobody may know where they get noise")
    match query:
        case RangeQuery(_, of):
            if terms.cut_points != "grid" or of != numeric:
                raise Refused(f"counts over {of} ranges; the terms allow {numeric}, once")
        case SumsQuery(_, tree, splits, nodes):
            _check_nodes(terms, tree, splits, nodes)
        case QuantileQuery(_, grids):
            most = max(terms.max_bin * SUBCELLS_PER_BIN * 2, 1 << 11)
            if not numeric or len(grids) != numeric or any(grid.cells > most for grid in grids):
                raise Refused(
                    f"the terms allow grids of {numeric} numeric features with at most {most} cells each"
                )
        case KllQuery():
            if terms.cut_points != "kll" or terms.hides:
                raise Refused("the terms do not allow KLL sketches: they show raw values to the aggregator")
            if not numeric or query.features != numeric or query.max_bin != terms.max_bin:
                raise Refused("the terms have other features or another max_bin")
        case StartQuery(_, cut_points, gradient, hessian):
            _check_bits(START_BITS if terms.noise is None else NOISE_BITS, gradient, hessian)
            if len(cut_points.cuts) != features:
                raise Refused(f"cut points of {len(cut_points.cuts)} features, the terms have {features}")
            codes = zip(cut_points.cuts, cut_points.missing, strict=True)
            if any(cuts.size + 1 + missing > MAX_CODES for cuts, missing in codes):
                raise Refused("more bins than a byte can number")
            due = CutPoints(cut_points.cuts[:numeric], cut_points.missing[:numeric])
            if not same(cut_points, due.with_levels(terms.columns.levels)):
                raise Refused("bins of categorical features that are not the levels of the terms")
        case HistogramQuery(_, tree, splits, nodes, _, gradient, hessian, widths, elected, threshold):
            check_scales(terms, gradient, hessian, threshold)
            _check_nodes(terms, tree, splits, nodes)
            if terms.noise is not None and widths:
                raise Refused("cells that are known to suffice, and nobody knows the sums with noise before")
            if widths and len(widths) != len(nodes):
                raise Refused(f"cells of {len(widths)} nodes for the sums of {len(nodes)}")
            if any(
                not (1 <= of_gradient <= MAX_CELL_BITS and 1 <= of_hessian < MAX_CELL_BITS)
                for of_gradient, of_hessian in widths
            ):
                raise Refused(f"cells of less than 1 bit, or of more than {MAX_CELL_BITS}")
            if bool(elected) != bool(terms.vote_top_k and nodes != terms.roots):
                raise Refused(f"elected features of {len(elected)} nodes, the terms say otherwise")
            if elected and len(elected) != len(nodes):
                raise Refused(f"elected features of {len(elected)} nodes, of {len(nodes)} that are asked for")
            for chosen in (one.features for one in elected):
                known = not chosen or 0 <= chosen[0] <= chosen[-1] < features
                if not known or len(chosen) > terms.vote_top_k or sorted(set(chosen)) != [*chosen]:
                    raise Refused(f"{len(chosen)} elected features, or one that is none or twice")
        case VoteQuery(_, tree, splits, nodes, of, parties, gradient, hessian):
            _check_bits(terms.bits, gradient, hessian)
            _check_nodes(terms, tree, splits, nodes)
            if not terms.vote_top_k or of != features or not 1 <= parties <= len(terms.parties):
                raise Refused(f"votes of {parties} parties on {of} features, the terms say otherwise")
        case ResidualQuery(_, tree, splits, nodes, starts, width, weight):
            if terms.loss.quantile is None:
                raise Refused(f"residuals are asked for, which {terms.objective} has no use for")
            check_tree(terms, tree, splits, ())
            _check_several(terms, nodes)
            if tree == CONSTANT_TREE and nodes != (0,):
                raise Refused("residuals of another node than all rows, before the first tree")
            if width not in RESIDUAL_WIDTHS or len(starts) != len(nodes):
                raise Refused(f"cells of {width} bits, or {len(starts)} of them for {len(nodes)} nodes")
            if any(start % (1 << width) or not 0 <= start < 1 << KEY_BITS for start in starts):
                raise Refused("a cell of residuals that begins where none does")
            if weight != terms.known_weight_scale and weight.bits != terms.bits:
                raise Refused(f"the terms allow weights of {terms.bits} bits here, no others")
        case EndRoundQuery(_, tree, splits, values, names, _, exponents, sets, sizes):
            check_tree(terms, tree, splits, values)
            if sizes and not terms.draws_by_size:
                raise Refused("the terms need no sizes of gradients: rows are not drawn by them")
            if exponents and not terms.asks_for_exponents:
                raise Refused("the terms need no exponents of gradients: they have a public bound")
            if names != terms.metrics:
                raise Refused(f"the terms allow the metrics {', '.join(terms.metrics)}")
            if sets != terms.sets:
                raise Refused(f"the terms allow metrics of the rows {', '.join(terms.sets)}")
        case RowsQuery():
            pass
        case _:
            assert_never(query)


def _check_nodes(terms: Terms, tree: int, splits: tuple[Split, ...], nodes: tuple[int, ...]) -> None:
    check_tree(terms, tree, splits, ())
    if tree == CONSTANT_TREE:
        raise Refused("histograms before the first tree")
    _check_several(terms, nodes)


def _check_several(terms: Terms, nodes: tuple[int, ...]) -> None:
    if not nodes or len(nodes) > terms.most_leaves or len(set(nodes)) != len(nodes):
        raise Refused(
            f"{len(nodes)} nodes in one query, or one twice: not a level of depth {terms.max_depth}"
        )


def check_scales(terms: Terms, gradient: Scale, hessian: Scale, threshold: float) -> None:
    """Raise Refused if the terms do not allow that gradients of a tree are so scaled, and rows so drawn."""
    _check_bits(terms.bits, gradient, hessian)
    if not (0.0 < threshold < math.inf if terms.draws_by_size else threshold == 0.0):
        raise Refused(f"rows drawn by gradients of size {threshold:g}, the terms say otherwise")


def _check_bits(bits: int, *scales: Scale) -> None:
    if any(scale.bits != bits for scale in scales):
        raise Refused(f"the terms allow gradients of {bits} bits here, no others")


def check_tree(
    terms: Terms, tree: int, splits: tuple[Split, ...], values: tuple[tuple[int, float], ...]
) -> None:
    """Raise Refused for a tree (or the constant) that a model of these terms cannot have."""
    nodes = 2 * terms.most_leaves
    if len(splits) > nodes or any(not 0 < split.left < nodes for split in splits):
        raise Refused(f"splits that a tree of depth {terms.max_depth} cannot have")
    if tree == CONSTANT_TREE and splits:
        raise Refused("splits of the constant that boosting starts from")
    if len(values) > terms.most_leaves:
        raise Refused(f"{len(values)} leaves; a tree of depth {terms.max_depth} has not so many")
    if len({node for node, _ in values}) != len(values):
        raise Refused("a leaf with two values")
    if any(not abs(value) <= LARGEST_VALUE for _, value in values):
        raise Refused("a leaf value is not finite")
    if not CONSTANT_TREE <= tree < terms.rounds:
        raise Refused(f"tree {tree} is asked for, the terms allow {terms.rounds} rounds")


def check_splits(terms: Terms, splits: tuple[Split, ...]) -> None:
    """Raise Refused unless these are the splits of a whole tree, in order: each of a leaf that there is, no
    deeper than the terms allow, its children numbered next, behind the roots, and by levels where and only
    where the feature has them. Other numbers could make a tree of a few splits, which travels in a few bytes,
    as large as the largest."""
    depths = dict.fromkeys(terms.roots, 0)
    levels = (0,) * len(terms.columns.numeric) + terms.columns.levels
    for number, split in enumerate(splits):
        depth = depths.pop(split.node, terms.max_depth) + 1
        if depth > terms.max_depth or split.left != 2 * number + len(terms.roots):
            raise Refused(
                f"split {number + 1}, of node {split.node} into {split.left}, cannot be in a tree of depth "
                f"{terms.max_depth}"
            )
        if not (0 <= split.feature < len(levels) and split.fits(levels[split.feature])):
            raise Refused(f"split {number + 1} is not one by feature {split.feature} of the terms")
        depths[split.left] = depths[split.left + 1] = depth
