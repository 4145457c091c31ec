"""Queries about trees that grow: histograms, sums of leaves, votes for features, the end of a round."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedboost.boosting.queries.base import (
    APART,
    MAX_NODES,
    BaseQuery,
    Metrics,
    Nodes,
    Rows,
    TreeNumber,
    Values,
    View,
    check_bits,
    check_nodes,
    check_scales,
    check_started,
    check_tree,
    digest_of,
    hidden_places,
    once,
)
from fedboost.boosting.queries.labels import EXPONENT_VECTORS
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import EXPONENT_CELLS, MAX_CELL_BITS, Int64, Scale, cell_bits
from fedboost.gbdt import metrics
from fedboost.gbdt.histogram import STATS, Widths
from fedboost.gbdt.kernels.histogram import fit_level, pack_level, unpack_level
from fedboost.gbdt.metrics import TRAIN
from fedboost.gbdt.objectives.objective import SCALE
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import Splits
from fedboost.privacy.packing import Segment
from fedboost.privacy.protection import HiddenSums
from fedboost.protocol.contracts import Bound, Only, pieces
from fedboost.terms.hiding import METHODS, TREES
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms

BYTES_PER_HISTOGRAM_CELL = 32
"""Bytes for each integer of a level's histograms: the running sum (8 of the root, else 4) and the integers it
opens to (8), while the level above, of which there may be half as many nodes twice over, is still there (16);
later the sum, its siblings and their parents, which take less."""
MAX_ELECTED = 1 << 20
"""Features that one query names, over all its nodes."""
_FEW_FEATURES = Only(lambda nodes: sum(len(n.features) for n in nodes) <= MAX_ELECTED, "too many features")
_PAIRS = Only(lambda widths: len(widths) % 2 == 0, "half a pair of widths")


@dataclass(frozen=True)
class Elected:
    """The features of a node in the answer, increasing, and their total number of bins."""

    features: Annotated[tuple[int, ...], Bound(MAX_ELECTED, "elected features")]
    bins: int


@dataclass(frozen=True)
class HistogramQuery(BaseQuery):
    """Gradient histograms of these nodes, after these splits of the tree that grows.

    Gradients are computed and quantised at the query for a tree's root. `bins` is the number of bins of all
    features, or of the label holder's where the tree grows on those alone (`Vertical.grows_alone`). Answer:
    [node, bin, (gradient, hessian)], and for each node one pair more, behind its bins: the sums of the
    gradients above 0 and of the hessians over all its rows (`histogram.build`).

    widths: bits of the sums of each node, where earlier sums bound them, a byte each: of a gradient's sum,
    with the sign, and of a hessian's, without one. Empty where only the rows bound them. A pair travels in
    one cell of both widths, if that has enough bits.

    elected: the features of each node in the answer, increasing, and their number of bins. Empty for all
    features of all nodes.

    threshold: that of gradient-based sampling (`sampling_probabilities`), the same while a tree grows; 0 for
    other sampling.

    `rows` counts a row as often as a bootstrap may sample it.

    grouped: the sums are over groups of bins (`gbdt.histogram`), and behind them the answer has for each
    node and bin 1 where a sum stands, else 0.
    """

    description = "sums over groups of rows, by interval"
    of_tree = True
    suits = ("hist",)
    released = TREES
    views = ("splits", View.splits), ("gradient", View.scale), ("hessian", View.scale)

    rows: Rows
    tree: int
    splits: Splits
    nodes: Nodes
    bins: int
    gradient: Scale
    hessian: Scale
    widths: Annotated[bytes, Bound(2 * MAX_NODES, "widths"), _PAIRS] = b""
    elected: Annotated[tuple[Elected, ...], Bound(MAX_NODES, "nodes"), _FEW_FEATURES] = ()
    threshold: float = 0.0
    grouped: bool = field(default=False, metadata=APART)

    @once
    def digest(self) -> bytes:
        return digest_of((self, "grouped")) if self.grouped else digest_of(self)

    @once
    def cells(self) -> int:
        return sum(self.node_pairs) * STATS + self.marks

    @property
    def marks(self) -> int:
        """The integers at the end of an answer that say in which bins sums stand."""
        return self.grouped * len(self.nodes) * self.bins

    @once
    def node_pairs(self) -> tuple[int, ...]:
        """Pairs of sums of each node."""
        if not self.elected:
            return (self.bins + 1,) * len(self.nodes)
        return tuple([node.bins + 1 for node in self.elected])

    def by_node(self, answer: Int64) -> list[Int64]:
        """An answer, or the sum of answers, node by node."""
        return pieces(answer, [pairs * STATS for pairs in self.node_pairs])

    @once
    def _layout(self) -> "_Layout":
        scales = self.gradient.limit, self.hessian.limit
        return _layout_of(self.node_pairs, self.widths, self.rows, *scales)

    @property
    def node_widths(self) -> tuple[Widths, ...]:
        """The widths of each node's sums."""
        return self._layout.node_widths

    @property
    def cell_bits(self) -> int:
        """Bits of the widest cell."""
        return max(segment.bits for segment in self.segments)

    @once
    def segments(self) -> tuple[Segment, ...]:
        marks = (Segment(self.marks, cell_bits(1, 1)),) if self.grouped else ()
        return self._layout.segments + marks

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one a level of each tree."""
        return terms.trees.rounds * max_levels(terms) * (terms.noise is None or terms.noise.method == "hist")

    def check_terms(self, terms: Terms) -> None:
        """Refuse nodes, scales, widths or elected features that the terms do not have."""
        check_scales(terms, self.gradient, self.hessian, self.threshold)
        check_nodes(terms, self.tree, self.splits, self.nodes)
        self._check_widths(terms)
        if self.grouped != (terms.vertical.min_rows_per_bin > 1):
            raise Refused("sums over other groups of bins than the terms have")
        elected, nodes = self.elected, self.nodes
        if bool(elected) != bool(terms.histograms.vote_top_k and nodes != terms.roots):
            raise Refused(f"elected features of {len(elected)} nodes, the terms say otherwise")
        if elected and len(elected) != len(nodes):
            raise Refused(f"elected features of {len(elected)} nodes, of {len(nodes)} that are asked for")
        features = len(terms.columns.features) if elected else 0
        for node in elected:
            chosen = node.features
            known = not chosen or 0 <= chosen[0] <= chosen[-1] < features
            if not known or len(chosen) > terms.histograms.vote_top_k or sorted(set(chosen)) != [*chosen]:
                raise Refused(f"{len(chosen)} elected features, or one that is none or twice")

    def _check_widths(self, terms: Terms) -> None:
        if terms.noise is not None and self.widths:
            raise Refused("cells that are known to suffice, and nobody knows the sums with noise before")
        if terms.hides_columns and self.widths:
            raise Refused("cells as wide as sums need, which would tell of labels")
        if not self.widths:
            return
        if len(self.widths) != 2 * len(self.nodes):
            raise Refused(f"{len(self.widths)} widths of cells for the two sums of {len(self.nodes)} nodes")
        gradients, hessians = self.widths[::2], self.widths[1::2]
        if not (min(self.widths) >= 1 and max(gradients) <= MAX_CELL_BITS > max(hessians)):
            raise Refused(f"cells of less than 1 bit, or of more than {MAX_CELL_BITS}")

    def fits(self, answer: Int64) -> bool:
        marks = answer[answer.size - self.marks :]
        return bool(fit_level(answer, *self._layout.level)) and not (marks >> 1).any()

    def to_cells(self, answer: Int64) -> Int64:
        """An answer as it is sealed: a pair in one cell where it fits."""
        sums = self._layout.cells
        out = np.empty(sums + self.marks, np.int64)
        pack_level(answer, *self._layout.level, out)
        out[sums:] = answer[answer.size - self.marks :]
        return out

    def from_cells(self, total: Int64) -> Int64:
        out = np.empty(self.cells, np.int64)
        unpack_level(total, *self._layout.level, out)
        out[out.size - self.marks :] = total[self._layout.cells :]
        return out

    def bytes_needed(self, parties: int) -> int:
        """Bytes of a level's sums beside those of the level above, which have room for all features."""
        return BYTES_PER_HISTOGRAM_CELL * (len(self.nodes) * STATS * (self.bins + 1) + self.marks)

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """The sums of the columns of feature holders, where gradients are hidden; none in rounds that grow on
        the label holder's columns alone."""
        if not terms.hides_columns or terms.vertical.grows_alone(self.tree):
            return None
        draws = terms.draws.max_bootstrap_count
        limit = max(self.gradient.limit, self.hessian.limit) * draws
        places = hidden_places(terms, state.start.cut_points, len(self.nodes))
        marks = {}
        if self.grouped:
            sums = self.cells - self.marks
            marks = {party: sums + self._bins_at(own) for party, own in places.items()}
        return HiddenSums(limit, -(-self.rows // draws), places, self.cells, self.to_cells, marks)

    def _bins_at(self, places: Int64) -> Int64:
        """Of sums at these cells, their bins, counted over all nodes: the order of marks."""
        node, bin_ = np.divmod(places // STATS, self.bins + 1)
        return node * self.bins + bin_

    def check_order(self, terms: Terms, state: Any) -> None:
        check_growing(self, terms, state, (self.gradient, self.hessian, self.threshold), votes=False)

    def applied_to(self, state: Any) -> Any:
        """The state with one more level, and the scales of the first."""
        return state.grown(self.splits, scales=(self.gradient, self.hessian, self.threshold))


class _Layout(NamedTuple):
    """The cells of histograms: the widths of each node's sums, the cells in which they travel and their
    number, and the pairs and widths of each node in the form of the kernels."""

    node_widths: tuple[Widths, ...]
    segments: tuple[Segment, ...]
    cells: int
    level: tuple[Int64, Int64]


@lru_cache(maxsize=2)  # both ends of a simulation ask for the same
def _layout_of(pairs: tuple[int, ...], widths: bytes, rows: int, gradient: int, hessian: int) -> _Layout:
    """The layout of nodes with these numbers of pairs. widths: as in the query; gradient, hessian: the limits
    of their scales."""
    bounds = cell_bits(gradient, rows), cell_bits(hessian, rows) - 1
    node_widths = tuple(zip(widths[::2], widths[1::2], strict=True)) or (bounds,) * len(pairs)
    segments = [
        Segment(count, wide + narrow)
        if wide + narrow <= MAX_CELL_BITS
        else Segment(count * STATS, max(wide, narrow + 1))
        for count, (wide, narrow) in zip(pairs, node_widths, strict=True)
    ]
    level = np.array(pairs, np.int64), np.array(node_widths, np.int64)
    return _Layout(node_widths, tuple(segments), sum([segment.cells for segment in segments]), level)


@dataclass(frozen=True)
class VoteQuery(BaseQuery):
    """Votes for the features to split these nodes by, after these splits of the tree that grows.

    Used before the histograms of each level but the root's, where the terms elect features. `parties` is the
    number of voters. Answer: [node, feature], 1 for the vote_top_k features of highest gain by this party's
    own rows (fewer if fewer gain), 0 for others.
    """

    description = "votes: which columns part groups best"
    of_tree = True

    rows: Rows
    tree: int
    splits: Splits
    nodes: Nodes
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

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one before each level but the root."""
        return terms.trees.rounds * (max_levels(terms) - 1) * (terms.histograms.vote_top_k > 0)

    def check_terms(self, terms: Terms) -> None:
        """Refuse votes where the terms have none, and on other features."""
        features = len(terms.columns.features)
        check_bits(terms.bits, self.gradient, self.hessian)
        check_nodes(terms, self.tree, self.splits, self.nodes)
        allowed = self.features == features and 1 <= self.parties <= len(terms.parties)
        if not terms.histograms.vote_top_k or not allowed:
            raise Refused(
                f"votes of {self.parties} parties on {self.features} features, the terms say otherwise"
            )

    def check_order(self, terms: Terms, state: Any) -> None:
        check_growing(self, terms, state, (self.gradient, self.hessian, 0.0), votes=True)

    def applied_to(self, state: Any) -> Any:
        """The state with one more level."""
        return state.grown(self.splits)


def max_levels(terms: Terms) -> int:
    """Most queries for the histograms of one tree."""
    return terms.max_leaves_per_round if terms.trees.grow_policy == "lossguide" else terms.trees.max_depth


def check_growing(
    query: "HistogramQuery | VoteQuery",
    terms: Terms,
    state: Any,
    scales: tuple[Scale, Scale, float],
    votes: bool,
) -> None:
    """Raise PeerError unless a query about nodes may come next: the root of a tree first, the same gradients
    and rows throughout, votes and histograms in turn."""
    tree, levels = state.tree, state.levels
    check_started(state)
    if query.tree != tree:
        raise PeerError(f"a query for tree {query.tree} while tree {tree} grows")
    if state.residual is not None:
        raise PeerError(f"tree {tree}: a question about nodes after one about residuals")
    known = state.scales
    if known is not None and (known.gradient, known.hessian, known.threshold) != scales:
        raise PeerError(
            f"tree {tree}: a question about nodes whose gradients are scaled or drawn otherwise than the "
            f"root's"
        )
    some = terms.task.takes_candidates and set(query.nodes) <= set(terms.roots)  # of candidates that go on
    if (levels == 0) != (some or query.nodes == terms.roots):
        raise PeerError(f"tree {tree}: the root must be asked for once, and first")
    if levels == terms.max_turns_per_tree:
        raise PeerError(f"tree {tree}: more levels than the terms allow")
    if terms.histograms.vote_top_k and votes != bool(levels % 2):
        raise PeerError(f"tree {tree}: votes and histograms take turns")


# ---- Queries about a tree of random structure: sums of its leaves, with noise ---------------------------


@dataclass(frozen=True)
class SumsQuery(BaseQuery):
    """Sums of gradients and hessians in the leaves of a tree of these splits, whose structure does not depend
    on rows.

    Used once a tree, where the answer gets noise. Answer: [leaf, (gradient, hessian)], in units of
    `objective.SCALE`.
    """

    description = "sums over the rows in each leaf of a tree"
    of_tree = True
    needs_noise = True
    suits = ("additive",)
    released = TREES

    rows: Rows
    tree: int
    splits: Splits
    nodes: Nodes

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

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one a tree."""
        return terms.trees.rounds * (terms.noise is not None and terms.noise.method != "hist")

    def check_terms(self, terms: Terms) -> None:
        """Refuse leaves that a tree of the terms cannot have."""
        check_nodes(terms, self.tree, self.splits, self.nodes)

    def check_order(self, terms: Terms, state: Any) -> None:
        check_started(state)
        if self.tree != state.tree or state.levels:
            raise PeerError(f"sums in the leaves of tree {self.tree} while tree {state.tree} grows, or again")

    def applied_to(self, state: Any) -> Any:
        """The state with one more level."""
        return state.grown(self.splits)


# ---- The query that ends a round: leaf values are applied, and metrics are measured ---------------------


BY_PARTY = "EndRoundQuery by party"
"""Name of the query where it includes metrics of single parties."""


@dataclass(frozen=True)
class EndRoundQuery(BaseQuery):
    """The metrics after these splits, once every margin has moved by its leaf's value.

    Tree -1 is the constant that boosting starts from. Answer: the metric sums, then, with `exponents`,
    exponent counts of the new gradients, hessians and weights; then, with `sizes`, counts of the gradient
    norms of rows that trees grow on (`sampling.count_norms`). Metric sums are of
    each of these sets of rows, one after the other; a set of a party's rows alone is 0 for all others.
    """

    description = "error of the model, summed over all rows"
    ends_tree = True
    suits = METHODS  # the terms have no metrics then
    views = ("splits", View.splits), ("values", View.values), ("weight", View.scale)

    rows: Rows
    tree: TreeNumber
    splits: Splits
    values: Values
    metrics: Metrics
    weight: Scale
    exponents: bool
    sets: Annotated[tuple[str, ...], Bound(2 * (1 + MAX_PARTIES), "sets of rows")] = (TRAIN,)
    sizes: bool = False

    @once
    def cells(self) -> int:
        metric_cells = len(self.sets) * metrics.cells(self.metrics)
        exponents = EXPONENT_VECTORS * EXPONENT_CELLS * self.exponents
        return metric_cells + exponents + NORM_CELLS * self.sizes

    @property
    def cell_bits(self) -> int:
        return cell_bits(metrics.limit(self.metrics, self.weight), self.rows)

    @property
    def name(self) -> str:
        """Name in logs; another one where it includes metrics of single parties."""
        by_party = any(metrics.OF_PARTY in rows for rows in self.sets)
        return BY_PARTY if by_party else type(self).__name__

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one a tree, and one of the constant."""
        return terms.trees.rounds + 1

    def check_terms(self, terms: Terms) -> None:
        """Refuse other metrics than the terms', and trees that a model of the terms cannot have."""
        check_tree(terms, self.tree, self.splits, self.values)
        if self.sizes and not terms.draws.by_gradient_norm:
            raise Refused("the terms need no sizes of gradients: rows are not drawn by them")
        if self.exponents and not terms.needs_exponent_counts:
            raise Refused("the terms need no exponents of gradients: they have a public bound")
        if self.metrics != terms.metrics:
            raise Refused(f"the terms allow the metrics {', '.join(terms.metrics)}")
        if self.sets != terms.sets:
            raise Refused(f"the terms allow metrics of the rows {', '.join(terms.sets)}")

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of the round: over the rows of the roster, and those for the analyst."""
        sums = self.metrics, self.sets, total, self.weight
        return metrics.by_set(*sums), metrics.published(*sums)

    def check_order(self, terms: Terms, state: Any) -> None:
        check_started(state)
        if self.tree != state.tree:
            raise PeerError(f"the end of tree {self.tree} while tree {state.tree} grows")

    def applied_to(self, state: Any) -> Any:
        """The state with one more round."""
        return state.ended(self.splits, self.values)


TreeQuery = HistogramQuery | VoteQuery
"""Queries that grow a tree."""
