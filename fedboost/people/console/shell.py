"""The shell of every page of a console: head, links between pages, the state of the live connection.

Promises: a page asks its own origin alone, for its style, its icon and one script, and can be read without
the script; what comes from outside is text and never markup.
Refuses: nothing.
"""

from fedboost.people.console.frame import TOKEN, Served, frame, refusal
from fedboost.people.report.markup import Markup, element, joined, paragraph

CONSOLE = Served(
    "fedboost aggregator",
    "this aggregator",
    {
        "/": "Overview",
        "/sites": "Sites",
        "/sessions": "Sessions and models",
        "/log": "Log",
        "/api": "Interface",
    },
)


def document(path: str, title: str, *content: str, live: str = "", caller: str = "", said: str = "") -> str:
    """Return a page. path: its own; live: the name of its live events, if it has any; caller: the name of who
    logged in with a browser; said: the first words of what a screen reader is told of."""
    state = element(
        "p",
        element("span", "as of when it was loaded", id="state"),
        " ",
        element("a", "Refresh", href=path),
        class_="state",
    )
    unseen = element("p", said, id="said", role="status", aria_live="polite", class_="unseen")
    header = joined(*((state, unseen) if live else ()), _log_out(caller) if caller else "")
    return frame(CONSOLE, path, title, joined(*content), header, live=live)


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
    title, said = refusal(status, reason)
    return document("", title, said, *([_log_in()] if status == 401 else []))


def _log_in() -> Markup:
    return element(
        "form",
        paragraph("The operator of the aggregator makes a token with: fedboost keys token NAME"),
        TOKEN,
        element("button", "Log in"),
        method="post",
        action="/login",
    )


def _log_out(caller: str) -> Markup:
    return element("form", f"{caller} ", element("button", "Log out"), method="post", action="/logout")
