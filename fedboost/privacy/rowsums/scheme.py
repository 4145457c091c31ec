"""Slots: where the sums of gradients and hessians stand in a plaintext.

Promises: a slot holds every sum of its rows, so that none runs over into the next; `read` gives back what was
summed.
Refuses: rows beyond the bound that the slots were made for (LocalProtocolError), keys that are too short for
one cell (ConfigError), and plaintexts that no sums have (SessionFailed: the cause is unknown).

A cell is a pair of sums, of gradients and of hessians, in two slots of s bits: G + 2**s H. G may be negative,
and then borrows from H. Many cells fill one plaintext, the first cell in the lowest slots; before it is
opened, 2**(s - 1) is added to each G, so that every slot is a number of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError, LocalProtocolError, SessionFailed
from fedboost.fixedpoint import Int64, cell_bits
from fedboost.privacy.packing import IMPOSSIBLE

Piece = TypeVar("Piece")
Result = TypeVar("Result")
Rows = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.uint8]
Node = tuple[int, Rows]
"""The root that a node is below, and the numbers of the node's rows."""

_HALF = 32
"""Bits of a packed hessian: a packed pair is gradient * 2**32 + hessian."""
_WORD_BYTES = 8
"""A slot is no longer: `cell_bits` refuses wider sums."""


class Threads(Protocol):
    """Threads that share work, such as `gbdt.threads.Threads`."""

    number: int

    def each(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
        """Results of work(piece), in the order of the pieces."""


@dataclass(frozen=True)
class Slots:
    """limit: the magnitude of a row's gradient and hessian, at most; largest: that of a sum; width: bytes of
    a slot; cells: cells of a plaintext."""

    limit: int
    largest: int
    width: int
    cells: int

    @classmethod
    def of(cls, limit: int, rows: int, key_bits: int) -> "Slots":
        """Slots of sums over at most `rows` rows, whose gradients and hessians are at most `limit` in
        magnitude, in plaintexts of whole bytes below a key's modulus."""
        width = -(-cell_bits(limit, rows) // 8)
        cells = (key_bits - 1) // 8 // (2 * width)
        if cells < 1:
            raise ConfigError(
                f"a key of {key_bits} bits holds no sums of {8 * width} bits: take a longer key, or lower "
                f"gradient_bits"
            )
        return cls(limit, limit * max(rows, 1), width, cells)

    @property
    def shift(self) -> int:
        """Bits from one cell to the next."""
        return 16 * self.width

    def ciphertexts(self, cells: int) -> int:
        """Ciphertexts of a report of so many cells."""
        return -(-cells // self.cells)

    def plain(self, pairs: Int64) -> list[int]:
        """The plaintexts of rows, of their packed pairs, int64 [rows]; below 0 where a gradient is and its
        hessian is 0."""
        gradients, hessians = pairs >> _HALF, pairs & ((1 << _HALF) - 1)
        if _magnitude(gradients, hessians) > self.limit:
            raise LocalProtocolError("a row whose gradient or hessian is beyond the bound of its slot")
        bits = 8 * self.width
        return [g + (h << bits) for g, h in zip(gradients.tolist(), hessians.tolist(), strict=True)]

    def bias(self, cells: int) -> int:
        """What makes the gradients of so many cells of a plaintext positive: it is added to them."""
        half = 1 << (8 * self.width - 1)
        return sum(half << (self.shift * cell) for cell in range(cells))

    def read(self, plain: Sequence[Any], cells: int) -> Int64:
        """The sums in opened plaintexts, biased: int64 [cells, 2], gradients and hessians."""
        row_bytes = 2 * self.width * self.cells
        if len(plain) != self.ciphertexts(cells):
            raise LocalProtocolError(f"{len(plain)} plaintexts of {cells} cells")
        if any(int(m).bit_length() > 8 * row_bytes for m in plain):
            raise SessionFailed(IMPOSSIBLE)
        data = b"".join([int(m).to_bytes(row_bytes, "little") for m in plain])
        slots = np.frombuffer(data, np.uint8).reshape(-1, 2, self.width)
        if slots[cells:].any():
            raise SessionFailed(IMPOSSIBLE)
        words = np.zeros((cells, 2, _WORD_BYTES), np.uint8)
        words[..., : self.width] = slots[:cells]
        sums = words.view("<u8")[..., 0]
        sums[:, 0] -= np.uint64(1 << (8 * self.width - 1))
        found = sums.view("<i8").astype(np.int64, copy=False)
        if _magnitude(*found.T) > self.largest or (found[:, 1] < 0).any():
            raise SessionFailed(IMPOSSIBLE)
        return found


def _magnitude(gradients: Int64, hessians: Int64) -> int:
    """The largest magnitude of gradients, and of hessians that are not negative."""
    if not gradients.size:
        return 0
    return max(-int(gradients.min()), int(gradients.max()), int(hessians.max()))


# ---- Segments: which numbers are multiplied to have the sums of nodes by column and bin -----------------
# Promises: two columns are summed at a time, first by their joint bins, then each of the two from these:
# for two columns of a node, as many products as rows and joint bins in use, and not twice as many as rows.
# Refuses nothing: callers have validated rows and codes.
# `members` is int64 [M], positions in a list of numbers; `starts` int64 [S + 1], where each segment of
# members begins, and the end. The product of an empty segment is 1.


Joint = npt.NDArray[np.uint16]


class Segments(NamedTuple):
    """As above."""

    members: Int64
    starts: Int64


def plan(nodes: Sequence[Node], codes: Codes, bins: Sequence[int]) -> tuple[Segments, Segments]:
    """Segments of rows by joint bin, and segments of their products by node, column and bin.

    nodes: roots and rows; codes: uint8 [columns, rows], the bin of each row; bins: the bins of each column,
    at most 256. A row of a root has the position root * rows + row.
    """
    joint, folds, first = list[Segments](), list[Segments](), 0
    for root, rows in nodes:
        of_rows = rows.astype(np.int64)
        for column in range(0, len(bins), 2):
            by_bin, others = _pair(codes[column : column + 2, rows], bins[column : column + 2])
            joint.append(Segments(of_rows[by_bin.members] + root * codes.shape[1], by_bin.starts))
            folds += [Segments(members + first, starts) for members, starts in others]
            first += by_bin.starts.size - 1
    return _joined(joint), _joined(folds)


def _pair(codes: Codes, bins: Sequence[int]) -> tuple[Segments, list[Segments]]:
    """The rows of a node by joint bins of two columns, or of one, and their products by bins of each."""
    width = bins[1] if len(bins) == 2 else 1
    joint: Joint = codes[0].astype(np.uint16) * np.uint16(width)
    if len(bins) == 2:
        joint += codes[1]
    order = np.argsort(joint, kind="stable")  # of 16 bits: by radix
    ordered = joint[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] + np.uint16(1))) if ordered.size else order
    used = ordered[begins].astype(np.int64)
    folds = [by_bin(of_column, size) for of_column, size in zip(divmod(used, width), bins, strict=False)]
    return Segments(order, np.append(begins, ordered.size)), folds


def by_bin(codes: Int64, bins: int) -> Segments:
    """The segments of numbers by their codes, one for each code below `bins`."""
    order = np.argsort(codes, kind="stable")
    return Segments(order, np.searchsorted(codes[order], np.arange(bins + 1)))


def _joined(parts: Sequence[Segments]) -> Segments:
    """The segments of all parts, one part after the other."""
    if not parts:
        return Segments(np.zeros(0, np.int64), np.zeros(1, np.int64))
    sizes = np.concatenate([np.diff(starts) for _, starts in parts])
    return Segments(np.concatenate([members for members, _ in parts]), np.append(0, np.cumsum(sizes)))


def cut(starts: Int64, longest: int) -> tuple[Int64, Int64]:
    """Cut segments into pieces of at most `longest` members: where the pieces start, and where in the list of
    pieces those of each segment do."""
    sizes = np.diff(starts)
    pieces = -(-sizes // longest)
    ends = np.append(0, np.cumsum(pieces))
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], pieces)
    return np.append(np.repeat(starts[:-1], pieces) + longest * within, starts[-1]), ends


def shares(starts: Int64, number: int) -> list[slice]:
    """Share segments among so many threads, with about as many members each."""
    edges = np.searchsorted(starts, np.linspace(0, starts[-1], number + 1)[1:-1])
    bounds = [0, *edges.tolist(), starts.size - 1]
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]
