"""Check of a table before a training: its oddities, those that a draft of terms met, and its fit to terms.

Promises: an oddity is drafted once, by its most telling kind.
Refuses: a label that is absent, a table without rows (ConfigError).
"""

import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fedboost.errors import ConfigError, Refused, TableWarning
from fedboost.results.check import Checked, Oddity
from fedboost.runtime.data.draft import Draft, draft_schema
from fedboost.runtime.data.oddities import MAX_EXAMPLES, evenly, oddities
from fedboost.runtime.data.parquet import ParquetTable
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.table import Table, dense_of
from fedboost.runtime.data.values import UNKNOWN, codes_of, column_of, finite, texts
from fedboost.terms.columns import Schema
from fedboost.terms.reading import nearest
from fedboost.terms.terms import Terms
from fedboost.views.check import lines
from fedboost.views.words import delimited, shorten

# ---- Fit of a table to terms ----------------------------------------------------------------------------
# Every column that is absent, cannot be read as the terms say, or has categories that they do not declare.
# Promises: a table without an oddity here is one that a party trains with.


def misfits(table: "pa.Table | SparseTable", terms: Terms, party: str = "") -> list[Oddity]:
    """Return what of a table does not fit the terms. party: whose it is, where each has its own columns."""
    schema, out, dense = terms.blocks.columns_of(party), [], dense_of(table)
    there, features, numeric = {*dense.column_names}, {*schema.features}, {*schema.numeric}
    wanted = features | {*schema.others}
    others = [name for name in dense.column_names if name not in wanted]
    for name in (*schema.others, *schema.features):
        if isinstance(table, SparseTable) and name in features and table.column(name) is not None:
            continue
        if name not in there:
            out.append(absent(name, others))
            continue
        try:
            if name in numeric:
                finite(dense, name)
            elif name in schema.categorical:
                out += undeclared_categories(dense, name, schema.categorical[name])
            elif name in schema.target_means:
                texts(column_of(dense, name), name)
        except ConfigError as error:
            out.append(Oddity("unfit", name, values=(_without_column(error, name),)))
    unread = {oddity.column for oddity in out if oddity.kind in ("absent", "unfit")}
    if unread & set(schema.others):
        return out
    for name in unread:
        index = dense.schema.get_field_index(name)
        nulls = pa.nulls(dense.num_rows)
        dense = dense.append_column(name, nulls) if index < 0 else dense.set_column(index, name, nulls)
    try:
        to_shard(replace(table, dense=dense) if isinstance(table, SparseTable) else dense, terms, party)
    except Refused as error:  # the label, or what stands beside it
        out.append(unfit(error, schema.others, schema.label))
    return out


def absent(name: str, others: Iterable[str]) -> Oddity:
    """Return the oddity of a column that is not there. others: columns that the terms do not name."""
    near = nearest(name, others)[2:-1]
    return Oddity("absent", name, values=(f"{near} Then " if near else "",))


def unfit(error: Refused, names: Sequence[str], otherwise: str) -> Oddity:
    """Return the oddity of rows that are refused, of the column that the error names: one of these names."""
    detail = error.detail or str(error)
    name = next((name for name in names if repr(name) in detail), otherwise)
    return Oddity("unfit", name, values=(_without_column(detail, name),))


def _without_column(error: object, name: str) -> str:
    """The text of an error about a column, without its name."""
    return str(error).removeprefix(f"column {name!r} ")


def undeclared_categories(table: "pa.Table", name: str, categories: Sequence[str]) -> list[Oddity]:
    """Return the oddity of a column with categories that the terms do not declare. Raises ConfigError."""
    strange = codes_of(table, name, categories) == UNKNOWN
    if not strange.any():
        return []
    codes, distinct = texts(column_of(table, name), name)
    counts = np.bincount(codes[strange], minlength=len(distinct))
    common = Counter(dict(zip(distinct, counts.tolist(), strict=True))).most_common(MAX_EXAMPLES)
    examples = tuple(f"{shorten(repr(text))} ({rows:,})" for text, rows in common if rows)
    return [Oddity("undeclared", name, int(strange.sum()), table.num_rows, examples)]


# ---- Check of a table before a training: its oddities, those that a draft of terms met ------------------


MAX_STORED_ROWS = 1 << 20
"""Rows that are checked of a table which stays in its file."""
MAX_WATCHED_ROWS = 20_000
"""Rows that a simulation checks of its tables together: it was asked to train, and this is to take a tenth of
the time to the first tree."""
MIN_WATCHED_ROWS = 2_000
"""Rows that it checks of each table all the same."""
_RUNS = 20
"""Rows are checked in so many runs: rows side by side show that the values of a sorted column repeat."""
MAX_LABELS = 10
"""Distinct labels that are counted one by one."""
_TOLD = {
    *("date", "identifier", "categories", "words", "decimal commas", "mixed decimals"),
    *("thousands", "signs"),
    *("empty", "infinite"),
}
"""Kinds that say why a column was left out."""
_OF_NUMBERS = {"distinct", "rounded"}
"""Kinds that do not matter in columns which the terms take for categories."""


def check(
    source: str,
    table: Table,
    label: str | None,
    terms: Terms | None,
    exclude: Sequence[str] = (),
    party: str = "",
) -> Checked:
    """Return what is odd in a table: of the columns that the terms name, or of all. party: whose table it
    is, where the terms say which columns each party has."""
    rows = _rows(table, MAX_STORED_ROWS)
    if rows.num_rows == 0:
        raise ConfigError(f"{source}: the table has no rows")
    sentence, draft = "", None
    if terms is not None:
        odd = of_terms(table if isinstance(table, SparseTable) else rows, terms, party)
        odd += of_ids(table.num_rows, terms)
        if terms.columns.label in rows.column_names:
            sentence = label_sentence(rows, terms.columns.label, terms.objective.name, terms.columns.positive)
    else:
        odd = []
        if label is not None:
            try:
                draft = draft_schema(
                    table if isinstance(table, SparseTable) else rows, label, exclude=exclude
                )
            except ConfigError as error:
                column_of(rows, label)  # an absent one is refused
                odd.append(Oddity("undraftable", label, values=(str(error),)))
            else:
                sentence = label_sentence(rows, label, draft.objective, draft.columns.positive)
        odd += of_draft(rows, label, draft, exclude)
    return Checked(
        event="checked",
        table=source,
        rows=table.num_rows,
        rows_checked=rows.num_rows,
        columns=len(rows.column_names),
        label=sentence,
        oddities=odd,
    )


def of_draft(
    table: "pa.Table", label: str | None, draft: Draft | None, aside: Sequence[str] = ()
) -> list[Oddity]:
    """Return the oddities of a table and of what was drafted from it. aside: further columns that are no
    features."""
    classes = draft is not None and draft.objective == "multi:softprob"
    aside = (*aside, *(() if draft is None else draft.columns.others[1:]))
    out = oddities(table, label, aside, classes)
    if draft is None or label is None:
        return out
    out = _with_left_out(out, draft.left_out)
    if draft.columns.positive is not None:
        codes, distinct = texts(column_of(table, label), label)
        positive = draft.columns.positive
        rows = int((codes == distinct.index(positive)).sum())
        out.append(Oddity("positive", label, rows, table.num_rows, (repr(positive),)))
    if draft.few_numbers:
        out.append(Oddity("few numbers", label, draft.few_numbers, table.num_rows))
    return out


def of_offer(table: "pa.Table", left_out: Mapping[str, str], aside: Sequence[str]) -> list[Oddity]:
    """Return the oddities of a table whose columns are offered. left_out: by column, why one is not; aside:
    columns that are not meant to be."""
    return _with_left_out(oddities(table, None, aside, False), left_out)


def _with_left_out(odd: Iterable[Oddity], left_out: Mapping[str, str]) -> list[Oddity]:
    """Return the oddities, with those columns marked that are left out, and the others that are."""
    out = [replace(oddity, left_out=oddity.kind in _TOLD and oddity.column in left_out) for oddity in odd]
    told = {oddity.column for oddity in out if oddity.left_out}
    out += [
        Oddity("left out", name, values=(reason,)) for name, reason in left_out.items() if name not in told
    ]
    return out


def of_terms(table: "pa.Table | SparseTable", terms: Terms, party: str = "") -> list[Oddity]:
    """Return the oddities of the columns that terms name, of this party where each has its own, and what of
    them does not fit."""
    odd = _in_terms(dense_of(table), terms, terms.blocks.columns_of(party))
    known = {oddity.column for oddity in odd if oddity.kind in ("unlabelled", "infinite")}
    return odd + [oddity for oddity in misfits(table, terms, party) if oddity.column not in known]


def of_ids(rows: int, terms: Terms) -> list[Oddity]:
    """Return what is wrong with the number of rows of a table, where rows are matched by their ids."""
    vertical, name = terms.vertical, terms.columns.row_id
    if not vertical.aligns or name is None:
        return []
    if rows > vertical.most_ids and not vertical.repeated_ids:
        sentence = f"has {rows:,} ids, and the terms say max_ids = {vertical.most_ids:,}"
    elif rows < vertical.fewest_common_rows:
        sentence = f"has {rows:,} ids, and the terms say min_common_rows = {vertical.fewest_common_rows:,}"
    else:
        return []
    return [Oddity("unfit", name, values=(sentence,))]


def _in_terms(
    table: "pa.Table", terms: Terms, schema: Schema, whole: "pa.Table | None" = None
) -> list[Oddity]:
    there = {*table.column_names}
    named = [name for name in (*schema.others, *schema.features) if name in there]
    label = schema.label if schema.label in named else None
    classes = terms.objective.num_class is not None
    aside = set(schema.others) - {schema.label}
    out = oddities(table.select(named), label, aside, classes, whole)
    return [
        oddity
        for oddity in out
        if oddity.kind != "categories"  # those that are not declared are drafted
        and not (oddity.column in schema.categorical and oddity.kind in _OF_NUMBERS)
    ]


def label_sentence(table: "pa.Table", label: str, objective: str, positive: str | None) -> str:
    """Return the label, its objective, and the rows of each value if these are few."""
    name = delimited(label)
    try:
        codes, distinct = texts(column_of(table, label), label)
    except ConfigError:
        return f"{name}: {objective}"
    if len(distinct) > MAX_LABELS:
        return f"{name}: {objective}, {len(distinct):,} distinct values"
    rows = np.bincount(codes[codes >= 0], minlength=len(distinct))
    ones = {positive} if positive is not None else {"1", "true"} if objective == "binary:logistic" else set()
    parts = [
        f"{shorten(repr(text))} in {rows[code]:,} rows" + (" (counts as 1)" if text in ones else "")
        for code, text in sorted(enumerate(distinct), key=lambda pair: pair[1])
    ]
    return f"{name}: {objective}, {', '.join(parts)}"


def warn(odd: Iterable[Oddity], where: str = "") -> None:
    """Warn in Python of what is odd, in the name of the first caller outside of fedboost."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == "fedboost":
        level, frame = level + 1, frame.f_back
    for line in lines(each for each in odd if each.is_worth_a_line):
        warnings.warn(TableWarning(where + line), stacklevel=level)


class Watch:
    """The warnings about the tables of several parties: of each column and kind the first."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def table(self, terms: Terms, name: str, table: Table) -> None:
        """Warn of what is odd in the table of a party, and in its name beside those of the parties before."""
        self._names.append(name)
        warn(odd for odd in alike_sites(self._names) if odd.column == name)
        schema = terms.blocks.columns_of(name)
        whole = _rows(table, MAX_WATCHED_ROWS, {*schema.others, *schema.features})
        rows = _some(whole, max(MAX_WATCHED_ROWS // len(terms.parties), MIN_WATCHED_ROWS))
        where = f"party {name}"
        if rows.num_rows < table.num_rows:
            where += f", in a sample of its {table.num_rows:,} rows"
        odd = _in_terms(rows, terms, schema, whole)
        for column, categories in schema.categorical.items():
            odd += undeclared_categories(rows, column, categories)
        odd = [oddity for oddity in odd if (oddity.kind, oddity.column) not in self._seen]
        self._seen |= {(oddity.kind, oddity.column) for oddity in odd}
        warn(odd, f"{where}: ")


def alike_sites(names: Iterable[str]) -> list[Oddity]:
    """Return the sites whose names differ from one before in blanks or case alone."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(" ".join(name.split()).casefold(), name), name) for name in names]
    return [Oddity("sites", name, values=(repr(other),)) for other, name in pairs if other != name]


def _some(table: "pa.Table", most: int) -> "pa.Table":
    """At most so many rows of a table, in runs that are evenly spread."""
    if table.num_rows <= most:
        return table
    size = max(most // _RUNS, 1)
    begins = evenly(table.num_rows - size + 1, _RUNS).tolist()
    return pa.concat_tables([table.slice(begin, size) for begin in begins])


def _rows(table: Table, most: int, names: Collection[str] | None = None) -> "pa.Table":
    """The rows to check: all of a table in memory, the first of one in a file, of these columns."""
    if not isinstance(table, ParquetTable):
        return dense_of(table)
    groups = max(int(np.searchsorted(table.ends, most, side="right")) - 1, 1)
    columns = {}
    for name in table.head.column_names:
        if names is not None and name not in names:
            continue
        parts = [table.group(number, name) for number in range(min(groups, len(table.ends) - 1))]
        columns[name] = pa.concat_tables(parts or [table.head.select([name])]).column(name)
    return pa.table(columns)
