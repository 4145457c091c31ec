"""Issuing certificates: a consortium's root, and certificates of parties, aggregator and analysts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from fedboost.errors import ConfigError, quoted
from fedboost.privacy.identity.certificates import (
    CLOCK_SKEW,
    MAX_NAME_BYTES,
    ROLES,
    PrivateKey,
    PublicKey,
    Signer,
    day,
    is_name,
    key_fingerprint,
    purpose_of,
    to_pem,
)

# ---- Requests for certificates (X.509 CSRs): a member makes its key itself ------------------------------
# And the root's owner signs for it.
# Promises: a request that `read_request` returns was signed with the key that it is about, and asks for a
# name and a role and nothing else; the certificate says what the consortium wants, whatever the request is
# like.
# Refuses: requests with a wrong signature, another role, further names or attributes, extensions, and keys
# that are too weak or that TLS does not take (ConfigError).


MAX_REQUEST_BYTES = 32 * 1024
CURVES = ("secp256r1", "secp384r1")
"""The elliptic curves that gRPC's TLS takes."""
_STRONG_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


@dataclass(frozen=True)
class CertificateRequest:
    """A request of a member for a certificate of its key."""

    name: str
    role: str
    key: PublicKey = field(repr=False, compare=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the key, in hex and in groups, for people to compare."""
        return bytes.fromhex(key_fingerprint(self.key)).hex(" ", 4)


def new_request(name: str, role: str) -> tuple[ec.EllipticCurvePrivateKey, x509.CertificateSigningRequest]:
    """A new P-256 key, and the request for its certificate. ConfigError for a name or role that cannot be."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder(subject_of(name, role))
    return key, builder.sign(key, hashes.SHA256())


def subject_of(name: str, role: str) -> x509.Name:
    """The subject of a member's certificate. ConfigError for a name or role that cannot be."""
    if role not in ROLES:
        raise ConfigError(f"{quoted(role, 70)!r} is no role; the roles are {', '.join(ROLES)}")
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role)
    return x509.Name([unit, x509.NameAttribute(NameOID.COMMON_NAME, checked_name(name))])


def checked_name(name: str) -> str:
    """Return a name that a certificate can hold. ConfigError for any other."""
    if not is_name(name):
        raise ConfigError(
            f"{name[:70]!r} cannot be a name in a certificate; it takes 1 to {MAX_NAME_BYTES} bytes of "
            f"printable characters in UTF-8"
        )
    return name


def read_request(data: bytes) -> CertificateRequest:
    """The request in these bytes, PEM. ConfigError for one that is not to be signed."""
    if len(data) > MAX_REQUEST_BYTES:
        raise ConfigError(f"a request of {len(data)} bytes; {MAX_REQUEST_BYTES} are allowed")
    try:
        request = x509.load_pem_x509_csr(data)
        key, subject, extensions = request.public_key(), request.subject, [*request.extensions]
        signed, digest = request.is_signature_valid, request.signature_hash_algorithm
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion):
        raise ConfigError("not a certificate request in PEM, as `fedboost keys request` writes") from None
    if not signed:
        raise ConfigError("its signature is not that of the key in it: it was changed, or made wrongly")
    if digest is None or not isinstance(digest, _STRONG_HASHES):
        raise ConfigError("its signature is not over SHA-256 or better")
    if extensions or [*request.attributes]:
        asked = ", ".join(extension.oid.dotted_string for extension in extensions) or "attributes"
        raise ConfigError(f"it asks for more than a name and a role (extensions: {asked})")
    values = {attribute.oid: str(attribute.value) for attribute in subject}
    role = values.get(NameOID.ORGANIZATIONAL_UNIT_NAME, "")
    name = values.get(NameOID.COMMON_NAME, "")
    wanted = subject_of(name, role)
    if sorted(_values(subject)) != sorted(_values(wanted)):
        raise ConfigError("its subject has more than one name (CN) and one role (OU)")
    _check_key(key)
    return CertificateRequest(name, role, key)  # type: ignore[arg-type]


def _values(subject: x509.Name) -> list[tuple[str, str]]:
    return [(attribute.oid.dotted_string, str(attribute.value)) for attribute in subject]


def _check_key(key: object) -> None:
    """Raise ConfigError for a key that is too weak, or that gRPC's TLS does not take."""
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048:
        return
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        return
    raise ConfigError("its key is none of P-256, P-384 and RSA of 2048 bits or more")


# ---- Issuing certificates: a consortium's root, and certificates of parties, aggregator and analysts ----


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
