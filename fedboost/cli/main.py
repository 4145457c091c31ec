"""The command `fedboost`: a table of its sub-commands, each imported when it is called.

Promises: `--help`, completion of names and usage errors import nothing heavy.
"""

import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from fedboost import __version__
from fedboost.cli.output import REFUSED, Group, UsageError, end_in_one_line, usage_error
from fedboost.errors import ConfigError


class Command(NamedTuple):
    """A sub-command: its module below fedboost.cli, its function, and the first sentence of its help. The
    function's epilog stands beside it, `TRAIN_EPILOG` of `train`."""

    module: str
    function: str
    help: str


COMMANDS = {
    "demo": Command(
        "demo",
        "demo",
        "Train across several processes on this machine, and compare with pooled rows.",
    ),
    "simulate": Command(
        "train",
        "simulate",
        "Train in this one process, as if the rows were at several sites.",
    ),
    "compare": Command(
        "compare",
        "compare",
        "Is joining worth it? Each site's model alone, the federated and the pooled one, on the same "
        "held-out rows of each site; where parties hold different columns, the label holder's alone and"
        " the joined one.",
    ),
    "aggregator": Command("serve", "aggregator", "Run the aggregator: parties and analysts dial it."),
    "health": Command(
        "serve",
        "health",
        "Ask an aggregator whether it is up: prints `serving`, or exits with code 2.",
    ),
    "status": Command(
        "serve",
        "status",
        "Say who is connected to an aggregator, which sessions run or wait, and for whom.",
    ),
    "party": Command("serve", "party", "Take part with this site's rows, session after session."),
    "keyholder": Command(
        "serve",
        "keyholder",
        "Hold the key of sessions that encrypt sums: take part without rows, and open sums it cannot read.",
    ),
    "train": Command("train", "train", "Submit terms to an aggregator and receive the model."),
    "predict": Command("model", "predict", "Predict each row of a table of any size: a column `prediction`."),
    "assemble": Command(
        "model",
        "assemble",
        "Put the parts of a model together that parties with different columns kept: an ordinary "
        "XGBoost file.",
    ),
    "explain": Command(
        "model",
        "explain",
        "Say which features a model goes by (gain, cover, weight), print or draw a tree, explain rows, "
        "or show how predictions depend on a feature.",
    ),
    "report": Command("model", "report", "Write the report of a model, one HTML page."),
    "verify": Command(
        "model",
        "verify",
        "Say who signed a model, and check that: its trees, its terms and the analyst's request.",
    ),
    "check": Command(
        "terms",
        "check",
        "Say what is odd in a table, and what to do about it; or whether all sites would take part "
        "under terms.",
    ),
    "columns": Command(
        "site",
        "columns",
        "Offer this site's columns to an analyst, who drafts terms with them.",
    ),
    "terms": Command("terms", "terms", "Draft a terms file from a table, for the analyst to edit."),
    "describe": Command(
        "tasks",
        "describe",
        "Count the rows of all sites before a training under these terms: missing values, levels, "
        "labels, quantiles; and say what to change in the terms.",
    ),
    "tune": Command(
        "tasks",
        "tune",
        "Try settings of trees side by side in one session, drop the worst by validation rows, and save"
        " the terms of a training with the best.",
    ),
    "evaluate": Command(
        "tasks",
        "evaluate",
        "Measure a model on the rows of all sites: metrics, and for two classes ROC curve, calibration,"
        " and rates by subgroup.",
    ),
    "drift": Command(
        "tasks",
        "drift",
        "Hold the rows of all sites against those that a model was trained on, by column and by its score.",
    ),
    "estimate": Command(
        "privacy",
        "estimate",
        "Estimate the time and the bytes of a training under each protection, by trees that it grows on"
        " this machine for some seconds; with --rtt or --bandwidth also over links, with histograms of "
        "all features, with votes, and with all rows in one place; with --workers what a site's workers"
        " need.",
    ),
    "approve": Command(
        "site",
        "approve",
        "Show which rules of this site's policy terms break, and who would learn what of its rows; on yes "
        "allow these terms, and no others.",
    ),
    "digest": Command(
        "terms",
        "digest",
        "Say what a terms file asks for, and its digest, by which sites know it.",
    ),
    "sign": Command(
        "terms",
        "sign_terms",
        "Sign terms, for the console of an aggregator: who has the file can submit them once, within 30"
        " days, and cannot change them.",
    ),
    "audit": Command(
        "site",
        "audit",
        "Show what has left a site, by its own audit log: warnings first, the most serious before the "
        "others, then session by session what left and what the terms allow.",
    ),
    "backup": Command(
        "site",
        "backup",
        "Back up this site's memory, its audit log, the terms of its sessions and its parts of models "
        "into one file, also while the party runs.",
    ),
    "restore": Command(
        "site",
        "restore",
        "Put this site's memory back from a backup, where it was lost, and its audit log and parts of "
        "models if those were lost, too.",
    ),
    "warm-up": Command(
        "serve",
        "warm_up",
        "Compile all kernels ahead, and say where they are kept: for images and service accounts.",
    ),
    "keys": Command(
        "keys",
        "keys_app",
        "Who may take part: certificates and keys for parties, the aggregator and analysts.",
    ),
    "privacy": Command(
        "privacy",
        "privacy_app",
        "Differential privacy: a site's memory and budget, what terms would cost, a model's card.",
    ),
}
"""In the order of `fedboost --help`."""


class Lazy(TyperCommand):
    """A sub-command of which only the row of the table is there, until it is called or looked into."""

    def __init__(self, name: str, row: Command) -> None:
        self._row = row
        self._loaded: Any = None
        super().__init__(name=name, help=row.help, callback=None)

    @property
    def loaded(self) -> Any:
        """The sub-command itself, imported."""
        if self._loaded is None:
            assert self.name is not None
            self._loaded = typer.main.get_command(_app_of(self.name, self._row))
        return self._loaded

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """A context of the sub-command itself."""
        return self.loaded.make_context(*arguments, **options)


class Commands(Group):
    """The command with its sub-commands, in the order of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the sub-commands."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A sub-command; None if there is none of this name."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = Lazy(cmd_name, COMMANDS[cmd_name])
        return self.commands.get(cmd_name)


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
    for name, row in COMMANDS.items():
        own = _app_of(name, row)
        if getattr(own.info, "name", "") == name:
            every.add_typer(own)
        else:
            every.registered_commands += own.registered_commands
    return every


def _app_of(name: str, row: Command) -> typer.Typer:
    """A sub-command and the sub-commands that it has, imported."""
    module = import_module(f"fedboost.cli.{row.module}")
    found = getattr(module, row.function)
    if isinstance(found, typer.Typer):
        return found
    alone = typer.Typer(add_completion=False, **_OPTIONS)
    alone.command(name, epilog=getattr(module, f"{name.upper().replace('-', '_')}_EPILOG"))(found)
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
        if line := usage_error(error):
            raise ConfigError(line) from None
        sys.exit(REFUSED)
    except OSError as error:
        if "--install-completion" not in sys.argv:
            raise
        way_out = "fedboost --show-completion prints what it would add"
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}; {way_out}") from None
    if code:
        sys.exit(code)
