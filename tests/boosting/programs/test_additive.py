"""Cut points from noisy counts, and the posterior mean of an effect, beside plain formulas."""

from itertools import pairwise

import numpy as np
import pytest

from fedboost.boosting.programs import additive
from fedboost.boosting.state import tree_of
from fedboost.gbdt import tree as tree_module
from fedboost.gbdt.cut_points import FINE_PARTS, range_edges
from fedboost.gbdt.tree import NO_VALUES, LeafValues, Splits


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
        count = int(draw.integers(1, 70))
        parts = additive.equal_parts(weight, count)
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
        mean, evidence = additive.posterior(spread, y, variance, np.linalg.cholesky(prior), 0.4, 2.0)
        assert mean == pytest.approx(np.average(means, axis=0, weights=weight), rel=1e-6, abs=1e-9)
        assert evidence == pytest.approx(np.log(weight.sum() / before.sum()) - nothing, rel=1e-6, abs=1e-9)


def tree_over(cells, cuts, roots, draw):
    """Trees of one feature, with a leaf per cell, that divide the cells first into groups of random sizes."""
    grower = additive.Grower(roots, () if cuts.size else (0,), True)
    for root in range(roots):
        count = int(draw.integers(0, len(cells)))
        ends = np.sort(draw.choice(np.arange(1, len(cells)), count, replace=False)).tolist()
        groups = [cells[start:end] for start, end in pairwise([0, *ends, len(cells)])]
        leaves = grower.divide(root, 0, [additive.joined(part) for part in groups])
        for leaf, part in zip(leaves, groups, strict=True):
            grower.divide(leaf, 0, part)
    splits = Splits.of(grower.splits)
    tree = tree_of(splits, NO_VALUES, (cuts,), roots)
    value = draw.normal(size=len(tree)).astype(np.float32)
    return tree.changed(cover=draw.exponential(1.0, len(tree)), value=np.where(tree.inner, 0.0, value))


@pytest.mark.parametrize("roots", [1, 3])
@pytest.mark.parametrize("categorical", [False, True])
def test_rounds_of_one_feature_are_merged_into_one_tree_that_predicts_their_sum(roots, categorical):
    draw = np.random.default_rng(5)
    for size in (1, 2, 3, 9, 33):
        values = [additive.Group((bin_,)) for bin_ in range(size)]
        cells = [additive.MISSING, *values] if categorical else [*values, additive.MISSING]
        cuts = np.arange(0 if categorical else size - 1, dtype=np.float32)
        if not categorical and size == 1:
            continue
        rounds = [tree_over(cells, cuts, roots, draw) for _ in range(4)]
        parts = [part for tree in rounds for part in tree.parts(roots)]
        merged = tree_module.merged(parts, roots)
        assert len(merged) == roots
        x = np.append(np.arange(-1, size + 2), np.nan).astype(np.float32).reshape(-1, 1)
        x = np.where(x < 0, np.nan, x) if categorical else x
        for root, one in enumerate(merged):
            every = sum(margins(part, x) for part in parts[root::roots])
            assert margins(one, x) == pytest.approx(every, abs=1e-6)
            for node, left in enumerate(one.left):
                assert (one.gain[node] > 0.0) == (left >= 0)


def test_trees_whose_leaves_divide_the_rows_differently_are_kept_apart():
    draw = np.random.default_rng(6)
    cells = [additive.Group((0,)), additive.Group((1,)), additive.MISSING]
    fine = tree_over(cells, np.array([0.5], np.float32), 1, draw)
    coarse = tree_of(Splits.of(()), LeafValues.of([(0, 1.0)]), (np.array([0.5], np.float32),), 1)
    other = tree_over(cells, np.array([0.6], np.float32), 1, draw)
    assert len(tree_module.merged([fine, coarse, fine, other], 1)) == 3


def margins(tree, x):
    """What a tree adds to each row's margin, float64 [rows]."""
    found = []
    for value in x[:, 0].tolist():
        node = 0
        while tree.left[node] >= 0:
            right = not value < tree.threshold[node]
            if levels := tree.levels(node):
                right = value in levels
            if np.isnan(value):
                right = not tree.missing_left[node]
            node = tree.left[node] + right
        found.append(tree.value[node])
    return np.array(found)
