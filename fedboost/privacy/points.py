"""Ids of rows as points of Curve25519, multiplied by the secret of each party: private set intersection.

Promises: equal ids give equal points, whoever makes them. A product does not depend on the order of its
secrets, so lists that every party has multiplied have equal points where they have equal ids. Whoever sees
products and lacks the secret of one party cannot tell an id by trying ids (decisional Diffie-Hellman). A
party that enters ids of others in its own list learns which of them all have: callers bound lists. A point is
written as its x, 32 bytes, little-endian, below the prime; points stand one behind the other.
Refuses: lists cut within a point, of another length, with a point twice, zero, or not below the prime, and
points of small order (PeerError).

One core multiplies: cryptography holds the interpreter's lock in `exchange`, so threads do not help (20,000
products took 0.83 s in one thread, 0.85 s in two).

Sources: S. C. Pohlig, M. E. Hellman, "An improved algorithm for computing logarithms" (1978), for ciphers
that commute; C. Meadows, "A more efficient cryptographic matchmaking protocol" (1986); RFC 7748 for X25519.
"""

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.packing import number, pack


def euler(value: int, prime: int) -> int:
    """1 for squares modulo the prime that are not 0, another number for all else."""
    return pow(value, prime // 2, prime)


try:  # the same, many times faster
    from gmpy2 import jacobi
except ImportError:
    jacobi = euler

Tokens = npt.NDArray[np.uint32]
PRIME = (1 << 255) - 19
POINT_BYTES = 32
TOKEN_WORDS = 4
"""128 bits: among 2**40 ids two have one token with a probability of 2**-49."""
_DOMAIN, _A = b"fedboost/1/id", 486662
_TOP = np.array([(1 << 64) - 19, (1 << 64) - 1, (1 << 64) - 1, (1 << 63) - 1], np.uint64)
"""The prime in words, lowest first."""


def points_of(ids: Sequence[bytes], context: bytes) -> bytes:
    """The point of each id, 32 bytes an id. context: what the points are for, such as the session; under
    another one they are others.

    x is the first of SHA-512(domain, n, context, id) modulo the prime, n = 0, 1, ..., for which
    x^3 + 486662 x^2 + x is a square and not 0: a point of the curve, not of its twist, which would tell a bit
    of the id. About 8 us an id with gmpy2, 200 us without.
    """
    return b"".join(_point_of(pack(context, row_id)) for row_id in ids)


def _point_of(what: bytes) -> bytes:
    n = 0
    while True:
        digest = hashlib.sha512(_prefix(n) + what).digest()
        x = int.from_bytes(digest, "little") % PRIME
        if jacobi(x * (x * (x + _A) + 1) % PRIME, PRIME) == 1:
            return x.to_bytes(POINT_BYTES, "little")
        n += 1


@cache
def _prefix(n: int) -> bytes:
    return pack(_DOMAIN, number(n))


def multiply(points: bytes, secret: bytes, what: str = "a list of points") -> bytes:
    """Each point times the secret, in the same order; about 34 us a point. secret: 32 random bytes, clamped
    as X25519 does. PeerError for a list that ends within a point, and for a point whose product is zero;
    what: how it names the list."""
    _check_whole(points, what)
    product, read = X25519PrivateKey.from_private_bytes(secret).exchange, X25519PublicKey.from_public_bytes
    try:
        return b"".join(
            product(read(points[begin : begin + POINT_BYTES])) for begin in range(0, len(points), POINT_BYTES)
        )
    except ValueError:  # cryptography's word for a product that is zero
        raise PeerError(f"{what} has one of small order: its product is zero") from None


def check_points(points: bytes, count: int, sender: str) -> None:
    """PeerError unless these are `count` distinct points, none zero, each below the prime. sender: the party
    that is named."""
    what = list_of(sender)
    _check_whole(points, what)
    words = np.frombuffer(points, "<u8").reshape(-1, POINT_BYTES // 8)
    if len(words) != count:
        raise PeerError(f"{what} has {len(words)} points instead of {count}")
    beyond = (words[:, 1:3] == _TOP[1:3]).all(axis=1) & (words[:, 0] >= _TOP[0]) & (words[:, 3] == _TOP[3])
    if (beyond | (words[:, 3] > _TOP[3])).any():
        raise PeerError(f"{what} has one that is not below the prime")
    if not words.any(axis=1).all():
        raise PeerError(f"{what} has a zero")
    if len(np.unique(np.frombuffer(points, f"S{POINT_BYTES}"))) != count:
        raise PeerError(f"{what} has a point twice")


def list_of(sender: str) -> str:
    """How a refusal names the list that a party sent."""
    return f"the list of points of party {sender}"


def tokens_of(points: bytes) -> Tokens:
    """What is told of each point to whoever compares: uint32 [points, 4], the first 16 bytes of its SHA-256
    as little-endian words."""
    _check_whole(points, "a list of points")
    size = 4 * TOKEN_WORDS
    digests = b"".join(
        hashlib.sha256(points[begin : begin + POINT_BYTES]).digest()[:size]
        for begin in range(0, len(points), POINT_BYTES)
    )
    return np.frombuffer(digests, "<u4").astype(np.uint32).reshape(-1, TOKEN_WORDS)


def intersect(lists: Sequence[Tokens]) -> list[Int64]:
    """The places in each list of the tokens that all have, int64 [common] a list, in the order of the tokens
    (first word first). lists: uint32 [tokens, 4] each. PeerError for a list with a token twice."""
    tokens = np.concatenate(lists)
    order = np.lexsort(tokens.T[::-1])  # stable: equal tokens in the order of their lists
    tokens = tokens[order]
    again = (tokens[1:] == tokens[:-1]).all(axis=1)
    ends = np.cumsum([len(one) for one in lists])
    owner = np.searchsorted(ends, order, side="right")
    twice = owner[1:][again & (owner[1:] == owner[:-1])]
    if twice.size:
        raise PeerError(f"list {twice[0] + 1} of {len(lists)} has a token twice")
    begins = np.flatnonzero(np.concatenate([[True], ~again])[: len(tokens)])
    common = begins[np.diff(begins, append=len(tokens)) == len(lists)]
    return [order[common + place] - (ends[place] - len(one)) for place, one in enumerate(lists)]


def _check_whole(points: bytes, what: str) -> None:
    if len(points) % POINT_BYTES:
        raise PeerError(f"{what} ends within a point")
