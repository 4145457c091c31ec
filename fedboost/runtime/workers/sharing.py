"""How the rows of a site are shared out among its workers, and what is checked over all of them.

Promises: contiguous rows, as many as a worker has threads; groups of rows that are ranked stay whole where
rows of a group stand together. What one worker cannot see is checked here: a label of more than two values, a
group whose rows are at two workers.
Refuses: rows that do not fit in the workers' memory (ConfigError, before any is read); what is checked.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from fedboost.errors import ConfigError, SchemaMismatch
from fedboost.runtime.data.shard import check_labels
from fedboost.runtime.workers.engine import Worker
from fedboost.runtime.workers.hold import Held
from fedboost.runtime.workers.holder import Share
from fedboost.runtime.workers.source import Range
from fedboost.terms.terms import Terms

BYTES_A_VALUE, BYTES_A_ROW, BYTES_BESIDE = 6.6, 48, 280 << 20
"""Bytes that a worker needs while it loads Parquet files, at most: measured with 50 columns, as below."""
COLLECTED_A_VALUE = 20.0
"""The same of partitions of a DataFrame: theirs, and what is made of them."""
GROWING_A_VALUE, GROWING_A_ROW, GROWING_BESIDE = 2.3, 32, 305 << 20
"""Bytes that it needs while trees grow; most beside is interpreter, libraries and compiled kernels."""
USABLE = 0.8
"""The part of a worker's memory above which Dask pauses it."""


def shares_of(
    rows: int, workers: Sequence[Worker], edge: Callable[[int], int] = lambda at: at
) -> list[tuple[Worker, Share]]:
    """A share for each worker, by its threads; none for workers without rows. edge: the first row from there
    on at which rows may be cut."""
    threads = np.cumsum([0, *(worker.threads for worker in workers)])
    cuts = [int(at) for at in rows * threads // threads[-1]]
    cuts = [0, *(edge(at) if 0 < at < rows else at for at in cuts[1:-1]), rows]
    pairs = zip(workers, pairwise(np.maximum.accumulate(cuts).tolist()), strict=True)
    return [(worker, Share((Range(first, last),))) for worker, (first, last) in pairs if first < last]


def loading_bytes(rows: int, features: int, a_value: float = BYTES_A_VALUE) -> int:
    """Bytes of memory that a worker needs while it loads so many rows."""
    return int(rows * (a_value * features + BYTES_A_ROW)) + BYTES_BESIDE


def growing_bytes(rows: int, features: int) -> int:
    """Bytes of memory that it needs while trees grow over them."""
    return int(rows * (GROWING_A_VALUE * features + GROWING_A_ROW)) + GROWING_BESIDE


def check_memory(
    terms: Terms, shares: Sequence[tuple[Worker, Share]], a_value: float = BYTES_A_VALUE
) -> None:
    """Raise ConfigError if a worker has less memory than its share takes. a_value: bytes a value."""
    for worker, share in shares:
        features = len(terms.columns.features)
        needed = loading_bytes(share.rows, features, a_value)
        if 0 < worker.memory * USABLE < needed:
            raise ConfigError(
                "its workers have too little memory for these rows",
                f"{share.rows:,} rows of {features} features take {needed / 2**30:.1f} GiB at worker "
                f"{worker.address}, which may use {worker.memory * USABLE / 2**30:.1f}: add workers, or give "
                f"them more memory",
            )


def check_together(terms: Terms, held: Sequence[Held], party: str) -> None:
    """Raise SchemaMismatch for what the rows of all workers together cannot be."""
    refusal = f"party {party}: its rows do not fit the terms"
    labels = dict.fromkeys(label for each in held for label in each.labels)
    try:
        check_labels(terms.columns.label, tuple(labels))
    except ConfigError as error:
        raise SchemaMismatch(refusal, str(error)) from None
    groups = [np.frombuffer(each.groups, np.uint64) for each in held]
    if groups and np.unique(np.concatenate(groups)).size < sum(each.size for each in groups):
        raise SchemaMismatch(
            refusal,
            f"rows of one {terms.columns.group!r} are at two workers: sort the rows by it, and write each "
            f"group into one file",
        )


def undeclared_of(held: Sequence[Held]) -> Iterator[tuple[str, str, int]]:
    """Each column with categories that the terms do not declare: its name, one of them, the rows."""
    rows: Counter[str] = Counter()
    example: dict[str, str] = {}
    for each in held:
        for column, category, count in each.undeclared:
            example.setdefault(column, category)
            rows[column] += count
    for column, category in example.items():
        yield column, category, rows[column]
