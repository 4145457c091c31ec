"""The command `fedboost`: a table of its sub-commands, each of which is imported when it is called.

Guarantees: `--help`, the completion of command names, and usage errors import no heavy package.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedboost import __version__
from fedboost.cli import output
from fedboost.errors import ConfigError

COMMANDS = {
    role: dict(word.split(":") for word in words.split())
    for role, words in {
        "General": "demo:demo simulate:train compare:compare predict:model explain:model keys:keys "
        "warm-up:serve",
        "Analyst": "terms:terms estimate:estimate preflight:terms describe:tasks tune:tasks train:train "
        "evaluate:tasks drift:tasks report:model verify:model assemble:model sign:terms",
        "Site": "join:site party:serve serve:serve keyholder:serve columns:site check:terms approve:site "
        "audit:site backup:site restore:site privacy:privacy",
        "Aggregator": "aggregator:serve adder:serve status:serve",
    }.items()
}
"""Role -> command -> its module in fedboost.cli, in the order of `fedboost --help`. A command's function has
the command's name; the epilog of its help is a constant in the same module, such as `TRAIN_EPILOG` for
`train`."""
MODULES = {name: module for commands in COMMANDS.values() for name, module in commands.items()}
GROUPS = {
    "keys": "Create and show keys, certificates and tokens.",
    "privacy": "Show a site's privacy budget, create its memory, or plan differentially private training.",
}
"""Command with sub-commands -> its help. The command's module contains a typer app, such as `keys_app`."""


def _first_sentence_of(name: str) -> str:
    if name in GROUPS:
        return GROUPS[name]
    text = Path(__file__).with_name(f"{MODULES[name]}.py").read_text(encoding="utf-8")
    return output.first_sentence(text.partition(f"\ndef {_function(name)}(")[2].split('"""')[1])


def _function(name: str) -> str:
    return name.replace("-", "_")


class Lazy(TyperCommand):
    """A sub-command that is imported when it is used. Before, only its name and help text are known."""

    def __init__(self, name: str, role: str) -> None:
        self._loaded: Any = None
        super().__init__(name=name, help=_first_sentence_of(name), callback=None, rich_help_panel=role)

    @property
    def loaded(self) -> Any:
        """The actual sub-command, imported on first access."""
        if self._loaded is None:
            assert self.name is not None
            self._loaded = typer.main.get_command(_app_of(self.name))
        return self._loaded

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        return self.loaded.make_context(*arguments, **options)


class Commands(output.Group):
    """The root command `fedboost`. Its sub-commands are listed in the order of `COMMANDS`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: Lazy(name, role) for role, names in COMMANDS.items() for name in names}


_OPTIONS: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False}
app = typer.Typer(
    name="fedboost",
    help="Train gradient-boosted trees on data that cannot be pooled. To start: [bold]fedboost demo[/bold]",
    no_args_is_help=True,
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_OPTIONS,
)


def whole() -> typer.Typer:
    """Return the root command with all sub-commands imported, for documentation and tests."""
    every = typer.Typer(name="fedboost", cls=output.Group, **_OPTIONS)
    for name in MODULES:
        if name in GROUPS:
            every.add_typer(_app_of(name))
        else:
            every.registered_commands += _app_of(name).registered_commands
    return every


def _app_of(name: str) -> typer.Typer:
    """Import a sub-command and, if it has any, its own sub-commands."""
    module, own = import_module(f"fedboost.cli.{MODULES[name]}"), _function(name)
    if name in GROUPS:
        group: typer.Typer = getattr(module, f"{own}_app")
        group.info.help = GROUPS[name]
        for command in group.registered_commands:
            command.cls = output.Command
        return group
    alone = typer.Typer(add_completion=False, **_OPTIONS)
    alone.command(name, cls=output.Command, epilog=getattr(module, f"{own.upper()}_EPILOG"))(
        getattr(module, own)
    )
    return alone


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fedboost {__version__}")
        raise typer.Exit


def main() -> None:
    output.end_in_one_line(_run)


def _run() -> None:
    try:
        code = app(prog_name="fedboost", standalone_mode=False)
    except output.UsageError as error:
        if line := output.usage_error(error, GROUPS):
            raise ConfigError("command-line-invalid", line) from None
        sys.exit(output.REFUSED)
    except OSError as error:
        if "--install-completion" not in sys.argv:
            raise
        way_out = "run fedboost --show-completion to print the script, and install it yourself"
        raise ConfigError(
            "completion-failed", f"cannot write {error.filename}: {error.strerror}; {way_out}"
        ) from None
    if code:
        sys.exit(code)
