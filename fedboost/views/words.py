"""Terminal text: names, numbers, paragraphs and tables for people.

Guarantees: a name from outside can neither imitate another line nor move the cursor. Paragraphs fit 80
columns.
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
"""A piece of terminal text: lines, a table, or a paragraph that rich wraps to the width of the terminal."""

WIDTH, INDENT = 79, 13
"""Width of a line, and width of the key before a text, in columns."""
MAX_LINE = 2000
MAX_NAME_LENGTH = 256
MAX_SHOWN_LENGTH = 40
"""Maximum length of a name in a log message."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
_SIMPLE = re.compile(r"[\w.@:/+-]+")
_SECOND = "\0"
"""Placeholder for the second half of a wide character."""


def one_line(text: str) -> str:
    """Return text on a single line of at most about 2,000 characters. Names and peers' messages may contain
    line breaks and control characters; these appear as escapes."""
    return quoted(text, MAX_LINE)


def shown(text: str) -> str:
    """Format a name from outside for a log message: shortened, and with control characters as escapes."""
    return quoted(text, MAX_SHOWN_LENGTH)


def all_shown(names: Iterable[str]) -> str:
    """Format names from outside for a log message, separated by commas, each shortened."""
    return ", ".join(map(shown, names))


def listed(names: Iterable[str]) -> str:
    """Return all names in full, separated by commas."""
    return ", ".join(map(delimited, names))


def delimited(name: str) -> str:
    """Return a name that cannot be confused with the surrounding text: quoted unless it is a plain word."""
    if _SIMPLE.fullmatch(printable(name)):
        return name
    return '"' + quoted(name, MAX_NAME_LENGTH).replace('"', '\\"') + '"'


def shorten(text: str, limit: int = MAX_SHOWN_LENGTH) -> str:
    """Return text, cut to at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the singular or plural, e.g. "1 site" or "2 sites"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def capital(text: str) -> str:
    """Return text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def entry(key: str, text: str, indent: int = INDENT) -> str:
    """Return a key and its text, wrapped to WIDTH. indent: width of the key; a longer one gets a line."""
    if len(key) >= indent:
        return f"{key}\n{entry('', text, indent)}"
    return filled(text, f"{key:<{indent}}", " " * indent)


def paragraph(text: str) -> str:
    """Return text with its first letter in upper case, wrapped to WIDTH columns."""
    return filled(capital(text))


def filled(text: str, first: str = "", later: str = "") -> str:
    """Return text wrapped to WIDTH columns. A wide character counts as two columns: otherwise the terminal
    would break the line, and the rest could imitate another line. first, later: prefix of the first line and
    of later lines."""
    wide = "".join(c + _SECOND * (c > "\u10ff" and east_asian_width(c) in "WF") for c in text)
    lines = textwrap.fill(wide, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines.replace(_SECOND, "")


def size(count: float) -> str:
    """Return a number of bytes with its unit, e.g. "1.5 MB"."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def amount(value: float) -> str:
    """Format a number with four significant digits, or as an integer if it is at least 10,000."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format a duration in seconds with a suitable unit, e.g. "2.5 min"."""
    for length, unit in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def moment(time: str) -> str:
    """Return the ISO 8601 time of a log entry or a decision in readable form."""
    return quoted(time).replace("T", " ").removesuffix("Z").replace("+00:00", " UTC")


def time_of(seconds: int) -> str:
    """Format a time in seconds since 1970 as date and time in UTC, without the name of the time zone."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def cell(text: str, style: str = "") -> "Text":
    """Return text as a one-line table cell, without `rich` markup. style: name of a `rich` style."""
    return styled(one_line(text), style)


def styled(text: str, style: str) -> "Text":
    """Return text with a style of rich. Markup in the text has no effect."""
    from rich.text import Text

    return Text(text, style)


def table(*headings: str, numbers: Collection[int] | None = None) -> "Table":
    """Return an empty table without borders. numbers: right-aligned columns; None: all but the first."""
    from rich.table import Column, Table

    columns = (Column(cell(heading)) for heading in headings)
    empty = Table(*columns, box=None, pad_edge=False)
    for number in range(1, len(headings)) if numbers is None else numbers:
        empty.columns[number].justify = "right"
    return empty
