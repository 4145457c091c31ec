"""Objectives: bounds that hold, the constant to start from, labels they cannot have."""

import math

import numpy as np
import pytest
from raised import raised

from fedboost.errors import ConfigError
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective

LOGISTIC, SQUARED = OBJECTIVES["binary:logistic"](), OBJECTIVES["reg:squarederror"]()
POISSON, GAMMA, TWEEDIE = (
    OBJECTIVES["count:poisson"](),
    OBJECTIVES["reg:gamma"](),
    OBJECTIVES["reg:tweedie"](1.3),
)
HUBER = OBJECTIVES["reg:pseudohubererror"]()


@pytest.mark.parametrize("heavier", [0.3, 1.0, 2.0, 5.0])
def test_logistic_gradients_stay_within_the_public_bounds(heavier):
    of = OBJECTIVES["binary:logistic"](heavier)
    margin = np.concatenate([np.random.default_rng(0).normal(0, 20, 1000), [0.0, 1e6, -1e6]])
    label = (np.arange(margin.size) % 2).astype(np.float32)
    gradient, hessian = of.gradients(margin, label, np.ones(margin.size, np.float32))
    for values, exponent in zip((gradient, hessian), of.bounds, strict=True):
        assert np.abs(values).max() <= 2.0**exponent
    assert hessian.min() >= 0
    weighted = LOGISTIC.gradients(margin, label, np.where(label == 1, heavier, 1.0).astype(np.float32))
    assert gradient.tolist() == weighted[0].tolist()
    assert hessian.tolist() == weighted[1].tolist()


def test_squared_error_gradients():
    margin, label = np.array([1.0, 2.0]), np.array([3.0, -1.0], np.float32)
    gradient, hessian = SQUARED.gradients(margin, label, np.array([1.0, 0.5], np.float32))
    assert gradient.tolist() == [-2.0, 1.5]
    assert hessian.tolist() == [1.0, 0.5]
    assert SQUARED.bounds is None


@pytest.mark.parametrize(
    ("objective", "labels", "mean"),
    [
        (LOGISTIC, [0, 0, 1, 1, 1], 0.6),
        (OBJECTIVES["binary:logistic"](4.0), [0, 0, 1], 4 / 6),
        (SQUARED, [2, 3], 2.5),
        (HUBER, [-1e6, 1e6, 3e6], 1e6),
        (POISSON, [0, 0, 3], 1.0),
        (GAMMA, [0.5, 8], 4.25),
        (TWEEDIE, [0, 0, 0, 100], 25.0),
    ],
)
def test_base_score_is_the_mean_label(objective, labels, mean):
    label = np.array(labels, np.float32)
    gradient, hessian = objective.start.gradients(
        np.zeros(label.size), label, np.ones(label.size, np.float32)
    )
    assert objective.base_score(float(gradient.sum()), float(hessian.sum())) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("objective", [SQUARED, POISSON, GAMMA, TWEEDIE])
def test_the_shift_of_base_margins_is_the_best_constant(objective):
    rng = np.random.default_rng(6)
    margin, label = rng.normal(0, 1, 200), rng.integers(1, 9, 200).astype(np.float32)
    weight = rng.random(200).astype(np.float32)
    gradient, hessian = objective.start.gradients(margin, label, weight)
    shift = objective.base_margin_shift(float(gradient.sum()), float(hessian.sum()))
    gradient, hessian = objective.gradients(margin + shift, label, weight)
    assert abs(gradient.sum()) <= 1e-6 * hessian.sum()


def test_from_base_margins_a_probability_goes_one_bounded_step():
    assert LOGISTIC.base_margin_shift(3.0, 2.0) == -1.5
    assert LOGISTIC.base_margin_shift(-3.0, 0.1) == 4.0


def test_the_mean_exposure_is_part_of_the_mean_label():
    exposure, label = np.array([0.5, 2.0, 0.1]), np.array([1, 1, 0], np.float32)
    gradient, hessian = POISSON.gradients(np.log(exposure), label, np.ones(3, np.float32))
    assert POISSON.base_score(float(gradient.sum()), float(hessian.sum())) == pytest.approx(2 / 2.6)


def test_parameters_are_numbers_of_their_kind():
    assert make_objective("multi:softprob", {"num_class": "3"}).num_class == 3
    assert make_objective("reg:tweedie", {"tweedie_variance_power": 1.2}).tweedie_variance_power == 1.2
    assert make_objective("count:poisson", {"max_delta_step": None}).max_delta_step == 0.7
    with pytest.raises(TypeError):
        make_objective("multi:softprob", {})


def test_margin_and_prediction_are_inverse():
    for score in (0.01, 0.5, 0.75, 0.999):
        margin = LOGISTIC.margin(score)
        assert margin == np.float32(margin) == pytest.approx(math.log(score / (1 - score)), rel=2e-7)
        assert LOGISTIC.predict(np.array([margin]))[0] == pytest.approx(score, rel=2e-7)
    assert SQUARED.margin(-3.5) == -3.5
    assert SQUARED.predict(np.array([1.5])).tolist() == [1.5]


@pytest.mark.parametrize("objective", [POISSON, GAMMA, TWEEDIE])
def test_a_rate_is_above_0(objective):
    for score in (1e-9, 0.25, 1.0, 3e9):
        margin = objective.margin(score)
        assert margin == np.float32(margin) == pytest.approx(math.log(score), rel=2e-7, abs=1e-7)
        assert objective.predict(np.array([margin]))[0] == pytest.approx(score, rel=2e-6)
    for score in (0.0, -1.0, math.inf, math.nan):
        with raised(ConfigError, "base-score-range"):
            objective.margin(score)
    with raised(ConfigError, "label-all-zero"):
        POISSON.base_score(5.0, 5.0 * math.exp(0.7) * (1 - 1e-15))


@pytest.mark.parametrize("score", [0.0, 1.0, -1.0, 7.0, math.nan])
def test_a_probability_lies_between_0_and_1(score):
    with raised(ConfigError, "base-score-range"):
        LOGISTIC.margin(score)


@pytest.mark.parametrize(("gradient", "says"), [(2.0, "label is 0"), (-2.0, "label is 1")])
def test_a_label_with_nothing_to_learn(gradient, says):
    with pytest.raises(ConfigError, match=says):
        LOGISTIC.base_score(gradient, 1.0)


ABSOLUTE, QUANTILE = OBJECTIVES["reg:absoluteerror"](), OBJECTIVES["reg:quantileerror"](0.25)


def test_gradients_of_quantiles_say_the_side():
    margin, label = np.array([1.0, 2.0, 3.0]), np.full(3, 2.0, np.float32)
    weight = np.array([1, 2, 4], np.float32)
    gradient, hessian = ABSOLUTE.gradients(margin, label, weight)
    assert (gradient.tolist(), hessian.tolist()) == ([-1.0, 0.0, 4.0], [1.0, 2.0, 4.0])
    gradient, hessian = QUANTILE.gradients(margin, label, weight)
    assert (gradient.tolist(), hessian.tolist()) == ([-0.25, 1.5, 3.0], [1.0, 2.0, 4.0])
    assert (ABSOLUTE.quantile, QUANTILE.quantile, SQUARED.quantile) == (0.5, 0.25, None)
    assert make_objective("reg:quantileerror", {"quantile_alpha": "[0.25]"}) == QUANTILE


AFT = OBJECTIVES["survival:aft"]


def test_the_constant_of_times_is_their_geometric_mean():
    lower = np.array([2, 8, 0, 1], np.float32)
    label = np.array([lower, [2, np.inf, 4, 16]], np.float32)  # known, after 8, before 4, from 1 to 16
    ones, margin = np.ones(4, np.float32), np.zeros(4)
    gradient, hessian = AFT().start.gradients(margin, label, ones)
    assert AFT().base_score(gradient.sum(), hessian.sum()) == pytest.approx((2 * 8 * 4 * 4) ** 0.25)
    gradient, hessian = AFT().start.gradients(margin + 1, label, ones)
    assert AFT().base_margin_shift(gradient.sum(), hessian.sum()) == pytest.approx(math.log(256) / 4 - 1)
    gradient, hessian = AFT("normal", 2.0).gradients(np.log([1.0, 1, 1, 1]), label[:, [0, 0, 0, 0]], ones)
    assert gradient == pytest.approx(-math.log(2) / 4)
    assert hessian.tolist() == [0.25] * 4


def test_parameters_that_are_words():
    told = {"aft_loss_distribution": "extreme", "aft_loss_distribution_scale": "1.5"}
    assert make_objective("survival:aft", told) == AFT("extreme", 1.5)
    assert AFT("extreme", 1.5).xgboost_params == {"aft_loss_param": told}
    with pytest.raises(ValueError, match="cauchy"):
        make_objective("survival:aft", {"aft_loss_distribution": "cauchy"})


def test_bounds_that_are_no_interval():
    good = np.array([[0, 1, 1, 2.0**-60], [5, 1, np.inf, 2.0**60]], np.float32)
    assert AFT().first_invalid_label(good) is None
    nan, inf = np.nan, np.inf
    for lower, upper in (
        *((2, 1), (-1, 1), (0, 0), (0, inf), (nan, 1), (1, nan), (inf, inf)),
        *((1, 2.0**61), (1e-30, 1), (0, 1e-30), (2.0**61, inf), (-inf, 1)),
    ):
        row, takes = AFT().first_invalid_label(np.array([[1, lower], [1, upper]], np.float32))
        assert row == 1
        assert "an upper bound that is above 0 and not below the lower one" in takes


def test_bad_labels():
    assert ABSOLUTE.first_invalid_label(np.array([1, np.inf], np.float32))[0] == 1
    assert QUANTILE.first_invalid_label(np.array([1, -5], np.float32)) is None
    assert LOGISTIC.first_invalid_label(np.array([0, 1, 2, 3], np.float32)) == (2, "0 or 1")
    assert LOGISTIC.first_invalid_label(np.array([0, 1, np.nan], np.float32))[0] == 2
    assert LOGISTIC.first_invalid_label(np.array([0, 1, -0.0], np.float32)) is None
    for objective in (POISSON, TWEEDIE):
        assert objective.first_invalid_label(np.array([0, 2.5, 2.0**60], np.float32)) is None
        for bad in (-1e-9, np.nan, np.inf, 2.0**61):
            assert objective.first_invalid_label(np.array([0, bad], np.float32)) == (
                1,
                "a number from 0 to 2**60",
            )
    assert GAMMA.first_invalid_label(np.array([1e-9, 2.0**60], np.float32)) is None
    for bad in (0, -1, np.nan, np.inf, 1e-30):
        assert GAMMA.first_invalid_label(np.array([5, bad], np.float32)) == (
            1,
            "a number above 0, up to 2**60",
        )
    for bad in (np.nan, np.inf, -np.inf, 2.0**61):
        assert SQUARED.first_invalid_label(np.array([5, bad], np.float32))[0] == 1
    assert SQUARED.first_invalid_label(np.array([2.0**60, -(2.0**60)], np.float32)) is None
