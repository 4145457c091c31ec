"""Queries that match rows, or have them predicted, to protobuf and back.

Refuses: values outside their ranges, and longer lists than there can be (PeerError).
"""

from typing import Any

import numpy as np

from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery
from fedboost.fixedpoint import Int64
from fedboost.terms.session import MAX_PARTIES
from fedboost.wire.bounds import bounded, require

_INT32 = np.dtype("<i4")


def id_count_to_pb(query: IdCountQuery) -> dict[str, Any]:
    return {"parties": query.parties}


def id_count_from_pb(q: Any) -> IdCountQuery:
    require(0 < q.parties <= MAX_PARTIES, f"{q.parties} parties")
    return IdCountQuery(q.parties)


def align_to_pb(query: AlignQuery) -> dict[str, Any]:
    return {"sizes": query.sizes}


def align_from_pb(q: Any) -> AlignQuery:
    return AlignQuery(bounded(q.sizes, MAX_PARTIES, "parties"))


def places_to_pb(query: PlacesQuery) -> dict[str, Any]:
    """The fields of places, of rows in common or of rows that are predicted."""
    places = query.places.astype(_INT32).tobytes()
    return {"total": query.total, "sizes": query.sizes, "places": places}


def places_from_pb(q: Any) -> PlacesQuery:
    """The query with the places of common rows."""
    return PlacesQuery(q.total, *_told(q))


def reach_from_pb(q: Any) -> ReachQuery:
    """The query with the places of rows that are predicted."""
    return ReachQuery(q.total, *_told(q))


def _told(q: Any) -> tuple[tuple[int, ...], Int64]:
    """How many places are told of each party, and the places."""
    sizes = bounded(q.sizes, MAX_PARTIES, "parties")
    require(_INT32.itemsize * sum(sizes) == len(q.places), f"{len(q.places)} bytes of {sum(sizes)} places")
    return sizes, np.frombuffer(q.places, _INT32).astype(np.int64)
