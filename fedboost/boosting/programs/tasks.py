"""Programs that train nothing: describe, evaluate and drift; and how coarse their figures are.

Promises: what is told of a count leaves it at least half a unit of possible values, also at both ends, where
the count could be none or all of the rows; the parts of a total are rounded together, so they add up to it.
Two units that an analyst may choose for the same rows leave at least a quarter of the smaller one.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np

from fedboost.boosting.programs.initialisation import count_rows, no_model
from fedboost.boosting.queries import OfTurn
from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.boosting.queries.columns import BinCountsQuery, QuantileQuery, RangeQuery, SummaryQuery
from fedboost.boosting.queries.labels import ALL, ROW_COUNTS, EvaluationQuery, MagnitudesQuery
from fedboost.errors import ConfigError, PeerError, TrainingStopped
from fedboost.fixedpoint import EXPONENT_CELLS, Int64, bound_exponent
from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, RANGE_PARTS, CutPoints, Quantiles, Told, range_edges
from fedboost.gbdt.drift import BINS, Bins, bins_of, runs
from fedboost.gbdt.metrics import OUTCOMES, Curve, Mean, Metric, Ndcg, exact_metric_of
from fedboost.protocol.contracts import GrownTrees, Outcome, Program
from fedboost.terms.hiding import CUT_POINTS, ROWS, SUMMARY
from fedboost.terms.tasks import (
    MISSING,
    SHARES,
    bins_in,
    class_names,
    columns_of_levels,
    gridded,
    level_sets,
    weight_scale,
)
from fedboost.terms.terms import Terms

_STEPS = (1, 2, 5)
_UNITS_OF_BIN = 5
_UNITS_OF_GROUP = 10


def unit_of(min_count: int) -> int:
    """The unit of counts: the smallest of 1, 2, 5, 10, 20, ... that is not less than `min_count`.

    Units of free choice could be combined until only one count fits them all."""
    scale: int = 10 ** (len(str(min_count)) - 1)
    return next(step * scale for step in (*_STEPS, 10) if step * scale >= min_count)


def step_of(size: float) -> float:
    """The largest of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... that is not more than a size above 0."""
    scale = 10.0 ** math.floor(math.log10(size) + 1e-9)
    return max(step * scale for step in _STEPS if step * scale <= size * (1 + 1e-9))


def rows_of_bin(unit: int) -> int:
    """The fewest rows of a bin that is told: of fewer than some units its share would have no digit."""
    return _UNITS_OF_BIN * unit if unit > 1 else 1


def rows_of_group(unit: int) -> int:
    """The fewest rows that decide a figure of a group: a unit of them moves a share by a tenth. Of fewer it
    would be rounding that seems to tell groups apart."""
    return _UNITS_OF_GROUP * unit if unit > 1 else 1


def nearest(count: int, unit: int) -> int:
    """A number of rows to the nearest unit."""
    return (2 * count + unit) // (2 * unit) * unit


def part(count: int, total: int, unit: int) -> int:
    """What is told of a part of an exact total: of nearly all rows as little as of nearly none."""
    return min(nearest(count, unit), total // unit * unit)


def possible(told: int, total: int, unit: int) -> tuple[int, int]:
    """The fewest and the most rows of a part that is told so."""
    most = total if told == total // unit * unit else told + (unit - 1) // 2
    return max(told - unit // 2, 0), most


def coarse(counts: Sequence[int], unit: int, told: int | None = None) -> list[int] | None:
    """What is told of the parts of a total, in their order; None where it has less than one unit.

    The ends of the parts are rounded, not the parts: a part is within one unit of its count. told: of the
    total, to its nearest unit unless given."""
    total = sum(counts)
    whole = nearest(total, unit) if told is None else told
    if total < unit:
        return None
    ends = [min(part(end, total, unit), whole) for end in accumulate(counts)]
    return [high - low for low, high in pairwise([0, *ends[:-1], whole])]


def rounded(value: float, step: float = 0.0) -> float | None:
    """A number to the nearest step, and to as many digits as are told of any; None for not a number."""
    if math.isnan(value):
        return None
    stepped = round(value / step) * step if step else value
    return float(f"{stepped:.{metrics.DIGITS}g}")


# ---- The description of rows whose counts get noise: two releases, by level and by part of a range ------
# Promises: a pure function of the terms and the noisy sums; a count that is not well above its noise, or
# below `min_count`, is not in the result.


ABOVE_NOISE = 3.0
"""Standard deviations of the noise of a count that a count needs to be told."""


def summarise(terms: Terms) -> Generator[OfTurn, Int64, dict[str, Any]]:
    """The summary, as that of `describe`, and the standard deviation of the noise of a count, `noise`."""
    schema, releases = terms.columns, terms.plan.releases
    query = SummaryQuery.of(terms)
    noise = releases[SUMMARY].sigma
    floor = max(math.ceil(ABOVE_NOISE * noise), terms.evaluation.min_count)
    rows, missing, levels, classes = _parts_of(query, (yield query))
    ranges = [schema.ranges[name] for name in schema.numeric]
    parts = np.zeros((0, RANGE_PARTS), np.int64)
    if ranges:
        parts = (yield RangeQuery(ROWS, len(ranges))).reshape(len(ranges), RANGE_PARTS)
    columns: list[dict[str, Any]] = []
    for place, name in enumerate(schema.numeric):
        quantiles = _quantiles(parts[place], ranges[place], releases[CUT_POINTS].sigma)
        known = {"quantiles": quantiles, "constant": False}
        columns.append({"name": name, "kind": "numeric", MISSING: _told(missing[place], floor), **known})
    columns += columns_of_levels(terms, levels, lambda count: _told(count, floor))
    label: dict[str, Any] = {"name": schema.label}
    if query.classes:
        told = (_told(count, floor) for count in classes)
        label["levels"] = dict(zip(class_names(terms), told, strict=True))
    return {"rows": max(rows, 0), "min_count": floor, "noise": noise, "columns": columns, "label": label}


def _parts_of(query: SummaryQuery, total: Int64) -> tuple[int, list[int], list[list[int]], list[int]]:
    """The rows, the missing values of each number, the counts of each column of levels, and the classes."""
    counts = iter(total.tolist())
    rows, missing = next(counts), [*islice(counts, query.numeric)]
    return rows, missing, [[*islice(counts, size + 2)] for size in query.levels], [*counts]


def _told(count: int, floor: int) -> int | None:
    """A noisy count, unless it is below the floor."""
    return count if count >= floor else None


def _quantiles(counts: Int64, declared: tuple[float, float], noise: float) -> dict[str, Any]:
    """The part of a declared range that each quantile lies in, by noisy counts; None where noise decides."""
    known: dict[str, Any] = dict.fromkeys(f"{share:g}" for share in SHARES)
    kept = np.where(counts > ABOVE_NOISE * noise, counts, 0)
    total = int(kept.sum())
    if not total:
        return known
    edges = [declared[0], *range_edges(declared).tolist(), declared[1]]
    until, error = np.cumsum(kept), ABOVE_NOISE * noise * math.sqrt(RANGE_PARTS)
    for share in SHARES:
        if min(share, 1 - share) * total < error:
            continue
        part = int(np.searchsorted(until, share * total, side="left"))
        known[f"{share:g}"] = [edges[part], edges[part + 1]]
    return known


# ---- The description of all parties' rows as a program: counts, then quantiles by grid refinement -------
# Promises: a pure function of the terms and the sums; each count is told to the nearest unit on its own, so
# that what is told of a level does not depend on the others that are declared.
# Refuses: counts that contradict each other (PeerError), and fewer rows than `min_count` (ConfigError).


UNIT_FACTOR = 10.0
"""Values on the two sides of a gap this wide may be of different units, such as m and cm."""
GAP_SHARE = 0.02
"""Share of the rows on either side of it."""


def describe(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Count the rows of all parties, and find the quantiles of their numbers."""
    if terms.noise is not None:
        return Outcome(no_model(terms), (yield from summarise(terms)))
    query = SummaryQuery.of(terms)
    total = yield query
    rows, missing, levels, classes = _parts_of(query, total)
    if not 0 < rows < ROWS or (total < 0).any() or (total > rows).any():
        raise PeerError(f"the parties count {rows} rows in all, and more or fewer than can be in a part")
    if rows < terms.evaluation.min_count:
        raise ConfigError(f"the parties have fewer rows than min_count = {terms.evaluation.min_count}")
    if any(sum(each) != rows for each in (*levels, *filter(None, [classes]))):
        raise PeerError(f"the counts of a column do not sum to the {rows} rows there are")
    quantiles = Quantiles(terms.histograms.max_bin, rows, len(gridded(terms)))
    for _ in range(MAX_REFINEMENTS if gridded(terms) else 0):
        if not quantiles.grids.cells:
            break
        quantiles.refine((yield QuantileQuery(rows, quantiles.grids)))
    summary = _summary(terms, rows, missing, levels, classes, quantiles)
    return Outcome(no_model(terms), summary)


def _summary(
    terms: Terms,
    rows: int,
    missing: list[int],
    levels: list[list[int]],
    classes: list[int],
    quantiles: Quantiles,
) -> dict[str, Any]:
    """The result, as JSON: what it says stands in docs/lifecycle.md."""
    floor, schema = terms.evaluation.min_count, terms.columns
    if quantiles.missing.tolist() != [*missing, *[0] * (len(gridded(terms)) - len(missing))]:
        raise PeerError("the values of a column are not as many as the rows that have one")
    unit = unit_of(floor)
    told = partial(part, total=rows, unit=unit)
    absent = [*map(told, quantiles.missing.tolist())]
    between = (possible(count, rows, unit) for count in absent)
    numbers = [_numbers(Told(quantiles, place, floor, each), floor) for place, each in enumerate(between)]
    columns: list[dict[str, Any]] = []
    for name, count, known in zip(schema.numeric, absent, numbers, strict=False):
        columns.append({"name": name, "kind": "numeric", MISSING: count, **known})
    columns += columns_of_levels(terms, levels, told)
    label: dict[str, Any] = {"name": schema.label}
    if classes:
        label["levels"] = dict(zip(class_names(terms), map(told, classes), strict=True))
    elif len(gridded(terms)) > len(schema.numeric):
        label |= numbers[-1]
    return {"rows": rows, "min_count": floor, "columns": columns, "label": label}


def _numbers(told: Told, floor: int) -> dict[str, Any]:
    """The quantiles of a column of numbers, each as the interval that it lies in; None where fewer rows than
    the floor lie beyond it."""
    shares = [share for share in SHARES if min(share, 1 - share) * told.values >= floor]
    known: dict[str, Any] = dict.fromkeys(f"{share:g}" for share in SHARES)
    if shares:
        known |= zip((f"{share:g}" for share in shares), told.intervals(shares), strict=True)
    gap = told.gap(max(floor, int(GAP_SHARE * told.values)), UNIT_FACTOR)
    return {"quantiles": known, "constant": told.is_constant and told.values >= floor, "gap": gap}


# ---- Rows by bin of each feature and of the score: at the end of a training, and of other rows later ----
# Promises: a pure function of the terms and the sums; counts in the result are coarse (`coarse`), and bins
# of few rows are merged.
# Refuses: counts that contradict each other (PeerError), and fewer rows than `min_count` (ConfigError).


Json = dict[str, Any]


def after_training(
    terms: Terms, model: Booster, cut_points: CutPoints, rounds: int
) -> Generator[OfTurn, Int64, Booster | Outcome]:
    """A trained model with what its terms have counted once it is there: its rows by bin. rounds: those that
    the model keeps."""
    if not terms.evaluation.reference:
        return model
    shape = len(terms.columns.ordered), terms.columns.category_counts
    bins = bins_of(cut_points, *shape, model.constant, model.trees, model.loss.outputs)
    query = BinCountsQuery(bins.sizes, bins.of_score, rounds)
    try:
        total = yield query
    except TrainingStopped:  # after the last round
        total = yield query
    parts, rows = _counts(terms, bins, total)
    *features, score = parts
    if not bins.classes:
        told = _told_bins(terms, score)
        chosen = runs(told, max(terms.evaluation.min_count, -(-rows // BINS)), empty=False)
        edges = bins.score[[group[-1] for group in chosen[:-1]]]
        bins = Bins(bins.numeric, bins.levels, edges)
        score = np.array([score[group].sum() for group in chosen])
    return Outcome(model, {"reference": _drift_summary(terms, bins, [*features, score], rows)})


def drift(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Count the rows of all parties by the bins of a model's reference."""
    bins = bins_in(terms)
    parts, rows = _counts(terms, bins, (yield BinCountsQuery(bins.sizes, bins.of_score, 0)))
    assert terms.earlier is not None
    return Outcome(terms.earlier, {"present": _drift_summary(terms, bins, parts, rows)})


def _counts(terms: Terms, bins: Bins, total: Int64) -> tuple[list[Int64], int]:
    """The counts of each feature and of the score, and the number of rows."""
    parts, floor = bins.parts(total), terms.evaluation.min_count
    rows = int(parts[0].sum())
    if not 0 < rows < MAX_ROWS or (total < 0).any() or any(part.sum() != rows for part in parts):
        raise PeerError("rows by bin of one column are others than by bin of another, or none")
    if rows < floor:
        raise ConfigError(f"the parties have fewer rows than min_count = {floor}")
    return parts, rows


def _drift_summary(terms: Terms, bins: Bins, parts: list[Int64], rows: int) -> Json:
    """The result, as JSON: what it says stands in docs/lifecycle-evaluate.md."""
    floor, columns = terms.evaluation.min_count, terms.columns
    least = rows_of_bin(unit_of(floor))
    *features, score = (_told_bins(terms, part) for part in parts)
    numeric = zip(columns.ordered, bins.numeric, features, strict=False)
    found: list[Json] = [
        {"name": name, "edges": edges.tolist(), **_grouped(_along(counts, least), counts)}
        for name, edges, counts in numeric
    ]
    categorical = zip(columns.categorical.items(), features[len(columns.ordered) :], strict=True)
    found += [
        {"name": name, "levels": [*levels], **_grouped(_apart(counts, least), counts)}
        for (name, levels), counts in categorical
    ]
    if bins.classes:
        of_score: Json = {"levels": [*class_names(terms)], **_grouped(_apart(score, least), score)}
    else:
        of_score = {"edges": bins.score.tolist(), **_grouped(runs(score, least), score)}
    return {"rows": rows, "min_count": floor, "columns": found, "score": of_score}


def _told_bins(terms: Terms, counts: Int64) -> Int64:
    """What is told of the rows in each bin."""
    unit, rows = unit_of(terms.evaluation.min_count), int(counts.sum())
    return np.array(coarse(counts.tolist(), unit, rows) or [*[0] * (counts.size - 1), rows], np.int64)


def _grouped(groups: list[list[int]], counts: Int64) -> Json:
    return {"groups": groups, "counts": [int(counts[group].sum()) for group in groups]}


def _along(counts: Int64, least: int) -> list[list[int]]:
    """Groups of neighbouring bins, and the bin of missing values, by itself if it can."""
    groups, missing = runs(counts[:-1], least), counts.size - 1
    if 0 < counts[missing] < least or any(0 < counts[group].sum() < least for group in groups):
        return [*groups[:-1], [*groups[-1], missing]]
    return [*groups, [missing]]


def _apart(counts: Int64, least: int) -> list[list[int]]:
    """A group for each bin, and one for those of few rows, with the next one where they are few together."""
    few = [place for place, count in enumerate(counts.tolist()) if 0 < count < least]
    others = [place for place in range(counts.size) if place not in few]
    while others and 0 < counts[few].sum() < least:
        few.append(others.pop(0))
    return [*([place] for place in others), *([few] if few else [])]


# ---- The evaluation of a model on all parties' rows as a program: their number, then one sum ------------
# Promises: a pure function of the terms and the sums; what an analyst gets is coarse (`coarse`): counts in
# units, each loss under a cap, and every mean, rate and area so that `min_count` rows move its last digit.
# Refuses: counts that contradict each other (PeerError), and fewer rows than `min_count` (ConfigError).


Figures = dict[str, Any]
Outcomes = Mapping[str, int | None]
_RATES = {
    "positive_rate": (("fn", "tp"), OUTCOMES),
    "selection_rate": (("fp", "tp"), OUTCOMES),
    "true_positive_rate": (("tp",), ("fn", "tp")),
    "false_positive_rate": (("fp",), ("tn", "fp")),
    "precision": (("tp",), ("fp", "tp")),
}
"""The outcomes that each rate is the part of, and those that it divides by."""
LARGEST_LOSSES = {
    **dict.fromkeys(("logloss", "mlogloss"), -math.log(1e-3)),
    "interval-regression-accuracy": 1.0,
}
"""What the loss of a row counts as at most, whatever its size: that of a label that had probability 0.001."""


def evaluate(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Measure the model of the terms on the rows of all parties."""
    query = MagnitudesQuery(terms.metrics)
    counts = yield query
    measured = terms.evaluation.evaluate_rows
    if not counts[0] and measured != "all":
        since = "were added since the training" if measured == "new" else "were held out"
        raise ConfigError(f"the parties have no {measured} rows: none {since}")
    rows = count_rows(counts)
    if rows < terms.evaluation.min_count:
        raise ConfigError(f"the parties have fewer rows than min_count = {terms.evaluation.min_count}")
    _, grown_on, unknown = counts[:ROW_COUNTS].tolist()
    if grown_on + unknown > rows:
        raise PeerError(
            f"{grown_on + unknown} rows were trained on or may have been, of {rows} that there are"
        )
    measuring = measuring_query(terms, query, rows, counts)
    total = yield measuring
    assert terms.earlier is not None
    summary = summary_of(terms, measuring, total)
    step = 0.0 if (unit := unit_of(terms.evaluation.min_count)) == 1 else step_of(min(1.0, unit / rows))
    shares = {"trained": rounded(grown_on / rows, step), "unknown": rounded(unknown / rows, step)}
    return Outcome(terms.earlier, summary | {"of": measured, "shares": shares})


def measuring_query(terms: Terms, query: MagnitudesQuery, rows: int, counts: Int64) -> EvaluationQuery:
    """The query that follows the answer to the first one.

    The cap on a loss that has a largest one is that, whatever the losses are. Of other losses fewer rows than
    a unit lie beyond the cap, a power of two: one row of any size moves neither cap nor mean."""
    weights, *losses = counts[ROW_COUNTS:].reshape(-1, EXPONENT_CELLS)
    unit = unit_of(terms.evaluation.min_count)
    caps = dict.fromkeys(query.metrics, 0.0)
    for name, exponents in zip(query.means, losses, strict=True):
        cap = LARGEST_LOSSES.get(name, math.ldexp(1.0, bound_exponent(exponents, unit - 1)))
        caps[name] = cap if unit > 1 else 0.0
    return EvaluationQuery.of(terms, rows, weight_scale(terms, weights), tuple(caps.values()))


def summary_of(terms: Terms, query: EvaluationQuery, total: Int64) -> Figures:
    """What an analyst gets of the sum of all answers. PeerError for counts that contradict each other."""
    return _Sums(terms, query, total).summary()


class _Set:
    """The sums of one set of rows. told: number of rows that the analyst is told."""

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
        """Rows of label 0 and of label 1, as they are told."""
        return coarse(self.by_label, self.unit, nearest(self.told, self.unit)) or [0, 0]

    @cached_property
    def outcomes(self) -> dict[str, int | None]:
        """Rows of each outcome; None of a label with less than a unit of rows."""
        pairs, out = (self._outcomes[:2], self._outcomes[2:]), list[int | None]()
        for pair, told in zip(pairs, self.told_by_label, strict=True):
            out += coarse(pair, self.unit, told) or (None, None)
        return dict(zip(OUTCOMES, out, strict=True))

    @property
    def has_curves(self) -> bool:
        """True if there are rows enough of either label."""
        return min(self.by_label) >= self.unit

    def json(self, least: int = 1) -> Figures:
        """Rows, metrics with their resolution and, of two classes, outcomes and rates. least: rows that
        decide a figure; those of fewer are None."""
        query, names = self.query, self.query.metrics
        found = {name: self._figure(name, least) for name in names}
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
        """The step of numbers of which a unit of rows is so much; 0 where single rows may be told."""
        return step_of(size) if self.unit > 1 else 0.0

    def _figure(self, name: str, least: int) -> tuple[float | None, float | None]:
        """A metric, and how far the number before it was rounded may be from it."""
        query, metric, start = self.query, exact_metric_of(name), 1
        for other in query.metrics[: query.metrics.index(name)]:
            start += exact_metric_of(other).cells
        own, weight = self._sums[start : start + metric.cells], query.weight
        weights = weight.decode(int(self._sums[0]))
        if not metric.signed and own.min() < 0:
            raise PeerError("metric sums that cannot be: less than nothing")
        by_label = isinstance(metric, Curve)
        if weights <= 0 or (by_label and not self.has_curves):
            return None, None
        if min(self.told_by_label if by_label else [self.told]) < least:
            return None, None
        if math.isnan(metric.value(own, weights, weight)):  # all rows of a label, or of all groups, weigh 0
            return None, None
        cap = query.caps[query.metrics.index(name)]
        step = self._step(metric, own, weights, cap)
        if isinstance(metric, Mean):
            mean = rounded(replace(metric, transform=float).value(own, weights, weight), step)
            assert mean is not None
            ends = [metric.transform(end) for end in (max(mean - step / 2, min(mean, 0.0)), mean + step / 2)]
            value = rounded(metric.transform(mean))
            return value, rounded(max(abs(end - metric.transform(mean)) for end in ends) + _last(value))
        value = rounded(metric.value(own, weights, weight), step)
        return value, None if value is None else rounded(step / 2 + _last(value))

    def _step(self, metric: Metric, own: Int64, weights: float, cap: float) -> float:
        """The step of a metric: what changes if a unit of rows is as different as rows can be."""
        weight = self.query.weight
        heaviest = self.unit * weight.decode(weight.limit)
        match metric:
            case Mean():
                return self.step(cap * (1 + metric.signed) * heaviest / weights) if cap else 0.0
            case Curve():
                # An area, or a distance of curves, moves by so much if a unit of rows of one label do.
                return self.step(
                    min(1.0, heaviest / min(float(w.sum()) for w in metric.weights(own, weight)))
                )
            case Ndcg():
                return self.step(heaviest / metric.weights(own, weight))
            case _:
                return self.step(heaviest / weights)


class _Sums:
    """The sums of an EvaluationQuery, and what an analyst gets of them."""

    def __init__(self, terms: Terms, query: EvaluationQuery, total: Int64) -> None:
        self._terms, self._query, self._floor = terms, query, terms.evaluation.min_count
        self._unit = unit_of(self._floor)
        size, names = query.cells_of_set, (*query.sets, *((site,) for site in query.sites))
        parts = total[: len(names) * size].reshape(-1, size)
        self._part: dict[Any, Int64] = dict(zip(names, parts, strict=True))
        self._of_all = total[len(names) * size :]
        levels = level_sets(terms)
        self._columns = {name: [each.name for each in sets] for name, sets in levels.items()}
        self._levels = {each.name: each.level for sets in levels.values() for each in sets}
        self._sites: list[Any] = [(site,) for site in query.sites]
        splits: list[list[Any]] = [*self._columns.values(), self._sites]
        self._splits = [split for split in splits if split]
        """Sets that have all rows together, each row once."""
        self._check()
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
        """Raise PeerError for counts that cannot be."""
        rows, query = self._query.rows, self._query
        everybody: list[Any] = [ALL]
        for split in (everybody, *self._splits):
            if sum(map(self._rows, split)) != rows or any(self._rows(name) < 0 for name in split):
                raise PeerError(f"the rows of some sets do not sum to the {rows} rows there are")
        if not query.scores:
            if (self._of_all < 0).any() or self._of_all.sum() != rows * bool(query.classes):
                raise PeerError(f"rows by class do not sum to the {rows} rows there are")
            return
        for part in self._part.values():
            outcomes = part[-len(OUTCOMES) - 1 : -1]
            if outcomes.min() < 0 or outcomes.sum() != part[0]:
                raise PeerError("the outcomes of a set do not sum to its rows")
        bins, cells = self._bins(), self._cells()
        at = self._edge + 1
        halves = [half.sum() for label in bins[:2] for half in (label[:at], label[at:])]
        own = self._part[ALL][-len(OUTCOMES) - 1 : -1]
        if (bins[:2] < 0).any() or (cells < 0).any() or halves != own.tolist():
            raise PeerError("rows by score do not sum to the outcomes at the threshold")
        if (cells.sum(axis=1) != bins[:2].sum(axis=1)).any():
            raise PeerError("rows by score are others than rows by bin")
        sums = [(int(part[-1]), int(part[0])) for part in self._part.values()]
        sums += zip(bins[2].tolist(), bins[:2].sum(axis=0).tolist(), strict=True)
        if any(not 0 <= total <= count * metrics.PROBABILITIES.limit for total, count in sums):
            raise PeerError("the probabilities of some rows sum to less than 0, or more than there are rows")

    @property
    def _edge(self) -> int:
        """The place of the threshold among the edges of bins."""
        return metrics.edges(self._query.threshold).index(self._query.threshold)

    # ---- what the analyst gets ----------------------------------------------------------------------

    def summary(self) -> Figures:
        """The result, as JSON: what it says stands in docs/lifecycle-evaluate.md."""
        terms, query = self._terms, self._query
        out: Figures = {"min_count": self._floor, "unit": self._unit, "objective": terms.objective.name}
        if query.scores:
            out["threshold"] = query.threshold
        out |= self._sets[ALL].json()
        caps = zip(query.metrics, query.caps, strict=True)
        out["caps"] = {name: cap for name, cap in caps if cap and name not in LARGEST_LOSSES}
        if query.scores:
            out |= self._curves()
        if query.classes:
            out["classes"] = [*class_names(terms)]
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
        """The sets of a split, how far their numbers are apart, and those that are left out."""
        sets = dict(zip(titles, (self._sets[name] for name in names), strict=True))
        least = rows_of_group(self._unit)
        told = {t: each.json(least) for t, each in sets.items() if min(each.rows, each.told) >= self._unit}
        # Also those of no rows: else it would tell if a single row has a level.
        small = [title for title in sets if title not in told and (self._unit > 1 or sets[title].rows)]
        return {"sets": told, "gaps": gaps([*told.values()], self._unit), "left_out": small}

    def _curves(self) -> Figures:
        """The ROC curve and the calibration, by bins that have rows enough; the area of fine cells."""
        every, unit = self._sets[ALL], self._unit
        if not every.has_curves:
            return {"auc": None, "roc": [], "bins": []}
        exact, at = self._bins(), self._edge + 1
        labels = zip(exact[:2].tolist(), every.told_by_label, strict=True)
        told = [coarse(rows, unit, whole) or [] for rows, whole in labels]
        ends = [0.0, *metrics.edges(self._query.threshold), 1.0]
        bins = []
        for low, high in merged(np.sum(told, axis=0), rows_of_bin(unit), at):
            zeros, ones = (sum(label[low:high]) for label in told)
            rows, known = int(exact[:2, low:high].sum()), {"low": ends[low], "high": ends[high]}
            mean = metrics.PROBABILITIES.decode(int(exact[2, low:high].sum())) / rows
            predicted = rounded(mean, every.step(unit * (ends[high] - ends[low]) / rows))
            rate = rounded(ones / (zeros + ones), every.step(unit / (zeros + ones)))
            counts = {"rows": zeros + ones, "positives": ones, "mean_prediction": predicted, "rate": rate}
            bins.append({**known, **counts})
        value, within = metrics.area(*self._cells())
        step = every.step(unit / min(every.by_label))
        told_area = rounded(value, step)
        ties = within
        if step and within:  # their digits count rows of the cells
            below = step_of(within)
            ties = below if within <= below * (1 + 1e-9) else step_of(2.5 * below)
        area = {"value": told_area, "resolution": rounded(ties + step / 2 + _last(told_area))}
        return {"auc": area, "roc": roc(bins), "bins": bins}

    def _matrix(self) -> list[list[int | None]]:
        """Rows by class and by the most probable class."""
        size, unit = self._query.classes, self._unit
        counts = self._of_all.reshape(size, size)
        of_class = coarse(counts.sum(axis=1).tolist(), unit) or [0] * size
        rows = zip(counts.tolist(), of_class, strict=True)
        nothing: list[int | None] = [None] * size
        return [[*(coarse(row, unit, told) or nothing)] for row, told in rows]


def _last(value: float | None) -> float:
    """What rounding to the digits that are told may take from a number."""
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(value))) + 1 - metrics.DIGITS) if value else 0.0


def merged(rows: Int64, least: int, kept: int) -> list[tuple[int, int]]:
    """Runs [low, high) of neighbouring bins, each with so many rows; all of them where there are fewer. kept:
    an edge between two runs, if either side has rows enough."""
    starts = [0, kept] if min(rows[:kept].sum(), rows[kept:].sum()) >= least else [0]
    return [
        (start + group[0], start + group[-1] + 1)
        for start, end in pairwise([*starts, rows.size])
        for group in runs(rows[start:end], least, empty=False)
    ]


def rates(outcomes: Outcomes, unit: int = 1, least: int = 1) -> dict[str, float | None]:
    """Rates of outcomes; None where a count that they need is not told, or there are fewer rows than `least`
    to divide by."""
    return {
        name: _ratio([outcomes[key] for key in part], [outcomes[key] for key in whole], unit, least)
        for name, (part, whole) in _RATES.items()
    }


def within_of_rate(name: str, outcomes: Outcomes, unit: int) -> float:
    """How far a rate of coarse outcomes may be from that of the exact ones: both of its counts are within a
    unit, and then the step rounds."""
    _, whole = _RATES[name]
    return min(1.5 * unit / sum(outcomes[key] or 0 for key in whole), 1.0)


def _ratio(part: Sequence[int | None], whole: Sequence[int | None], unit: int, least: int) -> float | None:
    known = [count for count in whole if count is not None]
    if len(known) < len(whole) or sum(known) < least:
        return None
    step = step_of(unit / sum(known)) if unit > 1 else 0.0
    return rounded(sum(count or 0 for count in part) / sum(known), step)


def gaps(sets: Sequence[Figures], unit: int = 1) -> dict[str, float]:
    """The largest less the smallest value of each rate and metric among the sets that have it, unless
    rounding may have made it."""
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


def roc(bins: Sequence[Figures]) -> list[Figures]:
    """The points of the ROC curve at the edges of bins, from the highest score on."""
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
"""The program of each task that trains nothing."""
