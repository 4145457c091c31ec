"""Sums under a Paillier key, opened by the label holder for the aggregator.

Promises, if the key has passed `key_proof.check`: a blinded ciphertext is a uniform unit modulo n**2,
whatever it was, so that the label holder learns nothing from any number of them; a plaintext other than that
of the ciphertext is found, except with probability 2**-128.
Refuses: requests and answers that are out of range or no units, and answers that are wrong (PeerError, which
names the label holder).

(m, r) -> (1 + n)**m * r**n is one to one from Z_n x Z_n* onto the units modulo n**2 if gcd(n, phi(n)) = 1
(P. Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999). So a
uniform pair blinds as a one-time pad, and an opening (m, r) that gives the ciphertext is the only one. An
answer is checked with random exponents (M. Bellare, J. Garay, T. Rabin, "Fast batch verification for modular
exponentiation and digital signatures", EUROCRYPT 1998). Why in rounds of 16 bits: docs/decisions/0023.
"""

import hashlib
from typing import Any, NamedTuple

import gmpy2
from gmpy2 import mpz

from fedboost.errors import PeerError, SessionFailed
from fedboost.privacy.encrypted.paillier import (
    FACTOR_BITS,
    SMALL_PRIMES,
    PaillierPublic,
    PaillierSecret,
    split,
)
from fedboost.privacy.masked.keys import RandomBytes
from fedboost.privacy.rowsums.sums import Engine

ROUNDS = 8
"""Rounds of exponents of FACTOR_BITS bits each: a wrong plaintext passes each with at most 2**-16."""
_SPARE = 16
"""Bytes drawn beyond those of n: the remainder modulo n is uniform, but for 2**-128."""


class Blinded(NamedTuple):
    """What the aggregator keeps of a request: the blinded ciphertexts, and what each blind adds."""

    ciphertexts: list[Any]
    added: list[Any]

    def __repr__(self) -> str:
        return f"Blinded({len(self.ciphertexts)} numbers)"


def blind(
    public: PaillierPublic, numbers: list[Any], draw: RandomBytes, engine: Engine | None = None
) -> tuple[bytes, Blinded]:
    """The request for the plaintexts of ciphertexts, units modulo n**2, and what `unblind` needs. engine:
    modulo n**2, that computes powers; gmpy2 unless given.

    Each is multiplied by a new (1 + n)**added * rho**n. No power of a fixed base stands for rho**n: those
    stay in a subgroup, whose cosets the party that knows the factors of n tells apart.
    """
    n, square = public.n, public.square
    added, units = [], []
    for _ in numbers:
        added.append(_below(n, draw))
        while gmpy2.gcd(rho := _below(n, draw), n) != 1:
            pass
        units.append(rho)
    blinded = [
        number * (1 + n * plain) % square * power % square
        for number, plain, power in zip(numbers, added, _powers(public, units, engine), strict=True)
    ]
    return public.written(blinded), Blinded(blinded, added)


def _powers(public: PaillierPublic, units: list[Any], engine: Engine | None) -> list[Any]:
    """The n-th powers of numbers modulo n**2."""
    if engine is None:
        return [gmpy2.powmod(unit, public.n, public.square) for unit in units]
    return engine.values(engine.powers(engine.read(public.written(units)), public.n))


def open_blinded(secret: PaillierSecret, request: bytes, count: int) -> bytes:
    """The label holder's answer to a request of `count` numbers: all plaintexts m, then all roots r, each of
    the bytes of n.

    SessionFailed if this machine computed wrongly: an answer that is right modulo one prime alone shows it.
    """
    public, ones = secret.public, [1] * count
    n, square = public.n, public.square
    numbers = public.read(request, count)
    plain = secret.decrypt(numbers)
    roots = secret.roots([number % n for number in numbers])
    total = sum(split(plain, public.bytes, count)) % n
    if not _opens(public, _product(numbers, ones, square), total, _product(roots, ones, n)):
        raise SessionFailed("this machine decrypted wrongly: check its memory, then start again")
    return plain + b"".join([root.to_bytes(public.bytes, "little") for root in roots])


def unblind(
    public: PaillierPublic, answer: bytes, kept: Blinded, label_holder: str, draw: RandomBytes
) -> list[Any]:
    """The plaintexts of what was blinded, numbers below n. `draw` is asked after the answer is there.

    PeerError, with the name of the label holder, if it did not open what it was sent.
    """
    count = len(kept.ciphertexts)
    if len(answer) != 2 * count * public.bytes:
        raise PeerError(
            f"{label_holder} answered {len(answer)} bytes where {count} openings "
            f"of {2 * public.bytes} were due"
        )
    numbers = split(answer, public.bytes, 2 * count)
    plain, roots = numbers[:count], numbers[count:]
    if not _right(public, kept.ciphertexts, plain, roots, draw):
        wrong = next(
            at
            for at, opening in enumerate(zip(kept.ciphertexts, plain, roots, strict=True), 1)
            if not _opens(public, *opening)
        )
        raise PeerError(
            f"{label_holder} opened number {wrong} of {count} with something else than it holds: its answer "
            "is used for nothing; ask its operator before you train with it again"
        )
    return [(m - taken) % public.n for m, taken in zip(plain, kept.added, strict=True)]


def _right(
    public: PaillierPublic, ciphertexts: list[Any], plain: list[Any], roots: list[Any], draw: RandomBytes
) -> bool:
    """True if all openings are right: in rounds, or one by one where that is cheaper."""
    n, square = public.n, public.square
    if not all(m < n for m in plain) or not all(1 <= r < n for r in roots):
        return False
    if len(plain) <= ROUNDS:
        return all(_opens(public, *opening) for opening in zip(ciphertexts, plain, roots, strict=True))
    for _ in range(ROUNDS):
        size = FACTOR_BITS // 8
        stream = draw(size * len(plain))
        exponents = [int.from_bytes(stream[at : at + size]) for at in range(0, len(stream), size)]
        m = sum((m * e for m, e in zip(plain, exponents, strict=True)), mpz(0))
        if not _opens(public, _product(ciphertexts, exponents, square), m % n, _product(roots, exponents, n)):
            return False
    return True


def _opens(public: PaillierPublic, ciphertext: Any, m: Any, r: Any) -> bool:
    n, square = public.n, public.square
    if not (0 <= m < n and 1 <= r < n and gmpy2.gcd(r, n) == 1):
        return False
    return bool((1 + n * m) * gmpy2.powmod(r, n, square) % square == ciphertext)


def _product(numbers: list[Any], exponents: list[int], modulus: Any) -> Any:
    """The product of powers with exponents of at most FACTOR_BITS bits."""
    product = mpz(1)
    for bit in reversed(range(max(exponents, default=0).bit_length())):
        product = product * product % modulus
        for number, exponent in zip(numbers, exponents, strict=True):
            if exponent >> bit & 1:
                product = product * number % modulus
    return product


def _below(n: Any, draw: RandomBytes) -> Any:
    return mpz.from_bytes(draw((n.bit_length() + 7) // 8 + _SPARE), "little") % n


# ---- Proof that a Paillier key hides what is blinded under it from the party that made it ---------------
# Promises: a key that passes has gcd(n, phi(n)) = 1, except with probability 2**-128 for each key and
# context that its maker tries; the proof shows nothing else of the key, if SHAKE256 is a random oracle.
# Refuses: keys with a prime factor below 2**16; proofs for another key or context; whatever is no proof
# (PeerError).
# The proof is the n-th roots modulo n of PROOFS numbers, hashed from n and the context. If a prime d
# divides n and phi(n), at most one unit in d has an n-th root; d is above 2**16, so all PROOFS numbers have
# one with probability below 2**(-16 * PROOFS). Source: S. Goldberg, L. Reyzin, O. Sagga, F. Baldimtsi,
# "Efficient noninteractive certification of RSA moduli and beyond", ASIACRYPT 2019, section 3.2.


PROOFS = 8
"""Numbers to take a root of: 128 bits of soundness, 16 each."""
_SPARE_BITS = 16
"""Bytes hashed beyond those of n: the remainder modulo n is uniform, but for 2**-128."""
_LABEL = b"fedboost Paillier key proof 1"


def prove(secret: PaillierSecret, context: bytes) -> bytes:
    """The proof for a key, of PROOFS times the bytes of n. `context` says what it is for: the session, the
    attempt, the party's name."""
    public = secret.public
    roots = secret.roots(_hashed(public, context))
    return b"".join([root.to_bytes(public.bytes, "little") for root in roots])


def check(public: PaillierPublic, context: bytes, proof: bytes) -> None:
    """PeerError if the proof is not for this key and context, or the key has a small factor."""
    n = public.n
    if n < 2 or gmpy2.gcd(n, SMALL_PRIMES) != 1:
        raise PeerError(f"a Paillier key with a prime factor below 2**{FACTOR_BITS}")
    if len(proof) != PROOFS * public.bytes:
        raise PeerError(
            f"a proof of a Paillier key of {len(proof)} bytes in place of {PROOFS * public.bytes}"
        )
    roots = split(proof, public.bytes, PROOFS)
    for at, (root, number) in enumerate(zip(roots, _hashed(public, context), strict=True), 1):
        if not 1 <= root < n or gmpy2.gcd(number, n) != 1 or gmpy2.powmod(root, n, n) != number:
            raise PeerError(
                f"root {at} of {PROOFS} in the proof of a Paillier key is wrong: the key could show its "
                "maker what is blinded under it, or the proof is of another session, attempt or party"
            )


def _hashed(public: PaillierPublic, context: bytes) -> list[Any]:
    """PROOFS numbers below n."""
    n, wide = public.to_bytes(), public.bytes + _SPARE_BITS
    stream = hashlib.shake_256(_LABEL + len(n).to_bytes(4) + n + context).digest(PROOFS * wide)
    return [mpz.from_bytes(stream[at : at + wide], "little") % public.n for at in range(0, len(stream), wide)]
