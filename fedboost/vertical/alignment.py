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
from collections.abc import Generator

import numpy as np

from fedboost.boosting.queries.ids import (
    CHECK_BYTES,
    HASH_WORDS,
    REPEAT_BYTES,
    UNKNOWN,
    AlignQuery,
    IdCountQuery,
    PlacesQuery,
    ToldPlaces,
    hash_of,
)
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.sampling import Mask
from fedboost.horizontal.shard import RowIds
from fedboost.privacy import fields
from fedboost.privacy.masked.keys import KEY_BYTES, derive
from fedboost.privacy.points import (
    POINT_BYTES,
    TOKEN_WORDS,
    check_points,
    list_of,
    multiply,
    points_of,
    tokens_of,
)
from fedboost.protocol.contracts import Receive, Send
from fedboost.terms.terms import Terms
from fedboost.vertical import repeats
from fedboost.vertical.repeats import REPEATS, RepeatedIds

IDS, KNOWN, CHECK = "blinded row ids", "which rows it has", "a hash of the row ids in common"
"""Kinds of relays."""
Exchange = Generator[Send | Receive, bytes, Int64]
Showing = Generator[Send | Receive, bytes, Mask]


class Alignment:
    """The row ids of one party in one session. ids: in the order of its table, distinct but at a label holder
    that may repeat them, whose rows here are those of its distinct ids; secret: of the session, 32 bytes."""

    def __init__(self, terms: Terms, name: str, ids: RowIds, secret: bytes) -> None:
        block = terms.blocks.of(name)
        assert block is not None
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

    def tokens(self, query: AlignQuery) -> Exchange:
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

    def check(self, query: PlacesQuery) -> Exchange:
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

    def show(self, query: ToldPlaces) -> Showing:
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
        return hmac.digest(key, fields.pack(*map(self._ids.__getitem__, rows.tolist())), "sha256")

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
            repeats.check(counts, holder, self._most)
            yield Send(REPEATS, self._block.feature_holders, repeats.to_bytes(counts), ids.size)
            return counts
        counts = repeats.from_bytes((yield Receive(REPEATS, holder, REPEAT_BYTES * ids.size)))
        repeats.check(counts, holder, self._most)
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
