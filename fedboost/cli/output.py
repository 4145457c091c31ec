"""Output of the commands: text or JSON on standard output, notices on standard error, files.

Promises: `show` prints the text or the JSON of the same facts; nothing heavy is imported before it is needed.
Refuses: nothing.
"""

import json as json_format
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from fedboost.people.text import Block, one_line


def show(json: bool, objects: Iterable[Mapping[str, Any]], blocks: Iterable[Block]) -> None:
    """Print the objects as JSON, or else the blocks of text."""
    if json:
        for values in objects:
            print_json(values)
    else:
        print_text(blocks)


def print_json(values: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    print(json_format.dumps(values), flush=True)


def print_text(blocks: Iterable[Block]) -> None:
    """Print blocks of text, one below the other."""
    for block in blocks:
        if isinstance(block, str):
            print(block)
        else:
            from rich.console import Console

            Console().print(block)


def notice(text: str) -> None:
    """Print a line on standard error."""
    print(one_line(text), file=sys.stderr, flush=True)


def write(text: str, out: Path | None) -> None:
    """Write a text to a file, or to standard output."""
    if out is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as the file would be, whatever the locale
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    from fedboost.runtime.files import write_atomically

    write_atomically(out, text.encode())


@contextmanager
def unless_nobody_reads() -> Iterator[None]:
    """Print for a reader that may go away, as `| head -1` does: what is left to print is then dropped."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
