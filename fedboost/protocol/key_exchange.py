"""How parties meet: each says who it is, under which terms, and with which fresh key; all of them check all.

Promises: after `meet`, the parties that hold the same session digest agree on terms, members and keys; the
aggregator, which relays the greetings, cannot put a key of its own instead of a party's, because each
greeting is signed with the key of a certificate that every party traces to the consortium's root itself, and
is good for one attempt of one session of one request alone. The analyst who asked for the session signed its
terms.
Refuses: strangers, doubles, a key twice, another's signature, a certificate of another role, and a meeting in
which this party's own greeting was changed (PeerError).

Key confirmation needs no message of its own: only the vectors of parties that hold the same session digest
and keys add up to a sum that opens, and where there are self masks, none is given away before all shares that
were sealed under those keys were opened.
"""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from fedboost.errors import PeerError, Refused, quoted
from fedboost.privacy import packing
from fedboost.privacy.identity import Identified, Signer, identify, verify
from fedboost.privacy.packing import RandomBytes
from fedboost.privacy.pairwise import KEY_BYTES, Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.messages import Attest, Request
from fedboost.terms.reading import digest_of
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public

NONCE_BYTES = 32
PARTY, ANALYST = "party", "analyst"
SESSION, CHECK = b"fedboost/1/request", b"fedboost/1/check"
"""The wishes of an analyst: one session under some terms, or to know if sites would take part in one. A
signature for one is none for the other."""
MAX_REQUEST_AGE = timedelta(days=30)
"""So long after it was signed a request is good: sites may have to approve the terms first."""
MAX_CLOCK_SKEW = timedelta(hours=1)


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
class Attempt:
    """An attempt of a session: greetings and keys are good for it alone. request: the nonce of the analyst's
    request, empty where nothing is signed."""

    session: str
    number: int
    terms: Terms
    request: bytes = b""

    def packed(self) -> bytes:
        """All of it as a field of what is signed or hashed."""
        return packing.pack(
            self.session.encode(errors="surrogatepass"),
            packing.number(self.number),
            self.terms.digest.encode(),
            self.request,
        )


@dataclass(frozen=True)
class Meeting:
    """The agreement of all parties of an attempt. publics: party to the X25519 key that it greeted with."""

    session: bytes
    publics: dict[str, bytes]


def request(signer: Signer, terms: Terms, nonce: bytes, time: int, wish: bytes = SESSION) -> Request:
    """An analyst's signed request for one session under these terms, or for a check of them. time: seconds
    since 1970, UTC."""
    return Request(nonce, time, signer.certificate, signer.sign(_requested(wish, terms.digest, nonce, time)))


def check_request(trust: Credentials | Trust, terms: Terms, asked: Request, wish: bytes = SESSION) -> str:
    """The name of the analyst who signed a request for this wish and these terms; of terms that predict, that
    of the label holder, whose rows they are. PeerError if none did."""
    known = _signer(trust, terms.digest, asked, wish)
    holder = terms.vertical.label_holder
    if not terms.task.by_analyst and (known.role, known.name) != (PARTY, holder):
        raise PeerError(
            f"the terms are signed by {known.role} {known.name}, and a prediction is asked for by label "
            f"holder {holder} with its own certificate"
        )
    if terms.task.by_analyst and known.role != ANALYST:
        raise PeerError(f"the terms are signed by {known.role} {known.name}, which is no analyst")
    return known.name


def check_unread(trust: Credentials | Trust, text: str, asked: Request, wish: bytes = SESSION) -> str:
    """The name of whoever signed a request for this wish and terms of this text, which have not been read:
    to read them may take long. `check_request` follows, once they are. PeerError if nobody did."""
    return _signer(trust, digest_of(text), asked, wish).name


def _signer(trust: Credentials | Trust, digest: str, asked: Request, wish: bytes) -> Identified:
    """The owner of the certificate by which a request for terms with this digest is signed. PeerError."""
    known = identify(asked.certificate, trust.roots, trust.clock(), trust.denied)
    if len(asked.nonce) != NONCE_BYTES:
        raise PeerError(f"the request of {known.role} {known.name} has no nonce")
    verify(known, _requested(wish, digest, asked.nonce, asked.time), asked.signature)
    return known


def check_age(asked: Request, now: datetime) -> None:
    """Raise Refused for a request that is too old, or of a time to come."""
    try:
        age = now - datetime.fromtimestamp(asked.time, UTC)
    except (OverflowError, ValueError, OSError):
        raise PeerError("a request of a time that cannot be") from None
    if not -MAX_CLOCK_SKEW <= age <= MAX_REQUEST_AGE:
        when = "in the future" if age < -MAX_CLOCK_SKEW else f"{age.days} days ago"
        raise Refused(
            f"the analyst signed the request {when}, and one counts for {MAX_REQUEST_AGE.days} days; train "
            f"anew, or put the clocks right"
        )


def greet(
    credentials: Credentials | None, me: str, attempt: Attempt, public: bytes, draw: RandomBytes
) -> bytes:
    """This party's greeting, with its fresh public key, if the protection has it make one. Without
    credentials there is nothing to sign with: an empty one."""
    if credentials is None:
        return b""
    nonce = draw(NONCE_BYTES)
    statement = _greeting(attempt.packed(), me, public, nonce)
    return packing.pack(
        me.encode(), public, nonce, credentials.signer.certificate, credentials.signer.sign(statement)
    )


def session_digest(attempt: Attempt, greetings: Collection[bytes]) -> bytes:
    """A hash that binds keys, masks and signatures to this attempt and these greetings: 32 bytes."""
    group = attempt.terms.parties, attempt.terms.hiding.colluding
    return _digest(attempt.packed(), *group, tuple(greetings))


@lru_cache(maxsize=1)
def _digest(
    attempt: bytes, parties: tuple[str, ...], colluding: int | None, greetings: tuple[bytes, ...]
) -> bytes:
    """Kept for the next party of a simulation, which asks for the same."""
    group = Group.of(parties, colluding)
    return hashlib.sha256(
        packing.pack(b"fedboost/2/session", attempt, group.digest(), *sorted(greetings))
    ).digest()


def meet(
    credentials: Credentials | None, own: bytes, attempt: Attempt, greetings: tuple[bytes, ...]
) -> Meeting:
    """Check everybody's greeting. Raises PeerError for the first that is not right."""
    session, terms = session_digest(attempt, greetings), attempt.terms
    protection = terms.protection
    if credentials is None:
        if protection.hides:
            raise Refused(f"protection {terms.hiding.protection} needs this site's keys, and it has none")
        return Meeting(session, {})
    if own not in greetings:
        raise PeerError("the parties that were introduced are not those of the terms, or not as they spoke")
    trust = credentials.roots, tuple(sorted(credentials.denied)), credentials.clock()
    publics = dict(_publics(*trust, protection.name, attempt.packed(), greetings))
    if not set(publics) <= set(terms.parties) or len(publics) < terms.min_roster:
        raise PeerError("the parties that were introduced are not those of the terms")
    return Meeting(session, publics)


@lru_cache(maxsize=1)
def _publics(
    roots: bytes,
    denied: tuple[str, ...],
    now: datetime,
    protection: str,
    attempt: bytes,
    greetings: tuple[bytes, ...],
) -> dict[str, bytes]:
    """The X25519 key of each party; PeerError unless every greeting is right, also of a party with which this
    one shares no masks. Kept for the next party of a simulation, which checks the same."""
    trust, publics, known = Trust(roots, denied, lambda: now), dict[str, bytes](), set[bytes]()
    for greeting in greetings:
        name, greeted = _check(trust, attempt, greeting)
        public = PROTECTIONS[protection].agreement_key(greeted)
        if name in publics:
            raise PeerError(f"party {name} was introduced twice")
        if public and public in known:
            raise PeerError(f"party {name} was introduced with the key of another party")
        publics[name] = public
        known.add(public)
    return publics


def check_greeting(trust: Trust, attempt: Attempt, party: str, greeting: bytes) -> None:
    """Raise PeerError unless it is a greeting of this party that the others will accept."""
    name, public = _check(trust, attempt.packed(), greeting)
    if name != party:
        raise PeerError(f"it greets as party {quoted(name)}")
    terms, protection = attempt.terms, attempt.terms.protection
    needs_key = protection.uses_key_holder or terms.blocks.of(party) is not None
    if needs_key and len(protection.agreement_key(public)) != KEY_BYTES:
        raise PeerError("it greets without an X25519 key for its masks, or for what it relays")
    if party == terms.keyholder:
        read_public(attempt, public)


def key_context(attempt: Attempt, party: str) -> bytes:
    """What a proof of a party's key is bound to."""
    return packing.pack(b"fedboost/1/key", attempt.packed(), party.encode())


def read_public(attempt: Attempt, public: bytes) -> "Public":
    """The key that sums are encrypted under. PeerError for one that cannot be, or is too short."""
    terms = attempt.terms
    assert terms.keyholder is not None
    context = key_context(attempt, terms.keyholder)
    return terms.protection.read_public(public, terms.hiding.key_bits, context)


def public_of(attempt: Attempt, greetings: Collection[bytes]) -> "Public":
    """The key that sums are encrypted under, as the key holder greeted with it."""
    for greeting in greetings:
        name, public, *_ = packing.unpack(greeting)
        if name.decode() == attempt.terms.keyholder:
            return read_public(attempt, public)
    raise PeerError("the key holder was not introduced")


def check_attest(trust: Trust, attempt: Attempt, session: bytes, party: str, attest: Attest) -> None:
    """Raise PeerError unless this party signed what it attests."""
    signed_by = identify(attest.certificate, trust.roots, trust.clock(), trust.denied)
    if (signed_by.name, signed_by.role) != (party, PARTY):
        raise PeerError(f"signed for party {party} by {signed_by.role} {signed_by.name}")
    statement = attestation(attempt.terms, attempt.request, session, party, attest)
    verify(signed_by, statement, attest.signature)


def signed(
    credentials: Credentials | None, attempt: Attempt, session: bytes, party: str, attest: Attest
) -> Attest:
    """What a party did and was told, with its signature, where parties sign."""
    if credentials is None:
        return attest
    statement = attestation(attempt.terms, attempt.request, session, party, attest)
    signer = credentials.signer
    return replace(attest, certificate=signer.certificate, signature=signer.sign(statement))


def _check(trust: Trust, attempt: bytes, greeting: bytes) -> tuple[str, bytes]:
    try:
        name, public, nonce, certificate, signature = packing.unpack(greeting)
        party = name.decode()
    except (PeerError, ValueError):
        raise PeerError("a party was introduced without a greeting") from None
    known = identify(certificate, trust.roots, trust.clock(), trust.denied)
    if known.name != party or known.role != PARTY:
        raise PeerError(f"party {quoted(party)} showed the certificate of {known.role} {known.name}")
    if len(nonce) != NONCE_BYTES:
        raise PeerError(f"the greeting of party {party} has no nonce")
    verify(known, _greeting(attempt, party, public, nonce), signature)
    return party, public


def _greeting(attempt: bytes, party: str, public: bytes, nonce: bytes) -> bytes:
    return packing.pack(b"fedboost/2/hello", attempt, party.encode(), public, nonce)


def _requested(wish: bytes, digest: str, nonce: bytes, time: int) -> bytes:
    return packing.pack(wish, digest.encode(), nonce, packing.number(time))


def attestation(terms: Terms, request: bytes, session: bytes, party: str, attest: Attest) -> bytes:
    """The statement that a party signs at the end: it answered that many queries under the terms' protection,
    in a session that was asked for by the request with this nonce, and was told the model of this structure
    (`boosting.state.structure`); where it alone knows them, these are the thresholds of its columns, and
    where it keeps a part of the model, this is its hash.
    session: the digest of the attempt, which binds its name, number and greetings."""
    own = (attest.part,) if terms.keeps_parts else (attest.thresholds,) if terms.hides_columns else ()
    return packing.pack(
        b"fedboost/2/attestation",
        terms.digest.encode(),
        request,
        session,
        party.encode(),
        terms.hiding.protection.encode(),
        packing.number(attest.turns),
        attest.transcript,
        attest.structure,
        *own,
    )
