"""Cache of compiled numba kernels: the folders in which they are looked up and stored.

Guarantees: kernels are stored in FEDBOOST_CACHE or NUMBA_CACHE_DIR, if one of them is set. Otherwise they are
stored in the first of these folders that is writable: the package's own, the user's cache folder, and a
folder for this user in the system's temporary folder. If there is no usable folder or no space, kernels are
still compiled, and one line on standard error reports the reason. A change to any kernel's source invalidates
all stored kernels. If several processes need a kernel, one compiles it; the others wait and load it.
Rejects: folders that other users can write to, because the cache contains code.
Raises: ConfigError if a folder named by a variable is unsafe, or cannot be written and has no kernels.
"""

import errno
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.codegen import ll  # type: ignore[attr-defined]
from numba.core.registry import cpu_target
from numba.misc.appdirs import AppDirs

from fedboost import system
from fedboost.errors import ConfigError, printable
from fedboost.version import VERSION

VARIABLE = "FEDBOOST_CACHE"
_said = False  # True after `say_compiling` was called
COMPILING = "compiling numerical code; this happens once per installation and takes up to two minutes"
PACKAGE = Path(__file__).parent
SOURCES = "gbdt/kernels/*.py", "privacy/kernels.py", "privacy/rowsums/kernels.py"
"""Glob patterns of the files that contain kernels."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_DAMAGED = (EOFError, UnpicklingError)
MAX_WAIT_SECONDS = 60.0
"""Maximum time to wait while another process compiles a kernel. After that, this process also compiles the
kernel, because the other process may be stuck."""


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function on its first call, like `numba.njit` with these options,
    and stores the compiled code in the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = numba.njit(**options)(function)
        compiled._cache = _KernelCache(function)
        return compiled

    return decorate


@dataclass(frozen=True)
class Folders:
    """The cache folders of this process.

    Attributes:
        read: folders in which to look up kernels, in this order.
        write: folder in which to store kernels, or None.
        reasons: why no folder can be written to, in one line without advice; "" if `write` is set.
    """

    read: tuple[Path, ...]
    write: Path | None
    reasons: str


@cache
def folders() -> Folders:
    """Return the cache folders, chosen once per process. Raises ConfigError if a folder named by an
    environment variable is unsafe, or cannot be written and has no kernels."""
    name = VARIABLE if os.environ.get(VARIABLE) else "NUMBA_CACHE_DIR"
    if not (value := os.environ.get(name)):
        return _first_of(_ordinary())
    folder = Path(value).absolute() / _version()
    try:
        _make(folder)
        return Folders((folder,), folder, "")
    except system.Unsafe as error:
        raise ConfigError("cache-folder-unsafe", f"{name}={printable(value)}: {error.strerror}") from None
    except OSError as error:
        if error.errno in FULL_DISK:
            return Folders((folder,), None, f"{name}={value}: {error.strerror}")
        if not _holds_kernels(folder):
            raise ConfigError(
                "cache-folder-unwritable",
                f"{name}={printable(value)}: the folder has no compiled kernels of this version and cannot "
                f"be written: {error.strerror}; name a folder that this user can write to, or unset {name}",
            ) from None
    others = _first_of(_ordinary())  # for kernels that it lacks or has for another processor only
    return Folders((folder, *others.read), others.write, others.reasons)


def _ordinary() -> Iterator[Path]:
    yield PACKAGE / "__pycache__"
    yield Path(AppDirs("fedboost", appauthor=False).user_cache_dir)
    yield system.temporary_folder()


def _first_of(bases: Iterator[Path]) -> Folders:
    """Return the cache folders below these base folders, up to the first writable one."""
    read, reasons = list[Path](), list[str]()
    for base in bases:
        folder = base / _version()
        try:
            if not base.is_absolute():  # the user has no home directory
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            _make(folder)
            return Folders((*read, folder), folder, "")
        except OSError as error:
            reasons.append(f"{base}: {error.strerror}")
        if _holds_kernels(folder):
            read.append(folder)
    return Folders(tuple(read), None, ", ".join(reasons))


@cache
def _version() -> str:
    """Return the name of the cache folder, which includes a digest of all kernel sources. numba itself does
    not detect changes in a kernel that is called from another file."""
    digest = hashlib.sha256(f"{VERSION} {numba.__version__}".encode())
    for file in (path for pattern in SOURCES for path in sorted(PACKAGE.glob(pattern))):
        digest.update(file.read_bytes())
    return f"kernels-{digest.hexdigest()[:16]}"


def _make(folder: Path) -> None:
    """Create a folder and check that files can be created in it. Only this user can access the folder, except
    that all users can read a folder created by root. Raises OSError if the folder cannot be used, or if other
    users can write to it."""
    system.check_link(folder.parent)
    mode = system.folder_mode()
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
    """Raise OSError if another user could put files into a folder or replace the folder. The package's own
    folder is not checked, because it is as safe as the package."""
    if folder.parent != PACKAGE / "__pycache__":
        system.check_folder(folder)


class _Locator(_CacheLocator):
    """Determines the folder in which numba stores a kernel."""

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
    """Cache of one kernel's compiled versions, one per signature and processor type."""

    _impl_class = _Kept

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        name, version = self._impl.filename_base, _version()
        self._files = [(folder, IndexDataCacheFile(str(folder), name, version)) for folder in folders().read]
        self._lock_name = f"{name}.lock"
        self._unlock: Callable[[], None] | None = None

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._read(sig, target_context)
        if found is None:
            self._lock()  # held until the kernel is saved
            found = self._read(sig, target_context)  # another process may have compiled it in the meantime
            if found is None:
                say_compiling()
            else:
                self._release()
        return found

    def _lock(self) -> None:
        """Wait until no other process compiles this kernel, at most MAX_WAIT_SECONDS. A process that compiles
        a kernel locks only kernels that this kernel calls, so two processes never wait for each other."""
        if self._unlock is None and (folder := folders().write) is not None:
            with suppress(OSError):
                self._unlock = system.lock(folder / self._lock_name, MAX_WAIT_SECONDS)

    def _release(self) -> None:
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def _read(self, sig: Any, target_context: Any) -> Any:
        key = self._index_key(sig, target_context.codegen())
        for folder, file in self._files:
            try:
                # Before every read: if temporary files are cleaned up, anyone can create the folder again.
                _check_safe(folder)
                data = file.load(key)
            except (OSError, *_DAMAGED):  # treat an unreadable file as absent: it is rewritten
                continue
            if data is not None:
                compiled = self._impl.rebuild(target_context, data)
                # The LLVM module takes ten times the memory of the compiled code. It is needed only if a
                # kernel that calls this one is compiled, and is then parsed again.
                library, (_, _, (_, module)) = compiled.library, data[0]
                library._shared_module = None
                library._get_module_for_linking = partial(ll.parse_bitcode, module)
                return compiled
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            self._save(sig, data)
        finally:
            self._release()

    def _save(self, sig: Any, data: Any) -> None:
        if folders().write is None:
            _say(f"{folders().reasons}; set {VARIABLE} to a folder that this user can write to")
            return
        try:
            try:
                super().save_overload(sig, data)
            except _DAMAGED:
                self.flush()
                super().save_overload(sig, data)
        except OSError as error:
            way = f"free space on that disk, or set {VARIABLE} to a folder on another disk"
            if error.errno not in FULL_DISK:
                way = f"set {VARIABLE} to a folder that this user can write to"
            _say(f"{folders().write}: {error.strerror}; {way}")


def unready() -> Path | None:
    """Return the marker file to create once all kernels are compiled for this processor. Returns None if the
    file exists, or if nothing can be stored."""
    processor = hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode())
    name = f"ready-{processor.hexdigest()[:16]}"
    if any((folder / name).exists() for folder in folders().read) or (folder := folders().write) is None:
        return None
    return folder / name


def say_compiling(say: Callable[[str], None] | None = None) -> None:
    """Report that kernels are being compiled. say: function that prints the line. Without it, the line is
    printed at most once, and only on a terminal or in a notebook."""
    global _said
    said, _said = _said, True
    if say is not None:
        say(COMPILING)
    elif not said and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        print(f"fedboost: {COMPILING}", file=sys.stderr, flush=True)


@cache
def _say(reason: str) -> None:
    """Print once, as one line on standard error, why kernels cannot be stored."""
    line = f"fedboost: compiled kernels cannot be stored, so each command compiles them again: {reason}"
    print(printable(line), file=sys.stderr, flush=True)
