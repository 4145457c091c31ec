"""Losses of single rows whose means are metrics: of numbers, counts, amounts and times."""

from collections.abc import Callable

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.elementwise import exps, log_factorials, logs
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.objectives.regression import PseudoHuber
from fedboost.gbdt.objectives.survival import AcceleratedFailureTime


def absolute_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    out: Float64 = np.abs(loss.predict(margin) - label)
    return out


def squared_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    residual = loss.predict(margin) - label
    return residual * residual


def pseudo_huber_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    slope = loss.huber_slope if isinstance(loss, PseudoHuber) else 1.0
    ratio = (margin - label) / slope
    out: Float64 = slope * slope * (np.sqrt(1.0 + ratio * ratio) - 1.0)
    return out


def pinball_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    above, quantile = label - margin, 0.5 if loss.quantile is None else loss.quantile
    out: Float64 = np.where(above >= 0.0, quantile * above, (quantile - 1.0) * above)
    return out


def poisson_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    """-log of the probability of a count; for other labels the gamma function stands in for factorials."""
    out: Float64 = exps(margin) - label * margin + log_factorials(label.astype(np.float64))
    return out


def gamma_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    """-log of the density of a gamma distribution of shape 1."""
    out: Float64 = label * exps(-margin) + margin
    return out


def gamma_deviance_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    share = np.maximum(label * exps(-margin), np.finfo(np.float64).tiny)
    out: Float64 = 2.0 * (share - logs(share) - 1.0)
    return out


def tweedie_losses(power: float) -> Callable[[Objective, Float64, Float32], Float64]:
    def losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
        amount = label * exps((1.0 - power) * margin) / (power - 1.0)
        out: Float64 = amount + exps((2.0 - power) * margin) / (2.0 - power)
        return out

    return losses


def aft_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    known = loss if isinstance(loss, AcceleratedFailureTime) else AcceleratedFailureTime()
    return known.losses(margin, label)


def within_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    """1 where the prediction lies in the interval."""
    time = loss.predict(margin)
    out: Float64 = ((label[0] <= time) & (time <= label[1])).astype(np.float64)
    return out
