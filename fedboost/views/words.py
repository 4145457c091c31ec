"""Terminal text: names, numbers, paragraphs and tables as people read them.

Promises: a name from outside neither poses as another line nor moves the cursor; paragraphs fit 80 columns.
"""

import re
import textwrap
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, Union
from unicodedata import east_asian_width

from fedboost.errors import printable, quoted

if TYPE_CHECKING:  # rich takes a while to import, and most commands need no table
    from rich.table import Table
    from rich.text import Text

Block: TypeAlias = Union[str, "Table", "Text"]
"""A piece of terminal text: lines, a table, or a paragraph that rich breaks to the width of the terminal."""

WIDTH, INDENT = 79, 13
"""Columns of a line, and of the key before a value."""
MAX_LINE = 2000
MAX_NAME_LENGTH = 256
MAX_SHOWN_LENGTH = 40
"""Characters of a name in a line of a log."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
_SIMPLE = re.compile(r"[\w.@:/+-]+")
_SECOND = "\0"
"""The second half of a wide character."""


def one_line(text: str) -> str:
    """Return the text on one line of about 2,000 characters at most: names and peers' words may hold
    anything."""
    return quoted(text, MAX_LINE)


def shown(text: str) -> str:
    """Return a name from outside for a log: shortened, and without characters that move the cursor."""
    return quoted(text, MAX_SHOWN_LENGTH)


def all_shown(names: Iterable[str]) -> str:
    """Return names from outside, each shortened."""
    return ", ".join(map(shown, names))


def listed(names: Iterable[str]) -> str:
    """Return names, all of them, whole."""
    return ", ".join(map(delimited, names))


def delimited(name: str) -> str:
    """Return a name that stands apart from the text around it: in quotes, unless it is one plain word."""
    if _SIMPLE.fullmatch(printable(name)):
        return name
    return '"' + quoted(name, MAX_NAME_LENGTH).replace('"', '\\"') + '"'


def shorten(text: str, limit: int = MAX_SHOWN_LENGTH) -> str:
    """Return at most `limit` characters of a name."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def capital(text: str) -> str:
    """Return a text with a capital."""
    return text[:1].upper() + text[1:]


def entry(key: str, text: str, indent: int = INDENT) -> str:
    """Return a key and the text about it, in lines that fit a terminal. indent: columns of the key; a longer
    one has a line of its own."""
    if len(key) >= indent:
        return f"{key}\n{entry('', text, indent)}"
    return filled(text, f"{key:<{indent}}", " " * indent)


def paragraph(text: str) -> str:
    """Return a sentence with a capital, in lines that fit a terminal."""
    return filled(capital(text))


def filled(text: str, first: str = "", later: str = "") -> str:
    """Return a text in lines that fit a terminal: a wide character counts as two, so that no terminal breaks
    a line where another could begin. first, later: what the lines begin with."""
    wide = "".join(c + _SECOND * (c > "\u10ff" and east_asian_width(c) in "WF") for c in text)
    lines = textwrap.fill(wide, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines.replace(_SECOND, "")


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def amount(value: float) -> str:
    """Return a number to four digits; from ten thousand on to the unit."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a number of seconds for people."""
    for length, unit in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def moment(time: str) -> str:
    """Return a time of a log, or of a decision, for people."""
    return quoted(time).replace("T", " ").removesuffix("Z").replace("+00:00", " UTC")


def time_of(seconds: int) -> str:
    """Return a time, given in seconds since 1970, for people."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def cell(text: str, style: str = "") -> "Text":
    """Return a name as a cell of a table, which takes it as it is, or a line in a style."""
    return styled(one_line(text), style)


def styled(text: str, style: str) -> "Text":
    """Return lines in a style."""
    from rich.text import Text

    return Text(text, style)


def table(*headings: str, numbers: Collection[int] | None = None) -> "Table":
    """Return an empty table without lines. numbers: the columns that are set to the right, all but the first
    unless listed."""
    from rich.table import Column, Table

    columns = (Column(cell(heading)) for heading in headings)
    empty = Table(*columns, box=None, pad_edge=False)
    for number in range(1, len(headings)) if numbers is None else numbers:
        empty.columns[number].justify = "right"
    return empty
