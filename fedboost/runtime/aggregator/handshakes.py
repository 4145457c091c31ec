"""Refused TLS handshakes: who dialled, and why nobody was let in.

gRPC has no hook before the first call; its core can only trace handshakes to the process's standard error. So
that is read here: what the core traces of a failure becomes an event, the rest of its trace is dropped, and
what else is written there goes on to the real standard error.

Promises: a flood of handshakes costs a bounded share of a thread, and never holds up who writes; Python's own
lines, tracebacks and faults are written to the real standard error, and none is lost.
Refuses: nothing. What C code writes in the very moment in which it ends the process is lost.
"""

import faulthandler
import io
import math
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

TRACE = {"GRPC_VERBOSITY": "INFO", "GRPC_TRACE": "handshaker"}
"""The environment in which gRPC's core traces handshakes. It is read once, when grpc is imported."""
SILENT = "NONE"
"""GRPC_VERBOSITY as the command sets it where nobody else did."""
READ_BYTES, READ_PAUSE_SECONDS = 1 << 16, 0.05
"""How much of the trace is read at a time, and how often; what comes faster is lost."""
PATIENCE_SECONDS = 0.5
"""How long a pipe that a child process holds open is read after the end."""
_RECORD = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
_REST = re.compile(r"=== Source|\S+\.(?:cc|h):\d+$| shutdown=|$")
"""The further lines of a record, as the core writes them; any other is somebody else's."""
_FAILURE = re.compile(
    r"CallNextHandshakerLocked: error=(?!OK)(?P<error>.*?)(?:=== Source|shutdown=).*"
    r"endpoint_peer_address=(?P<peer>[^,}\s]+)",
    re.DOTALL,
)
_REASONS = (
    ("HTTP_REQUEST", "it speaks HTTP without TLS: it is no party or analyst"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: it dials without keys, or is no party or analyst"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "it shows no certificate"),
    ("certificate has expired", "its certificate is expired: it needs a new bundle"),
    ("certificate is not yet valid", "its certificate is not valid yet: check both machines' clocks"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is of another consortium"),
    ("ALERT_PROTOCOL_VERSION", "it speaks another version of TLS"),
    ("ALERT", "it refuses this aggregator's certificate"),
    ("SSL_ERROR", "TLS failed"),
)
"""Words of the core's error, and the same for people."""
_OTHER = (
    "it hung up, or said nothing, before TLS was done: it may not trust this aggregator's certificate, or be "
    "a probe of the port"
)


def begin_trace() -> bool:
    """Ask gRPC for its trace, before grpc is imported. False where that is too late, or where somebody wants
    gRPC's own words."""
    wanted = os.environ.get("GRPC_VERBOSITY", SILENT) != SILENT or "GRPC_TRACE" in os.environ
    if wanted or "grpc" in sys.modules or sys.stderr is None:
        return False
    os.environ.update(TRACE)
    return True


@contextmanager
def watched() -> Iterator["Handshakes"]:
    """Read the trace from here on, with sys.stderr as it was before."""
    handshakes = Handshakes()
    try:
        yield handshakes
    finally:
        handshakes.close()


class Handshakes:
    """The reader of the trace. `note` is called with a client's address and the reason, in a thread."""

    def __init__(self) -> None:
        self.note: Callable[[str, str], object] = lambda address, reason: None
        self._before, self._text, self._record = sys.stderr, "", ""
        self._ends = math.inf
        self._error = os.dup(2)
        self._trace, writer = os.pipe()
        os.set_blocking(writer, False)  # who writes to a full pipe goes on
        sys.stderr.flush()
        self._has_faults = faulthandler.is_enabled()
        if self._has_faults:
            faulthandler.enable(self._error)  # what a crash says last is read by nobody here
        os.dup2(writer, 2)
        os.close(writer)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(self._error, "w", closefd=False), errors="backslashreplace", write_through=True
        )
        self._thread = threading.Thread(target=self._read, name="handshakes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give standard error back."""
        os.dup2(self._error, 2)  # the last writer of the pipe is closed, and its reader ends
        if self._has_faults:
            faulthandler.enable(2)
        self._ends = time.monotonic() + PATIENCE_SECONDS  # unless a child process has the pipe, too
        self._thread.join()
        sys.stderr = self._before
        os.close(self._error)
        os.close(self._trace)

    def _read(self) -> None:
        while time.monotonic() < self._ends:
            if not select.select([self._trace], [], [], PATIENCE_SECONDS)[0]:
                continue
            data = os.read(self._trace, READ_BYTES)
            if not data:
                break
            self._take(data.decode(errors="replace"))
            time.sleep(READ_PAUSE_SECONDS)
        if self._text and not _RECORD.match(self._text):
            self._pass_on(self._text)

    def _take(self, text: str) -> None:
        """Take the next piece of the trace."""
        *lines, self._text = (self._text + text).split("\n")
        others = [line + "\n" for line in lines if not self._is_traced(line)]
        if len(self._text) > READ_BYTES:
            others.append("" if self._is_traced(self._text) else self._text)
            self._text = ""
        if others:
            self._pass_on("".join(others))

    def _is_traced(self, line: str) -> bool:
        """Tell if a line is of the trace, and take it if it is."""
        if _RECORD.match(line):
            self._record = ""
        elif not (self._record and _REST.match(line)):
            self._record = ""
            return False
        self._record += f"{line}\n"
        failure = _FAILURE.search(self._record)
        if failure:
            self.note(unquote(failure["peer"]).partition(":")[2], reason_of(failure["error"]))
        if failure or len(self._record) > READ_BYTES:
            self._record = "\n"  # lines of its rest may follow
        return True

    def _pass_on(self, text: str) -> None:
        """Write to the real standard error; who closed it wants nothing from it."""
        with suppress(OSError):
            os.write(self._error, text.encode())


def reason_of(error: str) -> str:
    """The reason of a failed handshake, for people, from the words of gRPC's core."""
    return next((reason for words, reason in _REASONS if words in error), _OTHER)
