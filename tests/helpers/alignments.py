"""Sessions in which rows are matched by their ids, message by message: programs that lie of the places of
rows, and how they end."""

from dataclasses import replace
from functools import cache

import numpy as np

from fedboost.boosting.programs import boosting
from fedboost.boosting.programs.initialisation import places_of, reach_of
from fedboost.boosting.queries.ids import UNKNOWN, AlignQuery, IdCountQuery, hash_of
from fedboost.privacy.points import POINT_BYTES, points_of
from fedboost.protocol.messages import Connected, Disconnected
from fedboost.wire.messages import encode_from_party
from tests.helpers import apart_sessions
from tests.helpers.apart_sessions import Apart
from tests.helpers.columns_apart import LAYOUTS, pooled, scattered

ROWS, FEWEST = 60, 20
COMMON = {"rows": "common", "min_common_rows": FEWEST, "columns": {"row_id": "id"}}
LEFT = {**COMMON, "rows": "label_holder"}
ALIGN, PLACES = 2, 3
"""The turns of these questions."""
CHECK = (
    "the common rows have different ids at this party and at label holder bank: the aggregator matched rows "
    "incorrectly, or a party submitted ids of rows that it does not have"
)
OTHER_ROWS = (
    "the rows that party telco reports as known differ from those that the aggregator matched; contact "
    "the operators of both"
)
JOINED = {
    "logistic": ("binary", {}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "forest": ("binary", {"subsample": 0.6, "num_parallel_tree": 2}),
    "validation": ("binary", {"validation_fraction": 0.3, "early_stopping_rounds": 2}),
    "base margins": ("binary", {"columns": {"base_margin": "margin"}}),
}
"""Labels and settings with which models of joined tables are trained."""


@cache
def tables_of(layout):
    return scattered(LAYOUTS[layout], pooled(ROWS))[0]


def matching(layout="three holders", **settings):
    return Apart(layout, **{"tables": tables_of(layout), **COMMON, **settings})


# ---- an aggregator that lies ----------------------------------------------------------------------------


def counted(terms):
    """The sizes of all lists, as each party counts its ids."""
    return (yield IdCountQuery(len(terms.parties)))


def matched_places(terms):
    """Up to the places of the rows that take part."""
    query = AlignQuery(tuple((yield from counted(terms)).tolist()))
    return (reach_of if terms.vertical.predicts else places_of)(terms, query, (yield query))


def asking(*queries):
    """A program that matches rows as it must, and then asks these of terms and places."""

    def program(terms, grown):
        places = yield from matched_places(terms)
        for query in queries:
            yield query(terms, places)
        if not terms.vertical.predicts:
            yield from boosting.train(terms, grown)

    return program


def other_places(change, *parties):
    """A program that changes the places of these parties."""

    def query(terms, places):
        told = [places.of(number).copy() for number in range(len(terms.parties))]
        hashes = told[0].size != places.total  # the label holder is told who has which rows
        for party in parties:
            number = terms.parties.index(party)
            told[number] = change(told[number])
            if number and hashes:
                told[0] = np.concatenate([hash_of(own != UNKNOWN) for own in told[1:]])
        return replace(places, sizes=tuple(own.size for own in told), places=np.concatenate(told))

    return asking(query)


def known_of(places):
    return np.flatnonzero(places != UNKNOWN)


def with_first(value):
    """The place of the first known row is this."""

    def change(places):
        places[known_of(places)[0]] = value
        return places

    return change


def doubled(places):
    return with_first(places[known_of(places)[1]])(places)


def swapped(places):
    one, other = known_of(places)[:2]
    places[[one, other]] = places[[other, one]]
    return places


def moved(places):
    """The place of a row is told of one that the party does not have."""
    known, unknown = known_of(places)[0], np.flatnonzero(places == UNKNOWN)[0]
    places[[known, unknown]] = places[[unknown, known]]
    return places


def only(rows):
    """No more than these known rows."""

    def change(places):
        places[known_of(places)[rows:]] = UNKNOWN
        return places

    return change


# ---- how sessions end -----------------------------------------------------------------------------------


def points_in(apart):
    """The points of the ids of all parties, under the context of the session, each alone."""
    ids = {str(row_id).encode() for table in apart.tables.values() for row_id in table["id"].to_pylist()}
    points = points_of(sorted(ids), apart.terms.digest.encode())
    return [points[begin : begin + POINT_BYTES] for begin in range(0, len(points), POINT_BYTES)]


def refused(apart):
    """The reason for which a session ends; its messages show no point of an id."""
    error = apart_sessions.refused(apart)
    said = b"".join(
        encode_from_party(message)
        for _, message in apart.sent
        if not isinstance(message, Connected | Disconnected)
    )
    assert not [point for point in points_in(apart) if point in said]
    return error
