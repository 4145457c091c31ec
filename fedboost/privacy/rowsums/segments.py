"""Segments: which numbers are multiplied to have the sums of nodes by column and bin.

Promises: two columns are summed at a time, first by their joint bins, then each of the two from these: for
two columns of a node, as many products as rows and joint bins in use, and not twice as many as rows.
Refuses nothing: callers have validated rows and codes.

`members` is int64 [M], positions in a list of numbers; `starts` int64 [S + 1], where each segment of members
begins, and the end. The product of an empty segment is 1.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Int64
from fedboost.privacy.rowsums.scheme import Codes, Node

Joint = npt.NDArray[np.uint16]


class Segments(NamedTuple):
    """As above."""

    members: Int64
    starts: Int64


def plan(nodes: Sequence[Node], codes: Codes, bins: Sequence[int]) -> tuple[Segments, Segments]:
    """Segments of rows by joint bin, and segments of their products by node, column and bin.

    nodes: roots and rows; codes: uint8 [columns, rows], the bin of each row; bins: the bins of each column,
    at most 256. A row of a root has the position root * rows + row.
    """
    joint, folds, first = list[Segments](), list[Segments](), 0
    for root, rows in nodes:
        of_rows = rows.astype(np.int64)
        for column in range(0, len(bins), 2):
            by_bin, others = _pair(codes[column : column + 2, rows], bins[column : column + 2])
            joint.append(Segments(of_rows[by_bin.members] + root * codes.shape[1], by_bin.starts))
            folds += [Segments(members + first, starts) for members, starts in others]
            first += by_bin.starts.size - 1
    return _joined(joint), _joined(folds)


def _pair(codes: Codes, bins: Sequence[int]) -> tuple[Segments, list[Segments]]:
    """The rows of a node by joint bins of two columns, or of one, and their products by bins of each."""
    width = bins[1] if len(bins) == 2 else 1
    joint: Joint = codes[0].astype(np.uint16) * np.uint16(width)
    if len(bins) == 2:
        joint += codes[1]
    order = np.argsort(joint, kind="stable")  # of 16 bits: by radix
    ordered = joint[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] + np.uint16(1))) if ordered.size else order
    used = ordered[begins].astype(np.int64)
    folds = [_by_bin(of_column, size) for of_column, size in zip(divmod(used, width), bins, strict=False)]
    return Segments(order, np.append(begins, ordered.size)), folds


def by_place(places: Int64) -> Segments:
    """The segments of numbers by their places, one for each place up to the number of numbers."""
    return _by_bin(places, places.size)


def _by_bin(codes: Int64, bins: int) -> Segments:
    order = np.argsort(codes, kind="stable")
    return Segments(order, np.searchsorted(codes[order], np.arange(bins + 1)))


def _joined(parts: Sequence[Segments]) -> Segments:
    """The segments of all parts, one part after the other."""
    if not parts:
        return Segments(np.zeros(0, np.int64), np.zeros(1, np.int64))
    sizes = np.concatenate([np.diff(starts) for _, starts in parts])
    return Segments(np.concatenate([members for members, _ in parts]), np.append(0, np.cumsum(sizes)))


def cut(starts: Int64, longest: int) -> tuple[Int64, Int64]:
    """Cut segments into pieces of at most `longest` members: where the pieces start, and where in the list of
    pieces those of each segment do."""
    sizes = np.diff(starts)
    pieces = -(-sizes // longest)
    ends = np.append(0, np.cumsum(pieces))
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], pieces)
    return np.append(np.repeat(starts[:-1], pieces) + longest * within, starts[-1]), ends


def shares(starts: Int64, number: int) -> list[slice]:
    """Share segments among so many threads, with about as many members each."""
    edges = np.searchsorted(starts, np.linspace(0, starts[-1], number + 1)[1:-1])
    bounds = [0, *edges.tolist(), starts.size - 1]
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]
