"""Programs that do not train (describe, evaluate and drift). Published figures are rounded (`rounding`)."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any

import numpy as np

from fedboost.boosting.programs import survival
from fedboost.boosting.programs.initialisation import align, count_rows, no_model, predict
from fedboost.boosting.programs.rounding import (
    coarse,
    last_digit,
    nearest,
    part,
    possible,
    rounded,
    rows_of_bin,
    rows_of_group,
    step_of,
    unit_of,
    with_ties,
)
from fedboost.boosting.programs.sites import of_sites, union_of_levels
from fedboost.boosting.queries import OfTurn
from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.boosting.queries.columns import BinCountsQuery, QuantileQuery, RangeQuery, SummaryQuery
from fedboost.boosting.queries.labels import ALL, ROW_COUNTS, EvaluationQuery, MagnitudesQuery
from fedboost.errors import ConfigError, PeerError, TrainingStopped
from fedboost.fixedpoint import EXPONENT_CELLS, UNIT, Float64, Int64, bound_exponent
from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import (
    MAX_REFINEMENTS,
    RANGE_PARTS,
    CutPoints,
    DisclosedQuantiles,
    Quantiles,
    range_edges,
)
from fedboost.gbdt.drift import BINS, Bins, bins_of, runs
from fedboost.gbdt.metrics import OUTCOMES, Curve, Mean, Metric, Ndcg, exact_metric_of
from fedboost.gbdt.survival import SurvivalTable, risk_grid
from fedboost.protocol.contracts import GrownTrees, Outcome, Program
from fedboost.terms import hiding, tasks
from fedboost.terms.hiding import ROWS
from fedboost.terms.terms import Terms


def require_enough(terms: Terms, rows: int) -> None:
    """Raise ConfigError if the parties have fewer rows in total than `min_count`."""
    if rows < (least := terms.evaluation.min_count):
        raise ConfigError("data-few-rows", f"the parties have fewer rows in total than min_count = {least}")


# ---- Noisy descriptions of rows: two releases, by level and by part of a range --------------------------
# Guarantees: a pure function of the terms and the noisy sums. Counts that are not well above their noise, or
# below `min_count`, are not published.

ABOVE_NOISE = 3.0
"""Minimum size of a published count, in standard deviations of its noise."""


def _floor(terms: Terms, what: str) -> int:
    """Return the minimum size of a published count. what: name of the release, if the terms add noise."""
    sigma = 0.0 if terms.noise is None else terms.plan.releases[what].sigma
    return max(math.ceil(ABOVE_NOISE * sigma), terms.evaluation.min_count)


def _noisy_rows(terms: Terms, what: str, counts: Int64) -> int:
    """Estimate the number of rows from the noisy counts of a release. Raises ConfigError if the estimate is
    below `min_count` or within its noise."""
    each = round(terms.plan.releases[what].sensitivity ** 2)  # number of cells that a row is in
    rows = round(int(counts.sum()) / each)
    if rows < _floor(terms, what) * max(math.sqrt(counts.size) / each, 1.0):
        raise ConfigError(
            "data-few-rows",
            f"the parties have about {max(rows, 0)} rows in total, too few for this noise; raise its epsilon",
        )
    return rows


def summarise(terms: Terms) -> Generator[OfTurn, Int64, dict[str, Any]]:
    """Describe rows under terms with noise. Returns a summary as in `describe`, with an additional key
    `noise`: the standard deviation of a count's noise."""
    schema, releases = terms.columns, terms.plan.releases
    query = SummaryQuery.of(terms)
    noise = releases[hiding.SUMMARY].sigma
    floor = _floor(terms, hiding.SUMMARY)
    rows, missing, levels, classes = _parts_of(query, (yield query))
    ranges = [schema.ranges[name] for name in schema.numeric]
    parts = np.zeros((0, RANGE_PARTS), np.int64)
    if ranges:
        parts = (yield RangeQuery(ROWS, len(ranges), RANGE_PARTS)).reshape(len(ranges), RANGE_PARTS)
    columns: list[dict[str, Any]] = []
    for place, name in enumerate(schema.numeric):
        quantiles = _quantiles(parts[place], ranges[place], releases[hiding.CUT_POINTS].sigma)
        known = {tasks.MISSING: _told(missing[place], floor), "quantiles": quantiles, "constant": False}
        columns.append({"name": name, "kind": "numeric", **known})
    columns += tasks.columns_of_levels(terms, levels, lambda count: _told(count, floor))
    label: dict[str, Any] = {"name": schema.label}
    if query.classes:
        told = (_told(count, floor) for count in classes)
        label["levels"] = dict(zip(tasks.class_names(terms), told, strict=True))
    return {"rows": max(rows, 0), "min_count": floor, "noise": noise, "columns": columns, "label": label}


def _parts_of(query: SummaryQuery, total: Int64) -> tuple[int, list[int], list[list[int]], list[int]]:
    """Split the sum of a SummaryQuery into the number of rows, missing values by numeric feature, row counts
    by level, and row counts by class."""
    counts = iter(total.tolist())
    rows, missing = next(counts), [*islice(counts, query.numeric)]
    return rows, missing, [[*islice(counts, size + 2)] for size in query.levels], [*counts]


def _told(count: int, floor: int) -> int | None:
    return count if count >= floor else None


def _quantiles(counts: Int64, declared: tuple[float, float], noise: float) -> dict[str, Any]:
    """Return, for each quantile, the part of the declared range that contains it according to noisy counts.
    The part is None for quantiles that would depend mainly on noise."""
    known: dict[str, Any] = dict.fromkeys(f"{share:g}" for share in tasks.SHARES)
    kept = np.where(counts > ABOVE_NOISE * noise, counts, 0)
    total = int(kept.sum())
    if not total:
        return known
    edges = [declared[0], *range_edges(declared, RANGE_PARTS).tolist(), declared[1]]
    until, error = np.cumsum(kept), ABOVE_NOISE * noise * math.sqrt(RANGE_PARTS)
    for share in tasks.SHARES:
        if min(share, 1 - share) * total < error:  # noise of the cumulative count decides
            continue
        part = int(np.searchsorted(until, share * total, side="left"))
        known[f"{share:g}"] = [edges[part], edges[part + 1]]
    return known


# ---- The description of all parties' rows: counts, then quantiles by grid refinement --------------------
# Guarantees: the result is a pure function of the terms and the sums. Each count is rounded on its own, so
# that a level's published count does not depend on the other declared levels.
# Raises: PeerError for inconsistent counts, ConfigError for fewer rows than `min_count`.

UNIT_FACTOR = 10.0
"""Factor between the values beside a gap that suggests different units in a column (such as m and cm)."""
GAP_SHARE = 0.02
"""Minimum number of rows on each side of such a gap, as a share of all rows."""


def describe(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Count the rows of all parties and find the quantiles of numeric columns. If parties hold different
    columns, each computes the published figures of its own. Returns a model without trees and the summary."""
    if terms.noise is not None:
        return Outcome(no_model(terms), (yield from summarise(terms)))
    query = SummaryQuery.of(terms)
    if query.figures:
        yield from align(terms)
    total = yield query
    counts, others, by_time = query.split(total)
    rows, missing, levels, classes = _parts_of(query, counts)
    if not 0 < rows < ROWS or (total < 0).any() or (counts > rows).any():
        raise PeerError(
            "sums-inconsistent",
            f"the parties report an impossible number of rows ({rows} in total), or an impossible number of "
            f"missing values or of rows with a level",
        )
    require_enough(terms, rows)
    survival.check_events(by_time[0], by_time[1], rows)
    if query.figures:
        numbers = [*map(decoded, others.reshape(-1, query.SIZE))]
        return Outcome(no_model(terms), _summary(terms, rows, missing, numbers, levels, classes, by_time))
    if any(sum(each) != rows for each in (*levels, *filter(None, [classes]))):
        raise PeerError("sums-inconsistent", f"the counts of a column do not sum to {rows} rows")
    own = [rows, *missing, *(each[0] + each[-1] for each in levels)]
    by_site = others.reshape(-1, len(own))
    if query.sites and by_site.sum(axis=0).tolist() != own:
        raise PeerError("sums-inconsistent", "the counts of the sites do not sum to those of all rows")
    quantiles = Quantiles(terms.histograms.max_bin, rows, len(tasks.gridded(terms)))
    for _ in range(MAX_REFINEMENTS if tasks.gridded(terms) else 0):
        if not quantiles.grids.cells:
            break
        quantiles.refine((yield QuantileQuery(rows, quantiles.grids)))
    if quantiles.missing[: len(missing)].tolist() != missing or quantiles.missing[len(missing) :].any():
        raise PeerError("sums-inconsistent", "two counts of a column's missing values differ")
    to_unit = partial(part, unit=unit_of(terms.evaluation.min_count))
    told = partial(to_unit, total=rows)
    levels, classes = [[*map(told, each)] for each in levels], [*map(told, classes)]
    numbers = numbers_of(terms, rows, quantiles)
    summary = _summary(terms, rows, [*map(told, missing)], numbers, levels, classes, by_time)
    if query.sites:
        summary |= of_sites(terms, by_site, to_unit)
    if terms.evaluation.level_names:
        summary |= yield from union_of_levels(terms, rows, told)
    return Outcome(no_model(terms), summary)


def _summary(
    terms: Terms,
    rows: int,
    missing: list[int],
    numbers: list[dict[str, Any]],
    levels: list[list[int]],
    classes: list[int],
    by_time: Int64,
) -> dict[str, Any]:
    """Return the result as JSON values, as documented in docs/lifecycle.md. All counts are as published."""
    schema = terms.columns
    columns: list[dict[str, Any]] = []
    for name, count, known in zip(schema.numeric, missing, numbers, strict=False):
        columns.append({"name": name, "kind": "numeric", tasks.MISSING: count, **known})
    columns += tasks.columns_of_levels(terms, levels, int)
    label: dict[str, Any] = {"name": schema.label}
    if classes:
        label["levels"] = dict(zip(tasks.class_names(terms), classes, strict=True))
    elif len(numbers) > len(schema.numeric):
        label |= numbers[-1]
    elif by_time.size:
        label["survival"] = survival.described(by_time, terms, rows)
    return {"rows": rows, "min_count": terms.evaluation.min_count, "columns": columns, "label": label}


def numbers_of(terms: Terms, rows: int, quantiles: Quantiles) -> list[dict[str, Any]]:
    """Return what is published about each numeric column. quantiles: found by refining their grids; rows:
    number of all rows."""
    floor, unit = terms.evaluation.min_count, unit_of(terms.evaluation.min_count)
    missing = (part(count, rows, unit) for count in quantiles.missing.tolist())
    between = enumerate(possible(count, rows, unit) for count in missing)
    return [_numbers(DisclosedQuantiles(quantiles, at, floor, each), floor) for at, each in between]


def _numbers(told: DisclosedQuantiles, floor: int) -> dict[str, Any]:
    """Return the interval of each quantile of a numeric column, whether the column is constant, and its gap
    (see UNIT_FACTOR). An interval is None if fewer than `floor` rows lie beyond the quantile."""
    shares = [share for share in tasks.SHARES if min(share, 1 - share) * told.values >= floor]
    known: dict[str, Any] = dict.fromkeys(f"{share:g}" for share in tasks.SHARES)
    if shares:
        known |= zip((f"{share:g}" for share in shares), told.intervals(shares), strict=True)
    gap = told.gap(max(floor, int(GAP_SHARE * told.values)), UNIT_FACTOR)
    return {"quantiles": known, "constant": told.is_constant and told.values >= floor, "gap": gap}


def encoded(numbers: Mapping[str, Any]) -> Int64:
    """Encode what is published about a numeric column, int64 [SIZE]: the ends of intervals, NaN for None,
    and whether the column is constant, each as the bits of a float32."""
    intervals = *numbers["quantiles"].values(), numbers["gap"]
    ends = [end for each in intervals for end in each or (math.nan, math.nan)]
    return np.array([*ends, numbers["constant"]], "<f4").view("<u4").astype(np.int64)


def decoded(figures: Int64) -> dict[str, Any]:
    """Decode what is published about a numeric column. figures: int64 [SIZE], as from `encoded`."""
    told = figures.astype("<u4").view("<f4").tolist()
    pairs = zip(told[:-1:2], told[1::2], strict=True)
    ends = [[low, high] if -math.inf < low <= high < math.inf else None for low, high in pairs]
    shares = dict(zip((f"{share:g}" for share in tasks.SHARES), ends[:-1], strict=True))
    return {"quantiles": shares, "constant": bool(told[-1]), "gap": ends[-1]}


# ---- Rows by bin of each feature and of the score: at the end of a training, and of other rows later ----
# Guarantees: results are pure functions of the terms and the sums. Published counts are coarse (`coarse`),
# and bins with few rows are merged.
# Raises: PeerError for inconsistent counts, ConfigError for fewer rows than `min_count`.

Json = dict[str, Any]


def after_training(
    terms: Terms, model: Booster, cut_points: CutPoints, rounds: int
) -> Generator[OfTurn, Int64, Booster | Outcome]:
    """Return a trained model, together with the row counts by bin if the terms require a reference for drift.
    rounds: number of rounds of the model."""
    if not terms.evaluation.reference:
        return model
    shape = len(terms.columns.ordered), terms.columns.category_counts
    bins = bins_of(cut_points, *shape, model.constant, model.trees, model.loss.outputs)
    query = BinCountsQuery(bins.sizes, bins.of_score, rounds)
    try:
        total = yield query
    except (
        TrainingStopped
    ):  # an early end was requested after the last round: the model is kept, count for it
        total = yield query
    parts, rows = _counts(terms, bins, total)
    *features, score = parts
    if not bins.classes:
        told = _told_bins(terms, score)
        chosen = runs(told, max(terms.evaluation.min_count, -(-rows // BINS)), empty=False)
        # Keep only edges between merged bins: edges in the model file must not isolate a few rows.
        edges = bins.score[[group[-1] for group in chosen[:-1]]]
        bins = Bins(bins.numeric, bins.levels, edges)
        score = np.array([score[group].sum() for group in chosen])
    return Outcome(model, {"reference": _drift_summary(terms, bins, [*features, score], rows)})


def drift(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Count the rows of all parties in the bins of a model's reference. Returns the model and the counts."""
    bins = tasks.bins_in(terms)
    total = yield BinCountsQuery(bins.sizes, bins.of_score, 0)
    noisy = terms.noise is not None and (bins.parts(total), _noisy_rows(terms, hiding.BINS, total))
    parts, rows = noisy or _counts(terms, bins, total)
    assert terms.earlier is not None
    return Outcome(terms.earlier, {"present": _drift_summary(terms, bins, parts, rows)})


def _counts(terms: Terms, bins: Bins, total: Int64) -> tuple[list[Int64], int]:
    """Return the counts of each feature and of the score, and the number of rows. Raises PeerError if the
    counts are inconsistent, ConfigError if there are too few rows."""
    parts = bins.parts(total)
    rows = int(parts[0].sum())
    if not 0 < rows < MAX_ROWS or (total < 0).any() or any(part.sum() != rows for part in parts):
        raise PeerError("sums-inconsistent", "the row counts of two columns do not have the same total")
    require_enough(terms, rows)
    return parts, rows


def _drift_summary(terms: Terms, bins: Bins, parts: list[Int64], rows: int) -> Json:
    """Return the result as JSON values, as documented in docs/lifecycle-evaluate.md."""
    floor, columns, noisy = _floor(terms, hiding.BINS), terms.columns, int(terms.noise is not None)
    least = rows_of_bin(unit_of(floor))
    *features, score = parts if noisy else (_told_bins(terms, part) for part in parts)

    def grouped(choose: Callable[[Int64, int], list[list[int]]], counts: Int64) -> Json:
        groups = choose(counts.clip(noisy), least)  # a noisy count of 0 does not mean that there are no rows
        sums = [int(counts[group].sum()) for group in groups]
        if noisy:
            ends = np.cumsum(np.maximum(sums, 1))
            sums = np.diff(np.rint(ends * (rows / ends[-1])), prepend=0).astype(np.int64).tolist()
        return {"groups": groups, "counts": sums}

    numeric = zip(columns.ordered, bins.numeric, features, strict=False)
    found: list[Json] = [
        {"name": name, "edges": edges.tolist(), **grouped(_along, counts)} for name, edges, counts in numeric
    ]
    categorical = zip(columns.categorical.items(), features[len(columns.ordered) :], strict=True)
    found += [
        {"name": name, "levels": [*levels], **grouped(_apart, counts)}
        for (name, levels), counts in categorical
    ]
    if bins.classes:
        of_score: Json = {"levels": [*tasks.class_names(terms)], **grouped(_apart, score)}
    else:
        of_score = {"edges": bins.score.tolist(), **grouped(runs, score)}
    return {"rows": rows, "min_count": floor, "columns": found, "score": of_score}


def _told_bins(terms: Terms, counts: Int64) -> Int64:
    unit, rows = unit_of(terms.evaluation.min_count), int(counts.sum())
    return np.array(coarse(counts.tolist(), unit, rows) or [*[0] * (counts.size - 1), rows], np.int64)


def _along(counts: Int64, least: int) -> list[list[int]]:
    """Group neighbouring bins until each group has enough rows. Missing values are apart if possible."""
    groups, missing = runs(counts[:-1], least), counts.size - 1
    if 0 < counts[missing] < least or any(0 < counts[group].sum() < least for group in groups):
        return [*groups[:-1], [*groups[-1], missing]]
    return [*groups, [missing]]


def _apart(counts: Int64, least: int) -> list[list[int]]:
    """Return one group per bin. All bins with too few rows share one group, to which further bins are added
    until the group has enough rows."""
    few = [place for place, count in enumerate(counts.tolist()) if 0 < count < least]
    others = [place for place in range(counts.size) if place not in few]
    while others and 0 < counts[few].sum() < least:
        few.append(others.pop(0))
    return [*([place] for place in others), *([few] if few else [])]


# ---- The evaluation of a model on all parties' rows: their number, then one sum -------------------------
# Guarantees: the result is a pure function of the terms and the sums. Published figures are coarse
# (`coarse`): counts are in units, each loss has a cap, and means, rates and areas are rounded so that it
# takes about `min_count` rows to change the last digit.
# Raises: PeerError for inconsistent counts, ConfigError for fewer rows than `min_count`.

Figures = dict[str, Any]
Outcomes = Mapping[str, int | None]
_RATES = {
    "positive_rate": (("fn", "tp"), OUTCOMES),
    "selection_rate": (("fp", "tp"), OUTCOMES),
    "true_positive_rate": (("tp",), ("fn", "tp")),
    "false_positive_rate": (("fp",), ("tn", "fp")),
    "precision": (("tp",), ("fp", "tp")),
}
"""Maps rate -> (outcomes in its numerator, outcomes in its denominator)."""
LARGEST_LOSSES = {
    **dict.fromkeys(("logloss", "mlogloss"), metrics.LARGEST_LOG_LOSS),
    "interval-regression-accuracy": 1.0,
}
"""Maps metric -> cap on a row's loss."""


def evaluate(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Evaluate the model in the terms on the rows of all parties. Returns the model and the summary. If the
    parties hold different columns, they first predict the rows of the label holder jointly, and the model
    that is returned has no trees."""
    if terms.evaluates_jointly:
        model = yield from predict(terms, grown)
    else:
        assert terms.earlier is not None
        model = terms.earlier
    if terms.noise is not None:
        noisy = yield EvaluationQuery.of(terms, ROWS, UNIT, ())
        return Outcome(model, noisy_summary(terms, noisy))
    query = MagnitudesQuery(terms.metrics)
    counts = yield query
    measured = terms.evaluation.evaluate_rows
    if not counts[0] and measured != "all":
        since = "were added since the training" if measured == "new" else "were held out"
        raise ConfigError("data-no-rows", f"there are no {measured} rows to evaluate: none {since}")
    rows = count_rows(counts)
    require_enough(terms, rows)
    _, grown_on, unknown = counts[:ROW_COUNTS].tolist()
    if grown_on + unknown > rows:
        raise PeerError(
            "sums-inconsistent",
            f"the number of possible training rows that the parties report ({grown_on + unknown}) exceeds "
            f"their total number of rows ({rows})",
        )
    measuring = measuring_query(terms, query, rows, counts)
    total = yield measuring
    summary = summary_of(terms, measuring, total)
    step = 0.0 if (unit := unit_of(terms.evaluation.min_count)) == 1 else step_of(min(1.0, unit / rows))
    shares = {"trained": rounded(grown_on / rows, step), "unknown": rounded(unknown / rows, step)}
    return Outcome(model, summary | {"of": measured, "shares": shares})


def measuring_query(terms: Terms, query: MagnitudesQuery, rows: int, counts: Int64) -> EvaluationQuery:
    """Build the second query of an evaluation from the answer to the first one.

    Some losses have a fixed cap (`LARGEST_LOSSES`). Otherwise the cap is a power of two such that the number
    of rows with a larger loss is less than one unit. A single row therefore has little influence on the cap
    and the mean, however large its loss.

    Args:
        query: the first query.
        rows: number of rows.
        counts: the sum of the answers to the first query.
    """
    weights, *losses = counts[ROW_COUNTS : query.exponents].reshape(-1, EXPONENT_CELLS)
    unit = unit_of(terms.evaluation.min_count)
    caps = dict.fromkeys(query.metrics, 0.0)
    for name, exponents in zip(query.means, losses, strict=True):
        cap = LARGEST_LOSSES.get(name, math.ldexp(1.0, bound_exponent(exponents, unit - 1)))
        caps[name] = cap if unit > 1 else 0.0
    found = EvaluationQuery.of(terms, rows, tasks.weight_scale(terms, weights), tuple(caps.values()))
    if (times := query.times) is None:
        return found
    events, risks = np.split(counts[query.exponents :], [times.size + 1])
    survival.check_events(events, risks, rows)
    edges = survival.time_edges(times, events, metrics.chosen_times(query.metrics), unit)
    return replace(found, survival=(*risk_grid(risks, unit)[:2], *edges))


def summary_of(terms: Terms, query: EvaluationQuery, total: Int64) -> Figures:
    """Compute the published figures from the sum of answers. Raises PeerError if counts are inconsistent."""
    return _Sums(terms, query, total).summary()


class _Set:
    """Sums over one set of rows, and the figures published about this set. told: published number of rows."""

    def __init__(self, query: EvaluationQuery, part: Int64, unit: int, told: int) -> None:
        self.query, self.unit, self.told = query, unit, told
        self.rows = int(part[0])
        self._sums = part[1 : 1 + metrics.cells(query.metrics, exact_metric_of)]
        self._outcomes = part[-len(OUTCOMES) - 1 : -1].tolist() if query.scores else [0] * len(OUTCOMES)
        self._probabilities = int(part[-1])
        tn, fp, fn, tp = self._outcomes
        self.by_label = tn + fp, fn + tp

    @cached_property
    def told_by_label(self) -> list[int]:
        """Published numbers of rows with label 0 and with label 1."""
        return coarse(self.by_label, self.unit, nearest(self.told, self.unit)) or [0, 0]

    @cached_property
    def outcomes(self) -> dict[str, int | None]:
        """Published number of rows of each outcome; None if the number of rows with the outcome's label is
        less than one unit."""
        pairs, out = (self._outcomes[:2], self._outcomes[2:]), list[int | None]()
        for pair, told in zip(pairs, self.told_by_label, strict=True):
            out += coarse(pair, self.unit, told) or (None, None)
        return dict(zip(OUTCOMES, out, strict=True))

    @property
    def has_curves(self) -> bool:
        """True if there are enough rows of both labels."""
        return min(self.by_label) >= self.unit

    def json(self, least: int = 1) -> Figures:
        """Return rows, metrics, resolutions, outcomes and rates. least: minimum number of rows; figures from
        fewer rows are None."""
        query, names = self.query, self.query.metrics
        found = {name: self._figure(name, least) for name in names if metrics.time_of(name) is None}
        out: Figures = {
            "rows": self.told,
            "metrics": {name: value for name, (value, _) in found.items()},
            "resolution": {name: within for name, (_, within) in found.items()},
        }
        if query.scores:
            mean = metrics.PROBABILITIES.decode(self._probabilities) / self.rows
            predicted = rounded(mean, self.step(self.unit / self.rows))
            shares = rates(self.outcomes, self.unit, least)
            out |= {"mean_prediction": predicted, "confusion": self.outcomes, "rates": shares}
        return out

    def step(self, size: float) -> float:
        """Return the rounding step for a figure that one unit of rows can change by `size`. Returns 0 if
        figures may reveal individual rows."""
        return step_of(size) if self.unit > 1 else 0.0

    def _figure(self, name: str, least: int) -> tuple[float | None, float | None]:
        """Return the published value of a metric, and its maximum error; both None if it is not published."""
        query, metric, start = self.query, exact_metric_of(name), 1
        for other in query.metrics[: query.metrics.index(name)]:
            start += exact_metric_of(other).cells
        own, weight = self._sums[start : start + metric.cells], query.weight
        weights = weight.decode(int(self._sums[0]))
        if not metric.signed and own.min() < 0:
            raise PeerError("sums-inconsistent", "a metric sum is negative")
        by_label = isinstance(metric, Curve)
        if weights <= 0 or (by_label and not self.has_curves):
            return None, None
        if min(self.told_by_label if by_label else [self.told]) < least:
            return None, None
        if math.isnan(
            metric.value(own, weights, weight)
        ):  # all rows of a label, or of all groups, have weight 0
            return None, None
        cap = query.caps[query.metrics.index(name)]
        step = self._step(metric, own, weights, cap)
        if isinstance(metric, Mean):
            mean = rounded(replace(metric, transform=float).value(own, weights, weight), step)
            assert mean is not None
            ends = [metric.transform(end) for end in (max(mean - step / 2, min(mean, 0.0)), mean + step / 2)]
            value = rounded(metric.transform(mean))
            return value, rounded(max(abs(end - metric.transform(mean)) for end in ends) + last_digit(value))
        value = rounded(metric.value(own, weights, weight), step)
        return value, None if value is None else rounded(step / 2 + last_digit(value))

    def _step(self, metric: Metric, own: Int64, weights: float, cap: float) -> float:
        """Return the rounding step of a metric: the most that it changes if one unit of rows changes."""
        weight = self.query.weight
        heaviest = self.unit * weight.decode(weight.limit)
        match metric:
            case Mean():
                return self.step(cap * (1 + metric.signed) * heaviest / weights) if cap else 0.0
            case Curve():
                # An area, or a distance between curves, changes this much if a unit of rows with one label
                # changes.
                return self.step(
                    min(1.0, heaviest / min(float(w.sum()) for w in metric.weights(own, weight)))
                )
            case Ndcg():
                return self.step(heaviest / metric.weights(own, weight))
            case _:
                return self.step(heaviest / weights)


class _Sums:
    """Sums of an EvaluationQuery, and the figures that are published from them."""

    def __init__(self, terms: Terms, query: EvaluationQuery, total: Int64) -> None:
        self._terms, self._query, self._floor = terms, query, terms.evaluation.min_count
        self._unit = unit_of(self._floor)
        size, names = query.cells_of_set, (*query.sets, *((site,) for site in query.sites))
        parts = total[: len(names) * size].reshape(-1, size)
        self._part: dict[Any, Int64] = dict(zip(names, parts, strict=True))
        self._of_all = total[len(names) * size :]
        levels = tasks.level_sets(terms)
        self._columns = {name: [each.name for each in sets] for name, sets in levels.items()}
        self._levels = {each.name: each.level for sets in levels.values() for each in sets}
        self._sites: list[Any] = [(site,) for site in query.sites]
        splits: list[list[Any]] = [*self._columns.values(), self._sites]
        self._splits = [split for split in splits if split]
        """Lists of sets; the sets of each list partition all rows."""
        self._check()
        # Sets of one partition are rounded together, so that their published counts sum to all rows.
        told = {ALL: query.rows}
        for split in self._splits:
            of_split = coarse([self._rows(name) for name in split], self._unit)
            told |= dict(zip(split, of_split or [0] * len(split), strict=True))
        self._sets = {name: _Set(query, part, self._unit, told[name]) for name, part in self._part.items()}

    def _rows(self, name: Any) -> int:
        return int(self._part[name][0])

    def _bins(self) -> Int64:
        return self._of_all[: 3 * metrics.bins(self._query.threshold)].reshape(3, -1)

    def _cells(self) -> Int64:
        return self._of_all[3 * metrics.bins(self._query.threshold) :].reshape(2, -1)

    def _check(self) -> None:
        rows, query = self._query.rows, self._query
        everybody: list[Any] = [ALL]
        for split in (everybody, *self._splits):
            if sum(map(self._rows, split)) != rows or any(self._rows(name) < 0 for name in split):
                raise PeerError("sums-inconsistent", f"the row counts of the sets do not sum to {rows}")
        if not query.scores:
            counted, every = int(self._of_all.sum()), rows * bool(query.classes)
            is_sound = counted <= rows if query.survival else counted == every
            if ((self._of_all < 0) | (self._of_all > rows)).any() or not is_sound:
                raise PeerError("sums-inconsistent", f"the counts by class or time do not fit {rows} rows")
            return
        for sums in self._part.values():
            outcomes = sums[-len(OUTCOMES) - 1 : -1]
            if outcomes.min() < 0 or outcomes.sum() != sums[0]:
                raise PeerError("sums-inconsistent", "the outcomes of a set do not sum to its number of rows")
        bins, cells = self._bins(), self._cells()
        at = self._edge + 1
        halves = [half.sum() for label in bins[:2] for half in (label[:at], label[at:])]
        own = self._part[ALL][-len(OUTCOMES) - 1 : -1]
        if (bins[:2] < 0).any() or (cells < 0).any() or halves != own.tolist():
            raise PeerError(
                "sums-inconsistent", "the row counts by score do not sum to the outcomes at the threshold"
            )
        if (cells.sum(axis=1) != bins[:2].sum(axis=1)).any():
            raise PeerError(
                "sums-inconsistent", "the row counts by score and by bin do not have the same total"
            )
        pairs = [(int(sums[-1]), int(sums[0])) for sums in self._part.values()]
        pairs += zip(bins[2].tolist(), bins[:2].sum(axis=0).tolist(), strict=True)
        if any(not 0 <= total <= count * metrics.PROBABILITIES.limit for total, count in pairs):
            raise PeerError(
                "sums-inconsistent",
                "the predicted probabilities of some rows sum to less than 0 or more than the number of rows",
            )

    @property
    def _edge(self) -> int:
        return metrics.edges(self._query.threshold).index(self._query.threshold)

    # ---- Published figures --------------------------------------------------------------------------

    def summary(self) -> Figures:
        """Return the result as JSON values, as documented in docs/lifecycle-evaluate.md."""
        terms, query = self._terms, self._query
        out: Figures = {"min_count": self._floor, "unit": self._unit, "objective": terms.objective.name}
        if query.scores:
            out["threshold"] = query.threshold
        out |= self._sets[ALL].json()
        caps = zip(query.metrics, query.caps, strict=True)
        out["caps"] = {name: cap for name, cap in caps if cap and name not in LARGEST_LOSSES}
        if query.survival:
            edges, grid = query.by_time
            table = SurvivalTable(self._of_all.reshape(-1, 2, grid.cells), edges, grid)
            chosen = metrics.chosen_times(query.metrics)
            out["survival"] = survival.curves(table, chosen, query.rows, self._unit)
            about = terms.objective.loss, table, self._unit
            found = {n: survival.figure(n, *about) for n in query.metrics if metrics.time_of(n) is not None}
            for place, key in enumerate(("metrics", "resolution")):
                out[key] = {name: each[place] for name, each in found.items()} | out[key]
        if query.scores:
            out |= self._curves()
        if query.classes:
            out["classes"] = [*tasks.class_names(terms)]
            out["confusion"] = self._matrix()
        if self._columns:
            out["subgroups"] = {
                column: self._split(sets, [self._levels[name] for name in sets])
                for column, sets in self._columns.items()
            }
        if self._sites:
            out["sites"] = self._split(self._sites, [site for (site,) in self._sites])
        return out

    def _split(self, names: Sequence[Any], titles: Sequence[str]) -> Figures:
        """Return the figures of each set in a partition, the gaps, and the names of the sets left out."""
        sets = dict(zip(titles, (self._sets[name] for name in names), strict=True))
        least = rows_of_group(self._unit)
        told = {t: each.json(least) for t, each in sets.items() if min(each.rows, each.told) >= self._unit}
        # Sets without rows are listed too; otherwise the list would reveal whether a single row has a level.
        small = [title for title in sets if title not in told and (self._unit > 1 or sets[title].rows)]
        return {"sets": told, "gaps": gaps([*told.values()], self._unit), "left_out": small}

    def _curves(self) -> Figures:
        """Return the ROC curve and calibration over bins with enough rows, and the area under the curve,
        which is computed from finer cells."""
        every, unit = self._sets[ALL], self._unit
        if not every.has_curves:
            return {"auc": None, "roc": [], "bins": []}
        exact, at = self._bins(), self._edge + 1
        labels = zip(exact[:2].tolist(), every.told_by_label, strict=True)
        told = [coarse(rows, unit, whole) or [] for rows, whole in labels]
        ends = metrics.ends(self._query.threshold).tolist()
        bins = []
        for low, high in merged(np.sum(told, axis=0), rows_of_bin(unit), at):
            zeros, ones = (sum(label[low:high]) for label in told)
            rows, known = int(exact[:2, low:high].sum()), {"low": ends[low], "high": ends[high]}
            mean = metrics.PROBABILITIES.decode(int(exact[2, low:high].sum())) / rows
            predicted = rounded(mean, every.step(unit * (ends[high] - ends[low]) / rows))
            rate = rounded(ones / (zeros + ones), every.step(unit / (zeros + ones)))
            counts = {"rows": zeros + ones, "positives": ones, "mean_prediction": predicted, "rate": rate}
            bins.append({**known, **counts})
        step = every.step(unit / min(every.by_label))
        value, within = with_ties(*metrics.area(*self._cells()), step)
        return {"auc": {"value": value, "resolution": within}, "roc": roc(bins), "bins": bins}

    def _matrix(self) -> list[list[int | None]]:
        """Return the published confusion matrix: row counts by actual class and by most probable class."""
        size, unit = self._query.classes, self._unit
        counts = self._of_all.reshape(size, size)
        of_class = coarse(counts.sum(axis=1).tolist(), unit) or [0] * size
        rows = zip(counts.tolist(), of_class, strict=True)
        nothing: list[int | None] = [None] * size
        return [[*(coarse(row, unit, told) or nothing)] for row, told in rows]


def merged(rows: Int64, least: int, kept: int) -> list[tuple[int, int]]:
    """Merge neighbouring bins into runs [low, high) with at least `least` rows each, or into one run if there
    are too few. kept: an edge that separates runs if both sides have enough rows."""
    starts = [0, kept] if min(rows[:kept].sum(), rows[kept:].sum()) >= least else [0]
    return [
        (start + group[0], start + group[-1] + 1)
        for start, end in pairwise([*starts, rows.size])
        for group in runs(rows[start:end], least, empty=False)
    ]


def rates(outcomes: Outcomes, unit: int = 1, least: int = 1) -> dict[str, float | None]:
    """Return rates of outcomes. A rate is None if a count is not published, or if the denominator is less
    than `least`. unit: unit to which the counts are rounded."""
    return {
        name: _rate([outcomes[key] for key in part], [outcomes[key] for key in whole], unit, least)
        for name, (part, whole) in _RATES.items()
    }


def within_of_rate(name: str, outcomes: Outcomes, unit: int) -> float:
    """Return the maximum error of a rate computed from rounded outcomes: each count is within one unit of the
    exact count, and the rate itself is rounded."""
    _, whole = _RATES[name]
    return min(1.5 * unit / sum(outcomes[key] or 0 for key in whole), 1.0)


def _rate(part: Sequence[int | None], whole: Sequence[int | None], unit: int, least: int) -> float | None:
    known = [count for count in whole if count is not None]
    if len(known) < len(whole) or sum(known) < least:
        return None
    step = step_of(unit / sum(known)) if unit > 1 else 0.0
    return rounded(sum(count or 0 for count in part) / sum(known), step)


def gaps(sets: Sequence[Figures], unit: int = 1) -> dict[str, float]:
    """Return the range of each rate and metric over the sets, unless rounding could explain it."""
    named = [{**one.get("rates", {}), **one["metrics"]} for one in sets]
    out = {}
    for key in named[0] if named else ():
        known = [
            (values[key], one) for values, one in zip(named, sets, strict=True) if values[key] is not None
        ]
        if len(known) > 1:
            ends = [choose(known, key=lambda pair: pair[0]) for choose in (min, max)]
            gap = ends[1][0] - ends[0][0]
            within = (
                within_of_rate(key, one["confusion"], unit) if key in _RATES else one["resolution"][key]
                for _, one in ends
            )
            if unit == 1 or gap > sum(within):
                out[key] = gap
    return out


# ---- The evaluation of a model under terms with noise: one release of counts (decision 0051) -------------
# Guarantees: the result is a pure function of the terms and the noisy counts.


def noisy_summary(terms: Terms, counts: Int64) -> Figures:
    """Compute the published figures from noisy counts of rows. `resolution` has the standard error of each
    figure that comes from the noise."""
    size, binary, width = tasks.class_count(terms), tasks.is_binary(terms), tasks.label_width(terms)
    of, threshold = terms.evaluation.evaluate_rows, terms.evaluation.threshold
    sigma = terms.plan.releases[hiding.SCORES].sigma
    out: Figures = {"rows": _noisy_rows(terms, hiding.SCORES, counts), "noise": sigma, "of": of}
    out |= {"min_count": terms.evaluation.min_count, "unit": 1, "objective": terms.objective.name, "caps": {}}
    out["shares"] = {"trained": 0.0, "unknown": float(of == "all")}
    ratios = metrics.ratios(counts.astype(np.float64), size, threshold, width, terms.metrics)
    if size:
        matrix = counts[: size * size].reshape(size, size)
        out |= {"classes": [*tasks.class_names(terms)], "confusion": matrix.clip(0).tolist()}
    if binary:
        ends = metrics.ends(threshold)
        sides = ends[1:] <= threshold, ends[1:] > threshold
        is_in = dict(zip(OUTCOMES, np.kron(np.eye(2), sides), strict=True))
        for name, (part, whole) in _RATES.items():
            ratios[name] = sum(is_in[key] for key in part), sum(is_in[key] for key in whole)
        out["confusion"] = {key: max(int(own @ counts), 0) for key, own in is_in.items()}
        out["bins"] = _noisy_bins(counts.reshape(2, -1), ends, rows_of_bin(_floor(terms, hiding.SCORES)))
        out |= {"roc": roc(out["bins"]), "threshold": threshold}
    found = {name: _ratio(name, *ratio, counts, sigma) for name, ratio in ratios.items()}
    out["metrics"] = {name: found[name][0] for name in terms.metrics}
    if binary:
        out |= {"rates": {n: found[n][0] for n in _RATES}, "mean_prediction": found["mean_prediction"][0]}
        area = dict(zip(("value", "resolution"), found["auc"], strict=True))
        out["auc"] = area if area["resolution"] else None
    return out | {"resolution": {n: found[n][1] for n in (*terms.metrics, *(_RATES if binary else ()))}}


def _ratio(
    name: str, above: Float64, below: Float64, counts: Int64, sigma: float
) -> tuple[float | None, float | None]:
    """Return a figure and its standard error. above, below: see `metrics.ratios`; sigma: of each count."""
    whole = float(below @ counts)
    if whole <= 0.0:
        return None, None
    most = 1.0 if name == "auc" else float(above.max())
    value = min(max(float(above @ counts) / whole, 0.0), most)
    error = sigma * float(np.linalg.norm(above - value * below)) / whole
    if name == "rmse":
        value, error = math.sqrt(value), error / (2.0 * math.sqrt(value)) if value else math.sqrt(error)
    # Both counts of a pair of rows have noise, and `whole` counts each pair twice.
    return rounded(value), rounded(2.0 * error if name == "auc" else error)


def _noisy_bins(counts: Int64, ends: Float64, least: int) -> list[Figures]:
    """Return bins of the score with at least so many rows. counts: int64 [2, parts]; ends: of the parts."""
    out = []
    for low, high in merged(counts.sum(axis=0), least, 1):
        zeros, ones = counts[:, low:high].sum(axis=1).clip(0).tolist()
        rows, weights = max(zeros + ones, 1), counts[:, low:high].sum(axis=0).clip(1)
        mean = float(np.average((ends[low:high] + ends[low + 1 : high + 1]) / 2, weights=weights))
        figures = {"positives": ones, "mean_prediction": rounded(mean), "rate": rounded(ones / rows)}
        out.append({"low": float(ends[low]), "high": float(ends[high]), "rows": rows, **figures})
    return out


def roc(bins: Sequence[Figures]) -> list[Figures]:
    """Return the points of the ROC curve at the edges of bins, from the highest score to the lowest."""
    ones = sum(each["positives"] for each in bins)
    zeros = sum(each["rows"] for each in bins) - ones
    if not (ones and zeros):
        return []
    points, true, false = [{"threshold": 1.0, "false_positive_rate": 0.0, "true_positive_rate": 0.0}], 0, 0
    for each in reversed(bins):
        true, false = true + each["positives"], false + each["rows"] - each["positives"]
        rates_here = {"false_positive_rate": false / zeros, "true_positive_rate": true / ones}
        points.append({"threshold": each["low"], **rates_here})
    return points


PROGRAMS: dict[str, Program] = {"describe": describe, "evaluate": evaluate, "drift": drift}
"""Maps each task that does not train -> its program."""
