"""The worth of models: metrics on held-out rows, and what joining is worth to a site."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.metrics import grows
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.holders.shard import Shard
from fedboost.results.model import ALONE, FEDERATED, Figure, SiteComparison
from fedboost.terms.terms import Terms

# ---- Metrics of models on rows they were not trained on -------------------------------------------------
# Promises: a figure is the metric that training reports, of these rows.


MAX_CLASS_METRICS = 3
"""Metrics that models of classes are compared by."""
_WEIGHT_BITS = 24


class Trained(Protocol):
    """A model and the terms it was trained under."""

    @property
    def booster(self) -> Booster:
        """The trees."""

    @property
    def terms(self) -> Terms:
        """The terms."""


def shown_metrics(terms: Terms) -> tuple[str, ...]:
    """Return the metrics that models under these terms are compared by, the one that decides first."""
    equivalent = terms.objective.loss.xgboost_equivalent
    has_classes = equivalent.label_kind is LabelKind.CLASS
    return terms.evaluation.eval_metric or (
        equivalent.metrics[:MAX_CLASS_METRICS] if has_classes else terms.metrics
    )


def unprotected(terms: Terms) -> Terms:
    """Return terms of the same model from rows that are all here: there is nobody to hide them from, and
    nobody to lose."""
    nobody: dict[str, object] = {"parties": [], "keyholder": None, "keyholder_rows": True}
    return terms.changed(protection="plain", on_loss="wait", quorum=None, **nobody)


@dataclass(frozen=True)
class HeldOut:
    """Rows to compare models on, as the terms read them, levels of target means as buckets: float32 [rows,
    features], [rows] (or [2, rows]), [rows], [rows]."""

    features: Float32
    label: Float32
    weight: Float32
    base_margin: Float32 | None

    @classmethod
    def from_shard(cls, shard: Shard) -> "HeldOut":
        """The rows of a shard."""
        features = np.column_stack([column[:] for column in shard.columns])
        return cls(features, shard.label, shard.weight, shard.base_margin)

    def sums(
        self, margin: Float64, terms: Terms, names: tuple[str, ...], groups: Sequence[Any] = (slice(None),)
    ) -> tuple[Int64, Scale]:
        """Sums of the metrics over each group of rows, int64 [groups, cells], and the scale of weights: sums
        of groups add, and `metrics.values` makes the metrics of them. margin: float64 [rows], or [outputs,
        rows]."""
        loss, heaviest = terms.objective.loss, float(self.weight.max(initial=0.0))
        known = terms.known_weight_scale
        scale = known or Scale(int(np.frexp(heaviest)[1]), _WEIGHT_BITS)

        def sums_of(rows: Any) -> Int64:
            margins = np.ascontiguousarray(margin[..., rows])
            return metrics.sums(names, loss, margins, self.label[..., rows], self.weight[rows], scale)

        return np.array([sums_of(rows) for rows in groups]), scale


def score(model: Trained, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """Return metric name to its value on these rows."""
    return score_of(margins_of(model, rows), model.terms, rows, names)


def margins_of(model: Trained, rows: HeldOut) -> Float64:
    """The margins of a model: float64 [rows], or [outputs, rows]. Each model has its own means of levels."""
    schema, features = model.terms.columns, rows.features
    if schema.target_means:
        features = features.copy()
        for place, means in enumerate(model.booster.target_means.values(), len(schema.numeric)):
            features[:, place] = means.of_buckets(features[:, place])
    return model.booster.margins(features, rows.base_margin)


def score_of(margin: Float64, terms: Terms, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """The same of margins: float64 [rows], or [outputs, rows]."""
    (total,), scale = rows.sums(margin, terms, names)
    return metrics.values(names, total, scale)


# ---- Statistics of a comparison: site-alone, federated and pooled models on the same held-out rows ------
# Promises: the models of a split are compared on the same rows; an interval of a difference is of the
# paired difference, over bootstrap samples of those rows; the same rows and models give the same figures.
# The intervals speak of the rows that are held out: of the luck of what was trained on the several splits
# tell, which are averaged.


SAMPLES = 1000
"""Bootstrap samples of the held-out rows."""
GROUPS = 1000
"""Rows of a site are drawn one by one up to this many; of more, that many random groups of them are."""


class Trial:
    """A site's rows, and how models do on those that are held out, split after split."""

    def __init__(self, site: str, rows: int, share: float, number: int) -> None:
        self.site, self.rows = site, rows
        self.held_out = min(round(rows * share), rows - 1)
        self._number = number
        draw = np.random.default_rng([0, number])
        self._groups = draw.permutation(rows) % GROUPS
        """The group of each row."""
        count = min(rows, GROUPS)
        self._drawn = draw.multinomial(count, np.full(count, 1 / count), SAMPLES).astype(np.float64)
        """How often each group is in each sample: [samples, groups]."""
        self._seen = np.zeros(rows, np.bool_)
        self._cannot = ""
        self._values: dict[str, list[Float64]] = {}
        self._samples: dict[str, list[Float64]] = {}

    def split(self, seed: int) -> tuple[Int64, Int64]:
        """Return the indices of rows to train on, and of those that are held out."""
        order = np.random.default_rng([1, seed, self._number]).permutation(self.rows)
        held, rest = order[: self.held_out], order[self.held_out :]
        return rest, np.sort(held)

    def cannot(self, error: Exception) -> None:
        """Note that the site cannot train alone."""
        self._cannot = str(error)

    def score(
        self,
        models: Mapping[str, Trained],
        rows: HeldOut,
        held: Int64,
        names: tuple[str, ...],
        own_rows: HeldOut | None = None,
    ) -> None:
        """Score these models of one split on the rows that it holds out, whose indices are `held`. own_rows:
        the same rows as the model alone reads them, where it has fewer columns."""
        self._seen[held] = True
        present, groups_of_rows = np.unique(self._groups[held], return_inverse=True)
        order = np.argsort(groups_of_rows, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(groups_of_rows))[:-1])
        drawn = self._drawn[:, present]
        known: dict[int, Float64] = {}
        for name, model in models.items():
            if id(model) not in known:
                seen = own_rows if name == ALONE and own_rows is not None else rows
                sums, scale = seen.sums(margins_of(model, seen), model.terms, names, groups)
                totals = np.rint(np.vstack([sums.sum(axis=0), drawn @ sums])).astype(np.int64)
                known[id(model)] = np.array([_values(names, total, scale) for total in totals])
            values = known[id(model)]
            self._values.setdefault(name, []).append(values[0])
            self._samples.setdefault(name, []).append(values[1:])

    def compared(self, names: tuple[str, ...]) -> SiteComparison:
        """Return what all splits came to."""
        # [splits, metrics] and [splits, samples, metrics] of each model
        values = {model: np.array(splits) for model, splits in self._values.items()}
        samples = {model: np.array(splits) for model, splits in self._samples.items()}
        if self._cannot:
            values.pop(ALONE, None)
        counts = self.rows, self.held_out, self.different
        return _comparison(self.site, counts, values, samples, names, self._cannot)

    @property
    def different(self) -> int:
        """Rows that were held out in any split."""
        return int(self._seen.sum())

    @property
    def has_a_model(self) -> bool:
        """True if the site trains alone, and rows of it are held out."""
        return not self._cannot and ALONE in self._values


def together(trials: Sequence[Trial], names: tuple[str, ...]) -> SiteComparison:
    """Return the comparison of all sites as one: each figure is the mean over the sites that have a model
    alone, by their held-out rows; where none has, over all."""
    able = [trial for trial in trials if trial.has_a_model]
    chosen = able or [trial for trial in trials if trial._values]
    weights = np.array([trial.held_out for trial in chosen], np.float64)
    models = chosen[0]._values if chosen else {}
    values = {model: _mean([np.array(trial._values[model]) for trial in chosen], weights) for model in models}
    samples = {
        model: _mean([np.array(trial._samples[model]) for trial in chosen], weights) for model in models
    }
    counts = tuple(sum(getattr(t, name) for t in chosen) for name in ("rows", "held_out", "different"))
    cannot = "" if able else "no site has a model alone"
    return _comparison("all sites", (counts[0], counts[1], counts[2]), values, samples, names, cannot)


def _mean(by_site: Sequence[Float64], weights: Float64) -> Float64:
    """Return the weighted mean of sites' figures, without those that are NaN."""
    mean = np.ma.average(np.ma.masked_invalid(np.array(by_site)), axis=0, weights=weights)
    return np.asarray(np.ma.filled(mean, np.nan))


def _comparison(
    site: str,
    counts: tuple[int, int, int],
    values: Mapping[str, Float64],
    samples: Mapping[str, Float64],
    names: tuple[str, ...],
    cannot: str,
) -> SiteComparison:
    """Return the figures of values [splits, metrics] and samples [splits, samples, metrics] of each model.
    counts: rows, held out in each split, held out in any."""
    rows, held_out, different = counts
    between = percentiles(different)

    def figures(pick: Callable[[Mapping[str, Float64]], Float64]) -> dict[str, Figure]:
        value, sample = pick(values), pick(samples)
        return {name: figure(value[..., i], sample[..., i], between) for i, name in enumerate(names)}

    sign = np.array([1.0 if grows(name) else -1.0 for name in names])
    models = {model: figures(lambda known, model=model: known[model]) for model in values}  # type: ignore[misc]
    gain = figures(lambda known: (known[FEDERATED] - known[ALONE]) * sign) if ALONE in values else {}
    return SiteComparison(
        site=site,
        rows=rows,
        held_out=held_out,
        different_held_out=different,
        models=models,
        better_by=gain,
        cannot=cannot,
    )


def figure(splits: Float64, samples: Float64, between: tuple[float, float]) -> Figure:
    """Return the figure of the value of each split, [splits], and that of each sample, [splits, samples], NaN
    where rows have none; between: the percentiles of the samples that the interval ends at."""
    if np.isnan(splits).all():
        return Figure(value=math.nan, low=math.nan, high=math.nan)
    sound = ~np.isnan(splits)
    means = samples[sound].mean(axis=0)
    means = means[~np.isnan(means)]
    low, high = np.percentile(means, between) if means.size else (math.nan, math.nan)
    return Figure(value=float(splits[sound].mean()), low=float(low), high=float(high))


def percentiles(rows: int) -> tuple[float, float]:
    """Return the percentiles of bootstrap samples that a 95 % interval ends at, for this many rows: 2.5 and
    97.5 where they are many, further out where they are few, as Student's t is wider than the normal
    distribution.

    The expanded percentile interval of Hesterberg, arXiv 1411.5279; t by its expansion in 1 / (rows - 1).
    """
    if rows < 3:
        return 0.0, 100.0
    z, n = NormalDist().inv_cdf(0.975), rows - 1
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    outside = 100 * NormalDist().cdf(-t * math.sqrt(rows / n))
    return outside, 100 - outside


def _values(names: tuple[str, ...], total: Int64, scale: Scale) -> list[float]:
    """Return the metrics of rows with these sums; NaN where the sample drew none of them."""
    if total[0] <= 0:
        return [math.nan] * len(names)
    by_name = metrics.values(names, total, scale)
    return [by_name[name] for name in names]
