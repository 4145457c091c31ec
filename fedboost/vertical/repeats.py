"""How often the label holder has each row id, where several of its rows may have the same (`repeated_ids`).

Promises: ids are matched once each; the rows of an id stand together, in the order of the label holder's
table, and the other parties repeat their row of it as often.
Refuses: numbers of rows that cannot be, and more rows than the terms let a party enter ids (PeerError).
"""

import numpy as np

from fedboost.boosting.queries.ids import REPEAT_BYTES
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.horizontal.shard import RowIds

REPEATS = "how many rows each id has"
"""Kind of a relay."""
_NUMBER = np.dtype(f"<i{REPEAT_BYTES}")


class RepeatedIds:
    """The ids of the label holder's rows. ids: of each row of its table."""

    def __init__(self, ids: RowIds) -> None:
        numbers: dict[bytes, int] = {}
        of_row = np.array([numbers.setdefault(row_id, len(numbers)) for row_id in ids], np.int64)
        self.distinct: RowIds = list(numbers)
        """Each id once, as it first comes."""
        self.counts: Int64 = np.bincount(of_row)
        """The rows of each: int64 [distinct]."""
        self._rows = np.argsort(of_row, kind="stable")
        self._begins = np.cumsum(self.counts) - self.counts

    def rows_of(self, ids: Int64) -> Int64:
        """All rows of these distinct ids, by their numbers, id after id: int64 [rows]."""
        counts = self.counts[ids]
        ends = np.cumsum(counts)
        first = np.repeat(self._begins[ids] - ends + counts, counts)
        rows: Int64 = self._rows[first + np.arange(ends[-1])]
        return rows


def to_bytes(counts: Int64) -> bytes:
    """Numbers of rows as they are relayed."""
    return counts.astype(_NUMBER).tobytes()


def from_bytes(told: bytes) -> Int64:
    """Numbers of rows that were relayed: int64 [ids]."""
    return np.frombuffer(told, _NUMBER).astype(np.int64)


def check(counts: Int64, holder: str, most: int) -> None:
    """PeerError for numbers of rows of a label holder that cannot be, or are more than `most` together."""
    if counts.min() < 1:
        raise PeerError(f"label holder {holder} says that it has an id in common in {counts.min()} rows")
    if (rows := int(counts.sum())) > most:
        raise PeerError(
            f"label holder {holder} has {rows:,} rows with the ids in common, and the terms allow {most:,}: "
            f"raise max_ids if that many are known to be its own"
        )
