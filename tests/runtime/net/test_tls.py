"""What TLS makes of key folders: who gets in, and what others see."""

import asyncio
import shutil
import socket
import ssl
import struct
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from key_folders import (
    CLIENT_TLS_OPTIONS,
    DAY,
    NOW,
    OURS,
    THEIRS,
    call,
    channel_credentials,
    fault,
    made,
    of_a_hospital,
    refusal,
)
from raised import raised
from sites import in_time

from fedboost.errors import PeerError
from fedboost.privacy.identity import Signer, identify, to_pem
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import TlsFault, peer_of, tls_fault
from fedboost.runtime.net.keys import Bundle, read_bundle, read_certificates
from fedboost.runtime.net.routes import Server


def loaded(folder, role="party"):
    """A bundle that nobody judged, as somebody hostile would load it."""
    chain = read_certificates(folder / "certificate.pem")
    key = (folder / "key.pem").read_bytes()
    signer = Signer("?", role, to_pem(*chain), load_pem_private_key(key, None))
    return Bundle(folder, signer, (folder / "consortium.pem").read_bytes(), key, frozenset())


@pytest.fixture
def north(tmp_path):
    return made(tmp_path / "north", "north", "party")


# ---- who gets in ------------------------------------------------------------------------------------


def unavailable(server, client, said, **more):
    """The call ends so; `said` is part of the details."""
    code, details = in_time(call(server, client, **more))
    assert code == grpc.StatusCode.UNAVAILABLE
    assert said in details


CLOSED = "Socket closed"
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate"


@pytest.fixture
def hub(tmp_path):
    return read_bundle(made(tmp_path / "hub", "hub", "aggregator"), "aggregator")


@pytest.mark.parametrize("role", ["party", "analyst"])
def test_whoever_belongs_gets_in(hub, tmp_path, role):
    """OK: the server knows name and role. All is well, so there is no fault to tell."""
    bundle = read_bundle(made(tmp_path / "marie", "marie", role), role)
    assert in_time(call(hub, bundle)) == f"{role} marie"
    assert fault(hub, bundle) is None


def test_nobody_gets_in_without_a_certificate(hub):
    """UNAVAILABLE, "... last error: UNAVAILABLE: ipv4:HOST:PORT: Socket closed"."""
    unavailable(hub, None, CLOSED, credentials=grpc.ssl_channel_credentials(hub.roots))


def test_nobody_gets_in_with_a_certificate_of_another_root(hub, tmp_path):
    """UNAVAILABLE, "... Socket closed" where the client trusts the server's root, which does not trust it."""
    bundle = loaded(made(tmp_path / "north", "north", "party", THEIRS))
    bundle = replace(bundle, roots=to_pem(OURS[1], THEIRS[1]))
    unavailable(hub, bundle, CLOSED)
    assert fault(hub, bundle) == (
        f"the aggregator at ADDRESS rejects {tmp_path}/north/certificate.pem: it trusts another consortium, "
        f"or its clock is wrong; compare the fingerprints that `fedboost keys show` prints on both machines"
    )


def test_nobody_calls_an_aggregator_of_another_root(hub, tmp_path):
    """UNAVAILABLE, "... Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL
    routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK"."""
    bundle = read_bundle(made(tmp_path / "north", "north", "party", THEIRS), "party")
    unavailable(hub, bundle, UNTRUSTED)
    assert fault(hub, bundle) == (
        "the certificate of the aggregator at ADDRESS belongs to another consortium; compare the "
        "fingerprints that `fedboost keys show` prints on both machines"
    )


def test_nobody_gets_in_with_an_expired_certificate(hub, tmp_path):
    """UNAVAILABLE, "... Socket closed"."""
    bundle = loaded(made(tmp_path / "north", "north", "party", since=NOW - 20 * DAY))
    unavailable(hub, bundle, CLOSED)
    day = f"{NOW - 10 * DAY:%Y-%m-%d %H:%M} UTC"
    assert fault(hub, bundle) == (
        f"{tmp_path}/north/certificate.pem expired on {day}; on the machine that has the consortium's root "
        f"key, run `fedboost keys party` to issue a new bundle, then replace this one with it"
    )


def test_nobody_calls_an_aggregator_with_an_expired_certificate(north, tmp_path):
    """UNAVAILABLE, "... CERTIFICATE_VERIFY_FAILED: certificate has expired: OK"."""
    old = loaded(made(tmp_path / "old", "hub", "aggregator", since=NOW - 20 * DAY))
    bundle = read_bundle(north, "party")
    unavailable(old, bundle, "CERTIFICATE_VERIFY_FAILED: certificate has expired")
    assert fault(old, bundle) == (
        "the certificate of the aggregator at ADDRESS has expired; it needs a new bundle from "
        "`fedboost keys aggregator`"
    )


def test_an_aggregator_whose_clock_is_ahead(north, tmp_path):
    """UNAVAILABLE, "... CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK"."""
    new = loaded(made(tmp_path / "new", "hub", "aggregator", since=NOW + DAY))
    bundle = read_bundle(north, "party")
    unavailable(new, bundle, "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid")
    said = "the certificate of the aggregator at ADDRESS is not valid yet; check this machine's clock"
    assert fault(new, bundle) == said


def test_an_aggregator_is_no_party(hub):
    """UNAVAILABLE, "... Socket closed": its certificate is for servers only."""
    unavailable(hub, hub, CLOSED)


def test_an_aggregator_that_may_be_a_client_is_known_for_what_it_is(tmp_path):
    """OK, and the role is "aggregator": to refuse it is for no matter who asks `peer_of`."""
    hub = read_bundle(of_a_hospital(tmp_path / "hub", "hub", "aggregator", "p256"), "aggregator")
    assert in_time(call(hub, hub)) == "aggregator hub"


NO_AGGREGATOR = (
    "the certificate of the aggregator at ADDRESS is not for an aggregator: it lacks the DNS name "
    "aggregator.fedboost; if an adder listens there, a site names it in `through`, and other commands need "
    "the aggregator's address"
)


def test_a_party_cannot_pretend_to_be_the_aggregator(north, tmp_path):
    """UNAVAILABLE, "... CERTIFICATE_VERIFY_FAILED: unsupported certificate purpose: OK"."""
    south = loaded(made(tmp_path / "south", "south", "party"))
    bundle = read_bundle(north, "party")
    unavailable(south, bundle, "CERTIFICATE_VERIFY_FAILED: unsupported certificate purpose")
    assert fault(south, bundle) == NO_AGGREGATOR


def test_not_even_one_whose_certificate_is_for_servers_too(tmp_path):
    """UNAVAILABLE, "... Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification
    Check failed."."""
    south = loaded(of_a_hospital(tmp_path / "south", "south", "party", "p256"))
    bundle = read_bundle(of_a_hospital(tmp_path / "north", "north", "party", "p256"), "party")
    unavailable(south, bundle, "Hostname Verification Check failed")
    assert fault(south, bundle) == NO_AGGREGATOR


def test_who_is_denied_is_told_so(hub, north):
    """What the server makes of `peer_of`: here PERMISSION_DENIED and its sentence. TLS lets them in."""
    bundle = read_bundle(north, "party")
    serial = identify(bundle.certificate, bundle.roots, NOW, ()).serial
    strict = replace(hub, denied=frozenset({serial}))
    code, said = in_time(call(strict, bundle))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert said == f"the certificate of 'north' is denied: its serial number {serial} is on the deny list"
    assert fault(strict, bundle) is None


def test_a_connection_without_tls_shows_nobody(hub):
    with raised(PeerError, "tls-no-certificate"):
        peer_of({"transport_security_type": [b"insecure"]}, hub, NOW)


# ---- what else may listen ---------------------------------------------------------------------------


@contextmanager
def listening(answer):
    """Somebody who is no gRPC server: takes a connection and does `answer(socket)`; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            taken, _ = server.accept()
            with taken:
                answer(taken)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join()


def shouts(taken):
    taken.recv(9)
    taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def resets(taken):
    taken.recv(9)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def closes(taken):
    taken.recv(9)


def encrypted(answer, bundle, trusted):
    """The same over TLS, as this bundle's aggregator, for whom these roots let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle.folder / "certificate.pem", bundle.folder / "key.pem")

    context.load_verify_locations(cadata=trusted.decode())
    context.verify_mode = ssl.CERT_REQUIRED

    def handshake_first(taken):
        with suppress(ssl.SSLError), context.wrap_socket(taken, server_side=True) as secured:
            answer(secured)

    return handshake_first


def waits(taken):
    while taken.recv(4096):
        pass


def test_what_listens_does_not_speak_tls(north):
    with listening(shouts) as address:
        seen = tls_fault(Server(address), read_bundle(north, "party"))
    said = f"the server at {address} does not use TLS as a fedboost aggregator with keys does"
    assert seen == TlsFault(said)


def closes_unread(taken):
    """With a reset, since something is unread; maybe before the client has looked at its connection."""


@pytest.mark.parametrize("answer", [resets, closes, closes_unread])
def test_a_hang_up_says_nothing_of_tls(north, answer):
    """An aggregator at its limit of connections hangs up, too: it is worth dialling again."""
    with listening(answer) as address:
        seen = tls_fault(Server(address), read_bundle(north, "party"))
    assert seen.passes
    assert seen.reason.startswith(f"the server at {address} closes connections before the TLS handshake: ")


def test_a_silence_says_nothing_of_tls(north, monkeypatch):
    monkeypatch.setattr(channel, "_PATIENCE", 0.3)
    with listening(waits) as address:
        seen = tls_fault(Server(address), read_bundle(north, "party"))
    assert seen.passes
    assert seen.reason.startswith(f"the server at {address} does not respond: ")


def test_an_aggregator_that_is_silent_may_be_busy(hub, north, monkeypatch):
    monkeypatch.setattr(channel, "_PATIENCE", 0.3)
    with listening(encrypted(waits, hub, hub.roots)) as address:
        assert tls_fault(Server(address), read_bundle(north, "party")) is None


def test_a_refusal_in_the_words_of_tls_is_one(hub, north):
    """gRPC only hangs up; OpenSSL, in front of an aggregator, says what it thinks of a certificate."""
    with listening(encrypted(waits, hub, to_pem(THEIRS[1]))) as address:
        seen = tls_fault(Server(address), read_bundle(north, "party"))
    assert not seen.passes
    assert seen.reason.startswith(f"the aggregator at {address} rejects {north}/certificate.pem: ")


async def test_an_aggregator_without_keys_does_not_speak_tls(hub, north):
    """A call there ends UNAVAILABLE, "... SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:
    WRONG_VERSION_NUMBER: Invalid certificate verification context"."""
    bundle = read_bundle(north, "party")
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    credentials = channel_credentials(bundle)
    async with grpc.aio.secure_channel(address, credentials, options=CLIENT_TLS_OPTIONS) as opened:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.unary_unary("/test/Who")(b"")
    seen = await asyncio.to_thread(tls_fault, Server(address), bundle)
    await server.stop(0)
    error = caught.value
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert "WRONG_VERSION_NUMBER" in error.details()
    assert "does not use TLS" in seen.reason
    assert not seen.passes


def test_where_nobody_listens_there_is_no_fault_of_tls(north):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    bundle = read_bundle(north, "party")
    assert tls_fault(Server(f"127.0.0.1:{port}"), bundle) is None
    assert tls_fault(Server(f"[::1]:{port}"), bundle) is None


def test_a_bundle_that_went_away(hub, north):
    bundle = read_bundle(north, "party")
    shutil.rmtree(north)
    refusal(lambda: fault(hub, bundle), north, "cannot read the bundle again", "No such file")
