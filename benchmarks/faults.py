"""Plays seeds of the simulator of faults (tests/faults.py) and counts how they came out.

    python benchmarks/faults.py --seeds 100000

Exit code 1 if any seed breaks an invariant; such seeds are printed, and belong into
tests/protocol/test_faults.py.
"""

import argparse
import collections
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from faults import play

BATCH = 100


def batch(first: int) -> tuple[collections.Counter[str], collections.Counter[str], list[str]]:
    """How a hundred seeds came out, the faults they had, and the seeds that broke an invariant."""
    ends: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    broken = []
    for seed in range(first, first + BATCH):
        try:
            outcome = play(seed)
        except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
            broken.append(f"{seed}: {type(error).__name__}: {error}")
            continue
        shrunk = any(len(roster) < len(outcome.terms.parties) for roster in outcome.rosters)
        model = "the fault-free model" if not shrunk else "a model of a roster that changed"
        ends[f"{outcome.terms.on_loss}: {'a named error' if outcome.model is None else model}"] += 1
        faults += outcome.faults
    return ends, faults, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    ends: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    broken: list[str] = []
    with ProcessPoolExecutor() as pool:
        starts = range(arguments.first, arguments.first + arguments.seeds, BATCH)
        for some_ends, some_faults, some_broken in pool.map(batch, starts):
            ends += some_ends
            faults += some_faults
            broken += some_broken
    print(f"{arguments.seeds} seeds in {time.monotonic() - began:.0f} s, {len(broken)} violations")
    for title, counts in (("ends", ends), ("faults", faults)):
        print(title)
        for name, count in sorted(counts.items()):
            print(f"  {count:9} {name}")
    print("\n".join(broken[:20]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
