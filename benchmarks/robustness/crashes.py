"""Does a training whose processes are killed end with the same model, and how fast does it continue?

    python benchmarks/robustness/crashes.py [--seeds N]

A consortium on loopback with keys and one process per member trains 30 rounds over 20,000 rows. `kill -9`
hits the aggregator and the parties 20 times at random moments drawn by a seed, and each killed process is
restarted at once. Then a party is suspended (SIGSTOP) for longer than gRPC's keepalive timeout. Both run
with each protection, and with three parties that hold different columns of the same rows, in one order or
matched by ids.

Prints the seconds from a restart to the next round that the analyst receives. They include the start of
Python, loading libraries and recomputing the party's margins.

The claim: the model file equals that of an undisturbed training in one process, except for signatures, and
every party has signed it. Exit status 1 if it does not hold.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import common
from anything import ANYTHING
from crashes import bare, crashed, stopped
from sites import rows, shared_out, terms, written

import fedboost as fb
from fedboost.runtime.model import Model
from fedboost.runtime.net.channel import KEEPALIVE_MS
from tests.helpers.columns_apart import LAYOUTS, matched, pooled, scattered, terms_of, train_pooled

ROWS, ROUNDS, KILLS = 20_000, 30, 20
COLUMN_ROWS = 100_000
"""Rows of the cases with different columns: enough for a kill within a round."""
PROTECTIONS = ("plain", "masked")
ASLEEP = 2 * KEEPALIVE_MS / 1000 + 10
"""Seconds of suspension: gRPC probes after one keepalive and closes the connection after another."""


@dataclass(frozen=True)
class Result:
    """One training."""

    case: str
    what: str
    seconds: float
    goes_on: list[float]
    equal: bool


@dataclass(frozen=True)
class Case:
    """A training. is_due: whether a model equals the undisturbed one, except for signatures."""

    name: str
    tables: Mapping[str, Any]
    terms: fb.Terms
    is_due: Callable[[Model], bool]


def cases() -> Iterator[Case]:
    """Cases with divided rows for each protection, then with divided columns."""
    tables = shared_out(3, rows(ROWS))
    for protection in PROTECTIONS:
        agreed = terms(tables, rounds=ROUNDS, protection=protection)
        expected = bare(fb.simulate(agreed, tables).model)
        yield Case(protection, tables, agreed, lambda model, due=expected: bare(model) == due)
    table, layout = pooled(COLUMN_ROWS), LAYOUTS["three holders"]
    settings = {"rounds": ROUNDS, "max_depth": 6}
    whole, tables = train_pooled(table, **settings).model.booster.to_xgboost(), layout.tables(table)
    agreed = terms_of(layout, **settings).with_parties(list(tables))
    yield Case(
        f"different columns of {COLUMN_ROWS:,} rows",
        tables,
        agreed,
        lambda model: model.booster.to_xgboost() == whole,
    )
    parts, common = scattered(layout, table)
    shared = train_pooled(common, **settings).model.booster.to_xgboost()
    yield Case(
        f"different columns, {common.num_rows} rows matched by ids",
        parts,
        matched(layout, **settings).with_parties(list(parts)),
        lambda model: model.booster.to_xgboost() == shared,
    )


def trainings(seeds: int, first: int) -> Iterator[Result]:
    """Train each case with each seed, then with a suspended party."""
    for case in cases():
        tables, agreed = case.tables, case.terms
        for seed in [*range(first, first + seeds), None]:
            began = time.monotonic()
            with TemporaryDirectory(prefix="fedboost-") as name:
                folder = Path(name)
                files = written(folder, tables)
                if seed is None:
                    what = f"a party suspended for {ASLEEP:g} s"
                    model, after = stopped(folder, files, agreed, ASLEEP, ANYTHING)
                    goes_on = [after]
                else:
                    model, kills, goes_on = crashed(folder, files, agreed, KILLS, seed, ANYTHING)
                    assert kills == KILLS, "the training was over before all kills: take more rows"
                    what = f"{kills} kills, seed {seed}"
            equal = case.is_due(model) and set(model.attestations) == set(tables)
            yield Result(case.name, what, time.monotonic() - began, goes_on, equal)


def main() -> int:
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--seeds", type=int, default=3, help="trainings with kills, for each protection")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    options = parser.parse_args()
    results = []
    for result in trainings(options.seeds, options.first):
        results.append(result)
        print(f"{result.case}, {result.what}: {'equal' if result.equal else 'NOT EQUAL'}", flush=True)
    lines = [
        [
            f"{r.case}, {r.what}",
            f"{r.seconds:.1f}",
            f"{median(r.goes_on):.2f}",
            f"{max(r.goes_on):.2f}",
            "yes" if r.equal else "NO",
        ]
        for r in results
    ]
    headings = ["training", "seconds", "median s to go on", "most", "equal model"]
    shown = common.Table(f"{ROUNDS} rounds, 3 parties, {ROWS:,} rows", headings, lines)
    common.publish(options, [shown], {"trainings": [vars(r) for r in results]})
    return 0 if all(r.equal for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
