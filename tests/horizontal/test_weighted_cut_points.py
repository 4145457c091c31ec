"""Rows count by their weights among the quantiles that cut points lie at, as in XGBoost."""

import dataclasses

import numpy as np
import pytest
import xgboost
from inprocess import model_of, one_party, randomly, run, shard_of, terms_of
from raised import raised
from trainings import one_by_one, spoiling

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.boosting.queries.columns import MAX_WEIGHT_BITS, QuantileQuery, are_weighted, weight_scale
from fedboost.boosting.queries.labels import RowsQuery, StartQuery
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Scale, exponent_counts, lower_bound
from fedboost.gbdt.binned import SparseColumn
from fedboost.gbdt.cut_points import Grids, Quantiles, count_cells
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.terms.tasks import terms_to_describe
from fedboost.terms.terms import Terms

ROWS = 500
SMALL = {"rounds": 2, "max_depth": 3, "max_bin": 16}
RNG = np.random.default_rng(5)
WEIGHT = RNG.integers(1, 6, ROWS).astype(np.float32)


def data():
    """Numbers of many values, of few, of some that are missing; labels."""
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=ROWS), rng.integers(0, 40, ROWS), np.exp(3 * rng.normal(size=ROWS))])
    y = X[:, 0] + X[:, 1] / 20 > 1
    X[rng.random(X.shape) < (0, 0, 0.2)] = np.nan
    return X.astype(np.float32), y.astype(np.float32)


def asked(X, y, weight=None, parts=None, **settings):
    """The queries up to the cut points, each alone."""
    parts = parts or one_party(len(X))
    terms = terms_of(X, len(parts), weight, **{**SMALL, **settings})
    holders = [HorizontalHolder(lambda own=own: shard_of(X, y, weight, own), terms) for own in parts]
    program, queries = one_by_one(train(terms, [])), []
    query = next(program)
    while True:
        queries.append(query)
        if isinstance(query, StartQuery):
            return queries
        query = program.send(sum(holder.answer(query) for holder in holders))


def cut_points(*rows, **settings):
    """The cuts of each feature, and which have missing values."""
    found = asked(*rows, **settings)[-1].cut_points
    return [cuts.tolist() for cuts in found.cuts], found.missing.tolist()


def weighted_quantiles(column, weight, bins):
    """Each value that a quantile of the weights lies at, but for the smallest."""
    values, place = np.unique(column, return_inverse=True)
    until = np.cumsum(np.bincount(place, weight))
    at = np.searchsorted(until, np.arange(1, bins) * until[-1] / bins, side="left")
    return values[np.unique(at[at > 0])].tolist()


def test_cuts_lie_at_the_weighted_quantiles_of_all_rows():
    rng = np.random.default_rng(0)
    column, weight = rng.integers(0, 40, 3000).astype(np.float32), rng.choice([0.25, 1, 2.5], 3000)
    weight[column > 30] *= 8
    X, y = column[:, None], column > 20
    (found,), _ = cut_points(X, y, weight, randomly(3000, 4), max_bin=8)
    assert found == weighted_quantiles(column, weight, 8)
    assert found != weighted_quantiles(column, np.ones(3000), 8)
    assert found != cut_points(X, y, max_bin=8)[0][0]


def test_cuts_are_those_of_xgboost():
    """But for ties: XGBoost cuts at the value whose rank is nearest, here it is the next."""
    rng = np.random.default_rng(1)
    column = rng.integers(17, 91, 5000).astype(np.float32)
    weight = rng.exponential(1, 5000) * np.exp(column / 20)
    rows = xgboost.QuantileDMatrix(column[:, None], column > 50, weight=weight, max_bin=16)
    due = rows.get_quantile_cut()[1][1:-1]
    found, by_rows = (cut_points(column[:, None], column > 50, each)[0][0] for each in (weight, None))
    assert np.abs(np.array(found) - due).max() <= 1
    assert np.abs(np.array(by_rows) - due).max() > 10


def test_bins_of_continuous_values_weigh_the_same():
    column, weight = RNG.normal(size=20_000).astype(np.float32), RNG.exponential(1, 20_000)
    weight[column > 0] *= 5
    cuts, _ = cut_points(column[:, None], column > 0, weight, max_bin=64)
    mass = np.bincount(np.searchsorted(cuts[0], column, side="right"), weight)
    assert mass.size == 64
    assert 0.75 / 64 < (mass / mass.sum()).min() <= (mass / mass.sum()).max() < 1.25 / 64


@pytest.mark.parametrize("max_bin", [4, 16, 256])
def test_a_row_of_weight_3_is_three_rows(max_bin):
    X, y = data()
    often = np.repeat(np.arange(ROWS), WEIGHT.astype(int))
    due = cut_points(X[often], y[often], max_bin=max_bin)
    assert cut_points(X, y, WEIGHT, max_bin=max_bin) == due
    assert cut_points(X[often], y[often], np.ones(often.size), max_bin=max_bin) == due
    assert cut_points(X, y, max_bin=max_bin) != due


@pytest.mark.parametrize("factor", [2.0**-30, 0.125, 512.0])
def test_the_unit_of_small_weights_does_not_matter(factor):
    X, y = data()
    weight = np.sqrt(WEIGHT) / np.float32(1024)
    assert cut_points(X, y, weight * np.float32(factor)) == cut_points(X, y, weight, randomly(ROWS, 3))


def test_rows_of_weight_0_count_nothing():
    X, y = data()
    none = np.full((60, 3), np.nan, np.float32)
    none[:30] = 1e9 * RNG.normal(size=(30, 3))
    weight = np.concatenate([WEIGHT, np.zeros(60)])
    more, labels = np.concatenate([X, none]), np.concatenate([y, np.arange(60) % 2])
    assert cut_points(more, labels, weight) == cut_points(X, y, WEIGHT)
    parts = [np.arange(ROWS), np.arange(ROWS, ROWS + 60)]
    assert cut_points(more, labels, weight, parts) == cut_points(X, y, WEIGHT)


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_every_partition_gives_one_model(protection):
    X, y = data()
    weight = WEIGHT * np.float32(0.3)
    due = model_of(X, y, one_party(ROWS), weight, **SMALL)
    assert model_of(X, y, randomly(ROWS, 4), weight, protection=protection, **SMALL) == due


def test_the_grids_are_asked_once_the_scale_of_weights_is_known():
    X, y = data()
    first, *grids, _ = asked(X, y, WEIGHT)
    assert isinstance(first, RowsQuery)
    assert {grid.weight for grid in grids} == {Scale(3, 16)}
    assert all(query.weight is None for query in asked(X, y)[1:-1])
    program = train(terms_of(X, 1, WEIGHT), [])
    assert next(program) == RowsQuery()
    assert len(next(train(terms_of(X, 1), [])).parts) == 2


def test_a_weight_shows_in_the_hash_of_a_question():
    grids = Grids.first(3)
    each = [QuantileQuery(ROWS, grids, weight) for weight in (None, Scale(3, 16), Scale(4, 16), Scale(3, 15))]
    assert len({query.digest for query in each}) == 4


X, Y = data()
WEIGHED, UNWEIGHED = terms_of(X, 2, WEIGHT), terms_of(X, 2)


@pytest.mark.parametrize(
    ("terms", "weight"),
    [(WEIGHED, None), (WEIGHED, Scale(3, 15)), (WEIGHED, Scale(3, 24)), (UNWEIGHED, Scale(3, 16))],
)
def test_counts_that_the_terms_do_not_allow(terms, weight):
    with raised(Refused, "query-scale"):
        QuantileQuery(ROWS, Grids.first(3), weight).check(terms)
    due = Scale(-7, 16) if terms is WEIGHED else None
    QuantileQuery(ROWS, Grids.first(3), due).check(terms)


def test_sums_of_very_many_rows_stay_small():
    fine = WEIGHED.changed(gradient_bits=24)
    for rows in (1, 10**6, 1 << 29, (1 << 29) - 1, MAX_ROWS - 1):
        scale = weight_scale(fine, rows, 3)
        assert scale.limit * rows < 1 << MAX_WEIGHT_BITS
        assert scale.bits == 24 or scale.limit * 2 * rows >= 1 << MAX_WEIGHT_BITS - 1
        QuantileQuery(rows, Grids.first(3), scale).check(fine)
    # As large as sums may be: nothing overflows on the way to the cut points.
    for shift in (0, 41):
        column = np.arange(1024, dtype=np.float32)
        units = np.full(1024, 1 << shift)
        quantiles = Quantiles(256, (1 << 52) - 1, two_rows=2 << shift)
        while quantiles.grids.cells:
            quantiles.refine(count_cells([column], quantiles.grids, units=units))
        assert quantiles.cut_points().values.tolist() == [*range(3, 1023, 4)]


def test_weights_of_sparse_columns():
    dense = np.where(RNG.random((3, ROWS)) < 0.1, RNG.normal(size=(3, ROWS)), 0).astype(np.float32)
    dense[0, 5] = np.nan
    sparse = [SparseColumn(ROWS, np.flatnonzero(own), own[own != 0]) for own in dense]
    units = RNG.integers(0, 1 << 20, ROWS)
    grids = Grids.first(3)
    counts = count_cells(dense, grids, units=units)
    assert count_cells([sparse[0], dense[1], sparse[2]], grids, units=units).tolist() == counts.tolist()
    assert counts.reshape(3, -1).sum(1).tolist() == [units.sum()] * 3


def test_weights_that_do_not_add_up():
    columns = X.T
    honest = count_cells(columns, Grids.first(3), units=np.full(ROWS, 4))
    for place, by in ((0, -9), (1, 1 << 40), (2500, 1), (2500, -1), (5000, 1)):
        counts = honest.copy()
        counts[place] += by
        with raised(PeerError, "cells-sum-mismatch", "weights-out-of-range"):
            Quantiles(16, 8 * ROWS, 3, two_rows=8).refine(counts)
    Quantiles(16, 8 * ROWS, 3, two_rows=8).refine(honest)


def test_a_party_that_reports_other_weights_fails_the_session():
    parts = randomly(ROWS, 3)
    first = dataclasses.replace(asked(X, Y, WEIGHT, parts)[1], rows=ROWS)
    for cell in (0, first.cells - 1):
        session = run(X, Y, parts, WEIGHT, spoil=spoiling(2, first, cell), **SMALL)
        assert session.phase == "failed"
        assert str(session.error).startswith("turn 2: the counts of a refined cell do not sum")


def test_lower_bounds():
    for values, due in (
        ([1.0, 3], 1),
        ([1.5, 0], 1),
        ([2, 9], 2),
        ([0.3], 0.25),
        ([0.0], 0),
        ([1e-30, 1], 0),
    ):
        assert lower_bound(exponent_counts(np.array(values))) == due


def test_descriptions_and_columns_apart_count_rows():
    assert are_weighted(WEIGHED)
    assert not are_weighted(UNWEIGHED)
    assert not are_weighted(terms_to_describe(WEIGHED))
    columns = {"label": "y", "numeric": ["a", "b"], "weight": "w", "held": {"p1": ["b"]}}
    parties = {"parties": ["p0", "p1"], "label_holder": "p0", "rows": "in_order"}
    assert not are_weighted(Terms.read({"columns": columns, "protection": "plain", **parties}))
