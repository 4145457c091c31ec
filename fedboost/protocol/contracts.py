"""The contracts a session stands on: a query, the state of a training, the holder of the data.

A session carries queries to holders and adds their answers up. What a query is about, how the state changes
with it and how an answer is computed stands behind these contracts: the session knows no algorithm.

A **Query** is asked of all holders; each answers with one vector of integers, and only the sum of the vectors
is opened. The **TrainingState** is where a training stands after the queries so far: a pure function of them,
the same at the aggregator and at every party. A **Holder** computes a party's answers from its data.
"""

import hashlib
import hmac
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, combinations
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.tree import Splits, Tree
from fedboost.privacy import packing
from fedboost.privacy.packing import RandomBytes, Segment
from fedboost.privacy.protection import HiddenSums
from fedboost.terms.hiding import Release
from fedboost.terms.terms import Terms

MAX_CELLS = 1 << 27
"""Integers in one answer: a gigabyte at a party, far beyond practical sizes."""


def out_of_bounds(what: str) -> PeerError:
    return PeerError(f"a message out of bounds: {what}")


@dataclass(frozen=True)
class Bound:
    """The range of a field on the wire, beside its type (`Annotated`): of a number, or of the length of
    anything else. what: the sentence on a value beyond it, behind the value."""

    most: float
    what: str
    least: float = 0

    def check(self, value: Any) -> None:
        """Raise PeerError for a value beyond it."""
        size = len(value) if hasattr(value, "__len__") else value
        if not self.least <= size <= self.most:
            allowed = f"{self.least} to {self.most}" if self.least else f"{self.most}"
            raise out_of_bounds(f"{size} {self.what}; {allowed} are allowed")


@dataclass(frozen=True)
class Only:
    """What else must hold of a field on the wire, and the sentence on a value of which it does not."""

    holds: Callable[[Any], bool]
    what: str

    def check(self, value: Any) -> None:
        """Raise PeerError for a value of which it does not hold."""
        if not self.holds(value):
            raise out_of_bounds(self.what)


class Query:
    """A question to all holders, with the usual answers. Bytes: `digest` names it in transcripts; `wire`
    knows how it travels."""

    if TYPE_CHECKING:  # fields of queries, or properties of their own

        @property
        def parts(self) -> "tuple[Query, ...]":
            """The queries that it is made of: itself, or those that share the turn (`Several`)."""

        @property
        def digest(self) -> bytes:
            """A hash of everything it says: 32 bytes."""

        @property
        def rows(self) -> int:
            """Upper bound of the rows behind the sum: a public number."""

        @property
        def tree(self) -> int:
            """The tree it is about: -1 before the first."""

        @property
        def splits(self) -> Splits:
            """Splits that every party applies before it answers."""

        @property
        def of_tree(self) -> bool:
            """True for a query about a tree before its end."""

        @property
        def ends_tree(self) -> bool:
            """True for the query that ends a tree, and the round with it."""

        @property
        def only_turn(self) -> int | None:
            """The turn that it is asked in, alone, if it is asked once in a session; None for any turn."""

        @property
        def cells(self) -> int:
            """Integers of the answer."""

        @property
        def segments(self) -> tuple[Segment, ...]:
            """The cells in which an answer travels."""

        def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
            """The query as a party is told it; publicly: as all parties of its block are."""

        def check(self, terms: Terms) -> None:
            """Raise Refused if the terms do not allow it, no matter who asks."""

        def release(self, terms: Terms) -> Release | None:
            """The release that an answer is, where the terms have noise; None if nothing of rows is in it."""

    @property
    def name(self) -> str:
        """Its name in logs."""
        return type(self).__name__

    @property
    def stage(self) -> int:
        """Its place in the session, which only grows: two a tree, its growth and its end."""
        return 2 * self.tree + self.ends_tree

    def fits(self, answer: Int64) -> bool:
        """True if the cells hold this answer, when no other party adds to it."""
        return True

    def to_cells(self, answer: Int64) -> Int64:
        """An answer as it is sealed: an integer for each cell."""
        return answer

    def from_cells(self, total: Int64) -> Int64:
        """The sum of answers, from the sum of their cells: [cells]."""
        return total

    def relayed_bytes(self, terms: Terms) -> int:
        """Bytes that a party relays before it answers, beside those of trees."""
        return 0

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of the round that it ends: all of them, and those that the analyst gets."""
        return {}, {}

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """The sums that some parties report encrypted, asked in this state; None without any."""
        return None


@dataclass(frozen=True)
class Position:
    """The place where a training stands, by hashes: as much as a site can keep of it.

    grids, started, rounds, splits, levels: how far it has come; model: the hash of what there is of the
    model; tree: the hash of what else is known of the tree that grows. Two positions are equal if the
    training stands at the same place.
    """

    grids: int
    started: bool
    rounds: int
    splits: int
    levels: int
    model: bytes
    tree: bytes

    @property
    def digest(self) -> bytes:
        """A hash of it: 32 bytes."""
        return hashlib.sha256(packing.pack(self.model, self.tree)).digest()


def _empty(*parts: bytes) -> bytes:
    return hashlib.sha256(packing.pack(packing.number(0), *parts)).digest()


NOWHERE = Position(0, False, 0, 0, 0, _empty(b""), _empty(b"", b""))
"""The position of every training before its first query."""


class TrainingState(Protocol):
    """The place where a training stands: what was answered so far."""

    @property
    def position(self) -> Position:
        """The same by hashes."""

    @property
    def rounds(self) -> Sequence[Any]:
        """The finished rounds; the first is the constant that boosting starts from."""

    @property
    def splits(self) -> Splits:
        """Splits of the tree that grows."""

    @property
    def levels(self) -> int:
        """Queries about the tree that grows which were answered."""

    @property
    def before_tree(self) -> Self:
        """The state before the tree that grows."""

    @property
    def moved(self) -> bool:
        """True if the last finished tree tells rows apart and moved the margin of each."""

    def after(self, query: Any) -> Self:
        """The state once this query was answered."""

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
        """The state as a party was told it; publicly: as all parties of its block were."""

    def check(self, terms: Terms) -> None:
        """Raise Refused if a training under these terms cannot stand here."""

    def check_next(self, terms: Terms, query: Any) -> None:
        """Raise Refused unless the tree that grows can have the splits of this query next, and where the
        query ends it, those leaves."""

    def has_passed(self, earlier: Position) -> bool:
        """True if a training that stood there can have come to stand here."""

    def may_change(self, query: Any) -> bool:
        """True if the roster may be another one from this query on."""

    def may_lack_parties(self, query: Any) -> bool:
        """True if the roster may lack a party of the terms when this query is asked."""

    def structure(self, rounds: int, terms: Terms) -> bytes:
        """A hash of what the model predicts with, after that many rounds."""

    def to_record(self) -> list[Any]:
        """The tree that grows, as JSON for the journal."""

    def with_record(self, record: list[Any]) -> Self:
        """The same training with the tree of a journal's record (ValueError, TypeError)."""

    def check_grown(self, terms: Terms, tree: Tree, last: Splits) -> None:
        """Raise Refused unless `tree` is the tree that grows once it has the splits in `last`."""


@dataclass(frozen=True)
class Send:
    """A holder wants these bytes relayed to other parties. kind: what they are, for logs; about: the number
    of rows they tell of."""

    kind: str
    to: tuple[str, ...]
    content: bytes
    about: int


@dataclass(frozen=True)
class Receive:
    """A holder waits for so many bytes that another party has relayed. once: of a question that is asked
    again they must be the same as before."""

    kind: str
    sender: str
    size: int
    once: bool = False


@dataclass(frozen=True)
class NeedKeys:
    """A holder wants the keys of the attempt, by which gradients are hidden."""


@dataclass(frozen=True)
class Keys:
    """The keys by which gradients are hidden in an attempt. secret: at the key holder alone; draw:
    cryptographic randomness."""

    public: Any
    secret: Any = field(repr=False)
    draw: RandomBytes = field(repr=False)


@dataclass(frozen=True)
class Answered:
    """An answer: its integers, int64 [query.cells], and the encrypted sums that belong to them."""

    values: Int64
    encrypted: bytes = b""


Answering = Generator[Send | Receive | NeedKeys, Any, Int64 | Answered]
"""An answer under way: a generator that yields what is to be relayed, receives the bytes or the keys that it
waits for, and returns the integers. Of one sender it receives in the order that the sender sends in."""


@dataclass(frozen=True)
class HeldTable:
    """The table of a session, as a site's memory keeps it. rows: their number; hashed: their hash under a
    key, whatever the software; chosen: bool [rows], the rows that the session is about, or that it holds out;
    None where it makes no difference between rows."""

    rows: int
    hashed: Callable[[bytes], bytes]
    chosen: Mask | None = None


class Holder(Protocol):
    """A party's data, as far as a session needs it."""

    @property
    def rows(self) -> int:
        """Rows that it holds."""

    @property
    def state(self) -> Any:
        """The state of the training."""

    @property
    def table(self) -> HeldTable | None:
        """The table; None where later sessions do not need to know it."""

    def rows_hashed(self, key: bytes) -> bytes:
        """An HMAC of all that it holds."""

    def go_to(self, state: Any) -> None:
        """Stand where the others stand."""

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """The trees after that many rounds as this party was told them, with the thresholds of its columns
        (where parties hold different columns)."""

    def answering(self, query: Any) -> Answering:
        """Its integers, once it has all that it needs of other parties: int64 [query.cells]. The state then
        is the one after the query."""


class Rowless:
    """The holder of a key holder without rows: it follows the training, and adds nothing to any sum."""

    rows = 0
    table = None

    def __init__(self) -> None:
        self.state: Any = None
        """The state of the training, once `go_to` gave it."""

    def rows_hashed(self, key: bytes) -> bytes:
        """An HMAC of no rows."""
        return hmac.digest(key, b"", "sha256")

    def go_to(self, state: TrainingState) -> None:
        """Stand there."""
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """None: it knows no columns."""
        return ()

    def answering(self, query: Query) -> Answering:
        """Zeros: int64 [query.cells]."""
        if self.state is None:
            raise PeerError("asked before introduced")
        self.state = self.state.after(query)
        yield from ()
        return np.zeros(query.cells, np.int64)


@dataclass(frozen=True)
class Outcome:
    """What a program makes: a model, and a summary beside it, which is JSON."""

    booster: Booster
    summary: Mapping[str, Any] = field(default_factory=dict)


GrownTrees = list[tuple[Tree, Splits]]
"""The trees of a session so far, each with the splits that its last histograms led to."""
Program = Callable[[Terms, GrownTrees], Generator[Any, Int64, Booster | Outcome]]
"""An algorithm: a generator that yields queries, receives the sum of each, and returns the model, or an
Outcome; queries that share a turn are one (`Several`). TreeAborted is thrown into it instead of a sum
that will not come, TrainingStopped after the last round that is wanted; it keeps its trees in the list it is
given, and does not ask for those that are there already."""


# ---- What the sums over several groups of parties tell together -----------------------------------------
# Anyone who has the sums over {a, b, c, d} and {a, b, c} has those of d alone; {a, b, c, d, e}, {a, b, c}
# and {a, d, e} give those of a. And parties that collude take their own away from whatever is left.
# Promises: `fewest_shown` finds the smallest set of parties that some combination of the sums is over.


MAX_GROUPS = 3
"""Different groups that are looked at together: those of more have more combinations than anybody can judge.
"""


def fewest_shown(groups: Iterable[frozenset[str]], colluding: int) -> frozenset[str]:
    """The fewest parties that a linear combination of the sums over at most MAX_GROUPS groups is over, if
    those are fewer than `colluding` and two more, so that one that does not collude could stand alone; else
    nobody.

    A combination takes parties that are in the same groups with the same factor. One over no others than the
    parties of some classes exists if the groups' incidence vectors lose rank without the columns of those
    classes.
    """
    known = sorted(set(groups), key=sorted)
    classes: dict[tuple[bool, ...], set[str]] = {}
    for party in frozenset().union(*known):
        classes.setdefault(tuple(party in group for group in known), set()).add(party)
    columns = list(classes)
    rank = _rank(columns)
    fewest: frozenset[str] = frozenset()
    for size in range(1, len(columns) + 1):
        for chosen in combinations(columns, size):
            parties = frozenset().union(*(classes[column] for column in chosen))
            few = len(parties) < colluding + 2 and (not fewest or len(parties) < len(fewest))
            if few and _rank([column for column in columns if column not in chosen]) < rank:
                fewest = parties
    return fewest


def _rank(columns: list[tuple[bool, ...]]) -> int:
    """Rank of a matrix of 0 and 1, exact for a few rows."""
    return int(np.linalg.matrix_rank(np.array(columns, float))) if columns else 0


# ---- Several queries that share a turn: one question, whose answers are one vector, query after query ---
# It is asked, answered, opened, written down and remembered as one: one hash, one place where the training
# stands before it and one after; each query is held to the terms where the queries before it leave the
# training.


MAX_QUERIES = 4
"""Queries of one turn."""
AND = " + "
"""Between the names of queries that share a turn."""


def pieces(values: Int64, sizes: Sequence[int]) -> list[Int64]:
    """Pieces of these sizes, one after the other."""
    return [values[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


@dataclass(frozen=True)
class Several(Query):
    """A query made of others, which are answered in order."""

    parts: tuple[Query, ...]

    def split(self, total: Int64) -> list[Int64]:
        """An answer, or the sum of answers, query by query."""
        return pieces(total, [part.cells for part in self.parts])

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

    only_turn = None

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
        sizes = [sum([cells for cells, _ in part.segments]) for part in self.parts]
        sums = zip(self.parts, pieces(total, sizes), strict=True)
        return np.concatenate([part.from_cells(own) for part, own in sums])

    def relayed_bytes(self, terms: Terms) -> int:
        """Bytes that a party relays before it answers, beside those of trees."""
        return sum([part.relayed_bytes(terms) for part in self.parts])

    def bytes_needed(self, parties: int) -> int:
        """Bytes that the aggregator needs, at most, from asking this until the next query is asked."""
        parts: Any = self.parts
        return sum(part.bytes_needed(parties) for part in parts)

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
