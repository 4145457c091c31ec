"""Locates the files of a table: local files, folders and globs, and s3:// and https:// addresses.

Guarantees: files of a folder or glob are ordered by name. Messages never contain the password, key or
signature in an address. Files from https:// are stored in unlinked temporary files.

Rejects: http:// addresses on other machines, even as targets of redirects.
"""

import base64
import errno
import glob
import ipaddress
import mmap
import os
import socket
import ssl
import tempfile
import threading
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from fedboost.errors import ConfigError
from fedboost.runtime.config import is_loopback
from fedboost.runtime.data.database import POSTGRESQL, REMOTE, Database, ReadOptions
from fedboost.runtime.data.values import BadRow, check_distinct_names, missing_column
from fedboost.views.words import shorten

TOGETHER = (".parquet", ".pq")  # suffixes of files that can be read together as one table
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # value in a folder name that denotes a missing value
_GLOB = "*?["
_NO_PARQUET = "there are no Parquet files (*.parquet, *.pq) in this folder"


@dataclass(frozen=True)
class Location:
    """A file of a table. shown: its name in messages; name: its file name in lower case, from which the
    format is determined; open: function that opens the file for reading."""

    shown: str
    name: str
    open: Callable[[], "pa.NativeFile"]
    path: Path | None = None
    """Path of the file if it is local, otherwise None."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Column -> its value in all rows of the file, from folder names such as `a=1`."""


@dataclass(frozen=True)
class Locations:
    """The files of a table. If `together` is True, several files may be read as one table."""

    shown: str
    files: tuple[Location, ...]
    together: bool = False


def is_remote(source: object) -> bool:
    return isinstance(source, str) and source.lower().startswith(REMOTE)


def shown(source: object) -> str:
    """Format a source for messages. The user, the password and the query of an address are left out."""
    if not is_remote(source):
        return str(source)
    try:
        parts = urlsplit(str(source))
    except ValueError:
        return str(source).partition("://")[0] + "://..."
    location = parts.netloc + parts.path
    if "@" in parts.netloc or (":" in parts.netloc and "@" in location):  # a password may have a slash
        begin = location if "@" not in parts.netloc else parts.netloc
        location = f"***@{location[begin.rindex('@') + 1 :]}"
    return f"{parts.scheme}://{location}{'?...' if parts.query else ''}"


def local_files(source: "str | Path | Database") -> tuple[Path, ...]:
    """Return the paths of the local files that a table is read from; empty if there are none."""
    if isinstance(source, Database):
        return () if source.kind == POSTGRESQL else (source.path,)
    if is_remote(source):
        return ()
    try:
        return tuple(location.path for location in locations_of(source).files if location.path is not None)
    except ConfigError:
        return (Path(source),)


def locations_of(source: str | Path, scratch: Path | None = None) -> Locations:
    """Return the files that a path, folder, glob or address refers to. Raises ConfigError if there are no
    files, or if the address is invalid. scratch: folder for downloaded files."""
    if not is_remote(source):
        return _local(Path(source).absolute())
    try:
        parts = urlsplit(str(source))
        parts.port  # noqa: B018 - raises ValueError if it is not a number
    except ValueError:
        why = "the port must be a number; in credentials, write %2F for / and %40 for @"
        raise ConfigError("source-address", f"{shown(source)} is not a valid address: {why}") from None
    if parts.scheme == "s3":
        return _in_bucket(parts, shown(source))

    name = PurePosixPath(unquote(parts.path)).name.lower()
    location = Location(shown(source), name, fetch(parts, shown(source), scratch))
    return Locations(location.shown, (location,))


def check_scratch(scratch: Path | None) -> None:
    if scratch is not None and not scratch.is_dir():
        what = "is not a folder" if scratch.exists() else "does not exist"
        raise ConfigError(
            "scratch-missing",
            f"the scratch folder {scratch} {what}; create it, or set `scratch` to another folder in the "
            f"site's file",
        )


def _local(path: Path) -> Locations:
    try:
        if path.is_dir():
            found = (match for match in path.rglob("*") if match.is_file())
            names = [(str(match), match.relative_to(path).as_posix()) for match in found]
            return _together(str(path), names, _at_path, _NO_PARQUET)
        if path.exists() or not any(character in str(path) for character in _GLOB):
            return Locations(str(path), (_at_path(str(path)),))
        matches = [name for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError("source-unreadable", f"{path} cannot be read", str(error)) from None
    _check_suffixes(matches, str(path))
    begin = len(_fixed(path.as_posix())) + 1
    names = [(name, Path(name).as_posix()[begin:]) for name in matches]
    return _together(str(path), names, _at_path, "no file matches this pattern")


def _at_path(name: str) -> Location:
    return Location(name, Path(name).name.lower(), lambda: pa.OSFile(name), Path(name))


def _fixed(pattern: str) -> str:
    """Return the folder before the first wildcard of a glob, or the whole path if there is no wildcard."""
    at = next((at for at, character in enumerate(pattern) if character in _GLOB), None)
    return pattern if at is None else pattern[:at].rpartition("/")[0]


def _check_suffixes(names: Iterable[str], source: str) -> None:
    other = next((name for name in names if not name.lower().endswith(TOGETHER)), None)
    if other is not None:
        raise ConfigError(
            "source-not-parquet",
            f"{source}: only Parquet files can be read together, but {other} has a different format",
        )


def _together(
    source: str, names: Iterable[tuple[str, str]], location: Callable[[str], Location], nothing: str
) -> Locations:
    """Combine the Parquet files of a folder or glob into one table. names: name of each file, and its path
    within the folder, by which the files are sorted; nothing: message if there are no such files. Names that
    start with _ or . are skipped, because other programs use such names for markers and temporary files."""
    files = []
    for name, within in sorted(names, key=lambda pair: pair[1]):
        parts = within.split("/")
        if within.lower().endswith(TOGETHER) and not any(part.startswith(("_", ".")) for part in parts):
            partition = dict(part.split("=", 1) for part in parts[:-1] if "=" in part)
            known = {key: None if value == NO_VALUE else unquote(value) for key, value in partition.items()}
            at = location(name)
            files.append(Location(at.shown, at.name, at.open, at.path, known))
    if not files:
        raise ConfigError("source-not-found", f"{source}: {nothing}")
    return Locations(source, tuple(files), together=True)


def _in_bucket(parts: SplitResult, source: str) -> Locations:
    """Return the object at an s3:// address, or the Parquet files if it is a folder or glob."""
    bucket, key = parts.netloc.rpartition("@")[2], unquote(parts.path).strip("/")
    if not bucket or not key:
        raise ConfigError(
            "source-address", f"{source} does not name an object; write s3://BUCKET/FOLDER/FILE"
        )
    folder = _fixed(key)
    try:
        store = _store(parts, source, bucket)
        root = f"{bucket}/{folder}".rstrip("/")

        def location(name: str) -> Location:
            return Location(
                f"s3://{name}", name.rpartition("/")[2].lower(), lambda: store.open_input_file(name)
            )

        info = store.get_file_info(root)
        if folder == key and info.type == fs.FileType.File:
            return Locations(source, (location(root),))
        if folder == key and info.type == fs.FileType.NotFound:
            raise ConfigError(
                "source-not-found",
                f"{source}: the object does not exist, or you have no permission to read it",
            )
        listed = store.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError("source-unreadable", f"{source} cannot be read", first_line(error)) from None
    names = [entry.path for entry in listed if entry.type == fs.FileType.File]
    nothing = _NO_PARQUET
    if folder != key:
        names = [name for name in names if fnmatchcase(name, f"{bucket}/{key}")]
        nothing = "no object matches this pattern"
        _check_suffixes(names, source)
    return _together(source, [(name, name[len(root) + 1 :]) for name in names], location, nothing)


def _store(parts: SplitResult, source: str, bucket: str) -> Any:
    """Return the file system of an s3:// address, by the endpoint and region in it or the environment."""
    options = dict(parse_qsl(parts.query))
    known = ("region", "endpoint_override", "scheme")
    if odd := next((key for key in options if key not in known), None):
        raise ConfigError(
            "source-option-unknown", f"{source} has the unknown option {odd!r}; use one of {', '.join(known)}"
        )
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if "endpoint_override" in options:
        endpoint = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
    settings: dict[str, Any] = {"connect_timeout": 20, "request_timeout": 60}
    if endpoint:
        at = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        check_encrypted(at, source)
        settings |= {"endpoint_override": at.netloc, "scheme": at.scheme}
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    settings["region"] = region or ("us-east-1" if endpoint else fs.resolve_s3_region(bucket))
    user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    if colon:
        settings |= {"access_key": unquote(user), "secret_key": unquote(password)}
    return fs.S3FileSystem(**settings)


# ---- Base classes of tables at these locations ----------------------------------------------------------


COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
PART_ROWS = 1 << 16  # most rows of a part


class Source(ABC):
    """Base class of a table that has been located but not read: files of one format, or a database query."""

    form: ClassVar[str]
    shown: str
    """Path, address or database, as shown in messages."""

    def names(self) -> Sequence[str] | None:
        """Return the column names, or None if they are known only after the rows have been read."""
        return None

    @abstractmethod
    def read(self) -> Any:
        """Read and return the whole table."""

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> Iterator[Any]:
        """Yield the given columns in parts of consecutive rows. A source that cannot be read in parts yields
        the whole table. as_text: columns to read as text, exactly as spelled in the file."""
        yield self.read()

    def line_of(self, row: int) -> int | None:
        """Return the line number of a row, counted from 1, or None if the format does not have lines. row:
        index of the row, counted from 0."""
        return None

    def in_parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> Iterator[Any]:
        """Yield the given columns in parts of at most `PART_ROWS` rows, or at once if the format cannot be
        read in parts. Values and order are the same as with `read`. as_text: as for `parts`."""
        with reading(self.shown, self.form):
            for part in self.parts(columns, as_text):
                if isinstance(part, pa.Table):
                    yield from (part.slice(first, PART_ROWS) for first in range(0, part.num_rows, PART_ROWS))
                else:
                    yield part

    def check_known(self, columns: Collection[str]) -> None:
        """Raise ConfigError for the first missing column. Does nothing if the column names are known only
        after the rows have been read."""
        with reading(self.shown, self.form):
            names = self.names()
        if names is not None:
            check_distinct_names(names, self.shown)
            self.check_columns(names, columns)

    @contextmanager
    def named(self, before: int = 0) -> Iterator[None]:
        """Context manager that adds the source and the line number to errors raised within it. before: number
        of rows before the current part of the table."""
        try:
            yield
        except ConfigError as error:
            if isinstance(error, BadRow):
                error = error.at(error.row + before)
                error = error.on_line(self.line_of(error.row))
            raise ConfigError(error.code, f"{self.shown}: {error.public}", error.detail) from None

    def check_columns(self, names: Sequence[str], columns: Iterable[str]) -> None:
        there = {*names}
        for name in columns:
            if name not in there:
                error = missing_column(name, names)
                raise ConfigError(error.code, f"{self.shown}: {error.public}", error.detail)


class File(Source):
    """Base class of the file formats: a table in one or several files of the same format."""

    suffixes: ClassVar[tuple[str, ...]]
    takes: ClassVar[tuple[str, ...]] = ()
    """Names of the options in `ReadOptions` that apply to this format."""
    packed: ClassVar[bool] = False
    """True if files may be compressed, which is indicated by a second suffix such as `.gz`."""

    def __init__(self, locations: Locations, options: ReadOptions) -> None:
        self.locations, self.location, self.options = locations, locations.files[0], options
        self.shown = locations.shown

    @classmethod
    def every_suffix(cls) -> tuple[str, ...]:
        more = ("", *COMPRESSIONS) if cls.packed else ("",)
        return tuple(suffix + packed for suffix in cls.suffixes for packed in more)

    @contextmanager
    def opened(self) -> "Iterator[pa.NativeFile]":
        """Context manager that opens a file for reading, decompressed if its suffix indicates compression."""
        method = next((COMPRESSIONS[end] for end in COMPRESSIONS if self.location.name.endswith(end)), None)
        with self.location.open() as file:
            if method is None:
                yield file
            else:
                with pa.CompressedInputStream(file, method) as stream:
                    yield stream


@contextmanager
def reading(source: str, form: str) -> Iterator[None]:
    """Context manager that turns errors while a source is read into a ConfigError. form: its format."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError("source-not-found", f"{source}: no such file") from None
    except PermissionError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), source) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        name = source.partition("?")[0].lower()
        packed = isinstance(error, OSError) and name.endswith(tuple(COMPRESSIONS))
        damaged = "; the file is truncated or damaged, so copy it again" if packed else ""
        raise ConfigError(
            "source-unreadable", f"{source} cannot be read as {form}", first_line(error) + damaged
        ) from None


def first_line(error: object) -> str:
    return shorten((str(error).splitlines() or [type(error).__name__])[0], 200)


# ---- Files at https:// addresses: fetched once, into an unnamed temporary file --------------------------
# The user and password in an address are sent only to its host, and never shown in messages. Certificates are
# checked against the system's roots or the roots in SSL_CERT_FILE. Refused: http:// addresses on other
# machines (even as redirect targets), redirects from another machine to this one, truncated responses.


SILENT_SECONDS = 60.0  # seconds for which a server may send nothing
_PIECE = 1 << 20


def check_encrypted(parts: SplitResult, source: str) -> None:
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(f"{parts.hostname}:")):
        where = f" ({parts.hostname})" if parts.hostname and parts.hostname not in source else ""
        raise ConfigError(
            "source-unencrypted", f"{source}: {parts.scheme}://{where} is not encrypted; use https"
        )


def fetch(parts: SplitResult, source: str, folder: Path | None) -> "Callable[[], pa.NativeFile]":
    """Return a function that opens the file at an https:// address. The file is downloaded once, on the first
    call, into an unlinked temporary file. Raises ConfigError if the address is not encrypted.

    Args:
        parts: the parsed address.
        source: the address as shown in messages.
        folder: folder for the temporary file (default: the system's).
    """
    check_encrypted(parts, source)
    lock, kept = threading.Lock(), list[Any]()

    def opened() -> "pa.NativeFile":
        with lock:
            if not kept:
                kept.append(pa.py_buffer(_fetched(parts, source, folder)))
        return pa.BufferReader(kept[0])

    return opened


def _fetched(parts: SplitResult, source: str, folder: Path | None) -> mmap.mmap | bytes:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _receive(parts, source, file)
            size = file.tell()
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except HTTPError as error:
        error.close()
        hint = "; use https://USER:PASSWORD@HOST/..., or a presigned URL" if error.code == 401 else ""
        raise ConfigError(
            "source-http-error", f"{source}: the server returned {error.code} {error.reason}{hint}"
        ) from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            why = f"the server's certificate is not trusted: {error.reason.verify_message}"
            raise ConfigError(
                "source-untrusted", f"{source}: {why}; set SSL_CERT_FILE to a file with the root certificate"
            ) from None
        raise ConfigError(
            "source-not-fetched", f"{source} cannot be downloaded", first_line(error.reason)
        ) from None
    except (OSError, HTTPException, ValueError) as error:
        raise ConfigError("source-not-fetched", f"{source} cannot be downloaded", first_line(error)) from None


def _receive(parts: SplitResult, source: str, file: IO[bytes]) -> None:
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit((parts.scheme, host, parts.path or "/", parts.query, "")))
    if user:
        encoded = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")

    class Redirects(urllib.request.HTTPRedirectHandler):
        """Follows redirects only to encrypted addresses, and never from another machine to this one."""

        def redirect_request(
            self, request: urllib.request.Request, answer: Any, *values: Any
        ) -> urllib.request.Request | None:
            begin, end = urlsplit(request.full_url).hostname or "", urlsplit(values[-1])
            try:
                check_encrypted(end, source)
                if _is_this_machine(end.hostname or "") and not _is_this_machine(begin):
                    raise ConfigError(
                        "source-redirect-refused",
                        f"{source}: a redirect to this machine ({end.hostname}) is not allowed",
                    )
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
        raise ConfigError(
            "source-not-fetched",
            f"{source}: received only {file.tell():,} of {int(expected):,} bytes; try again",
        )


def _is_this_machine(host: str) -> bool:
    """Return whether a host name, or any of its addresses, is loopback, link-local or unspecified."""
    try:
        addresses = {str(address[4][0]).partition("%")[0] for address in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return is_loopback(f"{host}:")  # the name cannot be resolved
    parsed = [*map(ipaddress.ip_address, (address.removeprefix("::ffff:") for address in addresses))]
    return any(a.is_loopback or a.is_link_local or a.is_unspecified for a in parsed)
