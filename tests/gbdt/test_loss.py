"""Objectives: bounds that hold, the constant to start from, labels they cannot have."""

import math

import numpy as np
import pytest

from fedboost.errors import ConfigError
from fedboost.gbdt.loss import LOSSES

LOGISTIC, SQUARED = LOSSES["binary:logistic"](), LOSSES["reg:squarederror"]()


def test_logistic_gradients_stay_within_the_public_bounds():
    margin = np.concatenate([np.random.default_rng(0).normal(0, 20, 1000), [0.0, 1e6, -1e6]])
    label = (np.arange(margin.size) % 2).astype(np.float32)
    gradient, hessian = LOGISTIC.gradients(margin, label, np.ones(margin.size, np.float32))
    for values, exponent in zip((gradient, hessian), LOGISTIC.bounds, strict=True):
        assert np.abs(values).max() <= 2.0**exponent
    assert hessian.min() >= 0


def test_squared_error_gradients():
    margin, label = np.array([1.0, 2.0]), np.array([3.0, -1.0], np.float32)
    gradient, hessian = SQUARED.gradients(margin, label, np.array([1.0, 0.5], np.float32))
    assert gradient.tolist() == [-2.0, 1.5]
    assert hessian.tolist() == [1.0, 0.5]
    assert SQUARED.bounds is None


@pytest.mark.parametrize(
    ("objective", "labels", "mean"), [(LOGISTIC, [0, 0, 1, 1, 1], 0.6), (SQUARED, [2, 3], 2.5)]
)
def test_base_score_is_the_mean_label(objective, labels, mean):
    label = np.array(labels, np.float32)
    gradient, hessian = objective.gradients(np.zeros(label.size), label, np.ones(label.size, np.float32))
    assert objective.base_score(float(gradient.sum()), float(hessian.sum())) == pytest.approx(mean, rel=1e-12)


def test_margin_and_prediction_are_inverse():
    for score in (0.01, 0.5, 0.75, 0.999):
        margin = LOGISTIC.margin(score)
        assert margin == np.float32(margin) == pytest.approx(math.log(score / (1 - score)), rel=2e-7)
        assert LOGISTIC.predict(np.array([margin]))[0] == pytest.approx(score, rel=2e-7)
    assert SQUARED.margin(-3.5) == -3.5
    assert SQUARED.predict(np.array([1.5])).tolist() == [1.5]


@pytest.mark.parametrize("score", [0.0, 1.0, -1.0, 7.0, math.nan])
def test_a_probability_lies_between_0_and_1(score):
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        LOGISTIC.margin(score)


@pytest.mark.parametrize(("gradient", "says"), [(2.0, "label is 0"), (-2.0, "label is 1")])
def test_a_label_with_nothing_to_learn(gradient, says):
    with pytest.raises(ConfigError, match=says):
        LOGISTIC.base_score(gradient, 1.0)


def test_bad_labels():
    assert LOGISTIC.bad_label(np.array([0, 1, 2, 3], np.float32)) == (2, "0 or 1")
    assert LOGISTIC.bad_label(np.array([0, 1, np.nan], np.float32))[0] == 2
    assert LOGISTIC.bad_label(np.array([0, 1, -0.0], np.float32)) is None
    for bad in (np.nan, np.inf, -np.inf, 2.0**61):
        assert SQUARED.bad_label(np.array([5, bad], np.float32))[0] == 1
    assert SQUARED.bad_label(np.array([2.0**60, -(2.0**60)], np.float32)) is None
