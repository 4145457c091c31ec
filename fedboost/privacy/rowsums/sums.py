"""Rows and sums under Paillier keys.

Guarantees: each row and each report is randomised by powers of a base that only its sender knows. Each power
is used once. The length of a report depends only on its number of cells. Randomness comes only from `draw`.
Raises: PeerError for a wrong number of rows, and for rows that are encrypted under another key, out of range,
or not units modulo n**2.

A row is E(g + 2**s h), with slots of s bits (scheme.py). The product of rows encrypts their sums. The report
of a bin with one row is not that row's ciphertext: it is multiplied by a fresh power. This does not hide the
sums, or which rows they include, from a party that can decrypt and knows the powers that randomised the rows.
So before decryption, both the plaintext and the power that randomises it must be blinded."""

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
# Computed by gmpy2, or by kernels where they can be compiled.
# Guarantees: `values` are those of Python's integers with any engine. The kernels are first tested on numbers
# whose products gmpy2 computes as well.
# Raises: PeerError for numbers outside 1 to n**2 - 1.
# Numbers keep the engine's format from `read` to `values`. n is the modulus of a Paillier key or one of its
# primes. Encoded numbers are little-endian, twice as long as n, and concatenated.


PIECE = 256
"""Maximum number of members multiplied at once, so that threads and lanes finish at about the same time."""
PART = 1 << 13
"""How many numbers, at most, a thread copies and converts to the kernels' format at once."""
_SPARE_BITS = 8
"""Number of bits by which the limbs are longer than n. `kernels` needs R >= 256 n: 52 * limbs >= |n| + 8, so
R >= 2**(|n| + 8) > 256 n."""
_DIGIT_BITS = 6
_DIGITS = 1 << _DIGIT_BITS
"""Number of possible values of an exponent's digit. A table contains the power for each value."""
_TRIED_EXPONENT = 0xFEDB005
_TRIED = 20
"""How many numbers an engine is tested on. They fill all lanes twice, with some left over."""
OUT_OF_RANGE = "a ciphertext is out of range"

Numbers = Any
"""Numbers in an engine's format."""


class Engine:
    """Computes products modulo the square of n with gmpy2. Numbers are lists of gmpy2's integers."""

    def __init__(self, n: Any, threads: Threads) -> None:
        self.n = mpz(n)
        self.square = self.n * self.n
        self.size = 2 * ((self.n.bit_length() + 7) // 8)
        self._threads = threads

    def read(self, data: bytes) -> Numbers:
        """Decode numbers. Raises PeerError unless all are between 1 and n**2 - 1."""
        numbers = [
            mpz.from_bytes(data[at : at + self.size], "little") for at in range(0, len(data), self.size)
        ]
        if numbers and not 1 <= min(numbers) <= max(numbers) < self.square:
            raise PeerError("ciphertext-out-of-range", OUT_OF_RANGE)
        return numbers

    def products(self, numbers: Numbers, segments: Segments) -> Numbers:
        """Return the product of each segment's members. No segment may be longer than PIECE."""
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
        """Pack each group of `cells` consecutive numbers c0, c1, ... into the product of ck ** (2 ** (shift *
        k)), by Horner's rule. The last group may be shorter."""
        square, power = self.square, mpz(1) << shift

        def pack(first: int) -> Any:
            *others, total = numbers[first : first + cells]
            with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
                for other in reversed(others):
                    total = gmpy2.powmod(total, power, square) * other % square
            return total

        return self._threads.each(pack, range(0, len(numbers), cells))

    def powers(self, numbers: Numbers, exponent: Any) -> Numbers:
        """Raise each number to a public exponent. The time depends on the exponent."""

        def power(number: Any) -> Any:
            with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
                return gmpy2.powmod(number, exponent, self.square)

        return self._threads.each(power, numbers)

    def values(self, numbers: Numbers) -> list[Any]:
        """Convert numbers to gmpy2's integers, from 0 to n**2 - 1."""
        found: list[Any] = numbers
        return found


class KernelEngine(Engine):
    """Computes products with compiled kernels, for odd n, on CPUs that support them. Numbers are uint64 [N, 2
    * limbs]."""

    def __init__(self, n: Any, threads: Threads) -> None:
        super().__init__(n, threads)
        n, square = self.n, self.square
        self._limbs = limbs = -(-(n.bit_length() + _SPARE_BITS) // LIMB_BITS)
        radix = mpz(1) << (LIMB_BITS * limbs)
        squared, cubed = radix * radix % square, radix * radix * radix % square
        # x modulo n**2 has the parts x % n and x // n, both below n.
        parts = n, (1 - radix) % n, squared % n, squared // n, cubed % n, cubed // n
        self._constants = np.stack([_limbs_of(part, limbs) for part in parts])
        self._inverse = np.uint64(int(-gmpy2.invert(n, 1 << LIMB_BITS) % (1 << LIMB_BITS)))
        self._limit = _limbs_of(square, 2 * limbs)
        self._one = np.concatenate([_limbs_of(part, limbs) for part in (radix % n, radix % square // n)])

    def read(self, data: bytes) -> Words:
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
            raise PeerError("ciphertext-out-of-range", OUT_OF_RANGE)
        return out

    def products(self, numbers: Words, segments: Segments) -> Words:
        members, starts = segments
        out = self._empty(starts.size - 1)

        def multiply(share: slice) -> None:
            own = starts[share.start : share.stop + 1]
            kernels.multiply_segments(numbers, members, own, *self._modulus, self._one, out[share])

        self._threads.each(multiply, shares(starts, self._threads.number))
        return out

    def packed(self, numbers: Words, cells: int, shift: int) -> Words:
        out = self._empty(-(-len(numbers) // cells))

        def pack(part: slice) -> None:
            own = numbers[part.start * cells : part.stop * cells]
            kernels.pack_cells(own, cells, shift, *self._modulus, self._one, out[part])

        self._threads.each(pack, self._parts(len(out)))
        return out

    def powers(self, numbers: Words, exponent: Any) -> Words:
        # The 2**k-ary method (D. Knuth, "The Art of Computer Programming", volume 2, 4.6.3) with digits of 6
        # bits: 62 products for the table, then 6 squares and a product per digit. Bit by bit, an exponent of
        # |e| bits takes 1.5 |e| products on average, and here 7/6 |e| + 62. All numbers share the exponent,
        # so lanes never differ.
        #
        # Digit by digit, the highest first: total = total ** 64 * (power of the digit), which is what
        # `packed` computes of the pair (power, total) with a shift of 6.
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
        """Divide `count` numbers into slices for the threads. Slices consist of whole groups of lanes, and
        have at most PART numbers."""
        share = -(-count // (LANES * self._threads.number)) * LANES
        step = max(min(share, PART), 1)
        return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def _limbs_of(number: Any, count: int) -> Words:
    mask = (1 << LIMB_BITS) - 1
    return np.array([int(number >> (LIMB_BITS * j)) & mask for j in range(count)], np.uint64)


EngineOf = Callable[[Any, Threads], Engine]
"""Function that returns an engine for a modulus n. Arguments: the modulus and a thread pool."""


def engine_of(n: Any, threads: Threads) -> Engine:
    """Return the fastest engine for this machine. It uses gmpy2 if the kernels cannot be compiled, or if
    their results differ from gmpy2's."""
    by_gmpy2 = Engine(n, threads)
    if not may_compile():
        return by_gmpy2
    by_kernels = KernelEngine(n, threads)
    return by_kernels if _tried(by_kernels) == _tried(by_gmpy2) else by_gmpy2


def _tried(engine: Engine) -> list[Any]:
    """Return an engine's results for test numbers from a hash of n, so that no one can choose them."""
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
    """Return the product of each segment's members. Segments may have any length."""
    members, starts = segments
    while starts.size > 1 and int((starts[1:] - starts[:-1]).max()) > PIECE:
        pieces, ends = cut(starts, PIECE)
        numbers = engine.products(numbers, Segments(members, pieces))
        members, starts = np.arange(pieces.size - 1), ends
    return engine.products(numbers, Segments(members, starts))


# ---- Random powers that randomise ciphertexts, each used once -------------------------------------------
# Guarantees: a power is (h**n)**e modulo n**2, with a base h = -x**2 drawn for this object and a random
# exponent e of half the bits of n, as `privacy.paillier` explains. With the primes of n it is the same number
# as without. A table has the powers of the base for each digit of the exponent, so a power is a product of
# one number per digit. A party that knows the primes computes it modulo the square of each, and joins the two
# by the Chinese remainder theorem. Lookups are not constant in time, but an exponent is used once, by a party
# on its own machine.


BLOCK = 4096
"""Maximum number of powers computed at once, which limits the memory for draws and table lookups."""


class RandomPowers:
    """Draws random n-th powers modulo n**2, which randomise ciphertexts. Each power is returned only once."""

    def __init__(self, n: Any, engines: tuple[Engine, ...], draw: RandomBytes, digit_bits: int = 8) -> None:
        """engines: one engine for n, or two engines for its prime factors; draw: source of cryptographic
        randomness; digit_bits: bits of an exponent's digit, even and at most 16. More bits make tables larger
        and powers faster."""
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
        """Compute a power for each value of each digit, as the product of the powers for the digit's two
        halves. These, in turn, are products of the powers for individual bits."""
        # With h = half, a table entry is base**(code * 2**(2 h d)) for digit d. Its code is low + 2**h high:
        #     bits      base**(2**k)                  k from 0 to digits * 2 h - 1
        #     halves    base**(v * 2**(h i))          v < 2**h, of half i: the products of the bits of v
        #     table     halves[2 d][low] * halves[2 d + 1][high]
        # So an entry costs one product, where the bits of the code would take up to 2 h - 1.
        half = digit_bits // 2
        squares = [base % engine.square]
        while len(squares) < self._digits * digit_bits:
            squares.append(squares[-1] * squares[-1] % engine.square)
        bits = engine.read(b"".join([square.to_bytes(engine.size, "little") for square in squares]))
        # used[v] has the bits of v, lowest first; their indices in `bits` begin at h i for half i.
        used = np.arange(1 << half)[:, None] >> np.arange(half) & 1
        firsts = half * np.arange(2 * self._digits)[:, None]
        starts = np.append(0, np.cumsum(np.tile(used.sum(axis=1), 2 * self._digits)))
        halves = products(engine, bits, Segments((np.nonzero(used)[1] + firsts).reshape(-1), starts))
        # Half i begins at entry 2**h i of `halves`. Digit d thus begins at 2**(h + 1) d = (2 << half) d, and
        # its high half 2**h entries later.
        low, high = np.arange(self._codes) & ((1 << half) - 1), (np.arange(self._codes) >> half) + (1 << half)
        pairs = np.stack([low, high], axis=1) + (2 << half) * np.arange(self._digits)[:, None, None]
        return products(engine, halves, Segments(pairs.reshape(-1), 2 * np.arange(pairs.size // 2 + 1)))

    def take(self, count: int) -> list[Any]:
        """Compute `count` powers that have never been returned before."""
        blocks = [self._block(min(count - first, BLOCK)) for first in range(0, count, BLOCK)]
        return [*chain.from_iterable(blocks)]

    def _block(self, count: int) -> list[Any]:
        # A digit is the lowest bits of 16 random ones, so it is uniform. Digit d of a row, c, is entry
        # 2**digit_bits d + c.
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
        # Garner's form of the Chinese remainder theorem: a + first * x is a modulo `first`, and b modulo
        # `second` for x = (b - a) / first modulo `second`. It is below n**2 without a reduction.
        inverse = self._inverse
        return [a + first * ((b - a) * inverse % second) for a, b in zip(*found, strict=True)]


# ---- Rows and sums under Paillier's keys ----------------------------------------------------------------


def _digit_bits(n: Any) -> int:
    """Return the number of bits per digit of an exponent when rows are encrypted, which takes one power per
    row. Tables take 67 MB for a 2048-bit key, 151 MB for a 3072-bit key, and 335 MB for the longest key."""
    return 10 if n.bit_length() <= 3072 else 8


class RowEncryption:
    """Encrypts rows' gradients and hessians, at the party that has the secret key."""

    def __init__(
        self,
        secret: PaillierSecret,
        slots: Slots,
        threads: Threads,
        draw: RandomBytes,
        engine_of: EngineOf = engine_of,
    ) -> None:
        """draw: source of cryptographic randomness; engine_of: function that returns an engine."""
        self._public, self._slots = secret.public, slots
        engines = tuple(engine_of(prime, threads) for prime in secret.primes)
        self._powers = RandomPowers(self._public.n, engines, draw, _digit_bits(self._public.n))

    def __repr__(self) -> str:
        return f"RowEncryption({self._public!r})"

    def encrypt(self, pairs: Int64) -> bytes:
        """Encrypt packed gradients and hessians (`gbdt.gradients`), int64 [rows] or [roots, rows], one
        ciphertext per row and root. Raises LocalProtocolError if a gradient or hessian exceeds its slot."""
        n, square = self._public.n, self._public.square
        plain = self._slots.plain(pairs.reshape(-1))
        powers = self._powers.take(len(plain))
        return self._public.written(
            [(1 + m * n) * power % square for m, power in zip(plain, powers, strict=True)]
        )


class RowSums:
    """Computes sums over encrypted rows, at a party that cannot decrypt them."""

    def __init__(
        self,
        public: PaillierPublic,
        slots: Slots,
        threads: Threads,
        draw: RandomBytes,
        engine_of: EngineOf = engine_of,
    ) -> None:
        self._slots = slots
        self._engine = engine_of(public.n, threads)
        self._powers = RandomPowers(public.n, (self._engine,), draw)

    def __repr__(self) -> str:
        return f"RowSums({self._engine.n.bit_length()} bits)"

    def read(self, data: bytes, rows: int) -> Numbers:
        """Decode ciphertexts, one per row and root. Raises PeerError unless all are valid."""
        engine = self._engine
        if len(data) != rows * engine.size:
            raise PeerError(
                "gradients-length",
                f"received {len(data)} bytes of encrypted gradients, which is not a valid length for "
                f"{rows} rows",
            )
        numbers = engine.read(data)
        every = Segments(np.arange(rows), np.array([0, rows]))
        if gmpy2.gcd(engine.values(products(engine, numbers, every))[0], engine.n) != 1:
            raise PeerError("ciphertext-not-unit", "a ciphertext is invalid: it is not a unit modulo n**2")
        return numbers

    def sums(self, rows: Numbers, nodes: Sequence[Node], codes: Codes, bins: Sequence[int]) -> Numbers:
        """Return encrypted sums by node, column and bin, in this order.

        Args:
            rows: output of `read`.
            nodes: the root and row indices of each node.
            codes: bin of each row, uint8 [columns, rows].
            bins: number of bins of each column, at most 256.
        """
        by_joint_bin, by_column = plan(nodes, codes, bins)
        return products(self._engine, products(self._engine, rows, by_joint_bin), by_column)

    def moved(self, sums: Numbers, places: Int64) -> Numbers:
        """Move each sum to its index in `places`, int64 [sums], and add sums with the same index. Returns the
        same number of sums. Where no sum is moved to, the result is 1, which encrypts 0."""
        return products(self._engine, sums, by_bin(places, places.size))

    def close(self, sums: Numbers) -> bytes:
        """Return the report: freshly randomised ciphertexts, whose plaintexts `Slots.read` decodes."""
        # `slots.cells` sums share a ciphertext. A gradient sum may be negative, and then has borrowed from
        # the slot above. The bias makes each slot non-negative, so the plaintext is below 2**(|n| - 1), not n
        # - x.
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
