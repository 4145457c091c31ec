"""Documents on a terminal, and as Markdown: the same words and figures as in a page, without charts and what
is folded.

Promises: paragraphs fit 80 columns; a name from outside neither poses as another line nor moves the cursor.
"""

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence

from fedboost.views.document import (
    Badge,
    Beside,
    Block,
    Code,
    Document,
    Entries,
    Figures,
    Fold,
    Items,
    Line,
    Link,
    Names,
    Paragraph,
    Pre,
    Section,
    Table,
    Verdict,
)
from fedboost.views.words import WIDTH, cell, delimited, entry, one_line, paragraph, table
from fedboost.views.words import Block as Printed

MAX_ROWS = 40
"""Rows of a table that a terminal shows."""


def text(document: Document) -> Iterator[Printed]:
    """Yield what a terminal shows of a document, one piece below the other."""
    if not isinstance(document.blocks[0], Verdict):  # which says it all in a line
        yield one_line(document.lead)
        yield ""
    yield from _blocks(document.blocks)
    if hidden := [*_hidden(document.blocks)]:
        yield ""
        yield paragraph(f"the report (--report FILE) has more: {'; '.join(hidden)}.")


def _hidden(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the titles of what only a page shows."""
    for block in blocks:
        match block:
            case Section(folded=True, title=title):
                yield title[:1].lower() + title[1:]
            case Section(blocks=inner) | Beside(inner):
                yield from _hidden(inner)
            case Table(folded=True, caption=caption) | Fold(summary=caption):
                yield caption[:1].lower() + caption[1:]


def _blocks(blocks: Iterable[Block]) -> Iterator[Printed]:
    """Yield blocks with an empty line between them."""
    is_first = True
    for block in blocks:
        printed = [*_block(block)]
        if printed and not is_first:
            yield ""
        is_first = is_first and not printed
        yield from printed


def _block(block: Block) -> Iterator[Printed]:
    match block:
        case Verdict(words, _, more):
            yield cell(words, "bold")
            yield from map(paragraph, more)
        case Figures(figures):
            width = 2 + max(len(each.name) for each in figures)
            for each in figures:
                remark = f"  ({each.remark})" if each.remark else ""
                yield one_line(f"{each.name:<{width}}{each.value}{remark}")
        case Paragraph(line):
            yield paragraph(inline(line))
        case Items(lines, warnings):
            yield from (entry("!" if warnings else "-", inline(line), 2) for line in lines)
        case Entries(entries):
            yield from (entry(key, inline(line)) for key, line in entries)
        case Table():
            yield from _table(block)
        case Pre(text=text):
            yield text
        case Beside(inner):
            yield from _blocks(inner)
        case Section(title=title, blocks=inner, folded=False):
            content = [*_blocks(inner)]
            if content:
                yield cell(title, "bold underline")
                yield from content


def inline(line: Line) -> str:
    """Return a line of words, on one line."""
    match line:
        case tuple():
            return "".join(map(inline, line))
        case Code(text) | Link(text) | Badge(text):
            return one_line(text)
        case Names(values):
            return ", ".join(map(delimited, values)) or "none"
    return one_line(line)


def _table(block: Table) -> Iterator[Printed]:
    if block.folded:
        return
    yield textwrap.fill(one_line(block.caption), WIDTH)
    drawn = table(*block.headings, numbers=block.numbers)
    for row in block.rows[:MAX_ROWS]:
        drawn.add_row(*(cell(inline(each)) for each in row))
    yield drawn
    if (more := len(block.rows) - MAX_ROWS) > 0:
        yield f"and {more} more"


# ---- Markdown -------------------------------------------------------------------------------------------


def markdown(document: Document) -> str:
    """Return a document of words, entries and tables as Markdown."""
    return "\n\n".join((f"# {document.title}", *map(_marked, document.blocks))) + "\n"


def _marked(block: Block) -> str:
    match block:
        case Verdict(words):
            return f"**{words}**"
        case Paragraph(line):
            return inline(line)
        case Items(lines):
            return "\n".join(f"- {inline(line)}" for line in lines)
        case Entries(entries):
            return _rows(("", ""), entries, ())
        case Table(caption, headings, rows, numbers):
            right = range(1, len(headings)) if numbers is None else numbers
            return f"## {caption}\n\n{_rows(headings, rows, right)}"
    raise TypeError(f"no Markdown of {type(block).__name__}")


def _rows(headings: Sequence[str], rows: Sequence[Sequence[Line]], right: Collection[int]) -> str:
    lines = ["---:" if number in right else "---" for number in range(len(headings))]
    cells = (tuple(inline(each).replace("|", "\\|") for each in row) for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, lines, *cells))
