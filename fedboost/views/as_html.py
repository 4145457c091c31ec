"""Documents as HTML pages: a self-contained report, or a page that a process serves.

Guarantees: the same document renders to the same bytes. A report does not load anything and does not run
scripts. Content from outside is text, never markup, and its length is bounded.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape

from fedboost.errors import printable
from fedboost.version import VERSION
from fedboost.views.charts import draw
from fedboost.views.document import (
    MAX_NAMES,
    Badge,
    Block,
    Code,
    Document,
    Entries,
    Figures,
    Items,
    Line,
    Link,
    Markup,
    Names,
    Paragraph,
    Section,
    Shortened,
    SideBySide,
    Table,
    Verdict,
    element,
    joined,
    lines,
    safe,
)
from fedboost.views.words import capital

MAX_OPEN = 20
"""Maximum number of rows of an unfolded table."""
MAX_NARROW = 3
"""Number of table columns that fit any screen. A wider table can be scrolled, including with the keyboard."""


def inline(line: Line) -> Markup:
    """Return a line as markup: text is escaped; links, code and other parts become elements."""
    if isinstance(line, tuple):
        return joined(*map(inline, line))
    match line:
        case Code(text):
            return element("code", text)
        case Link(text, to, download):
            return element("a", text, href=to, download=download)
        case Names():
            whole = Markup(", ".join(map(safe, line.words)) or "none")
            return whole if len(line.values) <= MAX_NAMES else _unfolded(line.short, whole)
        case Shortened(first, whole):
            return _unfolded(first, lines(whole))
        case Badge(text, state):
            return element("span", text, class_=f"badge {state}")
    return joined(line)


def _unfolded(summary: str, whole: str) -> Markup:
    return element("details", element("summary", summary), whole)


def body(blocks: Iterable[Block]) -> Markup:
    """Return blocks as markup, one after another."""
    return joined(*map(_block, blocks))


def _block(block: Block) -> Markup:
    match block:
        case Markup():
            return block
        case Verdict(text, state, more):
            others = (element("p", sentence) for sentence in more)
            return element("div", element("p", text), *others, class_=f"verdict {state}")
        case Figures(figures):
            cards = (
                element(
                    "div",
                    element("dt", each.name),
                    element("dd", each.value),
                    element("dd", each.remark, class_="remark") if each.remark else "",
                )
                for each in figures
            )
            return element("dl", *cards, class_="figures")
        case Paragraph(line, soft):
            return element("p", inline(line), class_="soft" if soft else None)
        case Items(entries, warnings):
            items = (element("li", inline(line)) for line in entries)
            return element("ul", *items, class_="warnings" if warnings else None)
        case Entries(entries):
            return element("dl", *_entries(entries), class_="entries")
        case Table():
            return _table(block)
        case SideBySide(blocks):
            return element("div", *map(_block, blocks), class_="charts")
        case Section():
            return _section(block)
    return draw(block)


def _entries(entries: Iterable[tuple[str, Line]]) -> Iterator[Markup]:
    for key, line in entries:
        if key:
            yield element("dt", key)
        yield element("dd", Markup(escape(printable(line))) if type(line) is str else inline(line))


def _table(table: Table) -> Markup:
    right = range(1, len(table.headings)) if table.numbers is None else table.numbers
    kinds = ["number" if number in right else None for number in range(len(table.headings))]
    head = (
        element("th", text, scope="col", class_=kind)
        for text, kind in zip(table.headings, kinds, strict=True)
    )
    rows = (
        element(
            "tr",
            element("th", inline(row[0]), scope="row"),
            *(element("td", inline(c), class_=kind) for c, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in table.rows
    )
    whole = element(
        "table",
        element("caption", table.caption),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
    )
    is_wide = len(table.headings) > MAX_NARROW
    keys = {"tabindex": "0", "role": "group", "aria_label": table.caption} if is_wide else {}
    scrolled = element("div", whole, class_="scroll", **keys)
    if len(table.rows) > MAX_OPEN if table.folded is None else table.folded:
        return element("details", element("summary", f"{table.caption} ({len(table.rows)})"), scrolled)
    return scrolled


def _section(section: Section) -> Markup:
    name = section.name
    heading, content = element("h2", section.title, id=f"{name}-title"), body(section.blocks)
    inside = section.live or section.folded
    if inside:  # the id is inside the fold, so that a link to it unfolds the section
        content = element("div", content, id=name, data_live="" if section.live else None)
    if section.folded:
        heading, content = Markup(""), element("details", element("summary", heading), content)
    return element("section", heading, content, id=None if inside else name, aria_labelledby=f"{name}-title")


# ---- Pages ----------------------------------------------------------------------------------------------


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy of a report: nothing can be loaded, and no script can run."""


def report(document: Document) -> str:
    """Return a document as a self-contained HTML page."""
    head = (
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="referrer" content="no-referrer">'),
        element("title", document.title),
        element("style", Markup(STYLE)),
    )
    sections = [block for block in document.blocks if isinstance(block, Section)]
    links = (element("li", element("a", each.title, href=f"#{each.name}")) for each in sections)
    contents = element("nav", element("ul", *links), aria_label="Contents") if len(sections) > 1 else ""
    title = element("h1", document.title), element("p", document.lead, class_="lead")
    made_from = f"Generated by fedboost {VERSION} from {document.source}. This page does not load anything."
    return _page(head, "fedboost report", title, contents, [body(document.blocks)], made_from)


def _page(
    head: Iterable[str], name: str, bar: Iterable[str], contents: str, main: Iterable[str], foot: str
) -> str:
    """Return a page. name: name of the product and the component, shown in the bar at the top; contents:
    table of contents below the bar."""
    product, _, part = name.partition(" ")
    brand = element("p", element("span", product), f" {part}", class_="brand")
    metas = '<meta charset="utf-8">', '<meta name="viewport" content="width=device-width, initial-scale=1">'
    whole = element(
        "html",
        element("head", *map(Markup, metas), *head),
        element(
            "body",
            element("a", "Skip to the content", class_="skip", href="#content"),
            element("header", brand, *bar),
            contents,
            element("main", *main, id="content"),
            element("footer", element("p", foot)),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{whole}\n"


# ---- Pages that a process serves: a bar with links and a log-out button, then title and content ----------
# A page loads only from its own origin: style, icon and, if it is live, one script. While the page is
# visible, the script fetches it again, replaces the parts that changed, and keeps what is open, scrolled or
# focused. All pages can be read without the script.


TOKEN = Markup(
    '<label for="token">Token</label><input id="token" name="token" type="password" '
    'autocomplete="current-password" required size="44">'
)
"""Form field in which the user enters a token."""


@dataclass(frozen=True)
class Served:
    """A process that serves pages. name: name shown in titles; asks: the process from which the pages load
    their content, in words; tokens: sentence that says who creates a token, and how; pages: path -> title of
    the pages that each page links to."""

    name: str
    asks: str
    tokens: str
    pages: Mapping[str, str]


def served_page(
    process: Served,
    path: str,
    document: Document,
    caller: str = "",
    key: str = "",
    live: bool = False,
    linked: bool = True,
) -> str:
    """Return a document as an HTML page that a process serves.

    Args:
        process: the process.
        path: path of the page.
        document: content of the page.
        caller: text about who is logged in, shown next to the log-out button. "" for no button.
        key: hidden form field that is sent with the button.
        live: True to include the script that updates the page, and to announce the lead to screen readers.
        linked: True to include links to the other pages.
    """
    head = (
        element("title", f"{document.title}: {process.name}"),
        Markup('<link rel="stylesheet" href="/style.css"><link rel="icon" href="/icon.svg">'),
        Markup('<script src="/script.js" defer></script>' if live else ""),
    )
    links = (
        element("li", element("a", words, href=to, aria_current="page" if to == path else None))
        for to, words in process.pages.items()
    )
    out = element("form", caller, key, element("button", "Log out"), method="post", action="/logout")
    below = element("p", document.lead, class_="lead") if document.lead else Markup("")
    if live:
        state = element("span", "as of page load", id="state")
        unseen = {"role": "status", "aria_live": "polite", "class_": "unseen"}
        below = joined(
            element("p", state, " ", element("a", "Refresh", href=path), class_="state"),
            element("p", document.lead, id="said", data_live="", **unseen),
        )
    bar = (element("nav", element("ul", *links), aria_label="Pages") if linked else "", out if caller else "")
    title = element("div", element("h1", document.title), below, class_="title")
    loads = f"fedboost {VERSION}. This page loads content only from {process.asks}."
    return _page(head, process.name, bar, "", [title, body(document.blocks)], loads)


def refused(process: Served, status: int, reason: str) -> str:
    """Return the page for a refused request, with a login form if the token is missing.

    Args:
        process: the process.
        status: HTTP status code; 401 shows the login form.
        reason: why the request was refused, as a clause.
    """
    content = [element("p", f"{capital(reason)}.", role="alert")]
    if status != 401:
        return served_page(process, "", Document(f"Refused ({status})", "", content))
    how = element("p", process.tokens)
    content.append(element("form", how, TOKEN, element("button", "Log in"), method="post", action="/login"))
    return served_page(process, "", Document("Log in", "", content), linked=False)


# ---- The style of all pages: light, dark, narrow and printed --------------------------------------------
# Guarantees: text has a contrast of at least 4.5 to 1 in both colour schemes. States differ in shape as well
# as in colour. Folded sections are open on paper.


STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --panel: #f3f6f9; --ink: #1b2430; --soft: #4a5765; --rule: #d3dbe4; --link: #0b57a4;
  --good: #17692f; --good-panel: #e8f5ec; --bad: #a31621; --bad-panel: #fdecec; --unclear: #7a5200;
  --unclear-panel: #fff4d6; --bar: #1f66ad; --head: #0f2f4d; --on-head: #ffffff; --head-link: #cfe3f7;
  --s0: #1f6fb5; --s1: #b3470b; --s2: #2b7a2b; --s3: #8a3fb0; --s4: #a01c3a; --s5: #0f7a80; --s6: #6b5a00;
  --s7: #505a66; }
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #12171d; --panel: #1b222a; --ink: #e6ebf0; --soft: #aab6c2; --rule: #3d4a57; --link: #8ec2ff;
  --good: #7ccf8f; --good-panel: #14291b; --bad: #ff9c9c; --bad-panel: #361a1c; --unclear: #e6bd55;
  --unclear-panel: #33290e; --bar: #6aa9e6; --head: #0b2036; --on-head: #ffffff; --head-link: #b9d6f2;
  --s0: #6db3f2; --s1: #f59a5c; --s2: #7ccf7c; --s3: #cf9bea; --s4: #f28a9e; --s5: #5fcdd2; --s6: #d9c35a;
  --s7: #b4bfca; } }
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial,
  sans-serif; }
body { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem 3rem; overflow-wrap: break-word; }
header { background: var(--head); color: var(--on-head);
  border-image: linear-gradient(var(--head), var(--head)) fill 0 / 0 / 0 100vmax;
  display: flex; flex-wrap: wrap; align-items: center; gap: .25rem 1.75rem;
  padding: .6rem 0; margin-bottom: 1.5rem; }
.brand { margin: 0; font-size: 1.05rem; color: var(--head-link); }
.brand span { font-weight: 700; color: var(--on-head); font-size: 1.2rem; letter-spacing: .01em; }
.brand span::before { content: ""; display: inline-block; width: .8rem; height: .8rem; margin-right: .5rem;
  border: .2rem solid var(--head-link); border-radius: 4px 4px 4px 0; vertical-align: -.05rem; }
header h1, header .lead { flex-basis: 100%; margin: 0; color: inherit; }
header nav { border: 0; margin: 0; padding: 0; flex: 1; }
header a { color: var(--head-link); text-decoration: none; padding: .3rem 0; display: inline-block; }
header a:hover { color: var(--on-head); text-decoration: underline; }
header [aria-current] { color: var(--on-head); font-weight: 600; border-bottom: 3px solid var(--head-link); }
header button { background: none; border-color: var(--head-link); }
header :focus-visible { outline-color: var(--on-head); }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .75rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p, ul { max-width: 46rem; margin: .5rem 0; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none;
  max-width: none; font-size: .9rem; }
.lead, .soft, .remark, footer { color: var(--soft); }
.lead { margin: 0; }
code { font-size: .875em; overflow-wrap: anywhere; }
.verdict { background: var(--panel); border-left: 6px solid var(--soft); border-radius: 0 6px 6px 0;
  padding: .75rem 1rem .75rem 2.75rem; margin: 1rem 0; position: relative; }
.verdict p { margin: .25rem 0; } .verdict p:first-child { font-size: 1.15rem; font-weight: 600; }
.verdict::before { position: absolute; left: 1rem; top: .95rem; font-size: 1.05rem; content: "\\25CF";
  color: var(--soft); }
.verdict.good { background: var(--good-panel); border-color: var(--good); }
.verdict.bad { background: var(--bad-panel); border-color: var(--bad); }
.verdict.unclear { background: var(--unclear-panel); border-color: var(--unclear); }
.verdict.good::before, .badge.good::before { content: "\\2713"; color: var(--good); }
.verdict.bad::before, .badge.bad::before { content: "\\25A0"; color: var(--bad); }
.verdict.unclear::before, .badge.unclear::before { content: "\\25B2"; color: var(--unclear); }
.badge { display: inline-block; background: var(--panel); border: 1px solid var(--rule);
  border-radius: 999px; padding: 0 .6rem; white-space: nowrap; }
.badge::before { content: "\\25CB"; margin-right: .4rem; }
.badge.good { border-color: var(--good); } .badge.bad { border-color: var(--bad); font-weight: 600; }
.badge.unclear { border-color: var(--unclear); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 9.5rem), 15rem));
  gap: .75rem; margin: 1rem 0; }
.figures > div { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px;
  padding: .6rem .8rem; }
.figures dt { color: var(--soft); font-size: .85rem; }
.figures dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.25; }
.figures .remark { font-size: .85rem; font-weight: 400; }
.entries { display: grid; grid-template-columns: minmax(7rem, 13rem) 1fr; gap: .25rem 1rem;
  margin: .75rem 0; }
.entries dt { font-weight: 600; }
.entries dd { margin: 0; grid-column: 2; overflow-wrap: anywhere; min-width: 0; }
.warnings { background: var(--unclear-panel); border-left: 6px solid var(--unclear);
  border-radius: 0 6px 6px 0; padding: .5rem 1rem .5rem 2.25rem; max-width: none; }
.warnings li { margin: .35rem 0; max-width: 46rem; } .warnings li::marker { content: "\\25B2\\00A0\\00A0"; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .92rem; min-width: 18rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
details > .scroll caption { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0;
  border-bottom: 1px solid var(--rule); max-width: 36rem; }
thead th { border-bottom: 2px solid var(--rule); color: var(--soft); font-weight: 600; }
th[scope=row] { font-weight: 500; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
details { margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .15rem 0; }
summary h2 { display: inline; }
section > details { border-top: 1px solid var(--rule); margin: 0; padding: .6rem 0; }
td details { margin: 0; min-width: 14rem; } td summary { font-weight: 400; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: 1rem 2rem; align-items: start; margin: .75rem 0; }
figure { margin: .75rem 0; max-width: 34rem; }
.charts > * { margin: 0; min-width: 0; max-width: 34rem; }
figcaption { font-weight: 600; font-size: .95rem; }
.chart { width: 100%; height: auto; display: block; font-size: 12px; }
.chart text { fill: var(--ink); }
.chart .grid { stroke: var(--rule); stroke-width: .6; }
.chart .axis { stroke: var(--soft); }
.chart .faint { stroke: var(--soft); stroke-dasharray: 3 3; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .bar { fill: var(--bar); }
.chart .second { fill: var(--s1); }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }
.s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); } .s6 { stroke: var(--s6); } .s7 { stroke: var(--s7); }
.dot { fill: var(--paper); stroke-width: 2; }
.tree { max-width: none; }
.tree .scroll { border: 1px solid var(--rule); background: #ffffff; }
.tree svg { display: block; }
@media screen and (prefers-color-scheme: dark) { .tree .scroll { filter: invert(.93) hue-rotate(180deg); } }
footer { margin-top: 2rem; border-top: 1px solid var(--rule); padding-top: .75rem; font-size: .9rem; }
@media (max-width: 34rem) { html { font-size: 15px; } body { padding: 0 .75rem 2rem; }
  header { justify-content: space-between; } header ul { gap: 0 1rem; }
  header nav { flex-basis: 100%; order: 1; }
  .chart { font-size: 13.5px; } th, td { padding-right: .7rem; }
  nav[aria-label=Contents] { display: none; }
  .figures { grid-template-columns: 1fr 1fr; } .figures dd { font-size: 1.15rem; }
  .entries { grid-template-columns: 1fr; gap: 0; } .entries dd { grid-column: 1; }
  .entries dt { margin-top: .5rem; } }
@media print {
  :root { color-scheme: light; --panel: #ffffff; --ink: #000000; --soft: #333333; --rule: #999999;
    --good-panel: #ffffff; --bad-panel: #ffffff; --unclear-panel: #ffffff; }
  @page { margin: 15mm; }
  html { font-size: 10.5pt; }
  body { max-width: none; padding: 0; }
  nav, .skip { display: none; }
  header { color: #000000; border-image: none; background: none; border-bottom: 1px solid #999999; }
  .brand, .brand span { color: #000000; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  summary { list-style: none; } summary::-webkit-details-marker { display: none; }
  .scroll { overflow: visible !important; }
  th, td { max-width: none; overflow-wrap: anywhere; }
  .charts { grid-template-columns: 1fr 1fr; }
  h2, h3, h2 + p, figcaption, caption, summary { break-after: avoid; }
  figure, tr, .verdict, .figures > div, .warnings li { break-inside: avoid; }
  table:not(:has(tbody tr:nth-child(13))) { break-inside: avoid; }
  thead { display: table-header-group; }
  .tree .scroll { border: 0; }
  .tree svg { max-width: 100%; max-height: 220mm; height: auto; }
}
"""
"""Style sheet of all pages."""

SERVED_STYLE = (
    STYLE
    + """
.title { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between;
  gap: 0 1.5rem; }
.state { color: var(--soft); margin: 0; }
#state { display: inline-block; border: 1px solid var(--rule); border-radius: 999px; padding: 0 .6rem; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); margin: 0; }
label { display: block; font-weight: 600; }
input, button { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--soft);
  border-radius: 6px; padding: .4rem .8rem; margin: .25rem .25rem .25rem 0; max-width: 100%; }
button { cursor: pointer; font-weight: 600; }
main form { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px; margin: 1rem 0;
  padding: .75rem 1rem; max-width: 46rem; }
main button { background: var(--bar); border-color: var(--bar); color: var(--paper); }
main button[value=refuse] { background: var(--paper); border-color: var(--bad); color: var(--bad); }
progress { width: 100%; height: .8rem; accent-color: var(--bar); display: block; }
#ended td:nth-child(2), #queue td:nth-child(3) { min-width: 14rem; }
section table { width: 100%; } .scroll[tabindex] table { min-width: 40rem; }
h2 + div[id] > .scroll:first-child caption { position: absolute; width: 1px; height: 1px;
  overflow: hidden; clip-path: inset(50%); }
main > .verdict + ul { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; padding: 0; }
main > .verdict + ul a { display: block; border: 1px solid var(--bar); border-radius: 6px;
  padding: .35rem .9rem; text-decoration: none; font-weight: 600; }
dd details, dd summary { margin: 0; padding: 0; font-weight: 400; }
section:has(> div[id]:empty) { display: none; }
@media print { .state, form { display: none; } .scroll[tabindex] table { min-width: 0; } }
"""
)
"""Style sheet of pages that a process serves."""

ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3"
 fill="#1f6fb5"/><path d="M8 3v4M4 13V9h8v4" fill="none" stroke="#fff" stroke-width="2"/></svg>
"""

SCRIPT = """"use strict";
(() => {
  const state = document.getElementById("state"), pause = 2000;
  const reachable = "a, button, summary, [tabindex]";
  const parts = [...document.querySelectorAll("[data-live]")];
  const known = new Map(parts.map((part) => [part.id, part.innerHTML]));
  let timer, turn = 0;

  function put(part, html) {
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    const scrolled = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    const focus = [...part.querySelectorAll(reachable)].indexOf(document.activeElement);
    part.innerHTML = html;
    part.querySelectorAll("details").forEach((each, n) => { each.open = open[n] ?? each.open; });
    part.querySelectorAll(".scroll").forEach((box, n) => { box.scrollLeft = scrolled[n] ?? 0; });
    if (focus >= 0) part.querySelectorAll(reachable)[focus]?.focus({ preventScroll: true });
  }

  async function look() {
    const own = ++turn;
    clearTimeout(timer);
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (own !== turn) return;
      for (const part of parts) {
        const html = page.getElementById(part.id)?.innerHTML;
        if (html !== undefined && html !== known.get(part.id)) put(part, html);
        known.set(part.id, html);
      }
      state.textContent = "live";
    } catch {
      if (own === turn) state.textContent = "not live: the aggregator does not answer";
    }
    if (own === turn) timer = setTimeout(look, pause);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) return look();
    turn += 1;
    state.textContent = "paused";
  });
  if (!document.hidden) look();
})();
"""
