"""The rows that a model is measured on: all, those that its training held out, or those added since.

Promises: held-out rows are drawn again as the terms of the training say, or named by its column; a site that
took no part in the training held all its rows out. Where that depends on the places of rows, the table has to
be that of the training: the site's memory has its hash.
Refuses (Refused): rows that cannot be told apart, because the table is another one or its training is not
known here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedboost.errors import Refused
from fedboost.gbdt.metrics.registry import TRAIN, VALIDATION
from fedboost.gbdt.sampling import Mask
from fedboost.horizontal.holder import row_sets
from fedboost.horizontal.shard import Shard
from fedboost.terms.terms import Terms

ALL = 'measure all rows (--rows all, evaluate_rows = "all")'


@dataclass(frozen=True)
class TrainingTable:
    """The table of a training. rows: their number; has: tells whether a table with this hash is the same."""

    rows: int
    has: Callable[[Callable[[bytes], bytes]], bool]


TableOf = Callable[[Terms], TrainingTable | None]
"""The table of the training of the model in terms, None where it is not known here."""


@dataclass(frozen=True)
class MeasuredRows:
    """The rows of a party that a model is measured on. chosen: bool [rows], None for all; grown_on: how many
    of them trees were grown on; unknown: of how many that is not known."""

    chosen: Mask | None
    grown_on: int = 0
    unknown: int = 0


def measured_rows(
    terms: Terms, read: Callable[[Terms], Shard], rows: int, name: str, table_of: TableOf | None
) -> MeasuredRows:
    """The rows of a party that terms measure a model on. rows: all there are; name: of the party; table_of:
    by a site's memory, None in one process, where the tables are taken for those of the training."""
    trained, kind = terms.trained, terms.evaluation.evaluate_rows
    if trained is None:
        return MeasuredRows(None, 0, rows)
    if name not in trained.parties and table_of is not None:
        return MeasuredRows(None)
    if kind == "held-out":
        if _draws_by_place(trained):
            _check_places(terms, trained, read, rows, name, table_of)
        return MeasuredRows(row_sets(read(trained), trained)[VALIDATION])
    table = None if table_of is None else table_of(terms)
    then = None if table is None else _as_then(table, trained, read, rows)
    if kind == "all":
        if then is None:
            return MeasuredRows(None, 0, rows)
        return MeasuredRows(None, int(row_sets(then, trained)[TRAIN].sum()))
    if table is None or then is None:
        why = "does not know the table" if table is None else "has a table that does not begin with that"
        raise Refused(f"party {name} {why} of the training, so it cannot tell new rows apart; {ALL}")
    return MeasuredRows(np.arange(rows) >= table.rows)


def _draws_by_place(trained: Terms) -> bool:
    """True if whether a row is held out depends on its place in the table."""
    columns = trained.columns
    return columns.validation is None and columns.row_id is None and columns.group is None


def _check_places(
    terms: Terms,
    trained: Terms,
    read: Callable[[Terms], Shard],
    rows: int,
    name: str,
    table_of: TableOf | None,
) -> None:
    """Raise Refused unless rows have the places of the training."""
    if table_of is None:
        if name in trained.parties:
            return
        why = f"is not one of those of the training, {', '.join(trained.parties)}, by which rows were drawn"
    elif (table := table_of(terms)) is None:
        why = "does not know the table of the training"
    elif table.rows == rows and _as_then(table, trained, read, rows) is not None:
        return
    else:
        why = "has another table than in the training, and its rows have no ids"
    raise Refused(f"party {name} {why}, so it cannot tell which rows were held out; {ALL}")


def _as_then(table: TrainingTable, trained: Terms, read: Callable[[Terms], Shard], rows: int) -> Shard | None:
    """The rows of the training, with which the table begins; None if it does not."""
    if rows < table.rows:
        return None
    try:
        then = read(trained).first(table.rows)
    except Refused:  # a column of the training is gone, say
        return None
    return then if table.has(lambda key: then.hashed(key, then.columns)) else None
