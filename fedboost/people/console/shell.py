"""The shell of every page of a console: head, links between pages, the state of the live connection.

Promises: a page asks its own origin alone, for its style, its icon and one script, and can be read without
the script; what comes from outside is text and never markup.
Refuses: nothing.
"""

from fedboost.people.report.markup import Markup, element, paragraph
from fedboost.version import VERSION

PAGES = {
    "/": "Overview",
    "/sites": "Sites",
    "/sessions": "Sessions and models",
    "/log": "Log",
    "/api": "Interface",
}
"""The pages that are linked from each."""


def document(path: str, title: str, *content: str, live: str = "", caller: str = "", said: str = "") -> str:
    """Return a page. path: its own; live: the name of its live events, if it has any; caller: the name of who
    logged in with a browser; said: the first words of what a screen reader is told of."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{title}: fedboost aggregator"),
        Markup('<link rel="stylesheet" href="/style.css"><link rel="icon" href="/icon.svg">'),
        Markup('<script src="/script.js" defer></script>') if live else "",
    )
    links = (
        element("li", element("a", words, href=to, aria_current="page" if to == path else None))
        for to, words in PAGES.items()
    )
    state = element(
        "p",
        element("span", "as of when it was loaded", id="state"),
        " ",
        element("a", "Refresh", href=path),
        class_="state",
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element(
            "header",
            element("p", "fedboost aggregator", class_="lead"),
            element("h1", title),
            state if live else "",
            element("p", said, id="said", role="status", aria_live="polite", class_="unseen") if live else "",
            _log_out(caller) if caller else "",
        ),
        element("nav", element("ul", *links), aria_label="Pages"),
        element("main", *content, id="content"),
        element("footer", paragraph(f"fedboost {VERSION}. This page asks this aggregator alone.")),
        data_live=live or None,
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def part(name: str, title: str, content: str) -> Markup:
    """Return a section whose content is replaced when it changes."""
    return element(
        "section",
        element("h2", title, id=f"{name}-title"),
        element("div", content, id=name),
        aria_labelledby=f"{name}-title",
    )


def refused(status: int, reason: str) -> str:
    """Return the page of a request that was refused; where a token is missing, with a form for it."""
    title = "Log in" if status == 401 else f"Refused ({status})"
    said = element("p", f"{reason[:1].upper()}{reason[1:]}.", role="alert")
    return document("", title, said, *([_log_in()] if status == 401 else []))


_FIELD = '<input id="token" name="token" type="password" autocomplete="current-password" required size="44">'


def _log_in() -> Markup:
    return element(
        "form",
        paragraph("The operator of the aggregator makes a token with: fedboost keys token NAME"),
        element("label", "Token", for_="token"),
        Markup(_FIELD),
        element("button", "Log in"),
        method="post",
        action="/login",
    )


def _log_out(caller: str) -> Markup:
    return element("form", f"{caller} ", element("button", "Log out"), method="post", action="/logout")
