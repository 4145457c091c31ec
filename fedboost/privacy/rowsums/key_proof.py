"""Proof that a Paillier key hides what is blinded under it from the party that made it.

Promises: a key that passes has gcd(n, phi(n)) = 1, except with probability 2**-128 for each key and context
that its maker tries; the proof shows nothing else of the key, if SHAKE256 is a random oracle.
Refuses: keys with a prime factor below 2**16; proofs for another key or context; whatever is no proof
(PeerError).

The proof is the n-th roots modulo n of PROOFS numbers, hashed from n and the context. If a prime d divides n
and phi(n), at most one unit in d has an n-th root; d is above 2**16, so all PROOFS numbers have one with
probability below 2**(-16 * PROOFS).
Source: S. Goldberg, L. Reyzin, O. Sagga, F. Baldimtsi, "Efficient noninteractive certification of RSA moduli
and beyond", ASIACRYPT 2019, section 3.2.
"""

import hashlib
from typing import Any

import gmpy2
from gmpy2 import mpz

from fedboost.errors import PeerError
from fedboost.privacy.encrypted.paillier import (
    FACTOR_BITS,
    SMALL_PRIMES,
    PaillierPublic,
    PaillierSecret,
    split,
)

PROOFS = 8
"""Numbers to take a root of: 128 bits of soundness, 16 each."""
_SPARE = 16
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
    n, wide = public.to_bytes(), public.bytes + _SPARE
    stream = hashlib.shake_256(_LABEL + len(n).to_bytes(4) + n + context).digest(PROOFS * wide)
    return [mpz.from_bytes(stream[at : at + wide], "little") % public.n for at in range(0, len(stream), wide)]
