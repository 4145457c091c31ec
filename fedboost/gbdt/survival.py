"""Figures of survival times, from counts of rows by time, event and predicted risk.

Guarantees: counts of parties can be added. A figure is within its stated bound of the figure of the pooled
rows, whose times and risks are not rounded to cells. Rows whose time is only known to lie between two bounds
are not counted."""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.objectives.objective import MAX_LABEL, Objective
from fedboost.gbdt.sampling import Mask

# ---- Cells of times and of risks ------------------------------------------------------------------------
# Edges of times are taken from a public grid, so that two sessions cannot isolate rows between two edges.


@cache
def public_times() -> Float32:
    """Return the times that edges are chosen from: numbers of three digits, the last of which is 0 or 5,
    times powers of ten, and whole years in days. float32, increasing."""
    digits = [float(f"{number}e{power}") for power in range(-21, 18) for number in range(100, 1000, 5)]
    times = np.array([*digits, *range(365, 365 * 41, 365)], np.float32)
    return np.unique(times[(times >= 1.0 / MAX_LABEL) & (times <= MAX_LABEL)])


def time_grid(chosen: tuple[float, ...]) -> Float32:
    """Return the public times and the chosen ones: float32, increasing."""
    return np.union1d(public_times(), np.array(chosen, np.float32)).astype(np.float32)


class RiskGrid(NamedTuple):
    """Cells of equal width. Risks beyond them are counted in the first or last cell. start: lower end of the
    first cell; width: of each cell; cells: their number."""

    start: float
    width: float
    cells: int

    @property
    def edges(self) -> Float64:
        return self.start + self.width * np.arange(self.cells + 1.0)

    def cell_of(self, risk: Float64) -> Int64:
        cells: Int64 = np.floor(np.clip((risk - self.start) / self.width, 0, self.cells - 1)).astype(np.int64)
        return cells


FIRST_GRID = RiskGrid(-64.0, 2.0**-5, 1 << 12)
RISK_CELLS = 1 << 8
MAX_TIMES = 128
"""Maximum number of edges of times, besides those of `auc@t` and `brier@t`."""


def known_times(label: Float32) -> tuple[Float32, Mask, Mask]:
    """Return the time of each row's event or of its censoring, whether it is an event, and whether the time
    is known. label: float32 [2, rows], lower and upper bounds."""
    lower, upper = label
    is_event = lower == upper
    return lower, is_event, is_event | ((upper == math.inf) & (lower > 0.0))


def first_counts(loss: Objective, margin: Float64, label: Float32, grid: Float32) -> Int64:
    """Count events by time, then rows with a known time by risk. Returns int64 [grid.size + 1 +
    FIRST_GRID.cells]. grid: edges of times."""
    time, is_event, is_known = known_times(label)
    events = np.bincount(np.searchsorted(grid, time[is_event]), minlength=grid.size + 1)
    risks = FIRST_GRID.cell_of(loss.risk_sign * margin[is_known])
    return np.concatenate([events, np.bincount(risks, minlength=FIRST_GRID.cells)]).astype(np.int64)


def survival_counts(
    loss: Objective, margin: Float64, label: Float32, edges: Float32, grid: RiskGrid
) -> Int64:
    """Count rows with a known time by time, event (0: censored, 1: event) and risk. Returns int64 [times * 2
    * grid.cells]. edges: between the bins of times; a bin includes its upper end."""
    time, is_event, is_known = known_times(label)
    shape = edges.size + 1, 2, grid.cells
    place = np.searchsorted(edges, time), is_event.astype(np.int64), grid.cell_of(loss.risk_sign * margin)
    index = np.ravel_multi_index(tuple(each[is_known] for each in place), shape)
    return np.bincount(index, minlength=math.prod(shape)).astype(np.int64)


def risk_grid(counts: Int64, unit: int) -> RiskGrid:
    """Choose cells so that fewer than `unit` rows lie beyond them on each side. The width is a power of two.
    counts: rows by cell of FIRST_GRID."""
    until, total = np.cumsum(counts), int(counts.sum())
    if total < unit:
        return RiskGrid(FIRST_GRID.start, 2.0**-1, RISK_CELLS)
    low = int(np.searchsorted(until, unit))
    high = int(np.searchsorted(until, max(total - unit + 1, 1)))
    first, last = FIRST_GRID.edges[low], FIRST_GRID.edges[max(high, low) + 1]
    # One cell may be lost where the start is rounded down.
    width = 2.0 ** math.ceil(math.log2((last - first) / (RISK_CELLS - 1)))
    return RiskGrid(math.floor(first / width) * width, width, RISK_CELLS)


# ---- Figures --------------------------------------------------------------------------------------------


Bounded = tuple[float, float]
"""A figure, and the maximum difference from the figure of unrounded times and risks."""


@dataclass(frozen=True)
class SurvivalTable:
    """Rows by time, event and risk. counts: int64 [times, 2, cells]; edges: float32 [times - 1]."""

    counts: Int64
    edges: Float32
    grid: RiskGrid

    @cached_property
    def events(self) -> Int64:
        out: Int64 = self.counts[:, 1].sum(axis=1)
        return out

    @cached_property
    def left(self) -> Int64:
        """Number of rows whose time is in each bin."""
        out: Int64 = self.counts.sum(axis=(1, 2))
        return out

    @cached_property
    def _later(self) -> Int64:
        """Rows with a later time, by risk: int64 [times, cells]."""
        rows = self.counts.sum(axis=1)
        out: Int64 = rows.sum(axis=0) - np.cumsum(rows, axis=0)
        return out

    def place(self, time: float) -> int:
        """Return the number of the last bin until a time, which is an edge."""
        return int(np.searchsorted(self.edges, np.float32(time)))

    def groups(self, time: float) -> tuple[int, int]:
        """Return the number of events until a time, and of rows with a later time."""
        at = self.place(time)
        return int(self.events[: at + 1].sum()), int(self._later[at].sum())

    def concordance(self) -> Bounded | None:
        """Return Harrell's C-index: the share of comparable pairs in which the row with the earlier event has
        the higher risk; equal risks count half. Pairs within a bin of times are left out."""
        events = self.counts[:, 1].astype(np.float64)
        below = np.cumsum(self._later, axis=1) - self._later
        pairs = float((events.sum(axis=1) * self._later.sum(axis=1)).sum())
        right, tied = float((events * below).sum()), float((events * self._later).sum())
        if not pairs:
            return None
        in_bin = self.events * (self.events - 1) / 2 + self.events * (self.left - self.events)
        unsure = float(in_bin.sum())  # each such pair may be comparable, and right or wrong
        value, most = (right + tied / 2) / pairs, pairs + unsure
        return value, max(value - right / most, (right + tied + unsure) / most - value)

    @cached_property
    def _weights(self) -> tuple[Float64, Float64, Float64]:
        """Weights of an event in each bin, and their lowest and highest value: the inverse probability that a
        row is not yet censored. The Kaplan-Meier curve of censoring is lowest if events precede censoring."""
        at_risk = self.left.sum() - np.cumsum(self.left) + self.left
        censored = self.left - self.events
        with np.errstate(all="ignore"):
            high = np.cumprod(1.0 - np.nan_to_num(censored / at_risk))
            low = np.cumprod(1.0 - np.nan_to_num(censored / (at_risk - self.events)))
            before = np.append(1.0, low[:-1])
            return 1.0 / before, 1.0 / np.append(1.0, high[:-1]), 1.0 / low

    def area(self, time: float) -> Bounded | None:
        """Return the cumulative/dynamic AUC at a time: the share of pairs of a row with an event until then
        and a row without, in which the first has the higher risk. Rows with an event have the inverse
        probability of not being censored as weight (Uno et al., JASA 2007)."""
        end = self.place(time) + 1
        events, later = self.counts[:end, 1].astype(np.float64), self._later[end - 1].astype(np.float64)
        if not (events.any() and later.any()):
            return None
        below, total = np.cumsum(later) - later, later.sum()
        lowest, middle, highest = (part / total for part in (below, below + later / 2, below + later))
        weights, least, most = (events * weight[:end, None] for weight in self._weights)
        value = float((weights * middle).sum() / weights.sum())
        low, high = 1.0 - _highest_mean(1.0 - lowest, least, most), _highest_mean(highest, least, most)
        return value, max(value - low, high - value)

    def brier(self, loss: Objective, time: float) -> Bounded | None:
        """Return the Brier score at a time, weighted for censoring (Graf et al., Statistics in Medicine
        1999): the mean squared error of the predicted probability of having no event until then."""
        end = self.place(time) + 1
        events, later = self.counts[:end, 1].astype(np.float64), self._later[end - 1].astype(np.float64)
        if not later.any():
            return None
        low, middle, high = self._survival(loss, time, end)
        weights = self._weights
        of_later = weights[0][end], weights[1][end], weights[2][end - 1]

        def mean(of_events: Float64, of_rest: Float64, number: int) -> float:
            errors = (events * weights[number][:end, None] * of_events**2).sum()
            return float(errors + (later * (1.0 - of_rest) ** 2).sum() * of_later[number]) / float(
                self.left.sum()
            )

        value = mean(middle, middle, 0)
        return value, max(value - mean(low, high, 1), mean(high, low, 2) - value)

    def _survival(self, loss: Objective, time: float, end: int) -> tuple[Float64, Float64, Float64]:
        """Return the probability of having no event until a time in each cell of risk: the lowest, that of
        its middle, and the highest. Without a distribution of times (`Objective.survival`), the hazard of a
        row without risk is Breslow's estimate, from these rows."""
        edges = self.grid.edges
        ends, middle = (edges[1:], edges[:-1]), (edges[1:] + edges[:-1]) / 2
        found = [loss.survival(time, loss.risk_sign * risk) for risk in (ends[0], middle, ends[1])]
        if found[0] is not None:
            low, mid, high = (np.asarray(each) for each in found)
            low[-1], high[0] = 0.0, 1.0  # includes all risks beyond it
            return low, mid, high
        ratios, still = (
            [np.exp(risk) for risk in (ends[0], middle, ends[1])],
            self._later + self.counts.sum(axis=1),
        )
        events = self.events[:end]
        with np.errstate(all="ignore"):
            hazards = [
                (events / (rows[:end] @ ratio)).sum()
                for rows, ratio in ((self._later, ratios[2]), (still, ratios[1]), (still, ratios[0]))
            ]
            low, mid, high = (np.exp(-hazard * ratio) for hazard, ratio in zip(hazards, ratios, strict=True))
        return low, mid, high


def _highest_mean(values: Float64, least: Float64, most: Float64) -> float:
    """Return the highest weighted mean of values, float64 [cells]. least, most: bounds of their weights,
    float64 [times, cells]."""
    order = np.argsort(-values)
    value, low, high = values[order], least.sum(axis=0)[order], most.sum(axis=0)[order]
    # The highest values have their highest weights, and the others their lowest.
    weight = np.cumsum(high) + low.sum() - np.cumsum(low)
    return float(((np.cumsum(high * value) + (low * value).sum() - np.cumsum(low * value)) / weight).max())
