"""The queries by which rows are matched, before all others.

Promises: a pure function of the terms and the sums; the places of a party's rows do not depend on what other
blocks have.
Refuses: lists that no parties can have told (PeerError), too many ids and too few common rows (Refused).
"""

from collections.abc import Generator

import numpy as np

from fedboost.boosting.queries.alignment import AlignQuery, IdCountQuery, PlacesQuery, few_in_common
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.privacy.points import TOKEN_WORDS, intersect
from fedboost.terms.terms import Terms


def align(terms: Terms) -> Generator[OfTurn, Int64, None]:
    """Have the parties of each block agree on the rows that all of them have."""
    counts = yield IdCountQuery(len(terms.parties))
    query = AlignQuery(tuple(counts.tolist()))
    query.check(terms)
    places = places_of(terms, query, (yield query))
    if int((yield places)[0]) != places.total:
        raise PeerError(f"the label holders have other rows than the {places.total} in common")


def places_of(terms: Terms, query: AlignQuery, tokens: Int64) -> PlacesQuery:
    """The places of the common rows, from the tokens of all lists."""
    ends = np.cumsum(query.sizes)[:-1]
    words = tokens.astype(np.uint32).reshape(-1, TOKEN_WORDS)
    lists = dict(zip(terms.parties, np.split(words, ends), strict=True))
    places: dict[str, Int64] = {}
    total = 0
    for block in terms.blocks:
        common = intersect([lists[party] for party in block.parties])
        rows, fewest = common[0].size, terms.vertical.fewest_common_rows
        if rows < fewest:
            raise Refused(few_in_common(rows, fewest, block.parties))
        places |= dict(zip(block.parties, common, strict=True))
        total += rows
    told = [places[party] for party in terms.parties]
    return PlacesQuery(total, tuple(own.size for own in told), np.concatenate(told))
