"""Certificates: who is believed, and everybody who is not."""

import warnings
from datetime import timedelta
from functools import cache

import pytest
from certificates import (
    CA,
    CLIENT,
    DAY,
    NORTH,
    NOW,
    ROOT,
    ROOT_KEY,
    ROOTS,
    SERVER,
    authority,
    certificate_of,
    issued,
    key_of,
    refused,
    subject_of,
    usage,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity import (
    MAX_CHAIN_BYTES,
    ROLES,
    SERVER_NAME,
    Signer,
    identify,
    issue,
    new_root,
    serial_of,
    to_pem,
    verify,
)


def leaf(*extensions, key="p256", names=("north",), units=("party",), **more):
    """A leaf under ROOT."""
    return certificate_of(
        key_of(key),
        ROOT_KEY,
        ROOT.subject,
        subject_of(names, units),
        [(e, False) for e in extensions],
        **more,
    )


class Chain:
    """root -> middle -> leaf, of P-256 keys; `root` and `middle` are what `authority` takes more."""

    def __init__(self, root=None, middle=None, on_leaf=()):
        root_key, middle_key = key_of("p256", "root"), key_of("p256", "middle")
        self.root = authority("root", root_key, **(root or {}))
        self.middle = authority("middle", middle_key, root_key, self.root.subject, **(middle or {}))
        self.leaf = certificate_of(key_of("p256"), middle_key, self.middle.subject, None, on_leaf)


# ---- believed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["north", "Ärzte Süd", "x", "é" * 32])
def test_whoever_was_issued_a_certificate_is_believed(name, role):
    _, certificate = issued(name, role)
    holder = identify(to_pem(certificate), ROOTS, NOW, ())
    assert (holder.name, holder.role) == (name, role)
    assert holder.serial == f"{certificate.serial_number:x}"
    assert identify(certificate.public_bytes(Encoding.DER), ROOTS, NOW, ()) == holder


def test_any_of_several_roots_will_do():
    _, other = new_root("other", NOW, 10)
    assert identify(NORTH.der, to_pem(other, ROOT), NOW, ()).name == "north"
    assert identify(NORTH.der, to_pem(ROOT, other), NOW, ()).name == "north"


def test_a_root_renewed_with_its_key_stands_beside_the_expired_one():
    old = authority("root", key_of("p256", "root"), days=-0.5)
    new = authority("root", key_of("p256", "root"))
    certificate = certificate_of(key_of("p256"), key_of("p256", "root"), new.subject)
    for roots in (to_pem(old, new), to_pem(new, old)):
        assert identify(to_pem(certificate), roots, NOW, ()).name == "north"
    refused(certificate, "root", "expired", roots=to_pem(old))


@pytest.mark.parametrize("key", ["p256", "p384", "rsa", "ed25519"])
@pytest.mark.parametrize("root", ["p256", "p384", "rsa", "ed25519"])
def test_keys_of_another_infrastructure_are_believed_and_sign(root, key):
    root_key = key_of(root, "root")
    own = authority("root", root_key, digest="sha384")
    certificate = certificate_of(key_of(key), root_key, own.subject, digest="sha384")
    holder = identify(to_pem(certificate), to_pem(own), NOW, ())
    signature = Signer("north", "party", to_pem(certificate), key_of(key)).sign(b"message")
    verify(holder, b"message", signature)
    for wrong in (b"", b"messagf", b"message\x00"):
        with raised(PeerError, "signature-invalid"):
            verify(holder, wrong, signature)


def test_intermediates_are_followed_to_the_root():
    chain = Chain()
    roots = to_pem(chain.root)
    assert identify(to_pem(chain.leaf, chain.middle), roots, NOW, ()).name == "north"
    refused(chain.leaf, "another consortium", "CN=middle", roots=roots)
    refused(to_pem(chain.middle, chain.leaf), "authority", roots=roots)


NORTH_CERTIFICATE = x509.load_pem_x509_certificate(NORTH.certificate)


def test_other_organizational_units_do_not_matter():
    assert identify(to_pem(leaf(units=("cardiology", "analyst"))), ROOTS, NOW, ()).role == "analyst"


# ---- refused ----------------------------------------------------------------------------------------


@given(st.integers(-3 * 86_400, 13 * 86_400))
def test_a_certificate_counts_between_its_dates_only(seconds):
    root = to_pem(new_root_of_old())
    certificate, now = certificate_for_dates(), NOW + timedelta(seconds=seconds)
    if -300 <= seconds <= 10 * 86_400:
        assert identify(certificate, root, now, ()).name == "north"
    elif seconds > 0:
        refused(certificate, "'north'", "expired on 2031-05-14 12:00 UTC", roots=root, now=now)
    else:
        refused(certificate, "'north'", "not valid before 2031-05-04 11:55 UTC", roots=root, now=now)


@cache
def old_consortium():
    return new_root("old", NOW - 100 * DAY, 1000)


def new_root_of_old():
    return old_consortium()[1]


@cache
def certificate_for_dates():
    return to_pem(issue(*old_consortium(), "north", "party", NOW, 10)[1])


@pytest.mark.parametrize("seconds", [-301, -300, 864_000, 864_001])
def test_the_dates_count_to_the_second(seconds):
    certificate, now = certificate_for_dates(), NOW + timedelta(seconds=seconds)
    if seconds in (-300, 864_000):
        assert identify(certificate, to_pem(new_root_of_old()), now, ()).name == "north"
    else:
        refused(certificate, "'north'", roots=to_pem(new_root_of_old()), now=now)


def test_the_dates_of_the_root_count_too():
    refused(leaf(days=2000), "root", "expired on", now=NOW + 1001 * DAY)


def test_another_consortium_of_the_same_name_is_another_root():
    _, same = new_root("heart study", NOW, 1000)
    refused(NORTH.der, "'north'", "another consortium", "heart study", roots=to_pem(same))


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_no_byte_of_a_certificate_can_be_changed(bit):
    """But for the count of the signature's unused bits, which says nothing."""
    unused = len(NORTH.der) - len(NORTH_CERTIFICATE.signature) - 1
    for place in {*range(len(NORTH.der))} - {unused}:
        changed = bytearray(NORTH.der)
        changed[place] ^= bit
        with pytest.raises(PeerError):
            identify(bytes(changed), ROOTS, NOW, ())


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda b: b"-----BEGIN CERTIFICATE-----\n" + b))
def test_what_is_no_certificate_is_refused(data):
    refused(data, "not an X.509 certificate")


@given(st.integers(0, len(NORTH.der) - 1))
def test_part_of_a_certificate_is_none(end):
    refused(NORTH.der[:end], "not an X.509 certificate")


def test_more_than_a_certificate_is_none():
    refused(NORTH.der + b"\x00", "not an X.509 certificate")


def test_a_party_is_no_authority():
    fake = certificate_of(
        key_of("p256", "fake"), NORTH.key, NORTH_CERTIFICATE.subject, subject_of(("south",))
    )
    refused(to_pem(fake, NORTH_CERTIFICATE), "'north'", "is not allowed to issue")
    refused(fake, "another consortium")


def test_an_authority_is_no_party():
    refused(ROOT, "authority")
    refused(leaf(x509.BasicConstraints(True, None)), "'north'", "authority")


@pytest.mark.parametrize("written", ["{:x}", "{:X}", "0x{:x}", "000{:x}"])
def test_a_denied_serial_number_is_refused_however_it_is_written(written):
    serial = NORTH_CERTIFICATE.serial_number
    refused(NORTH.der, "'north'", "denied", f"{serial:x}", denied=[written.format(serial)])
    other = written.format(serial + 1)
    assert identify(NORTH.der, ROOTS, NOW, {other, "17"}).name == "north"


def test_a_denied_serial_number_may_have_colons():
    digits = f"{NORTH_CERTIFICATE.serial_number:040x}"
    refused(NORTH.der, "denied", denied=[":".join(digits[i : i + 2] for i in range(0, 40, 2))])
    assert serial_of("0A:bC") == "abc"


@pytest.mark.parametrize("text", ["", "north", "12 34", "0x", "12:", "-1", "1_0"])
def test_a_deny_list_of_something_else_is_an_error_not_ignored(text):
    with raised(ConfigError, "certificate-serial-invalid"):
        identify(NORTH.der, ROOTS, NOW, [text])


@pytest.mark.parametrize("units", [(), ("doctor",), ("Party",), ("party", "aggregator"), ("party", "party")])
def test_a_role_must_be_known_and_the_only_one(units):
    refused(leaf(units=units), "'north'", "role", *ROLES)


@pytest.mark.parametrize("names", [(), ("north", "south"), ("n" * 65,), ("é" * 33,), ("nor\nth",)])
def test_a_name_must_be_one_and_fit(names):
    refused(leaf(names=names), "no valid name", "64")


def test_the_aggregator_must_have_the_name_that_clients_dial():
    other = x509.SubjectAlternativeName([x509.DNSName("fed.example.org")])
    refused(leaf(other, units=("aggregator",)), "'north'", SERVER_NAME)
    refused(leaf(units=("aggregator",)), SERVER_NAME)


@pytest.mark.parametrize("name", [SERVER_NAME, SERVER_NAME.upper(), "*.fedboost", SERVER_NAME + "."])
@pytest.mark.parametrize("role", ["party", "analyst"])
def test_nobody_else_may_have_it(role, name):
    names = x509.SubjectAlternativeName([x509.DNSName("fed.example.org"), x509.DNSName(name)])
    refused(leaf(names, units=(role,)), "'north'", SERVER_NAME)
    refused(leaf(names=(name,), units=(role,)), SERVER_NAME)
    mail = x509.SubjectAlternativeName([x509.RFC822Name("north@example.org")])
    refused(leaf(mail, names=(name,), units=(role,)), SERVER_NAME)


def test_a_party_may_be_called_like_it_where_tls_does_not_look():
    assert identify(to_pem(issued(SERVER_NAME)[1]), ROOTS, NOW, ()).role == "party"


def test_what_a_certificate_may_be_used_for_counts():
    server_names = x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)])
    for role, allowed, names in [("party", CLIENT, ()), ("aggregator", SERVER, (server_names,))]:
        other = SERVER if allowed == CLIENT else CLIENT
        assert identify(to_pem(leaf(x509.ExtendedKeyUsage([allowed]), *names, units=(role,))), ROOTS, NOW, ())
        refused(leaf(x509.ExtendedKeyUsage([other]), *names, units=(role,)), "extendedKeyUsage")
    refused(leaf(usage(key_agreement=True)), "digitalSignature")
    assert identify(to_pem(leaf(usage(digital_signature=True))), ROOTS, NOW, ())


def test_constraints_that_are_not_understood_are_refused():
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    make = {"key": key_of("p256"), "issuer_key": ROOT_KEY, "issuer": ROOT.subject}
    refused(certificate_of(**make, extensions=[(unknown, True)]), "'north'", "1.2.3.4")
    assert identify(to_pem(certificate_of(**make, extensions=[(unknown, False)])), ROOTS, NOW, ())
    only_east = x509.NameConstraints([x509.DNSName("east.example.org")], None)
    chain = Chain(middle={"extensions": [CA, (only_east, False)]})
    refused(to_pem(chain.leaf, chain.middle), "middle", "constraint", roots=to_pem(chain.root))


def test_weak_keys_and_signatures_are_refused():
    refused(leaf(key="weak rsa"), "'north'", "1024", "2048")
    refused(leaf(key="p224"), "'north'", "224", "256")
    key = key_of("weak rsa", "root")
    own = authority("root", key)
    refused(certificate_of(key_of("p256"), key, own.subject), "root", "1024", roots=to_pem(own))


def over_sha1(certificate, key):
    """A certificate with an RSA signature over SHA-1 instead of SHA-256: the library issues none."""
    sha256, sha1 = (bytes.fromhex("2a864886f70d0101") + last for last in (b"\x0b", b"\x05"))
    old = certificate.tbs_certificate_bytes
    new = old.replace(sha256, sha1)
    whole = certificate.public_bytes(Encoding.DER).replace(old, new).replace(sha256, sha1)
    whole = whole.replace(certificate.signature, key.sign(new, padding.PKCS1v15(), hashes.SHA1()))
    made = x509.load_der_x509_certificate(whole)
    assert made.signature_hash_algorithm.name == "sha1"
    return made


def test_a_signature_over_sha1_is_refused():
    """By newer libraries before it is looked at here. That of an old root over itself does not matter."""
    key = key_of("rsa", "root")
    root = authority("root", key)
    certificate = certificate_of(key_of("p256"), key, root.subject)
    refused(over_sha1(certificate, key), "'north'", roots=to_pem(root))
    assert identify(to_pem(certificate), to_pem(over_sha1(root, key)), NOW, ()).name == "north"


def test_a_key_of_an_unknown_kind_is_refused():
    refused(leaf(key="ed448"), "'north'", "EC", "RSA", "Ed25519")


MIDDLES = {
    "no authority": ({"extensions": ()}, "is not allowed to issue"),
    "an authority by name only": (
        {"extensions": [(x509.BasicConstraints(False, None), True)]},
        "is not allowed to issue",
    ),
    "may not sign": ({"extensions": [CA, (usage(digital_signature=True), True)]}, "is not allowed to issue"),
    "for servers": ({"extensions": [CA, (x509.ExtendedKeyUsage([SERVER]), False)]}, "extendedKeyUsage"),
    "expired": ({"days": -0.5}, "expired"),
}


@pytest.mark.parametrize("case", MIDDLES)
def test_a_chain_is_as_good_as_its_intermediate(case):
    more, said = MIDDLES[case]
    chain = Chain(middle=more)
    refused(to_pem(chain.leaf, chain.middle), said, roots=to_pem(chain.root))


def test_a_root_may_limit_the_length_of_chains():
    for length, fine in [(0, False), (1, True)]:
        chain = Chain(root={"extensions": [(x509.BasicConstraints(True, length), True)]})
        if fine:
            assert identify(to_pem(chain.leaf, chain.middle), to_pem(chain.root), NOW, ())
        else:
            refused(to_pem(chain.leaf, chain.middle), "is not allowed to issue", roots=to_pem(chain.root))


def test_a_denied_intermediate_takes_its_leaves_along():
    chain = Chain()
    denied = [f"{chain.middle.serial_number:x}"]
    refused(to_pem(chain.leaf, chain.middle), "middle", "denied", roots=to_pem(chain.root), denied=denied)


def test_chains_are_short():
    refused(NORTH.certificate + b"\n" * MAX_CHAIN_BYTES, f"{MAX_CHAIN_BYTES}")


def test_intermediates_stand_in_order_and_others_do_not_count():
    chain = Chain()
    roots = to_pem(chain.root)
    for more in (chain.root, NORTH_CERTIFICATE):
        assert identify(to_pem(chain.leaf, chain.middle, more), roots, NOW, ()).name == "north"
    refused(to_pem(chain.leaf, NORTH_CERTIFICATE, chain.middle), "another consortium", roots=roots)


def test_an_intermediate_may_be_trusted_like_a_root():
    chain = Chain()
    for roots in (to_pem(chain.middle), to_pem(chain.root, chain.middle)):
        for presented in (to_pem(chain.leaf), to_pem(chain.leaf, chain.middle)):
            assert identify(presented, roots, NOW, ()).name == "north"


def test_a_root_can_be_denied():
    refused(NORTH.der, "root", "denied", denied=[f"{ROOT.serial_number:x}"])


def test_a_serial_number_must_be_one_that_a_deny_list_can_have():
    """No library issues such a certificate: one with its serial number negated, and signed anew."""
    while True:
        made = leaf()
        der, serial = made.public_bytes(Encoding.DER), made.serial_number.to_bytes(20)
        if serial[0] < 0x7F and der.count(serial) == 1:  # 0xFF in front would not be DER
            break
    body = made.tbs_certificate_bytes.replace(serial, bytes([serial[0] | 0x80]) + serial[1:])
    forged = der.replace(made.tbs_certificate_bytes, body)
    forged = forged.replace(made.signature, ROOT_KEY.sign(body))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        odd = x509.load_der_x509_certificate(forged)
        odd.verify_directly_issued_by(ROOT)
        assert odd.serial_number < 0
    refused(forged, "not an X.509 certificate")


@pytest.mark.parametrize("roots", [b"", b"roots", b"-----BEGIN CERTIFICATE-----\n"])
def test_roots_must_be_roots(roots):
    with raised(ConfigError, "roots-missing"):
        identify(NORTH.der, roots, NOW, ())
