"""What does a tree cost compared with XGBoost, LightGBM and scikit-learn, and what do more parties add?

    python benchmarks/speed/speed.py [--data FOLDER] [--tables NAME ...]

All sides train on the same float32 rows: binary:logistic, depth 6, 256 bins, learning rate 0.3.
The sides alternate:

- fedboost with one `plain` party, and with three parties that hold the same rows in one process;
- XGBoost (`hist`, QuantileDMatrix);
- LightGBM (at most 64 leaves, the faster of row-wise and col-wise, shown in the table);
- scikit-learn's HistGradientBoosting.

Categories are level numbers on all sides. The label of kddcup99_10pct is normal or not normal.

Seconds are CPU time with one thread and wall time with two. The time of a tree is the time between the ends
of rounds 5 and 25, divided by 20. fedboost's includes the metric of each round and the size of each message,
for which queries are encoded. scikit-learn's is the difference between trainings of 5 and of 25 rounds.

The claims: with one thread a tree costs at most 0.8 times XGBoost's and 0.6 times LightGBM's, with two
threads at most 0.9 times XGBoost's. From raw floats to the end of the first tree takes at most half of
XGBoost's time. Three parties cost at most 1.5 times one. The other figures have no claim.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import peers
import pyarrow as pa
import pyarrow.compute as pc
from common import generate, spread, verdict
from peers import FEDBOOST, LIGHTGBM, SKLEARN, XGBOOST, Cost, Rows

import fedboost as fb
from fedboost.runtime.data.shard import to_shard

THREE = "fedboost, three parties"
Figure = Literal["tree", "first"]


def read(dataset: common.Dataset, positive: str | None, options: argparse.Namespace) -> Rows:
    """Read a real table as float32: level numbers, missing values as NaN."""
    table = common.load(options.data, dataset)
    if positive is not None:
        place = table.column_names.index(dataset.label)
        others = pc.not_equal(table.column(dataset.label).cast(pa.string()), positive)
        table = table.set_column(place, dataset.label, others)
    terms = fb.Terms.draft(table, dataset.label)
    shard = to_shard(table.slice(0, options.rows), terms, "all")
    columns = dict(zip(terms.columns.features, map(np.asarray, shard.columns), strict=True))
    return Rows.of(columns, shard.label)


@dataclass(frozen=True)
class Source:
    """Source of rows: generated, or a real table."""

    rows: Callable[[argparse.Namespace], Rows]
    real: bool = False


def generated(rows: int, features: int) -> Source:
    """Source of dense normal values."""
    return Source(lambda options: Rows.of(*generate(min(rows, options.rows or rows), features)))


def real(dataset: common.Dataset, positive: str | None = None) -> Source:
    """Source of a real table; its label is the level `positive` against all others, if named."""
    return Source(partial(read, dataset, positive), real=True)


SOURCES = {
    "long": generated(1_000_000, 50),
    "wide": generated(200_000, 500),
    "adult": real(common.ADULT),
    "kddcup99_10pct": real(common.KDDCUP, "normal"),
}
SHARED = "long"
"""The table that is also divided among three parties."""
THREADS: dict[int, Literal["cpu", "wall"]] = {1: "cpu", 2: "wall"}
"""CPU or wall seconds, by number of threads."""
CLAIMS: dict[tuple[Figure, int], dict[str, float]] = {
    ("tree", 1): {XGBOOST: 0.8, LIGHTGBM: 0.6},
    ("tree", 2): {XGBOOST: 0.9},
    ("first", 1): {XGBOOST: 0.5},
    ("first", 2): {XGBOOST: 0.5},
}
"""How many times this side's seconds fedboost may take, on the tables CLAIMED."""
CLAIMED = ("long", "wide", "adult", "kddcup99_10pct")
"""Tables with claims. The other tables have none."""
PARTIES_AT_MOST = 1.5
"""Claimed multiple of one party's seconds for three parties, with one thread, on the table SHARED."""


@dataclass(frozen=True)
class Measured:
    """Costs of every side on a table with a number of threads, for each repeat."""

    table: str
    claimed: bool
    threads: int
    wise: str
    repeats: list[dict[str, Cost]]

    def seconds(self, side: str, figure: Figure) -> list[float]:
        """Seconds of each repeat, CPU or wall."""
        return [getattr(getattr(repeat[side], figure), THREADS[self.threads]) for repeat in self.repeats]

    def ratios(self, side: str, other: str, figure: Figure) -> list[float]:
        """Ratio to the other side's seconds in each repeat."""
        pairs = zip(self.seconds(side, figure), self.seconds(other, figure), strict=True)
        return [mine / its for mine, its in pairs]


def main() -> None:
    """Time all sides alternately on each table."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="where adult and kddcup99_10pct are, to measure on these too",
    )
    parser.add_argument("--tables", nargs="+", choices=SOURCES, default=[*SOURCES], metavar="NAME")
    parser.add_argument("--rows", type=int, metavar="N", help="of each table at most N rows, for a quick try")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    if (options.rows is not None and options.rows < 100) or options.repeats < 1:
        common.fail("--rows must be at least 100, --repeats at least 1")
    peers.compile_kernels()
    results = []
    chosen = {name: source for name, source in SOURCES.items() if name in options.tables}
    if options.data is None:
        chosen = {name: source for name, source in chosen.items() if not source.real}
    if not chosen:
        common.fail("--tables: these are real ones; say with --data where they are")
    for name, source in chosen.items():
        rows = source.rows(options)
        for threads in THREADS:
            print(f"{name}, threads: {threads} ...", file=sys.stderr)
            results.append(measure(name, rows, threads, options.repeats))
    tables = [trees(results), firsts(results), *([shards(results)] if SHARED in chosen else [])]
    common.publish(options, tables, {"results": [asdict(result) for result in results]})


def measure(name: str, rows: Rows, threads: int, repeats: int) -> Measured:
    """Train with all sides alternately, for each repeat."""
    clock = THREADS[threads]
    wise = min(peers.WISE, key=lambda wise: getattr(peers.time_lightgbm(rows, threads, wise).tree, clock))
    sides = {**peers.TIMED, LIGHTGBM: partial(peers.time_lightgbm, wise=wise)}
    if name == SHARED and threads == 1:
        sides[THREE] = partial(peers.time_fedboost, parties=3)
    found = []
    for number in range(repeats):
        print(f"repeat {number + 1} of {repeats} ...", file=sys.stderr)
        found.append({side: train(rows, threads) for side, train in sides.items()})
    shape = "{:,} x {}".format(*rows.matrix.shape)
    table = f"{name}, {shape}" if SOURCES[name].real else shape
    return Measured(table, name in CLAIMED, threads, wise, found)


# ---- what came of it --------------------------------------------------------------------------------


def trees(results: Sequence[Measured]) -> common.Table:
    """Table of the costs of a tree."""
    return beside("Seconds a tree", "tree", results)


def firsts(results: Sequence[Measured]) -> common.Table:
    """Table of the times to the first tree."""
    return beside("Seconds from raw floats to the end of the first tree", "first", results)


def beside(title: str, figure: Figure, results: Sequence[Measured]) -> common.Table:
    """Median seconds of every side, and fedboost's as a multiple of the others'."""
    sides = (FEDBOOST, XGBOOST, LIGHTGBM, SKLEARN)
    rows = []
    for result in results:
        shown = [f"{statistics.median(result.seconds(side, figure)):.4f}" for side in sides]
        shown[sides.index(LIGHTGBM)] += f" {result.wise}"
        claims, held = CLAIMS[figure, result.threads] if result.claimed else {}, []
        for other in (XGBOOST, LIGHTGBM):
            ratios = result.ratios(FEDBOOST, other, figure)
            shown += [spread(ratios, 2), f"{claims[other]:g}" if other in claims else ""]
            held += [statistics.median(ratios) <= claims[other]] if other in claims else []
        threads = f"{result.threads}, {THREADS[result.threads]}"
        rows.append([result.table, threads, *shown, verdict(all(held)) if held else ""])
    return common.Table(
        f"{title}: median of {len(results[0].repeats)}; ratios: median (least - most)",
        ("rows", "threads", *sides, "of XGBoost's", "claim", "of LightGBM's", "claim", "holds"),
        rows,
    )


def shards(results: Sequence[Measured]) -> common.Table:
    """Table of the cost of three parties and one."""
    rows = []
    for result in results:
        if THREE not in result.repeats[0]:
            continue
        ratios = result.ratios(THREE, FEDBOOST, "tree")
        seconds = [spread(result.seconds(side, "tree"), 3) for side in (FEDBOOST, THREE)]
        holds = statistics.median(ratios) <= PARTIES_AT_MOST
        rows.append([result.table, *seconds, spread(ratios, 2), f"{PARTIES_AT_MOST:g}", verdict(holds)])
    headings = ("rows", "one party", "three parties", "ratio", "claim", "holds")
    return common.Table("CPU seconds a tree of all parties, one process, one thread", headings, rows)


if __name__ == "__main__":
    main()
