"""TLS of web servers, for what ends the TLS of tunnels: an authority, and a certificate for localhost."""

import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

AUTHORITY = "Interception Inc"


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(key, subject, issuer_key, issuer, *extensions):
    since, until = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), since, until
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256())


def write_web_certificate(folder):
    """Write authority.pem, certificate.pem and key.pem. Returns the folder."""
    folder.mkdir(parents=True)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name, identifier = (
        _named(AUTHORITY),
        x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()),
    )
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    authority = _certificate(
        authority_key,
        name,
        authority_key,
        name,
        (x509.BasicConstraints(True, None), True),
        (signs, True),
        (identifier, False),
    )
    leaf = _certificate(
        key,
        _named("localhost"),
        authority_key,
        name,
        (x509.SubjectAlternativeName([x509.DNSName("localhost")]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "authority.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    (folder / "certificate.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(secret)
    return folder


def server_context(folder, newest=ssl.TLSVersion.TLSv1_3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = newest
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
