"""Documents on a terminal: the same text and figures as on a page, without charts and folded sections.

Guarantees: paragraphs fit 80 columns. A name from outside can neither imitate another line nor move the
cursor.
"""

from collections.abc import Iterable, Iterator

from fedboost.errors import printable
from fedboost.views import document as page
from fedboost.views.words import Block as Printed
from fedboost.views.words import cell, entry, filled, one_line, paragraph, styled, table

MAX_ROWS = 40
"""Maximum number of table rows that a terminal shows."""


def text(
    document: page.Document, more: str = "the report (--report FILE) shows", full: bool = False
) -> Iterator[Printed]:
    """Render a document for a terminal, piece by piece.

    Args:
        document: the document.
        more: start of the last sentence, e.g. "--full shows"; a list of what is not shown follows it.
        full: True to show everything, including what a page folds.
    """
    if not isinstance(document.blocks[0], page.Verdict):  # a verdict replaces the lead
        yield one_line(document.lead)
        yield ""
    yield from _blocks(document.blocks, full)
    if hidden := [] if full else [*dict.fromkeys(_hidden(document.blocks))]:
        yield ""
        yield paragraph(f"{more} more: {'; '.join(hidden)}.")


def _hidden(blocks: Iterable[page.Block]) -> Iterator[str]:
    """Yield the titles of the sections and tables that the terminal omits."""
    for block in blocks:
        match block:
            case page.Section(folded=True, title=title):
                yield title[:1].lower() + title[1:]
            case page.Section(blocks=inner) | page.SideBySide(inner):
                yield from _hidden(inner)
            case page.Table(folded=True, caption=caption):
                yield caption[:1].lower() + caption[1:]
            case page.Entries(entries) if any(_has_many(line) for _, line in entries):
                yield "all names"


def _has_many(line: page.Line) -> bool:
    if isinstance(line, tuple):
        return any(map(_has_many, line))
    return isinstance(line, page.Shortened) or (
        isinstance(line, page.Names) and len(line.values) > page.MAX_NAMES
    )


def _blocks(blocks: Iterable[page.Block], full: bool) -> Iterator[Printed]:
    """Render blocks, separated by empty lines."""
    is_first = True
    for block in blocks:
        printed = [*_block(block, full)]
        if printed and not is_first:
            yield ""
        is_first = is_first and not printed
        yield from printed


def _block(block: page.Block, full: bool) -> Iterator[Printed]:
    match block:
        case page.Verdict(words, _, more):
            yield styled(paragraph(one_line(words)), "bold")
            yield from (paragraph(printable(sentence)) for sentence in more)
        case page.Figures(figures):
            width = 2 + max(len(each.name) for each in figures)
            for each in figures:
                remark = f"  ({each.remark})" if each.remark else ""
                yield one_line(f"{each.name:<{width}}{each.value}{remark}")
        case page.Paragraph(line):
            yield paragraph(page.plain(line, full))
        case page.Items(lines, warnings):
            yield from (entry("!" if warnings else "-", page.plain(line, full), 2) for line in lines)
        case page.Entries(entries):
            yield from (entry(printable(key), page.plain(line, full)) for key, line in entries)
        case page.Table():
            yield from _table(block, full)
        case page.SideBySide(inner):
            yield from _blocks(inner, full)
        case page.Section(title=title, blocks=inner, folded=folded) if full or not folded:
            content = [*_blocks(inner, full)]
            if content:
                yield cell(title, "bold underline")
                yield from content


def _table(block: page.Table, full: bool) -> Iterator[Printed]:
    if block.folded and not full:
        return
    yield filled(one_line(block.caption))
    drawn = table(*block.headings, numbers=block.numbers)
    for row in block.rows if full else block.rows[:MAX_ROWS]:
        drawn.add_row(*(cell(page.plain(each, full)) for each in row))
    yield drawn
    if (more := len(block.rows) - MAX_ROWS) > 0 and not full:
        yield f"and {more} more"
