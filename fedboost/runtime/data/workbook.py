"""Tables in Excel workbooks: one sheet, its first row the names of the columns.

Promises: numbers stay numbers, also beside words that mean a missing value; rows without any
value are left out.
Refuses: sheets that are not there (the message lists those that are), workbooks without the extra `excel`
(ConfigError).
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedboost.errors import ConfigError
from fedboost.runtime.data.locations import Location
from fedboost.runtime.data.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


def read_workbook(location: Location, options: ReadOptions) -> "pa.Table":
    """The table of a sheet."""
    import pyarrow as pa

    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError:
        advice = "pip install 'fedboost[excel]', or save the sheet as CSV"
        raise ConfigError(f"{location.shown}: a workbook needs python-calamine: {advice}") from None
    try:
        with location.open() as file:
            book = CalamineWorkbook.from_filelike(io.BytesIO(file.read()))
        name = options.sheet or book.sheet_names[0]
        if name not in book.sheet_names:
            listed = ", ".join(map(repr, book.sheet_names))
            raise ConfigError(f"{location.shown}: has no sheet {name!r}; it has {listed}")
        rows = book.get_sheet_by_name(name).to_python(skip_empty_area=True)
    except CalamineError as error:
        raise ConfigError(f"{location.shown}: cannot be read as an Excel workbook", str(error)) from None
    if not rows:
        raise ConfigError(f"{location.shown}: sheet {name!r} is empty; --sheet names another one")
    head, body = rows[0], [row for row in rows[1:] if any(value != "" for value in row)]
    columns = list(zip(*body, strict=True)) if body else [()] * len(head)
    missing = frozenset(("", *options.na))
    made = [
        (_text(title), _column(values, missing))
        for title, values in zip(head, columns, strict=True)
        if title != "" or any(value != "" for value in values)
    ]
    return pa.table([values for _, values in made], names=[title for title, _ in made])


def _column(values: Sequence[Any], missing: frozenset[str]) -> "pa.Array":
    """The values of a column; as text where they are not all numbers or all true and false."""
    import pyarrow as pa

    known = [None if isinstance(value, str) and value.strip() in missing else value for value in values]
    kinds = {type(value) for value in known if value is not None}
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in known], pa.float64())
    if kinds == {bool}:
        return pa.array(known, pa.bool_())
    return pa.array([None if value is None else _text(value) for value in known], pa.string())


def _text(value: Any) -> str:
    """A cell as text: of a whole number without a point, as Excel shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
