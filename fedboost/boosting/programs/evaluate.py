"""The evaluation of a model on all parties' rows as a program: their number, then one sum.

Promises: a pure function of the terms and the sums; counts of fewer rows than `min_count`, and what would
tell them by subtraction, are not in the result.
Refuses: counts that contradict each other (PeerError), and fewer rows than `min_count` (ConfigError).
"""

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from fedboost.boosting.programs.describe import published
from fedboost.boosting.programs.initialisation import count_rows
from fedboost.boosting.programs.withheld import Sum, merged, withheld
from fedboost.boosting.queries.evaluation import ALL, EvaluationQuery
from fedboost.boosting.queries.start import RowsQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import EXPONENT_CELLS, Int64
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.metrics import scores
from fedboost.gbdt.metrics.classification import Curve
from fedboost.gbdt.metrics.registry import exact_metric_of, metric_of
from fedboost.gbdt.metrics.scores import OUTCOMES
from fedboost.protocol.contracts import GrownTrees, Outcome
from fedboost.terms.describing import class_names
from fedboost.terms.evaluating import level_sets, weight_scale
from fedboost.terms.terms import Terms

Json = dict[str, Any]
_LAST_DIGIT = 10.0**-metrics.DIGITS
"""What rounding may add to the difference of two areas."""
BY_LABEL = OUTCOMES[:2], OUTCOMES[2:]
"""The outcomes of a label: their sum is that of the curve, of a description, and of any other threshold."""


def evaluate(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Measure the model of the terms on the rows of all parties."""
    counts = yield RowsQuery()
    rows = count_rows(counts)
    if rows < terms.evaluation.min_count:
        raise ConfigError(f"the parties have fewer rows than min_count = {terms.evaluation.min_count}")
    query = EvaluationQuery.of(terms, rows, weight_scale(terms, counts[1:][-EXPONENT_CELLS:]))
    total = yield query
    assert terms.earlier is not None
    return Outcome(terms.earlier, summary_of(terms, query, total))


def summary_of(terms: Terms, query: EvaluationQuery, total: Int64) -> Json:
    """What an analyst gets of the sum of all answers. PeerError for counts that contradict each other."""
    return _Sums(terms, query, total).summary()


class _Sums:
    """The sums of an EvaluationQuery, and what an analyst gets of them."""

    def __init__(self, terms: Terms, query: EvaluationQuery, total: Int64) -> None:
        self._terms, self._query, self._floor = terms, query, terms.evaluation.min_count
        size, names = query.cells_of_set, (*query.sets, *((site,) for site in query.sites))
        parts = total[: len(names) * size].reshape(-1, size)
        self._part = dict(zip(names, parts, strict=True))
        self._of_all = total[len(names) * size :]
        self._rows = {name: int(part[0]) for name, part in self._part.items()}
        levels = level_sets(terms)
        self._columns = {name: [each.name for each in sets] for name, sets in levels.items()}
        self._levels = {each.name: each.level for sets in levels.values() for each in sets}
        self._sites: list[Any] = [(site,) for site in query.sites]
        splits: list[list[Any]] = [*self._columns.values(), self._sites]
        self._splits = [split for split in splits if split]
        """Sets that have all rows together, each row once."""
        self._check()
        self._told = {name for split in self._splits for name in self._told_of(split)} | {ALL}
        """The sets that the analyst is told of."""
        self._hidden = self._withheld() if query.scores else set()

    def _check(self) -> None:
        """Raise PeerError for counts that cannot be."""
        rows, query = self._query.rows, self._query
        everybody: list[Any] = [ALL]
        for split in (everybody, *self._splits):
            if sum(self._rows[name] for name in split) != rows or any(self._rows[n] < 0 for n in split):
                raise PeerError(f"the rows of some sets do not sum to the {rows} rows there are")
        if not query.scores:
            if (self._of_all < 0).any() or self._of_all.sum() != rows * bool(query.classes):
                raise PeerError(f"rows by class do not sum to the {rows} rows there are")
            return
        for name in self._part:
            outcomes = self._outcomes(name)
            if min(outcomes.values()) < 0 or sum(outcomes.values()) != self._rows[name]:
                raise PeerError("the outcomes of a set do not sum to its rows")
        by_label = self._of_all.reshape(3, -1)[:2]
        at = scores.threshold_cell(query.threshold) + 1
        halves = [half.sum() for label in by_label for half in (label[:at], label[at:])]
        if (by_label < 0).any() or halves != [*self._outcomes(ALL).values()]:
            raise PeerError("rows by score do not sum to the outcomes at the threshold")
        sums = [(int(part[-1]), int(part[0])) for part in self._part.values()]
        sums += zip(self._of_all.reshape(3, -1)[2].tolist(), by_label.sum(axis=0).tolist(), strict=True)
        if any(not 0 <= total <= count * scores.PROBABILITIES.limit for total, count in sums):
            raise PeerError("the probabilities of some rows sum to less than 0, or more than there are rows")

    def _outcomes(self, name: Any) -> dict[str, int]:
        cells = self._part[name][-len(OUTCOMES) - 1 : -1].tolist()
        return dict(zip(OUTCOMES, cells, strict=True))

    def _told_of(self, split: Sequence[Any]) -> list[Any]:
        """The sets of a split that have rows enough, and do not tell of one that has not."""
        rows = published({name: self._rows[name] for name in split}, self._floor)
        return [name for name, count in rows.items() if count]

    def _withheld(self) -> set[tuple[Any, str]]:
        """The outcomes that are not told, by set."""
        counts = {(name, key): n for name in self._part for key, n in self._outcomes(name).items()}
        unseen = [key for key in counts if key[0] not in self._told and self._rows[key[0]]]
        sums: list[Sum[tuple[Any, str]]] = []
        for name in self._told:
            own = (OUTCOMES, *BY_LABEL)
            sums += [Sum(tuple((name, key) for key in keys)) for keys in own]
        for split in self._splits:
            sums += [Sum(tuple((name, key) for name in split), ((ALL, key),)) for key in OUTCOMES]
        if any(name.startswith("error") for name in self._query.metrics):
            for name in self._told:
                sums += [Sum(((name, "fp"), (name, "fn"))), Sum(((name, "tn"), (name, "tp")))]
        return withheld(counts, sums, self._floor, unseen)

    # ---- what the analyst gets ----------------------------------------------------------------------

    def summary(self) -> Json:
        """The result, as JSON: what it says stands in docs/lifecycle-evaluate.md."""
        terms, query = self._terms, self._query
        out: Json = {"rows": query.rows, "min_count": self._floor, "objective": terms.objective.name}
        if query.scores:
            out["threshold"] = query.threshold
        out |= self._of_set(ALL)
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

    def _of_set(self, name: Any) -> Json:
        """Rows, metrics and, of two classes, outcomes and rates of a set that is told."""
        query, part = self._query, self._part[name]
        sums = part[1 : 1 + metrics.cells(query.metrics, exact_metric_of)]
        values = dict.fromkeys(query.metrics, math.nan)
        if sums[0] > 0:
            values = metrics.values(query.metrics, sums, query.weight, exact_metric_of)
        known = {key: _rounded(value) for key, value in values.items()}
        if query.scores:
            known |= dict.fromkeys(self._curves_of_few(name))
        out: Json = {"rows": self._rows[name], "metrics": known}
        if query.scores:
            outcomes: dict[str, int | None] = {
                key: None if (name, key) in self._hidden else count
                for key, count in self._outcomes(name).items()
            }
            mean = scores.PROBABILITIES.decode(int(part[-1])) / self._rows[name]
            out |= {"mean_prediction": _rounded(mean), "confusion": outcomes, "rates": rates(outcomes)}
        return out

    def _curves_of_few(self, name: Any) -> list[str]:
        """The metrics that would tell of the few rows of a label: those of a curve."""
        outcomes = self._outcomes(name)
        of_label = [sum(outcomes[key] for key in keys) for keys in BY_LABEL]
        if not any(0 < count < self._floor for count in of_label):
            return []
        return [metric for metric in self._query.metrics if isinstance(metric_of(metric), Curve)]

    def _split(self, names: Sequence[Any], titles: Sequence[str]) -> Json:
        """The sets of a split, how far their numbers are apart, and those that are left out."""
        told = {t: self._of_set(name) for name, t in zip(names, titles, strict=True) if name in self._told}
        small = [
            title
            for name, title in zip(names, titles, strict=True)
            if name not in self._told and self._rows[name]
        ]
        return {"sets": told, "gaps": gaps([*told.values()]), "left_out": small}

    def _curves(self) -> Json:
        """The ROC curve and the calibration, of bins that have rows enough; the area of unmerged ones."""
        query, floor = self._query, self._floor
        cells = self._of_all.reshape(3, -1)
        by_label, edge = cells[:2], scores.threshold_cell(query.threshold) + 1
        if any(0 < count < floor for count in by_label.sum(axis=1).tolist()):
            return {"auc": None, "roc": [], "bins": []}
        shown = not any((ALL, key) in self._hidden for key in OUTCOMES)
        runs = merged(by_label, floor, edge if shown else None)
        if not shown:  # an edge at the threshold would tell the outcomes
            used = np.flatnonzero(by_label.any(axis=0))
            below, above = used[used < edge], used[used >= edge]
            alike = range(int(below.max(initial=-1)) + 1, int(above.min(initial=scores.CELLS)) + 1)
            runs = _without(runs, alike)
        borders = scores.edges(query.threshold)
        bins = []
        for low, high in runs:
            zeros, ones = (int(count) for count in by_label[:, low:high].sum(axis=1))
            predicted = scores.PROBABILITIES.decode(int(cells[2, low:high].sum())) / (zeros + ones)
            ends = float(borders[low]), float(borders[high])
            known = {"low": ends[0], "high": ends[1], "rows": zeros + ones, "positives": ones}
            bins.append({**known, "mean_prediction": _rounded(predicted), "rate": ones / (zeros + ones)})
        found = scores.area(by_label[0], by_label[1])
        area = None
        if found is not None:
            area = {"value": _rounded(found[0]), "resolution": _rounded(found[1] + _LAST_DIGIT)}
        return {"auc": area, "roc": roc(bins), "bins": bins}

    def _matrix(self) -> list[list[int | None]]:
        """Rows by class and by the most probable class."""
        size = self._query.classes
        counts = {(i, j): int(n) for (i, j), n in np.ndenumerate(self._of_all.reshape(size, size))}
        per_class = {i: sum(counts[i, j] for j in range(size)) for i in range(size)}
        told = published(per_class, self._floor)
        unseen = [(i, j) for i, j in counts if told[i] is None]
        sums = [Sum(tuple((i, j) for j in range(size))) for i in range(size) if told[i] is not None]
        sums.append(Sum(tuple((i, i) for i in range(size))))
        hidden = withheld(counts, sums, self._floor, unseen)
        return [[None if (i, j) in hidden else counts[i, j] for j in range(size)] for i in range(size)]


def _rounded(value: float) -> float | None:
    """A number to as many digits as are told: all of them would tell the sums over a few rows. None for no
    number."""
    return None if math.isnan(value) else float(f"{value:.{metrics.DIGITS}g}")


def _without(runs: list[tuple[int, int]], edges: range) -> list[tuple[int, int]]:
    """The runs without any of these edges between two of them."""
    out: list[tuple[int, int]] = []
    for low, high in runs:
        out.append((out.pop()[0], high) if out and low in edges else (low, high))
    return out


def rates(outcomes: dict[str, int | None]) -> dict[str, float | None]:
    """Rates of outcomes; None where a count that they need is not told, or there are no rows to divide by."""
    tn, fp, fn, tp = (outcomes[key] for key in OUTCOMES)
    return {
        "positive_rate": _ratio((fn, tp), (tn, fp, fn, tp)),
        "selection_rate": _ratio((fp, tp), (tn, fp, fn, tp)),
        "true_positive_rate": _ratio((tp,), (fn, tp)),
        "false_positive_rate": _ratio((fp,), (tn, fp)),
        "precision": _ratio((tp,), (fp, tp)),
    }


def _ratio(part: Sequence[int | None], whole: Sequence[int | None]) -> float | None:
    known = [count for count in whole if count is not None]
    if len(known) < len(whole) or not sum(known):
        return None
    return sum(count or 0 for count in part) / sum(known)


def gaps(sets: Sequence[Json]) -> dict[str, float]:
    """The largest less the smallest value of each rate and metric among the sets that have it."""
    named = [{**one.get("rates", {}), **one["metrics"]} for one in sets]
    out = {}
    for key in named[0] if named else ():
        known = [values[key] for values in named if values[key] is not None]
        if len(known) > 1:
            out[key] = max(known) - min(known)
    return out


def roc(bins: Sequence[Json]) -> list[Json]:
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
