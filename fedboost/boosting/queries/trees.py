"""Queries about growing trees: histograms, leaf sums, votes for features, and the end of a round."""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedboost.boosting.queries import base
from fedboost.boosting.queries.labels import EXPONENT_VECTORS, START_BITS, Times
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import EXPONENT_CELLS, MAX_CELL_BITS, Float64, Int64, Scale, cell_bits
from fedboost.gbdt import metrics
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.kernels.histogram import fit_level, pack_level, unpack_level
from fedboost.gbdt.metrics import DIGITS, PARTIAL_LIKELIHOOD, TRAIN
from fedboost.gbdt.objectives.built_in import sum_later
from fedboost.gbdt.objectives.objective import SCALE
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import LeafValues, Splits
from fedboost.privacy.packing import Segment
from fedboost.privacy.protection import HiddenSums
from fedboost.protocol.contracts import Bound, Only, pieces
from fedboost.terms.hiding import TREES
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms

BYTES_PER_HISTOGRAM_CELL = 32
"""Memory in bytes that the aggregator needs per integer of a level's histograms: the running sum (8 for the
root, else 4), the opened integers (8) and the histograms of the level above (16). Later steps, which hold the
sum, the siblings and their parents, need less."""
MAX_ELECTED = 1 << 20
"""Maximum number of elected features in one query, summed over its nodes."""
_FEW_FEATURES = Only(
    lambda nodes: sum(len(n.features) for n in nodes) <= MAX_ELECTED, "it has too many elected features"
)
_PAIRS = Only(lambda widths: len(widths) % 2 == 0, "it has an odd number of cell widths")


@dataclass(frozen=True)
class Elected:
    """Features that an answer covers for one node, in increasing order, and the total of their bins."""

    features: Annotated[tuple[int, ...], Bound(MAX_ELECTED, "elected features")]
    bins: int


@dataclass(frozen=True)
class HistogramQuery(base.BaseQuery):
    """Applies splits to the growing tree, then asks for the gradient histograms of the given nodes.

    Parties compute and quantise gradients when they receive the query for a tree's root. Answer: int64 [node,
    bin, (gradient, hessian)]. Each node has one more pair after its bins: the sum of its positive gradients,
    and the sum of its hessians, over all its rows (`histogram.build`).

    Args:
        rows: upper bound on the number of rows, where a row counts as often as a bootstrap may draw it.
        tree: number of the round.
        splits: splits since the last query about the tree.
        nodes: nodes to report.
        bins: number of bins of all features, or of the label holder's features if the tree uses only those
            (`Vertical.grows_alone`).
        gradient, hessian: scales of the sums.
        widths: two bytes per node: the number of bits of its gradient sums (with sign) and of its hessian
            sums (without sign). Empty if the sums are bounded only by `rows`, and not by earlier sums. Both
            sums share a cell if they fit into 64 bits.
        elected: features of each node in the answer; empty for all features of all nodes.
        threshold: threshold of gradient-based sampling (`sampling_probabilities`), the same for a whole tree;
            0 for other sampling.
        grouped: True if sums are over groups of bins (`gbdt.histogram`). The answer then ends with one mark
            per node and bin: 1 if the bin has a sum, else 0.
        at_risk: at the root, for objectives with risk sets: sum of the risks in each time bin and later.
    """

    description = "sums over groups of rows, by interval"
    of_tree = True
    scales = "gradient", "hessian"

    rows: base.Rows
    tree: int
    splits: Splits
    nodes: base.Nodes
    bins: int
    gradient: Scale
    hessian: Scale
    widths: Annotated[bytes, Bound(2 * base.MAX_NODES, "cell widths"), _PAIRS] = b""
    elected: Annotated[tuple[Elected, ...], Bound(base.MAX_NODES, "nodes"), _FEW_FEATURES] = ()
    threshold: float = 0.0
    grouped: bool = field(default=False, metadata=base.APART)
    at_risk: Times = field(default=(), metadata=base.APART)

    @base.cached
    def digest(self) -> bytes:
        if self.at_risk:
            return base.digest_of((self, "at_risk", self.at_risk))
        return base.digest_of((self, "grouped")) if self.grouped else base.digest_of(self)

    @base.cached
    def cells(self) -> int:
        return sum(self.node_pairs) * STATS + self.marks

    @property
    def marks(self) -> int:
        """Number of marks at the end of an answer; 0 unless sums are over groups of bins."""
        return self.grouped * len(self.nodes) * self.bins

    @base.cached
    def node_pairs(self) -> tuple[int, ...]:
        if not self.elected:
            return (self.bins + 1,) * len(self.nodes)
        return tuple([node.bins + 1 for node in self.elected])

    def by_node(self, answer: Int64) -> list[Int64]:
        """Split an answer, or a sum of answers, into one array per node."""
        return pieces(answer, [pairs * STATS for pairs in self.node_pairs])

    @base.cached
    def _layout(self) -> "_Layout":
        scales = self.gradient.limit, self.hessian.limit
        return _layout_of(self.node_pairs, self.widths, self.rows, *scales)

    @property
    def cell_bits(self) -> int:
        return max(segment.bits for segment in self.segments)

    @base.cached
    def segments(self) -> tuple[Segment, ...]:
        # a mark is 0 or 1, from the only party that holds the column: 2 bits with the sign
        marks = (Segment(self.marks, cell_bits(1, 1)),) if self.grouped else ()
        return self._layout.segments + marks

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return terms.trees.rounds * max_levels(terms) * (terms.noise is None)

    def check_terms(self, terms: Terms) -> None:
        base.check_scales(terms, self.gradient, self.hessian, self.threshold)
        base.check_nodes(terms, self.tree, self.splits, self.nodes)
        self._check_widths(terms)
        if bool(self.at_risk) and not (terms.sums_risk and falls(self.at_risk)):
            raise Refused("query-times", "the sums of risks in the query are not valid: they do not decrease")
        if self.grouped != (terms.vertical.min_rows_per_bin > 1):
            raise Refused("query-bins", "the query does not group bins as min_rows_per_bin requires")
        elected, nodes = self.elected, self.nodes
        if bool(elected) != bool(terms.histograms.vote_top_k and nodes != terms.roots):
            raise Refused(
                "query-elected",
                f"vote_top_k does not allow this number of nodes with elected features: {len(elected)}",
            )
        if elected and len(elected) != len(nodes):
            raise Refused(
                "query-elected",
                f"the number of nodes with elected features ({len(elected)}) differs from the number of "
                f"nodes in the query ({len(nodes)})",
            )
        features = len(terms.columns.features) if elected else 0
        for node in elected:
            chosen = node.features
            known = not chosen or 0 <= chosen[0] <= chosen[-1] < features
            if not known or len(chosen) > terms.histograms.vote_top_k or sorted(set(chosen)) != [*chosen]:
                raise Refused(
                    "query-elected",
                    f"the elected features of a node ({len(chosen)} in total) are not valid: there are too "
                    f"many, or one is unknown or repeated",
                )

    def _check_widths(self, terms: Terms) -> None:
        if terms.hides_columns and self.widths:
            raise Refused(
                "query-widths", "the query has cell widths, which would reveal something about labels"
            )
        if not self.widths:
            return
        if len(self.widths) != 2 * len(self.nodes):
            raise Refused(
                "query-widths",
                f"the number of cell widths in the query ({len(self.widths)}) is not twice the number of "
                f"nodes ({len(self.nodes)})",
            )
        # An unsigned hessian sum of h bits alone travels in a signed cell of h + 1 bits: so h < 64.
        gradients, hessians = self.widths[::2], self.widths[1::2]
        if not (min(self.widths) >= 1 and max(gradients) <= MAX_CELL_BITS > max(hessians)):
            raise Refused("query-widths", f"cell widths must be between 1 and {MAX_CELL_BITS} bits")

    def fits(self, answer: Int64) -> bool:
        fits = bool(fit_level(answer, *self._layout.level))
        return fits and not (self.grouped and (answer[answer.size - self.marks :] >> 1).any())

    def to_cells(self, answer: Int64) -> Int64:
        """Convert an answer to the cells that are sealed (masked or encrypted). A gradient sum and its
        hessian sum share a cell if both fit."""
        sums = self._layout.cells
        out = np.empty(sums + self.marks, np.int64)
        pack_level(answer, *self._layout.level, out)
        if self.grouped:
            out[sums:] = answer[answer.size - self.marks :]
        return out

    def from_cells(self, total: Int64) -> Int64:
        out = np.empty(self.cells, np.int64)
        unpack_level(total, *self._layout.level, out)
        if self.grouped:
            out[out.size - self.marks :] = total[self._layout.cells :]
        return out

    def bytes_needed(self, parties: int) -> int:
        # the sums of the level above are still in memory, with all features even if some are elected here
        return BYTES_PER_HISTOGRAM_CELL * (len(self.nodes) * STATS * (self.bins + 1) + self.marks)

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """Return a description of the sums that feature holders report in encrypted form. Returns None if
        gradients are not hidden, or in the first `alone_rounds` rounds."""
        if not terms.hides_columns or terms.vertical.grows_alone(self.tree):
            return None
        draws = terms.draws.max_bootstrap_count
        limit = max(self.gradient.limit, self.hessian.limit) * draws
        places = base.hidden_places(terms, state.start.cut_points, len(self.nodes))
        marks = {}
        if self.grouped:
            sums = self.cells - self.marks
            marks = {party: sums + self._bins_at(own) for party, own in places.items()}
        return HiddenSums(limit, -(-self.rows // draws), places, self.cells, self.to_cells, marks)

    def _bins_at(self, places: Int64) -> Int64:
        """Return the indices of the marks that belong to the sums at these indices of an answer. Marks are
        numbered over all bins of all nodes."""
        node, bin_ = np.divmod(places // STATS, self.bins + 1)
        return node * self.bins + bin_

    def check_order(self, terms: Terms, state: Any) -> None:
        check_growing(self, terms, state, (self.gradient, self.hessian, self.threshold), votes=False)
        if terms.sums_risk and len(self.at_risk) != (0 if state.levels else len(state.start.times.events)):
            raise PeerError("query-order", "sums of risks are sent with the root of a tree, one per time bin")

    def applied_to(self, state: Any) -> Any:
        return state.grown(self.splits, scales=(self.gradient, self.hessian, self.threshold, self.at_risk))


def falls(sums: tuple[float, ...]) -> bool:
    """Return True if no number is larger than the one before, and all are positive and finite."""
    return 0.0 < sums[-1] <= sums[0] < float("inf") and all(a >= b for a, b in pairwise(sums))


class _Layout(NamedTuple):
    """Layout of an answer in cells: runs of cells with equal width, total number of cells, and, as input for
    the kernels, the number of pairs of each node and the bit widths of its sums."""

    segments: tuple[Segment, ...]
    cells: int
    level: tuple[Int64, Int64]


@lru_cache(maxsize=2)  # both ends of a simulation need the same one
def _layout_of(pairs: tuple[int, ...], widths: bytes, rows: int, gradient: int, hessian: int) -> _Layout:
    """Return the layout of an answer. pairs: number of (gradient, hessian) pairs of each node; widths, rows:
    as in `HistogramQuery`; gradient, hessian: limits of the scales."""
    # Without widths only the rows bound a sum. Hessians are never negative, so their sums need no sign bit.
    bounds = cell_bits(gradient, rows), cell_bits(hessian, rows) - 1
    flat = [*widths] or [*bounds] * len(pairs)
    # A pair shares a cell, gradient * 2**h + hessian for h hessian bits, if it fits in 64 bits. Otherwise
    # each sum has its own cell, as wide as the wider of the two; the hessian sum then needs a sign bit, as
    # all cells do.
    segments = [
        Segment(count, wide + narrow)
        if wide + narrow <= MAX_CELL_BITS
        else Segment(count * STATS, max(wide, narrow + 1))
        for count, wide, narrow in zip(pairs, flat[::2], flat[1::2], strict=True)
    ]
    level = np.array(pairs, np.int64), np.array(flat, np.int64).reshape(-1, 2)
    return _Layout(tuple(segments), sum([cells for cells, _ in segments]), level)


@dataclass(frozen=True)
class VoteQuery(base.BaseQuery):
    """Applies splits to the growing tree, then asks parties to vote for the features by which to split the
    given nodes.

    Sent before the histograms of each level except the root, if the terms require a vote on features.
    `parties` is the number of voters. Answer: int64 [node, feature], 1 for the vote_top_k features with the
    highest positive gain on the party's own rows, else 0."""

    description = "votes on which columns separate rows best"
    of_tree = True

    rows: base.Rows
    tree: int
    splits: Splits
    nodes: base.Nodes
    features: int
    parties: int
    gradient: Scale
    hessian: Scale

    @property
    def cells(self) -> int:
        return len(self.nodes) * self.features

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.parties)  # each party adds 0 or 1

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return terms.trees.rounds * (max_levels(terms) - 1) * (terms.histograms.vote_top_k > 0)

    def check_terms(self, terms: Terms) -> None:
        features = len(terms.columns.features)
        base.check_bits(terms.bits, self.gradient, self.hessian)
        base.check_nodes(terms, self.tree, self.splits, self.nodes)
        allowed = self.features == features and 1 <= self.parties <= len(terms.parties)
        if not terms.histograms.vote_top_k or not allowed:
            raise Refused(
                "query-votes",
                f"the terms do not allow this vote (parties: {self.parties}, features: {self.features})",
            )

    def check_order(self, terms: Terms, state: Any) -> None:
        check_growing(self, terms, state, (self.gradient, self.hessian, 0.0), votes=True)

    def applied_to(self, state: Any) -> Any:
        return state.grown(self.splits)


def max_levels(terms: Terms) -> int:
    """Return the maximum number of histogram queries about one tree."""
    return terms.max_leaves_per_round if terms.trees.grow_policy == "lossguide" else terms.trees.max_depth


def check_growing(
    query: "HistogramQuery | VoteQuery",
    terms: Terms,
    state: Any,
    scales: tuple[Scale, Scale, float],
    votes: bool,
) -> None:
    """Raise PeerError unless this query about nodes may come next in the given state.

    A tree starts with its root. Gradient scales and sampled rows stay the same for a whole tree. Votes
    alternate with histograms.

    Args:
        state: state of the training (`boosting.state.BoostingState`).
        scales: scales of gradients and hessians, and the sampling threshold.
        votes: True if the query asks for votes.
    """
    tree, levels = state.tree, state.levels
    base.check_started(state)
    if query.tree != tree:
        raise PeerError("query-order", f"the query is about tree {query.tree}, but tree {tree} is growing")
    if state.residual is not None:
        raise PeerError(
            "query-order", f"tree {tree}: a query about nodes comes after a query about residuals"
        )
    known = state.scales
    if known is not None and (known.gradient, known.hessian, known.threshold) != scales:
        raise PeerError(
            "query-order",
            f"tree {tree}: the query scales gradients or samples rows differently from the root's query",
        )
    # With candidates, the roots are only those of the remaining candidates.
    some = terms.task.takes_candidates and set(query.nodes) <= set(terms.roots)
    if (levels == 0) != (some or query.nodes == terms.roots):
        raise PeerError("query-order", f"tree {tree}: the root must be queried first, and only once")
    if levels == terms.max_turns_per_tree:
        raise PeerError("query-order", f"tree {tree}: the tree already has as many levels as the terms allow")
    if terms.histograms.vote_top_k and votes != bool(levels % 2):
        raise PeerError("query-order", f"tree {tree}: votes and histograms must alternate")


# ---- The query about an effect: sums over groups of rows, with noise ------------------------------------


@dataclass(frozen=True)
class SumsQuery(base.BaseQuery):
    """Asks for sums of gradients and hessians in the leaves of a tree whose splits follow from noisy answers.

    Sent once per tree, and only under terms with noise. Answer: int64 [leaf, (gradient, hessian)],
    fixed-point numbers with scale `objective.SCALE`."""

    description = "sums over the rows in each leaf of a tree"
    of_tree = True
    with_noise = (True,)
    released = TREES

    rows: base.Rows
    tree: int
    splits: Splits
    nodes: base.Nodes

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
        return terms.trees.rounds * (terms.noise is not None)

    def check_terms(self, terms: Terms) -> None:
        base.check_nodes(terms, self.tree, self.splits, self.nodes)

    def check_order(self, terms: Terms, state: Any) -> None:
        base.check_started(state)
        if self.tree != state.tree:
            raise PeerError(
                "query-order",
                f"the query asks for leaf sums of tree {self.tree}, but tree {state.tree} is growing",
            )
        if state.levels:
            raise PeerError("query-order", f"the leaf sums of tree {self.tree} have already been queried")

    def applied_to(self, state: Any) -> Any:
        return state.grown(self.splits)


# ---- The query that ends a round: leaf values are applied, and metrics are measured ---------------------

BY_PARTY = f"EndRoundQuery{base.OF_PARTIES}"
"""Name of the query in logs if it includes metrics of individual parties."""


@dataclass(frozen=True)
class EndRoundQuery(base.HasValues, base.BaseQuery):
    """Ends a round: applies the last splits, adds each row's leaf value to its margin, and asks for metrics.

    Tree -1 is the constant from which boosting starts. The answer consists of:

    1. the metric sums of each set of rows; for a set of one party's rows, other parties add 0.
    2. with `exponents`: exponent counts of the new gradients, hessians and weights.
    3. with `sizes`: counts of the gradient norms of the training rows (`sampling.count_norms`).
    4. with `risk`, for each set of rows: the risks weight * e**margin and the weights of events, both summed
       by time bin (`built_in.sum_risks`). bins: number of time bins of each set."""

    description = "error of the model, summed over all rows"
    ends_tree = True
    with_noise = (False, True)  # the terms have no metrics then
    views = ("splits", base.View.splits), ("values", base.View.values)
    scales = ("weight",)

    rows: base.Rows
    tree: base.TreeNumber
    splits: Splits
    values: LeafValues
    metrics: base.Metrics
    weight: Scale
    exponents: bool
    sets: Annotated[tuple[str, ...], Bound(2 * (1 + MAX_PARTIES), "sets of rows")] = (TRAIN,)
    sizes: bool = False
    risk: Scale | None = field(default=None, metadata=base.APART)
    bins: Annotated[tuple[int, ...], Bound(2, "sets with time bins")] = field(default=(), metadata=base.APART)

    @base.cached
    def cells(self) -> int:
        metric_cells = len(self.sets) * metrics.cells(self.metrics)
        exponents = EXPONENT_VECTORS * EXPONENT_CELLS * self.exponents
        return metric_cells + exponents + NORM_CELLS * self.sizes + 2 * sum(self.bins)

    @property
    def cell_bits(self) -> int:
        limit = metrics.limit(self.metrics, self.weight)
        return cell_bits(limit if self.risk is None else max(limit, self.risk.limit), self.rows)

    @property
    def name(self) -> str:
        """Name in logs, which shows whether the query includes metrics of individual parties."""
        by_party = any(metrics.OF_PARTY in rows for rows in self.sets)
        return BY_PARTY if by_party else type(self).__name__

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return terms.trees.rounds + 1

    def check_terms(self, terms: Terms) -> None:
        base.check_tree(terms, self.tree, self.splits, self.values)
        if self.sizes and not terms.draws.by_gradient_norm:
            raise Refused(
                "query-sampling", "the query asks for gradient norms, but rows are not sampled by them"
            )
        if self.exponents and not terms.needs_exponent_counts:
            raise Refused(
                "query-exponents", "the query asks for exponent counts, but gradients have a public bound"
            )
        if (self.risk is not None) != terms.sums_risk or (self.risk and self.risk.bits != START_BITS):
            raise Refused("query-times", "the query does not sum risks as the terms require")
        if self.metrics != terms.metrics:
            raise Refused("query-metrics", f"the terms allow only these metrics: {', '.join(terms.metrics)}")
        if self.sets != terms.sets:
            raise Refused(
                "query-metrics",
                f"the terms allow metrics only for these groups of rows: {', '.join(terms.sets)}",
            )

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        sums = self.metrics, self.sets, total, self.weight
        exact, told = metrics.by_set(*sums), metrics.published(*sums)
        if self.risk is None:
            return exact, told
        size = metrics.cells(self.metrics)
        for number, (rows, (later, events)) in enumerate(zip(self.sets, self.risks(total), strict=True)):
            name = f"{'' if rows == TRAIN else f'{rows}-'}{PARTIAL_LIKELIHOOD}"
            if name in exact:
                own, weight = exact[name], self.weight.decode(int(total[number * size]))
                logs = np.log(later, out=np.zeros_like(later), where=later > 0.0)
                exact[name] = (own * weight + float((events * logs).sum())) / (float(events.sum()) or 1.0)
        return exact, {name: float(f"{exact[name]:.{DIGITS}g}") for name in told}

    def risks(self, total: Int64) -> list[tuple[Float64, Float64]]:
        """Return, for each set of rows, the risks in each time bin and later, and the weight of the events in
        each time bin: float64 [bins] each."""
        assert self.risk is not None
        own = total[total.size - 2 * sum(self.bins) :]
        if own.min() < 0:
            raise PeerError("sums-inconsistent", "the sums of risks, or of events, by time are negative")
        parts = pieces(own, [2 * bins for bins in self.bins])
        each = [part.astype(np.float64).reshape(2, -1) for part in parts]
        return [(sum_later(risk) / self.risk.factor, of / self.weight.factor) for risk, of in each]

    def check_order(self, terms: Terms, state: Any) -> None:
        base.check_started(state)
        due = tuple(state.start.times.of(rows).size + 1 for rows in self.sets) if terms.sums_risk else ()
        if self.bins != due:
            raise PeerError("query-order", "the query does not sum risks by the time bins of the session")
        if self.tree != state.tree:
            raise PeerError(
                "query-order", f"the query ends tree {self.tree}, but tree {state.tree} is growing"
            )

    def applied_to(self, state: Any) -> Any:
        return state.ended(self.splits, self.values)


TreeQuery = HistogramQuery | VoteQuery
"""Queries that grow a tree."""
