"""The rows of a party in a session: all of its table, or those that the parties of its block have in common.

Promises: rows that are matched stand in the order that the aggregator told; while they are not, nothing is
computed of them.
Refuses: questions about rows that are not matched yet (PeerError).
"""

from collections.abc import Callable

from fedboost.boosting.queries.alignment import AlignQuery, IdCountQuery, PlacesQuery
from fedboost.boosting.queries.union import OfRows
from fedboost.errors import PeerError
from fedboost.horizontal.shard import Shard
from fedboost.protocol.contracts import Answering
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.vertical.alignment import Alignment
from fedboost.vertical.rows import FeatureRows, LabelRows, local_rows


class CommonRows:
    """The rows of party `name`. read: returns all rows of its table; secret: of the session; row_sets: see
    `CutPoints.bin_rows`."""

    def __init__(
        self,
        read: Callable[[Terms], Shard],
        terms: Terms,
        name: str,
        secret: bytes,
        nthread: int,
        row_sets: int,
    ) -> None:
        self._read = read
        self._terms = terms
        self._settings = name, nthread, row_sets
        self._held: LabelRows | FeatureRows | None = None
        self._places: PlacesQuery | None = None
        """By which the rows that are held were chosen."""
        self._alignment: Alignment | None = None
        """How rows are matched, where they are."""
        self._whole: Shard | None = None
        """All rows of the table, until those in common are known."""
        if terms.vertical.aligns:
            self._whole = whole = read(terms)
            assert whole.ids is not None
            self._alignment = Alignment(terms, name, whole.ids, secret)
        else:
            self._held = local_rows(read, terms, *self._settings)

    @property
    def rows(self) -> int:
        """Number of rows: those in common, once they are known."""
        return self._held.rows if self._held is not None else self._table.rows

    @property
    def held(self) -> LabelRows | FeatureRows | None:
        """The rows in common; None until they are known."""
        return self._held

    @property
    def own(self) -> LabelRows | FeatureRows:
        """The rows in common. PeerError until they are known."""
        if self._held is None:
            raise PeerError("asked about rows before they are matched")
        return self._held

    def hashed(self, key: bytes) -> bytes:
        """HMAC of all that answers depend on: 32 bytes."""
        if self._alignment is None:
            return self.own.rows_hashed(key)
        return self._table.hashed(key, self._table.columns, VERSION)

    def match(self, places: PlacesQuery | None) -> bool:
        """Hold the rows at these places of the table; none, if there are no places yet. True if these are
        others than before."""
        if self._alignment is None or _digest(places) == _digest(self._places):
            return False
        self._held, self._places = None, places
        if places is not None:
            chosen = self._alignment.rows_at(places)

            def read(terms: Terms) -> Shard:
                table, self._whole = self._table, None
                return table.pick(chosen)

            self._held = local_rows(read, self._terms, *self._settings)
        return True

    def answering(self, query: OfRows) -> Answering:
        """The integers of a query that matches rows."""
        assert self._alignment is not None
        match query:
            case IdCountQuery():
                return self._alignment.count(query)
            case AlignQuery():
                return (yield from self._alignment.tokens(query))
        rows = yield from self._alignment.check(query)
        self.match(query)
        return rows

    @property
    def _table(self) -> Shard:
        """All rows, read again if those in common were taken out of them before."""
        return self._whole or self._read(self._terms)


def _digest(places: PlacesQuery | None) -> bytes:
    return b"" if places is None else places.digest
