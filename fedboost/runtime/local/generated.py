"""Rows that terms could be trained on, where there are none yet: generated.

Promises: a table fits the terms it was made for; the same terms and number of rows give the same table.
Refuses: nothing.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.fixedpoint import Float64
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_OF_A_GROUP = 20
MAX_RELEVANCE = 4
MIN_CLASSES = 2
VALIDATION = 5
"""One row in so many is for validation, where a column says so."""


def table_for(terms: Terms, rows: int) -> "pa.Table":
    """Return rows of every column that the terms name: independent features, and a label that some of them
    explain in part."""
    import pyarrow as pa

    draw, columns = np.random.default_rng(0), terms.columns
    table: dict[str, Any] = {name: draw.standard_normal(rows).astype(np.float32) for name in columns.numeric}
    codes = {name: draw.integers(0, len(known), rows) for name, known in columns.categorical.items()}
    for name, known in columns.categorical.items():
        table[name] = pa.array(np.array(known, object)[codes[name]], pa.string())
    for name, buckets in columns.target_means.items():
        codes[name] = draw.integers(0, buckets, rows)
        table[name] = pa.array(codes[name].astype(str))
    signals = [*(table[name] for name in columns.numeric), *(code % 3 - 1.0 for code in codes.values())]
    first, second, third = (signals[number % len(signals)] for number in range(3))
    score = (first + second * third + np.sin(2 * third)) / 2 + draw.logistic(size=rows)
    table[columns.label] = _label(terms, score)
    if columns.label_upper_bound is not None:
        table[columns.label_upper_bound] = table[columns.label]
    if columns.group is not None:
        table[columns.group] = np.arange(rows) // ROWS_OF_A_GROUP
    if columns.weight is not None:
        table[columns.weight] = np.ones(rows)
    if columns.base_margin is not None:
        table[columns.base_margin] = np.zeros(rows)
    if columns.validation is not None:
        table[columns.validation] = np.arange(rows) % VALIDATION == 0
    if columns.row_id is not None:
        table[columns.row_id] = pa.array([str(row) for row in range(rows)])
    return pa.table(table)


def _label(terms: Terms, score: Float64) -> Any:
    """Labels of the kind that the objective takes."""
    columns, kind = terms.columns, terms.objective.loss.xgboost_equivalent.label_kind
    if kind is LabelKind.CLASS:
        number = terms.objective.num_class or MIN_CLASSES
        codes = np.digitize(score, np.quantile(score, np.arange(1, number) / number))
        if columns.classes:
            return np.array(columns.classes)[codes]
        return codes if columns.positive is None else np.where(codes == 1, columns.positive, "another")
    if kind is LabelKind.RELEVANCE:
        return np.clip(np.floor(score + 1), 0, MAX_RELEVANCE)
    return score if kind is LabelKind.NUMBER else np.floor(np.exp(np.clip(score, -3, 3))) + 1
