"""Queries about the values of columns to protobuf and back.

Refuses: values outside their ranges, and longer lists than there can be (PeerError).
"""

from typing import Any

from fedboost.boosting.queries.columns import BinCountsQuery, BinsQuery, RangeQuery, SummaryQuery
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.terms.columns import MAX_CLASSES
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.trees import MAX_ROUNDS
from fedboost.wire.bounds import bounded, require, rows_of

Fields = dict[str, Any]


def bins_to_pb(query: BinsQuery) -> Fields:
    return {"features": query.features}


def bins_from_pb(q: Any) -> BinsQuery:
    """The query for bins."""
    require(q.features <= MAX_FEATURES, f"{q.features} features; {MAX_FEATURES} are allowed")
    return BinsQuery(q.features)


def ranges_to_pb(query: RangeQuery) -> Fields:
    return {"rows": query.rows, "features": query.features}


def ranges_from_pb(q: Any) -> RangeQuery:
    """The query for rows by parts of ranges."""
    return RangeQuery(rows_of(q), q.features)


def bin_counts_to_pb(query: BinCountsQuery) -> Fields:
    return {"sizes": query.sizes, "score": query.score, "rounds": query.rounds}


def bin_counts_from_pb(q: Any) -> BinCountsQuery:
    """The query for rows by bin of features and score."""
    sizes = tuple(bounded(q.sizes, MAX_FEATURES, "features"))
    require(all(0 < size <= MAX_CATEGORIES + 1 for size in sizes), "bins of a feature")
    require(0 < q.score <= MAX_CLASSES and q.rounds <= MAX_ROUNDS, "bins of the score")
    return BinCountsQuery(sizes, q.score, q.rounds)


def summary_to_pb(query: SummaryQuery) -> Fields:
    return {"numeric": query.numeric, "levels": query.levels, "classes": query.classes}


def summary_from_pb(q: Any) -> SummaryQuery:
    """The query for rows by level."""
    levels = tuple(bounded(q.levels, MAX_FEATURES, "categorical features"))
    require(q.numeric <= MAX_FEATURES, f"{q.numeric} features; {MAX_FEATURES} are allowed")
    require(max(levels, default=0) <= MAX_CATEGORIES, f"{max(levels, default=0)} levels")
    require(q.classes <= MAX_CLASSES, f"{q.classes} classes; {MAX_CLASSES} are allowed")
    return SummaryQuery(q.numeric, levels, q.classes)
