"""Metrics: their definitions and names, and their computation from sums over all parties.

Guarantees: a metric computed from the parties' sums equals the metric of the pooled rows, up to the
fixed-point resolution stated at each metric. Means (`Mean`) have no such limit, because their sums are exact
at any magnitude (`kernels.histogram.add_limbs`). Row counts by score can be added as well, since the bins are
the same for all models and rows."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels import objectives as kernels
from fedboost.gbdt.kernels.histogram import LIMB_BITS, LIMBS, LIMBS_FROM, add_limbs, sum_units
from fedboost.gbdt.objectives.built_in import AcceleratedFailureTime, Cox, PseudoHuber, Ranking, RiskSets
from fedboost.gbdt.objectives.objective import MAX_LABEL, Objective
from fedboost.gbdt.objectives.registry import Trials
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.survival import AUC_AT, BRIER_AT, CINDEX, public_times, time_grid

METRIC_BITS = 32
PARTIAL_LIKELIHOOD = "cox-nloglik"


class Metric(ABC):
    """Base class of metrics. A party computes `sums`, and the aggregator computes `value` from the total of
    all parties.

    By default, `sums` contains a single sum of row weights, and lower values are better. In all methods,
    `weight` is the public scale of row weights."""

    @property
    def grows(self) -> bool:
        """True if a higher value is better."""
        return False

    @property
    def cells(self) -> int:
        """Number of integers in `sums`."""
        return 1

    @property
    def signed(self) -> bool:
        """True if the sums can be negative."""
        return False

    def limit(self, weight: Scale) -> int:
        """Return the largest magnitude of an integer that one row contributes."""
        return weight.limit

    @abstractmethod
    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        """Compute this party's sums.

        Args:
            loss: objective of the model.
            margin: float64 [rows], or [outputs, rows] if the model has several outputs.
            label: float32 [rows], or [2, rows] if labels are intervals.
            weights: float32 [rows].
            weight: public scale of row weights.

        Returns:
            int64 [cells]
        """

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        """Compute the metric. total: int64 [cells], sums over all parties; weights: sum of all row weights;
        weight: public scale of row weights."""
        return weight.decode(int(total[0])) / weights


@dataclass(frozen=True)
class BoundedLoss(Metric):
    """Mean of a loss over all rows. Losses above 2**10 are clipped. The resolution is 2**-21 per row."""

    losses: Callable[[Float64, Float32, Float32], Float64]
    """Function that returns each row's weighted loss, float64 [rows], from margins, labels and weights."""

    def limit(self, weight: Scale) -> int:
        return 1 << (METRIC_BITS - 1)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        return encoded_sum(_scale_of_losses(weight.exponent, 10), self.losses(margin, label, weights))

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return _scale_of_losses(weight.exponent, 10).decode(int(total[0])) / weights


@dataclass(frozen=True)
class Mean(Metric):
    """Mean over all rows of a number of any magnitude."""

    losses: Callable[[Objective, Float64, Float32], Float64]
    """Function that returns each row's number, float64 [rows], from the objective, margins and labels."""
    signed: bool = False
    grows: bool = False
    transform: Callable[[float], float] = float
    """Function that computes the metric from the mean."""
    cap: float = math.inf
    """Largest magnitude of a row's number; numbers beyond it are clipped."""

    cells = LIMBS

    def limit(self, weight: Scale) -> int:
        return 1 << LIMB_BITS

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        out = np.zeros(self.cells, np.int64)
        with np.errstate(over="ignore"):  # infinity counts as MAX_IN_LIMBS
            losses = self.losses(loss, margin, label)
            add_limbs(losses if self.cap == math.inf else losses.clip(-self.cap, self.cap), weights, out)
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        units = sum(int(limb) << LIMB_BITS * number for number, limb in enumerate(total))
        return self.transform(math.ldexp(float(units), LIMBS_FROM) / weights)


@dataclass(frozen=True)
class PartialLikelihood(Mean):
    """Negative logarithm of Cox's partial likelihood, per event. While a model trains on the rows of several
    parties, a row adds only its margin: the query that ends a round adds the rest from the risk sets."""

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        if isinstance(loss, Cox) and loss.sets is not None:
            return super().sums(loss, margin, label, weights, weight)
        is_event = label[1] < np.inf
        sets = RiskSets.of_rows(label[0], is_event, weights * kernels.exps(margin), weights)
        later = kernels.logs(np.where(sets.at_risk > 0.0, sets.at_risk, 1.0))[sets.bins(label[0])]
        events = float(weights[is_event].sum(dtype=np.float64)) or 1.0
        losses = np.where(is_event, later - margin, 0.0) * (weights.sum(dtype=np.float64) / events)
        out = np.zeros(self.cells, np.int64)
        add_limbs(losses, weights, out)
        return out


@cache
def _scale_of_losses(weight_exponent: int, more: int = 0) -> Scale:
    """Return the scale for weighted losses of up to 2**more per unit of weight. weight_exponent: exponent of
    the scale of row weights."""
    return Scale(weight_exponent + more, METRIC_BITS)


def encoded_sum(scale: Scale, values: Float64 | Float32) -> Int64:
    """Return the sum of the values in units of the scale: int64 [1]."""
    return np.array([sum_units(values, scale.factor, float(scale.limit))], np.int64)


OF_TRIAL = "/"
"""Separator between a model's number and its metric's name, if several are trained (`registry.Trials`)."""
_OF_ONE = re.compile(rf"^\d+{OF_TRIAL}")


# ---- Losses of individual rows whose means are metrics: regression, counts and survival times -----------


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


def gamma_deviance_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    share = np.maximum(label * kernels.exps(-margin), np.finfo(np.float64).tiny)
    out: Float64 = 2.0 * (share - kernels.logs(share) - 1.0)
    return out


def tweedie_losses(power: float) -> Callable[[Objective, Float64, Float32], Float64]:
    def losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
        amount = label * kernels.exps((1.0 - power) * margin) / (power - 1.0)
        out: Float64 = amount + kernels.exps((2.0 - power) * margin) / (2.0 - power)
        return out

    return losses


def within_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    """Return 1.0 for each row whose prediction lies in its label interval, otherwise 0.0: float64 [rows].
    label: float32 [2, rows], lower and upper bounds."""
    time = loss.predict(margin)
    out: Float64 = ((label[0] <= time) & (time <= label[1])).astype(np.float64)
    return out


def aft_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    known = loss if isinstance(loss, AcceleratedFailureTime) else AcceleratedFailureTime()
    return known.losses(margin, label)


# ---- Metrics of classes: shares of rows, curves and calibration -----------------------------------------
# Curves (auc, aucpr, ks) use rounded scores: to 1/32 of a logit in training, to 1/128 in an evaluation.


LOGITS = 16
"""Width of the score grid, from -8 to 8. Scores beyond it are counted in the first or last cell."""
CELLS_PER_LOGIT = 32
FINE_CELLS_PER_LOGIT = 128
"""Cells per unit of the score in evaluations. They are finer than in training because they are counted only
once, not in every round."""
CALIBRATION_BINS = 15


def is_positive(margin: Float64, threshold: float) -> Mask:
    """Return whether each row's probability exceeds the threshold: bool [rows]."""
    return margin > 0.0 if threshold == 0.5 else kernels.sigmoids(margin) > threshold


def score_cells(margin: Float64, per_logit: int) -> Int64:
    """Return the grid cell of each row's score, from 0 to LOGITS * per_logit - 1: int64 [rows]."""
    near = np.clip(margin, -LOGITS, LOGITS)  # without overflow
    cell = np.floor(near * per_logit) + LOGITS // 2 * per_logit
    out: Int64 = np.clip(cell, 0, LOGITS * per_logit - 1).astype(np.int64)
    return out


@dataclass(frozen=True)
class Error(Metric):
    """Error rate of a binary classifier: share of rows on the wrong side of the probability threshold."""

    threshold: float = 0.5

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        return encoded_sum(weight, weights[is_positive(margin, self.threshold) != (label > 0.5)])


@dataclass(frozen=True)
class Curve(Metric):
    """Metric from the score histograms of both classes, such as the area under the ROC curve."""

    read: Callable[[Float64, Float64], float]
    """Function that computes the metric from the weights of negatives and of positives in each cell, lowest
    score first: float64 [cells / 2] each."""
    per_logit: int = CELLS_PER_LOGIT

    grows = True

    @property
    def cells(self) -> int:
        return 2 * LOGITS * self.per_logit

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        index = score_cells(margin, self.per_logit) + self.cells // 2 * (label > 0.5)
        out = np.zeros(self.cells, np.int64)
        np.add.at(out, index, weight.encode(weights.astype(np.float64)))
        return out

    def weights(self, total: Int64, weight: Scale) -> tuple[Float64, Float64]:
        negatives, positives = total.astype(np.float64).reshape(2, -1) / weight.factor
        return negatives, positives

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        negatives, positives = self.weights(total, weight)
        if not (negatives.any() and positives.any()):
            return math.nan
        return self.read(negatives, positives)


def roc_area(negatives: Float64, positives: Float64) -> float:
    """Compute the area under the ROC curve: the share of pairs (negative, positive) that are in the right
    order, with ties counting half. negatives, positives: float64 [cells], weights by score, lowest first."""
    below = np.cumsum(negatives) - negatives
    pairs = float(negatives.sum() * positives.sum())
    return float((positives * (below + negatives / 2)).sum()) / pairs


def precision_recall_area(negatives: Float64, positives: Float64) -> float:
    """Compute the area under the precision-recall curve. Arguments are as in `roc_area`.

    Between two points, true and false positives grow in proportion, as in XGBoost (Davis and Goadrich, ICML
    2006)."""
    area, false, true, every = 0.0, 0.0, 0.0, float(positives.sum())
    for more_false, more_true in zip(negatives[::-1].tolist(), positives[::-1].tolist(), strict=True):
        if more_true > 0.0:
            slope = 1.0 + more_false / more_true
            start = (false - (slope - 1.0) * true) / every
            before, after = true / every, (true + more_true) / every
            log_term = 0.0
            if start != 0.0:
                log_term = start / slope * math.log((slope * after + start) / (slope * before + start))
            area += (after - before - log_term) / slope
        false, true = false + more_false, true + more_true
    return area


def kolmogorov_smirnov(negatives: Float64, positives: Float64) -> float:
    """Compute the Kolmogorov-Smirnov statistic: the largest distance between the score distributions of the
    two classes. Arguments are as in `roc_area`."""
    apart = np.cumsum(negatives) / negatives.sum() - np.cumsum(positives) / positives.sum()
    return float(np.abs(apart).max())


class Calibration(Metric):
    """Expected calibration error (Guo et al., ICML 2017), with 15 bins of equal width.

    In each bin, the error is the distance between the mean probability and the share of positives. The metric
    is the mean of these errors, weighted by the rows in each bin. The sum of probabilities minus labels in
    each bin suffices to compute it. The resolution is 2**-32 per row."""

    cells = CALIBRATION_BINS
    signed = True

    def limit(self, weight: Scale) -> int:
        return _scale_of_losses(weight.exponent).limit

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        probability = kernels.sigmoids(margin)
        bins = np.minimum((probability * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        out = np.zeros(CALIBRATION_BINS, np.int64)
        np.add.at(out, bins, _scale_of_losses(weight.exponent).encode(weights * (probability - label)))
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return _scale_of_losses(weight.exponent).decode(int(np.abs(total).sum())) / weights


class MultiError(Metric):
    """Error rate of a multiclass model: share of rows whose most probable class is not their label. In a tie,
    the lowest class is the prediction."""

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        return encoded_sum(weight, weights[np.argmax(margin, axis=0) != label])


# ---- NDCG: how well the rows of a group are ranked ------------------------------------------------------


NDCG_NAME = re.compile(r"ndcg(?:@([1-9][0-9]{0,8}))?(-?)")


@dataclass(frozen=True)
class Ndcg(Metric):
    """Mean NDCG over groups of ranked rows. Each group is weighted by the weight that all of its rows share.
    The resolution is 2**-31 per group."""

    top: int | None = None
    """Number of rows of each group that are counted, highest margins first; None if all are counted."""
    without: float = 1.0
    """NDCG of a group whose labels are all 0."""

    grows = True
    cells = 2

    def limit(self, weight: Scale) -> int:
        return _scale_of_losses(weight.exponent).limit

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        assert isinstance(loss, Ranking)
        starts, scale = loss.group_starts(label.size), _scale_of_losses(weight.exponent)
        values = kernels.ndcgs(margin, loss.gains(label), starts, self.top or label.size, self.without)
        group_weights = weights[starts[:-1]]
        return np.concatenate([encoded_sum(scale, group_weights * values), encoded_sum(scale, group_weights)])

    def weights(self, total: Int64, weight: Scale) -> float:
        return _scale_of_losses(weight.exponent).decode(int(total[1]))

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return int(total[0]) / int(total[1]) if total[1] else math.nan


# ---- Survival times -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfSurvival(Metric):
    """Figure of survival times. An evaluation computes it from counts by time and risk (`gbdt.survival`).

    time: time until which events are predicted; 0 for the C-index, which is about all times."""

    time: float = 0.0
    grows: bool = True

    cells = 0

    def sums(self, *rows: object) -> Int64:
        return np.zeros(0, np.int64)


# ---- The metrics by name --------------------------------------------------------------------------------


METRICS: dict[str, Metric] = {
    "logloss": BoundedLoss(kernels.log_losses),
    "error": Error(),
    "auc": Curve(roc_area),
    "aucpr": Curve(precision_recall_area),
    "ks": Curve(kolmogorov_smirnov),
    "ece": Calibration(),
    "rmse": Mean(squared_losses, transform=math.sqrt),
    "mae": Mean(lambda loss, margin, label: np.abs(loss.predict(margin) - label)),
    "mphe": Mean(pseudo_huber_losses),
    "quantile": Mean(pinball_losses),
    "poisson-nloglik": Mean(
        # -log of the probability of a count; for other labels, the gamma function replaces factorials
        lambda loss, margin, label: (
            kernels.exps(margin) - label * margin + kernels.log_factorials(label.astype(np.float64))
        ),
        signed=True,
    ),
    # -log of the density of a gamma distribution of shape 1
    "gamma-nloglik": Mean(lambda loss, margin, label: label * kernels.exps(-margin) + margin, signed=True),
    "gamma-deviance": Mean(gamma_deviance_losses, signed=True),
    "aft-nloglik": Mean(aft_losses, signed=True),
    PARTIAL_LIKELIHOOD: PartialLikelihood(
        lambda loss, margin, label: np.where(label[1] < np.inf, -margin, 0.0), signed=True
    ),
    "interval-regression-accuracy": Mean(within_losses, grows=True),
    "mlogloss": BoundedLoss(kernels.softmax_losses),
    "merror": MultiError(),
    "ndcg": Ndcg(),
    "ndcg-": Ndcg(without=0.0),
    CINDEX: OfSurvival(),
}
"""Metrics without a parameter, by name."""
SHAPES: dict[str, tuple[Callable[[float], Metric], float, float]] = {
    "error": (Error, 0.0, 1.0),
    "tweedie-nloglik": (lambda power: Mean(tweedie_losses(power)), 1.0, 2.0),
    "auc": (OfSurvival, 1.0 / MAX_LABEL, MAX_LABEL),
    "brier": (lambda time: OfSurvival(time, grows=False), 1.0 / MAX_LABEL, MAX_LABEL),
}
"""Metrics whose name has a parameter after an @, and the open interval in which the parameter must lie."""


@lru_cache(maxsize=256)
def metric_of(name: str) -> Metric:
    """Return the metric of this name, such as rmse, error@0.3 or ndcg@5-. A model's number before the name is
    ignored (`OF_TRIAL`). Raises KeyError if the name is unknown."""
    name = own_name(name)
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
    """Like `metric_of`, but with exact means and finer curves. Raises KeyError for an unknown name."""
    metric = metric_of(name)
    if isinstance(metric, Curve):
        return replace(metric, per_logit=FINE_CELLS_PER_LOGIT)
    if not isinstance(metric, BoundedLoss):
        return metric
    losses = metric.losses
    return Mean(lambda loss, margin, label: losses(margin, label, np.ones_like(label)))


def is_metric(name: str) -> bool:
    try:
        metric_of(name)
    except KeyError:
        return False
    return True


def is_at_threshold(name: str) -> bool:
    """Return whether the metric's name has an @ and a number other than the default (0.5 for error).

    The terms can contain any such number. The difference between two such metrics is then a sum over only the
    rows between the two numbers, and there may be few such rows."""
    if (time := time_of(name)) is not None:
        return time > 0.0 and np.float32(time) not in public_times()
    return "@" in name and metric_of(name) != Error()


def grows(name: str) -> bool:
    return metric_of(name).grows


def fits(name: str, objective: Objective | type[Objective]) -> bool:
    """Return whether the metric, with or without a parameter, can be computed for the objective."""
    kind, at, _ = own_name(name).partition("@")
    if kind + at in (CINDEX, AUC_AT, BRIER_AT):
        return objective.risk_sign != 0
    return kind.removesuffix("-") in objective.metrics


def time_of(name: str) -> float | None:
    """Return t of auc@t and brier@t, 0 for the C-index, and None for metrics not about survival times."""
    metric = metric_of(name)
    return float(np.float32(metric.time)) if isinstance(metric, OfSurvival) else None


def times_of(names: Sequence[str]) -> Float32 | None:
    """Return the times by which rows are counted to compute these metrics, including t of auc@t: float32,
    increasing. Returns None if none of them is about survival times."""
    is_due = any(time_of(name) is not None for name in names)
    return time_grid(chosen_times(names)) if is_due else None


def chosen_times(names: Sequence[str]) -> tuple[float, ...]:
    """Return the times in names such as auc@365."""
    return tuple(time for name in names if (time := time_of(name)))


def own_name(name: str) -> str:
    return _OF_ONE.sub("", name)


def metrics_for(objective: Objective | type[Objective]) -> list[str]:
    """Return the names of the metrics that can be computed for an objective. In a name, @t stands for a
    numeric parameter and @k for a number of rows."""
    names = [*METRICS, *(f"{name}@t" for name in SHAPES), "ndcg@k", "ndcg@k-"]
    return [name for name in names if fits(name, objective)]


# ---- Metrics as additive sums: each party sums integers over its rows -----------------------------------


Find = Callable[[str], Metric]
"""Function that returns the metric with a given name: `metric_of` or `exact_metric_of`."""
TRAIN, VALIDATION = "train", "validation"
"""Names of the row sets on which metrics are computed: the training rows, and the other rows."""
OF_PARTY = ":"
"""Separator between a party's name and the name of a set or metric that covers only this party's rows."""
MIN_ROWS = 10
"""Minimum number of rows in a set whose metrics are published. It equals the default of `min_rows_per_leaf`
in a site's policy, because the aggregator does not know the policies."""
DIGITS = 4
"""Significant digits of a published metric. All digits could reveal exact sums over a few rows."""


def limit(names: Iterable[str], weight: Scale, find: Find = metric_of) -> int:
    """Return the largest magnitude of an integer that one row contributes to any of these metrics' sums."""
    return max([weight.limit, *(find(name).limit(weight) for name in names)])


@lru_cache(maxsize=256)
def cells(names: tuple[str, ...], find: Find = metric_of) -> int:
    return 1 + sum(find(name).cells for name in names)


def sums(
    names: Iterable[str],
    loss: Objective,
    margin: Float64,
    label: Float32,
    weights: Float32,
    weight: Scale,
    find: Find = metric_of,
) -> Int64:
    """Compute this party's sums for several metrics.

    Args:
        names: names of the metrics.
        loss, margin, label, weights, weight: see `Metric.sums`.
        find: function that returns the metric with a given name.

    Returns:
        int64 [cells(names)], the sum of weights, followed by the sums of each metric.
    """
    parts = [encoded_sum(weight, weights)]
    for name in names:
        own, margins = loss, margin
        if isinstance(loss, Trials):
            own, margins = loss.base, margin[int(name.partition(OF_TRIAL)[0])]
        parts.append(find(name).sums(own, margins, label, weights, weight))
    return np.concatenate(parts)


def by_set(
    names: tuple[str, ...], sets: tuple[str, ...], total: Int64, weight: Scale, min_rows: int = 0
) -> dict[str, float]:
    """Compute the metrics of each set of rows, by name. Metrics of the training rows have no prefix. Other
    names begin with the name of the set, e.g. `validation-`. If a set contains only one party's rows, the
    party's name and a colon come first.

    Args:
        names: names of the metrics.
        sets: names of the sets of rows.
        total: int64, for each set the totals of `sums` over all parties.
        weight: public scale of row weights.
        min_rows: minimum number of rows of a set; smaller sets are omitted. Rows are counted by weight, in
            units of the largest weight.

    Raises:
        ConfigError: if no party has rows in a set. The first set and the sets of individual parties may be
            empty.
        PeerError: if the sums are inconsistent.
    """
    out: dict[str, float] = {}
    size = cells(names)
    for number, set_name in enumerate(sets):
        part = total[number * size : (number + 1) * size]
        party, colon, rows = set_name.rpartition(OF_PARTY)
        if (not part[0] and colon) or 0 <= part[0] < min_rows * weight.limit:
            continue
        if not part[0] and number:
            raise ConfigError(
                "metric-set-empty",
                f"no party has {rows} rows; mark rows in the column that columns.validation names, or "
                f"increase validation_fraction",
            )
        prefix = party + colon + ("" if rows == TRAIN else f"{rows}-")
        out |= {prefix + name: value for name, value in values(names, part, weight).items()}
    return out


def published(names: tuple[str, ...], sets: tuple[str, ...], total: Int64, weight: Scale) -> dict[str, float]:
    """Compute the metrics that the analyst receives: like `by_set`, but with DIGITS significant digits, and
    without sets that may have fewer than MIN_ROWS rows."""
    exact = by_set(names, sets, total, weight, MIN_ROWS)
    return {name: float(f"{value:.{DIGITS}g}") for name, value in exact.items()}


def of_all(row: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if OF_PARTY not in name}


def by_party(row: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the metrics of individual parties in a round's metrics: party -> metric name -> value."""
    out: dict[str, dict[str, float]] = {}
    for full_name, value in row.items():
        party, colon, name = full_name.rpartition(OF_PARTY)
        if colon:
            out.setdefault(party, {})[name] = value
    return out


def values(names: Iterable[str], total: Int64, weight: Scale, find: Find = metric_of) -> dict[str, float]:
    """Compute metrics from sums over all parties. Returns metric name -> value.

    Args:
        names: names of the metrics.
        total: int64, the sum of weights, followed by the sums of each metric.
        weight: public scale of row weights.
        find: function that returns the metric with a given name.

    Raises:
        PeerError: if the sum of weights is not positive, or if a metric's sum is negative although the metric
            does not allow it.
    """
    weights, start, out = weight.decode(int(total[0])), 1, {}
    for name in names:
        metric = find(name)
        own = total[start : start + metric.cells]
        if weights <= 0 or (not metric.signed and own.min() < 0):
            raise PeerError(
                "metric-sums-inconsistent",
                "the metric sums are inconsistent: the sum of weights is not positive, or another sum is "
                "negative",
            )
        out[name] = metric.value(own, weights, weight)
        start += metric.cells
    return out


# ---- Counts of rows by score and label: ROC curve, calibration, confusion matrix ------------------------
# The edges of bins are the same for every model and all rows, so that two evaluations cannot isolate rows
# between two nearby edges. Each bin lies on one side of the threshold.


EDGES = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    *(0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999),
)
"""Edges between the bins of the predicted probability. The first bins are (0, 0.001] and (0.001, 0.002]."""
FINE_CELLS = LOGITS * FINE_CELLS_PER_LOGIT
"""Number of score cells used to compute the area under the curve."""
PROBABILITIES = Scale(exponent=0, bits=32)
"""Scale for sums of probabilities. The resolution is 2**-31 per row."""
OUTCOMES = ("tn", "fp", "fn", "tp")
"""Cells of a binary confusion matrix: label 0 predicted as 0 and as 1, then label 1 as 0 and as 1."""


def edges(threshold: float) -> tuple[float, ...]:
    return tuple(sorted({*EDGES, threshold}))


def ends(threshold: float) -> Float64:
    return np.array([0.0, *edges(threshold), 1.0])


def bins(threshold: float) -> int:
    return len(edges(threshold)) + 1


def count_bins(margin: Float64, label: Float32, threshold: float) -> Int64:
    """Count rows by bin of the predicted probability. Returns int64 [3 * bins]: rows with label 0, rows with
    label 1, and sums of probabilities. margin: float64 [rows]; label: float32 [rows]."""
    probability, borders = kernels.sigmoids(margin), edges(threshold)
    place, at = np.searchsorted(borders, probability, side="left"), borders.index(threshold)
    positive = is_positive(margin, threshold)
    place = np.where(positive, np.maximum(place, at + 1), np.minimum(place, at))
    out = np.zeros((3, len(borders) + 1), np.int64)
    np.add.at(out, ((label > 0.5).astype(np.int64), place), 1)
    np.add.at(out[2], place, PROBABILITIES.encode(probability))
    return out.reshape(-1)


def count_cells(margin: Float64, label: Float32) -> Int64:
    """Count rows by fine cell of the score: label 0, then label 1. Returns int64 [2 * FINE_CELLS]."""
    cell = score_cells(margin, FINE_CELLS_PER_LOGIT) + FINE_CELLS * (label > 0.5)
    return np.bincount(cell, minlength=2 * FINE_CELLS).astype(np.int64)


def count_outcomes(margin: Float64, label: Float32, threshold: float) -> Int64:
    """Count rows by outcome. Returns int64 [5]: the counts of OUTCOMES, then the sum of probabilities.
    margin: float64 [rows]; label: float32 [rows]."""
    outcome = 2 * (label > 0.5) + is_positive(margin, threshold)
    counts = np.bincount(outcome, minlength=len(OUTCOMES))
    return np.append(counts, PROBABILITIES.encode(kernels.sigmoids(margin)).sum()).astype(np.int64)


def count_classes(margin: Float64, label: Float32, classes: int) -> Int64:
    """Count rows by class and predicted class. The predicted class is the most probable one; in a tie, it is
    the lowest. Returns int64 [classes**2]. margin: float64 [classes, rows]; label: float32 [rows]."""
    pair = label.astype(np.int64) * classes + np.argmax(margin, axis=0)
    return np.bincount(pair, minlength=classes * classes).astype(np.int64)


# ---- Counts of rows in fixed cells, under terms with noise (decision 0051) -------------------------------
# Guarantees: a row is in one cell of each group of cells, whatever the model predicts for it. Each metric is
# a ratio of two sums that are linear in the counts (for the AUC, in the counts of each label), so noise does
# not bias it.


COUNTED = ("logloss", "error", "auc", "mlogloss", "merror", "rmse", "mae")
"""Metrics that follow from these counts. Noise would bias others, such as a maximum."""
ERROR_EDGES = np.exp2(np.arange(-20, 1) / 2)
"""Edges between the parts of absolute errors, in widths of the label's range. Larger errors count as 1."""
LARGEST_LOG_LOSS = -math.log(1e-3)
"""Cap on a row's log loss: that of a label predicted with probability 0.001."""


def is_counted(name: str, threshold: float) -> bool:
    metric = metric_of(name)
    return metric.threshold in edges(threshold) if isinstance(metric, Error) else name in COUNTED


def noisy_cells(scores: bool, classes: int, threshold: float) -> int:
    """Return the number of cells in `count_noisy`."""
    of_others = classes**2 + len(EDGES) + 1 if classes else ERROR_EDGES.size + 1
    return 2 * bins(threshold) if scores else of_others


def count_noisy(
    loss: Objective, margin: Float64, label: Float32, classes: int, threshold: float, width: float
) -> Int64:
    """Count rows by label and part of the probability; with several classes by class and predicted class,
    then by the probability of the row's own class; for numbers by absolute error. classes: number of classes,
    if there are several; width: width of the label's range, or 0 if labels are classes."""
    if width:
        with np.errstate(over="ignore"):
            errors = np.abs(loss.predict(margin) - label) / width
        places, size = np.searchsorted(ERROR_EDGES, errors), ERROR_EDGES.size + 1
        return np.bincount(places, minlength=size).astype(np.int64)
    if not classes:
        return count_bins(margin, label, threshold)[: 2 * bins(threshold)]
    own = np.exp(-kernels.softmax_losses(margin, label, np.ones_like(label)))
    by_own = np.bincount(np.searchsorted(EDGES, own), minlength=len(EDGES) + 1).astype(np.int64)
    return np.concatenate([count_classes(margin, label, classes), by_own])


def ratios(
    counts: Float64, classes: int, threshold: float, width: float, names: Iterable[str]
) -> dict[str, tuple[Float64, Float64]]:
    """Return metric -> (above, below): (above @ counts) / (below @ counts) is the metric, or the square of
    `rmse`. Rows of a part are taken to be in its middle. counts: as of `count_noisy`; names: which metrics
    are needed beside the usual ones."""
    every = np.ones(counts.size)
    if width:
        low, high = width * np.append(0.0, ERROR_EDGES), width * np.append(ERROR_EDGES, 1.0)
        return {"mae": ((low + high) / 2, every), "rmse": ((low * low + low * high + high * high) / 3, every)}
    parts = ends(threshold if not classes else 0.5)
    middle = (parts[1:] + parts[:-1]) / 2
    losses = np.minimum(-np.log(middle), LARGEST_LOG_LOSS)
    if classes:
        wrong, own = 1.0 - np.eye(classes).reshape(-1), np.arange(counts.size) >= classes**2
        return {
            "merror": (np.append(wrong, 0.0 * losses), every * ~own),
            "mlogloss": (np.append(0.0 * wrong, losses), every * own),
        }
    negatives, positives = counts.reshape(2, -1)
    below, above = np.cumsum(negatives) - negatives / 2, np.cumsum(positives[::-1])[::-1] - positives / 2
    totals = max(positives.sum(), 0.0), max(negatives.sum(), 0.0)
    of_zeros = np.minimum(-np.log(1.0 - middle), LARGEST_LOG_LOSS)
    out = {
        "auc": (np.append(above, below), np.repeat(totals, negatives.size)),
        "logloss": (np.append(of_zeros, losses), every),
        "mean_prediction": (np.tile(middle, 2), every),
    }
    for name in names:
        if isinstance(metric := metric_of(name), Error):
            is_high = parts[1:] > metric.threshold
            out[name] = np.append(is_high, ~is_high).astype(np.float64), every
    return out


def area(negatives: Int64, positives: Int64) -> tuple[float, float]:
    """Compute the area under the ROC curve from counts by fine cell, int64 [FINE_CELLS] for each label.
    Returns the area, and a bound for its difference from the area computed from unrounded scores."""
    zeros, ones = negatives.astype(np.float64), positives.astype(np.float64)
    tied = float((zeros * ones).sum()) / float(zeros.sum() * ones.sum())
    return roc_area(zeros, ones), tied / 2
