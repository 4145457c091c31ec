"""Prediction by parties that hold different columns: each party computes which leaves a row can reach.

For each row, and for each tree in which a party has a node, the party reports one bit per leaf (leaf bits). A
bit is 0 if the party's own decisions rule the leaf out, else 1. A bitwise AND of all parties' bits leaves
only the leaf in which the row ends.

    party A    1 1 0 0 1 1      A's nodes rule out leaves 2 and 3
    party B    0 1 1 1 0 1      B's nodes rule out leaves 0 and 4
    party C    1 1 1 1 1 0      C's node rules out leaf 5
    AND        0 1 0 0 0 0      leaf 1

Guarantees: exactly one leaf is left in each tree, the same as in the whole model: `margins` equals
`Booster.margins` to the last bit. The number of bytes per row depends only on the trees' structure and on
which party has which node, never on data: ceil(leaves / 8) for each tree in which a party has a node.

Raises: PeerError, naming the party, if bits have the wrong size, or if they are impossible and leave no leaf
or several leaves. Bits that are possible but false cannot be detected. The recipient of the bits learns the
outcome of each of the party's decisions for every row, even at nodes that the row never reaches. The only
exceptions are branches that another of the party's nodes already rules out.

Leaf bits: Lucchese et al., QuickScorer, https://doi.org/10.1145/2766462.2767733."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import LocalProtocolError, PeerError
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.booster import Booster, add_contributions, node_columns
from fedboost.gbdt.kernels import predict as kernels
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.threads import ONE, Threads, blocks
from fedboost.gbdt.tree import NO_CHILD, Bytes, Int32, Tree, all_nodes, inner_nodes

_JOINED = 1 << 10
"""Number of rows whose bits, for all trees, are combined at a time."""
_SIDES = 1 << 18
"""Maximum number of rows times leaves of a tree for which sides are computed at a time."""


@dataclass(frozen=True, eq=False)
class Structure:
    """Structure of all trees, known to every party: each node's children and the party that decides at the
    node.

    roots: int64 [trees], the first node of each tree; left: int64 [nodes], left children, counted from the
    root, NO_CHILD for leaves; holder: int64 [nodes], index in `parties` of the party that has the node's
    column, -1 for leaves."""

    parties: tuple[str, ...]
    roots: Int64
    left: Int64
    holder: Int64

    @classmethod
    def of(cls, trees: Sequence[Tree], parties: tuple[str, ...], holders: Int64) -> "Structure":
        """Build the structure of these trees. parties: names of the parties.

        holders: int64 [features], index in `parties` of the party that has each feature. Features with higher
        numbers stand for undisclosed features of the first party, the second party, and so on."""
        roots, left = np.cumsum([0, *map(len, trees)])[:-1].astype(np.int64), all_nodes(trees)["left"].copy()
        holder = np.full(left.size, -1, np.int64)
        known = np.concatenate([holders, np.arange(len(parties))])
        holder[left != NO_CHILD] = known[inner_nodes(trees)["feature"]]
        return cls(parties, roots, left, holder)

    def size(self, party: str) -> int:
        """Return the number of bytes of leaf bits that this party sends for a row."""
        return self._places[party].size

    @cached_property
    def _tree(self) -> Int64:
        return np.repeat(np.arange(self.roots.size), np.diff([*self.roots, self.left.size])).astype(np.int64)

    @cached_property
    def _ranges(self) -> Int64:
        """Begin, middle and end of each node's leaves, int64 [3, nodes]. A node covers leaves begin to end -
        1, and its right child covers leaves middle to end - 1. Leaves are numbered within their tree from the
        left."""
        left = np.where(self.left == NO_CHILD, NO_CHILD, self.left + self.roots[self._tree]).tolist()
        count = [1] * len(left)
        for node in range(len(left) - 1, -1, -1):  # children come after their parents
            if left[node] != NO_CHILD:
                count[node] = count[left[node]] + count[left[node] + 1]
        begin = [0] * len(left)
        middle = [0] * len(left)
        for node, child in enumerate(left):
            if child != NO_CHILD:
                middle[node] = begin[child + 1] = begin[node] + count[child]
                begin[child] = begin[node]
        return np.array([begin, middle, np.add(begin, count)], np.int64).reshape(3, -1)

    @cached_property
    def _leaves(self) -> Int64:
        leaves: Int64 = self._ranges[2][self.roots]
        return leaves

    @cached_property
    def _nodes(self) -> Int32:
        """Node number of each leaf within its tree, in the order of trees, then of leaves."""
        leaves = np.flatnonzero(self.left == NO_CHILD)
        ordered = leaves[np.lexsort((self._ranges[0][leaves], self._tree[leaves]))]
        return (ordered - self.roots[self._tree[ordered]]).astype(np.int32)

    @cached_property
    def _places(self) -> dict[str, Int64]:
        """For each party, the bytes that it sends, as indices into the bytes of all trees."""
        sizes = -(-self._leaves // 8)
        return {
            party: np.flatnonzero(np.repeat(self._trees_of(place), sizes)).astype(np.int64)
            for place, party in enumerate(self.parties)
        }

    @cached_property
    def _runs(self) -> dict[str, Int64]:
        """For each party, the runs of consecutive bytes that `kernels.predict.keep_open` takes."""
        runs = {}
        for party, places in self._places.items():
            starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
            sizes = np.diff(starts, append=places.size)
            runs[party] = np.stack([starts, places[starts], sizes], axis=1).astype(np.int64)
        return runs

    def bytes_of(self, party: str, tree: int) -> slice:
        """Return where a party's bytes for a tree are among all that it sends for a row."""
        ends = np.cumsum([0, *-(-self._leaves // 8)])[tree : tree + 2]
        return slice(*np.searchsorted(self._places[party], ends))

    def sides(self, tree: int, bits: Mapping[str, Bytes]) -> Float32:
        """Return the side to which rows go at each inner node of a tree: float32 [rows, inner nodes], 1
        right, 0 left. At nodes that others of the same party rule out it is 0. bits: uint8 [rows, `size`]
        of every party."""
        nodes = slice(*np.append(self.roots, self.left.size)[tree : tree + 2])
        left, holder, begin = self.left[nodes], self.holder[nodes], self._ranges[0][nodes]
        is_leaf = left == NO_CHILD
        inner = np.flatnonzero(~is_leaf)
        out = np.empty((len(bits[self.parties[0]]), inner.size), np.float32)
        open_ = np.empty((left.size, len(out)), np.bool_)  # a leaf below the node is open
        for place, party in enumerate(self.parties):
            own = holder[inner] == place
            if not own.any():
                continue
            by_leaf = np.unpackbits(bits[party][:, self.bytes_of(party, tree)], axis=1, bitorder="little")
            open_[is_leaf] = by_leaf.T[begin[is_leaf]]
            for node in inner[::-1]:  # children come after their parents
                np.logical_or(open_[left[node]], open_[left[node] + 1], out=open_[node])
            out[:, own] = open_[left[inner[own]] + 1].T
        return out

    def _trees_of(self, place: int) -> Mask:
        return np.bincount(self._tree[self.holder == place], minlength=self.roots.size) > 0

    @cached_property
    def _every_leaf(self) -> Bytes:
        """Leaf bits of one row for all trees, with every leaf possible."""
        every = np.zeros((self._leaves.size, 8 * (-(-self._leaves.max(initial=0) // 8))), np.bool_)
        used = np.arange(every.shape[1]) < 8 * (-(-self._leaves[:, np.newaxis] // 8))
        every |= np.arange(every.shape[1]) < self._leaves[:, np.newaxis]
        return np.packbits(every[used], bitorder="little")


@dataclass(frozen=True, eq=False)
class Decisions:
    """A party's decisions at its own nodes, in the order of the nodes in `structure`.

    feature: int64 [own], index of the column; threshold: float32 [own], rows with x < threshold go left;
    missing_left: bool [own]; by_level: bool [own], True for splits by categories; sets: uint64 [own, 4], bit
    c of the 256 is set if level c goes right."""

    structure: Structure
    party: str
    feature: Int64 = field(repr=False)
    threshold: Float32 = field(repr=False)
    missing_left: Mask = field(repr=False)
    by_level: Mask = field(repr=False)
    sets: npt.NDArray[np.uint64] = field(repr=False)

    @classmethod
    def of(
        cls, structure: Structure, party: str, trees: Sequence[Tree], columns: Sequence[int]
    ) -> "Decisions":
        """Extract a party's decisions from its trees.

        Args:
            structure: structure of all trees.
            trees: the trees as this party knows them; of other parties' nodes, only the structure is read.
            columns: feature number of each of the party's columns.
        """
        _, _, _, feature, threshold, missing_left, _, set_of, sets = node_columns(trees)
        own = structure.holder == structure.parties.index(party)
        column_of = {number: column for column, number in enumerate(columns)}
        column = np.array([column_of[number] for number in feature[own].tolist()], np.int64)
        chosen = set_of[own].astype(np.int64)
        return cls(structure, party, column, threshold[own], missing_left[own], chosen > 0, sets[chosen])

    def leaf_bits(self, features: Float32, threads: Threads = ONE) -> Bytes:
        """Compute the leaf bits of rows: uint8 [rows, `structure.size`].

        For each tree in which the party has a node there are ceil(leaves / 8) bytes. The leftmost leaf has
        the lowest bit, and bits after the last leaf are 0. features: float32 [rows, columns], the party's
        columns, NaN if missing. A value that is not a category goes left, as in `Booster.predict`. Raises
        LocalProtocolError if there are too few columns."""
        structure, place = self.structure, self.structure.parties.index(self.party)
        rows = np.ascontiguousarray(features, np.float32)
        if rows.shape[1] <= self.feature.max(initial=-1):
            raise LocalProtocolError(
                "columns-too-few",
                f"the rows have only {rows.shape[1]} columns, but nodes of party {self.party} use more",
            )
        bits = np.empty((len(rows), structure.size(self.party)), np.uint8)
        own, trees = structure.holder == place, structure._trees_of(place)
        counts = np.bincount(structure._tree[own], minlength=trees.size)[trees]
        nodes: tuple[npt.NDArray[Any], ...] = (
            np.cumsum([0, *counts]).astype(np.int64),
            structure._leaves[trees],
            self.feature,
            self.threshold,
            ~self.missing_left,
            self.by_level,
            self.sets,
            *np.ascontiguousarray(structure._ranges[:, own]),
        )
        threads.each(lambda part: kernels.leaf_bits(rows[part], *nodes, bits[part]), blocks(len(rows)))
        return bits


def joined(
    structure: Structure, bits: Mapping[str, bytes | Bytes], rows: int, threads: Threads = ONE
) -> Int32:
    """Combine the leaf bits of all parties. Returns int32 [rows, trees], the node number of each row's leaf
    within the tree.

    Args:
        structure: structure of all trees.
        bits: for each party that has a node, the result of `leaf_bits`.
        rows: number of rows.

    Raises:
        PeerError: if bits have the wrong size, or do not leave exactly one leaf.
    """
    parts = {}
    for party in structure.parties:
        if size := structure.size(party):
            part = np.frombuffer(bits[party], np.uint8)
            if part.size != rows * size:
                raise PeerError(
                    "leaf-bits-size",
                    f"party {party} sent {part.size} bytes of leaf bits, but must send {rows * size}: "
                    f"{size} for each of {rows} rows",
                )
            parts[party] = part.reshape(rows, size)
            parts[party].setflags(write=False)  # like arrays of bytes objects: one array type for numba
    leaf = np.empty((rows, structure.roots.size), np.int32)
    byte_ends = np.cumsum([0, *-(-structure._leaves // 8)]).astype(np.int64)
    leaf_ends = np.cumsum([0, *structure._leaves]).astype(np.int64)

    def join(first: int) -> None:
        part = slice(first, min(first + _JOINED, rows))
        open_ = np.empty((part.stop - first, structure._every_leaf.size), np.uint8)
        open_[:] = structure._every_leaf
        for party, own in parts.items():
            kernels.keep_open(own[part], structure._runs[party], open_)
        fault = kernels.exit_leaves(open_, byte_ends, leaf_ends, structure._nodes, leaf[part])
        if fault >= 0:
            row, tree = divmod(fault, leaf.shape[1])
            raise _fault(structure, {party: own[first + row] for party, own in parts.items()}, tree)

    threads.each(join, range(0, rows, _JOINED))
    return leaf


def _fault(structure: Structure, bits: Mapping[str, Bytes], tree: int) -> PeerError:
    """Return the error that names the party whose bits are impossible. Bits that result from decisions always
    leave exactly one leaf, so at least one party's bits are impossible."""
    for party, own in bits.items():
        of_tree = own[structure.bytes_of(party, tree)]
        if of_tree.size and not _decided(structure, party, tree, of_tree):
            return PeerError(
                "leaf-bits-impossible",
                f"party {party} sent an invalid prediction for tree {tree}: no combination of its decisions "
                f"gives these leaf bits",
            )
    raise AssertionError("the decisions of all parties leave one leaf")


def _decided(structure: Structure, party: str, tree: int, of_tree: Bytes) -> bool:
    """Return whether any decisions of a party can produce these bits for a tree."""
    place = structure.parties.index(party)
    nodes = np.flatnonzero(structure._tree == tree)
    bits = np.unpackbits(of_tree, bitorder="little").astype(bool).tolist()
    left, holder = structure.left[nodes].tolist(), structure.holder[nodes].tolist()
    begin = structure._ranges[0][nodes].tolist()
    # From the leaves up, with A and B the children of a node:
    #     the party's node     sound if one child is sound and the other ruled out entirely
    #     another's node       sound if both children are sound, as this party rules out neither
    shut = [False] * len(nodes)  # no leaf below is open
    sound = [False] * len(nodes)  # the leaves below are as decisions leave them, unless shut from above
    for node in range(len(nodes) - 1, -1, -1):  # children come after their parents
        one, other = left[node], left[node] + 1
        if one == NO_CHILD:
            sound[node], shut[node] = bits[begin[node]], not bits[begin[node]]
            continue
        shut[node] = shut[one] and shut[other]
        if holder[node] == place:
            sound[node] = (sound[one] and shut[other]) or (shut[one] and sound[other])
        else:
            sound[node] = sound[one] and sound[other]
    return sound[0]


def margins(booster: Booster, leaves: Int32, base_margin: Float32 | None = None) -> Float64:
    """Compute margins like `Booster.margins`, but from each row's leaves. Only the leaf values of trees are
    read. Returns float64 [rows], or [outputs, rows] if there are several outputs.

    leaves: int32 [rows, trees], node numbers, from `joined`; base_margin: float32 [rows]."""
    outputs = booster.loss.outputs
    margin = np.empty((outputs, len(leaves)), np.float64)
    margin[:] = booster.constant if base_margin is None else base_margin
    values = [np.array(tree.value, np.float64) for tree in booster.trees]
    for part in (slice(first, first + _JOINED) for first in range(0, len(leaves), _JOINED)):
        for number, value in enumerate(values):
            margin[booster.output_of(number), part] += value[leaves[part, number]]
    return margin if outputs > 1 else margin[0]


# ---- What each party contributes to the margin of each row ----------------------------------------------
# The SHAP values of `Booster.contributions`, but each party's columns become known together, so that a party
# takes the place of a feature. They need no decision but those that the leaf bits show: at a node, a row goes
# right if its party's bits leave a leaf open there. If they leave none on either side, the party's decisions
# above have turned the row away, and its side counts no more.


def reasons(
    booster: Booster,
    structure: Structure,
    bits: Mapping[str, bytes | Bytes],
    rows: int,
    base_margin: Float32 | None = None,
    threads: Threads = ONE,
) -> Float64:
    """Compute the Shapley value of each party for each row's margin.

    Returns float64 [rows, parties + 1], or [rows, outputs, parties + 1] if there are several outputs. The
    last column is the expected margin if no party's columns are known. A row's values add up to its margin,
    to the rounding of float64. Of the trees, only leaf values and covers are read. base_margin: float32
    [rows]; other arguments: as for `joined`, which also checks the bits."""
    out = np.zeros((rows, booster.loss.outputs, len(structure.parties) + 1), np.float64)
    out[:, :, -1] = booster.constant if base_margin is None else base_margin[:, np.newaxis]
    trees = []
    for number, tree in enumerate(booster.trees):
        roots, left, right, _, _, _, value, _, _ = node_columns([tree])
        # A node's feature is the row's side at the node: 1.0 goes right, 0.0 goes left.
        size, no_sets = left.size, np.zeros((1, MAX_CODES // 64), np.uint64)
        by_side = np.cumsum(left >= 0) - 1, np.full(size, 0.5, np.float32), np.ones(size, np.bool_)
        nodes = roots, left, right, *by_side, value, np.zeros(size, np.uint64), no_sets
        group = structure.holder[structure.roots[number] :][:size]
        trees.append((nodes, np.array(tree.cover, np.float64), booster.output_of(number), group))

    every = {
        party: np.frombuffer(bits.get(party, b""), np.uint8).reshape(rows, structure.size(party))
        for party in structure.parties
    }
    step = max(1, _SIDES // int(structure._leaves.max(initial=1)))

    def explain(first: int) -> None:
        part = slice(first, first + step)
        told = {party: own[part] for party, own in every.items()}
        for number, (nodes, cover, output, group) in enumerate(trees):
            sides = structure.sides(number, told)
            add_contributions(sides, nodes, cover, output, out[part], group)

    threads.each(explain, range(0, rows, step))
    return out if booster.loss.outputs > 1 else out[:, 0]
