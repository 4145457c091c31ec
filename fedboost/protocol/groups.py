"""What the sums over several groups of parties tell together.

Anyone who has the sums over {a, b, c, d} and {a, b, c} has those of d alone; {a, b, c, d, e}, {a, b, c} and
{a, d, e} give those of a. And parties that collude take their own away from whatever is left.

Promises: `fewest_shown` finds the smallest set of parties that some combination of the sums is over.
Refuses: nothing.
"""

from collections.abc import Iterable
from itertools import combinations

import numpy as np

MAX_GROUPS = 3
"""Different groups that are looked at together: those of more have more combinations than anybody can judge.
"""


def fewest_shown(groups: Iterable[frozenset[str]], colluding: int) -> frozenset[str]:
    """The fewest parties that a linear combination of the sums over at most MAX_GROUPS groups is over, if
    those are fewer than `colluding` and two more, so that one that does not collude could stand alone; else
    nobody.

    A combination takes parties that are in the same groups with the same factor. One over no others than the
    parties of some classes exists if the groups' incidence vectors lose rank without the columns of those
    classes.
    """
    known = sorted(set(groups), key=sorted)
    classes: dict[tuple[bool, ...], set[str]] = {}
    for party in frozenset().union(*known):
        classes.setdefault(tuple(party in group for group in known), set()).add(party)
    columns = list(classes)
    rank = _rank(columns)
    fewest: frozenset[str] = frozenset()
    for size in range(1, len(columns) + 1):
        for chosen in combinations(columns, size):
            parties = frozenset().union(*(classes[column] for column in chosen))
            few = len(parties) < colluding + 2 and (not fewest or len(parties) < len(fewest))
            if few and _rank([column for column in columns if column not in chosen]) < rank:
                fewest = parties
    return fewest


def _rank(columns: list[tuple[bool, ...]]) -> int:
    """Rank of a matrix of 0 and 1, exact for a few rows."""
    return int(np.linalg.matrix_rank(np.array(columns, float))) if columns else 0
