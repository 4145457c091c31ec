"""The end of a training: the parties' signatures on what they did and on the model.

Refuses: signatures on other queries or trees than the session's (PeerError).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from fedboost.errors import PeerError, Refused, quoted
from fedboost.protocol import key_exchange
from fedboost.protocol.attendance import note_loss
from fedboost.protocol.contracts import Outcome
from fedboost.protocol.events import Disconnected, Outbox, Violation
from fedboost.protocol.key_exchange import Attempt, Trust
from fedboost.protocol.messages import Attest, Leave
from fedboost.protocol.thresholds import Thresholds
from fedboost.protocol.transcript import Transcripts

if TYPE_CHECKING:
    from fedboost.protocol.aggregator import AggregatorSession

MAX_SIGNATURE_BYTES = 64 * 1024
"""Bytes of a signature with its chain of certificates."""
PART_BYTES = 32
"""Bytes of the hash of a party's part of the model."""


class Closing:
    """The signatures of one attempt."""

    def __init__(
        self,
        digest: bytes,
        transcripts: Transcripts,
        structure: Callable[[str], bytes],
        thresholds: Thresholds,
    ) -> None:
        """structure: the structure of the model as a party was told it; of all where they are told the same,
        as that of ''; thresholds: those that parties give."""
        self.thresholds = thresholds
        self.digest = digest
        """The digest of the session that the signatures are bound to."""
        self.attestations: dict[str, Attest] = {}
        self.unsigned: set[str] = set()
        """Parties that left without a signature."""
        self._transcripts = transcripts
        self._structure = cache(structure)

    def lacks(self, party: str) -> bool:
        """True while the signature of a party may still come."""
        return party not in self.attestations and party not in self.unsigned

    def attest(self, party: str, attest: Attest, trust: Trust | None, attempt: Attempt) -> None:
        """Take in a party's signature."""
        if party in self.attestations:
            raise PeerError("an attestation that was not asked for")
        if attest.transcript != self._transcripts.signed(party):
            raise PeerError("it attests other questions than were asked")
        if attest.structure != self._structure(attempt.terms.blocks.viewer(party)):
            raise PeerError("it attests other trees than those that were asked for")
        if len(attest.part) != (PART_BYTES if attempt.terms.keeps_parts else 0):
            raise PeerError("an attestation without the hash of its part of the model, or with one too many")
        if len(attest.certificate) + len(attest.signature) > MAX_SIGNATURE_BYTES:
            raise PeerError("a signature and certificate of more bytes than can be")
        if trust is not None:
            key_exchange.check_attest(trust, attempt, self.digest, party, attest)
        self.thresholds.take(party, attest.thresholds)
        self.attestations[party] = attest


def finished(session: "AggregatorSession") -> Outcome:
    """The model with the thresholds of all parties. Refused while one is missing."""
    made = session.run.outcome
    assert made is not None
    given = session.closing.thresholds if session.closing else Thresholds(session.terms, made.booster)
    for party in filter(given.lacks, session.terms.parties):
        raise Refused(f"party {party} gave no thresholds of its columns, and the model needs them")
    return replace(made, booster=given.of_model())


def attest(session: "AggregatorSession", party: str, attest: Attest) -> Outbox:
    """The signature is checked; with the last one the session is done."""
    assert session.closing is not None
    if session.attestations.get(party) == attest:
        return []
    session.closing.attest(party, attest, session.trust, session.current_attempt)
    return session.end()


def stray_attest(session: "AggregatorSession", party: str, attest: Attest) -> Outbox:
    """A repeated Attest is ignored; any other breaks the protocol."""
    if session.attestations.get(party) == attest:
        return []
    raise PeerError("an attestation that was not asked for")


def lose_closing(session: "AggregatorSession", party: str, event: Disconnected) -> Outbox:
    """Once all others have signed, the attempt restarts for its signature."""
    return session.end() if note_loss(session, party, event) else []


def leave_closing(session: "AggregatorSession", party: str, event: Leave | Violation) -> Outbox:
    """The model lacks this party's signature, and says so. It fails if it lacks thresholds, too, or a part of
    it that this party alone was to keep."""
    assert session.closing is not None
    session.closing.unsigned.add(party)
    if session.closing.thresholds.lacks(party) or session.terms.keeps_parts:
        reason = event.reason if isinstance(event, Violation) else f"left: {quoted(event.reason)}"
        return session.fail(f"party {party} {reason}")
    return session.end()
