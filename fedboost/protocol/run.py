"""The training of a session at the aggregator: a program, its queries, their sums, and the journal of that,
which outlives the process; and which parties are there.

Promises: what follows from a sum is done after the sum was written down; from the records of an earlier
process the program comes to stand where it stood, but that the tree that was growing is asked for again.
Refuses: records that cannot be (ConfigError).
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedboost.errors import ConfigError, FedboostError, Refused, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.tree import Split, Splits, Tree
from fedboost.privacy import packing
from fedboost.protocol.contracts import GrownTrees, Outcome, Program, Query, TrainingState
from fedboost.protocol.messages import Request
from fedboost.terms.terms import Terms

# ---- What an aggregator writes down, so that a restart finds the session where it was -------------------
# The terms, the trees, and the sums that were opened but those within a tree, in order. The program is run
# again over them; the tree that was growing is asked for again from its root, or from the level below where
# the root shared a turn. A record is written before anything that follows from it is sent.


@dataclass(frozen=True)
class Begun:
    """A session of this name began under these terms, for this analyst (NAME#FINGERPRINT, by the key in the
    certificate, '' without keys); request: the signed one, where there is any."""

    session: str
    terms: Terms
    analyst: str
    request: Request | None = None


@dataclass(frozen=True)
class Gathered:
    """This roster was called together for the attempt-th time."""

    attempt: int
    roster: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """The sum of a query (by its digest), which was not within a tree, was opened in this turn."""

    turn: int
    query: bytes
    total: Int64 = field(repr=False)


@dataclass(frozen=True)
class TreeGrown:
    """A tree grew, and is to end in this turn: the tree, the splits no party has heard of yet, and what the
    parties know of it (`contracts.State.to_record`)."""

    turn: int
    tree: Tree = field(repr=False)
    last: Splits = field(repr=False)
    known: list[Any] = field(repr=False)


@dataclass(frozen=True)
class Stopped:
    """No more rounds are wanted after the one that ends in this turn."""

    turn: int


Record = Begun | Gathered | Opened | TreeGrown | Stopped


def encode(record: Record) -> bytes:
    """Bytes of a record."""
    match record:
        case Begun(session, terms, analyst, request):
            parts = [session.encode(), terms.canonical().encode(), analyst.encode()]
            if request is not None:
                time = packing.number(request.time)
                parts += [request.nonce, time, request.certificate, request.signature]
            return packing.pack(b"begun", *parts)
        case Gathered(attempt, roster):
            return packing.pack(b"gathered", packing.number(attempt), *(party.encode() for party in roster))
        case Opened(turn, query, total):
            return packing.pack(b"opened", packing.number(turn), query, total.astype("<i8").tobytes())
        case TreeGrown(turn, tree, last, known):
            content = [vars(tree), [[*vars(split).values()] for split in last], *known]
            return packing.pack(b"grew", packing.number(turn), json.dumps(content).encode())
        case Stopped(turn):
            return packing.pack(b"stopped", packing.number(turn))


def decode(data: bytes) -> Record:
    """The record in these bytes; ConfigError if they are none."""
    try:
        match packing.unpack(data):
            case [b"begun", session, terms, analyst, *request]:
                agreed = Terms.from_canonical(terms.decode())
                return Begun(session.decode(), agreed, analyst.decode(), _request(request))
            case [b"gathered", attempt, *roster]:
                return Gathered(_number(attempt), tuple(party.decode() for party in roster))
            case [b"opened", turn, query, total]:
                return Opened(_number(turn), query, np.frombuffer(total, "<i8").astype(np.int64))
            case [b"grew", turn, content]:
                tree, last, *known = json.loads(content)
                return TreeGrown(
                    _number(turn), Tree(**tree), Splits.of(Split(*split) for split in last), known
                )
            case [b"stopped", turn]:
                return Stopped(_number(turn))
    except (FedboostError, TypeError, ValueError) as error:
        raise ConfigError(f"not a record of a session: {error}") from None
    raise ConfigError("not a record of a session of this version of fedboost")


def _request(parts: list[bytes]) -> Request | None:
    if not parts:
        return None
    nonce, time, certificate, signature = parts
    return Request(nonce, _number(time), certificate, signature)


def _number(field: bytes) -> int:
    return int.from_bytes(field, signed=True)


# ---- A training after a restart: the program is run again over the records of an earlier process --------


MAX_ATTEMPTS = 1 << 31
"""Attempts of a session: the messages have 32 bits for their number."""


@dataclass
class TreeLog:
    """The trees of a training, and what the journal has of them.

    grown: those of the program, in order; durable: whether the journal is enough to go on, which it is not
    for a program that keeps its trees to itself; written: trees in the journal; read: those of an earlier
    process that were looked at; ends: how those ended.
    """

    grown: GrownTrees
    durable: bool = True
    written: int = 0
    read: int = 0
    ends: dict[int, TreeGrown] = field(default_factory=dict)


def replay(run: "TrainingRun", terms: Terms, past: tuple[Record, ...]) -> None:
    """Go where the records lead. The program is given all trees at once, and finds them grown."""
    log = run.trees
    for record in past:
        if isinstance(record, TreeGrown):
            log.grown.append((record.tree, record.last))
            log.ends[log.written] = record
            log.written += 1
    if past:
        run.advance(None)
    for number, record in enumerate(past):
        match record:
            case Gathered():
                _check_gathered(run, terms, record)
                run.attempt, run.roster = record.attempt, record.roster
            case Opened():
                _check_opened(run, record)
                run.turn = record.turn
                try:
                    run.advance(record.total)
                except FedboostError as error:
                    if number < len(past) - 1:
                        raise ConfigError(f"its sums cannot be: turn {run.turn}: {error}") from None
                    run.failure = str(error)
            case TreeGrown():
                _check_grew(run, terms, record)
                run.trees.read += 1
            case Stopped():
                if not run.ends_round or record.turn < run.turn:
                    raise ConfigError(f"it was stopped in turn {record.turn}, where no round ends")
                run.enough = True
            case Begun():
                raise ConfigError("the session begins twice")


def _check_gathered(run: "TrainingRun", terms: Terms, record: Gathered) -> None:
    roster = record.roster
    members = tuple(party for party in terms.parties if party in roster)
    enough = roster == members and len(roster) >= terms.min_roster
    lacking = roster != terms.parties and not run.state.may_lack_parties(run.pending)
    changed = roster != run.roster and not (run.state.moved or run.may_change)
    if not (run.attempt < record.attempt <= MAX_ATTEMPTS and enough) or lacking or changed:
        raise ConfigError(f"attempt {record.attempt} of {len(roster)} parties cannot follow here")


def _check_opened(run: "TrainingRun", record: Opened) -> None:
    if run.last is not None or record.query != run.pending.digest or not run.attempt:
        raise ConfigError("the journal holds sums that this program does not ask for")
    if record.turn < run.turn:
        raise ConfigError(f"turn {record.turn} after turn {run.turn}")
    if record.total.size != run.pending.cells:
        raise ConfigError(f"the sum of turn {record.turn} has another size than was asked for")


def _check_grew(run: "TrainingRun", terms: Terms, record: TreeGrown) -> None:
    ends = run.pending.ends_tree and run.pending.tree == run.trees.read
    try:
        if not (ends and record.turn == run.turn):
            raise Refused("it does not grow there")
        run.state.check_grown(terms, record.tree, record.last)
    except Refused as error:
        raise ConfigError(f"a tree in turn {record.turn}: {error}") from None


# ---- The training of a session at the aggregator: a program, its queries, their sums --------------------


Callback = Callable[[int, Mapping[str, float]], bool | None]
"""Called after each round, with its number from 0 and its metrics; True ends the training with that round."""


@dataclass(frozen=True)
class Round:
    """The result of a round: its number from 0, its metrics over the rows of the roster, those of them that
    the analyst gets, the roster."""

    round: int
    metrics: dict[str, float]
    published: dict[str, float]
    roster: tuple[str, ...]


class TrainingRun:
    """A training. `record` is called with what must outlive the process; `past` is what an earlier process
    recorded (ConfigError if it cannot be): no callback is called for its rounds again."""

    def __init__(
        self,
        terms: Terms,
        program: Program,
        state: TrainingState,
        record: Callable[[Record], None],
        past: Iterable[Record],
        callbacks: Iterable[Callback] = (),
    ) -> None:
        self.roster = terms.parties
        """The parties whose vectors go into the sums now."""
        self.attempt = 0
        """The number of times that the parties were called together."""
        self.turn = 0
        """The number of the query that is asked now."""
        self.state = state
        """Where the training stands before that query."""
        self.history: list[Round] = []
        self.outcome: Outcome | None = None
        """What the program made, once it has ended."""
        self.last: Int64 | None = None
        """The sum of the last turn, once the program has ended."""
        self.enough = False
        """True if the training ends with the round under way."""
        self.trees = TreeLog([])
        """The trees so far, as the journal has them."""
        self._terms = terms
        self._record = record
        self._callbacks = tuple(callbacks)
        self._program = program(terms, self.trees.grown)
        self._pending: Query | None = None
        self.failure = ""
        """What the last sum of the records made the program fail with: the session fails when it starts."""
        replay(self, terms, tuple(past))

    @property
    def booster(self) -> Booster | None:
        """The model, once the program has ended."""
        return None if self.outcome is None else self.outcome.booster

    @property
    def pending(self) -> Query:
        """The query that is asked now; the last one again when signatures are missing."""
        assert self._pending is not None
        return self._pending

    @property
    def grows_a_tree(self) -> bool:
        """True if the query that is asked now is about a tree that has split already."""
        return self.pending.of_tree and bool(self.state.splits + self.pending.splits)

    @property
    def may_change(self) -> bool:
        """True if the roster may be another one from the query that is asked now."""
        return self.state.may_change(self.pending)

    def structure(self, party: str) -> bytes:
        """The structure of the model, by what a party knows once it has answered."""
        state, terms = self.state.after(self.pending), self._terms
        seen = state.seen_by(terms, party, publicly=terms.keeps_parts)
        return seen.structure(self.rounds, terms)

    @property
    def rounds(self) -> int:
        """Rounds of the model: it may end before the last one that was asked for."""
        assert self.booster is not None
        rounds = len(self.booster.trees) // len(self._terms.roots) - self._terms.constant_rounds
        return max(0, min(rounds, self._terms.trees.rounds))

    def start(self) -> None:
        """Run the program to its first query, unless it stands at a later one already."""
        if self.failure:
            raise Refused(self.failure)
        if self._pending is None:
            self.advance(None)

    def restart_attempt(self) -> None:
        """Call the roster together once more."""
        self.attempt += 1
        self._record(Gathered(self.attempt, self.roster))

    def take(self, total: Int64) -> None:
        """Take the sum of the query: the program asks its next one, or ends with its model."""
        query = self.pending
        self._write_tree()
        if self.ends_round:
            self.enough = self._watch(query, total) or self.enough
            if self.enough and self.trees.durable:
                self._record(Stopped(self.turn))
        again = query.of_tree and query.tree >= 0  # with its tree
        if self.trees.durable and not again:
            self._record(Opened(self.turn, query.digest, total))
        self.advance(total)

    def cut(self) -> None:
        """End the tree that grows where it stands; its end is asked instead of this query."""
        try:
            query = self._program.throw(TreeAborted("a party was lost"))
        except (TreeAborted, StopIteration):
            query = None
        if query is None or not query.ends_tree:
            raise Refused(f"program {self._terms.session.program!r} does not end a tree that is cut short")
        self._pending = query

    def change_roster(self, roster: tuple[str, ...]) -> None:
        """Change the roster from this query on. Sums over the roster before are never asked for again."""
        self._write_tree()
        self.roster = roster

    def close(self) -> None:
        """End the program: the session failed."""
        self._program.close()

    def _write_tree(self) -> None:
        """Write down the tree that is about to end, once."""
        query, log = self.pending, self.trees
        if query.ends_tree and query.tree == log.written and log.durable:
            log.durable = len(log.grown) == log.written + 1
            if log.durable:
                log.written += 1
                self._record(TreeGrown(self.turn, *log.grown[query.tree], self.state.to_record()))

    def advance(self, total: Int64 | None) -> None:
        """Give the program a sum, or start it, and go to its next query."""
        asked = self._pending
        ended = asked is not None and asked.ends_tree and asked.tree >= 0
        if asked is not None and ended:
            assert total is not None
            self.history.append(self._round(asked, total))
        try:
            query = next(self._program) if total is None else self._program.send(total)
            if self.enough and ended:
                query = self._program.throw(TrainingStopped("no more rounds are wanted"))
        except StopIteration as end:
            made = Outcome(end.value) if isinstance(end.value, Booster) else end.value
            if not isinstance(made, Outcome):
                raise Refused(f"program {self._terms.session.program!r} returned no model") from None
            if asked is None:
                raise Refused(f"program {self._terms.session.program!r} asked nothing") from None
            self.outcome, self.last = made, total
            return
        except TrainingStopped:
            raise Refused(
                f"program {self._terms.session.program!r} does not end before its last round"
            ) from None
        if asked is not None:
            self.state = self.state.after(asked)
        self._pending, self.turn = query, self.turn + 1
        if query.ends_tree and (grew := self.trees.ends.pop(query.tree, None)):
            try:
                self.state, self.turn = self.state.with_record(grew.known), grew.turn
            except (TypeError, ValueError) as error:
                raise ConfigError(f"a tree in turn {grew.turn}: {error}") from None

    @property
    def ends_round(self) -> bool:
        """True if a round ends with the query that is asked now."""
        query = self.pending
        return query.ends_tree and query.tree >= 0

    def _watch(self, query: Query, total: Int64) -> bool:
        """Call all callbacks. True if one of them wants no more rounds."""
        if not self._callbacks:
            return False
        done = self._round(query, total)
        stops = [callback(done.round, done.metrics) for callback in self._callbacks]
        return any(stops)

    def _round(self, query: Query, total: Int64) -> Round:
        return Round(query.tree, *query.metrics_of(total), self.roster)


# ---- Attendance: which parties are connected, introduced to the others, away or barred ------------------
# Times are seconds of any steady clock; `now` is set by the session.


MAX_LOSSES_PER_TURN = 5
"""Losses of a party in one turn before it is barred where the terms do not wait: else a party that always
comes back, and never answers, would keep the others from their model."""


class Attendance:
    """The parties of one session."""

    def __init__(self) -> None:
        self.connected: set[str] = set()
        self.introduced: set[str] = set()
        """Parties of the roster that were introduced in this attempt, and have been connected since."""
        self.barred: set[str] = set()
        """Parties that are not taken back: they left, broke the protocol, or were lost too often."""
        self.now = 0.0
        self.away: dict[str, tuple[float, str]] = {}
        """Parties that were lost or are late: since when, and why."""
        self.losses: Counter[str] = Counter()
        """Losses of each party in this turn."""

    def mark_away(self, party: str, reason: str) -> None:
        """Note since when a party is away, unless that is known."""
        self.away.setdefault(party, (self.now, reason))

    def bar(self, party: str, reason: str) -> None:
        """Give a party up for good."""
        self.barred.add(party)
        self.away[party] = (-math.inf, reason)

    def count_loss(self, party: str, turn: int, waits: bool) -> None:
        """Count a loss of a party that is away, and bar it after too many in one turn unless the session
        waits."""
        self.losses[party] += 1
        if self.losses[party] > MAX_LOSSES_PER_TURN and not waits:
            self.bar(party, f"{self.away[party][1]}, for the {self.losses[party]}th time in turn {turn}")

    def overdue(self, parties: Iterable[str], seconds: float) -> list[str]:
        """The parties among these that have been away for longer than that."""
        since = self.now - seconds
        return [party for party in parties if self.away.get(party, (self.now, ""))[0] < since]
