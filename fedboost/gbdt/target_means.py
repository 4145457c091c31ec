"""Target means: encodes each level of a column as a mean label. Levels are hashed, and the
means for training rows exclude the row's own fold.

A level is any text. Its hash determines a bucket, so no list of levels is needed. Each training row belongs
to a fold. Its level is replaced by its bucket's mean over the other folds, which excludes the row's own
label. Validation rows and all predicted rows get the mean over all folds.

Guarantees: a row's bucket and fold depend only on its level, its key and the seed, not on its party.
Raises: ConfigError if a model's target means cannot be read.
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
"""Number of folds, as in scikit-learn's TargetEncoder."""
ALL = FOLDS
"""Index of the mean over all folds, after the means that exclude fold 0, 1, ..."""
MIN_BUCKETS, MAX_BUCKETS = 2, 1 << 18
"""Minimum and maximum number of buckets of a column. MAX_BUCKETS also limits the total of all columns, since
their means are sent in one message."""
_WORD = 8
"""Number of bytes in the hash that determines a level's bucket."""

Folds = npt.NDArray[np.uint8]


def bucket_of(text: str, buckets: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_WORD).digest()) % buckets


def folds_of(keys: Keys, seed: int) -> Folds:
    """Assign each row to a fold by its key, uint64 [rows]. Returns uint8 [rows], below FOLDS."""
    return (mixed(keys, seed, "fold") % np.uint64(FOLDS)).astype(np.uint8)


@dataclass(frozen=True)
class Slots:
    """Numbering of a column's sums or means (slots). Each bucket has `folds` slots, and so do missing values,
    which come last.

        slot = bucket * folds + fold      [ bucket 0: fold 0, 1, ..., ALL | bucket 1 | ... | missing ]

    If `folds` is 1, there is a single slot for each bucket."""

    buckets: int
    folds: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of an array with the means of all buckets: (buckets, folds)."""
        return self.buckets, self.folds

    @property
    def with_missing(self) -> int:
        """Number of slots, including those for missing values."""
        return (self.buckets + 1) * self.folds

    def of(self, buckets: Float32, folds: Folds | None) -> Int64:
        """Return the slot of each row: int64 [rows]. buckets: float32 [rows], NaN for missing values; folds:
        uint8 [rows], or None for the last slot of each bucket."""
        first = np.where(np.isnan(buckets), np.float32(self.buckets), buckets).astype(np.int64) * self.folds
        return first + (self.folds - 1 if folds is None else folds)


@dataclass(frozen=True)
class EncodedColumn:
    """A column of target means. On access, each row's mean is looked up from the row's bucket.

    buckets: column of bucket numbers, read as float32, NaN for missing values; means: float32 [buckets,
    folds]; folds: uint8 [rows], or None for the last slot of each bucket."""

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
    """Mean of each bucket of a column, used for prediction. packed: means as little-endian float32 bytes."""

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
        """Return the mean for each row's bucket: float32 [rows], NaN for missing values."""
        return EncodedColumn(buckets, Slots(self.buckets, 1), self.values, None)[: buckets.size]

    def encoded(self, codes: Int64, levels: Sequence[str]) -> Float32:
        """Return the mean for each row's level: float32 [rows]. codes: int64 [rows], index into `levels`, or
        -1 for a missing value, for which NaN is returned."""
        means = [self.values[bucket_of(level, self.buckets)] for level in levels]
        return np.array([*means, np.nan], np.float32)[codes]


TargetMeans = Mapping[str, LevelMeans]
"""Target means of each encoded column, by column name."""
NO_MEANS: TargetMeans = {}


def to_json(means: TargetMeans) -> str:
    """Return the means as JSON, each as the shortest decimal that reads back as the same float32."""
    return json.dumps(
        {name: [float(str(mean)) for mean in each.values] for name, each in means.items()},
        separators=(",", ":"),
    )


def from_json(text: str, source: str) -> dict[str, LevelMeans]:
    try:
        content: dict[str, Any] = json.loads(text)
        for values in content.values():
            if not MIN_BUCKETS <= len(values) <= MAX_BUCKETS or not all(map(math.isfinite, values)):
                raise ValueError("the means are not finite, or there are too few or too many")
        means = {str(name): LevelMeans.of(np.array(values, "<f4")) for name, values in content.items()}
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        raise ConfigError(
            "target-means-malformed", f"{source}: the target means are not in the format that fedboost writes"
        ) from None
    return means
