"""How parties meet: honest ones agree; what an aggregator, or one of them, may put in between is refused."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from raised import raised

from fedboost.errors import PeerError, Refused
from fedboost.privacy import packing
from fedboost.privacy.identity import Signer, certify, issue, new_root, to_pem
from fedboost.privacy.pairwise import Handshake
from fedboost.protocol.key_exchange import NONCE_BYTES, Attempt, Credentials, greet, hash_of, meet
from fedboost.terms.terms import Terms

NOW = datetime(2031, 5, 4, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = ("north", "south", "east")
NAME, PUBLIC, NONCE, CERTIFICATE, SIGNATURE = range(5)


@cache
def consortium(which):
    return new_root(which, NOW - 100 * DAY, 1000)


@cache
def signer(name, role="party", root="ours", since=0, days=10):
    key, certificate = issue(*consortium(root), name, role, NOW + since * DAY, days)
    return Signer(name, role, to_pem(certificate), key)


OURS = consortium("ours")


def serial(of):
    return f"{x509.load_pem_x509_certificate(of.certificate).serial_number:x}"


def terms(parties=NAMES, **settings):
    return Terms.read({"columns": {"label": "y", "numeric": ["age"]}, "parties": list(parties), **settings})


TERMS = terms()


def attempt_of(terms, session="s", number=1, request=b""):
    return Attempt(session, number, terms, request)


def credentials(of, denied=()):
    return Credentials(of, to_pem(OURS[1]), denied, lambda: NOW)


CHAINS = {}
"""Hash of a certificate -> the certificate, of all that came with a greeting."""


def sent(certificate):
    CHAINS[hash_of(certificate)] = certificate
    return hash_of(certificate)


@cache
def greeting(of, name=None, terms=TERMS, seed=0):
    """What a party with this signer says; fresh keys for each seed."""
    sent(of.certificate)
    draw = Random(f"{of.name} {seed}").randbytes
    return greet(credentials(of), name or of.name, attempt_of(terms), Handshake(draw).public, draw)


def greetings():
    return {name: greeting(signer(name)) for name in NAMES}


def changed(said, place, value):
    """A greeting with one field replaced, everything else as it was signed."""
    parts = packing.unpack(said)
    parts[place] = value
    return packing.pack(*parts)


def meeting(said, me="north", own=None, denied=(), terms=TERMS):
    """`me` meets these greetings, having said `own`, or else what is among them under its name."""
    own = said[me] if own is None else own
    return meet(credentials(signer(me), denied), own, attempt_of(terms), tuple(said.values()), CHAINS)


def refused(said, because, **more):
    """North does not meet them, and says in one line why."""
    with pytest.raises(PeerError) as caught:
        meeting(said, **more)
    assert str(caught.value) == because


def with_south(said):
    return greetings() | {"south": said}


# ---- agreed -----------------------------------------------------------------------------------------------


def test_all_parties_agree_in_whatever_order_they_are_introduced():
    said = greetings()
    backwards = dict(reversed(said.items()))
    met = [meeting(said if me == "south" else backwards, me) for me in NAMES]
    assert met[0] == met[1] == met[2]
    assert len(met[0].session) == 32
    assert met[0].publics == {name: packing.unpack(said[name])[PUBLIC] for name in NAMES}
    assert len(set(met[0].publics.values())) == 3


def test_keys_of_pairs_fit_after_a_meeting():
    shakes = {name: Handshake(Random(name).randbytes) for name in NAMES}
    said = {
        name: greet(credentials(signer(name)), name, attempt_of(TERMS), shake.public, Random(name).randbytes)
        for name, shake in shakes.items()
    }
    met = {name: meeting(said, name) for name in NAMES}
    keys = {name: shakes[name].pair_keys(name, met[name].publics, met[name].session, NAMES) for name in NAMES}
    for one in NAMES:
        assert set(keys[one]) == set(NAMES) - {one}
        assert all(keys[one][other] == keys[other][one] for other in keys[one])


def test_every_session_is_another():
    """Other keys, other terms or another number of colluding parties: another digest."""
    said = greetings()
    sessions = {meeting(said).session}
    sessions.add(meeting(said | {"south": greeting(signer("south"), seed=1)}).session)
    for settings in ({"rounds": 7}, {"colluding": 1}):
        other = terms(**settings)
        spoken = {name: greeting(signer(name), terms=other) for name in NAMES}
        sessions.add(meeting(spoken, terms=other).session)
    assert len(sessions) == 4


def test_a_certificate_issued_anew_in_between_is_another_session():
    again, certificate = issue(*OURS, "south", "party", NOW, 10)
    renewed = Signer("south", "party", to_pem(certificate), again)
    assert meeting(with_south(greeting(renewed))).session != meeting(greetings()).session


def test_without_keys_there_is_only_plain():
    plain = terms(protection="plain")
    draw = Random(0).randbytes
    names = tuple(greet(None, name, attempt_of(plain), Handshake(draw).public, draw) for name in NAMES)
    met = meet(None, names[0], attempt_of(plain), names, {})
    assert (len(met.session), met.roster, met.publics) == (32, tuple(sorted(NAMES)), {})
    with raised(Refused, "keys-missing"):
        meet(None, names[0], attempt_of(TERMS), names, {})


@pytest.mark.parametrize("south", [(), (b"",), (b"west",), (b"east",), (b"\xff",)])
def test_without_keys_the_introduced_are_those_of_the_terms(south):
    names = {name: packing.pack(name.encode()) for name in NAMES} | {"south": packing.pack(*south)}
    with pytest.raises(PeerError):
        meet(None, names["north"], attempt_of(terms(protection="plain")), tuple(names.values()), {})


# ---- refused --------------------------------------------------------------------------------

NOT_THOSE = "the introduced parties do not match the terms"
NOT_SPOKEN = "this party's greeting is missing from the introduction, or was altered"


def other_key():
    return X25519PrivateKey.generate().public_key().public_bytes_raw()


def field(party, place):
    return packing.unpack(greetings()[party])[place]


def renewed():
    """South with a new key."""
    key, certificate = issue(*OURS, "south", "party", NOW, 10)
    return Signer("south", "party", to_pem(certificate), key)


def again():
    """South with another certificate for its key."""
    own = signer("south")
    other = certify(*OURS, own.key.public_key(), "south", "party", NOW, 9)
    return Signer("south", "party", to_pem(other), own.key)


def of_another_message():
    """What South signed for something else."""
    name, public, nonce, *_ = packing.unpack(greetings()["south"])
    other = packing.pack(b"fedboost/1/attestation", TERMS.digest.encode(), name, public, nonce)
    return signer("south").sign(other)


def expired():
    key, certificate = issue(*OURS, "south", "party", NOW - 1.5 * DAY, 1)
    return Signer("south", "party", to_pem(certificate), key)


WRONG = "the signature of 'south' is invalid"
NONE = "a party's greeting is malformed"
NO_CERTIFICATE = "the presented bytes are not an X.509 certificate"
NOT_SENT = "the certificate of party south was not sent with its greeting"
HALF = b"-----BEGIN CERTIFICATE-----\n"
SHOWED = "party south presented the certificate of"
SOUTHS = {
    "a stranger, of this consortium and not of these terms": (lambda: greeting(signer("west")), NOT_THOSE),
    "a double": (lambda: greetings()["east"], "party east was introduced twice"),
    "a double that says something else": (
        lambda: greeting(signer("east"), seed=1),
        "party east was introduced twice",
    ),
    "a double of the party itself": (
        lambda: greeting(signer("north"), seed=1),
        "party north was introduced twice",
    ),
    "nothing": (lambda: b"", NONE),
    "the key of an aggregator in the middle": (lambda: southern({PUBLIC: other_key()}), WRONG),
    "the key of East": (lambda: southern({PUBLIC: field("east", PUBLIC)}), WRONG),
    "the key of East with all that East signed": (
        lambda: southern({place: field("east", place) for place in (PUBLIC, SIGNATURE, NONCE)}),
        WRONG,
    ),
    "the signature of East": (lambda: southern({SIGNATURE: field("east", SIGNATURE)}), WRONG),
    "no signature": (lambda: southern({SIGNATURE: b""}), WRONG),
    "a signature of zeros": (lambda: southern({SIGNATURE: bytes(64)}), WRONG),
    "half a signature": (lambda: southern({SIGNATURE: b"\x30\x00"}), WRONG),
    "what East signed over South's name": (lambda: greeting(signer("east"), "south"), f"{SHOWED} party east"),
    "East under South's name": (
        lambda: changed(greetings()["east"], NAME, b"south"),
        f"{SHOWED} party east",
    ),
    "the certificate of a new key": (lambda: southern({CERTIFICATE: sent(renewed().certificate)}), WRONG),
    "what South said of other terms": (lambda: greeting(signer("south"), terms=terms(rounds=7)), WRONG),
    "a signature of another message": (lambda: southern({SIGNATURE: of_another_message()}), WRONG),
    "another nonce": (lambda: southern({NONCE: bytes(NONCE_BYTES)}), WRONG),
    "no field": (packing.pack, NONE),
    "a name alone": (lambda: packing.pack(b"south"), NONE),
    "a field more": (lambda: packing.pack(*[b"x"] * 6), NONE),
    "a name that is no text": (lambda: southern({NAME: b"\xff"}), NONE),
    "an aggregator": (lambda: greeting(signer("south", "aggregator")), f"{SHOWED} aggregator south"),
    "an analyst": (lambda: greeting(signer("south", "analyst")), f"{SHOWED} analyst south"),
    "no certificate": (lambda: southern({CERTIFICATE: b""}), NOT_SENT),
    "a certificate that was not sent": (lambda: southern({CERTIFICATE: bytes(32)}), NOT_SENT),
    "another certificate of its own key": (lambda: southern({CERTIFICATE: sent(again().certificate)}), WRONG),
    "a name for a certificate": (lambda: southern({CERTIFICATE: sent(b"south")}), NO_CERTIFICATE),
    "half a certificate": (lambda: southern({CERTIFICATE: sent(HALF)}), NO_CERTIFICATE),
    "an expired certificate": (
        lambda: greeting(expired()),
        "the certificate of 'south' expired on 2031-05-04 00:00 UTC",
    ),
}


def southern(fields):
    """What South said, with other fields."""
    said = greetings()["south"]
    for place, value in fields.items():
        said = changed(said, place, value)
    return said


@pytest.mark.parametrize("south", SOUTHS)
def test_what_the_party_south_cannot_be_introduced_by(south):
    said, because = SOUTHS[south]
    refused(with_south(said()), because)


def test_other_parties_than_those_of_the_terms():
    said = greetings()
    refused(said | {"west": greeting(signer("west"))}, NOT_THOSE)
    del said["east"]
    refused(said, NOT_THOSE)


def test_ones_own_greeting_is_among_them_as_it_was_said():
    """Not one of another session, nor one that somebody with its key says now, nor one that was changed."""
    refused(greetings(), NOT_SPOKEN, own=greeting(signer("north"), seed=1))
    said = greetings()
    own = said["north"]
    refused(said | {"north": changed(own, NONCE, bytes(NONCE_BYTES))}, NOT_SPOKEN, own=own)
    del said["north"]
    refused(said | {"west": greeting(signer("west"))}, NOT_SPOKEN, own=own)


def test_a_missing_nonce():
    """Signed as it stands, by South itself: a party that draws none could be answered with its old words."""
    draw = Random(0).randbytes
    for size in (0, NONCE_BYTES - 1, NONCE_BYTES + 1):
        public = Handshake(draw).public
        said = greet(
            credentials(signer("south")), "south", attempt_of(TERMS), public, lambda _, size=size: bytes(size)
        )
        refused(with_south(said), "the greeting of party south has no nonce")


@pytest.mark.parametrize("said", [b"\x00", b"hello", greeting(signer("south"))[:-1]])
def test_a_greeting_cut_short(said):
    with raised(PeerError, "greeting-invalid"):
        meeting(with_south(said))


def test_a_certificate_of_another_root():
    with raised(PeerError, "certificate-untrusted"):
        meeting(with_south(greeting(signer("south", root="theirs"))))


def test_a_certificate_that_is_denied():
    """By this party's own list; the others', and the aggregator's, do not matter."""
    denied = serial(signer("south"))
    because = f"the certificate of 'south' is denied: its serial number {denied} is on the deny list"
    refused(greetings(), because, denied={denied})
    assert meeting(greetings(), denied={"17"})


def test_ones_own_certificate_is_held_to_the_same():
    """A party whose own certificate ran out during a long wait sees it, not only the others."""
    said, late = greetings(), replace(credentials(signer("north")), clock=lambda: NOW + 10.5 * DAY)
    with raised(PeerError, "certificate-untrusted"):
        meet(late, said["north"], attempt_of(TERMS), tuple(said.values()), CHAINS)
