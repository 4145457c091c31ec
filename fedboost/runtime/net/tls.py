"""TLS of a connection: credentials of both ends, the peer's certificate, and why a handshake fails."""

import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity.certificates import SERVER_NAME, Identified, identify
from fedboost.runtime.net.keys import CERTIFICATE, KEY, Bundle, expired

CLIENT_TLS_OPTIONS = [("grpc.ssl_target_name_override", SERVER_NAME)]
"""What a client adds to its channel's options: whatever the address, only the aggregator may answer."""


@dataclass(frozen=True)
class TlsFault:
    """The reason why there is no connection, in one sentence for people. `passes`: it may pass soon, so that
    it is worth dialling again."""

    reason: str
    passes: bool = False


_PATIENCE = 3.0
"""Seconds that `tls_fault` waits for each answer."""


def server_credentials(bundle: Bundle) -> Any:
    """The credentials of an aggregator's secure port: nobody gets in without a certificate of the consortium.
    The deny list and the roles are for `peer_of` and its caller."""
    import grpc

    pair = (bundle.key, bundle.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=bundle.roots, require_client_auth=True)


def channel_credentials(bundle: Bundle) -> Any:
    """The credentials of a party's or an analyst's secure channel, together with CLIENT_TLS_OPTIONS."""
    import grpc

    return grpc.ssl_channel_credentials(bundle.roots, bundle.key, bundle.certificate)


def peer_of(auth_context: Mapping[str, Iterable[bytes]], bundle: Bundle, now: datetime) -> Identified:
    """The identity at the other end of a call, by gRPC's `context.auth_context()`; PeerError if it is nobody
    that this bundle lets in."""
    leaf = [*auth_context.get("x509_pem_cert", ())]
    if len(leaf) != 1:
        raise PeerError("the connection shows no certificate; dial with a bundle that `fedboost keys` wrote")
    intermediates = auth_context.get("x509_pem_cert_chain", ())
    return identify(b"\n".join([*leaf, *intermediates]), bundle.roots, now, bundle.denied)


def tls_fault(address: str, bundle: Bundle) -> TlsFault | None:
    """The reason why TLS with the server at HOST:PORT fails: gRPC says of most causes only that the
    connection was lost. None if nobody listens there, or all is well.

    Blocks for some seconds at most; reads the bundle's folder again. ConfigError if that cannot be read.
    """
    ours = bundle.folder / CERTIFICATE
    try:
        now = datetime.now(UTC)
        if now > bundle.ends:
            return TlsFault(f"{ours}: {expired(bundle.ends, bundle.signer.role)}")
        identify(bundle.certificate, bundle.roots, now, bundle.denied)
    except PeerError as error:
        return TlsFault(f"{ours}: {error}")
    context = _dialling(bundle)
    host, _, port = address.rpartition(":")
    hangs_up = TlsFault(
        f"what listens at {address} hangs up before TLS: the aggregator may be at its limit of connections, "
        f"or it is no aggregator",
        passes=True,
    )
    try:
        opened = socket.create_connection((host.strip("[]"), int(port)), _PATIENCE)
    except ConnectionResetError:
        return hangs_up
    except OSError:
        return None
    try:
        with (
            opened,
            context.wrap_socket(
                opened, server_hostname=SERVER_NAME, do_handshake_on_connect=False
            ) as secured,
        ):
            secured.do_handshake()
            if _is_taken(secured):
                return None
    except ssl.SSLCertVerificationError as error:
        return TlsFault(f"the certificate of the aggregator at {address} {_certificate_fault(error)}")
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return hangs_up
    except ssl.SSLError:
        return TlsFault(
            f"what listens at {address} does not speak TLS as a fedboost aggregator with keys does"
        )
    except TimeoutError:
        return TlsFault(
            f"what listens at {address} does not answer: the aggregator may be busy, or it is no aggregator",
            passes=True,
        )
    except OSError:
        return hangs_up
    return TlsFault(
        f"the aggregator at {address} refuses {ours}: it trusts another consortium, or its clock is wrong; "
        f"compare the fingerprints that `fedboost keys show` prints there and here"
    )


def _is_taken(secured: ssl.SSLSocket) -> bool:
    """Tell if the server takes our certificate: then it speaks first, else it hangs up."""
    try:
        return len(secured.recv(1)) > 0
    except TimeoutError:
        return True
    except OSError:
        return False


def _dialling(bundle: Bundle) -> ssl.SSLContext:
    """TLS as gRPC's clients speak it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate may be trusted like a root
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=bundle.roots.decode())
        context.load_cert_chain(bundle.folder / CERTIFICATE, bundle.folder / KEY, password="none")
    except OSError as error:
        raise ConfigError(f"{bundle.folder}: cannot read the bundle again: {error.strerror}") from None
    return context


# OpenSSL, x509_vfy.h
_NOT_YET, _EXPIRED = 9, 10
_UNTRUSTED = (2, 7, 18, 19, 20, 21)
_UNFIT = (26, 62, 79)


def _certificate_fault(error: ssl.SSLCertVerificationError) -> str:
    """The fault of a server's certificate, after its name in a sentence."""
    if error.verify_code in _UNTRUSTED:
        compare = "compare the fingerprints that `fedboost keys show` prints there and here"
        return f"is of another consortium; {compare}"
    if error.verify_code == _EXPIRED:
        return "is expired; it needs a new bundle, which `fedboost keys aggregator` writes"
    if error.verify_code == _NOT_YET:
        return "is not valid yet; check this machine's clock"
    if error.verify_code in _UNFIT:
        return f"is not an aggregator's, which has the DNS name {SERVER_NAME}"
    return f"cannot be believed: {error.verify_message}"
