"""The metrics by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fedboost.gbdt.kernels.objectives import log_losses, softmax_losses
from fedboost.gbdt.metrics.classification import (
    FINE_CELLS_PER_LOGIT,
    Calibration,
    Curve,
    Error,
    MultiError,
    kolmogorov_smirnov,
    precision_recall_area,
    roc_area,
)
from fedboost.gbdt.metrics.metric import OF_TRIAL, BoundedLoss, Mean, Metric, OfTrial
from fedboost.gbdt.metrics.ranking import NDCG_NAME, Ndcg
from fedboost.gbdt.metrics.regression import (
    absolute_losses,
    aft_losses,
    gamma_deviance_losses,
    gamma_losses,
    pinball_losses,
    poisson_losses,
    pseudo_huber_losses,
    squared_losses,
    tweedie_losses,
    within_losses,
)
from fedboost.gbdt.objectives.objective import Objective

METRICS: dict[str, Metric] = {
    "logloss": BoundedLoss(log_losses),
    "error": Error(),
    "auc": Curve(roc_area),
    "aucpr": Curve(precision_recall_area),
    "ks": Curve(kolmogorov_smirnov, is_distance=True),
    "ece": Calibration(),
    "rmse": Mean(squared_losses, transform=math.sqrt),
    "mae": Mean(absolute_losses),
    "mphe": Mean(pseudo_huber_losses),
    "quantile": Mean(pinball_losses),
    "poisson-nloglik": Mean(poisson_losses, signed=True),
    "gamma-nloglik": Mean(gamma_losses, signed=True),
    "gamma-deviance": Mean(gamma_deviance_losses, signed=True),
    "aft-nloglik": Mean(aft_losses, signed=True),
    "interval-regression-accuracy": Mean(within_losses, grows=True),
    "mlogloss": BoundedLoss(softmax_losses),
    "merror": MultiError(),
    "ndcg": Ndcg(),
    "ndcg-": Ndcg(without=0.0),
}
"""Metrics without a parameter."""
SHAPES: dict[str, tuple[Callable[[float], Metric], float, float]] = {
    "error": (Error, 0.0, 1.0),
    "tweedie-nloglik": (lambda power: Mean(tweedie_losses(power)), 1.0, 2.0),
}
"""Metrics with a parameter behind an @, and the numbers between which it lies."""


@lru_cache(maxsize=256)
def metric_of(name: str) -> Metric:
    """The metric of that name, such as rmse, error@0.3 or ndcg@5-. KeyError if there is none."""
    number, of, own = name.partition(OF_TRIAL)
    if of and number.isdecimal():
        return OfTrial(metric_of(own), int(number))
    kind, at, parameter = name.partition("@")
    if not at:
        return METRICS[name]
    if top := NDCG_NAME.fullmatch(name):
        return Ndcg(int(top[1]), 0.0 if top[2] else 1.0)
    make, above, below = SHAPES[kind]
    try:
        value = float(parameter)
    except ValueError:
        raise KeyError(name) from None
    if not above < value < below:
        raise KeyError(name)
    return make(value)


@lru_cache(maxsize=256)
def exact_metric_of(name: str) -> Metric:
    """The metric of that name, whose sum loses nothing where it is a mean, and of finer cells where it is a
    curve. KeyError if there is none."""
    metric = metric_of(name)
    if isinstance(metric, Curve):
        return replace(metric, per_logit=FINE_CELLS_PER_LOGIT)
    if not isinstance(metric, BoundedLoss):
        return metric
    losses = metric.losses
    return Mean(lambda loss, margin, label: losses(margin, label, np.ones_like(label)))


def is_metric(name: str) -> bool:
    """True if there is a metric of that name."""
    try:
        metric_of(name)
    except KeyError:
        return False
    return True


def is_at_threshold(name: str) -> bool:
    """True if the terms choose a number behind the metric's @ (0.5 is that of error without one): the
    differences of two such metrics are sums over the few rows between the numbers."""
    return "@" in name and metric_of(own_name(name)) != Error()


def grows(name: str) -> bool:
    """True if more of this metric is better."""
    return metric_of(name).grows


def fits(name: str, objective: Objective | type[Objective]) -> bool:
    """True if the metric of that name, with or without a parameter, fits the objective."""
    return own_name(name).partition("@")[0].removesuffix("-") in objective.metrics


def own_name(name: str) -> str:
    """The name of a metric without the number of a trial."""
    number, of, own = name.partition(OF_TRIAL)
    return own if of and number.isdecimal() else name


def metrics_for(objective: Objective | type[Objective]) -> list[str]:
    """The names of the metrics that fit an objective, a parameter as @t, a number of rows as @k."""
    names = [*METRICS, *(f"{name}@t" for name in SHAPES), "ndcg@k", "ndcg@k-"]
    return [name for name in names if fits(name, objective)]
