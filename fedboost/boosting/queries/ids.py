"""Queries that find the rows which the parties of a block have in common (`holders.alignment`).

First each party says how many row ids it has; then each reports one list of ids, blinded by the secrets of
all parties of its block; then each is told which of its own rows are common, in an order that all share.

Promises: a party is told the places of its own rows alone; a label holder all of whose rows take part is told
a hash of which of them each feature holder has, so that none can say it has others and be shown a hash of
their ids; both ends compute the same; each is asked once in
a session, in a turn of its own: else parties would enter other ids each time, `max_ids` of them.
Refuses: more ids than the terms allow, fewer common rows, and places that cannot be (Refused).
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
"""Bytes of a key and the HMAC-SHA-256 of the ids in common."""
REPEAT_BYTES = 4
"""Bytes that say how many rows of the label holder have an id."""
UNKNOWN = -1
"""The place of a row of the label holder that a feature holder does not have."""
HASH_WORDS = 8
"""Words of 32 bits of a SHA-256."""
Sizes = Annotated[tuple[int, ...], Bound(MAX_PARTIES, "parties")]
"""A number for each party, in the order of the terms."""


class BeforeRows(Stateless):
    """What queries that match rows have in common."""

    rows = MAX_ROWS - 1

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where rows are matched."""
        return int(terms.vertical.aligns)

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError once rows are matched."""
        if state.places is not None:
            raise PeerError("rows are matched already")


@dataclass(frozen=True)
class IdCountQuery(BeforeRows, BaseQuery):
    """The number of row ids of each party. Answer: one integer a party, in the order of the terms."""

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
        """Refuse it where rows are not matched, or for another number of parties."""
        check_aligns(terms, self.parties)


@dataclass(frozen=True)
class AlignQuery(BeforeRows, BaseQuery):
    """The ids of all parties, blinded by the secret of every party of their block.

    sizes: number of ids of each party. Answer: the tokens of each list, `TOKEN_WORDS` integers each, list
    after list; each list is answered by one party, which is not its owner."""

    description = "row ids, blinded by all parties"
    only_turn = 2
    tasks = frozenset({"train", "predict"})

    sizes: Sizes

    @property
    def cells(self) -> int:
        return TOKEN_WORDS * sum(self.sizes)

    @property
    def cell_bits(self) -> int:
        return 32

    def relayed_bytes(self, terms: Terms) -> int:
        """Each list passes through each party of its block."""
        return POINT_BYTES * sum(self.sizes)

    def check(self, terms: Terms) -> None:
        """Refuse lists of more ids than the terms allow, before all else: that names who enters them."""
        self.check_terms(terms)
        super().check(terms)

    def check_terms(self, terms: Terms) -> None:
        """Refuse lists of more ids than the terms allow, and than a session can match."""
        check_aligns(terms, len(self.sizes))
        for party, size in zip(terms.parties, self.sizes, strict=True):
            most = terms.vertical.most_ids
            if not 0 < size <= most:
                raise Refused(
                    f"party {party} enters {size:,} row ids, and the terms allow 1 to {most:,}: raise "
                    f"max_ids if that many are known to be its own"
                )
        if self.cells > MAX_CELLS:
            raise Refused(
                f"the parties enter {sum(self.sizes):,} row ids together, and a session matches "
                f"{MAX_CELLS // TOKEN_WORDS:,} at most; leave out rows that no other party can have"
            )


@dataclass(frozen=True)
class ToldPlaces(BeforeRows, BaseQuery):
    """A query that tells each party places in its own list of ids, and whose answer is the number of rows,
    from the label holders.

    total: rows that it is about; sizes: places that are told of each party; places: int32 [sum of sizes]."""

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
        """The places of a party, by its number in the terms: int64 [rows]."""
        begin = sum(self.sizes[:party])
        return self.places[begin : begin + self.sizes[party]]

    def in_view(self, view: View) -> Self:
        """The query with a party's own places alone."""
        sizes = tuple(size if party == view.place else 0 for party, size in enumerate(self.sizes))
        if sizes == self.sizes:
            return self
        own = self.of(view.place) if view.place >= 0 else self.places[:0]
        return replace(self, sizes=sizes, places=own)

    def check_terms(self, terms: Terms) -> None:
        """Refuse it where rows are not matched, for another number of parties, and for other places than it
        says."""
        check_aligns(terms, len(self.sizes))
        if sum(self.sizes) != self.places.size or not 0 < self.total < MAX_ROWS:
            raise Refused("places of rows that are not as many as they say")

    def check_known(self, terms: Terms, said: str) -> None:
        """Where all rows of the label holder take part: refuse another number of places of a feature holder,
        or of words of hashes of these, places that are told twice or that cannot be, and too few known rows.
        said: what the rows are said to be."""
        label_holder, fewest = terms.vertical.label_holder, terms.vertical.fewest_common_rows
        for party, size in enumerate(self.sizes):
            name, own = terms.parties[party], self.of(party)
            due = HASH_WORDS * (len(terms.parties) - 1) if name == label_holder else self.total
            if size not in (0, due):
                raise Refused(f"{size} places of party {name}, where {self.total} rows are {said}")
            if name == label_holder:
                continue
            known = own[own != UNKNOWN]
            if size and known.size < fewest:
                parties = str(label_holder), name
                raise Refused(few_in_common(known.size, fewest, parties, not terms.task.trains))
            if known.size and (known.min() < 0 or np.unique(known).size != known.size):
                raise Refused(f"a row that is said to be {said} twice")

    def known_bytes(self, terms: Terms) -> int:
        """Most bytes that a party relays where all rows of the label holder take part: a feature holder a bit
        a row, the label holder a hash for each of them."""
        return -(-self.total // 8) + sum(sealed_size(CHECK_BYTES, (party,)) for party in terms.parties)


@dataclass(frozen=True)
class PlacesQuery(ToldPlaces):
    """The rows in common: of each party the places in its list of ids, in an order that all parties of its
    block share. Or, where they take part (`Vertical.takes_all_rows`), all rows of the label holder, in the
    order of its list: of each feature holder as many places, UNKNOWN where it does not have the id, and of
    the label holder `hash_of` the rows that each of them has.

    total: common rows of all blocks, or rows of the label holder; sizes: places that are told of each party;
    places: int32 [sum of sizes]. Answer: the number of rows, from the label holders."""

    description = "row count, once rows are matched"

    def relayed_bytes(self, terms: Terms) -> int:
        """Which rows feature holders have, and hashes of these, where all of the label holder take part; and
        how often ids are repeated."""
        known = self.known_bytes(terms) if terms.vertical.takes_all_rows else 0
        return known + self.total * REPEAT_BYTES * terms.vertical.repeated_ids

    def check_terms(self, terms: Terms) -> None:
        """Refuse places that are told twice or that cannot be, and too few."""
        super().check_terms(terms)
        if terms.vertical.takes_all_rows:
            self.check_known(terms, "common")
            return
        fewest = terms.vertical.fewest_common_rows
        for party, size in enumerate(self.sizes):
            own = self.of(party)
            if 0 < size < fewest or size > self.total:
                block = terms.blocks.of(terms.parties[party])
                raise Refused(few_in_common(size, fewest, block.parties if block else ()))
            if size and (own.min() < 0 or np.unique(own).size != size):
                raise Refused("a row that is said to be common twice")

    def applied_to(self, state: Any) -> Any:
        """The state with these places."""
        return replace(state, places=self)


def hash_of(known: Mask) -> Int64:
    """The hash of which rows a feature holder has: int64 [HASH_WORDS]. known: bool [rows]."""
    return np.frombuffer(hashlib.sha256(np.packbits(known).tobytes()).digest(), "<i4").astype(np.int64)


def few_in_common(rows: int, fewest: int, parties: Sequence[str], predicts: bool = False) -> str:
    """The sentence on too few common rows of these parties. predicts: the rows are to be predicted."""
    option = " by --min-common-rows" if predicts else ""
    return (
        f"parties {', '.join(parties)} have {rows:,} rows in common, and the terms say min_common_rows = "
        f"{fewest}: compare how their row ids are written (id_form in the terms)"
        + (f", or set it lower{option} if so few are enough" if rows else "")
    )


def check_aligns(terms: Terms, parties: int) -> None:
    """Refused unless the terms match rows, of so many parties."""
    if not terms.vertical.aligns:
        raise Refused("row ids are asked for, and the terms match no rows")
    if parties != len(terms.parties):
        raise Refused(f"row ids of {parties} parties, the terms have {len(terms.parties)}")


# ---- The query by which parties that hold different columns predict together (`holders.prediction`) ----
# All rows of the label holder are predicted. Each feature holder is told which rows of its own they are;
# where it does not have an id it answers as for missing values. It relays to the label holder which leaves
# each row can reach, so one turn is enough, whatever the depth of the trees.
# Promises: a party is told the places of its own rows alone; it is asked once in a session, in a turn of
# its own; the label holder is told a hash of which rows each feature holder has, so that none can say it
# has others and be shown a hash of their ids.
# Refuses: another number of rows than the terms say, feature holders that know fewer of them than
# `min_common_rows`, since an id alone is a look-up, and places that cannot be (Refused).


BATCH_BYTES = 1 << 24
"""Most bytes of leaf bits that are relayed together, of a party, but where a row alone takes more."""


@dataclass(frozen=True)
class ReachQuery(ToldPlaces):
    """The rows that are predicted, in the order of the label holder's list of ids.

    total: how many they are; sizes: places that are told of each party, `total` of each feature holder, and
    of the label holder the words of a hash for each of these; places: int32 [sum of sizes], in the holder's
    own list, UNKNOWN where it does not have the id, and `hash_of` the rows that each has. Answer: the number
    of rows, from the label holder."""

    description = "number of rows that were predicted"
    tasks = frozenset({"predict"})

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where rows are predicted."""
        return int(cls.serves(terms))

    def relayed_bytes(self, terms: Terms) -> int:
        """Most bytes that a feature holder relays, a bit a row and its leaf bits, and the label holder, a
        hash for each."""
        roots, names = len(terms.roots), terms.parties
        of_row = terms.trees.rounds * roots * -(-terms.max_leaves_per_round // roots // 8)
        batches = -(-self.total // rows_of_batch(of_row))
        return self.total * of_row + batches * sealed_size(0, names) + self.known_bytes(terms)

    def check_terms(self, terms: Terms) -> None:
        """Refuse another number of rows, places that are told twice or that cannot be, and too few known."""
        super().check_terms(terms)
        check_predicted(terms, self.total)
        self.check_known(terms, "predicted")


def rows_of_batch(size: int) -> int:
    """The rows whose leaf bits are relayed together. size: of a row, of the party that has most."""
    return max(1, BATCH_BYTES // max(1, size))


def check_predicted(terms: Terms, rows: int) -> None:
    """Refused unless the terms say that so many rows are predicted."""
    due = terms.vertical.predict_rows
    if rows != due:
        raise Refused(
            f"label holder {terms.vertical.label_holder} has {rows} rows to predict, and the terms say "
            f"predict_rows = {due}"
        )


def check_batch(terms: Terms) -> None:
    """Refused for fewer rows than each feature holder has to know: whether that is so would tell of them."""
    rows, fewest = terms.vertical.predict_rows or 0, terms.vertical.fewest_common_rows
    if rows < fewest:
        raise Refused(
            f"{rows} rows are to be predicted, and the terms say min_common_rows = {fewest}: predict that "
            f"many together, or set it lower by --min-common-rows where the other parties allow that"
        )


OfRows = IdCountQuery | AlignQuery | PlacesQuery | ReachQuery
"""Queries that match rows by their ids, and those about rows that are predicted."""
