"""Facts as JSON: plain values, one object a line, for scripts.

Promises: the keys of an object never change their meaning.
Refuses: nothing.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.fixedpoint import Float64
from fedboost.gbdt.metrics import by_party
from fedboost.results.base import Traffic
from fedboost.views.estimates import ColumnsFacts, LayoutsFacts
from fedboost.views.facts import (
    DemoFacts,
    EstimateFacts,
    TrainingFacts,
    WorkersFacts,
)
from fedboost.views.privacy import Outlook, Planned, PrivacyReport
from fedboost.views.training import ColumnsDemoFacts, metrics_of

if TYPE_CHECKING:
    from fedboost.wire.messages import SiteReply, Status


Object = Mapping[str, Any]


def round_of(row: Mapping[str, float]) -> Object:
    """Return a row of the history."""
    return {"event": "round", **row}


def training(facts: TrainingFacts) -> Iterator[Object]:
    """Yield the end of a training."""
    model, party_metrics = facts.model, by_party(facts.model.last_row)
    yield {
        "event": "done",
        "model": facts.file,
        "fingerprint": model.fingerprint,
        "terms": model.terms.digest,
        "protection": model.terms.hiding.protection,
        "signed_by": list(model.signed_by),
        "metrics": metrics_of(model.last_row),
        **({"party_metrics": party_metrics} if party_metrics else {}),
        "traffic": _traffic(facts.traffic),
        **({"traffic_since_restart": True} if facts.since_restart else {}),
    }


def demo(facts: DemoFacts) -> Iterator[Object]:
    """Yield the end of a demo."""
    yield _demo(facts)


def columns_demo(facts: ColumnsDemoFacts) -> Iterator[Object]:
    """Yield the end of a demo of different columns."""
    apart = facts.apart
    yield {
        **_demo(facts.demo),
        "columns": apart.columns,
        "rows": apart.rows,
        "rows_in_common": apart.common,
        "rows_held_out": apart.new,
        "parts": facts.kept,
        "shares": facts.demo.training.shares,
    }


def _demo(facts: DemoFacts) -> Object:
    training = facts.training
    return {
        "event": "done",
        "model": training.file,
        "equal": facts.equal,
        "protection": training.model.terms.hiding.protection,
        "signed_by": list(training.model.signed_by),
        "held_out": facts.scores,
        "traffic": _traffic(training.traffic),
    }


def _traffic(traffic: Traffic) -> Object:
    return {party: {"sent": sent, "received": received} for party, (sent, received) in traffic.items()}


def importances(kinds: Sequence[str], by_feature: Mapping[str, Sequence[float]]) -> Iterator[Object]:
    """Yield the importances of each feature."""
    for name, values in by_feature.items():
        yield {"feature": name, **dict(zip(kinds, values, strict=True))}


def estimates(by_protection: Sequence[EstimateFacts], rows: int, parties: int) -> Iterator[Object]:
    """Yield the estimate of each protection."""
    for facts in by_protection:
        yield {**asdict(facts), "rows": rows, "parties": parties}


def workers_estimate(facts: WorkersFacts) -> Iterator[Object]:
    """Yield the estimate of a site whose rows are on workers."""
    yield {"event": "workers", **asdict(facts)}


def columns_estimates(by_protection: Sequence[ColumnsFacts], rows: int) -> Iterator[Object]:
    """Yield the estimate of each protection, where parties hold different columns."""
    for facts in by_protection:
        yield {**asdict(facts), "rows": rows}


def layouts(facts: LayoutsFacts, rows: int, parties: int) -> Iterator[Object]:
    """Yield the estimate of each layout over links; no bandwidth where any number of bytes pass."""
    link = {"rtt_ms": facts.rtt_ms}
    if math.isfinite(facts.bandwidth_mbit):
        link["bandwidth_mbit"] = facts.bandwidth_mbit
    for layout in facts.layouts:
        yield {**asdict(layout), **link, "rows": rows, "parties": parties}


def plan(report: PrivacyReport, releases: Sequence[Planned], outlooks: Sequence[Outlook]) -> Iterator[Object]:
    """Yield the releases that terms plan, the outlooks, and what they come to."""
    for planned in releases:
        yield {"event": "release", **asdict(planned)}
    for outlook in outlooks:
        yield {"event": "outlook", **asdict(outlook)}
    total = ("epsilon", "delta", "cost", "epsilon_spent", "zcdp_epsilon", "honest")
    yield {"event": "total", **{name: report[name] for name in total}}


def status(facts: "Status") -> Object:
    """Return the status of an aggregator; times are seconds since 1970, 0 for never."""
    sessions = [{**asdict(session), "state": session.state.name.lower()} for session in facts.sessions]
    return {**asdict(facts), "sessions": sessions}


def site_reply(site: "SiteReply") -> Object:
    """Return a site's answer to a check of terms."""
    return {**asdict(site), "would": site.would}


# ---- Predictions, their explanations, and comparisons of sites as CSV -----------------------------------
# Promises: numbers are written whole, so that they are read back as they were.


BIAS, CLASS, PREDICTION = "bias", "class", "prediction"


def prediction_names(kept: Sequence[str], classes: Sequence[object]) -> list[str]:
    """Return the names of the columns of predictions: those that are kept, that of the prediction, and the
    classes; the second differs from all others, and a class from those that are kept."""
    names = [str(name) for name in classes]
    while {*names} & {*kept}:
        names = [f"{name}_" for name in names]
    first = PREDICTION
    while first in (*kept, *names):
        first += "_"
    return [*kept, first, *names]


def rows(columns: Mapping[str, Sequence[object]], header: bool) -> str:
    """Return rows by column, with or without the names above; what is missing is empty."""
    values = zip(*columns.values(), strict=True)
    return _written([*columns] if header else None, values)


def contributions(values: Float64, features: Sequence[str], classes: Sequence[object]) -> str:
    """Return SHAP values, [rows, features + 1], or [rows, classes, features + 1]: a line for each class."""
    several = values.ndim == 3
    names: list[list[object]] = [[name] for name in classes] if several else [[]]
    rows = (
        [*name, *output]
        for row in values
        for name, output in zip(names, np.atleast_2d(row).tolist(), strict=True)
    )
    return _written([*([CLASS] if several else []), *features, BIAS], rows)


def dependence(feature: str, grid: Sequence[object], means: Float64, classes: Sequence[object]) -> str:
    """Return the mean predictions, [grid] or [grid, classes], by the values of a feature."""
    rows = ([value, *np.atleast_1d(mean).tolist()] for value, mean in zip(grid, means, strict=True))
    return _written([feature, *(classes if means.ndim == 2 else [PREDICTION])], rows)


def _written(head: Iterable[object] | None, rows: Iterable[Iterable[object]]) -> str:
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if head is not None:
        lines.writerow(head)
    lines.writerows(rows)
    return text.getvalue()
