"""Gaussian noise, the privacy loss of its releases, and noise on labels."""

import hmac
import math
from collections.abc import Callable, Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedboost.fixedpoint import Float32, Int64
from fedboost.privacy import kernels, packing

# ---- Discrete Gaussian noise ----------------------------------------------------------------------------
# Whole numbers, so that it adds to vectors of integers under any protection.
# Promises: exactly distributed, from a cryptographic stream (AES-256 in counter mode) of a secret key; the
# same key gives the same noise, so a repeated answer has the same bytes in every process.
# Refuses: a standard deviation that is no whole number of at least 1 (ValueError).


MAX_SIGMA = 1 << 52
"""Largest standard deviation: no practical sum of such numbers is beyond 64 bits."""
_WORDS = 48
"""Words that a number takes on average; more are drawn where they do not suffice."""
_MAX_WORDS = 1 << 20


def noise_of(key: bytes, sigma: int, count: int) -> Int64:
    """Independent discrete Gaussians of this standard deviation: int64 [count].

    key: 32 secret bytes, used for nothing else.
    """
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"a standard deviation of {sigma}: it must be 1 to {MAX_SIGMA}")
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    out, filled = np.empty(count, np.int64), 0
    words = np.empty(0, np.uint64)
    while filled < count:
        more = min(_WORDS * (count - filled) + _WORDS, _MAX_WORDS)
        words = np.concatenate([words, np.frombuffer(stream.update(bytes(8 * more)), np.uint64)])
        done, used = kernels.gaussians(words, sigma, out[filled:])
        filled, words = filled + done, words[used:]
    return out


# ---- The privacy loss of noisy releases -----------------------------------------------------------------
# Gaussian differential privacy and zero-concentrated beside it.
# A release whose L2 sensitivity to one row is `sensitivity`, with Gaussian noise of standard deviation
# `sigma` in the same unit, is (sensitivity / sigma)-Gaussian private: telling whether a row is in it is no
# easier than telling N(0, 1) from N(mu, 1) (Dong, Roth and Su, 2022). Releases together, each chosen after
# those before, are as private as one with the root of the sum of the squares of their mu. So `cost`, mu
# squared, adds.
# Promises: `delta_of` is exact for that curve up to float rounding; `mu_of` and `epsilon_of` err on the
# side of less privacy claimed. The noise drawn is discrete; how near it is to a Gaussian is in
# `sum_distance`, and the figure that holds for discrete noise without it is `zcdp_epsilon` (Bun and Steinke
# 2016; conversion of Canonne, Kamath and Steinke 2020).
# Refuses: epsilon and delta out of range (ValueError).


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


# ---- Noise on labels: randomised response, drawn once for each person and label -------------------------
# Each label stays as it is with probability e**epsilon / (e**epsilon + classes - 1), and is else one of the
# others, each as likely. What was drawn follows from a secret of the site, the person's id and the label,
# so that it is the same whenever it is asked for: noise that is drawn anew each time averages out.
# Promises: whatever is computed from the result alone, in however many sessions under one epsilon, is
# epsilon-differentially private in the label of each id (for others than who has the secret); the chance to
# keep a label is never above the one above, and each other label's is within 2**-60 of it.
# Warner, Randomized response, https://doi.org/10.1080/01621459.1965.10480775.


_WORD = 8
_DOUBLE = 2.0**-50
"""More than a double loses in the probability: so much is taken from the chance that a label stays."""


def noised(labels: Float32, ids: Iterable[bytes], classes: int, epsilon: float, key: bytes) -> Float32:
    """Labels 0, 1, ..., classes - 1 with noise: float32 [rows]. ids: of each row; key: 32 secret bytes."""
    stays = math.floor((1 / (1 + (classes - 1) * math.exp(-epsilon)) - _DOUBLE) * 2.0**64)
    drawn = np.empty(len(labels), np.float32)
    for row, (label, row_id) in enumerate(zip(labels.astype(np.int64).tolist(), ids, strict=True)):
        draws = hmac.digest(key, packing.pack(row_id, packing.number(label)), "sha256")
        first, second = (int.from_bytes(draws[at : at + _WORD]) for at in (0, _WORD))
        drawn[row] = label if first < stays else (label + 1 + second % (classes - 1)) % classes
    return drawn
