"""The training of a session at the aggregator: a program, its queries, their sums, and the journal of that.
This part of a session outlives the process.

Promises: what follows from a sum is done after the sum was written down; from the records of an earlier
process the program comes to stand where it stood, but that the tree that was growing is asked for again.
Refuses: records that cannot be (ConfigError).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedboost.errors import Refused, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.protocol import journal
from fedboost.protocol.contracts import Outcome, Program, Query, TrainingState
from fedboost.protocol.journal import Record
from fedboost.protocol.replay import TreeLog, replay, with_tree
from fedboost.terms.terms import Terms

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
        self._failure = ""
        """What the last sum of the records made the program fail with."""
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
        return seen.structure(self.rounds, terms.hides_columns, terms.reference_features)

    @property
    def rounds(self) -> int:
        """Rounds of the model: it may end before the last one that was asked for."""
        assert self.booster is not None
        rounds = len(self.booster.trees) // len(self._terms.roots) - self._terms.constant_rounds
        return max(0, min(rounds, self._terms.trees.rounds))

    def start(self) -> None:
        """Run the program to its first query, unless it stands at a later one already."""
        if self._failure:
            raise Refused(self._failure)
        if self._pending is None:
            self.advance(None)

    def restart_attempt(self) -> None:
        """Call the roster together once more."""
        self.attempt += 1
        self._record(journal.Gathered(self.attempt, self.roster))

    def take(self, total: Int64) -> None:
        """Take the sum of the query: the program asks its next one, or ends with its model."""
        query = self.pending
        self._write_tree()
        if self.ends_round:
            self.enough = self._watch(query, total) or self.enough
            if self.enough and self.trees.durable:
                self._record(journal.Stopped(self.turn))
        again = query.of_tree and query.tree >= 0  # with its tree
        if self.trees.durable and not again:
            self._record(journal.Opened(self.turn, query.digest, total))
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
        query = self.pending
        if query.ends_tree and (grown := self.trees.next_to_write(query.tree)):
            self._record(journal.TreeGrown(self.turn, *grown, self.state.to_record()))

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
            self.state, self.turn = with_tree(self.state, grew), grew.turn

    def fail_next(self, reason: str) -> None:
        """Fail when the session starts: the last sum of the records made the program fail."""
        self._failure = reason

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
