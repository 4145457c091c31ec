"""Documents: what people see of a result, as sections, text, tables and charts, before rendering.

A view turns a result into a `Document`. `as_text` renders it on a terminal and `as_html` as a page, so that
both have the same text and figures. Text from outside is treated as plain text in every block, whatever it
contains.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, TypeAlias

from fedboost.errors import printable, quoted
from fedboost.views.words import delimited

# ---- Markup of a page: elements and their content ------------------------------------------------------
# Guarantees: all text is escaped unless it is already `Markup`. Control characters and characters that change
# the direction of text appear as escapes. The length of a text is bounded.


MAX_TEXT = 4000
"""Maximum length of a text that may come from outside."""


class Markup(str):
    """A string of HTML markup. The result of a string operation outside this module is plain text again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | None) -> Markup:
    """Return an HTML or SVG element. children: content; plain text is escaped. attributes: `class_` stands
    for class, `aria_label` for aria-label; attributes that are None are omitted."""
    texts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{texts}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """Concatenate parts, escaping those that are plain text."""
    return Markup("".join(map(safe, parts)))


def lines(text: str) -> Markup:
    """Return a text of several lines as markup. The text is escaped, but not shortened."""
    return Markup("\n".join(escape(printable(line.replace("\t", "  "))) for line in text.split("\n")))


def safe(text: str) -> str:
    """Return markup unchanged; escape and shorten plain text."""
    return text if isinstance(text, Markup) else escape(quoted(text, MAX_TEXT))


# ---- Inside a line --------------------------------------------------------------------------------------


MAX_NAMES, FIRST_NAMES = 20, 8
"""Up to MAX_NAMES names are shown in full. Of a longer list, only the first FIRST_NAMES are shown."""
State = Literal["good", "bad", "unclear", "plain"]
"""State of an answer. Each state has its own colour and shape."""


@dataclass(frozen=True)
class Code:
    """Text to copy verbatim, such as a digest or a command."""

    text: str


@dataclass(frozen=True)
class Link:
    """A link. to: its address; download: file name to save the target under, None to open it."""

    text: str
    to: str
    download: str | None = None


@dataclass(frozen=True)
class Names:
    """A list of names. If the list is long, only the beginning is shown initially, and all names are shown on
    request. remarks: text to append to each name."""

    values: Sequence[str]
    remarks: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """Each name with its remark, delimited so that it cannot be read as two names."""
        names = map(delimited, self.values)
        return [*map(str.__add__, names, self.remarks)] if self.remarks else [*names]

    @property
    def short(self) -> str:
        """The names on one line, shortened if there are many."""
        words = self.words
        if len(words) > MAX_NAMES:
            words = [f"{', '.join(words[:FIRST_NAMES])} and {len(words) - FIRST_NAMES} more"]
        return ", ".join(words) or "none"


@dataclass(frozen=True)
class Shortened:
    """A long text. `first` is shown initially, and `whole` on request."""

    first: str
    whole: str


@dataclass(frozen=True)
class Badge:
    """A short label with a state, which is shown by colour and shape."""

    text: str
    state: State = "plain"


Inline: TypeAlias = str | Code | Link | Names | Shortened | Badge
Line: TypeAlias = Inline | tuple[Inline, ...]


def plain(line: Line, full: bool = True) -> str:
    """Return a line as plain text. full: include all names and whole texts, not only shortened ones."""
    match line:
        case tuple():
            return "".join(plain(part, full) for part in line)
        case Code(text) | Link(text) | Badge(text):
            return printable(text)
        case Shortened(first, whole):
            return printable(whole if full else first)
        case Names():
            return ", ".join(line.words) or "none" if full else line.short
    return printable(line)


# ---- Blocks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The main answer in one sentence. more: additional sentences about it."""

    text: str
    state: State = "plain"
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A key figure: its name, its value, and a remark, e.g. its interval."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Figures:
    """Key figures in a row."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. soft: True for a remark on neighbouring or missing content."""

    line: Line
    soft: bool = False


@dataclass(frozen=True)
class Items:
    """A list. warnings: True if its items are warnings, to be read before the figures."""

    lines: Sequence[Line]
    warnings: bool = False


@dataclass(frozen=True)
class Entries:
    """Lines, each with a key and a text. A line with an empty key continues the previous one."""

    entries: Sequence[tuple[str, Line]]


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row. numbers: indices of right-aligned columns; None: all others.
    folded: a page shows it on request, a terminal omits it; None: a page folds long tables."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Line]]
    numbers: Collection[int] | None = None
    folded: bool | None = None


@dataclass(frozen=True)
class SideBySide:
    """Blocks that are placed side by side if the page is wide enough."""

    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. name: id of the section; folded: True if a page unfolds it on request and a
    terminal omits it; live: True if the page updates its content."""

    name: str
    title: str
    blocks: Sequence["Block"]
    folded: bool = False
    live: bool = False


# ---- Charts: drawn on pages, with a description for readers who cannot see them ------------------------


@dataclass(frozen=True)
class Series:
    """A line of a chart: its name and its points. dots: True to mark each point; at_risk: for a curve of
    survival, the number of rows at risk after each point."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    at_risk: Sequence[int] = ()


@dataclass(frozen=True)
class Lines:
    """A line chart. across, up: labels of the horizontal and the vertical axis; square: True if both axes
    range from 0 to 1; diagonal: True to draw a faint line where both axes have the same value; mark: position
    to mark on the horizontal axis, and its label; whole: True if that axis has only integers; ticks: ticks
    that curves of survival have in any case."""

    title: str
    series: Sequence[Series]
    across: str
    up: str
    square: bool = False
    diagonal: bool = False
    mark: tuple[float, str] | None = None
    whole: bool = False
    ticks: Sequence[float] = ()


@dataclass(frozen=True)
class Bars:
    """A chart of horizontal bars that start at 0. values: names, each with one or two values; kinds: meaning
    of the bars, if each name has two."""

    title: str
    values: Sequence[tuple[str, *tuple[float, ...]]]
    unit: str
    kinds: tuple[str, ...] = ()


Block: TypeAlias = (
    Verdict | Figures | Paragraph | Items | Entries | Table | SideBySide | Section | Lines | Bars | Markup
)
"""A piece of a document. `Markup`, e.g. a form or a drawing, appears only on pages."""


@dataclass(frozen=True)
class Document:
    """What a page or a terminal shows of a result. lead: line below the title; source: where the figures come
    from, for the footer of a report."""

    title: str
    lead: str
    blocks: Sequence[Block] = field(repr=False)
    source: str = "the result"


def unless_empty(*blocks: Block | None) -> tuple[Block, ...]:
    """Return the blocks that are not None."""
    return tuple(block for block in blocks if block is not None)


def note(*parts: Inline) -> Paragraph:
    """Return a paragraph that is a remark on neighbouring or missing content."""
    return Paragraph(parts, soft=True)


def warnings(texts: Sequence[Line]) -> tuple[Block, ...]:
    """Return the section of warnings, or an empty tuple if there are none."""
    return (Section("warnings", "Warnings", [Items(texts, warnings=True)]),) if texts else ()
