"""Random powers that randomise ciphertexts: of a base of one's own, each used once.

Promises: a power is h**n modulo n**2 of a base h = -x**2 with a random exponent of half the bits of n, as
`encrypted.paillier` explains; with the primes of n, it is the same number as without.
Refuses nothing.

A table has the powers of the base for each digit of the exponent, so that a power is a product of one number
for each digit. Who knows the primes computes it modulo the square of each, and joins the two. The lookups are
not constant in time; but an exponent is used once, by a party on its own machine.
"""

from itertools import chain
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz

from fedboost.privacy.rowsums.engines import Engine, Numbers, products
from fedboost.privacy.rowsums.segments import Segments
from fedboost.privacy.shamir import RandomBytes

_SPARE_BYTES = 16
"""So that a remainder modulo n is uniform, but for 2**-128."""
BLOCK = 4096
"""Powers made at once: what is drawn and looked up for more would take much memory."""


class RandomPowers:
    """Powers modulo n**2."""

    def __init__(self, n: Any, engines: tuple[Engine, ...], draw: RandomBytes, digit_bits: int = 8) -> None:
        """engines: modulo n**2, or modulo the squares of its two primes; digit_bits: of the exponents, an
        even number, at most 16: more make larger tables and quicker powers."""
        self._draw = draw
        self._engines = engines
        self._codes = 1 << digit_bits
        self._digits = -(-(n.bit_length() // 2) // digit_bits)
        base = gmpy2.powmod(-(_unit(n, draw) ** 2) % n, n, n * n)
        self._tables = [self._table(base, digit_bits, engine) for engine in engines]
        if len(engines) == 2:
            first, second = (engine.square for engine in engines)
            self._inverse = gmpy2.invert(first, second)

    def _table(self, base: Any, digit_bits: int, engine: Engine) -> Numbers:
        """Of each digit the powers with each value of it: products of those of its two halves, which are
        products of those with one bit."""
        half = digit_bits // 2
        squares = [base % engine.square]
        while len(squares) < self._digits * digit_bits:
            squares.append(squares[-1] * squares[-1] % engine.square)
        bits = engine.read(b"".join([square.to_bytes(engine.size, "little") for square in squares]))
        used = np.arange(1 << half)[:, None] >> np.arange(half) & 1
        firsts = half * np.arange(2 * self._digits)[:, None]
        starts = np.append(0, np.cumsum(np.tile(used.sum(axis=1), 2 * self._digits)))
        halves = products(engine, bits, Segments((np.nonzero(used)[1] + firsts).reshape(-1), starts))
        low, high = np.arange(self._codes) & ((1 << half) - 1), (np.arange(self._codes) >> half) + (1 << half)
        pairs = np.stack([low, high], axis=1) + (2 << half) * np.arange(self._digits)[:, None, None]
        return products(engine, halves, Segments(pairs.reshape(-1), 2 * np.arange(pairs.size // 2 + 1)))

    def take(self, count: int) -> list[Any]:
        """So many new powers."""
        blocks = [self._block(min(count - first, BLOCK)) for first in range(0, count, BLOCK)]
        return [*chain.from_iterable(blocks)]

    def _block(self, count: int) -> list[Any]:
        drawn = np.frombuffer(self._draw(2 * count * self._digits), "<u2").reshape(count, self._digits)
        members = (drawn & (self._codes - 1)).astype(np.int64) + self._codes * np.arange(self._digits)
        segments = Segments(members.reshape(-1), np.arange(count + 1) * self._digits)
        found = [
            engine.values(products(engine, table, segments))
            for engine, table in zip(self._engines, self._tables, strict=True)
        ]
        if len(found) == 1:
            return found[0]
        first, second = (engine.square for engine in self._engines)
        inverse = self._inverse
        return [a + first * ((b - a) * inverse % second) for a, b in zip(*found, strict=True)]


def _unit(n: Any, draw: RandomBytes) -> Any:
    """A random number that has no factor in common with n."""
    while True:
        x = mpz.from_bytes(draw((n.bit_length() + 7) // 8 + _SPARE_BYTES), "little") % n
        if gmpy2.gcd(x, n) == 1:
            return x
