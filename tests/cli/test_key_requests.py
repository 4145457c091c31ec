"""Keys by request: a site makes its key, the root's owner signs a request, the site takes the answer."""

import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AttributeOID, NameOID
from key_folders import secrets_in
from sites import fedboost

from fedboost.cli import common
from fedboost.runtime.net.keys import read_bundle, read_certificates


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A root's folder and that of a site, `root` and `site`; commands run above them."""
    monkeypatch.chdir(tmp_path)
    assert fedboost("keys", "init-consortium", "--folder", "root").code == 0
    return tmp_path


def run(*words):
    end = fedboost("keys", *words)
    assert (end.code, end.err) == (0, ""), end
    return end.out


def refused(*words):
    """The one line with which it is refused."""
    end = fedboost("keys", *words)
    assert end.code == 2, end
    (line,) = end.err.splitlines()
    assert line.startswith("fedboost: ")
    return line


def sign(*options, request="site/north/request.pem"):
    return run("sign", request, "--folder", "root", "--yes", *options)


@pytest.mark.parametrize("role", ["party", "analyst", "aggregator"])
def test_a_bundle_whose_key_never_left_the_site(here, role):
    asked = run("request", "north", "--role", role, "--folder", "site")
    key = here / "site" / "north" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    before, printed = secrets_in(here), asked
    signed = sign("--days", "30")
    assert secrets_in(here) == before
    accepted = run("accept", "root/north.answer.pem", "--folder", "site")
    bundle = read_bundle(here / "site" / "north", role)
    assert (bundle.signer.name, bundle.signer.role) == ("north", role)
    assert bundle.roots == (here / "root" / "consortium.pem").read_bytes()
    printed += signed + accepted
    assert not any(secret in printed for secret in before)
    fingerprint = asked.splitlines()[2].strip()
    assert fingerprint in signed  # what the owner of the root compares
    assert signed.splitlines()[-1].strip() == accepted.splitlines()[-1].strip()  # what the site compares
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert run("show", "site/north").endswith("This bundle can be used.\n")


def test_a_person_sees_who_asks_and_says_yes_or_no(here, monkeypatch):
    run("request", "north", "--folder", "site")
    asked, answers = [], ["n", "y"]
    monkeypatch.setattr(common, "ask_terminal", lambda question: asked.append(question) or answers.pop(0))
    end = fedboost("keys", "sign", "site/north/request.pem", "--folder", "root")
    assert (end.code, end.err) == (1, "not signed: nothing was written\n")
    assert {path.name for path in (here / "root").iterdir()} == {"consortium-key.pem", "consortium.pem"}
    end = fedboost("keys", "sign", "site/north/request.pem", "--folder", "root")
    assert (end.code, end.err) == (0, "")
    assert asked == ["Admit party 'north' with this key? [y/N] "] * 2
    assert end.out.startswith("name        north\nrole        party\nfingerprint of its key")


@pytest.mark.parametrize("name", ["n\u043erth", "north ", "no\u0301rth"])
def test_a_name_that_looks_like_another_is_shown_in_escapes(here, name):
    """A letter of another alphabet, a blank: the certificate would be of somebody else than it seems."""
    run("request", name, "--folder", "site")
    (request,) = (here / "site").glob("*/request.pem")
    assert f"which is {name!a}\n" in sign(request=request)


def test_the_list_of_what_was_issued(here):
    """Also of bundles that were made in one piece; --renew signs for a name that has a certificate."""
    run("party", "Ärzte Süd", "--folder", "root")
    run("request", "north", "--folder", "site")
    sign()
    leaf = read_certificates(here / "root" / "north.answer.pem")[0]
    lines = (here / "root" / "issued.txt").read_text().splitlines()
    heading, first, second = lines
    assert heading.startswith("# serial number, role, end, name")
    assert first.split(" ", 3)[1::2] == ["party", "Ärzte Süd"]
    assert second.split(" ", 3)[::3] == [f"{leaf.serial_number:x}", "north"]
    (here / "root" / "north.answer.pem").unlink()
    line = refused("sign", "site/north/request.pem", "--folder", "root", "--yes")
    assert f"'north' already has a certificate as party until {leaf.not_valid_after_utc:%Y-%m-%d}" in line
    assert "sign it with --renew" in line
    sign("--renew")
    assert len((here / "root" / "issued.txt").read_text().splitlines()) == 4


def named(*attributes):
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])


NORTH = (NameOID.ORGANIZATIONAL_UNIT_NAME, "party"), (NameOID.COMMON_NAME, "north")
HOST = x509.SubjectAlternativeName([x509.DNSName("aggregator.fedboost")])


def request_of(subject=NORTH, key=None, extension=None, attribute=None, hash_with=None):
    """A request in PEM."""
    builder = x509.CertificateSigningRequestBuilder(named(*subject))
    if extension:
        builder = builder.add_extension(extension, critical=False)
    if attribute:
        builder = builder.add_attribute(*attribute)
    key = key or ec.generate_private_key(ec.SECP256R1())
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hash_with or hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def forged():
    """A request whose name was changed after it was signed."""
    request = x509.load_pem_x509_csr(request_of())
    data = request.public_bytes(Encoding.DER).replace(b"north", b"south")
    return x509.load_der_x509_csr(data).public_bytes(Encoding.PEM)


BAD = {
    "changed after it was signed": (forged, "the request's signature does not match its key"),
    "another role": (
        lambda: request_of((NORTH[1], (NameOID.ORGANIZATIONAL_UNIT_NAME, "root"))),
        "'root' is not a role; use party, aggregator, analyst",
    ),
    "no role": (lambda: request_of(NORTH[1:]), "'' is not a role; use party, aggregator, analyst"),
    "two roles": (
        lambda: request_of((*NORTH, (NameOID.ORGANIZATIONAL_UNIT_NAME, "analyst"))),
        "the request's subject must have exactly one name (CN) and one role (OU)",
    ),
    "more in the subject": (
        lambda: request_of((*NORTH, (NameOID.ORGANIZATION_NAME, "Clinic"))),
        "the request's subject must have exactly one name (CN) and one role (OU)",
    ),
    "a name that cannot be": (
        lambda: request_of((NORTH[0], (NameOID.COMMON_NAME, "nor\nth"))),
        "cannot be a name in a certificate",
    ),
    "the aggregator's host name": (lambda: request_of(extension=HOST), "(extensions: 2.5.29.17)"),
    "an authority": (
        lambda: request_of(extension=x509.BasicConstraints(True, None)),
        "the request asks for more than a name and a role (extensions: 2.5.29.19)",
    ),
    "an attribute": (
        lambda: request_of(attribute=(AttributeOID.CHALLENGE_PASSWORD, b"secret")),
        "(extensions: attributes)",
    ),
    "a weak key": (
        lambda: request_of(key=rsa.generate_private_key(65537, 1024)),
        "the request's key is not P-256, P-384, or RSA of at least 2048 bits",
    ),
    "a key that TLS does not take": (
        lambda: request_of(key=ed25519.Ed25519PrivateKey.generate()),
        "the request's signature does not use SHA-256 or stronger",
    ),
    "a weak hash": (lambda: request_of(hash_with=hashes.SHA224()), "does not use SHA-256 or stronger"),
    "no request": (
        lambda: b"hello",
        "not a PEM certificate request; create one with `fedboost keys request`",
    ),
    "too long": (
        lambda: b"x" * 40_000,
        "the request has at least 32769 bytes, but at most 32768 are allowed",
    ),
}


@pytest.mark.parametrize(("make", "said"), BAD.values(), ids=BAD)
def test_requests_that_are_not_signed(here, make, said):
    (here / "bad.pem").write_bytes(make())
    line = refused("sign", "bad.pem", "--folder", "root", "--yes")
    assert line.startswith("fedboost: bad.pem: ")
    assert said in line
    assert {path.name for path in (here / "root").iterdir()} == {"consortium-key.pem", "consortium.pem"}


def test_requests_of_other_tools_are_signed(here):
    """P-384 and RSA keys, and a subject in another order, as openssl writes it."""
    for number, key in enumerate(
        (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048))
    ):
        subject = (NameOID.COMMON_NAME, f"site {number}"), NORTH[0]
        (here / "their.pem").write_bytes(request_of(subject, key))
        assert f"name        site {number}\nrole        party\n" in sign(request="their.pem")


def test_answers_that_are_not_taken(here):
    run("request", "north", "--folder", "site")
    run("request", "north", "--folder", "other")
    sign()
    answer = "root/north.answer.pem"
    line = refused("accept", answer, "--folder", "other")
    assert "is for 'north', but does not match the key other/north/key.pem" in line
    assert "does not exist" in refused("accept", answer, "--folder", "nowhere")
    assert "must contain a certificate and its root" in refused(
        "accept", "root/consortium.pem", "--folder", "site"
    )
    assert "is a request; ask the holder of the root key to sign it" in refused(
        "accept", "site/north/request.pem"
    )
    leaf, root = read_certificates(here / answer)
    assert fedboost("keys", "init-consortium", "--name", "theirs", "--folder", "theirs").code == 0
    mixed = leaf.public_bytes(Encoding.PEM) + (here / "theirs" / "consortium.pem").read_bytes()
    (here / "mixed.pem").write_bytes(mixed)
    assert "issued by another consortium" in refused("accept", "mixed.pem", "--folder", "site")
    run("accept", answer, "--folder", "site")
    assert "already exists" in refused("accept", answer, "--folder", "site")
    assert root


def test_a_list_that_was_damaged_is_refused_by_line(here):
    run("request", "north", "--folder", "site")
    (here / "root" / "issued.txt").write_text("# by hand\nabc party yesterday north\n")
    line = refused("sign", "site/north/request.pem", "--folder", "root", "--yes")
    assert (
        "root/issued.txt, line 2: the line must consist of a serial number, a role, a time and a name" in line
    )
