"""The contract of an additively homomorphic scheme: its keys, the greeting with one, packed plaintexts."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError, SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy import packing
from fedboost.privacy.packing import WORD_BYTES, Chunk, Words
from fedboost.privacy.pairwise import RandomBytes

NAME_BYTES = 16
"""Bytes of a public key's digest, before every sealed chunk."""


class Cipher(Protocol):
    """Encryption of the cells of one chunk of a vector. `Any` is a scheme's own form of its ciphertexts."""

    def encrypt(self, words: Words) -> bytes:
        """The ciphertexts of uint64 [cells], each below 2**bits, with room for their sum over all parties."""

    def read(self, sealed: bytes) -> Any:
        """Ciphertexts that were received; PeerError if they cannot be those of this chunk."""

    def add(self, total: Any, more: Any) -> Any:
        """The ciphertexts of the sum."""

    def blind(self, total: Any, draw: RandomBytes) -> tuple[bytes, Any]:
        """The ciphertexts of the sum and a number that is uniform over all plaintexts; and that number."""

    def unblind(self, answer: bytes, blind: Any) -> Words:
        """The lowest 64 bits of each sum; PeerError for another length, SessionFailed for numbers that are no
        sum."""


class Public(Protocol):
    """A key that encrypts and adds."""

    def to_bytes(self) -> bytes:
        """The key as it travels; there is no secret in it."""

    def cipher(self, chunk: Chunk, parties: int) -> Cipher:
        """Encryption of one chunk under this key, with room for the sum over these parties."""

    def prepare(self) -> None:
        """Start to prepare encryption in the background."""

    def close(self) -> None:
        """End work in the background. It starts again when it is needed."""


class Secret(Protocol):
    """A key pair."""

    @property
    def public(self) -> Public:
        """The public key of the pair."""

    def decrypt(self, ciphertexts: Any) -> bytes:
        """The plaintexts, as they travel, of the ciphertexts of `Cipher.read`."""


class Scheme(Protocol):
    """An encryption scheme: makes and reads keys."""

    def new_secret(self, bits: int) -> Secret:
        """A new key pair of that many bits. ConfigError if these are too few."""

    def read_public(self, data: bytes, min_bits: int) -> Public:
        """A public key that was received; PeerError if it is shorter, or invalid."""


def digest_of(public: Public) -> bytes:
    """Digest of a public key: 32 bytes."""
    return hashlib.sha256(packing.pack(b"fedboost/1/public", public.to_bytes())).digest()


def greeting_of(agreement: bytes, key: bytes) -> bytes:
    """The public keys that a party greets with: an X25519 key for its masks, and the key holder's own that
    sums are encrypted under, empty of others."""
    return packing.pack(agreement, key)


def agreement_key(greeted: bytes) -> bytes:
    """The X25519 key that a party greeted with. PeerError if there is none."""
    return _keys(greeted)[0]


def scheme_key(greeted: bytes) -> bytes:
    """The key that sums are encrypted under, as bytes; empty from all but the key holder."""
    return _keys(greeted)[1]


def _keys(greeted: bytes) -> list[bytes]:
    keys = packing.unpack(greeted)
    if len(keys) != 2:
        raise PeerError("a greeting without the two keys that encrypted sums need")
    return keys


# ---- Ciphertext packing: many small sums in one large plaintext, each in a slot of whole bytes ----------
# Promises: a slot holds the sum of its cell over all parties, so that no sum overflows into the next slot;
# cells of different segments share a row; `unpack(pack(cells)) == cells`.
# Refuses: slots that hold more than that many parties can have added (SessionFailed: the cause is unknown).
# A row is the plaintext of one ciphertext, little-endian. The slot of a cell of b bits takes the whole
# bytes that b bits and those of the number of parties need. The number in a slot is never negative: it
# would borrow from its neighbour.


Bytes = npt.NDArray[np.uint8]
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
