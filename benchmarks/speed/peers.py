"""The same training in fedboost and in libraries that train on pooled rows.

Every side trains binary:logistic on the same float32 values: depth 6, at most 64 leaves, 256 bins,
learning rate 0.3, lambda 1. A side that counts the bin of missing values separately has 255 bins. The minimum
hessian per leaf is 1 if the side has such a limit. A library is imported by the process that trains with it.
"""

# Each side gets its number of threads as a parameter. OMP_NUM_THREADS would limit XGBoost nevertheless, so it
# is deleted before the libraries are imported.
import os

os.environ |= {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
os.environ.pop("OMP_NUM_THREADS", None)

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import common
import numpy as np
import pyarrow as pa
from common import Float32

import fedboost as fb

FEDBOOST, XGBOOST, LIGHTGBM, SKLEARN = "fedboost", "XGBoost", "LightGBM", "scikit-learn"
Mark = Callable[..., None]
"""Callback for the end of a round, with any arguments."""
EARLY, LATE = 5, 25
"""Rounds between whose ends trees are timed."""


@dataclass(frozen=True)
class Seconds:
    """CPU seconds of all threads of this process, and wall seconds."""

    cpu: float
    wall: float

    def __sub__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.cpu - other.cpu, self.wall - other.wall)

    def __truediv__(self, parts: float) -> "Seconds":
        return Seconds(self.cpu / parts, self.wall / parts)


def now() -> Seconds:
    """Read both clocks."""
    return Seconds(time.process_time(), time.perf_counter())


@dataclass
class Clock:
    """Reads both clocks at the start of a training and at the end of each of its rounds."""

    start: Seconds = field(default_factory=now)
    marks: list[Seconds] = field(default_factory=list)

    def mark(self, *_: object) -> None:
        """Record the end of a round."""
        self.marks.append(now())


@dataclass(frozen=True)
class Cost:
    """Seconds of a tree, and from raw floats to the end of the first tree."""

    tree: Seconds
    first: Seconds

    @classmethod
    def of(cls, clock: Clock) -> "Cost":
        """Cost from a training of LATE rounds."""
        return cls(
            (clock.marks[LATE - 1] - clock.marks[EARLY - 1]) / (LATE - EARLY), clock.marks[0] - clock.start
        )


@dataclass(frozen=True)
class Rows:
    """The same values by column and by row, and the label."""

    columns: dict[str, Float32]
    matrix: Float32
    label: Float32

    @classmethod
    def of(cls, columns: dict[str, Float32], label: Float32) -> "Rows":
        """Rows from columns of one length."""
        return cls(columns, np.ascontiguousarray(np.column_stack(list(columns.values()))), label)

    @property
    def table(self) -> pa.Table:
        """A pyarrow table of the rows, without a copy."""
        return pa.table({**self.columns, common.LABEL: self.label})


# ---- fedboost ---------------------------------------------------------------------------------------


def terms_of(names: list[str], rounds: int) -> fb.Terms:
    """Terms for numeric columns of these names, protection plain."""
    columns = {"label": common.LABEL, "numeric": names}
    return fb.Terms.read({"columns": columns, "rounds": rounds, "protection": "plain"})


def time_fedboost(rows: Rows, threads: int, parties: int = 1) -> Cost:
    """Time one training in this process with the rows in equal parts."""
    shards, terms = common.equal_parts(rows.table, parties), terms_of([*rows.columns], LATE)
    clock = Clock()
    fb.simulate(terms, shards, on_round=clock.mark, nthread=threads)
    return Cost.of(clock)


def compile_kernels() -> None:
    """Train a small table, so that timed trainings compile nothing."""
    rows = Rows.of(*common.generate(200, 9))
    for threads in (1, 2):
        time_fedboost(rows, threads)


# ---- XGBoost ----------------------------------------------------------------------------------------


def train_xgboost(rows: Float32, label: Float32, threads: int, rounds: int, mark: Mark) -> Any:
    """Bin the rows and train."""
    import xgboost

    class AfterRound(xgboost.callback.TrainingCallback):
        """Calls `mark` and continues the training."""

        def after_iteration(self, model: object, epoch: int, evals_log: object) -> bool:
            mark()
            return False

    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": 6,
        "max_bin": 256,
        "nthread": threads,
    }
    matrix = xgboost.QuantileDMatrix(rows, label, max_bin=256, nthread=threads)
    return xgboost.train(settings, matrix, rounds, callbacks=[AfterRound()])


def time_xgboost(rows: Rows, threads: int) -> Cost:
    """Time one training."""
    clock = Clock()
    train_xgboost(rows.matrix, rows.label, threads, LATE, clock.mark)
    return Cost.of(clock)


# ---- LightGBM ---------------------------------------------------------------------------------------

WISE = ("row", "col")
"""LightGBM's two ways to build a histogram."""


def train_lightgbm(rows: Float32, label: Float32, threads: int, rounds: int, mark: Mark, wise: str) -> Any:
    """Bin and train; wise: which of its two ways to use."""
    import lightgbm

    settings = {
        "objective": "binary",
        "num_leaves": 64,
        "max_depth": 6,
        "max_bin": 255,
        "learning_rate": 0.3,
        "min_data_in_leaf": 1,
        "min_sum_hessian_in_leaf": 1,
        "lambda_l2": 1,
        "feature_pre_filter": False,
        "num_threads": threads,
        "verbose": -1,
        f"force_{wise}_wise": True,
    }
    matrix = lightgbm.Dataset(rows, label, params=settings)
    return lightgbm.train(settings, matrix, rounds, callbacks=[mark])


def time_lightgbm(rows: Rows, threads: int, wise: str) -> Cost:
    """Time one training."""
    clock = Clock()
    train_lightgbm(rows.matrix, rows.label, threads, LATE, clock.mark, wise)
    return Cost.of(clock)


# ---- scikit-learn -----------------------------------------------------------------------------------


def train_sklearn(rows: Float32, label: Float32, threads: int, rounds: int) -> Any:
    """Bin the rows and train."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    model = HistGradientBoostingClassifier(
        max_iter=rounds,
        max_depth=6,
        max_leaf_nodes=64,
        max_bins=255,
        learning_rate=0.3,
        min_samples_leaf=1,
        l2_regularization=1.0,
        early_stopping=False,
    )
    with threadpool_limits(threads, user_api="openmp"):
        return model.fit(rows, label)


def time_sklearn(rows: Rows, threads: int) -> Cost:
    """Two trainings of EARLY and of LATE rounds, because it has no callback after a round."""

    def timed(rounds: int) -> Seconds:
        start = now()
        train_sklearn(rows.matrix, rows.label, threads, rounds)
        return now() - start

    early, late = timed(EARLY), timed(LATE)
    between = late - early
    return Cost(between / (LATE - EARLY), early - between / ((LATE - EARLY) / (EARLY - 1)))


TIMED: dict[str, Callable[[Rows, int], Cost]] = {
    FEDBOOST: time_fedboost,
    XGBOOST: time_xgboost,
    SKLEARN: time_sklearn,
}
"""The sides without a choice of variant."""
