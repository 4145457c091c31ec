"""What differs between operating systems. The functions here hide the difference from all other modules.

| what | Linux, macOS | Windows |
|---|---|---|
| owners and permissions of files | checked | not checked: access lists of the folder apply |
| file locks (by filelock) | `flock` | `LockFileEx` |
| names of new files, on the disk | `fsync` of the folder | left to the file system |
| space reserved for a file | `posix_fallocate`; macOS: zeros | zeros |
| end of a process | SIGTERM and Ctrl-C end it in order | only Ctrl-C does; a terminated process just ends |
| Ctrl-C, for processes of a demo | blocked | they are a process group |
| questions at the terminal | `termios`, `select` | `msvcrt` |
| redirected output | in the locale's encoding | UTF-8 |
| port of a server that just ended | is reused | waits: reuse would let others take a port in use |
| open files and idle connections of a server | limited | not limited, so the aggregator is refused |
"""

import errno
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

with suppress(ImportError):
    import fcntl
    import grp
    import pwd
    import resource
    import termios
with suppress(ImportError):
    import msvcrt

POSIX = hasattr(os, "geteuid")
"""True on Linux and macOS, False on Windows."""
LOCAL = "FEDBOOST_LOCAL"
"""Environment variable of an aggregator on this machine's loopback, for a demo. It runs on every system."""
NEW_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # `creationflags`, `without_interrupts`
OWNER_ALONE = 0o600


class Unsafe(OSError):
    """A folder can be written to by other users."""


def user() -> str:
    return f"user {os.geteuid()}" if POSIX else "this user"


def folder_mode() -> int:
    """Return the mode of a new cache folder. Others can read one that root created."""
    return 0o755 if POSIX and os.geteuid() == 0 else 0o700


def temporary_folder() -> Path:
    """Return the path of this user's own folder in the system's temporary folder. It may not exist."""
    if POSIX:
        return Path(os.environ.get("TMPDIR") or "/tmp") / f"fedboost-{os.geteuid()}"
    return Path(tempfile.gettempdir()) / "fedboost"


def others_may(status: os.stat_result, bits: int) -> bool:
    """Return whether a regular file has any of these permission bits. False if the system has none."""
    return POSIX and stat.S_ISREG(status.st_mode) and bool(status.st_mode & bits)


def check_folder(folder: Path) -> None:
    """Raise OSError if another user could put files into a folder or replace the folder."""
    check_link(folder.parent)
    real = folder.resolve(strict=True)
    for path in (real, *real.parents) if POSIX else ():
        status = path.stat()
        if status.st_uid not in _trusted():
            raise Unsafe(errno.EPERM, f"{path} belongs to another user, who could place code in it")
        others = stat.S_IWOTH if _is_private(status.st_gid, status.st_uid) else stat.S_IWOTH | stat.S_IWGRP
        writable = status.st_mode & others
        if writable and (path == real or not status.st_mode & stat.S_ISVTX):
            raise Unsafe(
                errno.EPERM, f"other users can write to {path} and place code in it; run chmod go-w {path}"
            )


def check_link(place: Path) -> None:
    """Raise OSError if a path is a symbolic link of another user."""
    if POSIX and place.is_symlink() and place.lstat().st_uid not in _trusted():
        raise Unsafe(errno.EPERM, f"{place} is a symbolic link owned by another user")


def _is_private(group: int, user: int) -> bool:
    """Return whether a group belongs to one user only: it has the user's id and name and no other members."""
    try:
        known, owner = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:  # no names, as in a container: compare the ids
        return group == user
    return group == user and known.gr_name == owner and not {*known.gr_mem} - {owner}


def _trusted() -> tuple[int, ...]:
    """Return the user ids of this user and of root, which in a user namespace is the owner of /."""
    return os.geteuid(), 0, Path("/").stat().st_uid


def lock(path: Path, seconds: float = -1) -> Callable[[], None] | None:
    """Lock a file against other processes and threads. Returns the function that unlocks it, or None if
    another holds the lock after this number of seconds (-1: wait without limit). The end of the process
    unlocks it, too. Older versions of the library empty the file. Raises OSError if it cannot be locked, e.g.
    because it is another user's, and RuntimeError if this thread would wait for itself."""
    if POSIX and seconds < 0:  # the library's lock, too, but in a tenth of its time: parties need one a turn
        return _wait_for(path)
    from filelock import FileLock, Timeout  # late, because it takes as long as all of a short command

    path.parent.stat()  # which the library would create
    # The system locks the file, not its name. The file is kept, because a process that waits for a deleted
    # one and a process that creates the next would both get their lock. Where a file system has no locks,
    # the existence of a file does not replace them: other processes may not look for it.
    held = FileLock(
        path,
        seconds,
        OWNER_ALONE,
        thread_local=False,
        poll_interval=0.01,
        fallback_to_soft=False,
        preserve_lock_file=POSIX or sys.platform == "win32",
    )
    try:
        held.acquire()
    except Timeout:
        return None
    return held.release


_HELD: set[tuple[int, Path]] = set()
"""Threads, and the locks that they hold."""


def _wait_for(path: Path) -> Callable[[], None]:
    held = threading.get_ident(), path
    if held in _HELD:
        raise RuntimeError(f"Deadlock: this thread has already locked {path}")
    file = os.fdopen(open_private(path), "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException:
        file.close()
        raise
    _HELD.add(held)

    def unlock() -> None:
        _HELD.discard(held)
        file.close()

    return unlock


def open_private(path: Path, flags: int = 0) -> int:
    """Open a file for reading and writing, and return its descriptor. A new file is its owner's alone."""
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | flags, OWNER_ALONE)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if POSIX:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def reserve(file: BinaryIO, size: int) -> None:
    """Make an empty file this long. Raises OSError if the disk is full, which no mapped write can."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(0, size, 1 << 20):
        file.write(bytes(min(1 << 20, size - start)))
    file.flush()


def at_stop(loop: Any, stop: Callable[[], object]) -> None:
    """Call a function in an event loop at SIGTERM and at Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
        except NotImplementedError:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Context manager in which processes start that Ctrl-C does not end, if NEW_GROUP is passed, too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if POSIX else None  # is inherited
    try:
        yield
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget_typed() -> None:
    """Discard what was typed at the terminal so far."""
    if sys.platform == "win32":
        while msvcrt.kbhit():
            msvcrt.getwch()
    elif POSIX:
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def is_typed(seconds: float) -> bool:
    """Wait for input at the terminal, at most this long, and return whether there is some."""
    if sys.platform != "win32":
        return bool(select.select([sys.stdin], [], [], seconds)[0])
    if not msvcrt.kbhit():
        time.sleep(seconds)
    return msvcrt.kbhit()


def open_files() -> list[int]:
    """Return the descriptors of this process; none if the system does not list them."""
    folder = next(filter(os.path.isdir, ("/proc/self/fd", "/dev/fd")), None)
    return [int(name) for name in os.listdir(folder)] if folder else []


def allow_files(needed: int) -> int | None:
    """Raise this process's limit on open files as far as permitted, and return it; None for no limit."""
    if not POSIX:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        with suppress(OSError, ValueError):  # the system's actual bound may be lower
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return None if soft == resource.RLIM_INFINITY else soft
