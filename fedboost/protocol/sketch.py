"""Cut points from KLL sketches (Apache DataSketches): one turn instead of three, at a price.

Promises: rank error below a quarter of an even bin.
Refuses: sketches that are not (PeerError). A sketch carries raw values of the rows and draws at random, so
it is allowed under `plain` alone and the model is not the same from run to run; `grid` has neither fault.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.bins import MAX_CODES, Float32, floats_to_keys
from fedboost.protocol.queries import KllQuery

SKETCH_ITEMS_PER_BIN = 8
_MISSING = struct.Struct("<q")


def _new_sketch(max_bin: int) -> Any:
    from datasketches import kll_floats_sketch

    return kll_floats_sketch(max(200, SKETCH_ITEMS_PER_BIN * max_bin))


def sketch(columns: Sequence[Float32], query: KllQuery) -> Iterator[bytes]:
    """One part a feature: the count of missing values, then the serialised sketch of the others."""
    for column in columns:
        present = column[~np.isnan(column)]
        own = _new_sketch(query.max_bin)
        own.update(present)
        yield _MISSING.pack(column.size - present.size) + own.serialize()


class SketchOpener:
    """Merges sketches where other openers add cells; opens to the cut points as keys."""

    def __init__(self, query: KllQuery) -> None:
        self.parts = query.features
        self._max_bin = query.max_bin
        self._sketches = [_new_sketch(query.max_bin) for _ in range(query.features)]
        self._missing = [0] * query.features

    def add(self, part: int, cells: bytes) -> None:
        """Merge one feature's sketch of some party."""
        own = self._sketches[part]
        try:
            (missing,) = _MISSING.unpack_from(cells)
            other = type(own).deserialize(cells[_MISSING.size :])
        except (struct.error, RuntimeError, ValueError, IndexError) as error:
            raise PeerError(f"not a KLL sketch: {error}") from None
        if other.k != own.k or missing < 0:
            raise PeerError(f"a KLL sketch with k={other.k} and {missing} missing rows; k={own.k} was due")
        own.merge(other)
        self._missing[part] += missing

    def open(self) -> Int64:
        """Feature by feature: missing rows, number of cuts, then max_bin places for their keys."""
        out = np.zeros((self.parts, 2 + self._max_bin), np.int64)
        for row, own, missing in zip(out, self._sketches, self._missing, strict=True):
            row[0] = missing
            if own.is_empty():
                continue
            bins = min(self._max_bin, MAX_CODES - (missing > 0))
            ranks = (np.arange(1, bins) / bins).tolist()
            values = np.array(own.get_quantiles(ranks) if ranks else [], np.float32)
            cuts = np.unique(values[values > own.get_min_value()])
            row[1] = cuts.size
            row[2 : 2 + cuts.size] = floats_to_keys(cuts)
        return out.reshape(-1)
