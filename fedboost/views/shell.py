"""What all served pages share: style, icon, script, frame and live parts.

A page loads from its own origin only: style, icon and, if it is live, one script, which replaces the parts
that the server has drawn anew, keeps what is open, scrolled and focused, and reconnects when the connection
is lost. All pages can be read without the script.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedboost.version import VERSION
from fedboost.views.as_html import STYLE as _REPORT
from fedboost.views.as_html import bar, body, page
from fedboost.views.document import Beside, Block, Document, Section
from fedboost.views.markup import Markup, element, joined, safe

STYLE = (
    _REPORT
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
.log { white-space: pre-wrap; overflow-wrap: anywhere; }
.log .warning, .log .error, .log .critical { font-weight: 700; }
@media print { .state, form { display: none; } .scroll[tabindex] table { min-width: 0; } }
"""
)

ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3"
 fill="#1f6fb5"/><path d="M8 3v4M4 13V9h8v4" fill="none" stroke="#fff" stroke-width="2"/></svg>
"""

SCRIPT = """"use strict";
(() => {
  const page = document.body.dataset.live, state = document.getElementById("state");
  const reachable = "a, button, summary, [tabindex]";
  let source, timer;

  function put(part, html) {
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    const scrolled = [...part.querySelectorAll(".scroll, pre")].map((box) => [box.scrollLeft, box.scrollTop]);
    const focus = [...part.querySelectorAll(reachable)].indexOf(document.activeElement);
    part.innerHTML = html;
    part.querySelectorAll("details").forEach((each, n) => { if (n < open.length) each.open = open[n]; });
    part.querySelectorAll(".scroll, pre").forEach((each, n) => {
      if (n < scrolled.length) [each.scrollLeft, each.scrollTop] = scrolled[n];
    });
    if (focus >= 0) part.querySelectorAll(reachable)[focus]?.focus({ preventScroll: true });
  }

  function dial() {
    source?.close();
    clearTimeout(timer);
    source = new EventSource("/events/" + page);
    source.onopen = () => { state.textContent = "live"; };
    source.onmessage = (event) => {
      for (const [name, html] of Object.entries(JSON.parse(event.data))) {
        const part = document.getElementById(name);
        if (part) put(part, html);
      }
    };
    source.onerror = () => {
      state.textContent = "not live: the aggregator does not answer";
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(dial, 10000);
    };
  }

  function pause() {
    clearTimeout(timer);
    source?.close();
    state.textContent = "paused";
  }

  // A browser has six connections to an address: pages that nobody sees need none.
  document.addEventListener("visibilitychange", () => { if (document.hidden) pause(); else dial(); });
  addEventListener("pagehide", pause);
  if (!document.hidden) dial();
})();
"""


# ---- The frame of the pages that a process serves: head, bar, title, footer -----------------------------


TOKEN = Markup(
    '<label for="token">Token</label><input id="token" name="token" type="password" '
    'autocomplete="current-password" required size="44">'
)
"""The field for a token."""


@dataclass(frozen=True)
class Served:
    """The process that serves pages. name: in titles; asks: where a page loads from; pages: the titles that
    each page links to, by path."""

    name: str
    asks: str
    pages: Mapping[str, str]


def frame(
    served: Served,
    path: str,
    title: str,
    content: Markup,
    account: str,
    linked: bool = True,
    live: str = "",
    below: str = "",
) -> str:
    """Return a page. path: its own; account: who reads it; linked: with links to the other pages; live: the
    name of its live events, for which it has the script; below: what stands beside the title."""
    head = (
        element("title", f"{title}: {served.name}"),
        Markup('<link rel="stylesheet" href="/style.css"><link rel="icon" href="/icon.svg">'),
        Markup('<script src="/script.js" defer></script>' if live else ""),
    )
    links = (
        element("li", element("a", words, href=to, aria_current="page" if to == path else None))
        for to, words in served.pages.items()
    )
    return page(
        head,
        element("a", "Skip to the content", class_="skip", href="#content"),
        bar(
            served.name,
            element("nav", element("ul", *links), aria_label="Pages") if linked else "",
            account,
        ),
        element(
            "main",
            element("div", element("h1", title), below, class_="title"),
            content,
            id="content",
        ),
        element("footer", element("p", f"fedboost {VERSION}. This page loads from {served.asks} only.")),
        live=live or None,
    )


def refusal(status: int, reason: str) -> tuple[str, Markup]:
    """Return title and words of the page of a request that was refused."""
    title = "Log in" if status == 401 else f"Refused ({status})"
    return title, element("p", f"{reason[:1].upper()}{reason[1:]}.", role="alert")


def drawn(document: Document) -> tuple[Document, dict[str, str]]:
    """Return a document whose live sections are drawn, and their content by name; `said` is its lead."""
    parts = {"said": safe(document.lead)}

    def draw(block: Block) -> Block:
        match block:
            case Section(live=True):
                parts[block.name] = content = body(block.blocks)
                return replace(block, blocks=[content])
            case Beside(inner):
                return replace(block, blocks=[*map(draw, inner)])
        return block

    return replace(document, blocks=[*map(draw, document.blocks)]), parts


# ---- The pages of the console ---------------------------------------------------------------------------


CONSOLE = Served(
    "fedboost aggregator",
    "this aggregator",
    {
        "/": "Overview",
        "/sites": "Sites",
        "/sessions": "Sessions and results",
        "/log": "Log",
        "/api": "Interface",
    },
)


def console_page(path: str, document: Document, live: str = "", caller: str = "") -> str:
    """Return a page. path: its own; live: the name of its live events, if it has any; caller: the name of who
    logged in with a browser. The lead of a live page is what a screen reader is told."""
    state = element(
        "p",
        element("span", "as of when it was loaded", id="state"),
        " ",
        element("a", "Refresh", href=path),
        class_="state",
    )
    unseen = element("p", document.lead, id="said", role="status", aria_live="polite", class_="unseen")
    log_out = element("form", f"{caller} ", element("button", "Log out"), method="post", action="/logout")
    return frame(
        CONSOLE,
        path,
        document.title,
        body(document.blocks),
        log_out if caller else "",
        live=live,
        below=joined(state, unseen) if live else element("p", document.lead, class_="lead"),
    )


def refused(status: int, reason: str) -> str:
    """Return the page of a request that was refused; where a token is missing, with a form for it."""
    title, said = refusal(status, reason)
    how = element("p", "The operator of the aggregator makes a token with: fedboost keys token NAME")
    form = element("form", how, TOKEN, element("button", "Log in"), method="post", action="/login")
    return console_page("", Document(title, "", [said, *([form] if status == 401 else [])]))
