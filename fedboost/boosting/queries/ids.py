"""Queries that find the rows which the parties of a block have in common (`holders.alignment`).

First, each party reports how many row ids it has. Then each reports one list of ids, blinded with the secrets
of all parties of its block. Finally, each receives the indices of its matched rows in its own list of ids, in
an order that all parties share.

Guarantees: a party receives only indices of its own rows. If all rows of the label holder are used, the label
holder receives one hash per feature holder instead, which covers the set of rows that this feature holder
has. A feature holder that claims to have other rows does not receive a hash of their ids. Each query is sent
once per session, in its own turn. Otherwise, parties could submit `max_ids` different ids each time.
Raises: Refused for more ids than the terms allow, too few common rows, and impossible row indices."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from fedboost.boosting.queries.base import MAX_ROWS, BaseQuery, Stateless, View
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.sampling import Mask
from fedboost.privacy.pairwise import KEY_BYTES, sealed_size
from fedboost.privacy.points import POINT_BYTES, TOKEN_WORDS
from fedboost.protocol.contracts import MAX_CELLS, Bound
from fedboost.terms.continuation import leaf_bytes
from fedboost.terms.session import MAX_PARTIES, TRAINING
from fedboost.terms.terms import Terms

CHECK_BYTES = 2 * KEY_BYTES
"""Size in bytes of a key and an HMAC-SHA-256 of the common ids."""
REPEAT_BYTES = 4
"""Size in bytes of a count: the number of the label holder's rows with the same id."""
UNKNOWN = -1
"""Used instead of an index if a feature holder does not have a row of the label holder."""
HASH_WORDS = 8
"""Size of a SHA-256 hash in 32-bit words."""
Sizes = Annotated[tuple[int, ...], Bound(MAX_PARTIES, "parties")]
"""One number per party, in the order of the terms."""


class BeforeRows(Stateless):
    """Base of queries that match the rows of the parties."""

    rows = MAX_ROWS - 1
    tasks: ClassVar[frozenset[str]] = TRAINING | {"predict", "evaluate", "describe"}

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.vertical.aligns)

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.places is not None:
            raise PeerError("query-order", "rows may be matched only once")


@dataclass(frozen=True)
class IdCountQuery(BeforeRows, BaseQuery):
    """Asks for the number of row ids of each party. Answer: one integer per party, in terms order."""

    description = "number of row ids"
    only_turn = 1

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
    """Asks for the ids of all parties, each blinded with the secrets of all parties of the block.

    sizes: number of ids of each party. Answer: for each party's list, the tokens (short hashes) of its
    blinded ids, `TOKEN_WORDS` integers each. The tokens of a list are reported by another party of the block;
    all other parties add 0."""

    description = "row ids, blinded by all parties"
    only_turn = 2

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
        """Raise Refused if there are more ids than the terms allow or than a session can match."""
        check_aligns(terms, len(self.sizes))
        for party, size in zip(terms.parties, self.sizes, strict=True):
            most = terms.vertical.most_ids
            if not 0 < size <= most:
                raise Refused(
                    "align-many-ids",
                    f"party {party} submits {size:,} row ids, but the terms allow only 1 to {most:,}; "
                    f"raise max_ids only if the party is known to have that many rows",
                )
        if self.cells > MAX_CELLS:
            raise Refused(
                "align-session-size",
                f"the parties submit {sum(self.sizes):,} row ids in total, but a session can match at most "
                f"{MAX_CELLS // TOKEN_WORDS:,}; remove rows that no other party can have",
            )


@dataclass(frozen=True)
class ToldPlaces(BeforeRows, BaseQuery):
    """Base of queries that send each party the indices of its rows in its own list of ids. Answer: the number
    of rows, from the label holders.

    total: number of rows; sizes: number of entries in `places` for each party; places: the entries of all
    parties, int64 [sum of sizes]."""

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
        """Return the entries of `places` for the party with this index in the terms, int64 [entries]."""
        begin = sum(self.sizes[:party])
        return self.places[begin : begin + self.sizes[party]]

    def in_view(self, view: View) -> Self:
        """Return the query with only the party's own entries of `places`."""
        sizes = tuple(size if party == view.place else 0 for party, size in enumerate(self.sizes))
        if sizes == self.sizes:
            return self
        own = self.of(view.place) if view.place >= 0 else self.places[:0]
        return replace(self, sizes=sizes, places=own)

    def check_terms(self, terms: Terms) -> None:
        check_aligns(terms, len(self.sizes))
        if sum(self.sizes) != self.places.size or not 0 < self.total < MAX_ROWS:
            raise Refused("query-places", "the query has an invalid number of row indices or rows")

    def check_known(self, terms: Terms, said: str) -> None:
        """Raise Refused if `places` is impossible in a session that uses all rows of the label holder.

        A feature holder needs one entry per row, either a distinct index or UNKNOWN, and enough known rows.
        The label holder needs one hash per feature holder. said: word for the rows in messages, "common" or
        "predicted"."""
        label_holder, fewest = terms.vertical.label_holder, terms.vertical.fewest_common_rows
        for party, size in enumerate(self.sizes):
            name, own = terms.parties[party], self.of(party)
            due = HASH_WORDS * (len(terms.parties) - 1) if name == label_holder else self.total
            if size not in (0, due):
                raise Refused(
                    "query-places",
                    f"the query has a wrong number of row indices or hashes for party {name} ({size}): "
                    f"{self.total} rows are {said}",
                )
            if name == label_holder:
                continue
            known = own[own != UNKNOWN]
            if size and known.size < fewest:
                parties = str(label_holder), name
                raise Refused(
                    "align-few-common", few_in_common(known.size, fewest, parties, not terms.task.by_analyst)
                )
            if known.size and (known.min() < 0 or np.unique(known).size != known.size):
                raise Refused(
                    "query-places", f"the query names a {said} row twice, or one that does not exist"
                )

    def known_bytes(self, terms: Terms) -> int:
        """Return the maximum number of bytes that a party relays if all rows of the label holder are used. A
        feature holder relays one bit per row; the label holder relays one hash per feature holder."""
        return -(-self.total // 8) + sum(sealed_size(CHECK_BYTES, (party,)) for party in terms.parties)


@dataclass(frozen=True)
class PlacesQuery(ToldPlaces):
    """Sends each party the rows to train on, as indices into its own list of ids.

    These are usually the common rows, in an order that all parties of a block share. With
    `Vertical.takes_all_rows`, they are all rows of the label holder, in the order of its list. Each feature
    holder then receives one index per row, or UNKNOWN if it does not have the id. The label holder receives
    one hash per feature holder (`hash_of`), which covers the set of rows that this feature holder has.

    total: number of common rows of all blocks, or number of rows of the label holder."""

    description = "number of matched rows"
    tasks = TRAINING | {"describe"}

    def relayed_bytes(self, terms: Terms) -> int:
        known = self.known_bytes(terms) if terms.vertical.takes_all_rows else 0
        return known + self.total * REPEAT_BYTES * terms.vertical.repeated_ids

    def check_terms(self, terms: Terms) -> None:
        """Raise Refused if row indices are repeated, impossible or too few."""
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
                raise Refused(
                    "query-places", "the query names a common row twice, or one that does not exist"
                )

    def applied_to(self, state: Any) -> Any:
        return replace(state, places=self)


def hash_of(known: Mask) -> Int64:
    """Return the SHA-256 of a feature holder's mask of its rows, int64 [HASH_WORDS]. known: bool [rows]."""
    return np.frombuffer(hashlib.sha256(np.packbits(known).tobytes()).digest(), "<i4").astype(np.int64)


def few_in_common(rows: int, fewest: int, parties: Sequence[str], predicts: bool = False) -> str:
    """Return an error message saying that these parties have too few rows in common.

    Args:
        rows: number of rows in common.
        fewest: required minimum.
        parties: names of the parties.
        predicts: True if the session predicts the rows.
    """
    option = " by --min-common-rows" if predicts else ""
    return (
        f"parties {', '.join(parties)} have only {rows:,} rows in common, but the terms require "
        f"min_common_rows = {fewest}: compare how their row ids are written (id_form in the terms)"
        + (f", or lower min_common_rows{option} if so few rows are enough" if rows else "")
    )


def check_aligns(terms: Terms, parties: int) -> None:
    """Raise Refused unless the terms match rows by their ids and have this number of parties."""
    if not terms.vertical.aligns:
        raise Refused("query-ids", "the query asks for row ids, but the terms do not match rows by ids")
    if parties != len(terms.parties):
        raise Refused(
            "query-ids",
            f"the number of parties in the query ({parties}) differs from the number of parties in the terms "
            f"({len(terms.parties)})",
        )


# ---- The query by which parties that hold different columns predict together (`holders.columns`) --------
# All rows of the label holder are predicted, for itself or to evaluate the model. Each feature holder
# receives the indices of these rows in its own list. If it does not have an id, its columns count as missing
# for that row. The feature holder relays to the label holder which leaves each row can reach. So one turn is
# enough, whatever the depth of the trees.
# Guarantees: as for the queries that match rows. The number of rows equals `predict_rows` in the terms, or
# is at most this number if the model is evaluated.
# Raises: Refused if a feature holder has fewer than `min_common_rows` of the rows: predicting a single known
# id would be a look-up.

BATCH_BYTES = 1 << 24
"""Maximum number of bytes of leaf bits that a party relays together, unless a single row takes more. Leaf
bits: for each row and leaf, one bit that says whether the row can reach the leaf."""


@dataclass(frozen=True)
class ReachQuery(ToldPlaces):
    """Asks the label holder to predict all of its rows, in the order of its list of ids.

    total: number of rows. places: for each feature holder, `total` indices in its own list, with UNKNOWN for
    ids that it does not have; for the label holder, one hash per feature holder (`hash_of`). Answer: the
    number of rows, from the label holder."""

    description = "number of predicted rows"
    tasks = frozenset({"predict", "evaluate"})

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(cls.serves(terms) and len(terms.blocks) > 0)

    def relayed_bytes(self, terms: Terms) -> int:
        """Return the maximum number of bytes that a party relays: one bit and the leaf bits of each row, or
        one hash per feature holder."""
        roots, names = len(terms.roots), terms.parties
        of_row = terms.trees.rounds * roots * -(-terms.max_leaves_per_round // roots // 8)
        of_row += leaf_bytes(terms.xgb_model)
        batches = -(-self.total // rows_of_batch(of_row))
        return self.total * of_row + batches * sealed_size(0, names) + self.known_bytes(terms)

    def check_terms(self, terms: Terms) -> None:
        super().check_terms(terms)
        check_predicted(terms, self.total)
        self.check_known(terms, "predicted")


def rows_of_batch(size: int) -> int:
    """Return the number of rows whose leaf bits are relayed together. size: maximum bytes per row."""
    return max(1, BATCH_BYTES // max(1, size))


def check_predicted(terms: Terms, rows: int) -> None:
    """Raise Refused unless the terms predict exactly this number of rows or, to evaluate a model, at least
    this number."""
    due = terms.vertical.predict_rows or 0
    if rows != due and not (terms.evaluates_jointly and rows < due):
        raise Refused(
            "predict-rows-differ",
            f"label holder {terms.vertical.label_holder} has {rows} rows to predict, but the terms have "
            f"predict_rows = {due}",
        )


def check_batch(terms: Terms) -> None:
    """Raise Refused if there are fewer rows to predict than `min_common_rows`, the minimum number of them
    that each feature holder must have. With fewer, an answer would reveal which rows a feature holder has."""
    rows, fewest = terms.vertical.predict_rows or 0, terms.vertical.fewest_common_rows
    if rows < fewest:
        raise Refused(
            "predict-few-rows",
            f"{rows} rows are to be predicted, but the terms require min_common_rows = {fewest}: predict "
            f"more rows together, or lower it with --min-common-rows if the other parties allow that",
        )


OfRows = IdCountQuery | AlignQuery | PlacesQuery | ReachQuery
"""Queries that match rows by their ids, or that predict rows."""
