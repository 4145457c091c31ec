"""Several queries that share a turn: one question, whose answers are one vector, query after query.

Promises: it is asked, answered, opened, written down and remembered as one: one hash, one place where the
training stands before it and one after; each query is held to the terms where the queries before it leave
the training.
Refuses (Refused): terms under which each query needs a turn of its own (`Terms.shares_turns`), the ends
of several trees, and more integers than an answer may have.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np

from fedboost.errors import Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.tree import Splits
from fedboost.privacy import packing
from fedboost.privacy.packing import Segment
from fedboost.privacy.protection import HiddenSums
from fedboost.protocol.contracts import MAX_CELLS, Query
from fedboost.terms.noise import Release
from fedboost.terms.terms import Terms

MAX_QUERIES = 4
"""Queries of one turn."""
AND = " + "
"""Between the names of queries that share a turn."""


@dataclass(frozen=True)
class Several:
    """A query (`contracts.Query`) made of others, which are answered in order."""

    parts: tuple[Query, ...]

    def split(self, total: Int64) -> list[Int64]:
        """An answer, or the sum of answers, query by query."""
        answers, end = [], 0
        for part in self.parts:
            begin, end = end, end + part.cells
            answers.append(total[begin:end])
        return answers

    @property
    def name(self) -> str:
        """The names of the queries."""
        return AND.join(part.name for part in self.parts)

    @cached_property
    def digest(self) -> bytes:
        """A hash of the queries' hashes, each with its length: 32 bytes."""
        return hashlib.sha256(packing.pack(*(part.digest for part in self.parts))).digest()

    @property
    def rows(self) -> int:
        """The smallest bound of rows: each query's cells hold so many."""
        return min([part.rows for part in self.parts])

    @property
    def tree(self) -> int:
        """The tree that the first query is about."""
        return self.parts[0].tree

    @property
    def splits(self) -> Splits:
        """Splits that every party applies before it answers the first query."""
        return self.parts[0].splits

    @property
    def of_tree(self) -> bool:
        """True if all queries are about a tree before its end."""
        return all(part.of_tree for part in self.parts)

    @property
    def ends_tree(self) -> bool:
        """True if a query ends a tree."""
        return any(part.ends_tree for part in self.parts)

    @property
    def stage(self) -> int:
        """The stage of the last query."""
        return self.parts[-1].stage

    @property
    def only_turn(self) -> None:
        """None: what is asked once has a turn of its own."""

    @cached_property
    def cells(self) -> int:
        """Integers of the answer."""
        return sum([part.cells for part in self.parts])

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The cells of the answers, one after the other."""
        return sum([part.segments for part in self.parts], ())

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> "Several":
        """The queries as a party is told them; these themselves where nothing of them is hidden."""
        parts = tuple([part.seen_by(terms, party, publicly) for part in self.parts])
        return self if all(map(is_, parts, self.parts)) else Several(parts)

    def check(self, terms: Terms) -> None:
        """Raise Refused if the terms do not allow it."""
        if not terms.shares_turns:
            raise Refused("several queries in one turn, where the roster may change or answers get noise")
        if sum([part.ends_tree for part in self.parts]) > 1:
            raise Refused("the ends of several trees in one turn")
        if self.cells > MAX_CELLS:
            raise Refused(f"answers of {self.cells} integers in one turn, at most {MAX_CELLS} are given")
        for part in self.parts:
            part.check(terms)

    def fits(self, answer: Int64) -> bool:
        """True if the cells hold this answer, when no other party adds to it."""
        return all(part.fits(own) for part, own in zip(self.parts, self.split(answer), strict=True))

    def to_cells(self, answer: Int64) -> Int64:
        """An answer as it is sealed: an integer for each cell."""
        answers = zip(self.parts, self.split(answer), strict=True)
        return np.concatenate([part.to_cells(own) for part, own in answers])

    def from_cells(self, total: Int64) -> Int64:
        """The sum of answers, from the sum of their cells: [cells]."""
        sums, begin = [], 0
        for part in self.parts:
            end = begin + sum([cells for cells, _ in part.segments])
            sums.append(part.from_cells(total[begin:end]))
            begin = end
        return np.concatenate(sums)

    def relayed_bytes(self, terms: Terms) -> int:
        """Bytes that a party relays before it answers, beside those of trees."""
        return sum([part.relayed_bytes(terms) for part in self.parts])

    def bytes_needed(self, parties: int) -> int:
        """Bytes that the aggregator needs, at most, from asking this until the next query is asked."""
        return sum(part.bytes_needed(parties) for part in self.parts)

    def release(self, terms: Terms) -> Release | None:
        """Raise Refused: with noise each query has a turn of its own."""
        raise Refused("several queries in one turn, where answers get noise")

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """The sums that some parties report encrypted, of the one query that has any."""
        if not terms.hides_columns:
            return None
        begin, found = 0, None
        for part in self.parts:
            if hidden := part.hidden(terms, state):
                places = {party: own + begin for party, own in hidden.places.items()}
                marks = {party: own + begin for party, own in hidden.marks.items()}
                whole = replace(hidden, cells=self.cells, to_cells=self.to_cells)
                found = replace(whole, places=places, marks=marks)
            state, begin = state.after(part), begin + part.cells
        return found

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of the round that one of the queries ends."""
        sums = zip(self.parts, self.split(total), strict=True)
        return next(part.metrics_of(own) for part, own in sums if part.ends_tree)
