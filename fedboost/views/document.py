"""What people read of a result, before it is drawn: a document of sections, words, tables and charts.

A view turns a result into a `Document`; `as_text` draws it on a terminal and `as_html` in a page, so that
both have the same words and figures. What comes from outside is plain text in every block, whatever it holds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, TypeAlias

from fedboost.errors import printable, quoted
from fedboost.views.words import delimited

# ---- Markup of a page: elements and what stands in them ------------------------------------------------
# Promises: text is escaped, whatever it holds, unless it is `Markup` already; control characters, and those
# that turn the direction of text, stand as escapes; a text has a bounded length.


MAX_TEXT = 4000
"""Characters of a text that may come from outside."""


class Markup(str):
    """Text that is markup. Whatever is made of it by other means than this module's is plain text again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | None) -> Markup:
    """Return an element. attributes: `class_` stands for class, `aria_label` for aria-label; None is left
    out."""
    texts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{texts}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """Return parts one behind the other."""
    return Markup("".join(map(safe, parts)))


def lines(text: str) -> Markup:
    """Return a text of several lines, whole."""
    return Markup("\n".join(escape(printable(line.replace("\t", "  "))) for line in text.split("\n")))


def safe(text: str) -> str:
    """Return markup as it is, and escape all else."""
    return text if isinstance(text, Markup) else escape(quoted(text, MAX_TEXT))


# ---- Inside a line --------------------------------------------------------------------------------------


MAX_NAMES, FIRST_NAMES = 20, 8
"""Names in a row that are shown; of more the first."""
State = Literal["good", "bad", "unclear", "plain"]
"""How an answer reads at first sight: each state has a colour and a shape of its own."""


@dataclass(frozen=True)
class Code:
    """A digest, a command or another text that is copied as it is."""

    text: str


@dataclass(frozen=True)
class Link:
    """Words that lead elsewhere. download: the file name, where the browser saves what it finds there."""

    text: str
    to: str
    download: str | None = None


@dataclass(frozen=True)
class Names:
    """Names in a row; where they are many, the first, and all of them on request. remarks: behind each."""

    values: Sequence[str]
    remarks: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """The names, each so that it cannot be read as two, with its remark."""
        names = map(delimited, self.values)
        return [*map(str.__add__, names, self.remarks)] if self.remarks else [*names]

    @property
    def short(self) -> str:
        """The names in a row, the first of many."""
        words = self.words
        if len(words) > MAX_NAMES:
            words = [f"{', '.join(words[:FIRST_NAMES])} and {len(words) - FIRST_NAMES} more"]
        return ", ".join(words) or "none"


@dataclass(frozen=True)
class Brief:
    """A long text that begins with `first`, which is shown; the whole text on request."""

    first: str
    whole: str


@dataclass(frozen=True)
class Badge:
    """A word on the state of a thing."""

    text: str
    state: State = "plain"


Inline: TypeAlias = str | Code | Link | Names | Brief | Badge
Line: TypeAlias = Inline | tuple[Inline, ...]


def plain(line: Line, full: bool = True) -> str:
    """Return a line of words, on one line. full: all names, however many, and whole texts."""
    match line:
        case tuple():
            return "".join(plain(part, full) for part in line)
        case Code(text) | Link(text) | Badge(text):
            return printable(text)
        case Brief(first, whole):
            return printable(whole if full else first)
        case Names():
            return ", ".join(line.words) or "none" if full else line.short
    return printable(line)


# ---- Blocks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The answer that the reader came for, in a sentence, and what else belongs to it."""

    text: str
    state: State = "plain"
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A key figure: what it is, its value, and a remark such as its interval."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Figures:
    """Key figures in a row."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. soft: a remark on what stands beside it, or is missing."""

    line: Line
    soft: bool = False


@dataclass(frozen=True)
class Items:
    """A list. warnings: what the reader should know before the figures."""

    lines: Sequence[Line]
    warnings: bool = False


@dataclass(frozen=True)
class Entries:
    """Keys, each with the words about it; an entry without a key goes on with the one before."""

    entries: Sequence[tuple[str, Line]]


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row. numbers: columns that are set to the right, all but the first
    unless given; folded: a page shows it on request, and a terminal not at all; long ones unless given."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Line]]
    numbers: Collection[int] | None = None
    folded: bool | None = None


@dataclass(frozen=True)
class Beside:
    """Blocks beside each other where a page has room."""

    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. name: its id; folded: a page unfolds it on request, and a terminal leaves it
    out; live: the page replaces its content."""

    name: str
    title: str
    blocks: Sequence["Block"]
    folded: bool = False
    live: bool = False


# ---- Charts: pages draw them, with the words of a description for who cannot see them ------------------


@dataclass(frozen=True)
class Series:
    """A line of a chart: its name, and its points. dots: each point is marked."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines over an axis. across, up: what the axes are; square: both go from 0 to 1; diagonal: a faint line
    where they are equal; mark: a place on the axis across and its words; whole: that axis has whole
    numbers."""

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
    """Horizontal bars from 0, each with its value: a name and its values. kinds: what each bar of a name is,
    where it has two."""

    title: str
    values: Sequence[tuple[str, *tuple[float, ...]]]
    unit: str
    kinds: tuple[str, ...] = ()


Block: TypeAlias = (
    Verdict | Figures | Paragraph | Items | Entries | Table | Beside | Section | Lines | Bars | Markup
)
"""A piece of a document. `Markup` is for pages alone: a form, a drawing."""


@dataclass(frozen=True)
class Document:
    """All that a page or a terminal shows of a result. lead: a line below the title; source: what the figures
    were made from."""

    title: str
    lead: str
    blocks: Sequence[Block] = field(repr=False)
    source: str = "the result"


def unless_empty(*blocks: Block | None) -> tuple[Block, ...]:
    """The blocks that are there."""
    return tuple(block for block in blocks if block is not None)


def note(*parts: Inline) -> Paragraph:
    """A remark on what stands beside it, or is missing."""
    return Paragraph(parts, soft=True)


def warnings(texts: Sequence[Line]) -> tuple[Block, ...]:
    """The section of warnings; nothing where there are none."""
    return (Section("warnings", "Warnings", [Items(texts, warnings=True)]),) if texts else ()
