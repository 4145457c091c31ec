"""Work shared by the cores of one machine.

Promises: results come in the order of the pieces, so they do not depend on the number of threads, provided
that the pieces write to different places. The first error of a piece is raised.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np

from fedboost.fixedpoint import Int64
from fedboost.gbdt.kernels.rows import cut_pieces

Piece = TypeVar("Piece")
Result = TypeVar("Result")

BLOCK = 1 << 14
"""Rows of a block, so that the intermediate results of a block stay in the cache."""


class Threads:
    """A pool of threads; kernels release the interpreter lock. With number 1, only the caller works."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(number - 1) if number > 1 else None

    def each(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
        """Results of work(piece), in the order of the pieces."""
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
        """Cut the rows of leaves (`kernels.rows`) into one share for each thread, or a single share if there
        are fewer than `whole`. Returns the pieces, int64 [pieces, 3], and their slices that are the shares.
        """
        pieces = np.empty((len(places) + self.number, 3), np.int64)
        edges = np.empty(self.number + 1, np.int64)
        cut_pieces(places, whole, pieces, edges)
        if self.number == 1:
            return pieces[:-1], [slice(0, len(places))] if len(places) else []
        shares = [slice(*share) for share in pairwise(edges.tolist()) if share[0] < share[1]]
        return pieces[: edges[-1]], shares


ONE = Threads(1)


def blocks(rows: int) -> list[slice]:
    """Slices of `rows` rows, block by block. Without rows there is one empty block."""
    return [slice(start, min(start + BLOCK, rows)) for start in range(0, max(rows, 1), BLOCK)]
