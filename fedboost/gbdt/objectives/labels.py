"""Labels: how large they may be, and the first of them that an objective cannot have.

Refuses nothing: each function tells the row, and who reads tables says what is wrong.
"""

import math

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

LARGEST_LABEL = math.ldexp(1.0, 60)
"""Labels, weights and their inverses stay below this, so that exponent counts can bound their gradients."""


def beyond(label: Float32) -> tuple[int, str] | None:
    """The first row whose label is no number, or too large."""
    return first(~(np.abs(label) <= LARGEST_LABEL), "a number of magnitude at most 2**60")


def below_zero(label: Float32) -> tuple[int, str] | None:
    """The first row whose label is no number from 0 on."""
    return first(~((label >= 0) & (label <= LARGEST_LABEL)), "a number from 0 to 2**60")


def not_above_zero(label: Float32) -> tuple[int, str] | None:
    """The first row whose label is no number above 0."""
    return first(
        ~((label >= 1.0 / LARGEST_LABEL) & (label <= LARGEST_LABEL)), "a number above 0, up to 2**60"
    )


def first(bad: npt.NDArray[np.bool_], takes: str) -> tuple[int, str] | None:
    """The first of these rows, if there is one, and what a label is instead."""
    rows = np.flatnonzero(bad)
    return (int(rows[0]), takes) if rows.size else None
