"""Levels of a column as means of the label: buckets of levels, folds of rows, and the means that a model has.

A level is one of any number of texts. Its bucket is a hash of the text, so that no list of levels is needed.
Each row that trees grow on is in a fold, and gets the mean of its bucket over the other folds: its own label
is not in it. Validation rows, and all that are predicted, get the mean over all folds.

Promises: bucket and fold of a row depend on its level, its key and the seed alone, whichever party holds it.
Refuses: means that are not as `to_json` writes them (ConfigError).
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
"""As many as scikit-learn's TargetEncoder has."""
ALL = FOLDS
"""The place of the mean over all folds, behind those without fold 0, 1, ..."""
MIN_BUCKETS, MAX_BUCKETS = 2, 1 << 18
"""Buckets of a column; of all columns together no more either: their means travel in one message."""
_WORD = 8
"""Bytes of the hash of a level that its bucket is found by."""

Folds = npt.NDArray[np.uint8]


def bucket_of(text: str, buckets: int) -> int:
    """The bucket of a level."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_WORD).digest()) % buckets


def folds_of(keys: Keys, seed: int) -> Folds:
    """The fold of each row, by its key: uint8 [rows], 0 to FOLDS - 1."""
    return (mixed(keys, seed, "fold") % np.uint64(FOLDS)).astype(np.uint8)


@dataclass(frozen=True)
class Slots:
    """The slots of a column: of each bucket, and last of missing values, one for each fold and ALL; or one
    alone, where there are no folds (`folds` is 1)."""

    buckets: int
    folds: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of the means of all buckets."""
        return self.buckets, self.folds

    @property
    def with_missing(self) -> int:
        """All slots."""
        return (self.buckets + 1) * self.folds

    def of(self, buckets: Float32, folds: Folds | None) -> Int64:
        """The slot of each row: int64 [rows]. buckets: float32, NaN for missing values; folds: of each row;
        None for the last place of every bucket."""
        first = np.where(np.isnan(buckets), np.float32(self.buckets), buckets).astype(np.int64) * self.folds
        return first + (self.folds - 1 if folds is None else folds)


@dataclass(frozen=True)
class EncodedColumn:
    """A column of buckets as means, which are looked up when it is read.

    buckets: float32 when it is read, NaN for missing values; means: float32 [buckets, folds]; folds: of each
    row, None for the last place of every bucket."""

    buckets: Column
    slots: Slots
    means: Float32
    folds: Folds | None

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.buckets.size

    def __getitem__(self, rows: slice) -> Float32:
        values = np.append(self.means, np.full(self.slots.folds, np.float32(np.nan)))
        return values[self.slots.of(self.buckets[rows], None if self.folds is None else self.folds[rows])]


@dataclass(frozen=True)
class LevelMeans:
    """The mean of each bucket of a column, which rows that are predicted get.

    packed: float32, in little-endian bytes."""

    packed: bytes

    @classmethod
    def of(cls, means: Float32) -> "LevelMeans":
        """From float32 [buckets]."""
        return cls(np.ascontiguousarray(means, "<f4").tobytes())

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return len(self.packed) // np.dtype(np.float32).itemsize

    @property
    def values(self) -> Float32:
        """The means: float32 [buckets]."""
        return np.frombuffer(self.packed, "<f4").astype(np.float32)

    def of_buckets(self, buckets: Float32) -> Float32:
        """The mean of each row: float32 [rows], from its bucket, NaN for missing values."""
        return EncodedColumn(buckets, Slots(self.buckets, 1), self.values, None)[: buckets.size]

    def encoded(self, codes: Int64, levels: Sequence[str]) -> Float32:
        """The mean of each row: float32 [rows]. codes: the place of its level among `levels`, -1 for a
        missing value, which stays one."""
        means = [self.values[bucket_of(level, self.buckets)] for level in levels]
        return np.array([*means, np.nan], np.float32)[codes]


TargetMeans = Mapping[str, LevelMeans]
"""The means of each column that has some."""
NO_MEANS: TargetMeans = {}


def to_json(means: TargetMeans) -> str:
    """The means as text: each the shortest decimal that names its float32."""
    return json.dumps(
        {name: [float(str(mean)) for mean in each.values] for name, each in means.items()},
        separators=(",", ":"),
    )


def from_json(text: str, source: str) -> dict[str, LevelMeans]:
    """The means in a text of `to_json`."""
    try:
        content: dict[str, Any] = json.loads(text)
        for values in content.values():
            if not MIN_BUCKETS <= len(values) <= MAX_BUCKETS or not all(map(math.isfinite, values)):
                raise ValueError("means that are none")
        means = {str(name): LevelMeans.of(np.array(values, "<f4")) for name, values in content.items()}
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        raise ConfigError(f"{source}: its target means are not as fedboost writes them") from None
    return means
