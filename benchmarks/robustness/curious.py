"""Can an aggregator that keeps all messages open less than the sum over a whole roster?

    python benchmarks/robustness/curious.py [--seeds N]

Runs seeds of tests/helpers/curious.py, with masks in one leg and in two, and in one leg together with adders,
whose sums of regions the adversary has as well. An aggregator makes parties seal
in any order, over any roster, in any attempt, and sends some of them different questions. It has one or two
accomplices, and tries to open every set of vectors that it received.

The claim: only sums over the honest parties of a whole roster open. Prints the outcomes and the seeds that
break the claim; exit status 1 if there are any.
"""

import collections
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
from consortium import names
from curious import Aggregator, WithAdders, check_only_whole_rosters_open, played

BATCH = 100


def batch(first: int) -> tuple[collections.Counter[str], list[str]]:
    """Run a hundred seeds; return the counts of outcomes and the violating seeds."""
    seen: collections.Counter[str] = collections.Counter()
    broken = []
    for seed in range(first, first + BATCH):
        parties = names(3 + seed % 3)
        most = len(parties) - 2
        for legs, kind in ((1, Aggregator), (2, Aggregator), (1, WithAdders)):
            colluding = parties[: seed // 3 % (most + 1)] if legs == 1 else parties[: most > 1 and seed % 2]
            try:
                aggregator = played(seed, parties, colluding, legs, kind)
                opened = check_only_whole_rosters_open(aggregator)
            except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
                broken.append(f"{seed}, {legs} legs: {type(error).__name__}: {error}")
                continue
            way = f"{legs} leg{'s' if legs > 1 else ''}{', adders' if kind is WithAdders else ''}"
            seen[f"{way}: tags that opened, over a whole roster"] += len(opened)
            seen[f"{way}: tags that did not"] += len(aggregator.uploads) - len(opened)
            seen[f"{way}: vectors"] += sum(map(len, aggregator.uploads.values()))
            seen[f"{way}: refusals"] += aggregator.refused.total()
    return seen, broken


def main() -> int:
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None, help="processes (default: one a core)")
    arguments = parser.parse_args()
    began = time.monotonic()
    seen: collections.Counter[str] = collections.Counter()
    broken: list[str] = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        for some, wrong in pool.map(batch, range(arguments.first, arguments.first + arguments.seeds, BATCH)):
            seen += some
            broken += wrong
    seconds = time.monotonic() - began
    shown = common.Table(
        f"{arguments.seeds:,} seeds in {seconds:.0f} s",
        ("outcome", "count"),
        [(name, f"{count:,}") for name, count in sorted(seen.items())],
        [f"Violations: {len(broken)}; claimed none: {common.verdict(not broken)}."],
    )
    common.publish(arguments, [shown], {"seconds": seconds, "seen": seen, "broken": broken})
    print("\n".join(broken[:20]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
