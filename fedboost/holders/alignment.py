"""Alignment: the rows that the parties of a block have in common, by their ids (private set intersection).

Each party multiplies the points of its ids by a secret of the session, in an order of its own, and the lists
go around the ring of the block until all have multiplied them. The last one tells the aggregator the tokens
of the list; the aggregator knows no ids, and tells each party the places of its own rows that are common.

Promises: no party sees a list that all have multiplied and that is its own; order and secret follow from the
session's secret, so a question that is asked again gets the same bytes, and after a restart the rows are
those that they were; the label holder has every other party check that it has the same ids in the same
order; where all rows of the label holder take part it shows a hash of ids for those rows alone that a party
says it has, and the aggregator, too, says so.
Refuses: lists of points that cannot be, or that are others than before when a question is asked again; places
that are none, and common rows whose ids differ (PeerError: they come from outside).
"""

import hashlib
import hmac
from collections.abc import Callable

import numpy as np

from fedboost.boosting.queries import OfRows
from fedboost.boosting.queries.ids import (
    CHECK_BYTES,
    HASH_WORDS,
    REPEAT_BYTES,
    UNKNOWN,
    AlignQuery,
    IdCountQuery,
    PlacesQuery,
    ReachQuery,
    ToldPlaces,
    hash_of,
)
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.holders.column_rows import OwnRows, local_rows
from fedboost.holders.shard import Exchange, RowIds, Shard, place_of
from fedboost.privacy import packing
from fedboost.privacy.pairwise import KEY_BYTES, derive
from fedboost.privacy.points import (
    POINT_BYTES,
    TOKEN_WORDS,
    check_points,
    list_of,
    multiply,
    points_of,
    tokens_of,
)
from fedboost.protocol.contracts import Answering, Receive, Send
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

# ---- How often the label holder has each row id, where several of its rows may have the sam -------------
# (`repeated_ids`).
# Promises: ids are matched once each; the rows of an id stand together, in the order of the label holder's
# table, and the other parties repeat their row of it as often.


REPEATS = "how many rows each id has"
"""Kind of a relay."""
NUMBER = np.dtype(f"<i{REPEAT_BYTES}")


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


def check(counts: Int64, holder: str, most: int) -> None:
    """PeerError for numbers of rows of a label holder that cannot be, or are more than `most` together."""
    if counts.min() < 1:
        raise PeerError(f"label holder {holder} says that it has an id in common in {counts.min()} rows")
    if (rows := int(counts.sum())) > most:
        raise PeerError(
            f"label holder {holder} has {rows:,} rows with the ids in common, and the terms allow {most:,}: "
            f"raise max_ids if that many are known to be its own"
        )


# ---- Alignment: the rows that the parties of a block have in common, by their id ------------------------


IDS, KNOWN, CHECK = "blinded row ids", "which rows it has", "a hash of the row ids in common"
"""Kinds of relays."""


class Alignment:
    """The row ids of one party in one session. ids: in the order of its table, distinct but at a label holder
    that may repeat them, whose rows here are those of its distinct ids; secret: of the session, 32 bytes."""

    def __init__(self, terms: Terms, name: str, ids: RowIds, secret: bytes) -> None:
        _, block = place_of(terms, name)
        self._me = name
        self._place = terms.parties.index(name)
        self._takes_all_rows = terms.vertical.takes_all_rows
        self._block = block
        self._ring = tuple(terms.parties.index(party) for party in block.parties)
        """The parties of the block, by their numbers in the terms, in the order in which lists go around."""
        self._parties = terms.parties
        self._context = terms.digest.encode()
        self._most = terms.vertical.most_ids
        self._repeated: RepeatedIds | None = None
        """At a label holder whose rows may have the same id."""
        if terms.vertical.repeated_ids and name == block.label_holder:
            self._repeated = RepeatedIds(ids)
            ids = self._repeated.distinct
        self._ids = ids
        self._scalar = derive(secret, b"fedboost/1/align/multiply")
        self._key = derive(secret, b"fedboost/1/align/check")
        stream = hashlib.shake_256(derive(secret, b"fedboost/1/align/order"))
        self._order = np.argsort(np.frombuffer(stream.digest(8 * len(ids)), np.uint64))

    def count(self, query: IdCountQuery) -> Int64:
        """The number of own ids, at the place of this party."""
        counts = np.zeros(query.cells, np.int64)
        counts[self._place] = len(self._ids)
        return counts

    def tokens(self, query: AlignQuery) -> Answering:
        """The tokens of the list that this party multiplies last, at its place among those of all."""
        sizes, ring = query.sizes, self._ring
        if sizes[self._place] != len(self._ids):
            raise PeerError(f"{sizes[self._place]} row ids are said to be here, there are {len(self._ids)}")
        mine = ring.index(self._place)
        before, after = ring[mine - 1], ring[(mine + 1) % len(ring)]
        owner, points = self._place, self._blinded()
        for hop in range(1, len(ring)):
            yield Send(IDS, (self._parties[after],), points, sizes[owner])
            owner = ring[mine - hop]
            points = yield Receive(IDS, self._parties[before], POINT_BYTES * sizes[owner], once=True)
            check_points(points, sizes[owner], self._parties[before])
            points = multiply(points, self._scalar, list_of(self._parties[before]))
            check_points(points, sizes[owner], self._parties[before])  # a sum with a small point is no other
        answer = np.zeros(query.cells, np.int64)
        begin, end = (TOKEN_WORDS * sum(sizes[:last]) for last in (owner, owner + 1))
        answer[begin:end] = tokens_of(points).view(np.int32).reshape(-1)
        return answer

    def check(self, query: PlacesQuery) -> Answering:
        """Take the places of common rows, and check that the others have the same ids there. The number of
        rows, from the label holder."""
        rows, holder = self.rows_at(query), self._block.label_holder
        if self._takes_all_rows:
            yield from self.show(query) if self._me == holder else self.tell_known(query)
            return np.array([query.total if self._me == holder else 0])
        if self._me == holder:
            yield self._vouch(rows, self._block.feature_holders)
            return np.array([rows.size])
        self._compare(rows, (yield Receive(CHECK, holder, CHECK_BYTES)))
        return np.zeros(query.cells, np.int64)

    def tell_known(self, query: ToldPlaces) -> Exchange:
        """Say which rows of the label holder are known here, and have it shown that these are the same. The
        number in the table of each, UNKNOWN where there is none: int64 [query.total]."""
        rows, holder = self.rows_at(query), self._block.label_holder
        known = rows != UNKNOWN
        yield Send(KNOWN, (holder,), np.packbits(known).tobytes(), query.total)
        self._compare(rows[known], (yield Receive(CHECK, holder, CHECK_BYTES)))
        return rows

    def show(self, query: ToldPlaces) -> Exchange:
        """Have each feature holder say which rows of this label holder it knows, and show it that these are
        the same: bool [feature holders, query.total], in the order of the list of this session."""
        rows, others = self.rows_at(query), self._block.feature_holders
        known = np.zeros((len(others), query.total), np.bool_)
        matched = query.of(self._place).reshape(-1, HASH_WORDS).tolist() or [[]] * len(others)
        for own, other, due in zip(known, others, matched, strict=True):
            told = yield Receive(KNOWN, other, -(-query.total // 8))
            own[:] = np.unpackbits(np.frombuffer(told, np.uint8), count=query.total)
            if hash_of(own).tolist() != due:
                raise PeerError(
                    f"party {other} says it has other rows than those that the aggregator matched: ask both"
                )
            yield self._vouch(rows[own], (other,))
        return known

    def _vouch(self, rows: Int64, to: tuple[str, ...]) -> Send:
        """A hash of the ids of these rows of the table, for parties that hold it against their own."""
        return Send(CHECK, to, self._key + self._hashed(self._key, rows), rows.size)

    def _compare(self, rows: Int64, told: bytes) -> None:
        """PeerError unless these rows of the table have the ids of which the label holder told the hash."""
        key, expected = told[:KEY_BYTES], told[KEY_BYTES:]
        if not hmac.compare_digest(self._hashed(key, rows), expected):
            raise PeerError(
                f"the rows that are said to be common have other ids here than at label holder "
                f"{self._block.label_holder}: the aggregator joined them wrongly, or a party entered other "
                f"ids than it has"
            )

    def _hashed(self, key: bytes, rows: Int64) -> bytes:
        """HMAC of the ids of these rows, in order: 32 bytes."""
        return hmac.digest(key, packing.pack(*map(self._ids.__getitem__, rows.tolist())), "sha256")

    def rows_at(self, query: ToldPlaces) -> Int64:
        """The numbers of the common rows in the table of this party, in the common order, UNKNOWN where it
        has none: int64 [rows]. PeerError where none is known, and for places of another list."""
        if self._takes_all_rows and self._me == self._block.label_holder:
            if query.total != len(self._ids):
                raise PeerError(f"{query.total} rows are said to be all there are, {len(self._ids)} are here")
            return self._order
        places = query.of(self._place)
        known = places != UNKNOWN
        number = np.count_nonzero(known)
        if not 0 < number <= len(self._ids) or places.max() >= len(self._ids):
            raise PeerError(f"{number} common rows, or one of another list, where {len(self._ids)} are")
        rows = np.full(places.size, UNKNOWN, np.int64)
        rows[known] = self._order[places[known]]
        return rows

    def tell_repeats(self, query: PlacesQuery) -> Exchange:
        """How many rows of the label holder have each common id, which it tells the feature holders, whose
        row of it counts as often: int64 [common ids]."""
        ids, holder = self.rows_at(query), self._block.label_holder
        if self._repeated is not None:
            counts = self._repeated.counts[ids]
            check(counts, holder, self._most)
            content = counts.astype(NUMBER).tobytes()
            yield Send(REPEATS, self._block.feature_holders, content, ids.size)
            return counts
        told = yield Receive(REPEATS, holder, REPEAT_BYTES * ids.size)
        counts = np.frombuffer(told, NUMBER).astype(np.int64)
        check(counts, holder, self._most)
        return counts

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._ids)

    @property
    def repeats_ids(self) -> bool:
        """True at a label holder that may repeat ids."""
        return self._repeated is not None

    def rows_of_each(self, ids: Int64) -> Int64:
        """How many rows of the table have each of these ids, by their numbers: int64 [ids]."""
        return np.ones(ids.size, np.int64) if self._repeated is None else self._repeated.counts[ids]

    def repeated(self, query: ToldPlaces, counts: Int64 | None) -> Int64:
        """The numbers of the rows in the table: all with a common id at a label holder that repeats ids, else
        that of each as often as `counts` says, or once: int64 [rows]."""
        ids = self.rows_at(query)
        if self._repeated is not None:
            return self._repeated.rows_of(ids)
        return ids if counts is None else np.repeat(ids, counts)

    def _blinded(self) -> bytes:
        """The points of own ids times the secret, in the order of this session."""
        ids = self._ids
        return multiply(points_of([ids[row] for row in self._order.tolist()], self._context), self._scalar)


# ---- The rows of a party in a session -------------------------------------------------------------------
# All of its table, or those that the parties of its block have in common.
# Promises: rows that are matched stand in the order that the aggregator told; while they are not, nothing
# is computed of them; a row of a feature holder is repeated as often as the label holder has its id, where
# it may have it several times.
# Refuses: questions about rows that are not matched yet (PeerError), and another number of rows than the
# label holder has (Refused).


ROWS = "the number of rows"
"""Kind of a relay."""
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
        self._held: OwnRows | None = None
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
    def held(self) -> OwnRows | None:
        """The rows in common; None until they are known."""
        return self._held

    @property
    def own(self) -> OwnRows:
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
        _, block = place_of(self._terms, name)
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
