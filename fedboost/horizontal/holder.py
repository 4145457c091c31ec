"""A party's rows and the tree that grows on them; `answer` turns a query into one vector of integers.

Promises: the vector depends on this party's rows and the queries so far alone; adding the vectors of all
parties gives what one party with all rows would have answered, bit for bit.
Refuses: queries out of order or that do not fit the tree (PeerError: they come from outside).
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

import numpy as np

from fedboost.boosting.queries.base import CONSTANT_TREE, MAX_CELLS
from fedboost.boosting.queries.cut_points import QuantileQuery, RangeQuery
from fedboost.boosting.queries.leaves import RESIDUAL_BITS, RESIDUAL_TURNS, ResidualQuery
from fedboost.boosting.queries.noisy import SumsQuery
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import RowsQuery, StartQuery
from fedboost.boosting.queries.trees import Elected, HistogramQuery, VoteQuery
from fedboost.boosting.queries.union import Query, TreeQuery
from fedboost.boosting.state import NOTHING_YET, ModelSoFar, Scales, Values
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64, exponent_counts
from fedboost.gbdt import histogram, installed, metrics, sampling
from fedboost.gbdt.binned import BinnedRows, Column, Room, in_memory
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, CutPoints, Grid, count_cells, count_parts
from fedboost.gbdt.groups import Block, Mask, blocks
from fedboost.gbdt.histogram import Layout, Rows
from fedboost.gbdt.kernels import fixedpoint as fixedpoint_kernels
from fedboost.gbdt.kernels.bins import weigh_residuals
from fedboost.gbdt.kernels.histogram import sum_pairs
from fedboost.gbdt.loss import LOSSES, Slopes, in_groups
from fedboost.gbdt.partition import RowsOfNodes
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import Split
from fedboost.horizontal.votes import OwnHistograms, vote
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

_VALUES = 1 << 22
"""Of features that are at hand at a time, where rows go down the trees of an earlier model."""
MOST_PLACES = 1 << 31
"""Rows times trees of a round: each takes 8 bytes, or 16 where rows are drawn."""


@dataclass(frozen=True)
class Shard:
    """One party's rows as the terms want them: a float32 column a feature (NaN = missing), label, weight; and
    where there is room for what is made of them. Labels that are intervals are float32 [2, N].

    keys: by which rows are drawn, uint64, where the terms have any drawn; validation: bool, the rows that no
    tree grows on, where the terms have a column that says so; base_margin: float32, the margins they begin
    at, 0 without; group: uint64, a key that the rows of a group have in common, where the terms rank rows.
    """

    columns: tuple[Column, ...]
    label: Float32
    weight: Float32
    room: Room = in_memory
    keys: sampling.Keys | None = None
    validation: Mask | None = None
    base_margin: Float32 | None = None
    group: sampling.Keys | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.weight.size)


class Party:
    """The state of one session at one party: its rows, and where the session stands (`state`)."""

    def __init__(self, read: Callable[[], Shard], terms: Terms, nthread: int = 1, name: str = "") -> None:
        """read: gives the rows; called again if their values are wanted after they were binned; name: of this
        party in the terms."""
        self.state = NOTHING_YET
        self._name = name
        self._threads = Threads(nthread)
        self._read = read
        self._shard = shard = read()
        self._terms = terms
        self._loss = terms.objective.loss
        if len(terms.roots) * shard.rows > MOST_PLACES:
            raise Refused(
                f"{len(terms.roots)} trees a round are too many for the rows of a party; lower num_class or "
                f"num_parallel_tree"
            )
        shape = self._loss.outputs, shard.rows
        self._margin: Float64 = shard.room(shape, np.dtype(np.float64))
        self._begin_margins()
        self._blocks = blocks(shard.rows, shard.group)
        """The rows in blocks, of which gradients and metrics are computed one after the other."""
        roots = len(terms.roots)
        self._validation = _validation_of(shard, terms)
        """Rows that no tree grows on."""
        self._nodes = RowsOfNodes(shard.rows, roots, self._threads, shard.room)
        """The rows that the tree grows on, each as often as it counts."""
        self._others: RowsOfNodes | None = None
        """The other rows, which go down the tree all the same, if there are any; all rows where some may
        count several times."""
        if self._validation is not None or terms.draws.draws_for_trees:
            self._others = RowsOfNodes(shard.rows, roots, self._threads, shard.room)
        self._begin_tree(0)
        self._pairs: Int64 = shard.room(shape, np.dtype(np.int64))
        self._quantised = False
        """Whether `_pairs` are of the tree that grows: once its first histogram was asked for."""
        self._own: OwnHistograms | None = None
        """Where features are voted for: this party's own histograms of that tree."""
        self._binned: tuple[BinnedRows, CutPoints, Layout] | None = None

    def answer(self, query: Query) -> Int64:
        """This party's integers: int64 [query.cells]."""
        values = self._answer(query)
        self.state = self.state.after(query)
        return values

    def go_to(self, state: ModelSoFar) -> None:
        """Stand where the session stands, whatever was answered here. PeerError if the splits cannot be."""
        if state.position == self.state.position:
            return
        finished = len(self.state.rounds)
        starts = [None if each.start is None else each.start.digest for each in (state, self.state)]
        if starts[0] != starts[1]:
            self._binned, finished = None, 0
            if state.start is not None:
                self._bin(state.start)
        if not finished or self.state.rounds != state.rounds[:finished]:
            finished = 0
            self._begin_margins()
        self._begin_tree(finished - 1)
        for number, done in enumerate(state.rounds[finished:], finished - 1):
            self._end_tree(number, done.splits, done.values)
        if state.splits:
            self._split(state.splits)
        self._quantised, self._own = False, None
        self.state = state

    def _begin_margins(self) -> None:
        """Where training begins: at 0, the base margins, or what the model that is continued gives."""
        base, earlier = self._shard.base_margin, self._terms.earlier
        self._margin[:] = 0.0 if base is None else base
        if earlier is None:
            return
        columns = self.columns
        step = _VALUES // len(columns) + 1
        for start in range(0, self.rows, step):
            rows = slice(start, start + step)
            features = np.column_stack([column[rows] for column in columns])
            self._margin[:, rows] = earlier.margins(features, None if base is None else base[rows])

    def _answer(self, query: Query) -> Int64:
        match query:
            case RowsQuery():
                if self._binned is not None:
                    raise PeerError("the count of rows comes before the cut points")
                return np.concatenate([[self.rows], self._sum(partial(self._exponents, self._loss.start))])
            case QuantileQuery(_, grids):
                self._check_grids(grids)
                columns = list(zip(self.columns[: len(self._terms.columns.numeric)], grids, strict=True))
                return np.concatenate(self._threads.each(lambda one: count_cells(*one), columns))
            case RangeQuery():
                return self._ranges()
            case SumsQuery():
                return self._sums(query)
            case StartQuery():
                return self._start(query)
            case HistogramQuery():
                return self._histograms(query)
            case VoteQuery():
                return self._votes(query)
            case ResidualQuery():
                return self._residuals(query)
            case EndRoundQuery():
                return self._end_round(query)
            case _:
                assert_never(query)

    def _check_grids(self, grids: tuple[Grid, ...]) -> None:
        """Counts over ever finer grids find any single value: no more of them than cut points need."""
        if self._binned is not None or self.state.grids == MAX_REFINEMENTS:
            raise PeerError(f"counts over grids are given {MAX_REFINEMENTS} times, before the cut points")
        coarse = Grid.first(len(grids)).shape
        if self.state.grids == 0 and any(grid.shape != coarse for grid in grids):
            raise PeerError("the first grid is not the coarse one over all numbers")

    def _ranges(self) -> Int64:
        """Rows in each part of the declared ranges."""
        if self._binned is not None or self.state.grids:
            raise PeerError("counts over ranges are given once, before the cut points")
        names = self._terms.columns.numeric
        ranges = [self._terms.columns.ranges[name] for name in names]
        of_columns = zip(self.columns[: len(names)], ranges, strict=True)
        return np.concatenate(self._threads.each(lambda one: count_parts(*one), [*of_columns]))

    def _sum(self, of_block: Callable[[Block], Int64]) -> Int64:
        """The sum of what each block of rows comes to."""
        total: Int64 = np.sum(self._threads.each(of_block, self._blocks), axis=0)
        return total

    def _margins(self, block: Block) -> Float64:
        """Of some rows, as losses and metrics take them."""
        rows = block.rows
        return (
            np.ascontiguousarray(self._margin[:, rows]) if self._loss.outputs > 1 else self._margin[0, rows]
        )

    def _gradients(
        self, loss: Slopes, block: Block, weight: Float32, start: float = 0.0
    ) -> tuple[Float64, Float64]:
        """Of some rows with these weights, at their margins and so much more."""
        margins = self._margins(block)
        of_rows = margins + start if start else margins, self._shard.label[..., block.rows], weight
        name = self._terms.objective.name
        if name not in LOSSES:
            return installed.gradients(loss, name, *of_rows)
        return in_groups(loss, block.starts).gradients(*of_rows)

    def _exponents(self, loss: Slopes, block: Block) -> Int64:
        weight = self._shard.weight[block.rows]
        gradient, hessian = self._gradients(loss, block, np.ones_like(weight))
        return np.concatenate([exponent_counts(v) for v in (gradient, hessian, weight.astype(np.float64))])

    def _quantise(
        self, loss: Slopes, query: StartQuery | TreeQuery | SumsQuery, drawn: Sequence[Mask] = ()
    ) -> None:
        """Put (gradient << 32) + hessian of each row, as fixed-point numbers, into `_pairs`.

        drawn: for each parallel tree, where its rows are drawn by the sizes of gradients: set here, and the
        gradients are divided by the chances of the rows.
        """
        factors = query.gradient.factor, query.hessian.factor
        limit = float(query.gradient.limit)
        bound = None if self._terms.noise is None else self._terms.bound
        start = 0.0
        if bound is not None and isinstance(query, StartQuery):
            start = self._loss.margin(bound.start)

        def quantise(block: Block) -> None:
            rows = block.rows
            gradients = self._gradients(loss, block, self._shard.weight[rows], start)
            if drawn:
                assert isinstance(query, HistogramQuery)
                chances = self._draw_by_size(query, gradients, block, drawn)
                gradients = gradients[0] / chances, gradients[1] / chances
            of_outputs = zip(*map(np.atleast_2d, gradients), self._pairs, strict=True)
            for gradient, hessian, pairs in of_outputs:
                of_rows = pairs[rows]
                if bound is None:
                    fixedpoint_kernels.quantise(gradient, hessian, *factors, limit, of_rows)
                else:
                    bound.quantise(gradient, hessian, of_rows)
                if not isinstance(rows, slice):  # of which they were a copy
                    pairs[rows] = of_rows

        self._threads.each(quantise, self._blocks)

    def _sizes(self, block: Block) -> Int64:
        """Counts of the sizes of the gradients of those rows that trees grow on."""
        rows = block.rows
        gradients = self._gradients(self._loss, block, self._shard.weight[rows])
        sizes = sampling.sizes(*gradients, self._terms.trees.reg_lambda)
        return sampling.count_sizes(sizes if self._validation is None else sizes[~self._validation[rows]])

    def _draw_by_size(
        self, query: HistogramQuery, gradients: tuple[Float64, Float64], block: Block, drawn: Sequence[Mask]
    ) -> Float64:
        """Draw some of these rows for each parallel tree; their chances."""
        terms, keys, rows = self._terms, self._shard.keys, block.rows
        assert keys is not None
        sizes = sampling.sizes(*gradients, terms.trees.reg_lambda)
        chances = sampling.chances(sizes, query.threshold, terms.draws.subsample)
        for tree, of_tree in enumerate(drawn):
            of_tree[rows] = sampling.drawn_with(keys[rows], chances, *self._salt(query.tree, tree))
        return chances

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._shard.rows

    def rows_hashed(self, key: bytes) -> bytes:
        """An HMAC of all that answers are made of: the rows as the terms want them, and the versions of what
        computes with them. 32 bytes."""
        shard = self._shard
        hashed = hmac.new(key, repr((VERSION, self._terms.objective.package)).encode(), "sha256")
        beside = shard.label, shard.weight, shard.keys, shard.validation, shard.base_margin, shard.group
        for values in beside:
            hashed.update(b"-" if values is None else values.dtype.str.encode())
            hashed.update(b"" if values is None else np.ascontiguousarray(values).data)
        for column in self.columns:
            for start in range(0, column.size, _VALUES):
                block = np.ascontiguousarray(column[start : start + _VALUES], np.float32)
                hashed.update(block.data)
        return hashed.digest()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The features' values, read again if they were binned before."""
        return self._shard.columns or self._read().columns

    def _bin(self, query: StartQuery) -> None:
        binned = query.cut_points.bin_rows(self.columns, self._threads, self._shard.room)
        self._binned = binned, query.cut_points, Layout.of(query.cut_points)
        self._shard = replace(
            self._shard, columns=()
        )  # four bytes a value that nobody wants again, as a rule

    def _start(self, query: StartQuery) -> Int64:
        if self._binned is not None:
            raise PeerError("the cut points were given already")
        self._bin(query)
        self._quantise(self._loss.start, query)
        pairs = self._pairs[0] if self._validation is None else self._pairs[0][~self._validation]
        return np.array(sum_pairs(pairs), np.int64)

    def _histograms(self, query: HistogramQuery) -> Int64:
        binned, _, layout = self._started()
        if query.bins != layout.bins:
            raise PeerError(f"histograms of {query.bins} bins, the cut points make {layout.bins}")
        if self._terms.histograms.vote_top_k:
            return self._elected(query)
        self._grow(query)
        nodes = [self._nodes.of(node) for node in query.nodes]
        out = np.zeros((len(nodes), layout.cells + histogram.STATS), np.int64)
        pairs = [self._pairs_of(node) for node in query.nodes]
        histogram.build(binned, nodes, pairs, layout, query.gradient.limit, out, self._threads)
        return out.reshape(-1)

    def _sums(self, query: SumsQuery) -> Int64:
        """Sums over the rows of each leaf."""
        self._started()
        tree = self.state.tree
        if query.tree != tree or self.state.levels:
            raise PeerError(f"sums in the leaves of tree {query.tree} while tree {tree} grows, or again")
        self._quantise(self._loss, query)
        self._split(query.splits)
        pairs = (self._pairs_of(node)[self._nodes.of(node)] for node in query.nodes)
        return np.array([sum_pairs(of_node) for of_node in pairs], np.int64).reshape(-1)

    def _grow(self, query: TreeQuery) -> None:
        """Apply the splits of a question about the tree that grows."""
        tree, levels = self.state.tree, self.state.levels
        if query.tree != tree:
            raise PeerError(f"a query for tree {query.tree} while tree {tree} grows")
        if self.state.residual is not None:
            raise PeerError(f"tree {tree}: a question about nodes after one about residuals")
        if self.state.scales not in (None, Scales.of(query)):
            raise PeerError(
                f"tree {tree}: a question about nodes whose gradients are scaled or drawn otherwise than the "
                f"root's"
            )
        if (levels == 0) != (query.nodes == self._terms.roots):
            raise PeerError(f"tree {tree}: the root must be asked for once, and first")
        if levels == self._terms.levels:
            raise PeerError(f"tree {tree}: more levels than the terms allow")
        if self._terms.histograms.vote_top_k and isinstance(query, VoteQuery) != bool(levels % 2):
            raise PeerError(f"tree {tree}: votes and histograms take turns")
        if not self._quantised:
            trees = self._terms.trees.num_parallel_tree if self._terms.draws.draws_by_size else 0
            drawn = [np.zeros(self.rows, np.bool_) for _ in range(trees)]
            self._quantise(self._loss, query, drawn)
            if drawn:
                self._begin_on([self._grown_on() & of_tree for of_tree in drawn])
                self._split(self.state.splits)
            self._quantised = True
        self._split(query.splits)

    def _begin_tree(self, number: int) -> None:
        """Draw the rows that a tree grows on; where the sizes of gradients decide, that waits for those."""
        if self._others is None:
            return self._nodes.begin()
        trees = range(self._terms.trees.num_parallel_tree)
        if self._terms.draws.most_copies == 1:
            return self._begin_on([self._drawn(number, tree) for tree in trees])
        members = [self._copied(number, tree) for tree in trees]
        self._nodes.begin(members * self._loss.outputs)
        return self._others.begin()

    def _begin_on(self, drawn: list[Mask]) -> None:
        """The tree grows on these rows, of each parallel tree, each counting once."""
        assert self._others is not None
        members = [[np.flatnonzero(rows == chosen) for rows in drawn] for chosen in (True, False)]
        for nodes, of_trees in zip((self._nodes, self._others), members, strict=True):
            nodes.begin([rows.astype(np.uint32) for rows in of_trees] * self._loss.outputs)

    def _grown_on(self) -> Mask:
        """The rows that trees grow on, if they are drawn."""
        return np.ones(self.rows, np.bool_) if self._validation is None else ~self._validation

    def _drawn(self, number: int, tree: int) -> Mask:
        """The rows that a tree grows on: the same for all outputs, others for each parallel tree."""
        rows = self._grown_on()
        if self._terms.draws.subsample < 1.0 and not self._terms.draws.draws_by_size:
            assert self._shard.keys is not None
            rows &= sampling.drawn(self._shard.keys, self._terms.draws.subsample, *self._salt(number, tree))
        return rows

    def _copied(self, number: int, tree: int) -> Rows:
        """The rows that a tree grows on, each as often as it is drawn: the same for all outputs."""
        assert self._shard.keys is not None
        copies = sampling.copies(self._shard.keys, self._terms.draws.subsample, *self._salt(number, tree))
        return np.repeat(np.arange(self.rows, dtype=np.uint32), copies * self._grown_on())

    def _salt(self, number: int, tree: int) -> tuple[int, str, int, int]:
        return self._terms.draws.seed, "subsample", self._terms.first_tree + number, tree

    def _pairs_of(self, node: int) -> Int64:
        """The gradients and hessians that a node of the tree that grows has sums of."""
        pairs: Int64 = self._pairs[self._nodes.root_of(node) // self._terms.trees.num_parallel_tree]
        return pairs

    def _split(self, splits: tuple[Split, ...]) -> None:
        """Send rows to the children of nodes of the tree that grows."""
        binned, cut_points, _ = self._started()
        for nodes in filter(None, (self._nodes, self._others)):
            nodes.apply(splits, binned, cut_points)

    def _votes(self, query: VoteQuery) -> Int64:
        self._grow(query)
        own, (_, _, layout) = self._own_of(query), self._started()
        own.descend(query.splits, query.nodes, MAX_CELLS)
        share = min(self.rows / query.rows, 1.0)
        rule = self._terms.rule(query.gradient, query.hessian).scaled(share)
        most = self._terms.histograms.vote_top_k
        return np.concatenate(
            [vote(own.of(node)[: layout.cells], layout, rule, most) for node in query.nodes]
        )

    def _elected(self, query: HistogramQuery) -> Int64:
        """The bins of some features of each node; of all at the root."""
        self._grow(query)
        own, (_, _, layout) = self._own_of(query), self._started()
        out = []
        everything = [Elected(layout.features, layout.bins)] * len(query.nodes)
        for node, elected in zip(query.nodes, query.elected or everything, strict=True):
            sums = own.of(node)
            picked = layout.pick(sums[: layout.cells], elected.features)
            if picked.size != histogram.STATS * elected.bins:
                raise PeerError(f"histograms of {elected.bins} bins, the elected features have others")
            out += [picked, sums[layout.cells :]]
        return np.concatenate(out)

    def _residuals(self, query: ResidualQuery) -> Int64:
        """Weights of the residuals of each node, by cell."""
        self._started()
        tree, levels = self.state.tree, self.state.levels
        before = tree == CONSTANT_TREE
        most = RESIDUAL_TURNS if before else self._terms.levels
        if query.tree != tree or levels >= most or (levels == 0 and not before):
            raise PeerError(f"residuals of tree {query.tree} after {levels} questions about tree {tree}")
        if self.state.residual is not None and not query.narrows(self.state.residual):
            raise PeerError(f"residuals of tree {tree} in cells that are not within those asked for before")
        self._split(query.splits)
        nodes = (
            [np.flatnonzero(self._grown_on()).astype(np.uint32)]
            if before
            else [self._nodes.of(node) for node in query.nodes]
        )
        out = np.zeros((len(nodes), 1 << RESIDUAL_BITS), np.int64)
        scale = query.weight.factor, float(query.weight.limit)

        def weigh(piece: tuple[Rows, int, Int64]) -> None:
            rows, start, cells = piece
            of_rows = self._shard.label, self._margin[0], self._shard.weight, rows
            weigh_residuals(*of_rows, start, query.width, RESIDUAL_BITS, *scale, cells)

        self._threads.each(weigh, list(zip(nodes, query.starts, out, strict=True)))
        return out.reshape(-1)

    def _own_of(self, query: TreeQuery) -> OwnHistograms:
        """This party's own histograms of the tree that grows."""
        if self._own is None:
            binned, _, layout = self._started()
            self._own = OwnHistograms(
                binned, layout, self._nodes, self._pairs_of, query.gradient.limit, self._threads
            )
        return self._own

    def _end_round(self, query: EndRoundQuery) -> Int64:
        self._started()
        if query.tree != self.state.tree:
            raise PeerError(f"the end of tree {query.tree} while tree {self.state.tree} grows")
        self._end_tree(query.tree, query.splits, query.values)

        def sums(block: Block, chosen: Mask | None) -> Int64:
            block = block if chosen is None else block.only(chosen)
            label, weight = self._shard.label[..., block.rows], self._shard.weight[block.rows]
            loss = in_groups(self._loss, block.starts)
            return metrics.sums(query.metrics, loss, self._margins(block), label, weight, query.weight)

        validation, own, sets = self._validation, dict[str, Int64](), []
        nothing = np.zeros(metrics.cells(query.metrics), np.int64)
        for name in query.sets:
            party, of_party, of = name.rpartition(metrics.OF_PARTY)
            if of not in own:
                chosen = None if validation is None else validation == (of == metrics.VALIDATION)
                own[of] = self._sum(partial(sums, chosen=chosen))
            sets.append(own[of] if not of_party or party == self._name else nothing)
        exponents = partial(self._exponents, self._loss)
        counted = [exponents] * query.exponents + [self._sizes] * query.sizes
        return np.concatenate([np.zeros(0, np.int64), *sets, *map(self._sum, counted)])

    def _end_tree(self, number: int, splits: tuple[Split, ...], values: Values) -> None:
        """Split the last nodes of a tree, and move each row's margin by its leaf's value; the next begins."""
        self._split(splits)
        several = self._terms.draws.most_copies > 1
        for nodes in filter(None, (None if several else self._nodes, self._others)):
            nodes.add_values(dict(values), self._margin)
        self._begin_tree(number + 1)
        self._quantised, self._own = False, None

    def _started(self) -> tuple[BinnedRows, CutPoints, Layout]:
        if self._binned is None:
            raise PeerError("no cut points were given yet")
        return self._binned


def _validation_of(shard: Shard, terms: Terms) -> Mask | None:
    """The rows that no tree grows on: those of the column, or those that are drawn."""
    if terms.columns.validation is not None:
        assert shard.validation is not None
        return shard.validation
    if not terms.evaluation.validation_fraction:
        return None
    keys = shard.keys if shard.group is None else shard.group  # of a group all rows or none
    assert keys is not None
    return sampling.drawn(keys, terms.evaluation.validation_fraction, terms.draws.seed, "validation")


def holder_of(read: Callable[[Terms], Shard], name: str, nthread: int = 1) -> Callable[[Terms], Party]:
    """A `Site.holder`: reads the rows of party `name` and holds them. `read` raises Refused."""
    return lambda terms: Party(partial(read, terms), terms, nthread, name)
