"""State of a training run, from which a party continues after it reconnects.

Guarantees: the state is a pure function of the queries. A party that receives the state continues as if it
had answered all queries. `may_change` decides, for the aggregator and the parties, when the roster (the
parties in the sums) may change.
Raises: Refused (`check`) for states that the terms do not allow."""

import hashlib
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np

from fedboost.boosting.queries import OfTurn, Query, base
from fedboost.boosting.queries.columns import BYTES_PER_COUNT, LEVELS_SUMMED
from fedboost.boosting.queries.ids import PlacesQuery
from fedboost.boosting.queries.labels import RESIDUAL_TURNS, ResidualQuery, StartQuery, Times
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery, falls
from fedboost.errors import Refused, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, first_bits
from fedboost.gbdt.target_means import LevelMeans
from fedboost.gbdt.tree import NO_SPLITS, LeafValues, Split, Splits, Tree, merged, new_leaves
from fedboost.privacy import packing
from fedboost.protocol.contracts import Bound, GrownTrees, Position
from fedboost.terms.continuation import edges_beside
from fedboost.terms.terms import Terms
from fedboost.terms.training import MAX_ROUNDS

# ---- The hash of a model that parties sign --------------------------------------------------------------


def structure(
    constant: float,
    trees: Iterable[Tree],
    means: Iterable[LevelMeans] = (),
    edges: Iterable[Sequence[float] | Float64] = (),
) -> bytes:
    """Return the hash that parties sign: SHA-256 of everything in a model that determines predictions.

    It covers the constant margin, each tree's decisions and leaf values, target means, and the bin edges that
    are signed with the model. Parties can compute the hash from the queries. Gains and covers do not affect
    predictions and are left out."""
    parts = [np.float64(constant).tobytes()]
    for tree in trees:
        inner, by_category = tree.inner, np.flatnonzero(tree.by_category).tolist()
        parts += [
            tree.left.astype(np.int32).tobytes(),
            np.where(inner, tree.feature, 0).astype(np.int32).tobytes(),
            (inner & tree.missing_left).tobytes(),
            np.where(inner, tree.threshold, 0.0).astype(np.float32).tobytes(),
            np.where(inner, 0.0, tree.value).tobytes(),
            b"".join(packing.number(node) + tree.categories[node].tobytes() for node in by_category),
        ]
    parts += [each.packed for each in means]
    parts += [np.array(each, np.float64).tobytes() for each in edges]
    return hashlib.sha256(packing.pack(*parts)).digest()


def tree_of(splits: Splits, values: LeafValues, cuts: tuple[Float32, ...], roots: int) -> Tree:
    """Build a tree from its splits and leaf values, without gains, covers and values of inner nodes.

    Args:
        splits: all splits, in order.
        cuts: cut points of each feature; features beyond them are of other parties.
        roots: number of roots.
    """
    (nodes, bitmaps), node = new_leaves(roots + 2 * len(splits)), splits.node
    nodes["left"][node], nodes["feature"][node] = splits.left, splits.feature
    nodes["missing_left"][node], bitmaps[node] = splits.columns[3], splits.categories
    # Infinity follows the cut points: the threshold after a feature's last bin, and of unknown features.
    sizes = np.array([*(own.size for own in cuts), 0], np.int64)
    starts, every = np.cumsum(sizes) - sizes, np.concatenate([*cuts, [np.inf]])
    known = np.minimum(splits.feature, len(cuts))
    thresholds = every[np.where(splits.bin < sizes[known], starts[known] + splits.bin, -1)]
    nodes["threshold"][node] = np.where(splits.categories.any(axis=1), 0.0, thresholds)
    nodes["value"][values.node] = values.value
    return Tree(nodes, bitmaps)


# ---- The training state ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round(base.HasValues):
    """Finished round: its splits in order, and the value of each leaf. The first round is the constant."""

    splits: Splits
    values: LeafValues

    @base.cached
    def digest(self) -> bytes:
        return hashlib.sha256(packing.pack(self.splits.packed, self.values.packed)).digest()


@dataclass(frozen=True)
class Scales:
    """The growing tree's gradient and hessian scales, sampling threshold and sums of risks
    (`HistogramQuery`)."""

    gradient: Scale
    hessian: Scale
    threshold: float = 0.0
    at_risk: Times = ()

    def in_view(self, view: base.View) -> "Scales":
        return replace(self, gradient=view.scale(self.gradient), hessian=view.scale(self.hessian))

    def to_list(self) -> list[Any]:
        """Return the scales, the threshold and the sums of risks as JSON values."""
        gradient, hessian = self.gradient, self.hessian
        of_scales = gradient.exponent, gradient.bits, hessian.exponent, hessian.bits
        return [*of_scales, self.threshold, *self.at_risk]

    @base.cached
    def packed(self) -> bytes:
        return struct.pack(f">qqqq{1 + len(self.at_risk)}d", *self.to_list())


@dataclass(frozen=True)
class BoostingState(base.HasSplits):
    """State of a training run between two queries.

    Args:
        grids: number of answered queries that count over grids, plus LEVELS_SUMMED if labels have been summed
            by level.
        start: query that sent the cut points, or None before that query.
        rounds: finished rounds, the constant first.
        splits, levels: splits of the growing tree, and number of answered queries about it.
        scales: gradient scales of the growing tree, known once its root has been queried.
        residual: last query about the growing tree's residuals.
        places: query that sent the matched rows, if rows are matched by their ids.
    """

    grids: int = 0
    start: StartQuery | None = None
    rounds: Annotated[tuple[Round, ...], Bound(MAX_ROUNDS + 1, "rounds")] = ()
    splits: Splits = NO_SPLITS
    levels: int = 0
    scales: Scales | None = None
    residual: ResidualQuery | None = None
    places: PlacesQuery | None = None

    @property
    def tree(self) -> int:
        """Number of the growing tree; -1 before the first tree."""
        return len(self.rounds) - 1

    def after(self, query: OfTurn) -> "BoostingState":
        """Return the state after this query has been answered."""
        parts: Any = query.parts
        state = self
        for part in parts:
            # Kept with the query: its check, the memory of the site and the answer all need this state.
            known: tuple[BoostingState, BoostingState] | None = part.__dict__.get("_after")
            if known is None or known[0] is not state:
                known = part.__dict__["_after"] = state, part.applied_to(state)
            state = known[1]
        return state

    def grown(
        self,
        splits: Splits,
        scales: tuple[Scale, Scale, float, Times] | None = None,
        residual: ResidualQuery | None = None,
    ) -> "BoostingState":
        """Return the state after one more query about the growing tree. splits: additional splits sent with
        the query.

        scales: scales of the query, kept only for the root; residual: the query, if it was about
        residuals."""
        grown = BoostingState(
            self.grids,
            self.start,
            self.rounds,
            self.splits + splits,
            self.levels + 1,
            self.scales or (None if scales is None else Scales(*scales)),
            residual or self.residual,
            self.places,
        )
        # Splits only grow, so the hash of the next state can be continued from this one (see `_hash`).
        if "_hash" in self.__dict__:
            grown.__dict__["_hashed"] = self._hash, splits
        return self._handing_on_hashes(grown)

    def ended(self, splits: Splits, values: LeafValues) -> "BoostingState":
        """Return the state with the growing tree as the last finished round. splits: additional splits."""
        done = Round(self.splits + splits, values)
        return self._between_trees((*self.rounds, done))

    def _handing_on_hashes(self, after: "BoostingState") -> "BoostingState":
        """Pass the hash of this state's finished rounds to the later state `after`, which can continue the
        hash. Returns `after`."""
        if "_hash_of_rounds" in self.__dict__:
            after.__dict__["_hashed_rounds"] = self._hash_of_rounds, len(self.rounds)
        elif "_hashed_rounds" in self.__dict__:
            after.__dict__["_hashed_rounds"] = self.__dict__["_hashed_rounds"]
        return after

    @property
    def before_tree(self) -> "BoostingState":
        return self._between_trees(self.rounds)

    def _between_trees(self, rounds: tuple[Round, ...]) -> "BoostingState":
        return self._handing_on_hashes(BoostingState(self.grids, self.start, rounds, places=self.places))

    @base.cached
    def position(self) -> Position:
        """Position of the state: counts and hashes that identify it."""
        model = self._hash.digest()
        scales = b"" if self.scales is None else self.scales.packed
        residual = b"" if self.residual is None else self.residual.digest
        tree = hashlib.sha256(packing.pack(packing.number(self.levels), scales, residual)).digest()
        counts = self.grids, self.start is not None, len(self.rounds), len(self.splits), self.levels
        return Position(*counts, model, tree)

    @base.cached
    def _hash(self) -> "hashlib._Hash":
        """Hash of the model so far. Splits come last, so that later splits can be added to a copy."""
        before, splits = self.__dict__.get("_hashed", (None, self.splits))
        hashed: hashlib._Hash = (before or self._hash_of_rounds).copy()
        hashed.update(splits.packed)
        return hashed

    @base.cached
    def _hash_of_rounds(self) -> "hashlib._Hash":
        """Hash of the finished rounds. Later rounds can be added to a copy."""
        hashed: hashlib._Hash
        hashed, number = self.__dict__.get("_hashed_rounds", (None, 0))
        further = [done.digest for done in self.rounds[number:]]
        if hashed is None:
            start = b"" if self.start is None else self.start.digest
            aligned = b"" if self.places is None else self.places.digest
            return hashlib.sha256(packing.pack(packing.number(self.grids) + aligned, start, *further))
        if further:
            hashed = hashed.copy()
            hashed.update(packing.pack(*further))
        return hashed

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> "BoostingState":
        """Return the state as a party sees it (`View`). publicly: as all parties of its block see it."""
        view = base.view_of(terms, party)
        if view is None:
            return self
        view = view.public if publicly else view
        return replace(
            self,
            start=None if self.start is None else self.start.in_view(view),
            rounds=tuple(Round(view.splits(done.splits), view.values(done.values)) for done in self.rounds),
            splits=view.splits(self.splits),
            scales=None if self.scales is None else self.scales.in_view(view),
            residual=None if self.residual is None else self.residual.in_view(view),
            places=None if self.places is None else self.places.in_view(view),
        )

    def has_passed(self, earlier: Position) -> bool:
        """Return True if a session could have progressed from the earlier position to this state.

        The model at that position is rebuilt from a prefix of this state's rounds and splits, and compared by
        hash."""
        same_tree = len(self.rounds) == earlier.rounds
        if self.grids < earlier.grids or (same_tree and self.levels < earlier.levels):
            return False
        grew = (*(done.splits for done in self.rounds), self.splits, NO_SPLITS)
        splits = grew[min(earlier.rounds, len(grew) - 1)][: earlier.splits]
        start = self.start if earlier.started else None
        rounds = self.rounds[: earlier.rounds]
        then = BoostingState(earlier.grids, start, rounds, splits, places=self.places)
        return then.position.model == earlier.model

    def may_change(self, query: OfTurn) -> bool:
        """Return True if the roster (the parties in the sums) may change at this query.

        If the same sum is computed over two rosters, the difference reveals the sum over the parties in only
        one of them, perhaps a single party. Every margin must therefore change in between. The query must end
        a tree, or be about the root of the tree that follows. The ended tree must have split, its leaf values
        must not all be equal, and no leaf value may be 0 (which reg_alpha can cause)."""
        if isinstance(query, EndRoundQuery):
            return query.tree >= 0 and _moves_all(self.splits + query.splits, query.values)
        return isinstance(query, HistogramQuery) and self.levels == 0 and self.moved

    @property
    def moved(self) -> bool:
        """True if the last finished tree moved every margin and not all of its leaf values are equal."""
        return bool(self.rounds) and _moves_all(self.rounds[-1].splits, self.rounds[-1].values)

    def may_lack_parties(self, query: OfTurn) -> bool:
        """Return True if the roster of this query may lack a party of the terms. This requires that some tree
        has split. Earlier queries are the same in every session, so their sums over two rosters would reveal
        the difference between the rosters."""
        return self.may_change(query) or any(done.splits for done in self.rounds)

    def check(self, terms: Terms) -> None:
        """Raise Refused if no session under these terms can be in this state."""
        trained = replace(self, grids=0, places=None) if terms.task.counts_values else self
        if not terms.task.trains and trained.position != INITIAL_STATE.position:
            raise Refused(
                "state-invalid",
                f"a session with task {terms.task.name} cannot have the state of a training session",
            )
        sums = bool(terms.columns.target_means) or terms.sums_risk
        summed = LEVELS_SUMMED * sums if self.grids >= LEVELS_SUMMED else 0
        if not 0 <= self.grids - summed <= MAX_REFINEMENTS:
            raise Refused(
                "state-invalid",
                f"grids were counted {self.grids} times, but at most {MAX_REFINEMENTS} are allowed",
            )
        if self.places is not None:
            self.places.check(terms)
        elif terms.vertical.aligns and (self.grids or self.start is not None):
            raise Refused("state-invalid", "rows were counted before they were matched")
        if self.start is not None:
            self.start.check(terms)
        elif self.rounds:
            raise Refused("state-invalid", "the training state has finished rounds but no cut points")
        if len(self.rounds) > terms.trees.rounds + 1 or self.levels > terms.max_turns_per_tree:
            told = (
                f"the training state has more finished rounds ({len(self.rounds)}) or levels ({self.levels})"
            )
            raise Refused("state-invalid", f"{told} than the terms allow")
        for number, done in enumerate(self.rounds):
            base.check_tree(terms, number - 1, done.splits, done.values)
            base.check_splits(terms, done.splits)
            base.check_leaves(terms, done.splits, done.values)
        if self.levels and not self.rounds and (terms.objective.loss.quantile is None or self.start is None):
            raise Refused("state-invalid", "the training state has histograms before the first tree")
        if not self.rounds and self.levels > RESIDUAL_TURNS:
            raise Refused(
                "state-invalid",
                f"residuals were counted {self.levels} times, but at most {RESIDUAL_TURNS} are allowed",
            )
        if self.levels:
            base.check_tree(terms, self.tree, self.splits)
            base.check_splits(terms, self.splits)
        elif self.splits:
            raise Refused("state-invalid", "the training state has splits, but the root was never queried")
        if self.residual is not None:
            self.residual.check(terms)
        if self.scales is not None:
            base.check_scales(terms, self.scales.gradient, self.scales.hessian, self.scales.threshold)
        times, at_risk = self.start and self.start.times, self.scales.at_risk if self.scales else ()
        due = len(times.events) if times and (self.levels or self.scales) else 0
        if len(at_risk) != due or (at_risk and not falls(at_risk)):
            raise Refused("state-invalid", "the sums of risks do not match the time bins, or increase")

    def check_next(self, terms: Terms, query: Any) -> None:
        """Raise Refused unless the growing tree can continue with the query's splits and, if the query ends
        the tree, with its leaf values."""
        splits = self.splits + query.splits
        base.check_splits(terms, splits)
        if query.ends_tree:
            base.check_leaves(terms, splits, query.values)

    def check_grown(self, terms: Terms, tree: Tree, last: Splits) -> None:
        """Raise Refused unless `tree` has the size of the growing tree after the splits in `last`."""
        base.check_splits(terms, self.splits + last)
        nodes = 2 * len(self.splits + last) + len(terms.roots)
        if len(tree) != nodes or not 0 < self.levels <= terms.max_turns_per_tree:
            raise Refused("state-invalid", "the tree does not match the growing tree of this state")

    def to_record(self) -> list[Any]:
        """Return the growing tree as JSON values: splits, levels, scales, and the last residual query."""
        scales, last, asked = self.scales, self.residual, None
        if last is not None:
            cells = _listed(last.splits), last.nodes, last.starts, last.width
            asked = [last.rows, last.tree, *cells, last.weight.exponent, last.weight.bits]
        return [_listed(self.splits), self.levels, None if scales is None else scales.to_list(), asked]

    def with_record(self, record: list[Any]) -> "BoostingState":
        """Return a copy with the tree from `to_record`. Raises ValueError or TypeError for a bad record."""
        splits, levels, scales, residual = record
        known, last = None, None
        if scales is not None:
            known = Scales(Scale(*scales[:2]), Scale(*scales[2:4]), float(scales[4]), tuple(scales[5:]))
        if residual is not None:
            rows, tree, asked, nodes, starts, width, *scale = residual
            cells = _of_list(asked), tuple(nodes), tuple(starts), width
            last = ResidualQuery(rows, tree, *cells, Scale(*scale))
        return replace(self, splits=_of_list(splits), levels=int(levels), scales=known, residual=last)

    def structure(self, rounds: int, terms: Terms) -> bytes:
        """Return the hash (`structure`) of the model after this number of rounds, or b"" before the constant
        is known. If parties do not see each other's thresholds, finite thresholds are hashed as 0."""
        if self.start is None or not self.rounds:
            return b""
        cuts, means = self.start.cut_points.cuts, [LevelMeans.of(own[:, -1]) for own in self.start.means]
        shown = tuple(0 * own for own in cuts) if terms.hides_columns else cuts
        trees: Iterable[Tree] = self.trees(rounds, shown)
        trees = trees if terms.noise is None else merged(trees, len(terms.roots))
        edges = edges_beside(terms.evaluation, cuts[: len(terms.columns.ordered)])
        return structure(float(self.rounds[0].values.value[0]), trees, means, edges)

    def trees(self, rounds: int, cuts: tuple[Float32, ...]) -> Iterator[Tree]:
        """Yield the first trees, one per root. rounds: number of rounds; cuts: cut points of each feature."""
        constant, *finished = self.rounds
        roots = len(constant.values)
        for done in finished[:rounds]:
            yield from tree_of(done.splits, done.values, cuts, roots).parts(roots)


INITIAL_STATE = BoostingState()


def _listed(splits: Splits) -> list[list[Any]]:
    return [[*vars(split).values()] for split in splits]


def _of_list(content: list[list[Any]]) -> Splits:
    return Splits.of(Split(*split) for split in content)


def _moves_all(splits: Splits, values: LeafValues) -> bool:
    """Return whether a tree moves every margin: it has split, with leaf values neither 0 nor all equal."""
    moves = values.value
    return len(splits) > 0 and bool(moves.all() and (moves != moves[:1]).any())


# ---- Memory of a session's sums at the aggregator, and a limit on it ------------------------------------
# Guarantees: the memory that a query needs is known from the query alone, before any memory is allocated.

GIB = 1 << 30

P = TypeVar("P")


def check_terms(terms: Terms, allowed: int) -> None:
    """Raise Refused if the row counts for cut points would need more than `allowed` bytes of memory."""
    features = len(terms.columns.numeric)
    _check(BYTES_PER_COUNT * features << first_bits(features), allowed)


def within(
    program: Callable[[Terms, GrownTrees], Generator[Query, Int64, P]], allowed: int
) -> Callable[[Terms, GrownTrees], Generator[Query, Int64, P]]:
    """Make a program raise Refused instead of yielding a query that needs more than `allowed` bytes."""

    def bounded(terms: Terms, grown: GrownTrees) -> Generator[Query, Int64, P]:
        inner = program(terms, grown)
        go_on: Callable[[], Query] = partial(next, inner)
        while True:
            try:
                query = go_on()
            except StopIteration as end:
                model: P = end.value
                return model
            _check(query.bytes_needed(len(terms.parties)), allowed)
            try:
                go_on = partial(inner.send, (yield query))
            except (TreeAborted, TrainingStopped) as error:
                go_on = partial(inner.throw, error)

    return bounded


def _check(bytes_needed: int, allowed: int) -> None:
    if bytes_needed > allowed:
        raise Refused(
            "memory-limit",
            f"the aggregator would need {bytes_needed / GIB:.2g} GiB for the sums of this session, but "
            f"allows only {allowed / GIB:.2g} GiB; lower max_depth or max_bin, use fewer columns, or have "
            f"`memory` raised in the aggregator's configuration file",
        )
