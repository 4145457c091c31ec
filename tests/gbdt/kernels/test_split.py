"""The best split equals its numpy reference bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedboost.gbdt.kernels.split import best_gains, best_split, categories_right
from tests.gbdt.reference import split as reference


def node(rng, sizes, missing, size=60, spread=5):
    """A histogram of a random node, gradients small integers so that gains tie often."""
    widths = [s + m for s, m in zip(sizes, missing, strict=True)]
    histogram = np.zeros(2 * sum(widths), np.int64)
    gradient, hessian = rng.integers(-spread, spread + 1, size), rng.integers(0, 4, size)
    first = 0
    for width in widths:
        place = first + rng.integers(0, width, size)
        np.add.at(histogram, 2 * place, gradient)
        np.add.at(histogram, 2 * place + 1, hessian)
        first += width
    return histogram, (int(gradient.sum()), int(hessian.sum()))


def compare_best_split(
    histogram, sizes, missing, factors, penalties, total, by_level=False, most_levels=(4, 64)
):
    value_bins, missing = np.array(sizes, np.int64), np.array(missing, np.bool_)
    kinds = value_bins, missing, np.broadcast_to(by_level, missing.shape).copy()
    offsets = np.concatenate([[0], np.cumsum(value_bins + missing)[:-1]]).astype(np.uint32)
    rule = factors, penalties, most_levels, total
    found = tuple(best_split(histogram, offsets, *kinds, *rule, None))
    assert found == reference.best_split(histogram, *kinds, *rule)
    for f, gain in enumerate(best_gains(histogram, offsets, *kinds, *rule)):
        own = histogram[2 * offsets[f] : 2 * (offsets[f] + value_bins[f] + missing[f])]
        assert gain == reference.best_split(own, *(kind[f : f + 1] for kind in kinds), *rule)[0]
    if found[1] >= 0 and kinds[2][found[1]]:
        _, feature, way, missing_left, *left = found
        first, size = offsets[feature], value_bins[feature]
        cells, one_hot = histogram[2 * first : 2 * (first + size)], bool(size < most_levels[0])
        right = categories_right(cells, way, one_hot, factors, penalties).tolist()
        pairs = [(int(g), int(h)) for g, h in cells.reshape(-1, 2)]
        assert right == reference.ways_to_part(pairs, factors, penalties, most_levels)[1][way]
        absent = histogram[2 * (first + size) :][:2] if missing[feature] and not missing_left else [0, 0]
        sums = [sum(pairs[level][stat] for level in right) + absent[stat] for stat in (0, 1)]
        assert [int(s) for s in sums] == [total[0] - left[0], total[1] - left[1]]
    return found


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    reg_lambda=st.sampled_from([0.0, 1.0, 2.5]),
    reg_alpha=st.sampled_from([0.0, 0.3, 4.0]),
    min_child_weight=st.sampled_from([0.0, 1.0, 7.0, 1e9]),
    max_delta_step=st.sampled_from([math.inf, 0.25, 3.0]),
    size=st.sampled_from([0, 1, 2, 10, 60]),
    spread=st.sampled_from([1, 5, 100_000]),
    levels=st.sampled_from([(4, 64), (1, 64), (7, 64), (1, 2), (1, 3)]),
)
@settings(max_examples=500)
def test_best_split(
    seed, sizes, reg_lambda, reg_alpha, min_child_weight, max_delta_step, size, spread, levels
):
    rng = np.random.default_rng(seed)
    missing, by_level = rng.integers(0, 2, (2, len(sizes)), np.bool_)
    histogram, total = node(rng, sizes, missing.tolist(), size, spread)
    rule = (16.0, 2.0), (reg_lambda, reg_alpha, min_child_weight, max_delta_step)
    compare_best_split(histogram, sizes, missing, *rule, total, by_level, levels)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("levels", [(4, 64), (256, 64), (4, 256)])
def test_best_split_of_as_many_levels_as_there_can_be(levels, missing):
    rng = np.random.default_rng(missing)
    histogram, total = node(rng, [255], [missing], 4000, 100)
    penalties = 1.0, 0.0, 1.0, math.inf
    found = compare_best_split(histogram, [255], [missing], (16.0, 2.0), penalties, total, True, levels)
    assert found[1] == 0


def test_best_split_breaks_ties_by_feature_then_bin_then_missing_right():
    none = (1.0, 0.0, 0.0, math.inf)
    # Two features with the same bins: the first wins. An empty middle bin: cutting before it wins.
    same = np.array([-4, 4, 0, 0, 4, 4] * 2, np.int64)
    assert compare_best_split(same, [3, 3], [0, 0], (1.0, 1.0), none, (0, 8))[1:4] == (0, 0, False)
    # The missing values weigh alike on both sides (gradient 0 in the middle): they go right.
    level = np.array([-4, 4, 4, 4, 0, 2], np.int64)
    assert compare_best_split(level, [2], [1], (1.0, 1.0), none, (0, 10))[1:4] == (0, 0, False)


def test_best_split_parts_the_present_from_the_missing():
    histogram = np.array([-2, 3, -2, 3, 4, 3], np.int64)
    found = compare_best_split(histogram, [2], [1], (1.0, 1.0), (1.0, 0.0, 0.0, math.inf), (0, 9))
    assert found[1:] == (0, 1, False, -4, 6)


def test_best_split_of_a_pure_node_is_none():
    histogram = np.array([0, 3, 0, 3], np.int64)
    assert compare_best_split(histogram, [2], [0], (1.0, 1.0), (1.0, 0.0, 0.0, math.inf), (0, 6))[1] == -1


@given(
    seed=st.integers(0, 2**32),
    sign=st.sampled_from([-1, 0, 1]),
    reg_alpha=st.sampled_from([0.0, 0.7]),
    bound=st.sampled_from([0.05, 0.5, math.inf]),
)
@settings(max_examples=100)
def test_best_split_within_limits(seed, sign, reg_alpha, bound):
    rng = np.random.default_rng(seed)
    histogram, total = node(rng, [6], [0], 60, 4)
    lower, upper = -bound, bound / 2
    asked = np.zeros(1, np.uint32), np.array([6]), np.zeros(1, np.bool_), np.zeros(1, np.bool_)
    rule = (16.0, 2.0), (1.0, reg_alpha, 0.5, math.inf), (4, 64), total
    found = best_split(histogram, *asked, *rule, (lower, upper, np.array([sign])))

    def leaf(g, h):
        """The value within the limits, and the loss it takes away, doubled."""
        g, h = g / 16, h / 2
        shrunk = max(g - reg_alpha, 0) + min(g + reg_alpha, 0)
        value = max(lower, min(upper, -shrunk / (h + 1.0)))
        return value, -(2 * g * value + (h + 1.0) * value * value + 2 * reg_alpha * abs(value))

    gains = []
    for b in range(5):
        left = histogram[0 : 2 * b + 2 : 2].sum(), histogram[1 : 2 * b + 3 : 2].sum()
        right = total[0] - left[0], total[1] - left[1]
        (low, first), (high, second) = leaf(*left), leaf(*right)
        heavy = min(left[1], right[1]) / 2 >= 0.5
        gains.append(first + second - leaf(*total)[1] if heavy and (high - low) * sign >= 0 else 0.0)
    assert found[0] == pytest.approx(max(0.0, *gains), rel=1e-12, abs=1e-12)
    if found[1] == 0:
        assert gains[found[2]] == pytest.approx(found[0], rel=1e-12)


NONE = (1.0, 0.0, 0.0, math.inf)


def test_best_split_of_levels_parts_those_with_low_leaf_values_from_the_others():
    # By value: levels 1, 3 (of -G / H: -4/2, -1/1), then 2 without rows, then 0 and 4.
    histogram = np.array([6, 3, 4, 1, 0, 0, 3, 2, -8, 2], np.int64)
    found = compare_best_split(histogram, [5], [0], (1.0, 1.0), (0.0, 0.0, 0.0, math.inf), (5, 8), True)
    assert found[1:] == (0, 2, True, -8, 2)
    order = categories_right(histogram, 4, False, (1.0, 1.0), (0.0, 0.0, 0.0, math.inf))
    assert order.tolist() == [1, 0, 3, 2, 4]


def test_levels_below_min_child_weight_have_the_value_of_those_without_rows():
    histogram = np.array([9, 1, -4, 4, 0, 0, 4, 4, -9, 1], np.int64)
    order = categories_right(histogram, 4, False, (1.0, 1.0), (1.0, 0.0, 2.0, math.inf))
    assert order.tolist() == [3, 0, 2, 4, 1]


def test_best_split_of_few_levels_parts_one_from_the_others():
    histogram = np.array([-4, 4, 4, 4, -4, 4], np.int64)
    assert compare_best_split(histogram, [3], [0], (1.0, 1.0), NONE, (-4, 12), True)[1:] == (
        0,
        1,
        True,
        -8,
        8,
    )


@pytest.mark.parametrize("one_hot", [0, 9])
def test_best_split_of_levels_parts_the_present_from_the_missing(one_hot):
    histogram = np.array([-2, 3, -2, 3, -2, 3, -2, 3, 8, 12], np.int64)
    found = compare_best_split(
        histogram, [4], [1], (1.0, 1.0), NONE, (0, 24), True, most_levels=(one_hot, 64)
    )
    assert found[1:] == (0, 4 if one_hot else 3, True, 8, 12)
