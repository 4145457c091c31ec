"""Checks of terms, outside of sessions, to bytes and back: from an analyst to the aggregator, from there to
each party, and what the parties have against the terms.

Promises: decoding is total: any bytes give a message or a PeerError.
Refuses: bytes that are no message of this version, and more or longer sentences than a site has (PeerError).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedboost.errors import quoted
from fedboost.protocol.messages import Request
from fedboost.terms.session import MAX_PARTIES
from fedboost.wire.bounds import (
    MAX_FROM_AGGREGATOR,
    MAX_TO_AGGREGATOR,
    bounded,
    parsed,
    request_from_pb,
    require,
    serialised,
    with_request,
)
from fedboost.wire.v1 import fedboost_pb2 as pb

MAX_SENTENCES = 64
"""Reasons or notes of one site."""
MAX_SENTENCE_LENGTH = 1000
"""Characters of each."""
MAX_OBJECTIONS = 4 * 2 * MAX_SENTENCES * (MAX_SENTENCE_LENGTH + 8)
"""Bytes of all that a site has to say: four a character at most."""


@dataclass(frozen=True)
class Review:
    """A check that the aggregator hands on to a party. terms: JSON, as the analyst sent it; request: who
    checks them, None where nothing is signed."""

    number: int
    terms: str
    request: Request | None = None


@dataclass(frozen=True)
class Objections:
    """A party's answer to the review of this number. reasons: why it would not take part; notes: what else
    the analyst should know."""

    number: int
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteReply:
    """A site's part of a check. answered: the reasons are its own; else they are the aggregator's, for which
    there is no answer."""

    party: str
    answered: bool
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def would(self) -> bool:
        """True if the site says that it would take part."""
        return self.answered and not self.reasons


def encode_check_request(terms: str, request: Request | None = None) -> bytes:
    """Bytes of an analyst's check: the terms as JSON, signed where analysts have keys."""
    return serialised(with_request(pb.CheckRequest(terms=terms), request))


def decode_check_request(data: bytes) -> tuple[str, Request | None]:
    """The terms of a check as they were sent, unread, and who signed it. Raises PeerError."""
    message = parsed(pb.CheckRequest, data, MAX_TO_AGGREGATOR)
    return message.terms, request_from_pb(message)


def encode_review(review: Review) -> bytes:
    """Bytes of a review."""
    out = pb.Review(number=review.number, terms=review.terms)
    return serialised(with_request(out, review.request))


def decode_review(data: bytes) -> Review:
    """The review in these bytes, its terms unread, or PeerError."""
    message = parsed(pb.Review, data, MAX_FROM_AGGREGATOR)
    return Review(message.number, message.terms, request_from_pb(message))


def encode_objections(objections: Objections) -> bytes:
    """Bytes of a party's answer, of sentences that are cut to what is allowed."""
    sentences = _cut(objections.reasons), _cut(objections.notes)
    return serialised(pb.Objections(number=objections.number, reasons=sentences[0], notes=sentences[1]))


def decode_objections(data: bytes) -> Objections:
    """The answer in these bytes, or PeerError."""
    message = parsed(pb.Objections, data, MAX_OBJECTIONS)
    return Objections(message.number, _sentences(message.reasons), _sentences(message.notes))


def encode_check_reply(sites: Sequence[SiteReply]) -> bytes:
    """Bytes of the answers of all sites."""
    replies = [
        pb.SiteReply(party=site.party, answered=site.answered, reasons=site.reasons, notes=site.notes)
        for site in sites
    ]
    return serialised(pb.CheckReply(sites=replies))


def decode_check_reply(data: bytes) -> tuple[SiteReply, ...]:
    """The answers in these bytes, or PeerError."""
    message = parsed(pb.CheckReply, data, MAX_FROM_AGGREGATOR)
    return tuple(
        SiteReply(site.party, site.answered, _sentences(site.reasons), _sentences(site.notes))
        for site in bounded(message.sites, MAX_PARTIES, "sites")
    )


def _cut(sentences: Sequence[str]) -> list[str]:
    length = MAX_SENTENCE_LENGTH  # again after escapes, which make it longer
    return [quoted(sentence, length - 1)[:length] for sentence in sentences[:MAX_SENTENCES]]


def _sentences(sentences: Sequence[str]) -> tuple[str, ...]:
    for sentence in bounded(sentences, MAX_SENTENCES, "sentences"):
        length = len(sentence)
        require(length <= MAX_SENTENCE_LENGTH, f"a sentence of {length} characters")
    return tuple(sentences)
