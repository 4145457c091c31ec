"""Work shared out over the cores of one machine.

Promises: results come in the order of the pieces, so that what is computed does not depend on how many
threads there are, as long as the pieces write to different places.
Refuses nothing: the first error of a piece is raised.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")
Made = TypeVar("Made")

BLOCK = 1 << 14
"""Rows of a block: what is computed of them on the way stays in the cache."""


class Threads:
    """Threads that wait for work. Kernels do not hold the interpreter lock. One is none."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(number) if number > 1 else None

    def each(self, work: Callable[[Piece], Made], pieces: Iterable[Piece]) -> list[Made]:
        """work(piece) of every piece."""
        return list(self._pool.map(work, pieces) if self._pool else map(work, pieces))


ONE = Threads(1)


def blocks(rows: int) -> list[slice]:
    """So many rows in blocks; no rows are one empty block."""
    return [slice(start, min(start + BLOCK, rows)) for start in range(0, max(rows, 1), BLOCK)]
