"""A training after a restart: the program is run again over the records of an earlier process.

Promises: the training comes to stand where it stood, but the tree that was growing is asked for again.
Refuses: records that cannot be (ConfigError).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedboost.errors import ConfigError, FedboostError, Refused
from fedboost.gbdt.tree import Splits, Tree
from fedboost.protocol import journal
from fedboost.protocol.contracts import GrownTrees, TrainingState
from fedboost.protocol.journal import Record
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.protocol.run import TrainingRun

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
    ends: dict[int, journal.TreeGrown] = field(default_factory=dict)

    def next_to_write(self, tree: int) -> tuple[Tree, Splits] | None:
        """The tree of this number if it is the next that the journal lacks; it counts as written then."""
        if tree != self.written or not self.durable:
            return None
        self.durable = len(self.grown) == self.written + 1
        if not self.durable:
            return None
        self.written += 1
        return self.grown[tree]

    def load(self, past: tuple[Record, ...]) -> None:
        """Take in all trees of an earlier process."""
        for record in past:
            if isinstance(record, journal.TreeGrown):
                self.grown.append((record.tree, record.last))
                self.ends[self.written] = record
                self.written += 1


def with_tree(state: TrainingState, grew: journal.TreeGrown) -> TrainingState:
    """The state with the tree of a record."""
    try:
        return state.with_record(grew.known)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a tree in turn {grew.turn}: {error}") from None


def replay(run: "TrainingRun", terms: Terms, past: tuple[Record, ...]) -> None:
    """Go where the records lead. The program is given all trees at once, and finds them grown."""
    run.trees.load(past)
    if past:
        run.advance(None)
    for number, record in enumerate(past):
        match record:
            case journal.Gathered():
                _check_gathered(run, terms, record)
                run.attempt, run.roster = record.attempt, record.roster
            case journal.Opened():
                _check_opened(run, record)
                run.turn = record.turn
                try:
                    run.advance(record.total)
                except FedboostError as error:
                    if number < len(past) - 1:
                        raise ConfigError(f"its sums cannot be: turn {run.turn}: {error}") from None
                    run.fail_next(str(error))
            case journal.TreeGrown():
                _check_grew(run, terms, record)
                run.trees.read += 1
            case journal.Stopped():
                if not run.ends_round or record.turn < run.turn:
                    raise ConfigError(f"it was stopped in turn {record.turn}, where no round ends")
                run.enough = True
            case journal.Begun():
                raise ConfigError("the session begins twice")


def _check_gathered(run: "TrainingRun", terms: Terms, record: journal.Gathered) -> None:
    roster = record.roster
    members = tuple(party for party in terms.parties if party in roster)
    enough = roster == members and len(roster) >= terms.min_roster
    lacking = roster != terms.parties and not run.state.may_lack_parties(run.pending)
    changed = roster != run.roster and not (run.state.moved or run.may_change)
    if not (run.attempt < record.attempt <= MAX_ATTEMPTS and enough) or lacking or changed:
        raise ConfigError(f"attempt {record.attempt} of {len(roster)} parties cannot follow here")


def _check_opened(run: "TrainingRun", record: journal.Opened) -> None:
    if run.last is not None or record.query != run.pending.digest or not run.attempt:
        raise ConfigError("the journal holds sums that this program does not ask for")
    if record.turn < run.turn:
        raise ConfigError(f"turn {record.turn} after turn {run.turn}")
    if record.total.size != run.pending.cells:
        raise ConfigError(f"the sum of turn {record.turn} has another size than was asked for")


def _check_grew(run: "TrainingRun", terms: Terms, record: journal.TreeGrown) -> None:
    ends = run.pending.ends_tree and run.pending.tree == run.trees.read
    try:
        if not (ends and record.turn == run.turn):
            raise Refused("it does not grow there")
        run.state.check_grown(terms, record.tree, record.last)
    except Refused as error:
        raise ConfigError(f"a tree in turn {record.turn}: {error}") from None
