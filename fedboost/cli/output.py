"""Output of the commands: text or JSON on standard output, notices on standard error, and how they end.

Promises: nothing heavy is imported before it is needed.
"""

import errno
import json as json_format
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from fedboost.errors import DurabilityError, FedboostError
from fedboost.views.words import WIDTH, Block, one_line

if TYPE_CHECKING:
    from fedboost.views.document import Document


def show(json: bool, objects: Iterable[Mapping[str, Any]], shown: "Document | Iterable[Block]") -> None:
    """Print the objects as JSON, or else a document, or blocks of text."""
    if json:
        for values in objects:
            print_json(values)
        return
    from fedboost.views.as_text import text
    from fedboost.views.document import Document

    print_text(text(shown) if isinstance(shown, Document) else shown)


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

            console = Console()
            if console.width == WIDTH + 1:  # paragraphs leave the last column free, and so do tables
                console.width = WIDTH
            with console.capture() as drawn:  # else it ends the process when the reader of a pipe goes away
                console.print(block)
            print(drawn.get(), end="")


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


# ---- Command lines that cannot be, in one line ----------------------------------------------------------
# What is wrong, in typer's words, and where to look.


UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Base of the errors of a command line. Which package it is from depends on typer's version."""
TAKES_TERMS = ("train", "simulate", "demo", "estimate")
"""Commands whose settings people look for among their options."""


class Group(TyperGroup):
    """A command with sub-commands; its help has one sentence for each."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        for command in self.commands.values():
            command.short_help = first_sentence(command.help or "")
        super().format_help(ctx, formatter)


def group(name: str, epilog: str) -> typer.Typer:
    """An empty command for sub-commands."""
    return typer.Typer(
        name=name,
        epilog=epilog,
        no_args_is_help=True,
        cls=Group,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def usage_error(error: Any, groups: Container[str]) -> str:
    """A line about a command line that cannot be; empty if the help was printed in place of one. groups:
    commands with sub-commands."""
    text, context = error.format_message().strip().removesuffix("."), error.ctx
    if not text:
        return ""
    if context is None:  # of an option without its value, or with one too many
        words = sys.argv[1 : 3 if sys.argv[1] in groups else 2]
    else:
        words = context.command_path.split()[1:]
        if hasattr(error, "option_name") and context.info_name in TAKES_TERMS and not error.possibilities:
            text += _setting_of_terms(error.option_name)
    return f"{text}; see {' '.join(('fedboost', *words, '--help'))}"


def _setting_of_terms(option: str) -> str:
    """Where the setting of that name belongs."""
    from fedboost.terms.reading import setting_hint
    from fedboost.terms.terms import Terms

    key, keys = option.lstrip("-").replace("-", "_"), Terms.file_keys()
    if key in keys:
        return f" ({key} is a setting of the terms file)"
    return setting_hint(key, keys).replace("?)", " in the terms file?)")


def first_sentence(text: str) -> str:
    """The first sentence of a help."""
    return re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]


# ---- Ends of the command: exit codes, and one line for whatever a user can get wrong --------------------
# Promises: an error that fedboost raises on purpose ends in one line on standard error and exit code 2,
# without a traceback; Ctrl-C ends with 130.


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
    except (FedboostError, DurabilityError) as error:
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
