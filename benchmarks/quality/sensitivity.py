"""How much does one row change what leaves a party under noise, and how much of the budget does it use?

    python benchmarks/quality/sensitivity.py --data FOLDER

Trains once on 70 % of the rows, with the noise of three parties, delta 1e-5. The same queries then go to
hostile rows, each in a party of its own. An answer is a sum over rows, so this is what the row adds to the
integers of any party. For the first rows, the answers of all rows with and without the row are compared, too.

Hostile rows have cells at, beside and beyond cut points and ranges, infinite or missing ones, or are real
rows, with either label. A category that the terms do not name is read as missing.

`change` is the largest norm of what a row adds to an answer, in units of the sensitivity that the noise is
for. `cost` is the sum over all answers of the squared norm divided by the variance of the honest parties'
noise, in units of what epsilon and delta allow. `planned` is the same for the sensitivities.

The claims: no change and no cost above 1, and a planned cost from 0.999 to 1.
"""

import math
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import numpy.typing as npt
import private_tables as tables

import fedboost as fb
from fedboost.boosting.programs import private
from fedboost.boosting.queries import Query
from fedboost.boosting.queries.labels import StartQuery
from fedboost.holders.shard import Shard
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy import noise as accounting
from fedboost.runtime.data.shard import to_shard
from fedboost.terms.hiding import CUT_POINTS, START, TREES

DELTA = 1e-5
KINDS = {CUT_POINTS: "counts", START: "start", TREES: "trees"}
COMPARED = 3  # hostile rows that are also added to all rows
Int64 = npt.NDArray[np.int64]


def main() -> None:
    """Attack a training on each table at each epsilon."""
    parser = common.arguments(__doc__)
    parser.add_argument("--epsilons", nargs="+", type=float, default=(1.0, 8.0), metavar="NUMBER")
    parser.add_argument("--rows", type=int, default=100, help="hostile rows of each label (default 100)")
    options = parser.parse_args()
    if options.rows < 1:
        common.fail("--rows must be at least 1")
    found, shown = list[dict[str, Any]](), list[list[str]]()
    for dataset in tables.DECLARED:
        table = tables.load(options.data, dataset)
        for epsilon in options.epsilons:
            print(f"{dataset.name}, epsilon {epsilon:g} ...", file=sys.stderr)
            settings = {"noise": {"epsilon": epsilon, "delta": DELTA}, "parties": common.PARTIES}
            terms = tables.terms_of(table, dataset, **settings)
            shard = to_shard(tables.split(table, 0)[0], terms, "all")
            one = {"dataset": dataset.name, "epsilon": epsilon, **attack(terms, shard, options.rows)}
            found.append(one)
            numbers = (f"{number:.6f}" for number in (*one["changes"].values(), one["cost"], one["planned"]))
            facts = dataset.name, f"{epsilon:g}", f"{one['answers']}", f"{one['rows']}"
            shown.append([*facts, *numbers, common.verdict(one["holds"])])
    changes = (f"change of {kind}" for kind in KINDS.values())
    headings = "dataset", "epsilon", "answers", "hostile rows", *changes, "cost", "planned", "holds"
    largest = common.Table("Largest effect of one row", headings, shown)
    common.publish(options, [largest], {"results": found})


def attack(terms: fb.Terms, shard: Shard, rows: int) -> dict[str, Any]:
    """Train with noise, and measure what hostile rows would add to each answer. `changes` are the largest."""
    assert terms.noise is not None
    queries, exact = trained(terms, shard)
    budget, cost = accounting.mu_of(terms.noise.epsilon, DELTA) ** 2, 0.0
    hostile, changes = hostile_rows(terms, shard, queries, rows), dict.fromkeys(KINDS.values(), 0.0)
    for row in range(hostile.rows):
        one, of_row = hostile.pick(np.array([row])), 0.0
        alone = answers(terms, one, queries)
        if row < COMPARED:
            more = answers(terms, with_row(shard, one), queries)
            assert all(map(np.array_equal, map(np.subtract, more, exact), alone))
        for query, added in zip(queries, alone, strict=True):
            if (release := query.release(terms)) is not None:
                square, kind = sum(cell * cell for cell in added.tolist()), KINDS[release.what]
                changes[kind] = max(changes[kind], math.sqrt(square) / release.sensitivity)
                of_row += square / (release.share**2 * release.honest)
        cost = max(cost, of_row / budget)
    planned, count = terms.plan.cost / budget, sum(query.cells > 0 for query in queries)
    holds = max(*changes.values(), cost) <= 1.0 and 0.999 <= planned <= 1.0
    facts = {"answers": count, "rows": hostile.rows, "changes": changes}
    return {**facts, "cost": cost, "planned": planned, "holds": holds}


def trained(terms: fb.Terms, shard: Shard) -> tuple[list[Query], list[Int64]]:
    """The queries of a training with noise, and the answers of all rows before noise."""
    holder, draw, program = HorizontalHolder(lambda: shard, terms), random.Random(0), private.train(terms, [])
    queries, exact = [next(program)], list[Int64]()
    while True:
        exact.append(answer := holder.answer(queries[-1]))
        if (release := queries[-1].release(terms)) is not None:
            for _ in range(release.drawn):
                answer = answer + accounting.noise_of(draw.randbytes(32), release.share, answer.size)
        try:
            queries.append(program.send(answer))
        except StopIteration:
            return queries, exact


def answers(terms: fb.Terms, shard: Shard, queries: list[Query]) -> list[Int64]:
    """The integers that leave a party with these rows, before noise."""
    holder = HorizontalHolder(lambda: shard, terms)
    return [holder.answer(query) for query in queries]


def hostile_rows(terms: fb.Terms, shard: Shard, queries: list[Query], rows: int) -> Shard:
    """Rows with label 0, then the same with label 1. The first has only missing cells, a quarter are real."""
    draw, columns = np.random.default_rng(0), []
    (cuts,) = (query.cut_points.cuts for query in queries if isinstance(query, StartQuery))
    real = draw.integers(0, shard.rows, rows // 4)
    for name, own, column in zip(terms.columns.features, cuts, shard.columns, strict=True):
        at = np.float32([*own, *terms.columns.ranges.get(name, ()), 0.0])
        if name in terms.columns.ranges:
            beyond = np.repeat(np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45]), at.size // 2)
            at = np.concatenate([at, *(np.nextafter(at, np.float32(way)) for way in (-9e9, 9e9)), beyond])
        cells = draw.choice(np.append(at, np.float32(np.nan)), rows)
        cells[0], cells[1 : real.size + 1] = np.nan, column[0 : shard.rows][real]
        columns.append(np.tile(cells, 2))
    return Shard(tuple(columns), np.repeat(np.float32([0, 1]), rows), np.ones(2 * rows, np.float32))


def with_row(shard: Shard, one: Shard) -> Shard:
    """All rows, and one more."""
    pairs = zip(
        (*shard.columns, shard.label, shard.weight), (*one.columns, one.label, one.weight), strict=True
    )
    *columns, label, weight = (np.append(every[0 : shard.rows], more[0:1]) for every, more in pairs)
    return Shard(tuple(columns), label, weight)


if __name__ == "__main__":
    main()
