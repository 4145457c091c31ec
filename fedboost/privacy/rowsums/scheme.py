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
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError, LocalProtocolError, SessionFailed
from fedboost.fixedpoint import Int64, cell_bits
from fedboost.privacy.encrypted.packing import IMPOSSIBLE

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


class Encryption(Protocol):
    """The end of the party that has the secret key: `paillier.RowEncryption`."""

    def encrypt(self, pairs: Int64) -> bytes:
        """A ciphertext for each row of packed gradients and hessians, int64 [roots, rows]."""


class Sums(Protocol):
    """The end of a party that sums what it cannot read: `paillier.RowSums`."""

    def read(self, data: bytes, rows: int) -> Any:
        """The ciphertexts of so many rows, those of all roots; PeerError unless all are such."""

    def sums(self, rows: Any, nodes: Sequence[Node], codes: Codes, bins: Sequence[int]) -> Any:
        """Ciphertexts of the sums of each node, column and bin, in this order.

        codes: uint8 [columns, rows], the bin of each row; bins: of each column, at most 256."""

    def moved(self, sums: Any, places: Int64) -> Any:
        """Each of these sums added at its place among as many; nothing is in the others. places: int64
        [sums]."""

    def close(self, sums: Any) -> bytes:
        """The report of these sums: ciphertexts that `Slots.read` reads when they are opened."""


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
