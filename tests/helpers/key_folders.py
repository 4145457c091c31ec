"""Key folders made in memory, and what TLS makes of them."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from sites import in_time

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity import SERVER_NAME, issue, new_root, to_pem
from fedboost.runtime.net.channel import peer_of, server_credentials, tls_fault
from fedboost.runtime.net.keys import write_bundle
from fedboost.runtime.net.routes import Server

CLIENT_TLS_OPTIONS = [("grpc.ssl_target_name_override", SERVER_NAME)]
"""The server may have any address, but a certificate of an aggregator."""

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
OURS, THEIRS = (new_root("study", NOW - 100 * DAY, 1000) for _ in range(2))


def made(folder, name, role, root=OURS, since=NOW, days=10):
    """A bundle of a root, as a folder."""
    key, certificate = issue(*root, name, role, since, days)
    write_bundle(folder, key, certificate, to_pem(root[1]))
    return folder


def refusal(action, *said):
    """It is a ConfigError of one line that says these things."""
    with pytest.raises(ConfigError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    for part in said:
        assert str(part) in text
    return text


def secrets_in(folder):
    """What no output may have: the lines of every private key below a folder."""
    files = [file for file in folder.rglob("*.pem") if b"PRIVATE" in file.read_bytes()]
    return {line for file in files for line in file.read_text().splitlines()[1:-1]}


@cache
def key_of(kind, owner):
    """A key for each owner, made once."""
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key({"p256": ec.SECP256R1(), "p521": ec.SECP521R1()}[kind])


def certified(key, issuer_key, issuer, subject, *extensions):
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    algorithm = None if isinstance(issuer_key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(issuer_key, algorithm)


def named(name, unit=None):
    unit = [] if unit is None else [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)]
    return x509.Name([*unit, x509.NameAttribute(NameOID.COMMON_NAME, name)])


@cache
def hospital(kind):
    """A hospital's own authority: the intermediate's key, the intermediate, the root."""
    authority = (x509.BasicConstraints(True, None), True)
    root_key, middle_key = key_of(kind, "root"), key_of(kind, "middle")
    root = certified(root_key, root_key, named("Hospital Root"), named("Hospital Root"), authority)
    return middle_key, certified(middle_key, root_key, root.subject, named("Devices"), authority), root


def of_a_hospital(folder, name, role, kind):
    """A bundle of root -> intermediate -> leaf."""
    middle_key, middle, root = hospital(kind)
    host = SERVER_NAME if role == "aggregator" else f"{name}.hospital.example"
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    key = key_of(kind, name)
    leaf = certified(
        key,
        middle_key,
        middle.subject,
        named(name, role),
        (x509.SubjectAlternativeName([x509.DNSName(host)]), False),
        (x509.ExtendedKeyUsage(purposes), False),
    )
    folder.mkdir()
    (folder / "certificate.pem").write_bytes(to_pem(leaf, middle))
    (folder / "consortium.pem").write_bytes(to_pem(root))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    (folder / "key.pem").chmod(0o600)
    return folder


@asynccontextmanager
async def serving(bundle, credentials=None):
    """An aggregator that says who calls it: its address."""

    async def who(request, context):
        try:
            known = peer_of(context.auth_context(), bundle, datetime.now(UTC))
        except PeerError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return f"{known.role} {known.name}".encode()

    server = grpc.aio.server()
    methods = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", methods)])
    port = server.add_secure_port("127.0.0.1:0", credentials or server_credentials(bundle))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def channel_credentials(bundle):
    return grpc.ssl_channel_credentials(bundle.roots, bundle.key, bundle.certificate)


async def call(server, client, credentials=None, options=CLIENT_TLS_OPTIONS):
    """Who the server says calls it, or the status and the details with which the call ends."""
    async with serving(server) as address:
        credentials = credentials or channel_credentials(client)
        async with grpc.aio.secure_channel(address, credentials, options=options) as opened:
            try:
                return (await opened.unary_unary("/test/Who")(b"")).decode()
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details()


def fault(server, client):
    """What `tls_fault` says of a server that runs."""

    async def look():
        async with serving(server) as address:
            seen = await asyncio.to_thread(tls_fault, Server(address), client)
            assert seen is None or not seen.passes
            return seen and seen.reason.replace(address, "ADDRESS")

    return in_time(look())
