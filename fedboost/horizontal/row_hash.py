"""A keyed hash of rows, by which a site knows that its rows are the same as before.

Promises: each row counts with its values and its place, so that the hashes of shares of a table add up to
the hash of the whole table, however it is shared out; a table that differs in one value has another hash.
Refuses nothing. Whoever knows the key can make rows of the same hash: it is the site's own, and stays there.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fedboost.gbdt.binned import Column
from fedboost.gbdt.sampling import Keys, mixed

LANES = 4
"""64-bit words of a hash."""
_BLOCK = 1 << 14
"""Rows whose sums stay in the cache."""
_READ = 1 << 20
"""Rows of a column that are read at a time."""
Values = Column | npt.NDArray[np.generic]
Words = npt.NDArray[np.uint64]


def hash_rows(key: bytes, software: str, columns: Iterable[tuple[str, Values]], places: Keys) -> bytes:
    """The hash of rows: 32 bytes. columns: each with a name, of one, four or eight bytes a value; places: of
    the rows in the whole table, uint64 [rows]; software: what else answers depend on."""
    key = hmac.digest(key, software.encode(), "sha256")
    tags = np.zeros((LANES, places.size), np.uint64)
    for name, column in columns:
        for half in range(2):
            multipliers = _words(key, f"{half} of {name}") | np.uint64(1)
            if not _add(tags, column, half, multipliers):
                break
    sums = [mixed(tag + mixed(places, lane), "row").sum(dtype=np.uint64) for lane, tag in enumerate(tags)]
    return np.array(sums, "<u8").tobytes()


def add_hashes(hashes: Sequence[bytes]) -> bytes:
    """The hash of rows whose shares have these hashes."""
    words = [np.frombuffer(share, "<u8") for share in hashes]
    return np.sum(words, axis=0, dtype=np.uint64).astype("<u8").tobytes()


def words_of(texts: Sequence[bytes]) -> Keys:
    """A column of texts, as numbers."""
    return np.array([int.from_bytes(hashlib.sha256(text).digest()[:8]) for text in texts], np.uint64)


def _add(tags: Words, column: Values, half: int, multipliers: Words) -> bool:
    """Add one half of each value of a column, of eight bytes, or all of it; False if there is no such
    half."""
    for start in range(0, tags.shape[1], _READ):
        values = np.ascontiguousarray(column[start : start + _READ])
        if values.dtype.itemsize == 1:
            values = values.astype(np.uint32)
        words = values.view(np.uint32).reshape(values.size, -1)
        if half >= words.shape[1]:
            return False
        for first in range(0, values.size, _BLOCK):
            block = words[first : first + _BLOCK, half].astype(np.uint64) + np.uint64(1)
            for lane, multiplier in zip(tags, multipliers, strict=True):
                lane[start + first : start + first + block.size] += multiplier * block
    return True


def _words(key: bytes, what: str) -> Words:
    """Words that nobody knows without the key."""
    return np.frombuffer(hmac.digest(key, what.encode(), "sha256"), "<u8")
