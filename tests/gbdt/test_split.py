"""The value of a leaf, and which split is best."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_trees import FREE, best_split
from splits import layout_of, only

from fedboost.fixedpoint import Scale
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.kernels.level import add_node
from fedboost.gbdt.tree import NODE, SplitRule

UNITS = Scale(15, 16)  # one unit is 1.0
SIXTEENTHS = Scale(11, 16)


def rule(gradient=SIXTEENTHS, hessian=UNITS, **settings):
    values = {
        "reg_lambda": 1.0,
        "reg_alpha": 0.0,
        "gamma": 0.0,
        "min_child_weight": 0.0,
        "max_delta_step": 0.0,
        "learning_rate": 1.0,
    }
    return SplitRule(**{**values, **settings}, gradient=gradient, hessian=hessian)


def leaf_value(of, total):
    nodes = np.zeros(1, NODE).view(np.recarray)
    add_node(nodes, 0, *total, *FREE, *of.scales, of.learning_rate)
    return float(nodes.value[0])


@pytest.mark.parametrize(
    ("total", "settings", "due"),
    [
        ((-48, 3), {}, 0.75),  # G = -3, H = 3
        ((48, 3), {}, -0.75),
        ((48, 3), {"learning_rate": 0.5}, -0.375),
        ((48, 2), {"reg_lambda": 0.0}, -1.5),
        ((48, 3), {"reg_alpha": 1.0}, -0.5),
        ((-48, 3), {"reg_alpha": 1.0}, 0.5),
        ((48, 3), {"reg_alpha": 3.0}, 0.0),
        ((48, 3), {"reg_alpha": 4.0}, 0.0),
        ((0, 0), {"reg_lambda": 0.0}, 0.0),
        ((48, 3), {"max_delta_step": 0.5}, -0.5),
        ((-48, 3), {"max_delta_step": 0.5, "learning_rate": 0.5}, 0.25),
        ((-48, 3), {"max_delta_step": 0.8}, 0.75),
    ],
)
def test_leaf_value(total, settings, due):
    assert leaf_value(rule(**settings), total) == due


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**40), st.floats(0, 10), st.floats(0, 10))
def test_leaf_value_is_the_float32_of_the_newton_step(gradient, hessian, reg_lambda, reg_alpha):
    settings = {"reg_lambda": reg_lambda, "reg_alpha": reg_alpha, "learning_rate": 0.3}
    value = leaf_value(rule(**settings), (gradient, hessian))
    g = gradient / 16
    shrunk = math.copysign(max(abs(g) - reg_alpha, 0.0), g)
    exact = -0.3 * shrunk / (hessian + reg_lambda)
    assert value == float(np.float32(value))
    assert abs(value - exact) <= 1e-7 * abs(exact)


def test_best_split_and_its_children():
    # Bins of (gradient in sixteenths, hessian); cutting after bin 1 parts -4 from 6, H 2 from 3.
    cells = np.array([-32, 1, -32, 1, 96, 3], np.int64)
    best = best_split(rule(), cells, layout_of(3), (32, 5))
    assert (best.feature, best.bin, best.missing_left) == (0, 1, False)
    assert (best.left, best.right) == ((-64, 2), (96, 3))
    assert best.gain == 4.0**2 / 3 + 6.0**2 / 4 - 2.0**2 / 6  # not halved: XGBoost's


def test_gain_must_exceed_gamma_and_the_smallest_gain():
    cells, layout, total = np.array([-16, 1, 16, 1], np.int64), layout_of(2), (0, 2)
    gain = best_split(rule(), cells, layout, total).gain
    assert gain == 1.0
    assert best_split(rule(gamma=gain), cells, layout, total) is not None
    assert best_split(rule(gamma=math.nextafter(gain, 2)), cells, layout, total) is None
    tiny = Scale(-5, 16)  # one unit is 2**-20: a gain of 2**-40 is rounding, not learning
    assert best_split(rule(gradient=tiny), np.array([-1, 1, 1, 1]), layout, total) is None


def test_children_need_min_child_weight():
    cells, layout, total = np.array([-160, 2, 0, 1, 160, 3], np.int64), layout_of(3), (0, 6)
    assert best_split(rule(min_child_weight=2.0), cells, layout, total).bin == 0
    assert best_split(rule(min_child_weight=3.0), cells, layout, total).bin == 1
    assert best_split(rule(min_child_weight=3.5), cells, layout, total) is None


def test_the_direction_of_missing_values_is_learned():
    layout = layout_of(2, missing=[0])
    like_left = np.array([-16, 1, 16, 1, -16, 1], np.int64)
    like_right = np.array([-16, 1, 16, 1, 16, 1], np.int64)
    assert best_split(rule(), like_left, layout, (-16, 3)).missing_left
    assert best_split(rule(), like_left, layout, (-16, 3)).left == (-32, 2)
    assert not best_split(rule(), like_right, layout, (16, 3)).missing_left


# ---- levels -----------------------------------------------------------------------------------------


def by_levels(*pairs, missing=(0, 0), **settings):
    """The best split by one categorical feature with these sums of its levels."""
    layout, every = Layout.of(CutPoints.of((), ()).with_categories((len(pairs),))), [*pairs, missing]
    total = sum(gradient for gradient, _ in every), sum(hessian for _, hessian in every)
    histogram = np.array(every, np.int64).reshape(-1)
    best = best_split(rule(**settings), histogram, layout, total)
    gains = rule(**settings).gains(histogram, layout, total)
    assert gains.tolist() == [0.0 if best is None else best.gain]
    return best


def test_the_levels_with_the_lowest_leaf_values_go_right():
    best = by_levels((-48, 3), (32, 2), (-32, 2), (48, 3), (16, 1))
    assert (best.feature, best.bin, best.categories, best.missing_left) == (0, 0, 0b11010, True)
    assert (best.left, best.right) == ((-80, 5), (96, 6))
    assert best.gain == 5.0**2 / 6 + 6.0**2 / 7 - 1.0 / 12


def test_a_few_levels_are_parted_one_from_the_others():
    levels = (-48, 3), (-48, 3), (48, 3), (48, 3)
    assert by_levels(*levels).categories == 0b1100
    assert by_levels(*levels, max_cat_to_onehot=5).categories == 0b1
    assert by_levels((-48, 3), (48, 3), (48, 3)).categories == 0b1


def test_levels_without_rows_stand_between_those_with_values_above_and_below_0():
    levels = (-48, 3), (0, 0), (16, 2), (0, 0), (80, 3)
    assert by_levels(*levels[:4], min_child_weight=2.0).categories == 0b00100
    assert by_levels(*levels, min_child_weight=2.0).categories == 0b10100
    higher = [(gradient - 160, hessian) for gradient, hessian in levels if hessian]
    assert by_levels((0, 0), *higher, (0, 0)).categories == 0b11001  # all of the others have values above 0


def test_a_level_of_a_small_hessian_is_taken_for_average():
    levels = (80, 4), (60, 1), (8, 8), (-48, 4)
    assert by_levels(*levels).categories == 0b0011
    assert by_levels(*levels, min_child_weight=2.0).categories == 0b0111


def test_the_direction_of_missing_values_beside_levels_is_learned():
    levels = (-48, 3), (-48, 3), (48, 3), (48, 3)
    right = by_levels(*levels, missing=(96, 3))
    assert (right.categories, right.missing_left, right.right) == (0b1100, False, (192, 9))
    left = by_levels(*levels, missing=(-96, 3))
    assert (left.categories, left.missing_left, left.left) == (0b1100, True, (-192, 9))


@pytest.mark.parametrize("few", [4, 9])
def test_levels_are_parted_from_missing_values(few):
    best = by_levels(*((-16, 3),) * 5, missing=(80, 9), max_cat_to_onehot=few)
    assert (best.categories, best.missing_left, best.left) == (0b11111, True, (80, 9))


def test_a_side_has_fewer_levels_than_the_threshold():
    levels = [(48, 3)] * 5 + [(-48, 3)] * 5
    assert by_levels(*levels).categories == 0b0000011111
    assert by_levels(*levels, max_cat_threshold=6).categories == 0b0000011111
    assert by_levels(*levels, max_cat_threshold=5).categories == 0b0000001111
    assert by_levels(*levels[:-1], max_cat_threshold=5).categories == 0b000011111  # the left side is small


def test_one_level_alone_is_no_split():
    assert by_levels((48, 3)) is None


# ---- some features ----------------------------------------------------------------------------------


def test_a_layout_of_some_features_and_their_part_of_a_histogram():
    layout = layout_of(3, 1, 2, missing=[0, 2])
    histogram = np.arange(layout.cells)
    assert only(layout, (0, 1, 2)) is layout
    assert layout.pick(histogram, (0, 1, 2)) is histogram
    assert layout.categorical.tolist() == [False] * 3
    some = only(layout, (0, 2))
    assert (some.features, some.offsets.tolist(), some.bins) == ((0, 2), [0, 4], 7)
    assert (some.value_bins.tolist(), some.missing.tolist()) == ([3, 2], [True, True])
    assert layout.pick(histogram, (0, 2)).tolist() == [*range(8), *range(10, 16)]
    assert some.pick(layout.pick(histogram, (0, 2)), (2,)).tolist() == list(range(10, 16))
    assert (only(layout, ()).bins, layout.pick(histogram, ()).tolist()) == (0, [])
    cuts = CutPoints.of((np.zeros(1, np.float32),), (False,)).with_categories((3, 2))
    assert only(Layout.of(cuts), (0, 2)).categorical.tolist() == [False, True]


def test_the_gain_of_each_feature_is_that_of_its_best_split_alone():
    layout, of = layout_of(2, 2, 2, missing=[1]), rule(reg_lambda=0.5)
    histogram = np.array([-16, 2, 16, 2, 0, 2, -8, 1, 8, 1, 0, 4, 0, 0], np.int64)
    gains = of.gains(histogram, layout, (0, 4))
    for feature in range(3):
        alone = best_split(of, layout.pick(histogram, (feature,)), only(layout, (feature,)), (0, 4))
        assert gains[feature] == (alone.gain if alone else 0.0)
        assert alone is None or alone.feature == feature
    assert gains[0] > gains[1] > gains[2] == 0


def test_a_rule_for_a_share_of_rows_that_are_alike_gains_that_share():
    layout = layout_of(3)
    whole, half = np.array([-32, 8, 16, 4, 16, 4], np.int64), np.array([-16, 4, 8, 2, 8, 2], np.int64)
    of = rule(reg_lambda=2.0, reg_alpha=1.0, min_child_weight=4.0)
    gains = of.gains(whole, layout, (0, 16)), of.scaled(0.5).gains(half, layout, (0, 8))
    assert gains[1].tolist() == (gains[0] / 2).tolist()
    assert gains[0][0] > 0
