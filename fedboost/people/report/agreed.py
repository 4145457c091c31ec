"""What was agreed, and by whom: the parties with their signatures, columns and settings of a report.

Promises: every party, column and category that the terms name is there, and every setting that is not its
default.
Refuses: nothing.
"""

import json
from collections.abc import Iterator, Sequence

from fedboost.people.report.facts import ReportFacts
from fedboost.people.report.markup import Markup, element, joined, names, paragraph, table
from fedboost.people.text import counted
from fedboost.people.training import absences
from fedboost.terms.session import TRAINING
from fedboost.terms.terms import Terms

_ALWAYS = "objective", "rounds", "max_depth", "learning_rate", "max_bin", "protection"
"""Settings that are shown even where they are the defaults."""
_ELSEWHERE = "columns", "parties", "blocks", "xgb_model", "noise"
"""Settings that have a place of their own."""


def agreed(facts: ReportFacts) -> Markup:
    """Return the parties, the columns and the settings."""
    terms = facts.model.terms
    return joined(
        paragraph(
            "All of it stands in the terms, which every party agreed to before the session: their digest is ",
            element("code", terms.digest),
            ".",
        ),
        paragraph(_conclusion(facts)),
        table("Parties", ["party", "takes part with", "signature"], _parties(facts), ()),
        columns_and_settings(terms, _ALWAYS),
    )


def columns_and_settings(terms: Terms, always: Sequence[str]) -> Markup:
    """Return the columns, and the settings that are not their defaults. always: those that are shown even
    so."""
    return joined(
        table("Columns", ["column", "what it is"], _columns(terms), (), folded=False),
        table("Settings", ["setting", "value"], _settings(terms, always), (), folded=False),
        paragraph("Settings that are not named have their defaults."),
    )


def attendance(facts: ReportFacts) -> Markup:
    """Return who came and went."""
    lines = [*absences(facts.model)]
    if not lines:
        return paragraph("The sums of every round were over all parties.")
    return element("ul", *(element("li", line[0].upper() + line[1:] + ".") for line in lines))


def _conclusion(facts: ReportFacts) -> str:
    known = facts.verification
    if known is None:
        if not facts.model.signed_by:
            return "Nobody signed this model: anybody may have made it."
        return (
            "The signatures were not checked for this page: fedboost report with --keys, or "
            "fedboost verify, checks them."
        )
    outcome = "The signatures hold" if known.holds else "The signatures do NOT hold"
    asked = f" Analyst {known.analyst} asked for the session on {known.asked}." if known.analyst else ""
    return f"{outcome}: {known.conclusion}.{asked}"


def _parties(facts: ReportFacts) -> Iterator[Sequence[str]]:
    terms = facts.model.terms
    for party in dict.fromkeys((*terms.parties, *facts.model.signed_by)):
        yield party, part_of(terms, party), _signature(facts, party)


def part_of(terms: Terms, party: str) -> str:
    """Return what a party takes part with."""
    if party not in terms.parties:
        return "nothing: the terms do not name it"
    also = "; decrypts sums" if party == terms.keyholder else ""
    block = terms.blocks.of(party)
    if block is None:
        return ("rows" if party in terms.holders else "no rows") + also
    holds = "the labels, and columns" if block.label_holder == party else "columns"
    return f"{holds}: {', '.join(terms.blocks.columns_of(party).features)}{also}"


def _signature(facts: ReportFacts, party: str) -> str:
    if party not in facts.model.signed_by:
        return "none"
    if facts.verification is None:
        return "there, not checked"
    fault = facts.verification.faults.get(party, "")
    return f"WRONG: {fault}" if fault else "holds"


def _columns(terms: Terms) -> Iterator[Sequence[str]]:
    columns = terms.columns
    classes = joined("label, of the classes ", names(columns.classes)) if columns.classes else "label"
    positive = f"label; {columns.positive!r} counts as 1" if columns.positive is not None else classes
    yield columns.label or "-", positive
    beside = {
        "upper bound of the label": columns.label_upper_bound,
        "weight of the row": columns.weight,
        "margin that boosting begins at": columns.base_margin,
        "group that is ranked": columns.group,
        "marks rows for metrics alone": columns.validation,
        "row id": columns.row_id,
    }
    yield from ((name, what) for what, name in beside.items() if name is not None)
    yield "numeric features", names(columns.numeric)
    for name, categories in columns.categorical.items():
        yield name, joined("feature, of the categories ", names(categories))


def _settings(terms: Terms, always: Sequence[str]) -> Iterator[Sequence[str]]:
    changed = terms.model_dump(mode="json", exclude_defaults=True)
    every = terms.model_dump(mode="json")
    for key in dict.fromkeys((*always, *changed)):
        if key not in _ELSEWHERE:
            value = every.get(key)
            yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    columns = terms.columns.model_dump(mode="json", exclude_defaults=True)
    for key in ("ranges", "label_range"):
        if key in columns:
            yield f"columns.{key}", json.dumps(columns[key], ensure_ascii=False)
    if terms.noise is not None:
        for key, value in terms.noise.model_dump(mode="json").items():
            yield f"noise.{key}", json.dumps(value, ensure_ascii=False)
    if terms.earlier is not None:
        trees = f"a model of {counted(len(terms.earlier.trees), 'tree')}"
        continued = terms.task in TRAINING
        yield "xgb_model", f"{trees}, which this one continues" if continued else trees
