"""A party's end of a session, as far as the session needs its surroundings."""

from collections.abc import Callable
from dataclasses import dataclass

from fedboost.privacy.masked.keys import RandomBytes
from fedboost.protocol.contracts import Holder
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.ledger import Charge
from fedboost.protocol.parts import Part
from fedboost.protocol.site_memory import NO_LIMIT, Limits, SessionOffer, SiteMemory, TransientMemory
from fedboost.terms.terms import Terms

HELP, OPENINGS = "help to open the sum", "openings of blinded sums"
THRESHOLDS = "thresholds of this site's splits"
"""Names of releases that answer no question."""


@dataclass(frozen=True)
class Release:
    """An answer that is about to leave this site, for its audit log. question: the question's hash, in hex;
    position: that of where the session stood; both empty for what answers no question. charge: where it
    got noise, what the site's memory was charged."""

    session: str
    turn: int
    attempt: int
    what: str
    cells: int
    size: int
    protection: str
    roster: tuple[str, ...]
    charge: Charge | None = None
    question: str = ""
    position: str = ""


@dataclass(frozen=True)
class Relayed:
    """Bytes that are about to leave this site for other parties, for its audit log. what: their kind; to: the
    parties that can read them; rows: the rows they tell of; size: bytes before they are sealed."""

    session: str
    turn: int
    attempt: int
    what: str
    to: tuple[str, ...]
    rows: int
    size: int


@dataclass(frozen=True)
class Site:
    """The place that a party's session runs at.

    holder: reads this party's data as the terms want them, or raises Refused; it is also given a secret of
    the session, the same over restarts; None at a key holder without rows; draw: cryptographic randomness;
    credentials: who this party is, None where nothing is signed;
    permit: called with an offer before any row is read, raises Refused if the site's own rules forbid it;
    taken: called with an offer that is taken, before any row is read; record: called with each release and
    each relay before its bytes leave; memory: the site's memory of sessions; unless given it lasts as long as
    this object; keep: called with this party's part of a model before it signs that.
    """

    name: str
    holder: Callable[[Terms, bytes], Holder] | None
    draw: RandomBytes
    credentials: Credentials | None = None
    permit: Callable[[SessionOffer], Limits] = lambda offer: Limits(
        max_predicted_rows=NO_LIMIT, max_splits=NO_LIMIT
    )
    taken: Callable[[SessionOffer], None] = lambda offer: None
    record: Callable[[Release | Relayed], None] = lambda release: None
    memory: SiteMemory = None  # type: ignore[assignment]
    keep: Callable[[Part], None] = lambda part: None

    def __post_init__(self) -> None:
        if self.memory is None:
            object.__setattr__(self, "memory", TransientMemory(self.draw, self.name))
