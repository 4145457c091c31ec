"""How much memory does a training take?

    python benchmarks/speed/memory.py

Each side trains 10 rounds in its own process with one thread, on 1,000,000 x 50 generated float32 values
read from a file: depth 6, 256 bins, fedboost with one `plain` party. The script samples anonymous memory
(RssAnon, Linux) every 5 ms from the end of the first round to the end of the last, after binning. It
includes the interpreter, the libraries, and the table (4 bytes per value and label) if a side keeps it.
fedboost rereads columns instead. pandas is hidden from all sides: none needs it, and pyarrow and XGBoost
import it, about 30 MB, if it is installed.

The claim: fedboost takes at most 1.5 bytes x rows x features plus 200 MB.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np
import peers
from common import LABEL, own_memory, spread, verdict
from peers import FEDBOOST, LIGHTGBM, SKLEARN, XGBOOST, Rows
from pyarrow import parquet

import fedboost as fb

ROUNDS = 10
BYTES_A_VALUE, BYTES = 1.5, 200e6
"""Claimed limit: bytes per value, plus bytes."""
EVERY = 0.005
"""Seconds between samples."""
SIDES = (FEDBOOST, XGBOOST, LIGHTGBM, SKLEARN)


class Peak(threading.Thread):
    """Samples the memory of this process from the first `mark`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._over = threading.Event()

    def mark(self, *_: object) -> None:
        """Record the end of a round."""
        if not self.is_alive():
            self.start()

    def run(self) -> None:
        while not self._over.wait(EVERY):
            self.bytes = max(self.bytes, own_memory())

    def stop(self) -> int:
        """Stop and return the peak in bytes."""
        self._over.set()
        self.join()
        return max(self.bytes, own_memory())


class HidesPandas(MetaPathFinder):
    """Import finder that hides pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """None; ImportError for pandas."""
        if name == "pandas":
            raise ImportError("pandas is hidden")


def train_here(side: str, folder: Path) -> int:
    """Train in this process and return its peak memory in bytes."""
    sys.meta_path.insert(0, HidesPandas())
    peak = Peak()
    if side == FEDBOOST:
        path = folder / "rows.parquet"
        names = [name for name in parquet.read_schema(path).names if name != LABEL]
        fb.simulate(peers.terms_of(names, ROUNDS), [path], on_round=peak.mark)
        return peak.stop()
    rows, label = np.load(folder / "rows.npy"), np.load(folder / "label.npy")
    if side == XGBOOST:
        peers.train_xgboost(rows, label, 1, ROUNDS, peak.mark)
    elif side == LIGHTGBM:
        peers.train_lightgbm(rows, label, 1, ROUNDS, peak.mark, "col")
    else:
        peak.mark()
        peers.train_sklearn(rows, label, 1, ROUNDS)
    return peak.stop()


def main() -> None:
    """Train on every side, each time in a new process."""
    parser = common.arguments(__doc__, needs_data=False)
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--features", type=int, default=50, help="default 50")
    parser.add_argument("--repeats", type=int, default=3, help="medians are taken over these (default 3)")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        side, folder = options.train
        print(json.dumps(train_here(side, Path(folder))))
        return
    if options.rows < 100 or options.features < 1 or options.repeats < 1:
        common.fail("--rows must be at least 100, --features and --repeats at least 1")
    peers.compile_kernels()  # so that each process finds them compiled
    with TemporaryDirectory(prefix="fedboost-") as name:
        folder = Path(name)
        rows = Rows.of(*common.generate(options.rows, options.features))
        parquet.write_table(rows.table, folder / "rows.parquet", compression="none")
        np.save(folder / "rows.npy", rows.matrix)
        np.save(folder / "label.npy", rows.label)
        del rows
        found: dict[str, list[int]] = {side: [] for side in SIDES}
        for number in range(options.repeats):
            print(f"repeat {number + 1} of {options.repeats} ...", file=sys.stderr)
            for side in SIDES:
                found[side].append(child(side, folder))
    report(found, options)


def child(side: str, folder: Path) -> int:
    """Peak memory of a training in its own process, in bytes."""
    command = [sys.executable, __file__, "--train", side, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        common.fail(f"the training with {side} ended with status {done.returncode}")
    return int(json.loads(done.stdout))


def report(found: dict[str, list[int]], options: argparse.Namespace) -> None:
    """The table and the JSON file."""
    values = options.rows * options.features
    table = 4 * (values + options.rows)
    most = BYTES_A_VALUE * values + BYTES
    rows = []
    for side, peaks in found.items():
        row = [side, spread([peak / 1e6 for peak in peaks], 0)]
        holds = statistics.median(peaks) <= most
        rows.append([*row, f"{most / 1e6:.0f}", verdict(holds)] if side == FEDBOOST else [*row, "", ""])
    shown = common.Table(
        f"MB (10^6 bytes) while trees grow, {options.rows:,} x {options.features}, "
        f"the table {table / 1e6:.0f}: median (least - most) of {options.repeats}",
        ("side", "in memory", "claim", "holds"),
        rows,
        [
            "scikit-learn has no callback after a round: its figures cover the whole training, "
            "including binning."
        ],
    )
    common.publish(options, [shown], {"table": table, "at_most": most, "peaks": found})


if __name__ == "__main__":
    main()
