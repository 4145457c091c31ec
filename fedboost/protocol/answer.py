"""A party's answer to one query: sealed, handed out part by part, and the help to open its sum.

Promises: the same query asked again gets the same bytes; the same request for help the same help.
"""

from collections.abc import Iterable, Iterator

from fedboost.errors import PeerError
from fedboost.privacy.protection import Sealer, Tag
from fedboost.protocol.contracts import Answered, TrainingState
from fedboost.protocol.ledger import Charge
from fedboost.protocol.membership import Membership
from fedboost.protocol.messages import Ask, Report


def check_size(ask: Ask, member: Membership) -> None:
    """Raise PeerError where a vector that others may see could overflow its cells."""
    if not member.protection.hides and ask.query.rows < member.holder.rows:
        raise PeerError("a sum over fewer rows than this site alone has: its cells could overflow")


def is_repeated(own: Ask, ask: Ask) -> bool:
    """True if the same query is asked again."""
    same = ask.turn == own.turn and ask.attempt == own.attempt and ask.roster == own.roster
    return same and ask.query.digest == own.query.digest


class Answer:
    """The answer to one query. size: bytes of its sealed parts; charge: what its noise was charged as."""

    def __init__(
        self,
        ask: Ask,
        tag: Tag,
        member: Membership,
        sealer: Sealer,
        answered: Answered,
        state: TrainingState,
    ) -> None:
        """state: where the training stood before the answer."""
        self.ask = ask
        self.charge: Charge | None = None
        self.size = 0
        self._sealer = sealer
        self._sent: list[Report] = []
        """The parts that were handed out; the rest is still to come from `_rest`."""
        self._rest = self._sealed(tag, member, answered, state)
        terms = member.terms
        self._opens = not terms.hides_columns or ask.query.hidden(terms, state) is not None
        """False where nobody reports sums that this party could open."""
        self._help: dict[bytes, bytes] = {}
        """Requests for help with this turn, and the help that was given."""

    def reports(self) -> Iterator[Report]:
        """The parts: those that were handed out before, then the rest."""
        yield from tuple(self._sent)
        for report in self._rest:
            self._sent.append(report)
            yield report

    def has_helped(self, request: bytes) -> bool:
        """True if that help was given before."""
        return request in self._help

    def help(self, request: bytes) -> bytes:
        """Help to open the sum."""
        if request not in self._help:
            # One request is for the self mask, each other for more lost parties than the one before.
            if len(self._help) > len(self.ask.roster):
                raise PeerError(
                    f"help is asked for with turn {self.ask.turn} more often than parties can be lost"
                )
            if not self._opens:
                raise PeerError(f"asked to open sums in turn {self.ask.turn}, which has none that are hidden")
            self._help[request] = self._sealer.assist(request)
        return self._help[request]

    def _sealed(
        self, tag: Tag, member: Membership, answered: Answered, state: TrainingState
    ) -> Iterator[Report]:
        """Seal the answer."""
        query, values = self.ask.query, answered.values
        if values.size != query.cells:
            raise PeerError(f"the query asks for {query.cells} integers and its answer has {values.size}")
        if not member.protection.hides and not query.fits(values):
            raise PeerError("cells too narrow for the sums of this site alone")
        if member.spending is not None:
            values, self.charge = member.spending.release(query, state, tag, values)
        parts: Iterable[bytes] = self._sealer.seal(query.to_cells(values), tag)
        if member.protection.sealed_size is None:
            parts = list(parts)
            self.size = sum(map(len, parts))
        else:
            self.size = member.protection.sealed_size(tag)
        note, ctx = answered.encrypted or self._sealer.note(), self._sealer.ctx
        self.size += len(note) + len(ctx)
        return _reports(self.ask, parts, note, ctx)


def _reports(ask: Ask, parts: Iterable[bytes], note: bytes, ctx: bytes) -> Iterator[Report]:
    """The parts of an answer as messages, the context with the first, the note with the last."""
    held: Report | None = None
    for part, cells in enumerate(parts):
        if held is not None:
            yield held
        held = Report(ask.turn, ask.attempt, part, cells, ctx=b"" if part else ctx)
    assert held is not None
    yield Report(held.turn, held.attempt, held.part, held.cells, note, held.ctx)
