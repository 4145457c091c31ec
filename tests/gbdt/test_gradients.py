"""Margins and gradients from labels alone: the same whatever the blocks, threads and rows beside them."""

import numpy as np
import pytest

from fedboost.fixedpoint import UNIT, Scale, exponent_counts
from fedboost.gbdt import metrics, sampling, threads
from fedboost.gbdt.gradients import Gradients, in_units
from fedboost.gbdt.objectives.registry import make_objective
from fedboost.gbdt.threads import Threads

ROWS = 300
SCALE = Scale(0, 16)
LOGISTIC = make_objective("binary:logistic", {})


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(threads, "BLOCK", 64)


def data():
    rng = np.random.default_rng(5)
    label = (rng.random(ROWS) < 0.4).astype(np.float32)
    return rng.normal(size=ROWS), label, rng.exponential(1, ROWS).astype(np.float32)


def gradients_of(rows=slice(None), nthread=1):
    margin, label, weight = data()
    made = Gradients(LOGISTIC, label[rows], weight[rows], None, Threads(nthread))
    made.margin[0] = margin[rows]
    return made


def unpacked(pairs):
    hessian = pairs & ((1 << 32) - 1)
    return (pairs - hessian) >> 32, hessian


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_pairs_are_the_gradients_of_the_objective_as_fixed_point_numbers(shift):
    margin, label, weight = data()
    made = gradients_of(nthread=2)
    made.quantise(LOGISTIC, in_units(SCALE, SCALE), shift)
    due = LOGISTIC.gradients(margin + shift, label, weight)
    for numbers, values in zip(unpacked(made.pairs[0]), due, strict=True):
        assert np.abs(numbers - np.clip(values * SCALE.factor, -SCALE.limit, SCALE.limit)).max() <= 0.5


def test_sums_and_counts_of_parts_add_up_to_those_of_all_rows():
    parts = [gradients_of(slice(0, 90)), gradients_of(slice(90, None))]
    pooled = gradients_of(nthread=2)
    for made in (*parts, pooled):
        made.quantise(LOGISTIC, in_units(SCALE, SCALE))

    def rows(made):
        return np.arange(made.pairs.shape[1]) % 2 == 0  # the same rows of all: the second part begins at 90

    for work in (
        lambda made: made.sum_pairs(rows(made)),
        lambda made: made.count_exponents(LOGISTIC),
        lambda made: made.count_norms(1.0, rows(made)),
        lambda made: made.sum_metrics(("logloss", "auc"), UNIT, rows(made)),
    ):
        assert sum(map(work, parts)).tolist() == work(pooled).tolist()


def test_counts_are_those_of_plain_numpy():
    margin, label, weight = data()
    made, among = gradients_of(), np.arange(ROWS) < 200
    ones = LOGISTIC.gradients(margin, label, np.ones_like(weight))
    exponents = [exponent_counts(values) for values in (*ones, weight)]
    assert made.count_exponents(LOGISTIC).tolist() == np.concatenate(exponents).tolist()
    gradient, hessian = LOGISTIC.gradients(margin, label, weight)
    sizes = np.sqrt(gradient**2 + 1.5 * hessian**2)[among]
    assert made.count_norms(1.5, among).tolist() == sampling.count_norms(sizes).tolist()
    due = metrics.sums(("error",), LOGISTIC, margin[among], label[among], weight[among], UNIT)
    assert made.sum_metrics(("error",), UNIT, among).tolist() == due.tolist()


def test_sampling_weighs_what_is_quantised():
    made, plain = gradients_of(), gradients_of()
    made.quantise(LOGISTIC, in_units(SCALE, SCALE), reweigh=lambda rows, g, h: (g / 2, h / 4))
    plain.quantise(LOGISTIC, in_units(SCALE, SCALE))
    for number, divisor, whole in zip(unpacked(made.pairs), (2, 4), unpacked(plain.pairs), strict=True):
        light = np.abs(whole) < SCALE.limit
        assert np.abs(number - whole / divisor)[light].max() <= 1
