"""Atomic writing of files: a file is replaced completely or not at all.

If a path is a symbolic link, its target is replaced. Devices, e.g. /dev/null, and the pipe behind /dev/stdout
are written to directly.
Raises: ConfigError if a path cannot be written.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedboost.errors import ConfigError

_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in "0123456789¹²³")}
"""Names that Windows gives to devices, in any case and with any suffix. Parties may have them."""


def write_atomically(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write data to a new file in the same folder, sync it to disk, and replace `path` with it. mode: file
    permissions (default: as set by the umask)."""
    with replacing(path, mode) as file:
        file.write(data)


def saved(text: str, path: Path | str | None) -> str:
    """Return the text, after writing it to a file if a path is passed."""
    if path is not None:
        write_atomically(Path(path), text.encode())
    return text


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path` for writing, which is synced to disk and replaces `path` at the
    end, or is discarded after an error. mode: permissions (default: as set by the umask)."""
    if _is_stream(path):
        with file_errors(path, "cannot write"), path.open("wb") as stream:
            yield stream
        return
    file = Path(os.path.realpath(path))
    with file_errors(path, "cannot write"):
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with file_errors(path, "cannot write"):
            with os.fdopen(handle, "wb") as new:
                yield new
                new.flush()
                os.fsync(new.fileno())
            if mode is None:
                umask = os.umask(0)
                os.umask(umask)
                mode = 0o666 & ~umask
            os.chmod(name, mode)
            os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def file_errors(path: Path | str, fault: str) -> Iterator[None]:
    """Context manager that turns an OSError into a ConfigError "{path}: {fault}: {reason}"."""
    try:
        yield
    except OSError as error:
        raise ConfigError("file-failed", f"{path}: {fault}: {error.strerror}") from None


def party_stems(names: Iterable[str]) -> dict[str, str]:
    """Return a dict: party -> readable file name without suffix. The names are distinct even on
    case-insensitive file systems, and differ from the names of fedboost's other files."""
    stems: dict[str, str] = {}
    used = {"aggregator", "all", "analyst", "model", "new", "terms"} | _DEVICES
    for number, name in enumerate(names, 1):
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:50]
        stems[name] = stem if stem == name and stem.casefold() not in used else f"{number}-{stem}"
        used.add(stems[name].casefold())
    return stems


def check_writable(path: Path, *inputs: Path, force: bool) -> None:
    """Raise ConfigError early if `path` is not writable, is an input, or exists and `force` is False."""
    if _is_stream(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ConfigError(
            "file-folder-missing", f"{path}: cannot write: the directory {folder} does not exist"
        )
    if not os.access(folder, os.W_OK):
        raise ConfigError(
            "file-folder-readonly", f"{path}: cannot write: the directory {folder} is not writable"
        )
    if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
        raise ConfigError("file-is-input", f"{path} is an input of this command; use another name")
    if path.exists() and not force:
        raise ConfigError("file-exists", f"{path} already exists; use another name, or --force to replace it")


def _is_stream(path: Path) -> bool:
    """Return whether `path` is a device or a pipe that is already open. Raises ConfigError if it exists but
    is neither a stream nor a regular file, because opening a named pipe might block forever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError("file-failed", f"{path}: cannot write: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise ConfigError("file-is-folder", f"{path}: cannot write: it is a directory; specify a file")
    open_pipe = stat.S_ISFIFO(mode) and not os.path.exists(os.path.realpath(path))
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or open_pipe):
        raise ConfigError(
            "file-not-regular", f"{path}: cannot write: it is not a regular file; use another name"
        )
    return not stat.S_ISREG(mode)


def folder_name(name: str) -> str:
    """Return a folder name for a party or dataset: the name itself if it is safe as a file name, or else a
    shortened name with a hash."""
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:50]
    safe = stem == name and stem.casefold() not in _DEVICES
    return stem if safe else f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
