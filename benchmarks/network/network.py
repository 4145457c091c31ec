"""What does a tree cost over the network, compared with XGBoost's allreduce and with one process?

    python benchmarks/network/network.py

Trains on generated dense float32 rows: binary:logistic, depth 6, 256 bins. Every party is a process with
one thread, and the aggregator one that searches for splits with a thread per core. They are connected by
gRPC over loopback: `plain` without keys, `masked` with mutual TLS. XGBoost's workers are processes with one
thread, connected by its tracker (rabit). The sides alternate, and fedboost's models are compared. All
processes share the cores of one machine.

The seconds of a tree are the median of rounds 6 to 25 of one training. Its CPU seconds are the sum over all
processes of the side in these rounds, divided by 20.

The claims:

- 200,000 x 50, three processes: `plain` takes at most 0.9 times as long as XGBoost, `masked` at most 1.2
  times.
- 1,000,000 x 50, four processes: `plain` takes at most 1.3 times one process with the same rows and two
  threads, and `masked` at most 1.15 times `plain`.
- 200,000 x 50, three processes, `masked` through tunnels with TLS of their own: at most 1.1 times as long as
  without a tunnel, on loopback and on links of 50 ms, and at most 1.03 times the bytes on the wire, which are
  counted in another training.
- 20,000 x 20, three processes on links of 50 ms (`delay.py`): `plain` takes at most 0.36 s per tree,
  `masked` at most 1.1 times as long.
"""

# One thread in every process, none that spins, and that must be said before the libraries are imported.
import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import itertools
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import numpy as np
import pyarrow as pa
import xgboost as xgb
from anything import ANYTHING
from common import LABEL, generate, spread
from delay import DelayProxy, Link
from pyarrow import parquet
from web_certificates import write_web_certificate
from xgboost.collective import CommunicatorContext
from xgboost.tracker import RabitTracker

import fedboost as fb
from fedboost.runtime.local.cluster import LocalCluster

EARLY, LATE = 5, 25
"""Rounds between whose ends trees are timed."""
WORKER_SECONDS = 300.0
"""Timeout of an XGBoost worker in seconds."""

THREADS = 2
"""Threads of the one process."""
ONE, XGBOOST, PLAIN, MASKED = "one process", "XGBoost", "plain", "masked, mTLS"
WEBSOCKET, GRPC = "masked, wss", "masked, grpcs"
SCHEMES = {WEBSOCKET: "wss", GRPC: "grpcs"}
MOST_BYTES = 1.03


@dataclass(frozen=True)
class Case:
    """So many rows and features, shared by so many processes: which sides train, the claims on them, and the
    link between a party and the aggregator."""

    rows: int
    features: int
    processes: int
    sides: tuple[str, ...]
    claims: tuple[tuple[str, str, float], ...]
    """(side, other side, how many times its seconds at most); without another side the seconds at most."""
    link: Link | None = None


CASES = {
    "allreduce": Case(
        200_000, 50, 3, (XGBOOST, PLAIN, MASKED), ((PLAIN, XGBOOST, 0.9), (MASKED, XGBOOST, 1.2))
    ),
    "processes": Case(1_000_000, 50, 4, (ONE, PLAIN, MASKED), ((PLAIN, ONE, 1.3), (MASKED, PLAIN, 1.15))),
    "tunnels": Case(
        200_000, 50, 3, (MASKED, WEBSOCKET, GRPC), ((WEBSOCKET, MASKED, 1.1), (GRPC, MASKED, 1.1))
    ),
    "far-tunnels": Case(
        200_000, 50, 3, (MASKED, WEBSOCKET, GRPC), ((WEBSOCKET, MASKED, 1.1), (GRPC, MASKED, 1.1)), Link(0.05)
    ),
    "distance": Case(20_000, 20, 3, (PLAIN, MASKED), ((PLAIN, "", 0.36), (MASKED, PLAIN, 1.1)), Link(0.05)),
}


@dataclass(frozen=True)
class Cost:
    """Seconds of a tree: on the wall, and of the CPU in all processes of the side."""

    wall: float
    cpu: float

    @classmethod
    def of(cls, marks: list[tuple[float, float]]) -> "Cost":
        """From both clocks at the end of each round."""
        walls, cpus = zip(*marks[EARLY - 1 : LATE], strict=True)
        wall = statistics.median(end - start for start, end in itertools.pairwise(walls))
        return cls(wall, (cpus[-1] - cpus[0]) / (LATE - EARLY))


def main() -> None:
    """Measure every case."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    if options.repeats < 1:
        common.fail("--repeats must be at least 1")
    results, sizes = {}, dict[str, int]()
    for name in options.cases:
        print(f"{name}: {CASES[name].rows:,} rows, {CASES[name].processes} processes ...", file=sys.stderr)
        results[name] = measure(CASES[name], options.repeats, sizes)
    report(results, sizes, options)


def measure(case: Case, repeats: int, sizes: dict[str, int]) -> list[dict[str, Cost]]:
    """Train on all sides alternately, for each repeat. sizes: receives the bytes on the wire by side, where
    there are tunnels."""
    columns, label = generate(case.rows, case.features)
    table = pa.table({**columns, LABEL: label})
    names = [f"party-{i + 1}" for i in range(case.processes)]
    terms = fb.Terms.read(
        {
            "columns": {"label": LABEL, "numeric": list(columns)},
            "rounds": LATE,
            "protection": "plain",
            "parties": names,
        }
    )
    with TemporaryDirectory(prefix="fedboost-") as folder, ExitStack() as running:
        files = {name: Path(folder) / f"{name}.parquet" for name in names}
        for path, part in zip(files.values(), common.equal_parts(table, case.processes), strict=True):
            parquet.write_table(part, path)
        boosters: list[Any] = []
        sides = _sides(case, terms, table, files, running, boosters)
        for warm_up in (ONE, PLAIN, MASKED, WEBSOCKET, GRPC):  # kernels are compiled, rows are read
            if warm_up in sides:
                sides[warm_up]()
        found = []
        for number in range(repeats):
            print(f"repeat {number + 1} of {repeats} ...", file=sys.stderr)
            found.append({side: sides[side]() for side in case.sides})
        if WEBSOCKET in sides and case.link is None:
            sizes |= {side: count_bytes(side, terms, files) for side in case.sides}
    if any(booster != boosters[0] for booster in boosters):
        common.fail("the models of two sides differ")
    return found


def _sides(
    case: Case,
    terms: fb.Terms,
    table: pa.Table,
    files: Mapping[str, Path],
    running: ExitStack,
    boosters: list[Any],
) -> dict[str, Callable[[], Cost]]:
    """Function of each side that trains once. fedboost's processes run until `running` is closed."""

    def over_grpc(kind: type["OneThread"], protection: str, scheme: str = "") -> Callable[[], Cost]:
        folder = Path(running.enter_context(TemporaryDirectory(prefix="fedboost-")))
        one = kind(folder, files, policy=ANYTHING)
        one.link, one.scheme = case.link, scheme
        running.enter_context(one)
        return lambda: time_network(one, terms.changed(protection=protection), boosters)

    sides: dict[str, Callable[[], Cost]] = {}
    for side in case.sides:
        match side:
            case "one process":
                sides[side] = lambda: time_one_process(terms, table, boosters)
            case "XGBoost":
                sides[side] = lambda: time_xgboost(list(files.values()))
            case "plain":
                sides[side] = over_grpc(WithoutKeys, "plain")
            case _:
                sides[side] = over_grpc(OneThread, "masked", SCHEMES.get(side, ""))
    return sides


# ---- fedboost ---------------------------------------------------------------------------------------


class OneThread(LocalCluster):
    """A consortium with keys whose parties have one thread each, and reach the aggregator over a link, and
    through tunnels if there is a scheme."""

    link: Link | None = None
    proxy: DelayProxy | None = None
    scheme = ""

    def _spawn(self, stem: str, config: Mapping[str, object], *options: str) -> Any:
        if "party" in config:
            config = {"nthread": 1, **config}
            place = self.tunnel if self.scheme else self.address
            if self.link is not None:
                if self.proxy is None:
                    self.proxy = self._open.enter_context(DelayProxy(place, self.link))
                place = self.proxy.address
            if self.scheme:
                web = self._folder / "web"
                place = f"{self.scheme}://localhost:{place.rpartition(':')[2]}"
                config = {**config, "ca": str(web / "authority.pem")}
            config = {**config, "aggregator": place}
        elif self.scheme:
            web = write_web_certificate(self._folder / "web")
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.tunnel = f"127.0.0.1:{free.getsockname()[1]}"
            kind = "grpc" if self.scheme == "grpcs" else "websocket"
            pair = {"certificate": str(web / "certificate.pem"), "key": str(web / "key.pem")}
            config = {**config, "tunnels": {kind: self.tunnel, **pair}}
        return super()._spawn(stem, config, *options)


class WithoutKeys(OneThread):
    """A consortium without keys and encryption."""

    @property
    def analyst(self) -> Any:
        """An analyst's connection to the aggregator."""
        return fb.connect(self.address, insecure_loopback=True)

    def _spawn(self, stem: str, config: Mapping[str, object], *options: str) -> Any:
        bare = {key: value for key, value in config.items() if key != "keys"}
        return super()._spawn(stem, bare, "--insecure-loopback", *options)


def time_network(one: LocalCluster, terms: fb.Terms, boosters: list[Any]) -> Cost:
    """Time one training by running processes, including the aggregator's seconds."""
    processes = [one.aggregator.pid, *(process.pid for process in one.parties.values())]
    marks, wall = [], 0.0
    training = one.analyst.train(terms)
    for row in training:
        wall += row["seconds"]
        marks.append((wall, sum(map(cpu_seconds, processes))))
    boosters.append(training.model.booster)
    return Cost.of(marks)


def count_bytes(side: str, terms: fb.Terms, files: Mapping[str, Path]) -> int:
    """Bytes of one training between the parties and the aggregator, in both directions."""
    with TemporaryDirectory(prefix="fedboost-") as folder:
        one = OneThread(Path(folder), files, policy=ANYTHING)
        one.link, one.scheme = Link(), SCHEMES.get(side, "")
        with one:
            assert one.proxy is not None
            before = one.proxy.bytes_up + one.proxy.bytes_down
            _ = one.analyst.train(terms.changed(protection="masked")).model
            return one.proxy.bytes_up + one.proxy.bytes_down - before


def cpu_seconds(process: int) -> float:
    """CPU seconds of all threads of a process so far (Linux)."""
    return time.clock_gettime(~process << 3 | 2)


def time_one_process(terms: fb.Terms, table: pa.Table, boosters: list[Any]) -> Cost:
    """Time one training in this process, by one party with all rows."""
    marks: list[tuple[float, float]] = []

    def mark(row: Mapping[str, float]) -> None:
        marks.append((time.monotonic(), time.process_time()))

    result = fb.simulate(terms, [table], on_round=mark, nthread=THREADS)
    boosters.append(result.model.booster)
    return Cost.of(marks)


# ---- XGBoost ----------------------------------------------------------------------------------------


class Clock(xgb.callback.TrainingCallback):
    """Reads both clocks at the end of each round."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[tuple[float, float]] = []

    def after_iteration(self, model: object, epoch: int, evals_log: object) -> bool:
        """Read the clocks; never stop the training."""
        self.marks.append((time.monotonic(), time.process_time()))
        return False


def time_xgboost(files: list[Path]) -> Cost:
    """Time one training with one worker per file: wall seconds of the slowest, CPU seconds of all."""
    tracker = RabitTracker(n_workers=len(files), host_ip="127.0.0.1")
    tracker.start()
    with ExitStack() as running:
        pipes = [running.enter_context(worker(tracker.worker_args(), path)) for path in files]
        costs = []
        for pipe in pipes:
            if not pipe.poll(WORKER_SECONDS):
                common.fail("a worker of XGBoost does not answer")
            costs.append(pipe.recv())
    tracker.wait_for()
    return Cost(max(cost.wall for cost in costs), sum(cost.cpu for cost in costs))


@contextmanager
def worker(args: dict[str, Any], path: Path) -> Iterator[Connection]:
    """Process of an XGBoost worker that sends its cost through the pipe and ends."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=train_xgboost, args=(theirs, args, path), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.join(10)
        process.terminate()
        process.join()


def train_xgboost(pipe: Connection, args: dict[str, Any], path: Path) -> None:
    """Train as a worker."""
    table = parquet.read_table(path)
    label = table.column(LABEL).to_numpy()
    rows = np.ascontiguousarray(np.column_stack([c.to_numpy() for c in table.drop_columns([LABEL]).columns]))
    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": 6,
        "max_bin": 256,
        "nthread": 1,
    }
    clock = Clock()
    with xgb.config_context(verbosity=0), CommunicatorContext(**args):
        matrix = xgb.QuantileDMatrix(rows, label, max_bin=256, nthread=1)
        xgb.train(settings, matrix, LATE, callbacks=[clock])
    pipe.send(Cost.of(clock.marks))


# ---- what came of it --------------------------------------------------------------------------------


def report(results: dict[str, list[dict[str, Cost]]], sizes: dict[str, int], options: Any) -> None:
    """The tables, with the claims, and the JSON file."""
    rows, ratios = [], []
    for name, repeats in results.items():
        case = CASES[name]
        for side in case.sides:
            costs = [repeat[side] for repeat in repeats]
            row = [
                f"{case.rows:,} x {case.features}, {_place(case, side)}",
                spread([cost.wall for cost in costs], 3),
                spread([cost.cpu for cost in costs], 3),
            ]
            for mine, other, most in case.claims:
                if mine != side:
                    continue
                values = [repeat[mine].wall / (repeat[other].wall if other else 1.0) for repeat in repeats]
                median = statistics.median(values)
                what = f"{spread(values, 2)} {f'x {other}' if other else 's'}"
                row += [what, f"{most:g}", "yes" if median <= most else "NO"]
                ratios.append({"case": name, "side": mine, "to": other, "median": median, "at_most": most})
            rows.append(row)
    table = common.Table(
        f"Seconds a tree, depth 6, 256 bins, {os.cpu_count()} cores: "
        f"median (least - most) of {options.repeats}",
        ("side", "wall", "CPU of all", "ratio of wall", "claim", "holds"),
        rows,
    )
    shown = {
        name: [{side: asdict(cost) for side, cost in repeat.items()} for repeat in repeats]
        for name, repeats in results.items()
    }
    values = {"cases": shown, "ratios": ratios, "bytes": sizes}
    tables = [table]
    if sizes:
        of_bytes = [
            [side, f"{size:,}", f"{size / sizes[MASKED]:.4f}", *_claim(side, size / sizes[MASKED])]
            for side, size in sizes.items()
        ]
        head = "side", "bytes", f"x {MASKED}", "claim", "holds"
        tables.append(common.Table(f"Bytes on the wire of a training, {LATE} trees", head, of_bytes))
    common.publish(options, tables, values)


def _claim(side: str, ratio: float) -> tuple[str, ...]:
    return (f"{MOST_BYTES:g}", "yes" if ratio <= MOST_BYTES else "NO") if side in SCHEMES else ()


def _place(case: Case, side: str) -> str:
    """Text of the processes and the link."""
    if side == ONE:
        return side
    link = f", {1e3 * case.link.round_trip:g} ms" if case.link else ""
    return f"{case.processes} x {side}{link}"


if __name__ == "__main__":
    main()
