"""Terms of sessions that train nothing, in plain words.

Promises: what is asked of the rows of all sites, and who is given what.
Refuses: nothing.
"""

from collections.abc import Sequence

from fedboost.gbdt.tree import NO_CHILD
from fedboost.people.facts import OriginFacts
from fedboost.people.text import delimited, listed
from fedboost.terms.session import TO_DESCRIBE, TO_DRIFT
from fedboost.terms.tasks import class_names, is_binary
from fedboost.terms.terms import Terms

_OF_FEATURES = ("base margin", "features", "categories")
"""The lines about columns that rows without a label have."""
Lines = Sequence[tuple[str, str]]


def of_other_tasks(
    terms: Terms,
    analysts: Sequence[str],
    participants: Lines,
    columns: Lines,
    origin: OriginFacts | None = None,
) -> list[tuple[str, str]]:
    """What a session does with rows, and who learns what by it. participants, columns: lines about them."""
    does, given = _of_task(terms)
    return [
        ("terms", terms.digest),
        *does,
        *([] if origin is None else _origin(origin)),
        *([("analyst", f"{listed(analysts)}: may ask for it")] if analysts else []),
        ("is given", f"{given}; {few_rows(terms)}"),
        *(line for line in participants if line[0] != "other sites"),
        *(line for line in columns if line[0] in _OF_FEATURES or terms.task != TO_DRIFT),
    ]


def given_to_analyst(terms: Terms) -> str:
    """What the analyst gets of all rows."""
    return f"{_of_task(terms)[1]}; {few_rows(terms)}"


def _of_task(terms: Terms) -> tuple[Lines, str]:
    """Lines about what is done, and what the analyst is given."""
    tasks = {TO_DESCRIBE: _description, TO_DRIFT: _drift}
    return tasks.get(terms.task, _evaluation)(terms)


def few_rows(terms: Terms) -> str:
    """What is left out."""
    return f"counts of fewer than {terms.evaluation.min_count} rows are left out"


def _description(terms: Terms) -> tuple[Lines, str]:
    of_label = "rows of each value" if class_names(terms) else "quantiles"
    return [("describes", "the rows of all sites together; nothing is trained")], (
        "rows, missing values, rows of each level that is declared and of all others, quantiles of numbers; "
        f"of the label {delimited(terms.columns.label)} {of_label}"
    )


def _evaluation(terms: Terms) -> tuple[Lines, str]:
    evaluation, by = terms.evaluation, listed(terms.evaluation.subgroups)
    given = listed(terms.metrics)
    if is_binary(terms):
        given += "; ROC curve, calibration, rows by label and prediction at threshold "
        given += f"{evaluation.threshold:g}"
    elif class_names(terms):
        given += "; rows by class and predicted class"
    parts = [f"of the levels of {by}"] * bool(by) + ["of each site alone"] * evaluation.party_metrics
    given += f"; also {' and '.join(parts)}" if parts else ""
    which = {
        "all": "the rows",
        "held-out": "the rows that its training held out",
        "new": "the rows that were added",
    }
    of = which[evaluation.evaluate_rows]
    return [
        ("evaluates", f"a model on {of} of all sites together; nothing is trained"),
        _model(terms),
    ], given


def _drift(terms: Terms) -> tuple[Lines, str]:
    does = "the rows of all sites together against those that a model was trained on; labels are not read"
    return [("holds", does), _model(terms)], "rows by bin of each column and of the score"


def _model(terms: Terms) -> tuple[str, str]:
    trees = terms.earlier.trees if terms.earlier else ()
    leaves = sum(tree.left.count(NO_CHILD) for tree in trees)
    parts = f"{len(trees)} trees with {leaves:,} leaves, which are in the terms"
    return "model", f"{delimited(terms.objective.name)}, {parts}"


def _origin(origin: OriginFacts) -> Lines:
    """Who signed the model, and what its leaves could tell."""
    signed = f"{listed(origin.others)}, whose signature this site accepts (evaluate_signers)"
    if origin.own:
        signed = "this site, which took part in its training"
    elif origin.unknown:
        signed = f"not known: {origin.unknown}"
    elif not origin.others:
        signed = "neither this site nor a party whose signature it accepts (evaluate_signers)"
    leaves = f"each leaf of its trees has at least {origin.rows} rows of its training"
    if origin.rows == 1:
        leaves = (
            "this model may have leaves of single rows; the analyst can read at most "
            f"{origin.readable:,} values of single people per session"
        )
    return [("signed by", signed), ("leaves", leaves)]
