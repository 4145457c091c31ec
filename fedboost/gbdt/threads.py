"""Work shared out over the cores of one machine.

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
Made = TypeVar("Made")

BLOCK = 1 << 14
"""Rows of a block: what is computed of them on the way stays in the cache."""


class Threads:
    """Threads that wait for work. Kernels do not hold the interpreter lock. One is none."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(number - 1) if number > 1 else None

    def each(self, work: Callable[[Piece], Made], pieces: Iterable[Piece]) -> list[Made]:
        """work(piece) of every piece."""
        every = list(pieces)
        if self._pool is None or len(every) < 2:
            return [work(piece) for piece in every]
        made: dict[int, Made] = {}
        places = iter(range(len(every)))

        def share() -> None:
            for place in places:  # whoever is free takes the next one
                made[place] = work(every[place])

        # One task a thread, and this one works, too: to hand over a piece costs as much as many a piece does.
        others = [self._pool.submit(share) for _ in range(1, min(self.number, len(every)))]
        share()
        for other in others:
            other.result()
        return [made[place] for place in range(len(every))]

    def shares(self, rows: Rows, whole: int) -> list[Rows]:
        """Rows in one piece a thread; in one piece where they are fewer than `whole`."""
        return np.array_split(rows, self.number) if self.number > 1 and rows.size >= whole else [rows]


ONE = Threads(1)


def blocks(rows: int) -> list[slice]:
    """So many rows in blocks; no rows are one empty block."""
    return [slice(start, min(start + BLOCK, rows)) for start in range(0, max(rows, 1), BLOCK)]
