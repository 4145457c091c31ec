"""Built-in objectives for classes, numbers, counts, quantiles, survival times and rankings.

Gradients and hessians are the same as in XGBoost. Each objective rejects labels that it cannot handle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels import objectives as kernels
from fedboost.gbdt.objectives.objective import (
    AMOUNT_BITS,
    LOG,
    LOGIT,
    MAX_LABEL,
    ROUNDING,
    SOFTMAX,
    Bound,
    HasGradients,
    LabelKind,
    Objective,
    Sensitivity,
    first,
    first_beyond,
)
from fedboost.gbdt.sampling import Mask

_Loss = TypeVar("_Loss", bound=HasGradients)
MAX_NEWTON_STEP = 4.0
"""Maximum length of a step from base margins. Longer steps overshoot, because the hessian changes."""


@dataclass(frozen=True)
class Logistic(Objective):
    """binary:logistic: binary classification. Labels are 0 or 1; the prediction is the probability of 1."""

    scale_pos_weight: float = 1.0
    """Factor for the weights of rows with label 1."""

    name = "binary:logistic"
    label_kind = LabelKind.CLASS
    metrics = "logloss", "auc", "error", "aucpr", "ks", "ece"
    link = LOGIT
    classes_key = "positive"
    rows_per_hessian = 4
    xgboost_table = "reg_loss_param"
    has_label_means = True
    sensitivity = Sensitivity(Bound(1.0, 1.0, 0.5, is_scaled=True))
    """|p - y| is at most max(p, 1 - p), so the scaled pair has a norm of at most 1 whatever the label is."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Exponents for |p - y| <= 1 and p (1 - p) <= 1/4.

        The bound for the hessian is twice as large as necessary. At margin 0, a gradient w / 2 and a hessian
        w / 4 then round to the same integer, so that a constant label is detected exactly."""
        heaviest = math.ceil(math.log2(max(self.scale_pos_weight, 1.0)))
        return heaviest, heaviest - 1

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        if self.scale_pos_weight != 1.0:
            weight = np.where(label > 0.5, weight * np.float32(self.scale_pos_weight), weight)
        gradient, hessian = kernels.logistic_gradients(margin, label, weight)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        # At margin 0, a row has gradient w (1/2 - y) and hessian w / 4, so this is the mean label.
        mean = 0.5 - gradient / (4.0 * hessian)
        if mean in (0.0, 1.0):
            raise ConfigError(
                "label-constant",
                f"the label is {round(mean)} in every row of every party: there is nothing to learn",
            )
        if not 0.0 < mean < 1.0:
            raise PeerError(
                "base-score-sums",
                f"the sums of gradients imply a mean label of {mean:g}, which is not between 0 and 1",
            )
        return mean

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return max(-MAX_NEWTON_STEP, min(MAX_NEWTON_STEP, -gradient / hessian))

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        return first((label != 0.0) & (label != 1.0), "0 or 1")

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        norm = math.hypot(0.5, 0.25)
        return 0.5 / norm, 0.25 / norm


class _FixedStart(Objective):
    """Base class of objectives whose initial constant does not depend on sums over the rows."""

    initial = 0.0

    def base_score(self, gradient: float, hessian: float) -> float:
        return self.initial

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Softmax(_FixedStart):
    """multi:softprob: multiclass classification. Labels are 0, 1, ... num_class - 1; predictions are the
    classes' probabilities."""

    num_class: int

    name = "multi:softprob"
    label_kind = LabelKind.CLASS
    metrics = "mlogloss", "merror"
    link = SOFTMAX
    classes_key = "classes"
    rows_per_hessian = 2
    xgboost_table = "softmax_multiclass_param"
    initial = 0.5  # as in XGBoost; probabilities depend only on differences of margins
    bounds = 0, -1
    """Exponents for |p - y| <= 1 and for the hessian, which is at most 1/2 (2 p (1 - p), as in XGBoost)."""
    sensitivity = Sensitivity(Bound(1.0, 2.0**0.5, 0.5))
    """The gradients p - y have a norm of at most sqrt(2), reached only if some p is 1 and all hessians are 0.
    Together with the hessians 2 p (1 - p), the norm is still at most sqrt(2)."""

    @property
    def outputs(self) -> int:
        return self.num_class

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = kernels.softmax_gradients(margin, label, weight)
        return gradient, hessian

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        valid = (label >= 0) & (label < self.num_class) & (label == np.floor(label))
        return first(~valid, f"whole numbers from 0 to {self.num_class - 1}")

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        share = 1.0 / self.num_class
        return math.sqrt(share * (1.0 - share)), 2.0 * share * (1.0 - share)


# ---- Objectives for numbers -----------------------------------------------------------------------------


def _clipped_to_range(low: float, high: float) -> Bound:
    """Return the bound for g / C and h, where g is a gradient, h a hessian, and C half the width of the label
    range. Both numbers are clipped to 1, so the norm of (g / C, S h) is at most sqrt(1 + S**2) for any factor
    S."""
    return Bound(0.5, 1.25**0.5, (low + high) / 2.0, (high - low) / 2.0)


@dataclass(frozen=True)
class SquaredError(Objective):
    """reg:squarederror: regression for the conditional mean. Any finite label is valid."""

    name = "reg:squarederror"
    label_kind = LabelKind.NUMBER
    metrics = "rmse", "mae", "mphe"
    has_label_means = True
    rows_per_hessian = 1
    sensitivity = Sensitivity(_clipped_to_range)
    xgboost_params: ClassVar = {"reg_loss_param": {"scale_pos_weight": "1"}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        return hessian * (margin - label), hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        """Bound |gradient|, which equals the margin's distance from the label."""
        return gradient + step, hessian


@dataclass(frozen=True)
class PseudoHuber(Objective):
    """reg:pseudohubererror: regression that is less sensitive to outliers. Any finite label is valid.

    The loss is approximately quadratic near the label, and linear with slope huber_slope far from it. The
    slope bounds the gradient, but residuals may be far smaller."""

    huber_slope: float = 1.0

    name = "reg:pseudohubererror"
    xgboost_table = "pseudo_huber_param"
    label_kind = LabelKind.NUMBER
    metrics = "mphe", "rmse", "mae"
    has_label_means = True
    start = SquaredError()
    """Squared error, so that boosting starts from the mean label. From a margin far from the labels, a Newton
    step of the pseudo-Huber loss would overshoot by a large factor."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = kernels.pseudo_huber_gradients(margin, label, weight, self.huber_slope)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        """Bound the gradient and the hessian after a step. The bound on the hessian implies a minimum
        distance from the label, because the hessian decreases with this distance. The hessian is also the
        slope of the gradient. The gradient never exceeds huber_slope."""
        slope = self.huber_slope
        distance = slope * math.sqrt(max(hessian ** (-2.0 / 3.0) - 1.0, 0.0)) * (1.0 - ROUNDING)
        ratio = max(distance - step, 0.0) / slope
        steepest = min((1.0 + ratio * ratio) ** -1.5 * (1.0 + ROUNDING), 1.0)
        return min(gradient + steepest * step, slope), steepest


# ---- Objectives whose prediction is e**margin: counts and amounts, which are never below 0 --------------
# With a base margin of log(exposure), the prediction is for that exposure. The initial constant is optimal
# for any base margins. Labels that are 0 in every row raise ConfigError.


class _Amounts(Objective):
    """Base class of objectives for counts and amounts. The best constant takes one step to compute."""

    label_kind = LabelKind.COUNT
    link = LOG
    gradient_bits = AMOUNT_BITS
    has_label_means = True

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return self.margin(self.base_score(gradient, hessian))


def _clipped_counts(low: float, high: float) -> Bound:
    """Return the bound for a gradient and a hessian, both divided by C, the width of the label range, and
    clipped to 1. The norm of (g / C, S h / C) is then at most sqrt(1 + S**2)."""
    return Bound(0.5, 1.25**0.5, (low + high) / 8.0, high - low, high - low)


@dataclass(frozen=True)
class Poisson(_Amounts):
    """count:poisson: regression for counts. Labels are at least 0; the prediction is the mean."""

    max_delta_step: float = 0.7
    """Increases the hessian to the second derivative of the loss times e**max_delta_step, as in XGBoost."""

    name = "count:poisson"
    xgboost_table = "poisson_regression_param"
    metrics = "poisson-nloglik", "rmse", "mae", "gamma-nloglik", "tweedie-nloglik"
    sensitivity = Sensitivity(_clipped_counts)

    @property
    def _hessian_factor(self) -> float:
        return float(kernels.exps(np.array([self.max_delta_step]))[0])

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = kernels.poisson_gradients(margin, label, weight, self._hessian_factor)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        moved, grown = _grown(hessian, step, 1.0)
        return gradient + moved / self._hessian_factor, grown

    def base_score(self, gradient: float, hessian: float) -> float:
        """Return the sum of w y, divided by the sum of w e**base_margin."""
        predicted = hessian / self._hessian_factor
        return _mean(predicted - gradient, predicted)

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        return math.sqrt(bound.start), bound.start


@dataclass(frozen=True)
class Gamma(_Amounts):
    """reg:gamma: regression for positive, skewed amounts. Labels are above 0; the prediction is the mean."""

    name = "reg:gamma"
    label_kind = LabelKind.POSITIVE
    metrics = "gamma-deviance", "rmse", "mae", "poisson-nloglik", "gamma-nloglik", "tweedie-nloglik"
    xgboost_params: ClassVar = {"reg_loss_param": {"scale_pos_weight": "1"}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = kernels.gamma_gradients(margin, label, weight)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        moved, grown = _grown(hessian, step, 1.0)
        return gradient + moved, grown

    def base_score(self, gradient: float, hessian: float) -> float:
        """Return the mean of y e**-base_margin."""
        return _mean(hessian, gradient + hessian)


@dataclass(frozen=True)
class Tweedie(_Amounts):
    """reg:tweedie: regression for amounts, many of which are 0. Labels are at least 0; the prediction is the
    mean. The variance is the mean to the power tweedie_variance_power."""

    tweedie_variance_power: float = 1.5

    name = "reg:tweedie"
    xgboost_table = "tweedie_regression_param"
    metrics = "tweedie-nloglik", "rmse", "mae", "poisson-nloglik", "gamma-nloglik"

    @property
    def default_metric(self) -> str:
        return f"tweedie-nloglik@{self.tweedie_variance_power:g}"

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = kernels.tweedie_gradients(margin, label, weight, self.tweedie_variance_power)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        power = self.tweedie_variance_power
        moved, grown = _grown(hessian, step, max(power - 1.0, 2.0 - power))
        return gradient + moved, grown

    def base_score(self, gradient: float, hessian: float) -> float:
        """Return sum of w y e**((1 - power) base_margin) divided by sum of w e**((2 - power) base_margin)."""
        predicted = hessian + (self.tweedie_variance_power - 1.0) * gradient
        return _mean(predicted - gradient, predicted)


MAX_STEP = 64.0
"""Longest step after which gradients are considered bounded. A longer step could multiply gradients by more
than e**64, which exceeds every scale."""


def _grown(hessian: float, step: float, rate: float) -> tuple[float, float]:
    """Bound the change of the gradient, and the new hessian, after the margin has changed by at most `step`.
    The hessian is the slope of the gradient. It is a sum of terms that grow or fall at most as fast as
    e**(rate * margin)."""
    if step > MAX_STEP:
        return math.inf, math.inf
    growth = math.expm1(rate * step) * (1.0 + ROUNDING)
    return hessian * growth / rate, hessian * (1.0 + growth)


def _mean(labels: float, predicted: float) -> float:
    """Return labels / predicted, the factor by which predictions at margin 0 are too low. Raises ConfigError
    if all labels are 0, and PeerError if the sums are impossible."""
    if labels <= 0.0 < predicted:
        raise ConfigError(
            "label-all-zero", "the label is 0 in every row of every party: there is nothing to learn"
        )
    if not 0.0 < predicted < math.inf:
        raise PeerError(
            "base-score-sums",
            f"the sums of gradients imply a sum of predictions of {predicted:g}, which must be above 0",
        )
    return labels / predicted


# ---- Objectives whose best constant is a quantile of the labels, in leaves of the residuals -------------
# Gradients depend only on the side of the label on which a margin lies, not on its distance.


class _Quantile(_FixedStart):
    """Base class of objectives whose initial constant is a quantile, found by separate queries."""

    label_kind = LabelKind.NUMBER
    rows_per_hessian = 1
    bounds = 0, 0


@dataclass(frozen=True)
class AbsoluteError(_Quantile):
    """reg:absoluteerror: regression for the conditional median. Any finite label is valid."""

    name = "reg:absoluteerror"
    metrics = "mae", "rmse", "mphe"
    quantile = 0.5

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        return hessian * np.sign(margin - label), hessian


@dataclass(frozen=True)
class QuantileError(_Quantile):
    """reg:quantileerror: regression for the conditional quantile at quantile_alpha of any finite label."""

    quantile_alpha: float

    name = "reg:quantileerror"
    metrics = "quantile", "rmse", "mae", "mphe"

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        return {"quantile_loss_param": {"quantile_alpha": f"[{self.quantile_alpha!r}]"}}

    @property
    def quantile(self) -> float:
        return self.quantile_alpha

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        slope = np.where(margin >= label, 1.0 - self.quantile_alpha, -self.quantile_alpha)
        return hessian * slope, hessian


# ---- Objectives for times until an event, some of which are only known to lie between two bounds --------
# Gradients and hessians are XGBoost's, within its bounds, but stay accurate if a time is far from its
# prediction.


DISTRIBUTIONS = {"normal": kernels.NORMAL, "logistic": kernels.LOGISTIC, "extreme": kernels.EXTREME}


@dataclass(frozen=True)
class LogTime:
    """Squared error of the logarithm of a survival time, used to find the initial constant. The time of an
    interval is the geometric mean of its two bounds, or its only bound."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        lower, upper = label.astype(np.float64)
        known = np.where(lower > 0.0, lower, upper), np.where(upper < np.inf, upper, lower)
        low, high = map(kernels.logs, known)
        hessian = weight.astype(np.float64)
        return hessian * (margin - 0.5 * (low + high)), hessian


@dataclass(frozen=True)
class AcceleratedFailureTime(Objective):
    """survival:aft: accelerated failure time. The logarithm of a row's time is the margin plus noise, and the
    label is an interval that contains the time. The prediction is e**margin.

    Labels are float32 [2, N]: lower bounds, 0 if there is none, and upper bounds, infinite if there is none.
    Gradients and hessians are at most 15, but most are far smaller."""

    aft_loss_distribution: str = "normal"
    """Distribution of the noise, one of DISTRIBUTIONS."""
    aft_loss_distribution_scale: float = 1.0
    """Factor by which the noise is multiplied."""

    name = "survival:aft"
    xgboost_table = "aft_loss_param"
    label_kind = LabelKind.INTERVAL
    metrics = "aft-nloglik", "interval-regression-accuracy"
    risk_sign = -1
    link = LOG
    start = LogTime()

    def __post_init__(self) -> None:
        if self.aft_loss_distribution not in DISTRIBUTIONS:
            raise ValueError(f"unknown aft_loss_distribution {self.aft_loss_distribution!r}")

    @property
    def noise(self) -> tuple[int, float]:
        return DISTRIBUTIONS[self.aft_loss_distribution], self.aft_loss_distribution_scale

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        lower, upper = np.ascontiguousarray(label)
        gradient, hessian = kernels.aft_gradients(margin, lower, upper, weight, *self.noise)
        return gradient, hessian

    def losses(self, margin: Float64, label: Float32) -> Float64:
        lower, upper = np.ascontiguousarray(label)
        out: Float64 = kernels.aft_losses(margin, lower, upper, *self.noise)
        return out

    def survival(self, time: float, margin: Float64) -> Float64 | None:
        number, scale = self.noise
        z = np.clip((math.log(time) - margin) / scale, -700.0, 700.0)
        if number == kernels.NORMAL:
            return np.array([math.erfc(each / math.sqrt(2.0)) / 2.0 for each in z.tolist()])
        out: Float64 = 1.0 / (1.0 + np.exp(z)) if number == kernels.LOGISTIC else np.exp(-np.exp(z))
        return out

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        lower, upper = label
        has_lower = (lower >= 1.0 / MAX_LABEL) & (lower <= MAX_LABEL)
        has_upper = (upper >= 1.0 / MAX_LABEL) & (upper <= MAX_LABEL)
        both = has_lower & has_upper & (lower <= upper)
        valid = both | (has_lower & (upper == math.inf)) | (has_upper & (lower == 0.0))
        return first(
            ~valid,
            "a lower bound from 0 to 2**60 and an upper bound that is above 0 and not below the lower one "
            "(the upper bound may be infinite or missing, but not if the lower one is 0)",
        )


# ---- Cox's proportional hazards: the gradient of a row depends on the rows at risk at its time -----------
# At an event time, let D be the weight of the events, and R the sum of the risks r = weight * e**margin of
# the rows at risk. With A(t) and B(t), the sums of D / R and D / R**2 over the event times up to t, a row has
# gradient r * A - weight * event and hessian r * A - r**2 * B (Breslow's ties, the diagonal of the hessian,
# as XGBoost). Parties with whole rows divide time into bins: all times in a bin are
# ties, and A and B follow from one sum R per bin. A party that has all labels needs no bins.


MAX_RISK_BINS = 256
"""Maximum number of time bins."""


@dataclass(frozen=True)
class RiskSets:
    """The rows at risk in each bin of time, as all parties know them.

    starts: float32 [bins - 1], increasing, the first time of each bin but the first. events: float64 [bins],
    weight of the events in each bin. at_risk: float64 [bins], sum of weight * e**margin over the rows whose
    time is in the bin or later."""

    starts: Float32
    events: Float64
    at_risk: Float64

    def bins(self, time: Float32) -> Int64:
        """Return the bin of each time: int64 [rows]."""
        return np.searchsorted(self.starts, time, side="right").astype(np.int64)

    @cached_property
    def hazards(self) -> tuple[Float64, Float64]:
        """A and B after each bin: float64 [bins] each."""
        share = self.events / np.where(self.at_risk > 0.0, self.at_risk, np.inf)
        squares = share / np.where(self.at_risk > 0.0, self.at_risk, np.inf)
        return np.cumsum(share), np.cumsum(squares)

    @classmethod
    def of_rows(cls, time: Float32, is_event: Mask, risk: Float64, weight: Float32) -> "RiskSets":
        """Return the exact risk sets of these rows, each array [rows]: a bin for each time."""
        times, bins = np.unique(time, return_inverse=True)
        events, risks = (np.bincount(bins, each, times.size) for each in (weight * is_event, risk))
        return cls(times[1:], events.astype(np.float64), sum_later(risks.astype(np.float64)))


def sum_later(values: Float64) -> Float64:
    """Return the sum of each value and all later ones: float64 [bins]."""
    out: Float64 = np.cumsum(values[::-1])[::-1]
    return out


def sum_risks(starts: Float32, risks: Scale, weights: Scale, _: Objective, *rows: Any) -> Int64:
    """Return the sums of weight * e**margin, then of the weights of events, by time bin: int64 [2 * bins].
    risks, weights: scales of these sums; rows: margins, labels and weights, of at most 2**20 rows."""
    margin, label, weight = rows
    bins, size = np.searchsorted(starts, label[0], side="right"), starts.size + 1
    events = weights.encode(weight * (label[1] < np.inf))
    units = risks.encode(weight * kernels.exps(margin)), events
    # float64 is exact: each number is at most 2**31
    return np.concatenate([np.bincount(bins, each, size) for each in units]).astype(np.int64)


@dataclass(frozen=True)
class Risk:
    """Stands for the gradients of `Cox` while the risk sets are not known: e**margin bounds them."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        risk = weight * kernels.exps(margin)
        return risk, risk


@dataclass(frozen=True)
class Cox(_FixedStart):
    """survival:cox: Cox's proportional hazards. The prediction e**margin is the ratio of a row's hazard to
    the hazard of a row with margin 0.

    Labels are float32 [2, N]: the time of the event twice, or the time until which there was none and
    infinity."""

    sets: RiskSets | None = field(default=None, compare=False, repr=False)
    """Risk sets of all parties' rows; None if these rows are all rows. Not a parameter."""
    trained: Mask | None = field(default=None, compare=False, repr=False)
    """If `sets` is None: bool [rows], True for the rows that can be at risk; None for all rows."""

    name = "survival:cox"
    initial = 1.0  # a constant changes no gradient
    label_kind = LabelKind.INTERVAL
    metrics = ("cox-nloglik",)
    risk_sign = 1
    link = LOG
    gradient_bits = AMOUNT_BITS
    start = Risk()
    has_risk_sets = True

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        time, is_event = label[0], label[1] < np.inf
        risk, sets = weight * kernels.exps(margin), self.sets
        if sets is None:
            among = np.ones(time.size, np.bool_) if self.trained is None else self.trained
            sets = RiskSets.of_rows(time, is_event & among, risk * among, weight)
        (hazard, square), bins = sets.hazards, sets.bins(time)
        own = risk * hazard[bins]
        # the difference may be negative if one row is nearly all of a risk set, whose sum is rounded
        return own - weight * is_event, np.maximum(own - risk * risk * square[bins], 0.0)

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        time, end = label
        valid = (time >= 1.0 / MAX_LABEL) & (time <= MAX_LABEL) & ((end == time) | (end == math.inf))
        return first(
            ~valid,
            "a time above 0, up to 2**60, and an upper bound that is equal to it, or infinite or missing if "
            "the event has not happened yet",
        )


# ---- Objectives that rank: rows are compared only within their group (LambdaMART) -----------------------
# The gradients of a group depend only on its own rows. Their order in the table matters only between equal
# margins. The formulas are XGBoost's (Burges, MSR-TR-2010-82; the top rows by margin are paired with all
# below), except that group weights are not divided by their mean, which no party knows.


MAX_RELEVANCE = 31
"""Largest valid label if the gain of a label y is 2**y - 1."""
MAX_PAIRS = 1 << 20
"""Maximum of lambdarank_num_pair_per_sample, the number of a group's top rows that form pairs."""


@dataclass(frozen=True)
class Ranking(_FixedStart):
    """Base class of ranking objectives (LambdaMART). The label is a row's relevance; the prediction is a
    score that ranks the rows of a group.

    The top rows of a group are paired with all rows below them. Rows that are not at the top are paired only
    with top rows. In groups of thousands of rows, most gradients are therefore about a thousand times smaller
    than a few large ones."""

    lambdarank_pair_method: str = "topk"
    lambdarank_num_pair_per_sample: int = 32
    """Number of top rows of a group, by margin, that form pairs with all rows below them."""
    lambdarank_normalization: bool = True
    """If True, a group's gradients are scaled down, by a factor that increases with their sum."""
    lambdarank_score_normalization: bool = True
    """If True, pairs whose margins are further apart have less weight."""
    ndcg_exp_gain: bool = True
    """If True, the gain of a label y is 2**y - 1, otherwise y."""
    starts: Int64 | None = field(default=None, compare=False, repr=False)
    """First row of each group, followed by the number of rows: int64 [groups + 1]; None if all rows are one
    group. This is not a parameter: `in_groups` sets it."""

    initial = 0.0  # the gradients of a group sum to 0 for any constant
    label_kind = LabelKind.RELEVANCE
    metrics = ("ndcg",)
    gradient_bits = AMOUNT_BITS
    by_ndcg: ClassVar[bool]
    """If True, a pair's weight is the change in its group's NDCG if the two rows swapped places. Otherwise
    all pairs have the same weight."""

    @property
    def default_metric(self) -> str:
        return f"ndcg@{self.lambdarank_num_pair_per_sample}"

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        params = {
            "lambdarank_bias_norm": "1",
            "lambdarank_normalization": f"{self.lambdarank_normalization:d}",
            "lambdarank_num_pair_per_sample": f"{self.lambdarank_num_pair_per_sample}",
            "lambdarank_pair_method": self.lambdarank_pair_method,
            "lambdarank_score_normalization": f"{self.lambdarank_score_normalization:d}",
            "lambdarank_unbiased": "0",
            "ndcg_exp_gain": f"{self.ndcg_exp_gain:d}",
        }
        return {"lambdarank_param": params}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = kernels.lambda_gradients(
            margin,
            label,
            self.gains(label),
            weight,
            self.group_starts(label.size),
            self.lambdarank_num_pair_per_sample,
            self.by_ndcg,
            self.lambdarank_score_normalization,
            self.lambdarank_normalization,
        )
        return gradient, hessian

    def group_starts(self, rows: int) -> Int64:
        """Return the first row of each group, followed by the number of rows: int64 [groups + 1]."""
        return np.array([0, rows], np.int64) if self.starts is None else self.starts

    def gains(self, label: Float32) -> Float64:
        """Return what each row would add to its group's DCG if it were ranked first: float64 [N]."""
        if not self.ndcg_exp_gain:
            return label.astype(np.float64)
        out: Float64 = np.ldexp(1.0, label.astype(np.int64)) - 1.0
        return out

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        if not self.ndcg_exp_gain:
            return first_beyond(label, LabelKind.COUNT)
        valid = (label >= 0) & (label <= MAX_RELEVANCE) & (label == np.floor(label))
        return first(
            ~valid,
            f"whole numbers from 0 to {MAX_RELEVANCE} (with ndcg_exp_gain = false, any number of at least 0)",
        )


@dataclass(frozen=True)
class RankNdcg(Ranking):
    """rank:ndcg: ranking in which pairs are weighted by the change in NDCG."""

    name = "rank:ndcg"
    by_ndcg = True


@dataclass(frozen=True)
class RankPairwise(Ranking):
    """rank:pairwise: ranking with equal weights for all pairs. ndcg_exp_gain affects only the metric."""

    name = "rank:pairwise"
    by_ndcg = False


def in_groups(loss: _Loss, starts: Int64 | None) -> _Loss:
    """Return the objective for rows in these groups. Objectives that do not rank rows are returned unchanged.
    starts: int64 [groups + 1], first row of each group, then the number of rows; None if there is a single
    group."""
    return replace(loss, starts=starts) if isinstance(loss, Ranking) else loss


BUILT_IN: tuple[type[Objective], ...] = (
    *(Logistic, Softmax),
    *(SquaredError, PseudoHuber),
    *(Poisson, Gamma, Tweedie),
    *(AbsoluteError, QuantileError),
    *(AcceleratedFailureTime, Cox),
    *(RankNdcg, RankPairwise),
)
