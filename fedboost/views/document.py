"""A result as people read it, before rendering: a document of sections, text, tables and charts.

A view turns a result into a `Document`; `as_text` renders it on a terminal and `as_html` as a page, so both
have the same words and figures. Text from outside is plain text in every block, whatever it contains.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, TypeAlias

from fedboost.errors import printable, quoted
from fedboost.views.words import delimited

# ---- Markup of a page: elements and their content ------------------------------------------------------
# Promises: all text is escaped unless it is `Markup` already; control characters and those that change the
# direction of text appear as escapes; the length of a text is bounded.


MAX_TEXT = 4000
"""Maximum length of a text that may come from outside."""


class Markup(str):
    """Text that is markup. String operations outside this module turn it back into plain text."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | None) -> Markup:
    """Return an element. attributes: `class_` means class, `aria_label` aria-label; None omits an
    attribute."""
    texts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{texts}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """Concatenate parts, escaping those that are not markup."""
    return Markup("".join(map(safe, parts)))


def lines(text: str) -> Markup:
    """Return a text of several lines in full, escaped."""
    return Markup("\n".join(escape(printable(line.replace("\t", "  "))) for line in text.split("\n")))


def safe(text: str) -> str:
    """Return markup unchanged, and escape any other text."""
    return text if isinstance(text, Markup) else escape(quoted(text, MAX_TEXT))


# ---- Inside a line --------------------------------------------------------------------------------------


MAX_NAMES, FIRST_NAMES = 20, 8
"""Maximum number of names shown in full; of a longer list, the first FIRST_NAMES are shown."""
State = Literal["good", "bad", "unclear", "plain"]
"""How an answer looks at first sight: each state has its own colour and shape."""


@dataclass(frozen=True)
class Code:
    """A digest, a command or another text to copy verbatim."""

    text: str


@dataclass(frozen=True)
class Link:
    """A link. download: file name under which the browser saves the target, None to open it."""

    text: str
    to: str
    download: str | None = None


@dataclass(frozen=True)
class Names:
    """A list of names; of a long list, the first names, and all on request. remarks: text behind each
    name."""

    values: Sequence[str]
    remarks: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """Each name, delimited so that it cannot be read as two, with its remark."""
        names = map(delimited, self.values)
        return [*map(str.__add__, names, self.remarks)] if self.remarks else [*names]

    @property
    def short(self) -> str:
        """The names on one line, shortened if they are many."""
        words = self.words
        if len(words) > MAX_NAMES:
            words = [f"{', '.join(words[:FIRST_NAMES])} and {len(words) - FIRST_NAMES} more"]
        return ", ".join(words) or "none"


@dataclass(frozen=True)
class Shortened:
    """A long text of which `first` is shown, and the whole on request."""

    first: str
    whole: str


@dataclass(frozen=True)
class Badge:
    """A short label with a state."""

    text: str
    state: State = "plain"


Inline: TypeAlias = str | Code | Link | Names | Shortened | Badge
Line: TypeAlias = Inline | tuple[Inline, ...]


def plain(line: Line, full: bool = True) -> str:
    """Return a line as plain text. full: with all names and whole texts, instead of shortened ones."""
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
    """The main answer in one sentence, and further sentences about it."""

    text: str
    state: State = "plain"
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A key figure: its name, its value, and a remark such as its interval."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Figures:
    """Key figures in a row."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. soft: it is a remark on neighbouring or missing content."""

    line: Line
    soft: bool = False


@dataclass(frozen=True)
class Items:
    """A list. warnings: its items are warnings, to be read before the figures."""

    lines: Sequence[Line]
    warnings: bool = False


@dataclass(frozen=True)
class Entries:
    """Keys with text; an entry without a key continues the one before."""

    entries: Sequence[tuple[str, Line]]


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row. numbers: right-aligned columns (default: all but the first);
    folded: a page shows it on request, and a terminal not at all (default: long tables are folded in a
    page)."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Line]]
    numbers: Collection[int] | None = None
    folded: bool | None = None


@dataclass(frozen=True)
class SideBySide:
    """Blocks side by side, if the page has room."""

    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. name: id of the section; folded: a page unfolds it on request, and a terminal
    omits it; live: the page updates its content."""

    name: str
    title: str
    blocks: Sequence["Block"]
    folded: bool = False
    live: bool = False


# ---- Charts: pages draw them, with a description for readers who cannot see them -----------------------


@dataclass(frozen=True)
class Series:
    """A line of a chart: its name and its points. dots: mark each point."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True)
class Lines:
    """A line chart. across, up: labels of the horizontal and vertical axis; square: both range from 0 to 1;
    diagonal: draw a faint line where they are equal; mark: position on the horizontal axis, and its label;
    whole: the horizontal axis has whole numbers."""

    title: str
    series: Sequence[Series]
    across: str
    up: str
    square: bool = False
    diagonal: bool = False
    mark: tuple[float, str] | None = None
    whole: bool = False


@dataclass(frozen=True)
class Bars:
    """A chart of horizontal bars from 0. values: a name with one or two values; kinds: meaning of each bar,
    if a name has two."""

    title: str
    values: Sequence[tuple[str, *tuple[float, ...]]]
    unit: str
    kinds: tuple[str, ...] = ()


Block: TypeAlias = (
    Verdict | Figures | Paragraph | Items | Entries | Table | SideBySide | Section | Lines | Bars | Markup
)
"""A piece of a document. `Markup`, such as a form or a drawing, appears only in pages."""


@dataclass(frozen=True)
class Document:
    """The content that a page or a terminal shows of a result. lead: line below the title; source: origin of
    the figures."""

    title: str
    lead: str
    blocks: Sequence[Block] = field(repr=False)
    source: str = "the result"


def unless_empty(*blocks: Block | None) -> tuple[Block, ...]:
    """Return the blocks that are not None."""
    return tuple(block for block in blocks if block is not None)


def note(*parts: Inline) -> Paragraph:
    """Return a remark on neighbouring or missing content."""
    return Paragraph(parts, soft=True)


def warnings(texts: Sequence[Line]) -> tuple[Block, ...]:
    """Return the section of warnings; empty without warnings."""
    return (Section("warnings", "Warnings", [Items(texts, warnings=True)]),) if texts else ()
