"""Rows and sums under Paillier's keys.

Promises: each row and each report is randomised by powers of a base that its maker alone drew, each used
once; a report has the bytes that its number of cells says; randomness comes from `draw` alone.
Refuses: rows of another key or number, out of range, or no units modulo n**2 (PeerError).

A row is E(g + 2**s h), of slots of s bits (scheme.py). The product of rows is the encryption of their sums.
The report of a bin with one row is not that row's ciphertext: it is multiplied by a fresh power. It hides
neither sums nor which rows they are of from who can decrypt and knows what randomised the rows: opening it
must blind both, the plaintext and what randomises it.
"""

from collections.abc import Sequence
from typing import Any

import gmpy2
import numpy as np

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.encrypted.paillier import PaillierPublic, PaillierSecret
from fedboost.privacy.rowsums.engines import EngineOf, Numbers, engine_of, products
from fedboost.privacy.rowsums.powers import RandomPowers
from fedboost.privacy.rowsums.scheme import Codes, Node, Slots, Threads
from fedboost.privacy.rowsums.segments import Segments, by_place, plan
from fedboost.privacy.shamir import RandomBytes


def _digit_bits(n: Any) -> int:
    """Of exponents where each row needs a power: tables of 67 MB for a key of 2048 bits, of 151 MB for one of
    3072, and of 335 MB for the longest."""
    return 10 if n.bit_length() <= 3072 else 8


class RowEncryption:
    """Encrypts the rows of the party that has the secret key."""

    def __init__(
        self,
        secret: PaillierSecret,
        slots: Slots,
        threads: Threads,
        draw: RandomBytes,
        engine_of: EngineOf = engine_of,
    ) -> None:
        """draw: cryptographic randomness; engine_of: as in engines.py."""
        self._public, self._slots = secret.public, slots
        engines = tuple(engine_of(prime, threads) for prime in secret.primes)
        self._powers = RandomPowers(self._public.n, engines, draw, _digit_bits(self._public.n))

    def __repr__(self) -> str:
        return f"RowEncryption({self._public!r})"

    def encrypt(self, pairs: Int64) -> bytes:
        """A ciphertext for each row, of the packed gradients and hessians, int64 [rows] or [roots, rows]
        (`gbdt.gradients`); LocalProtocolError for one beyond the bound of its slot."""
        n, square, size = self._public.n, self._public.square, 2 * self._public.bytes
        plain = self._slots.plain(pairs.reshape(-1))
        powers = self._powers.take(len(plain))
        numbers = [(1 + m * n) * power % square for m, power in zip(plain, powers, strict=True)]
        return b"".join([number.to_bytes(size, "little") for number in numbers])


class RowSums:
    """Sums over encrypted rows, by a party that cannot read them."""

    def __init__(
        self,
        public: PaillierPublic,
        slots: Slots,
        threads: Threads,
        draw: RandomBytes,
        engine_of: EngineOf = engine_of,
    ) -> None:
        """As of `RowEncryption`."""
        self._slots = slots
        self._engine = engine_of(public.n, threads)
        self._powers = RandomPowers(public.n, (self._engine,), draw)

    def __repr__(self) -> str:
        return f"RowSums({self._engine.n.bit_length()} bits)"

    def read(self, data: bytes, rows: int) -> Numbers:
        """The ciphertexts of so many rows, those of all roots; PeerError unless all are such."""
        engine = self._engine
        if len(data) != rows * engine.size:
            raise PeerError(f"{len(data)} bytes of encrypted gradients where {rows} rows were due")
        numbers = engine.read(data)
        every = Segments(np.arange(rows), np.array([0, rows]))
        if gmpy2.gcd(engine.values(products(engine, numbers, every))[0], engine.n) != 1:
            raise PeerError("a ciphertext that is no unit, which no encryption gives")
        return numbers

    def sums(self, rows: Numbers, nodes: Sequence[Node], codes: Codes, bins: Sequence[int]) -> Numbers:
        """Ciphertexts of the sums of each node, column and bin, in this order; see `segments.plan`."""
        by_joint_bin, by_bin = plan(nodes, codes, bins)
        return products(self._engine, products(self._engine, rows, by_joint_bin), by_bin)

    def moved(self, sums: Numbers, places: Int64) -> Numbers:
        """Each of these sums added at its place among as many; 1, which is of nothing, at the others."""
        return products(self._engine, sums, by_place(places))

    def close(self, sums: Numbers) -> bytes:
        """The report of these sums: ciphertexts that `Slots.read` reads when they are opened."""
        engine, slots = self._engine, self._slots
        packed = engine.values(engine.packed(sums, slots.cells, slots.shift))
        biases = self._biases(len(sums))
        powers = self._powers.take(len(packed))
        closed = [
            number * (1 + engine.n * bias) % engine.square * power % engine.square
            for number, bias, power in zip(packed, biases, powers, strict=True)
        ]
        return b"".join([number.to_bytes(engine.size, "little") for number in closed])

    def _biases(self, cells: int) -> list[Any]:
        """What is added to each plaintext of so many cells."""
        whole, rest = divmod(cells, self._slots.cells)
        return [self._slots.bias(self._slots.cells)] * whole + [self._slots.bias(rest)] * (rest > 0)
