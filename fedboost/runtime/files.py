"""Files that are written whole or not at all.

Links are kept, and their targets replaced. Devices, such as /dev/null, and the pipe of /dev/stdout are
written directly. Paths that cannot be written are a ConfigError.
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


def write_atomically(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a new file beside `path`, sync it, and replace `path` by it. mode: permissions (default: by the
    umask)."""
    with replacing(path, mode) as file:
        file.write(data)


def saved(text: str, path: Path | str | None) -> str:
    """Return a text, after writing it to a file if one is given."""
    if path is not None:
        write_atomically(Path(path), text.encode())
    return text


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a new file beside `path` to write piece by piece. At the end it is synced, and replaces `path`.
    Any exception leaves `path` as it is."""
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
    """Turn OSError into ConfigError. fault: e.g. "cannot read"."""
    try:
        yield
    except OSError as error:
        raise ConfigError("file-failed", f"{path}: {fault}: {error.strerror}") from None


def party_stems(names: Iterable[str]) -> dict[str, str]:
    """Return a readable file name without suffix for each party, distinct from all others and from the names
    of other files, even where case does not matter."""
    stems: dict[str, str] = {}
    used = {"aggregator", "all", "analyst", "model", "new", "terms"}
    for number, name in enumerate(names, 1):
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:50]
        stems[name] = stem if stem == name and stem.casefold() not in used else f"{number}-{stem}"
        used.add(stems[name].casefold())
    return stems


def check_writable(path: Path, *inputs: Path, force: bool) -> None:
    """Raise ConfigError now if `path` could not be written later, or is an input, or exists without force."""
    if _is_stream(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ConfigError("file-folder-missing", f"{path}: the directory {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise ConfigError("file-folder-readonly", f"{path}: the directory {folder} is not writable")
    if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
        raise ConfigError("file-is-input", f"{path}: is an input of this command; use another name")
    if path.exists() and not force:
        raise ConfigError("file-exists", f"{path}: already exists; use another name or --force to replace it")


def _is_stream(path: Path) -> bool:
    """Return whether `path` is a device or an open pipe. ConfigError if it is neither that nor a file nor
    missing: opening a named pipe might block without end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError("file-failed", f"{path}: cannot write: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise ConfigError("file-is-folder", f"{path}: cannot write: it is a directory; give a file name")
    open_pipe = stat.S_ISFIFO(mode) and not os.path.exists(os.path.realpath(path))
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or open_pipe):
        raise ConfigError("file-not-regular", f"{path}: cannot write: not a regular file; use another name")
    return not stat.S_ISREG(mode)


def folder_name(name: str) -> str:
    """Return a folder name for a party or dataset: its own name if possible, else one with a hash."""
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:50]
    return stem if stem == name else f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
