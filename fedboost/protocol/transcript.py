"""The transcript of a session: one hash over who has met, where the training stood, and every query since.

Both ends extend it; answers are sealed under it, so nothing opens unless both asked and heard the same.
"""

import hashlib

from fedboost.privacy import fields
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import Query, TrainingState
from fedboost.protocol.messages import Ask
from fedboost.terms.terms import Terms


def first_transcript(session: bytes, state: TrainingState) -> bytes:
    """The hash that a transcript begins with: the session's digest, and where the training stands."""
    return hashlib.sha256(fields.pack(session, state.position.digest)).digest()


def next_transcript(before: bytes, query: Query) -> bytes:
    """The hash of all queries up to this one."""
    return hashlib.sha256(fields.pack(before, query.digest)).digest()


def tag_of(ask: Ask, transcript: bytes) -> Tag:
    """The tag under which the answer to a query is sealed."""
    return Tag(ask.turn, ask.attempt, ask.roster, transcript, ask.query.segments)


class Transcripts:
    """The transcripts of all parties at the aggregator: one, unless they are told different things."""

    def __init__(self, terms: Terms, session: bytes, state: TrainingState) -> None:
        self._terms = terms
        self.whole = first_transcript(session, state)
        """The transcript of what the aggregator asked."""
        self._own = {
            party: first_transcript(session, state.seen_by(terms, party))
            for party in (terms.parties if terms.blocks else ())
        }
        first, *_ = terms.parties
        self._public = first_transcript(session, state.seen_by(terms, first, publicly=True))

    def of(self, party: str) -> bytes:
        """The transcript of a party."""
        return self._own.get(party, self.whole)

    def signed(self, party: str) -> bytes:
        """The transcript that a party signs: where parties keep parts, of what all were told, since who knows
        that could try the few splits of a party on a hash of them."""
        return self._public if self._terms.keeps_parts else self.of(party)

    def extend(self, query: Query) -> None:
        """Add a query, as each party is told it."""
        self.whole = next_transcript(self.whole, query)
        for party, before in self._own.items():
            self._own[party] = next_transcript(before, query.seen_by(self._terms, party))
        if self._terms.keeps_parts:
            seen = query.seen_by(self._terms, self._terms.parties[0], publicly=True)
            self._public = next_transcript(self._public, seen)
