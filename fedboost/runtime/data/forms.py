"""Forms of table files, by suffix.

Promises: a row of `FORMS` says all that there is to say of a form; each is read whole, or in parts.
Refuses: unknown suffixes, empty files, options that a form does not know (ConfigError).
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedboost.errors import ConfigError
from fedboost.runtime.data.delimited import COMPRESSIONS, Delimited
from fedboost.runtime.data.json_lines import json_names, json_parts, read_json_lines
from fedboost.runtime.data.parquet_files import ParquetFiles
from fedboost.runtime.data.places import TOGETHER, Places
from fedboost.runtime.data.read_options import ReadOptions
from fedboost.runtime.data.sparse import SparseTable, read_libsvm
from fedboost.runtime.data.workbook import read_workbook

if TYPE_CHECKING:
    import pyarrow as pa

PART_ROWS = 1 << 16
"""Rows of a part, where a form does not say it itself."""
TEXT = ("separator", "decimal", "encoding", "na")


@dataclass(frozen=True)
class Form:
    """How files of some suffixes are read. `parts` yields the rows of some columns; those of the last
    argument as the text that is in the file, where it is text."""

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Places, ReadOptions], "pa.Table | SparseTable"]
    names: "Callable[[Places, ReadOptions], list[str]] | None" = None
    parts: "Callable[[Places, ReadOptions, Collection[str], Collection[str]], Iterator[pa.Table]] | None" = (
        None
    )
    options: tuple[str, ...] = ()
    packed: bool = False
    """True if its files may be compressed, which a second suffix says."""
    rows: Callable[[Places], int] | None = None
    """How many rows there are, where that is known beforehand."""

    @property
    def every_suffix(self) -> tuple[str, ...]:
        """Its suffixes, also those of compressed files."""
        if not self.packed:
            return self.suffixes
        return tuple(s + more for s in self.suffixes for more in ("", *COMPRESSIONS))


def _delimited(places: Places, options: ReadOptions) -> Delimited:
    return Delimited(places.files[0], options)


def _feather(places: Places, options: ReadOptions) -> "pa.Table":
    from pyarrow import ipc

    with places.files[0].open() as file:
        return ipc.open_file(file).read_all()


def _feather_names(places: Places, options: ReadOptions) -> list[str]:
    from pyarrow import ipc

    with places.files[0].open() as file:
        return list(ipc.open_file(file).schema.names)


def _feather_parts(
    places: Places, options: ReadOptions, columns: Collection[str], as_text: Collection[str]
) -> "Iterator[pa.Table]":
    import pyarrow as pa
    from pyarrow import ipc

    with places.files[0].open() as file:
        reader = ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)]).select(list(columns))


def _libsvm(places: Places, options: ReadOptions) -> SparseTable:
    with places.files[0].open() as file:
        return read_libsvm(file, places.shown)


FORMS = (
    Form(
        "CSV",
        (".csv", ".tsv"),
        lambda places, options: _delimited(places, options).read(),
        lambda places, options: _delimited(places, options).names(),
        lambda places, options, columns, as_text: _delimited(places, options).parts(columns, as_text),
        TEXT,
        packed=True,
    ),
    Form(
        "Parquet",
        TOGETHER,
        lambda places, options: ParquetFiles(places).read(),
        lambda places, options: list(ParquetFiles(places).head.column_names),
        lambda places, options, columns, as_text: ParquetFiles(places).parts(columns, PART_ROWS),
        rows=lambda places: ParquetFiles(places).num_rows,
    ),
    Form("Feather", (".feather", ".arrow"), _feather, _feather_names, _feather_parts),
    Form(
        "JSON lines",
        (".jsonl", ".ndjson"),
        lambda places, options: read_json_lines(places.files[0]),
        lambda places, options: json_names(places.files[0]),
        lambda places, options, columns, as_text: json_parts(places.files[0], columns, as_text),
        packed=True,
    ),
    Form(
        "Excel",
        (".xlsx",),
        lambda places, options: read_workbook(places.files[0], options),
        options=("na", "sheet"),
    ),
    Form("LIBSVM", (".libsvm", ".svm"), _libsvm),
)
SUFFIXES = tuple(suffix for form in FORMS for suffix in form.every_suffix)


def form_of(places: Places, options: ReadOptions) -> Form:
    """The form of a file, by its name; one that ends in .gz alone is taken for CSV. ConfigError if there is
    none, if the file is empty, and for options that are not of this form."""
    place = places.files[0]
    form = next((form for form in FORMS if place.name.endswith(form.every_suffix)), None)
    if form is None and place.name.endswith(tuple(COMPRESSIONS)) and place.name.count(".") == 1:
        form = FORMS[0]
    if form is None:
        suffix = "." + place.name.rpartition(".")[2] if "." in place.name else ""
        known = ", ".join(suffix for form in FORMS for suffix in form.suffixes)
        packed = f"CSV and JSON lines also with {', '.join(COMPRESSIONS)} behind"
        raise ConfigError(f"{place.shown}: unknown suffix {suffix!r}; known: {known}; {packed}")
    for name in options.chosen:
        if name not in form.options:
            for_what = ", ".join(s for f in FORMS if name in f.options for s in f.suffixes)
            raise ConfigError(f"{place.shown}: {name} is an option for {for_what}; leave it out")
    _check_there(places)
    return form


def _check_there(places: Places) -> None:
    if places.together:
        return
    place = places.files[0]
    try:
        with place.open() as file:
            empty = file.size() == 0
    except FileNotFoundError:
        raise ConfigError(f"{place.shown}: no such file") from None
    except PermissionError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place.shown) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{place.shown}: cannot be read", why) from None
    if empty:
        raise ConfigError(f"{place.shown}: the file is empty")
