"""Forms of table files, by suffix.

Promises: a row of `FORMS` says all that there is to say of a form; each is read whole, or in parts.
Refuses: unknown suffixes, empty files, options that a form does not know (ConfigError).
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedboost.errors import ConfigError
from fedboost.runtime.data.delimited import COMPRESSIONS, Delimited
from fedboost.runtime.data.json_lines import json_names, json_parts, read_json_lines
from fedboost.runtime.data.locations import TOGETHER, Locations
from fedboost.runtime.data.parquet_files import ParquetFiles
from fedboost.runtime.data.read_options import ReadOptions
from fedboost.runtime.data.sparse import SparseTable, read_libsvm
from fedboost.runtime.data.workbook import read_workbook

if TYPE_CHECKING:
    import pyarrow as pa

PART_ROWS = 1 << 16
"""Rows of a part, where a form does not say it itself."""
TEXT = ("separator", "decimal", "encoding", "na")


Parts: TypeAlias = "Callable[[Locations, ReadOptions, Collection[str], Collection[str]], Iterator[pa.Table]]"


@dataclass(frozen=True)
class Form:
    """A way of reading files of some suffixes. `parts` yields the rows of some columns; those of the last
    argument as the text that is in the file, where it is text."""

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Locations, ReadOptions], "pa.Table | SparseTable"]
    names: "Callable[[Locations, ReadOptions], list[str]] | None" = None
    parts: "Parts | None" = None
    options: tuple[str, ...] = ()
    packed: bool = False
    """True if its files may be compressed, which a second suffix says."""
    rows: Callable[[Locations], int] | None = None
    """How many rows there are, where that is known beforehand."""

    @property
    def every_suffix(self) -> tuple[str, ...]:
        """Its suffixes, also those of compressed files."""
        if not self.packed:
            return self.suffixes
        return tuple(s + more for s in self.suffixes for more in ("", *COMPRESSIONS))


def _delimited(locations: Locations, options: ReadOptions) -> Delimited:
    return Delimited(locations.files[0], options)


def _feather(locations: Locations, options: ReadOptions) -> "pa.Table":
    from pyarrow import ipc

    with locations.files[0].open() as file:
        return ipc.open_file(file).read_all()


def _feather_names(locations: Locations, options: ReadOptions) -> list[str]:
    from pyarrow import ipc

    with locations.files[0].open() as file:
        return list(ipc.open_file(file).schema.names)


def _feather_parts(
    locations: Locations, options: ReadOptions, columns: Collection[str], as_text: Collection[str]
) -> "Iterator[pa.Table]":
    import pyarrow as pa
    from pyarrow import ipc

    with locations.files[0].open() as file:
        reader = ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)]).select(list(columns))


def _libsvm(locations: Locations, options: ReadOptions) -> SparseTable:
    with locations.files[0].open() as file:
        return read_libsvm(file, locations.shown)


FORMS = (
    Form(
        "CSV",
        (".csv", ".tsv"),
        lambda locations, options: _delimited(locations, options).read(),
        lambda locations, options: _delimited(locations, options).names(),
        lambda locations, options, columns, as_text: _delimited(locations, options).parts(columns, as_text),
        TEXT,
        packed=True,
    ),
    Form(
        "Parquet",
        TOGETHER,
        lambda locations, options: ParquetFiles(locations).read(),
        lambda locations, options: list(ParquetFiles(locations).head.column_names),
        lambda locations, options, columns, as_text: ParquetFiles(locations).parts(columns, PART_ROWS),
        rows=lambda locations: ParquetFiles(locations).num_rows,
    ),
    Form("Feather", (".feather", ".arrow"), _feather, _feather_names, _feather_parts),
    Form(
        "JSON lines",
        (".jsonl", ".ndjson"),
        lambda locations, options: read_json_lines(locations.files[0]),
        lambda locations, options: json_names(locations.files[0]),
        lambda locations, options, columns, as_text: json_parts(locations.files[0], columns, as_text),
        packed=True,
    ),
    Form(
        "Excel",
        (".xlsx",),
        lambda locations, options: read_workbook(locations.files[0], options),
        options=("na", "sheet"),
    ),
    Form("LIBSVM", (".libsvm", ".svm"), _libsvm),
)
SUFFIXES = tuple(suffix for form in FORMS for suffix in form.every_suffix)


def form_of(locations: Locations, options: ReadOptions) -> Form:
    """The form of a file, by its name; one that ends in .gz alone is taken for CSV. ConfigError if there is
    none, if the file is empty, and for options that are not of this form."""
    location = locations.files[0]
    form = next((form for form in FORMS if location.name.endswith(form.every_suffix)), None)
    if form is None and location.name.endswith(tuple(COMPRESSIONS)) and location.name.count(".") == 1:
        form = FORMS[0]
    if form is None:
        if location.path is not None and not location.path.exists():
            raise ConfigError(f"{location.shown}: no such file or folder")
        suffix = "." + location.name.rpartition(".")[2] if "." in location.name else ""
        known = ", ".join(suffix for form in FORMS for suffix in form.suffixes)
        packed = f"CSV and JSON lines also with {', '.join(COMPRESSIONS)} behind"
        raise ConfigError(f"{location.shown}: unknown suffix {suffix!r}; known: {known}; {packed}")
    for name in options.chosen:
        if name not in form.options:
            for_what = ", ".join(s for f in FORMS if name in f.options for s in f.suffixes)
            raise ConfigError(f"{location.shown}: {name} is an option for {for_what}; leave it out")
    _check_there(locations)
    return form


def _check_there(locations: Locations) -> None:
    if locations.together:
        return
    location = locations.files[0]
    try:
        with location.open() as file:
            empty = file.size() == 0
    except FileNotFoundError:
        raise ConfigError(f"{location.shown}: no such file") from None
    except PermissionError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), location.shown) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{location.shown}: cannot be read", why) from None
    if empty:
        raise ConfigError(f"{location.shown}: the file is empty")
