"""The bound of what a row adds to a sum that gets noise: it holds whatever the row and the margins say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import ConfigError
from fedboost.gbdt.objectives.objective import UNITS, bound_of
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective

margins = st.floats(-1e6, 1e6)
labels = st.floats(-1e9, 1e9, width=32)
RANGE = (-20.0, 60.0)


def norm(objective, margin, label, label_range=None, **parameters):
    """Of the integers of one row, over all outputs."""
    loss, bound = make_objective(objective, parameters), bound_of(OBJECTIVES[objective], label_range)
    margin = np.asarray(margin, np.float64).reshape(-1, 1) if loss.outputs > 1 else np.array([margin])
    found = loss.gradients(margin, np.array([label], np.float32), np.ones(1, np.float32))
    total = 0
    for gradient, hessian in zip(*map(np.atleast_2d, found), strict=True):
        out = np.empty(1, np.int64)
        bound.quantise(gradient, hessian, out)
        total += (int(out[0]) >> 32) ** 2 + (int(out[0]) & 0xFFFFFFFF) ** 2
    return total, bound


@given(margins, st.sampled_from([0.0, 1.0]))
def test_logistic(margin, label):
    total, bound = norm("binary:logistic", margin, label)
    assert bound.sensitivity == 1.0
    assert total <= UNITS**2


@given(st.floats(-700, 700))
def test_each_logistic_row_comes_near_its_bound(margin):
    """With the label that the prediction thinks less of."""
    assert norm("binary:logistic", margin, 1.0 if margin < 0 else 0.0)[0] > 0.999 * UNITS**2


def every_probability():
    """Float64 from 0 to 1: of each exponent, around each number with few bits, and many between."""
    few = np.ldexp(np.arange(1, 257) / 256.0, -np.arange(0, 1075, 5)[:, None]).ravel()
    near = np.concatenate([few, np.nextafter(few, 0), np.nextafter(few, 1), np.linspace(0, 1, 1_000_003)])
    return np.unique(np.concatenate([[0.0], near, 1.0 - near]))


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_the_norm_of_the_integers_at_every_probability_that_matters(label):
    """Also for a hessian that is off by a rounding, or has a floor as in XGBoost."""
    p = every_probability()
    bound = bound_of(OBJECTIVES["binary:logistic"], None)
    for hessian in (p * (1.0 - p), np.maximum(p * (1.0 - p), 1e-16), np.nextafter(p * (1.0 - p), 1.0)):
        out = np.empty(p.size, np.int64)
        bound.quantise(p - label, hessian, out)
        parts = out >> 32, out & 0xFFFFFFFF
        assert ((parts[0] * parts[0] + parts[1] * parts[1]) <= UNITS**2).all()
        larger = np.maximum(np.abs(p - label), 1.0 - np.abs(p - label))
        scale = (1.0 - 2.0**-40) / np.sqrt(larger * larger + hessian * hessian) * UNITS
        for part, numbers in zip(parts, (p - label, hessian), strict=True):
            assert (part == np.trunc(numbers * scale)).all()


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=12), st.data())
def test_softmax(several, data):
    label = data.draw(st.integers(0, len(several) - 1))
    total, bound = norm("multi:softprob", several, label, num_class=len(several))
    assert bound.sensitivity**2 == pytest.approx(2)
    assert total <= 2 * UNITS**2


@given(margins, labels)
def test_numbers(margin, label):
    total, bound = norm("reg:squarederror", margin, label, RANGE)
    assert total <= bound.sensitivity**2 * UNITS**2 * (1 + 1e-12)


@given(st.floats(-80, 80), st.floats(0, 1e9, width=32))
def test_counts(margin, label):
    total, bound = norm("count:poisson", margin, label, (0.0, 10.0))
    assert total <= bound.sensitivity**2 * UNITS**2 * (1 + 1e-12)


@given(margins, st.sampled_from([0.0, 1.0]))
def test_rounding_is_toward_zero(margin, label):
    loss, bound = make_objective("binary:logistic", {}), bound_of(OBJECTIVES["binary:logistic"], None)
    out = np.empty(1, np.int64)
    (gradient,), (hessian,) = loss.gradients(
        np.array([margin]), np.array([label], np.float32), np.ones(1, np.float32)
    )
    bound.quantise(np.array([gradient]), np.array([hessian]), out)
    scale = 1.0 / np.hypot(max(abs(gradient), 1.0 - abs(gradient)), hessian)
    assert abs(int(out[0]) >> 32) <= abs(gradient) * scale * UNITS
    assert int(out[0]) & 0xFFFFFFFF <= hessian * scale * UNITS
    assert bound.gradient(int(out[0]) >> 32) == pytest.approx(gradient * scale, abs=2 / UNITS)
    assert bound.hessian(int(out[0]) & 0xFFFFFFFF) == pytest.approx(hessian * scale, abs=2 / UNITS)


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror", "count:poisson"])
def test_no_float_is_beyond_the_bound(objective):
    floats = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, -0.0, 1.0, -1.0])
    gradient, hessian = map(np.ravel, np.meshgrid(floats, floats))
    bound, out = bound_of(OBJECTIVES[objective], (0.0, 10.0)), np.empty(gradient.size, np.int64)
    bound.quantise(gradient, hessian, out)
    assert (np.hypot(out >> 32, out & 0xFFFFFFFF) <= bound.sensitivity * UNITS).all()


@pytest.mark.parametrize("objective", ["reg:squarederror", "count:poisson", "reg:gamma"])
def test_what_has_no_bound_is_refused(objective):
    with raised(ConfigError, "label-range-missing", "objective-no-bound"):
        bound_of(OBJECTIVES[objective], None)
