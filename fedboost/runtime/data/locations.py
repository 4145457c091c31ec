"""Locations of tables: files, folders and globs of this machine, objects at s3:// and https:// addresses.

Promises: the files of a folder or a glob come in the order of their names; a password, key or signature in an
address is in no message; what comes by https is kept in a temporary file without a name.
Refuses: http:// to another machine, also by way of a redirect; locations where nothing is (ConfigError).
"""

import glob
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fedboost.errors import ConfigError
from fedboost.people.text import shorten
from fedboost.runtime.data.database import POSTGRESQL, Database

if TYPE_CHECKING:
    import pyarrow as pa

REMOTE = ("s3://", "https://", "http://")
TOGETHER = (".parquet", ".pq")
"""Suffixes of files that are read together, as one table."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value in a folder's name that stands for none."""
_GLOB = "*?["


@dataclass(frozen=True)
class Location:
    """A file: its name for people and for its suffix, and how its bytes are read."""

    shown: str
    name: str
    open: Callable[[], "pa.NativeFile"]
    path: Path | None = None
    """The path of a file on this machine."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Values that the names of folders give to all its rows."""


@dataclass(frozen=True)
class Locations:
    """The files of a table: a single one, or several that are read together."""

    shown: str
    files: tuple[Location, ...]
    together: bool = False


def is_remote(source: object) -> bool:
    """Tell if a table is at an address, not on this machine."""
    return isinstance(source, str) and source.lower().startswith(REMOTE)


def shown(source: object) -> str:
    """Return a path, a database, or an address without what gives access: user, password, query."""
    if not is_remote(source):
        return str(source)
    try:
        parts = urlsplit(str(source))
    except ValueError:
        return str(source).partition("://")[0] + "://..."
    location = parts.netloc + parts.path
    if "@" in parts.netloc or (":" in parts.netloc and "@" in location):  # a slash may be part of a password
        begin = location if "@" not in parts.netloc else parts.netloc
        location = f"***@{location[begin.rindex('@') + 1 :]}"
    return f"{parts.scheme}://{location}{'?...' if parts.query else ''}"


def local_files(source: "str | Path | Database") -> tuple[Path, ...]:
    """Return the files on this machine that a table is read from; none where there are none."""
    if isinstance(source, Database):
        return () if source.kind == POSTGRESQL else (source.path,)
    if is_remote(source):
        return ()
    try:
        return tuple(location.path for location in locations_of(source).files if location.path is not None)
    except ConfigError:
        return (Path(source),)


def locations_of(source: str | Path, scratch: Path | None = None) -> Locations:
    """Return the files of a path, a folder or glob of Parquet files, or an address. scratch: a folder for
    what has to be fetched. Raises ConfigError."""
    if not is_remote(source):
        return _local(Path(source).absolute())
    try:
        parts = urlsplit(str(source))
        parts.port  # noqa: B018 - raises for what is no number
    except ValueError:
        why = "a port is a number, and before the host %2F stands for / and %40 for @"
        raise ConfigError(f"{shown(source)}: is no address: {why}") from None
    if parts.scheme == "s3":
        return _in_bucket(parts, shown(source))
    from fedboost.runtime.data.fetch import fetch

    name = PurePosixPath(unquote(parts.path)).name.lower()
    location = Location(shown(source), name, fetch(parts, shown(source), scratch))
    return Locations(location.shown, (location,))


def check_scratch(scratch: Path | None) -> None:
    """Raise ConfigError for a scratch folder that is not there."""
    if scratch is not None and not scratch.is_dir():
        what = "is not a folder" if scratch.exists() else "does not exist"
        raise ConfigError(
            f"scratch folder {scratch}: {what}; make it, or name another one (scratch in the site's file)"
        )


def _local(path: Path) -> Locations:
    try:
        if path.is_dir():
            names = (match for match in path.rglob("*") if match.is_file())
            relative = ((str(match), match.relative_to(path).as_posix()) for match in names)
            return _together(
                str(path), relative, _at_path, f"{path}: holds no Parquet file (*.parquet, *.pq)"
            )
        if path.exists() or not any(character in str(path) for character in _GLOB):
            return Locations(str(path), (_at_path(str(path)),))
        matches = [name for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read", str(error)) from None
    _check_suffixes(matches, str(path))
    begin = len(_fixed(str(path))) + 1
    relative = ((name, name[begin:]) for name in matches)
    return _together(str(path), relative, _at_path, f"{path}: no file has such a name")


def _at_path(name: str) -> Location:
    import pyarrow as pa

    return Location(name, Path(name).name.lower(), lambda: pa.OSFile(name), Path(name))


def _fixed(pattern: str) -> str:
    """The folders of a glob before the first that has a wildcard; of another path all of it."""
    at = next((at for at, character in enumerate(pattern) if character in _GLOB), None)
    return pattern if at is None else pattern[:at].rpartition("/")[0]


def _check_suffixes(names: Iterable[str], source: str) -> None:
    """ConfigError where a glob has matched a file of another form than Parquet."""
    other = next((name for name in names if not name.lower().endswith(TOGETHER)), None)
    if other is not None:
        raise ConfigError(f"{source}: only Parquet files are read together, and {other} is none")


def _together(
    source: str, names: Iterable[tuple[str, str]], location: Callable[[str], Location], nothing: str
) -> Locations:
    """The Parquet files among these, by names and names within the folder; those that begin with _ or . are
    marks and remains of programs."""
    files = []
    for name, within in sorted(names, key=lambda pair: pair[1]):
        parts = within.split("/")
        if within.lower().endswith(TOGETHER) and not any(part.startswith(("_", ".")) for part in parts):
            partition = dict(part.split("=", 1) for part in parts[:-1] if "=" in part)
            known = {key: None if value == NO_VALUE else unquote(value) for key, value in partition.items()}
            at = location(name)
            files.append(Location(at.shown, at.name, at.open, at.path, known))
    if not files:
        raise ConfigError(nothing)
    return Locations(source, tuple(files), together=True)


def _in_bucket(parts: SplitResult, source: str) -> Locations:
    """The object, or the Parquet files below a folder, of an s3:// address."""
    import pyarrow as pa
    from pyarrow import fs

    bucket, key = parts.netloc.rpartition("@")[2], unquote(parts.path).strip("/")
    if not bucket or not key:
        raise ConfigError(f"{source}: names no object; write s3://BUCKET/FOLDER/FILE")
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
            raise ConfigError(f"{source}: no such object, or no right to see it")
        listed = store.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{source}: cannot be read", _plain(error)) from None
    names = [entry.path for entry in listed if entry.type == fs.FileType.File]
    nothing = "holds no Parquet file (*.parquet, *.pq)"
    if folder != key:
        names = [name for name in names if fnmatchcase(name, f"{bucket}/{key}")]
        nothing = "no object has such a name"
        _check_suffixes(names, source)
    within = ((name, name[len(root) + 1 :]) for name in names)
    return _together(source, within, location, f"{source}: {nothing}")


def _store(parts: SplitResult, source: str, bucket: str) -> Any:
    """The store of an s3:// address: its endpoint and region are in the address or the environment."""
    import os

    from pyarrow import fs

    from fedboost.runtime.data.fetch import check_encrypted

    options = dict(parse_qsl(parts.query))
    known = ("region", "endpoint_override", "scheme")
    if odd := next((key for key in options if key not in known), None):
        raise ConfigError(f"{source}: unknown option {odd!r}; known: {', '.join(known)}")
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


def _plain(error: Exception) -> str:
    return shorten((str(error).splitlines() or [type(error).__name__])[0], 200)
