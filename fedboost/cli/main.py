"""The command `fedboost`: a table of its sub-commands, each imported when it is called.

Promises: `--help`, completion of names and usage errors import nothing heavy.
"""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedboost import __version__
from fedboost.cli.output import REFUSED, Group, UsageError, end_in_one_line, first_sentence, usage_error
from fedboost.errors import ConfigError


def _text_of(module: str) -> str:
    """The text of a module of commands, which is not imported."""
    return Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")


def _commands_in(module: str) -> list[str]:
    """The commands of a module, in the order of their epilogs."""
    return [name.lower() for name in re.findall(r"^([A-Z]+)_EPILOG = ", _text_of(module), re.MULTILINE)]


COMMANDS = {
    "demo": "demo",
    "simulate": "train",
    "compare": "compare",
    "aggregator": "serve",
    "health": "serve",
    "status": "serve",
    "party": "serve",
    "keyholder": "serve",
    "train": "train",
    "predict": "model",
    "assemble": "model",
    "explain": "model",
    "report": "model",
    "verify": "model",
    "check": "terms",
    "columns": "site",
    "terms": "terms",
    **dict.fromkeys(_commands_in("tasks"), "tasks"),
    "estimate": "privacy",
    "approve": "site",
    "digest": "terms",
    "sign": "terms",
    "audit": "site",
    "backup": "site",
    "restore": "site",
    "warm-up": "serve",
    "keys": "keys",
    "privacy": "privacy",
}
"""Each sub-command's module below fedboost.cli, in the order of `fedboost --help`. Its function has the name
of the command; its epilog stands beside it, `TRAIN_EPILOG` of `train`."""
GROUPS = {
    "keys": "Who may take part: certificates and keys for parties, the aggregator and analysts.",
    "privacy": "Differential privacy: a site's memory and budget, what terms would cost, a model's card.",
}
"""The help of commands with sub-commands: `keys_app` of `keys`."""


def _first_sentence_of(name: str) -> str:
    """The first sentence of a sub-command's help."""
    if name in GROUPS:
        return GROUPS[name]
    return first_sentence(_text_of(COMMANDS[name]).partition(f"\ndef {_function(name)}(")[2].split('"""')[1])


def _function(name: str) -> str:
    return name.replace("-", "_")


class Lazy(TyperCommand):
    """A sub-command of which only name and help are there, until it is called or looked into."""

    def __init__(self, name: str) -> None:
        self._loaded: Any = None
        super().__init__(name=name, help=_first_sentence_of(name), callback=None)

    @property
    def loaded(self) -> Any:
        """The sub-command itself, imported."""
        if self._loaded is None:
            assert self.name is not None
            self._loaded = typer.main.get_command(_app_of(self.name))
        return self._loaded

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """A context of the sub-command itself."""
        return self.loaded.make_context(*arguments, **options)


class Commands(Group):
    """The command with its sub-commands, in the order of the table."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: Lazy(name) for name in COMMANDS}


_OPTIONS: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False}
app = typer.Typer(
    name="fedboost",
    help="Gradient-boosted trees over rows that may not be pooled. Start with: [bold]fedboost demo[/bold]",
    no_args_is_help=True,
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_OPTIONS,
)


def whole() -> typer.Typer:
    """The command with all its sub-commands, imported, for what describes them all."""
    every = typer.Typer(name="fedboost", cls=Group, **_OPTIONS)
    for name in COMMANDS:
        if name in GROUPS:
            every.add_typer(_app_of(name))
        else:
            every.registered_commands += _app_of(name).registered_commands
    return every


def _app_of(name: str) -> typer.Typer:
    """A sub-command and the sub-commands that it has, imported."""
    module, own = import_module(f"fedboost.cli.{COMMANDS[name]}"), _function(name)
    if name in GROUPS:
        group: typer.Typer = getattr(module, f"{own}_app")
        group.info.help = GROUPS[name]
        return group
    alone = typer.Typer(add_completion=False, **_OPTIONS)
    alone.command(name, epilog=getattr(module, f"{own.upper()}_EPILOG"))(getattr(module, own))
    return alone


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fedboost {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command: the entry point."""
    end_in_one_line(_run)


def _run() -> None:
    """Run the command; exit with its code if it has one."""
    try:
        code = app(prog_name="fedboost", standalone_mode=False)
    except UsageError as error:
        if line := usage_error(error, GROUPS):
            raise ConfigError(line) from None
        sys.exit(REFUSED)
    except OSError as error:
        if "--install-completion" not in sys.argv:
            raise
        way_out = "fedboost --show-completion prints what it would add"
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}; {way_out}") from None
    if code:
        sys.exit(code)
