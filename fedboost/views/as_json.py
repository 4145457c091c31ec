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
from fedboost.views.audit import AuditFacts, ReleaseFacts, SessionFacts, WarningFacts
from fedboost.views.estimates import ColumnsFacts, LayoutsFacts
from fedboost.views.facts import (
    DemoFacts,
    EstimateFacts,
    PrivacyFacts,
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


def audit(facts: AuditFacts) -> Iterator[Object]:
    """Yield the warnings of an audit, its sessions, and what was verified."""
    for warning in facts.warnings:
        yield _warning(warning)
    for session in facts.sessions:
        yield _session(session)
        for release in session.releases if facts.listed else ():
            yield {"event": "released", **_release(release)}
    for asked in facts.checks:
        yield {"event": "checked", **vars(asked)}
    expected = {} if facts.expected is None else {"expected": facts.expected}
    verified = {"entries": facts.entries, "warnings": len(facts.warnings), "hash": facts.last_hash}
    earlier = {"earlier": facts.earlier} if facts.earlier else {}
    yield {"event": "verified", **verified, **expected, **earlier}


def _warning(warning: WarningFacts) -> Object:
    return {
        "event": "warning",
        "kind": warning.name,
        "rule": warning.rule,
        "sessions": warning.sessions,
        "seen": warning.seen,
        "meaning": warning.meaning,
        "action": warning.action,
    }


def _release(release: ReleaseFacts) -> Object:
    return {name: value for name, value in vars(release).items() if name != "again"}


def _relayed(session: SessionFacts) -> list[Object]:
    return [
        {
            "what": what,
            "to": receivers,
            "times": len(relays),
            "rows": max(relay.rows for relay in relays),
            "bytes": sum(relay.size for relay in relays),
        }
        for (what, receivers), relays in session.by_receivers.items()
    ]


def _session(session: SessionFacts) -> Object:
    agreement = session.agreement
    answers = {
        query: {
            "times": len(releases),
            "integers": sum(release.cells for release in releases),
            "bytes": sum(release.bytes for release in releases),
        }
        for query, releases in session.by_query.items()
    }
    return {
        "event": "session",
        "session": session.name,
        "begin": session.begin,
        "end": session.end,
        "terms": agreement.terms if agreement else None,
        "analyst": agreement.analyst if agreement else session.ending.analyst,
        "request": agreement.request if agreement else None,
        "attempts": session.attempts,
        "taken_up": session.taken_up,
        "parties": agreement.parties if agreement else None,
        "columns": agreement.columns if agreement else None,
        "protections": session.protections,
        "placement": agreement.placement if agreement else None,
        "released": answers,
        **({"relayed": _relayed(session)} if session.relays else {}),
        "cost": session.cost,
        "epsilon": session.epsilon,
        "smallest_roster": len(session.smallest_roster) if session.releases else None,
        "ended": session.ending.closed if session.ending.over else None,
    }


def spent(datasets: Sequence[PrivacyFacts]) -> Iterator[Object]:
    """Yield the privacy that was spent of each dataset."""
    yield from map(asdict, datasets)


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
