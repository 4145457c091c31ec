"""What does a turn inside a site cost, by the number of holders that share its rows?

    python benchmarks/network/holders.py

Generated dense float32 rows lie on Dask workers, processes with one thread that share the cores of this
machine: binary:logistic, depth 6, 256 bins, `plain`. For 1, 2, 4 and 8 holders the script measures:

- the wall time of an empty turn and of a tree;
- the CPU time of the site's own process per tree;
- the bytes that a holder answers per tree, and the bytes of the requested cells (S in docs/scaling.md).

The claim: the bytes are those of the cells, plus one per answer.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))

import common
import workers as on_workers
from common import verdict

from fedboost.privacy.packing import chunks_of
from fedboost.runtime.workers import hold
from fedboost.runtime.workers.holder import WorkersHolder

HOLDERS = (1, 2, 4, 8)
EMPTY_TURNS = 300


@dataclass(frozen=True)
class Measured:
    """Of one number of holders: seconds of an empty turn and of a tree, CPU seconds of the site's process a
    tree, and bytes a holder answers a tree, measured and by the cells."""

    holders: int
    empty: float
    tree: float
    own_cpu: float
    size: float
    due: float


def main() -> None:
    """Measure every number of holders."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--rows", type=int, default=400_000, help="of the table (default 400,000)")
    parser.add_argument("--features", type=int, default=50, help="of the table (default 50)")
    parser.add_argument("--rounds", type=int, default=12, help="of each training (default 12)")
    options = parser.parse_args()
    case = on_workers.Case(options.rows, options.features, 1.0, 1.0)
    with tempfile.TemporaryDirectory() as name:
        large, small = Path(name) / "large", Path(name) / "small"
        on_workers.write(large, case.rows, case.features)
        on_workers.write(small, on_workers.SMALL_ROWS, case.features)
        found = [measured(holders, large, small, case, options.rounds) for holders in HOLDERS]
    report(found, case, options)


def measured(holders: int, large: Path, small: Path, case: on_workers.Case, rounds: int) -> Measured:
    """Time empty turns and a training with this many holders."""
    exchange, turns, empty = WorkersHolder._exchange, list[tuple[float, int, int]](), list[float]()

    def timed(holder: WorkersHolder, placed: Any, request: bytes) -> Any:
        if request[:1] == hold.ANSWER and not empty:
            nothing = hold.going_to(holder.state)
            for _ in range(EMPTY_TURNS):
                begin = time.perf_counter()
                exchange(holder, placed, nothing)
                empty.append(time.perf_counter() - begin)
        answers, lost = exchange(holder, placed, request)
        if request[:1] == hold.ANSWER:
            due = sum(chunk.size for chunk in chunks_of(hold.query_in(request[1:]).segments)) + 1
            turns.append((time.process_time(), len(answers[0]), due))
        return answers, lost

    with on_workers.cluster(holders) as client, mock.patch.object(WorkersHolder, "_exchange", timed):
        on_workers.ours(client, small, case, 2)
        quick = statistics.median(empty)
        turns.clear()
        ends = on_workers.ours(client, large, case, rounds)
    cpus, sizes, dues = zip(*turns, strict=True)
    return Measured(
        holders,
        quick,
        (ends[-1] - ends[0]) / (rounds - 1),
        (cpus[-1] - cpus[0]) / rounds,
        sum(sizes) / rounds,
        sum(dues) / rounds,
    )


def report(found: list[Measured], case: on_workers.Case, options: Any) -> None:
    """The table and the JSON file."""
    rows = []
    for each in found:
        times = f"{1000 * each.empty:.2f}", f"{1000 * each.tree:.0f}", f"{1000 * each.own_cpu:.0f}"
        sizes = f"{each.size / 1e6:.2f}", f"{each.due / 1e6:.2f}"
        rows.append((str(each.holders), *times, *sizes, verdict(each.size == each.due)))
    table = common.Table(
        f"{case}: a turn inside a site",
        (
            *("holders", "ms of an empty turn", "ms a tree", "CPU ms of the site's process a tree"),
            *("MB a tree of a holder", "by its cells", "holds"),
        ),
        rows,
        ["All holders share the cores of one machine, so more holders do not make a tree faster here."],
    )
    common.publish(options, [table], {"holders": [asdict(each) for each in found]})


if __name__ == "__main__":
    main()
