"""Columns as databases and dataframes hand them over, to types that the rest of fedboost reads.

Promises: no value changes: PostgreSQL's numeric, which comes as text, becomes float64 as every decimal does;
json and uuid become their text; views of strings become strings.
Refuses: nothing: other types stay as they are, and are refused where a column of them is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

NUMERIC = "numeric"


def normal_table(table: "pa.Table") -> "pa.Table":
    """The table with these types, without its metadata; columns of other types are not copied."""
    import pyarrow as pa

    fields = [normal_field(field) for field in table.schema]
    columns = [
        column if column.type == field.type else _chunked(column, field.type)
        for column, field in zip(table.columns, fields, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields))


def normal_field(field: "pa.Field") -> "pa.Field":
    """The field with the type that a column of it becomes."""
    import pyarrow as pa

    return pa.field(field.name, normal_type(field.type))


def normal_type(kind: "pa.DataType") -> "pa.DataType":
    """The type that a column of this type becomes."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, normal_type(kind.value_type), kind.ordered)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return pa.string()
        if getattr(kind, "type_name", "") == NUMERIC:
            return pa.float64()
        storage = kind.storage_type
        is_text = types.is_string(storage) or types.is_large_string(storage)
        return storage if is_text or kind.extension_name == "arrow.bool8" else kind
    return pa.large_string() if kind == pa.string_view() else kind


def normal_column(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """The values as this type, which `normal_type` names."""
    import pyarrow as pa
    from pyarrow import types

    if column.type == kind:
        return column
    if types.is_dictionary(kind):
        words = normal_column(column.dictionary, kind.value_type)
        return pa.DictionaryArray.from_arrays(column.indices, words, ordered=kind.ordered)
    if isinstance(column.type, pa.BaseExtensionType):
        if column.type.extension_name == "arrow.uuid":
            return pa.array([None if value is None else str(value) for value in column.to_pylist()], kind)
        column = column.storage
    return column if column.type == kind else column.cast(kind)


def _chunked(column: "pa.ChunkedArray", kind: "pa.DataType") -> "pa.ChunkedArray":
    import pyarrow as pa

    return pa.chunked_array([normal_column(chunk, kind) for chunk in column.chunks], kind)
