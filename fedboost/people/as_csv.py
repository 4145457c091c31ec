"""Predictions, their explanations, and comparisons of sites as CSV.

Promises: numbers are written whole, so that they are read back as they were.
Refuses: nothing.
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

import numpy as np

from fedboost.fixedpoint import Float64
from fedboost.people.facts import ALONE, FEDERATED, POOLED, ComparisonFacts, Figure, SiteComparison

_MODELS = ALONE, FEDERATED, POOLED
_GAIN = {"better by": "value", "at least": "low", "at most": "high"}
BIAS, CLASS, PREDICTION = "bias", "class", "prediction"


def predictions(values: Float64, classes: Sequence[object]) -> str:
    """Return a column of predictions, [rows]; or, [rows, classes], of the most probable class, the first of
    equal ones, and the probability of each."""
    if values.ndim == 1:
        return "\n".join([PREDICTION, *map(repr, values.tolist()), ""])
    names = [str(name) for name in classes]
    first = PREDICTION
    while first in names:
        first += "_"
    best = np.argmax(values, axis=1).tolist()
    rows = ([names[code], *row] for code, row in zip(best, values.tolist(), strict=True))
    return _written([first, *names], rows)


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


def comparison(facts: ComparisonFacts) -> str:
    """Return a line for each site: its rows, its verdict, and the figures of each metric; nothing where there
    is none."""
    head = ["site", "rows", "held_out", "different_held_out", "verdict"]
    head += [f"{name} {figure}" for name in facts.metrics for figure in (*_MODELS, *_GAIN)]

    def line(site: SiteComparison) -> Iterable[object]:
        yield from (site.site, site.rows, site.held_out, site.different, site.verdict)
        for name in facts.metrics:
            yield from (_value(site.models.get(model, {}).get(name), "value") for model in _MODELS)
            yield from (_value(site.better_by.get(name), end) for end in _GAIN.values())

    return _written(head, map(line, facts.sites))


def _value(figure: Figure | None, end: str) -> float | None:
    return None if figure is None else figure.as_json()[end]


def _written(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(head)
    lines.writerows(rows)
    return text.getvalue()
