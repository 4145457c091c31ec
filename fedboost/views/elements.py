"""Pieces of pages that are not documents yet."""

from collections.abc import Collection, Iterable, Sequence

from fedboost.views.markup import Markup, element
from fedboost.views.markup import safe as _safe

MAX_OPEN = 20
"""Lines of a table, and items of a list, that stand open on a screen."""

MAX_NARROW = 3
"""Columns of a table that fit any screen: a wider one can be scrolled, with the keyboard, too."""


def paragraph(*children: str) -> Markup:
    """Return a paragraph."""
    return element("p", *children)


def left_out(text: str) -> Markup:
    """Return a sentence about what is not in the page."""
    return element("p", text, class_="left-out")


def items(texts: Iterable[str]) -> Markup:
    """Return a list."""
    return element("ul", *(element("li", text) for text in texts))


def details(summary: str, *children: str) -> Markup:
    """Return what a reader opens, and a printer finds open."""
    return element("details", element("summary", summary), *children)


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Collection[int] | None = None,
    folded: bool | None = None,
) -> Markup:
    """Return a table; the first cell of each row is its heading. numbers: the columns that are set to the
    right, all but the first unless given; folded: it is opened by its caption, by which long ones are unless
    it is said."""
    right = range(1, len(headings)) if numbers is None else numbers
    kinds = ["number" if number in right else None for number in range(len(headings))]
    head = element(
        "tr",
        *(element("th", text, scope="col", class_=kind) for text, kind in zip(headings, kinds, strict=True)),
    )
    all_rows = [*rows]
    body = (
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", text, class_=kind) for text, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in all_rows
    )
    whole = element("table", element("caption", caption), element("thead", head), element("tbody", *body))
    may_be_wide = len(headings) > MAX_NARROW
    keys = {"tabindex": "0", "role": "group", "aria_label": caption} if may_be_wide else {}
    scrolled = element("div", whole, class_="scroll", **keys)
    if len(all_rows) > MAX_OPEN if folded is None else folded:
        return details(f"{caption} ({len(all_rows)})", scrolled)
    return scrolled


def names(values: Sequence[str]) -> Markup:
    """Return names one behind the other; where they are many, their number, and all of them to open."""
    text = Markup(", ".join(_safe(value) for value in values))
    if len(values) <= MAX_OPEN:
        return text or Markup("none")
    return details(f"{len(values)}", text)


def section(name: str, title: str, *content: str) -> Markup:
    """Return a section with its heading."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-title")
