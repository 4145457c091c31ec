"""Output of the commands: text or JSON on standard output, notices on standard error, and exit codes.

Guarantees: heavy packages are imported only when they are needed.
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
from typer.core import TyperCommand, TyperGroup

from fedboost.errors import DurabilityError, FedboostError
from fedboost.system import POSIX, user
from fedboost.views.words import WIDTH, Block, one_line

if TYPE_CHECKING:
    from fedboost.views.document import Document


def show(json: bool, objects: Iterable[Mapping[str, Any]], shown: "Document | Iterable[Block]") -> None:
    """Print `objects` as JSON lines if `json` is true, otherwise the document or blocks in `shown`."""
    if json:
        for values in objects:
            print_json(values)
        return
    from fedboost.views.as_text import text
    from fedboost.views.document import Document

    print_text(text(shown) if isinstance(shown, Document) else shown)


def print_json(values: Mapping[str, Any]) -> None:
    print(json_format.dumps(values), flush=True)


def print_text(blocks: Iterable[Block]) -> None:
    """Print blocks (lines of text and tables) to standard output."""
    for block in blocks:
        if isinstance(block, str):
            print(block)
        else:
            from rich.console import Console

            console = Console()
            if console.width == WIDTH + 1:  # paragraphs leave the last column free, so tables do too
                console.width = WIDTH
            sys.stdout.flush()  # rich also flushes, and ends the process if the reader of a pipe has exited
            with console.capture() as drawn:
                console.print(block)
            print(drawn.get(), end="")


def notice(text: str) -> None:
    """Print one line to standard error, with control characters escaped."""
    print(one_line(text), file=sys.stderr, flush=True)


def write(text: str, out: Path | None) -> None:
    """Write text as UTF-8 to a file, or to standard output if `out` is None."""
    if out is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # like a file, regardless of the locale
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    from fedboost.runtime.files import write_atomically

    write_atomically(out, text.encode())


@contextmanager
def unless_nobody_reads() -> Iterator[None]:
    """Discard the rest of the output if the reader of the pipe exits early, as `| head -1` does."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where the buffer is flushed at exit


# ---- Help, and usage errors in one line -----------------------------------------------------------------
# A usage error has typer's own wording, followed by the help command to run.


UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Base class of usage errors. The package that defines it depends on the version of typer."""
TAKES_TERMS = ("train", "simulate", "demo", "estimate")
"""Commands for which an unknown option may be a setting of the terms file, such as `--max-depth`."""


class Command(TyperCommand):
    """A command whose help does not show a type for flags."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _hide_types_of_flags(self, ctx)
        super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A command with sub-commands. Its help shows the first sentence of each sub-command's help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _hide_types_of_flags(self, ctx)
        for command in self.commands.values():
            command.short_help = first_sentence(command.help or "")
        super().format_help(ctx, formatter)


def _hide_types_of_flags(command: Any, ctx: Any) -> None:
    """Set an empty metavar for flags: typer would show `<bool>`, although flags take no value."""
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""


def group(name: str, epilog: str) -> typer.Typer:
    """Return a typer app to which sub-commands can be added. epilog: examples shown below its help."""
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
    """Return a usage error as one line, or "" if typer printed the help instead. groups: names of commands
    that have sub-commands."""
    text, context = error.format_message().strip().removesuffix("."), error.ctx
    if not text:
        return ""
    if context is None:  # for an option without its value, or a flag with one
        words = sys.argv[1 : 3 if sys.argv[1] in groups else 2]
    else:
        words = context.command_path.split()[1:]
        if hasattr(error, "option_name") and context.info_name in TAKES_TERMS and not error.possibilities:
            text += _setting_of_terms(error.option_name)
    return f"{text}; see {' '.join(('fedboost', *words, '--help'))}"


def _setting_of_terms(option: str) -> str:
    """Return a hint if an unknown option has the name of a setting of the terms file, else ""."""
    from fedboost.terms.reading import setting_hint
    from fedboost.terms.terms import Terms

    key, keys = option.lstrip("-").replace("-", "_"), Terms.file_keys()
    if key in keys:
        return f" ({key} is a setting of the terms file)"
    return setting_hint(key, keys).replace("?)", " in the terms file?)")


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]


# ---- Exit codes, and errors in one line -----------------------------------------------------------------
# Guarantees: an error that fedboost raises on purpose prints one line on standard error, without a traceback,
# and exits with code 2. Ctrl-C exits with code 130.


REFUSED = 2
INTERRUPTED = 130  # exit code after Ctrl-C, as in shells
PIPE_CLOSED = 141  # exit code after the reader of a pipe exits; shells report the same code for SIGPIPE
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that are reported in one line if standard output is a file or device that cannot be written to."""


def end_in_one_line(command: Callable[[], None]) -> None:
    """Run a command. If it fails, print one line to standard error and exit with the matching code."""
    _open_closed_streams()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are printed here, once
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name may have characters that the locale cannot encode
            stream.reconfigure(encoding=None if POSIX else "utf-8", errors="backslashreplace")
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a failure can still be reported
    except (FedboostError, DurabilityError) as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        _interrupt()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer turns it into code 1
            sys.exit(PIPE_CLOSED)
        if end.code != INTERRUPTED:  # typer turns Ctrl-C into this code, and prints nothing
            raise
        _interrupt()
    except BrokenPipeError:
        sys.stderr.close()  # no second message: the reader of the pipe has exited
        sys.exit(PIPE_CLOSED)
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            how = f"grant {user()} access, or run the command as another user"
            _refuse(f"{error.filename}: {error.strerror}; {how}")
        if error.errno not in FULL_DISK:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where the buffer is flushed at exit
        _refuse(f"cannot write the output: {error.strerror}")


def _open_closed_streams() -> None:
    """Open the null device for each closed standard stream. Otherwise the next file or socket would get its
    descriptor, and printed text would be written to it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _refuse(text: str) -> NoReturn:
    notice(f"fedboost: {text}")
    sys.exit(REFUSED)


def _interrupt() -> NoReturn:
    print("fedboost: interrupted; nothing was saved", file=sys.stderr)
    sys.exit(INTERRUPTED)
