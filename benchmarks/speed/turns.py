"""What do turns cost, compared with their goals?

    python benchmarks/speed/turns.py --folder FOLDER

Counts the round trips of a masked session in one process, from the messages that the aggregator sends to a
party. Every other figure comes from the JSON files in FOLDER that the benchmarks named in the table wrote
(`--json FOLDER/NAME.json`, as `make bench` does).
"""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import pyarrow as pa
from common import LABEL, generate, verdict
from peers import FEDBOOST, LIGHTGBM, XGBOOST

import fedboost as fb
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import Ask, OpenRequest

Values = Mapping[str, Any]
Figure = Callable[[Values], float]
ROUNDS, DEPTH = 10, 6


@dataclass(frozen=True)
class Goal:
    """A goal: the work, the limit, the benchmark that measures it, and how to read its values."""

    work: str
    most: float
    benchmark: str
    figure: Figure
    digits: int = 2


def tree(table: str, side: str, threads: int, clock: str) -> Figure:
    """Ratio of fedboost's seconds per tree to another side's, from `speed`."""

    def ratio(values: Values) -> float:
        [result] = [r for r in values["results"] if r["table"].startswith(table) and r["threads"] == threads]
        pairs = [(repeat[FEDBOOST]["tree"], repeat[side]["tree"]) for repeat in result["repeats"]]
        return statistics.median(mine[clock] / other[clock] for mine, other in pairs)

    return ratio


def wall(case: str, side: str, other: str) -> Figure:
    """Ratio of one side's seconds per tree to another's, from `network`."""
    return lambda values: statistics.median(
        repeat[side]["wall"] / repeat[other]["wall"] for repeat in values["cases"][case]
    )


def seconds(case: str, side: str) -> Figure:
    """Seconds per tree of one side, from `network`."""
    return lambda values: statistics.median(repeat[side]["wall"] for repeat in values["cases"][case])


def many(parties: int) -> Figure:
    """Ratio of CPU seconds per tree with and without masks, from `many_parties`."""

    def ratio(values: Values) -> float:
        [case] = [case for case in values["cases"] if case["parties"] == parties]
        return statistics.median(a_tree(pair["masked"]) / a_tree(pair["plain"]) for pair in case["pairs"])

    def a_tree(training: Values) -> float:
        return statistics.median(training["trees"])

    return ratio


MASKED = "masked, mTLS"
GOALS = (
    Goal(
        "3 parties, 50 ms, 20,000 x 20, masked: s a tree",
        0.36,
        "network",
        seconds("distance", MASKED),
    ),
    Goal("the same beside plain", 1.1, "network", wall("distance", MASKED, "plain")),
    Goal(
        "200,000 x 50, 3 processes, plain, of XGBoost's allreduce",
        0.9,
        "network",
        wall("allreduce", "plain", "XGBoost"),
    ),
    Goal("the same, masked with mTLS", 1.2, "network", wall("allreduce", MASKED, "XGBoost")),
    Goal(
        "1,000,000 x 50, 4 processes, masked beside plain",
        1.15,
        "network",
        wall("processes", MASKED, "plain"),
    ),
    Goal(
        "100 parties, one process, 20,000 x 20, masked beside plain",
        4.0,
        "many_parties",
        many(100),
        1,
    ),
    Goal("adult, one thread, of XGBoost's CPU", 1.0, "speed", tree("adult", XGBOOST, 1, "cpu")),
    Goal(
        "kddcup99_10pct, one thread, of LightGBM's",
        0.9,
        "speed",
        tree("kddcup99_10pct", LIGHTGBM, 1, "cpu"),
    ),
    Goal(
        "1,000,000 x 50, one thread, of XGBoost's",
        0.65,
        "speed",
        tree("1,000,000 x 50", XGBOOST, 1, "cpu"),
    ),
    Goal("1,000,000 x 50, two threads, wall", 0.8, "speed", tree("1,000,000 x 50", XGBOOST, 2, "wall")),
    Goal(
        "1,000,000 x 50: MB of memory",
        240,
        "memory",
        lambda values: statistics.median(values["peaks"][FEDBOOST]) / 1e6,
        0,
    ),
    Goal(
        "15,626 one-hot columns: s to the end of the first tree",
        3.0,
        "wide",
        lambda values: float(values["first tree"]["1"]),
        1,
    ),
)


def main() -> None:
    """Count round trips, read the other figures, and print all with their goals."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--folder", type=Path, required=True, metavar="FOLDER", help="of the JSON files")
    options = parser.parse_args()
    trips, start = round_trips()
    own = common.command("turns", sys.argv[1:])
    rows = [
        ("depth 6, masked: round trips per tree", "6", f"{trips:.1f}", verdict(trips <= DEPTH), own),
        ("the same: round trips before the first tree", "", f"{start}", "", own),
    ]
    values: dict[str, float | None] = {
        "round trips a tree": trips,
        "round trips before the first tree": start,
    }
    for goal in GOALS:
        path = options.folder / f"{goal.benchmark}.json"
        row = goal.work, f"{goal.most:g}"
        if not path.exists():
            rows.append((*row, "not measured", "", ""))
            continue
        result = json.loads(path.read_text())
        reached = values[goal.work] = goal.figure(result["values"])
        rows.append((*row, f"{reached:.{goal.digits}f}", verdict(reached <= goal.most), result["command"]))
    headings = "work", "goal: at most", "reached", "holds", "command"
    common.publish(options, [common.Table("Turns and their costs", headings, rows)], values)


def round_trips() -> tuple[float, int]:
    """Round trips of a tree, and before the first one, as the first party sees them."""
    columns, label = generate(3_000, 10)
    table = pa.table({**columns, LABEL: label})
    terms = fb.Terms.draft(table, LABEL).changed(rounds=ROUNDS, max_depth=DEPTH, protection="masked")
    seen: list[int] = []
    count: Counter[str] = Counter()
    handle = AggregatorSession.handle

    def counted(session: AggregatorSession, party: str, event: Any) -> Sequence[Any]:
        outbox = handle(session, party, event)
        sent = [message for to, message in outbox if to == "a"]
        count["trips"] += sum(isinstance(message, Ask | OpenRequest) for message in sent)
        return outbox

    shards = dict(zip("abc", common.equal_parts(table, 3), strict=True))
    with mock.patch.object(AggregatorSession, "handle", counted):
        fb.simulate(
            terms.changed(parties=list(shards)), shards, on_round=lambda _: seen.append(count["trips"])
        )
    return (seen[-1] - seen[0]) / (ROUNDS - 1), seen[0] - round((seen[-1] - seen[0]) / (ROUNDS - 1))


if __name__ == "__main__":
    main()
