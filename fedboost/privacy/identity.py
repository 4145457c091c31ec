"""Identities: X.509 certificates of a consortium, how they are issued, and signatures."""

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
# Promises: `identify` accepts a certificate only along a chain of signatures up to a root that was given,
# at the time that was given; its name is the subject's common name, its role the organizational unit. What
# one role may do no certificate of another role can: only the aggregator's carries `SERVER_NAME`, the name
# that clients insist on when they dial. A signature covers its message under a prefix of its own, so that
# nothing signed for TLS with the same key passes for a message. Private keys never print.
# Refuses: certificates of another root, out of date, denied, without a known role, that are authorities
# themselves, or that constrain their use in ways not understood here (PeerError). What is denied is the
# certificate, by serial number: a name can be issued again with another one.
# Issuing draws keys and serial numbers from the cryptography library; nothing here reads a clock.


ROLES = ("party", "aggregator", "analyst")

SERVER_NAME = "aggregator.fedboost"
"""The DNS name in the aggregator's certificate, and in no other."""

MAX_NAME_BYTES = 64
"""RFC 5280, ub-common-name: the longest common name, here counted in UTF-8."""

MAX_CHAIN_BYTES = 32 * 1024
"""Size of a presented chain: a leaf and its intermediates."""

CLOCK_SKEW = timedelta(minutes=5)
"""New certificates are valid from this long ago: the sites' clocks differ."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
_STRONG_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_UNDERSTOOD = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName)
_MALFORMED = (
    KeyError,  # of cryptography 48, for a name with text of an unknown type
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True)
class Identified:
    """The owner of a verified certificate. `serial` is the certificate's, hex as in a deny list."""

    name: str
    role: str
    serial: str
    public_key: PublicKey = field(repr=False, compare=False)


def identify(certificate: bytes, roots: bytes, now: datetime, denied: Collection[str]) -> Identified:
    """Verify a certificate and return its owner.

    `certificate`: one in DER, or PEM with the leaf first and then the intermediates, each the issuer of the
    one before. `roots`: PEM, what is trusted. `now` knows its time zone. `denied`: serial numbers in hex.
    PeerError says in one sentence what is wrong; ConfigError is for `roots` and `denied` themselves.
    """
    trusted = read_roots(roots)
    forbidden = {serial_of(text) for text in denied}
    if len(certificate) > MAX_CHAIN_BYTES:
        raise PeerError(f"a certificate chain of {len(certificate)} bytes; {MAX_CHAIN_BYTES} are allowed")
    try:
        leaf, *others = _read(certificate)
    except _MALFORMED:
        raise PeerError("what was presented is not an X.509 certificate") from None
    name = common_name(leaf)
    if name is None:
        raise PeerError(
            f"a certificate without a name: its subject must have one common name (CN) of 1 to "
            f"{MAX_NAME_BYTES} bytes of printable characters in UTF-8"
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
        fault
        or f"the certificate of {name!r} was issued by another consortium: its issuer "
        f"{leaf.issuer.rfc4514_string()[:100]!r} does not lead to a root that is trusted here "
        f"(fingerprint {', '.join(fingerprint(root)[:8] + '...' for root in trusted)})"
    )


def role_of(certificate: x509.Certificate) -> str | None:
    """The role in a certificate's organizational units: the only one of them that is a role, else None."""
    roles = [v for v in _attributes(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME) if v in ROLES]
    return roles[0] if len(roles) == 1 else None


def common_name(certificate: x509.Certificate) -> str | None:
    """The name in a certificate, None unless there is exactly one that is allowed."""
    names = _attributes(certificate, NameOID.COMMON_NAME)
    return names[0] if len(names) == 1 and is_name(names[0]) else None


def is_name(text: str) -> bool:
    """True if a certificate, and so the terms, can hold this name."""
    return text.isprintable() and 1 <= len(text.encode()) <= MAX_NAME_BYTES


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hex and in groups, for people to compare."""
    return certificate.fingerprint(hashes.SHA256()).hex(" ", 4)


def key_fingerprint(key: PublicKey) -> str:
    """SHA-256 of a public key, in hex: the same for every certificate of the key."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def serial_of(text: str) -> str:
    """A serial number as others write it (AB:CD, 0xabcd, 00abcd) in the one form used here (abcd)."""
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]+(:[0-9a-fA-F]+)*", text):
        raise ConfigError(
            f"{quoted(text, 100)!r} is not a certificate's serial number; write it in hex, such as 4f:a0:17"
        )
    return f"{int(text.replace(':', ''), 16):x}"


def read_roots(roots: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a consortium's file, PEM; ConfigError if it has none."""
    try:
        return tuple(_read(roots))
    except _MALFORMED:
        raise ConfigError("the consortium's file holds no X.509 certificates in PEM") from None


def to_pem(*certificates: x509.Certificate) -> bytes:
    """Certificates in PEM, one after the other."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _read(data: bytes) -> Sequence[x509.Certificate]:
    """Read one certificate in DER, or all in PEM: at least one; every field used here can be read. Raises one
    of _MALFORMED otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # oddities are errors below, or do not matter
        if b"-----BEGIN" in data:
            certificates = x509.load_pem_x509_certificates(data)
        else:
            certificates = [x509.load_der_x509_certificate(data)]
        for certificate in certificates:
            _ = certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key()
            _ = certificate.signature_hash_algorithm
            if certificate.serial_number <= 0:
                raise ValueError("RFC 5280: a serial number is positive; a deny list has no others")
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
    """The chains of right signatures from a leaf to each root that ends one. Others count as far as each
    issued the one before; a root that came along is left out of them."""
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
    """The fault of a chain of right signatures, leaf first and root last; None if there is none."""
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
                return f"{who} has a constraint that fedboost does not know (extension {oid})"
        if depth > 0 and not _may_issue(certificate, depth - 1):
            return f"{who} may not issue such certificates (basicConstraints, keyUsage)"
    return None


def _subject(certificate: x509.Certificate) -> str:
    return common_name(certificate) or certificate.subject.rfc4514_string()[:100]


def _weakness(certificate: x509.Certificate, is_root: bool) -> str | None:
    """The weakness of a key, or of the signature over it where that is not its own; None if there is none."""
    key, digest = certificate.public_key(), certificate.signature_hash_algorithm
    if not isinstance(key, PublicKey):
        return "a key that is neither EC nor RSA nor Ed25519"
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < 2048:
        return f"an RSA key of {key.key_size} bits; 2048 are needed"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.key_size < 256:
        return f"an EC key of {key.key_size} bits; 256 are needed"
    if not is_root and digest is not None and not isinstance(digest, _STRONG_HASHES):
        return f"a signature over {digest.name}, which is too weak; SHA-256 is needed"
    return None


def _may_issue(certificate: x509.Certificate, below: int) -> bool:
    """True if it is an authority over a chain with `below` intermediates below it."""
    constraints = _extension(certificate, x509.BasicConstraints)
    usage = _extension(certificate, x509.KeyUsage)
    if constraints is None or not constraints.ca or not (usage is None or usage.key_cert_sign):
        return False
    return constraints.path_length is None or below <= constraints.path_length


def _fault_of_leaf(leaf: x509.Certificate, path: Sequence[x509.Certificate]) -> str | None:
    """The fault of a leaf whose chain is valid, as a certificate of one of ROLES; None if there is none."""
    who = f"the certificate of {_subject(leaf)!r}"
    constraints, usage = _extension(leaf, x509.BasicConstraints), _extension(leaf, x509.KeyUsage)
    if constraints is not None and constraints.ca:
        return f"{who} is an authority's own; a {' or '.join(ROLES)} needs one that is not"
    if usage is not None and not usage.digital_signature:
        return f"{who} may not sign (keyUsage lacks digitalSignature)"
    role = role_of(leaf)
    if role is None:
        units = ", ".join(_attributes(leaf, NameOID.ORGANIZATIONAL_UNIT_NAME))[:100]
        return (
            f"{who} has the role {units!r}; its subject's organizational unit (OU) must be one of "
            f"{', '.join(ROLES)}"
        )
    for certificate in path[:-1]:
        purposes = _extension(certificate, x509.ExtendedKeyUsage)
        if purposes is not None and purpose_of(role) not in purposes:
            return f"{who} may not serve as that of the role {role!r} (extendedKeyUsage)"
    if role == "aggregator" and not _passes_as_server(leaf):
        return f"{who} has the role 'aggregator' but not the DNS name {SERVER_NAME}"
    if role != "aggregator" and _passes_as_server(leaf):
        return f"{who} has the role {role!r} and also the DNS name of the aggregator, {SERVER_NAME}"
    return None


def purpose_of(role: str) -> x509.ObjectIdentifier:
    return ExtendedKeyUsageOID.SERVER_AUTH if role == "aggregator" else ExtendedKeyUsageOID.CLIENT_AUTH


def _passes_as_server(certificate: x509.Certificate) -> bool:
    """True if TLS takes the certificate for that of SERVER_NAME; as in TLS, a certificate without alternative
    names stands for its common name."""
    alternative = _extension(certificate, x509.SubjectAlternativeName)
    names = [] if alternative is None else alternative.get_values_for_type(x509.DNSName)
    names = names or _attributes(certificate, NameOID.COMMON_NAME)
    passing = {SERVER_NAME, "*." + SERVER_NAME.partition(".")[2]}
    return any(name.casefold().rstrip(".") in passing for name in names)


def day(moment: datetime) -> str:
    """A moment as text for people."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# ---- Signatures by certified keys -----------------------------------------------------------------------


SIGNED = b"fedboost/1/signature\x00"
ECDSA = ec.ECDSA(hashes.SHA256())
PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True)
class Signer:
    """A name, its certificate and its key. `certificate` is PEM: the leaf first, then its intermediates if it
    has any."""

    name: str
    role: str
    certificate: bytes = field(repr=False)
    key: PrivateKey = field(repr=False, compare=False)

    @property
    def der(self) -> bytes:
        """The leaf alone, DER."""
        return x509.load_pem_x509_certificate(self.certificate).public_bytes(Encoding.DER)

    def sign(self, message: bytes) -> bytes:
        """A signature that `verify` accepts: ECDSA or RSA-PSS, both over SHA-256, or Ed25519."""
        data = SIGNED + message
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return self.key.sign(data, ECDSA)
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(data, PSS, hashes.SHA256())
        return self.key.sign(data)


def verify(identified: Identified, message: bytes, signature: bytes) -> None:
    """Raise PeerError unless it is the signature of `identified` over this message."""
    data, key = SIGNED + message, identified.public_key
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ECDSA)
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, PSS, hashes.SHA256())
        else:
            key.verify(signature, data)
    except InvalidSignature:
        raise PeerError(f"the signature of {identified.name!r} is wrong") from None


# ---- Requests for certificates (X.509 CSRs) -------------------------------------------------------------
# A member makes its key itself and the root's owner signs for it.
# Promises: a request that `read_request` returns was signed with the key that it is about, and asks for a
# name and a role and nothing else; the certificate says what the consortium wants, whatever the request is
# like.
# Refuses: requests with a wrong signature, another role, further names or attributes, extensions, and keys
# that are too weak or that TLS does not take (ConfigError).


MAX_REQUEST_BYTES = 32 * 1024
CURVES = ("secp256r1", "secp384r1")
"""The elliptic curves that gRPC's TLS takes."""
_HASHES_OF_REQUESTS = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


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
    if digest is None or not isinstance(digest, _HASHES_OF_REQUESTS):
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
