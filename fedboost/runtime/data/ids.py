"""Ids of rows as bytes that are the same at every party that knows the same person.

Promises: an id is the same bytes whether a column has it as whole number or as text, in memory, in CSV or in
Parquet. Text is NFC without the spaces around it; a whole number is its decimal digits; a text of digits
alone, with a minus or without, counts as that number, so leading zeros are off (readers of CSV drop them
before fedboost sees them); a date is YYYY-MM-DD, as its text is. Several columns are joined by U+001F. Form
`digits` keeps the digits 0 to 9 of each, and drops leading zeros, too; `lower` is casefold, then NFC again.
Refuses: columns of other types (numbers with a fraction, points in time, booleans), ids that are missing or
empty, that have U+001F, that stand in two rows where they must not: ConfigError with counts, never with a
value.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from unicodedata import normalize

import pyarrow as pa
from pyarrow import types

from fedboost.errors import ConfigError
from fedboost.runtime.data.table import Table, parts_of
from fedboost.runtime.data.values import column_of, is_text, kind_of, plain

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa

SEPARATOR = "\x1f"
"""Between the columns of an id."""
_WHOLE = re.compile(r"-?[0-9]+")
_NO_DIGITS = re.compile(r"[^0-9]+")


def _lower(text: str) -> str:
    return normalize("NFC", text.casefold())


def _digits(text: str) -> str:
    return _NO_DIGITS.sub("", text)


FORMS: dict[str, Callable[[str], str]] = {"digits": _digits, "lower": _lower}
"""What is made of a text that is NFC and without spaces around it."""


def ids_of(table: "Table", names: Sequence[str], form: str | None) -> list[bytes]:
    """The id of each row, UTF-8, from the columns of these names in this order. form: None or one of FORMS.
    About 1 s for a million rows of a column."""
    if form is not None and form not in FORMS:
        raise ConfigError(f"ids have no form {form!r}: it is one of {', '.join(FORMS)}, or none")
    columns = [_column(table, name, form) for name in names]
    joined = columns[0] if len(columns) == 1 else map(SEPARATOR.join, zip(*columns, strict=True))
    return [text.encode() for text in joined]


def check_distinct(ids: Sequence[bytes], what: str, instead: str = "") -> None:
    """ConfigError with how many ids stand in more than one row, if any do. what: names them there; instead:
    another way out than to keep one row of each."""
    if len(set(ids)) == len(ids):
        return
    counts = [count for count in Counter(ids).values() if count > 1]
    advice = ", ".join(filter(None, ("has ids in more than one row", "keep one row of each", instead)))
    several = "1 id stands" if len(counts) == 1 else f"{len(counts):,} ids stand"
    raise ConfigError(f"{what} {advice}", f"{several} in {sum(counts):,} rows")


def _column(table: "Table", name: str, form: str | None) -> list[str]:
    """The texts of a column; ConfigError if one is missing, or could be two."""
    found: list[str] = []
    for part in parts_of(table, name):
        found += _texts(column_of(part, name), name, form)
    if missing := found.count(""):
        advice = f"has rows without {'digits' if form == 'digits' else 'one'}, fill them in or drop them"
        raise ConfigError(f"id {name!r} {advice}", f"{missing:,} of {len(found):,}")
    if several := sum(SEPARATOR in text for text in found):
        reason = "has texts with U+001F, which stands between the columns of an id: take it out"
        raise ConfigError(f"id {name!r} {reason}", f"{several:,} of {len(found):,}")
    return found


def _texts(column: "pa.ChunkedArray", name: str, form: str | None) -> list[str]:
    """The text of each row; empty where it is missing."""

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(kind) or types.is_date32(kind) or (types.is_decimal(kind) and kind.scale == 0):
        values = column.cast(kind).cast(pa.string())
        if form is None:
            return values.fill_null("").to_pylist()  # type: ignore[no-any-return]
    elif is_text(kind) or kind == pa.string_view() or types.is_null(kind):
        values = plain(column)
    else:
        advice = "an id takes whole numbers, text or dates: make it one of these"
        if types.is_floating(kind):
            advice = "numbers with a fraction (often from a gap in the column): write whole numbers"
        raise ConfigError(f"id {name!r} is {kind_of(column)} here, {advice}")
    shaped = FORMS.get(form or "", str)
    return [_whole(shaped(normalize("NFC", text).strip())) for text in values.fill_null("").to_pylist()]


def _whole(text: str) -> str:
    """The text; without leading zeros where it is digits alone, with a minus or without."""
    if not text.startswith(("0", "-")) or not _WHOLE.fullmatch(text):
        return text
    digits = text.lstrip("-0") or "0"
    return f"-{digits}" if text.startswith("-") and digits != "0" else digits
