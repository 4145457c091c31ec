"""What do the risks that `survival:cox` sums by time reveal about one person, over all rounds of a training?

    python benchmarks/robustness/risk_sums.py [--seeds N] [--rounds N]

Two attackers, on generated rows of three parties, of which the victim is the last that is at risk:

- A party poisons its table: its own rows fill the last time bin up to one event, the victim's. In each round
  it subtracts its own risks from the sum that it receives. Then it looks for the sequence of leaves that fits
  best, among 2,000, weighted by the leaves of its own rows. The same is done with sums that are not
  rounded.
- The aggregator, with the exact risks of each time bin, looks for the number of rows in each leaf of the
  first tree, among all numbers that add up.

Prints the share of trees whose leaf the attacker finds, and of bins whose leaves the aggregator finds.
"""

import itertools
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import common

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.fixedpoint import Float64, Int64
from fedboost.holders.shard import Shard
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.terms.terms import Terms

ROWS, FEATURES, BEAM, DEPTH = 900, 5, 2000, 3
VICTIM = ROWS - 1


@dataclass
class Seen:
    """What the attackers know. margins: of all rows after each round, float64 [rounds, rows]; leaves: leaf of
    each row in each tree; told: sums that parties receive; exact: sums that the aggregator has."""

    margins: list[Float64]
    told: list[tuple[float, ...]]
    exact: list[tuple[Float64, Float64]]
    bins: Int64
    own: Any


def session(seed: int, rounds: int) -> Seen:
    """Train on rows of which the last third are the attacker's. The victim's event is the latest but for the
    attacker's nine."""
    draw = np.random.default_rng(seed)
    columns = draw.normal(size=(FEATURES, ROWS)).astype(np.float32)
    time = draw.exponential(np.exp(-columns[0] - 0.5 * columns[1] * columns[2])).astype(np.float32) + 0.01
    event = draw.random(ROWS) < 0.7
    own = np.zeros(ROWS, np.bool_)
    own[ROWS // 3 : ROWS // 3 * 2] = True
    last = np.flatnonzero(own)[:9]
    time[last], event[last] = time.max() + 1 + np.arange(9), True
    time[VICTIM], event[VICTIM] = time.max() + 1, True
    label = np.stack([time, np.where(event, time, np.inf)]).astype(np.float32)
    names = [f"x{number}" for number in range(FEATURES)]
    schema = {"label": "time", "label_upper_bound": "until", "numeric": names}
    more = {"learning_rate": 0.1, "max_depth": DEPTH, "rounds": rounds, "min_child_weight": 5.0}
    terms = Terms.read({"columns": schema, "objective": "survival:cox", "protection": "plain", **more})
    keys = np.arange(ROWS, dtype=np.uint64)
    shard = Shard(tuple(columns), label, np.ones(ROWS, np.float32), keys=keys)
    holder, program = HorizontalHolder(lambda: shard, terms), train(terms, [])
    seen = Seen([], [], [], np.zeros(0, np.int64), own)
    query = next(program)
    while True:
        for part in query.parts:
            if isinstance(part, HistogramQuery) and part.at_risk:
                seen.told.append(part.at_risk)
        answer = holder.answer(query)
        end = query.parts[-1]
        if isinstance(end, EndRoundQuery):
            assert holder.state.start is not None
            assert holder.state.start.times is not None
            seen.bins = np.searchsorted(holder.state.start.times.starts, time, side="right")
            seen.margins.append(holder._gradients.margin[0].copy())
            seen.exact.append(end.risks(answer[-end.cells :])[0])
        try:
            query = program.send(answer)
        except StopIteration:
            return seen


def found(seen: Seen, rounded: bool) -> tuple[float, float]:
    """Return the share of trees whose leaf the poisoner finds, and the share in which the victim is in the
    most frequent leaf of the poisoner's own rows."""
    last = seen.bins == seen.bins[VICTIM]
    known = last & (np.arange(ROWS) != VICTIM)
    beams, scores = np.zeros(1), np.zeros(1)
    paths: list[list[float]] = [[]]
    right, usual, trees = 0, 0, len(seen.told) - 1
    for number in range(1, trees + 1):
        steps = seen.margins[number] - seen.margins[number - 1]
        values, counts = np.unique(np.round(steps[seen.own], 12), return_counts=True)
        usual += abs(values[np.argmax(counts)] - steps[VICTIM]) < 1e-9
        total = seen.told[number][-1] if rounded else float(seen.exact[number][0][-1])
        step = 2.0 ** np.ceil(np.log2(seen.told[number][0] / ROWS)) if rounded else total * 1e-6
        target = total - np.exp(seen.margins[number][known]).sum()
        every = beams[:, None] + values
        off = np.maximum(np.abs(np.exp(every) - target) - step / 2, 0.0)
        fits = scores[:, None] + np.log(counts / counts.sum()) - off / step * 20
        order = np.argsort(-fits.reshape(-1))[:BEAM]
        paths = [[*paths[place // values.size], float(values[place % values.size])] for place in order]
        beams, scores = every.reshape(-1)[order], fits.reshape(-1)[order]
    for number, value in enumerate(paths[0], 1):
        step = seen.margins[number][VICTIM] - seen.margins[number - 1][VICTIM]
        right += abs(value - step) < 1e-9
    return right / trees, usual / trees


@cache
def numbers(rows: int, leaves: int) -> Int64:
    """Return all ways to divide rows among leaves: int64 [ways, leaves]."""
    size = rows + leaves - 1
    cuts = np.array([*itertools.combinations(range(size), leaves - 1)], np.int64).reshape(-1, leaves - 1)
    ends = np.full((len(cuts), 1), size)
    return np.diff(np.concatenate([ends * 0 - 1, cuts, ends], axis=1), axis=1) - 1


def decoded(seen: Seen, most: int = 20) -> tuple[int, int]:
    """Return the number of time bins with at most so many rows, and of those whose counts of rows by leaf of
    the first tree follow from the exact sum."""
    values = np.unique(np.round(seen.margins[1] - seen.margins[0], 12))
    units = np.exp(values)
    sums = -np.diff(np.append(seen.exact[1][0], 0.0))
    bins = unique = 0
    for number, total in enumerate(sums):
        rows = int((seen.bins == number).sum())
        if rows > most:
            continue
        bins += 1
        unique += int((np.abs(numbers(rows, units.size) @ units - total) < 1e-7).sum()) == 1
        if bins == 3:
            break
    return bins, unique


def main() -> int:
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    runs = [session(seed, arguments.rounds) for seed in range(arguments.seeds)]
    rounded, exact = ([found(run, is_rounded) for run in runs] for is_rounded in (True, False))
    bins, unique = np.sum([decoded(run) for run in runs], axis=0).tolist()
    rows = [
        ("most frequent leaf, without any sums", f"{np.mean([usual for _, usual in rounded]):.2f}"),
        ("poisoner, sums as parties receive them", f"{np.mean([right for right, _ in rounded]):.2f}"),
        ("poisoner, sums that are not rounded", f"{np.mean([right for right, _ in exact]):.2f}"),
        ("aggregator, rows of a bin by leaf of the first tree", f"{unique} of {bins} bins"),
    ]
    title = f"{arguments.seeds} trainings of {arguments.rounds} rounds, {ROWS} rows"
    shown = common.Table(title, ("attacker", "leaves of the victim found"), rows)
    common.publish(arguments, [shown], {"rounded": rounded, "exact": exact, "bins": bins, "unique": unique})
    return 0


if __name__ == "__main__":
    sys.exit(main())
