"""Tables in files of text, delimited, sparse (LIBSVM) or JSON lines, and in Excel workbooks.

Refuses: other separators and encodings than the options say, rows of another length than the header
(ConfigError that names the option), a line that is no row of a LIBSVM file, with its number.
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

# ---- Tables of very many columns that are nearly always 0 -----------------------------------------------
# A value that is not written down is 0, not missing; a column is made dense some rows at a time, when it is
# wanted; LIBSVM files and scipy's sparse matrices become the same table.


LABEL = "label"
"""The column of a LIBSVM file's first number; its features are f0, f1, ..., as XGBoost names them."""
QID = "qid"
"""The column of what stands behind qid: in a LIBSVM file, if it does."""
DENSE = 1 << 24
"""So many values are dense at a time: 64 MB."""
MAX_SPARSE_COLUMNS = 1 << 16
"""Of a LIBSVM file: as many features as terms may have."""


@dataclass(frozen=True)
class SparseTable:
    """Dense columns, and sparse ones, column after column: of column c the rows[starts[c]:starts[c + 1]],
    increasing, that have these values; all others have 0."""

    num_rows: int
    dense: "pa.Table"
    names: tuple[str, ...]
    starts: Int64
    rows: Int64
    values: Float32
    open_ended: bool = False
    """True if f0, f1, ... go on for ever, with nothing but 0 beyond the last that was written down."""

    def __post_init__(self) -> None:
        twice = {*self.dense.column_names} & {*self.names}
        if twice:
            raise ConfigError(f"there are two columns named {min(twice)!r}: rename one, or the matrix")
        if np.isinf(self.values).any():
            column = int(np.searchsorted(self.starts, np.flatnonzero(np.isinf(self.values))[0], "right")) - 1
            what = "has a value that is infinite or too large for a 32-bit float"
            raise ConfigError(f"column {self.names[column]!r} {what}")

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return [*self.dense.column_names, *self.names]

    def column(self, name: str) -> "SparseColumn | None":
        """A sparse column, or None if there is none of that name."""
        index = self._places.get(name)
        if index is None and self.open_ended and re.fullmatch(r"f(0|[1-9][0-9]{0,4})", name):
            return SparseColumn(self.num_rows, self.rows[:0], self.values[:0])
        if index is None:
            return None
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return SparseColumn(self.num_rows, self.rows[part], self.values[part])

    def take(self, rows: Int64) -> "SparseTable":
        """These rows, each at most once, in this order."""
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
        """Yield the table in parts, each of as many rows as may be made dense."""
        step = max(1, DENSE // max(len(self.names), 1))
        for first in range(0, max(self.num_rows, 1), step):
            yield self.take(np.arange(first, min(first + step, self.num_rows)))

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @classmethod
    def from_matrices(cls, dense: "pa.Table", matrices: Mapping[str, Any]) -> "SparseTable":
        """Dense columns and scipy's sparse matrices: the columns of matrix `f` are called f0, f1, ..."""
        names, starts, rows, values, end = [], [np.zeros(1, np.int64)], [], [], 0
        size = dense.num_rows if dense.num_columns else int(next(iter(matrices.values())).shape[0])
        for prefix, matrix in matrices.items():
            if matrix.dtype.kind not in "biuf":
                raise ConfigError(f"{prefix!r} is a matrix of {matrix.dtype}, not of numbers")
            columns = matrix.tocsc(copy=True)
            columns.sum_duplicates()
            columns.sort_indices()
            if columns.shape[0] != size:
                raise ConfigError(f"{prefix!r} has {columns.shape[0]} rows, other columns {size}")
            names += [f"{prefix}{index}" for index in range(columns.shape[1])]
            starts.append(columns.indptr[1:].astype(np.int64) + end)
            rows.append(columns.indices.astype(np.int64))
            values.append(_float32(columns.data))
            end += columns.nnz
        entries = np.concatenate(starts), np.concatenate(rows), np.concatenate(values)
        return cls(size, dense, tuple(names), *entries)


class LibSvm(File):
    """A LIBSVM file."""

    form, suffixes = "LIBSVM", (".libsvm", ".svm")

    def read(self) -> SparseTable:
        """The whole table."""
        with self.location.open() as file:
            return read_libsvm(file, self.shown)

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> Iterator[SparseTable]:
        """Yield all columns, as many rows at a time as may be made dense."""
        return self.read().parts()


def read_libsvm(file: "pa.NativeFile", path: str) -> SparseTable:
    """Lines `label qid:group index:value index:value ...`, indices from 0 or 1, qid in all lines or in none;
    a remark begins with #."""
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
                what = "no line of a LIBSVM file: a label, then index:value after index:value"
                raise ConfigError(f"{path}: line {number} is {what}") from None
            counts.append(len(pairs))
    if not labels:
        raise ConfigError(f"{path}: has no rows")
    column_of_value, rows = np.array(places, np.int64), np.repeat(np.arange(len(labels)), counts)
    width = int(column_of_value.max(initial=-1)) + 1
    if column_of_value.min(initial=0) < 0 or width > MAX_SPARSE_COLUMNS:
        raise ConfigError(f"{path}: an index below 0, or above {MAX_SPARSE_COLUMNS - 1:,}")
    order = np.lexsort((rows, column_of_value))
    if (np.diff(column_of_value[order]) == 0)[np.diff(rows[order]) == 0].any():
        raise ConfigError(f"{path}: a row has two values of one index")
    starts = np.concatenate([[0], np.cumsum(np.bincount(column_of_value, minlength=width))]).astype(np.int64)
    by_column = _float32(np.array(values, np.float64))[order]
    names = tuple(f"f{index}" for index in range(width))
    if groups and len(groups) != len(labels):
        raise ConfigError(f"{path}: some lines have a qid behind the label, and others have none")
    dense, row_of_value = (
        pa.table({LABEL: labels, **({QID: groups} if groups else {})}),
        rows[order].astype(np.int64),
    )
    return SparseTable(len(labels), dense, names, starts, row_of_value, by_column, open_ended=True)


def _index(text: str) -> int:
    """Parse an index of a LIBSVM file; ValueError if it is none."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(text)
    return int(text)


def _float32(values: npt.NDArray[Any]) -> Float32:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
        return values.astype(np.float32)


# ---- Tables of delimited text: CSV and TSV, compressed or not -------------------------------------------
# Promises: read at once or in parts, a file gives the same values, of the same types; a fault names its line.


_HEADER = 1 << 24
"""Bytes of a file among which its first line is looked for."""
_BLOCK = 1 << 20
"""Bytes that are read at once, which no row may exceed; more where the first line is long. In parts, pyarrow
reads up to 32 of them ahead."""
_NAMES = {";": ("semicolons", ";"), "\t": ("tabs", "tab"), ",": ("commas", ","), "|": ("bars", "|")}
_COUNT = re.compile(r"Expected (\d+) columns, got (\d+)")
_CONVERSION = re.compile(
    r"In CSV column #(\d+): CSV conversion error to .*?(?:: invalid value '(.*)')?", re.S
)


class Delimited(File):
    """A file of delimited text, and how it is to be read."""

    form, suffixes, packed = "CSV", (".csv", ".tsv"), True
    takes = ("separator", "decimal", "encoding", "na")

    def __init__(self, locations: Locations, options: ReadOptions) -> None:
        super().__init__(locations, options)
        tabs = self.location.name.endswith(tuple(".tsv" + packed for packed in ("", *COMPRESSIONS)))
        self._separator = options.separator or ("\t" if tabs else ",")
        if self._separator == options.decimal:
            raise ConfigError(
                f"{self.shown}: {self._separator!r} cannot stand between columns and in numbers; name "
                f"the separator: {_advice('separator', ';')}"
            )
        with self._faults(_BLOCK):
            self._header = self._first_line()
        unquoted = re.sub(r'"[^"]*"?', "", self._header)
        for character, (name, spelled) in _NAMES.items():
            if self._separator in unquoted or (self._separator == "," and character == "|"):
                continue
            if character in unquoted:
                where = f"{self.shown}: {name} stand between the columns"
                raise ConfigError(f"{where}: {_advice('separator', spelled)}")

    def read(self) -> "pa.Table":
        """The whole table."""
        block = max(_BLOCK, 16 * len(self._header))  # a row of many columns is long, too
        with self._faults(block), self.opened() as stream:
            table = csv.read_csv(stream, self._reading(block), self._parsing(), self._converting())
        if any(pa.types.is_binary(kind) for kind in table.schema.types):
            self._refuse_text()
        return self._marked(table)

    def names(self) -> list[str]:
        """The names of the columns."""
        with self._faults(_BLOCK), self.opened() as stream:
            return list(self._reader(stream, None, {}).schema.names)

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the rows of these columns in parts, some of them as the text that stands in the file; their
        types are those of the whole file."""
        types = self._types(columns, as_text)
        with self._faults(_BLOCK), self.opened() as stream:
            for batch in self._reader(stream, columns, types):
                yield self._marked(pa.Table.from_batches([batch]))

    def _marked(self, table: "pa.Table") -> "pa.Table":
        """The table, whose columns of text say that numbers have a decimal comma if they do."""
        if self.options.decimal != ",":
            return table
        fields = (
            field.with_metadata({DECIMAL_COMMA: b"1"}) if is_text(field.type) else field
            for field in table.schema
        )
        return table.cast(pa.schema([*fields], table.schema.metadata))

    def _types(self, columns: Collection[str], as_text: Collection[str]) -> "dict[str, pa.DataType]":
        """The first type of each column that all its values have, in the order in which pyarrow tries them
        where it reads a file whole."""
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
        """The next type that has this value."""
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
        if self.options.encoding.lower().replace("_", "-") not in (
            "utf-8",
            "utf8",
        ):  # whatever is cut off at the end
            return re.split(r"[\r\n]", start.decode(self.options.encoding, "replace"), maxsplit=1)[0]
        if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start[:2]:
            raise ConfigError(f"{self.shown}: is UTF-16, or no text: {_advice('encoding', 'utf-16')}")
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
                        f"{where}: name its encoding: {_advice('encoding', 'latin-1')}"
                    ) from None
        raise ConfigError(f"{self.shown}: is not UTF-8: {_advice('encoding', 'latin-1')}")

    @contextmanager
    def _faults(self, block: int) -> Iterator[None]:
        """Tell what pyarrow finds wrong, in one line that names the line of the file."""
        try:
            yield
        except UnicodeError as error:
            why = f"cannot be read as {self.options.encoding}: {error}"
            raise ConfigError(f"{self.shown}: {why}; name another --encoding") from None
        except pa.ArrowInvalid as error:
            if "straddl" in str(error):
                advice = "close a quote left open, or shorten a text"
                raise ConfigError(f"{self.shown}: a row is longer than {block >> 20} MiB; {advice}") from None
            if not _COUNT.search(str(error)):
                raise
            raise ConfigError(f"{self.shown}: {self._odd_row(str(error))}") from None

    def _odd_row(self, error: str) -> str:
        """The first row, in words, that has not as many values as the header."""
        records = self.records()
        try:
            _, header = next(records)
            for line, values in records:
                if len(values) != len(header):
                    got = counted(len(values), "value")
                    return f"line {line} has {got}, the header names {counted(len(header), 'column')}"
        except (rows_of_text.Error, StopIteration):
            pass  # as pyarrow says it
        return f"cannot be read as CSV: {shorten(error.splitlines()[0], 200)}"

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the lines that are not blank, the header first: number in the file, and values."""
        with self.opened() as stream:
            text = io.TextIOWrapper(
                io.BufferedReader(stream),
                self.options.encoding,
                "replace",
                newline="",
            )
            reader = rows_of_text.reader(text, delimiter=self._separator)
            line = 1
            for values in reader:
                if values:
                    yield line, values
                line = reader.line_num + 1

    def line_of(self, row: int) -> int | None:
        """The line of a row, counted from 0."""
        return next((line for count, (line, _) in enumerate(self.records(), -1) if count == row), None)


def _advice(option: str, value: str) -> str:
    typed = f"'{value}'" if value in (";", "|") else value
    kept = value.replace("tab", "\\t")
    return f'--{option} {typed}, or {option} = "{kept}" under [read] in the site\'s file'


# ---- Tables of JSON lines: one object a line, a name and a value for each column ------------------------
# Promises: read at once or in parts, a file gives the same values; a name that an object lacks is missing.


_PART = 1 << 23
"""Bytes that are read at once; a line may be as long."""


class JsonLines(File):
    """A file of JSON lines."""

    form, suffixes, packed = "JSON lines", (".jsonl", ".ndjson"), True

    def read(self) -> "pa.Table":
        """The whole table."""
        with self._told(), self.opened() as stream:
            return reader.read_json(stream, reader.ReadOptions(block_size=_PART))

    def names(self) -> list[str]:
        """The names in all objects, in the order in which they come."""
        return list(dict.fromkeys(name for part in self._parts() for name in part.column_names))

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the rows in parts, with these columns; some of them as text, whatever their type."""
        for part in self._parts():
            values = {
                name: part.column(name) if name in part.column_names else pa.nulls(part.num_rows)
                for name in columns
            }
            yield pa.table(values | {name: values[name].cast(pa.string()) for name in as_text})

    def line_of(self, row: int) -> int | None:
        """The line of a row, counted from 0: blank lines are none."""
        return next((line for count, (line, _) in enumerate(self._lines()) if count == row), None)

    def _parts(self) -> "Iterator[pa.Table]":
        with self.opened() as stream:
            for block in _blocks(stream):
                with self._told():
                    part = reader.read_json(io.BytesIO(block), reader.ReadOptions(block_size=len(block) + 1))
                yield part

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, and their numbers."""
        with self.opened() as stream:
            numbered = enumerate(io.BufferedReader(stream), 1)
            yield from ((number, line) for number, line in numbered if line.strip())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Name the first line that does not fit; else what pyarrow says."""
        try:
            yield
        except pa.ArrowInvalid as error:
            kinds: dict[str, str] = {}
            for number, line in self._lines():
                _check_line(f"{self.shown}: line {number}", line, kinds)
            raise ConfigError(f"{self.shown}: cannot be read as JSON lines", first_line(error)) from None


def _blocks(stream: "pa.NativeFile") -> Iterator[bytes]:
    """Yield the file in pieces of whole lines."""
    rest = b""
    while piece := stream.read(_PART):
        lines, newline, begun = (rest + piece).rpartition(b"\n")
        rest = begun
        if lines.strip():
            yield lines + newline
    if rest.strip():
        yield rest


def _check_line(where: str, line: bytes, kinds: dict[str, str]) -> None:
    """ConfigError for a line that is no object, or has values of other kinds than those above. kinds: of the
    lines above, by name, to which those of this line are added."""
    try:
        values = json.loads(line)
    except json.JSONDecodeError as fault:
        raise ConfigError(f"{where} is no JSON: {fault.msg}, at character {fault.pos + 1}") from None
    except ValueError as fault:
        raise ConfigError(f"{where} is no JSON: {fault}") from None
    if not isinstance(values, dict):
        raise ConfigError(f'{where} is no object: write {{"column": value, ...}}')
    for name, value in values.items():
        kind = _KINDS.get(type(value))
        if kind and kinds.setdefault(name, kind) != kind:
            raise ConfigError(f"{where} has {kind} for {name!r}, lines above have {kinds[name]}")


_KINDS = {
    int: "a number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


# ---- Tables in Excel workbooks: one sheet, its first row the names of the columns -----------------------
# Promises: numbers stay numbers, also beside words that mean a missing value; rows without any value are left
# out.


class Workbook(File):
    """An Excel workbook."""

    form, suffixes, takes = "Excel", (".xlsx",), ("na", "sheet")

    def read(self) -> "pa.Table":
        """The table of a sheet."""
        try:
            from python_calamine import CalamineError, CalamineWorkbook
        except ImportError:
            advice = "pip install 'fedboost[excel]', or save the sheet as CSV"
            raise ConfigError(f"{self.shown}: a workbook needs python-calamine: {advice}") from None
        try:
            with self.location.open() as file:
                book = CalamineWorkbook.from_filelike(io.BytesIO(file.read()))
            name = self.options.sheet or book.sheet_names[0]
            if name not in book.sheet_names:
                listed = ", ".join(map(repr, book.sheet_names))
                raise ConfigError(f"{self.shown}: has no sheet {name!r}; it has {listed}")
            rows = book.get_sheet_by_name(name).to_python(skip_empty_area=True)
        except CalamineError as error:
            raise ConfigError(f"{self.shown}: cannot be read as an Excel workbook", str(error)) from None
        if not rows:
            raise ConfigError(f"{self.shown}: sheet {name!r} is empty; --sheet names another one")
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
    """The values of a column; as text where they are not all numbers or all true and false."""
    known = [None if isinstance(value, str) and value.strip() in missing else value for value in values]
    kinds = {type(value) for value in known if value is not None}
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in known], pa.float64())
    if kinds == {bool}:
        return pa.array(known, pa.bool_())
    return pa.array([text_of(value) for value in known], pa.string())
