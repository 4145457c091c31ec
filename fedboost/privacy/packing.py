"""Packing: byte strings with their lengths for hashes, signatures and seals, and integers of few bits.

Promises: `unpack(pack(*fields)) == fields`, and different fields never pack to the same bytes.
Refuses: bytes that `pack` cannot have written (PeerError).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import kernels

RandomBytes = Callable[[int], bytes]
"""Returns that many bytes from the operating system's cryptographic generator."""
LENGTH_BYTES, _SHORT = 4, 256
_LENGTHS = tuple(size.to_bytes(LENGTH_BYTES) for size in range(_SHORT))
"""The lengths of short fields, encoded."""


def pack(*fields: bytes) -> bytes:
    """Encode each field behind its length, four bytes big-endian."""
    packed = bytearray()
    for field in fields:
        size = len(field)
        packed += _LENGTHS[size] if size < _SHORT else size.to_bytes(LENGTH_BYTES)
        packed += field
    return bytes(packed)


def unpack(data: bytes) -> list[bytes]:
    """Decode the fields in `data`."""
    fields, offset = [], 0
    while offset < len(data):
        start = offset + LENGTH_BYTES
        end = start + int.from_bytes(data[offset:start])
        if start > len(data) or end > len(data):
            raise PeerError("bytes that end within a field")
        fields.append(data[start:end])
        offset = end
    return fields


def number(value: int) -> bytes:
    """An integer of up to 64 bits as a field: eight bytes, big-endian, signed."""
    return value.to_bytes(8, signed=True)


# ---- Integers to cells of 1 to 64 bits and back, each modulo 2**bits ------------------------------------
# And the chunks in which they travel.
# Promises: adding residues and taking the sign once at the end gives the exact sum, if it fits a cell (the
# query says how many bits that takes). Refuses: bytes of another length than a chunk has (PeerError).
# A vector is a list of segments, each of cells of one width. It is cut into chunks of CHUNK_CELLS cells,
# independent of where segments end. A chunk that is masked has one cell more, its check cell. In a chunk
# each segment is a piece of whole 64-bit little-endian words, laid out as privacy/kernels.py describes.
# Words of the sum have 64 bits, whose highest are garbage until `signed` cuts them off.


CHUNK_CELLS = 1 << 16
"""Integers in one chunk of a vector: at 8 bytes half a megabyte, far below any message limit."""
WORD_BITS, WORD_BYTES = 64, 8
SPARSE = 0.5
"""Largest share of nonzero cells for which a bitmap is worth its time."""

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Packed = bytes | bytearray | memoryview


class Segment(NamedTuple):
    """Consecutive cells of one width, 1 to 64 bits."""

    cells: int
    bits: int


class Chunk:
    """A piece of a vector that travels by itself: its first cell, its number of cells, their bytes."""

    def __init__(self, start: int, pieces: list[tuple[int, int]]) -> None:
        """pieces: cells and bits of each segment in it."""
        self._pieces: Int64 = np.array(pieces, np.int64).reshape(-1, 2)
        self.start = start
        self.cells = sum([cells for cells, _ in pieces])
        self._words = sum([-(-cells * bits // WORD_BITS) for cells, bits in pieces])
        self.size = self._words * WORD_BYTES

    @property
    def pieces(self) -> Int64:
        """Cells and bits of each segment in it, int64 [P, 2]."""
        return self._pieces

    def of(self, vector: Words) -> Words:
        """The cells of this chunk in a whole vector; a view."""
        return vector[self.start : self.start + self.cells]

    def add(self, total: Words, packed: Packed) -> None:
        """Add the cells of this chunk to its words of the sum."""
        kernels.add(total, self._read(packed), self._pieces)

    def subtract(self, total: Words, packed: Packed) -> None:
        """Subtract the cells of this chunk from its words of the sum."""
        kernels.subtract(total, self._read(packed), self._pieces)

    def packed(self, total: Words) -> bytes:
        """The cells of this chunk as they travel, from its words."""
        out = np.empty(self._words, np.uint64)
        kernels.pack(total, out, self._pieces)
        return out.tobytes()

    def packed_sparsely(self, total: Words) -> bytes:
        """The nonzero cells behind a bitmap of their positions; or all cells, where that is no shorter."""
        out = np.empty(self._words, np.uint64)
        words = kernels.pack_sparsely(total, out, self._pieces, int(SPARSE * self.cells))
        return out[:words].tobytes()

    def add_sparsely(self, total: Words, packed: Packed) -> None:
        """Add the bytes of `packed_sparsely`: sparse if they are shorter than all cells."""
        if len(packed) >= self.size:
            return self.add(total, packed)
        start = -(-self.cells // WORD_BITS) * WORD_BYTES  # of the cells, behind a bit for each
        if len(packed) < start or len(packed) % WORD_BYTES:
            raise PeerError(f"{len(packed)} bytes of cells where {start} of a bitmap begin, or half a word")
        chosen = kernels.add_sparsely(total, self._words_in(packed), self._pieces)
        if chosen == kernels.LONG_BITMAP:
            raise PeerError("a bitmap with more bits than there are cells")
        if chosen < 0:
            raise PeerError(f"{len(packed) - start} bytes of cells, the bitmap has {~chosen} cells")
        return None

    def residues(self, total: Words) -> Words:
        """The cells of this chunk, each below 2**bits, from its words: uint64 [cells]."""
        bits = np.repeat(self._pieces[:, 1], self._pieces[:, 0]).astype(np.uint64)
        return total & (np.uint64(2**WORD_BITS - 1) >> (np.uint64(WORD_BITS) - bits))

    def _read(self, packed: Packed) -> Words:
        if len(packed) != self.size:
            raise PeerError(f"{len(packed)} bytes of cells where {self.size} were due")
        return self._words_in(packed)

    @staticmethod
    def _words_in(packed: Packed) -> Words:
        words: Words = np.frombuffer(packed, np.uint64)
        if not words.flags.aligned:
            words = words.copy()
        words.flags.writeable = False  # one type of array for numba
        return words


def chunks_of(segments: tuple[Segment, ...], checked: bool = False) -> tuple[Chunk, ...]:
    """The chunks of a vector, in order: at least one. checked: a cell of 64 bits follows those of each."""
    return _cut(segments, checked, CHUNK_CELLS)


@lru_cache(maxsize=16)  # both ends of each turn have the same, and many turns
def _cut(segments: tuple[Segment, ...], checked: bool, full: int) -> tuple[Chunk, ...]:
    """The chunks of `full` cells."""
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
    """The cells of a whole vector as signed integers, int64 [cells]; overwrites the words."""
    out: Int64 = words.view(np.int64)
    for chunk in chunks_of(segments):
        kernels.sign(out[chunk.start : chunk.start + chunk.cells], chunk.pieces)
    return out


# ---- Ciphertext packing: many small sums in one large plaintext, each in a slot of whole bytes ----------
# Promises: a slot holds the sum of its cell over all parties, so that no sum overflows into the next slot;
# cells of different segments share a row; `unpack(pack(cells)) == cells`.
# Refuses: slots that hold more than that many parties can have added (SessionFailed: the cause is unknown).
# A row is the plaintext of one ciphertext, little-endian. The slot of a cell of b bits takes the whole
# bytes that b bits and those of the number of parties need. The number in a slot is never negative: it
# would borrow from its neighbour.


IMPOSSIBLE = (
    "what was decrypted is no sum of this session's cells: the key holder answered with something else, or "
    "a party encrypted numbers that do not fit its cells"
)


@dataclass(frozen=True)
class Block:
    """A rectangle of slots: cells from `start` on, in `rows` rows from `row`, `across` in each, beginning at
    byte `column`; each cell has `bits` bits, each slot `width` bytes."""

    start: int
    row: int
    rows: int
    column: int
    across: int
    width: int
    bits: int

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.rows * self.across

    def of(self, rows: Bytes) -> Bytes:
        """The slots of this block in the rows, uint8 [rows, across, width]; a view."""
        end = self.column + self.across * self.width
        return rows[self.row : self.row + self.rows, self.column : end].reshape(
            self.rows, self.across, self.width
        )


class Layout:
    """Positions of the cells of pieces in rows of `row_bytes` bytes, with room for sums over `parties`."""

    def __init__(self, pieces: Int64, parties: int, row_bytes: int) -> None:
        """pieces: int64 [P, 2], cells and bits (1 to 64) of each."""
        self.row_bytes = row_bytes
        self._parties = parties
        self._blocks = tuple(_blocks(pieces, (parties - 1).bit_length(), row_bytes))
        self.cells = sum(block.cells for block in self._blocks)
        self.rows = max((block.row + block.rows for block in self._blocks), default=0)

    def pack(self, words: Words) -> Bytes:
        """The rows, uint8 [rows, row_bytes], of cells below 2**bits, uint64 [cells]."""
        rows = np.zeros((self.rows, self.row_bytes), np.uint8)
        numbers = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, WORD_BYTES)
        for block in self._blocks:
            used = min(block.width, WORD_BYTES)
            cells = numbers[block.start : block.start + block.cells, :used]
            block.of(rows)[..., :used] = cells.reshape(block.rows, block.across, used)
        return rows

    def unpack(self, rows: Bytes) -> Words:
        """The lowest 64 bits of each slot, uint64 [cells]."""
        numbers = np.zeros((self.cells, WORD_BYTES), np.uint8)
        words = numbers.view("<u8").reshape(-1)
        for block in self._blocks:
            used = min(block.width, WORD_BYTES)
            own, slots = slice(block.start, block.start + block.cells), block.of(rows)
            numbers[own, :used] = slots[..., :used].reshape(-1, used)
            above = np.zeros(block.cells, np.uint64)
            if block.bits < 64:
                above += words[own] >> np.uint64(block.bits)
            if block.width > WORD_BYTES:
                above += slots[..., WORD_BYTES].reshape(-1).astype(np.uint64) << np.uint64(64 - block.bits)
            if above.size and int(above.max()) >= self._parties:
                raise SessionFailed(IMPOSSIBLE)
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
