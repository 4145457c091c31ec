"""Parties predict together, and somebody lies or keeps what it gets: the session ends with one line that says
who and what, and no leaf bits reach anybody else than the label holder."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from raised import raised

from fedboost.boosting.queries import Query
from fedboost.boosting.queries.columns import LevelsQuery, SummaryQuery
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery, hash_of
from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery, RowsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.state import INITIAL_STATE, BoostingState, Scales
from fedboost.errors import Refused
from fedboost.fixedpoint import Scale
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.reach import Decisions
from fedboost.gbdt.tree import NO_SPLITS
from fedboost.holders.alignment import CHECK as CHECK_KIND
from fedboost.holders.alignment import KNOWN
from fedboost.holders.columns import LEAF_BITS
from fedboost.protocol import run
from fedboost.protocol.contracts import Several
from fedboost.protocol.messages import Ask, Connected, Disconnected, Introduce, Join, Relay, Report
from fedboost.wire.messages import encode_from_party, encode_to_party
from tests.helpers.alignments import ALIGN, CHECK, OTHER_ROWS, PLACES, asking, matched_places, matching
from tests.helpers.apart_sessions import opening, refused, sealing
from tests.helpers.predictions import FEWEST, Predicting, tables_of, trained

PARTIES = ("bank", "telco", "shop")


# ---- lists of ids ---------------------------------------------------------------------------------------


def test_fewer_ids_of_the_label_holder_than_the_terms_say_end_the_session_before_lists_go_around():
    """Told by another party than the label holder, which would not have begun."""
    session, one = Predicting(), np.array([1, 0, 0])
    take, rows = session.session.run.take, session.tables["bank"].num_rows
    session.session.run.take = lambda total: take(total - one if session.session.turn == 1 else total)
    error = refused(session)
    assert (
        f"label holder bank has {rows - 1} rows to predict, but the terms have predict_rows = {rows}" in error
    )
    assert not session.said(Relay)


def test_fewer_rows_than_must_be_common_are_refused_before_ids_are_matched():
    """Else each refusal would say if a single id is known, at the price of one row."""
    tables = tables_of("three holders")
    tables["bank"] = tables["bank"].slice(0, FEWEST - 1)
    session = Predicting(tables=tables)
    says = f"{FEWEST - 1} rows are to be predicted, but the terms require min_common_rows = {FEWEST}"
    assert says in refused(session)
    assert not session.said(Relay)
    assert not session.said(Join, "telco")


def test_a_longer_list_of_the_label_holder_than_is_predicted_is_not_matched():
    """An aggregator and a label holder would learn of `max_ids` ids who is known, at the price of a batch."""

    def down(party, message):
        if party == "bank" or not isinstance(message, Ask) or message.turn != ALIGN:
            return None
        sizes = message.query.sizes
        return [replace(message, query=AlignQuery((sizes[0] + 500, *sizes[1:])))]

    session = Predicting(down=down).play()
    rows = session.tables["bank"].num_rows
    assert session.left("telco") == (
        f"label holder bank has {rows + 500} rows to predict, but the terms have predict_rows = {rows}"
    )
    assert not session.said(Relay, "telco")
    assert not [report for report in session.said(Report, "telco") if report.turn == ALIGN]


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
TOLD = "in a session with task predict"


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("what", OF_TRAINING)
def test_no_question_of_a_training_is_answered_in_a_session_that_predicts(what, turn):
    """An aggregator would get gradients or histograms of people who are scored."""
    asked = []

    def program(terms, grown):
        steps = matched_places(terms)
        total = None
        for _ in range(turn - 1):
            total = yield steps.send(total)
        asked.append(OF_TRAINING[what](terms, None))
        yield asked[0]

    session = Predicting(program=program)
    error = refused(session)
    assert error == f"party bank left: query {asked[0].name} is not allowed {TOLD}"
    assert not [report for report in session.said(Report) if report.turn == turn]


def test_a_question_of_a_training_beside_the_one_of_a_prediction_is_refused():
    session = Predicting(program=asking(lambda terms, reach: Several((reach, RowsQuery()))))
    assert refused(session) == f"party bank left: query RowsQuery is not allowed {TOLD}"


def test_after_the_prediction_nothing_more_is_answered():
    session = Predicting(program=asking(lambda terms, reach: reach, lambda terms, reach: reach))
    assert refused(session).endswith("turn 4, but the terms allow only 3 turns")


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
        LevelsQuery,
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
    assert session.error == "party bank left: query ReachQuery is not allowed in a session with task train"


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
    INITIAL_STATE.check(terms)
    with raised(Refused, "state-invalid"):
        BoostingState(**FAR[what]).check(terms)


def test_an_introduction_elsewhere_is_refused():
    def down(party, message):
        if party == "telco" and isinstance(message, Introduce):
            places = PlacesQuery(FEWEST, (0, FEWEST, 0), np.arange(FEWEST))
            return [replace(message, state=replace(message.state, places=places))]
        return None

    assert refused(Predicting(down=down)) == (
        "party telco left: a session with task predict cannot have the state of a training session"
    )


# ---- a party that lies ----------------------------------------------------------------------------------


def lying(monkeypatch, kind, change, party="telco"):
    """What this party relays of this kind is changed before it is sealed."""
    found = (party, kind)
    sealing(monkeypatch, lambda me, send, ask: change(send.content) if (me, send.kind) == found else None)


@pytest.mark.parametrize("kind", [KNOWN, LEAF_BITS])
@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"\0"])
def test_bits_of_another_size_name_their_sender(monkeypatch, kind, change):
    lying(monkeypatch, kind, change)
    session = Predicting()
    assert refused(session).startswith("party bank left: party telco relayed ")
    assert f"bytes ({kind}) instead of " in session.error
    assert session.made["bank"][0].prediction is None


@pytest.mark.parametrize("party", ["telco", "shop"])
@pytest.mark.parametrize("every", [0x00, 0xFF, 0x55])
def test_bits_that_no_decisions_give_name_their_sender(monkeypatch, party, every):
    lying(monkeypatch, LEAF_BITS, lambda content: bytes([every]) * len(content), party)
    session = Predicting()
    error = refused(session)
    assert error.startswith(f"party bank left: party {party} sent an invalid prediction for tree ")
    assert error.endswith("no combination of its decisions gives these leaf bits")


@pytest.mark.parametrize("told", [(), np.zeros(16, np.int64)])
def test_a_label_holder_that_is_not_told_who_has_which_rows_shows_no_ids(told):
    def other(query):
        places = np.array(told, np.int64)
        return replace(query, sizes=(places.size, 0, 0), places=places)

    assert refused(Predicting().asking("bank", PLACES, other)) == f"party bank left: {OTHER_ROWS}"


@pytest.mark.parametrize("party", ["telco", "shop"])
@pytest.mark.parametrize("at", [0, 63])
def test_a_label_holder_that_does_not_show_its_ids_gets_no_leaf_bits(monkeypatch, party, at):
    """Another key, or another hash."""

    def other(_, send, ask):
        flip = bytearray(len(send.content))
        if send.kind != CHECK_KIND or send.to != (party,):
            return None
        flip[at] = 1
        return bytes(a ^ b for a, b in zip(send.content, flip, strict=True))

    sealing(monkeypatch, other)
    session = Predicting()
    assert refused(session) == f"party {party} left: {CHECK}"
    assert [relay.number for relay in session.said(Relay, party) if relay.turn == PLACES] == [1]


def test_a_label_holder_that_counts_other_rows_is_found_out():
    session = Predicting()
    take, rows = session.session.run.take, session.tables["bank"].num_rows
    session.session.run.take = lambda total: take(total + (session.session.turn == PLACES))
    assert f"the label holder did not predict exactly {rows} rows" in refused(session)


# ---- who keeps what it gets -----------------------------------------------------------------------------


class Kept(Predicting):
    """A session whose parties and aggregator keep all that they can read."""

    def __init__(self, monkeypatch):
        bits = Decisions.leaf_bits
        self.opened, self.bits, self.written = opening(monkeypatch), {}, []

        def leaf_bits(decisions, features, threads):
            self.bits[decisions.party] = bits(decisions, features, threads)
            return self.bits[decisions.party]

        monkeypatch.setattr(Decisions, "leaf_bits", leaf_bits)
        super().__init__(setting="absolute")
        self.session.run._record = self.written.append
        self.play()
        assert self.session.phase == "done"

    def opened_by(self, party):
        """What was relayed to it: kind, sender, content."""
        return [(get.kind, get.sender, content) for who, get, content in self.opened if who == party]

    @property
    def at_aggregator(self):
        up = [encode_from_party(m) for _, m in self.sent if not isinstance(m, Connected | Disconnected)]
        down = [encode_to_party(message) for _, message in self.told]
        return b"\0".join([*up, *down, *map(run.encode, self.written)])

    def told_to(self, party):
        """All that a party can read: messages, and what was relayed to it."""
        down = [encode_to_party(message) for name, message in self.told if name == party]
        return b"\0".join([*down, *(content for _, _, content in self.opened_by(party))])


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
    # Four bytes stand in random ones by chance in one of 400 sessions.
    assert len([value for value in values if np.float32(value).tobytes() in hay]) <= 1
    opened = b"\0".join(content for _, _, content in kept.opened_by("bank"))
    for party in ("telco", "shop"):  # the search finds what is there
        assert all(piece in opened for piece in pieces(kept.bits[party]))


@pytest.mark.parametrize("party", ["telco", "shop"])
def test_a_feature_holder_is_told_no_leaf_value_no_bits_and_no_places_of_others(kept, party):
    kinds = {(kind, sender) for kind, sender, _ in kept.opened_by(party)}
    assert {kind for kind, _ in kinds} == {"blinded row ids", CHECK_KIND}
    assert (CHECK_KIND, "bank") in kinds
    hay, other = kept.told_to(party), "shop" if party == "telco" else "telco"
    for name in ("bank", other):
        assert not [piece for piece in pieces(kept.bits[name]) if piece in hay]
    (ask,) = [ask for ask in kept.heard(Ask, party) if ask.turn == PLACES]
    number = kept.terms.parties.index(party)
    rows = kept.tables["bank"].num_rows
    assert ask.query.sizes == tuple(rows * (place == number) for place in range(3))
    assert ask.query.places.tolist() == kept.queries[-1].of(number).tolist()
    assert kept.queries[-1].of(kept.terms.parties.index(other)).astype("<i4").tobytes() not in hay
    model = kept.made[party][0]._model
    assert not any(tree.value.any() for tree in model.trees)
    assert model.base_score == 0.5 != trained("absolute").base_score


def test_the_label_holder_is_told_no_places_and_no_thresholds_of_others(kept):
    (ask,) = [ask for ask in kept.heard(Ask, "bank") if ask.turn == PLACES]
    assert ask.query.sizes == (16, 0, 0)
    listed = kept.prediction.known[:, kept.made["bank"][0]._alignment._order]
    assert ask.query.places.tolist() == [word for known in listed for word in hash_of(known)]
    own = {kept.terms.columns.features.index(name) for name in ("age", "income")}
    nodes = [
        (feature, threshold, categories)
        for tree in kept.made["bank"][0]._model.trees
        for feature, threshold, categories, left in zip(
            tree.feature, tree.threshold, tree.by_category, tree.left, strict=True
        )
        if left >= 0 and feature not in own
    ]
    assert nodes
    assert {feature for feature, _, _ in nodes} <= {7, 8}
    assert {(threshold, categories) for _, threshold, categories in nodes} == {(float("inf"), False)}


def test_rows_are_predicted_in_another_order_than_that_of_the_label_holders_table(kept):
    """So places tell no feature holder where a row stands there."""
    order = kept.made["bank"][0]._alignment._order
    assert sorted(order.tolist()) == [*range(order.size)]
    assert (order != np.arange(order.size)).sum() > 0.8 * order.size
