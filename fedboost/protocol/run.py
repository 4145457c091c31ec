"""The course of a session at the aggregator: what outlives the process. A program, what it asks, how it was
answered, and the journal of that.

Promises: what follows from a sum is done after the sum was written down; from the records of an earlier
process the program comes to stand where it stood, but that the tree that was growing is asked for again.
Refuses: records that cannot be (ConfigError).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedboost.errors import ConfigError, CutShort, Enough, FedboostError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.protocol import journal
from fedboost.protocol.contracts import GrownTrees, Program, Query, TrainingState
from fedboost.protocol.journal import Record
from fedboost.terms.terms import Terms

Callback = Callable[[int, Mapping[str, float]], bool | None]
"""Called after each round, with its number from 0 and its metrics; True ends the training with that round."""

MOST_ATTEMPTS = 1 << 31
"""Of a session: the messages have 32 bits for their number."""


@dataclass(frozen=True)
class Round:
    """What one round came to: its number from 0, its metrics over the rows of the roster, those of them that
    the analyst gets (`metrics.published`), the roster."""

    round: int
    metrics: dict[str, float]
    published: dict[str, float]
    roster: tuple[str, ...]


class TrainingRun:
    """Where a session stands. `record` is called with what must outlive the process; `past` is what an
    earlier process recorded (ConfigError if it cannot be): no callback is called for its rounds again."""

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
        """How often the parties have gathered."""
        self.turn = 0
        """The number of the question that is asked now."""
        self.state = state
        """Where the model stands: before that question."""
        self.history: list[Round] = []
        self.booster: Booster | None = None
        self.last: Int64 | None = None
        """The sum of the last turn, once the program has ended."""
        self.enough = False
        """Whether the training ends with the round under way."""
        self._terms = terms
        self._record = record
        self._callbacks = tuple(callbacks)
        self._grown: GrownTrees = []
        self._program = program(terms, self._grown)
        self._pending: Query | None = None
        self._durable = True
        """Whether the journal is enough to go on: a program that keeps its trees to itself is not resumed."""
        self._written = self._read = 0
        """Trees in the journal; those of them that were looked at."""
        self._ends: dict[int, journal.Grew] = {}
        """How the trees of an earlier process ended."""
        self._failure = ""
        """What the last sum of the records made the program fail with."""
        self._replay(tuple(past))

    @property
    def pending(self) -> Query:
        """The question that is asked now; the last one again when signatures are missing."""
        assert self._pending is not None
        return self._pending

    @property
    def grows_a_tree(self) -> bool:
        """Whether the question that is asked now is about a tree that has split already."""
        return self.pending.of_tree and bool(self.state.splits + self.pending.splits)

    @property
    def may_change(self) -> bool:
        """Whether the roster may be another one from the question that is asked now."""
        return self.state.may_change(self.pending)

    @property
    def structure(self) -> bytes:
        """Of the model, by what the parties know once they have answered (`progress.structure`)."""
        return self.state.after(self.pending).structure(self.rounds)

    @property
    def rounds(self) -> int:
        """Rounds of the model: it may end before the last one that was asked for."""
        assert self.booster is not None
        rounds = len(self.booster.trees) // len(self._terms.roots) - self._terms.constant_rounds
        return max(0, min(rounds, self._terms.trees.rounds))

    def start(self) -> None:
        """Run the program to its first question, unless it stands at a later one already."""
        if self._failure:
            raise Refused(self._failure)
        if self._pending is None:
            self._advance(None)

    def restart_attempt(self) -> None:
        """Call the roster together once more."""
        self.attempt += 1
        self._record(journal.Gathered(self.attempt, self.roster))

    def take(self, total: Int64) -> None:
        """The sum of the question that was asked: the program asks its next one, or ends with its model."""
        self._write_tree()
        if self._ends_round:
            self.enough = self._watch(self.pending, total) or self.enough
            if self.enough and self._durable:
                self._record(journal.Stopped(self.turn))
        again = self.pending.of_tree and self.pending.tree >= 0  # with its tree
        if self._durable and not again:
            self._record(journal.Opened(self.turn, self.pending.digest, total))
        self._advance(total)

    def cut(self) -> None:
        """The tree that grows ends where it stands; its end is asked in the place of this question."""
        try:
            query = self._program.throw(CutShort("a party was lost"))
        except (CutShort, StopIteration):
            query = None
        if query is None or not query.ends_tree:
            raise Refused(f"program {self._terms.session.program!r} does not end a tree that is cut short")
        self._pending = query

    def change_roster(self, roster: tuple[str, ...]) -> None:
        """From the question that is asked now. What others were part of is never asked for again."""
        self._write_tree()
        self.roster = roster

    def close(self) -> None:
        """The session failed."""
        self._program.close()

    def _write_tree(self) -> None:
        """Write down the tree that is about to end, once."""
        if self.pending.ends_tree and self.pending.tree == self._written and self._durable:
            self._durable = len(self._grown) == self._written + 1
            if self._durable:
                tree, last = self._grown[self._written]
                self._record(journal.Grew(self.turn, tree, last, self.state.to_record()))
                self._written += 1

    def _advance(self, total: Int64 | None) -> None:
        asked, ended = self._pending, self._pending is not None and self._ends_round
        if asked is not None and ended:
            assert total is not None
            self.history.append(self._round(asked, total))
        try:
            query = next(self._program) if total is None else self._program.send(total)
            if self.enough and ended:
                query = self._program.throw(Enough("no more rounds are wanted"))
        except StopIteration as end:
            if not isinstance(end.value, Booster):
                raise Refused(f"program {self._terms.session.program!r} returned no model") from None
            if asked is None:
                raise Refused(f"program {self._terms.session.program!r} asked nothing") from None
            self.booster, self.last = end.value, total
            return
        except Enough:
            raise Refused(
                f"program {self._terms.session.program!r} does not end before its last round"
            ) from None
        if asked is not None:
            self.state = self.state.after(asked)
        self._pending, self.turn = query, self.turn + 1
        if query.ends_tree and query.tree in self._ends:
            grew = self._ends.pop(query.tree)
            try:
                self.state = self.state.with_record(grew.known)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"a tree in turn {grew.turn}: {error}") from None
            self.turn = grew.turn

    @property
    def _ends_round(self) -> bool:
        """Whether a round ends with the question that is asked now."""
        return self.pending.ends_tree and self.pending.tree >= 0

    def _watch(self, query: Query, total: Int64) -> bool:
        """Whether a callback wants no more rounds; all are called."""
        if not self._callbacks:
            return False
        done = self._round(query, total)
        said = [callback(done.round, done.metrics) for callback in self._callbacks]
        return any(said)

    def _round(self, query: Query, total: Int64) -> Round:
        return Round(query.tree, *query.metrics_of(total), self.roster)

    # ---- after a restart ----------------------------------------------------------------------------

    def _replay(self, past: tuple[Record, ...]) -> None:
        """Go where the records lead. The program is given all trees at once, and finds them grown."""
        for record in past:
            if isinstance(record, journal.Grew):
                self._grown.append((record.tree, record.last))
                self._ends[self._written] = record
                self._written += 1
        if past:
            self._advance(None)
        for place, record in enumerate(past):
            match record:
                case journal.Gathered():
                    self._check_gathered(record)
                    self.attempt, self.roster = record.attempt, record.roster
                case journal.Opened():
                    self._check_opened(record)
                    self.turn = record.turn
                    try:
                        self._advance(record.total)
                    except FedboostError as error:
                        if place < len(past) - 1:
                            raise ConfigError(f"its sums cannot be: turn {self.turn}: {error}") from None
                        self._failure = str(error)
                case journal.Grew():
                    self._check_grew(record)
                    self._read += 1
                case journal.Stopped():
                    if not self._ends_round or record.turn < self.turn:
                        raise ConfigError(f"it was stopped in turn {record.turn}, where no round ends")
                    self.enough = True
                case journal.Begun():
                    raise ConfigError("the session begins twice")

    def _check_gathered(self, record: journal.Gathered) -> None:
        terms, roster = self._terms, record.roster
        members = tuple(party for party in terms.parties if party in roster)
        enough = roster == members and len(roster) >= terms.fewest
        lacking = roster != terms.parties and not self.state.may_lack_parties(self.pending)
        changed = roster != self.roster and not (self.state.moved or self.may_change)
        if not (self.attempt < record.attempt <= MOST_ATTEMPTS and enough) or lacking or changed:
            raise ConfigError(f"attempt {record.attempt} of {len(roster)} parties cannot follow here")

    def _check_opened(self, record: journal.Opened) -> None:
        if self.last is not None or record.query != self.pending.digest or not self.attempt:
            raise ConfigError("the journal holds sums that this program does not ask for")
        if record.turn < self.turn:
            raise ConfigError(f"turn {record.turn} after turn {self.turn}")
        if record.total.size != self.pending.cells:
            raise ConfigError(f"the sum of turn {record.turn} has another size than was asked for")

    def _check_grew(self, record: journal.Grew) -> None:
        ends = self.pending.ends_tree and self.pending.tree == self._read
        try:
            if not (ends and record.turn == self.turn):
                raise Refused("it does not grow there")
            self.state.check_grown(self._terms, record.tree, record.last)
        except Refused as error:
            raise ConfigError(f"a tree in turn {record.turn}: {error}") from None
