"""Counts, means and areas as an analyst gets them: so coarse that `min_count` rows move the last digit.

Promises: what is told of a count leaves it at least half a unit of possible values, also at both ends, where
the count could be none or all of the rows; the parts of a total are rounded together, so they add up to it.
Two units that an analyst may choose for the same rows leave at least a quarter of the smaller one.
Refuses nothing.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from fedboost.gbdt.metrics import registry as metrics

_STEPS = (1, 2, 5)
_UNITS_OF_BIN = 5
_UNITS_OF_GROUP = 10


def unit_of(min_count: int) -> int:
    """The unit of counts: the smallest of 1, 2, 5, 10, 20, ... that is not less than `min_count`.

    Units of free choice could be combined until only one count fits them all."""
    scale: int = 10 ** (len(str(min_count)) - 1)
    return next(step * scale for step in (*_STEPS, 10) if step * scale >= min_count)


def step_of(size: float) -> float:
    """The largest of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... that is not more than a size above 0."""
    scale = 10.0 ** math.floor(math.log10(size) + 1e-9)
    return max(step * scale for step in _STEPS if step * scale <= size * (1 + 1e-9))


def step_above(size: float) -> float:
    """The smallest of these that is not less than a size above 0."""
    scale = step_of(size)
    return scale if size <= scale * (1 + 1e-9) else step_of(2.5 * scale)


def rows_of_bin(unit: int) -> int:
    """The fewest rows of a bin that is told: of fewer than some units its share would have no digit."""
    return _UNITS_OF_BIN * unit if unit > 1 else 1


def rows_of_group(unit: int) -> int:
    """The fewest rows that decide a figure of a group: a unit of them moves a share by a tenth. Of fewer it
    would be rounding that seems to tell groups apart."""
    return _UNITS_OF_GROUP * unit if unit > 1 else 1


def nearest(count: int, unit: int) -> int:
    """A number of rows to the nearest unit."""
    return (2 * count + unit) // (2 * unit) * unit


def part(count: int, total: int, unit: int) -> int:
    """What is told of a part of an exact total: of nearly all rows as little as of nearly none."""
    return min(nearest(count, unit), total // unit * unit)


def possible(told: int, total: int, unit: int) -> tuple[int, int]:
    """The fewest and the most rows of a part that is told so."""
    most = total if told == total // unit * unit else told + (unit - 1) // 2
    return max(told - unit // 2, 0), most


def coarse(counts: Sequence[int], unit: int, told: int | None = None) -> list[int] | None:
    """What is told of the parts of a total, in their order; None where it has less than one unit.

    The ends of the parts are rounded, not the parts: a part is within one unit of its count. told: of the
    total, to its nearest unit unless given."""
    total = sum(counts)
    whole = nearest(total, unit) if told is None else told
    if total < unit:
        return None
    ends = [min(part(end, total, unit), whole) for end in accumulate(counts)]
    return [high - low for low, high in pairwise([0, *ends[:-1], whole])]


def rounded(value: float, step: float = 0.0) -> float | None:
    """A number to the nearest step, and to as many digits as are told of any; None for not a number."""
    if math.isnan(value):
        return None
    stepped = round(value / step) * step if step else value
    return float(f"{stepped:.{metrics.DIGITS}g}")
