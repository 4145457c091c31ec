"""Every kernel of survival times equals its numpy reference bit for bit; gradients are those of the loss."""

import math

import numpy as np
import pytest
from kernel_cases import same_bits

from fedboost.gbdt.kernels.objectives import NORMAL, _normal_tail, aft_gradients, aft_losses
from tests.gbdt.reference import survival as reference


def test_normal_tails_are_those_of_erfc():
    rng = np.random.default_rng(8)
    x = np.concatenate([rng.normal(0, 3, 500), rng.uniform(0, 37, 500), [0.0, -0.0, 1e-300, 5.0, -40.0]])
    found = np.array([_normal_tail(value) for value in x.tolist()])
    same_bits(found, np.array([reference.normal_tail(value) for value in x.tolist()]))
    libm = np.array([math.erfc(value / math.sqrt(2)) / 2 for value in x])
    # x / sqrt(2) and x * x / 2 are rounded, and e to them grows that by the exponent
    assert (np.abs(found - libm) <= (1e-15 + 4e-16 * x * x) * libm).all()


def intervals():
    """Margins and bounds: times known, censored on one side, on both; narrow, far off, beyond all."""
    rng = np.random.default_rng(9)
    margin = np.concatenate([rng.normal(2, 1, 400), rng.normal(0, 30, 90), [1e6, -1e6, 600.0, -600.0, 2, 2]])
    lower = np.exp(rng.normal(2, 1, margin.size)).astype(np.float32)
    upper = (lower * np.exp(rng.exponential(1, margin.size))).astype(np.float32)
    upper[::5], lower[1::5], upper[2::5] = np.inf, 0, lower[2::5]
    upper[3::10] = np.nextafter(lower[3::10], np.float32(np.inf))
    upper[-2:], lower[-2:] = 2.0**60, 2.0**-60
    return margin, lower, upper


@pytest.mark.parametrize("distribution", range(3))
@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-6, 1e6])
def test_aft_gradients_and_losses(distribution, scale):
    margin, lower, upper = intervals()
    weight = np.random.default_rng(1).exponential(1, margin.size).astype(np.float32)
    with np.errstate(over="ignore"):
        found = aft_gradients(margin, lower, upper, weight, distribution, scale)
        due = reference.aft_gradients(margin, lower, upper, weight, distribution, scale)
    for one, other in zip(found, due, strict=True):
        same_bits(one, other)
        assert (np.abs(one) <= 15.0 * weight.astype(np.float64)).all()
    assert (found[1] > 0).all()
    losses = aft_losses(margin, lower, upper, distribution, scale)
    same_bits(losses, reference.aft_losses(margin, lower, upper, distribution, scale))
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("distribution", range(3))
def test_aft_gradients_are_those_of_the_loss(distribution):
    rng = np.random.default_rng(4)
    margin, lower, upper = (values[:400] for values in intervals())
    margin = np.log(np.where(lower > 0, lower, upper)) + rng.uniform(-2, 2, 400)
    wide = (lower == upper) | (upper > 1.01 * lower)  # of the others differences of losses have few digits
    margin, lower, upper = margin[wide], lower[wide], upper[wide]
    found = aft_gradients(margin, lower, upper, np.ones(margin.size, np.float32), distribution, 1.3)
    up, at, down = (aft_losses(margin + step, lower, upper, distribution, 1.3) for step in (1e-4, 0, -1e-4))
    assert found[0] == pytest.approx((up - down) / 2e-4, rel=1e-5, abs=1e-6)
    assert found[1] == pytest.approx((up - 2 * at + down) / 1e-8, rel=1e-3, abs=1e-5)


def test_aft_gradients_keep_their_digits_far_in_the_tail():
    """A normal time censored long after its prediction, of which 1 - F(z) would say nothing."""
    lower, ones = np.exp(np.array([5.0, 9.0, 14.0])).astype(np.float32), np.ones(3, np.float32)
    of = np.zeros(3), lower, np.full(3, np.inf, np.float32), ones
    gradient, hessian = aft_gradients(*of, NORMAL, 1.0)
    z = np.log(lower.astype(np.float64))
    tail = np.array([math.erfc(one / math.sqrt(2)) / 2 for one in z])
    assert gradient == pytest.approx(-np.exp(-z * z / 2) / math.sqrt(2 * math.pi) / tail, rel=1e-13)
    assert ((hessian > 0.9) & (hessian < 1)).all()
