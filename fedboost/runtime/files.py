"""Files: written whole or not at all. Refuses paths that cannot be written (ConfigError).

A link stays, and the file it leads to is replaced. What goes to a device, such as /dev/null, or to the pipe
behind /dev/stdout is written straight through.
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
    """Write a new file beside the one at `path`, sync it, and replace that one by it. mode: who may
    read and write it, as the process's umask says unless given."""
    with replacing(path, mode) as file:
        file.write(data)


def saved(text: str, path: Path | str | None) -> str:
    """Return a text, which is also written to a file if one is given."""
    if path is not None:
        write_atomically(Path(path), text.encode())
    return text


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a new file beside the one at `path`, to be written piece by piece; at the end sync it, and replace
    that one by it. Whatever is raised meanwhile leaves that one as it is."""
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
    """Make an error of a file one sentence. fault: such as "cannot read". ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {fault}: {error.strerror}") from None


def party_stems(names: Iterable[str]) -> dict[str, str]:
    """A file name without suffix for each party: readable, distinct from the others and from the files that
    are no party's, also where upper and lower case are the same."""
    stems: dict[str, str] = {}
    used = {"aggregator", "all", "analyst", "model", "new", "terms"}
    for number, name in enumerate(names, 1):
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:50]
        stems[name] = stem if stem == name and stem.casefold() not in used else f"{number}-{stem}"
        used.add(stems[name].casefold())
    return stems


def check_writable(path: Path, *inputs: Path, force: bool) -> None:
    """Raise ConfigError now if a file could not be written at `path` later, or would replace an input, or
    would replace any file without force."""
    if _is_stream(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ConfigError(f"{path}: the directory {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{path}: the directory {folder} cannot be written to")
    if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
        raise ConfigError(f"{path}: is read by this very command; give the output another name")
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists already; give another name, or --force to replace it")


def _is_stream(path: Path) -> bool:
    """Tell if `path` leads to a device or an open pipe; ConfigError where it leads to neither that nor a file
    nor to nothing. To open a named pipe might wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path}: cannot write: it is a directory; give the name of a file")
    open_pipe = stat.S_ISFIFO(mode) and not os.path.exists(os.path.realpath(path))
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or open_pipe):
        raise ConfigError(f"{path}: cannot write: it is no regular file; give another name")
    return not stat.S_ISREG(mode)


def folder_name(name: str) -> str:
    """The name of a folder for a party or dataset of this name: the name itself where it can be one."""
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:50]
    return stem if stem == name else f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def sync_folder(path: Path) -> None:
    """Sync the names of a folder's files to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
