"""What does a tree cost if the parties hold different columns, compared with rows and with one party?

    python benchmarks/speed/columns.py [--most-rows N]

Trains generated dense float32 rows in one process with one thread: binary:logistic, `plain`. First one
party has the whole table, then the parties have equal parts of its rows, then equal parts of its columns,
the first party with the labels. The three alternate, and the models are compared. The time of a tree is the
median CPU time between consecutive rounds, of all roles together. `to the first round` covers rows,
greetings, keys, cut points and the first tree.

Relayed bytes are counted as sealed by their senders. By the formula, gradients take 8 bytes per row and
tree, and row sets one bit per row, for each level and holder with a split there.

The claims: 100,000 x (10 + 10) by columns, depth 5, 32 bins, takes at most 1.8 times as long as one party
with all columns. Relayed bytes exceed the formula by at most 1 %.
"""

# One thread on every side, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import itertools
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import pyarrow as pa
from common import LABEL, generate, spread, verdict

import fedboost as fb
from fedboost.holders.column_rows import GRADIENTS, ROW_SET
from fedboost.protocol.relaying import Ends

ONE, ROWS, COLUMNS = "one party", "by rows", "by columns"
SMALL_DEPTH, SMALL_BINS = 5, 32
PAIR_BYTES, RELAYED_AT_MOST = 8, 1.01


@dataclass(frozen=True)
class Case:
    """A table, its holders, the tree settings, and the claimed multiple of one party's cost."""

    rows: int
    features: int
    holders: int
    depth: int = 6
    bins: int = 256
    most: float | None = None

    @property
    def parts(self) -> list[list[str]]:
        """The features of each holder."""
        names = [f"f{i}" for i in range(self.features)]
        return [part.tolist() for part in np.array_split(names, self.holders)]

    def __str__(self) -> str:
        parts = " + ".join(str(len(part)) for part in self.parts)
        return f"{self.rows:,} x ({parts}), depth {self.depth}, {self.bins} bins"


CASES = (
    Case(100_000, 20, 2, SMALL_DEPTH, SMALL_BINS, most=1.8),
    Case(100_000, 20, 2),
    Case(100_000, 20, 3),
    Case(1_000_000, 50, 2),
    Case(1_000_000, 50, 3),
)


@dataclass(frozen=True)
class Training:
    """CPU seconds of one training: to the end of the first round, and of each tree behind it. relayed: bytes
    by what they are; relays: their number."""

    first: float
    trees: list[float]
    relayed: dict[str, int] = field(default_factory=dict)
    relays: dict[str, int] = field(default_factory=dict)


def main() -> None:
    """Measure every case."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--most-rows", type=int, help="leave out cases with more rows")
    parser.add_argument("--rounds", type=int, default=6, help="of each training (default 6)")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    if options.rounds < 2:
        common.fail("--rounds must be at least 2")
    results = {}
    for case in CASES:
        if options.most_rows is not None and case.rows > options.most_rows:
            continue
        print(f"{case} ...", file=sys.stderr)
        columns, label = generate(case.rows, case.features)
        table = pa.table({**columns, LABEL: label})
        measure(table.slice(0, 300), case, 2)  # compile
        results[case] = [measure(table, case, options.rounds) for _ in range(options.repeats)]
    if not results:
        common.fail("--most-rows leaves no case")
    report(results, options)


def measure(table: pa.Table, case: Case, rounds: int) -> dict[str, Training]:
    """Train each kind alternately."""
    found, boosters = {}, []
    for side, (terms, tables) in sides(table, case, rounds).items():
        found[side], model = train(terms, tables)
        boosters.append(model.booster)
    if any(booster != boosters[0] for booster in boosters):
        common.fail(f"{case}: the models are not the same")
    return found


def sides(table: pa.Table, case: Case, rounds: int) -> dict[str, tuple[fb.Terms, dict[str, pa.Table]]]:
    """Tables and terms of each kind."""
    parties = [f"party-{i + 1}" for i in range(case.holders)]
    holder, *others = parties
    held = dict(zip(parties, case.parts, strict=True))
    columns: dict[str, Any] = {"label": LABEL, "numeric": [name for part in case.parts for name in part]}
    settings: dict[str, Any] = {
        "rounds": rounds,
        "max_depth": case.depth,
        "max_bin": case.bins,
        "protection": "plain",
    }
    alike = fb.Terms(columns=columns, **settings)
    apart = fb.Terms(
        columns={**columns, "held": {party: held[party] for party in others}},
        label_holder=holder,
        rows="in_order",
        **settings,
    )
    by_columns = {party: table.select(names) for party, names in held.items()}
    by_columns[holder] = table.select([*held[holder], LABEL])
    by_rows = dict(zip(parties, common.equal_parts(table, case.holders), strict=True))
    return {ONE: (alike, {holder: table}), ROWS: (alike, by_rows), COLUMNS: (apart, by_columns)}


def train(terms: fb.Terms, tables: dict[str, pa.Table]) -> tuple[Training, Any]:
    """A training and its model."""
    relayed, relays = Counter[str](), Counter[str]()
    ends, seal = [time.process_time()], Ends.seal

    def counted(self: Ends, send: Any, ask: Any, number: int) -> bytes:
        sealed = seal(self, send, ask, number)
        relayed[send.kind] += len(sealed)
        relays[send.kind] += 1
        return sealed

    with mock.patch.object(Ends, "seal", counted):
        result = fb.simulate(terms, tables, on_round=lambda row: ends.append(time.process_time()))
    first, *trees = (after - before for before, after in itertools.pairwise(ends))
    return Training(first, trees, dict(relayed), dict(relays)), result.model


def report(results: dict[Case, list[dict[str, Training]]], options: Any) -> None:
    """The tables and the JSON file."""
    shown = common.Table(
        f"CPU ms a tree of all roles, one thread: median (least - most) of {options.repeats}",
        (
            *("case", ONE, ROWS, COLUMNS, "columns / one", "claim", "columns / rows"),
            *("one, to the first round, s", "columns, to the first round, s", "holds"),
        ),
        [_times(case, repeats) for case, repeats in results.items()],
        ["All roles share one core. With columns, the parties wait for each other once per level."],
    )
    relayed = common.Table(
        "Bytes relayed a tree, as they are sealed, beside the formula",
        ("case", "gradients, kB", "8 bytes a row", "row sets", "their kB", "a bit a row", "ratio", "holds"),
        [_bytes(case, repeats[0][COLUMNS], options.rounds) for case, repeats in results.items()],
        ["Each message is sent once; the aggregator relays it to one or more parties of the block."],
    )
    cases = [
        {**asdict(case), "repeats": [_facts(repeat) for repeat in repeats]}
        for case, repeats in results.items()
    ]
    common.publish(options, [shown, relayed], {"rounds": options.rounds, "cases": cases})


def _times(case: Case, repeats: list[dict[str, Training]]) -> tuple[str, ...]:
    one, rows, columns = ([a_tree(repeat[side]) for repeat in repeats] for side in (ONE, ROWS, COLUMNS))
    beside_one = [c / o for c, o in zip(columns, one, strict=True)]
    beside_rows = [c / r for c, r in zip(columns, rows, strict=True)]
    return (
        str(case),
        *(spread([1000 * seconds for seconds in side], 1) for side in (one, rows, columns)),
        spread(beside_one, 2),
        f"{case.most:.1f}" if case.most else "",
        spread(beside_rows, 2),
        *(spread([repeat[side].first for repeat in repeats], 1) for side in (ONE, COLUMNS)),
        verdict(statistics.median(beside_one) <= case.most) if case.most else "",
    )


def _bytes(case: Case, training: Training, trees: int) -> tuple[str, ...]:
    sets = training.relays[ROW_SET]
    due = training.relays[GRADIENTS] * PAIR_BYTES * case.rows, sets * -(-case.rows // 8)
    sent = training.relayed[GRADIENTS], training.relayed[ROW_SET]
    ratio = sum(sent) / sum(due)
    return (
        str(case),
        *(f"{size / trees / 1000:.1f}" for size in (sent[0], due[0])),
        f"{sets / trees:.1f}",
        *(f"{size / trees / 1000:.1f}" for size in (sent[1], due[1])),
        f"{ratio:.4f}",
        verdict(training.relays[GRADIENTS] == trees and ratio <= RELAYED_AT_MOST),
    )


def a_tree(training: Training) -> float:
    return statistics.median(training.trees)


def _facts(repeat: dict[str, Training]) -> dict[str, Any]:
    return {side: asdict(training) for side, training in repeat.items()}


if __name__ == "__main__":
    main()
