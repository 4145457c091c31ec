"""Servers of files on this machine, for one test each: https with a certificate of its own, and a store that
answers as S3 does. Both listen on 127.0.0.1 and a port the system chose, and end with the block."""

import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

OLD = "Mon, 01 Jan 2024 00:00:00 GMT"


class Handler(BaseHTTPRequestHandler):
    """Files by path; a listing where S3's clients ask for one."""

    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, *values):
        """Nothing: a test reads `asked`."""

    def do_HEAD(self):
        self._answer(False)

    def do_GET(self):
        self._answer(True)

    def _answer(self, body):
        parts, store = urlsplit(self.path), self.server.store
        key, query = unquote(parts.path).lstrip("/"), parse_qs(parts.query)
        store.asked.append((self.command, key, self.headers))
        if "list-type" in query:
            return self._send(200, listing(store.files, key, query.get("prefix", [""])[0]), body)
        if key in store.moved:
            return self._send(302, b"", body, {"Location": store.moved[key]})
        if key in store.secret and self.headers.get("Authorization") != store.secret[key]:
            return self._send(401, b"", body)
        if key not in store.files:
            return self._send(404, b"", body)
        data, ranged = store.files[key], self.headers.get("Range")
        if key in store.cut:
            return self._send(200, data[: len(data) // 2], body, length=len(data))
        if not ranged:
            return self._send(200, data, body)
        first, last = ranged.removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(data) - 1), len(data) - 1)
        return self._send(
            206, data[first : last + 1], body, {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        )

    def _send(self, code, data, body, headers=(), length=None):
        self.send_response(code)
        own = {"Content-Length": str(len(data) if length is None else length), "Last-Modified": OLD}
        for name, value in (own | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)
        if length is not None:
            self.close_connection = True


def listing(files, bucket, prefix):
    """What S3 lists below a prefix."""
    begin = f"{bucket.rstrip('/')}/"
    names = [name.removeprefix(begin) for name in files if name.startswith(begin + prefix)]
    rows = (
        f"<Contents><Key>{name}</Key><Size>{len(files[begin + name])}</Size>"
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        for name in sorted(names)
    )
    count = f"<KeyCount>{len(names)}</KeyCount><IsTruncated>false</IsTruncated>"
    return f"<?xml version='1.0'?><ListBucketResult>{count}{''.join(rows)}</ListBucketResult>".encode()


@contextmanager
def serving(files, certificate=None):
    """A server of these files by path: `address` (HOST:PORT), `asked`; `moved`, `secret` and `cut` are to be
    filled."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store = SimpleNamespace(files=files, asked=[], moved={}, secret={}, cut=set())
    server.store, store.address = store, f"127.0.0.1:{server.server_port}"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def own_certificate(path):
    """Write a certificate of 127.0.0.1 that signs itself, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(hours=1))
    builder = builder.not_valid_after(now + timedelta(hours=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = builder.add_extension(names, False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    signed = builder.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + secret)
    return path
