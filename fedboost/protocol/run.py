"""A session's training run at the aggregator: the program, its queries and their sums, the journal that
survives a restart, and the parties' attendance.

Guarantees: everything that follows from a sum is done after the sum was recorded. With the records of an
earlier process, the program returns to the point that it had reached, except that the growing tree is queried
again.
Raises: ConfigError for records that do not fit the session."""

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

# ---- The journal: what an aggregator records so that a restart finds the session where it was -----------
# In order: the terms, the attempts, the trees, and the opened sums except those within a tree. After a
# restart the program runs over them again. The growing tree is asked for again from its root, or from the
# level below if the root shared the turn of the sum before it.
#
# Why a record is written before the send. Parties remember what they answered, and each message of the
# aggregator implies what was opened before it. If it sent first and died, its journal would lag behind the
# parties. It would start an attempt whose number they know, or ask a query that they have passed, and they
# would refuse: the session would be lost. If it records first and dies, the message was never sent, and the
# next attempt sends it. So a journal may be ahead of the parties, by a record, but never behind them.
#
# Why sums within a tree are left out. They come again from the same queries over the same roster, since a
# site answers a repeated query of the growing tree with the same integers. So the journal has a tree's
# splits, not megabytes of its histograms (docs/decisions/0008).


@dataclass(frozen=True)
class Begun:
    """Journal record: a session with this name started under these terms. analyst: NAME#FINGERPRINT, taken
    from the analyst's certificate, '' if the aggregator has no keys; request: the signed request, if any."""

    session: str
    terms: Terms
    analyst: str
    request: Request | None = None


@dataclass(frozen=True)
class AttemptStarted:
    """Journal record: a new attempt started with this roster."""

    attempt: int
    roster: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """Journal record: the sum of a query was opened in this turn. Sums within a tree are not recorded. query:
    digest of the query; total: int64 [query.cells]."""

    turn: int
    query: bytes
    total: Int64 = field(repr=False)


@dataclass(frozen=True)
class TreeGrown:
    """Journal record: a tree is complete, and the query of this turn ends it. last: splits that have not been
    sent to the parties yet; known: what the parties know about the tree (`TrainingState.to_record`)."""

    turn: int
    tree: Tree = field(repr=False)
    last: Splits = field(repr=False)
    known: list[Any] = field(repr=False)


@dataclass(frozen=True)
class Stopped:
    """Journal record: the training run stops after the round that ends in this turn."""

    turn: int


Record = Begun | AttemptStarted | Opened | TreeGrown | Stopped


def encode(record: Record) -> bytes:
    """Encode a record for the journal; `decode` reads it."""
    match record:
        case Begun(session, terms, analyst, request):
            parts = [session.encode(), terms.canonical().encode(), analyst.encode()]
            if request is not None:
                time = packing.number(request.time)
                parts += [request.nonce, time, request.certificate, request.signature]
            return packing.pack(b"begun", *parts)
        case AttemptStarted(attempt, roster):
            return packing.pack(b"gathered", packing.number(attempt), *(party.encode() for party in roster))
        case Opened(turn, query, total):
            return packing.pack(b"opened", packing.number(turn), query, total.astype("<i8").tobytes())
        case TreeGrown(turn, tree, last, known):
            content = [tree.to_columns(), [[*vars(split).values()] for split in last], *known]
            return packing.pack(b"grew", packing.number(turn), json.dumps(content).encode())
        case Stopped(turn):
            return packing.pack(b"stopped", packing.number(turn))


def decode(data: bytes) -> Record:
    """Decode a journal record. Raises ConfigError if the bytes are not a record."""
    try:
        match packing.unpack(data):
            case [b"begun", session, terms, analyst, *request]:
                agreed = Terms.from_canonical(terms.decode())
                return Begun(session.decode(), agreed, analyst.decode(), _request(request))
            case [b"gathered", attempt, *roster]:
                return AttemptStarted(_number(attempt), tuple(party.decode() for party in roster))
            case [b"opened", turn, query, total]:
                return Opened(_number(turn), query, np.frombuffer(total, "<i8").astype(np.int64))
            case [b"grew", turn, content]:
                tree, last, *known = json.loads(content)
                splits = Splits.of(Split(*split) for split in last)
                return TreeGrown(_number(turn), Tree.of_columns(**tree), splits, known)
            case [b"stopped", turn]:
                return Stopped(_number(turn))
    except (FedboostError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError("journal-record", f"the bytes are not a session record: {error}") from None
    raise ConfigError("journal-record", "the bytes are not a session record of this version of fedboost")


def _request(parts: list[bytes]) -> Request | None:
    if not parts:
        return None
    nonce, time, certificate, signature = parts
    return Request(nonce, _number(time), certificate, signature)


def _number(field: bytes) -> int:
    return int.from_bytes(field, signed=True)


# ---- A training run after a restart: the program is run again over an earlier process's records ----------


MAX_ATTEMPTS = 1 << 31
"""Maximum number of attempts in a session: messages store the number in 32 bits."""


@dataclass
class TreeLog:
    """The trees of a training run, and how many of them the journal contains.

    Args:
        grown: the program's trees, in order.
        durable: whether the journal is sufficient to resume. False if the program does not append its trees
            to `grown`.
        written: number of trees in the journal.
        read: number of trees from an earlier process that were checked.
        ends: tree number -> its record, for trees from an earlier process."""

    grown: GrownTrees
    durable: bool = True
    written: int = 0
    read: int = 0
    ends: dict[int, TreeGrown] = field(default_factory=dict)


def replay(run: "TrainingRun", terms: Terms, past: tuple[Record, ...]) -> None:
    """Run the program on the records of an earlier process. Raises ConfigError if they do not fit.

    The records must lead to the same state as the messages that were sent: the same sequence of queries by
    digest, with the same turn numbers, totals, rosters and trees. Otherwise the next query would contradict
    what the parties have recorded. Each record is therefore checked at the point where the program asks for
    it."""
    # A session whose first tree (T0) was queried from its root in turn 4 and ended in turn 7. The process
    # died in turn 9, while the second tree grew:
    #
    #     turn               1    2    3    4      5    6    7           8      9
    #     query              ...  ...  ...  root   ..   ..   ends T0     root   ..
    #     journal   Begun,   sum  sum  sum                   tree, sum
    #               attempt
    #     replay    run.advance(sum) each   skipped          advance     asked again, in attempt 2
    #
    # The skipped queries were answered and their sums are in the tree. Their place in the state and in the
    # count of turns comes from the tree's record (`TrainingRun.advance`), so turn 8 has the same number and
    # position as before, which the parties compare with their memory.
    log = run.trees
    # All trees are given to the program before it starts: it asks nothing for a tree that is in its list, so
    # that it goes from the query before a tree straight to the one that ends it.
    for record in past:
        if isinstance(record, TreeGrown):
            log.grown.append((record.tree, record.last))
            log.ends[log.written] = record
            log.written += 1
    if past:
        run.advance(None)
    for number, record in enumerate(past):
        match record:
            case AttemptStarted():
                _check_gathered(run, terms, record)
                run.attempt, run.roster = record.attempt, record.roster
            case Opened():
                _check_opened(run, record)
                run.turn = record.turn
                try:
                    run.advance(record.total)
                except FedboostError as error:
                    # The last sum was recorded before the program saw it, so it may be what ended the
                    # session. An earlier one cannot be: the process went on after it.
                    if number < len(past) - 1:
                        raise ConfigError(
                            "journal-sum", f"the sums of turn {run.turn} are inconsistent: {error}"
                        ) from None
                    run.failure = str(error)
            case TreeGrown():
                _check_grew(run, terms, record)
                run.trees.read += 1
            case Stopped():
                if not run.ends_round or record.turn < run.turn:
                    raise ConfigError(
                        "journal-stop", f"the session stops in turn {record.turn}, but no round ends there"
                    )
                run.enough = True
            case Begun():
                raise ConfigError(
                    "journal-begins-twice", "the journal records the start of the session twice"
                )


def _check_gathered(run: "TrainingRun", terms: Terms, record: AttemptStarted) -> None:
    roster = record.roster
    # The same rules as for parties (`check_due`): a roster that they would refuse is not from this session.
    members = tuple(party for party in terms.parties if party in roster)
    enough = roster == members and len(roster) >= terms.min_roster
    lacking = roster != terms.parties and not run.state.may_lack_parties(run.pending)
    # `moved` is for a roster that changed at a tree's root: if the records have that tree, the program has
    # skipped the root and already stands at the tree's end.
    changed = roster != run.roster and not (run.state.moved or run.may_change)
    if not (run.attempt < record.attempt <= MAX_ATTEMPTS and enough) or lacking or changed:
        raise ConfigError(
            "journal-attempt", f"attempt {record.attempt} with {len(roster)} parties is not possible"
        )


def _check_opened(run: "TrainingRun", record: Opened) -> None:
    if run.last is not None or record.query != run.pending.digest or not run.attempt:
        raise ConfigError("journal-query", "the journal contains a sum that this program does not ask for")
    if record.turn < run.turn:
        raise ConfigError("journal-turn", f"turn {record.turn} is recorded after turn {run.turn}")
    if record.total.size != run.pending.cells:
        raise ConfigError("journal-size", f"the sum of turn {record.turn} does not fit its query")


def _check_grew(run: "TrainingRun", terms: Terms, record: TreeGrown) -> None:
    ends = run.pending.ends_tree and run.pending.tree == run.trees.read
    try:
        if not (ends and record.turn == run.turn):
            raise Refused("journal-tree", "no tree ends in this turn")
        run.state.check_grown(terms, record.tree, record.last)
    except Refused as error:
        raise ConfigError(
            "journal-tree", f"the tree recorded in turn {record.turn} does not fit the session: {error}"
        ) from None


# ---- The training run of a session at the aggregator: a program, its queries, their sums ----------------


Callback = Callable[[int, Mapping[str, float]], bool | None]
"""Function that is called after each round with the round's number, starting at 0, and its metrics. If it
returns True, the training run ends."""


@dataclass(frozen=True)
class Round:
    """Result of a boosting round.

    round: its number, starting at 0; metrics: metrics over the rows of the parties in the roster; published:
    the metrics that the analyst receives; roster: the parties in the round's sums."""

    round: int
    metrics: dict[str, float]
    published: dict[str, float]
    roster: tuple[str, ...]


class TrainingRun:
    """Runs a session's program at the aggregator: sends it opened sums, records them, keeps the state."""

    def __init__(
        self,
        terms: Terms,
        program: Program,
        state: TrainingState,
        record: Callable[[Record], None] | None,
        past: Iterable[Record],
        callbacks: Iterable[Callback] = (),
    ) -> None:
        """Start a training run, or resume one.

        Args:
            state: initial state of every training run.
            record: writes a record to the journal, if there is one; the record must survive a crash once the
                call returns.
            past: records of an earlier process. Callbacks are not called again for the recorded rounds.

        Raises ConfigError if `past` does not fit the session."""
        self.roster = terms.parties
        """Parties whose vectors are currently added to the sums."""
        self.attempt = 0
        """Number of the current attempt; 0 before the first attempt."""
        self.turn = 0
        """Number of the pending query."""
        self.state = state
        """Training state before the pending query."""
        self.history: list[Round] = []
        self.outcome: Outcome | None = None
        """The program's result, or None before the program has ended."""
        self.last: Int64 | None = None
        """Sum of the last turn, or None before the program has ended."""
        self.enough = False
        """True if the training run ends with the current round."""
        self.trees = TreeLog([], durable=record is not None)
        """Trees so far, and how many of them the journal contains."""
        self._terms = terms
        self._record = record or (lambda record: None)
        self._callbacks = tuple(callbacks)
        self._program = program(terms, self.trees.grown)
        self._pending: Query | None = None
        self.failure = ""
        """Error that the program raised at the last recorded sum, with which `start` fails, or ''."""
        replay(self, terms, tuple(past))

    @property
    def booster(self) -> Booster | None:
        """The model, or None before the program has ended."""
        return None if self.outcome is None else self.outcome.booster

    @property
    def pending(self) -> Query:
        """Query to send now; after the program's end, its last query, until there are enough signatures."""
        assert self._pending is not None
        return self._pending

    @property
    def grows_a_tree(self) -> bool:
        """True if the pending query is about a tree that already has a split."""
        return self.pending.of_tree and bool(self.state.splits + self.pending.splits)

    @property
    def may_change(self) -> bool:
        """True if the roster may change at the pending query."""
        return self.state.may_change(self.pending)

    def structure(self, party: str) -> bytes:
        """Return the hash of the model, in a party's view, as it will be after the pending query."""
        state, terms = self.state.after(self.pending), self._terms
        seen = state.seen_by(terms, party, publicly=terms.keeps_parts)
        return seen.structure(self.rounds, terms)

    @property
    def rounds(self) -> int:
        """Number of rounds that this session trained, which may be lower than in the terms."""
        assert self.booster is not None
        if self._terms.noise is not None:  # a tree joins several rounds
            return max(len(self.state.after(self.pending).rounds) - 1, 0)
        rounds = len(self.booster.trees) // len(self._terms.roots) - self._terms.constant_rounds
        return max(0, min(rounds, self._terms.trees.rounds))

    def start(self) -> None:
        """Run the program to its first query, unless it is further. Raises Refused if the program fails."""
        if self.failure:
            raise Refused("journal-last-sum", self.failure)
        if self._pending is None:
            self.advance(None)

    def restart_attempt(self) -> None:
        """Count and record a new attempt. Call this before its first offer is sent."""
        # Sites refuse an attempt that they have met in, so a number must never be used twice.
        self.attempt += 1
        self._record(AttemptStarted(self.attempt, self.roster))

    def take(self, total: Int64) -> None:
        """Record the pending query's sum and send it to the program, which continues to its next query or
        ends with a model."""
        # The order of the records is that in which `replay` needs them: the tree, then that its round is the
        # last, then the sum that ends the round. All are written before the program sees the sum, and so
        # before the next query, which follows from it, can be sent. A crash in between repeats the turn: none
        # of them was sent, and parties answer the query that ends the tree with the same integers.
        query = self.pending
        # What a crash leaves, by the last record that was written:
        #
        #     none of them          the growing tree is asked for again
        #     TreeGrown             the query that ends it is asked again, maybe over a smaller roster
        #     Stopped               the same, and training ends with it, whatever the callbacks then return
        #     Opened                the turn is over
        #
        # Callbacks may be called twice for a round: they run before its sum is recorded.
        self._write_tree()
        if self.ends_round:
            self.enough = self._watch(query, total) or self.enough
            if self.enough and self.trees.durable:
                self._record(Stopped(self.turn))
        again = query.of_tree and query.tree >= 0  # within a tree, which is asked for again
        if self.trees.durable and not again:
            self._record(Opened(self.turn, query.digest, total))
        self.advance(total)

    def cut(self) -> None:
        """End the growing tree early: the query that ends it replaces the pending one. Raises Refused if the
        program cannot end a tree early."""
        try:
            query = self._program.throw(TreeAborted("tree-aborted", "a party was lost"))
        except (TreeAborted, StopIteration):
            query = None
        if query is None or not query.ends_tree:
            raise Refused("program-tree", f"program {self._terms.session.program!r} cannot end a tree early")
        # The pending turn keeps its number, and its state: its sum was not opened. Parties accept another
        # query in its place because it ends the tree (`_repeats` in party.py).
        self._pending = query

    def change_roster(self, roster: tuple[str, ...]) -> None:
        """Change the roster from the pending query on. Sums over the previous one are never asked again."""
        # Recorded first: after a restart the tree would else be grown again, over the new roster.
        self._write_tree()
        self.roster = roster

    def close(self) -> None:
        """Close the program's generator because the session failed."""
        self._program.close()

    def _write_tree(self) -> None:
        """Record the tree that is about to end, unless it is already recorded."""
        query, log = self.pending, self.trees
        if query.ends_tree and query.tree == log.written and log.durable:
            # The program appends a tree to the list before it asks the query that ends it. If it did not, it
            # keeps its trees to itself. From then on no tree and no later sum is recorded, since `replay`
            # could not reach them.
            log.durable = len(log.grown) == log.written + 1
            if log.durable:
                log.written += 1
                self._record(TreeGrown(self.turn, *log.grown[query.tree], self.state.to_record()))

    def advance(self, total: Int64 | None) -> None:
        """Send the program a sum, or None to start it, and run it up to its next query."""
        asked = self._pending
        ended = asked is not None and asked.ends_tree and asked.tree >= 0
        if asked is not None and ended:
            assert total is not None
            self.history.append(self._round(asked, total))
        try:
            query = next(self._program) if total is None else self._program.send(total)
            # The query that follows the round was computed, but no party receives it.
            if self.enough and ended:
                stopped = TrainingStopped("training-stopped", "training was stopped early on request")
                query = self._program.throw(stopped)
        except StopIteration as end:
            made = Outcome(end.value) if isinstance(end.value, Booster) else end.value
            if not isinstance(made, Outcome):
                raise Refused(
                    "program-without-model", f"program {self._terms.session.program!r} returned no model"
                ) from None
            if asked is None:
                raise Refused(
                    "program-without-query", f"program {self._terms.session.program!r} ended without a query"
                ) from None
            # `_pending`, `state` and `turn` stay at the last query. It is asked again where a signature is
            # missing, and must then have the sum `last`: the model that others signed follows from it.
            self.outcome, self.last = made, total
            return
        except TrainingStopped:
            raise Refused(
                "program-not-stopping",
                f"program {self._terms.session.program!r} cannot stop before its last round",
            ) from None
        if asked is not None:
            self.state = self.state.after(asked)
        self._pending, self.turn = query, self.turn + 1
        # A tree of an earlier process: its queries were skipped, so state and turn come from its record.
        if query.ends_tree and (grew := self.trees.ends.pop(query.tree, None)):
            try:
                self.state, self.turn = self.state.with_record(grew.known), grew.turn
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    "journal-tree", f"the tree recorded in turn {grew.turn} is invalid: {error}"
                ) from None

    @property
    def ends_round(self) -> bool:
        """True if the pending query ends a round."""
        query = self.pending
        return query.ends_tree and query.tree >= 0

    def _watch(self, query: Query, total: Int64) -> bool:
        """Call all callbacks. Returns True if one of them ends the training run."""
        if not self._callbacks:
            return False
        done = self._round(query, total)
        stops = [callback(done.round, done.metrics) for callback in self._callbacks]
        return any(stops)

    def _round(self, query: Query, total: Int64) -> Round:
        return Round(query.tree, *query.metrics_of(total), self.roster)


# ---- Attendance: the parties that are connected, introduced, away or barred -----------------------------
# Times are seconds of any steady clock; the session sets `now`.


MAX_LOSSES_PER_TURN = 5
"""Maximum number of times that a party may be lost in one turn before it is barred, unless the session waits
for lost parties. Without a limit, a party that always reconnects but never answers would prevent the others
from completing the model."""


class Attendance:
    """Record of which parties of a session are connected, introduced, away or barred."""

    def __init__(self) -> None:
        self.connected: set[str] = set()
        self.introduced: set[str] = set()
        """Parties of the roster that were introduced in this attempt and have stayed connected since."""
        self.barred: set[str] = set()
        """Parties that left, violated the protocol or disconnected too often: they are not readmitted."""
        self.now = 0.0
        self.away: dict[str, tuple[float, str]] = {}
        """Lost or late party -> (time since which it has been away, reason)."""
        self.losses: Counter[str] = Counter()
        """Number of times that each party was lost or late in this turn."""

    def mark_away(self, party: str, reason: str) -> None:
        """Record that a party is away from now on, unless it is already away."""
        self.away.setdefault(party, (self.now, reason))

    def bar(self, party: str, reason: str) -> None:
        """Exclude a party for the rest of the session."""
        self.barred.add(party)
        self.away[party] = (-math.inf, reason)

    def count_loss(self, party: str, turn: int, waits: bool) -> None:
        """Count a disconnection or missed deadline, and bar the party after too many in one turn. waits: True
        if the session waits for lost parties, so that none is barred."""
        self.losses[party] += 1
        if self.losses[party] > MAX_LOSSES_PER_TURN and not waits:
            self.bar(party, f"{self.away[party][1]}, for the {self.losses[party]}th time in turn {turn}")

    def overdue(self, parties: Iterable[str], seconds: float) -> list[str]:
        """Return the members of `parties` that have been away for more than `seconds`."""
        since = self.now - seconds
        return [party for party in parties if self.away.get(party, (self.now, ""))[0] < since]
