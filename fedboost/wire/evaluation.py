"""The queries that measure a model to protobuf and back.

Refuses: values outside their ranges, and longer lists than there can be (PeerError).
"""

from typing import Any

from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.metrics.registry import is_metric
from fedboost.terms.columns import MAX_CLASSES
from fedboost.terms.objective import MAX_METRICS, MAX_SUBGROUPS
from fedboost.terms.session import MAX_PARTIES
from fedboost.wire.bounds import bounded, require, rows_of, scale_from_pb, scale_to_pb

MAX_SETS = 1 + MAX_SUBGROUPS * (1 + MAX_CATEGORIES)


def evaluation_to_pb(query: EvaluationQuery) -> dict[str, Any]:
    return {
        "rows": query.rows,
        "metrics": query.metrics,
        "sets": query.sets,
        "sites": query.sites,
        "scores": query.scores,
        "classes": query.classes,
        "threshold": query.threshold,
        "weight": scale_to_pb(query.weight),
        "caps": query.caps,
    }


def magnitudes_to_pb(query: MagnitudesQuery) -> dict[str, Any]:
    return {"metrics": query.metrics}


def magnitudes_from_pb(q: Any) -> MagnitudesQuery:
    """The query for the magnitudes of losses."""
    return MagnitudesQuery(_metrics(q))


def _metrics(q: Any) -> tuple[str, ...]:
    require(all(map(is_metric, q.metrics)), "a metric this version does not know")
    return tuple(bounded(q.metrics, MAX_METRICS, "metrics"))


def evaluation_from_pb(q: Any) -> EvaluationQuery:
    """The query for metrics of a model."""
    require(q.classes <= MAX_CLASSES, f"{q.classes} classes; {MAX_CLASSES} are allowed")
    require(0 < q.threshold < 1, f"the threshold {q.threshold:g}")
    return EvaluationQuery(
        rows_of(q),
        _metrics(q),
        bounded(q.sets, MAX_SETS, "sets of rows"),
        bounded(q.sites, MAX_PARTIES, "sites"),
        q.scores,
        q.classes,
        q.threshold,
        scale_from_pb(q.weight),
        tuple(bounded(q.caps, MAX_METRICS, "caps")),
    )
