"""Parties predict together, and somebody lies or keeps what it gets: the session ends with one line that says
who and what, and no leaf bits reach anybody else than the label holder."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from fedboost.boosting.programs.initialisation import reach_of
from fedboost.boosting.queries.columns import SummaryQuery
from fedboost.boosting.queries.ids import UNKNOWN, AlignQuery, IdCountQuery, PlacesQuery, ReachQuery, hash_of
from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery, RowsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.queries.union import Query
from fedboost.boosting.state import NOTHING_YET, BoostingState, Scales
from fedboost.errors import Refused
from fedboost.fixedpoint import Scale
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.reach import Decisions
from fedboost.gbdt.tree import NO_SPLITS
from fedboost.holders.alignment import CHECK as CHECK_KIND
from fedboost.holders.alignment import KNOWN
from fedboost.holders.columns import LEAF_BITS
from fedboost.protocol import relaying, run
from fedboost.protocol.contracts import Several
from fedboost.protocol.messages import Ask, Connected, Disconnected, Introduce, Relay, Report
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.store import make_file
from fedboost.wire.messages import encode_from_party, encode_to_party
from tests.helpers.alignments import CHECK, matching
from tests.helpers.apart_sessions import LOST
from tests.helpers.predictions import FEWEST, Predicting, due, tables_of, trained

OTHER_ROWS = "party telco says it has other rows than those that the aggregator matched: ask both"
REACH = 3
"""The turn of this question."""
PARTIES = ("bank", "telco", "shop")


def refused(session):
    """The reason for which a session ended, in one line."""
    if not session.told:
        session.play()
    assert session.session.phase == "failed"
    reasons = [reason for reason in map(session.left, session.terms.parties) if reason]
    for reason in [session.error, *reasons]:
        assert reason.isprintable()
        assert len(reason) < 400
    return session.error


# ---- an aggregator that lies ----------------------------------------------------------------------------


def honest(terms):
    """Up to the places of the rows that are predicted."""
    counts = yield IdCountQuery(len(terms.parties))
    query = AlignQuery(tuple(counts.tolist()))
    return reach_of(terms, query, (yield query))


def asking(*queries):
    """A program that matches ids as it must, and then asks these."""

    def program(terms, grown):
        places = yield from honest(terms)
        for query in queries:
            yield query(terms, places)

    return program


def other_places(change, party="telco"):
    """A program that changes the places of this party."""

    def query(terms, reach):
        places = [reach.of(number).copy() for number in range(len(terms.parties))]
        number = terms.parties.index(party)
        places[number] = change(places[number])
        if number:
            places[0] = np.concatenate([hash_of(own != UNKNOWN) for own in places[1:]])
        return replace(reach, sizes=tuple(own.size for own in places), places=np.concatenate(places))

    return asking(query)


def with_at(where, value):
    """Another place for a known row."""

    def change(places):
        known = np.flatnonzero(places != UNKNOWN)
        places[known[where]] = value(places, known)
        return places

    return change


def swapped(places):
    one, other = np.flatnonzero(places != UNKNOWN)[:2]
    places[[one, other]] = places[[other, one]]
    return places


def moved(places):
    """The place of a row is told of one that the party does not have."""
    known, unknown = np.flatnonzero(places != UNKNOWN)[0], np.flatnonzero(places == UNKNOWN)[0]
    places[[known, unknown]] = places[[unknown, known]]
    return places


def only(rows):
    def change(places):
        places[np.flatnonzero(places != UNKNOWN)[rows:]] = UNKNOWN
        return places

    return change


BAD_PLACES = {
    "two rows at one place": (
        with_at(0, lambda places, known: places[known[1]]),
        "telco",
        "a row that is said to be predicted twice",
    ),
    "below 0": (with_at(3, lambda places, known: -2), "telco", "a row that is said to be predicted twice"),
    "out of range": (with_at(3, lambda places, known: 10**6), "telco", "common rows, or one of another list"),
    "a swapped pair": (swapped, "shop", CHECK),
    "a row that it does not have": (moved, "shop", CHECK),
    "too few known": (only(FEWEST - 1), "telco", f"have {FEWEST - 1} rows in common, and the terms say min_"),
    "one row known": (only(1), "telco", "parties bank, telco have 1 rows in common, and the terms say min_"),
    "none known": (only(0), "telco", "have 0 rows in common"),
    "another number": (lambda own: own[:-1], "telco", "places of party telco, where "),
    "none told": (lambda own: own[:0], "telco", "0 common rows, or one of another list"),
    "places of the label holder": (
        lambda own: np.arange(tables_of("three holders")["bank"].num_rows),
        "bank",
        "places of party bank, where ",
    ),
}


@pytest.mark.parametrize("lie", BAD_PLACES)
def test_places_that_cannot_be_are_refused_before_leaf_bits_are_relayed(lie):
    """At most which rows it has."""
    change, party, says = BAD_PLACES[lie]
    session = Predicting(program=other_places(change, party))
    assert says in refused(session)
    assert session.error.startswith(f"party {party} left: ")
    assert session.session.turn == REACH
    assert [relay.number for relay in session.said(Relay, party) if relay.turn == REACH] in ([], [1])
    assert all(holder.prediction is None for holder in session.made["bank"])


@pytest.mark.parametrize("by", [-1, 1])
def test_another_number_of_rows_than_the_terms_say_is_refused(by):
    def query(terms, reach):
        rows = reach.total + by
        places = [np.resize(reach.of(number), rows * (number > 0)) for number in range(3)]
        return ReachQuery(rows, tuple(own.size for own in places), np.concatenate(places))

    session = Predicting(program=asking(query))
    rows = session.tables["bank"].num_rows
    assert refused(session) == (
        f"party bank left: label holder bank has {rows + by} rows to predict, and the terms say predict_rows "
        f"= {rows}"
    )
    assert not [relay for relay in session.said(Relay) if relay.turn == REACH]


def test_fewer_ids_of_the_label_holder_than_the_terms_say_end_the_session_before_lists_go_around():
    """Told by another party than the label holder, which would not have begun."""
    session, one = Predicting(), np.array([1, 0, 0])
    take, rows = session.session.run.take, session.tables["bank"].num_rows
    session.session.run.take = lambda total: take(total - one if session.session.turn == 1 else total)
    assert f"label holder bank has {rows - 1} rows to predict, and the terms say predict_rows" in refused(
        session
    )
    assert not session.said(Relay)


@pytest.mark.parametrize("party", ["shop", None])
def test_places_of_another_party_and_of_all_are_refused(party):
    def down(name, message):
        if name != "telco" or not isinstance(message, Ask) or message.turn != REACH:
            return None
        query = session.session.run.pending
        return [replace(message, query=query.seen_by(session.terms, party) if party else query)]

    session = Predicting(down=down)
    assert refused(session) == (
        "party telco left: told of columns of other parties, or of leaf values without labels"
    )


def test_parties_that_are_told_different_lengths_of_lists_open_nothing():
    def down(name, message):
        if name != "telco" or not isinstance(message, Ask) or message.turn != 2:
            return None
        sizes = message.query.sizes
        return [replace(message, query=AlignQuery((sizes[0], sizes[1], sizes[2] + 1)))]

    session = Predicting(down=down)
    assert "does not open" in refused(session)
    assert not [relay for relay in session.said(Relay) if relay.turn == REACH]


# ---- questions of a training ----------------------------------------------------------------------------

SCALE = Scale(0, 15)
CUTS = CutPoints.of([np.array([0.5], np.float32)] * 6, [False] * 6)
OF_TRAINING = {
    "places": lambda terms, reach: PlacesQuery(FEWEST, (FEWEST,) * 3, np.tile(np.arange(FEWEST), 3)),
    "rows": lambda terms, reach: RowsQuery(),
    "cut points": lambda terms, reach: StartQuery(100, CUTS, SCALE, SCALE),
    "histograms": lambda terms, reach: HistogramQuery(100, 0, NO_SPLITS, (0,), 12, SCALE, SCALE),
    "the end of a round": lambda terms, reach: EndRoundQuery(
        100, -1, NO_SPLITS, ((0, 0.5),), ("logloss",), SCALE, False
    ),
}
TOLD = "and the terms predict, and do nothing else"


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("what", OF_TRAINING)
def test_no_question_of_a_training_is_answered_in_a_session_that_predicts(what, turn):
    """An aggregator would get gradients or histograms of people who are scored."""
    asked = []

    def program(terms, grown):
        steps = honest(terms)
        total = None
        for _ in range(turn - 1):
            total = yield steps.send(total)
        asked.append(OF_TRAINING[what](terms, None))
        yield asked[0]

    session = Predicting(program=program)
    error = refused(session)
    assert error == f"party bank left: {asked[0].name} is asked, {TOLD}"
    assert not [report for report in session.said(Report) if report.turn == turn]


def test_a_question_of_a_training_beside_the_one_of_a_prediction_is_refused():
    session = Predicting(program=asking(lambda terms, reach: Several((reach, RowsQuery()))))
    assert refused(session) == f"party bank left: RowsQuery is asked, {TOLD}"


def test_after_the_prediction_nothing_more_is_answered():
    session = Predicting(program=asking(lambda terms, reach: reach, lambda terms, reach: reach))
    assert refused(session).endswith("turn 4, where the terms have 3 questions at most")


def test_three_kinds_of_questions_are_for_predictions():
    predicts, trains = Predicting().terms, matching().terms
    assert {kind for kind in get_args(Query) if kind.serves(predicts)} == {
        IdCountQuery,
        AlignQuery,
        ReachQuery,
    }
    assert {kind for kind in get_args(Query) if not kind.serves(trains)} == {
        ReachQuery,
        SummaryQuery,
        MagnitudesQuery,
        EvaluationQuery,
    }
    assert predicts.max_turns == 3


def test_no_rows_are_predicted_in_a_session_that_trains():
    rows = np.arange(FEWEST)
    session = matching(
        program=asking(lambda terms, _: ReachQuery(FEWEST, (0, FEWEST, FEWEST), np.tile(rows, 2)))
    )
    session.play()
    assert session.error == "party bank left: ReachQuery is asked, and the terms train, and do nothing else"


FAR = {
    "grids": {"grids": 1},
    "cut points": {"start": StartQuery(100, CUTS, SCALE, SCALE)},
    "scales": {"scales": Scales(SCALE, SCALE)},
    "places": {"places": PlacesQuery(FEWEST, (FEWEST, 0, 0), np.arange(FEWEST))},
    "levels": {"levels": 1},
}


@pytest.mark.parametrize("what", FAR)
def test_a_session_that_predicts_stands_where_it_began(what):
    terms = Predicting().terms
    NOTHING_YET.check(terms)
    with pytest.raises(Refused, match="a session to predict is said to stand where it would have trained"):
        BoostingState(**FAR[what]).check(terms)


def test_an_introduction_elsewhere_is_refused():
    def down(party, message):
        if party == "telco" and isinstance(message, Introduce):
            places = PlacesQuery(FEWEST, (0, FEWEST, 0), np.arange(FEWEST))
            return [replace(message, state=replace(message.state, places=places))]
        return None

    assert refused(Predicting(down=down)) == (
        "party telco left: a session to predict is said to stand where it would have trained"
    )


# ---- a party that lies ----------------------------------------------------------------------------------


def lying(monkeypatch, kind, change, party="telco"):
    """What this party relays of this kind is changed before it is sealed."""
    seal = relaying.Ends.seal

    def sealed(self, send, ask, number):
        if (self.me, send.kind) == (party, kind):
            send = replace(send, content=change(send.content))
        return seal(self, send, ask, number)

    monkeypatch.setattr(relaying.Ends, "seal", sealed)


@pytest.mark.parametrize("kind", [KNOWN, LEAF_BITS])
@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"\0"])
def test_bits_of_another_size_name_their_sender(monkeypatch, kind, change):
    lying(monkeypatch, kind, change)
    session = Predicting()
    assert refused(session).startswith("party bank left: party telco relayed ")
    assert f"bytes of {kind} where" in session.error
    assert session.made["bank"][0].prediction is None


@pytest.mark.parametrize("party", ["telco", "shop"])
@pytest.mark.parametrize("every", [0x00, 0xFF, 0x55])
def test_bits_that_no_decisions_give_name_their_sender(monkeypatch, party, every):
    lying(monkeypatch, LEAF_BITS, lambda content: bytes([every]) * len(content), party)
    session = Predicting()
    error = refused(session)
    assert error.startswith(f"party bank left: leaf bits of {party} for tree ")
    assert error.endswith("are not those of decisions at its nodes")


@pytest.mark.parametrize("told", [(), np.zeros(16, np.int64)])
def test_a_label_holder_that_is_not_told_who_has_which_rows_shows_no_ids(told):
    def down(party, message):
        if party != "bank" or not isinstance(message, Ask) or message.turn != REACH:
            return None
        places = np.array(told, np.int64)
        query = replace(message.query, sizes=(places.size, 0, 0), places=places)
        return [replace(message, query=query)]

    session = Predicting(down=down)
    assert refused(session) == f"party bank left: {OTHER_ROWS}"


@pytest.mark.parametrize("party", ["telco", "shop"])
@pytest.mark.parametrize("at", [0, 63])
def test_a_label_holder_that_does_not_show_its_ids_gets_no_leaf_bits(monkeypatch, party, at):
    """Another key, or another hash."""
    seal = relaying.Ends.seal

    def sealed(self, send, ask, number):
        if send.kind == CHECK_KIND and send.to == (party,):
            content = bytearray(send.content)
            content[at] ^= 1
            send = replace(send, content=bytes(content))
        return seal(self, send, ask, number)

    monkeypatch.setattr(relaying.Ends, "seal", sealed)
    session = Predicting()
    assert refused(session) == f"party {party} left: {CHECK}"
    assert [relay.number for relay in session.said(Relay, party) if relay.turn == REACH] == [1]


def test_a_holder_that_says_it_has_other_rows_is_shown_no_ids(monkeypatch):
    lying(monkeypatch, KNOWN, lambda content: bytes(byte ^ 0x80 for byte in content))
    session = Predicting()
    assert refused(session) == f"party bank left: {OTHER_ROWS}"
    assert not [relay for relay in session.said(Relay, "bank") if relay.turn == REACH]


def test_a_label_holder_that_counts_other_rows_is_found_out():
    session = Predicting()
    take, rows = session.session.run.take, session.tables["bank"].num_rows
    session.session.run.take = lambda total: take(total + (session.session.turn == REACH))
    assert f"the label holder has predicted other rows than the {rows} there are" in refused(session)


# ---- who keeps what it gets -----------------------------------------------------------------------------


class Kept(Predicting):
    """A session whose parties and aggregator keep all that they can read."""

    def __init__(self, monkeypatch):
        opens, bits = relaying.Ends.open, Decisions.leaf_bits
        self.opened, self.bits, self.written = {party: [] for party in PARTIES}, {}, []

        def opened(ends, sealed, receive, ask, number):
            content = opens(ends, sealed, receive, ask, number)
            self.opened[ends.me].append((receive.kind, receive.sender, content))
            return content

        def leaf_bits(decisions, features, threads):
            self.bits[decisions.party] = bits(decisions, features, threads)
            return self.bits[decisions.party]

        monkeypatch.setattr(relaying.Ends, "open", opened)
        monkeypatch.setattr(Decisions, "leaf_bits", leaf_bits)
        super().__init__(setting="absolute")
        self.session.run._record = self.written.append
        self.play()
        assert self.session.phase == "done"

    @property
    def at_aggregator(self):
        up = [encode_from_party(m) for _, m in self.sent if not isinstance(m, Connected | Disconnected)]
        down = [encode_to_party(message) for _, message in self.told]
        return b"\0".join([*up, *down, *map(run.encode, self.written)])

    def told_to(self, party):
        """All that a party can read: messages, and what was relayed to it."""
        down = [encode_to_party(message) for name, message in self.told if name == party]
        return b"\0".join([*down, *(content for _, _, content in self.opened[party])])


def pieces(bits):
    """Some rows of leaf bits, together long enough to stand nowhere by chance."""
    return [bits[first : first + 16].tobytes() for first in range(0, len(bits) - 16, 16)]


@pytest.fixture
def kept(monkeypatch):
    return Kept(monkeypatch)


def test_an_aggregator_reads_no_leaf_bits_and_no_prediction(kept):
    hay = kept.at_aggregator
    for party in PARTIES:
        assert len(kept.bits[party])
        assert not [piece for piece in pieces(kept.bits[party]) if piece in hay]
    values = [*kept.prediction.margins, *(v for tree in trained("absolute").trees for v in tree.value if v)]
    assert not [value for value in values if np.float64(value).tobytes() in hay]
    assert not [value for value in values if np.float32(value).tobytes() in hay]
    opened = b"\0".join(content for _, _, content in kept.opened["bank"])
    for party in ("telco", "shop"):  # the search finds what is there
        assert all(piece in opened for piece in pieces(kept.bits[party]))


@pytest.mark.parametrize("party", ["telco", "shop"])
def test_a_feature_holder_is_told_no_leaf_value_no_bits_and_no_places_of_others(kept, party):
    kinds = {(kind, sender) for kind, sender, _ in kept.opened[party]}
    assert {kind for kind, _ in kinds} == {"blinded row ids", CHECK_KIND}
    assert (CHECK_KIND, "bank") in kinds
    hay, other = kept.told_to(party), "shop" if party == "telco" else "telco"
    for name in ("bank", other):
        assert not [piece for piece in pieces(kept.bits[name]) if piece in hay]
    (ask,) = [ask for ask in kept.heard(Ask, party) if ask.turn == REACH]
    number = kept.terms.parties.index(party)
    rows = kept.tables["bank"].num_rows
    assert ask.query.sizes == tuple(rows * (place == number) for place in range(3))
    assert ask.query.places.tolist() == kept.queries[-1].of(number).tolist()
    assert kept.queries[-1].of(kept.terms.parties.index(other)).astype("<i4").tobytes() not in hay
    model = kept.made[party][0]._model
    assert not any(any(tree.value) for tree in model.trees)
    assert model.base_score == 0.5 != trained("absolute").base_score


def test_the_label_holder_is_told_no_places_and_no_thresholds_of_others(kept):
    (ask,) = [ask for ask in kept.heard(Ask, "bank") if ask.turn == REACH]
    assert ask.query.sizes == (16, 0, 0)
    listed = kept.prediction.known[:, kept.made["bank"][0]._alignment._order]
    assert ask.query.places.tolist() == [word for known in listed for word in hash_of(known)]
    own = {kept.terms.columns.features.index(name) for name in ("age", "income")}
    nodes = [
        (feature, threshold, categories)
        for tree in kept.made["bank"][0]._model.trees
        for feature, threshold, categories, left in zip(
            tree.feature, tree.threshold, tree.categories, tree.left, strict=True
        )
        if left >= 0 and feature not in own
    ]
    assert nodes
    assert {feature for feature, _, _ in nodes} <= {7, 8}
    assert {(threshold, categories) for _, threshold, categories in nodes} == {(float("inf"), 0)}


def test_rows_are_predicted_in_another_order_than_that_of_the_label_holders_table(kept):
    """So places tell no feature holder where a row stands there."""
    order = kept.made["bank"][0]._alignment._order
    assert sorted(order.tolist()) == [*range(order.size)]
    assert (order != np.arange(order.size)).sum() > 0.8 * order.size


# ---- asked again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_other_places_are_refused_when_the_question_is_asked_again(tmp_path, on_disk):
    """A party would else tell of other rows with each restart."""
    path, opened = tmp_path / "memory", []
    make_file(path, "rows")

    def memory():
        while opened:
            opened.pop().close()
        opened.append(FileMemory(path, "shop", "rows"))
        return {"memory": opened[-1]}

    def up(party, message):
        if (party, type(message)) == ("shop", Report) and (message.turn, message.attempt) == (REACH, 1):
            session.crash("shop", **(memory() if on_disk else {}))
            return LOST
        return None

    def down(party, message):
        if (party, type(message)) != ("shop", Ask) or (message.turn, message.attempt) != (REACH, 2):
            return None
        places = message.query.places[::-1].copy()
        return [replace(message, query=replace(message.query, places=places))]

    session = Predicting(up=up, down=down, memories={"shop": memory()["memory"]} if on_disk else {})
    assert refused(session) == (
        "party shop left: another question in turn 3, or elsewhere in the tree, than before"
    )


@pytest.mark.parametrize("party", PARTIES)
def test_the_same_places_give_the_same_bits_when_the_question_is_asked_again(party):
    def up(name, message):
        if (name, type(message)) == (party, Report) and (message.turn, message.attempt) == (REACH, 1):
            session.crash(party)
            return LOST
        return None

    session = Predicting(up=up)
    session.play()
    assert (session.session.phase, session.session.attempt) == ("done", 2)
    margins, known = due("three holders", "logistic", session.tables)
    assert session.prediction.margins.tobytes() == margins.tobytes()
    assert (session.prediction.known == known).all()
