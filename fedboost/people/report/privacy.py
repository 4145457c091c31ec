"""Who saw what, and the privacy card of a report.

Promises: it follows from the terms alone, as docs/threat-model.md has it.
Refuses: nothing.
"""

from collections.abc import Iterator, Sequence

from fedboost.people.not_hidden import not_hidden
from fedboost.people.privacy_report import PrivacyReport, report_of, stated
from fedboost.people.report.markup import Markup, element, items, joined, paragraph, table
from fedboost.people.summary import SENDS_GRADIENTS
from fedboost.privacy.masked.keys import Group
from fedboost.terms.terms import Terms

NO_NOISE = "without noise nothing bounds what the sums, and the model itself, tell of single rows"

ON_THE_NETWORK = "somebody on the network", "that parties and aggregator talk, when, and how much"

TOLD_ELSEWHERE = ("parties in every sum", "protection", "terms")
"""What the card states and another section of the page has."""


def privacy(terms: Terms) -> Markup:
    """Return the table of who saw what, and the card."""
    return joined(
        table("Who saw what", ["who", "what"], _who_saw_what(terms), (), folded=False),
        _card(report_of(terms)) if terms.noise is not None else paragraph(f"No privacy card: {NO_NOISE}."),
    )


def _who_saw_what(terms: Terms) -> Iterator[Sequence[str]]:
    yield "aggregator", _aggregator(terms)
    if terms.blocks:
        yield from _of_columns(terms)
    else:
        told = "the terms, who takes part, and the model as it grows: every split and every leaf value"
        yield "each other site", told
    if terms.keyholder is not None and terms.protection.hides:
        yield f"key holder {terms.keyholder}", "of sums numbers with a blind added, which say nothing"
    yield "aggregator and sites together", of_colluders(terms)
    model = "the structure of the model" if terms.keeps_parts else "this model"
    alone = ", and those of each site's rows alone" if terms.evaluation.party_metrics else ""
    metrics = "no metrics"
    if terms.metrics:
        metrics = (
            f"metrics over the rows of all parties{alone}, to four digits and none of fewer than ten rows"
        )
    yield "analyst", f"{model}; {metrics}; bytes of each party"
    yield ON_THE_NETWORK
    yield (
        "whoever has the model file",
        "thresholds, gains, covers and leaf values, which are made from sums over the rows of all parties"
        + ("" if terms.noise is not None else f"; {NO_NOISE}"),
    )


def _aggregator(terms: Terms) -> str:
    if not terms.protection.hides:
        return not_hidden(terms)
    own = "; metrics of each site's rows alone" if terms.evaluation.party_metrics else ""
    noise = " with noise on them" if terms.noise is not None and terms.noise.placement != "central" else ""
    return f"sums over the rows of all parties{noise}, and never the numbers of a single party{own}"


def _of_columns(terms: Terms) -> Iterator[Sequence[str]]:
    sends = "sends every row's gradient, encrypted," if terms.hides_columns else SENDS_GRADIENTS
    for block in terms.blocks:
        who = f"label holder {block.label_holder}"
        yield (
            who,
            f"{sends} to the other parties of its rows; sees which rows go left at each of their splits",
        )
    yield "each feature holder", "which of the rows it shares go left at each split, and no leaf value"


def of_colluders(terms: Terms) -> str:
    """Return what the aggregator and sites learn together."""
    if terms.hides_columns:
        return (
            "aggregator and label holder: the other sites' columns, bin by bin; aggregator and another site: "
            "the labels"
        )
    if not terms.protection.hides:
        return "nothing more: the aggregator needs none of them"
    number = Group.of(terms.parties, terms.hiding.colluding).colluding
    if not number:
        holder = " and the key holder" if terms.protection.uses_key_holder else ""
        return f"one site with the aggregator{holder} can learn another site's numbers"
    sites = "one site" if number == 1 else f"up to {number} sites"
    return f"with {sites}: still no single other site's numbers; with more that is not promised"


def _card(report: PrivacyReport) -> Markup:
    head = {name: value for name, value in stated(report).items() if name not in TOLD_ELSEWHERE}
    headings = ["what", "times", "sensitivity", "noise in the sum", "cost of one"]
    releases = (
        (
            release["what"],
            str(release["times"]),
            *(f"{release[key]:.6g}" for key in ("sensitivity", "sigma", "cost")),
        )
        for release in report["releases"]
    )
    return joined(
        element("h3", "Privacy card"),
        table("What is promised of any one row", ["what", "value"], head.items(), (), folded=False),
        table("Every release", headings, releases, folded=False),
        paragraph(
            "Sensitivity is how far one row can move the whole sum, noise its standard deviation, both in "
            "the integers that are added; cost is mu squared, which adds."
        ),
        paragraph("Not covered:"),
        items(report["not_covered"]),
    )
