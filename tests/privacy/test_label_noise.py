"""Randomised response: how often a label stays, and of what it depends."""

import hmac
import math

import numpy as np
import pytest

from fedboost.privacy import packing
from fedboost.privacy.noise import randomise_labels

ROWS = 20_000
IDS = [f"person {number}".encode() for number in range(ROWS)]
KEY = bytes(range(32))


def chance(classes, epsilon):
    return math.exp(epsilon) / (math.exp(epsilon) + classes - 1)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("label", [0, 1])
def test_a_label_stays_as_often_as_it_should_and_all_others_are_as_likely(classes, epsilon, label):
    told = randomise_labels(np.full(ROWS, label, np.float32), IDS, classes, epsilon, KEY)
    shares = np.bincount(told.astype(int), minlength=classes) / ROWS
    due = np.full(classes, (1 - chance(classes, epsilon)) / (classes - 1))
    due[label] = chance(classes, epsilon)
    assert shares == pytest.approx(due, abs=5 * 0.5 / math.sqrt(ROWS))


def test_the_draws_are_those_of_the_hash():
    """By the definition: 64 bits decide if a label stays, 64 others which one takes its place."""
    labels = np.arange(300) % 4
    told = randomise_labels(labels.astype(np.float32), IDS[:300], 4, 1.0, KEY)
    for label, row_id, drawn in zip(labels.tolist(), IDS, told.tolist(), strict=False):
        draws = hmac.digest(KEY, packing.pack(row_id, packing.number(label)), "sha256")
        if int.from_bytes(draws[:8]) / 2**64 < chance(4, 1.0):
            assert drawn == label
        else:
            assert drawn == (label + 1 + int.from_bytes(draws[8:16]) % 3) % 4


def test_noise_is_the_same_for_the_same_person_and_label_wherever_it_stands():
    labels = (np.arange(200) % 2).astype(np.float32)
    order = np.random.default_rng(0).permutation(200)
    told = randomise_labels(labels, IDS[:200], 2, 1.0, KEY)
    again = randomise_labels(labels[order], [IDS[row] for row in order], 2, 1.0, KEY)
    assert again.tolist() == told[order].tolist()


def test_another_key_draws_anew():
    labels = np.zeros(200, np.float32)
    told = [randomise_labels(labels, IDS[:200], 2, 1.0, key).tolist() for key in (KEY, bytes(32))]
    assert told[0] != told[1]


def test_the_chance_to_stay_is_never_above_what_epsilon_allows():
    """The largest epsilon changes hardly anything, and still something."""
    for epsilon in (1e-3, 1.0, 20.0):
        stays = math.floor((1 / (1 + math.exp(-epsilon)) - 2.0**-50) * 2.0**64)
        assert stays < 2**64
        assert math.log(stays / (2**64 - stays)) <= epsilon
