"""Alignment: finds the rows that the parties of a block have in common, by their ids (private set
intersection).

1. Each party maps its ids to points of an elliptic curve, multiplies them by a secret scalar (blinding), and
   puts them in a secret order. The scalar and the order are derived from the party's secret for the session.
2. The lists are passed around the ring of the block's parties. At each hop, a party multiplies the list that
   it received by its own scalar. After K - 1 hops, all K parties have multiplied each list, so equal ids have
   equal points.
3. The last multiplier of a list, which is never its owner, reports tokens (short hashes) of its points to the
   aggregator. The aggregator joins the tokens without knowing any id.
4. The aggregator sends each party the indices of its matched rows in the party's own list.
5. The label holder sends a keyed hash of the common ids in order. Every other party compares this hash with
   its own.

Guarantees: no party sees its own list multiplied by all parties, so it cannot compare that list with others.
A repeated query gets the same answer byte for byte, and the rows are the same after a restart. If all rows of
the label holder are used, the hash for a feature holder covers only ids that the feature holder has,
according to both the feature holder and the aggregator.
Raises: PeerError for invalid lists of points, lists that change when a query is repeated, invalid indices,
and common rows with different ids."""

import hashlib
import hmac
from collections.abc import Callable

import numpy as np

from fedboost.boosting.queries.ids import (
    CHECK_BYTES,
    HASH_WORDS,
    REPEAT_BYTES,
    UNKNOWN,
    AlignQuery,
    IdCountQuery,
    OfRows,
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
from fedboost.protocol.contracts import Answering, HeldTable, Receive, Send
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

# ---- How many rows of the label holder have each row id (`repeated_ids`) --------------------------------
# Guarantees: each id is matched once. Rows with the same id stay together, in the order of the label holder's
# table. The other parties repeat their row with this id as many times.

REPEATS = "how many rows each id has"
"""Name of this kind of relay in logs."""
NUMBER = np.dtype(f"<i{REPEAT_BYTES}")


class RepeatedIds:
    """Index of the label holder's row ids when ids may be repeated. ids: the id of each table row."""

    def __init__(self, ids: RowIds) -> None:
        numbers: dict[bytes, int] = {}
        of_row = np.array([numbers.setdefault(row_id, len(numbers)) for row_id in ids], np.int64)
        self.distinct: RowIds = list(numbers)
        """Distinct ids, in the order of their first occurrence."""
        self.counts: Int64 = np.bincount(of_row)
        """Number of rows of each distinct id, int64 [distinct ids]."""
        self._rows = np.argsort(of_row, kind="stable")
        self._begins = np.cumsum(self.counts) - self.counts

    def rows_of(self, ids: Int64) -> Int64:
        """Return the indices of all rows with these ids, by id: int64 [rows]. ids: indices in `distinct`."""
        counts = self.counts[ids]
        ends = np.cumsum(counts)
        first = np.repeat(self._begins[ids] - ends + counts, counts)
        rows: Int64 = self._rows[first + np.arange(ends[-1])]
        return rows


def check(counts: Int64, holder: str, most: int) -> None:
    """Raise PeerError if a label holder has no row for a common id, or more than `most` rows in total.
    counts: number of its rows with each common id."""
    if counts.min() < 1:
        raise PeerError(
            "align-wrong-repeats",
            f"label holder {holder} reports {counts.min()} rows for a common id, but must have at least one",
        )
    if (rows := int(counts.sum())) > most:
        raise PeerError(
            "align-many-ids",
            f"label holder {holder} has {rows:,} rows with common ids, but the terms allow only {most:,}; "
            f"raise max_ids only if the label holder is known to have that many rows",
        )


# ---- The matching of one party's row ids ----------------------------------------------------------------

IDS, KNOWN, CHECK = "blinded row ids", "which rows it has", "a hash of the row ids in common"
"""Names of these kinds of relays in logs."""


class Alignment:
    """Matching of one party's row ids in one session.

    ids: distinct ids in the order of the party's table. A label holder may repeat ids (`repeated_ids`). In
    the methods, "rows" then means distinct ids. secret: the party's secret for the session, 32 bytes."""

    def __init__(self, terms: Terms, name: str, ids: RowIds, secret: bytes) -> None:
        _, block = place_of(terms, name)
        self._me = name
        self._place = terms.parties.index(name)
        self._takes_all_rows = terms.vertical.takes_all_rows
        self._block = block
        self._ring = tuple(terms.parties.index(party) for party in block.parties)
        """The block's parties as indices in `terms.parties`, in the order in which lists are passed on."""
        self._parties = terms.parties
        self._context = terms.digest.encode()
        self._most = terms.vertical.most_ids
        self._repeated: RepeatedIds | None = None
        """Set only at a label holder that may repeat ids."""
        if terms.vertical.repeated_ids and name == block.label_holder:
            self._repeated = RepeatedIds(ids)
            ids = self._repeated.distinct
        self._ids = ids
        # Scalar, key and order are derived from the secret, which survives restarts: so a repeated query gets
        # the same bytes.
        self._scalar = derive(secret, b"fedboost/1/align/multiply")
        self._key = derive(secret, b"fedboost/1/align/check")
        stream = hashlib.shake_256(derive(secret, b"fedboost/1/align/order"))
        self._order = np.argsort(np.frombuffer(stream.digest(8 * len(ids)), np.uint64))

    def count(self, query: IdCountQuery) -> Int64:
        """Return the answer to the query: the number of ids at this party's index, and 0 elsewhere."""
        counts = np.zeros(query.cells, np.int64)
        counts[self._place] = len(self._ids)
        return counts

    def tokens(self, query: AlignQuery) -> Answering:
        """Return the answer to the query: the tokens of the list that this party multiplies last, in the
        cells of that list, and 0 elsewhere."""
        sizes, ring = query.sizes, self._ring
        if sizes[self._place] != len(self._ids):
            raise PeerError(
                "align-wrong-size",
                f"the query has {sizes[self._place]} row ids for this party, which has {len(self._ids)}",
            )
        mine = ring.index(self._place)
        before, after = ring[mine - 1], ring[(mine + 1) % len(ring)]
        owner, points = self._place, self._blinded()
        # Invariant: before hop h, `points` is the list of `owner`, multiplied by h parties, this one last.
        # After the last hop it has been multiplied by all; `owner` is then the next party in the ring.
        for hop in range(1, len(ring)):
            yield Send(IDS, (self._parties[after],), points, sizes[owner])
            owner = ring[mine - hop]
            points = yield Receive(IDS, self._parties[before], POINT_BYTES * sizes[owner], once=True)
            check_points(points, sizes[owner], self._parties[before])
            points = multiply(points, self._scalar, list_of(self._parties[before]))
            # Points that differ by a point of small order have the same product: check for repeats again.
            check_points(points, sizes[owner], self._parties[before])
        answer = np.zeros(query.cells, np.int64)
        begin, end = (TOKEN_WORDS * sum(sizes[:last]) for last in (owner, owner + 1))
        answer[begin:end] = tokens_of(points).view(np.int32).reshape(-1)
        return answer

    def check(self, query: PlacesQuery) -> Answering:
        """Check that all parties have the same ids at the matched rows. Returns the answer to the query: the
        number of rows at the label holder, and 0 at other parties."""
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
        """Send the label holder a mask that shows which of the label holder's rows this party has. Then check
        the hash of these rows' ids that the label holder sends.

        Returns the index of each of the label holder's rows in this party's table, or UNKNOWN if this party
        does not have the row: int64 [query.total]."""
        rows, holder = self.rows_at(query), self._block.label_holder
        known = rows != UNKNOWN
        yield Send(KNOWN, (holder,), np.packbits(known).tobytes(), query.total)
        self._compare(rows[known], (yield Receive(CHECK, holder, CHECK_BYTES)))
        return rows

    def show(self, query: ToldPlaces) -> Exchange:
        """From each feature holder (party without labels), receive a mask that shows which of this party's
        rows the feature holder has. Then send the feature holder a hash of these rows' ids.

        Returns the masks, bool [feature holders, query.total], with rows in the secret order."""
        rows, others = self.rows_at(query), self._block.feature_holders
        known = np.zeros((len(others), query.total), np.bool_)
        matched = query.of(self._place).reshape(-1, HASH_WORDS).tolist() or [[]] * len(others)
        for own, other, due in zip(known, others, matched, strict=True):
            told = yield Receive(KNOWN, other, -(-query.total // 8))
            own[:] = np.unpackbits(np.frombuffer(told, np.uint8), count=query.total)
            # `due` is the aggregator's hash of the bits. It is checked before the hash of ids is sent.
            # Otherwise a feature holder could claim a few rows, and try ids until their hash is the same.
            if hash_of(own).tolist() != due:
                raise PeerError(
                    "align-rows-differ",
                    f"the rows that party {other} reports as known differ from those that the aggregator "
                    f"matched; contact the operators of both",
                )
            yield self._vouch(rows[own], (other,))
        return known

    def _vouch(self, rows: Int64, to: tuple[str, ...]) -> Send:
        """Build the message that contains a keyed hash of these rows' ids, and the key. The receiving parties
        compare the hash with their own."""
        return Send(CHECK, to, self._key + self._hashed(self._key, rows), rows.size)

    def _compare(self, rows: Int64, told: bytes) -> None:
        """Raise PeerError unless these rows have the ids that the label holder hashed. told: the label
        holder's message, i.e. a key followed by a hash."""
        key, expected = told[:KEY_BYTES], told[KEY_BYTES:]
        if not hmac.compare_digest(self._hashed(key, rows), expected):
            raise PeerError(
                "align-ids-differ",
                f"the common rows have different ids at this party and at label holder "
                f"{self._block.label_holder}: the aggregator matched rows incorrectly, or a party submitted "
                f"ids of rows that it does not have",
            )

    def _hashed(self, key: bytes, rows: Int64) -> bytes:
        """Return the HMAC-SHA-256 of the ids of these rows, in order: 32 bytes."""
        return hmac.digest(key, packing.pack(*map(self._ids.__getitem__, rows.tolist())), "sha256")

    def rows_at(self, query: ToldPlaces) -> Int64:
        """Return the index of each matched row in this party's table, or UNKNOWN if the party does not have
        the row: int64 [rows], in the query's order. Raises PeerError if the query's indices are invalid."""
        if self._takes_all_rows and self._me == self._block.label_holder:
            if query.total != len(self._ids):
                raise PeerError(
                    "align-wrong-size",
                    f"the query has {query.total} rows in total, but this party has {len(self._ids)}",
                )
            return self._order
        places = query.of(self._place)
        known = places != UNKNOWN
        number = np.count_nonzero(known)
        if not 0 < number <= len(self._ids) or places.max() >= len(self._ids):
            raise PeerError(
                "align-wrong-places",
                f"this party has {len(self._ids)} ids, but the query has {number} common rows, or an index "
                f"that is out of range",
            )
        rows = np.full(places.size, UNKNOWN, np.int64)
        rows[known] = self._order[places[known]]
        return rows

    def tell_repeats(self, query: PlacesQuery) -> Exchange:
        """Return the number of the label holder's rows with each common id, int64 [common ids]. The label
        holder relays these numbers to the feature holders, which repeat each of their rows as many times."""
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
        """Number of distinct ids."""
        return len(self._ids)

    @property
    def repeats_ids(self) -> bool:
        """True at a label holder that may repeat ids."""
        return self._repeated is not None

    def rows_of_each(self, ids: Int64) -> Int64:
        """Return the number of table rows with each of these ids (indices of distinct ids): int64 [ids]."""
        return np.ones(ids.size, np.int64) if self._repeated is None else self._repeated.counts[ids]

    def repeated(self, query: ToldPlaces, counts: Int64 | None) -> Int64:
        """Return the table indices of the session's rows, int64 [rows]. At a label holder that repeats ids,
        these are all rows with a common id. At other parties, each matched row is repeated as often as
        `counts` states, or occurs once if `counts` is None."""
        ids = self.rows_at(query)
        if self._repeated is not None:
            return self._repeated.rows_of(ids)
        return ids if counts is None else np.repeat(ids, counts)

    def _blinded(self) -> bytes:
        """Return the points of this party's ids, multiplied by its scalar, in its secret order."""
        ids = self._ids
        return multiply(points_of([ids[row] for row in self._order.tolist()], self._context), self._scalar)


# ---- The rows of a party in a session: all of its table, or those common to its block -------------------
# Guarantees: matched rows are in the order of the aggregator's query. Nothing is computed from rows before
# they are matched. With `repeated_ids`, a feature holder's row is repeated once for each row of the label
# holder with the same id.
# Raises: PeerError for queries about rows that are not matched yet, Refused if this party does not have as
# many rows as the label holder.

ROWS = "the number of rows"
"""Name of this kind of relay in logs."""
_WHOLE = np.dtype("<i8")


class CommonRows:
    """Rows of a party in one session: all rows of its table, or the rows that its block has in common.

    read: function that returns all rows of the table; secret: the party's secret for the session; row_sets:
    see `CutPoints.bin_rows`."""

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
        """Query that selected the held rows."""
        self._repeats: Int64 | None = None
        """Number of the label holder's rows with each common id, or None if not (yet) known."""
        self._alignment: Alignment | None = None
        self._whole: Shard | None = None
        """All rows of the table, kept until the common rows are known."""
        if terms.vertical.aligns:
            self._whole = whole = read(terms)
            self._chosen = np.zeros(whole.rows, np.bool_)
            assert whole.ids is not None
            self._alignment = Alignment(terms, name, whole.ids, secret)
        else:
            self._held = local_rows(read, terms, *self._settings)

    @property
    def rows(self) -> int:
        """Number of rows in the table or, once rows are matched, number of common rows. Until the repetitions
        of the common ids are known, each of these ids counts as one row."""
        if self._held is not None:
            return self._held.rows
        if self._alignment is not None and self._places is not None:
            return self._alignment.rows_at(self._places).size
        return self._table.rows

    @property
    def held(self) -> OwnRows | None:
        return self._held

    @property
    def table(self) -> HeldTable | None:
        """The table and which of its rows are matched; None until they are."""
        return None if self._held is None else HeldTable(self._chosen.size, self.hashed, self._chosen)

    @property
    def own(self) -> OwnRows:
        """The common rows. Raises PeerError if they are not known yet."""
        if self._held is None:
            raise PeerError("query-order", "rows must be matched before other queries are sent")
        return self._held

    def hashed(self, key: bytes) -> bytes:
        """Return an HMAC of everything that this party's answers depend on, 32 bytes."""
        if self._alignment is None:
            return self.own.rows_hashed(key)
        return self._table.hashed(key, self._table.columns, VERSION)

    def match(self, places: PlacesQuery | None) -> bool:
        """Keep only the rows that a query selects, or no rows if `places` is None. Returns True if the
        selection has changed."""
        if self._alignment is None or _digest(places) == _digest(self._places):
            return False
        self._held, self._places, self._repeats = None, places, None
        if places is not None and (self._alignment.repeats_ids or not self._terms.vertical.repeated_ids):
            self._hold(self._alignment.repeated(places, None))
        return True

    def repeat(self) -> Exchange:
        """With `repeated_ids`, exchange the number of the label holder's rows with each common id, and repeat
        the rows accordingly. Raises PeerError if these numbers have changed since the last exchange."""
        if self._alignment is None or self._places is None or not self._terms.vertical.repeated_ids:
            return
        repeats = yield from self._alignment.tell_repeats(self._places)
        if self._alignment.repeats_ids:
            return
        if self._repeats is None:
            self._repeats = repeats
            self._hold(self._alignment.repeated(self._places, repeats))
        elif not np.array_equal(repeats, self._repeats):
            raise PeerError(
                "align-wrong-repeats", "the label holder's counts of repeated row ids have changed"
            )

    def check(self) -> Exchange:
        """Check again, before values of these rows leave, that all parties have the same ids at them."""
        if self._alignment is not None and self._places is not None:
            yield from self._alignment.check(self._places)

    def compare(self) -> Exchange:
        """Raise Refused if this party's number of rows differs from what the label holder relays."""
        name = self._settings[0]
        _, block = place_of(self._terms, name)
        own, holder = np.array([self.rows], _WHOLE).tobytes(), block.label_holder
        if name == holder:
            yield Send(ROWS, block.feature_holders, own, 0)
        elif (told := (yield Receive(ROWS, holder, len(own)))) != own:
            raise Refused(
                "align-rows-differ",
                f"party {name} has {self.rows} rows, but label holder {holder} has "
                f"{np.frombuffer(told, _WHOLE)[0]}: both must have the same rows in the same order",
            )

    def _hold(self, chosen: Int64) -> None:
        """Hold the table rows with these indices."""

        def read(terms: Terms) -> Shard:
            table, self._whole = self._table, None
            return table.pick(chosen)

        self._chosen[:] = False
        self._chosen[chosen[chosen >= 0]] = True
        self._held = local_rows(read, self._terms, *self._settings)

    def answering(self, query: OfRows) -> Answering:
        """Return the answer to a query that matches rows. Raises PeerError for a query that predicts rows."""
        assert self._alignment is not None
        match query:
            case IdCountQuery():
                return self._alignment.count(query)
            case AlignQuery():
                return (yield from self._alignment.tokens(query))
            case ReachQuery():
                raise PeerError("query-task", "received a prediction query in a training session")
        rows = yield from self._alignment.check(query)
        self.match(query)
        yield from self.repeat()
        return rows

    @property
    def _table(self) -> Shard:
        """All rows of the table. The table is read again if the common rows have already been selected."""
        return self._whole or self._read(self._terms)


def _digest(places: PlacesQuery | None) -> bytes:
    return b"" if places is None else places.digest
