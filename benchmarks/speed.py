"""What does a tree cost, beside XGBoost's, and what do more parties in one process add?

Trains on generated dense float32 rows, binary:logistic, depth 6, 256 bins, one thread, in turns: fedboost
with one party, XGBoost `hist`, and fedboost with three parties that hold the same rows. The cost of a tree is
the CPU time between the end of round 5 and the end of round 25 of the same training, divided by 20, so
reading and binning the rows is left out on every side. fedboost's includes the metric of each round and the
encoding of every message.

The claims, for 1,000,000 x 50: one party costs at most 1.2 times XGBoost, three parties at most 1.5 times
one. Also shown: CPU time from the raw floats to the end of the first tree.
"""

# One thread on every side, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import asdict, dataclass

import common
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xgboost as xgb

import fedboost as fb

Float32 = npt.NDArray[np.float32]
XGBOOST_AT_MOST = 1.2
PARTIES_AT_MOST = 1.5
EARLY, LATE = 5, 25
"""Rounds between whose ends trees are timed."""
LABEL = "label"


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one training: per tree, and from the raw floats to the end of the first tree."""

    tree: float
    first: float

    @classmethod
    def of(cls, start: float, marks: list[float]) -> "Cost":
        """From the clock at the start and at the end of each round."""
        return cls((marks[LATE - 1] - marks[EARLY - 1]) / (LATE - EARLY), marks[0] - start)


@dataclass(frozen=True)
class Repeat:
    """The three trainings of one repeat."""

    one_party: Cost
    xgboost: Cost
    three_parties: Cost


def main() -> None:
    """Time the three sides in turns."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--features", type=int, default=50, help="default 50")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    if options.rows < 100 or options.features < 1 or options.repeats < 1:
        common.fail("--rows must be at least 100, --features and --repeats at least 1")
    columns, label = generate(options.rows, options.features)
    terms = fb.Terms.read(
        {"columns": {"label": LABEL, "numeric": list(columns)}, "rounds": LATE, "protection": "plain"}
    )
    table = pa.table({**columns, LABEL: label})
    small = table.slice(0, 100)
    fb.simulate(terms, [small, small])  # compile
    rows = np.ascontiguousarray(np.column_stack(list(columns.values())))
    start = time.process_time()
    matrix = xgb.QuantileDMatrix(rows, label, max_bin=256, nthread=1)
    binning = time.process_time() - start
    repeats = []
    for number in range(options.repeats):
        print(f"repeat {number + 1} of {options.repeats} ...", file=sys.stderr)
        repeats.append(
            Repeat(
                one_party=time_fedboost(terms, table, 1),
                xgboost=time_xgboost(matrix, binning),
                three_parties=time_fedboost(terms, table, 3),
            )
        )
    report(repeats, options)


def generate(rows: int, features: int) -> tuple[dict[str, Float32], Float32]:
    """Normal columns and a noisy linear label."""
    draw = np.random.default_rng(0)
    columns = {f"f{i}": draw.standard_normal(rows, dtype=np.float32) for i in range(features)}
    score = draw.standard_normal(rows, dtype=np.float32)
    for column in columns.values():
        score += np.float32(0.3 * draw.standard_normal()) * column
    return columns, (score > 0).astype(np.float32)


def time_fedboost(terms: fb.Terms, table: pa.Table, parties: int) -> Cost:
    """One training with the rows in as many equal parts."""
    ends = np.linspace(0, table.num_rows, parties + 1).astype(int).tolist()
    shards = [
        table.slice(begin, end - begin) for begin, end in itertools.pairwise(ends)
    ]  # views of the same arrays
    marks: list[float] = []
    start = time.process_time()
    fb.simulate(terms, shards, on_round=lambda row: marks.append(time.process_time()))
    return Cost.of(start, marks)


class Clock(xgb.callback.TrainingCallback):
    """Reads the clock at the end of each of XGBoost's rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[float] = []

    def after_iteration(self, model: object, epoch: int, evals_log: object) -> bool:
        """Go on in any case."""
        self.marks.append(time.process_time())
        return False


def time_xgboost(matrix: xgb.QuantileDMatrix, binning: float) -> Cost:
    """One training with the rows binned already."""
    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": 6,
        "max_bin": 256,
        "nthread": 1,
    }
    clock = Clock()
    start = time.process_time()
    xgb.train(settings, matrix, LATE, callbacks=[clock])
    return Cost.of(start - binning, clock.marks)


def report(repeats: list[Repeat], options: argparse.Namespace) -> None:
    """The table, the two ratios, and the JSON file."""
    sides = {
        "XGBoost": [repeat.xgboost for repeat in repeats],
        "fedboost, one party": [repeat.one_party for repeat in repeats],
        "fedboost, three parties": [repeat.three_parties for repeat in repeats],
    }
    claims = {
        "fedboost, one party": ("XGBoost", XGBOOST_AT_MOST),
        "fedboost, three parties": ("fedboost, one party", PARTIES_AT_MOST),
    }
    rows, ratios = [], []
    for side, costs in sides.items():
        row = [side, spread([cost.tree for cost in costs], 3), spread([cost.first for cost in costs], 2)]
        if side in claims:
            other, most = claims[side]
            values = [mine.tree / its.tree for mine, its in zip(costs, sides[other], strict=True)]
            median = statistics.median(values)
            row += [f"{spread(values, 2)} x {other}", f"{most:.1f}", "yes" if median <= most else "NO"]
            ratios.append({"side": side, "to": other, "median": median, "at_most": most})
        rows.append(row)
    common.show(
        f"CPU seconds, {options.rows:,} x {options.features}, depth 6, 256 bins, one thread: "
        f"median (least - most) of {len(repeats)}",
        ("side", "per tree", "floats to first tree", "ratio of trees", "claim", "holds"),
        rows,
    )
    common.save(
        options.json,
        {
            "benchmark": "speed",
            "rows": options.rows,
            "features": options.features,
            "unit": "CPU seconds",
            "repeats": [asdict(repeat) for repeat in repeats],
            "ratios": ratios,
        },
    )


def spread(values: list[float], digits: int) -> str:
    """Median, least and greatest."""
    shown = [f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} - {shown[2]})"


if __name__ == "__main__":
    main()
