"""Warnings of a report: what a reader of a model should know before its figures.

Promises: each follows from the facts.
Refuses: nothing.
"""

from collections.abc import Iterator

from fedboost.gbdt.metrics.registry import VALIDATION, grows, is_metric
from fedboost.people.not_hidden import not_hidden
from fedboost.people.privacy_report import strength
from fedboost.people.report.curves import best_round, curves_of
from fedboost.people.report.facts import ReportFacts
from fedboost.people.report.markup import Markup, element, paragraph
from fedboost.people.report.privacy import NO_NOISE
from fedboost.people.text import counted

LATE = 0.8
"""Share of the rounds before which the best one is said to be early."""
MODERATE_EPSILON = 3.0


def warnings(facts: ReportFacts) -> Markup:
    """Return a list of warnings."""
    found = [*_of_signatures(facts), *_of_training(facts), *_of_privacy(facts)]
    if not found:
        return paragraph("None.")
    return element("ul", *(element("li", text) for text in found), class_="warnings")


def _of_signatures(facts: ReportFacts) -> Iterator[str]:
    model, known = facts.model, facts.verification
    if not model.signed_by:
        yield "Nobody signed this model: anybody may have made it."
    elif known is None:
        yield "The signatures were not checked for this page (--keys)."
    elif not known.holds:
        yield f"The signatures do NOT hold: {known.conclusion}."
    absent = len(set(model.terms.parties) - set(model.signed_by))
    if model.signed_by and absent:
        yield f"{counted(absent, 'party', 'parties')} of the terms did not sign."


def _of_training(facts: ReportFacts) -> Iterator[str]:
    model, terms = facts.model, facts.model.terms
    if model.rosters:
        yield "Parties were lost on the way: some rounds are of the rows of the others alone."
    if terms.metrics and not terms.validates and model.last_row:
        yield "No rows were held out: the learning curves are of the rows that trees grew on."
    if 0 < model.kept < model.trained:
        yield f"The training stopped early: round {model.kept} was the best of {model.trained}."
    elif model.trained < terms.trees.rounds:
        yield f"The training ended after {model.trained} of {terms.trees.rounds} rounds."
    yield from _best_rounds(facts)
    if not facts.importance:
        yield "No tree splits: every row gets the same prediction."


def _best_rounds(facts: ReportFacts) -> Iterator[str]:
    """Yield the metrics of the rows held out that were best long before the last round."""
    kept = facts.model.kept
    for curve in curves_of(facts.rounds[:kept]):
        if curve.rows == VALIDATION and not curve.party and is_metric(curve.metric):
            best = best_round(curve, grows(curve.metric))
            if best is not None and best < LATE * kept:
                yield (
                    f"{curve.metric} on the rows held out was best in round {best} of {kept}: the rounds "
                    "after it fit the rows that trees grow on, and others no better."
                )


def _of_privacy(facts: ReportFacts) -> Iterator[str]:
    terms = facts.model.terms
    if not terms.protection.hides:
        yield f"Protection {terms.hiding.protection}: {not_hidden(terms)}."
    if terms.noise is None:
        yield f"{NO_NOISE[0].upper()}{NO_NOISE[1:]}."
    elif terms.noise.epsilon > MODERATE_EPSILON:
        epsilon, delta = f"{terms.noise.epsilon:g}", f"{terms.noise.delta:g}"
        yield f"Epsilon {epsilon} at delta {delta}: {strength(terms.noise.epsilon)}."
    if facts.rows is not None:
        yield (
            f"This page has figures of the rows of {facts.rows.source}. Whoever reads it learns them: they "
            "are not hidden, and no site agreed to them."
        )
