"""Labels: their kinds, how large they may be, and the first of them that an objective cannot have.

Refuses nothing: each function returns the row, and the reader of the table writes the error.
"""

import math
from enum import Enum

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float32

MAX_LABEL = math.ldexp(1.0, 60)
"""Labels, weights and their inverses stay below this, so that exponent counts can bound their gradients."""


class LabelKind(Enum):
    """The kind of number that a label is."""

    NUMBER = "number"
    """Any size and sign."""
    COUNT = "count"
    """0 or more: counts, and amounts that may be 0."""
    POSITIVE = "positive"
    """Above 0."""
    CLASS = "class"
    """The number of a class, from 0 on."""
    INTERVAL = "interval"
    """A lower and an upper bound, of two columns."""
    RELEVANCE = "relevance"
    """The relevance of a row in its group."""


def first_invalid_number(label: Float32) -> tuple[int, str] | None:
    """The first row whose label is no number, or too large."""
    return first(~(np.abs(label) <= MAX_LABEL), "a number of magnitude at most 2**60")


def first_below_zero(label: Float32) -> tuple[int, str] | None:
    """The first row whose label is no number from 0 on."""
    return first(~((label >= 0) & (label <= MAX_LABEL)), "a number from 0 to 2**60")


def first_not_positive(label: Float32) -> tuple[int, str] | None:
    """The first row whose label is no number above 0."""
    valid = (label >= 1.0 / MAX_LABEL) & (label <= MAX_LABEL)
    return first(~valid, "a number above 0, up to 2**60")


def first(invalid: npt.NDArray[np.bool_], valid_labels: str) -> tuple[int, str] | None:
    """The first of the rows that are invalid, if there is one, and which labels are valid."""
    rows = np.flatnonzero(invalid)
    return (int(rows[0]), valid_labels) if rows.size else None
