"""Certificates of a consortium, and of an infrastructure that is not ours."""

import warnings
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedboost.errors import PeerError
from fedboost.privacy.identity import Signer, identify, issue, new_root, to_pem

NOW = datetime(2031, 5, 4, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
ROOT_KEY, ROOT = new_root("heart study", NOW, 1000)
ROOTS = to_pem(ROOT)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def issued(name="north", role="party", now=NOW, days=10, **more):
    return issue(ROOT_KEY, ROOT, name, role, now, days, **more)


def signer(name="north", role="party"):
    key, certificate = issued(name, role)
    return Signer(name, role, to_pem(certificate), key)


NORTH = signer()


def refused(certificate, *said, roots=ROOTS, now=NOW, denied=()):
    """It is not believed, and the reason is one line that says these things."""
    if isinstance(certificate, x509.Certificate):
        certificate = to_pem(certificate)
    with pytest.raises(PeerError) as caught:
        identify(certificate, roots, now, denied)
    assert "\n" not in str(caught.value)
    for part in said:
        assert part in str(caught.value)


@cache
def key_of(kind, number=0):
    """A key; `number` only makes another one."""
    match kind:
        case "ed25519":
            return ed25519.Ed25519PrivateKey.generate()
        case "p256":
            return ec.generate_private_key(ec.SECP256R1())
        case "p224":
            return ec.generate_private_key(ec.SECP224R1())
        case "p384":
            return ec.generate_private_key(ec.SECP384R1())
        case "rsa":
            return rsa.generate_private_key(65537, 2048)
        case "weak rsa":
            return rsa.generate_private_key(65537, 1024)
        case "ed448":
            return ed448.Ed448PrivateKey.generate()


def subject_of(names=("north",), units=("party",)):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that are too long, on purpose
        return x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
            + [x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False) for name in names]
        )


def certificate_of(key, issuer_key, issuer, subject=None, extensions=(), days=10, digest="sha256"):
    """A certificate with just these extensions, (value, critical)."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject or subject_of())
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + days * DAY)
    )
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    plain = isinstance(issuer_key, ed25519.Ed25519PrivateKey)
    algorithm = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384()}[digest]
    return builder.sign(issuer_key, None if plain else algorithm)


def usage(**true):
    kinds = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign "
        "crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{kind: kind in true for kind in kinds.split()})


CA = (x509.BasicConstraints(True, None), True)


def authority(name, key, issuer_key=None, issuer=None, extensions=(CA,), **more):
    """An authority's certificate, its own root unless an issuer is given."""
    subject = subject_of((name,), ())
    return certificate_of(key, issuer_key or key, issuer or subject, subject, extensions, **more)
