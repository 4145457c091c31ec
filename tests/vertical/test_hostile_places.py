"""Rows are matched by ids, to train with those that all have, with all of the label holder, or to predict,
and the aggregator lies: the session ends with one line that says who and what, without a model, and no
message shows a point that is made of an id alone."""

from dataclasses import replace

import numpy as np
import pytest

from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.holders.alignment import CHECK as CHECK_OF_IDS
from fedboost.holders.alignment import KNOWN
from fedboost.protocol.contracts import Several
from fedboost.protocol.messages import Ask, Introduce, Relay, Report
from tests.helpers.alignments import (
    ALIGN,
    CHECK,
    FEWEST,
    LEFT,
    OTHER_ROWS,
    PLACES,
    asking,
    counted,
    doubled,
    matching,
    moved,
    only,
    other_places,
    refused,
    swapped,
    tables_of,
    with_first,
)
from tests.helpers.apart_sessions import LOST, opening, sealing
from tests.helpers.memories import reopening
from tests.helpers.predictions import Predicting, due

PARTIES = "bank", "telco", "shop"
SESSIONS = {
    "common": matching,
    "left": lambda **settings: matching(**{**LEFT, **settings}),
    "predict": Predicting,
}
"""Sessions by the rows that take part."""
VIEW = "party telco left: the aggregator sent columns or leaf values that are not for this party"

# ---- places ---------------------------------------------------------------------------------------------

TWICE = "the query names a {} row twice"
RANGE = "common rows, or an index that is out of range"
FEW = f"have only {FEWEST - 1} rows in common, but the terms require min_common_rows = {FEWEST}: compare "
ONE = "have only 1 rows in common, but the terms require min_"
BAD_PLACES = [
    ("doubled", ("common", "left", "predict"), doubled, "telco", TWICE),
    ("unknown", ("common",), with_first(-1), "telco", TWICE),
    ("below -1", ("left", "predict"), with_first(-2), "telco", TWICE),
    ("out of range", ("common", "left", "predict"), with_first(10**6), "telco", RANGE),
    ("swapped", ("common", "left", "predict"), swapped, "shop", CHECK),
    ("swapped", ("common",), swapped, "bank", CHECK),
    ("a row too few", ("common",), lambda own: own[1:], "shop", CHECK),
    ("a row that it does not have", ("left", "predict"), moved, "telco", CHECK),
    ("too few", ("common",), lambda own: own[: FEWEST - 1], "telco", FEW),
    ("too few", ("left", "predict"), only(FEWEST - 1), "shop", f"parties bank, shop {FEW}"),
    ("one", ("common",), lambda own: own[:1], "bank telco shop", ONE),
    ("one", ("left", "predict"), only(1), "telco", f"parties bank, telco {ONE}"),
    ("none", ("common", "left", "predict"), lambda own: own[:0], "shop", f"0 {RANGE}"),
    ("none known", ("left", "predict"), only(0), "telco", "have only 0 rows in common"),
    (
        "another number",
        ("left",),
        lambda own: own[:-1],
        "telco",
        "row indices or hashes for party telco (49): 50 rows are {}",
    ),
    (
        "another number",
        ("predict",),
        lambda own: own[:-1],
        "telco",
        "row indices or hashes for party telco (93): 94 rows are {}",
    ),
    (
        "of the label holder",
        ("left",),
        lambda _: np.arange(30),
        "bank",
        "row indices or hashes for party bank (30): 50 rows are {}",
    ),
    (
        "of the label holder",
        ("predict",),
        lambda _: np.arange(30),
        "bank",
        "row indices or hashes for party bank (30): 94 rows are {}",
    ),
]


@pytest.mark.parametrize(
    ("rows", "change", "parties", "says"),
    [
        pytest.param(rows, *lie, id=f"{name} {lie[1]} {rows}")
        for name, modes, *lie in BAD_PLACES
        for rows in modes
    ],
)
def test_places_that_cannot_be_are_refused_before_anything_is_computed(rows, change, parties, says):
    """At most which rows it has is relayed by the party that is told them."""
    apart = SESSIONS[rows](program=other_places(change, *parties.split()))
    assert says.format("predicted" if rows == "predict" else "common") in refused(apart)
    assert apart.session.turn == PLACES
    if rows != "common":
        assert apart.error.startswith(f"party {parties} left: ")
        assert [relay.number for relay in apart.said(Relay, parties) if relay.turn == PLACES] in ([], [1])
    assert all(getattr(holder, "prediction", None) is None for holder in apart.made["bank"])


@pytest.mark.parametrize("rows", SESSIONS)
@pytest.mark.parametrize("party", ["shop", None])
def test_places_of_another_party_and_of_all_are_refused(rows, party):
    """Also where they are those that each party gets, so that the aggregator breaks no promise but this."""
    apart = SESSIONS[rows]()

    def view(query):
        whole = apart.session.run.pending
        return whole.seen_by(apart.terms, party) if party else whole

    assert refused(apart.asking("telco", PLACES, view)) == VIEW


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("left", "the query has {} rows in total, but this party has {}"),
        ("predict", "label holder bank has {} rows to predict, but the terms have predict_rows = {}"),
    ],
)
def test_another_number_of_rows_than_the_label_holder_has_is_refused(rows, says, by):
    def query(terms, places):
        total = places.total + by
        own = [np.resize(places.of(number), total * (number > 0)) for number in range(3)]
        return type(places)(total, tuple(places.size for places in own), np.concatenate(own))

    apart = SESSIONS[rows](program=asking(query))
    size = apart.tables["bank"].num_rows
    assert refused(apart) == f"party bank left: {says.format(size + by, size)}"
    assert rows == "left" or not [relay for relay in apart.said(Relay) if relay.turn == PLACES]


# ---- questions ------------------------------------------------------------------------------------------


def again(terms, places):
    return AlignQuery(tuple(len(tables_of("three holders")[party]) for party in terms.parties))


REPEATED = {
    "ids": (again, "AlignQuery came in turn 3, but must be the only query of turn 2"),
    "ids, with another question": (
        lambda terms, places: Several((again(terms, places), places)),
        "AlignQuery came in turn 3, but must be the only query of turn 2",
    ),
    "places, with another question": (
        lambda terms, places: Several((places, RowsQuery())),
        "PlacesQuery came in turn 3, but must be the only query of turn 3",
    ),
    "the number of ids": (
        lambda terms, places: IdCountQuery(len(terms.parties)),
        "IdCountQuery came in turn 3, but must be the only query of turn 1",
    ),
    "rows": (lambda terms, places: RowsQuery(), "rows must be matched before they are counted"),
}


@pytest.mark.parametrize("what", REPEATED)
def test_each_question_that_matches_rows_is_asked_once(what):
    """Else a party would enter as many ids as the terms allow in each."""
    query, says = REPEATED[what]
    assert refused(matching(program=asking(query))) == f"party bank left: {says}"


def sizes_changed(change):
    """A program that asks for lists of other sizes than it was told."""

    def program(terms, grown):
        yield change((yield from counted(terms)))

    return program


def test_two_lists_in_one_turn_are_refused():
    two = sizes_changed(lambda counts: Several((AlignQuery(tuple(counts.tolist())),) * 2))
    says = "party bank left: AlignQuery came in turn 2, but must be the only query of turn 2"
    assert refused(matching(program=two)) == says


@pytest.mark.parametrize("by", [-1, 1])
def test_sizes_other_than_were_told_are_refused(by):
    other = sizes_changed(lambda counts: AlignQuery((int(counts[0]), int(counts[1]) + by, int(counts[2]))))
    size = len(tables_of("three holders")["telco"])
    assert refused(matching(program=other)) == (
        f"party telco left: the query has {size + by} row ids for this party, which has {size}"
    )


@pytest.mark.parametrize("rows", ["common", "predict"])
def test_sizes_that_differ_between_parties_open_nothing(rows):
    def other(query):
        return AlignQuery((*query.sizes[:2], query.sizes[2] + 1))

    apart = SESSIONS[rows]().asking("telco", ALIGN, other)
    assert "cannot be decrypted: they were changed in transit" in refused(apart)
    assert not [report for report in apart.said(Report) if report.turn == ALIGN]


def test_a_list_in_the_place_of_another_does_not_open():
    """The aggregator passes the first one of a party on again as its second."""
    first = []

    def down(party, message):
        if (party, type(message)) != ("shop", Relay) or message.turn != ALIGN:
            return None
        first.append(message)
        return [replace(message, content=first[0].content)]

    error = refused(matching(down=down))
    assert error.startswith("party shop left: the bytes relayed by party telco cannot be decrypted")


def test_a_party_without_keys_is_refused():
    apart = matching()
    apart.crash("shop", credentials=None)
    assert refused(apart).startswith("party shop left: the parties of this session seal relays")


# ---- after a restart ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "turn", "on_disk"),
    [
        ("common", ALIGN, False),
        ("common", PLACES, False),
        ("left", PLACES, False),
        ("predict", PLACES, False),
        ("predict", PLACES, True),
    ],
)
def test_another_question_in_a_turn_that_was_answered_is_refused(tmp_path, rows, turn, on_disk):
    """With other sizes, or other places: a party would tell of other rows with each restart."""

    def other(query):
        if turn == ALIGN:
            return replace(query, sizes=(query.sizes[0] + 1, *query.sizes[1:]))
        return replace(query, places=query.places[::-1].copy())

    memory = reopening(tmp_path / "memory", "shop") if on_disk else dict
    apart = SESSIONS[rows](memories={"shop": memory()["memory"]} if on_disk else {})
    assert refused(apart.dying("shop", turn, memory).asking("shop", turn, other, attempt=2)) == (
        f"party shop left: turn {turn} was repeated with a different query or position"
    )


@pytest.mark.parametrize(
    ("rows", "party", "turn"),
    [("common", "shop", ALIGN), ("common", "shop", 6), ("left", "shop", 6), ("left", "bank", 6)],
)
def test_an_introduction_with_other_places_is_refused(rows, party, turn):
    """Of a process that is another one by now, before places were told or after; of a label holder that has
    none, another number."""

    def other(places):
        if places is None:
            sizes = tuple(FEWEST * (name == party) for name in PARTIES)
            return PlacesQuery(FEWEST, sizes, np.arange(FEWEST))
        if not places.places.size:
            return replace(places, total=places.total + 1)
        return replace(places, places=places.places[::-1].copy())

    def down(name, message):
        if name != party:
            return None
        if isinstance(message, Ask) and (message.turn, message.attempt) == (turn, 1):
            apart.crash(party)
            return LOST
        if isinstance(message, Introduce) and apart.session.attempt == 2:
            return [replace(message, state=replace(message.state, places=other(message.state.places)))]
        return None

    apart = SESSIONS[rows](down=down)
    assert refused(apart) == (
        f"party {party} left: the aggregator sent a state that contradicts this site's earlier answers"
    )


@pytest.mark.parametrize("party", PARTIES)
def test_the_same_places_give_the_same_bits_when_the_question_is_asked_again(party):
    apart = Predicting().dying(party, PLACES).play()
    assert (apart.session.phase, apart.session.attempt) == ("done", 2)
    margins, known = due("three holders", "logistic", apart.tables)
    assert apart.prediction.margins.tobytes() == margins.tobytes()
    assert (apart.prediction.known == known).all()


# ---- a feature holder that lies -------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["left", "predict"])
@pytest.mark.parametrize("others", [True, False])
def test_a_feature_holder_that_says_it_has_a_row_more_is_shown_no_hash_of_its_id(monkeypatch, rows, others):
    """It would find the id among all that can be. others: it says so beside the rows that it has."""

    def lying(party, send, ask):
        if (party, send.kind) != ("telco", KNOWN):
            return None
        known = np.unpackbits(np.frombuffer(send.content, np.uint8), count=ask.query.total)
        unknown = np.flatnonzero(known == 0)[0]
        known = known if others else np.zeros_like(known)
        known[unknown] = 1
        return np.packbits(known).tobytes()

    sealing(monkeypatch, lying)
    opened = opening(monkeypatch)
    assert refused(SESSIONS[rows]()) == f"party bank left: {OTHER_ROWS}"
    opened = [(party, receive.kind) for party, receive, _ in opened]
    assert ("bank", KNOWN) in opened
    assert ("telco", CHECK_OF_IDS) not in opened
