"""The key exchange: every party sends the others a signed greeting with its name and a fresh key, and checks
all greetings.

Guarantees: after `meet`, parties with the same session digest agree on terms, members and keys. The
aggregator relays the greetings but cannot replace a party's key with its own. Each greeting is signed with a
certified key, and every party itself checks the certificate against the consortium's root. A greeting is
valid only for one attempt of one session, which one request started. The analyst who requested the session
has signed its terms.
Raises: PeerError for an unknown party, a party or key that appears twice, a signature by another party, a
certificate for another role, and an introduction that lacks this party's own greeting.

Key confirmation needs no separate message: only vectors of parties with the same session digest and keys add
up to a sum that can be opened. If there are self masks, none is disclosed before all shares sealed under
these keys have been opened."""

import hashlib
from collections.abc import Callable, Collection, Mapping
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
from fedboost.protocol.messages import Attest, Join, Request
from fedboost.terms.reading import digest_of
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public

NONCE_BYTES = 32
PARTY, ANALYST = "party", "analyst"
SESSION, CHECK = b"fedboost/1/request", b"fedboost/1/check"
"""Prefixes of the text that an analyst signs to request a session or a preflight. A signature for one is not
valid for the other."""
MAX_REQUEST_AGE = timedelta(days=30)
"""Time for which a request is valid after it was signed. This time is long because sites may have to approve
the terms first."""
MAX_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class Credentials:
    """A party's own identity and the certificates that it trusts.

    signer: the party's signing key and certificate; roots: trusted root certificates (PEM); denied: serial
    numbers of certificates that are not accepted; clock: function that returns the current time, because a
    session may outlast a certificate."""

    signer: Signer
    roots: bytes
    denied: Collection[str]
    clock: Callable[[], datetime]


@dataclass(frozen=True)
class Trust:
    """Certificates that an aggregator trusts. The aggregator itself signs nothing. The fields are as in
    `Credentials`."""

    roots: bytes
    denied: Collection[str]
    clock: Callable[[], datetime]


@dataclass(frozen=True)
class Attempt:
    """One attempt to assemble the parties of a session, with fresh keys. Greetings and keys are valid only
    for this attempt. request: nonce of the analyst's request, empty if requests are not signed."""

    session: str
    number: int
    terms: Terms
    request: bytes = b""

    def packed(self) -> bytes:
        """Return the attempt encoded as one field of a signed or hashed text."""
        return packing.pack(
            self.session.encode(errors="surrogatepass"),
            packing.number(self.number),
            self.terms.digest.encode(),
            self.request,
        )


@dataclass(frozen=True)
class AgreedAttempt:
    """What the parties of an attempt agree on. session: the attempt's digest, 32 bytes; roster: the parties,
    sorted; publics: party -> its X25519 public key, empty if the parties have no credentials."""

    session: bytes
    roster: tuple[str, ...]
    publics: dict[str, bytes]


def request(signer: Signer, terms: Terms, nonce: bytes, time: int, wish: bytes = SESSION) -> Request:
    """Sign a request for a session under these terms, or for a preflight. nonce: 32 fresh bytes; time:
    seconds since 1970, UTC; wish: SESSION or CHECK."""
    return Request(nonce, time, signer.certificate, signer.sign(_requested(wish, terms.digest, nonce, time)))


def check_request(trust: Credentials | Trust, terms: Terms, asked: Request, wish: bytes = SESSION) -> str:
    """Return the name of the analyst who signed a request for these terms. If the session predicts rows, the
    label holder must sign instead of an analyst, because the rows are its own.

    wish: SESSION or CHECK. Raises PeerError if someone else signed, or if the signature is invalid."""
    known = _signer(trust, terms.digest, asked, wish)
    holder = terms.vertical.label_holder
    if not terms.task.by_analyst and (known.role, known.name) != (PARTY, holder):
        raise PeerError(
            "request-signer",
            f"the terms were signed by {known.role} {known.name}, but label holder {holder} must request a "
            f"prediction with its own certificate",
        )
    if terms.task.by_analyst and known.role != ANALYST:
        raise PeerError(
            "request-signer", f"the terms were signed by {known.role} {known.name}, not by an analyst"
        )
    return known.name


def check_unread(trust: Credentials | Trust, text: str, asked: Request, wish: bytes = SESSION) -> str:
    """Check the signature of a request and return the signer's name. Parsing the terms may take a long time,
    so call this first and `check_request` afterwards. text: the terms as canonical JSON. Raises PeerError if
    the signature is invalid."""
    return _signer(trust, digest_of(text), asked, wish).name


def _signer(trust: Credentials | Trust, digest: str, asked: Request, wish: bytes) -> Identified:
    """Return the signer of a request for terms with this digest. Raises PeerError if the request is
    invalid."""
    known = identify(asked.certificate, trust.roots, trust.clock(), trust.denied)
    if len(asked.nonce) != NONCE_BYTES:
        raise PeerError("request-nonce-missing", f"the request of {known.role} {known.name} has no nonce")
    verify(known, _requested(wish, digest, asked.nonce, asked.time), asked.signature)
    return known


def check_age(asked: Request, now: datetime) -> None:
    """Raise Refused if a request is too old or dated in the future, and PeerError if it has no valid time."""
    try:
        age = now - datetime.fromtimestamp(asked.time, UTC)
    except (OverflowError, ValueError, OSError):
        raise PeerError("request-time-invalid", "the request has an invalid time") from None
    if not -MAX_CLOCK_SKEW <= age <= MAX_REQUEST_AGE:
        when = "in the future" if age < -MAX_CLOCK_SKEW else f"{age.days} days ago"
        raise Refused(
            "request-too-old",
            f"the analyst signed the request {when}, but a request is valid only for {MAX_REQUEST_AGE.days} "
            f"days; train again, or correct the clocks",
        )


def greet(
    credentials: Credentials | None, me: str, attempt: Attempt, public: bytes, draw: RandomBytes
) -> bytes:
    """Return this party's signed greeting with its fresh public keys. The greeting contains only the party's
    name if the party has no credentials, because there is no key to sign with."""
    if credentials is None:
        return packing.pack(me.encode())
    nonce, certificate = draw(NONCE_BYTES), hash_of(credentials.signer.certificate)
    statement = _greeting(attempt.packed(), me, public, nonce, certificate)
    return packing.pack(me.encode(), public, nonce, certificate, credentials.signer.sign(statement))


def hash_of(certificate: bytes) -> bytes:
    """Return the SHA-256 hash of a certificate chain, which replaces the chain in a greeting."""
    return hashlib.sha256(certificate).digest()


def digest_of_certificates(hashes: Collection[bytes]) -> bytes:
    """Return the 32-byte hash of the certificates with these hashes, in any order; empty if there are
    none."""
    return hashlib.sha256(b"".join(sorted(hashes))).digest() if hashes else b""


def session_digest(attempt: Attempt, greetings: Collection[bytes]) -> bytes:
    """Return the 32-byte hash that binds keys, masks and signatures to this attempt and these greetings."""
    group = attempt.terms.parties, attempt.terms.hiding.colluding
    return _digest(attempt.packed(), *group, tuple(greetings))


@lru_cache(maxsize=1)
def _digest(
    attempt: bytes, parties: tuple[str, ...], colluding: int | None, greetings: tuple[bytes, ...]
) -> bytes:
    """Compute `session_digest`. Cached because all parties of a simulation need the same digest."""
    group = Group.of(parties, colluding)
    return hashlib.sha256(
        packing.pack(b"fedboost/2/session", attempt, group.digest(), *sorted(greetings))
    ).digest()


def meet(
    credentials: Credentials | None,
    own: bytes,
    attempt: Attempt,
    greetings: tuple[bytes, ...],
    certificates: Mapping[bytes, bytes],
) -> AgreedAttempt:
    """Check all parties' greetings and return what the parties agree on.

    Args:
        credentials: this party's credentials, or None.
        own: this party's greeting.
        attempt: the attempt.
        greetings: the greetings of all parties.
        certificates: hash of a certificate chain -> the chain, for all parties.

    Raises PeerError for the first invalid greeting, and Refused if the protection needs keys that this site
    lacks."""
    session, terms = session_digest(attempt, greetings), attempt.terms
    protection = terms.protection
    if credentials is None and protection.hides:
        raise Refused(
            "keys-missing",
            f"protection {terms.hiding.protection} needs this site's keys, but the site has none",
        )
    if own not in greetings:
        raise PeerError(
            "introduction-changed", "this party's greeting is missing from the introduction, or was altered"
        )
    if credentials is None:
        names, publics = [_name_of(greeting) for greeting in greetings], dict[str, bytes]()
    else:
        trust = credentials.roots, tuple(sorted(credentials.denied)), credentials.clock()
        known = tuple(certificates.items())
        publics = dict(_publics(*trust, protection.name, attempt.packed(), greetings, known))
        names = [*publics]
    roster = tuple(sorted({*names}))
    if not {*roster} <= {*terms.parties} or not terms.min_roster <= len(roster) == len(names):
        raise PeerError("introduction-incomplete", "the introduced parties do not match the terms")
    return AgreedAttempt(session, roster, publics)


def _name_of(greeting: bytes) -> str:
    """Return the name in a greeting, whose signature is not checked. Raises PeerError if it has none."""
    try:
        return packing.unpack(greeting)[0].decode()
    except (PeerError, ValueError, IndexError):
        raise PeerError("greeting-invalid", "a party's greeting is malformed") from None


@lru_cache(maxsize=1)
def _publics(
    roots: bytes,
    denied: tuple[str, ...],
    now: datetime,
    protection: str,
    attempt: bytes,
    greetings: tuple[bytes, ...],
    certificates: tuple[tuple[bytes, bytes], ...],
) -> dict[str, bytes]:
    """Return the X25519 key of each party. Raises PeerError unless every greeting is valid, including those
    of parties that share no masks with this one. Cached because all parties of a simulation check the same
    greetings."""
    trust, publics, known = Trust(roots, denied, lambda: now), dict[str, bytes](), set[bytes]()
    chains = dict(certificates)
    for greeting in greetings:
        name, greeted = _check(trust, attempt, greeting, chains)
        public = PROTECTIONS[protection].agreement_key(greeted)
        if name in publics:
            raise PeerError("party-repeated", f"party {name} was introduced twice")
        if public and public in known:
            raise PeerError("key-repeated", f"party {name} was introduced with the key of another party")
        publics[name] = public
        known.add(public)
    return publics


def check_greeting(trust: Trust, attempt: Attempt, party: str, join: Join) -> None:
    """Raise PeerError unless the greeting is from this party and the other parties will accept it."""
    if (name := _name_of(join.greeting)) != party:
        raise PeerError("greeting-party", f"its greeting names party {quoted(name)}")
    chains = {hash_of(join.certificate): join.certificate}
    _, public = _check(trust, attempt.packed(), join.greeting, chains)
    terms, protection = attempt.terms, attempt.terms.protection
    needs_key = protection.uses_key_holder or terms.relays_to(party)
    if needs_key and len(protection.agreement_key(public)) != KEY_BYTES:
        raise PeerError("greeting-key-missing", "its greeting lacks an X25519 key for masks or relays")
    if party == terms.keyholder:
        read_public(attempt, public)


def key_context(attempt: Attempt, party: str) -> bytes:
    """Return the context to which a party's key proof is bound."""
    return packing.pack(b"fedboost/1/key", attempt.packed(), party.encode())


def read_public(attempt: Attempt, public: bytes) -> "Public":
    """Decode the public key with which sums are encrypted. Raises PeerError if it is invalid or too short."""
    terms = attempt.terms
    assert terms.keyholder is not None
    context = key_context(attempt, terms.keyholder)
    return terms.protection.read_public(public, terms.hiding.key_bits, context)


def public_of(attempt: Attempt, greetings: Collection[bytes]) -> "Public":
    """Return the public key with which sums are encrypted, taken from the key holder's greeting. Raises
    PeerError if no greeting is from the key holder."""
    for greeting in greetings:
        name, public, *_ = packing.unpack(greeting)
        if name.decode() == attempt.terms.keyholder:
            return read_public(attempt, public)
    raise PeerError("key-holder-not-introduced", "the key holder was not introduced")


def check_attest(trust: Trust, attempt: Attempt, session: bytes, party: str, attest: Attest) -> None:
    """Raise PeerError unless the party itself signed its attestation. session: digest of the attempt."""
    signed_by = identify(attest.certificate, trust.roots, trust.clock(), trust.denied)
    if (signed_by.name, signed_by.role) != (party, PARTY):
        raise PeerError(
            "attest-signer", f"the signer is {signed_by.role} {signed_by.name}, not party {party}"
        )
    statement = attestation(attempt.terms, attempt.request, session, party, attest)
    verify(signed_by, statement, attest.signature)


def signed(
    credentials: Credentials | None, attempt: Attempt, session: bytes, party: str, attest: Attest
) -> Attest:
    """Return the attestation with the party's signature, or unchanged if the party has no credentials.
    session: digest of the attempt."""
    if credentials is None:
        return attest
    statement = attestation(attempt.terms, attempt.request, session, party, attest)
    signer = credentials.signer
    return replace(attest, certificate=signer.certificate, signature=signer.sign(statement))


def _check(
    trust: Trust, attempt: bytes, greeting: bytes, certificates: Mapping[bytes, bytes]
) -> tuple[str, bytes]:
    """Return the party's name and public keys in a greeting. certificates: hash -> certificate chain. Raises
    PeerError if the greeting is invalid."""
    try:
        name, public, nonce, certificate, signature = packing.unpack(greeting)
        party = name.decode()
    except (PeerError, ValueError):
        raise PeerError("greeting-invalid", "a party's greeting is malformed") from None
    if certificate not in certificates:
        raise PeerError(
            "certificate-not-sent", f"the certificate of party {quoted(party)} was not sent with its greeting"
        )
    known = identify(certificates[certificate], trust.roots, trust.clock(), trust.denied)
    if known.name != party or known.role != PARTY:
        raise PeerError(
            "greeting-certificate",
            f"party {quoted(party)} presented the certificate of {known.role} {known.name}",
        )
    if len(nonce) != NONCE_BYTES:
        raise PeerError("greeting-nonce-missing", f"the greeting of party {party} has no nonce")
    verify(known, _greeting(attempt, party, public, nonce, certificate), signature)
    return party, public


def _greeting(attempt: bytes, party: str, public: bytes, nonce: bytes, certificate: bytes) -> bytes:
    return packing.pack(b"fedboost/3/hello", attempt, party.encode(), public, nonce, certificate)


def _requested(wish: bytes, digest: str, nonce: bytes, time: int) -> bytes:
    return packing.pack(wish, digest.encode(), nonce, packing.number(time))


def attestation(terms: Terms, request: bytes, session: bytes, party: str, attest: Attest) -> bytes:
    """Encode the statement that a party signs at the end of a session. It states that the party answered
    `attest.turns` queries under the terms' protection, in the session that was requested with the nonce
    `request`. The statement contains the hash of the party's view of the model (`boosting.state.structure`).
    It also contains the thresholds of the party's columns if no other party knows them, and the hash of the
    model part that the party keeps, if any.

    session: digest of the attempt, which depends on the attempt's name, number and greetings."""
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
