"""What all pages of a console share: style, icon, script, frame, live parts.

Promises: the script replaces the parts of a page by what the aggregator drew, keeps what is open, scrolled
and focused, and dials again when the connection is lost; it asks the page's own origin alone.
Refuses: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedboost.results.base import Traffic
from fedboost.version import VERSION
from fedboost.views.as_html import STYLE as _REPORT
from fedboost.views.elements import paragraph
from fedboost.views.markup import Markup, element, joined
from fedboost.wire.messages import SessionState, SessionStatus, Status

STYLE = (
    _REPORT
    + """
header { margin-bottom: .5rem; } header .lead { margin: 0; }
.state { color: var(--soft); margin: .25rem 0; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); margin: 0; }
nav [aria-current] { font-weight: 700; color: var(--ink); text-decoration: none; }
label { display: block; font-weight: 600; }
input, button { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--soft);
  border-radius: 4px; padding: .4rem .6rem; margin: .25rem .25rem .25rem 0; max-width: 100%; }
button { cursor: pointer; }
progress { width: min(100%, 34rem); height: 1rem; accent-color: var(--bar); display: block; }
#ended td:last-child, #queue td:last-child { min-width: 14rem; }
section:has(> div[id]:empty) { display: none; }
.log { white-space: pre-wrap; overflow-wrap: anywhere; }
.log .warning, .log .error, .log .critical { font-weight: 700; }
@media print { .state, form { display: none; }
  #session table, #short table, tr { break-inside: auto !important; } }
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


# ---- Facts that the pages of a console are made from: plain values, which the runtime fills -------------
# Promises: nothing here reads, draws or formats.


Row = Mapping[str, float]
"""A round: `round`, metrics by name, `seconds`, `bytes` of all parties, both ways."""
RECENT = 10
"""Rounds whose median time the time left is reckoned from."""


@dataclass(frozen=True)
class LiveFacts:
    """The session under way. phase: what it does now; turn: of the protocol; rounds: those that ended, of
    `status.rounds`; seconds: since it began, or since the aggregator was started again; slowest: the party
    that the others waited for most, with the turns in which it was last and the seconds waited, if any
    was."""

    status: SessionStatus
    phase: str
    turn: int
    rounds: Sequence[Row]
    seconds: float
    traffic: Traffic
    slowest: tuple[str, int, float] | None = None

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the rounds left take if they take as long as the last ones; None before the second
        round. A training that stops early takes less."""
        if len(self.rounds) < 2:
            return None
        recent = sorted(row["seconds"] for row in self.rounds[1:][-RECENT:])
        return recent[len(recent) // 2] * max(self.status.rounds - len(self.rounds), 0)


@dataclass(frozen=True)
class EndedFacts:
    """A session that is over. reason: why it has no model; ended: seconds since 1970; seconds: it took so
    long; rounds: what each brought; model_bytes: of its model file, 0 without one; has_report: its model can
    be read in a report; request: the nonce of the signed request that it used, '' without keys."""

    name: str
    analyst: str
    terms: str
    program: str
    protection: str
    parties: tuple[str, ...]
    ended: int
    seconds: float
    reason: str
    rounds: Sequence[Row] = field(repr=False)
    traffic: Traffic = field(repr=False)
    model_bytes: int = 0
    has_report: bool = False
    request: str = ""


@dataclass(frozen=True)
class ConsoleFacts:
    """An aggregator as its console shows it. ended: the latest first; log: lines, the latest last; caller:
    the name of who logged in, '' for somebody on this machine."""

    status: Status
    live: LiveFacts | None
    ended: Sequence[EndedFacts]
    log: Sequence[str]

    @property
    def queue(self) -> list[SessionStatus]:
        """The sessions that wait to begin."""
        return [session for session in self.status.sessions if session.state is SessionState.WAITING]


# ---- The frame of the pages that a process serves: head, heading, links between pages, footer -----------
# A token.
# Promises: a page asks its own origin alone; what comes from outside is text and never markup.


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


# ---- The shell of every page of a console: head, links between pages ------------------------------------
# The state of the live connection.
# Promises: a page asks its own origin alone, for its style, its icon and one script, and can be read
# without the script; what comes from outside is text and never markup.


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
