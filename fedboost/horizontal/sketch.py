"""Cut points from KLL sketches (Apache DataSketches): one turn instead of three to five, at a price.

Promises: rank error below a quarter of an even bin; what arrives is held to its bounds before it is used.
Refuses: bytes that are no weighted values of at most so many rows (PeerError). A sketch carries raw values of
the rows and draws at random, so it is allowed under `plain` alone and the model is not the same from run to
run; `grid` has neither fault.

What travels is not the library's own format, whose reader trusts its input, but the values that the sketch
kept, each with the number of rows it stands for.
"""

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedboost.boosting.queries import KllQuery
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import floats_to_keys
from fedboost.gbdt.kernels.bins import MAX_CODES

SKETCH_ITEMS_PER_BIN = 8
_MISSING = struct.Struct("<q")
_ITEM = np.dtype([("value", "<f4"), ("rows", "<i8")])


SKETCH_SPARE = 4
"""A sketch keeps about three times its size in values, and never so many times."""


def most_bytes(max_bin: int) -> int:
    """Bytes that the sketch of one feature has at most."""
    return _MISSING.size + SKETCH_SPARE * _size(max_bin) * _ITEM.itemsize


def _size(max_bin: int) -> int:
    return max(200, SKETCH_ITEMS_PER_BIN * max_bin)


def sketch(columns: Sequence[Column], query: KllQuery) -> Iterator[bytes]:
    """One part a feature: the count of missing values, then the kept values and their rows."""
    from datasketches import kll_floats_sketch

    for values in columns:
        column = values[:]
        present = column[~np.isnan(column)]
        own = kll_floats_sketch(_size(query.max_bin))
        own.update(present)
        yield _MISSING.pack(column.size - present.size) + np.array(list(own), _ITEM).tobytes()


class SketchOpener:
    """Joins sketches where other openers add cells; opens to the cut points as keys."""

    def __init__(self, query: KllQuery) -> None:
        self.parts = query.features
        self._max_bin = query.max_bin
        self._rows = query.rows
        self._items: list[list[npt.NDArray[np.void]]] = [[] for _ in range(query.features)]
        self._missing = [0] * query.features

    def add(self, party: str, part: int, cells: bytes) -> None:
        """Take in one feature's sketch of some party."""
        try:
            (missing,) = _MISSING.unpack_from(cells)
            items = np.frombuffer(cells, _ITEM, offset=_MISSING.size)
        except (struct.error, ValueError):
            raise PeerError(f"{len(cells)} bytes are no sketch") from None
        if len(cells) > most_bytes(self._max_bin):
            raise PeerError(f"a sketch of {len(cells)} bytes; {most_bytes(self._max_bin)} are allowed")
        rows = items["rows"]
        finite = np.isfinite(items["value"]).all()
        if missing < 0 or not finite or (rows <= 0).any() or (rows > self._rows).any():
            raise PeerError("a sketch with values or rows that cannot be")
        if missing + int(rows.sum()) > self._rows:
            raise PeerError(f"a sketch of more than the {self._rows} rows of all parties")
        self._items[part].append(items)
        self._missing[part] += missing

    def note(self, party: str, note: bytes) -> None:
        """What the sealer had to say of another turn's vector: nothing of a sketch."""

    def lose(self, party: str) -> None:
        """Its sketches are merged; nothing more was wanted of it."""

    def requests(self) -> dict[str, bytes]:
        """No help is wanted."""
        return {}

    def assist(self, party: str, answer: bytes) -> None:
        """Refused."""
        raise PeerError("help that a sketch does not need")

    def open(self) -> Int64:
        """Feature by feature: missing rows, number of cuts, then max_bin places for their keys."""
        out = np.zeros((self.parts, 2 + self._max_bin), np.int64)
        for row, items, missing in zip(out, self._items, self._missing, strict=True):
            row[0] = missing
            kept = np.sort(np.concatenate(items), order="value")
            if not kept.size:
                continue
            until = np.cumsum(kept["rows"])
            bins = min(self._max_bin, MAX_CODES - (missing > 0))
            ranks = np.arange(1, bins) * (until[-1] / bins)
            values = np.unique(kept["value"][np.searchsorted(until, ranks)])
            cuts = values[values > kept["value"][0]]
            row[1] = cuts.size
            row[2 : 2 + cuts.size] = floats_to_keys(cuts)
        return out.reshape(-1)
