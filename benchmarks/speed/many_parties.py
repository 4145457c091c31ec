"""What do masks cost with 100 and with 1,000 parties, compared with the same training without masks?

    python benchmarks/speed/many_parties.py [--parties N ...]

Trains generated dense float32 rows, 20,000 x 20, in one process with one thread: binary:logistic, depth 6,
256 bins. `masked` and `plain` alternate, and the models are compared. The time of a tree is the median CPU
time between consecutive rounds, of all parties together. `to the first round` covers rows, greetings, keys,
cut points and the first tree.

The claims: with 100 parties, masked takes at most 4 times as long as plain. With 1,000 parties, training
works.
"""

# One thread on every side, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import itertools
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import pyarrow as pa
from common import LABEL, generate, spread, verdict

import fedboost as fb

ROWS, FEATURES = 20_000, 20
CASES = {100: 4.0, 1_000: None}
"""Claimed multiple of plain by number of parties."""


@dataclass(frozen=True)
class Training:
    """CPU seconds of one training: to the end of the first round, and of each tree behind it."""

    first: float
    trees: list[float]


def main() -> None:
    """Measure every case."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--parties", type=int, nargs="+", default=list(CASES), help="default: 100 1000")
    parser.add_argument("--rounds", type=int, default=5, help="of each training (default 5)")
    parser.add_argument("--repeats", type=int, default=3, help="medians are taken over these (default 3)")
    options = parser.parse_args()
    if options.rounds < 2:
        common.fail("--rounds must be at least 2")
    columns, label = generate(ROWS, FEATURES)
    table = pa.table({**columns, LABEL: label})
    train(table.slice(0, 300), 3, "masked", 2)  # compile
    train(table.slice(0, 300), 3, "plain", 2)
    results = {}
    for parties in options.parties:
        print(f"{parties:,} parties ...", file=sys.stderr)
        results[parties] = [measure(table, parties, options.rounds) for _ in range(options.repeats)]
    report(results, options)


def measure(table: pa.Table, parties: int, rounds: int) -> dict[str, Training]:
    """One training with masks and one without."""
    masked, model = train(table, parties, "masked", rounds)
    plain, same = train(table, parties, "plain", rounds)
    if model.booster != same.booster:
        common.fail("the masked model is another than the plain one")
    return {"masked": masked, "plain": plain}


def train(table: pa.Table, parties: int, protection: str, rounds: int) -> tuple[Training, Any]:
    """A training and its model."""
    numeric = [name for name in table.column_names if name != LABEL]
    terms = fb.Terms(columns={"label": LABEL, "numeric": numeric}, rounds=rounds, protection=protection)
    ends = [time.process_time()]
    result = fb.simulate(
        terms, common.equal_parts(table, parties), on_round=lambda row: ends.append(time.process_time())
    )
    first, *trees = (after - before for before, after in itertools.pairwise(ends))
    return Training(first, trees), result.model


def report(results: dict[int, list[dict[str, Training]]], options: Any) -> None:
    """The table and the JSON file."""
    rows = []
    for parties, pairs in results.items():
        plain, masked = ([a_tree(pair[name]) for pair in pairs] for name in ("plain", "masked"))
        ratios, most = [m / p for m, p in zip(masked, plain, strict=True)], CASES.get(parties)
        rows.append(
            (
                f"{parties:,} parties",
                spread(plain, 2),
                spread(masked, 2),
                spread(ratios, 2),
                f"{most:.1f}" if most else "",
                spread([pair["plain"].first for pair in pairs], 1),
                spread([pair["masked"].first for pair in pairs], 1),
                verdict(statistics.median(ratios) <= most) if most else "",
            )
        )
    shown = common.Table(
        f"CPU seconds, 20,000 x 20, depth 6, one thread: median (least - most) of {options.repeats}",
        (
            *("case", "plain, a tree", "masked, a tree", "ratio", "claim"),
            *("plain, to the first round", "masked, to the first round", "holds"),
        ),
        rows,
        ["All parties share one core here; on machines of their own each has its part of these seconds."],
    )
    cases = [
        {"parties": parties, "at_most": CASES.get(parties), "pairs": [_facts(pair) for pair in pairs]}
        for parties, pairs in results.items()
    ]
    common.publish(options, [shown], {"rounds": options.rounds, "cases": cases})


def a_tree(training: Training) -> float:
    return statistics.median(training.trees)


def _facts(pair: dict[str, Training]) -> dict[str, Any]:
    return {name: asdict(training) for name, training in pair.items()}


if __name__ == "__main__":
    main()
