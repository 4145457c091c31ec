"""Work shared by the cores of one machine.

Promises: results come in the order of the pieces, so that what is computed does not depend on how many
threads there are, as long as the pieces write to different places.
Refuses nothing: the first error of a piece is raised.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.uint32]

Piece = TypeVar("Piece")
Result = TypeVar("Result")

BLOCK = 1 << 14
"""Rows of a block: intermediate results of one stay in the cache."""


class Threads:
    """Threads that wait for work. Kernels do not hold the interpreter lock. With number 1, the caller's
    alone."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(number - 1) if number > 1 else None

    def each(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
        """Results of work(piece), in the order of the pieces."""
        every = list(pieces)
        if self._pool is None or len(every) < 2:
            return [work(piece) for piece in every]
        results: dict[int, Result] = {}
        indices = iter(range(len(every)))

        def share() -> None:
            for index in indices:  # the next free thread takes the next piece
                results[index] = work(every[index])

        # One task a thread, this one included: to hand over a piece can cost as much as to process it.
        others = [self._pool.submit(share) for _ in range(1, min(self.number, len(every)))]
        share()
        for other in others:
            other.result()
        return [results[index] for index in range(len(every))]

    def shares(self, rows: Rows, whole: int) -> list[Rows]:
        """Split rows into a piece for each thread; into one where they are fewer than `whole`."""
        return np.array_split(rows, self.number) if self.number > 1 and rows.size >= whole else [rows]


ONE = Threads(1)


def blocks(rows: int) -> list[slice]:
    """Slices of `rows` rows, block by block; no rows are one empty block."""
    return [slice(start, min(start + BLOCK, rows)) for start in range(0, max(rows, 1), BLOCK)]
