"""Queries that find the rows which the parties of a block have in common (`holders.alignment`).

First each party reports how many row ids it has. Then each reports one list of ids, blinded by the secrets of
all parties of its block. Then each receives the places of its own common rows, in an order that all share.

Promises: a party receives only the places of its own rows. If all rows of the label holder take part, it also
receives a hash of which of them each feature holder has: a feature holder that claims others gets no hash of
their ids. Each query is sent once per session, in its own turn; otherwise parties could enter `max_ids` other
ids each time.
Refuses: more ids than the terms allow, too few common rows, and impossible places (Refused).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np

from fedboost.boosting.queries.base import MAX_ROWS, BaseQuery, Stateless, View
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.sampling import Mask
from fedboost.privacy.pairwise import KEY_BYTES, sealed_size
from fedboost.privacy.points import POINT_BYTES, TOKEN_WORDS
from fedboost.protocol.contracts import MAX_CELLS, Bound
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms

CHECK_BYTES = 2 * KEY_BYTES
"""Bytes of a key and of the HMAC-SHA-256 of the common ids."""
REPEAT_BYTES = 4
"""Bytes of the number of label holder rows that have an id."""
UNKNOWN = -1
"""Place of a row of the label holder that a feature holder does not have."""
HASH_WORDS = 8
"""32-bit words of a SHA-256 digest."""
Sizes = Annotated[tuple[int, ...], Bound(MAX_PARTIES, "parties")]
"""A number for each party, in the order of the terms."""


class BeforeRows(Stateless):
    """Base of queries that match rows."""

    rows = MAX_ROWS - 1

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.vertical.aligns)

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.places is not None:
            raise PeerError("query-order", "rows have already been matched")


@dataclass(frozen=True)
class IdCountQuery(BeforeRows, BaseQuery):
    """The number of row ids of each party. Answer: one integer per party, in the order of the terms."""

    description = "number of row ids"
    only_turn = 1
    tasks = frozenset({"train", "predict"})

    parties: Annotated[int, Bound(MAX_PARTIES, "parties", least=1)]

    @property
    def cells(self) -> int:
        return self.parties

    @property
    def cell_bits(self) -> int:
        return MAX_ROWS.bit_length()

    def check_terms(self, terms: Terms) -> None:
        check_aligns(terms, self.parties)


@dataclass(frozen=True)
class AlignQuery(BeforeRows, BaseQuery):
    """The ids of all parties, blinded by the secret of every party of their block.

    sizes: number of ids of each party. Answer: the tokens of each list, `TOKEN_WORDS` integers each, list
    after list. One party, which is not its owner, answers for each list; all others add 0."""

    description = "row ids, blinded by all parties"
    only_turn = 2
    tasks = frozenset({"train", "predict"})

    sizes: Sizes

    @property
    def cells(self) -> int:
        return TOKEN_WORDS * sum(self.sizes)

    @property
    def cell_bits(self) -> int:
        return 32  # a word of a token, from one party: nothing is added to it

    def relayed_bytes(self, terms: Terms) -> int:
        # each list passes through each party of its block
        return POINT_BYTES * sum(self.sizes)

    def check(self, terms: Terms) -> None:
        # check_terms first: its refusal of too many ids names the party that enters them
        self.check_terms(terms)
        super().check(terms)

    def check_terms(self, terms: Terms) -> None:
        """Raise Refused for more ids than the terms allow, or than a session can match."""
        check_aligns(terms, len(self.sizes))
        for party, size in zip(terms.parties, self.sizes, strict=True):
            most = terms.vertical.most_ids
            if not 0 < size <= most:
                raise Refused(
                    "align-many-ids",
                    f"party {party} enters {size:,} row ids, and the terms allow 1 to {most:,}: raise "
                    f"max_ids only if it is known to have that many rows",
                )
        if self.cells > MAX_CELLS:
            raise Refused(
                "align-session-size",
                f"the parties enter {sum(self.sizes):,} row ids in all, and a session can match at most "
                f"{MAX_CELLS // TOKEN_WORDS:,}; leave out rows that no other party can have",
            )


@dataclass(frozen=True)
class ToldPlaces(BeforeRows, BaseQuery):
    """Base of queries that send each party places in its own list of ids. Answer: the number of rows, from
    the label holders.

    total: number of rows; sizes: number of places of each party; places: int64 [sum of sizes]."""

    only_turn = 3

    total: int
    sizes: Sizes
    places: Int64 = field(repr=False)

    @property
    def cells(self) -> int:
        return 1

    @property
    def cell_bits(self) -> int:
        return MAX_ROWS.bit_length()

    def of(self, party: int) -> Int64:
        """The places of a party, given by its number in the terms: int64 [rows]."""
        begin = sum(self.sizes[:party])
        return self.places[begin : begin + self.sizes[party]]

    def in_view(self, view: View) -> Self:
        """The query with only the party's own places."""
        sizes = tuple(size if party == view.place else 0 for party, size in enumerate(self.sizes))
        if sizes == self.sizes:
            return self
        own = self.of(view.place) if view.place >= 0 else self.places[:0]
        return replace(self, sizes=sizes, places=own)

    def check_terms(self, terms: Terms) -> None:
        check_aligns(terms, len(self.sizes))
        if sum(self.sizes) != self.places.size or not 0 < self.total < MAX_ROWS:
            raise Refused("query-places", "the numbers of places and rows do not fit each other")

    def check_known(self, terms: Terms, said: str) -> None:
        """Raise Refused for impossible places if all rows of the label holder take part.

        Each feature holder needs a place for each row, distinct or UNKNOWN, and enough known rows; the label
        holder a hash for each feature holder. said: "common" or "predicted", for messages."""
        label_holder, fewest = terms.vertical.label_holder, terms.vertical.fewest_common_rows
        for party, size in enumerate(self.sizes):
            name, own = terms.parties[party], self.of(party)
            due = HASH_WORDS * (len(terms.parties) - 1) if name == label_holder else self.total
            if size not in (0, due):
                raise Refused(
                    "query-places", f"party {name} has {size} places, but {self.total} rows are {said}"
                )
            if name == label_holder:
                continue
            known = own[own != UNKNOWN]
            if size and known.size < fewest:
                parties = str(label_holder), name
                raise Refused(
                    "align-few-common", few_in_common(known.size, fewest, parties, not terms.task.trains)
                )
            if known.size and (known.min() < 0 or np.unique(known).size != known.size):
                raise Refused("query-places", f"a row is {said} twice, or does not exist")

    def known_bytes(self, terms: Terms) -> int:
        """Most bytes that a party relays if all rows of the label holder take part: a feature holder one bit
        per row, the label holder a hash for each feature holder."""
        return -(-self.total // 8) + sum(sealed_size(CHECK_BYTES, (party,)) for party in terms.parties)


@dataclass(frozen=True)
class PlacesQuery(ToldPlaces):
    """The rows to train on.

    Usually the common rows: for each party the places in its list of ids, in an order that all parties of its
    block share. With `Vertical.takes_all_rows`, all rows of the label holder, in the order of its list: for
    each feature holder as many places, UNKNOWN if it does not have the id; for the label holder `hash_of` the
    rows that each feature holder has.

    total: number of common rows of all blocks, or of rows of the label holder."""

    description = "row count, once rows are matched"

    def relayed_bytes(self, terms: Terms) -> int:
        known = self.known_bytes(terms) if terms.vertical.takes_all_rows else 0
        return known + self.total * REPEAT_BYTES * terms.vertical.repeated_ids

    def check_terms(self, terms: Terms) -> None:
        """Raise Refused for repeated or impossible places, and for too few."""
        super().check_terms(terms)
        if terms.vertical.takes_all_rows:
            self.check_known(terms, "common")
            return
        fewest = terms.vertical.fewest_common_rows
        for party, size in enumerate(self.sizes):
            own = self.of(party)
            if 0 < size < fewest or size > self.total:
                block = terms.blocks.of(terms.parties[party])
                raise Refused("align-few-common", few_in_common(size, fewest, block.parties if block else ()))
            if size and (own.min() < 0 or np.unique(own).size != size):
                raise Refused("query-places", "a row is common twice, or does not exist")

    def applied_to(self, state: Any) -> Any:
        return replace(state, places=self)


def hash_of(known: Mask) -> Int64:
    """SHA-256 of which rows a feature holder has, int64 [HASH_WORDS]. known: bool [rows]."""
    return np.frombuffer(hashlib.sha256(np.packbits(known).tobytes()).digest(), "<i4").astype(np.int64)


def few_in_common(rows: int, fewest: int, parties: Sequence[str], predicts: bool = False) -> str:
    """The message about too few common rows of these parties. predicts: the rows are to be predicted."""
    option = " by --min-common-rows" if predicts else ""
    return (
        f"parties {', '.join(parties)} have {rows:,} rows in common, and the terms need min_common_rows = "
        f"{fewest}: compare how their row ids are written (id_form in the terms)"
        + (f", or lower min_common_rows{option} if so few rows are enough" if rows else "")
    )


def check_aligns(terms: Terms, parties: int) -> None:
    """Raise Refused unless the terms match rows of this many parties."""
    if not terms.vertical.aligns:
        raise Refused("query-ids", "the query is for row ids, and rows are not matched under the terms")
    if parties != len(terms.parties):
        raise Refused("query-ids", f"row ids of {parties} parties, and the terms have {len(terms.parties)}")


# ---- The query by which parties that hold different columns predict together (`holders.columns`) --------
# All rows of the label holder are predicted. Each feature holder receives the places of these rows in its
# own list; an id that it does not have is treated as missing values. It relays to the label holder which
# leaves each row can reach. So one turn is enough, whatever the depth of the trees.
# Promises: as for the queries that match rows. The number of rows is that of the terms.
# Refuses: feature holders that know fewer than `min_common_rows` of the rows: predicting a single known id
# would be a look-up (Refused).

BATCH_BYTES = 1 << 24
"""Most bytes of a party's leaf bits that are relayed together, unless a single row takes more."""


@dataclass(frozen=True)
class ReachQuery(ToldPlaces):
    """The rows to predict, in the order of the label holder's list of ids.

    total: number of rows. places: for each feature holder `total` places in its own list, UNKNOWN if it does
    not have the id; for the label holder `hash_of` the rows that each feature holder has. Answer: the number
    of rows, from the label holder."""

    description = "number of rows that were predicted"
    tasks = frozenset({"predict"})

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(cls.serves(terms))

    def relayed_bytes(self, terms: Terms) -> int:
        """Most bytes that a party relays: one bit and leaf bits of each row, or a hash per feature holder."""
        roots, names = len(terms.roots), terms.parties
        of_row = terms.trees.rounds * roots * -(-terms.max_leaves_per_round // roots // 8)
        batches = -(-self.total // rows_of_batch(of_row))
        return self.total * of_row + batches * sealed_size(0, names) + self.known_bytes(terms)

    def check_terms(self, terms: Terms) -> None:
        super().check_terms(terms)
        check_predicted(terms, self.total)
        self.check_known(terms, "predicted")


def rows_of_batch(size: int) -> int:
    """Number of rows whose leaf bits are relayed together. size: most bytes per row of any party."""
    return max(1, BATCH_BYTES // max(1, size))


def check_predicted(terms: Terms, rows: int) -> None:
    """Raise Refused unless the terms have this number of rows to predict."""
    due = terms.vertical.predict_rows
    if rows != due:
        raise Refused(
            "predict-rows-differ",
            f"label holder {terms.vertical.label_holder} has {rows} rows to predict, and the terms have "
            f"predict_rows = {due}",
        )


def check_batch(terms: Terms) -> None:
    """Raise Refused for fewer rows than feature holders must know: an answer would reveal which they do."""
    rows, fewest = terms.vertical.predict_rows or 0, terms.vertical.fewest_common_rows
    if rows < fewest:
        raise Refused(
            "predict-few-rows",
            f"{rows} rows are to be predicted, and the terms need min_common_rows = {fewest}: predict more "
            f"rows together, or lower it with --min-common-rows if the other parties allow that",
        )


OfRows = IdCountQuery | AlignQuery | PlacesQuery | ReachQuery
"""Queries that match rows by their ids, or are about rows to predict."""
