"""Every kernel of an objective equals its numpy reference bit for bit; gradients are those of the loss."""

import numpy as np
import pytest
from kernel_cases import ROOT_EPS, margins, same_bits

from fedboost.gbdt.kernels import objectives
from fedboost.gbdt.kernels.objectives import (
    log_losses,
    logistic_gradients,
    softmax_gradients,
    softmax_losses,
    softmaxes,
)
from tests.gbdt.reference import objectives as reference


def rows_of_loss():
    margin = margins()
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, margin.size).astype(np.float32)
    weight = (2.0 ** rng.uniform(-10, 10, margin.size)).astype(np.float32)
    weight[::5] = 0
    return margin, label, weight


def test_logistic_gradients():
    margin, label, weight = rows_of_loss()
    found, due = (
        logistic_gradients(margin, label, weight),
        reference.logistic_gradients(margin, label, weight),
    )
    same_bits(found[0], due[0])
    same_bits(found[1], due[1])
    assert (np.abs(found[0]) <= weight).all()
    assert (found[1] >= 0).all()
    assert (found[1] <= weight / 4).all()


def test_log_losses():
    margin, label, weight = rows_of_loss()
    found = log_losses(margin, label, weight)
    same_bits(found, reference.log_losses(margin, label, weight))
    z = np.where(label == 1, margin, -margin)
    libm = weight * (np.maximum(-z, 0) + np.log(1 + np.exp(-np.abs(z))))
    assert (np.abs(found - libm) <= ROOT_EPS * libm).all()


def test_gradients_of_rates_and_of_the_pseudo_huber_loss():
    margin, _, weight = rows_of_loss()
    label = np.round(np.random.default_rng(3).exponential(5, margin.size)).astype(np.float32)
    arguments = margin, label, weight
    for name, extra in {
        "poisson_gradients": (2.0137527074704766,),
        "gamma_gradients": (),
        "tweedie_gradients": (1.3,),
        "pseudo_huber_gradients": (0.7,),
    }.items():
        found = getattr(objectives, name)(*arguments, *extra)
        for one, due in zip(found, getattr(reference, name)(*arguments, *extra), strict=True):
            same_bits(one, due)
        assert all(np.isfinite(one).all() for one in found)
        assert (found[1] >= 0).all()


@pytest.mark.parametrize(
    ("name", "extra", "loss"),
    [
        ("poisson_gradients", (1.0,), lambda m, y: np.exp(m) - y * m),
        ("gamma_gradients", (), lambda m, y: y * np.exp(-m) + m),
        ("tweedie_gradients", (1.3,), lambda m, y: y * np.exp(-0.3 * m) / 0.3 + np.exp(0.7 * m) / 0.7),
        ("pseudo_huber_gradients", (0.7,), lambda m, y: 0.49 * (np.sqrt(1 + ((m - y) / 0.7) ** 2) - 1)),
    ],
)
def test_gradients_are_those_of_the_loss(name, extra, loss):
    rng = np.random.default_rng(4)
    margin, label = rng.normal(0, 1, 50), rng.integers(1, 5, 50).astype(np.float32)
    gradient, hessian = getattr(objectives, name)(margin, label, np.ones(50, np.float32), *extra)
    up, at, down = (loss(margin + step, label.astype(np.float64)) for step in (1e-4, 0, -1e-4))
    assert gradient == pytest.approx((up - down) / 2e-4, rel=1e-5, abs=1e-6)
    assert hessian == pytest.approx((up - 2 * at + down) / 1e-8, rel=1e-4, abs=1e-5)


def test_softmax():
    rng = np.random.default_rng(2)
    margin = rng.normal(0, 3, (5, 400)) * np.exp(rng.normal(0, 2, 400))
    label, weight = rng.integers(0, 5, 400).astype(np.float32), rng.random(400).astype(np.float32)
    same_bits(softmaxes(margin), reference.softmaxes(margin))
    same_bits(softmaxes(margin)[:, 0], np.array([softmaxes_of(row)[0] for row in margin.T]))
    for found, due in zip(
        softmax_gradients(margin, label, weight),
        reference.softmax_gradients(margin, label, weight),
        strict=True,
    ):
        same_bits(found, due)
    same_bits(softmax_losses(margin, label, weight), reference.softmax_losses(margin, label, weight))
    assert np.abs(softmaxes(margin).sum(axis=1) - 1).max() <= 1e-15


def softmaxes_of(row):
    """Of one row by itself: a row's probabilities do not depend on its neighbours."""
    return softmaxes(np.ascontiguousarray(row[:, None]))[0]
