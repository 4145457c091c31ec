"""Queries that find the rows which the parties of a block have in common (`vertical.alignment`).

First each party says how many row ids it has; then each reports one list of ids, blinded by the secrets of
all parties of its block; then each is told which of its own rows are common, in an order that all share.

Promises: a party is told the places of its own rows alone; both ends compute the same.
Refuses: more ids than the terms allow, fewer common rows, and places that cannot be (Refused).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedboost.boosting.queries.base import MAX_ROWS, BaseQuery, BeforeTrees
from fedboost.boosting.queries.views import View
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.privacy.points import POINT_BYTES, TOKEN_WORDS
from fedboost.terms.terms import Terms

MAX_PLACES = 1 << 31
"""Rows of a party, exclusive."""


class BeforeRows(BeforeTrees):
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

    def applied_to(self, state: Any) -> Any:
        """The same state: it changes nothing."""
        return state


@dataclass(frozen=True)
class IdCountQuery(BeforeRows, BaseQuery):
    """The number of row ids of each party. Answer: one integer a party, in the order of the terms."""

    description = "number of row ids"

    parties: int

    @property
    def cells(self) -> int:
        return self.parties

    @property
    def cell_bits(self) -> int:
        return MAX_ROWS.bit_length()

    def check_terms(self, terms: Terms) -> None:
        """Refuse it where rows are not matched, or for another number of parties."""
        _check_aligns(terms, self.parties)


@dataclass(frozen=True)
class AlignQuery(BeforeRows, BaseQuery):
    """The ids of all parties, blinded by the secret of every party of their block.

    sizes: number of ids of each party. Answer: the tokens of each list, `TOKEN_WORDS` integers each, list
    after list; each list is answered by one party, which is not its owner."""

    description = "row ids, blinded by all parties"

    sizes: tuple[int, ...]

    @property
    def cells(self) -> int:
        return TOKEN_WORDS * sum(self.sizes)

    @property
    def cell_bits(self) -> int:
        return 32

    @property
    def relayed_bytes(self) -> int:
        """Each list passes through each party of its block."""
        return POINT_BYTES * sum(self.sizes)

    def check_terms(self, terms: Terms) -> None:
        """Refuse lists of more ids than the terms allow."""
        _check_aligns(terms, len(self.sizes))
        for party, size in zip(terms.parties, self.sizes, strict=True):
            most = terms.vertical.most_ids
            if not 0 < size <= min(most, MAX_PLACES - 1):
                raise Refused(
                    f"party {party} enters {size:,} row ids, and the terms allow 1 to {most:,}: raise "
                    f"max_ids if that many are known to be its own"
                )


@dataclass(frozen=True)
class PlacesQuery(BeforeRows, BaseQuery):
    """The rows in common: of each party the places in its list of ids, in an order that all parties of its
    block share.

    total: common rows of all blocks; sizes: places that are told of each party; places: int32 [sum of sizes].
    Answer: the number of rows, from the label holders."""

    description = "row count, once rows are matched"

    total: int
    sizes: tuple[int, ...]
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

    def in_view(self, view: View) -> "PlacesQuery":
        """The query with a party's own places alone."""
        sizes = tuple(size if party == view.place else 0 for party, size in enumerate(self.sizes))
        if sizes == self.sizes:
            return self
        own = self.of(view.place) if view.place >= 0 else self.places[:0]
        return replace(self, sizes=sizes, places=own)

    def check_terms(self, terms: Terms) -> None:
        """Refuse places that are told twice or that cannot be, and too few."""
        _check_aligns(terms, len(self.sizes))
        fewest = terms.vertical.fewest_common_rows
        if sum(self.sizes) != self.places.size or not 0 < self.total < MAX_ROWS:
            raise Refused("places of rows that are not as many as they say")
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


def few_in_common(rows: int, fewest: int, parties: Sequence[str]) -> str:
    """The sentence on too few common rows of these parties."""
    return (
        f"parties {', '.join(parties)} have {rows:,} rows in common, and the terms say min_common_rows = "
        f"{fewest}: compare how their row ids are written (id_form in the terms)"
        + (", or set it lower if so few are enough" if rows else "")
    )


def _check_aligns(terms: Terms, parties: int) -> None:
    if not terms.vertical.aligns:
        raise Refused("row ids are asked for, and the terms match no rows")
    if parties != len(terms.parties):
        raise Refused(f"row ids of {parties} parties, the terms have {len(terms.parties)}")
