"""Slots: the positions of gradient and hessian sums in a plaintext.

Guarantees: every sum fits in its slot, so none overflows into the next. `read` returns the exact sums.
Raises: LocalProtocolError for rows that exceed the bound for which the slots were made, ConfigError for keys
too short for one cell, and SessionFailed for plaintexts that cannot be sums (the cause is unknown).

A cell is a pair of sums, G of gradients and H of hessians, in two slots of s bits: G + 2**s H. If G is
negative, it borrows from H. Many cells share one plaintext, the first cell in the lowest slots. Before
decryption, 2**(s - 1) is added to each G, so that each slot is a non-negative number by itself."""

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
"""A node of a tree: the number of its root, and the indices of the node's rows."""

_HALF = 32
"""Number of bits of a packed hessian. A packed pair is gradient * 2**32 + hessian."""
_WORD_BYTES = 8
"""Maximum size of a slot in bytes. `cell_bits` rejects wider sums."""


class Threads(Protocol):
    """Interface of a thread pool, such as `gbdt.threads.Threads`."""

    number: int

    def each(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
        """Call work(piece) for each piece in the threads. Returns the results in the order of the pieces."""


@dataclass(frozen=True)
class Slots:
    """The positions of sums in a plaintext.

    limit: maximum magnitude of a row's gradient and hessian; largest: maximum magnitude of a sum; width:
    bytes per slot; cells: cells per plaintext."""

    limit: int
    largest: int
    width: int
    cells: int

    @classmethod
    def of(cls, limit: int, rows: int, key_bits: int) -> "Slots":
        """Create slots for sums over at most `rows` rows, whose gradients and hessians have a magnitude of at
        most `limit`. A plaintext consists of whole bytes and is below the key's modulus. Raises ConfigError
        if the key is too short for one cell."""
        # A sum's magnitude is at most limit * rows < 2**(cell_bits - 1) <= 2**(s - 1), so biased it is in a
        # slot of s = 8 width bits. A plaintext has at most |n| - 1 bits: it is below n, so sums never wrap
        # modulo n.
        width = -(-cell_bits(limit, rows) // 8)
        cells = (key_bits - 1) // 8 // (2 * width)
        if cells < 1:
            raise ConfigError(
                "key-too-short",
                f"a key of {key_bits} bits is too short for sums of {8 * width} bits; use a longer key, or "
                f"lower gradient_bits",
            )
        return cls(limit, limit * max(rows, 1), width, cells)

    @property
    def shift(self) -> int:
        """Number of bits from one cell to the next: two slots."""
        return 16 * self.width

    def ciphertexts(self, cells: int) -> int:
        """Return the number of ciphertexts in a report of `cells` cells."""
        return -(-cells // self.cells)

    def plain(self, pairs: Int64) -> list[int]:
        """Return the plaintexts of rows from their packed pairs, int64 [rows]. A plaintext is negative if its
        gradient is negative and its hessian is 0. Raises LocalProtocolError if a gradient or hessian exceeds
        `limit`."""
        gradients, hessians = pairs >> _HALF, pairs & ((1 << _HALF) - 1)
        if _magnitude(gradients, hessians) > self.limit:
            raise LocalProtocolError("gradient-out-of-bound", "a gradient or hessian exceeds its slot")
        bits = 8 * self.width
        return [g + (h << bits) for g, h in zip(gradients.tolist(), hessians.tolist(), strict=True)]

    def bias(self, cells: int) -> int:
        """Return what is added to a plaintext of `cells` cells so that no gradient sum is negative."""
        #     slots    [ G0 + half ][ H0 ][ G1 + half ][ H1 ] ...
        # A negative G has borrowed 1 from the H above it; G + half is not negative, so that H gets it back.
        half = 1 << (8 * self.width - 1)
        return sum(half << (self.shift * cell) for cell in range(cells))

    def read(self, plain: Sequence[Any], cells: int) -> Int64:
        """Return the sums in decrypted plaintexts that include the bias: gradients and hessians, int64
        [cells, 2]. Raises SessionFailed if the numbers cannot be sums."""
        row_bytes = 2 * self.width * self.cells
        if len(plain) != self.ciphertexts(cells):
            raise LocalProtocolError(
                "plaintexts-number", f"{cells} cells cannot be read from {len(plain)} plaintexts"
            )
        if any(int(m).bit_length() > 8 * row_bytes for m in plain):
            raise SessionFailed("plaintext-impossible", IMPOSSIBLE)
        data = b"".join([int(m).to_bytes(row_bytes, "little") for m in plain])
        slots = np.frombuffer(data, np.uint8).reshape(-1, 2, self.width)
        if slots[cells:].any():
            raise SessionFailed("plaintext-impossible", IMPOSSIBLE)
        words = np.zeros((cells, 2, _WORD_BYTES), np.uint8)
        words[..., : self.width] = slots[:cells]
        sums = words.view("<u8")[..., 0]
        # The subtraction wraps modulo 2**64, and int64 reads the result in two's complement. So it is right
        # for slots of 8 bytes, too, whose bias 2**63 is beyond int64.
        sums[:, 0] -= np.uint64(1 << (8 * self.width - 1))
        found = sums.view("<i8").astype(np.int64, copy=False)
        if _magnitude(*found.T) > self.largest or (found[:, 1] < 0).any():
            raise SessionFailed("plaintext-impossible", IMPOSSIBLE)
        return found


def _magnitude(gradients: Int64, hessians: Int64) -> int:
    """Return the maximum magnitude of all gradients and hessians. Negative hessians are ignored."""
    if not gradients.size:
        return 0
    return max(-int(gradients.min()), int(gradients.max()), int(hessians.max()))


# ---- Segments: which numbers are multiplied for the sums of nodes by column and bin ---------------------
# Two columns are summed at a time, first by their joint bins, then each column from these. So two columns of
# a node take one product per row and two per joint bin in use, instead of two per row. Callers have validated
# rows and codes.
# `members`, int64 [M], has indices into a list of numbers; `starts`, int64 [S + 1], has the start of each
# segment of members, and the end. The product of an empty segment is 1.


Joint = npt.NDArray[np.uint16]


class Segments(NamedTuple):
    """Groups of indices into a list of numbers. Segment s consists of members[starts[s] : starts[s + 1]]."""

    members: Int64
    starts: Int64


def plan(nodes: Sequence[Node], codes: Codes, bins: Sequence[int]) -> tuple[Segments, Segments]:
    """Plan products in two steps: segments of rows by joint bin, then segments of the resulting products by
    node, column and bin.

    Args:
        nodes: the root and row indices of each node.
        codes: bin of each row, uint8 [columns, rows].
        bins: number of bins of each column, at most 256.

    The index of a row for a root is root * rows + row."""
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
    """Return the segments of a node's rows by the joint bins of one or two columns. Also returns, for each
    column, the segments of the resulting products by the column's bins."""
    width = bins[1] if len(bins) == 2 else 1
    # The largest joint bin is 255 * 256 + 255 = 2**16 - 1, so that uint16 suffices.
    joint: Joint = codes[0].astype(np.uint16) * np.uint16(width)
    if len(bins) == 2:
        joint += codes[1]
    order = np.argsort(joint, kind="stable")  # a radix sort, as codes have 16 bits
    ordered = joint[order]
    # What is prepended differs from the first bin, so that one begins a segment, too. uint16 differences
    # wrap, but are 0 only between equal bins.
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] + np.uint16(1))) if ordered.size else order
    # For example, with bins of a column of 3 and one of 2 (width 2):
    #     joint bin    0 = (0, 0)   2 = (1, 0)   3 = (1, 1)   5 = (2, 1)      used
    #     column 0     [ 0 ]        [ 1            1 ]        [ 2 ]           used // 2
    #     column 1     [ 0            0 ]        [ 1            1 ]           used % 2
    used = ordered[begins].astype(np.int64)
    folds = [by_bin(of_column, size) for of_column, size in zip(divmod(used, width), bins, strict=False)]
    return Segments(order, np.append(begins, ordered.size)), folds


def by_bin(codes: Int64, bins: int) -> Segments:
    """Group indices by code. Returns one segment for each code below `bins`."""
    order = np.argsort(codes, kind="stable")
    return Segments(order, np.searchsorted(codes[order], np.arange(bins + 1)))


def _joined(parts: Sequence[Segments]) -> Segments:
    if not parts:
        return Segments(np.zeros(0, np.int64), np.zeros(1, np.int64))
    sizes = np.concatenate([np.diff(starts) for _, starts in parts])
    return Segments(np.concatenate([members for members, _ in parts]), np.append(0, np.cumsum(sizes)))


def cut(starts: Int64, longest: int) -> tuple[Int64, Int64]:
    """Cut segments into pieces of at most `longest` members. Returns two arrays: the start of each piece in
    the members, and the start of each segment in the pieces. The last element of each array is the end."""
    # For example, longest = 4:
    #     segments    [ 0 1 2 3 4 5 ][ 6 7 8 ]      starts 0, 6, 9
    #     pieces      [ 0 1 2 3 ][ 4 5 ][ 6 7 8 ]   starts 0, 4, 6, 9; segments start at pieces 0, 2 (end: 3)
    sizes = np.diff(starts)
    pieces = -(-sizes // longest)
    ends = np.append(0, np.cumsum(pieces))
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], pieces)
    return np.append(np.repeat(starts[:-1], pieces) + longest * within, starts[-1]), ends


def shares(starts: Int64, number: int) -> list[slice]:
    """Divide segments into at most `number` consecutive slices, one per thread, so that the segments of each
    slice have about the same total number of members. starts: index of each segment's first member, and the
    total."""
    edges = np.searchsorted(starts, np.linspace(0, starts[-1], number + 1)[1:-1])
    bounds = [0, *edges.tolist(), starts.size - 1]
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]
