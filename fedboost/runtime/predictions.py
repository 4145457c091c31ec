"""Predictions of a table of any size, to a file.

Promises: rows in their order, one line each, with the columns that are kept; the file appears whole or not at
all; the memory holds some ten thousand rows at a time, as far as the table can be read in parts.
Refuses: columns that are not there, values that cannot be used (ConfigError that names the row), other files
than CSV and Parquet.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64
from fedboost.runtime.data.locations import TOGETHER
from fedboost.runtime.data.shard import base_margin_of, features_of, undeclared
from fedboost.runtime.data.table import FORMS, TableParts, dense_of
from fedboost.runtime.data.values import column_of, plain
from fedboost.runtime.files import replacing
from fedboost.runtime.model import Model
from fedboost.runtime.signed_model import classes_of
from fedboost.terms.terms import Terms

Columns = dict[str, Any]
PREDICTION = "prediction"
Write = Callable[[Columns], None]
"""A function that writes some rows, by column."""


class Predictor:
    """A model and a table: `parts` yields predictions, and afterwards `strange` has the categories that
    nobody declared, by column: one of them, and the number of rows."""

    def __init__(self, model: Model, table: TableParts, keep: Sequence[str]) -> None:
        self._model, self._table, self._keep = model, table, tuple(dict.fromkeys(keep))
        self._schema, self._margin = model.terms.columns, model.terms.columns.base_margin
        self._needed = (*self._schema.features, *([self._margin] if self._margin else []))
        self._table.check_columns([*self._needed, *self._keep])
        self._classes = model.classes if model.booster.loss.outputs > 1 else ()
        self.strange: dict[str, tuple[str, int]] = {}

    def parts(self) -> Iterator[Columns]:
        """Yield the rows of each part: kept columns, the prediction, the probability of each class."""
        columns = dict.fromkeys((*self._needed, *self._keep))
        as_text = [name for name in self._keep if name not in self._needed]
        before = 0
        for part in self._table.read([*columns], as_text):
            with self._table.named(before):
                predicted = self._predicted(part)
            yield predicted
            before += part.num_rows
        if not before:  # a header, or a table without rows
            yield {name: np.empty(0) for name in prediction_names(self._keep, self._classes)}

    def _predicted(self, part: Any) -> Columns:
        dense = dense_of(part)
        margin = base_margin_of(dense, self._margin, self._model.terms) if self._margin else None
        booster = self._model.booster
        features = features_of(part, self._schema, booster.target_means)
        values: Float64 = booster.predict(features, margin)
        for name, example, rows in undeclared(dense, self._schema):
            first, known = self.strange.get(name, (example, 0))
            self.strange[name] = first, known + rows
        kept = [plain(column_of(dense, name)) for name in self._keep]
        return _columns(self._keep, kept, values, self._classes)


def _columns(keep: Sequence[str], kept: list[Any], values: Float64, classes: Sequence[Any]) -> Columns:
    """Rows to write: kept columns, the prediction, the probability of each class."""
    own: list[Any] = [np.array(classes)[np.argmax(values, axis=1)], *values.T] if classes else [values]
    return dict(zip(prediction_names(keep, classes), [*kept, *own], strict=True))


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


def predicted_columns(
    values: Float64, terms: Terms, table: TableParts, keep: Sequence[str]
) -> Iterator[Columns]:
    """Yield the rows of each part of a table beside their predictions: float64 [rows] or [rows, classes]."""
    keep = tuple(dict.fromkeys(keep))
    classes = classes_of(terms) if values.ndim == 2 else ()
    if not keep:
        yield _columns(keep, [], values, classes)
        return
    table.check_columns([*keep])
    first = 0
    for part in table.read([*keep], [*keep]):
        kept = [plain(column_of(dense_of(part), name)) for name in keep]
        yield _columns(keep, kept, values[first : first + part.num_rows], classes)
        first += part.num_rows


def check_form(out: Path) -> None:
    """ConfigError for a file of a form in which no predictions are written."""
    name = out.name.lower()
    others = [suffix for form in FORMS for suffix in form.every_suffix]
    if name.endswith(tuple(s for s in others if s not in (".csv", *TOGETHER))):
        raise ConfigError(f"{out}: predictions are written as .csv or .parquet; name one of those")


@contextmanager
def writing(out: Path) -> Iterator[Write]:
    """Open a file for rows, CSV or Parquet by its suffix."""
    with replacing(out) as file:
        if not out.name.lower().endswith(TOGETHER):
            yield csv_writer(lambda text: file.write(text.encode()))
            return
        with _parquet(file, out) as write:
            yield write


def csv_writer(write: Callable[[str], Any]) -> Write:
    """Return a function that writes rows as CSV, with a header above the first."""
    parts = count()

    def write_rows(columns: Columns) -> None:
        values = {name: _listed(column) for name, column in columns.items()}
        write(as_csv([*values] if next(parts) == 0 else None, zip(*values.values(), strict=True)))

    return write_rows


def as_csv(head: Iterable[object] | None, rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, below a header if there is one. Numbers are written whole, so that they are read
    back as they were; what is missing is empty."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if head is not None:
        lines.writerow(head)
    lines.writerows(rows)
    return text.getvalue()


def _listed(column: Any) -> list[object]:
    """The values of a column as Python's, true and false as a CSV spells them."""
    values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return [str(value).lower() if isinstance(value, bool) else value for value in values]


@contextmanager
def _parquet(file: IO[bytes], out: Path) -> Iterator[Write]:

    writers: list[parquet.ParquetWriter] = []

    def write_rows(columns: Columns) -> None:
        table = pa.table(dict(columns))
        if not writers:
            writers.append(parquet.ParquetWriter(file, table.schema))
        try:
            writers[0].write_table(table.cast(writers[0].schema))
        except pa.ArrowInvalid as error:
            why = f"kept columns change their types: {str(error).splitlines()[0]}"
            raise ConfigError(f"{out}: {why}; write a .csv") from None

    try:
        yield write_rows
    finally:
        for writer in writers:
            writer.close()
