"""Sessions in which rows are matched by their ids, message by message, and how they end."""

from functools import cache

from fedboost.privacy.points import POINT_BYTES, points_of
from fedboost.protocol.messages import Connected, Disconnected
from fedboost.wire.messages import encode_from_party
from tests.helpers.apart_sessions import Apart
from tests.helpers.columns_apart import LAYOUTS, pooled, scattered

ROWS, FEWEST = 60, 20
COMMON = {"rows": "common", "min_common_rows": FEWEST, "columns": {"row_id": "id"}}
ALIGN, PLACES = 2, 3
"""The turns of these questions."""
CHECK = (
    "the rows that are said to be common have other ids here than at label holder bank: the aggregator "
    "joined them wrongly, or a party entered other ids than it has"
)


@cache
def tables_of(layout):
    return scattered(LAYOUTS[layout], pooled(ROWS))[0]


def matching(layout="three holders", **settings):
    return Apart(layout, tables=tables_of(layout), **{**COMMON, **settings})


def points_in(apart):
    """The points of the ids of all parties, under the context of the session, each alone."""
    ids = {str(row_id).encode() for table in apart.tables.values() for row_id in table["id"].to_pylist()}
    points = points_of(sorted(ids), apart.terms.digest.encode())
    return [points[begin : begin + POINT_BYTES] for begin in range(0, len(points), POINT_BYTES)]


def refused(apart):
    """The reason for which a session ended without a model, told in one line; its messages show no point of
    an id."""
    if not apart.told:
        apart.play()
    assert apart.session.phase == "failed"
    assert apart.session.booster is None
    reasons = [reason for reason in map(apart.left, apart.terms.parties) if reason]
    for reason in [apart.error, *reasons]:
        assert reason.isprintable()
        assert len(reason) < 400
    said = b"".join(
        encode_from_party(message)
        for _, message in apart.sent
        if not isinstance(message, Connected | Disconnected)
    )
    assert not [point for point in points_in(apart) if point in said]
    return apart.error
