"""Target means: a column's levels encoded as means of the label, with buckets of levels and folds of rows.

A level is any text. Its bucket is a hash of the text, so no list of levels is needed. Each row that trees
grow on belongs to a fold, and is encoded with its bucket's mean over the other folds, which excludes its own
label. Validation rows, and all predicted rows, get the mean over all folds.

Promises: bucket and fold of a row depend only on its level, its key and the seed, not on the party. Means
that `to_json` did not write raise ConfigError.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.sampling import Keys, mixed

FOLDS = 5
"""As in scikit-learn's TargetEncoder."""
ALL = FOLDS
"""Index of the mean over all folds, after the means without fold 0, 1, ..."""
MIN_BUCKETS, MAX_BUCKETS = 2, 1 << 18
"""Buckets of a column. MAX_BUCKETS also limits all columns together, since their means travel in one message.
"""
_WORD = 8
"""Bytes of a level's hash that determine its bucket."""

Folds = npt.NDArray[np.uint8]


def bucket_of(text: str, buckets: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_WORD).digest()) % buckets


def folds_of(keys: Keys, seed: int) -> Folds:
    """The fold of each row, by its key: uint8 [rows], 0 to FOLDS - 1."""
    return (mixed(keys, seed, "fold") % np.uint64(FOLDS)).astype(np.uint8)


@dataclass(frozen=True)
class Slots:
    """The slots of a column: `folds` for each bucket, and for missing values, which come last.

        slot = bucket * folds + fold      [ bucket 0: fold 0, 1, ..., ALL | bucket 1 | ... | missing ]

    Without folds (`folds` is 1) there is one slot for each bucket."""

    buckets: int
    folds: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the means of all buckets."""
        return self.buckets, self.folds

    @property
    def with_missing(self) -> int:
        """Number of slots, including those of missing values."""
        return (self.buckets + 1) * self.folds

    def of(self, buckets: Float32, folds: Folds | None) -> Int64:
        """The slot of each row: int64 [rows]. buckets: float32, NaN for missing values; folds: fold of each
        row, or None for the last slot of every bucket."""
        first = np.where(np.isnan(buckets), np.float32(self.buckets), buckets).astype(np.int64) * self.folds
        return first + (self.folds - 1 if folds is None else folds)


@dataclass(frozen=True)
class EncodedColumn:
    """A column of buckets that reads as means, which are looked up on access.

    buckets: reads as float32, NaN for missing values; means: float32 [buckets, folds]; folds: fold of each
    row, or None for the last slot of every bucket."""

    buckets: Column
    slots: Slots
    means: Float32
    folds: Folds | None

    @property
    def size(self) -> int:
        return self.buckets.size

    def __getitem__(self, rows: slice) -> Float32:
        values = np.append(self.means, np.full(self.slots.folds, np.float32(np.nan)))
        return values[self.slots.of(self.buckets[rows], None if self.folds is None else self.folds[rows])]


@dataclass(frozen=True)
class LevelMeans:
    """The mean of each bucket of a column, for prediction. packed: float32, in little-endian bytes."""

    packed: bytes

    @classmethod
    def of(cls, means: Float32) -> "LevelMeans":
        return cls(np.ascontiguousarray(means, "<f4").tobytes())

    @property
    def buckets(self) -> int:
        return len(self.packed) // np.dtype(np.float32).itemsize

    @property
    def values(self) -> Float32:
        return np.frombuffer(self.packed, "<f4").astype(np.float32)

    def of_buckets(self, buckets: Float32) -> Float32:
        """The mean of each row: float32 [rows], from its bucket; NaN for missing values."""
        return EncodedColumn(buckets, Slots(self.buckets, 1), self.values, None)[: buckets.size]

    def encoded(self, codes: Int64, levels: Sequence[str]) -> Float32:
        """The mean of each row: float32 [rows]. codes: index of its level among `levels`, -1 for a missing
        value, which stays missing."""
        means = [self.values[bucket_of(level, self.buckets)] for level in levels]
        return np.array([*means, np.nan], np.float32)[codes]


TargetMeans = Mapping[str, LevelMeans]
"""The target means of each encoded column."""
NO_MEANS: TargetMeans = {}


def to_json(means: TargetMeans) -> str:
    """The means as JSON, each as the shortest decimal that reads back as its float32."""
    return json.dumps(
        {name: [float(str(mean)) for mean in each.values] for name, each in means.items()},
        separators=(",", ":"),
    )


def from_json(text: str, source: str) -> dict[str, LevelMeans]:
    try:
        content: dict[str, Any] = json.loads(text)
        for values in content.values():
            if not MIN_BUCKETS <= len(values) <= MAX_BUCKETS or not all(map(math.isfinite, values)):
                raise ValueError("not finite means of that many buckets")
        means = {str(name): LevelMeans.of(np.array(values, "<f4")) for name, values in content.items()}
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        raise ConfigError(
            "target-means-malformed", f"{source}: its target means are not in the form that fedboost writes"
        ) from None
    return means
