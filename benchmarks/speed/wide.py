"""Does a sparse table of 15,626 columns train with little memory, and as well as in XGBoost?

    python benchmarks/speed/wide.py --data FOLDER

A seed splits amazon_access_onehot into 80 % training and 20 % test rows. Four equal parties train with
`plain`, depth 6, learning rate 0.3. XGBoost has all rows as a sparse matrix and treats 0 as missing, which
splits columns of 0 and 1 the same way. Then the parties run as processes that read their rows from a LIBSVM
file and are connected by gRPC over loopback (Linux). Memory is the peak of each process, including files
and libraries (VmHWM).

The claims: the mean AUC over the splits is at most 0.005 below XGBoost's. A party stays under 1 GB. One
party with all rows has its first tree after 3 seconds of CPU.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import common
import numpy as np
import xgboost as xgb
from anything import ANYTHING
from common import Float32, spread, verdict
from scipy import sparse
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import roc_auc_score

import fedboost as fb
from fedboost.runtime.data.text import LABEL
from fedboost.runtime.local.cluster import LocalCluster

NAME = "amazon_access_onehot"
PARTIES = 4
MAX_AUC_LOSS, MAX_BYTES = 0.005, 1e9
MAX_SECONDS = 3
"""Claimed CPU seconds of the first tree."""
COLUMNS = 15_626
MEMORY_ROUNDS = 5
"""Rounds; later rounds need no more memory than the first."""


def main() -> None:
    """Train each split on both sides, and once with processes."""
    parser = common.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="splits (default 5)")
    parser.add_argument("--rounds", type=int, default=100, help="default 100")
    options = parser.parse_args()
    if options.seeds < 1 or options.rounds < 1:
        common.fail("--seeds and --rounds must be at least 1")
    X, y = read(options.data / f"{NAME}.npz")
    splits = []
    for seed in range(options.seeds):
        print(f"split {seed + 1} of {options.seeds} ...", file=sys.stderr)
        splits.append(compare(X, y, seed, options.rounds))
    print(f"{PARTIES} processes ...", file=sys.stderr)
    report(splits, {number: first_tree(X, y, number) for number in (1, PARTIES)}, most_memory(X, y), options)


def read(path: Path) -> tuple[Any, Float32]:
    """The matrix and the labels."""
    try:
        file = np.load(path)
        parts = file["data"].astype(np.float32), file["indices"], file["indptr"]
        return sparse.csr_matrix(parts, shape=tuple(file["shape"])), file["y"].astype(np.float32)
    except (OSError, KeyError, ValueError) as error:
        common.fail(f"{path}: no file with data, indices, indptr, shape and y of a CSR matrix ({error})")


def terms_of(X: Any, rounds: int) -> fb.Terms:
    """Terms of all trainings."""
    names = [f"f{place}" for place in range(X.shape[1])]
    columns = {"label": LABEL, "numeric": names}
    return fb.Terms.read({"columns": columns, "rounds": rounds, "protection": "plain"})


def shares(rows: int, seed: int) -> tuple[list[Any], Any]:
    """Training rows of each party, and the test rows."""
    order = np.random.default_rng(seed).permutation(rows)
    cut = rows * 4 // 5
    return np.array_split(order[:cut], PARTIES), order[cut:]


def compare(X: Any, y: Float32, seed: int, rounds: int) -> dict[str, float]:
    """AUC of both sides on the test rows, and seconds of the whole training."""
    parts, test = shares(len(y), seed)
    train = np.concatenate(parts)
    start = time.perf_counter()
    tables = {f"party-{number}": {"f": X[part], LABEL: y[part]} for number, part in enumerate(parts, 1)}
    model = fb.simulate(terms_of(X, rounds), tables).model
    ours = time.perf_counter()
    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": 6,
        "eta": 0.3,
        "nthread": 1,
    }
    theirs = xgb.train(settings, xgb.DMatrix(X[train], y[train]), rounds)
    end = time.perf_counter()
    scores = {
        "fedboost": model.predict({"f": X[test], LABEL: y[test]}),
        "XGBoost": theirs.predict(xgb.DMatrix(X[test])),
    }
    aucs = {side: float(roc_auc_score(y[test], score)) for side, score in scores.items()}
    return {**aucs, "fedboost s": ours - start, "XGBoost s": end - ours}


def first_tree(X: Any, y: Float32, parties: int) -> float:
    """CPU seconds from the matrix to the first tree, all parties and the aggregator in one thread."""
    parts = np.array_split(np.arange(len(y)), parties)
    tables = {f"party-{number}": {"f": X[part], LABEL: y[part]} for number, part in enumerate(parts, 1)}
    start = time.process_time()
    fb.simulate(terms_of(X, 1), tables, nthread=1)
    return time.process_time() - start


def most_memory(X: Any, y: Float32) -> list[int]:
    """Peak memory of each party's process in bytes."""
    parts, _ = shares(len(y), 0)
    with TemporaryDirectory(prefix="fedboost-") as name:
        folder = Path(name)
        files = {f"party-{number}": folder / f"party-{number}.libsvm" for number in range(1, PARTIES + 1)}
        for path, part in zip(files.values(), parts, strict=True):
            dump_svmlight_file(X[part], y[part], str(path))
        with LocalCluster(folder, files, policy=ANYTHING) as one:
            for _ in one.analyst.train(terms_of(X, MEMORY_ROUNDS).with_parties(files)):
                pass
            return [peak_memory(process.pid) for process in one.parties.values()]


def held(parties: int, seconds: float) -> str:
    """Verdict on the first tree, only for one party."""
    return verdict(seconds <= MAX_SECONDS) if parties == 1 else ""


def peak_memory(pid: int) -> int:
    """Peak memory of a process in bytes (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def report(
    splits: list[dict[str, float]],
    first: dict[int, float],
    memory: list[int],
    options: argparse.Namespace,
) -> None:
    """The tables and the JSON file."""
    ours, theirs = ([split[side] for split in splits] for side in ("fedboost", "XGBoost"))
    behind = [other - one for one, other in zip(ours, theirs, strict=True)]
    mean, deviation = statistics.mean(behind), statistics.stdev(behind) if len(behind) > 1 else 0.0
    accuracy = common.Table(
        f"AUC after {options.rounds} rounds, {COLUMNS:,} columns, {PARTIES} parties: mean of {options.seeds}",
        ("side", "AUC", "seconds", "behind", "claim", "holds"),
        [
            [
                "fedboost",
                f"{statistics.mean(ours):.4f}",
                spread([split["fedboost s"] for split in splits], 0),
                f"{mean:.4f} (sd {deviation:.4f})",
                f"{MAX_AUC_LOSS}",
                verdict(mean <= MAX_AUC_LOSS),
            ],
            [
                "XGBoost",
                f"{statistics.mean(theirs):.4f}",
                spread([split["XGBoost s"] for split in splits], 0),
                "",
                "",
                "",
            ],
        ],
        [
            "The four parties and the aggregator train in one process with one thread; "
            "XGBoost also has one thread."
        ],
    )
    peaks = common.Table(
        f"MB (10^6 bytes) of a party's process at most, {MEMORY_ROUNDS} rounds over gRPC",
        ("party", "in memory", "claim", "holds"),
        [
            [f"party-{number}", f"{peak / 1e6:.0f}", f"{MAX_BYTES / 1e6:.0f}", verdict(peak < MAX_BYTES)]
            for number, peak in enumerate(memory, 1)
        ],
    )
    begin = common.Table(
        "CPU seconds from the matrix to the first tree, all parties and the aggregator in one thread",
        ("parties", "seconds", "claim", "holds"),
        [
            [str(number), f"{seconds:.1f}", f"{MAX_SECONDS}" if number == 1 else "", held(number, seconds)]
            for number, seconds in first.items()
        ],
    )
    facts = {"splits": splits, "first tree": first, "memory": memory}
    common.publish(options, [accuracy, begin, peaks], facts)


if __name__ == "__main__":
    main()
