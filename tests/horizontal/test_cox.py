"""survival:cox: risk sets over the rows of all parties, their floors and their rounding, and XGBoost's
gradients where one party has all labels."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xgboost
from inprocess import model_of, one_party, randomly, run, shard_of, terms_of
from trainings import COX, ROWS, data, matrix

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.programs.initialisation import RISK_BITS, told
from fedboost.boosting.queries.labels import StartQuery, TimeGrid, TimesQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.objectives.built_in import Cox, RiskSets
from fedboost.holders.whole_rows import HorizontalHolder

X, Y, WEIGHT = data("events")
MASKED = {**COX, "rounds": 6, "protection": "masked"}


@pytest.mark.parametrize("parties", [3, 7])
@pytest.mark.parametrize("more", [{}, {"validation_fraction": 0.3}, {"on_loss": "stop", "vote_top_k": 0}])
def test_masked_parties_give_the_model_of_the_pooled_rows(parties, more):
    pooled = model_of(X, Y, one_party(ROWS), **{**COX, "rounds": 6, **more})
    assert model_of(X, Y, randomly(ROWS, parties, seed=parties), **{**MASKED, **more}) == pooled


def test_xgboost_predicts_the_same_with_the_model_file():
    booster = run(X, Y, randomly(ROWS, 3), **COX).booster
    text = booster.to_xgboost()
    assert Booster.from_xgboost(text)[0] == booster
    assert json.loads(text)["learner"]["objective"] == {"name": "survival:cox"}
    theirs = xgboost.Booster()
    theirs.load_model(bytearray(text.encode()))
    predicted = theirs.predict(xgboost.DMatrix(X, feature_names=list(booster.features)))
    assert predicted == pytest.approx(booster.predict(X), rel=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_all_rows_at_hand_are_those_of_the_definition(weighted):
    rng = np.random.default_rng(2)
    margin, weight = rng.normal(size=ROWS), WEIGHT if weighted else np.ones(ROWS, np.float32)
    label = np.ceil(Y * 2)  # with ties
    gradient, hessian = Cox().gradients(margin, label, weight)
    weight = weight.astype(np.float64)
    time, event, risk = label[0], np.isfinite(label[1]), weight * np.exp(margin)
    first, second = np.zeros(ROWS), np.zeros(ROWS)
    for each in np.unique(time[event]):
        died, at_risk = event & (time == each), time >= each
        first[at_risk] += weight[died].sum() / risk[at_risk].sum()
        second[at_risk] += weight[died].sum() / risk[at_risk].sum() ** 2
    assert gradient == pytest.approx(risk * first - weight * event, rel=1e-9, abs=1e-9)
    assert hessian == pytest.approx(np.maximum(risk * first - risk**2 * second, 0), rel=1e-9, abs=1e-9)


def test_the_metric_of_all_rows_at_hand_is_xgboosts():
    margin = np.random.default_rng(3).normal(size=ROWS)
    total = metrics.sums(("cox-nloglik",), Cox(), margin, Y, np.ones(ROWS, np.float32), UNIT)
    of = matrix(np.zeros((ROWS, 1)), Y, base_margin=margin)
    booster = xgboost.Booster({"objective": "survival:cox"}, [of])
    said = float(booster.eval(of).split(":")[-1])
    assert metrics.values(("cox-nloglik",), total, UNIT)["cox-nloglik"] == pytest.approx(said, rel=1e-4)


def test_risk_sets_in_bins_approach_those_of_each_time():
    """The finer the bins, the nearer the loss to that of XGBoost."""
    fine, coarse = ({**COX, "rounds": 8, "max_bin": 256, "min_count": floor} for floor in (1, 60))
    loss, rough = (run(X, Y, randomly(ROWS, 3), **each) for each in (fine, coarse))
    for session, close in ((loss, 0.01), (rough, 1.0)):
        margins = session.booster.margins(X)
        total = metrics.sums(("cox-nloglik",), Cox(), margins, Y, np.ones(ROWS, np.float32), UNIT)
        exact = metrics.values(("cox-nloglik",), total, UNIT)["cox-nloglik"]
        assert close / 50 < abs(session.history[-1].metrics["cox-nloglik"] - exact) < close


def with_few_at_the_end():
    """Bounds of times: sixty rows leave at the first time of all, and five at the last."""
    place = np.argsort(np.argsort(Y[0]))
    time = np.where(place < 60, Y[0].min(), Y[0])
    return np.stack([time, np.where((place < 60) | (place >= ROWS - 5), np.inf, time)]).astype(np.float32)


@pytest.mark.parametrize("labels", [Y, with_few_at_the_end()], ids=["spread", "few at the end"])
def test_every_bin_has_enough_events_and_no_or_enough_other_rows(labels):
    settings = {**COX, "min_count": 12, "validation_fraction": 0.3}
    terms = terms_of(X, 1, **settings)
    holder = HorizontalHolder(lambda: shard_of(X, labels), terms)
    program = train(terms, [])
    query = next(program)
    while not any(isinstance(part, StartQuery) for part in query.parts):
        query = program.send(holder.answer(query))
    (start,) = (part for part in query.parts if isinstance(part, StartQuery))
    assert {*start.times.validation} <= {*start.times.starts}
    for name in metrics.TRAIN, metrics.VALIDATION:
        of = holder._sets[name]
        bins = np.searchsorted(start.times.of(name), labels[0][of], side="right")
        event = np.isfinite(labels[1][of])
        events, others = (np.bincount(bins[kind], minlength=bins.max() + 1) for kind in (event, ~event))
        assert events.min() >= 12
        assert all(number == 0 or number >= 12 for number in others)
        if name == metrics.TRAIN:
            assert start.times.events == tuple(events.astype(float))


def test_what_parties_receive_is_rounded_and_never_rises():
    draw = np.random.default_rng(5)
    for _ in range(50):
        risk = draw.exponential(size=200) * 10.0 ** draw.integers(-8, 8)
        at_risk = np.cumsum(risk[::-1])[::-1]
        sums = np.array(told(at_risk, 200))
        assert (np.diff(sums) <= 0).all()
        assert (sums > 0).all()
        step = 2.0 ** np.ceil(np.log2(at_risk[0] / 200))
        assert (np.abs(sums - at_risk) <= np.maximum(step, at_risk * 2.0**-RISK_BITS)).all()
        assert (sums % (step / 2) == 0).all()


def test_a_party_that_returns_within_a_tree_answers_the_same():
    terms = terms_of(X, 1, **COX)
    one, program = HorizontalHolder(lambda: shard_of(X, Y), terms), train(terms, [])
    query, levels = next(program), 0
    while levels < 5:
        before = one.state
        answer = one.answer(query)
        if isinstance(query, HistogramQuery):
            levels += 1
            again = HorizontalHolder(lambda: shard_of(X, Y), terms)
            returned = before.with_record(before.to_record())
            returned.check(terms)
            again.go_to(returned)
            assert (again.answer(query) == answer).all()
            if before.levels:
                at_risk = before.scales.at_risk
                for wrong in (at_risk[::-1], at_risk[:-1], (float("nan"), *at_risk[1:])):
                    with pytest.raises(Refused):
                        replace(before, scales=replace(before.scales, at_risk=wrong)).check(terms)
                with pytest.raises(Refused):
                    replace(before, scales=None).check(terms)
        query = program.send(answer)


def test_too_few_events_stop_a_session_before_it_trains():
    rare = np.stack([Y[0], np.where(np.arange(ROWS) < 5, Y[0], np.inf)])
    session = run(X, rare, randomly(ROWS, 3), **COX)
    assert session.phase == "failed"
    assert "at least 10 events (min_count)" in str(session.error)


@pytest.mark.parametrize("events", [11, ROWS])
def test_events_in_one_bin_of_time(events):
    """Eleven events are too few for two bins, and events at one time need no more."""
    time = np.ones(ROWS) if events == ROWS else Y[0]
    label = np.stack([time, np.where(np.arange(ROWS) < events, time, np.inf)])
    session = run(X, label, randomly(ROWS, 3), **COX)
    assert session.phase == "done"
    assert session.booster.to_xgboost() == model_of(X, label, one_party(ROWS), **COX)


def test_leaves_without_hessians_end_a_session_with_a_reason():
    bare = {**COX, "rounds": 30, "reg_lambda": 0, "min_child_weight": 0, "learning_rate": 1}
    session = run(X, Y, randomly(ROWS, 3), **bare)
    assert "a leaf value is not a finite float32" in str(session.error)


def tampered(kind, change):
    """Train over one party, whose answers to queries of this kind are changed."""
    terms = terms_of(X, 1, **COX)
    holder, program = HorizontalHolder(lambda: shard_of(X, Y), terms), train(terms, [])
    query = next(program)
    while True:
        answer = np.array(holder.answer(query))
        if isinstance(query, kind):
            change(query, answer)
        query = program.send(answer)


def test_impossible_sums_by_time():
    def wrap(query, answer):
        answer[:4] = 1 << 62  # their sum is 0 in int64

    def negative(query, answer):
        answer[answer.size - 2 * sum(query.bins)] = -1

    for kind, change in ((TimesQuery, wrap), (EndRoundQuery, negative)):
        with pytest.raises(PeerError) as refused:
            tampered(kind, change)
        assert refused.value.code == "sums-inconsistent"


@pytest.mark.parametrize(
    ("label", "row"),
    [([[1, 0], [1, 5]], 1), ([[1, 2], [np.inf, 3]], 1), ([[1, -2], [1, -2]], 1), ([[2, 3], [1, 3]], 0)],
)
def test_labels_that_are_no_times_of_events(label, row):
    found = Cox().first_invalid_label(np.array(label, np.float32))
    assert found is not None
    assert found[0] == row


GRID = TimeGrid((1.0, 2.0), (10.0, 11.0, 12.0))


@pytest.mark.parametrize(
    "times",
    [
        None,
        TimeGrid((2.0, 1.0), (10.0, 10.0, 10.0)),
        TimeGrid((1.0,), (10.0, 10.0, 10.0)),
        TimeGrid((1.0, 2.0), (10.0, 9.0, 30.0)),
        TimeGrid((1.0, 2.0), (10.0, float("nan"), 30.0)),
        TimeGrid((1.0, 2.0), (10.0, 10.0, 10.0), (1.5,)),
        TimeGrid((-1.0, 2.0), (10.0, 10.0, 10.0)),
    ],
)
def test_time_bins_that_a_party_refuses(times):
    terms = terms_of(X, 1, **COX)
    with pytest.raises(Refused):
        start(terms, times).check(terms)
    for times in GRID, TimeGrid((), (10.0,)):
        assert start(terms, times).check(terms) is None


def start(terms, times):
    cut_points = CutPoints.of([np.zeros(1, np.float32)] * X.shape[1], [False] * X.shape[1])
    return StartQuery(ROWS, cut_points, Scale(0, 31), Scale(0, 31), (), times)


def test_sums_of_risks_that_a_party_refuses():
    terms = terms_of(X, 1, **COX)
    bins, scale = X.shape[1] * 2, Scale(0, terms.bits)
    for at_risk in ((1.0, 2.0, 3.0), (3.0, 2.0, 0.0), (3.0, float("nan"), 1.0), (float("inf"), 2.0, 1.0)):
        with pytest.raises(Refused):
            HistogramQuery(ROWS, 0, (), (0,), bins, scale, scale, at_risk=at_risk).check(terms)
    with pytest.raises(Refused):
        EndRoundQuery(ROWS, -1, (), ((0, 0.0),), terms.metrics, UNIT, True).check(terms)
    other = terms_of(X, 1, **{**COX, "objective": "survival:aft"})
    with pytest.raises(Refused):
        HistogramQuery(ROWS, 0, (), (0,), bins, scale, scale, at_risk=(3.0, 2.0, 1.0)).check(other)
    with pytest.raises(Refused):
        TimesQuery(ROWS, (1.0,), UNIT, (metrics.TRAIN,)).check(other)


def test_queries_about_risk_sets_out_of_order():
    terms = terms_of(X, 1, **COX)
    times = TimesQuery(ROWS, (1.0,), UNIT, (metrics.TRAIN,))
    holder = HorizontalHolder(lambda: shard_of(X, Y), terms)
    with pytest.raises(PeerError):
        holder.answer(start(terms, GRID))  # before events were counted
    holder.answer(times)
    with pytest.raises(PeerError):
        holder.answer(times)  # a second time
    holder.answer(start(terms, GRID))
    with pytest.raises(PeerError):
        holder.answer(times)


def test_risk_sets_do_not_divide_by_nothing():
    sets = RiskSets(np.array([1.0], np.float32), np.array([0.0, 2.0]), np.array([5.0, 0.0]))
    assert [each.tolist() for each in sets.hazards] == [[0.0, 0.0], [0.0, 0.0]]
