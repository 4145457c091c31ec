"""Tables of JSON lines: one object a line, a name and a value for each column.

Promises: read at once or in parts, a file gives the same values; a name that an object lacks is missing.
Refuses: lines that are no object, with their number; values that are lists or objects (ConfigError).
"""

import io
import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fedboost.errors import ConfigError
from fedboost.runtime.data.delimited import opened
from fedboost.runtime.data.locations import Location

if TYPE_CHECKING:
    import pyarrow as pa

_PART = 1 << 23
"""Bytes that are read at once; a line may be as long."""


def read_json_lines(location: Location) -> "pa.Table":
    """The whole table."""
    import pyarrow as pa
    from pyarrow import json as reader

    try:
        with opened(location) as stream:
            return reader.read_json(stream, reader.ReadOptions(block_size=_PART))
    except pa.ArrowInvalid as error:
        raise _fault(location, error) from None


def json_parts(
    location: Location, columns: Collection[str], as_text: Collection[str] = ()
) -> "Iterator[pa.Table]":
    """Yield the rows in parts, with these columns; some of them as text, whatever their type."""
    import pyarrow as pa

    for part in _parts(location):
        lacking = [name for name in columns if name not in part.column_names]
        for name in lacking:
            part = part.append_column(name, pa.nulls(part.num_rows))
        part = part.select(list(columns))
        for name in as_text:
            at = part.column_names.index(name)
            part = part.set_column(at, name, part.column(name).cast(pa.string()))
        yield part


def json_names(location: Location) -> list[str]:
    """The names in all objects, in the order in which they come."""
    return list(dict.fromkeys(name for part in _parts(location) for name in part.column_names))


def _parts(location: Location) -> "Iterator[pa.Table]":
    import pyarrow as pa
    from pyarrow import json as reader

    with opened(location) as stream:
        for block in _blocks(stream):
            try:
                yield reader.read_json(io.BytesIO(block), reader.ReadOptions(block_size=len(block) + 1))
            except pa.ArrowInvalid as error:
                raise _fault(location, error) from None


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


def _fault(location: Location, error: Exception) -> ConfigError:
    """The first line that does not fit; else what pyarrow says."""
    kinds: dict[str, str] = {}
    with opened(location) as stream:
        for number, line in enumerate(io.BufferedReader(stream), 1):
            if not line.strip():
                continue
            where = f"{location.shown}: line {number}"
            try:
                values = json.loads(line)
            except ValueError as fault:
                why = (
                    f"{fault.msg}, at character {fault.pos + 1}"
                    if isinstance(fault, json.JSONDecodeError)
                    else fault
                )
                return ConfigError(f"{where} is no JSON: {why}")
            if not isinstance(values, dict):
                return ConfigError(f'{where} is no object: write {{"column": value, ...}}')
            for name, value in values.items():
                kind = _KINDS.get(type(value))
                if kind and kinds.setdefault(name, kind) != kind:
                    return ConfigError(f"{where} has {kind} for {name!r}, lines above have {kinds[name]}")
    return ConfigError(f"{location.shown}: cannot be read as JSON lines", str(error).splitlines()[0])


_KINDS = {
    int: "a number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
