"""The splits of levels equal their numpy reference bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedboost.gbdt.kernels.split import shared_splits
from fedboost.gbdt.tree import LEAF
from tests.gbdt.reference import symmetric as reference


def level(rng, sizes, missing, leaves, size, spread):
    """Histograms of random leaves, int64 [leaves, 2 T]; gradients are small integers, so that gains tie."""
    widths = [s + m for s, m in zip(sizes, missing, strict=True)]
    out = np.zeros((leaves, 2 * sum(widths)), np.int64)
    for histogram in out:
        count = int(rng.integers(0, size + 1))
        gradient, hessian = rng.integers(-spread, spread + 1, count), rng.integers(0, 4, count)
        first = 0
        for width in widths:
            place = first + rng.integers(0, width, count)
            np.add.at(histogram, 2 * place, gradient)
            np.add.at(histogram, 2 * place + 1, hessian)
            first += width
    return out


def compare(histograms, roots, sizes, missing, categorical, penalties, levels, above=1e-6, least=0.0):
    """Split the leaves of these roots, and hold each root's against the reference."""
    value_bins, missing, categorical = np.array(sizes), np.array(missing, bool), np.array(categorical, bool)
    offsets = np.concatenate([[0], np.cumsum(value_bins + missing)[:-1]]).astype(np.uint32)
    leaves, factors = np.zeros(len(histograms), LEAF), (16.0, 2.0)
    first = 2 * int(value_bins[0] + missing[0])
    leaves["slot"], leaves["root"] = np.arange(len(histograms)), roots
    leaves["lower"], leaves["upper"] = -np.inf, np.inf
    leaves["gradient"] = histograms[:, 0:first:2].sum(axis=1)
    leaves["hessian"] = histograms[:, 1:first:2].sum(axis=1)
    pooled = np.full((max(roots) + 1, 2 * 257), 7, np.int64)
    rule = factors, penalties, levels
    layout, free = (offsets, value_bins, missing, categorical), np.zeros(0, np.int64)
    shared_splits(leaves, histograms, np.zeros((0, 0), bool), layout, *rule, free, above, least, pooled)
    names = "gain", "feature", "bin", "missing_left", "left_gradient", "left_hessian"
    for root in {*roots}:
        among = np.array(roots) == root
        due = reference.shared_split(histograms[among], *layout[1:], *rule, above, least)
        found = [tuple(leaf[name].item() for name in names) for leaf in leaves[among]]
        assert [None if own[1] < 0 else own for own in found] == due
        feature = max(own[1] for own in found)
        if feature >= 0 and categorical[feature]:
            cells = 2 * offsets[feature], 2 * (offsets[feature] + value_bins[feature])
            sums = histograms[among].sum(axis=0)[slice(*cells)]
            assert pooled[root, : sums.size].tolist() == sums.tolist()
    return leaves


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    leaves=st.integers(1, 5),
    reg_lambda=st.sampled_from([0.0, 1.0, 2.5]),
    reg_alpha=st.sampled_from([0.0, 0.3, 4.0]),
    min_child_weight=st.sampled_from([0.0, 1.0, 7.0, 1e9]),
    max_delta_step=st.sampled_from([math.inf, 0.25]),
    size=st.sampled_from([0, 2, 10, 60]),
    spread=st.sampled_from([1, 5, 100_000]),
    levels=st.sampled_from([(4, 64), (1, 64), (7, 64), (1, 2), (1, 3)]),
    least=st.sampled_from([0.0, 0.4, 3.0]),
)
@settings(max_examples=300, deadline=None)
def test_shared_splits(
    seed,
    sizes,
    leaves,
    reg_lambda,
    reg_alpha,
    min_child_weight,
    max_delta_step,
    size,
    spread,
    levels,
    least,
):
    rng = np.random.default_rng(seed)
    missing, categorical = rng.integers(0, 2, (2, len(sizes)), np.bool_)
    histograms = level(rng, sizes, missing.tolist(), leaves, size, spread)
    penalties = reg_lambda, reg_alpha, min_child_weight, max_delta_step
    roots = np.sort(rng.integers(0, 2, leaves)).tolist()
    compare(histograms, roots, sizes, missing, categorical, penalties, levels, least=least)


@pytest.mark.parametrize("levels", [(4, 64), (7, 64), (1, 3)])
def test_some_shared_splits(levels):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        histograms = level(rng, [4, 5, 6], [1, 0, 1], 4, 40, 5)
        penalties = 1.0, 0.3 * (seed % 2), 2.0, math.inf
        compare(histograms, [0, 0, 2, 2], [4, 5, 6], [1, 0, 1], [0, 1, 1], penalties, levels)


def test_the_sum_over_the_leaves_decides():
    """Alone, each leaf would be split by another feature."""
    one = [-8, 4, 8, 4, -6, 4, 6, 4, 0, 4, 0, 4]
    other = [0, 4, 0, 4, -6, 4, 6, 4, -8, 4, 8, 4]
    cells, penalties = np.array([one, other], np.int64), (1.0, 0.0, 0.0, math.inf)
    found = compare(cells, [0, 0], [2, 2, 2], [0, 0, 0], [0, 0, 0], penalties, (4, 64))
    assert found["feature"].tolist() == [1, 1]
    alone = compare(cells, [0, 1], [2, 2, 2], [0, 0, 0], [0, 0, 0], penalties, (4, 64))
    assert alone["feature"].tolist() == [0, 2]


def test_a_leaf_that_may_not_be_parted_gains_nothing_and_stays():
    light = [-99, 1, 9, 30]
    cells, penalties = np.array([light, [-9, 30, 9, 30]], np.int64), (1.0, 0.0, 2.0, math.inf)
    found = compare(cells, [0, 0], [2], [0], [0], penalties, (4, 64))
    assert found["feature"].tolist() == [-1, 0]


def test_a_leaf_may_lose_where_the_level_gains():
    cells, penalties = np.array([[5, 4, 5, 4], [-60, 4, 60, 4]], np.int64), (1.0, 0.0, 0.0, math.inf)
    found = compare(cells, [0, 0], [2], [0], [0], penalties, (4, 64))
    assert found["gain"][0] < 0 < found["gain"][1]
    assert found["feature"].tolist() == [0, 0]


def test_levels_of_a_category_have_the_order_of_their_sums():
    """Level 2 is the highest in the first leaf and the lowest in the second."""
    cells = np.array([[-20, 4, 0, 4, 30, 4], [-20, 4, 0, 4, -60, 4]], np.int64)
    compare(cells, [0, 0], [3], [0], [1], (1.0, 0.0, 0.0, math.inf), (1, 64))


@pytest.mark.parametrize("least", [0.0, 10.0])
def test_a_level_gains_enough_for_all_its_splits(least):
    cells, penalties = np.array([[-40, 4, 40, 4], [-4, 4, 4, 4]], np.int64), (1.0, 0.0, 0.0, math.inf)
    found = compare(cells, [0, 0], [2], [0], [0], penalties, (4, 64), least=least)
    assert found["feature"].tolist() == ([0, 0] if least == 0.0 else [-1, -1])
