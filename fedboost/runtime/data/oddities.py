"""Oddities of a table: what would stop a training with it, spoil it, or cost it a column.

Promises: a table is looked at as it was read and stays as it is; what a column tells of the label is measured
on at most `SAMPLE_ROWS` rows, evenly spread; a table in order has no oddity.
Refuses: a label that is absent (ConfigError).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.people.oddities import Oddity
from fedboost.runtime.data import odd_numbers, odd_texts
from fedboost.runtime.data.giveaway import LIMITS, Label, Target, evenly
from fedboost.runtime.data.values import column_of, exact_numbers, is_text, plain, texts

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa

SAMPLE_ROWS = 50_000
_FIRST_ROWS = 20
MAX_CLASSES = 100
"""Classes of a label beyond which no column is asked what it tells of them."""
_NO_FEATURES = {"date", "identifier", "categories", "empty", "constant", "infinite"}
"""Oddities of columns that are not asked what they tell of the label."""


def oddities(
    table: "pa.Table",
    label: str | None = None,
    aside: Collection[str] = (),
    classes: bool = False,
    whole: "pa.Table | None" = None,
) -> list[Oddity]:
    """Return the oddities of a table: of its label, and of all other columns as features.

    aside: columns that are no features, such as that of the site: only their spelling is looked at. classes:
    a label of numbers stands for classes. whole: the table of which `table` has some rows.
    """
    out: list[Oddity] = []
    whole = table if whole is None else whole
    target = None
    if label is not None:
        out += _of_label(column_of(table, label), label)
        target = _Target.of(whole.column(label), label, evenly(whole.num_rows, SAMPLE_ROWS), classes)
    for name in table.column_names:
        if name == label:
            continue
        column = table.column(name)
        odd = list(_of_feature(column, name, whole.num_rows))
        if name in aside:
            odd = [oddity for oddity in odd if oddity.kind == "spelling"]
        elif target is not None and not _NO_FEATURES & {oddity.kind for oddity in odd}:
            odd += target.told_by(whole.column(name), name)
        out += odd
    return out


def _of_label(column: "pa.ChunkedArray", name: str) -> Iterator[Oddity]:
    from pyarrow import types

    values = plain(column)
    missing = values.null_count
    if is_text(values.type):
        counts = odd_texts.Counts.of(values)
        missing = counts.missing
        yield from odd_texts.words(counts, name)
        yield from odd_texts.spelling(counts, name)
    elif types.is_floating(values.type):
        missing = int(np.isnan(exact_numbers(column, name)).sum())
    if missing:
        yield Oddity("unlabelled", name, missing, len(column))


def _of_feature(column: "pa.ChunkedArray", name: str, total: int) -> Iterator[Oddity]:
    from pyarrow import types

    values = plain(column)
    if values.null_count == len(values):
        yield Oddity("empty", name)
    elif types.is_temporal(values.type):
        first = next(filter(None, map(str, values.drop_null()[:1].to_pylist())), "")
        yield Oddity("date", name, values=(first,))
    elif not is_text(values.type):
        try:
            numbers = exact_numbers(column, name)
        except ConfigError:
            return  # lists and the like, which the draft leaves out
        yield from odd_numbers.oddities(numbers, name, total)
    elif types.is_dictionary(column.type) or (spelled := _spelled_numbers(values, name)) is None:
        yield from odd_texts.oddities(odd_texts.Counts.of(values), name)
    else:
        yield from odd_texts.words(odd_texts.Counts.of(values), name)
        yield from odd_numbers.oddities(spelled, name, total)


def _spelled_numbers(values: "pa.ChunkedArray", name: str) -> Float64 | None:
    """The numbers that a text column spells, None if there are words."""
    try:
        if is_text(values.type):
            exact_numbers(values[:_FIRST_ROWS], name)  # where words are, they mostly are in these
        return exact_numbers(values, name)
    except ConfigError:
        return None


@dataclass(frozen=True)
class _Target:
    """The label of the rows of a sample, and of a few of them."""

    rows: "pa.Array"
    label: Label
    few_rows: "pa.Array"
    few: Label

    @classmethod
    def of(
        cls, column: "pa.ChunkedArray", name: str, sample: "np.ndarray", classes: bool
    ) -> "_Target | None":
        """Return the rows of a sample that have a label; None where the label has no figures: other
        types, very many classes."""
        import pyarrow as pa
        from pyarrow import types

        part = plain(column.take(pa.array(sample)))
        values = None if types.is_dictionary(column.type) else _spelled_numbers(part, name)
        target = Target.AMOUNT
        if values is None or classes:
            try:
                codes, distinct = texts(part, name)
            except ConfigError:
                return None
            if len(distinct) > MAX_CLASSES:
                return None
            values, target = np.where(codes < 0, np.nan, codes), Target.CLASSES
        present = np.isfinite(values)
        if np.unique(values[present]).size == 2:
            target = Target.TWO
        rows, label = sample[present], Label(target, values[present])
        few = label.few
        return cls(pa.array(rows), label, pa.array(rows[few]), Label(target, label.values[few]))

    def told_by(self, column: "pa.ChunkedArray", name: str) -> Iterator[Oddity]:
        """Yield the oddity of a column that gives the label away."""
        values, categorical = _coded(column.take(self.few_rows), name)
        if values.size and self.few.is_far_from(values, categorical):
            return
        values, categorical = _coded(column.take(self.rows), name)
        figure = self.label.told_by(values, categorical) if values.size else np.nan
        if figure > LIMITS[self.label.target]:
            yield Oddity(self.label.target.value, name, figure=figure)


def _coded(column: "pa.ChunkedArray", name: str) -> tuple[Float64, bool]:
    """The numbers of a column, or the codes of its categories, and whether it is these; no values of a column
    that is neither, or has too many categories."""
    from pyarrow import types

    values = None if types.is_dictionary(column.type) else _spelled_numbers(plain(column), name)
    if values is not None:
        return values, False
    try:
        codes, distinct = texts(column, name)
    except ConfigError:
        return np.zeros(0), True
    return (np.zeros(0) if len(distinct) > MAX_CATEGORIES else np.where(codes < 0, np.nan, codes)), True
