"""The skeleton of a page: its head, the links to its sections, and the sections.

Promises: the page asks for nothing, from anywhere, and runs no script; the same sections give the same bytes.
Refuses: nothing.
"""

from collections.abc import Mapping

from fedboost.people.report.markup import Markup, element, paragraph
from fedboost.people.report.style import STYLE
from fedboost.version import VERSION

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page's own content security policy: nothing is loaded, and no script runs."""
Sections = Mapping[str, tuple[str, Markup]]
"""The id of a section to its title and content."""


def document(title: str, heading: str, lead: str, sections: Sections, made_from: str) -> str:
    """Return a page. title: of the window; lead: a line below the heading; made_from: what its figures are
    from."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="referrer" content="no-referrer">'),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    links = (element("li", element("a", words, href=f"#{name}")) for name, (words, _) in sections.items())
    body = element(
        "body",
        element("a", "Skip to the report", class_="skip", href="#report"),
        element("header", element("h1", heading), element("p", lead, class_="lead")),
        element("nav", element("ul", *links), aria_label="Contents"),
        element("main", *(section(name, *content) for name, content in sections.items()), id="report"),
        element(
            "footer", paragraph(f"Made by fedboost {VERSION} from {made_from}. This page loads nothing.")
        ),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def section(name: str, title: str, *content: str) -> Markup:
    """Return a section with its heading."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-title")
