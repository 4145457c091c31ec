"""The style, the icon and the one script of a console.

Promises: the script replaces the parts of a page by what the aggregator drew, keeps what is open, scrolled
and focused, and dials again when the connection is lost; it asks the page's own origin alone.
Refuses: nothing.
"""

from fedboost.people.report.style import STYLE as _REPORT

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
