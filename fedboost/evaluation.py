"""Model evaluation on held-out rows, and the statistics that show whether a site gains from joining."""

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

# ---- Metrics of models on rows that they were not trained on --------------------------------------------
# Guarantees: a figure equals the metric that training would report for these rows.


MAX_CLASS_METRICS = 3
"""Maximum number of metrics used to compare classifiers."""
_WEIGHT_BITS = 24


class Trained(Protocol):
    """Protocol of a model together with the terms under which it was trained."""

    @property
    def booster(self) -> Booster:
        """The model's trees."""

    @property
    def terms(self) -> Terms:
        """Terms under which the model was trained."""


def shown_metrics(terms: Terms) -> tuple[str, ...]:
    """Return the names of the metrics by which models are compared under these terms. The first metric
    decides which model is better."""
    equivalent = terms.objective.loss.xgboost_equivalent
    has_classes = equivalent.label_kind is LabelKind.CLASS
    return terms.evaluation.eval_metric or (
        equivalent.metrics[:MAX_CLASS_METRICS] if has_classes else terms.metrics
    )


def unprotected(terms: Terms) -> Terms:
    """Return terms that train the same model on rows that are all in this process. Protection is off, because
    nothing is hidden from anyone, and there is no quorum, because no party can be lost."""
    nobody: dict[str, object] = {"parties": [], "keyholder": None, "keyholder_rows": True}
    return terms.changed(protection="plain", on_loss="wait", quorum=None, **nobody)


@dataclass(frozen=True)
class HeldOut:
    """Rows on which models are compared, prepared according to the terms. features: float32 [rows, features],
    with bucket numbers in target-means columns. The other arrays are float32 [rows], but labels are [2, rows]
    if they are ranges."""

    features: Float32
    label: Float32
    weight: Float32
    base_margin: Float32 | None

    @classmethod
    def from_shard(cls, shard: Shard) -> "HeldOut":
        """Create the rows from a prepared table (`Shard`)."""
        features = np.column_stack([column[:] for column in shard.columns])
        return cls(features, shard.label, shard.weight, shard.base_margin)

    def sums(
        self, margin: Float64, terms: Terms, names: tuple[str, ...], groups: Sequence[Any] = (slice(None),)
    ) -> tuple[Int64, Scale]:
        """Return the metric sums over each group of rows, and the scale of the weights.

        Sums of groups can be added together; `metrics.values` turns a sum into metrics.

        Args:
            margin: float64 [rows] or [outputs, rows].
            terms: terms of the model, which define its loss.
            names: names of the metrics.
            groups: row indices or slice of each group (default: one group of all rows).

        Returns:
            int64 [groups, cells], and the scale.
        """
        loss, heaviest = terms.objective.loss, float(self.weight.max(initial=0.0))
        known = terms.known_weight_scale
        scale = known or Scale(int(np.frexp(heaviest)[1]), _WEIGHT_BITS)

        def sums_of(rows: Any) -> Int64:
            margins = np.ascontiguousarray(margin[..., rows])
            return metrics.sums(names, loss, margins, self.label[..., rows], self.weight[rows], scale)

        return np.array([sums_of(rows) for rows in groups]), scale


def score(model: Trained, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """Return a model's metrics on these rows, as metric name -> value."""
    return score_of(margins_of(model, rows), model.terms, rows, names)


def margins_of(model: Trained, rows: HeldOut) -> Float64:
    """Return a model's margins, float64 [rows] or [outputs, rows]. Buckets of target-means columns are first
    replaced by the model's own means."""
    schema, features = model.terms.columns, rows.features
    if schema.target_means:
        features = features.copy()
        for place, means in enumerate(model.booster.target_means.values(), len(schema.numeric)):
            features[:, place] = means.of_buckets(features[:, place])
    return model.booster.margins(features, rows.base_margin)


def score_of(margin: Float64, terms: Terms, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics of margins, float64 [rows] or [outputs, rows], as metric name -> value."""
    (total,), scale = rows.sums(margin, terms, names)
    return metrics.values(names, total, scale)


# ---- Statistics of a comparison: site-alone, federated and pooled models on the same held-out rows ------
# Guarantees: the models of a split are compared on the same rows. The interval of a difference is computed
# from paired differences over bootstrap samples of those rows. The same rows and models give the same values.
# The intervals cover only the choice of held-out rows. The choice of training rows varies between splits, and
# figures are averages over the splits.


SAMPLES = 1000
"""Number of bootstrap samples drawn from the held-out rows."""
GROUPS = 1000
"""Maximum number of bootstrap units of a site. The units are the site's individual rows or, if it has more
rows, this many random groups of rows."""


class Trial:
    """A site's rows, and the models' scores on the rows that each split holds out."""

    def __init__(self, site: str, rows: int, share: float, number: int) -> None:
        self.site, self.rows = site, rows
        self.held_out = min(round(rows * share), rows - 1)
        self._number = number
        draw = np.random.default_rng([0, number])
        self._groups = draw.permutation(rows) % GROUPS
        """Group of each row, int64 [rows]; the same in all splits."""
        count = min(rows, GROUPS)
        self._drawn = draw.multinomial(count, np.full(count, 1 / count), SAMPLES).astype(np.float64)
        """Number of times that each sample draws each group, float64 [samples, groups]."""
        self._seen = np.zeros(rows, np.bool_)
        self._cannot = ""
        self._values: dict[str, list[Float64]] = {}
        self._samples: dict[str, list[Float64]] = {}

    def split(self, seed: int) -> tuple[Int64, Int64]:
        """Return the row indices of one random split: the rows to train on, and the held-out rows."""
        order = np.random.default_rng([1, seed, self._number]).permutation(self.rows)
        held, rest = order[: self.held_out], order[self.held_out :]
        return rest, np.sort(held)

    def cannot(self, error: Exception) -> None:
        """Record the error that prevents the site from training alone."""
        self._cannot = str(error)

    def score(
        self,
        models: Mapping[str, Trained],
        rows: HeldOut,
        held: Int64,
        names: tuple[str, ...],
        own_rows: HeldOut | None = None,
    ) -> None:
        """Score the models of one split on its held-out rows.

        Args:
            models: model name -> model; the same object may have several names.
            rows: the held-out rows.
            held: indices of these rows, int64.
            names: names of the metrics.
            own_rows: the same rows, read with the site-alone model's columns, if that model has fewer.
        """
        self._seen[held] = True
        # A sample is a weighted sum of group sums. All models share the draws, which pairs their differences.
        present, groups_of_rows = np.unique(self._groups[held], return_inverse=True)
        order = np.argsort(groups_of_rows, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(groups_of_rows))[:-1])
        drawn = self._drawn[:, present]
        known: dict[int, Float64] = {}
        for name, model in models.items():
            if id(model) not in known:
                seen = own_rows if name == ALONE and own_rows is not None else rows
                sums, scale = seen.sums(margins_of(model, seen), model.terms, names, groups)
                # Row 0 is the sum over all held-out rows; the others are the samples.
                totals = np.rint(np.vstack([sums.sum(axis=0), drawn @ sums])).astype(np.int64)
                known[id(model)] = np.array([_values(names, total, scale) for total in totals])
            values = known[id(model)]
            self._values.setdefault(name, []).append(values[0])
            self._samples.setdefault(name, []).append(values[1:])

    def compared(self, names: tuple[str, ...]) -> SiteComparison:
        """Return the comparison of the models over all splits."""
        # for each model: [splits, metrics] and [splits, samples, metrics]
        values = {model: np.array(splits) for model, splits in self._values.items()}
        samples = {model: np.array(splits) for model, splits in self._samples.items()}
        if self._cannot:
            values.pop(ALONE, None)
        counts = self.rows, self.held_out, self.different
        return _comparison(self.site, counts, values, samples, names, self._cannot)

    @property
    def different(self) -> int:
        """Number of distinct rows held out by at least one split."""
        return int(self._seen.sum())

    @property
    def has_a_model(self) -> bool:
        """True if the site can train alone and some of its rows were held out."""
        return not self._cannot and ALONE in self._values


def together(trials: Sequence[Trial], names: tuple[str, ...]) -> SiteComparison:
    """Return the comparison over all sites. Each figure is the mean over the sites that can train alone, or
    over all sites if none can, weighted by the number of held-out rows."""
    able = [trial for trial in trials if trial.has_a_model]
    chosen = able or [trial for trial in trials if trial._values]
    weights = np.array([trial.held_out for trial in chosen], np.float64)
    models = chosen[0]._values if chosen else {}
    values = {model: _mean([np.array(trial._values[model]) for trial in chosen], weights) for model in models}
    samples = {
        model: _mean([np.array(trial._samples[model]) for trial in chosen], weights) for model in models
    }
    counts = tuple(sum(getattr(t, name) for t in chosen) for name in ("rows", "held_out", "different"))
    cannot = "" if able else "no site can train alone"
    return _comparison("all sites", (counts[0], counts[1], counts[2]), values, samples, names, cannot)


def _mean(by_site: Sequence[Float64], weights: Float64) -> Float64:
    """Return the weighted mean over sites, ignoring NaN."""
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
    """Return a site's comparison.

    Args:
        counts: number of rows, of rows held out per split, and of distinct rows held out in any split.
        values, samples: model -> figures, [splits, metrics] and [splits, samples, metrics].
        cannot: why the site cannot train alone, or "".
    """
    rows, held_out, different = counts
    between = percentiles(different)

    def figures(pick: Callable[[Mapping[str, Float64]], Float64]) -> dict[str, Figure]:
        value, sample = pick(values), pick(samples)
        return {name: figure(value[..., i], sample[..., i], between) for i, name in enumerate(names)}

    sign = np.array([1.0 if grows(name) else -1.0 for name in names])  # positive gain: federated is better
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
    """Return the mean and the confidence interval of a metric.

    Args:
        splits: the metric in each split, [splits]; NaN if it is undefined for these rows.
        samples: the metric in each bootstrap sample, [splits, samples].
        between: percentiles of the samples at which the interval starts and ends.
    """
    if np.isnan(splits).all():
        return Figure(value=math.nan, low=math.nan, high=math.nan)
    sound = ~np.isnan(splits)
    means = samples[sound].mean(axis=0)
    means = means[~np.isnan(means)]
    low, high = np.percentile(means, between) if means.size else (math.nan, math.nan)
    return Figure(value=float(splits[sound].mean()), low=float(low), high=float(high))


def percentiles(rows: int) -> tuple[float, float]:
    """Return the percentiles of bootstrap samples that bound a 95% interval: 2.5 and 97.5 for many rows, and
    a wider range for few rows. This is the expanded percentile interval of Hesterberg (arXiv 1411.5279), with
    Student's t approximated by its expansion in 1 / (rows - 1)."""
    if rows < 3:
        return 0.0, 100.0
    z, n = NormalDist().inv_cdf(0.975), rows - 1
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    outside = 100 * NormalDist().cdf(-t * math.sqrt(rows / n))
    return outside, 100 - outside


def _values(names: tuple[str, ...], total: Int64, scale: Scale) -> list[float]:
    """Return the metrics computed from these sums, or NaN for a sample that contains none of the rows."""
    if total[0] <= 0:
        return [math.nan] * len(names)
    by_name = metrics.values(names, total, scale)
    return [by_name[name] for name in names]
