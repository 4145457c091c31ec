"""Does a session with faults end with the right model or with a named error?

    python benchmarks/robustness/faults.py [--seeds N] [--vertical] [--adders] [--liars]

Runs seeds of the fault simulator (tests/helpers/faults.py) and counts the outcomes. Messages are lost and
duplicated, parties and the aggregator are killed or run out of memory at any moment, and every opened sum
is compared with the rows. With --vertical, parties hold different columns of the same rows, in every third
seed matched by ids (tests/helpers/faults_apart.py). Their relays are lost and duplicated too, and the model
is compared with the pooled one.

With --adders, some parties call adders (tests/helpers/faults_adders.py), which are killed and lose their
connections, too. With --liars, these adders also lie a few times a seed: they leave reports out, add them
twice, send earlier sums, or drop and swap frames. Under masks, every opened sum must be exact even then.

The claim: no seed breaks an invariant. Prints those that do, with exit status 1; add them to
tests/protocol/test_faults.py or tests/vertical/test_faults.py.
"""

import collections
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import faults_apart
from faults import play
from faults_adders import AddersWorld, play_liars

BATCH = 100
PLAYS = {
    "": play,
    "vertical": faults_apart.play,
    "adders": partial(play, begin=AddersWorld),
    "liars": play_liars,
}


def batch(world: str, first: int) -> tuple[collections.Counter[str], collections.Counter[str], list[str]]:
    """Run a hundred seeds; return the outcomes, the faults and the violating seeds."""
    ends: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    broken = []
    for seed in range(first, first + BATCH):
        try:
            outcome = PLAYS[world](seed)
        except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
            broken.append(f"{seed}: {type(error).__name__}: {error}")
            continue
        shrunk = any(len(roster) < len(outcome.terms.parties) for roster in outcome.rosters)
        model = "the fault-free model" if not shrunk else "a model of a roster that changed"
        if world == "liars" and outcome.terms.hiding.protection == "plain":
            model = "a model of what adders said"
        ends[f"{outcome.terms.session.on_loss}: {'a named error' if outcome.model is None else model}"] += 1
        faults += outcome.faults
    return ends, faults, broken


def main() -> int:
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    kind = parser.add_mutually_exclusive_group()
    for world, what in (
        ("vertical", "parties with different columns"),
        ("adders", "some parties call adders"),
        ("liars", "some parties call adders that lie"),
    ):
        kind.add_argument(f"--{world}", dest="world", action="store_const", const=world, help=what)
    parser.add_argument("--workers", type=int, default=None, help="processes (default: one a core)")
    arguments = parser.parse_args()
    began = time.monotonic()
    ends: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    broken: list[str] = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        starts = range(arguments.first, arguments.first + arguments.seeds, BATCH)
        for some_ends, some_faults, some_broken in pool.map(partial(batch, arguments.world or ""), starts):
            ends += some_ends
            faults += some_faults
            broken += some_broken
    seconds = time.monotonic() - began
    shown = common.Table(
        f"{arguments.seeds:,} seeds in {seconds:.0f} s",
        ("outcomes, then faults", "count"),
        [(name, f"{count:,}") for counts in (ends, faults) for name, count in sorted(counts.items())],
        [f"Violations: {len(broken)}; claimed none: {common.verdict(not broken)}."],
    )
    common.publish(arguments, [shown], {"seconds": seconds, "ends": ends, "faults": faults, "broken": broken})
    print("\n".join(broken[:20]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
