"""Fit of a table to terms: every column that is absent, cannot be read as the terms say, or has categories
that they do not declare.

Promises: a table without an oddity here is one that a party trains with.
Refuses: nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedboost.errors import ConfigError, Refused
from fedboost.people.oddities import Oddity
from fedboost.people.text import shorten
from fedboost.runtime.data.odd_texts import MAX_EXAMPLES
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.table import dense_of
from fedboost.runtime.data.values import UNKNOWN, codes_of, column_of, finite, texts
from fedboost.terms.reading import nearest
from fedboost.terms.terms import Terms

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa


def misfits(table: "pa.Table | SparseTable", terms: Terms, party: str = "") -> list[Oddity]:
    """Return what of a table does not fit the terms. party: whose it is, where each has its own columns."""
    import pyarrow as pa

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
