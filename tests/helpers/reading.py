"""A solver that reads single rows from the results of sessions.

It knows everything but one bit of each row, a label or a part of a feature. Every figure bounds a sum of
these bits, and a linear program finds the bits that are certain.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog, lsq_linear

from fedboost.boosting.programs.rounding import possible, step_of, unit_of

LAST = 1.0001e-4
"""What rounding to four digits may take from a number of at most 1."""


@dataclass(frozen=True)
class Known:
    """What is known of n bits: low <= sums @ bits <= high, a row for each figure."""

    sums: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, figures):
        """From (coefficients, low, high)."""
        sums, low, high = zip(*figures, strict=True)
        return cls(np.array(sums, float), np.array(low, float), np.array(high, float))

    def holds(self, bits):
        """True if all of it is so of these bits."""
        sums = self.sums @ bits
        return bool(((self.low - 1e-6 <= sums) & (sums <= self.high + 1e-6)).all())

    def certain(self, rows):
        """The bits of these rows that follow, by row: 1 where it cannot be 0, 0 where it cannot be 1."""
        ones, zeros = self._never(0, [*rows]), self._never(1, [*rows])
        return dict.fromkeys(ones, 1) | dict.fromkeys(zeros, 0)

    def _never(self, bit, rows):
        """Those of the rows that never have this bit. A solution for all of them at once shows of many that
        they may have it; each that is left is solved for by itself."""
        matrix, bounds = np.vstack([self.sums, -self.sums]), np.concatenate([self.high, -self.low]) + 1e-7

        def open_after(tried, left):
            goal = np.zeros(self.sums.shape[1])
            goal[tried] = 1 if bit == 0 else -1
            found = linprog(goal, A_ub=matrix, b_ub=bounds, bounds=(0, 1), method="highs")
            assert found.status == 0, found.message
            return [row for row in left if abs(found.x[row] - bit) > 1e-3]  # bits are 0 or 1

        left, before = open_after(rows, rows), rows
        while 0 < len(left) < len(before):
            left, before = open_after(left, left), left
        never = []
        while left:
            row, others = left[0], open_after(left[:1], left)
            never += [row] if row in others else []
            left = [each for each in others if each != row]
        return never

    def guessed(self, prior):
        """The most probable bits, near a prior guess of their probabilities."""
        width = np.maximum(self.high - self.low, 1e-3) / 2
        matrix = np.vstack([self.sums / width[:, None], 0.5 * np.eye(prior.size)])
        goal = np.concatenate([(self.low + self.high) / 2 / width, 0.5 * prior])
        return lsq_linear(matrix, goal, (0, 1)).x > 0.5


def counted(told, unit, total, sums):
    """The bounds of the ends of coarse parts. told: the parts; sums: how the count of each part follows from
    the bits, as their coefficients and a constant; total: of all, None where it is not known."""
    end, coefficients, constant = 0, 0.0, 0.0
    for part, (own, fixed) in zip(told[:-1], sums[:-1], strict=True):
        end, coefficients, constant = end + part, coefficients + own, constant + fixed
        low, high = end - unit / 2, end + unit / 2 - 1
        if unit == 1:
            low = high = end
        elif total is not None and end + unit / 2 > total // unit * unit:
            high = total
        yield coefficients, low - constant, high - constant


def labels_told(summary, margin, label):
    """What an evaluation tells of labels. margin: of each row; label: the truth, of which the solver is given
    the number of ones, as a description tells it, and the cap on losses."""
    unit, size, positives = summary["unit"], margin.size, int(label.sum())
    score, ones = 1 / (1 + np.exp(-margin)), np.ones(size)
    yield ones, positives, positives
    negatives = size - positives
    runs = [((score > one["low"]) & (score <= one["high"])).astype(float) for one in summary["bins"]]
    above = (margin > 0).astype(float)
    outcomes = summary["confusion"]
    for told, parts in (
        ([(one["rows"] - one["positives"], one["positives"]) for one in summary["bins"]], runs),
        ([(outcomes["tn"], outcomes["fn"]), (outcomes["fp"], outcomes["tp"])], [1 - above, above]),
    ):
        if told and None not in told[0]:
            yield from counted(
                [zero for zero, _ in told], unit, negatives, [(-part, part.sum()) for part in parts]
            )
            yield from counted([one for _, one in told], unit, positives, [(part, 0.0) for part in parts])
    losses = {
        "logloss": (np.logaddexp(0, margin), np.logaddexp(0, -margin)),
        "error": (above, 1 - above),
    }
    for name, (zero, one) in losses.items():
        value = summary["metrics"].get(name)
        if value is not None:
            within = size * summary["resolution"][name]
            cap = -np.log(1e-3) if unit > 1 else np.inf
            zero, one = (np.minimum(each, cap) if name == "logloss" else each for each in (zero, one))
            yield one - zero, size * value - within - zero.sum(), size * value + within - zero.sum()
    if summary["auc"] is not None:
        cell = np.floor(np.clip(margin, -8, 7.999) * 128)
        order = np.unique(cell, return_inverse=True, return_counts=True)
        last = np.cumsum(order[2])
        rank = (last - (order[2] - 1) / 2)[order[1]]
        step = step_of(unit / min(positives, negatives)) if unit > 1 else 0.0
        middle = summary["auc"]["value"] * positives * negatives + positives * (positives + 1) / 2
        width = (step / 2 + LAST) * positives * negatives
        yield rank, middle - width, middle + width


def bits_told(summary, low, high, label):
    """What an evaluation tells of a bit that is part of its model's features. low, high: the margins of each
    row where the bit is 0, and where it is 1; label: known to the analyst."""
    unit, size = summary["unit"], low.size
    scored = [1 / (1 + np.exp(-margin)) for margin in (low, high)]
    for value, name in ((0, "rows"), (1, "positives")):
        told = [one["rows"] - one["positives"] if value == 0 else one[name] for one in summary["bins"]]
        parts = []
        for one in summary["bins"]:
            ends = [(score > one["low"]) & (score <= one["high"]) & (label == value) for score in scored]
            parts.append((ends[1].astype(float) - ends[0], ends[0].sum()))
        yield from counted(told, unit, int((label == value).sum()), parts)
    within = 0.5 * (step_of(unit / size) if unit > 1 else 0.0) + LAST
    middle = size * summary["mean_prediction"] - scored[0].sum()
    yield scored[1] - scored[0], middle - size * within, middle + size * within


def moved(summary, columns):
    """What drift tells of a bit that is part of some columns. columns: name to its values where the bit is 0,
    and where it is 1."""
    unit = unit_of(summary["min_count"])
    for column in summary["columns"]:
        if column["name"] in columns:
            parts = []
            for one in column["bins"]:
                first, last = (one.get(end) for end in ("low", "high"))
                first, last = (-np.inf if first is None else first), (np.inf if last is None else last)
                ends = [(each >= first) & (each < last) for each in columns[column["name"]]]
                parts.append((ends[1].astype(float) - ends[0], ends[0].sum()))
            yield from counted([one["rows"] for one in column["bins"]], unit, summary["rows"], parts)


def described(summary, name, either):
    """What a description tells of a bit that is part of a categorical column. either: the column where the
    bit is 0, and where it is 1; the analyst knows all but the bit."""
    unit = unit_of(summary["min_count"])
    (known,) = (column for column in summary["columns"] if column["name"] == name)
    low, high = map(np.asarray, either)
    others = [*known["levels"]]
    for level, rows in [*known["levels"].items(), (None, known["undeclared"])]:
        ends = [~np.isin(end, others) if level is None else end == level for end in (low, high)]
        fewest, most = possible(rows, summary["rows"], unit)
        yield ends[1].astype(float) - ends[0], fewest - ends[0].sum(), most - ends[0].sum()
