"""Issuing certificates: a consortium's root, and certificates of parties, aggregator and analysts."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from fedboost.errors import ConfigError, quoted
from fedboost.privacy.identity.certificates import (
    CLOCK_SKEW,
    PrivateKey,
    PublicKey,
    day,
    purpose_of,
    to_pem,
)
from fedboost.privacy.identity.requests import checked_name, subject_of
from fedboost.privacy.identity.signatures import Signer

MAX_HOST = 253
"""Characters of a host's name."""


def new_root(consortium: str, now: datetime, days: int) -> tuple[ed25519.Ed25519PrivateKey, x509.Certificate]:
    """A consortium's root: an Ed25519 key and its own certificate, which issues leaves only."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, checked_name(consortium))])
    builder = _builder(name, name, key.public_key(), now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    return key, builder.sign(key, None)


def issue(
    root_key: PrivateKey,
    root: x509.Certificate,
    name: str,
    role: str,
    now: datetime,
    days: int,
    hosts: Iterable[str] = (),
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new P-256 key and its certificate for a member of the consortium: P-256 because gRPC's TLS knows no
    Ed25519 leaves. hosts: as for `certify`. ConfigError for names that a certificate cannot hold."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, certify(root_key, root, key.public_key(), name, role, now, days, hosts)


def certify(
    root_key: PrivateKey,
    root: x509.Certificate,
    key: PublicKey,
    name: str,
    role: str,
    now: datetime,
    days: int,
    hosts: Iterable[str] = (),
) -> x509.Certificate:
    """The certificate of a member's key. Every leaf has an alternative name, since TLS would take its common
    name for a host's without one; the aggregator's is SERVER_NAME. hosts: further names and IP addresses, by
    which browsers know the machine. ConfigError for names that it cannot hold."""
    subject = subject_of(name, role)
    if now + timedelta(days=days) > root.not_valid_after_utc:
        left = (root.not_valid_after_utc - now).days
        raise ConfigError(
            f"the consortium's root itself expires on {day(root.not_valid_after_utc)}: "
            + (f"ask for at most {left} days" if left > 0 else "set up a new consortium")
        )
    names = [x509.DNSName(f"{role}.fedboost"), *map(_host, hosts)]
    alternative = x509.SubjectAlternativeName(names)
    builder = _builder(subject, root.subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose_of(role)]), critical=False)
    builder = builder.add_extension(alternative, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    hash_of_root = None if isinstance(root_key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(root_key, hash_of_root)


def in_memory(parties: Iterable[str], now: datetime) -> tuple[dict[str, Signer], bytes]:
    """A consortium for one day that is written nowhere, for simulations: the signer of each party, and the
    root, PEM."""
    root_key, root = new_root("in memory", now, 2)
    signers = {}
    for name in parties:
        key, certificate = issue(root_key, root, name, "party", now, 1)
        signers[name] = Signer(name, "party", to_pem(certificate), key)
    return signers, to_pem(root)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", name) or len(name) > MAX_HOST:
        raise ConfigError(f"{quoted(name, 100)!r} is no name of a host, such as fed.example.org")
    return x509.DNSName(name.lower())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - CLOCK_SKEW).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
