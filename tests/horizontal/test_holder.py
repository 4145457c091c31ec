"""A party's answers: summed over the parties they are what one party with all rows would have answered."""

import dataclasses
from collections import Counter
from functools import partial

import numpy as np
import pytest
from answers import CONSTANT, CUTS, LEVEL_CUTS, LEVELS_OF, ROOT, SPLIT, START, party_after
from inprocess import one_party, randomly, shard_of, terms_of
from raised import raised
from trainings import one_by_one

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import ResidualQuery, RowsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.state import INITIAL_STATE, BoostingState, Round
from fedboost.errors import PeerError, Refused
from fedboost.gbdt import threads
from fedboost.gbdt.cut_points import CutPoints, Grids
from fedboost.gbdt.tree import Split
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy.packing import signed

ROWS = 300


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(threads, "BLOCK", 64)


def data(objective):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, 4)).astype(np.float32)
    X[:, 2] = rng.integers(0, 3, ROWS)
    signal = X[:, 0] + X[:, 1] * X[:, 2]
    X[rng.random(X.shape) < 0.1] = np.nan
    y = signal + rng.normal(size=ROWS) > 0 if objective == "binary:logistic" else 1e3 * signal
    return X, y.astype(np.float32), rng.exponential(2, ROWS).astype(np.float32)


def train_beside(X, y, weight, parts, **settings):
    """A whole training: each query goes to the parties and to one with all rows, which computes them with two
    threads. Counts the queries."""
    terms = terms_of(X, len(parts), weight, **settings)
    parties = [HorizontalHolder(partial(shard_of, X, y, weight, rows), terms) for rows in parts]
    pooled = HorizontalHolder(lambda: shard_of(X, y, weight, slice(None)), terms, nthread=2)
    program, seen = train(terms, []), Counter()
    query = next(program)
    while True:
        answers = [party.answer(query) for party in parties]
        total = sum(answers)
        due = pooled.answer(query)
        assert total.shape == due.shape == (query.cells,)
        assert total.dtype == np.int64
        assert total.tolist() == due.tolist(), f"{query} after {seen}"
        assert all(query.fits(answer) for answer in (*answers, total))
        cells = np.sum([query.to_cells(answer) for answer in answers], axis=0)
        assert query.from_cells(signed(cells.view(np.uint64), query.segments)).tolist() == total.tolist()
        seen.update(type(part) for part in query.parts)
        try:
            query = program.send(total)
        except StopIteration as end:
            trees = len(end.value.trees)
            break
    assert trees == terms.trees.rounds
    return seen


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
@pytest.mark.parametrize("parties", [1, 2, 5])
def test_the_sum_of_the_answers_is_the_answer_of_the_pooled_rows(objective, weighted, parties):
    X, y, weight = data(objective)
    settings = {"objective": objective, "rounds": 3, "max_depth": 4}
    if objective == "binary:logistic":
        settings["eval_metric"] = ["logloss", "error", "auc"]
    seen = train_beside(X, y, weight if weighted else None, randomly(ROWS, parties), **settings)
    assert seen[RowsQuery] == seen[StartQuery] == 1
    assert seen[QuantileQuery] >= 1
    assert seen[HistogramQuery] >= 3 * 2
    assert seen[EndRoundQuery] == 4  # and the constant


def test_answers_about_levels_add_up():
    X, y, weight = data("binary:logistic")
    X[:, 3] = np.random.default_rng(0).integers(0, 9, ROWS)
    seen = train_beside(X, y, weight, randomly(ROWS, 3), rounds=2, levels=(3, 12))
    assert seen[HistogramQuery] >= 2 * 2


def test_a_party_of_one_row_and_one_without_positives():
    X, y, _ = data("binary:logistic")
    order = np.argsort(y, kind="stable")
    negatives, others = order[:100], order[101:]
    train_beside(X, y, None, [negatives, order[100:101], others], rounds=2)


def test_gradient_bits_at_their_ends():
    X, y, weight = data("binary:logistic")
    for bits in (8, 24):
        train_beside(X, y, weight, randomly(ROWS, 3), rounds=1, gradient_bits=bits)


def test_histograms_of_the_root_and_of_a_child():
    party = party_after(START, dataclasses.replace(CONSTANT, values=((0, 0.0),)))
    half, hessian = 1 << 14, 1 << 13  # 1/2 and 1/4 in 16 bits with the sign, of a bound of 1
    assert party.answer(ROOT).reshape(5, 2).tolist() == [
        [half, hessian],
        [-half, hessian],
        [-half, hessian],
        [half, hessian],
        [2 * half, 4 * hessian],  # of the gradients above 0, and of all hessians
    ]
    child = party.answer(dataclasses.replace(ROOT, splits=(SPLIT,), nodes=(1,)))
    due = [[half, hessian], [0, 0], [0, 0], [half, hessian], [2 * half, 2 * hessian]]
    assert child.reshape(5, 2).tolist() == due


def test_missing_values_nobody_counted_are_in_the_last_bin():
    """Refusing would tell that this party has some."""
    party = party_after(dataclasses.replace(START, cut_points=CutPoints.of(CUTS.cuts, (False,))), CONSTANT)
    cells = party.answer(dataclasses.replace(ROOT, bins=3)).reshape(4, 2)
    assert cells[:, 1].all()  # four rows in three bins


def test_nothing_is_asked_where_all_features_have_levels():
    with raised(Refused, "query-grids"):
        QuantileQuery(4, Grids.first(0)).check(terms_of(np.zeros((1, 2)), 1, levels=(3, 5)))


@pytest.mark.parametrize("grids", [0, 2, 3])
def test_levels_are_not_counted_over_grids(grids):
    QuantileQuery(4, Grids.first(1)).check(LEVELS_OF)
    with raised(Refused, "query-grids"):
        QuantileQuery(4, Grids.first(grids)).check(LEVELS_OF)


def test_what_is_signed_tells_sets_of_levels_apart():
    def signed(*splits):
        cuts = dataclasses.replace(START, cut_points=LEVEL_CUTS)
        done = Round(splits, tuple((node, node / 8) for node in (2, 3, 4)))
        return BoostingState(0, cuts, (Round((), ((0, 0.0),)), done)).structure(1, LEVELS_OF)

    root, child = Split(0, 1, 0, True, 1, 0b110), Split(1, 2, 0, True, 3, 0b110)
    other = dataclasses.replace(child, categories=0b10)
    models = {
        signed(root, child),
        signed(root, other),
        signed(dataclasses.replace(root, categories=1), child),
    }
    assert len(models) == 3


def test_residuals_are_given_so_often_in_their_place_and_no_more():
    X, y, _ = data("reg:squarederror")
    terms = terms_of(X, 1, objective="reg:absoluteerror", rounds=1, max_depth=1)
    party, program = HorizontalHolder(lambda: shard_of(X, y), terms), one_by_one(train(terms, []))
    query, asked = next(program), []
    while not isinstance(query, HistogramQuery):
        total = party.answer(query)
        if isinstance(query, ResidualQuery):
            asked.append(query)
            if len(asked) == 3:
                with raised(PeerError, "query-order"):
                    party.answer(query)
        query = program.send(total)
    with raised(PeerError, "query-order"):
        party.answer(dataclasses.replace(asked[0], tree=0))
    query = program.send(party.answer(query))
    for _ in range(3):
        assert isinstance(query, ResidualQuery)
        last = party.answer(query)
        before, query = query, program.send(last)
    with raised(PeerError, "query-order"):
        party.answer(before)


def test_a_partition_of_everything_is_the_pooled_party():
    assert [rows.tolist() for rows in one_party(3)] == [[0, 1, 2]]
    parts = randomly(50, 7)
    assert sorted(np.concatenate(parts).tolist()) == list(range(50))
    assert all(rows.size for rows in parts)


def test_margins_begin_at_the_base_margins_again_after_a_return():
    X, y, _ = data("binary:logistic")
    base = np.linspace(-2, 2, len(y))
    terms = terms_of(X, 1, base_margin=base, rounds=3, max_depth=2)
    party, other = (HorizontalHolder(lambda: shard_of(X, y, base_margin=base), terms) for _ in range(2))
    program = train(terms, [])
    query, places = next(program), []
    while query is not None:
        places.append(party.state)
        answer = party.answer(query)
        other.go_to(party.state)
        other.go_to(places[-1])
        assert other.answer(query).tolist() == answer.tolist()
        try:
            query = program.send(answer)
        except StopIteration:
            query = None
    assert len({len(place.rounds) for place in places}) == 4  # from before the constant to the last tree
    party.go_to(INITIAL_STATE)
    assert (
        party.answer(RowsQuery()).tolist()
        == HorizontalHolder(party._read, terms).answer(RowsQuery()).tolist()
    )


DRAWN = {
    "by gradients": {"sampling_method": "gradient_based", "subsample": 0.4, "num_parallel_tree": 2},
    "bootstrap": {"sampling_method": "bootstrap", "validation_fraction": 0.2},
    "bootstrap, medians": {"sampling_method": "bootstrap", "objective": "reg:absoluteerror"},
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_party_that_returns_within_a_tree_draws_the_same_rows(name):
    X, y, _ = data("binary:logistic")
    terms = terms_of(X, 1, rounds=2, max_depth=3, **DRAWN[name])
    party, other = (HorizontalHolder(lambda: shard_of(X, y), terms) for _ in range(2))
    program, within = train(terms, []), 0
    query = next(program)
    while query is not None:
        other.go_to(INITIAL_STATE)
        other.go_to(party.state)
        within += party.state.levels > 0
        query.check(terms)
        answer = party.answer(query)
        assert other.answer(query).tolist() == answer.tolist()
        try:
            query = program.send(answer)
        except StopIteration:
            query = None
    assert within >= 4


def test_values_are_forgotten_once_they_are_binned_and_read_again_if_they_are_wanted():
    X, y, weight = data("binary:logistic")
    terms, reads = terms_of(X, 1, weight), []

    def read():
        reads.append(len(reads))
        return shard_of(X, y, weight, slice(None))

    party, program = HorizontalHolder(read, terms), train(terms, [])
    query = next(program)
    while not isinstance(query, StartQuery):
        query = program.send(party.answer(query))
    before, first = party.state, party.answer(query)
    assert reads == [0]
    party.go_to(before)  # the aggregator lost the answer, and asks again
    assert party.answer(query).tolist() == first.tolist()
    assert reads == [0, 1]
    following, other = program.send(first), HorizontalHolder(read, terms)
    other.go_to(party.state)
    assert party.answer(following).tolist() == other.answer(following).tolist()
