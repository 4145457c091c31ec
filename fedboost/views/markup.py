"""Markup of a page: elements and what stands in them.

Promises: text is escaped, whatever it holds, unless it is `Markup` already; control characters, and those
that turn the direction of text, stand as escapes; a text has a bounded length.
"""

from html import escape

from fedboost.errors import printable, quoted

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
