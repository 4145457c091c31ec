"""Converts table columns to float32 numbers and category codes.

The result does not depend on the type that stores a value: numbers are converted through float64, categories
through their text. Errors about missing columns, wrong types and infinite values name the column, the row
(starting at 1 for the first data row) and the value.
"""

import ctypes
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute, types

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.target_means import LevelMeans, bucket_of
from fedboost.runtime.data.database import ColumnMap
from fedboost.terms.reading import nearest
from fedboost.views.words import shorten

Rows = npt.NDArray[np.bool_]
F = TypeVar("F", np.float32, np.float64)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
MISSING_NUMBERS = ("", "NA", "NaN", "nan", "null", "?")
_POINTED = r"^\s*[-+]?[0-9.]*[0-9][0-9.]*\s*$"
DECIMAL_COMMA = b"fedboost.decimal_comma"
"""Metadata key of a text column that was read from a file with decimal commas."""
UNKNOWN = -1.0  # code of a value that is not a declared category


class BadRow(ConfigError):
    """A ConfigError about an unusable value. The attribute `row` counts from 0, the message from 1."""

    def __init__(self, code: str, public: str, what: str, row: int, where: str = "") -> None:
        super().__init__(code, public, f"{what} in row {row + 1}{where}")
        self.what, self.row = what, row

    def at(self, row: int) -> "BadRow":
        """Return a copy of this error with another row index, counted from 0."""
        return BadRow(self.code, self.public, self.what, row)

    def on_line(self, line: int | None) -> "BadRow":
        """Return a copy of this error that also names the line in the text file, unless `line` is None."""
        return BadRow(
            self.code, self.public, self.what, self.row, f" (line {line} of the file)" if line else ""
        )


def column_of(table: "pa.Table", name: str) -> "pa.ChunkedArray":
    """Return a column by name. Raises ConfigError with the most similar name, or all, if it is missing."""
    index = table.schema.get_field_index(name)
    if index >= 0:
        return table.column(index)
    raise missing_column(name, table.column_names)


def missing_column(name: str, there: Sequence[str], wanted: Collection[str] = ()) -> ConfigError:
    """Return the error for a missing column. The message suggests the most similar name in `there` that is
    not in `wanted`, or lists all columns."""
    near = nearest(name, (other for other in there if other not in wanted))
    return ConfigError(
        "table-column-missing",
        f"column {name!r} is missing",
        near[2:-1] or f"the columns are {listing(there)}",
    )


def check_distinct_names(names: Sequence[str], source: str, advice: str = "") -> None:
    """Raise ConfigError if two columns have the same name: `source`, the name, then `advice`."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ConfigError("table-column-twice", f"{source}: two columns are named {twice!r}{advice}")


def numbers(column: "pa.ChunkedArray", name: str) -> Float32:
    """Convert a column of numbers, or of text that spells numbers, to float32 [rows], with NaN for missing
    values. Raises ConfigError if the column has another type or contains text that is not a number."""
    with np.errstate(over="ignore"):
        return _floats(_numbers(column, name), np.float32)


def exact_numbers(column: "pa.ChunkedArray", name: str) -> Float64:
    """Like `numbers`, but returns float64 [rows]."""
    return _floats(_numbers(column, name), np.float64)


def _floats(column: "pa.ChunkedArray", kind: type[F]) -> npt.NDArray[F]:
    """Copy a float32 or float64 column to a numpy array, with NaN for missing values. This reads Arrow's
    buffers because Arrow's own conversion imports pandas, which takes time and 50 MB."""
    out = np.empty(len(column), kind)
    begin = 0
    for chunk in column.chunks:
        rows, part = slice(chunk.offset, chunk.offset + len(chunk)), out[begin : begin + len(chunk)]
        begin += len(chunk)
        if not len(chunk):
            continue
        present, values = chunk.buffers()
        part[:] = np.frombuffer(values, np.float32 if chunk.type.bit_width == 32 else np.float64)[rows]
        if chunk.null_count:
            part[np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")[rows] == 0] = np.nan
    return out


def _numbers(column: "pa.ChunkedArray", name: str) -> "pa.ChunkedArray":
    values = plain(column)
    if is_text(values.type):
        values = _parsed(values, name)
    elif not _is_number(values.type):
        raise ConfigError(
            "table-column-not-numeric",
            f"column {name!r} has type {kind_of(column)}, but the terms declare it numeric; convert it to "
            "numbers",
        )
    return values if values.type == pa.float32() else values.cast(pa.float64(), safe=False)


def texts(column: "pa.ChunkedArray", name: str) -> tuple[Int64, tuple[str, ...]]:
    """Read a column as categories. Returns the index of each row's text, int64 [rows] (-1 if missing), and
    the distinct texts.

    The text of a string is the string itself. An integer, even in a float column, is written in decimal
    digits, and any other number as the shortest decimal that reads back as the same number. Booleans become
    `true` and `false`. Raises ConfigError for columns of other types.
    """
    values = plain(column)
    if not is_text(values.type) and not _is_number(values.type):
        raise ConfigError(
            "table-column-not-categorical",
            f"column {name!r} has type {kind_of(column)}, but a categorical column must be text, numbers or "
            "booleans",
        )
    encoded = values.dictionary_encode().combine_chunks()
    distinct = encoded.dictionary.to_pylist()
    if values.type == pa.float32():
        distinct = [float(str(np.float32(value))) for value in distinct]
    spelled = [text_of(value) for value in distinct]
    code_by_text = {text: code for code, text in enumerate(dict.fromkeys(filter(None, spelled)))}
    code_of = np.array([*(code_by_text[text] if text else -1 for text in spelled), -1], np.int64)
    return code_of[encoded.indices.fill_null(-1).to_numpy()], tuple(code_by_text)


def is_text(kind: "pa.DataType") -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def kind_of(column: "pa.ChunkedArray") -> str:
    """Format a column's type for a message. The field names of lists and structs are omitted."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "binary (not UTF-8 text)"
    spelled = "string" if is_text(kind) else shorten(str(kind))
    return spelled.partition("<")[0] if types.is_nested(kind) else spelled


def listing(values: Sequence[str], limit: int = 8) -> str:
    shown = [shorten(repr(value)) for value in values[:limit]]
    return ", ".join(shown) + (f", … ({len(values)} in total)" if len(values) > limit else "")


def refuse(table: "pa.Table", name: str, rows: Rows, reason: str) -> None:
    """Raise BadRow for the first row that is True in `rows`, bool [rows]. The message is the column's name
    followed by `reason`, and ends with the row's value."""
    if rows.any():
        row = int(np.argmax(rows))
        value = shorten(repr(table.column(name)[row].as_py()))
        raise BadRow("table-value-invalid", f"column {name!r} {reason}", f"it is {value}", row)


def refuse_missing(rows: Rows, what: str) -> None:
    if rows.any():
        advice = "has missing values; fill them in or drop these rows"
        raise BadRow("table-value-missing", f"{what} {advice}", "the first is", int(np.argmax(rows)))


def finite(table: "pa.Table", name: str) -> Float32:
    values = numbers(without_points(table, name), name)
    refuse(table, name, np.isinf(values), "has a value that is infinite or too large for a 32-bit float")
    return values


def without_points(table: "pa.Table", name: str) -> "pa.ChunkedArray":
    """Return a column. Raises BadRow if it is from a file with decimal commas and a number has a point."""
    column = column_of(table, name)
    if DECIMAL_COMMA in (table.schema.field(name).metadata or {}):
        pointed = compute.and_(
            compute.match_substring(column, "."), compute.match_substring_regex(column, _POINTED)
        )
        reason = (
            "has a number with a point, but the file uses a decimal comma: write 1500 or 1,5 instead of 1.500"
        )
        refuse(table, name, np.array(pointed.fill_null(False)), reason)
    return column


def read_as(
    table: "pa.Table", name: str, levels: Mapping[str, str] | None, how: ColumnMap
) -> "pa.ChunkedArray":
    """Return a column with levels and units as in the terms. levels: level in the terms -> level in the
    table; others are marked as not named, so that none is mistaken for another. how: unit, and levels of
    which others are not changed."""
    if levels is None and not how.levels:
        if not how.converts:
            return column_of(table, name)
        values = exact_numbers(without_points(table, name), name)
        return pa.chunked_array([pa.array(values * how.factor + how.offset)])
    column = column_of(table, name)
    codes, distinct = texts(column, name)
    word_of = how.levels if levels is None else {level: word for word, level in levels.items()}
    word_of = {spelled_as(column, level): word for level, word in word_of.items()} | {**word_of}
    words = [word_of.get(text, text if levels is None else _without_name(text, levels)) for text in distinct]
    indices = pa.array(codes.astype(np.int32), pa.int32(), mask=codes < 0)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))])


def _without_name(text: str, levels: Collection[str]) -> str:
    marked = f"{text} (not named)"
    return _without_name(marked, levels) if marked in levels else marked


def declared_codes(table: "pa.Table", name: str, categories: Sequence[str]) -> Float32:
    """Return the index of each row's category, float32 [rows]; NaN if missing or not in `categories`."""
    codes = codes_of(table, name, categories)
    return np.where(codes == UNKNOWN, np.float32(np.nan), codes)


def buckets_of(table: "pa.Table", name: str, buckets: int) -> Float32:
    """Return the hash bucket of each row's level (its text), float32 [rows], or NaN where the level is
    missing. buckets: number of buckets."""
    codes, levels = texts(column_of(table, name), name)
    return np.array([*(bucket_of(level, buckets) for level in levels), np.nan], np.float32)[codes]


def means_of(table: "pa.Table", name: str, means: LevelMeans) -> Float32:
    """Return the mean label in the model for each row's level, float32 [rows]; NaN if it is missing."""
    return means.encoded(*texts(column_of(table, name), name))


def codes_of(table: "pa.Table", name: str, categories: Sequence[str]) -> Float32:
    """Return the index of each row's category, float32 [rows]. Missing values become NaN, and values that are
    not in `categories` become `UNKNOWN`."""
    column = plain(column_of(table, name))
    codes, distinct = texts(column, name)
    known: dict[str, int] = {}
    for code, category in enumerate(categories):
        known.setdefault(spelled_as(column, category), code)
    known |= {category: code for code, category in enumerate(categories)}
    values = np.array([*(known.get(text, UNKNOWN) for text in distinct), np.nan], np.float32)
    return values[codes]


def spelled_as(column: "pa.ChunkedArray", text: str) -> str:
    """Convert a text to the spelling that `texts` uses for this column. For example, 01 and True become 1 and
    true if a CSV column was read as numbers or booleans."""
    if is_text(plain(column).type):
        return text
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        return text_of(float(text)) or text
    except ValueError:
        return text


def text_of(value: object) -> str | None:
    """Convert a value to text, or return None if it is missing. An empty string is returned unchanged."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            whole = value.is_integer()
            return None if value != value else str(int(value)) if whole else repr(value)
        case None:
            return None
        case _:
            return str(value)


def plain(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return the column with its values in a type that all Arrow compute functions can read. Dictionaries and
    string views are decoded, decimals become float64, and float16 becomes float32."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if kind == pa.string_view():
        return pa.chunked_array([pa.array(column.to_pylist(), pa.large_string())])
    if types.is_dictionary(column.type):
        column = pa.chunked_array([chunk.dictionary.take(chunk.indices) for chunk in column.chunks], kind)
    if types.is_decimal(kind):
        return column.cast(pa.string()).cast(pa.float64())
    if types.is_float16(kind):
        return column.cast(pa.float32())
    return column.cast(pa.string()) if types.is_null(kind) else column


def _is_number(kind: "pa.DataType") -> bool:
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _parsed(column: "pa.ChunkedArray", name: str) -> "pa.ChunkedArray":
    """Parse text as float64. Raises BadRow for the first text that is not a number."""
    spelled = compute.utf8_trim_whitespace(column)
    missing = compute.is_in(spelled, value_set=pa.array(MISSING_NUMBERS, spelled.type))
    spelled = compute.if_else(missing, pa.scalar(None, spelled.type), spelled)
    try:
        return spelled.cast(pa.float64())
    except pa.ArrowInvalid:
        row = _first_unparsed(spelled)
    text = column[row].as_py()
    hint = (
        ', with a decimal comma (use --decimal , or decimal = "," under [read])'
        if _DECIMAL_COMMA.fullmatch(text.strip())
        else ""
    )
    first = f"the first value that is not a number is {shorten(repr(text))}{hint}"
    raise BadRow(
        "table-column-not-numeric",
        f"column {name!r} has type string, but the terms declare it numeric",
        first,
        row,
    )


def _first_unparsed(column: "pa.ChunkedArray") -> int:
    """Return the index of the first row whose text is not a number. There must be at least one such row."""
    # A binary search, because a failed cast does not report the row. Invariant: all rows before `good` are
    # numbers, and at least one row before `end` is not.
    good, end = 0, len(column)
    while end - good > 1:
        middle = (good + end) // 2
        try:
            column.slice(good, middle - good).cast(pa.float64())
            good = middle
        except pa.ArrowInvalid:
            end = middle
    return good


# ---- Reuse of freed memory ------------------------------------------------------------------------------
# After `keep_freed_memory`, vectors of a few megabytes that every turn makes and drops reuse memory of the
# process. Otherwise the C library returns each to the system, which hands it out again page by page (6 % of a
# tree's CPU time at 1,000,000 x 50). After `share_freed_memory`, threads share freed memory. Otherwise each
# gRPC thread keeps its own, and an aggregator of 20 parties used 60 MB more.


KEPT = 32 << 20  # most bytes of freed memory that a process keeps
MAX_HEAP_BLOCK_BYTES = 8 << 20  # larger vectors are allocated directly from the system
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for reuse instead of returning it to the system. Affects the whole
    process; calling it again has no effect."""
    _set({_M_TRIM_THRESHOLD: KEPT, _M_MMAP_THRESHOLD: MAX_HEAP_BLOCK_BYTES})


def share_freed_memory() -> None:
    """Make later threads share freed memory, for a process that computes in a single thread."""
    _set({_M_ARENA_MAX: 1})


def give_back() -> None:
    """Return the memory of freed tables, which Arrow's allocator still holds, to the system."""
    pa.default_memory_pool().release_unused()


def _set(values: Mapping[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc; Windows has no such library
        return
    for name, value in values.items():
        mallopt(name, value)
