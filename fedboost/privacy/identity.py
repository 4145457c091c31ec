"""Identities: a consortium's X.509 certificates (checking and issuing them), certificate requests, and
signatures."""

import hashlib
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedboost.errors import ConfigError, PeerError, quoted

# ---- Certificates of a consortium: names, roles, and chains to its root ---------------------------------
# Guarantees: `identify` accepts a certificate only along a chain of signatures up to one of the given roots,
# at the given time. The name is the subject's common name, the role its organizational unit. A certificate
# cannot be used in another role: only the aggregator's contains `SERVER_NAME`, the name that clients require
# when they connect. A signature covers its message after a prefix, so nothing signed for TLS with the same
# key is a valid message signature. The repr never shows private keys.
# Raises: PeerError for certificates of another root, outside their validity, on the deny list, without a
# known role, of authorities, or with unsupported constraints. The deny list contains serial numbers, so a
# denied member can get a new certificate under the same name.
# Keys and serial numbers come from the cryptography library. No function here reads a clock.


ROLES = ("party", "aggregator", "analyst", "adder")

SERVER_NAME = "aggregator.fedboost"
"""DNS name in the aggregator's certificate, and in no other certificate."""
ADDER_DOMAIN = ".adder.fedboost"
"""End of the DNS name in an adder's certificate, which no other certificate contains."""

MAX_NAME_BYTES = 64
"""Maximum length of a common name in bytes of UTF-8 (RFC 5280, ub-common-name)."""

MAX_CHAIN_BYTES = 32 * 1024
"""Maximum size in bytes of a certificate chain (leaf and intermediates) that a peer presents."""

CLOCK_SKEW = timedelta(minutes=5)
"""The validity of a new certificate begins this long before it is issued, because the sites' clocks may
differ."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
_STRONG_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_UNDERSTOOD = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName)
_MALFORMED = (
    KeyError,  # from cryptography 48, for a name whose text has an unknown type
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True)
class Identified:
    """The owner of a verified certificate. serial: serial number of the certificate, in hexadecimal, as in a
    deny list."""

    name: str
    role: str
    serial: str
    public_key: PublicKey = field(repr=False, compare=False)


def identify(certificate: bytes, roots: bytes, now: datetime, denied: Collection[str]) -> Identified:
    """Verify a certificate and return its owner.

    Args:
        certificate: a single certificate in DER, or a PEM chain: the leaf first, then the issuer of each
            preceding certificate.
        roots: trusted root certificates, PEM.
        now: current time, with a time zone.
        denied: hexadecimal serial numbers of certificates that are not accepted.

    Raises:
        PeerError: The certificate is not accepted. The message says why.
        ConfigError: `roots` or `denied` cannot be read.
    """
    trusted = read_roots(roots)
    forbidden = {serial_of(text) for text in denied}
    if len(certificate) > MAX_CHAIN_BYTES:
        raise PeerError(
            "certificate-too-long",
            f"the certificate chain has {len(certificate)} bytes, but at most {MAX_CHAIN_BYTES} are allowed",
        )
    try:
        leaf, *others = _read(certificate)
    except _MALFORMED:
        raise PeerError("certificate-invalid", "the presented bytes are not an X.509 certificate") from None
    name = common_name(leaf)
    if name is None:
        raise PeerError(
            "certificate-without-name",
            f"the certificate has no valid name: its subject needs exactly one common name (CN), 1 to "
            f"{MAX_NAME_BYTES} bytes of printable UTF-8",
        )
    fault = None
    for path in _paths(leaf, others, trusted):
        fault = _fault_of_path(path, now, forbidden) or _fault_of_leaf(leaf, path)
        if fault is None:
            key, role = leaf.public_key(), role_of(leaf)
            assert isinstance(key, PublicKey)
            assert role is not None
            return Identified(name, role, f"{leaf.serial_number:x}", key)
    raise PeerError(
        "certificate-untrusted",
        fault
        or f"the certificate of {name!r} was issued by another consortium: its issuer "
        f"{leaf.issuer.rfc4514_string()[:100]!r} is not certified by a trusted root "
        f"(fingerprint {', '.join(fingerprint(root)[:8] + '...' for root in trusted)})",
    )


def role_of(certificate: x509.Certificate) -> str | None:
    """Return the role in a certificate's subject (its organizational unit), or None unless there is exactly
    one."""
    roles = [v for v in _attributes(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME) if v in ROLES]
    return roles[0] if len(roles) == 1 else None


def common_name(certificate: x509.Certificate) -> str | None:
    """Return the common name in a certificate's subject, or None unless there is exactly one and it is
    valid."""
    names = _attributes(certificate, NameOID.COMMON_NAME)
    return names[0] if len(names) == 1 and is_name(names[0]) else None


def is_name(text: str) -> bool:
    """Return True if a certificate can contain this name: 1 to MAX_NAME_BYTES bytes of printable
    characters."""
    return text.isprintable() and 1 <= len(text.encode()) <= MAX_NAME_BYTES


def fingerprint(certificate: x509.Certificate) -> str:
    """Return a certificate's SHA-256 hash, in groups of hexadecimal digits that people can compare."""
    return certificate.fingerprint(hashes.SHA256()).hex(" ", 4)


def key_fingerprint(key: PublicKey) -> str:
    """Return a public key's SHA-256 hash in hexadecimal. It is the same for every certificate for the key."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def serial_of(text: str) -> str:
    """Normalise a serial number, e.g. AB:CD, 0xabcd or 00abcd, to lowercase hexadecimal digits (abcd). Raises
    ConfigError if it is not a hexadecimal number."""
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]+(:[0-9a-fA-F]+)*", text):
        raise ConfigError(
            "certificate-serial-invalid",
            f"{quoted(text, 100)!r} is not a certificate's serial number; use hexadecimal, e.g. 4f:a0:17",
        )
    return f"{int(text.replace(':', ''), 16):x}"


def read_roots(roots: bytes) -> tuple[x509.Certificate, ...]:
    """Read the certificates in a consortium's PEM file. Raises ConfigError if the file contains no
    certificate, or an invalid one."""
    try:
        return tuple(_read(roots))
    except _MALFORMED:
        raise ConfigError(
            "roots-missing", "the consortium's file contains no valid X.509 certificates in PEM"
        ) from None


def to_pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _read(data: bytes) -> Sequence[x509.Certificate]:
    """Read one certificate in DER, or one or more in PEM. Raises one of _MALFORMED if a field that this
    module uses cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # oddities either raise below or do not matter
        if b"-----BEGIN" in data:
            certificates = x509.load_pem_x509_certificates(data)
        else:
            certificates = [x509.load_der_x509_certificate(data)]
        for certificate in certificates:
            _ = certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key()
            _ = certificate.signature_hash_algorithm
            if certificate.serial_number <= 0:
                raise ValueError("RFC 5280: a serial number must be positive, as in a deny list")
    return certificates


def _attributes(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)]


_Value = TypeVar("_Value", bound=x509.ExtensionType)


def _extension(certificate: x509.Certificate, kind: type[_Value]) -> _Value | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _paths(
    leaf: x509.Certificate, others: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]
) -> Iterator[Sequence[x509.Certificate]]:
    """Yield each chain of valid signatures that leads from the leaf to a root. others: intermediate
    certificates in order. The first of them that is a root, or that did not issue the certificate before it,
    is ignored, and so are all after it."""
    path = [leaf]
    for issuer in others:
        if issuer in roots or not _issued(path[-1], issuer):
            break
        path.append(issuer)
    for root in roots:
        if _issued(path[-1], root):
            yield [*path, root]


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_MALFORMED):
        return False
    return True


def _fault_of_path(path: Sequence[x509.Certificate], now: datetime, denied: Collection[str]) -> str | None:
    """Return why a chain (leaf first, root last) is not accepted although its signatures are valid, or None
    if it is accepted."""
    for depth, certificate in enumerate(path):
        is_root, serial = depth == len(path) - 1, f"{certificate.serial_number:x}"
        who = "the consortium's root" if is_root else f"the certificate of {_subject(certificate)!r}"
        if serial in denied:
            return f"{who} is denied: its serial number {serial} is on the deny list"
        if now > certificate.not_valid_after_utc:
            return f"{who} expired on {day(certificate.not_valid_after_utc)}"
        if now < certificate.not_valid_before_utc:
            return f"{who} is not valid before {day(certificate.not_valid_before_utc)}"
        weak = _weakness(certificate, is_root)
        if weak:
            return f"{who} has {weak}"
        for extension in certificate.extensions:
            constrains = extension.critical or isinstance(extension.value, x509.NameConstraints)
            if constrains and not isinstance(extension.value, _UNDERSTOOD):
                oid = extension.oid.dotted_string
                return f"{who} has a constraint that fedboost does not support (extension {oid})"
        if depth > 0 and not _may_issue(certificate, depth - 1):
            return f"{who} is not allowed to issue this certificate (basicConstraints, keyUsage)"
    return None


def _subject(certificate: x509.Certificate) -> str:
    return common_name(certificate) or certificate.subject.rfc4514_string()[:100]


def _weakness(certificate: x509.Certificate, is_root: bool) -> str | None:
    """Return why a certificate's key, or the signature on it, is too weak, or None if both are strong. The
    signature on a root is not checked."""
    key, digest = certificate.public_key(), certificate.signature_hash_algorithm
    if not isinstance(key, PublicKey):
        return "a key that is neither EC nor RSA nor Ed25519"
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < 2048:
        return f"an RSA key of {key.key_size} bits, but needs at least 2048"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.key_size < 256:
        return f"an EC key of {key.key_size} bits, but needs at least 256"
    if not is_root and digest is not None and not isinstance(digest, _STRONG_HASHES):
        return f"a signature with the weak hash {digest.name}, but needs SHA-256 or stronger"
    return None


def _may_issue(certificate: x509.Certificate, below: int) -> bool:
    """Return True if the certificate may be used to issue certificates, with `below` intermediate
    certificates between it and the leaf."""
    constraints = _extension(certificate, x509.BasicConstraints)
    usage = _extension(certificate, x509.KeyUsage)
    if constraints is None or not constraints.ca or not (usage is None or usage.key_cert_sign):
        return False
    return constraints.path_length is None or below <= constraints.path_length


def _fault_of_leaf(leaf: x509.Certificate, path: Sequence[x509.Certificate]) -> str | None:
    """Return why a leaf with a valid chain does not certify one of ROLES, or None if it does."""
    who = f"the certificate of {_subject(leaf)!r}"
    constraints, usage = _extension(leaf, x509.BasicConstraints), _extension(leaf, x509.KeyUsage)
    if constraints is not None and constraints.ca:
        return f"{who} belongs to a certificate authority, so a {' or '.join(ROLES)} cannot use it"
    if usage is not None and not usage.digital_signature:
        return f"{who} does not allow signing (its keyUsage lacks digitalSignature)"
    role = role_of(leaf)
    if role is None:
        units = ", ".join(_attributes(leaf, NameOID.ORGANIZATIONAL_UNIT_NAME))[:100]
        return (
            f"{who} has the role {units!r}; its subject's organizational unit (OU) must be one of "
            f"{', '.join(ROLES)}"
        )
    for certificate in path[:-1]:
        purposes = _extension(certificate, x509.ExtendedKeyUsage)
        if purposes is not None and not {*purposes_of(role)} <= {*purposes}:
            return f"{who} does not allow the role {role!r} (extendedKeyUsage)"
    due, served = server_name(role, common_name(leaf) or ""), _server_names(leaf)
    if due is not None and due not in served:
        return f"{who} has the role {role!r} but not the DNS name {due}"
    if others := [name for name in served if name != due]:
        whose = "an adder" if others[0].endswith(ADDER_DOMAIN) else "the aggregator"
        return f"{who} has the role {role!r} and also the DNS name of {whose}, {others[0]}"
    return None


def server_name(role: str, name: str) -> str | None:
    """Return the DNS name that clients require of a server with this role and name, or None if the role is
    not that of a server. An adder's DNS name depends on its name, because sites choose their adders."""
    if role == "adder":
        return hashlib.sha256(name.encode()).hexdigest()[:40] + ADDER_DOMAIN
    return SERVER_NAME if role == "aggregator" else None


def purposes_of(role: str) -> list[x509.ObjectIdentifier]:
    """Return what TLS must allow for a role. An adder is a server for sites, and a client of the
    aggregator."""
    server = [ExtendedKeyUsageOID.SERVER_AUTH] if role in ("aggregator", "adder") else []
    return server + ([] if role == "aggregator" else [ExtendedKeyUsageOID.CLIENT_AUTH])


def _server_names(certificate: x509.Certificate) -> list[str]:
    """Return the names of aggregators and adders for which TLS would accept the certificate. Without
    alternative names, TLS uses the common name."""
    alternative = _extension(certificate, x509.SubjectAlternativeName)
    names = [] if alternative is None else alternative.get_values_for_type(x509.DNSName)
    names = [name.casefold().rstrip(".") for name in names or _attributes(certificate, NameOID.COMMON_NAME)]
    as_aggregator = {SERVER_NAME, "*." + SERVER_NAME.partition(".")[2]}
    served = [SERVER_NAME if name in as_aggregator else name for name in names]
    return [name for name in served if name == SERVER_NAME or name.endswith(ADDER_DOMAIN)]


def day(moment: datetime) -> str:
    """Format a time in UTC for people to read."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# ---- Signatures by certified keys -----------------------------------------------------------------------


SIGNED = b"fedboost/1/signature\x00"
ECDSA = ec.ECDSA(hashes.SHA256())
PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True)
class Signer:
    """A member's identity for signing: name, role, certificate and private key. certificate: PEM, the leaf
    first, then intermediates."""

    name: str
    role: str
    certificate: bytes = field(repr=False)
    key: PrivateKey = field(repr=False, compare=False)

    @property
    def der(self) -> bytes:
        """The leaf certificate in DER encoding."""
        return x509.load_pem_x509_certificate(self.certificate).public_bytes(Encoding.DER)

    def sign(self, message: bytes) -> bytes:
        """Sign a message with ECDSA or RSA-PSS (both with SHA-256) or Ed25519, in the form that `verify`
        accepts."""
        data = SIGNED + message
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return self.key.sign(data, ECDSA)
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(data, PSS, hashes.SHA256())
        return self.key.sign(data)


def verify(identified: Identified, message: bytes, signature: bytes) -> None:
    """Raise PeerError unless `signature` is a valid signature of this message by the owner of the
    certificate."""
    data, key = SIGNED + message, identified.public_key
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ECDSA)
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, PSS, hashes.SHA256())
        else:
            key.verify(signature, data)
    except InvalidSignature:
        raise PeerError("signature-invalid", f"the signature of {identified.name!r} is invalid") from None


# ---- Certificate signing requests (X.509 CSRs) ----------------------------------------------------------
# A member generates its key itself, and the root's owner signs the request.
# Guarantees: a request that `read_request` returns was signed with the key in it, and contains only a name
# and a role. The consortium decides what the certificate contains; nothing else is copied from the request.
# Raises: ConfigError for requests with an invalid signature, an unknown role, further names or attributes,
# extensions, and keys that are too weak or that gRPC's TLS does not support.


MAX_REQUEST_BYTES = 32 * 1024
CURVES = ("secp256r1", "secp384r1")
"""Elliptic curves that gRPC's TLS supports."""
_HASHES_OF_REQUESTS = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


@dataclass(frozen=True)
class CertificateRequest:
    """A member's verified request for a certificate: its name, role and public key."""

    name: str
    role: str
    key: PublicKey = field(repr=False, compare=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 hash of the key, in groups of hexadecimal digits that people can compare."""
        return bytes.fromhex(key_fingerprint(self.key)).hex(" ", 4)


def new_request(name: str, role: str) -> tuple[ec.EllipticCurvePrivateKey, x509.CertificateSigningRequest]:
    """Generate a P-256 key and a certificate request signed with it. Raises ConfigError if the name or role
    is invalid."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder(subject_of(name, role))
    return key, builder.sign(key, hashes.SHA256())


def subject_of(name: str, role: str) -> x509.Name:
    """Build the subject of a member's certificate. Raises ConfigError if the name or role is invalid."""
    if role not in ROLES:
        raise ConfigError("role-unknown", f"{quoted(role, 70)!r} is not a role; use {', '.join(ROLES)}")
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role)
    return x509.Name([unit, x509.NameAttribute(NameOID.COMMON_NAME, checked_name(name))])


def checked_name(name: str) -> str:
    """Return the name if a certificate can contain it. Raises ConfigError otherwise."""
    if not is_name(name):
        raise ConfigError(
            "certificate-name-invalid",
            f"{name[:70]!r} cannot be a name in a certificate; use 1 to {MAX_NAME_BYTES} bytes of printable "
            f"UTF-8",
        )
    return name


def read_request(data: bytes) -> CertificateRequest:
    """Read and verify a certificate request in PEM. Raises ConfigError if it is malformed or must not be
    signed."""
    if len(data) > MAX_REQUEST_BYTES:
        raise ConfigError(
            "csr-too-long",
            f"the request has at least {len(data)} bytes, but at most {MAX_REQUEST_BYTES} are allowed",
        )
    try:
        request = x509.load_pem_x509_csr(data)
        key, subject, extensions = request.public_key(), request.subject, [*request.extensions]
        signed, digest = request.is_signature_valid, request.signature_hash_algorithm
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion):
        raise ConfigError(
            "csr-invalid", "this is not a PEM certificate request; create one with `fedboost keys request`"
        ) from None
    if not signed:
        raise ConfigError("csr-signature-invalid", "the request's signature does not match its key")
    if digest is None or not isinstance(digest, _HASHES_OF_REQUESTS):
        raise ConfigError("csr-hash-weak", "the request's signature does not use SHA-256 or stronger")
    if extensions or [*request.attributes]:
        asked = ", ".join(extension.oid.dotted_string for extension in extensions) or "attributes"
        raise ConfigError(
            "csr-asks-more", f"the request asks for more than a name and a role (extensions: {asked})"
        )
    values = {attribute.oid: str(attribute.value) for attribute in subject}
    role = values.get(NameOID.ORGANIZATIONAL_UNIT_NAME, "")
    name = values.get(NameOID.COMMON_NAME, "")
    wanted = subject_of(name, role)
    if sorted(_values(subject)) != sorted(_values(wanted)):
        raise ConfigError(
            "csr-subject-invalid", "the request's subject must have exactly one name (CN) and one role (OU)"
        )
    _check_key(key)
    return CertificateRequest(name, role, key)  # type: ignore[arg-type]


def _values(subject: x509.Name) -> list[tuple[str, str]]:
    return [(attribute.oid.dotted_string, str(attribute.value)) for attribute in subject]


def _check_key(key: object) -> None:
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048:
        return
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        return
    raise ConfigError(
        "csr-key-invalid", "the request's key is not P-256, P-384, or RSA of at least 2048 bits"
    )


# ---- Issuing certificates: a consortium's root, and certificates of parties, aggregator and analysts ----


MAX_HOST = 253
"""Maximum number of characters of a host name."""


def new_root(consortium: str, now: datetime, days: int) -> tuple[ed25519.Ed25519PrivateKey, x509.Certificate]:
    """Generate a consortium's root: an Ed25519 key and a self-signed CA certificate, valid for `days` days.
    The root may sign members' certificates, but not the certificates of other CAs. Raises ConfigError if the
    consortium's name is invalid."""
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
    """Generate a P-256 key for a member and issue its certificate. (gRPC's TLS does not support Ed25519 in
    members' certificates.) The arguments and errors are as in `certify`."""
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
    """Issue a certificate for a member's public key.

    Every certificate has an alternative name, because TLS would otherwise use the common name as a host name.
    The alternative name of an aggregator or adder is its `server_name`.

    Args:
        root_key: the root's private key.
        root: the root certificate.
        key: the member's public key.
        name: the member's name.
        role: one of ROLES.
        now: current time, with a time zone.
        days: validity of the certificate in days.
        hosts: additional host names and IP addresses at which browsers reach the machine.

    Raises:
        ConfigError: A name is invalid, or the root expires before the certificate would.
    """
    subject = subject_of(name, role)
    if now + timedelta(days=days) > root.not_valid_after_utc:
        left = (root.not_valid_after_utc - now).days
        raise ConfigError(
            "certificate-root-expires",
            f"the consortium's root itself expires on {day(root.not_valid_after_utc)}: "
            + (f"use at most {left} days" if left > 0 else "set up a new consortium"),
        )
    names = [x509.DNSName(server_name(role, name) or f"{role}.fedboost"), *map(_host, hosts)]
    alternative = x509.SubjectAlternativeName(names)
    builder = _builder(subject, root.subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes_of(role)), critical=False)
    builder = builder.add_extension(alternative, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    hash_of_root = None if isinstance(root_key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(root_key, hash_of_root)


def in_memory(parties: Iterable[str], now: datetime) -> tuple[dict[str, Signer], bytes]:
    """Create a consortium that exists only in memory, for simulations. Its certificates are valid for one
    day. Returns each party's signer, and the root certificate in PEM."""
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
        raise ConfigError(
            "host-invalid", f"{quoted(name, 100)!r} is not a host name; use e.g. fed.example.org"
        )
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
