"""What releases cost: golden values, and the ways between mu, epsilon and delta."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedboost.privacy import noise

GOLDEN = {0.1: 0.0325, 0.5: 0.1422, 1.0: 0.2681, 2.0: 0.5016, 4.0: 0.9249, 8.0: 1.666}
"""Epsilon to mu at delta 1e-5."""

epsilons = st.floats(0.01, 20.0)
deltas = st.floats(-12, -2).map(lambda exponent: 10.0**exponent)


@pytest.mark.parametrize("epsilon", GOLDEN)
def test_golden_values(epsilon):
    assert noise.mu_of(epsilon, 1e-5) == pytest.approx(GOLDEN[epsilon], rel=2e-3)


def test_a_hundred_releases_of_noise_ten_times_their_sensitivity():
    """As dp-accounting's PLD accountant has them."""
    cost = math.fsum([(1 / 10) ** 2] * 100)
    assert noise.epsilon_of(math.sqrt(cost), 1e-5) == pytest.approx(4.37718, abs=5e-6)


@given(epsilons, deltas)
def test_mu_is_the_largest_that_is_allowed(epsilon, delta):
    mu = noise.mu_of(epsilon, delta)
    assert noise.delta_of(epsilon, mu) <= delta
    assert noise.delta_of(epsilon, mu * (1 + 1e-6)) > delta


@given(epsilons, deltas)
def test_there_and_back(epsilon, delta):
    mu = noise.mu_of(epsilon, delta)
    assert noise.epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert noise.epsilon_of(mu, delta) <= epsilon * (1 + 1e-9)


def test_nothing_released_costs_nothing():
    assert noise.epsilon_of(0.0, 1e-6) == 0.0
    assert noise.delta_of(0.5, 0.0) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_what_promises_nothing_is_refused(epsilon, delta):
    with pytest.raises(ValueError, match="epsilon"):
        noise.mu_of(epsilon, delta)


def test_sums_of_shares_are_gaussian_at_our_scale():
    assert sum_distance(4.0, 100) < 1e-60
    assert sum_distance(0.5, 3) > 0.01


def sum_distance(sigma, shares):
    """Largest distance between the sum of `shares` discrete Gaussians, each of this sigma, and one of their
    joint variance: the logarithm of the ratio of probabilities (Kairouz, Liu and Steinke 2021)."""
    return 10.0 * sum(
        math.exp(-2.0 * math.pi**2 * sigma**2 * number / (number + 1.0)) for number in range(1, shares)
    )
