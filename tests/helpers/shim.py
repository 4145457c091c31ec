"""A process that stands for a fork of the server of preloaded.py: socket, arguments of `fedboost`."""

import array
import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)


def main():
    where, *arguments = sys.argv[1:]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until they can be passed on
    call = socket.socket(socket.AF_UNIX)
    try:
        call.connect(where)
        ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
        wanted = {"arguments": arguments, "folder": os.getcwd(), "environment": {**os.environ}}
        text = json.dumps({**wanted, "ignored": ignored}).encode()
        ends = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        call.sendmsg([len(text).to_bytes(4, "big")], ends)
        call.sendall(text)
        taken = call.recv(1) == b"y"
    except OSError:
        taken = False
    if not taken:
        call.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.execv(sys.executable, [sys.executable, "-m", "fedboost", *arguments])
    for number in PASSED_ON:
        if number not in ignored:
            signal.signal(number, lambda number, _: call.send(bytes([number])))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    said = call.recv(2, socket.MSG_WAITALL)
    if len(said) < 2:
        os._exit(1)
    by, code = said
    if by:
        signal.signal(by, signal.SIG_DFL)
        os.kill(os.getpid(), by)
    os._exit(code)


main()
