"""Pages of the documentation: their blocks, and their commands run as written."""

import os
import pty
import random
import re
import shlex
import signal
import socket
import subprocess
import textwrap
import time
from itertools import pairwise
from pathlib import Path

import preloaded

ROOT = Path(__file__).parents[2]
QUESTION = "[y/N] "
MARK = "@@ block "
END = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"
"""What a script does at its end, however it ends."""
PATIENCE_SECONDS = 250.0
_VARIES = re.compile(
    r"(?<![\w.])[0-9a-f]{8,}\b|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?|"
    r"\b\d+(\.\d+)?(?= [kMG]?B\b)|(?<=[\w.]:)\d+"
)
"""What is another in each run: fingerprints, times, sizes, ports."""


def blocks(page: Path, language: str = "sh") -> list[tuple[str, str]]:
    """Each fenced block of a language, with the block of text that follows it, or ''."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```\n(?=(.*?)(?:^ *```|\Z))", page.read_text(), re.S | re.M)
    fenced = [(kind, textwrap.dedent(text), between.strip()) for kind, text, between in found]
    pairs = []
    for (kind, text, between), (after, said, _) in pairwise([*fenced, ("", "", "")]):
        if kind == language:
            pairs.append((text, said if after == "text" and not between else ""))
    return pairs


def run_as_written(scripts: list[str], folder: Path) -> list[str]:
    """Run blocks of commands one after the other in one shell at a terminal where somebody answers each
    question by y, with a free port; what each printed. Every process that is left is ended."""
    write_command(folder)
    script = "\n".join(f"echo '{MARK}{number}'\n{text}" for number, text in enumerate(scripts))
    for page, here in {
        "fed.example.org": "localhost",
        "0.0.0.0": "127.0.0.1",
        ":7070": f":{quiet_port()}",
    }.items():
        script = script.replace(page, here)
    ours, theirs = pty.openpty()
    with (folder / "output").open("w") as output:  # a pipe that nobody reads would hold everyone up
        process = subprocess.Popen(
            ["bash", "-c", f"{END}\nset -e\n{script}\ntouch {shlex.quote(str(folder / 'finished'))}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{folder}/commands:{os.environ['PATH']}"},
            stdin=theirs,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            answer_questions(process, folder, ours)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)
            os.close(ours)
            os.close(theirs)
    text = (folder / "output").read_text()
    assert (folder / "finished").exists(), text
    return [part.split("\n", 1)[1] for part in text.split(MARK)[1:]]


def quiet_port() -> int:
    """A port that nobody listens on, and that the system gives to nobody who asks for any: it is used only
    after other commands have run."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := random.randrange(15_000, 30_000)))
            except OSError:
                continue
            return port


def write_command(folder: Path) -> None:
    """The command `fedboost` of these sources, in a folder of commands."""
    command = folder / "commands" / "fedboost"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(preloaded.words())} "$@"\n')
    command.chmod(0o755)


def answer_questions(process: "subprocess.Popen[bytes]", folder: Path, keyboard: int) -> None:
    """Type y for each question that appears, until the process has ended."""
    answered, end = 0, time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if (folder / "output").read_text().count(QUESTION) > answered:
            os.write(keyboard, b"y\n")
            answered += 1
        time.sleep(0.05)


def assert_says(said: str, shown: str) -> None:
    """Hold what a command printed against what a page shows, but for what varies. `...` in the page stands
    for anything: alone on a line for lines."""
    lines = "\n".join(" ".join(_VARIES.sub("#", line).split()) for line in said.splitlines()).strip()
    shown = shown.replace(f"{QUESTION}y\n", QUESTION)  # which a terminal echoes, and no file
    pattern = ""
    for line in (line.strip() for line in shown.strip().splitlines()):
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            words = (re.escape(" ".join(_VARIES.sub("#", part).split())) for part in line.split("..."))
            pattern += r"[^\n]*".join(words).replace(r"\ [^\n]*", r" ?[^\n]*") + r"\s*?\n"
    assert re.fullmatch(pattern, f"{lines}\n"), f"printed:\n{said}\nthe page shows:\n{shown}"
