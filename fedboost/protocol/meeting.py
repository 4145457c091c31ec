"""How parties meet: each says who it is, under which terms, and with which fresh key; all of them check all.

Promises: after `meet`, the parties that hold the same session digest agree on terms, members and keys; the
aggregator, which relays the greetings, cannot put a key of its own in the place of a party's, because each
greeting is signed with the key of a certificate that every party traces to the consortium's root itself.
Refuses: strangers, doubles, another's signature, a certificate of another role, and a meeting in which this
party's own greeting was changed (PeerError).

Key confirmation needs no message of its own: the first share a party receives (`privacy.masked`) is sealed
under a key derived from the session digest, and no self mask is given away before all shares were opened.
"""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from fedboost.errors import PeerError, Refused, quoted
from fedboost.privacy import fields, identity
from fedboost.privacy.encrypted import Public, agreement_key, scheme_key, scheme_of
from fedboost.privacy.identity import Signer
from fedboost.privacy.pairwise import KEY_BYTES, Group
from fedboost.privacy.shamir import Draw
from fedboost.protocol.messages import Attest
from fedboost.protocol.terms import Terms

NONCE_BYTES = 32
PARTY = "party"


@dataclass(frozen=True)
class Credentials:
    """Who a party is and whom it trusts: its signing key, the roots (PEM), denied serials, and a
    clock: a session may last longer than a certificate."""

    signer: Signer
    roots: bytes
    denied: Collection[str]
    clock: Callable[[], datetime]


@dataclass(frozen=True)
class Trust:
    """Whom an aggregator trusts that signs nothing itself: the roots (PEM), denied serials, the time."""

    roots: bytes
    denied: Collection[str]
    clock: Callable[[], datetime]


@dataclass(frozen=True)
class Meeting:
    """What all parties of a session agree on."""

    session: bytes
    publics: dict[str, bytes]


def greet(credentials: Credentials | None, me: str, terms: Terms, public: bytes, draw: Draw) -> bytes:
    """This party's greeting, with its fresh public key, if the protection has it make one. Without
    credentials there is nothing to sign with: an empty one."""
    if credentials is None:
        return b""
    nonce = draw(NONCE_BYTES)
    said = _said(terms, me, public, nonce)
    return fields.pack(
        me.encode(), public, nonce, credentials.signer.certificate, credentials.signer.sign(said)
    )


def session_digest(terms: Terms, greetings: Collection[bytes]) -> bytes:
    """What binds keys, masks and signatures to these terms and these greetings: 32 bytes."""
    group = Group.of(terms.parties, terms.colluding)
    return hashlib.sha256(
        fields.pack(b"fedboost/1/session", terms.digest.encode(), group.digest(), *sorted(greetings))
    ).digest()


def meet(credentials: Credentials | None, own: bytes, terms: Terms, greetings: tuple[bytes, ...]) -> Meeting:
    """Check everybody's greeting. Raises PeerError for the first that is not right."""
    session = session_digest(terms, greetings)
    if credentials is None:
        if terms.hides:
            raise Refused(f"protection {terms.protection} needs this site's keys, and it has none")
        return Meeting(session, {})
    if own not in greetings:
        raise PeerError("the parties that were introduced are not those of the terms, or not as they spoke")
    publics = {}
    for greeting in greetings:
        name, public = _check(credentials, terms, greeting)
        if name in publics:
            raise PeerError(f"party {name} was introduced twice")
        publics[name] = public
    if not set(publics) <= set(terms.parties) or len(publics) < terms.fewest:
        raise PeerError("the parties that were introduced are not those of the terms")
    return Meeting(session, publics)


def check_greeting(trust: Trust, terms: Terms, party: str, greeting: bytes) -> None:
    """Raise PeerError unless it is a greeting of this party that the others will accept."""
    name, public = _check(trust, terms, greeting)
    if name != party:
        raise PeerError(f"it greets as party {quoted(name)}")
    if terms.encrypts and len(agreement_key(public)) != KEY_BYTES:
        raise PeerError("it greets without an X25519 key for its masks")
    if party == terms.keyholder:
        read_public(terms, public)


def read_public(terms: Terms, public: bytes) -> Public:
    """The key that sums are encrypted under. PeerError for one that cannot be, or is too short."""
    return scheme_of(terms.protection).read_public(scheme_key(public), terms.key_bits)


def public_of(terms: Terms, greetings: Collection[bytes]) -> Public:
    """The key that sums are encrypted under, as the key holder greeted with it."""
    for greeting in greetings:
        name, public, *_ = fields.unpack(greeting)
        if name.decode() == terms.keyholder:
            return read_public(terms, public)
    raise PeerError("the key holder was not introduced")


def check_attest(trust: Trust, terms: Terms, session: bytes, party: str, attest: Attest) -> None:
    """Raise PeerError unless this party signed what it attests."""
    signed_by = identity.identify(attest.certificate, trust.roots, trust.clock(), trust.denied)
    if (signed_by.name, signed_by.role) != (party, PARTY):
        raise PeerError(f"signed for party {party} by {signed_by.role} {signed_by.name}")
    told = attest.turns, attest.transcript, attest.structure
    identity.verify(signed_by, attestation(terms, session, party, *told), attest.signature)


def _check(credentials: Credentials | Trust, terms: Terms, greeting: bytes) -> tuple[str, bytes]:
    try:
        name, public, nonce, certificate, signature = fields.unpack(greeting)
        party = name.decode()
    except (PeerError, ValueError):
        raise PeerError("a party was introduced without a greeting") from None
    known = identity.identify(certificate, credentials.roots, credentials.clock(), credentials.denied)
    if known.name != party or known.role != PARTY:
        raise PeerError(f"party {quoted(party)} showed the certificate of {known.role} {known.name}")
    if len(nonce) != NONCE_BYTES:
        raise PeerError(f"the greeting of party {party} has no nonce")
    identity.verify(known, _said(terms, party, public, nonce), signature)
    return party, public


def _said(terms: Terms, party: str, public: bytes, nonce: bytes) -> bytes:
    return fields.pack(b"fedboost/1/hello", terms.digest.encode(), party.encode(), public, nonce)


def attestation(
    terms: Terms, session: bytes, party: str, turns: int, transcript: bytes, structure: bytes
) -> bytes:
    """What a party signs at the end: that it answered so many questions under the terms' protection, and was
    told the model of this structure (`progress.structure`)."""
    return fields.pack(
        b"fedboost/1/attestation",
        terms.digest.encode(),
        session,
        party.encode(),
        terms.protection.encode(),
        fields.number(turns),
        transcript,
        structure,
    )
