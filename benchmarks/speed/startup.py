"""How long do a command, an import, the first kernel and the first tree take?

    python benchmarks/speed/startup.py

First, wall seconds of whole processes, including Python's start: `fedboost --help`, `import fedboost`, and
a first call of a compiled kernel from the cache of an earlier run. For comparison: an empty Python, and
imports of XGBoost and LightGBM. Each runs once to warm up; then all alternate.

Then, in one process, seconds from raw floats to the end of the first tree: `fedboost.simulate` with one
party and with four, with and without its warnings about the tables, and XGBoost (`hist`, QuantileDMatrix,
256 bins). CPU seconds with one thread, wall seconds with two.

The claims: the first two processes take less than 0.3 s, the first kernel less than 1 s. The first tree of
one party takes at most a quarter of XGBoost's time. Warnings take at most a tenth of the time.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import peers
from common import generate, spread, verdict
from peers import Clock, Rows

import fedboost as fb

KERNEL = """
import numpy
from fedboost.gbdt.kernels import objectives
objectives.exps(numpy.zeros(1))
"""
CASES: dict[str, tuple[list[str], float | None]] = {
    "fedboost --help": (["-m", "fedboost", "--help"], 0.3),
    "import fedboost": (["-c", "import fedboost"], 0.3),
    "first call of a kernel": (["-c", KERNEL], 1.0),
    "Python alone": (["-c", ""], None),
    "import xgboost": (["-c", "import xgboost"], None),
    "import lightgbm": (["-c", "import lightgbm"], None),
}
"""Python's arguments, and the claimed limit in seconds."""
SHAPE = 600_000, 50
PARTIES = (1, 4)
OF_XGBOOST = 0.25
"""Claimed multiple of XGBoost's seconds for one party's first tree."""
OF_WARNINGS = 0.1
"""Claimed share of warnings in these seconds."""
CLOCKS = {1: "cpu", 2: "wall"}
"""CPU or wall seconds, by number of threads."""


def main() -> None:
    """Start all processes alternately."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    parser.add_argument("--rows", type=int, default=SHAPE[0], help="to the first tree (default 600000)")
    options = parser.parse_args()
    if options.repeats < 1 or options.rows < 100:
        common.fail("--repeats must be at least 1, --rows at least 100")
    for words, _ in CASES.values():
        seconds(words)
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(options.repeats):
        for name, (words, _) in CASES.items():
            found[name].append(seconds(words))
    rows = []
    for name, (_, most) in CASES.items():
        row = [name, spread(found[name], 2)]
        held = most is not None and statistics.median(found[name]) < most
        rows.append([*row, f"{most:g}", verdict(held)] if most is not None else [*row, "", ""])
    shown = common.Table(
        f"Wall seconds of a process: median (least - most) of {options.repeats}",
        ("process", "seconds", "claim", "holds"),
        rows,
    )
    peers.compile_kernels()
    rows = Rows.of(*generate(options.rows, SHAPE[1]))
    firsts = {threads: first_trees(rows, threads, options.repeats) for threads in CLOCKS}
    common.publish(options, [shown, beside(firsts, options)], {"seconds": found, "first trees": firsts})


def first_trees(rows: Rows, threads: int, repeats: int) -> dict[str, list[float]]:
    """Seconds to the first tree of all sides, in turns, whose order is drawn: memory that the one before
    freed makes a difference."""
    sides: dict[str, Callable[[], float]] = {"XGBoost": lambda: xgboost(rows, threads)}
    for parties in PARTIES:
        sides[f"{parties}"] = partial(ours, rows, threads, parties)
        sides[f"{parties}, quiet"] = partial(ours, rows, threads, parties, on_table=lambda *_: None)
    for train in sides.values():
        train()
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(repeats):
        print(f"threads: {threads}, repeat {number + 1} of {repeats} ...", file=sys.stderr)
        for side in random.Random(number).sample([*sides], len(sides)):
            found[side].append(sides[side]())
    return found


def ours(rows: Rows, threads: int, parties: int, **options: Any) -> float:
    """Time to fedboost's first tree, with the rows in equal parts."""
    shards, terms = common.equal_parts(rows.table, parties), peers.terms_of([*rows.columns], 1)
    clock = Clock()
    fb.simulate(terms, shards, on_round=clock.mark, nthread=threads, **options)
    return first(clock, threads)


def xgboost(rows: Rows, threads: int) -> float:
    """Time to XGBoost's first tree with all rows."""
    clock = Clock()
    peers.train_xgboost(rows.matrix, rows.label, threads, 1, clock.mark)
    return first(clock, threads)


def first(clock: Clock, threads: int) -> float:
    """Seconds from the start to the end of the first tree, CPU or wall."""
    return float(getattr(clock.marks[0] - clock.start, CLOCKS[threads]))


def beside(firsts: dict[int, dict[str, list[float]]], options: argparse.Namespace) -> common.Table:
    """What comes of the first trees. Warnings: what is added to the least of the times without."""
    rows = []
    for threads, found in firsts.items():
        for parties in PARTIES:
            own, quiet, theirs = found[f"{parties}"], found[f"{parties}, quiet"], found["XGBoost"]
            ratios = [mine / its for mine, its in zip(own, theirs, strict=True)]
            share = max(1 - min(quiet) / min(own), 0.0)
            held = share <= OF_WARNINGS and (parties > 1 or statistics.median(ratios) <= OF_XGBOOST)
            seconds = [spread(values, 2) for values in (own, quiet, theirs)]
            claim = f"{OF_XGBOOST:g}" if parties == 1 else ""
            shown = [*seconds, spread(ratios, 2), claim, f"{share:.2f}", f"{OF_WARNINGS:g}", verdict(held)]
            rows.append([f"{parties}", f"{threads}, {CLOCKS[threads]}", *shown])
    shape = f"{options.rows:,} x {SHAPE[1]}"
    return common.Table(
        f"Seconds to the first tree, {shape}: median (least - most) of {options.repeats}",
        (
            *("parties", "threads", "fedboost", "without warnings", "XGBoost", "of XGBoost's", "claim"),
            *("warnings", "claim", "holds"),
        ),
        rows,
        ["`warnings` is their share of the least of the seconds."],
    )


def seconds(words: list[str]) -> float:
    """Wall seconds of a Python process."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        common.fail(f"python {words[0]} ...: {done.stderr.strip().splitlines()[-1]}")
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
