"""Commands as a user types them, and what they print."""

import json
import os
import subprocess
import sys

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


def start(*arguments, **pipes):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "fedboost", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, env=environment, **pipes)
