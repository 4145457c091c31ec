"""`fedboost` as a command that begins where the modules are loaded: a fork of a server that has them.

    words() -> [python, shim.py, socket]   ->   the server forks, and the fork runs `fedboost` with the shim's
                                                 arguments, folder, environment and standard streams

The command is a process of its own. What is saved is a second or two of imports in each; the shim, which
passes signals on and ends as the fork ends, takes 0.03 s. Where the environment says something else than at
the start of the tests, the shim becomes an ordinary `python -m fedboost`.
"""

import array
import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

from forked import NOT_OF_A_TEST, run

SHIM = Path(__file__).with_name("shim.py")
SENT = 4
"""Bytes of the number that says how long a request is."""
OF_SHELLS = ("PWD", "OLDPWD", "SHLVL", "_", "PATH", "PYTHONPATH", "COLUMNS", "LINES")
"""Names that may differ between the server and a command."""


def words():
    """What to type instead of `fedboost`."""
    if sys.platform != "linux":
        return [sys.executable, "-m", "fedboost"]
    return [sys.executable, "-S", "-E", str(SHIM), _server()]


@cache
def _server():
    """Start the server of this process, which ends with it. Returns its address."""
    listening = socket.socket(socket.AF_UNIX)
    folder = tempfile.mkdtemp(prefix="preloaded-")
    listening.bind(address := f"{folder}/socket")
    listening.listen(64)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    server = subprocess.Popen(
        [sys.executable, __file__, str(listening.fileno())],
        stdin=subprocess.PIPE,
        pass_fds=[listening.fileno()],
        env=environment,
        start_new_session=True,
    )
    listening.close()

    def end():
        server.stdin.close()
        server.wait()
        os.unlink(address)
        os.rmdir(folder)

    atexit.register(end)
    return address


def as_compared(environment):
    """The part of an environment that must be the server's."""
    return {k: v for k, v in environment.items() if k not in OF_SHELLS and not k.startswith(NOT_OF_A_TEST)}


# ---- The server -------------------------------------------------------------------------------------


def serve(listening):
    """Fork for each shim that calls, until standard input ends; then end the forks as well."""
    import_module("loaded")
    at_first, running = as_compared(os.environ), {}
    ready = selectors.DefaultSelector()
    for file in (sys.stdin, listening):
        ready.register(file, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is sys.stdin:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                return
            if key.fileobj is listening:
                (call, _), pid = listening.accept(), None
                with suppress(OSError):  # of a shim that was killed meanwhile
                    pid = begin(call, at_first)
                if pid is None:
                    call.close()
                    continue
                ended = os.pidfd_open(pid)
                running[ended] = pid, call
                ready.register(call, selectors.EVENT_READ, ended)
                ready.register(ended, selectors.EVENT_READ, ended)
            elif key.data in running:
                pid, call = running[key.data]
                if key.fileobj is call:
                    hear(pid, call, ready)
                else:
                    del running[key.data]
                    tell(pid, call, ready)
                    ready.unregister(key.data)
                    os.close(key.data)


def hear(pid, call, ready):
    """Pass a signal on. A shim that is gone was killed, and so is its fork."""
    numbers = b""
    with suppress(ConnectionResetError):  # it was killed before it read the answer
        numbers = call.recv(64)
    for number in numbers or (signal.SIGKILL,):
        os.kill(pid, number)
    if not numbers:
        ready.unregister(call)


def tell(pid, call, ready):
    """Tell the shim how its fork ended."""
    _, status = os.waitpid(pid, 0)
    with call, suppress(OSError):  # of a shim that is gone
        if call in ready.get_map():
            ready.unregister(call)
        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        call.sendall(bytes([by, 0 if by else os.WEXITSTATUS(status)]))


def begin(call, at_first):
    """Answer a shim. Returns the process that does its work, or None if the shim must do it. Raises OSError
    if the shim is gone."""
    ends = array.array("i")
    try:
        head, sent, _, _ = call.recvmsg(SENT, socket.CMSG_SPACE(3 * ends.itemsize))
        for _, _, numbers in sent:
            ends.frombytes(numbers)
        text = b""
        while len(text) < int.from_bytes(head):
            if not (more := call.recv(1 << 16)):
                raise ConnectionResetError
            text += more
        if not text:
            raise ConnectionResetError
        wanted = json.loads(text)
        does = as_compared(wanted["environment"]) == at_first
        call.sendall(b"y" if does else b"n")
        pid = os.fork() if does else None
        if pid == 0:
            _exit_as(wanted, ends)
        return pid
    finally:
        for end in ends:  # those of the fork are its own
            os.close(end)


def _exit_as(wanted, ends):
    """Run the command, and end this process as it ends."""
    for number, end in enumerate(ends):
        os.dup2(end, number)
    for number in wanted["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    added = wanted["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [wanted["folder"], *filter(None, added)]
    code = 1
    try:
        run(wanted["arguments"], wanted["folder"], wanted["environment"])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - as Python does at the end of a process
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
