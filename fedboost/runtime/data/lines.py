"""Lines of a file: where a row of a table stands in the text that it was read from.

Promises: row 1 is the first below the header; blank lines are lines, and no rows.
Refuses nothing: of a file that has changed since, or is no text of this machine, no line is known.
"""

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedboost.errors import ConfigError
from fedboost.runtime.data.delimited import Delimited, opened
from fedboost.runtime.data.locations import Location, Locations, locations_of
from fedboost.runtime.data.read_options import ReadOptions
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.values import BadRow

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"fedboost.file"
"""Metadata of a table: the file that it is, and the options by which it was read."""


def with_source(table: "pa.Table", locations: Locations, options: ReadOptions) -> "pa.Table":
    """The table, with the file of this machine that it was read from written down."""
    path = locations.files[0].path
    if path is None or locations.together or not _is_text(locations.files[0]):
        return table
    facts = {"path": str(path), "state": _state(path), "options": options.model_dump(mode="json")}
    return table.replace_schema_metadata({_KEY: json.dumps(facts).encode()})


def without_source(table: "pa.Table | SparseTable") -> "Any":
    """The table, as one of other rows than the file's."""
    if isinstance(table, SparseTable):
        return replace(table, dense=table.dense.replace_schema_metadata())
    return table.replace_schema_metadata()


def in_file(error: ConfigError, table: "pa.Table") -> ConfigError:
    """The error, with the line of the file where that is known."""
    facts = (table.schema.metadata or {}).get(_KEY)
    if facts is None or not isinstance(error, BadRow):
        return error
    source = json.loads(facts)
    path = Path(source["path"])
    if _state(path) != source["state"]:
        return error
    return error.on_line(line_of(locations_of(path).files[0], ReadOptions(**source["options"]), error.row))


def row_of(table: "pa.Table", row: int) -> str:
    """Return a row, counted from 0, for a message: from 1, with its line."""
    return in_file(BadRow("", "", row), table).detail.strip().removeprefix("in ")


def line_of(location: Location, options: ReadOptions, row: int) -> int | None:
    """The line of a row, counted from 0; None in a form that has no lines."""
    if not _is_text(location):
        return None
    if ".jsonl" in location.name or ".ndjson" in location.name:
        with opened(location) as stream:
            lines = enumerate(io.BufferedReader(stream), 1)
            filled = (number for number, line in lines if line.strip())
            return next((number for count, number in enumerate(filled) if count == row), None)
    records = Delimited(location, options).records()
    return next((line for count, (line, _) in enumerate(records, -1) if count == row), None)


def _is_text(location: Location) -> bool:
    return any(suffix in location.name for suffix in (".csv", ".tsv", ".jsonl", ".ndjson"))


def _state(path: Path) -> list[int]:
    """Figures that change with a file."""
    try:
        known = os.stat(path)
    except OSError:
        return []
    return [known.st_mtime_ns, known.st_size]
