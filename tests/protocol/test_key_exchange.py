"""How parties meet: honest ones agree; what an aggregator, or one of them, may put in between is refused."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedboost.errors import PeerError, Refused
from fedboost.privacy import packing
from fedboost.privacy.identity import Signer, issue, new_root, to_pem
from fedboost.privacy.pairwise import Handshake
from fedboost.protocol.key_exchange import NONCE_BYTES, Attempt, Credentials, greet, meet
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


@cache
def greeting(of, name=None, terms=TERMS, seed=0):
    """What a party with this signer says; fresh keys for each seed."""
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
    return meet(credentials(signer(me), denied), own, attempt_of(terms), tuple(said.values()))


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
    assert greet(None, "north", attempt_of(plain), Handshake(draw).public, draw) == b""
    met = meet(None, b"", attempt_of(plain), (b"", b"", b""))
    assert (len(met.session), met.publics) == (32, {})
    with pytest.raises(Refused, match="protection masked needs this site's keys, and it has none"):
        meet(None, b"", attempt_of(TERMS), (b"", b"", b""))


# ---- refused: who is there --------------------------------------------------------------------------------

NOT_THOSE = "the parties that were introduced are not those of the terms"
NOT_SPOKEN = NOT_THOSE + ", or not as they spoke"


def test_a_stranger():
    """Of this consortium, but not of these terms."""
    refused(with_south(greeting(signer("west"))), NOT_THOSE)
    refused(greetings() | {"west": greeting(signer("west"))}, NOT_THOSE)


def test_a_double():
    said = greetings()
    refused(said | {"south": said["east"]}, "party east was introduced twice")
    refused(said | {"south": greeting(signer("east"), seed=1)}, "party east was introduced twice")
    refused(said | {"south": greeting(signer("north"), seed=1)}, "party north was introduced twice")


def test_somebody_missing():
    said = greetings()
    del said["east"]
    refused(said, NOT_THOSE)
    refused(with_south(b""), "a party was introduced without a greeting")


def test_ones_own_greeting_missing():
    said = greetings()
    own = said.pop("north")
    refused(said | {"west": greeting(signer("west"))}, NOT_SPOKEN, own=own)


def test_ones_own_greeting_changed():
    """To one that this party said in another session, or that somebody with its key says now."""
    refused(greetings(), NOT_SPOKEN, own=greeting(signer("north"), seed=1))
    said = greetings()
    refused(
        said | {"north": changed(said["north"], NONCE, bytes(NONCE_BYTES))}, NOT_SPOKEN, own=said["north"]
    )


# ---- refused: what was said -------------------------------------------------------------------------------

WRONG = "the signature of 'south' is wrong"


def test_a_changed_public_key():
    """The aggregator stands in the middle with a key of its own."""
    own = X25519PrivateKey.generate().public_key().public_bytes_raw()
    refused(with_south(changed(greetings()["south"], PUBLIC, own)), WRONG)


def test_a_swapped_key():
    """South is given the key of East, which is a party, with all that East signed."""
    said = greetings()
    east = packing.unpack(said["east"])
    swapped = changed(said["south"], PUBLIC, east[PUBLIC])
    refused(said | {"south": swapped}, WRONG)
    swapped = changed(changed(swapped, SIGNATURE, east[SIGNATURE]), NONCE, east[NONCE])
    refused(said | {"south": swapped}, WRONG)


def test_anothers_signature():
    said = greetings()
    signature = packing.unpack(said["east"])[SIGNATURE]
    refused(said | {"south": changed(said["south"], SIGNATURE, signature)}, WRONG)
    for broken in (b"", bytes(64), b"\x30\x00"):
        refused(said | {"south": changed(said["south"], SIGNATURE, broken)}, WRONG)


def test_anothers_name():
    """East's certificate and East's signature, over South's name."""
    because = "party south showed the certificate of party east"
    refused(with_south(greeting(signer("east"), "south")), because)
    refused(with_south(changed(greetings()["east"], NAME, b"south")), because)


def test_anothers_certificate():
    """South's words and signature, with the certificate of a new key of the same name."""
    renewed = issue(*OURS, "south", "party", NOW, 10)[1]
    der = Signer("south", "party", to_pem(renewed), signer("south").key).der
    refused(with_south(changed(greetings()["south"], CERTIFICATE, der)), WRONG)


def test_other_terms():
    """What South said of other terms is no greeting under these."""
    refused(with_south(greeting(signer("south"), terms=terms(rounds=7))), WRONG)


def test_a_message_signed_for_something_else():
    south, said = signer("south"), greetings()["south"]
    name, public, nonce, *_ = packing.unpack(said)
    other = packing.pack(b"fedboost/1/attestation", TERMS.digest.encode(), name, public, nonce)
    refused(with_south(changed(said, SIGNATURE, south.sign(other))), WRONG)


def test_a_changed_nonce():
    refused(with_south(changed(greetings()["south"], NONCE, bytes(NONCE_BYTES))), WRONG)


def test_a_missing_nonce():
    """Signed as it stands, by South itself: a party that draws none could be answered with its old words."""
    draw = Random(0).randbytes
    for size in (0, NONCE_BYTES - 1, NONCE_BYTES + 1):
        public = Handshake(draw).public
        said = greet(
            credentials(signer("south")), "south", attempt_of(TERMS), public, lambda _, size=size: bytes(size)
        )
        refused(with_south(said), "the greeting of party south has no nonce")


@pytest.mark.parametrize(
    "said",
    [packing.pack(), packing.pack(b"south"), packing.pack(*[b"x"] * 6)],
    ids=["nothing", "a name alone", "one field more"],
)
def test_what_is_no_greeting(said):
    refused(with_south(said), "a party was introduced without a greeting")


@pytest.mark.parametrize("said", [b"\x00", b"hello", greeting(signer("south"))[:-1]])
def test_a_greeting_cut_short(said):
    with pytest.raises(PeerError, match=r"end within a field|without a greeting"):
        meeting(with_south(said))


def test_a_name_that_is_no_text():
    refused(
        with_south(changed(greetings()["south"], NAME, b"\xff")), "a party was introduced without a greeting"
    )


# ---- refused: whose certificate ---------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["aggregator", "analyst"])
def test_a_certificate_of_another_role(role):
    refused(
        with_south(greeting(signer("south", role))), f"party south showed the certificate of {role} south"
    )


def test_a_certificate_of_another_root():
    with pytest.raises(PeerError, match="the certificate of 'south' was issued by another consortium"):
        meeting(with_south(greeting(signer("south", root="theirs"))))


def test_a_certificate_that_expired():
    because = "the certificate of 'south' expired on 2031-05-04 00:00 UTC"
    key, certificate = issue(*OURS, "south", "party", NOW - 1.5 * DAY, 1)
    refused(with_south(greeting(Signer("south", "party", to_pem(certificate), key))), because)


def test_a_certificate_that_is_denied():
    """By this party's own list; the others', and the aggregator's, do not matter."""
    denied = serial(signer("south"))
    because = f"the certificate of 'south' is denied: its serial number {denied} is on the deny list"
    refused(greetings(), because, denied={denied})
    assert meeting(greetings(), denied={"17"})


@pytest.mark.parametrize("certificate", [b"", b"south", b"-----BEGIN CERTIFICATE-----\n"])
def test_no_certificate_at_all(certificate):
    refused(
        with_south(changed(greetings()["south"], CERTIFICATE, certificate)),
        "what was presented is not an X.509 certificate",
    )


def test_ones_own_certificate_is_held_to_the_same():
    """A party whose own certificate ran out during a long wait sees it, not only the others."""
    said, late = greetings(), replace(credentials(signer("north")), clock=lambda: NOW + 10.5 * DAY)
    with pytest.raises(PeerError, match="'north' expired on"):
        meet(late, said["north"], attempt_of(TERMS), tuple(said.values()))
