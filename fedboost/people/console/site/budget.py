"""The budget of a site: what sessions spent of the privacy of its rows, what is left, each release.

Promises: the figures of `fedboost privacy budget`.
Refuses: nothing.
"""

from collections.abc import Iterator

from fedboost.errors import quoted
from fedboost.people.console.site.facts import BudgetFacts, Reader
from fedboost.people.console.site.shell import document
from fedboost.people.report.markup import Markup, left_out, paragraph, table
from fedboost.people.report.skeleton import section
from fedboost.people.text import counted, moment

DIGITS = 8
"""Of the hash of a release."""


def page(facts: BudgetFacts | None, fault: str, reader: Reader) -> str:
    """Return the page of the budget. fault: why there are no facts."""
    parts = [section("left", "What is left", paragraph(left_of(facts, fault)))]
    if facts is not None:
        parts.append(section("spent", "What was spent", *_spent(facts)))
        parts.append(section("releases", "Releases with noise", *_releases(facts)))
    return document("/budget", "Budget", *parts, reader=reader)


def left_of(facts: BudgetFacts | None, fault: str) -> str:
    """Return what is left, in a sentence or two."""
    if facts is None:
        return f"It cannot be told: {fault}"
    site, spent = facts.site, facts.spent
    sessions = f"{site.took_part} of {counted(site.max_sessions, 'session')} were used (max_sessions)."
    if spent.left is None:
        return (
            f"There is no budget: no session is refused for what it would spend. Set epsilon and delta under "
            f"[policy] for one. {sessions}"
        )
    return (
        f"Epsilon {spent.left:.4g} at delta {spent.delta:g} of {spent.budget:g}: as much one more session "
        f"may have. {sessions}"
    )


def _spent(facts: BudgetFacts) -> Iterator[Markup]:
    spent = facts.spent
    entries = {
        "rows": spent.dataset,
        "sessions": str(spent.sessions),
        "sessions in which the parties never met": str(spent.never_began),
        "sessions with noise": str(spent.with_noise),
        "releases": str(spent.releases),
        "spent": f"epsilon {spent.spent:.4g} at delta {spent.delta:g}",
    }
    yield table(
        "What was spent of the privacy of these rows", ["what", "value"], entries.items(), (), folded=False
    )
    yield paragraph(
        "Epsilons do not add, their costs do: what is left is more than the difference. Sessions without "
        "noise spend nothing that is counted here, and nothing bounds what they tell of a row."
    )


def _releases(facts: BudgetFacts) -> Iterator[Markup]:
    if not facts.charges:
        yield left_out("No release was charged.")
        return
    if facts.charged > len(facts.charges):
        yield paragraph(f"The last {len(facts.charges)} of {facts.charged}.")
    rows = (
        (moment(charge.at), quoted(charge.session, 24), charge.release[:DIGITS], f"{charge.epsilon:.3g}")
        for charge in facts.charges
    )
    headings = ["when (UTC)", "session", "release", "epsilon alone"]
    yield table("Releases that were charged", headings, rows, (3,))
