"""A model in words: the features it goes by, and who signed it.

Promises: it says where noise makes importances worthless.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping, Sequence

from fedboost.gbdt.booster import Booster
from fedboost.people.facts import VerificationFacts
from fedboost.people.text import Block, cell, one_line, paragraph, table
from fedboost.terms.terms import Terms


def importances(
    booster: Booster, terms: Terms, kinds: Sequence[str], by_feature: Mapping[str, Sequence[float]]
) -> Iterator[Block]:
    """Yield a table of importances of each kind, by feature."""
    yield (
        f"{booster.objective}, {len(booster.trees)} trees; "
        f"{len(by_feature)} of {len(booster.features)} features split"
    )
    if terms.noise is not None and terms.noise.method != "hist":
        yield (
            "trained with noise: splits are drawn, not chosen by gain, so these figures do not say what "
            "counts; --shap and --partial-dependence do"
        )
    lines = table("feature", *kinds, whole=True)
    lines.columns[0].overflow = "fold"
    for name, values in by_feature.items():
        lines.add_row(cell(name), *(f"{value:.6g}" for value in values))
    yield lines


def verification(facts: VerificationFacts) -> Iterator[Block]:
    """Yield what holds of a model's signatures."""
    terms = facts.terms
    yield one_line(f"{facts.file}: {terms.objective.name}, {facts.trees} trees, {terms.hiding.protection}")
    yield f"fingerprint   {facts.fingerprint}"
    yield f"terms digest  {terms.digest}"
    yield ""
    lines = table("party", "signature", numbers=())
    for party in dict.fromkeys((*terms.parties, *facts.faults)):
        fault = facts.faults.get(party)
        lines.add_row(cell(party), "none" if fault is None else cell(f"WRONG: {fault}" if fault else "holds"))
    yield lines
    if facts.analyst:
        yield one_line(f"asked for by analyst {facts.analyst} on {facts.asked}")
    yield ""
    outcome = "It holds" if facts.holds else "It does NOT hold"
    yield paragraph(one_line(f"{outcome}: {facts.conclusion}."))
    if facts.holds:
        yield "Nobody signs metrics, gains and covers, which no prediction depends on."
