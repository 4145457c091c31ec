"""What the aggregator collects in the stages of an attempt: greetings, the reports of a turn, signatures."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.packing import Segment
from fedboost.privacy.pairwise import AggregatorSetup
from fedboost.privacy.protection import Opener
from fedboost.protocol import key_exchange
from fedboost.protocol.adding import MAX_SEGMENTS, Addition
from fedboost.protocol.contracts import Query, TrainingState
from fedboost.protocol.key_exchange import Attempt, Trust, session_digest
from fedboost.protocol.messages import Attest, Join, OpenShare, Report, Transcripts
from fedboost.protocol.parts import Thresholds
from fedboost.protocol.relaying import Order
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public

# ---- The introduction of an attempt: the parties' greetings, and what follows from all of them ----------


MAX_GREETING_BYTES = 64 * 1024
"""Maximum size in bytes of a greeting without an encryption key. Most of it is a certificate chain."""


class Introduction:
    """Collects the parties' greetings (signed names and keys) in one attempt."""

    def __init__(self) -> None:
        self.greetings: dict[str, bytes] = {}
        self._certificates: dict[str, bytes] = {}
        self._known: dict[str, bytes] = {}
        """Party -> digest of the certificates that it has from an earlier attempt."""
        self.digest = b""
        """Digest of the attempt, to which the parties' keys are bound."""
        self.public: Public | None = None
        """Public key with which sums are encrypted, or None if they are not encrypted."""
        self.transcripts: Transcripts | None = None
        """Transcripts of the attempt, or None before the parties are introduced."""
        self.setup: AggregatorSetup | None = None
        """Setup from which the object that opens each turn's sum is built, or None before the first query."""

    def join(self, party: str, join: Join, trust: Trust | None, attempt: Attempt) -> None:
        """Check and store a party's greeting. A repeated greeting is ignored. Raises PeerError if the
        greeting is invalid, or differs from this party's first greeting."""
        known, greeting = self.greetings.get(party), join.greeting
        if known == greeting:
            return
        if known is not None:
            raise PeerError("join-repeated", "it joined twice, with different greetings")
        if len(greeting) > MAX_GREETING_BYTES and party != attempt.terms.keyholder:
            raise PeerError(
                "greeting-too-long",
                f"its greeting has {len(greeting)} bytes, but at most {MAX_GREETING_BYTES} are allowed",
            )
        if trust is not None:  # otherwise the others would reject it and seem to be at fault
            key_exchange.check_greeting(trust, attempt, party, join)
        self.greetings[party] = greeting
        self._certificates[party], self._known[party] = join.certificate, join.known

    def complete(self, attempt: Attempt, roster: tuple[str, ...], state: TrainingState) -> tuple[bytes, ...]:
        """Start the transcripts and return the greetings of the roster. Call this once all greetings have
        arrived."""
        greetings = tuple(self.greetings[member] for member in roster)
        self.digest = session_digest(attempt, greetings)
        if attempt.terms.protection.uses_key_holder:
            self.public = key_exchange.public_of(attempt, greetings)
        self.transcripts = Transcripts(attempt.terms, self.digest, state)
        return greetings

    def lacking(self, roster: tuple[str, ...]) -> tuple[tuple[bytes, ...], set[str]]:
        """Return the certificates of the roster, and the parties that do not know all of them from an earlier
        attempt."""
        certificates = tuple(filter(None, (self._certificates[member] for member in roster)))
        digest = key_exchange.digest_of_certificates({*map(key_exchange.hash_of, certificates)})
        return certificates, {member for member in roster if self._known[member] != digest}


# ---- One turn at the aggregator: each party's sealed parts, the replies that open their sum, the sum ------
# A repeated part is not added twice. Parts out of order, and replies not requested, raise PeerError.


class Turn:
    """Collects the answers of the roster (the parties in the sum) to one query in one attempt, and opens
    their sum."""

    def __init__(self, number: int, roster: Iterable[str], opener: Opener) -> None:
        self.helping: set[str] = set()
        """Parties that still have to reply to an OpenRequest."""
        self.reporting = set(roster)
        """Parties whose vectors have not been fully added to the sum yet."""
        self.held: set[str] = set()
        """Parties whose vectors an adder has added, but whose region's sum has not arrived yet."""
        self.relayed: defaultdict[str, Order] = defaultdict(Order)
        """Party -> checker of the relays that this party sends through the aggregator."""
        self._number = number
        self._opener = opener
        self._parts = dict.fromkeys(self.reporting, 0)
        self._help: dict[str, bytes] = {}

    def has_reported(self, party: str) -> bool:
        """Return True if the party's whole vector has been added to the sum."""
        return party in self._parts and party not in self.reporting

    def repeats(self, party: str, report: Report) -> bool:
        """Return True if this part has already been added, or belongs to an earlier turn."""
        known = self._parts.get(party, 0)
        return report.turn < self._number or (report.turn == self._number and report.part < known)

    def addition(self, attempt: int, segments: tuple[Segment, ...]) -> Addition | None:
        """Return what adders need to add the reports, or None if they must pass them on. segments: shape of
        the vectors."""
        checked = self._opener.checked_chunks
        if checked is None or len(segments) > MAX_SEGMENTS:
            return None
        return Addition(self._number, attempt, self._opener.ctx, segments, checked)

    def report(self, parties: tuple[str, ...], report: Report) -> None:
        """Add the next part of a party's sealed vector, or of the sum of several parties' vectors. Raises
        PeerError if the part is out of order, or was sealed in a different context."""
        if report.turn != self._number:
            raise PeerError(
                "report-wrong-turn", f"it sent a report for turn {report.turn} during turn {self._number}"
            )
        in_order = [party in self.reporting and self._parts[party] == report.part for party in parties]
        if not (in_order and all(in_order)) or len({*parties}) != len(parties):
            raise PeerError("part-order", f"it sent part {report.part} of turn {report.turn} out of order")
        if report.ctx != (b"" if report.part else self._opener.ctx):
            raise PeerError(
                "report-other-context",
                f"its report is for a different query, roster or attempt than the other parties' reports in "
                f"turn {report.turn}",
            )
        if report.note and report.part + 1 < self._opener.chunks:  # adders do not add such a part either
            raise PeerError("note-unexpected", "it sent a note before the last part of its report")
        # All checks come before `add`: nothing can be taken out of the running sum again. For the same
        # reason, a party that is lost between its parts spoils the sum, and the attempt starts over
        # (`lose_in_turn`).
        self._opener.add(parties[0], report.part, report.cells)
        for party in parties:
            if report.part + 1 == self._opener.chunks:
                self._opener.note(party, report.note)
                self.reporting.discard(party)
            self._parts[party] = report.part + 1

    def lose(self, party: str) -> None:
        """Record that a party was lost after its vector had been added to the sum."""
        self.helping.discard(party)
        self._opener.lose(party)

    def requests(self) -> dict[str, bytes]:
        """Return the requests that must be answered before the sum can be opened, as a dict: party ->
        request. Raises RosterTooSmall if too few parties are left to open the sum."""
        requests = self._opener.requests()
        self.helping = set(requests)
        return requests

    def repeats_help(self, party: str, assist: OpenShare) -> bool:
        """Return True if this reply has already been received, or belongs to an earlier turn."""
        return assist.turn < self._number or self._help.get(party) == assist.answer

    def assist(self, party: str, assist: OpenShare) -> None:
        """Check and store a party's reply to an OpenRequest. Raises PeerError if no reply was requested."""
        if party not in self.helping:
            raise PeerError(
                "help-unexpected", f"it sent unrequested data to open the sum of turn {assist.turn}"
            )
        self._opener.assist(party, assist.answer)
        self._help[party] = assist.answer
        self.helping.discard(party)

    def open(self) -> Int64:
        """Open the sum of all parties' cells. Returns int64 [cells]."""
        return self._opener.open()


def turns_of(terms: Terms, query: Query) -> int:
    """Return the factor by which turn_timeout is multiplied for a query. The factor exceeds 1 if parties
    relay data for the query, because they then work one after another."""
    return max((len(block.parties) for block in terms.blocks), default=1) if query.relayed_bytes(terms) else 1


# ---- The end of a training run: the parties' signatures on their answers and on the model ----------------
# Raises: PeerError for signatures on queries or trees that differ from the session's.


MAX_SIGNATURE_BYTES = 64 * 1024
"""Maximum size in bytes of a signature with its certificate chain."""
PART_BYTES = 32
"""Size in bytes of the hash of a model part."""


class Closing:
    """Collects the parties' signatures on their answers and on the model, in one attempt."""

    def __init__(
        self,
        digest: bytes,
        transcripts: Transcripts,
        structure: Callable[[str], bytes],
        thresholds: Thresholds,
    ) -> None:
        """Start collecting signatures.

        Args:
            structure: function that returns the hash of the model in a party's view; '' stands for all
                parties if they have the same view.
            thresholds: collects the thresholds that parties send."""
        self.thresholds = thresholds
        self.digest = digest
        """Digest of the attempt, to which the signatures are bound."""
        self.attestations: dict[str, Attest] = {}
        self.unsigned: set[str] = set()
        """Parties that left without signing."""
        self._transcripts = transcripts
        self._structure = cache(structure)

    def lacks(self, party: str) -> bool:
        """Return True if the party has neither signed nor left without signing."""
        return party not in self.attestations and party not in self.unsigned

    def attest(self, party: str, attest: Attest, trust: Trust | None, attempt: Attempt) -> None:
        """Check and store a party's attestation. Raises PeerError if it does not match the queries and the
        model, or if its signature is invalid."""
        if party in self.attestations:
            raise PeerError("attest-unexpected", "it sent an attestation that was not requested")
        if attest.transcript != self._transcripts.signed(party):
            raise PeerError("attest-other-queries", "its attestation is for different queries")
        if attest.structure != self._structure(attempt.terms.blocks.viewer(party)):
            raise PeerError("attest-other-trees", "its attestation does not match the model's trees")
        if len(attest.part) != (PART_BYTES if attempt.terms.keeps_parts else 0):
            raise PeerError(
                "attest-part",
                "its attestation has a hash of a model part that is not expected, or lacks a required one",
            )
        if len(attest.certificate) + len(attest.signature) > MAX_SIGNATURE_BYTES:
            raise PeerError("attest-too-long", "its signature and certificates are too long")
        if trust is not None:
            key_exchange.check_attest(trust, attempt, self.digest, party, attest)
        self.thresholds.take(party, attest.thresholds)
        self.attestations[party] = attest
