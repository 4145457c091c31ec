"""Commands as a user types them, and what they print."""

import json
import os
import subprocess
import sys

import preloaded
from sites import fedboost

WARD, LABEL = 2, 4


def done(*arguments):
    """Run a command that must succeed; what it wrote to standard output and error."""
    end = fedboost(*arguments)
    assert end.code == 0, end.err
    return end


def objects(text):
    """JSON, one object a line."""
    return [json.loads(line) for line in text.splitlines()]


def start(*arguments, alone=False, **pipes):
    """Start a command. An aggregator begins from nothing: its children are looked for. So does a command that
    is to be killed (alone): a fork of the server ends, and gives up its locks, some time after its shim."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    alone |= arguments[0] == "aggregator"
    words = [sys.executable, "-m", "fedboost"] if alone else preloaded.words()
    return subprocess.Popen(
        [*words, *arguments], stdin=subprocess.DEVNULL, text=True, env=environment, **pipes
    )
