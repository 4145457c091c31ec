"""The contracts of a session: a query, the state of a training, and the holder of the data.

A session carries queries to holders and adds up their answers. What a query is about, how it changes the
state, and how an answer is computed is behind these contracts: the session knows no algorithm.

A **Query** is sent to all holders. Each answers with one vector of integers, and only the sum of the vectors
is opened. The **TrainingState** is the state of a training after the queries so far: a pure function of them,
the same at the aggregator and at every party. A **Holder** computes a party's answers from its data."""

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
"""Most integers in one answer: a gigabyte at a party, far beyond practical sizes."""


def out_of_bounds(what: str) -> PeerError:
    return PeerError("message-out-of-bounds", f"a message out of bounds: {what}")


@dataclass(frozen=True)
class Bound:
    """The range of a field on the wire, in addition to its type (`Annotated`): of a number, or of the length
    of anything else. what: the error message after the value, for a value out of range."""

    most: float
    what: str
    least: float = 0

    def check(self, value: Any) -> None:
        """Raise PeerError for a value out of range."""
        size = len(value) if hasattr(value, "__len__") else value
        if not self.least <= size <= self.most:
            allowed = f"{self.least} to {self.most}" if self.least else f"{self.most}"
            raise out_of_bounds(f"{size} {self.what}; {allowed} are allowed")


@dataclass(frozen=True)
class Only:
    """A condition on a field on the wire, and the error message for a value that does not meet it."""

    holds: Callable[[Any], bool]
    what: str

    def check(self, value: Any) -> None:
        """Raise PeerError for a value that does not meet the condition."""
        if not self.holds(value):
            raise out_of_bounds(self.what)


class Query:
    """A query to all holders, with defaults. `digest` identifies it in transcripts; `wire` encodes it."""

    if TYPE_CHECKING:  # fields or properties of each query

        @property
        def parts(self) -> "tuple[Query, ...]":
            """The query itself, or the queries that share its turn (`Several`)."""

        @property
        def digest(self) -> bytes:
            """Hash of the whole query: 32 bytes."""

        @property
        def rows(self) -> int:
            """Public upper bound on the number of rows in the sum."""

        @property
        def tree(self) -> int:
            """Number of the tree that the query is about: -1 before the first."""

        @property
        def splits(self) -> Splits:
            """Splits that every party applies before answering."""

        @property
        def of_tree(self) -> bool:
            """True for a query about a tree that has not ended."""

        @property
        def ends_tree(self) -> bool:
            """True for the query that ends a tree, and the round with it."""

        @property
        def only_turn(self) -> int | None:
            """The turn that a query asked once in a session has for itself; None for any turn."""

        @property
        def cells(self) -> int:
            """Number of integers in the answer."""

        @property
        def segments(self) -> tuple[Segment, ...]:
            """The cells in which an answer travels."""

        def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
            """Return a party's view of the query; publicly: the view that its whole block shares."""

        def check(self, terms: Terms) -> None:
            """Raise Refused if the terms do not allow the query, no matter who sends it."""

        def release(self, terms: Terms) -> Release | None:
            """Return an answer's release, where the terms have noise; None if it reveals nothing of rows."""

    @property
    def name(self) -> str:
        """The query's name in logs."""
        return type(self).__name__

    @property
    def stage(self) -> int:
        """Position in the session, which only grows: two stages per tree, its growth and its end."""
        return 2 * self.tree + self.ends_tree

    def fits(self, answer: Int64) -> bool:
        """True if the cells have room for this answer, before any other party's is added."""
        return True

    def to_cells(self, answer: Int64) -> Int64:
        """Convert an answer to the integers that are sealed, one per cell of `segments`."""
        return answer

    def from_cells(self, total: Int64) -> Int64:
        """Convert the sum of sealed cells to the sum of answers, int64 [cells]."""
        return total

    def relayed_bytes(self, terms: Terms) -> int:
        """Bytes that a party relays before it answers, in addition to those for trees."""
        return 0

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of the round that the query ends: all of them, and those that the analyst receives."""
        return {}, {}

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """Sums that some parties report encrypted if the query is asked in this state; None without any."""
        return None


@dataclass(frozen=True)
class Position:
    """The hash of a training state, small enough for a site to keep. Positions are equal if the states are.

    grids, started, rounds, splits, levels: how far the training has come; model: hash of the model so far;
    tree: hash of what else is known about the growing tree."""

    grids: int
    started: bool
    rounds: int
    splits: int
    levels: int
    model: bytes
    tree: bytes

    @property
    def digest(self) -> bytes:
        """Hash of the position: 32 bytes."""
        return hashlib.sha256(packing.pack(self.model, self.tree)).digest()


def _empty(*parts: bytes) -> bytes:
    return hashlib.sha256(packing.pack(packing.number(0), *parts)).digest()


NOWHERE = Position(0, False, 0, 0, 0, _empty(b""), _empty(b"", b""))
"""The position of every training before its first query."""


class TrainingState(Protocol):
    """The state of a training: what was answered so far."""

    @property
    def position(self) -> Position:
        """The hash of the state."""

    @property
    def rounds(self) -> Sequence[Any]:
        """The finished rounds. The first is the constant that boosting starts from."""

    @property
    def splits(self) -> Splits:
        """Splits of the growing tree."""

    @property
    def levels(self) -> int:
        """Number of answered queries about the growing tree."""

    @property
    def before_tree(self) -> Self:
        """The state before the growing tree."""

    @property
    def moved(self) -> bool:
        """True if the last finished tree distinguishes rows and moved the margin of each."""

    def after(self, query: Any) -> Self:
        """Return the state once this query is answered."""

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
        """Return a party's view of the state; publicly: the view that its whole block shares."""

    def check(self, terms: Terms) -> None:
        """Raise Refused if a training under these terms cannot be in this state."""

    def check_next(self, terms: Terms, query: Any) -> None:
        """Raise Refused unless the splits of this query can be next in the growing tree, and its leaves where
        the query ends the tree."""

    def has_passed(self, earlier: Position) -> bool:
        """True if a training can get from that position to this state."""

    def may_change(self, query: Any) -> bool:
        """True if the roster may change from this query on."""

    def may_lack_parties(self, query: Any) -> bool:
        """True if the roster for this query may lack a party of the terms."""

    def structure(self, rounds: int, terms: Terms) -> bytes:
        """Hash what the model predicts with after this many rounds."""

    def to_record(self) -> list[Any]:
        """Return the growing tree as JSON for the journal."""

    def with_record(self, record: list[Any]) -> Self:
        """Return the same training with the tree of a journal record. May raise ValueError or TypeError."""

    def check_grown(self, terms: Terms, tree: Tree, last: Splits) -> None:
        """Raise Refused unless the growing tree with the splits in `last` is `tree`."""


@dataclass(frozen=True)
class Send:
    """Yielded by a holder to relay bytes to other parties. kind: what they are, for logs; about: number of
    rows that they reveal something about."""

    kind: str
    to: tuple[str, ...]
    content: bytes
    about: int


@dataclass(frozen=True)
class Receive:
    """Yielded by a holder to wait for `size` bytes relayed by another party. once: they must be the same if
    the query is asked again."""

    kind: str
    sender: str
    size: int
    once: bool = False


@dataclass(frozen=True)
class NeedKeys:
    """Yielded by a holder to get the attempt's keys, which hide gradients."""


@dataclass(frozen=True)
class Keys:
    """Keys that hide gradients in an attempt. secret: only at the key holder; draw: randomness."""

    public: Any
    secret: Any = field(repr=False)
    draw: RandomBytes = field(repr=False)


@dataclass(frozen=True)
class Answered:
    """An answer: its integers, int64 [query.cells], and the encrypted sums that go with them."""

    values: Int64
    encrypted: bytes = b""


Answering = Generator[Send | Receive | NeedKeys, Any, Int64 | Answered]
"""An answer in progress: a generator that yields what to relay, receives the bytes or keys that it waits for,
and returns the integers. It receives a sender's relays in the order in which they were sent."""


@dataclass(frozen=True)
class HeldTable:
    """The table of a session, as a site's memory keeps it. rows: number of rows; hashed: their hash under a
    key, the same for all software versions; chosen: the rows that the session is about, or holds out, bool
    [rows]; None if it treats all rows alike."""

    rows: int
    hashed: Callable[[bytes], bytes]
    chosen: Mask | None = None


class Holder(Protocol):
    """A party's data, as far as a session needs it."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def state(self) -> Any:
        """The state of the training."""

    @property
    def table(self) -> HeldTable | None:
        """The table; None where later sessions do not need it."""

    def rows_hashed(self, key: bytes) -> bytes:
        """HMAC of everything that answers are computed from."""

    def go_to(self, state: Any) -> None:
        """Move to the state in which the other parties are."""

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """Return this party's view of the trees after this many rounds, with the thresholds of its columns
        (where parties hold different columns)."""

    def answering(self, query: Any) -> Answering:
        """Compute the answer, int64 [query.cells], once everything needed from other parties is there. Then
        moves to the state after the query."""


class EmptyHolder:
    """The holder at a key holder without rows: it follows the training and adds zero to every sum."""

    rows = 0
    table = None

    def __init__(self) -> None:
        self.state: Any = None
        """The state of the training, set by `go_to`."""

    def rows_hashed(self, key: bytes) -> bytes:
        return hmac.digest(key, b"", "sha256")

    def go_to(self, state: TrainingState) -> None:
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        return ()

    def answering(self, query: Query) -> Answering:
        if self.state is None:
            raise PeerError("query-before-introduction", "asked before introduced")
        self.state = self.state.after(query)
        yield from ()
        return np.zeros(query.cells, np.int64)


@dataclass(frozen=True)
class Outcome:
    """The result of a program: a model and a summary, which is JSON."""

    booster: Booster
    summary: Mapping[str, Any] = field(default_factory=dict)


GrownTrees = list[tuple[Tree, Splits]]
"""The trees of a session so far, each with the splits that its last histograms led to."""
Program = Callable[[Terms, GrownTrees], Generator[Any, Int64, Booster | Outcome]]
"""An algorithm: a generator that yields queries, receives the sum of each, and returns the model or an
Outcome. Queries that share a turn are one query (`Several`). TreeAborted is thrown into it instead of a sum
that will not come, TrainingStopped after the last wanted round. It keeps its trees in the list that it is
given, and asks no queries for trees that are already there."""


# ---- What the sums over several groups of parties reveal together ---------------------------------------
# The sums over {a, b, c, d} and {a, b, c} reveal those of d; {a, b, c, d, e}, {a, b, c} and {a, d, e} reveal
# those of a. Parties that collude can also subtract their own sums from what is left.
# `smallest_revealed_set` finds the smallest set of parties that some combination of the sums is over.


MAX_GROUPS = 3
"""Most different groups that are judged together: more have too many combinations."""


def smallest_revealed_set(groups: Iterable[frozenset[str]], colluding: int) -> frozenset[str]:
    """Return the smallest set of parties that a linear combination of the sums over at most MAX_GROUPS groups
    is over. It is empty unless the set has fewer than `colluding` + 2 parties, so that an honest one could be
    alone in it.

    A combination has the same factor for all parties that are in the same groups (a class). There is one over
    the parties of some classes only, if the groups' incidence vectors lose rank without the columns of those
    classes."""
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
    """Rank of a matrix of zeros and ones, exact for a few rows."""
    return int(np.linalg.matrix_rank(np.array(columns, float))) if columns else 0


# ---- Several queries that share a turn: one query whose answer is one vector, query after query ---------
# It is sent, answered, opened, recorded and remembered as one: one hash, one position before it and one
# after. Each of its queries is checked against the terms in the state that the queries before it lead to.


MAX_QUERIES = 4
"""Most queries in one turn."""
AND = " + "
"""Separates the names of queries that share a turn."""


def pieces(values: Int64, sizes: Sequence[int]) -> list[Int64]:
    """Split values into consecutive pieces of these sizes."""
    return [values[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


@dataclass(frozen=True)
class Several(Query):
    """A query that consists of others, answered in order. Properties and methods are as in `Query`."""

    parts: tuple[Query, ...]

    def split(self, total: Int64) -> list[Int64]:
        """Split an answer, or the sum of answers, by query."""
        return pieces(total, [part.cells for part in self.parts])

    @property
    def name(self) -> str:
        return AND.join(part.name for part in self.parts)

    @cached_property
    def digest(self) -> bytes:
        """Hash of the queries' length-prefixed hashes: 32 bytes."""
        return hashlib.sha256(packing.pack(*(part.digest for part in self.parts))).digest()

    @property
    def rows(self) -> int:
        """The smallest bound: the cells of every query have room for this many rows."""
        return min([part.rows for part in self.parts])

    @property
    def tree(self) -> int:
        return self.parts[0].tree

    @property
    def splits(self) -> Splits:
        """Splits that every party applies before answering the first query."""
        return self.parts[0].splits

    @property
    def of_tree(self) -> bool:
        return all(part.of_tree for part in self.parts)

    @property
    def ends_tree(self) -> bool:
        return any(part.ends_tree for part in self.parts)

    @property
    def stage(self) -> int:
        return self.parts[-1].stage

    only_turn = None

    @cached_property
    def cells(self) -> int:
        return sum([part.cells for part in self.parts])

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        return sum([part.segments for part in self.parts], ())

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> "Several":
        """Return a party's view of the queries; this object itself if nothing is hidden."""
        parts = tuple([part.seen_by(terms, party, publicly) for part in self.parts])
        return self if all(map(is_, parts, self.parts)) else Several(parts)

    def check(self, terms: Terms) -> None:
        if not terms.shares_turns:
            raise Refused(
                "queries-not-shared",
                "several queries in one turn, although the roster may change or answers get noise",
            )
        if sum([part.ends_tree for part in self.parts]) > 1:
            raise Refused("queries-end-trees", "one turn ends several trees")
        if self.cells > MAX_CELLS:
            raise Refused("query-too-large", f"{self.cells} integers in one turn, more than {MAX_CELLS}")
        for part in self.parts:
            part.check(terms)

    def fits(self, answer: Int64) -> bool:
        return all(part.fits(own) for part, own in zip(self.parts, self.split(answer), strict=True))

    def to_cells(self, answer: Int64) -> Int64:
        answers = zip(self.parts, self.split(answer), strict=True)
        return np.concatenate([part.to_cells(own) for part, own in answers])

    def from_cells(self, total: Int64) -> Int64:
        sizes = [sum([cells for cells, _ in part.segments]) for part in self.parts]
        sums = zip(self.parts, pieces(total, sizes), strict=True)
        return np.concatenate([part.from_cells(own) for part, own in sums])

    def relayed_bytes(self, terms: Terms) -> int:
        return sum([part.relayed_bytes(terms) for part in self.parts])

    def bytes_needed(self, parties: int) -> int:
        """Most bytes that the aggregator needs from sending this query until it sends the next."""
        parts: Any = self.parts
        return sum(part.bytes_needed(parties) for part in parts)

    def release(self, terms: Terms) -> Release | None:
        """Raise Refused: with noise, each query has a separate turn."""
        raise Refused("queries-not-shared", "several queries in one turn, although answers get noise")

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """The encrypted sums of the one query that has any."""
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
        sums = zip(self.parts, self.split(total), strict=True)
        return next(part.metrics_of(own) for part, own in sums if part.ends_tree)
