"""Do the aggregator and the parties grow over consecutive sessions?

    python benchmarks/robustness/soak.py [--minutes N]

A consortium on loopback with keys and one process per member trains small models back to back, masked and
plain alternately. Every few seconds the resident memory and the open files of each process are read from
/proc (Linux).

The claims: from the second to the last quarter of the time, median memory grows by at most 8 MiB, and the
median of open files does not grow. The same terms give the same model every time. The first quarter, in
which libraries load and kernels compile, is shown and not judged. Exit status 1 if a claim does not hold.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import numpy as np
import pyarrow as pa
from anything import ANYTHING
from pyarrow import parquet

import fedboost as fb
from fedboost.runtime.local.cluster import LocalCluster

GROWTH_AT_MOST = 8 << 20
"""Bytes of resident memory between the medians of the second and the last quarter: the allocator's own ups
and downs."""
ROWS, COLUMNS, ROUNDS = 3_000, 10, 10
PAGE = os.sysconf("SC_PAGE_SIZE")


def table(seed: int) -> pa.Table:
    """Generated numbers and a label of 0 or 1 that depends on the first two."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] ** 2 + draw.normal(size=ROWS) > 1).astype(np.int64)
    return pa.table({**{f"x{i}": x[:, i] for i in range(COLUMNS)}, "y": y})


def resident(process: int) -> int:
    """Bytes of memory a process has."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE


def files(process: int) -> int:
    """How many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{process}/fd"))


class Samples(threading.Thread):
    """(bytes, open files) of each process, every so many seconds until `stop` is set."""

    def __init__(self, processes: dict[str, int], every: float) -> None:
        super().__init__(daemon=True)
        self.of: dict[str, list[tuple[int, int]]] = {name: [] for name in processes}
        self.stop = threading.Event()
        self._processes, self._every = processes, every

    def run(self) -> None:
        while not self.stop.wait(self._every):
            for name, process in self._processes.items():
                self.of[name].append((resident(process), files(process)))


def quarter(values: list[int], number: int) -> list[int]:
    """The number-th quarter (1 to 4) of some samples."""
    return values[(number - 1) * len(values) // 4 : number * len(values) // 4]


def train_until(end: float, one: LocalCluster, kinds: Iterable[fb.Terms]) -> tuple[int, bool]:
    """Train until `end`; return the number of sessions and whether equal terms gave equal models."""
    count, first, same = 0, {}, True
    while time.monotonic() < end:
        for terms in kinds:
            model = one.analyst.train(terms).model.booster.to_xgboost()
            same &= first.setdefault(terms.hiding.protection, model) == model
            count += 1
    return count, same


def main() -> int:
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    options = parser.parse_args()
    if options.minutes * 60 < 20 * options.every:
        common.fail("--minutes: too short for twenty samples; train longer or sample more often")
    with TemporaryDirectory(prefix="fedboost-") as name:
        folder = Path(name)
        tables = {party: folder / f"{party}.parquet" for party in common.PARTIES}
        for seed, path in enumerate(tables.values()):
            parquet.write_table(table(seed), path)
        terms = fb.Terms.draft(
            table(0), label="y", rounds=ROUNDS, max_depth=4, max_bin=64, parties=list(tables)
        )
        kinds = [terms, terms.changed(protection="plain")]
        with LocalCluster(folder, tables, policy=ANYTHING) as one:
            processes = {"aggregator": one.aggregator.pid, "analyst": os.getpid()}
            processes |= {name: process.pid for name, process in one.parties.items()}
            samples = Samples(processes, options.every)
            samples.start()
            count, same = train_until(time.monotonic() + options.minutes * 60, one, kinds)
            samples.stop.set()
            samples.join()
    rows, results, flat = [], {}, True
    for name, seen in samples.of.items():
        for what, place, bound in (("MB", 0, GROWTH_AT_MOST), ("open files", 1, 0)):
            values = [sample[place] for sample in seen]
            medians = [int(statistics.median(quarter(values, number))) for number in (1, 2, 3, 4)]
            grew = medians[3] - medians[1]
            flat &= grew <= bound
            shown = [f"{v / 1e6:.1f}" if place == 0 else str(v) for v in (*medians, max(values), grew)]
            rows.append([f"{name}, {what}", *shown, "yes" if grew <= bound else "NO"])
            results[f"{name}, {what}"] = {"quarters": medians, "most": max(values)}
    title = f"{count} sessions in {options.minutes:g} minutes, the same models: {'yes' if same else 'NO'}"
    headings = ["process", "1st quarter", "2nd", "3rd", "4th", "most", "4th - 2nd", "flat"]
    shown = common.Table(title, headings, rows)
    common.publish(options, [shown], {"sessions": count, "same": same, "processes": results})
    return 0 if flat and same else 1


if __name__ == "__main__":
    sys.exit(main())
