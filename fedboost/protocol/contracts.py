"""Interfaces of a session: the query, the state of a training run, and the holder of a party's data.

A session sends queries to holders and adds up their answers. It contains no learning algorithm: these
interfaces hide what a query asks, how it changes the state, and how an answer is computed.

A **Query** is sent to all holders. Each holder answers with one vector of integers, and the session uses only
the sum of these vectors. The **TrainingState** is the state after all queries so far. It is a pure function
of them, so it is the same at the aggregator and at every party. A **Holder** computes a party's answers from
its data."""

import hashlib
import hmac
import math
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
"""Maximum number of integers in an answer: 1 GiB at a party, far more than is needed in practice."""


def out_of_bounds(what: str) -> PeerError:
    return PeerError("message-out-of-bounds", f"a message is out of bounds: {what}")


@dataclass(frozen=True)
class Bound:
    """Limits on a field of a wire message, in addition to its type; used with `Annotated`. They apply to the
    value of a number, and to the length of anything else.

    least, most: the limits, both inclusive; what: noun phrase that follows "the number of" in the error
    message."""

    most: float
    what: str
    least: float = 0

    def check(self, value: Any) -> None:
        """Raise PeerError if the value, or its length, is outside the limits."""
        size = len(value) if hasattr(value, "__len__") else value
        if not self.least <= size <= self.most:
            allowed = f"{self.least} to {self.most}" if self.least else f"at most {self.most}"
            if self.most == math.inf:
                allowed = f"{self.least} or more"
            raise out_of_bounds(f"the number of {self.what} is {size}; allowed: {allowed}")


@dataclass(frozen=True)
class Only:
    """Condition on a field of a wire message, used with `Annotated`. holds: the condition; what: error
    message for a value that does not meet it."""

    holds: Callable[[Any], bool]
    what: str

    def check(self, value: Any) -> None:
        """Raise PeerError if the value does not meet the condition."""
        if not self.holds(value):
            raise out_of_bounds(self.what)


class Query:
    """Base class of queries, which the aggregator sends to all holders. `digest` identifies a query in
    transcripts. The package `fedboost.wire` encodes queries."""

    if TYPE_CHECKING:  # fields or properties of each query

        @property
        def parts(self) -> "tuple[Query, ...]":
            """Tuple of the queries that share the turn (`Several`), or of this query alone."""

        @property
        def digest(self) -> bytes:
            """SHA-256 hash of the whole query, 32 bytes."""

        @property
        def rows(self) -> int:
            """Public upper bound on the number of rows that the sum covers."""

        @property
        def tree(self) -> int:
            """Number of the tree that the query is about, or -1 before the first tree."""

        @property
        def splits(self) -> Splits:
            """Splits that every party applies to its rows before it answers."""

        @property
        def of_tree(self) -> bool:
            """True if the query is about a tree that is still growing."""

        @property
        def ends_tree(self) -> bool:
            """True if the query ends a tree, and with it the round."""

        def turn_under(self, terms: Terms) -> int | None:
            """Return the number of the turn in which this must be the only query, or None if any turn is
            allowed. Set only for queries that are sent once in a session."""

        @property
        def cells(self) -> int:
            """Number of integers in the answer."""

        @property
        def segments(self) -> tuple[Segment, ...]:
            """Layout of the sealed answer: consecutive runs of cells with the same number of bits."""

        def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
            """Return the party's view of the query, which omits what the party must not learn. publicly: if
            true, return the view that all parties of this party's block share."""

        def check(self, terms: Terms) -> None:
            """Raise Refused if the terms do not allow the query."""

        def release(self, terms: Terms) -> Release | None:
            """Return the answer's noise and privacy cost under terms with noise, or None if the answer
            reveals nothing about rows."""

    @property
    def name(self) -> str:
        """Name of the query in logs."""
        return type(self).__name__

    @property
    def stage(self) -> int:
        """Rank of the query in a session: 2 * tree while the tree grows, 2 * tree + 1 when it ends."""
        return 2 * self.tree + self.ends_tree

    def fits(self, answer: Int64) -> bool:
        """Return True if one party's answer fits into the cells, before other answers are added."""
        return True

    def to_cells(self, answer: Int64) -> Int64:
        """Convert an answer to the integers to seal (mask or encrypt), one per cell of `segments`."""
        return answer

    def from_cells(self, total: Int64) -> Int64:
        """Convert the sum of sealed cells back to the sum of the answers. Returns int64 [cells]."""
        return total

    def relayed_bytes(self, terms: Terms) -> int:
        """Return the maximum bytes that a party relays before it answers, without relays about trees."""
        return 0

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        """Return the metrics of the round that this query ends, as two dicts: all metrics, and those that the
        analyst receives. total: the sum of all parties' answers, int64 [cells]."""
        return {}, {}

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """Return the sums that parties report encrypted if the query is sent in this state, or None."""
        return None


@dataclass(frozen=True)
class Position:
    """Fingerprint of a training state, small enough for a site to store. Two states have equal positions only
    if they are equal.

    Args:
        grids: number of answered queries that count rows to find cut points.
        started: whether the cut points are known.
        rounds: number of finished rounds, including the initial constant.
        splits: number of splits in the growing tree.
        levels: number of answered queries about the growing tree.
        model: hash of the model so far.
        tree: hash of everything else that is known about the growing tree."""

    grids: int
    started: bool
    rounds: int
    splits: int
    levels: int
    model: bytes
    tree: bytes

    @property
    def digest(self) -> bytes:
        """SHA-256 hash of the position, 32 bytes."""
        return hashlib.sha256(packing.pack(self.model, self.tree)).digest()


def _empty(*parts: bytes) -> bytes:
    return hashlib.sha256(packing.pack(packing.number(0), *parts)).digest()


NOWHERE = Position(0, False, 0, 0, 0, _empty(b""), _empty(b"", b""))
"""Position of every training run before its first query."""


class TrainingState(Protocol):
    """State of a training run: everything that follows from the queries answered so far."""

    @property
    def position(self) -> Position:
        """Fingerprint of the state."""

    @property
    def rounds(self) -> Sequence[Any]:
        """Finished rounds. The first is the constant that boosting starts from."""

    @property
    def splits(self) -> Splits:
        """Splits of the growing tree so far."""

    @property
    def levels(self) -> int:
        """Number of answered queries about the growing tree."""

    @property
    def before_tree(self) -> Self:
        """State before the growing tree was started."""

    @property
    def moved(self) -> bool:
        """True if the last finished tree moved every row's margin, and its leaf values are not all equal."""

    def after(self, query: Any) -> Self:
        """Return the state after the query has been answered."""

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
        """Return the party's view of the state. publicly: the view that all parties of its block share."""

    def check(self, terms: Terms) -> None:
        """Raise Refused if no training run under these terms can be in this state."""

    def check_next(self, terms: Terms, query: Any) -> None:
        """Raise Refused unless the growing tree can continue with this query's splits and, if the query ends
        the tree, with its leaf values."""

    def has_passed(self, earlier: Position) -> bool:
        """Return True if a training run can reach this state from the earlier position."""

    def may_change(self, query: Any) -> bool:
        """Return True if the roster (the parties in the sums) may change at this query."""

    def may_lack_parties(self, query: Any) -> bool:
        """Return True if a party named in the terms may be missing from the roster of this query."""

    def structure(self, rounds: int, terms: Terms) -> bytes:
        """Return a hash of all that affects predictions of the model after this number of rounds."""

    def to_record(self) -> list[Any]:
        """Return the growing tree as JSON values for the journal."""

    def with_record(self, record: list[Any]) -> Self:
        """Return a copy whose growing tree is taken from a journal record. Raises ValueError or TypeError if
        the record is malformed."""

    def check_grown(self, terms: Terms, tree: Tree, last: Splits) -> None:
        """Raise Refused unless the growing tree, after the splits in `last`, has the same size as `tree`."""


@dataclass(frozen=True)
class Send:
    """Yielded by a holder to relay bytes to other parties of its block.

    kind: kind of content, for logs; to: the receivers; content: the bytes before sealing; about: number of
    rows about which the bytes reveal something."""

    kind: str
    to: tuple[str, ...]
    content: bytes
    about: int


@dataclass(frozen=True)
class Receive:
    """Yielded by a holder to wait for `size` bytes that another party relays. once: the bytes must be the
    same whenever the query is repeated."""

    kind: str
    sender: str
    size: int
    once: bool = False


@dataclass(frozen=True)
class NeedKeys:
    """Yielded by a holder to obtain the keys that encrypt gradients in the current attempt."""


@dataclass(frozen=True)
class Keys:
    """Keys that encrypt gradients in one attempt. public: the encryption key; secret: the decryption key at
    the key holder, None at other parties; draw: source of randomness."""

    public: Any
    secret: Any = field(repr=False)
    draw: RandomBytes = field(repr=False)


@dataclass(frozen=True)
class Answered:
    """A holder's answer. values: int64 [query.cells]; encrypted: encrypted sums sent with them, if any."""

    values: Int64
    encrypted: bytes = b""


Answering = Generator[Send | Receive | NeedKeys, Any, Int64 | Answered]
"""Generator that computes an answer. It yields `Send` to relay bytes, `Receive` to receive bytes (in the
order in which a sender sent them), and `NeedKeys` to receive keys. It returns the integers."""


@dataclass(frozen=True)
class HeldTable:
    """What a site's memory file records about the table used in a session.

    rows: number of rows; hashed: function that returns the HMAC of the rows under a key (the same HMAC in all
    versions of fedboost); chosen: the rows that the session uses or holds out, bool [rows], or None if it
    treats all rows alike."""

    rows: int
    hashed: Callable[[bytes], bytes]
    chosen: Mask | None = None


class Holder(Protocol):
    """Interface to a party's data: the operations that a session needs."""

    @property
    def rows(self) -> int:
        """Number of rows of this party."""

    @property
    def earlier(self) -> Booster | None:
        """This party's part of the model that is continued, if parties hold different columns."""

    @property
    def state(self) -> Any:
        """Training state that the holder has reached."""

    @property
    def table(self) -> HeldTable | None:
        """What the site's memory file records about the table, or None if later sessions do not need it."""

    def rows_hashed(self, key: bytes) -> bytes:
        """Return the HMAC, under `key`, of all data from which answers are computed."""

    def go_to(self, state: Any) -> None:
        """Move to a training state, so that this party continues where the other parties are."""

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """Return the trees of the first `rounds` rounds in this party's view. If parties hold different
        columns, the trees contain thresholds only for this party's columns."""

    def answering(self, query: Any) -> Answering:
        """Compute the answer, int64 [query.cells], waiting for relays from other parties where needed. Then
        move to the state after the query."""


class EmptyHolder:
    """Holder for a key holder without rows. It follows the state and answers every query with zeros."""

    rows = 0
    table = earlier = None

    def __init__(self) -> None:
        self.state: Any = None
        """Training state, set by `go_to`."""

    def rows_hashed(self, key: bytes) -> bytes:
        return hmac.digest(key, b"", "sha256")

    def go_to(self, state: TrainingState) -> None:
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        return ()

    def answering(self, query: Query) -> Answering:
        if self.state is None:
            raise PeerError("query-before-introduction", "a query came before the introduction")
        self.state = self.state.after(query)
        yield from ()
        return np.zeros(query.cells, np.int64)


@dataclass(frozen=True)
class Outcome:
    """Result of a program: the model, and a summary that consists of JSON values."""

    booster: Booster
    summary: Mapping[str, Any] = field(default_factory=dict)


GrownTrees = list[tuple[Tree, Splits]]
"""Trees of a session so far, each with the splits that were found from its last histograms."""
Program = Callable[[Terms, GrownTrees], Generator[Any, Int64, Booster | Outcome]]
"""Algorithm of a session: a generator that yields queries, receives the sum of each, and returns the model or
an `Outcome`. Queries that share a turn are yielded as one (`Several`).

The program appends its trees to the list that it is given, and yields no queries about trees that are already
in the list. TreeAborted is thrown into the generator in place of a sum that will not arrive, and
TrainingStopped after the last round if training is to stop early."""


# ---- What the sums over several groups of parties reveal together ---------------------------------------
# The sums over {a, b, c, d} and {a, b, c} reveal d's sums; {a, b, c, d, e}, {a, b, c} and {a, d, e} reveal
# a's sums. Parties that collude can also subtract their own sums from the result.
# `smallest_revealed_set` finds the smallest set of parties whose sum follows from the known sums.


MAX_GROUPS = 3
"""Maximum number of distinct groups checked together; more would be too many combinations."""


def smallest_revealed_set(groups: Iterable[frozenset[str]], colluding: int) -> frozenset[str]:
    """Return the smallest set of parties whose sum can be computed from the sums over several groups. groups:
    at most MAX_GROUPS sets of parties. The result is empty if every such set has at least `colluding` + 2
    parties, because at least two of them are then honest.

    In a linear combination of the sums, all parties that belong to the same groups (a class) have the same
    factor. There is a combination that covers only the parties of certain classes if the groups' incidence
    matrix loses rank when the columns of those classes are removed."""
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
    """Return the rank of a matrix of zeros and ones. The result is exact if the matrix has few rows."""
    return int(np.linalg.matrix_rank(np.array(columns, float))) if columns else 0


# ---- Several queries that share a turn: one query whose answer is one vector, query after query ---------
# It is sent, answered, opened, recorded and remembered as one: one hash, one position before it and one
# after. Each of its queries is checked against the terms in the state that the queries before it lead to.


MAX_QUERIES = 4
"""Maximum number of queries in one turn."""
AND = " + "
"""Separator between the names of queries that share a turn."""


def pieces(values: Int64, sizes: Sequence[int]) -> list[Int64]:
    """Split an array into consecutive pieces of these sizes."""
    return [values[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


@dataclass(frozen=True)
class Several(Query):
    """Several queries that share a turn and are answered, in order, with one vector; see `Query`."""

    parts: tuple[Query, ...]

    def split(self, total: Int64) -> list[Int64]:
        """Split an answer, or a sum of answers, into one array per query."""
        return pieces(total, [part.cells for part in self.parts])

    @property
    def name(self) -> str:
        return AND.join(part.name for part in self.parts)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 hash of the queries' length-prefixed hashes, 32 bytes."""
        return hashlib.sha256(packing.pack(*(part.digest for part in self.parts))).digest()

    @property
    def rows(self) -> int:
        """Smallest of the queries' bounds, so that the cells of each query have room for this many rows."""
        return min([part.rows for part in self.parts])

    @property
    def tree(self) -> int:
        return self.parts[0].tree

    @property
    def splits(self) -> Splits:
        """Splits that every party applies before it answers the first query."""
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

    def turn_under(self, terms: Terms) -> int | None:
        return None

    @cached_property
    def cells(self) -> int:
        return sum([part.cells for part in self.parts])

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        return sum([part.segments for part in self.parts], ())

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> "Several":
        """Return the party's view of all queries, or this object itself if nothing is hidden."""
        parts = tuple([part.seen_by(terms, party, publicly) for part in self.parts])
        return self if all(map(is_, parts, self.parts)) else Several(parts)

    def check(self, terms: Terms) -> None:
        if not terms.shares_turns:
            raise Refused(
                "queries-not-shared",
                "one turn has several queries, which is not allowed if the roster may shrink or answers "
                "get noise",
            )
        if sum([part.ends_tree for part in self.parts]) > 1:
            raise Refused("queries-end-trees", "one turn ends several trees")
        if self.cells > MAX_CELLS:
            raise Refused(
                "query-too-large",
                f"one turn asks for {self.cells} integers, but at most {MAX_CELLS} are allowed",
            )
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
        """Return the maximum bytes that the aggregator needs between sending this query and the next."""
        parts: Any = self.parts
        return sum(part.bytes_needed(parties) for part in parts)

    def release(self, terms: Terms) -> Release | None:
        """Raise Refused, because under terms with noise each query has its own turn."""
        raise Refused(
            "queries-not-shared", "one turn has several queries, but the terms add noise to answers"
        )

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """Return the encrypted sums of the only query with any. Cell numbers are those of the answer."""
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
