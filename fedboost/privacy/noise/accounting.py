"""The privacy loss of noisy releases: Gaussian differential privacy, and zero-concentrated beside it.

A release whose L2 sensitivity to one row is `sensitivity`, with Gaussian noise of standard deviation `sigma`
in the same unit, is (sensitivity / sigma)-Gaussian private: telling whether a row is in it is no easier than
telling N(0, 1) from N(mu, 1) (Dong, Roth and Su, 2022). Releases together, each chosen after those before,
are as private as one with the root of the sum of the squares of their mu. So `cost`, mu squared, adds.

Promises: `delta_of` is exact for that curve up to float rounding; `mu_of` and `epsilon_of` err on the side of
less privacy claimed. The noise drawn is discrete; how near it is to a Gaussian is in `sum_distance`, and the
figure that holds for discrete noise without it is `zcdp_epsilon` (Bun and Steinke 2016; conversion of
Canonne, Kamath and Steinke 2020).
Refuses: epsilon and delta out of range (ValueError).
"""

import math
from collections.abc import Callable

TOLERANCE = 1e-12
"""Relative precision of bisections."""


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta such that mu-Gaussian privacy is (epsilon, delta)-differential privacy."""
    if mu == 0.0:
        return 0.0
    first = _normal(mu / 2.0 - epsilon / mu)
    second = math.exp(epsilon + _log_normal(-epsilon / mu - mu / 2.0))
    return max(first - second, 0.0)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon such that mu-Gaussian privacy is (epsilon, delta)-differential privacy."""
    _check(1.0, delta)
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return _first(lambda epsilon: delta_of(epsilon, mu) <= delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that epsilon and delta allow."""
    _check(epsilon, delta)
    return 1.0 / _first(lambda inverse: delta_of(epsilon, 1.0 / inverse) <= delta)


def zcdp_epsilon(cost: float, delta: float) -> float:
    """Epsilon at this delta by zero-concentrated privacy: rho = cost / 2, for discrete noise as for other."""
    _check(1.0, delta)
    rho = cost / 2.0
    if rho == 0.0:
        return 0.0

    def at(log_excess: float) -> float:
        excess = math.exp(log_excess)  # of alpha over 1
        alpha = 1.0 + excess
        return rho * alpha + math.log1p(-1.0 / alpha) - (math.log(delta) + math.log(alpha)) / excess

    low, high = -20.0, 20.0  # `at` falls, then rises
    while high - low > 1e-9:
        third = (high - low) / 3.0
        low, high = (low + third, high) if at(low + third) > at(high - third) else (low, high - third)
    return max(at(low), 0.0)


def sum_distance(sigma: float, shares: int) -> float:
    """Largest distance between the sum of `shares` discrete Gaussians, each of this sigma, and one of their
    joint variance: the logarithm of the ratio of probabilities (Kairouz, Liu and Steinke 2021)."""
    return 10.0 * sum(
        math.exp(-2.0 * math.pi**2 * sigma**2 * number / (number + 1.0)) for number in range(1, shares)
    )


def _check(epsilon: float, delta: float) -> None:
    if not (epsilon > 0.0 and math.isfinite(epsilon) and 0.0 < delta < 1.0):
        raise ValueError(f"epsilon {epsilon} and delta {delta}: epsilon must be above 0, delta in (0, 1)")


def _first(holds: Callable[[float], bool]) -> float:
    """Smallest number above 0 from which on a condition holds; from above."""
    high = 1.0
    while not holds(high):
        high *= 2.0
    low = high / 2.0
    while holds(low) and low > 1e-300:
        low, high = low / 2.0, low
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _normal(x: float) -> float:
    """The normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _log_normal(x: float) -> float:
    """Logarithm of the normal distribution function; far below 0 by the continued fraction of Laplace."""
    if x > -30.0:
        return math.log(_normal(x))
    fraction = -x
    for k in range(40, 0, -1):
        fraction = -x + k / fraction
    return -x * x / 2.0 - math.log(fraction) - 0.5 * math.log(2.0 * math.pi)
