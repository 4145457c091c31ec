"""The rounding of published figures.

Guarantees: published counts are rounded to multiples of a unit. Each is consistent with a range of exact
counts at least half a unit wide, even near zero and near the number of all rows. Parts of a total are rounded
together, so that they sum to the total. An analyst who combines two counts of the same rows, rounded to
different units, can narrow this range to no less than a quarter of the smaller unit."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from fedboost.gbdt import metrics

_STEPS = (1, 2, 5)
_UNITS_OF_BIN = 5
_UNITS_OF_GROUP = 10


def unit_of(min_count: int) -> int:
    """Return the unit to which counts are rounded: the smallest of 1, 2, 5, 10, 20, ... that is at least
    `min_count`.

    If any unit were allowed, the same count could be rounded to several units, and the results could be
    combined to find the exact count."""
    scale: int = 10 ** (len(str(min_count)) - 1)
    return next(step * scale for step in (*_STEPS, 10) if step * scale >= min_count)


def step_of(size: float) -> float:
    """Return the largest of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... that is at most `size`, which is positive."""
    scale = 10.0 ** math.floor(math.log10(size) + 1e-9)
    return max(step * scale for step in _STEPS if step * scale <= size * (1 + 1e-9))


def rows_of_bin(unit: int) -> int:
    """Return the minimum number of rows in a published bin. With fewer rows, rounding would leave no correct
    digit in the bin's share."""
    return _UNITS_OF_BIN * unit if unit > 1 else 1


def rows_of_group(unit: int) -> int:
    """Return the minimum number of rows in a group with published figures, chosen so that one unit changes a
    share by at most a tenth. With fewer rows, rounding alone would make groups look different."""
    return _UNITS_OF_GROUP * unit if unit > 1 else 1


def nearest(count: int, unit: int) -> int:
    """Round a number of rows to the nearest multiple of the unit."""
    return (2 * count + unit) // (2 * unit) * unit


def part(count: int, total: int, unit: int) -> int:
    """Return the published count of a part of an exactly known total. Counts near the total are rounded as
    coarsely as counts near zero."""
    return min(nearest(count, unit), total // unit * unit)


def possible(told: int, total: int, unit: int) -> tuple[int, int]:
    """Return the minimum and maximum number of rows of a part whose published count (`part`) is `told`."""
    most = total if told == total // unit * unit else told + (unit - 1) // 2
    return max(told - unit // 2, 0), most


def coarse(counts: Sequence[int], unit: int, told: int | None = None) -> list[int] | None:
    """Return the published count of each part of a total, in order, or None if the total is less than one
    unit.

    Cumulative counts are rounded, not the counts of the parts. Each published count is within one unit of the
    exact count. told: the published total (default: the total rounded to the nearest unit)."""
    total = sum(counts)
    whole = nearest(total, unit) if told is None else told
    if total < unit:
        return None
    ends = [min(part(end, total, unit), whole) for end in accumulate(counts)]
    return [high - low for low, high in pairwise([0, *ends[:-1], whole])]


def rounded(value: float, step: float = 0.0) -> float | None:
    """Round to the nearest multiple of `step`, then to the published digits. Returns None for NaN."""
    if math.isnan(value):
        return None
    stepped = round(value / step) * step if step else value
    return float(f"{stepped:.{metrics.DIGITS}g}")


def last_digit(value: float | None) -> float:
    """Return the maximum error from rounding a number to the published digits."""
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(value))) + 1 - metrics.DIGITS) if value else 0.0


def with_ties(value: float, ties: float, step: float) -> tuple[float | None, float | None]:
    """Round a figure that is computed from counts by cell. Returns it and its maximum error. ties: the part
    of the error that comes from the cells; step: the rounding step, or 0."""
    told = rounded(value, step)
    if step and ties:  # exact digits of the ties' share would reveal counts of rows in cells
        below = step_of(ties)
        ties = below if ties <= below * (1 + 1e-9) else step_of(2.5 * below)
    return told, None if told is None else rounded(ties + step / 2 + last_digit(told))
