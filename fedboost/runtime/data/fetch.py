"""Files at https:// addresses: fetched once, into a temporary file without a name.

Promises: a user and a password in the address go to that host alone, and into no message; certificates are
checked against the system's roots, or those of SSL_CERT_FILE.
Refuses: http:// to another machine, also by way of a redirect; redirects of another machine to this one;
answers that end early (ConfigError).
"""

import base64
import ipaddress
import mmap
import socket
import ssl
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from fedboost.errors import ConfigError
from fedboost.people.text import shorten

if TYPE_CHECKING:
    import pyarrow as pa

SILENT_SECONDS = 60.0
"""How long a server may send nothing."""
_PIECE = 1 << 20


def check_encrypted(parts: SplitResult, source: str) -> None:
    """ConfigError for http:// to another machine."""
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        where = f" ({parts.hostname})" if parts.hostname and parts.hostname not in source else ""
        raise ConfigError(f"{source}: {parts.scheme}://{where} is not encrypted; use https://")


def fetch(parts: SplitResult, source: str, folder: Path | None) -> "Callable[[], pa.NativeFile]":
    """Return a function that opens the file at this address. folder: where it is kept."""
    check_encrypted(parts, source)
    lock, kept = threading.Lock(), list[Any]()

    def open_fetched() -> "pa.NativeFile":
        import pyarrow as pa

        with lock:
            if not kept:
                kept.append(pa.py_buffer(_fetched(parts, source, folder)))
        return pa.BufferReader(kept[0])

    return open_fetched


def _fetched(parts: SplitResult, source: str, folder: Path | None) -> mmap.mmap | bytes:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _receive(parts, source, file)
            size = file.tell()
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except HTTPError as error:
        error.close()
        hint = "; write https://USER:PASSWORD@HOST/..., or a signed address" if error.code == 401 else ""
        raise ConfigError(f"{source}: the server answers {error.code} {error.reason}{hint}") from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted: {error.reason.verify_message}"
            raise ConfigError(f"{source}: {why}; SSL_CERT_FILE names a file of other roots") from None
        raise ConfigError(f"{source}: cannot be fetched", _plain(error.reason)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise ConfigError(f"{source}: cannot be fetched", _plain(error)) from None


def _receive(parts: SplitResult, source: str, file: IO[bytes]) -> None:
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit((parts.scheme, host, parts.path or "/", parts.query, "")))
    if user:
        encoded = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")

    class Redirects(urllib.request.HTTPRedirectHandler):
        """Redirects to encrypted addresses alone."""

        def redirect_request(
            self, request: urllib.request.Request, answer: Any, *values: Any
        ) -> urllib.request.Request | None:
            try:
                _check_redirect(urlsplit(request.full_url), urlsplit(values[-1]), source)
            except ConfigError:
                answer.close()
                raise
            return super().redirect_request(request, answer, *values)

    context = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    opener = urllib.request.build_opener(context, Redirects())
    with opener.open(request, timeout=SILENT_SECONDS) as answer:
        expected = answer.headers.get("Content-Length")
        while piece := answer.read(_PIECE):
            file.write(piece)
        file.flush()
    if expected is not None and file.tell() != int(expected):
        raise ConfigError(f"{source}: the answer ended after {file.tell():,} of {int(expected):,} bytes")


def _check_redirect(begin: SplitResult, end: SplitResult, source: str) -> None:
    """ConfigError for http:// to another machine, and where another machine points to this one, whose
    services are not for it to ask."""
    check_encrypted(end, source)
    if _is_this_machine(end.hostname or "") and not _is_this_machine(begin.hostname or ""):
        raise ConfigError(f"{source}: the server redirects to this machine, {end.hostname}: refused")


def _is_this_machine(host: str) -> bool:
    """Tell if a name, or any address that it has, is of this machine alone or of its network segment."""
    try:
        addresses = {str(address[4][0]).partition("%")[0] for address in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return _is_loopback(host)  # nobody is asked
    parsed = [*map(ipaddress.ip_address, (address.removeprefix("::ffff:") for address in addresses))]
    return any(a.is_loopback or a.is_link_local or a.is_unspecified for a in parsed)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(reason: object) -> str:
    return shorten((str(reason).splitlines() or [type(reason).__name__])[0], 200)
