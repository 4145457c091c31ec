"""Queries that share a turn: one question, one answer, one place before and after it."""

import dataclasses

import numpy as np
import pytest
from inprocess import randomly, run, terms_of
from liar import Left, Liar, end_of, never, root_of
from raised import raised

from fedboost.boosting import queries
from fedboost.boosting.programs.boosting import train
from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import RowsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.cut_points import Grids
from fedboost.protocol import contracts
from fedboost.protocol import run as journal
from fedboost.protocol.contracts import MAX_QUERIES, Several
from fedboost.protocol.messages import Ask, Report
from fedboost.protocol.run import AttemptStarted, Opened, Stopped, TreeGrown
from fedboost.wire.messages import decode_to_party, encode_to_party
from fedboost.wire.v1 import fedboost_pb2 as pb

ROWS = 400
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] ** 2 + RNG.normal(size=ROWS) > 0.5).astype(np.float32)
PARTS = randomly(ROWS, 4)
SMALL = {"rounds": 3, "max_depth": 2, "max_bin": 8}
END = EndRoundQuery(40, 0, (), ((0, 0.5),), ("logloss",), UNIT, False)
ROOT = HistogramQuery(40, 1, (), (0,), 5, Scale(0, 16), Scale(-2, 16))
BOTH = Several((END, ROOT))


def kinds_of(label=Y, parts=PARTS, **settings):
    """The kinds of the queries of each turn of a session."""
    turns = []

    def watched(terms, grown):
        program = train(terms, grown)
        query = next(program)
        while True:
            turns.append([type(part) for part in query.parts])
            try:
                query = program.send((yield query))
            except StopIteration as end:
                return end.value

    session = run(X, label, parts, program=watched, **settings)
    assert session.phase == "done", session.error
    return turns


# ---- turns ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tree_of_depth_6_takes_6_turns_under_masks():
    settings = {"rounds": 4, "max_depth": 6, "max_bin": 16, "min_child_weight": 0, "protection": "masked"}
    records = []
    session = run(X, Y, PARTS, record=records.append, **settings)
    ends = [record.turn for record in records if isinstance(record, Opened)]
    assert np.diff(ends[-5:]).tolist() == [6, 6, 6, 6]
    alone = run(X, Y, PARTS, on_loss="shrink", **settings)
    assert session.booster.to_xgboost() == alone.booster.to_xgboost()
    assert alone.turn - session.turn == 3 + 2  # but for the last tree; and two turns before the first


def test_the_turns_before_the_first_tree():
    grids = [QuantileQuery] * 2
    wait = kinds_of(on_loss="wait", **SMALL)
    assert wait[:5] == [
        [RowsQuery, QuantileQuery],
        *[[grid] for grid in grids],
        [StartQuery],
        [EndRoundQuery, HistogramQuery],
    ]
    given = kinds_of(on_loss="wait", base_score=0.5, **SMALL)
    assert given[3] == [StartQuery, EndRoundQuery, HistogramQuery]
    shrink = kinds_of(on_loss="shrink", **SMALL)
    assert [len(parts) for parts in shrink] == [1] * len(shrink)
    assert [kind for parts in shrink[:7] for kind in parts] == [
        RowsQuery,
        *grids,
        QuantileQuery,
        StartQuery,
        EndRoundQuery,
        HistogramQuery,
    ]


def test_where_cells_are_encrypted_the_first_grid_has_a_turn_of_its_own():
    """Its cells would be more than twice as wide as once the rows are known."""
    terms = terms_of(X, 3, protection="paillier", keyholder="p0")
    assert next(train(terms, [])).parts == (RowsQuery(),)


def test_no_root_is_asked_for_behind_the_last_tree():
    turns = kinds_of(**SMALL)
    assert turns[-1] == [EndRoundQuery]
    assert sum(HistogramQuery in parts for parts in turns) == 3 * 2


@pytest.mark.parametrize("objective", ["survival:aft", "rank:pairwise"])
def test_a_root_whose_scale_nobody_knows_has_a_turn_of_its_own(objective):
    aft = objective == "survival:aft"
    label, group = (np.array([Y + 1, Y + 2]), None) if aft else (Y, np.arange(ROWS) // 20)
    kinds = kinds_of(label, [np.arange(ROWS)], group=group, objective=objective, **SMALL)
    assert [EndRoundQuery, HistogramQuery] not in kinds


@pytest.mark.parametrize("settings", [{"early_stopping_rounds": 1}, {}])
def test_a_training_that_ends_early_throws_its_last_root_away(settings):
    seen = []

    def enough(number, metrics):
        seen.append(number)
        return not settings and number == 1

    records = []
    noise = RNG.permutation(Y)
    session = run(
        X, noise, PARTS, rounds=50, max_depth=3, callbacks=[enough], validation=np.arange(ROWS) % 2 == 0,
        record=records.append, **settings,
    )  # fmt: skip
    assert session.phase == "done", session.error
    assert seen == list(range(len(seen)))
    assert len(session.history) == len(seen) < 50
    assert isinstance(session.run.pending, Several)
    assert set(session.attestations) == set(session.terms.parties)
    assert len(session.booster.trees) == (len(seen) if not settings else session.run.rounds)
    assert any(isinstance(record, Stopped) for record in records) == (not settings)


def test_a_root_that_does_not_split_is_no_reason_to_go_on():
    """The tree after the last wanted one is a single leaf, so that the next question is its end."""
    session = run(X, Y, PARTS, gamma=1e9, rounds=9, callbacks=[lambda number, metrics: number == 1])
    assert session.phase == "done", session.error
    assert (len(session.history), len(session.booster.trees)) == (2, 2)


# ---- restarts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [None, 0])
@pytest.mark.parametrize("protection", ["plain", pytest.param("masked", marks=pytest.mark.slow)])
def test_a_restart_after_each_record_goes_on_to_the_same_model(protection, stop):
    """Each process writes one record and dies; the sites remember."""
    called, past, sites = [], [], {}

    class Killed(Exception):
        pass

    def note(number, metrics):
        called.append(number)
        return number == stop

    few = {**SMALL, "rounds": 2}
    settings = {"protection": protection, "objective": "reg:squarederror", "callbacks": [note], **few}
    due = run(X, Y, PARTS, **settings)
    rounds, called[:] = list(called), []
    for _ in range(100):
        fresh = []

        def record(one, fresh=fresh, past=past):
            fresh.append(journal.decode(journal.encode(one)))
            said = isinstance(one, AttemptStarted) or any(isinstance(known, Stopped) for known in past)
            if not said or len(fresh) == 3:
                raise Killed

        try:
            session = run(X, Y, PARTS, sites=sites, past=tuple(past), record=record, **settings)
            break
        except Killed:
            past += fresh
    assert session.phase == "done", session.error
    assert session.booster.to_xgboost() == due.booster.to_xgboost()
    assert [done.metrics for done in session.history] == [done.metrics for done in due.history]
    assert len(rounds) == len(due.history)
    assert set(called) == set(rounds)
    assert sum(isinstance(one, TreeGrown) for one in past) == len(rounds)


def test_a_sum_of_another_size_is_no_record():
    records = []
    run(X, Y, PARTS, record=records.append, **SMALL)
    place, shared = next(
        (place, one) for place, one in enumerate(records) if isinstance(one, Opened) and one.total.size > 3000
    )
    short = dataclasses.replace(shared, total=shared.total[:-2])
    with raised(ConfigError, "journal-size"):
        run(X, Y, PARTS, past=(*records[:place], short), **SMALL)


# ---- what a party allows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms",
    [
        terms_of(X, 4, on_loss="shrink"),
        terms_of(X, 4, noise={"epsilon": 1.0, "delta": 1e-5, "placement": "local"}, ranges=[(-3, 3)] * 3),
    ],
    ids=["shrink", "noise"],
)
def test_each_query_has_its_own_turn_where_the_roster_may_change_or_answers_get_noise(terms):
    with raised(Refused, "queries-not-shared"):
        BOTH.check(terms)
    with raised(Refused, "queries-not-shared"):
        BOTH.release(terms)


def test_a_party_leaves_if_several_are_asked_where_the_roster_may_change():
    liar = Liar(on_loss="shrink")
    end = liar.train(never, before=end_of(0))
    root = HistogramQuery(end.rows, 1, (), (0,), 1, UNIT, UNIT)
    with pytest.raises(Left, match="one turn has several queries"):
        liar.ask(Several((end, root)))


def test_the_ends_of_two_trees_share_no_turn():
    with raised(Refused, "queries-end-trees"):
        Several((END, dataclasses.replace(END, tree=1))).check(terms_of(X, 4))


def test_the_answers_of_a_turn_are_one_vector_that_a_party_can_hold(monkeypatch):
    terms = terms_of(X, 4)
    BOTH.check(terms)
    monkeypatch.setattr(contracts, "MAX_CELLS", BOTH.cells - 1)
    with raised(Refused, "query-too-large", naming=[BOTH.cells]):
        BOTH.check(terms)
    monkeypatch.setattr(queries, "MAX_CELLS", BOTH.cells - 1)
    assert next(queries.together(terms, END, ROOT)) == END


def test_each_query_is_held_to_the_terms():
    wide = dataclasses.replace(ROOT, gradient=Scale(0, 31))
    with raised(Refused, "query-scale"):
        Several((END, wide)).check(terms_of(X, 4))


@pytest.mark.parametrize("lost_memory", [False, True])
def test_one_query_of_a_turn_is_not_asked_again_with_another(lost_memory):
    liar = Liar()
    both = liar.train(never, before=root_of(1))
    before = liar.state
    liar.ask(both, opened=False)
    if lost_memory:
        liar.forget()
    liar.gather(before)
    end, root = both.parts
    other = dataclasses.replace(end, values=tuple((node, 2 * value) for node, value in end.values))
    with pytest.raises(Left, match="was repeated with a different query or position"):
        liar.ask(Several((other, root)), liar.turn)


@pytest.mark.parametrize("order", [(1, 0), (0,), (1,)])
def test_nor_fewer_of_them_nor_in_another_order(order):
    liar = Liar()
    both = liar.train(never, before=root_of(1))
    before = liar.state
    liar.ask(both, opened=False)
    liar.gather(before)
    parts = tuple(both.parts[place] for place in order)
    with pytest.raises(Left):
        liar.ask(Several(parts) if len(parts) > 1 else parts[0], liar.turn)


def test_a_query_comes_where_those_before_it_lead():
    """The root of the next tree cannot be asked for in the turn before the one that ends the tree."""
    liar = Liar()
    both = liar.train(never, before=root_of(1))
    _, root = both.parts
    with pytest.raises(Left, match="but tree 0 is growing"):
        liar.ask(root)


# ---- one vector -------------------------------------------------------------------------------------


def test_answers_are_split_as_they_were_joined():
    values = np.arange(BOTH.cells)
    ended, root = BOTH.split(values)
    assert [*ended, *root] == values.tolist()
    assert (ended.size, root.size) == (END.cells, ROOT.cells)
    cells = BOTH.to_cells(values)
    assert cells.size == sum(segment.cells for segment in BOTH.segments)
    assert BOTH.from_cells(cells).tolist() == values.tolist()
    assert BOTH.fits(values)
    assert not Several((END, dataclasses.replace(ROOT, widths=bytes([4, 4])))).fits(values)


def test_a_digest_names_each_query_and_their_order():
    digests = [q.digest for q in (BOTH, Several((ROOT, END)), Several((END, ROOT, ROOT)), END, ROOT)]
    assert len(set(digests)) == len(digests)


def test_what_is_asked_of_the_memory_of_the_aggregator_is_the_sum():
    assert BOTH.bytes_needed(3) == END.bytes_needed(3) + ROOT.bytes_needed(3)


@pytest.mark.parametrize("parts", [(END, ROOT), (RowsQuery(), QuantileQuery(9, Grids.first(1))), (END,) * 4])
def test_they_travel_as_they_are(parts):
    ask = Ask(3, 1, b"", Several(parts))
    assert decode_to_party(encode_to_party(ask)).query.digest == Several(parts).digest


def test_more_than_there_can_be_are_no_message():
    ask = Ask(3, 1, b"", Several((END,) * (MAX_QUERIES + 1)))
    with pytest.raises(PeerError, match="further queries"):
        decode_to_party(encode_to_party(ask))
    empty = pb.ToParty(ask=pb.Ask(turn=1, rows=pb.RowsQuery(), then=[pb.Ask()]))
    with raised(PeerError, "wire-unknown-message"):
        decode_to_party(empty.SerializeToString())


def test_a_report_of_a_turn_has_the_parts_of_one_vector():
    reports = []
    run(X, Y, PARTS, spoil=lambda party, message: reports.append((party, message)) or message, **SMALL)
    turns = [(m.turn, m.part) for party, m in reports if party == "p0" and isinstance(m, Report)]
    assert len(set(turns)) == len(turns)
