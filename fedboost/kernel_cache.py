"""The cache of compiled kernels: the folders that they are read from and kept in.

Promises: kernels are kept in FEDBOOST_CACHE, or else NUMBA_CACHE_DIR, if that is set; else in the first
folder that can be written of the package's own, the user's cache folder and one of this user in the system's
temporary folder. A kernel that cannot be kept, be it for want of a folder or of room, is compiled all the
same, and one line on standard error says so. A change of any kernel's source leaves the older ones unread.
Of several processes that need a kernel one compiles it; the others wait and read it.
Refuses: a folder that other users can write, because what is read from a cache is code; a named folder that
can neither be written nor has the kernels (ConfigError: one line).
"""

import errno
import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.registry import cpu_target
from numba.misc.appdirs import AppDirs

from fedboost.errors import ConfigError, printable
from fedboost.version import VERSION

VARIABLE = "FEDBOOST_CACHE"
COMPILING = "compiling kernels, once on this machine; this takes up to two minutes"
PACKAGE = Path(__file__).parent
SOURCES = "gbdt/kernels/*.py", "privacy/kernels.py", "privacy/rowsums/kernels.py"
"""The files with kernels."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_DAMAGED = (EOFError, UnpicklingError)
MAX_WAIT_SECONDS = 60.0
"""A process that waits longer for another one compiles, too: the other may hang."""
_PAUSE_SECONDS = 0.05


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function as `numba.njit` with these options does, when it is first
    called, and keeps the result."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = numba.njit(**options)(function)
        compiled._cache = _KernelCache(function)
        return compiled

    return decorate


@dataclass(frozen=True)
class Folders:
    """The folders of this process: those to read from, in that order, and the one to keep kernels in."""

    read: tuple[Path, ...]
    write: Path | None
    reasons: str
    """Why none can be written: a line, without what to do."""


@cache
def folders() -> Folders:
    """Return the folders, chosen once. ConfigError for a named one that cannot be used."""
    name = VARIABLE if os.environ.get(VARIABLE) else "NUMBA_CACHE_DIR"
    if not (value := os.environ.get(name)):
        return _first_of(_ordinary())
    folder = Path(value).absolute() / _version()
    try:
        _make(folder)
        return Folders((folder,), folder, "")
    except _Unsafe as error:
        raise ConfigError(f"{name}={printable(value)}: {error.strerror}") from None
    except OSError as error:
        if error.errno in FULL_DISK:
            return Folders((folder,), None, f"{name}={value}: {error.strerror}")
        if not _holds_kernels(folder):
            raise ConfigError(
                f"{name}={printable(value)}: has no compiled kernels of this version, and none can be kept "
                f"there: {error.strerror}; name a folder that this user can write, or unset {name}"
            ) from None
    others = _first_of(_ordinary())  # for what is not compiled there, or was for another processor
    return Folders((folder, *others.read), others.write, others.reasons)


def _ordinary() -> Iterator[Path]:
    yield PACKAGE / "__pycache__"
    yield Path(AppDirs("fedboost", appauthor=False).user_cache_dir)
    yield Path(os.environ.get("TMPDIR") or "/tmp") / f"fedboost-{os.geteuid()}"


def _first_of(bases: Iterator[Path]) -> Folders:
    """Return the folders of these places up to the first that can be written."""
    read, reasons = list[Path](), list[str]()
    for base in bases:
        folder = base / _version()
        try:
            if not base.is_absolute():  # of a user without a home
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            _make(folder)
            return Folders((*read, folder), folder, "")
        except OSError as error:
            reasons.append(f"{base}: {error.strerror}")
        if _holds_kernels(folder):
            read.append(folder)
    return Folders(tuple(read), None, ", ".join(reasons))


class _Unsafe(OSError):
    """A folder that other users can write."""


@cache
def _version() -> str:
    """Return the name of the folder for these very kernels: numba alone would not notice a change in a kernel
    that another file calls."""
    digest = hashlib.sha256(f"{VERSION} {numba.__version__}".encode())
    for file in (path for pattern in SOURCES for path in sorted(PACKAGE.glob(pattern))):
        digest.update(file.read_bytes())
    return f"kernels-{digest.hexdigest()[:16]}"


def _make(folder: Path) -> None:
    """Make a folder for this user alone, or for all to read what root compiled, and try it. OSError unless it
    can be written, and by nobody else."""
    _check_link(folder.parent)
    mode = 0o755 if os.geteuid() == 0 else 0o700
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            try:
                path.mkdir(mode)
            except FileExistsError:
                if not path.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    _check_safe(folder)
    tempfile.TemporaryFile(dir=folder).close()


def _holds_kernels(folder: Path) -> bool:
    try:
        _check_safe(folder)
        return any(folder.glob("*.nbi"))
    except OSError:
        return False


def _check_safe(folder: Path) -> None:
    """Raise OSError if another user can put files in a folder or replace it. The package's own is as safe as
    the package."""
    if folder.parent == PACKAGE / "__pycache__":
        return
    _check_link(folder.parent)
    real = folder.resolve(strict=True)
    for path in (real, *real.parents):
        status = path.stat()
        if status.st_uid not in _trusted():
            raise _Unsafe(errno.EPERM, f"{path} belongs to another user, who could put code there")
        others = stat.S_IWOTH if _is_private(status.st_gid, status.st_uid) else stat.S_IWOTH | stat.S_IWGRP
        writable = status.st_mode & others
        if writable and (path == real or not status.st_mode & stat.S_ISVTX):
            raise _Unsafe(errno.EPERM, f"other users can write {path}, and put code there; chmod go-w {path}")


def _is_private(group: int, user: int) -> bool:
    """Tell if a group is that of a user alone: of the same number and name, and without other members."""
    import grp  # which not every system has
    import pwd

    try:
        known, owner = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:  # without names, as in a container, the number says it
        return group == user
    return group == user and known.gr_name == owner and not {*known.gr_mem} - {owner}


def _check_link(place: Path) -> None:
    if place.is_symlink() and place.lstat().st_uid not in _trusted():
        raise _Unsafe(errno.EPERM, f"{place} is a link of another user")


def _trusted() -> tuple[int, ...]:
    """Return this user, and root, who has another number where users are mapped."""
    return os.geteuid(), 0, Path("/").stat().st_uid


class _Locator(_CacheLocator):
    """The folder to keep a kernel in, for numba."""

    def __init__(self, line: int) -> None:
        self._line = line

    @classmethod
    def from_function(cls, function: Any, file: str) -> "_Locator":
        return cls(function.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        return str(folders().write or "")

    def get_source_stamp(self) -> str:
        return _version()

    def get_disambiguator(self) -> str:
        return str(self._line)

    def ensure_cache_path(self) -> None:
        if (folder := folders().write) is not None:
            _make(folder)


class _Kept(CompileResultCacheImpl):
    _locator_classes: list[type[object]] = [_Locator]  # noqa: RUF012


class _KernelCache(FunctionCache):
    """Compiled versions of one kernel, one for each type of its arguments and each processor."""

    _impl_class = _Kept

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        name, version = self._impl.filename_base, _version()
        self._files = [(folder, IndexDataCacheFile(str(folder), name, version)) for folder in folders().read]
        self._lock = _Lock(f"{name}.lock")

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._read(sig, target_context)
        if found is None:
            self._lock.take()  # until the kernel is saved
            found = self._read(sig, target_context)  # another process may have compiled it meanwhile
            if found is None:
                _say_compiling()
            else:
                self._lock.release()
        return found

    def _read(self, sig: Any, target_context: Any) -> Any:
        key = self._index_key(sig, target_context.codegen())
        for folder, file in self._files:
            try:
                _check_safe(folder)  # each time: who cleans up temporary files leaves its name to anybody
                data = file.load(key)
            except (OSError, *_DAMAGED):  # a file that cannot be read counts as none, and is written anew
                continue
            if data is not None:
                return self._impl.rebuild(target_context, data)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            self._save(sig, data)
        finally:
            self._lock.release()

    def _save(self, sig: Any, data: Any) -> None:
        if folders().write is None:
            _say(f"{folders().reasons}; set {VARIABLE} to a folder that this user can write")
            return
        try:
            try:
                super().save_overload(sig, data)
            except _DAMAGED:
                self.flush()
                super().save_overload(sig, data)
        except OSError as error:
            way = f"make room there, or set {VARIABLE} to a folder on another disk"
            if error.errno not in FULL_DISK:
                way = f"set {VARIABLE} to a folder that this user can write"
            _say(f"{folders().write}: {error.strerror}; {way}")


class _Lock:
    """Held by the one process that compiles a kernel. A kernel takes locks of kernels that it calls alone, so
    two processes never wait for each other. Where files cannot be locked, nothing is held."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file: int | None = None

    def take(self) -> None:
        """Wait for the lock, for a while."""
        if self._file is not None or (folder := folders().write) is None:
            return
        try:
            import fcntl  # which not every system has

            file = os.open(folder / self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (ImportError, OSError):
            return
        end = time.monotonic() + MAX_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._file = file
                return
            except OSError:
                if time.monotonic() > end:
                    os.close(file)
                    return
            time.sleep(_PAUSE_SECONDS)

    def release(self) -> None:
        """Let another process have it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def unready() -> Path | None:
    """Return the file that is to say that kernels for this processor are compiled; None if one says so, or
    none can be kept."""
    processor = hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode())
    name = f"ready-{processor.hexdigest()[:16]}"
    if any((folder / name).exists() for folder in folders().read) or (folder := folders().write) is None:
        return None
    return folder / name


@cache
def _say_compiling() -> None:
    """Print a line where a person waits, once: a party's log has its own."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        print(f"fedboost: {COMPILING}", file=sys.stderr, flush=True)


@cache
def _say(reason: str) -> None:
    """Print a line on standard error, once."""
    line = f"fedboost: compiled kernels cannot be kept, so that each command compiles them anew: {reason}"
    print(printable(line), file=sys.stderr, flush=True)
