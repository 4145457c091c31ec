"""Counts that an analyst does not get: those of few rows, and those that would tell them by subtraction.

Promises: a count of 1 to floor - 1 rows is withheld; of a sum that is known none, or at least two counts are
withheld, of so many rows that each may have floor - 1; which others are withheld does not depend on how many
rows they have, since that would bound the few.
Refuses nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from fedboost.fixedpoint import Int64

K = TypeVar("K")


def withheld(
    counts: Mapping[K, int], sums: Collection[Sequence[K]], floor: int, also: Iterable[K] = ()
) -> set[K]:
    """The keys of counts that are withheld. sums: keys whose counts have a sum that is known, or that follow
    from each other; also: keys that are withheld in any case."""
    hidden = {key for key, count in counts.items() if 0 < count < floor} | {*also}
    pending = True
    while pending:
        pending = False
        for keys in sums:
            gone = [key for key in keys if key in hidden]
            rest = sorted((key for key in keys if key not in hidden), key=lambda key: not counts[key])
            while gone and rest and not _is_enough([counts[key] for key in gone], floor):
                gone.append(rest.pop(0))
                pending = True
            hidden.update(gone)
    return hidden


def _is_enough(gone: Sequence[int], floor: int) -> bool:
    """True if their sum tells of none: it allows floor - 1 for each, and is not so much for all of them."""
    number, total = len(gone), sum(gone)
    return number > 1 and floor + number - 2 <= total != number * (floor - 1)


def merged(counts: Int64, floor: int, kept: int | None = None) -> list[tuple[int, int]]:
    """Runs [low, high) of cells that tell of no few rows: each has `floor` rows, and of either label none, or
    `floor`. Empty if there are none. counts: [2, cells], by label; kept: an edge that runs do not cross."""
    cells = counts.shape[1]
    if kept is not None:
        left, right = merged(counts[:, :kept], floor), merged(counts[:, kept:], floor)
        return [*left, *((low + kept, high + kept) for low, high in right)]
    runs, low, held = [], 0, np.zeros(2, np.int64)
    for cell in range(cells):
        held += counts[:, cell]
        if _is_told(held, floor):
            runs.append((low, cell + 1))
            low, held = cell + 1, np.zeros(2, np.int64)
    while held.any() and runs:  # the last cells go to the run before them
        low, _ = runs.pop()
        held = counts[:, low:].sum(axis=1)
        if _is_told(held, floor):
            runs.append((low, cells))
            break
    if runs:
        runs[-1] = runs[-1][0], cells
    return runs


def _is_told(held: Int64, floor: int) -> bool:
    return bool(held.sum() >= floor and all(count == 0 or count >= floor for count in held.tolist()))
