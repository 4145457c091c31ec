"""Alignment: the rows that the parties of a block have in common, by their ids (private set intersection).

Each party multiplies the points of its ids by a secret of the session, in an order of its own, and the lists
go around the ring of the block until all have multiplied them. The last one tells the aggregator the tokens
of the list; the aggregator knows no ids, and tells each party the places of its own rows that are common.

Promises: no party sees a list that all have multiplied and that is its own; order and secret follow from the
session's secret, so a question that is asked again gets the same bytes, and after a restart the rows are
those that they were; the label holder has every other party check that it has the same ids in the same
order.
Refuses: lists of points that cannot be, or that are others than before when a question is asked again; places
that are none, and common rows whose ids differ (PeerError: they come from outside).
"""

import hashlib
import hmac
from collections.abc import Generator

import numpy as np

from fedboost.boosting.queries.alignment import AlignQuery, IdCountQuery, PlacesQuery
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.horizontal.shard import RowIds
from fedboost.privacy import fields
from fedboost.privacy.masked.pairwise import KEY_BYTES, derive
from fedboost.privacy.points import (
    POINT_BYTES,
    TOKEN_WORDS,
    check_points,
    multiply,
    points_of,
    tokens_of,
)
from fedboost.protocol.contracts import Receive, Send
from fedboost.terms.terms import Terms

IDS, CHECK = "blinded row ids", "a hash of the row ids in common"
"""Kinds of relays."""
CHECK_BYTES = KEY_BYTES + hashlib.sha256().digest_size
Exchange = Generator[Send | Receive, bytes, Int64]


class Alignment:
    """The row ids of one party in one session. ids: distinct, in the order of its table; secret: of the
    session, 32 bytes."""

    def __init__(self, terms: Terms, name: str, ids: RowIds, secret: bytes) -> None:
        block = terms.blocks.of(name)
        assert block is not None
        self._me = name
        self._place = terms.parties.index(name)
        self._block = block
        self._ring = tuple(terms.parties.index(party) for party in block.parties)
        """The parties of the block, by their numbers in the terms, in the order in which lists go around."""
        self._parties = terms.parties
        self._context = terms.digest.encode()
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
            points = multiply(points, self._scalar)
            check_points(points, sizes[owner], self._parties[before])  # a sum with a small point is no other
        answer = np.zeros(query.cells, np.int64)
        begin, end = (TOKEN_WORDS * sum(sizes[:last]) for last in (owner, owner + 1))
        answer[begin:end] = tokens_of(points).view(np.int32).reshape(-1)
        return answer

    def check(self, query: PlacesQuery) -> Exchange:
        """Take the places of common rows, and check that the others have the same ids there. The number of
        rows, from the label holder."""
        rows = self.rows_at(query)
        common = fields.pack(*map(self._ids.__getitem__, rows.tolist()))
        holder = self._block.label_holder
        if self._me == holder:
            told = self._key + hmac.digest(self._key, common, "sha256")
            yield Send(CHECK, self._block.feature_holders, told, rows.size)
            return np.array([rows.size])
        told = yield Receive(CHECK, holder, CHECK_BYTES)
        key, expected = told[:KEY_BYTES], told[KEY_BYTES:]
        if not hmac.compare_digest(hmac.digest(key, common, "sha256"), expected):
            raise PeerError(
                f"the rows that are said to be common have other ids here than at label holder {holder}: the "
                f"aggregator joined them wrongly, or a party entered other ids than it has"
            )
        return np.zeros(query.cells, np.int64)

    def rows_at(self, query: PlacesQuery) -> Int64:
        """The numbers of the common rows in the table of this party, in the common order: int64 [rows]."""
        places = query.of(self._place)
        if not 0 < places.size <= len(self._ids) or places.max() >= len(self._ids):
            raise PeerError(f"{places.size} common rows, or one of another list, where {len(self._ids)} are")
        return self._order[places]

    def _blinded(self) -> bytes:
        """The points of own ids times the secret, in the order of this session."""
        ids = self._ids
        return multiply(points_of([ids[row] for row in self._order.tolist()], self._context), self._scalar)
