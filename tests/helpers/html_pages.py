"""Pages of HTML, read as a test reads them: well-formed, with nothing that loads or runs, in sections."""

import re
from html.parser import HTMLParser

VOID = {"meta"}
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a\u202egnp.exe",
    "</style></table><h1>",
    "&lt;b&gt;",
]
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "footer", "a"),
    *("h1", "h2", "h3", "p", "ul", "li", "code", "pre", "div", "details", "summary", "figure", "figcaption"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "desc", "g", "rect", "path", "line", "circle", "text", "dl", "dt", "dd", "span"),
}


class Page(HTMLParser):
    """The tags, ids, links, headings and texts of a page; what is not closed in order is an error."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.ids, self.links, self.headings, self.texts, self.open = set(), [], [], [], [], []
        self.attributes = set()
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        values = dict(attrs)
        if "id" in values:
            self.ids.append(values["id"])
        if "href" in values:
            self.links.append(values["href"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def altered(result, **values):
    """A result of the same session with other values in its JSON, unchecked."""
    other = type(result).model_validate(result.summary | values)
    other._session = result.session
    return other


def section(page, name):
    """The text of one section."""
    found = re.search(rf'<(section|div) id="{name}"', page)
    open_tags = 0
    for tag in re.finditer(rf"<(/?){found[1]}\b", page[found.start() :]):
        open_tags += -1 if tag[1] else 1
        if not open_tags:
            return Page(page[found.start() :][: tag.end() + 1]).text
    raise AssertionError(f"section {name} has no end")


def check(page):
    """Check what holds of every page; return it read."""
    read = Page(page)
    assert read.tags <= TAGS
    assert not {name for name in read.attributes if name.startswith("on")}
    assert read.attributes.isdisjoint({"src", "srcset", "srcdoc", "action", "xlink:href", "xmlns", "ping"})
    assert not re.search(r"url\(|@import", page)
    assert {link[1:] for link in read.links} <= {*read.ids}
    assert len(read.ids) == len({*read.ids})
    assert read.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(read.headings, read.headings[1:], strict=False))
    assert page.count("<svg ") == page.count('role="img"')
    assert page.count("<table>") == page.count("<caption>")
    return read
