"""Predictions and their explanations as CSV.

Promises: numbers are written whole, so that they are read back as they were.
Refuses: nothing.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

import numpy as np

from fedboost.fixedpoint import Float64

BIAS, CLASS, PREDICTION = "bias", "class", "prediction"


def prediction_names(kept: Sequence[str], classes: Sequence[object]) -> list[str]:
    """Return the names of the columns of predictions: those that are kept, that of the prediction, and the
    classes; the second differs from all others, and a class from those that are kept."""
    names = [str(name) for name in classes]
    while {*names} & {*kept}:
        names = [f"{name}_" for name in names]
    first = PREDICTION
    while first in (*kept, *names):
        first += "_"
    return [*kept, first, *names]


def rows(columns: Mapping[str, Sequence[object]], header: bool) -> str:
    """Return rows by column, with or without the names above; what is missing is empty."""
    values = zip(*columns.values(), strict=True)
    return _written([*columns] if header else None, values)


def contributions(values: Float64, features: Sequence[str], classes: Sequence[object]) -> str:
    """Return SHAP values, [rows, features + 1], or [rows, classes, features + 1]: a line for each class."""
    several = values.ndim == 3
    names: list[list[object]] = [[name] for name in classes] if several else [[]]
    rows = (
        [*name, *output]
        for row in values
        for name, output in zip(names, np.atleast_2d(row).tolist(), strict=True)
    )
    return _written([*([CLASS] if several else []), *features, BIAS], rows)


def dependence(feature: str, grid: Sequence[object], means: Float64, classes: Sequence[object]) -> str:
    """Return the mean predictions, [grid] or [grid, classes], by the values of a feature."""
    rows = ([value, *np.atleast_1d(mean).tolist()] for value, mean in zip(grid, means, strict=True))
    return _written([feature, *(classes if means.ndim == 2 else [PREDICTION])], rows)


def _written(head: Iterable[object] | None, rows: Iterable[Iterable[object]]) -> str:
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if head is not None:
        lines.writerow(head)
    lines.writerows(rows)
    return text.getvalue()
