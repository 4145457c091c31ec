"""Which pairs of parties share masks: every pair of a small group, the pairs of a graph in a large one.

Once the aggregator and the parties that collude have taken away all masks they know, the sum over each
connected piece of the other parties is bare: the graph of the parties that do not collude must be connected.
Here it is a circulant graph. The parties stand on a ring, and each is a neighbour of the `degree / 2` before
it and behind it. Two runs of `degree / 2` colluding parties are needed to part the others, so fewer than
`degree` never do, whoever they are. The places on the ring follow from hashes of the session's digest, in
which is a fresh nonce of every party: more colluding parties, who were chosen before, part the others only by
chance (`failure_bound`). The argument is in docs/decisions/0017-a-graph-of-pairs.md.

Promises: the neighbours follow from the digest, the names and the number that may collude, so every party
computes the same graph; of two parties either both are neighbours of each other or none is.
Refuses: nothing.
"""

import hashlib
from functools import lru_cache
from math import comb

from fedboost.privacy import fields

MAX_COMPLETE_PARTIES = 60
"""Up to so many parties every pair shares masks: any two that do not collude hide each other, and the masks
of 59 others are no burden to a party with a machine of its own."""
MAX_GRAPH_PARTIES = 1_000
"""So many were tried. What each greets with goes to all others: some gigabyte an attempt, and four with twice
as many."""
MIN_SHARE = 3
"""Beyond, one of so many parties may collude at least, whatever the terms say."""
MAX_FAILURE = 2.0**-100
"""Probability at most that colluding parties part the others. Whoever greets last may try other nonces until
the ring suits: 2**40 of them leave 2**-60."""


def neighbours(me: str, members: tuple[str, ...], colluding: int, session: bytes) -> tuple[str, ...]:
    """The parties that a party shares masks with, sorted. members: all parties, sorted; session: the digest
    of the attempt."""
    count = degree(len(members), colluding)
    if count == len(members) - 1:
        return tuple(member for member in members if member != me)
    places, ring = _ring(members, session)
    place, reach = places[me], count // 2
    steps = (step for step in range(-reach, reach + 1) if step)
    return tuple(sorted(ring[(place + step) % len(ring)] for step in steps))


@lru_cache(maxsize=64)
def degree(parties: int, colluding: int) -> int:
    """The neighbours of a party: the fewest, an even number, with which `colluding` parties, or a third of
    all if those are more, part the others with no more than MAX_FAILURE; all others in a group of up to
    MAX_COMPLETE_PARTIES, and where more than half may collude."""
    bad = max(colluding, parties // MIN_SHARE)
    if parties <= MAX_COMPLETE_PARTIES or 2 * bad > parties:
        return parties - 1
    for reach in range(1, parties // 2):
        if failure_bound(parties, bad, reach) <= MAX_FAILURE:
            return 2 * reach
    return parties - 1


def failure_bound(parties: int, colluding: int, reach: int) -> float:
    """A bound on the probability that so many colluding parties, placed at random on a ring where each is a
    neighbour of the `reach` before it and behind it, part the others.

    They do if and only if the ring has two runs of at least `reach` of them: then the others lie in two arcs
    that no pair crosses; and with one such run at most, the others, in the order of the ring behind it, are
    each a neighbour of the next. Two such runs begin with two disjoint windows of a party that does not
    collude and `reach` that do. There are n (n - 2 reach - 1) / 2 pairs of disjoint windows, and each has
    colluding parties in just those places with probability
    binomial(n - 2 reach - 2, colluding - 2 reach) / binomial(n, colluding). The bound is the sum over all
    pairs. It grows with the number that collude up to half of all, so that it holds for fewer, too.
    """
    if colluding < 2 * reach:
        return 0.0
    ways = comb(parties - 2 * reach - 2, colluding - 2 * reach)
    return parties * (parties - 2 * reach - 1) * ways / (2 * comb(parties, colluding))


@lru_cache(maxsize=1)
def _ring(members: tuple[str, ...], session: bytes) -> tuple[dict[str, int], tuple[str, ...]]:
    """The place of each party, and the parties in the order of the ring. The parties of a simulation have the
    same: it is kept for the one after."""
    ring = tuple(sorted(members, key=lambda member: _lot(member, session)))
    return {member: place for place, member in enumerate(ring)}, ring


def _lot(member: str, session: bytes) -> bytes:
    return hashlib.sha256(fields.pack(b"fedboost/1/ring", session, member.encode())).digest()
