"""Ends of the command: exit codes, and one line for whatever a user can get wrong.

Promises: an error that fedboost raises on purpose ends in one line on standard error and exit code 2, without
a traceback; Ctrl-C ends with 130.
Refuses: nothing.
"""

import errno
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import NoReturn

from fedboost.cli.output import notice
from fedboost.errors import FedboostError

REFUSED = 2
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in every shell."""
PIPE_CLOSED = 141
"""Exit code when the reader of a pipe has gone, as that of commands which the signal ends."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that end the writing to standard output, be it a file or a device."""


def end_in_one_line(command: Callable[[], None]) -> None:
    """Run a command to its end, and end the process if it fails."""
    _open_closed_streams()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said here, once
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name may hold what the locale cannot write
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a failure can still be told
    except FedboostError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        _interrupt()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer makes this code 1 of it
            sys.exit(PIPE_CLOSED)
        if end.code != INTERRUPTED:  # typer's own answer to Ctrl-C, which says nothing
            raise
        _interrupt()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone: nobody is left to tell
        sys.exit(PIPE_CLOSED)
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            who = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
            _refuse(f"{error.filename}: {error.strerror}; let {who} in, or run this as one who may")
        if error.errno not in FULL_DISK:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
        _refuse(f"cannot write the output: {error.strerror}")


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed: no table or socket is to get their number,
    to which anybody may write."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _refuse(text: str) -> NoReturn:
    notice(f"fedboost: {text}")
    sys.exit(REFUSED)


def _interrupt() -> NoReturn:
    print("fedboost: interrupted; nothing was saved", file=sys.stderr)
    sys.exit(INTERRUPTED)
