"""The shell of every page of a site: head, links between pages.

Promises: a page has no script, and asks its own origin alone, for its style and its icon; what comes from
outside is text and never markup.
Refuses: nothing.
"""

from fedboost.people.console.frame import TOKEN, Served, frame, refusal
from fedboost.people.console.site.facts import Reader
from fedboost.people.report.markup import Markup, element, joined, paragraph

SITE = Served(
    "fedboost site",
    "this site's own process",
    {
        "/": "Overview",
        "/requests": "Requests",
        "/audit": "What has left",
        "/budget": "Budget",
        "/policy": "Policy",
    },
)
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""The content security policy of every page: no script runs, whatever it holds."""


def document(path: str, title: str, *content: str, reader: Reader | None = None) -> str:
    """Return a page. path: its own; reader: who logged in, None where nobody did."""
    header = _log_out(reader) if reader is not None and reader.form_key else Markup("")
    return frame(SITE, path, title, joined(*content), header, linked=reader is not None)


def form_key(reader: Reader) -> Markup:
    """Return the field by which a form is known to be of a page for this reader."""
    return Markup(f'<input type="hidden" name="key" value="{reader.form_key}">')


def refused(status: int, reason: str) -> str:
    """Return the page of a request that was refused; where a token is missing, with a form for it."""
    title, said = refusal(status, reason)
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
