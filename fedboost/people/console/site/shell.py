"""The shell of every page of a site: head, links between pages.

Promises: a page has no script, and asks its own origin alone, for its style and its icon; what comes from
outside is text and never markup.
Refuses: nothing.
"""

from fedboost.people.console.site.facts import Reader
from fedboost.people.report.markup import Markup, element, paragraph
from fedboost.version import VERSION

PAGES = {
    "/": "Overview",
    "/requests": "Requests",
    "/audit": "What has left",
    "/budget": "Budget",
    "/policy": "Policy",
}
"""The pages that are linked from each."""
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""The content security policy of every page: no script runs, whatever it holds."""


def document(path: str, title: str, *content: str, reader: Reader | None = None) -> str:
    """Return a page. path: its own; reader: who logged in, None where nobody did."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{title}: fedboost site"),
        Markup('<link rel="stylesheet" href="/style.css"><link rel="icon" href="/icon.svg">'),
    )
    links = (
        element("li", element("a", words, href=to, aria_current="page" if to == path else None))
        for to, words in PAGES.items()
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element(
            "header",
            element("p", "fedboost site", class_="lead"),
            element("h1", title),
            _log_out(reader) if reader is not None and reader.form_key else "",
        ),
        element("nav", element("ul", *links), aria_label="Pages") if reader is not None else "",
        element("main", *content, id="content"),
        element("footer", paragraph(f"fedboost {VERSION}. This page asks this site's own process alone.")),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def section(name: str, title: str, *content: str) -> Markup:
    """Return a section with its heading."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-title")


def form_key(reader: Reader) -> Markup:
    """Return the field by which a form is known to be of a page for this reader."""
    return Markup(f'<input type="hidden" name="key" value="{reader.form_key}">')


TOKEN = Markup(
    '<label for="token">Token</label><input id="token" name="token" type="password" '
    'autocomplete="current-password" required size="44">'
)
"""The field for a token."""


def refused(status: int, reason: str) -> str:
    """Return the page of a request that was refused; where a token is missing, with a form for it."""
    title = "Log in" if status == 401 else f"Refused ({status})"
    said = element("p", f"{reason[:1].upper()}{reason[1:]}.", role="alert")
    back = paragraph(element("a", "To the overview", href="/"))
    return document("", title, said, _log_in() if status == 401 else back)


def _log_in() -> Markup:
    how = "Who runs this site makes a token with: fedboost keys token NAME --role officer"
    button = paragraph(element("button", "Log in"))
    return element("form", paragraph(how), TOKEN, button, method="post", action="/login")


def _log_out(reader: Reader) -> Markup:
    may = "may approve and refuse" if reader.may_decide else "may read"
    words = f"{reader.name}: {may}. "
    return element(
        "form", words, form_key(reader), element("button", "Log out"), method="post", action="/logout"
    )
