"""What does a tree cost on Dask workers, compared with xgboost.dask and lightgbm.dask?

    python benchmarks/speed/workers.py

Generated dense float32 rows lie in Parquet files: binary:logistic, depth 6, 256 bins, on a cluster of
processes with one thread on this machine. Each side reads the files itself: fedboost as a site with
workers, `plain`; XGBoost into a DaskQuantileDMatrix; LightGBM as a Dask DataFrame, one file per partition.
The sides alternate, each on a fresh cluster with compiled kernels. The time of a tree is the median wall
time between consecutive rounds; `to the first tree` is the time to the end of the first round. Memory is
the resident memory of the largest worker: the median while trees grow, and the peak.

The claims: a tree takes at most 0.9 times as long as xgboost.dask's at 1,000,000 x 50 and 0.75 at 4,000,000
x 50, and at most 0.85 and 0.7 times lightgbm.dask's. The first tree takes at most 0.45 times as long as
xgboost.dask's. Memory while trees grow is at most 0.5 times xgboost.dask's.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import contextlib
import itertools
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import psutil
import pyarrow as pa
import structlog
from common import LABEL, generate, spread, verdict
from pyarrow import parquet

import fedboost as fb

OURS, XGBOOST, LIGHTGBM = "fedboost", "xgboost.dask", "lightgbm.dask"
FILES, SMALL_ROWS, SAMPLES_EVERY = 8, 4000, 0.02
DEPTH, BINS, RATE = 6, 256, 0.3
LOADING_AT_MOST, MEMORY_AT_MOST = 0.45, 0.5


@dataclass(frozen=True)
class Case:
    """A table, and the claimed multiples of XGBoost's and LightGBM's time per tree."""

    rows: int
    features: int
    of_xgboost: float
    of_lightgbm: float

    def __str__(self) -> str:
        return f"{self.rows:,} x {self.features}"


CASES = (Case(1_000_000, 50, 0.9, 0.85), Case(4_000_000, 50, 0.75, 0.7))


@dataclass(frozen=True)
class Training:
    """Seconds from the start to the end of the first round, seconds of each tree behind it, and bytes of the
    largest worker: the median while trees grow, and the peak."""

    first: float
    trees: list[float]
    growing: int
    peak: int

    @property
    def tree(self) -> float:
        """Seconds per tree."""
        return statistics.median(self.trees)


def main() -> None:
    """Measure every case."""
    parser = common.arguments(__doc__ or "", needs_data=False)
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="cases of so many rows alone")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread (default 2)")
    parser.add_argument("--rounds", type=int, default=20, help="of each training (default 20)")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over these (default 5)")
    options = parser.parse_args()
    results: dict[Case, list[dict[str, Training]]] = {}
    for case in CASES:
        if options.rows and case.rows not in options.rows:
            continue
        with tempfile.TemporaryDirectory() as folder:
            large, small = Path(folder) / "large", Path(folder) / "small"
            write(large, case.rows, case.features)
            write(small, SMALL_ROWS, case.features)
            results[case] = []
            for repeat in range(options.repeats):
                print(f"{case}, {repeat + 1} of {options.repeats} ...", file=sys.stderr)
                found = {side: measured(side, large, small, case, options) for side in SIDES}
                results[case].append(found)
    if not results:
        common.fail("--rows names no case")
    report(results, options)


def write(folder: Path, rows: int, features: int) -> None:
    """Write a table as Parquet files."""
    folder.mkdir()
    columns, label = generate(rows, features)
    table = pa.table({**columns, LABEL: label})
    size = -(-rows // FILES)
    for number in range(FILES):
        parquet.write_table(table.slice(number * size, size), folder / f"part-{number:02}.parquet")


def measured(side: str, folder: Path, small: Path, case: Case, options: Any) -> Training:
    """Train once on a fresh cluster, after training a small table."""
    with cluster(options.workers) as client:
        SIDES[side](client, small, case, 2)  # libraries are imported, kernels loaded
        pids = list(client.run(os.getpid).values())
        ends: list[float] = []
        with _sampled(pids) as samples:
            begin = time.time()
            ends = SIDES[side](client, folder, case, options.rounds)
        growing = [size for at, size in samples if ends[0] <= at <= ends[-1]]
        trees = [after - before for before, after in itertools.pairwise(ends)]
        peak = max(size for _, size in samples)
        return Training(ends[0] - begin, trees, int(statistics.median(growing)), peak)


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """A client of workers started by Dask's command line, which import nothing from this file."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as own, Client(own) as client:
        shape = ["--nworkers", str(workers), "--nthreads", "1", "--no-dashboard"]
        command = [sys.executable, "-m", "dask", "worker", own.scheduler_address, *shape]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client.wait_for_workers(workers)
            yield client
        finally:
            running.terminate()
            running.wait()


@contextlib.contextmanager
def _sampled(pids: list[int]) -> Iterator[list[tuple[float, int]]]:
    """Sample times and the resident bytes of the largest process."""
    processes, samples, over = (
        [psutil.Process(pid) for pid in pids],
        list[tuple[float, int]](),
        threading.Event(),
    )

    def sample() -> None:
        while not over.wait(SAMPLES_EVERY):
            samples.append((time.time(), max(process.memory_info().rss for process in processes)))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def ours(client: Any, folder: Path, case: Case, rounds: int) -> list[float]:
    """Train fedboost: a site with workers, with its session and the aggregator's in this process."""
    return trained(client, folder, case, rounds)[0]


def trained(client: Any, folder: Path, case: Case, rounds: int) -> tuple[list[float], bytes]:
    """Train; return the end times of rounds and the model."""
    from fedboost.boosting.state import INITIAL_STATE
    from fedboost.protocol.aggregator import AggregatorSession
    from fedboost.runtime.aggregator.programs import program_of
    from fedboost.runtime.local.simulation import play, sites_of
    from fedboost.runtime.signed_model import trained_model_of
    from fedboost.runtime.site.config import PartyConfig, WorkersConfig
    from fedboost.runtime.telemetry import Meter
    from fedboost.runtime.workers.holder import WorkerRows

    columns = {"label": LABEL, "numeric": [f"f{number}" for number in range(case.features)]}
    settings = {"rounds": rounds, "max_depth": DEPTH, "max_bin": BINS, "learning_rate": RATE}
    terms = fb.Terms.read({"columns": columns, "parties": ["north"], "protection": "plain", **settings})
    dask = WorkersConfig(dask=client.scheduler.address)
    config = PartyConfig(party="north", aggregator="localhost:1", data=folder, workers=dask)
    rows, ends = WorkerRows(config, structlog.get_logger()), list[float]()
    try:
        session = AggregatorSession("", terms, program_of(terms, ()), INITIAL_STATE, draw=os.urandom)
        hold = partial(rows.hold, key_of=_nothing, model_of=_nothing, table_of=_nothing)
        sites, meter = sites_of(terms, {"north": hold}, {}), Meter(terms.parties)
        play(session, sites, 0, meter, on_round=lambda row: ends.append(time.time()))
    finally:
        rows.close()
    return ends, trained_model_of(session).to_bytes()


def _nothing(terms: fb.Terms) -> Any:
    """Stand-in without label noise and prediction."""


def _frame(folder: Path) -> Any:
    """The files as a Dask DataFrame, one partition per file."""
    import dask.dataframe as dd
    import pandas as pd

    files = sorted(folder.glob("*.parquet"))
    return dd.from_map(pd.read_parquet, files, meta=pd.read_parquet(files[0]).iloc[:0])


def of_xgboost(client: Any, folder: Path, case: Case, rounds: int) -> list[float]:
    """Train XGBoost, which records the end times of rounds in a file."""
    import xgboost
    from xgboost import dask as dxgb

    frame = _frame(folder)
    notes = folder.parent / f"{folder.name}.xgboost"

    class Note(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, log: Any) -> bool:
            with Path(f"{notes}.{os.getpid()}").open("a") as file:
                file.write(f"{time.time()}\n")
            return False

    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": DEPTH,
        "max_bin": BINS,
        "eta": RATE,
        "nthread": 1,
    }
    matrix = dxgb.DaskQuantileDMatrix(client, frame.drop(columns=LABEL), frame[LABEL], max_bin=BINS)
    dxgb.train(client, settings, matrix, num_boost_round=rounds, callbacks=[Note()])
    return _noted(notes)


def of_lightgbm(client: Any, folder: Path, case: Case, rounds: int) -> list[float]:
    """Train LightGBM, which records the end times of rounds in a file."""
    from lightgbm import DaskLGBMClassifier

    frame = _frame(folder)
    notes = folder.parent / f"{folder.name}.lightgbm"

    def note(environment: Any) -> None:
        with Path(f"{notes}.{os.getpid()}").open("a") as file:
            file.write(f"{time.time()}\n")

    model = DaskLGBMClassifier(
        client=client,
        n_estimators=rounds,
        num_leaves=2**DEPTH,
        max_depth=DEPTH,
        max_bin=BINS - 1,
        learning_rate=RATE,
        n_jobs=1,
        verbose=-1,
        tree_learner="data",
    )
    model.fit(frame.drop(columns=LABEL), frame[LABEL], callbacks=[note])
    return _noted(notes)


def _noted(notes: Path) -> list[float]:
    """End times of rounds, those of the last worker."""
    files = list(notes.parent.glob(f"{notes.name}.*"))
    own = [[float(moment) for moment in file.read_text().split()] for file in files]
    for file in files:
        file.unlink()
    return [max(moments) for moments in zip(*own, strict=True)]


SIDES: dict[str, Callable[[Any, Path, Case, int], list[float]]] = {
    OURS: ours,
    XGBOOST: of_xgboost,
    LIGHTGBM: of_lightgbm,
}


def report(results: dict[Case, list[dict[str, Training]]], options: Any) -> None:
    """The tables and the JSON file."""
    speed = common.Table(
        f"Wall ms a tree, {options.workers} workers: median (least - most) of {options.repeats}",
        ("case", *SIDES, f"of {XGBOOST}", "claim", f"of {LIGHTGBM}", "claim", "holds"),
        [_speed(case, repeats) for case, repeats in results.items()],
    )
    loading = common.Table(
        "Seconds from Parquet to the first tree",
        ("case", *SIDES, f"of {XGBOOST}", "claim", "holds"),
        [_loading(case, repeats) for case, repeats in results.items()],
    )
    memory = common.Table(
        "MB of the largest worker while trees grow, and at the peak",
        ("case", *SIDES, f"of {XGBOOST}", "claim", "holds", *(f"peak of {side}" for side in SIDES)),
        [_memory(case, repeats) for case, repeats in results.items()],
    )
    cases = [
        {**asdict(case), "repeats": [{side: asdict(each) for side, each in one.items()} for one in repeats]}
        for case, repeats in results.items()
    ]
    common.publish(options, [speed, loading, memory], {"rounds": options.rounds, "cases": cases})


def _ratios(
    repeats: list[dict[str, Training]], peer: str, figure: Callable[[Training], float]
) -> list[float]:
    return [figure(each[OURS]) / figure(each[peer]) for each in repeats]


def _speed(case: Case, repeats: list[dict[str, Training]]) -> tuple[str, ...]:
    ratios = {peer: _ratios(repeats, peer, lambda each: each.tree) for peer in (XGBOOST, LIGHTGBM)}
    claims = {XGBOOST: case.of_xgboost, LIGHTGBM: case.of_lightgbm}
    holds = all(statistics.median(ratios[peer]) <= most for peer, most in claims.items())
    return (
        str(case),
        *(spread([1000 * each[side].tree for each in repeats], 0) for side in SIDES),
        *itertools.chain.from_iterable((spread(ratios[peer], 2), f"{claims[peer]}") for peer in ratios),
        verdict(holds),
    )


def _loading(case: Case, repeats: list[dict[str, Training]]) -> tuple[str, ...]:
    ratios = _ratios(repeats, XGBOOST, lambda each: each.first)
    return (
        str(case),
        *(spread([each[side].first for each in repeats], 1) for side in SIDES),
        spread(ratios, 2),
        f"{LOADING_AT_MOST}",
        verdict(statistics.median(ratios) <= LOADING_AT_MOST),
    )


def _memory(case: Case, repeats: list[dict[str, Training]]) -> tuple[str, ...]:
    ratios = _ratios(repeats, XGBOOST, lambda each: each.growing)
    return (
        str(case),
        *(spread([each[side].growing / 1e6 for each in repeats], 0) for side in SIDES),
        spread(ratios, 2),
        f"{MEMORY_AT_MOST}",
        verdict(statistics.median(ratios) <= MEMORY_AT_MOST),
        *(spread([each[side].peak / 1e6 for each in repeats], 0) for side in SIDES),
    )


if __name__ == "__main__":
    main()
