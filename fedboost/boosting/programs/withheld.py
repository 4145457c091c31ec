"""Counts that an analyst does not get: those of few rows, and those that would tell them by subtraction.

Promises: a count of 1 to floor - 1 rows is withheld, and does not follow from those that are given by adding
and subtracting; of a sum that is known none, or at least two counts are withheld, of so many rows that each
may have floor - 1; which others are withheld does not depend on how many rows they have, since that would
bound the few.
Refuses nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

K = TypeVar("K")
MAX_SOLVED = 1 << 11
"""Counts that are withheld together, of which what follows from others is found out; of more, all are."""
SURE = 1e-6


@dataclass(frozen=True)
class Sum(Generic[K]):
    """Keys whose counts have a known sum; or one that is the count of another key."""

    parts: tuple[K, ...]
    total: tuple[K, ...] = ()

    @property
    def keys(self) -> tuple[K, ...]:
        """All of them."""
        return (*self.parts, *self.total)


def withheld(counts: Mapping[K, int], sums: Sequence[Sum[K]], floor: int, also: Iterable[K] = ()) -> set[K]:
    """The keys of counts that are withheld. also: keys that are withheld in any case."""
    hidden = {key for key, count in counts.items() if 0 < count < floor} | {*also}
    of: dict[K, list[int]] = {}
    for number, each in enumerate(sums):
        for key in each.keys:
            of.setdefault(key, []).append(number)
    while True:
        _close(hidden, counts, sums, floor)
        more = [_more(group, hidden, counts, sums, of, floor) for group in _components(hidden, sums)]
        if not any(more):
            return hidden
        hidden.update(*more)


def _close(hidden: set[K], counts: Mapping[K, int], sums: Sequence[Sum[K]], floor: int) -> None:
    """Withhold more, until of each sum none or several are."""
    pending = True
    while pending:
        pending = False
        for each in sums:
            gone = [key for key in each.keys if key in hidden]
            rest = _in_order((key for key in each.keys if key not in hidden), counts)
            while gone and rest and not _is_enough([counts[key] for key in gone], floor):
                gone.append(rest.pop(0))
                pending = True
            hidden.update(gone)


def _in_order(keys: Iterable[K], counts: Mapping[K, int]) -> list[K]:
    """Keys in the order in which they are withheld: that in which they come, those of no row last."""
    return sorted(keys, key=lambda key: not counts[key])


def _components(hidden: set[K], sums: Sequence[Sum[K]]) -> list[list[K]]:
    """The keys that are withheld, those that share sums together."""
    first = {key: key for key in hidden}

    def first_of(key: K) -> K:
        while first[key] != key:
            first[key] = key = first[first[key]]
        return key

    for each in sums:
        gone = [key for key in each.keys if key in hidden]
        for key in gone[1:]:
            first[first_of(key)] = first_of(gone[0])
    groups: dict[K, list[K]] = {}
    for key in hidden:
        groups.setdefault(first_of(key), []).append(key)
    return [*groups.values()]


def _more(
    group: list[K],
    hidden: set[K],
    counts: Mapping[K, int],
    sums: Sequence[Sum[K]],
    of: Mapping[K, list[int]],
    floor: int,
) -> list[K]:
    """What else is withheld so that no count of few rows follows from the sums: one key, or all that share
    sums with many. of: the places of the sums of each key."""
    place = {key: number for number, key in enumerate(group)}
    own = [sums[number] for number in sorted({number for key in group for number in of.get(key, ())})]
    beside = dict.fromkeys(key for each in own for key in each.keys if key not in hidden)
    rest = _in_order(beside, counts)
    if len(group) > MAX_SOLVED:
        return rest
    rows = np.zeros((len(own), len(group)))
    for row, each in zip(rows, own, strict=True):
        for keys, sign in ((each.parts, 1.0), (each.total, -1.0)):
            row[[place[key] for key in keys if key in place]] += sign
    follows = np.diag(np.linalg.pinv(rows) @ rows) > 1.0 - SURE
    if any(follows[place[key]] for key in group if 0 < counts[key] < floor):
        return rest[:1]
    return []


def _is_enough(gone: Sequence[int], floor: int) -> bool:
    """True if their sum tells of none: it allows floor - 1 for each, and is not so much for all of them."""
    number, total = len(gone), sum(gone)
    return number > 1 and floor + number - 2 <= total != number * (floor - 1)
