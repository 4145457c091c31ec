"""Products modulo the square of a number, by gmpy2 in threads.

Promises: `values` are those of Python's integers.
Refuses: numbers that are not from 1 to below the square (PeerError).

Numbers stay in the form of the engine from `read` to `values`. n is the modulus of a Paillier key or a prime
of one; bytes of numbers are little-endian, twice as many as n has, one number after the other.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, Protocol

import gmpy2
import numpy as np
from gmpy2 import mpz

from fedboost.errors import PeerError
from fedboost.privacy.rowsums.scheme import Threads
from fedboost.privacy.rowsums.segments import Segments, cut, shares

PIECE = 64
"""Members that are multiplied at once: threads, and the lanes of a processor, then end at about one time."""
OUT_OF_RANGE = "a ciphertext that is out of range"

Numbers = Any
"""Numbers in the form of an engine."""


class Engine(Protocol):
    """Products modulo the square of n; see the functions of `GmpyEngine`."""

    n: Any
    square: Any
    size: int
    """Bytes of a number."""

    def read(self, data: bytes) -> Numbers: ...

    def products(self, numbers: Numbers, segments: Segments) -> Numbers: ...

    def packed(self, numbers: Numbers, cells: int, shift: int) -> Numbers: ...

    def values(self, numbers: Numbers) -> list[Any]: ...


class GmpyEngine:
    """Numbers are gmpy2's."""

    def __init__(self, n: Any, threads: Threads) -> None:
        self.n = mpz(n)
        self.square = self.n * self.n
        self.size = 2 * ((self.n.bit_length() + 7) // 8)
        self._threads = threads

    def read(self, data: bytes) -> list[Any]:
        """The numbers of these bytes."""
        numbers = [
            mpz.from_bytes(data[at : at + self.size], "little") for at in range(0, len(data), self.size)
        ]
        if numbers and not 1 <= min(numbers) <= max(numbers) < self.square:
            raise PeerError(OUT_OF_RANGE)
        return numbers

    def products(self, numbers: list[Any], segments: Segments) -> list[Any]:
        """The product of the members of each segment, none longer than PIECE."""
        members, starts = segments.members.tolist(), segments.starts.tolist()
        square = self.square

        def multiply(share: slice) -> list[Any]:
            found = []
            with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
                for at in range(share.start, share.stop):
                    product, *others = [numbers[i] for i in members[starts[at] : starts[at + 1]]] or [mpz(1)]
                    for other in others:
                        product = product * other % square
                    found.append(product)
            return found

        return [
            *chain.from_iterable(self._threads.each(multiply, shares(segments.starts, self._threads.number)))
        ]

    def packed(self, numbers: list[Any], cells: int, shift: int) -> list[Any]:
        """Of each `cells` numbers after another, c0, c1, ..., the last perhaps fewer, one: the product of
        ck ** (2 ** (shift * k))."""
        square, power = self.square, mpz(1) << shift

        def pack(first: int) -> Any:
            *others, total = numbers[first : first + cells]
            with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
                for other in reversed(others):
                    total = gmpy2.powmod(total, power, square) * other % square
            return total

        return self._threads.each(pack, range(0, len(numbers), cells))

    def values(self, numbers: list[Any]) -> list[Any]:
        """The numbers, as gmpy2's."""
        return numbers


EngineOf = Callable[[Any, Threads], Engine]
"""Returns an engine for n."""


def engine_of(n: Any, threads: Threads) -> Engine:
    """The fastest engine of this machine."""
    return GmpyEngine(n, threads)


def products(engine: Engine, numbers: Numbers, segments: Segments) -> Numbers:
    """The product of the members of each segment."""
    members, starts = segments
    while starts.size > 1 and int((starts[1:] - starts[:-1]).max()) > PIECE:
        pieces, ends = cut(starts, PIECE)
        numbers = engine.products(numbers, Segments(members, pieces))
        members, starts = np.arange(pieces.size - 1), ends
    return engine.products(numbers, Segments(members, starts))
