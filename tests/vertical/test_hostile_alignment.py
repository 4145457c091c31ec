"""Rows are matched by ids, and the aggregator lies: the session ends with one line that says who and what,
without a model, and no message shows a point that is made of an id alone."""

from dataclasses import replace

import numpy as np
import pytest

from fedboost.boosting.programs import boosting
from fedboost.boosting.programs.initialisation import places_of
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.protocol.contracts import Several
from fedboost.protocol.messages import Ask, Introduce, Relay, Report
from tests.helpers.alignments import ALIGN, CHECK, FEWEST, PLACES, matching, refused, tables_of
from tests.helpers.apart_sessions import LOST, once


def honest(terms):
    """Up to the places of common rows."""
    counts = yield IdCountQuery(len(terms.parties))
    query = AlignQuery(tuple(counts.tolist()))
    return places_of(terms, query, (yield query))


def asking(*queries):
    """A program that matches rows as it must, and then asks these."""

    def program(terms, grown):
        places = yield from honest(terms)
        for query in queries:
            yield query(terms, places)
        yield from boosting.train(terms, grown)

    return program


def other_places(change, parties=("bank", "telco", "shop")):
    """A program that changes the places of these parties."""

    def query(terms, places):
        told = [places.of(number).copy() for number in range(len(terms.parties))]
        for party in parties:
            number = terms.parties.index(party)
            told[number] = change(told[number])
        return PlacesQuery(places.total, tuple(own.size for own in told), np.concatenate(told))

    return asking(query)


def with_at(place, value):
    def change(places):
        places[place] = value
        return places

    return change


FEW = f"have {FEWEST - 1} rows in common, and the terms say min_common_rows = {FEWEST}: compare "
BAD_PLACES = {
    "told twice": (lambda own: with_at(0, own[1])(own), ("telco",), "a row that is said to be common twice"),
    "below 0": (with_at(3, -1), ("telco",), "a row that is said to be common twice"),
    "out of range": (with_at(3, 10**6), ("telco",), "common rows, or one of another list"),
    "too few": (lambda own: own[: FEWEST - 1], ("telco",), FEW),
    "one row": (lambda own: own[:1], ("bank", "telco", "shop"), "have 1 rows in common"),
    "none": (lambda own: own[:0], ("shop",), "0 common rows, or one of another list"),
    "a swapped pair": (lambda own: own[[1, 0, *range(2, own.size)]], ("shop",), CHECK),
    "a row too few": (lambda own: own[1:], ("shop",), CHECK),
    "a swapped pair of the label holder": (
        lambda own: own[[1, 0, *range(2, own.size)]],
        ("bank",),
        CHECK,
    ),
}


@pytest.mark.parametrize("lie", BAD_PLACES)
def test_places_that_cannot_be_are_refused_by_the_party_that_is_told_them(lie):
    change, parties, says = BAD_PLACES[lie]
    apart = matching(program=other_places(change, parties))
    assert says in refused(apart)
    assert apart.session.turn == PLACES


def test_places_of_all_parties_are_refused():
    """Also where they are those that each party gets, so that the aggregator breaks no promise but this."""

    def down(party, message):
        if party == "telco" and isinstance(message, Ask) and message.turn == PLACES:
            return [replace(message, query=apart.session.run.pending)]
        return None

    apart = matching()
    apart.down = down
    assert refused(apart) == (
        "party telco left: told of columns of other parties, or of leaf values without labels"
    )


def test_places_of_another_party_are_refused():
    def down(party, message):
        if party == "telco" and isinstance(message, Ask) and message.turn == PLACES:
            return [replace(message, query=apart.session.run.pending.seen_by(apart.terms, "shop"))]
        return None

    apart = matching()
    apart.down = down
    assert refused(apart).startswith("party telco left: told of")


def again(terms, places):
    sizes = tuple(len(tables_of("three holders")[party]) for party in terms.parties)
    return AlignQuery(sizes)


REPEATED = {
    "ids": (again, "AlignQuery in turn 3, and turn 2 is for it alone"),
    "ids, with another question": (
        lambda terms, places: Several((again(terms, places), places)),
        "AlignQuery in turn 3, and turn 2 is for it alone",
    ),
    "places, with another question": (
        lambda terms, places: Several((places, RowsQuery())),
        "PlacesQuery in turn 3, and turn 3 is for it alone",
    ),
    "the number of ids": (
        lambda terms, places: IdCountQuery(len(terms.parties)),
        "IdCountQuery in turn 3, and turn 1 is for it alone",
    ),
    "rows": (lambda terms, places: RowsQuery(), "rows are counted once they are matched"),
}


@pytest.mark.parametrize("what", REPEATED)
def test_each_question_that_matches_rows_is_asked_once(what):
    """Else a party would enter as many ids as the terms allow in each."""
    query, says = REPEATED[what]
    error = refused(matching(program=asking(query)))
    assert error == f"party bank left: {says}"


def test_two_lists_in_one_turn_are_refused():
    def program(terms, grown):
        counts = yield IdCountQuery(len(terms.parties))
        query = AlignQuery(tuple(counts.tolist()))
        yield Several((query, query))

    assert refused(matching(program=program)) == (
        "party bank left: AlignQuery in turn 2, and turn 2 is for it alone"
    )


@pytest.mark.parametrize("by", [-1, 1])
def test_sizes_other_than_were_told_are_refused(by):
    def program(terms, grown):
        counts = yield IdCountQuery(len(terms.parties))
        counts[1] += by
        yield AlignQuery(tuple(counts.tolist()))

    size = len(tables_of("three holders")["telco"])
    assert refused(matching(program=program)) == (
        f"party telco left: {size + by} row ids are said to be here, there are {size}"
    )


def test_sizes_that_differ_between_parties_open_nothing():
    def other(message):
        sizes = message.query.sizes
        return [replace(message, query=replace(message.query, sizes=(sizes[0], sizes[1], sizes[2] + 1)))]

    down = once(lambda party, m: party == "telco" and isinstance(m, Ask) and m.turn == ALIGN, other)
    apart = matching(down=down)
    assert "relayed does not open: it was changed on the way" in refused(apart)
    assert not [report for report in apart.said(Report) if report.turn == ALIGN]


@pytest.mark.parametrize("turn", [ALIGN, PLACES])
def test_another_question_in_a_turn_that_was_answered_is_refused_after_a_restart(turn):
    """With other sizes, or other places."""

    def up(party, message):
        if (party, type(message)) == ("shop", Report) and (message.turn, message.attempt) == (turn, 1):
            apart.crash("shop")
            return LOST
        return None

    def down(party, message):
        if (party, type(message)) != ("shop", Ask) or (message.turn, message.attempt) != (turn, 2):
            return None
        query = message.query
        sizes, places = {"sizes": (query.sizes[0] + 1, *query.sizes[1:])}, getattr(query, "places", None)
        other = sizes if turn == ALIGN else {"places": places[::-1].copy()}
        return [replace(message, query=replace(query, **other))]

    apart = matching(up=up)
    apart.down = down
    assert refused(apart) == (
        f"party shop left: another question in turn {turn}, or elsewhere in the tree, than before"
    )


@pytest.mark.parametrize("when", ["before they were told", "after they were told"])
def test_an_introduction_with_other_places_is_refused(when):
    """Told to a party whose process is another one by now."""

    def down(party, message):
        if party != "shop":
            return None
        turn = ALIGN if when == "before they were told" else 6
        if isinstance(message, Ask) and message.turn == turn and message.attempt == 1:
            apart.crash("shop")
            return LOST
        if isinstance(message, Introduce) and apart.session.attempt == 2:
            known = message.state.places
            number = apart.terms.parties.index("shop")
            if known is None:
                sizes = tuple(FEWEST * (place == number) for place in range(3))
                known = PlacesQuery(FEWEST, sizes, np.arange(FEWEST))
            else:
                known = replace(known, places=known.places[::-1].copy())
            return [replace(message, state=replace(message.state, places=known))]
        return None

    apart = matching()
    apart.down = down
    assert refused(apart) == (
        "party shop left: the session is said to stand where it cannot, after what was asked here"
    )


def test_a_list_in_the_place_of_another_does_not_open():
    """The aggregator passes the first one of a party on again as its second."""
    first = []

    def down(party, message):
        if (party, type(message)) != ("shop", Relay) or message.turn != ALIGN:
            return None
        first.append(message)
        return [replace(message, content=first[0].content)]

    error = refused(matching("three holders", down=down))
    assert error.startswith("party shop left: what party telco relayed does not open")


# ---- who may be asked -----------------------------------------------------------------------------------


def test_a_party_without_keys_is_refused():
    apart = matching()
    apart.crash("shop", credentials=None)
    assert refused(apart).startswith("party shop left: parties with different columns seal")
