"""Bounds of gradients after margins moved, from those before: none is passed, whatever the rows are."""

import math

import numpy as np
import pytest

from fedboost.fixedpoint import bound_exponent, exponent_counts
from fedboost.gbdt.objectives.built_in import (
    MAX_STEP,
    AcceleratedFailureTime,
    Gamma,
    Logistic,
    Poisson,
    PseudoHuber,
    RankNdcg,
    SquaredError,
    Tweedie,
)

LOSSES = [
    SquaredError(),
    PseudoHuber(),
    PseudoHuber(0.1),
    PseudoHuber(50.0),
    Poisson(),
    Poisson(0.1),
    Gamma(),
    Tweedie(1.01),
    Tweedie(1.5),
    Tweedie(1.99),
]
STEPS = [0.0, 1e-6, 0.1, 1.0, 7.0]


def gradients(loss, margin, label):
    return loss.gradients(margin, label, np.ones(label.size, np.float32))


def counted(values):
    """The bound that parties' counts of exponents give."""
    return math.ldexp(1.0, bound_exponent(exponent_counts(values)))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_no_gradient_passes_its_bound(loss, step):
    for seed in range(20):
        draw = np.random.default_rng(seed)
        margin = draw.normal(draw.normal(0, 3), draw.choice([0.1, 1.0, 4.0]), 300)
        label = draw.exponential(draw.choice([0.01, 1.0, 100.0]), 300).astype(np.float32)
        bounds = loss.bounds_after(*map(counted, gradients(loss, margin, label)), step)
        for moved in (draw.uniform(-step, step, 300), step, -step):
            after = gradients(loss, margin + moved, label)
            for values, bound in zip(after, bounds, strict=True):
                assert np.abs(values).max() <= bound


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_margins_that_stay_have_hardly_wider_bounds(loss):
    gradient, hessian = loss.bounds_after(2.0, 0.25, 0.0)
    assert gradient <= 2.0
    assert hessian <= 0.25 * (1 + 1e-6)


def test_the_bounds_of_pseudo_huber_never_pass_those_of_all_labels():
    """A bit of the hessian more or less is many leaves far from their labels."""
    assert PseudoHuber(3.0).bounds_after(4.0, 1.0, 1e9) == (3.0, 1.0)


@pytest.mark.parametrize("loss", [Poisson(), Gamma(), Tweedie()])
def test_a_step_beyond_all_scales_has_no_bound(loss):
    assert loss.bounds_after(1.0, 1.0, 2 * MAX_STEP) == (math.inf, math.inf)


@pytest.mark.parametrize("loss", [AcceleratedFailureTime(), RankNdcg(), Logistic()], ids=repr)
def test_of_others_nothing_follows(loss):
    assert loss.bounds_after(1.0, 1.0, 0.1) is None
