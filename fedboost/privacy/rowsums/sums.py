"""Rows and sums under Paillier's keys.

Promises: each row and each report is randomised by powers of a base that its maker alone drew, each used
once; a report has the bytes that its number of cells says; randomness comes from `draw` alone.
Refuses: rows of another key or number, out of range, or no units modulo n**2 (PeerError).

A row is E(g + 2**s h), of slots of s bits (scheme.py). The product of rows is the encryption of their sums.
The report of a bin with one row is not that row's ciphertext: it is multiplied by a fresh power. It hides
neither sums nor which rows they are of from who can decrypt and knows what randomised the rows: opening it
must blind both, the plaintext and what randomises it.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.packing import RandomBytes, Words
from fedboost.privacy.paillier import PaillierPublic, PaillierSecret, unit
from fedboost.privacy.rowsums import kernels
from fedboost.privacy.rowsums.kernels import LANES, LIMB_BITS, WORD_BITS, may_compile
from fedboost.privacy.rowsums.scheme import Codes, Node, Segments, Slots, Threads, by_bin, cut, plan, shares

# ---- Products modulo the square of a number, in threads -------------------------------------------------
# By gmpy2, or by kernels where they can be compiled.
# Promises: `values` are those of Python's integers, whatever the engine: one of kernels is tried on numbers
# whose products gmpy2 computes, too.
# Refuses: numbers that are not from 1 to below the square (PeerError).
# Numbers stay in the form of the engine from `read` to `values`. n is the modulus of a Paillier key or a
# prime of one; bytes of numbers are little-endian, twice as many as n has, one number after the other.


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


class Engine:
    """Products modulo the square of n, by gmpy2: numbers are its own."""

    def __init__(self, n: Any, threads: Threads) -> None:
        self.n = mpz(n)
        self.square = self.n * self.n
        self.size = 2 * ((self.n.bit_length() + 7) // 8)
        self._threads = threads

    def read(self, data: bytes) -> Numbers:
        """The numbers of these bytes."""
        numbers = [
            mpz.from_bytes(data[at : at + self.size], "little") for at in range(0, len(data), self.size)
        ]
        if numbers and not 1 <= min(numbers) <= max(numbers) < self.square:
            raise PeerError(OUT_OF_RANGE)
        return numbers

    def products(self, numbers: Numbers, segments: Segments) -> Numbers:
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

    def packed(self, numbers: Numbers, cells: int, shift: int) -> Numbers:
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

    def powers(self, numbers: Numbers, exponent: Any) -> Numbers:
        """Each number to the power of a public exponent."""

        def power(number: Any) -> Any:
            with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
                return gmpy2.powmod(number, exponent, self.square)

        return self._threads.each(power, numbers)

    def values(self, numbers: Numbers) -> list[Any]:
        """The numbers, as gmpy2's."""
        found: list[Any] = numbers
        return found


class KernelEngine(Engine):
    """Numbers are those of `kernels`: uint64 [N, 2 * limbs]. For processors on which they compile, and n
    that are odd."""

    def __init__(self, n: Any, threads: Threads) -> None:
        super().__init__(n, threads)
        n, square = self.n, self.square
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
        """As of `Engine`."""
        members, starts = segments
        out = self._empty(starts.size - 1)

        def multiply(share: slice) -> None:
            own = starts[share.start : share.stop + 1]
            kernels.multiply_segments(numbers, members, own, *self._modulus, self._one, out[share])

        self._threads.each(multiply, shares(starts, self._threads.number))
        return out

    def packed(self, numbers: Words, cells: int, shift: int) -> Words:
        """As of `Engine`."""
        out = self._empty(-(-len(numbers) // cells))

        def pack(part: slice) -> None:
            own = numbers[part.start * cells : part.stop * cells]
            kernels.pack_cells(own, cells, shift, *self._modulus, self._one, out[part])

        self._threads.each(pack, self._parts(len(out)))
        return out

    def powers(self, numbers: Words, exponent: Any) -> Words:
        """As of `Engine`: digit by digit, the highest first."""
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
        """As of `Engine`."""
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
    by_gmpy2 = Engine(n, threads)
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


# ---- Random powers that randomise ciphertexts: of a base of one's own, each used once -------------------
# Promises: a power is h**n modulo n**2 of a base h = -x**2 with a random exponent of half the bits of n, as
# `privacy.paillier` explains; with the primes of n, it is the same number as without. Refuses nothing.
# A table has the powers of the base for each digit of the exponent, so that a power is a product of one
# number for each digit. Who knows the primes computes it modulo the square of each, and joins the two. The
# lookups are not constant in time; but an exponent is used once, by a party on its own machine.


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
        base = gmpy2.powmod(-(unit(n, draw) ** 2) % n, n, n * n)
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


# ---- Rows and sums under Paillier's keys ----------------------------------------------------------------


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
        """draw: cryptographic randomness; engine_of: as the function of that name."""
        self._public, self._slots = secret.public, slots
        engines = tuple(engine_of(prime, threads) for prime in secret.primes)
        self._powers = RandomPowers(self._public.n, engines, draw, _digit_bits(self._public.n))

    def __repr__(self) -> str:
        return f"RowEncryption({self._public!r})"

    def encrypt(self, pairs: Int64) -> bytes:
        """A ciphertext for each row, of the packed gradients and hessians, int64 [rows] or [roots, rows]
        (`gbdt.gradients`); LocalProtocolError for one beyond the bound of its slot."""
        n, square = self._public.n, self._public.square
        plain = self._slots.plain(pairs.reshape(-1))
        powers = self._powers.take(len(plain))
        return self._public.written(
            [(1 + m * n) * power % square for m, power in zip(plain, powers, strict=True)]
        )


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
        """Ciphertexts of the sums of each node, column and bin, in this order; see `scheme.plan`."""
        by_joint_bin, by_column = plan(nodes, codes, bins)
        return products(self._engine, products(self._engine, rows, by_joint_bin), by_column)

    def moved(self, sums: Numbers, places: Int64) -> Numbers:
        """Each of these sums added at its place among as many; 1, which is of nothing, at the others."""
        return products(self._engine, sums, by_bin(places, places.size))

    def close(self, sums: Numbers) -> bytes:
        """The report of these sums: ciphertexts that `Slots.read` reads when they are opened."""
        engine, slots = self._engine, self._slots
        packed = engine.values(engine.packed(sums, slots.cells, slots.shift))
        whole, rest = divmod(len(sums), slots.cells)
        biases = [slots.bias(slots.cells)] * whole + [slots.bias(rest)] * (rest > 0)
        powers = self._powers.take(len(packed))
        closed = [
            number * (1 + engine.n * bias) % engine.square * power % engine.square
            for number, bias, power in zip(packed, biases, powers, strict=True)
        ]
        return b"".join([number.to_bytes(engine.size, "little") for number in closed])
