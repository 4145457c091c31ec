"""The rows of a party in a session: all of its table, or those that the parties of its block have in common.

Promises: rows that are matched stand in the order that the aggregator told; while they are not, nothing is
computed of them; a row of a feature holder is repeated as often as the label holder has its id, where it may
have it several times.
Refuses: questions about rows that are not matched yet (PeerError), and another number of rows than the label
holder has (Refused).
"""

from collections.abc import Callable, Generator

import numpy as np

from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery
from fedboost.boosting.queries.union import OfRows
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.horizontal.shard import Shard
from fedboost.protocol.contracts import Answering, Receive, Send
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.vertical.alignment import Alignment
from fedboost.vertical.rows import FeatureRows, LabelRows, local_rows

ROWS = "the number of rows"
"""Kind of a relay."""
Exchange = Generator[Send | Receive, bytes, None]
_WHOLE = np.dtype("<i8")


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
        self._repeats: Int64 | None = None
        """How often each common id is repeated, where ids may be, once that is known."""
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
        """Number of rows: those in common, once they are known; of their ids, until it is known how often the
        label holder repeats them."""
        if self._held is not None:
            return self._held.rows
        if self._alignment is not None and self._places is not None:
            return self._alignment.rows_at(self._places).size
        return self._table.rows

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
        self._held, self._places, self._repeats = None, places, None
        if places is not None and (self._alignment.repeats_ids or not self._terms.vertical.repeated_ids):
            self._hold(self._alignment.repeated(places, None))
        return True

    def must_meet(self, places: PlacesQuery | None) -> bool:
        """True if the label holder must tell the others again how often ids are repeated, since one of them
        may have lost it."""
        return places is not None and self._terms.vertical.repeated_ids

    def repeat(self) -> Exchange:
        """Have the label holder tell how often it has each common id, where it may repeat ids, and hold the
        rows. PeerError if this differs from what it told before."""
        if self._alignment is None or self._places is None or not self._terms.vertical.repeated_ids:
            return
        repeats = yield from self._alignment.tell_repeats(self._places)
        if self._alignment.repeats_ids:
            return
        if self._repeats is None:
            self._repeats = repeats
            self._hold(self._alignment.repeated(self._places, repeats))
        elif not np.array_equal(repeats, self._repeats):
            raise PeerError("the label holder repeats other row ids than before")

    def compare(self) -> Exchange:
        """The label holder tells the others how many rows it holds. Refused where this party holds others."""
        name = self._settings[0]
        block = self._terms.blocks.of(name)
        assert block is not None
        own, holder = np.array([self.rows], _WHOLE).tobytes(), block.label_holder
        if name == holder:
            yield Send(ROWS, block.feature_holders, own, 0)
        elif (told := (yield Receive(ROWS, holder, len(own)))) != own:
            raise Refused(
                f"party {name} holds {self.rows} rows, and label holder {holder} "
                f"{np.frombuffer(told, _WHOLE)[0]}: both must hold the same rows in the same order"
            )

    def _hold(self, chosen: Int64) -> None:
        """Hold these rows of the table."""

        def read(terms: Terms) -> Shard:
            table, self._whole = self._table, None
            return table.pick(chosen)

        self._held = local_rows(read, self._terms, *self._settings)

    def answering(self, query: OfRows) -> Answering:
        """The integers of a query that matches rows. PeerError for one that predicts them."""
        assert self._alignment is not None
        match query:
            case IdCountQuery():
                return self._alignment.count(query)
            case AlignQuery():
                return (yield from self._alignment.tokens(query))
            case ReachQuery():
                raise PeerError("asked to predict rows in a session that trains")
        rows = yield from self._alignment.check(query)
        self.match(query)
        yield from self.repeat()
        return rows

    @property
    def _table(self) -> Shard:
        """All rows, read again if those in common were taken out of them before."""
        return self._whole or self._read(self._terms)


def _digest(places: PlacesQuery | None) -> bytes:
    return b"" if places is None else places.digest
