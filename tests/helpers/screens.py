"""Terminals of tests: a process on one, or a stream, and the lines that somebody there would see."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager

PATIENCE = 60.0
UNFINISHED = re.compile(r"\x1b(\[\??[0-9;]*)?$")
TOKEN = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def seen(written):
    """The lines on a terminal of any width after this was written to it."""
    lines, row, column = [""], 0, 0
    end = 0
    for token in TOKEN.finditer(written):
        assert token.start() == end, f"no terminal knows {written[end : token.start()]!r}"
        end = token.end()
        argument, command, control, text = token.groups()
        if text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
        elif control == "\r":
            column = 0
        elif control == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif command == "A":
            row = max(row - int(argument or 1), 0)
        elif command == "K":
            assert argument == "2"
            lines[row] = ""
        elif command in "hl":
            assert argument == "?25", "the cursor is shown or hidden"
        else:
            assert command == "m", f"an escape sequence {token[0]!r}"
    assert end == len(written)
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")


class Screen:
    """What is written to a terminal of so many columns and lines; `file` is its other end."""

    def __init__(self, columns=80, lines=24):
        self._ours, self.file = pty.openpty()
        self.written = ""
        self.resize(columns, lines)
        settings = termios.tcgetattr(self.file)
        settings[1] &= ~termios.OPOST  # what is written is what arrives
        termios.tcsetattr(self.file, termios.TCSANOW, settings)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        data = b""
        while True:
            try:
                more = os.read(self._ours, 1 << 16)
            except OSError:
                return
            if not more:
                return
            data += more
            self.written = data.decode(errors="ignore")

    def resize(self, columns, lines):
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, size)

    @property
    def lines(self):
        """The lines that are seen, those that are scrolled away among them."""
        return seen(UNFINISHED.sub("", self.written))

    def until(self, condition):
        """Wait until the text that is seen meets a condition; the text."""
        end = time.monotonic() + PATIENCE
        while not condition(text := "\n".join(self.lines)):
            assert time.monotonic() < end, text
            time.sleep(0.05)
        return text

    def close(self):
        """Read what is left, and close the terminal."""
        os.close(self.file)
        self._reader.join(PATIENCE)
        os.close(self._ours)


@contextmanager
def screen(columns=80, lines=24):
    """A terminal."""
    made = Screen(columns, lines)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def on_screen(*arguments, columns=80, lines=24, **variables):
    """The command on a terminal: the screen, and the process, which is over when the block is left."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "fedboost", *arguments]
    with screen(columns, lines) as shown:
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), shown.file)
        env = {**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **variables}
        process = subprocess.Popen(command, env=env, start_new_session=True, **ends)
        try:
            yield shown, process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)


def interrupted(process):
    """The exit code of a process after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return process.wait(PATIENCE)
