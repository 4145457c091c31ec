"""The metrics by name."""

import math
from collections.abc import Callable

from fedboost.gbdt.kernels.objectives import log_losses, softmax_losses
from fedboost.gbdt.metrics.classification import (
    Calibration,
    Curve,
    Error,
    MultiError,
    furthest_apart,
    precision_recall,
    roc,
)
from fedboost.gbdt.metrics.metric import BoundedLoss, Mean, Metric
from fedboost.gbdt.metrics.ranking import NDCG_NAME, Ndcg
from fedboost.gbdt.metrics.regression import (
    NUMBERS,
    RATES,
    TIMES,
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
from fedboost.gbdt.objectives.ranking import RANKINGS

_GROWS = ("auc", "aucpr", "ks", "interval-regression-accuracy", "ndcg", "ndcg-")


def grows(name: str) -> bool:
    """Whether more of this metric is better."""
    return name.partition("@")[0] in _GROWS


_UNBOUNDED = NUMBERS + RATES
METRICS: dict[str, Metric] = {
    "logloss": BoundedLoss(("binary:logistic",), log_losses),
    "error": Error(),
    "auc": Curve(roc),
    "aucpr": Curve(precision_recall),
    "ks": Curve(furthest_apart),
    "ece": Calibration(),
    "rmse": Mean(squared_losses, _UNBOUNDED, then=math.sqrt),
    "mae": Mean(absolute_losses, _UNBOUNDED),
    "mphe": Mean(pseudo_huber_losses, NUMBERS),
    "quantile": Mean(pinball_losses, ("reg:quantileerror",)),
    "poisson-nloglik": Mean(poisson_losses, RATES, signed=True),
    "gamma-nloglik": Mean(gamma_losses, RATES, signed=True),
    "gamma-deviance": Mean(gamma_deviance_losses, ("reg:gamma",), signed=True),
    "aft-nloglik": Mean(aft_losses, TIMES, signed=True),
    "interval-regression-accuracy": Mean(within_losses, TIMES),
    "mlogloss": BoundedLoss(("multi:softprob",), softmax_losses),
    "merror": MultiError(),
    "ndcg": Ndcg(),
    "ndcg-": Ndcg(without=0.0),
}
"""Those without a parameter."""
SHAPES: dict[str, tuple[Callable[[float], Metric], float, float]] = {
    "error": (Error, 0.0, 1.0),
    "tweedie-nloglik": (lambda power: Mean(tweedie_losses(power), RATES), 1.0, 2.0),
}
"""Those with a parameter behind an @, and what it lies between."""


def metric_of(name: str) -> Metric:
    """The metric of that name, such as rmse, error@0.3 or ndcg@5-. KeyError if there is none."""
    kind, at, parameter = name.partition("@")
    if not at:
        return METRICS[name]
    if of_top := NDCG_NAME.fullmatch(name):
        return Ndcg(int(of_top[1]), 0.0 if of_top[2] else 1.0)
    make, above, below = SHAPES[kind]
    try:
        value = float(parameter)
    except ValueError:
        raise KeyError(name) from None
    if not above < value < below:
        raise KeyError(name)
    return make(value)


def is_metric(name: str) -> bool:
    """Whether there is a metric of that name."""
    try:
        metric_of(name)
    except KeyError:
        return False
    return True


def is_at_threshold(name: str) -> bool:
    """Whether whoever names this metric chooses a number behind its @ (0.5 is what error has without one):
    the differences of two of them are sums over the few rows between the numbers."""
    return "@" in name and metric_of(name) != Error()


def metrics_for(objective: str) -> list[str]:
    """The names of the metrics that fit an objective, a parameter as @t, a number of rows as @k."""
    with_parameter = {name: make((low + high) / 2) for name, (make, low, high) in SHAPES.items()}
    names = [name for name, one in METRICS.items() if objective in one.objectives]
    names += [f"{name}@t" for name, one in with_parameter.items() if objective in one.objectives]
    return names + (["ndcg@k", "ndcg@k-"] if objective in RANKINGS else [])
