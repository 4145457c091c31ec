"""Requests for certificates (X.509 CSRs): a member makes its key itself, and the root's owner signs for it.

Promises: a request that `read_request` returns was signed with the key that it is about, and asks for a name
and a role and nothing else; the certificate says what the consortium wants, whatever the request is like.
Refuses: requests with a wrong signature, another role, further names or attributes, extensions, and keys that
are too weak or that TLS does not take (ConfigError).
"""

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from fedboost.errors import ConfigError, quoted
from fedboost.privacy.identity.certificates import (
    MAX_NAME_BYTES,
    ROLES,
    PublicKey,
    is_name,
    key_fingerprint,
)

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
