"""Signatures by certified keys."""

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from fedboost.errors import PeerError
from fedboost.privacy.identity.certificates import Identified, PrivateKey

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
