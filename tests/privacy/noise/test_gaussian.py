"""Discrete Gaussians: their distribution, and that a key always gives the same ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedboost.privacy import kernels
from fedboost.privacy.noise import MAX_SIGMA, noise_of

KEYS = [bytes([number] * 32) for number in range(3)]


def weights(sigma, reach):
    values = np.arange(-reach, reach + 1)
    mass = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    return values, mass / mass.sum()


@pytest.mark.parametrize("sigma", [1, 2, 3, 10])
def test_the_distribution_is_that_of_the_formula(sigma):
    values, mass = weights(sigma, 8 * sigma)
    drawn = noise_of(KEYS[0], sigma, 400_000)
    common = mass * drawn.size >= 5
    counts = np.array([np.count_nonzero(drawn == value) for value in values[common]])
    rest = drawn.size - counts.sum()
    due = mass[common] * drawn.size
    observed, expected = [*counts, rest], [*due, drawn.size - due.sum()]
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [1 << 16, 1 << 30, 1 << 45])
def test_large_ones_are_as_good_as_normal(sigma):
    drawn = noise_of(KEYS[1], sigma, 200_000) / sigma
    assert stats.kstest(drawn, "norm").pvalue > 1e-4


@pytest.mark.parametrize("shares", [2, 5])
def test_shares_add_up_to_the_variance_that_was_promised(shares):
    sigma = 1 << 20
    total = sum(noise_of(bytes([7, share]) + bytes(30), sigma, 100_000) for share in range(shares))
    assert stats.kstest(total / (sigma * math.sqrt(shares)), "norm").pvalue > 1e-4


def test_a_key_gives_the_same_noise_and_another_key_other():
    assert (noise_of(KEYS[0], 1000, 500) == noise_of(KEYS[0], 1000, 500)).all()
    assert np.mean(noise_of(KEYS[0], 1000, 500) == noise_of(KEYS[1], 1000, 500)) < 0.1


@pytest.mark.parametrize("sigma", [0, -1, MAX_SIGMA + 1])
def test_a_standard_deviation_that_cannot_be_is_refused(sigma):
    with pytest.raises(ValueError, match="standard deviation"):
        noise_of(KEYS[0], sigma, 1)


def plain_gaussian(words, sigma):
    """The same choices, by fractions; IndexError where the words run out."""
    words = iter(words)

    def below(bound):
        mask = (1 << (bound - 1).bit_length()) - 1
        while True:
            try:
                value = int(next(words)) & mask
            except StopIteration:
                raise IndexError from None
            if value < bound:
                return value

    def falls(parts):
        """True with the probability exp(-product of the parts): pairs of number and bound."""
        k = 1
        while all(below(bound) < number for number, bound in parts(k)):
            k += 1
        return k % 2 == 1

    def simple(part, whole):
        return falls(lambda k: ((part, whole), (1, k)))

    while True:
        near = below(sigma)
        if not simple(near, sigma):
            continue
        far = 0
        while simple(1, 1):
            far += 1
        size = near + sigma * far
        negative = below(2) == 1
        if negative and size == 0:
            continue
        times, rest = divmod(abs(size - sigma), sigma)
        # exp(-(times + rest / sigma)**2 / 2) is the product of these three
        half = Fraction(times * times + 2 * times * rest / Fraction(sigma) + Fraction(rest**2, sigma**2), 2)
        assert half == Fraction((size - sigma) ** 2, 2 * sigma**2)
        stays = (
            all(simple(1, 2) for _ in range(times * times))
            and all(simple(rest, sigma) for _ in range(times))
            and falls(lambda k, rest=rest: ((rest, sigma), (rest, sigma), (1, 2 * k)))
        )
        if stays:
            return -size if negative else size


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 7, 1 << 20, 1 << 40]))
def test_the_kernel_chooses_as_its_twin(seed, sigma):
    words = np.random.default_rng(seed).integers(0, 1 << 64, 2000, np.uint64)
    out = np.empty(8, np.int64)
    filled, used = kernels.gaussians(words, sigma, out)
    values = []
    source = iter(words.tolist())
    for _ in range(filled):
        values.append(plain_gaussian(source, sigma))
    assert out[:filled].tolist() == values
    assert list(source) == words[used:].tolist()


def test_what_the_words_do_not_suffice_for_is_left():
    words = np.random.default_rng(1).integers(0, 1 << 64, 100, np.uint64)
    out = np.empty(50, np.int64)
    filled, used = kernels.gaussians(words, 5, out)
    assert 0 < filled < 50
    assert used <= 100
    again = np.empty(50, np.int64)
    more = np.concatenate([words[used:], np.random.default_rng(2).integers(0, 1 << 64, 4000, np.uint64)])
    done, _ = kernels.gaussians(more, 5, again[filled:])
    whole = np.empty(50, np.int64)
    kernels.gaussians(np.concatenate([words[:used], more]), 5, whole)
    assert filled + done == 50
    assert whole.tolist() == [*out[:filled].tolist(), *again[filled:].tolist()]
