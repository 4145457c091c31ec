"""Differential privacy: discrete Gaussian noise for sums, its privacy loss, and noise on labels."""

import hmac
import math
from collections.abc import Callable, Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedboost.fixedpoint import Float32, Int64
from fedboost.privacy import kernels, packing

# ---- Discrete Gaussian noise ----------------------------------------------------------------------------
# Why integers. Vectors are integers modulo 2**bits, so integer noise adds to them before any mask or
# encryption, and the shares of several parties add up exactly in the opened sum. An integer sampler can also
# be exact. A float sampler only reaches some of the floats around its value, and which ones it reaches
# depends on the value that it should hide (Mironov, CCS 2012).
# Sensitivity. A row changes a released vector only by its own integers. Those are rounded toward zero, so
# their Euclidean norm is at most `UNITS * sensitivity`: rounding never adds to it. If a row is in k sums of a
# release, e.g. one for each feature, the norm is sqrt(k) times as large. `terms.hiding.plan_of` derives sigma
# from it.
# Guarantees: noise is exactly distributed, drawn from a cryptographic stream (AES-256 in counter mode) of a
# secret key. The same key yields the same noise, so a repeated answer has the same bytes in every process.
# Raises: ValueError if the standard deviation is not between 1 and MAX_SIGMA.


MAX_SIGMA = 1 << 52
"""Maximum standard deviation. 63 bits then span 2**11 standard deviations, so sums stay below 64 bits."""
_WORDS = 48
"""Number of random words reserved for each number to draw. More words are drawn if these do not suffice."""
_MAX_WORDS = 1 << 20


def noise_of(key: bytes, sigma: int, count: int) -> Int64:
    """Draw `count` independent discrete Gaussian numbers with standard deviation `sigma`. Returns int64
    [count]. key: 32 secret bytes, used for nothing else; the same key yields the same noise. Raises
    ValueError if sigma is not between 1 and MAX_SIGMA."""
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"the standard deviation must be between 1 and {MAX_SIGMA}, not {sigma}")
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
# A release with L2 sensitivity `sensitivity` to one row and Gaussian noise of standard deviation `sigma`, in
# the same unit, is mu-Gaussian private for mu = sensitivity / sigma: deciding whether a row is in the release
# is at least as hard as telling N(0, 1) from N(mu, 1) (Dong, Roth and Su, 2022). Several releases, each
# chosen after the earlier ones, are together as private as a single release whose mu is the root of the sum
# of their squared mu. So `cost`, which is mu squared, adds up.
# Guarantees: `delta_of` is exact for that curve up to float rounding; `mu_of` and `epsilon_of` err toward
# claiming less privacy. The noise drawn is discrete. `sum_distance` in tests/privacy/noise bounds how far a
# sum of it is from a Gaussian.
# Raises: ValueError if epsilon or delta is out of range.


TOLERANCE = 1e-12
"""Relative precision of the bisection in `_first`."""


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which mu-Gaussian implies (epsilon, delta)-differential privacy."""
    if mu == 0.0:
        return 0.0
    first = _normal(mu / 2.0 - epsilon / mu)
    second = math.exp(epsilon + _log_normal(-epsilon / mu - mu / 2.0))
    return max(first - second, 0.0)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-Gaussian differential privacy implies (epsilon,
    delta)-differential privacy. Raises ValueError unless delta is between 0 and 1, both exclusive."""
    _check(1.0, delta)
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return _first(lambda epsilon: delta_of(epsilon, mu) <= delta)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-Gaussian implies (epsilon, delta)-differential privacy. Raises
    ValueError unless epsilon is above 0 and finite, and delta is strictly between 0 and 1."""
    _check(epsilon, delta)
    return 1.0 / _first(lambda inverse: delta_of(epsilon, 1.0 / inverse) <= delta)


def _check(epsilon: float, delta: float) -> None:
    if not (epsilon > 0.0 and math.isfinite(epsilon) and 0.0 < delta < 1.0):
        raise ValueError(f"epsilon must be above 0 and delta between 0 and 1, not {epsilon} and {delta}")


def _first(holds: Callable[[float], bool]) -> float:
    """Return, rounded up, the smallest positive number at which a condition starts to hold (bisection)."""
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
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _log_normal(x: float) -> float:
    """Return the logarithm of the standard normal distribution function at x. For x far below 0, it is
    computed with Laplace's continued fraction."""
    if x > -30.0:
        return math.log(_normal(x))
    fraction = -x
    for k in range(40, 0, -1):
        fraction = -x + k / fraction
    return -x * x / 2.0 - math.log(fraction) - 0.5 * math.log(2.0 * math.pi)


# ---- Noise on labels: randomised response, drawn once for each person and label -------------------------
# A label is kept with probability e**epsilon / (e**epsilon + classes - 1). Otherwise it becomes one of the
# others, each equally likely. The draw depends only on a secret of the site, the person's id and the label.
# So it is the same in every session: noise drawn again each time would average out.
# Guarantees: anything computed from only the result, in any number of sessions under one epsilon, is
# epsilon-differentially private in the label of each id, toward anyone without the secret. The probability of
# keeping a label is never above that formula. The probability of each other label is within 2**-60 of its
# share.
# Warner, Randomized response, https://doi.org/10.1080/01621459.1965.10480775.


_WORD = 8
_DOUBLE = 2.0**-50
"""Upper bound on a double's rounding error, subtracted from the probability that a label is kept."""


def randomise_labels(
    labels: Float32, ids: Iterable[bytes], classes: int, epsilon: float, key: bytes
) -> Float32:
    """Apply randomised response: replace some of the labels 0, 1, ..., classes - 1 at random. Returns float32
    [rows].

    Args:
        labels: true labels, float32 [rows].
        ids: id of each row.
        classes: number of classes.
        epsilon: privacy parameter of each label; with smaller values, more labels are replaced.
        key: 32 secret bytes of the site.
    """
    stays = math.floor((1 / (1 + (classes - 1) * math.exp(-epsilon)) - _DOUBLE) * 2.0**64)
    drawn = np.empty(len(labels), np.float32)
    for row, (label, row_id) in enumerate(zip(labels.astype(np.int64).tolist(), ids, strict=True)):
        draws = hmac.digest(key, packing.pack(row_id, packing.number(label)), "sha256")
        first, second = (int.from_bytes(draws[at : at + _WORD]) for at in (0, _WORD))
        drawn[row] = label if first < stays else (label + 1 + second % (classes - 1)) % classes
    return drawn
