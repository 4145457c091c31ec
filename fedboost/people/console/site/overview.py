"""The overview of a site: what runs now, what waits for a decision, what is left of the budget.

Promises: the facts of one moment, which the page names.
Refuses: nothing.
"""

from collections.abc import Iterator

from fedboost.people.console.site.budget import left_of
from fedboost.people.console.site.facts import LiveFacts, OverviewFacts, Reader
from fedboost.people.console.site.requests import WITHOUT_KEYS, requests_table
from fedboost.people.console.site.shell import document
from fedboost.people.report.markup import Markup, element, items, joined, left_out, paragraph, table
from fedboost.people.report.skeleton import section
from fedboost.people.status import time_of
from fedboost.people.text import counted, duration, size

RECENT = 10


def page(facts: OverviewFacts, reader: Reader) -> str:
    """Return the overview."""
    undecided = [request for request in facts.requests if request.standing.is_open]
    return document(
        "/",
        f"Site {facts.party}",
        _as_of(facts),
        *_advice(facts),
        section("now", "Now", _now(facts.live, facts.time)),
        section("undecided", "Not approved", *_undecided(facts, len(undecided))),
        section("left", "Budget", paragraph(left_of(facts.budget, facts.fault)), _more("/budget", "Budget")),
        section("site", "This site", _site(facts)),
        reader=reader,
    )


def _as_of(facts: OverviewFacts) -> Markup:
    refresh = element("a", "Refresh", href="/")
    return element("p", f"As of {time_of(int(facts.time))} UTC. ", refresh, class_="state")


def _advice(facts: OverviewFacts) -> Iterator[Markup]:
    if facts.nothing_yet:
        text = "Every session is refused: nothing is approved here, and the policy does not name parties, "
        text += "analysts and columns. Approve a request below, or write a policy into the site's file."
        yield element("div", items([text]), class_="warnings")


def _now(live: LiveFacts, time: float) -> Markup:
    at_hand = f"The aggregator is {'' if live.connected else 'not '}at hand."
    session = live.session
    if session is None:
        return joined(paragraph(at_hand), left_out("No session is under way."))
    terms = session.terms
    entries = {
        "session": element("code", session.name),
        "analyst": session.analyst or WITHOUT_KEYS,
        "terms": element("code", f"{terms.digest[:12]}…"),
        "what for": f"to {terms.task}, {counted(len(terms.parties), 'party', 'parties')}",
        "since": f"{time_of(int(session.since))} UTC, {duration(max(time - session.since, 0.0))}",
        "rounds": f"{session.rounds} of {terms.trees.rounds}",
        "answers that left": str(session.answers),
        "bytes that left": size(session.bytes),
    }
    whole = table("The session under way", ["what", "value"], entries.items(), (), folded=False)
    return joined(paragraph(at_hand), whole)


def _undecided(facts: OverviewFacts, count: int) -> Iterator[Markup]:
    if not count:
        yield left_out("No request waits for a decision.")
    else:
        shown = [request for request in facts.requests if request.standing.is_open][:RECENT]
        yield paragraph(f"{counted(count, 'request')} of analysts not approved here; open one to decide.")
        yield requests_table(shown, "Not approved")
    yield _more("/requests", "All requests")


def _more(to: str, words: str) -> Markup:
    return paragraph(element("a", words, href=to))


def _site(facts: OverviewFacts) -> Markup:
    entries = {
        "party": facts.party,
        "rows": facts.rows or "none: a key holder",
        "aggregator": facts.aggregator,
    }
    return table("This site in short", ["what", "value"], entries.items(), (), folded=False)
