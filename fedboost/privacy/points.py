"""Private set intersection: row ids are mapped to points of Curve25519, which each party multiplies by its
secret.

A point is encoded as its x coordinate: 32 bytes, little-endian, below the prime. Lists of points are
concatenated.

Guarantees: equal ids are mapped to equal points at every party. The order of multiplications does not matter,
so once every party has multiplied the points, two points are equal if and only if their ids are equal.
Someone who sees products, but does not know the secrets of all parties that multiplied them, cannot find an
id by guessing (decisional Diffie-Hellman). A party that adds guessed ids to its own list can find out which
of these ids all parties have, so callers limit the length of lists. Raises: PeerError for lists that end
within a point, have a wrong length, repeat a point, or contain zero, a number that is not below the prime, or
a point of small order.

Multiplication uses one core: the package `cryptography` holds the interpreter lock in `exchange`, so threads
do not help (20,000 products took 0.83 s in one thread, 0.85 s in two).

Sources: S. C. Pohlig, M. E. Hellman, "An improved algorithm for computing logarithms" (1978), for ciphers
that commute; C. Meadows, "A more efficient cryptographic matchmaking protocol" (1986); RFC 7748 for
X25519."""

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
    """Return 1 if the value is a nonzero square modulo the prime, else another number (Euler's criterion)."""
    return pow(value, prime // 2, prime)


try:  # the same result, many times faster
    from gmpy2 import jacobi
except ImportError:
    jacobi = euler

Tokens = npt.NDArray[np.uint32]
PRIME = (1 << 255) - 19
POINT_BYTES = 32
TOKEN_WORDS = 4
"""Number of 32-bit words in a token, which thus has 128 bits. Among 2**40 ids, the probability that two have
the same token is 2**-49."""
_DOMAIN, _A = b"fedboost/1/id", 486662
_TOP = np.array([(1 << 64) - 19, (1 << 64) - 1, (1 << 64) - 1, (1 << 63) - 1], np.uint64)
"""The prime as 64-bit words, lowest first."""


def points_of(ids: Sequence[bytes], context: bytes) -> bytes:
    """Return the points of these ids, 32 bytes each. context: identifies the use, e.g. the session; different
    contexts yield different points.

    The x coordinate is the first SHA-512(domain, n, context, id) modulo the prime, for n = 0, 1, ..., such
    that x^3 + 486662 x^2 + x is a nonzero square. The point is then on the curve. A point on the curve's
    twist would reveal a bit of the id. This takes about 8 us per id with gmpy2, and 200 us without."""
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
    """Multiply each point by the secret. Returns the products in the same order. This takes about 34 us per
    point.

    secret: 32 random bytes, clamped as in X25519; what: names the list in error messages. Raises PeerError if
    the list ends within a point, or if a product is zero."""
    _check_whole(points, what)
    product, read = X25519PrivateKey.from_private_bytes(secret).exchange, X25519PublicKey.from_public_bytes
    try:
        return b"".join(
            product(read(points[begin : begin + POINT_BYTES])) for begin in range(0, len(points), POINT_BYTES)
        )
    except ValueError:  # raised by cryptography for a product that is zero
        raise PeerError(
            "points-small-order", f"{what} contains a point of small order, whose product is zero"
        ) from None


def check_points(points: bytes, count: int, sender: str) -> None:
    """Raise PeerError, naming `sender`, unless these are `count` distinct nonzero points below the prime."""
    what = list_of(sender)
    _check_whole(points, what)
    words = np.frombuffer(points, "<u8").reshape(-1, POINT_BYTES // 8)
    if len(words) != count:
        raise PeerError("points-count", f"{what} has {len(words)} points instead of {count}")
    beyond = (words[:, 1:3] == _TOP[1:3]).all(axis=1) & (words[:, 0] >= _TOP[0]) & (words[:, 3] == _TOP[3])
    if (beyond | (words[:, 3] > _TOP[3])).any():
        raise PeerError("points-beyond-prime", f"{what} contains a number that is not below the prime")
    if not words.any(axis=1).all():
        raise PeerError("points-zero", f"{what} contains a zero")
    if len(np.unique(np.frombuffer(points, f"S{POINT_BYTES}"))) != count:
        raise PeerError("points-repeated", f"{what} contains a duplicate point")


def list_of(sender: str) -> str:
    """Return the description of a party's list for error messages."""
    return f"the list of points of party {sender}"


def tokens_of(points: bytes) -> Tokens:
    """Return a token for each point: the first 16 bytes of the point's SHA-256 hash, read as little-endian
    uint32 [points, 4]. Points are compared by their tokens."""
    _check_whole(points, "a list of points")
    size = 4 * TOKEN_WORDS
    digests = b"".join(
        hashlib.sha256(points[begin : begin + POINT_BYTES]).digest()[:size]
        for begin in range(0, len(points), POINT_BYTES)
    )
    return np.frombuffer(digests, "<u4").astype(np.uint32).reshape(-1, TOKEN_WORDS)


def intersect(lists: Sequence[Tokens]) -> list[Int64]:
    """Find the tokens that occur in all lists. Returns, for each list, the indices of the common tokens,
    int64 [common], sorted by token (first word first). lists: uint32 [tokens, 4] each. Raises PeerError if a
    list repeats a token."""
    tokens = np.concatenate(lists)
    order = np.lexsort(tokens.T[::-1])  # stable: equal tokens keep the order of their lists
    tokens = tokens[order]
    again = (tokens[1:] == tokens[:-1]).all(axis=1)
    ends = np.cumsum([len(one) for one in lists])
    owner = np.searchsorted(ends, order, side="right")
    twice = owner[1:][again & (owner[1:] == owner[:-1])]
    if twice.size:
        raise PeerError("tokens-repeated", f"list {twice[0] + 1} of {len(lists)} contains a duplicate token")
    begins = np.flatnonzero(np.concatenate([[True], ~again])[: len(tokens)])
    common = begins[np.diff(begins, append=len(tokens)) == len(lists)]
    return [order[common + place] - (ends[place] - len(one)) for place, one in enumerate(lists)]


def _check_whole(points: bytes, what: str) -> None:
    if len(points) % POINT_BYTES:
        raise PeerError("points-cut-short", f"{what} ends within a point")
