"""Figures of survival times, from counts of rows by time, event and predicted risk.

Guarantees: counts of parties can be added. A figure is within its stated bound of the figure of the pooled
rows, whose times and risks are not rounded to cells. Rows whose time is only known to lie between two bounds
are not counted."""

import math
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.objectives.objective import MAX_LABEL, Objective

# ---- Cells of times and of risks ------------------------------------------------------------------------

CINDEX, AUC_AT, BRIER_AT = "cindex", "auc@", "brier@"
"""Names of the metrics. A time follows the last two."""
_PUBLIC = 100, 120, 150, 180, 200, 240, 300, 360, 400, 420, 480, 500, 540, 600, 700, 720, 800, 840, 900, 960
_FINE = *range(100, 200, 2), *range(200, 400, 5), *range(400, 1000, 10)


@cache
def public_times() -> Float32:
    """Return the times at which curves have points: round numbers and whole years in days, float32,
    increasing. They are the same for all rows, so that no two of them isolate rows."""
    return np.union1d(_times(_PUBLIC), np.arange(365, 365 * 41, 365, dtype=np.float32))


@cache
def time_grid(chosen: tuple[float, ...] = ()) -> Float32:
    """Return all times that may separate rows: public times, finer ones, and chosen ones; float32,
    increasing."""
    times = np.union1d(np.union1d(public_times(), _times(_FINE)), np.array(chosen, np.float32))
    return times[(times > 0.0) & (times <= MAX_LABEL)]


def _times(digits: Iterable[int]) -> Float32:
    times = np.array(
        [float(f"{number}e{power}") for power in range(-21, 18) for number in digits], np.float32
    )
    return times[(times >= 1.0 / MAX_LABEL) & (times <= MAX_LABEL)]


class RiskGrid(NamedTuple):
    """Cells of equal width; risks beyond them are counted in the first or last cell. start: lower end."""

    start: float
    width: float
    cells: int = 1 << 8

    @property
    def edges(self) -> Float64:
        return self.start + self.width * np.arange(self.cells + 1.0)

    def cell_of(self, risk: Float64) -> Int64:
        out: Int64 = np.clip((risk - self.start) / self.width, 0, self.cells - 1).astype(np.int64)
        return out


FIRST_GRID = RiskGrid(-64.0, 2.0**-5, 1 << 12)
MAX_TIMES = 128
"""Maximum number of public, and of finer times that separate rows in one table."""


def risk_grid(counts: Int64, unit: int) -> RiskGrid:
    """Choose cells so that fewer than `unit` rows lie beyond them on each side. The width is a power of two.
    counts: rows by cell of FIRST_GRID."""
    until, total = np.cumsum(counts), int(counts.sum())
    if total < unit:
        return RiskGrid(FIRST_GRID.start, 0.5)
    low, high = (int(np.searchsorted(until, rows)) for rows in (unit, total - unit + 1))
    first, last = FIRST_GRID.edges[[low, max(high, low) + 1]].tolist()
    # One cell may be lost where the start is rounded down.
    width = 2.0 ** math.ceil(math.log2((last - first) / (RiskGrid(0.0, 1.0).cells - 1)))
    return RiskGrid(math.floor(first / width) * width, width)


def survival_counts(risk: Float64, label: Float32, edges: Float32, grid: RiskGrid) -> Int64:
    """Count rows with a known time of their event or of their censoring.

    Args:
        risk: predicted risk of each row.
        label: float32 [2, rows], lower and upper bounds of times.
        edges: between the bins of times; a bin includes its upper end.
        grid: cells of risks.

    Returns:
        int64 [edges + 1, 2, grid.cells], rows by time, event (0: censored, 1: event) and risk.
    """
    (lower, upper), shape = label, (edges.size + 1, 2, grid.cells)
    is_event = lower == upper
    known = is_event | ((upper == math.inf) & (lower > 0.0))
    place = np.searchsorted(edges, lower), is_event.astype(np.int64), grid.cell_of(risk)
    index = np.ravel_multi_index(tuple(each[known] for each in place), shape)
    return np.bincount(index, minlength=math.prod(shape)).astype(np.int64).reshape(shape)


def counts_by_time(label: Float32, edges: Float32) -> Int64:
    """Count events, and all rows with a known time, by time: int64 [2, edges + 1]."""
    counts = survival_counts(np.zeros(label.shape[1]), label, edges, RiskGrid(0.0, 1.0, 1))[..., 0]
    return np.array([counts[:, 1], counts.sum(axis=1)])


def first_counts(risk: Float64, label: Float32, edges: Float32) -> Int64:
    """Count events by time, int64 [edges + 1], then rows by cell of FIRST_GRID."""
    by_risk = survival_counts(risk, label, edges[:0], FIRST_GRID).sum(axis=(0, 1))
    return np.concatenate([counts_by_time(label, edges)[0], by_risk])


# ---- Figures --------------------------------------------------------------------------------------------


class SurvivalTable:
    """Rows by time, event and risk. Its figures come with their maximum difference from those of unrounded
    times and risks. counts, edges, grid: see `survival_counts`."""

    def __init__(self, counts: Int64, edges: Float32, grid: RiskGrid) -> None:
        self.counts, self.edges, self.grid = counts, edges, grid
        rows, self._events = counts.sum(axis=1), counts[:, 1].astype(np.float64)
        self._later = rows.sum(axis=0) - np.cumsum(rows, axis=0)
        """Rows with a later time, by risk: int64 [times, cells]."""
        self.events, self.left = counts[:, 1].sum(axis=1), rows.sum(axis=1)
        at_risk = self._later.sum(axis=1) + self.left
        censored = self.left - self.events
        with np.errstate(all="ignore"):  # bins in which nobody is at risk
            high = np.cumprod(np.append(1.0, 1.0 - np.nan_to_num(censored / at_risk)))
            low = np.cumprod(np.append(1.0, 1.0 - np.nan_to_num(censored / (at_risk - self.events))))
            self._weights = 1.0 / low[:-1], 1.0 / high[:-1], 1.0 / low[1:]
        """Weights of an event in each bin, and their lowest and highest value: the inverse probability that a
        row is not yet censored. It is lowest if all events of a bin precede its censorings."""

    def place(self, time: float) -> int:
        """Return the number of the bin after a time, which is an edge."""
        return int(np.searchsorted(self.edges, np.float32(time))) + 1

    def groups(self, time: float) -> tuple[int, int]:
        """Return the number of events until a time, and of rows with a later time."""
        return int(self.events[: self.place(time)].sum()), int(self.left[self.place(time) :].sum())

    def concordance(self) -> tuple[float, float]:
        """Return Harrell's C-index: the share of comparable pairs in which the row with the earlier event has
        the higher risk; equal risks count half. Pairs within a bin of times are left out."""
        below, later = np.cumsum(self._later, axis=1) - self._later, self._later
        pairs = float((self.events * later.sum(axis=1)).sum())
        right, tied = float((self._events * below).sum()), float((self._events * later).sum())
        # Each pair within a bin of times may be comparable, and right or wrong.
        unsure = float((self.events * (2 * self.left - self.events - 1)).sum()) / 2
        if not pairs:
            return math.nan, 0.0
        value, most = (right + tied / 2) / pairs, pairs + unsure
        return value, max(value - right / most, (right + tied + unsure) / most - value)

    def area(self, time: float) -> tuple[float, float]:
        """Return the cumulative/dynamic AUC at a time: the share of pairs of a row with an event until then
        and a row without, in which the first has the higher risk. Rows with an event have the inverse
        probability of not being censored as weight (Uno et al., JASA 2007)."""
        end = self.place(time)
        later = self._later[end - 1].astype(np.float64)
        below, total = np.cumsum(later) - later, later.sum()
        lowest, middle, highest = ((below + share * later) / total for share in (0.0, 0.5, 1.0))
        weight, least, most = (weights[:end] @ self._events[:end] for weights in self._weights)
        value = float(weight @ middle / weight.sum())
        low, high = 1.0 - _highest_mean(1.0 - lowest, least, most), _highest_mean(highest, least, most)
        return value, max(value - low, high - value)

    def brier(self, loss: Objective, time: float) -> tuple[float, float]:
        """Return the Brier score at a time, weighted for censoring (Graf et al., Statistics in Medicine
        1999): the mean squared error of the predicted probability of having no event until then."""
        end = self.place(time)
        later, chances = self._later[end - 1].astype(np.float64), self._chances(loss, time, end)

        def mean(of_events: int, of_later: int, number: int) -> float:
            weight = self._weights[number][:end] @ self._events[:end]
            errors = weight @ chances[of_events] ** 2
            return float(errors + self._weights[number % 2][end] * (later @ (1.0 - chances[of_later]) ** 2))

        which = (1, 1, 0), (0, 2, 1), (2, 0, 2)
        value, low, high = (mean(*each) / float(self.left.sum()) for each in which)
        return value, max(value - low, high - value)

    def _chances(self, loss: Objective, time: float, end: int) -> list[Float64]:
        """Return the lowest, middle and highest probability of having no event until a time in each cell.

        Without a distribution of times (`Objective.survival`), the hazard of a row at risk 0 is Breslow's
        estimate from these rows, and risks beyond the cells count as at their ends."""
        edges = self.grid.edges
        risks = edges[1:], (edges[1:] + edges[:-1]) / 2, edges[:-1]
        found = (loss.survival(time, loss.risk_sign * risk) for risk in risks)
        if out := [each for each in found if each is not None]:
            out[0][-1], out[2][0] = 0.0, 1.0  # includes all risks beyond it
            return out
        ratios, rows = [np.exp(risk) for risk in risks], self._later + self.counts.sum(axis=1)
        at_risk = self._later @ ratios[2], rows @ ratios[1], rows @ ratios[0]
        hazards = [(self.events[:end] / each[:end]).sum() for each in at_risk]
        return [np.exp(-hazard * ratio) for hazard, ratio in zip(hazards, ratios, strict=True)]


def _highest_mean(values: Float64, least: Float64, most: Float64) -> float:
    """Return the highest mean of values that have weights between `least` and `most`, float64 [cells] each:
    the highest values have their highest weights, and the others their lowest."""
    order = np.argsort(-values)
    value, low, more = values[order], least[order], (most - least)[order]
    means = (np.cumsum(more * value) + low @ value) / (np.cumsum(more) + low.sum())
    return float(means.max())
