"""A thread pool for work that is divided into pieces.

Guarantees: results are returned in the order of the pieces. They do not depend on the number of threads,
provided that different pieces write to different memory. An exception raised while processing a piece
propagates to the caller."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import pairwise
from typing import TypeVar

import numpy as np

from fedboost.fixedpoint import Int64
from fedboost.gbdt.kernels.rows import cut_pieces

Piece = TypeVar("Piece")
Result = TypeVar("Result")

BLOCK = 1 << 14
"""Number of rows in a block, chosen so that a block's intermediate results stay in the cache."""

SHARED = 1 << 16
"""Minimum number of rows whose splits and gradients are divided among threads."""
SHARED_CODES = 1 << 20
"""Minimum number of bin codes (rows times columns) whose sums are divided among threads. Less takes about a
millisecond, and waking a thread up to a tenth of that."""
SHARED_SUMS = 1 << 17
"""Minimum number of sums in the histograms of a level that are divided among threads."""


class Threads:
    """Thread pool for compiled kernels, which release the interpreter lock. number: total number of threads,
    including the calling one; with 1, all work is done in the calling thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(number - 1) if number > 1 else None

    def each(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
        """Call work(piece) for every piece on all threads. Returns the results in the order of the pieces."""
        if self._pool is None:
            return [work(piece) for piece in pieces]
        every = list(pieces)
        if len(every) < 2:
            return [work(piece) for piece in every]
        results: dict[int, Result] = {}
        indices = iter(range(len(every)))

        def share() -> None:
            for index in indices:  # the next free thread takes the next piece
                results[index] = work(every[index])

        # One task per thread, including this one: submitting a piece can cost as much as processing it.
        others = [self._pool.submit(share) for _ in range(1, min(self.number, len(every)))]
        share()
        for other in others:
            other.result()
        return [results[index] for index in range(len(every))]

    def cut(self, places: Int64, whole: int) -> tuple[Int64, list[slice]]:
        """Divide the rows of several leaves evenly among the threads. If there are fewer than `whole` rows, a
        single thread gets all of them.

        places: int64 [leaves, 3], begin, end and root of each leaf's rows (`kernels.rows`). Returns the
        pieces, int64 [pieces, 3] (index of the leaf, begin, end), and a slice of the pieces for each thread.
        """
        pieces = np.empty((len(places) + self.number, 3), np.int64)
        edges = np.empty(self.number + 1, np.int64)
        cut_pieces(places, whole, pieces, edges)
        if self.number == 1:
            return pieces[:-1], [slice(0, len(places))] if len(places) else []
        shares = [slice(*share) for share in pairwise(edges.tolist()) if share[0] < share[1]]
        return pieces[: edges[-1]], shares

    def shares(self, leaves: int, sums: int) -> list[tuple[int, int]]:
        """Divide the leaves of a level, with this many sums in all, evenly among the threads. Returns the
        first (inclusive) and the last leaf (exclusive) of each share."""
        number = min(self.number, leaves) if sums >= SHARED_SUMS else 1
        return [*pairwise(leaves * share // number for share in range(number + 1))]


ONE = Threads(1)
SEARCH: ContextVar[Threads] = ContextVar("SEARCH", default=ONE)
"""Threads with which the aggregator searches for splits."""
SEARCH_THREADS = 4
"""Maximum number of these threads in an aggregator's process, which has one per core."""


def blocks(rows: int) -> list[slice]:
    """Divide rows into blocks of BLOCK rows. Returns a slice for each block, or one empty slice if there are
    no rows. rows: number of rows."""
    return [slice(start, min(start + BLOCK, rows)) for start in range(0, max(rows, 1), BLOCK)]
