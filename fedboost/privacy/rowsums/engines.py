"""Products modulo the square of a number, in threads: by gmpy2, or by kernels where they can be compiled.

Promises: `values` are those of Python's integers, whatever the engine: one of kernels is tried on numbers
whose products gmpy2 computes, too.
Refuses: numbers that are not from 1 to below the square (PeerError).

Numbers stay in the form of the engine from `read` to `values`. n is the modulus of a Paillier key or a prime
of one; bytes of numbers are little-endian, twice as many as n has, one number after the other.
"""

import hashlib
from collections.abc import Callable
from itertools import chain
from typing import Any, Protocol

import gmpy2
import numpy as np
from gmpy2 import mpz

from fedboost.errors import PeerError
from fedboost.privacy.bit_packing import Words
from fedboost.privacy.rowsums.kernels import products as kernels
from fedboost.privacy.rowsums.kernels.vectors import LANES, LIMB_BITS, WORD_BITS, may_compile
from fedboost.privacy.rowsums.scheme import Threads
from fedboost.privacy.rowsums.segments import Segments, cut, shares

PIECE = 256
"""Members that are multiplied at once: threads, and the lanes of a processor, then end at about one time."""
PART = 1 << 13
"""Numbers that a thread brings into the form of kernels at once, in a copy."""
_SPARE_BITS = 8
"""`kernels` wants R to be at least 256 n."""
_DIGIT_BITS = 6
_DIGITS = 1 << _DIGIT_BITS
"""Of an exponent: a table has the powers with each digit."""
_TRIED_EXPONENT = 0xFEDB005
_TRIED = 20
"""Numbers that an engine is tried on: two rounds of lanes, and some more."""
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

    def powers(self, numbers: Numbers, exponent: Any) -> Numbers: ...

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

    def powers(self, numbers: list[Any], exponent: Any) -> list[Any]:
        """Each number to the power of a public exponent."""

        def power(number: Any) -> Any:
            with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
                return gmpy2.powmod(number, exponent, self.square)

        return self._threads.each(power, numbers)

    def values(self, numbers: list[Any]) -> list[Any]:
        """The numbers, as gmpy2's."""
        return numbers


class KernelEngine:
    """Numbers are those of `kernels`: uint64 [N, 2 * limbs]. For processors on which they compile, and n
    that are odd."""

    def __init__(self, n: Any, threads: Threads) -> None:
        self.n = n = mpz(n)
        self.square = square = n * n
        self.size = 2 * ((n.bit_length() + 7) // 8)
        self._threads = threads
        self._limbs = limbs = -(-(n.bit_length() + _SPARE_BITS) // LIMB_BITS)
        radix = mpz(1) << (LIMB_BITS * limbs)
        squared, cubed = radix * radix % square, radix * radix * radix % square
        parts = n, (1 - radix) % n, squared % n, squared // n, cubed % n, cubed // n
        self._constants = np.stack([_limbs_of(part, limbs) for part in parts])
        self._inverse = np.uint64(int(-gmpy2.invert(n, 1 << LIMB_BITS) % (1 << LIMB_BITS)))
        self._limit = _limbs_of(square, 2 * limbs)
        self._one = np.concatenate([_limbs_of(part, limbs) for part in (radix % n, radix % square // n)])

    def read(self, data: bytes) -> Words:
        """The numbers of these bytes."""
        rows = np.frombuffer(data, np.uint8).reshape(-1, self.size)
        words = 2 * LIMB_BITS * self._limbs // WORD_BITS + 2
        out = self._empty(len(rows))

        def enter(part: slice) -> bool:
            padded = np.zeros((part.stop - part.start, words), "<u8")
            padded.view(np.uint8)[:, : self.size] = rows[part]
            numbers = out[part]
            sound = kernels.enter(padded, self._limit, self._constants, self._inverse, numbers)
            return bool(sound == len(numbers))

        if not all(self._threads.each(enter, self._parts(len(rows)))):
            raise PeerError(OUT_OF_RANGE)
        return out

    def products(self, numbers: Words, segments: Segments) -> Words:
        """As of `GmpyEngine`."""
        members, starts = segments
        out = self._empty(starts.size - 1)

        def multiply(share: slice) -> None:
            own = starts[share.start : share.stop + 1]
            kernels.multiply_segments(numbers, members, own, *self._modulus, self._one, out[share])

        self._threads.each(multiply, shares(starts, self._threads.number))
        return out

    def packed(self, numbers: Words, cells: int, shift: int) -> Words:
        """As of `GmpyEngine`."""
        out = self._empty(-(-len(numbers) // cells))

        def pack(part: slice) -> None:
            own = numbers[part.start * cells : part.stop * cells]
            kernels.pack_cells(own, cells, shift, *self._modulus, self._one, out[part])

        self._threads.each(pack, self._parts(len(out)))
        return out

    def powers(self, numbers: Words, exponent: Any) -> Words:
        """As of `GmpyEngine`: digit by digit, the highest first."""
        count = len(numbers)
        table = np.concatenate([np.tile(self._one, (count, 1)), numbers, self._empty(count * (_DIGITS - 2))])
        for digit in range(2, _DIGITS):
            pairs = np.stack([np.arange(count) + count * (digit - 1), np.arange(count) + count], axis=1)
            every = Segments(pairs.reshape(-1), 2 * np.arange(count + 1))
            table[count * digit : count * (digit + 1)] = self.products(table, every)
        table = table.reshape(_DIGITS, count, -1)
        total: Words = table[0]
        for place in reversed(range(-(-exponent.bit_length() // _DIGIT_BITS))):
            digit = int(exponent >> (_DIGIT_BITS * place)) & (_DIGITS - 1)
            cells = np.stack([table[digit], total], axis=1).reshape(2 * count, -1)
            total = self.packed(cells, 2, _DIGIT_BITS)
        return total

    def values(self, numbers: Words) -> list[Any]:
        """As of `GmpyEngine`."""
        words = -(-LIMB_BITS * self._limbs // WORD_BITS)
        out = np.empty((len(numbers), 2, words), "<u8")
        self._threads.each(
            lambda part: kernels.leave(numbers[part], *self._modulus, out[part]), self._parts(len(out))
        )
        data, size, n, square = out.tobytes(), 8 * words, self.n, self.square
        found = [mpz.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
        return [(low + n * high) % square for low, high in zip(found[::2], found[1::2], strict=True)]

    @property
    def _modulus(self) -> tuple[Any, ...]:
        return self._constants, self._inverse

    def _empty(self, count: int) -> Words:
        return np.empty((count, 2 * self._limbs), np.uint64)

    def _parts(self, count: int) -> list[slice]:
        """Parts for the threads of so many numbers, in whole eights, none larger than PART."""
        share = -(-count // (LANES * self._threads.number)) * LANES
        step = max(min(share, PART), 1)
        return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def _limbs_of(number: Any, count: int) -> Words:
    mask = (1 << LIMB_BITS) - 1
    return np.array([int(number >> (LIMB_BITS * j)) & mask for j in range(count)], np.uint64)


EngineOf = Callable[[Any, Threads], Engine]
"""Returns an engine for n."""


def engine_of(n: Any, threads: Threads) -> Engine:
    """The fastest engine of this machine; gmpy2's where kernels cannot be compiled, or compute anything
    else."""
    by_gmpy2 = GmpyEngine(n, threads)
    if not may_compile():
        return by_gmpy2
    by_kernels = KernelEngine(n, threads)
    return by_kernels if _tried(by_kernels) == _tried(by_gmpy2) else by_gmpy2


def _tried(engine: Engine) -> list[Any]:
    """Results of an engine for numbers that nobody chose."""
    stream = hashlib.shake_256(b"fedboost/1/products" + int(engine.n).to_bytes(engine.size))
    drawn, size = stream.digest(_TRIED * engine.size), engine.size
    drawn_numbers = (mpz.from_bytes(drawn[at : at + size]) for at in range(0, len(drawn), size))
    numbers = [number % (engine.square - 1) + 1 for number in drawn_numbers]
    read = engine.read(b"".join([number.to_bytes(engine.size, "little") for number in numbers]))
    segments = Segments(np.arange(_TRIED), np.array([0, 1, 1, 3, 7, 8, 9, 10, 14, 16, _TRIED]))
    parts = (
        read,
        engine.products(read, segments),
        engine.packed(read, 2, 3),
        engine.powers(read, mpz(_TRIED_EXPONENT)),
    )
    return [engine.values(part) for part in parts]


def products(engine: Engine, numbers: Numbers, segments: Segments) -> Numbers:
    """The product of the members of each segment."""
    members, starts = segments
    while starts.size > 1 and int((starts[1:] - starts[:-1]).max()) > PIECE:
        pieces, ends = cut(starts, PIECE)
        numbers = engine.products(numbers, Segments(members, pieces))
        members, starts = np.arange(pieces.size - 1), ends
    return engine.products(numbers, Segments(members, starts))
