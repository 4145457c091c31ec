"""Shamir's secret sharing over the integers modulo 2**521 - 1.

Promises: any `threshold` shares give the secret; fewer say nothing about it.
Refuses: secrets and shares outside the field, points that are not distinct (PeerError).

Source: A. Shamir, "How to share a secret", Communications of the ACM 22 (1979).
"""

from collections.abc import Callable, Mapping, Sequence

from fedboost.errors import PeerError

PRIME = (1 << 521) - 1
SHARE_BYTES = 66
"""A number below the prime, big-endian."""

RandomBytes = Callable[[int], bytes]
"""Returns that many bytes from the operating system's cryptographic generator."""


def draw_number(draw: RandomBytes) -> int:
    """A uniformly random number below the prime."""
    while True:
        number = int.from_bytes(draw(SHARE_BYTES)) >> (8 * SHARE_BYTES - 521)
        if number < PRIME:
            return number


def split(secret: int, threshold: int, points: Sequence[int], draw: RandomBytes) -> list[int]:
    """The shares at these points of a random polynomial of degree threshold - 1 that is `secret` at 0."""
    if not (0 <= secret < PRIME and 0 < threshold <= len(points)):
        raise PeerError(f"cannot share among {len(points)} with threshold {threshold}")
    if len(set(points)) != len(points) or any(not 0 < point < PRIME for point in points):
        raise PeerError("the points of shares must be distinct and not zero")
    coefficients = [secret, *(draw_number(draw) for _ in range(threshold - 1))]
    shares = []
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares.append(value)
    return shares


def combine(shares: Mapping[int, int]) -> int:
    """The secret, from point to share: the polynomial through them, at 0."""
    secret = 0
    for point, share in shares.items():
        if not (0 < point < PRIME and 0 <= share < PRIME):
            raise PeerError("a share is outside the field")
        above, below = 1, 1
        for other in shares:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        secret = (secret + share * above * pow(below, -1, PRIME)) % PRIME
    return secret
