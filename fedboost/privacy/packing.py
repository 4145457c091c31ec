"""Packing: length-prefixed byte strings for hashes and signatures, and arrays of integers with few bits each.

Guarantees: `unpack(pack(*fields)) == fields`, and different fields never pack to the same bytes. Raises:
PeerError for bytes that `pack` could not have written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import kernels

RandomBytes = Callable[[int], bytes]
"""Returns the given number of random bytes from the operating system's cryptographic generator."""
Content = TypeVar("Content", bytes, memoryview)
LENGTH_BYTES, _SHORT = 4, 256
_LENGTHS = tuple(size.to_bytes(LENGTH_BYTES) for size in range(_SHORT))
"""Encoded lengths of short fields."""


def pack(*fields: bytes) -> bytes:
    """Encode fields as bytes. Each field is preceded by its length (four bytes, big-endian)."""
    packed = list[bytes]()
    for field in fields:
        size = len(field)
        packed += _LENGTHS[size] if size < _SHORT else size.to_bytes(LENGTH_BYTES), field
    return b"".join(packed)


def unpack(data: Content) -> list[Content]:
    """Decode the fields that `pack` encoded: bytes, or views if `data` is a view. Raises PeerError if the
    bytes end within a field."""
    fields, offset, size = [], 0, len(data)
    while offset < size:
        start = offset + LENGTH_BYTES
        end = start + int.from_bytes(data[offset:start])
        if start > size or end > size:
            raise PeerError("fields-cut-short", "the bytes end within a field")
        fields.append(data[start:end])
        offset = end
    return fields


def number(value: int) -> bytes:
    """Encode an integer of up to 64 bits as eight bytes, big-endian, signed."""
    return value.to_bytes(8, signed=True)


# ---- Integers to cells of 1 to 64 bits and back, each modulo 2**bits ------------------------------------
# A vector is a list of segments, each made of cells of one width. It is cut into chunks of CHUNK_CELLS cells,
# wherever segments end. A masked chunk has one more cell, its check cell. Within a chunk, each segment is a
# piece of whole 64-bit little-endian words, laid out as privacy/kernels.py describes.
# Guarantees: adding residues and taking the sign once at the end yields the exact sum if it fits a cell. The
# query states how many bits that takes.
# Raises: PeerError for bytes whose length is not that of the chunk.
# A word of the running sum has 64 bits. 2**bits divides 2**64, so the wrap of uint64 changes no residue
# modulo 2**bits. The bits above are meaningless until `signed` cuts them off.


CHUNK_CELLS = 1 << 16
"""Maximum number of cells in a chunk of a vector. With 8 bytes per cell, a chunk takes half a megabyte, which
is far below any message limit."""
WORD_BITS, WORD_BYTES = 64, 8
SPARSE = 0.5
"""Maximum share of nonzero cells for which a bitmap is worth the computing time."""

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Packed = bytes | bytearray | memoryview


class Segment(NamedTuple):
    """Consecutive cells of the same width. bits: number of bits per cell, 1 to 64."""

    cells: int
    bits: int


class Chunk:
    """A part of a vector that is sent as one message. start: index of its first cell; cells: number of cells;
    size: number of bytes when packed."""

    def __init__(self, start: int, pieces: list[tuple[int, int]]) -> None:
        """pieces: number of cells and bits per cell of each segment in the chunk."""
        self._pieces: Int64 = np.array(pieces, np.int64).reshape(-1, 2)
        self.start = start
        self.cells = sum([cells for cells, _ in pieces])
        self._words = sum([-(-cells * bits // WORD_BITS) for cells, bits in pieces])
        self.size = self._words * WORD_BYTES

    @property
    def pieces(self) -> Int64:
        """Number of cells and bits per cell of each segment in the chunk, int64 [P, 2]."""
        return self._pieces

    def of(self, vector: Words) -> Words:
        """Return a view of this chunk's cells in a whole vector."""
        return vector[self.start : self.start + self.cells]

    def add(self, total: Words, packed: Packed, flip: np.uint64 = kernels.ADDED) -> None:
        """Add packed cells to this chunk of a running sum, or subtract them. total: the chunk's words, uint64
        [cells]; flip: kernels.ADDED or SUBTRACTED. Raises PeerError if the number of bytes is wrong."""
        if len(packed) != self.size:
            raise PeerError("cells-length", f"it sent {len(packed)} bytes of cells instead of {self.size}")
        kernels.add(total, self._words_in(packed), self._pieces, flip)

    def packed(self, total: Words) -> bytes:
        """Pack the low bits of each word of this chunk, uint64 [cells], into the bytes to send."""
        out = np.empty(self._words, np.uint64)
        kernels.pack(total, out, self._pieces)
        return out.tobytes()

    def packed_sparsely(self, total: Words) -> bytes:
        """Pack a bitmap that marks the nonzero cells, followed by the nonzero cells. Packs all cells instead
        if the share of nonzero cells exceeds SPARSE, or if the bitmap saves nothing."""
        out = np.empty(self._words, np.uint64)
        words = kernels.pack_sparsely(total, out, self._pieces, int(SPARSE * self.cells))
        return out[:words].tobytes()

    def add_sparsely(self, total: Words, packed: Packed) -> None:
        """Add cells packed by `packed_sparsely` to this chunk of a running sum. total: the chunk's words,
        uint64 [cells]. Raises PeerError if the bytes are malformed."""
        if len(packed) >= self.size:
            return self.add(total, packed)
        start = -(-self.cells // WORD_BITS) * WORD_BYTES  # of the cells, behind a bit for each
        if len(packed) < start or len(packed) % WORD_BYTES:
            raise PeerError(
                "cells-length",
                f"it sent {len(packed)} bytes of cells instead of a bitmap of {start} bytes and complete "
                "words",
            )
        chosen = kernels.add_sparsely(total, self._words_in(packed), self._pieces)
        if chosen == kernels.LONG_BITMAP:
            raise PeerError("cells-length", "it sent a bitmap with more bits than there are cells")
        if chosen < 0:
            raise PeerError(
                "cells-length",
                f"it sent {len(packed) - start} bytes of cells, which do not match its bitmap of {~chosen} "
                "cells",
            )
        return None

    def residues(self, total: Words) -> Words:
        """Return each word of this chunk modulo 2**bits, uint64 [cells]."""
        bits = np.repeat(self._pieces[:, 1], self._pieces[:, 0]).astype(np.uint64)
        return total & (np.uint64(2**WORD_BITS - 1) >> (np.uint64(WORD_BITS) - bits))

    @staticmethod
    def _words_in(packed: Packed) -> Words:
        words: Words = np.frombuffer(packed, np.uint64)
        if not words.flags.aligned:
            words = words.copy()
        words.flags.writeable = False  # one type of array for numba
        return words


def chunks_of(segments: tuple[Segment, ...], checked: bool = False) -> tuple[Chunk, ...]:
    """Return the chunks of a vector in order, at least one. checked: if True, each chunk has an additional
    64-bit check cell at its end."""
    return _cut(segments, checked, CHUNK_CELLS)


@lru_cache(maxsize=16)  # both ends of a turn need the same chunks, and so do many turns
def _cut(segments: tuple[Segment, ...], checked: bool, full: int) -> tuple[Chunk, ...]:
    chunks: list[list[tuple[int, int]]] = [[]]
    free = full
    for left, bits in segments:
        while left:
            if not free:
                chunks.append([])
                free = full
            cells = left if left < free else free
            chunks[-1].append((cells, bits))
            left, free = left - cells, free - cells
    check = [(1, WORD_BITS)] if checked else []
    size = full + len(check)
    return tuple(Chunk(size * number, [*pieces, *check]) for number, pieces in enumerate(chunks))


def signed(words: Words, segments: tuple[Segment, ...]) -> Int64:
    """Convert the cells of a whole vector to signed integers, int64 [cells]. Overwrites `words`."""
    out: Int64 = words.view(np.int64)
    for chunk in chunks_of(segments):
        kernels.sign(out[chunk.start : chunk.start + chunk.cells], chunk.pieces)
    return out


# ---- Ciphertext packing: many small sums in one large plaintext, each in a slot of whole bytes ----------
# A row is the plaintext of one ciphertext, little-endian. Cells of different segments may share a row.
# A cell of b bits gets a slot of ceil((b + g) / 8) bytes, where g is the bit length of parties - 1. Each
# party adds a residue of at most 2**b - 1 and parties <= 2**g, so the sum over all parties is below
# 2**(b + g): it never carries into the next slot. Residues are never negative, so nothing is borrowed either.
# A row has (|n| - 1) // 8 bytes, so it is below 2**(|n| - 1) <= n and never wraps modulo n.
# Guarantees: `unpack(pack(cells)) == cells`.
# Raises: SessionFailed for a slot with more than that many parties could have added. The cause is unknown.


IMPOSSIBLE = (
    "the decrypted numbers cannot be sums of this session's cells: the key holder returned wrong numbers, or "
    "a party encrypted numbers that do not fit its cells"
)


@dataclass(frozen=True)
class Block:
    """A rectangle of slots in the rows of a `Layout`. It contains the cells from index `start` on, with
    `bits` bits each.

    The slots are in `rows` rows, starting at row `row`. Each row contains `across` slots of `width` bytes,
    starting at byte `column`."""

    start: int
    row: int
    rows: int
    column: int
    across: int
    width: int
    bits: int

    @property
    def cells(self) -> int:
        return self.rows * self.across

    def of(self, rows: Bytes) -> Bytes:
        """Return a view of this block's slots, uint8 [rows, across, width]."""
        end = self.column + self.across * self.width
        return rows[self.row : self.row + self.rows, self.column : end].reshape(
            self.rows, self.across, self.width
        )


class Layout:
    """Positions of cells in rows of `row_bytes` bytes. Each slot has room for a sum over `parties`."""

    def __init__(self, pieces: Int64, parties: int, row_bytes: int) -> None:
        """pieces: int64 [P, 2], number of cells and bits per cell (1 to 64) of each piece."""
        self.row_bytes = row_bytes
        self._parties = parties
        self._blocks = tuple(_blocks(pieces, (parties - 1).bit_length(), row_bytes))
        self.cells = sum(block.cells for block in self._blocks)
        self.rows = max((block.row + block.rows for block in self._blocks), default=0)

    def pack(self, words: Words) -> Bytes:
        """Pack cells below 2**bits, uint64 [cells], into rows. Returns uint8 [rows, row_bytes]."""
        rows = np.zeros((self.rows, self.row_bytes), np.uint8)
        numbers = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, WORD_BYTES)
        for block in self._blocks:
            used = min(block.width, WORD_BYTES)
            cells = numbers[block.start : block.start + block.cells, :used]
            block.of(rows)[..., :used] = cells.reshape(block.rows, block.across, used)
        return rows

    def unpack(self, rows: Bytes) -> Words:
        """Return the lowest 64 bits of each slot, uint64 [cells]. Raises SessionFailed if a slot contains
        more than the parties could have added."""
        numbers = np.zeros((self.cells, WORD_BYTES), np.uint8)
        words = numbers.view("<u8").reshape(-1)
        for block in self._blocks:
            used = min(block.width, WORD_BYTES)
            own, slots = slice(block.start, block.start + block.cells), block.of(rows)
            numbers[own, :used] = slots[..., :used].reshape(-1, used)
            # A sum of residues is at most parties * (2**bits - 1), so what is above `bits` is below
            # `parties`.
            above = np.zeros(block.cells, np.uint64)
            if block.bits < 64:
                above += words[own] >> np.uint64(block.bits)
            if block.width > WORD_BYTES:
                above += slots[..., WORD_BYTES].reshape(-1).astype(np.uint64) << np.uint64(64 - block.bits)
            if above.size and int(above.max()) >= self._parties:
                raise SessionFailed("plaintext-impossible", IMPOSSIBLE)
        return words.astype(np.uint64, copy=False)


def _blocks(pieces: Int64, guard: int, row_bytes: int) -> Iterator[Block]:
    start, row, column = 0, 0, 0
    for left, bits in pieces.tolist():
        width = -(-(bits + guard) // 8)
        while left:
            across = min((row_bytes - column) // width, left)
            if not across:
                row, column = row + 1, 0
                continue
            rows = 1 if column else left // across
            yield Block(start, row, rows, column, across, width, bits)
            start, left = start + rows * across, left - rows * across
            row, column = row + rows - 1, column + across * width
