"""The frame of the pages that a process serves: head, heading, links between pages, footer, a token.

Promises: a page asks its own origin alone; what comes from outside is text and never markup.
Refuses: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedboost.people.report.markup import Markup, element, paragraph
from fedboost.version import VERSION

TOKEN = Markup(
    '<label for="token">Token</label><input id="token" name="token" type="password" '
    'autocomplete="current-password" required size="44">'
)
"""The field for a token."""


@dataclass(frozen=True)
class Served:
    """Whose pages they are. name: in titles; asks: whom a page asks; pages: those that are linked from each,
    by their paths."""

    name: str
    asks: str
    pages: Mapping[str, str]


def frame(
    served: Served,
    path: str,
    title: str,
    content: Markup,
    header: Markup,
    linked: bool = True,
    live: str = "",
) -> str:
    """Return a page. path: its own; header: what stands below the title; linked: with links to the others;
    live: the name of its live events, for which it has the script."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{title}: {served.name}"),
        Markup('<link rel="stylesheet" href="/style.css"><link rel="icon" href="/icon.svg">'),
        Markup('<script src="/script.js" defer></script>') if live else "",
    )
    links = (
        element("li", element("a", words, href=to, aria_current="page" if to == path else None))
        for to, words in served.pages.items()
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element("header", element("p", served.name, class_="lead"), element("h1", title), header),
        element("nav", element("ul", *links), aria_label="Pages") if linked else "",
        element("main", content, id="content"),
        element("footer", paragraph(f"fedboost {VERSION}. This page asks {served.asks} alone.")),
        data_live=live or None,
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def refusal(status: int, reason: str) -> tuple[str, Markup]:
    """Return title and words of the page of a request that was refused."""
    title = "Log in" if status == 401 else f"Refused ({status})"
    return title, element("p", f"{reason[:1].upper()}{reason[1:]}.", role="alert")
