"""Cut points from noisy counts, and the posterior mean of an effect, beside plain formulas."""

import numpy as np
import pytest

from fedboost.boosting.programs import additive
from fedboost.gbdt.cut_points import FINE_PARTS, range_edges


def counts(draw, sigma, heavy=()):
    """Noisy counts of parts with few rows, and some with many: the numbers, and the counts."""
    rows = np.zeros(FINE_PARTS)
    rows[100:300] = draw.poisson(30, 200)
    for part in heavy:
        rows[part] = 5000
    return rows, np.rint(rows + draw.normal(0, sigma, FINE_PARTS)).astype(np.int64)


@pytest.mark.parametrize("sigma", [1.0, 30.0, 300.0])
def test_shrunken_counts_are_closer_to_the_rows_and_as_many(sigma):
    draw = np.random.default_rng(1)
    for _ in range(5):
        rows, noisy = counts(draw, sigma, (17, 120))
        found = additive.shrunken(noisy, sigma)
        assert (found >= 0).all()
        assert np.abs(found - rows).sum() <= np.abs(noisy - rows).sum()
        assert (found[[17, 120]] == noisy[[17, 120]]).all()


def test_noise_alone_is_spread_evenly():
    noisy = np.random.default_rng(2).integers(-50, 51, FINE_PARTS)
    found = additive.shrunken(noisy, 30.0)
    assert np.unique(np.round(found, 9)).size < FINE_PARTS // 2


def test_counts_of_no_rows_stay_0():
    with np.errstate(all="raise"):
        assert not additive.shrunken(np.zeros(FINE_PARTS, np.int64), 1e6).any()


@pytest.mark.parametrize("bins", [1, 2, 7, 64])
def test_a_heavy_value_is_a_bin_of_its_own_and_the_others_are_even(bins):
    rows = np.ones(FINE_PARTS)
    rows[200] = 10_000.0
    cuts, in_bins = additive.cuts_of(rows, (0.0, 100.0), bins)
    assert cuts.size < bins
    assert (np.diff(cuts) > 0).all()
    assert in_bins.sum() == pytest.approx(rows.sum())
    if bins == 64:
        edges = range_edges((0.0, 100.0), FINE_PARTS)
        assert {float(edges[199]), float(edges[200])} <= {*cuts.tolist()}
        assert np.sort(in_bins)[-2] < 25


def test_a_range_without_rows_is_cut_evenly():
    cuts, _ = additive.cuts_of(np.zeros(FINE_PARTS), (0.0, 1.0), 16)
    assert 8 < cuts.size < 16


def test_equal_parts_cover_each_cell_once():
    draw = np.random.default_rng(3)
    for _ in range(200):
        weight = draw.exponential(1.0, int(draw.integers(1, 70))) ** 3
        count, shift = int(draw.integers(1, 70)), float(draw.uniform(-0.5, 0.5))
        parts = additive.equal_parts(weight, count, shift)
        assert [cell for part in parts for cell in part] == [*range(weight.size)]
        assert 1 <= len(parts) <= count
        assert all(len(part) for part in parts)


def test_the_posterior_mean_is_that_of_the_textbook():
    draw = np.random.default_rng(4)
    for _ in range(20):
        cells, answers = (int(draw.integers(2, 12)) for _ in range(2))
        spread, y = draw.normal(size=(answers, cells)), draw.normal(size=answers)
        variance, prior = draw.uniform(0.1, 2.0, answers), additive.alike(cells, 0.3)
        means, likely = [], []
        for tau in 2.0 * additive.TAUS:
            covariance = tau**2 * spread @ prior @ spread.T + np.diag(variance)
            means.append(tau**2 * prior @ spread.T @ np.linalg.solve(covariance, y))
            likely.append(-0.5 * (np.linalg.slogdet(covariance)[1] + y @ np.linalg.solve(covariance, y)))
        before = np.exp(-0.5 * (np.log(additive.TAUS / 0.4) / additive.PRIOR_WIDTH) ** 2)
        weight = before * np.exp(likely)
        nothing = -0.5 * (np.log(variance).sum() + (y * y / variance).sum())
        mean, evidence = additive.posterior(spread, y, variance, prior, 0.4, 2.0)
        assert mean == pytest.approx(np.average(means, axis=0, weights=weight), rel=1e-6, abs=1e-9)
        assert evidence == pytest.approx(np.log(weight.sum() / before.sum()) - nothing, rel=1e-6, abs=1e-9)
