"""The Paillier cryptosystem, with many cells per ciphertext. This is the only module that imports phe, which
is licensed under the GPLv3.

Guarantees: ciphertexts are compatible with phe and its keys. Each ciphertext is randomised by a power that is
used only once. Keys and powers come from the operating system's generator. Raises: PeerError (ConfigError for
a key generated at this party) for keys of fewer than MIN_KEY_BITS bits, and PeerError for numbers that are
evidently not products of two large primes.

A ciphertext of m is (1 + n m) r**n modulo n**2. Computing r**n directly takes an exponent of |n| bits.
Instead, a random power of a fixed h**n is used, where h = -x**2. The exponent of this power has only |n| / 2
bits. The base never changes, so with a table of its powers, a random power takes only one product per byte of
the exponent (Damgård, Jurik and Nielsen, "A generalization of Paillier's public-key system with applications
to electronic voting", 2010). Their method requires primes that are 3 modulo 4, and the primes generated here
satisfy this. Decryption works modulo p**2 and q**2 separately, as in phe. The time to compute the powers for
decryption does not depend on the key, because someone who can choose ciphertexts may also be able to measure
times. Table lookups do not take constant time, but each exponent is used only once, by a party on its own
machine."""

import math
import secrets
import threading
import weakref
from collections import deque
from functools import cached_property
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from phe.paillier import PaillierPrivateKey, PaillierPublicKey
from phe.util import getprimeover

from fedboost.errors import ConfigError, PeerError, SessionFailed
from fedboost.privacy.packing import IMPOSSIBLE, Chunk, Layout, RandomBytes, Words

MIN_KEY_BITS = 2048
"""Minimum key size in bits: 112 bits of security, the minimum of NIST SP 800-57."""
MAX_KEY_BITS = 8192
"""Maximum key size in bits. Larger keys only take more time, so no honest peer sends one."""
POOL = 2048
"""Number of powers computed in advance. For 2048-bit keys: 1 MB, enough for 86,000 cells of 46 bits."""
FACTOR_BITS = 16
"""A valid key has no prime factor below 2**FACTOR_BITS."""
SMALL_PRIMES = gmpy2.primorial(1 << FACTOR_BITS)

if not hasattr(gmpy2, "powmod_sec"):  # as in builds without GMP
    raise ConfigError(
        "paillier-gmpy2-build",
        f"protection paillier needs gmpy2 2.2 or later, built with GMP, for constant-time powers; version "
        f'{gmpy2.version()} is installed: pip install --upgrade "fedboost[paillier]"',
    )


class Paillier:
    """Generates and reads keys of the Paillier cryptosystem, in which encrypted numbers can be added."""

    def new_secret(self, bits: int) -> "PaillierSecret":
        """Generate a key pair. Raises ConfigError unless `bits` is a multiple of 16 from MIN_KEY_BITS to
        MAX_KEY_BITS."""
        if not MIN_KEY_BITS <= bits <= MAX_KEY_BITS or bits % 16:
            raise ConfigError(
                "paillier-key-bits",
                f"a Paillier key cannot have {bits} bits: use a multiple of 16 from {MIN_KEY_BITS} to "
                f"{MAX_KEY_BITS}",
            )
        return generate(bits)

    def read_public(self, data: bytes, min_bits: int) -> "PaillierPublic":
        """Decode a public key. data: the modulus n, most significant byte first. Raises PeerError if the key
        has fewer than `min_bits` bits, or is not valid."""
        n, least = mpz(int.from_bytes(data)), max(min_bits, MIN_KEY_BITS)
        if not least <= 8 * len(data) <= MAX_KEY_BITS:
            raise PeerError(
                "paillier-key-bits",
                f"the Paillier key has {8 * len(data)} bits; this session allows {least} to {MAX_KEY_BITS}",
            )
        if n.bit_length() != 8 * len(data):
            raise PeerError("paillier-key-length", "the Paillier key has leading zero bits")
        if gmpy2.gcd(n, SMALL_PRIMES) != 1 or gmpy2.is_power(n) or gmpy2.is_prime(n):
            raise PeerError(
                "paillier-key-invalid", "the modulus of the Paillier key is not a product of two large primes"
            )
        return PaillierPublic(n)


def generate(bits: int) -> "PaillierSecret":
    """Generate a key pair of any size. Its primes p and q are 3 modulo 4, and gcd(p - 1, q - 1) = 2."""
    while True:
        p, q = (_prime(bits // 2) for _ in range(2))
        if p != q and (p * q).bit_length() == bits and math.gcd((p - 1) // 2, (q - 1) // 2) == 1:
            public = PaillierPublicKey(p * q)
            return PaillierSecret(PaillierPrivateKey(public, p, q))


def _prime(bits: int) -> int:
    while True:
        p: int = getprimeover(bits)
        if p % 4 == 3:
            return p


# ---- The public key -------------------------------------------------------------------------------------


class PaillierPublic:
    """A public key n, and a pool of powers that randomise ciphertexts."""

    def __init__(self, n: Any) -> None:
        self.n = mpz(n)
        self.square = self.n * self.n
        self.bytes = (self.n.bit_length() + 7) // 8
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"PaillierPublic({self.n.bit_length()} bits)"

    def to_bytes(self) -> bytes:
        """Return n, most significant byte first."""
        return int(self.n).to_bytes(self.bytes)

    def cipher(self, chunk: Chunk, parties: int) -> "PaillierCipher":
        """Return an object that encrypts a chunk's cells, with room for the sum over this many parties."""
        return PaillierCipher(self, Layout(chunk.pieces, parties, (self.n.bit_length() - 1) // 8))

    def read(self, sealed: bytes, rows: int) -> list[Any]:
        """Decode `rows` ciphertexts. Raises PeerError unless all are units modulo n**2."""
        numbers = split(sealed, 2 * self.bytes, rows)
        if numbers and not 1 <= min(numbers) <= max(numbers) < self.square:
            raise PeerError("ciphertext-out-of-range", "a ciphertext is out of range")
        if not self.units(numbers):
            raise PeerError("ciphertext-not-unit", "a ciphertext is invalid: it is not a unit modulo n**2")
        return numbers

    def units(self, numbers: list[Any]) -> bool:
        """Return True if none of these numbers has a factor in common with n."""
        product = mpz(1)
        for number in numbers:
            product = product * (number % self.n) % self.n
        return bool(gmpy2.gcd(product, self.n) == 1)

    def written(self, numbers: list[Any]) -> bytes:
        """Encode ciphertexts as bytes to send: 2 * `bytes` bytes each, least significant byte first."""
        return b"".join([number.to_bytes(2 * self.bytes, "little") for number in numbers])

    def prepare(self) -> None:
        """Start filling the pool of powers in the background."""
        self.pool()

    def pool(self) -> "Pool":
        """Return this process's pool of powers. After a fork it is new: no power is used twice."""
        with self._lock:
            if self._pool is None or not self._pool.alive:
                self._pool = Pool(self.n, POOL)
            return self._pool

    def close(self) -> None:
        """Stop the thread that fills the pool."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None


class Powers:
    """Computes random n-th powers modulo n**2, from a random base drawn for this object."""

    def __init__(self, n: Any) -> None:
        self._square = n * n
        self._digits = (n.bit_length() // 2 + 7) // 8
        while gmpy2.gcd(x := mpz(secrets.randbelow(int(n))), n) != 1:
            pass
        base = gmpy2.powmod(-x * x % n, n, self._square)
        self._tables = []
        for _ in range(self._digits):
            row = [mpz(1)]
            for _ in range(256):
                row.append(row[-1] * base % self._square)
            base = row.pop()
            self._tables.append(row)

    def next(self) -> Any:
        """Return a random power. Its exponent has half as many bits as n."""
        square, power = self._square, mpz(1)
        for table, digit in zip(self._tables, secrets.token_bytes(self._digits), strict=True):
            power = power * table[digit] % square
        return power


class Pool:
    """Powers that a thread computes in advance. Each power is returned only once. The thread ends when the
    pool is closed or deleted."""

    def __init__(self, n: Any, max_ready: int) -> None:
        self._stock = _Stock(n, max_ready)
        self._thread = threading.Thread(
            target=_fill, args=(self._stock,), name="fedboost-powers", daemon=True
        )
        self._thread.start()
        self._finish = weakref.finalize(self, _finish, self._stock, self._thread)

    @property
    def alive(self) -> bool:
        """True if the pool's thread runs in this process. In a forked child process, it does not."""
        return self._thread.is_alive()

    def __len__(self) -> int:
        return len(self._stock.ready)

    def take(self, count: int) -> list[Any]:
        """Return `count` powers. If the pool has fewer, the missing powers are computed now."""
        stock = self._stock
        taken: list[Any] = []
        while len(taken) < count:
            try:
                taken.append(stock.ready.popleft())
            except IndexError:
                taken.append(stock.powers.next())
        stock.wanted.set()
        return taken

    def close(self) -> None:
        """Stop the thread and discard the powers in the pool."""
        self._finish()


class _Stock:
    """State shared by a pool and its thread, without a reference to the pool, so that it can be deleted."""

    def __init__(self, n: Any, max_ready: int) -> None:
        self._n = n
        self._lock = threading.Lock()
        self._powers: Powers | None = None
        self.max_ready = max_ready
        self.ready: deque[Any] = deque()
        self.wanted = threading.Event()
        self.stopped = False

    @property
    def powers(self) -> Powers:
        with self._lock:
            if self._powers is None:
                self._powers = Powers(self._n)
            return self._powers


def _fill(stock: _Stock) -> None:
    gmpy2.get_context().allow_release_gil = True  # a setting of this thread: others run meanwhile
    powers = stock.powers
    while not stock.stopped:
        if len(stock.ready) < stock.max_ready:
            stock.ready.append(powers.next())
        else:
            stock.wanted.wait()
            stock.wanted.clear()


def _finish(stock: _Stock, thread: threading.Thread) -> None:
    stock.stopped = True
    stock.wanted.set()
    if thread is not threading.current_thread():
        thread.join()
    stock.ready.clear()


# ---- Ciphertexts ----------------------------------------------------------------------------------------


class PaillierCipher:
    """Encrypts and adds the rows of a layout (many cells per row), one ciphertext per row."""

    def __init__(self, public: PaillierPublic, layout: Layout) -> None:
        self._public = public
        self._layout = layout

    def encrypt(self, words: Words) -> bytes:
        """Pack cells below 2**bits, uint64 [cells], into rows, and encrypt and encode each row."""
        rows = self._layout.pack(words)
        return self._public.written(
            self._encrypted([mpz.from_bytes(row.tobytes(), "little") for row in rows])
        )

    def _encrypted(self, plain: list[Any]) -> list[Any]:
        n, square = self._public.n, self._public.square
        powers = self._public.pool().take(len(plain))
        return [(m * n + 1) * power % square for m, power in zip(plain, powers, strict=True)]

    def read(self, sealed: bytes) -> list[Any]:
        return self._public.read(sealed, self._layout.rows)

    def add(self, total: list[Any], more: list[Any]) -> list[Any]:
        """Add the plaintexts of two lists of ciphertexts, by multiplying the ciphertexts in pairs."""
        square = self._public.square
        return [left * right % square for left, right in zip(total, more, strict=True)]

    def blind(self, total: list[Any], draw: RandomBytes) -> tuple[bytes, list[Any]]:
        """Blind the plaintext of each row: add a random number below n, uniform to within 2**-128. This also
        re-randomises each ciphertext. Returns the encoded ciphertexts and the added numbers."""
        blinds = [below(self._public.n, draw) for _ in total]
        return self._public.written(self.add(total, self._encrypted(blinds))), blinds

    def unblind(self, answer: bytes, blind: list[Any]) -> Words:
        """Subtract the numbers that `blind` added from the decrypted rows. Returns the lowest 64 bits of each
        cell, uint64 [cells]. Raises PeerError if the answer's length is wrong, and SessionFailed if the
        plaintexts cannot be sums."""
        n, row_bytes = self._public.n, self._layout.row_bytes
        opened = split(answer, self._public.bytes, self._layout.rows)
        plain = [(m - taken) % n for m, taken in zip(opened, blind, strict=True)]
        if any(m.bit_length() > 8 * row_bytes for m in plain):
            raise SessionFailed("plaintext-impossible", IMPOSSIBLE)
        rows = b"".join([m.to_bytes(row_bytes, "little") for m in plain])
        return self._layout.unpack(np.frombuffer(rows, np.uint8).reshape(-1, row_bytes))


def below(n: Any, draw: RandomBytes) -> Any:
    """Draw a random number below n, uniform to within 2**-128."""
    return mpz.from_bytes(draw((n.bit_length() + 7) // 8 + 16), "little") % n


def unit(n: Any, draw: RandomBytes) -> Any:
    """Draw a random number below n that has no factor in common with n."""
    while gmpy2.gcd(x := below(n, draw), n) != 1:
        pass
    return x


def split(data: bytes, size: int, rows: int) -> list[Any]:
    """Decode `rows` little-endian numbers of `size` bytes. Raises PeerError for a wrong total length."""
    if len(data) != rows * size:
        raise PeerError(
            "numbers-length", f"received {len(data)} bytes instead of {rows} numbers of {size} bytes each"
        )
    return [mpz.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


# ---- The secret key -------------------------------------------------------------------------------------


class PaillierSecret:
    """A Paillier key pair. The secret key is an object from phe."""

    def __init__(self, key: PaillierPrivateKey) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"PaillierSecret({self.public!r})"

    @cached_property
    def public(self) -> PaillierPublic:
        return PaillierPublic(self._key.public_key.n)

    @property
    def primes(self) -> tuple[Any, Any]:
        """The primes p and q, whose product is n."""
        return mpz(self._key.p), mpz(self._key.q)

    def decrypt(self, ciphertexts: list[Any]) -> bytes:
        """Decrypt ciphertexts. Returns the plaintexts, which are below n, as `public.bytes` bytes each, least
        significant byte first."""
        key = self._key
        p, q, inverse = mpz(key.p), mpz(key.q), mpz(key.p_inverse)
        modulo_p = _residues(ciphertexts, p, mpz(key.hp))
        modulo_q = _residues(ciphertexts, q, mpz(key.hq))
        plain = [m + (other - m) * inverse % q * p for m, other in zip(modulo_p, modulo_q, strict=True)]
        return b"".join([m.to_bytes(self.public.bytes, "little") for m in plain])

    def roots(self, numbers: list[Any]) -> list[Any]:
        """Return the n-th roots modulo n of units below n. The root of a ciphertext (1 + n m) r**n is r."""
        key, n = self._key, self.public.n
        p, q, inverse = mpz(key.p), mpz(key.q), mpz(key.p_inverse)
        modulo_p, modulo_q = (_roots(numbers, n, prime) for prime in (p, q))
        return [r + (other - r) * inverse % q * p for r, other in zip(modulo_p, modulo_q, strict=True)]


def _residues(numbers: list[Any], prime: Any, h: Any) -> list[Any]:
    """Return the plaintexts modulo a prime. h: phe's constant for this prime. Powers are computed in constant
    time, because the exponent is secret."""
    square = prime * prime
    powers = [gmpy2.powmod_sec(number % square, prime - 1, square) for number in numbers]
    return [(power - 1) // prime * h % prime for power in powers]


def _roots(numbers: list[Any], n: Any, prime: Any) -> list[Any]:
    """Return the n-th roots modulo a prime, in constant time, because the exponent is secret."""
    exponent = gmpy2.invert(n, prime - 1)
    return [gmpy2.powmod_sec(number % prime, exponent, prime) for number in numbers]
