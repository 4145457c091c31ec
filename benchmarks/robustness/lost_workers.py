"""Does a site continue with the same model when one of its workers is killed?

    python benchmarks/robustness/lost_workers.py

Generated dense float32 rows in Parquet files lie on Dask workers, processes with one thread. Sessions run
in this process. A training without faults gives the reference model. Each further training kills a worker
once with SIGKILL, at moments over all trees: before the first question of a round, before the last, and
during one. Dask's nanny restarts the worker. The remaining workers reread its rows, catch up with the
training and answer.

The claims: every model has the same bytes, and the site continues at most 3 s after the kill.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import signal
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
from common import spread, verdict

from fedboost.runtime.workers import hold
from fedboost.runtime.workers.holder import Placed, WorkersHolder

MOMENTS = ("before the first question", "before the last question", "in a question")
SECONDS_AT_MOST = 3.0


@dataclass(frozen=True)
class Kill:
    """A kill: where, how many seconds later the site had its next answer, and whether the model is the
    same."""

    tree: int
    moment: str
    seconds: float
    same: bool


def main() -> None:
    """Kill a worker at each of the moments."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table (default 1,000,000)")
    parser.add_argument("--features", type=int, default=50, help="of the table (default 50)")
    parser.add_argument("--rounds", type=int, default=31, help="of each training (default 31)")
    parser.add_argument("--kills", type=int, default=20, help="one a training (default 20)")
    options = parser.parse_args()
    case = on_workers.Case(options.rows, options.features, 1.0, 1.0)
    with tempfile.TemporaryDirectory() as name, on_workers.cluster(2) as client:
        folder = Path(name) / "rows"
        on_workers.write(folder, case.rows, case.features)
        expected = on_workers.trained(client, folder, case, options.rounds)[1]
        kills = []
        for number in range(options.kills):
            tree = number * (options.rounds - 1) // max(options.kills - 1, 1)
            moment = MOMENTS[number % len(MOMENTS)]
            kills.append(killed(client, folder, case, options.rounds, tree, moment, expected))
            print(f"tree {tree}, {moment}: {kills[-1].seconds:.2f} s", file=sys.stderr)
            client.wait_for_workers(2)
    report(kills, case, options)


def killed(
    client: Any, folder: Path, case: on_workers.Case, rounds: int, tree: int, moment: str, expected: bytes
) -> Kill:
    """Train once with a kill."""
    exchange, seen, times = WorkersHolder._exchange, [-1, 0], list[float]()

    def spoiled(holder: WorkersHolder, placed: list[Placed], request: bytes) -> Any:
        done = len(holder.state.rounds) - 1
        if done != seen[0]:
            seen[:] = done, 0
        seen[1] += 1
        last = holder.state.levels == on_workers.DEPTH
        due = {MOMENTS[0]: seen[1] == 1, MOMENTS[1]: last, MOMENTS[2]: seen[1] == 3}[moment]
        if times or done != tree or not due or request[:1] != hold.ANSWER:
            return exchange(holder, placed, request)
        pids = client.run(os.getpid)
        if moment == MOMENTS[2]:
            for each in placed:
                each.link.send(request)
        times.append(time.time())
        os.kill(pids[placed[0].worker.address], signal.SIGKILL)
        if moment != MOMENTS[2]:
            return exchange(holder, placed, request)
        with mock.patch.object(hold.Link, "send"):
            return exchange(holder, placed, request)

    asked = WorkersHolder._ask

    def timed(holder: WorkersHolder, request: bytes) -> Any:
        before = len(times)
        answers = asked(holder, request)
        if len(times) > before:
            times.append(time.time())
        return answers

    with (
        mock.patch.object(WorkersHolder, "_exchange", spoiled),
        mock.patch.object(WorkersHolder, "_ask", timed),
    ):
        model = on_workers.trained(client, folder, case, rounds)[1]
    if len(times) != 2:
        common.fail(f"tree {tree}, {moment}: nothing was killed")
    return Kill(tree, moment, times[1] - times[0], model == expected)


def report(kills: list[Kill], case: on_workers.Case, options: Any) -> None:
    """The table and the JSON file."""
    rows = []
    for moment in MOMENTS:
        own = [kill for kill in kills if kill.moment == moment]
        seconds = [kill.seconds for kill in own]
        same = sum(kill.same for kill in own)
        holds = same == len(own) and max(seconds) <= SECONDS_AT_MOST
        rows.append((moment, str(len(own)), str(same), spread(seconds, 2), verdict(holds)))
    table = common.Table(
        f"{case}, 2 workers, one killed: seconds to continue, median (least - most)",
        ("killed", "times", "same bytes", "seconds", "holds"),
        rows,
        [f"All: {statistics.median(kill.seconds for kill in kills):.2f} s; at most {SECONDS_AT_MOST:.0f} s."],
    )
    common.publish(options, [table], {"rounds": options.rounds, "kills": [asdict(kill) for kill in kills]})


if __name__ == "__main__":
    main()
