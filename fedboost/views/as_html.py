"""Markup of a page: elements, tables, lists.

Promises: text is escaped, whatever it holds, unless it is `Markup` already; control characters, and those
that turn the direction of text, stand as escapes; a text has a bounded length.
Refuses: nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fedboost.errors import printable, quoted
from fedboost.fixedpoint import Float64
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.views.facts import ModelFacts, Traffic, VerificationFacts

MAX_TEXT = 4000
"""Characters of a text."""
MAX_OPEN = 20
"""Lines of a table, and items of a list, that stand open on a screen."""

MAX_NARROW = 3
"""Columns of a table that fit any screen: a wider one can be scrolled, with the keyboard, too."""


class Markup(str):
    """Text that is markup. Whatever is made of it by other means than this module's is plain text again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | None) -> Markup:
    """Return an element. attributes: `class_` stands for class, `aria_label` for aria-label; None is left
    out."""
    texts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{texts}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """Return parts one behind the other."""
    return Markup("".join(part if isinstance(part, Markup) else _safe(part) for part in parts))


def lines(text: str) -> Markup:
    """Return a text of several lines, whole."""
    return Markup("\n".join(escape(printable(line.replace("\t", "  "))) for line in text.split("\n")))


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


def _safe(text: str) -> str:
    return escape(quoted(text, MAX_TEXT))


# ---- The style of a report: light, dark, narrow and printed ---------------------------------------------
# Promises: text has a contrast of 4.5 to 1 at least in both schemes; on paper whatever is folded stands
# open.


STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --panel: #f4f6f8; --ink: #1b2430; --soft: #4a5765; --rule: #c5ced8; --link: #0b57a4;
  --warn: #fff4d6; --warn-rule: #9a6700; --bar: #2f6fb0;
  --s0: #1f6fb5; --s1: #b3470b; --s2: #2b7a2b; --s3: #8a3fb0; --s4: #a01c3a; --s5: #0f7a80; --s6: #6b5a00;
  --s7: #505a66; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12171d; --panel: #1b222a; --ink: #e6ebf0; --soft: #aab6c2; --rule: #3d4a57; --link: #8ec2ff;
  --warn: #33290e; --warn-rule: #e0b040; --bar: #5c9fe0;
  --s0: #6db3f2; --s1: #f59a5c; --s2: #7ccf7c; --s3: #cf9bea; --s4: #f28a9e; --s5: #5fcdd2; --s6: #d9c35a;
  --s7: #b4bfca; } }
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial,
  sans-serif; }
body { max-width: 62rem; margin: 0 auto; padding: 1rem 1.25rem 3rem; overflow-wrap: break-word; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 2px solid var(--rule); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p, ul { max-width: 46rem; margin: .5rem 0; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none;
  max-width: none; }
.lead, .left-out, footer { color: var(--soft); }
.left-out { border-left: 3px solid var(--rule); padding-left: .75rem; }
.warnings { background: var(--warn); border-left: 4px solid var(--warn-rule);
  padding: .5rem 1rem .5rem 2rem; }
.warnings li { margin: .35rem 0; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .92rem; min-width: 18rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
details > .scroll caption { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0;
  border-bottom: 1px solid var(--rule);
  overflow-wrap: anywhere; min-width: 4.5rem; }
th[scope=col] { overflow-wrap: break-word; }
th[scope=row] { font-weight: 500; min-width: 6rem; }
.scroll[role=group] td:not(.number) { min-width: 6.5rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal;
  white-space: nowrap; min-width: 0; }
details { margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .15rem 0; }
td details { margin: 0; } td summary { font-weight: 400; }
pre { font-size: .8rem; overflow-x: auto; background: var(--panel); padding: .75rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: 1rem 2rem; }
figure { margin: .75rem 0; max-width: 34rem; }
.charts figure { margin: 0; }
figcaption { font-weight: 600; font-size: .95rem; overflow-wrap: anywhere; }
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
.tree .scroll { max-height: 36rem; overflow: auto; border: 1px solid var(--rule); background: #ffffff; }
.tree svg { display: block; }
@media (prefers-color-scheme: dark) { .tree .scroll { filter: invert(.93) hue-rotate(180deg); } }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: .75rem; font-size: .9rem; }
@media (max-width: 34rem) { html { font-size: 15px; } body { padding: .5rem .75rem 2rem; }
  .chart { font-size: 13.5px; } th, td { padding-right: .6rem; min-width: 3.5rem; } }
@media print {
  :root { color-scheme: light; --paper: #ffffff; --panel: #ffffff; --ink: #000000; --soft: #333333;
    --rule: #999999; --link: #000000; --warn: #ffffff; --warn-rule: #000000; --bar: #55708a; --s0: #1f6fb5;
    --s1: #b3470b; --s2: #2b7a2b; --s3: #8a3fb0; --s4: #a01c3a; --s5: #0f7a80; --s6: #6b5a00;
  --s7: #505a66; }
  @page { margin: 15mm; }
  html { font-size: 10.5pt; }
  body { max-width: none; padding: 0; }
  nav, .skip { display: none; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  summary { list-style: none; } summary::-webkit-details-marker { display: none; }
  .scroll, pre { overflow: visible !important; max-height: none !important; }
  pre { white-space: pre-wrap; }
  .charts { grid-template-columns: 1fr 1fr; }
  h2, h3, h2 + p, figcaption, caption, summary { break-after: avoid; }
  figure, tr, .warnings li, table:not(:has(tbody tr:nth-child(13))) { break-inside: avoid; }
  thead { display: table-header-group; }
  .tree .scroll { filter: none; border: 0; }
  .tree svg { max-width: 100%; max-height: 220mm; height: auto; }
}
"""
"""The content of the page's only style element."""


# ---- The skeleton of a page: its head, the links to its sections, and the sections ----------------------
# Promises: the page asks for nothing, from anywhere, and runs no script; the same sections give the same
# bytes.


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


# ---- Facts that a report is made from: plain values, which the runtime fills ----------------------------
# Promises: nothing here reads, predicts or formats.


KINDS = "gain", "cover", "weight"
"""The importances of a feature, in this order."""


@dataclass(frozen=True)
class TreeFacts:
    """A tree of the model. title: which one it is; leaves: how many it has; picture: SVG for a page, ''
    where the tree is too large for one; text: XGBoost's dump."""

    title: str
    leaves: int
    picture: str
    text: str


@dataclass(frozen=True)
class DependenceFacts:
    """Partial dependence on one feature. grid: numbers, or categories; means: float64 [grid, outputs]."""

    feature: str
    is_categorical: bool
    grid: Sequence[Any]
    means: Float64


@dataclass(frozen=True)
class RowsFacts:
    """The model on some rows. source: the name of their table; summary: what an evaluation on them says
    (docs/lifecycle-evaluate.md); dependence: on the features of the highest gains."""

    source: str
    summary: Mapping[str, Any]
    dependence: Sequence[DependenceFacts]


@dataclass(frozen=True)
class SessionFacts:
    """A session that was followed to its end. traffic: of each party; rounds: a row a round, with `seconds`
    and `bytes` of all parties, both ways; since_restart: traffic is known only since the aggregator was
    restarted."""

    traffic: Traffic
    rounds: Sequence[Mapping[str, float]] = ()
    since_restart: bool = False


@dataclass(frozen=True)
class ResultFacts:
    """The result of a session that trained nothing. summary: as `--json` prints it; terms, signed_by: of the
    session, and who signed what it answered."""

    summary: Mapping[str, Any]
    terms: Terms
    signed_by: Sequence[str]
    session: SessionFacts


@dataclass(frozen=True)
class ReportFacts:
    """A model, and what a report says of it. rounds: the metrics of each round, as in the model file;
    importance: feature to its importances, in the order of KINDS, the highest gain first; trees: the first
    ones; classes: of a label of classes; verification: None where no root was at hand to check signatures by;
    rows: None where no table was given; session: None where the model file is all there is."""

    model: ModelFacts
    rounds: Sequence[Mapping[str, float]]
    importance: Mapping[str, Sequence[float]]
    trees: Sequence[TreeFacts]
    classes: Sequence[str] = ()
    verification: VerificationFacts | None = None
    rows: RowsFacts | None = field(default=None, repr=False)
    session: SessionFacts | None = field(default=None, repr=False)
