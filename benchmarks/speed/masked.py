"""What do masks cost, compared with the same training without them?

    python benchmarks/speed/masked.py

Trains generated dense float32 rows in one process: binary:logistic, depth 6, 256 bins. `masked` and `plain`
alternate, and the models are compared. The time of a tree is the wall time between the ends of rounds 3 and
23, divided by 20. A party's own cost is the CPU time of its sealer per tree (masks, packing, shares), minus
that of the plain sealer.

The claims: with 3 parties at most 1.2 times plain at 1,000,000 x 50 and 1.5 times at 200,000 x 50; with 10
parties at most 2.5 times at 200,000 x 50; bytes at most 1.02 times. With 50 parties, training works.
"""

# One thread on every side, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import pyarrow as pa
from common import LABEL, generate, spread, verdict

import fedboost as fb
from fedboost.privacy import ends
from fedboost.privacy.ends import OneLegSealer, PlainSealer

EARLY, LATE = 3, 23
CASES = ((1_000_000, 3, 1.2), (200_000, 3, 1.5), (200_000, 10, 2.5), (200_000, 50, None))
"""Rows, parties, and the claimed multiple of plain."""
BYTES_AT_MOST = 1.02


@dataclass(frozen=True)
class Pair:
    """One training with masks and one without: seconds a tree, bytes sent a party, sealing seconds a tree."""

    masked: float
    plain: float
    bytes_masked: float
    bytes_plain: float
    sealing_masked: float
    sealing_plain: float


def main() -> None:
    """Measure every case."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--features", type=int, default=50, help="default 50")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    results = []
    for rows, parties, most in CASES:
        repeats = options.repeats if most else 1
        print(f"{rows:,} rows, {parties} parties ...", file=sys.stderr)
        columns, label = generate(rows, options.features)
        table = pa.table({**columns, LABEL: label})
        train(table.slice(0, 300), 3, "masked", 2)  # compile
        train(table.slice(0, 300), 3, "plain", 2)
        results.append((rows, parties, most, [measure(table, parties) for _ in range(repeats)]))
    report(results, options)


def measure(table: pa.Table, parties: int) -> Pair:
    """One pair of trainings."""
    masked, sent_masked, sealing_masked, model = train(table, parties, "masked", LATE)
    plain, sent_plain, sealing_plain, same = train(table, parties, "plain", LATE)
    if model.booster != same.booster:
        common.fail("the masked model is another than the plain one")
    return Pair(masked, plain, sent_masked, sent_plain, sealing_masked, sealing_plain)


def train(table: pa.Table, parties: int, protection: str, rounds: int) -> tuple[float, float, float, Any]:
    """Seconds a tree, bytes a party sent, sealing seconds a tree and party, and the model."""
    shards = common.equal_parts(table, parties)
    numeric = [name for name in table.column_names if name != LABEL]
    terms = fb.Terms(
        columns={"label": LABEL, "numeric": numeric},
        rounds=rounds,
        protection=protection,
    )
    spent = [0.0]
    with (
        mock.patch.object(ends, "OneLegSealer", timed(OneLegSealer, spent)),
        mock.patch.object(ends, "PlainSealer", timed(PlainSealer, spent)),
    ):
        result = fb.simulate(terms, shards)
    seconds = sum(row["seconds"] for row in result.history[EARLY:]) / max(rounds - EARLY, 1)
    return seconds, result.traffic["party-1"][0], spent[0] / parties / rounds, result.model


def timed(kind: Any, spent: list[float]) -> Any:
    """A sealer that accumulates its CPU seconds."""

    class Timed(kind):  # type: ignore[misc]
        def seal(self, values: Any, tag: Any) -> Iterator[bytes]:
            return timed_parts(super().seal(values, tag), spent)

        def note(self) -> bytes:
            return count(super().note, spent)

        def assist(self, request: bytes) -> bytes:
            return count(lambda: super(Timed, self).assist(request), spent)

    return Timed


def count(work: Any, spent: list[float]) -> Any:
    """Run the work and add its CPU time."""
    start = time.process_time()
    result = work()
    spent[0] += time.process_time() - start
    return result


def timed_parts(parts: Iterator[bytes], spent: list[float]) -> Iterator[bytes]:
    """The parts of a report; adds the time to make them."""
    while (part := count(lambda: next(parts, None), spent)) is not None:
        yield part


def report(results: list[Any], options: Any) -> None:
    """The table and the JSON file."""
    rows = []
    for number, parties, most, pairs in results:
        ratios = [pair.masked / pair.plain for pair in pairs]
        size = max(pair.bytes_masked / pair.bytes_plain for pair in pairs)
        extra = [1000 * (pair.sealing_masked - pair.sealing_plain) for pair in pairs]
        holds = most is None or (statistics.median(ratios) <= most and size <= BYTES_AT_MOST)
        rows.append(
            (
                f"{number:,} x {options.features}, {parties} parties",
                spread([pair.plain for pair in pairs], 3),
                spread([pair.masked for pair in pairs], 3),
                spread(ratios, 2),
                f"{most:.1f}" if most else "",
                f"{size:.4f}",
                spread(extra, 1),
                verdict(holds) if most else "",
            )
        )
    shown = common.Table(
        f"Wall seconds a tree, depth 6, 256 bins, one thread: median (least - most) of {options.repeats}",
        ("case", "plain", "masked", "ratio", "claim", "bytes", "extra CPU ms a party and tree", "holds"),
        rows,
        ["All parties share one core here; on machines of their own each spends its extra time a tree."],
    )
    cases = [
        {"rows": number, "parties": parties, "at_most": most, "pairs": [asdict(pair) for pair in pairs]}
        for number, parties, most, pairs in results
    ]
    common.publish(options, [shown], {"features": options.features, "cases": cases})


if __name__ == "__main__":
    main()
