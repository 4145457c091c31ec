"""Matched rows: the queries that match rows by their ids before all others, and joint predictions.

Promises: a pure function of the terms and the sums; the places of a party's rows do not depend on what other
blocks have.
Refuses: lists that no parties can have told (PeerError), too many ids and too few common rows (Refused).
"""

from collections.abc import Generator, Mapping, Sequence

import numpy as np

from fedboost.boosting.programs.initialisation import no_model
from fedboost.boosting.queries.ids import (
    UNKNOWN,
    AlignQuery,
    IdCountQuery,
    PlacesQuery,
    ReachQuery,
    check_predicted,
    few_in_common,
    hash_of,
)
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.privacy.points import TOKEN_WORDS, Tokens, intersect
from fedboost.protocol.contracts import GrownTrees
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
    """The places of the common rows, or of all rows of the label holder, from the tokens of all lists."""
    lists = lists_of(terms, query, tokens)
    if terms.vertical.takes_all_rows:
        of_all = PlacesQuery(*known_places(terms, lists))
        of_all.check(terms)
        return of_all
    places: dict[str, Int64] = {}
    total = 0
    for block in terms.blocks:
        common = matched(lists, block.parties)
        rows, fewest = common[0].size, terms.vertical.fewest_common_rows
        if rows < fewest:
            raise Refused(few_in_common(rows, fewest, block.parties))
        places |= dict(zip(block.parties, common, strict=True))
        total += rows
    told = [places[party] for party in terms.parties]
    return PlacesQuery(total, tuple(own.size for own in told), np.concatenate(told))


def known_places(terms: Terms, lists: Mapping[str, Tokens]) -> tuple[int, tuple[int, ...], Int64]:
    """The fields of places of all rows of the label holder, in the order of its list: how many they are, how
    many places are told of each party, and the places, UNKNOWN where a feature holder does not have the
    row; of the label holder a hash of which rows each of these has."""
    (block,) = terms.blocks
    holder = block.label_holder
    rows = len(lists[holder])
    places: dict[str, Int64] = {}
    for party in block.feature_holders:
        own, theirs = matched(lists, (holder, party))
        places[party] = np.full(rows, UNKNOWN, np.int64)
        places[party][own] = theirs
    places[holder] = np.concatenate([hash_of(own != UNKNOWN) for own in places.values()])
    told = [places[party] for party in terms.parties]
    return rows, tuple(own.size for own in told), np.concatenate(told)


def lists_of(terms: Terms, query: AlignQuery, tokens: Int64) -> dict[str, Tokens]:
    """The tokens of each party's list: uint32 [ids, 4]."""
    ends = np.cumsum(query.sizes)[:-1]
    words = tokens.astype(np.uint32).reshape(-1, TOKEN_WORDS)
    return dict(zip(terms.parties, np.split(words, ends), strict=True))


def matched(lists: Mapping[str, Tokens], parties: Sequence[str]) -> list[Int64]:
    """The places in the lists of these parties of the tokens that all of them have: int64 [common] each.
    PeerError, which names the parties, for a list with a token twice."""
    try:
        return intersect([lists[party] for party in parties])
    except PeerError as error:
        raise PeerError(f"row ids of parties {', '.join(parties)}: {error}") from None


# ---- The prediction of rows by parties that hold different columns: three turns, whatever the trees -----
# Promises: a pure function of the terms and the sums; the places of a party's rows do not depend on what
# other feature holders have.
# Refuses: lists that no parties can have told (PeerError); another number of rows than the terms say, and
# rows of which a feature holder knows too few (Refused).


def predict(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Booster]:
    """Have the feature holders tell the label holder which leaves its rows reach. A model without trees: the
    aggregator has none."""
    counts = yield IdCountQuery(len(terms.parties))
    query = AlignQuery(tuple(counts.tolist()))
    (block,) = terms.blocks
    check_predicted(terms, query.sizes[terms.parties.index(block.label_holder)])
    query.check(terms)
    reach = reach_of(terms, query, (yield query))
    reach.check(terms)
    if int((yield reach)[0]) != reach.total:
        raise PeerError(f"the label holder has predicted other rows than the {reach.total} there are")
    return no_model(terms)


def reach_of(terms: Terms, query: AlignQuery, tokens: Int64) -> ReachQuery:
    """The places of the rows that are predicted, from the tokens of all lists."""
    return ReachQuery(*known_places(terms, lists_of(terms, query, tokens)))
