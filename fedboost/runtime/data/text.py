"""Tables in text files (CSV, LIBSVM, JSON lines) and Excel workbooks.

Raises:
    ConfigError: the separator or encoding is wrong (the message names the option to set), or a row is
        malformed (the message names its line).
"""

import csv as rows_of_text
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv
from pyarrow import json as reader

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import SparseColumn
from fedboost.runtime.data.database import ReadOptions
from fedboost.runtime.data.locations import COMPRESSIONS, File, Locations, first_line
from fedboost.runtime.data.values import DECIMAL_COMMA, is_text, text_of
from fedboost.views.words import counted, shorten

# ---- Sparse tables: LIBSVM files and scipy matrices -----------------------------------------------------
# A value that is not stored is 0, not missing. A column is made dense on demand, some rows at a time.


LABEL = "label"  # column for the first number of a LIBSVM line; the features are f0, f1, ..., as in XGBoost
QID = "qid"  # column for the qid: values of a LIBSVM file, if it has any
DENSE = 1 << 24  # most values that are dense at a time: 64 MB
MAX_SPARSE_COLUMNS = 1 << 16  # most features of a LIBSVM file; the same as the limit in terms


@dataclass(frozen=True)
class SparseTable:
    """A table with dense and sparse columns, as read from a LIBSVM file or scipy matrices.

    The sparse columns are stored in CSC format. Column c has the values `values[starts[c]:starts[c + 1]]` in
    the rows `rows[starts[c]:starts[c + 1]]`, in increasing order, and 0 in all other rows. starts: int64
    [sparse columns + 1].
    """

    num_rows: int
    dense: "pa.Table"
    names: tuple[str, ...]
    starts: Int64
    rows: Int64
    values: Float32
    open_ended: bool = False
    """True if the table has every column f0, f1, ... A column that is not stored is 0 in all rows."""

    def __post_init__(self) -> None:
        twice = {*self.dense.column_names} & {*self.names}
        if twice:
            raise ConfigError(
                "table-column-twice",
                f"two columns are named {min(twice)!r}; rename one of them, or the matrix",
            )
        if np.isinf(self.values).any():
            column = int(np.searchsorted(self.starts, np.flatnonzero(np.isinf(self.values))[0], "right")) - 1
            what = "has a value that is infinite or too large for a 32-bit float"
            raise ConfigError("table-value-invalid", f"column {self.names[column]!r} {what}")

    @property
    def column_names(self) -> list[str]:
        return [*self.dense.column_names, *self.names]

    def column(self, name: str) -> "SparseColumn | None":
        """Return a sparse column by name, or None if the table has no such column."""
        index = self._places.get(name)
        if index is None and self.open_ended and re.fullmatch(r"f(0|[1-9][0-9]{0,4})", name):
            return SparseColumn(self.num_rows, self.rows[:0], self.values[:0])
        if index is None:
            return None
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return SparseColumn(self.num_rows, self.rows[part], self.values[part])

    def take(self, rows: Int64) -> "SparseTable":
        """Return the given rows in the given order. rows: distinct row indices, int64."""
        new_row = np.full(self.num_rows, -1, np.int64)
        new_row[rows] = np.arange(rows.size)
        stored = np.flatnonzero(new_row[self.rows] >= 0)
        starts, new_rows = np.searchsorted(stored, self.starts), new_row[self.rows[stored]]
        column = np.repeat(np.arange(len(self.names)), np.diff(starts))
        order = np.lexsort((new_rows, column))
        dense = self.dense.take(rows)
        return SparseTable(
            rows.size, dense, self.names, starts, new_rows[order], self.values[stored][order], self.open_ended
        )

    def parts(self) -> "Iterator[SparseTable]":
        """Yield the table in parts of consecutive rows. Converted to dense columns, the sparse columns of a
        part have at most about `DENSE` values."""
        step = max(1, DENSE // max(len(self.names), 1))
        for first in range(0, max(self.num_rows, 1), step):
            yield self.take(np.arange(first, min(first + step, self.num_rows)))

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @classmethod
    def from_matrices(cls, dense: "pa.Table", matrices: Mapping[str, Any]) -> "SparseTable":
        """Combine dense columns and scipy matrices. The columns of the matrix with key `f` are named f0, f1,
        ... Raises ConfigError if a matrix is not numeric or has a different number of rows."""
        names, starts, rows, values, end = [], [np.zeros(1, np.int64)], [], [], 0
        size = dense.num_rows if dense.num_columns else int(next(iter(matrices.values())).shape[0])
        for prefix, matrix in matrices.items():
            if matrix.dtype.kind not in "biuf":
                raise ConfigError(
                    "table-matrix-dtype", f"matrix {prefix!r} has dtype {matrix.dtype}; convert it to numbers"
                )
            columns = matrix.tocsc(copy=True)
            columns.sum_duplicates()
            columns.sort_indices()
            if columns.shape[0] != size:
                raise ConfigError(
                    "table-lengths-differ",
                    f"matrix {prefix!r} has {columns.shape[0]} rows, but other columns have {size}",
                )
            names += [f"{prefix}{index}" for index in range(columns.shape[1])]
            starts.append(columns.indptr[1:].astype(np.int64) + end)
            rows.append(columns.indices.astype(np.int64))
            values.append(_float32(columns.data))
            end += columns.nnz
        entries = np.concatenate(starts), np.concatenate(rows), np.concatenate(values)
        return cls(size, dense, tuple(names), *entries)


class LibSvm(File):
    form, suffixes = "LIBSVM", (".libsvm", ".svm")

    def read(self) -> SparseTable:
        with self.location.open() as file:
            return read_libsvm(file, self.shown)

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> Iterator[SparseTable]:
        return self.read().parts()


def read_libsvm(file: "pa.NativeFile", path: str) -> SparseTable:
    """Read a file of lines `label qid:group index:value index:value ...`. The qid is optional but must be in
    all lines or in none, and # starts a comment. Index i becomes column `f{i}`. path: name of the file in
    error messages."""
    labels: list[float] = []
    places: list[int] = []
    values: list[float] = []
    counts: list[int] = []
    groups: list[int] = []
    with io.TextIOWrapper(io.BufferedReader(file)) as lines:
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                labels.append(float(words[0]))
                groups += [_index(word[4:]) for word in words[1:2] if word.startswith("qid:")]
                pairs = [word.partition(":")[::2] for word in words[1:] if not word.startswith("qid:")]
                places += [_index(index) for index, _ in pairs]
                values += [float(value) for _, value in pairs]
            except ValueError:
                what = "not a LIBSVM line; write a label, then index:value pairs"
                raise ConfigError("libsvm-line-invalid", f"{path}: line {number} is {what}") from None
            counts.append(len(pairs))
    if not labels:
        raise ConfigError("table-empty", f"{path}: the file has no rows")
    column_of_value, rows = np.array(places, np.int64), np.repeat(np.arange(len(labels)), counts)
    width = int(column_of_value.max(initial=-1)) + 1
    if column_of_value.min(initial=0) < 0 or width > MAX_SPARSE_COLUMNS:
        raise ConfigError(
            "libsvm-index-range",
            f"{path} has a feature index outside the range 0 to {MAX_SPARSE_COLUMNS - 1:,}",
        )
    order = np.lexsort((rows, column_of_value))
    if (np.diff(column_of_value[order]) == 0)[np.diff(rows[order]) == 0].any():
        raise ConfigError("libsvm-index-repeated", f"{path}: a row has two values for the same index")
    starts = np.concatenate([[0], np.cumsum(np.bincount(column_of_value, minlength=width))]).astype(np.int64)
    by_column = _float32(np.array(values, np.float64))[order]
    names = tuple(f"f{index}" for index in range(width))
    if groups and len(groups) != len(labels):
        raise ConfigError(
            "libsvm-qid-missing",
            f"{path}: some lines have a qid and others do not; write it in all lines or in none",
        )
    dense = pa.table({LABEL: labels, **({QID: groups} if groups else {})})
    row_of_value = rows[order].astype(np.int64)
    return SparseTable(len(labels), dense, names, starts, row_of_value, by_column, open_ended=True)


def _index(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(text)
    return int(text)


def _float32(values: npt.NDArray[Any]) -> Float32:
    with np.errstate(over="ignore"):  # too large a value becomes infinite, which is refused
        return values.astype(np.float32)


# ---- Delimited text: CSV and TSV, compressed or not -----------------------------------------------------
# Values and types are the same whether a file is read at once or in parts. An error names the line.


_HEADER = 1 << 24  # maximum number of bytes that are searched for the end of the first line
_BLOCK = 1 << 20
"""Number of bytes read at a time, and maximum length of a row; both increase if the first line is long. When
a file is read in parts, pyarrow reads up to 32 blocks ahead."""
_NAMES = {";": ("semicolons", ";"), "\t": ("tabs", "tab"), ",": ("commas", ","), "|": ("bars", "|")}
_COUNT = re.compile(r"Expected (\d+) columns, got (\d+)")
_CONVERSION = re.compile(
    r"In CSV column #(\d+): CSV conversion error to .*?(?:: invalid value '(.*)')?", re.S
)


class Delimited(File):
    form, suffixes, packed = "CSV", (".csv", ".tsv"), True
    takes = ("separator", "decimal", "encoding", "na")

    def __init__(self, locations: Locations, options: ReadOptions) -> None:
        super().__init__(locations, options)
        tabs = self.location.name.endswith(tuple(".tsv" + packed for packed in ("", *COMPRESSIONS)))
        self._separator = options.separator or ("\t" if tabs else ",")
        if self._separator == options.decimal:
            raise ConfigError(
                "csv-separator-decimal",
                f"{self.shown}: {self._separator!r} cannot be both the column and the decimal separator; "
                f"use another separator: {_advice('separator', ';')}",
            )
        with self._faults(_BLOCK):
            self._header = self._first_line()
        unquoted = re.sub(r'"[^"]*"?', "", self._header)
        for character, (name, spelled) in _NAMES.items():
            if self._separator in unquoted or (self._separator == "," and character == "|"):
                continue
            if character in unquoted:
                where = f"{self.shown}: the columns are separated by {name}"
                raise ConfigError("csv-separator-wrong", f"{where}; use {_advice('separator', spelled)}")

    def read(self) -> "pa.Table":
        block = max(_BLOCK, 16 * len(self._header))  # many columns make long rows, too
        with self._faults(block), self.opened() as stream:
            table = csv.read_csv(stream, self._reading(block), self._parsing(), self._converting())
        if any(pa.types.is_binary(kind) for kind in table.schema.types):
            self._refuse_text()
        return self._marked(table)

    def names(self) -> list[str]:
        with self._faults(_BLOCK), self.opened() as stream:
            return list(self._reader(stream, None, {}).schema.names)

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the given columns in parts of consecutive rows, with the types of the whole file."""
        types = self._types(columns, as_text)
        with self._faults(_BLOCK), self.opened() as stream:
            for batch in self._reader(stream, columns, types):
                yield self._marked(pa.Table.from_batches([batch]))

    def _marked(self, table: "pa.Table") -> "pa.Table":
        """Mark the text columns of a file with decimal commas, so that `finite` rejects decimal points."""
        if self.options.decimal != ",":
            return table
        fields = (
            field.with_metadata({DECIMAL_COMMA: b"1"}) if is_text(field.type) else field
            for field in table.schema
        )
        return table.cast(pa.schema([*fields], table.schema.metadata))

    def _types(self, columns: Collection[str], as_text: Collection[str]) -> "dict[str, pa.DataType]":
        """Return the type of each column as pyarrow infers it from the whole file."""
        # pyarrow's streaming reader infers types from the first block only, and fails on a later value that
        # does not fit. So the file is read again until a pass succeeds. Each failed pass widens one column,
        # and no type is ever wider than the whole file needs, so this ends with the whole file's types.
        types: dict[str, pa.DataType] = dict.fromkeys(as_text, pa.string())
        while True:
            with self._faults(_BLOCK), self.opened() as stream:
                try:
                    reader = self._reader(stream, columns, types)
                    types |= dict(zip(reader.schema.names, reader.schema.types, strict=True))
                    for _ in reader:
                        pass
                except pa.ArrowInvalid as error:
                    if not (fault := _CONVERSION.fullmatch(str(error).splitlines()[0])):
                        raise
                else:
                    return types
            name = self.names()[int(fault[1])]
            types[name] = self._wider(types[name], fault[2])
            if pa.types.is_binary(types[name]):
                self._refuse_text()

    def _wider(self, kind: "pa.DataType", value: str | None) -> "pa.DataType":
        """Return the first wider type that can hold a value, or the next wider one if it is unknown."""
        # The order in which pyarrow tries types when it reads a whole file. A type that does not fit this
        # value does not fit the column, and is skipped without another pass. Binary means text that is not
        # UTF-8, which the caller refuses.
        order = [pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), pa.timestamp("s")]
        order += [pa.timestamp("ns"), pa.float64(), pa.string(), pa.binary()]
        for wider in order[order.index(kind) + 1 :]:
            if value is None or pa.types.is_string(wider) or pa.types.is_binary(wider):
                return wider
            cell = ('"' + value.replace('"', '""') + '"').encode()
            try:
                csv.read_csv(
                    io.BytesIO(cell),
                    csv.ReadOptions(column_names=["c"]),
                    self._parsing(),
                    self._converting(["c"], {"c": wider}),
                )
            except pa.ArrowInvalid:
                continue
            return wider
        return pa.binary()

    def _reader(self, stream: Any, columns: Any, types: "dict[str, pa.DataType]") -> Any:
        block = max(_BLOCK, 16 * len(self._header))
        return csv.open_csv(stream, self._reading(block), self._parsing(), self._converting(columns, types))

    def _reading(self, block: int) -> "csv.ReadOptions":
        return csv.ReadOptions(block_size=block, encoding=self.options.encoding)

    def _parsing(self) -> "csv.ParseOptions":
        return csv.ParseOptions(delimiter=self._separator, newlines_in_values=True)

    def _converting(self, columns: Any = None, types: Any = None) -> "csv.ConvertOptions":
        usual = csv.ConvertOptions(
            strings_can_be_null=True, decimal_point=self.options.decimal, column_types=types
        )
        usual.null_values = [*usual.null_values, *self.options.na]
        if columns is not None:
            usual.include_columns = list(columns)
        return usual

    def _first_line(self) -> str:
        with self.opened() as stream:
            start = stream.read(_HEADER)
        if self.options.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            # "replace", as the last character may be cut off.
            return re.split(r"[\r\n]", start.decode(self.options.encoding, "replace"), maxsplit=1)[0]
        if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start[:2]:
            raise ConfigError(
                "csv-encoding-wrong",
                f"{self.shown} is UTF-16 or not text; try {_advice('encoding', 'utf-16')}",
            )
        try:
            return re.split(rb"[\r\n]", start, maxsplit=1)[0].decode()
        except UnicodeDecodeError:
            self._refuse_text()

    def _refuse_text(self) -> NoReturn:
        with self.opened() as stream:
            for number, line in enumerate(io.BufferedReader(stream), 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    value = shorten(repr(line[max(0, error.start - 12) : error.start + 8])[1:])
                    where = f"{self.shown}: line {number} is not UTF-8 ({value})"
                    raise ConfigError(
                        "csv-encoding-wrong",
                        f"{where}; specify its encoding: {_advice('encoding', 'latin-1')}",
                    ) from None
        raise ConfigError(
            "csv-encoding-wrong", f"{self.shown} is not UTF-8; try {_advice('encoding', 'latin-1')}"
        )

    @contextmanager
    def _faults(self, block: int) -> Iterator[None]:
        """Context manager that converts pyarrow's errors to a ConfigError that names the line of the file.
        block: maximum length of a row in bytes."""
        try:
            yield
        except UnicodeError as error:
            why = f"cannot be decoded as {self.options.encoding}: {error}"
            raise ConfigError(
                "csv-encoding-wrong", f"{self.shown}: {why}; specify another --encoding"
            ) from None
        except pa.ArrowInvalid as error:
            if "straddl" in str(error):
                advice = "close an open quote, or shorten the text"
                raise ConfigError(
                    "csv-row-too-long", f"{self.shown}: a row is longer than {block >> 20} MiB; {advice}"
                ) from None
            if not _COUNT.search(str(error)):
                raise
            raise ConfigError("csv-row-length", f"{self.shown}: {self._odd_row(str(error))}") from None

    def _odd_row(self, error: str) -> str:
        """Describe the first row whose number of values differs from the header's number of columns."""
        records = self.records()
        try:
            _, header = next(records)
            for line, values in records:
                if len(values) != len(header):
                    got = counted(len(values), "value")
                    return f"line {line} has {got}, but the header has {counted(len(header), 'column')}"
        except (rows_of_text.Error, StopIteration):
            pass  # report pyarrow's own words
        return f"cannot be read as CSV: {shorten(error.splitlines()[0], 200)}"

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and values of each line that is not blank, starting with the header."""
        with self.opened() as stream:
            text = io.TextIOWrapper(io.BufferedReader(stream), self.options.encoding, "replace", newline="")
            reader = rows_of_text.reader(text, delimiter=self._separator)
            line = 1
            for values in reader:
                if values:
                    yield line, values
                line = reader.line_num + 1

    def line_of(self, row: int) -> int | None:
        return next((line for count, (line, _) in enumerate(self.records(), -1) if count == row), None)


def _advice(option: str, value: str) -> str:
    typed = f"'{value}'" if value in (";", "|") else value
    kept = value.replace("tab", "\\t")
    return f'--{option} {typed}, or {option} = "{kept}" under [read] in the site\'s file'


# ---- JSON lines: one object per line, with a name and a value for each column ---------------------------
# Values are the same whether a file is read at once or in parts. Values that an object lacks are missing.


_PART = 1 << 23  # bytes read at a time, and maximum length of a line


class JsonLines(File):
    form, suffixes, packed = "JSON lines", (".jsonl", ".ndjson"), True

    def read(self) -> "pa.Table":
        with self._told(), self.opened() as stream:
            return reader.read_json(stream, reader.ReadOptions(block_size=_PART))

    def names(self) -> list[str]:
        """Return the names that occur in any object of the file, in order of first appearance."""
        return list(dict.fromkeys(name for part in self._parts() for name in part.column_names))

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        for part in self._parts():
            values = {
                name: part.column(name) if name in part.column_names else pa.nulls(part.num_rows)
                for name in columns
            }
            yield pa.table(values | {name: values[name].cast(pa.string()) for name in as_text})

    def line_of(self, row: int) -> int | None:
        return next((line for count, (line, _) in enumerate(self._lines()) if count == row), None)

    def _parts(self) -> "Iterator[pa.Table]":
        with self.opened() as stream:
            for block in _blocks(stream):
                with self._told():
                    part = reader.read_json(io.BytesIO(block), reader.ReadOptions(block_size=len(block) + 1))
                yield part

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.opened() as stream:
            numbered = enumerate(io.BufferedReader(stream), 1)
            yield from ((number, line) for number, line in numbered if line.strip())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Context manager that converts pyarrow's error to a ConfigError. The message names the first invalid
        line, if one is found."""
        try:
            yield
        except pa.ArrowInvalid as error:
            kinds: dict[str, str] = {}
            for number, line in self._lines():
                _check_line(f"{self.shown}: line {number}", line, kinds)
            raise ConfigError(
                "jsonl-unreadable", f"{self.shown} cannot be read as JSON lines", first_line(error)
            ) from None


def _blocks(stream: "pa.NativeFile") -> Iterator[bytes]:
    rest = b""
    while piece := stream.read(_PART):
        lines, newline, begun = (rest + piece).rpartition(b"\n")
        rest = begun
        if lines.strip():
            yield lines + newline
    if rest.strip():
        yield rest


def _check_line(where: str, line: bytes, kinds: dict[str, str]) -> None:
    """Raise ConfigError if a line is not a JSON object, or if the type of a value differs from its type in
    earlier lines. kinds: name -> type in earlier lines; updated."""
    try:
        values = json.loads(line)
    except json.JSONDecodeError as fault:
        raise ConfigError(
            "jsonl-line-invalid", f"{where} is not JSON: {fault.msg} at character {fault.pos + 1}"
        ) from None
    except ValueError as fault:
        raise ConfigError("jsonl-line-invalid", f"{where} is not JSON: {fault}") from None
    if not isinstance(values, dict):
        raise ConfigError("jsonl-line-invalid", f'{where} is not an object; write {{"column": value, ...}}')
    for name, value in values.items():
        kind = _KINDS.get(type(value))
        if kind and kinds.setdefault(name, kind) != kind:
            raise ConfigError(
                "jsonl-types-differ", f"{where} has {kind} for {name!r}, but earlier lines have {kinds[name]}"
            )


_KINDS = {
    int: "a number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


# ---- Excel workbooks: one sheet, with the column names in its first row ---------------------------------
# Numbers stay numbers, even next to words for missing values. Rows without any value are left out.


class Workbook(File):
    form, suffixes, takes = "Excel", (".xlsx",), ("na", "sheet")

    def read(self) -> "pa.Table":
        try:
            from python_calamine import CalamineError, CalamineWorkbook
        except ImportError:
            advice = "run pip install 'fedboost[excel]', or save the sheet as CSV"
            raise ConfigError(
                "extra-missing", f"{self.shown}: reading a workbook requires python-calamine: {advice}"
            ) from None
        try:
            with self.location.open() as file:
                book = CalamineWorkbook.from_filelike(io.BytesIO(file.read()))
            name = self.options.sheet or book.sheet_names[0]
            if name not in book.sheet_names:
                listed = ", ".join(map(repr, book.sheet_names))
                raise ConfigError(
                    "excel-sheet-missing", f"{self.shown} has no sheet {name!r}; its sheets are {listed}"
                )
            rows = book.get_sheet_by_name(name).to_python(skip_empty_area=True)
        except CalamineError as error:
            raise ConfigError(
                "excel-unreadable", f"{self.shown} cannot be read as an Excel workbook", str(error)
            ) from None
        if not rows:
            raise ConfigError(
                "excel-sheet-empty", f"{self.shown}: sheet {name!r} is empty; choose another with --sheet"
            )
        head, body = rows[0], [row for row in rows[1:] if any(value != "" for value in row)]
        columns = list(zip(*body, strict=True)) if body else [()] * len(head)
        missing = frozenset(("", *self.options.na))
        made = [
            (text_of(title) or "", _column(values, missing))
            for title, values in zip(head, columns, strict=True)
            if title != "" or any(value != "" for value in values)
        ]
        return pa.table([values for _, values in made], names=[title for title, _ in made])


def _column(values: Sequence[Any], missing: frozenset[str]) -> "pa.Array":
    """Convert cells to an Arrow column: numbers if all values are numbers, booleans if all values are
    booleans, otherwise text. missing: texts that denote a missing value."""
    known = [None if isinstance(value, str) and value.strip() in missing else value for value in values]
    kinds = {type(value) for value in known if value is not None}
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in known], pa.float64())
    if kinds == {bool}:
        return pa.array(known, pa.bool_())
    return pa.array([text_of(value) for value in known], pa.string())
