"""Files: written whole or not at all. Refuses paths that cannot be written (ConfigError)."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fedboost.errors import ConfigError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a new file beside `path`, sync it, and put it in the place of `path`."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None


def party_stems(names: Iterable[str]) -> dict[str, str]:
    """A file name without suffix for each party: readable, distinct from the others and from the files that
    are no party's, also where upper and lower case are the same."""
    stems: dict[str, str] = {}
    used = {"aggregator", "model", "terms"}
    for number, name in enumerate(names, 1):
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:50]
        stems[name] = stem if stem == name and stem.casefold() not in used else f"{number}-{stem}"
        used.add(stems[name].casefold())
    return stems


def check_writable(path: Path) -> None:
    """Raise ConfigError now if a file could not be written at `path` later."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the directory {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{path}: the directory {path.parent} cannot be written to")
