"""The command `fedboost`: its sub-commands.

Promises: `--help` imports nothing heavy.
Refuses: nothing more than the commands themselves.
"""

import sys
from typing import Annotated

import typer

from fedboost import __version__
from fedboost.cli import (
    aggregator,
    approve,
    assemble,
    audit,
    backup,
    check,
    columns,
    compare,
    demo,
    describe,
    digest,
    drift,
    estimate,
    evaluate,
    explain,
    health,
    key_requests,
    keyholder,
    party,
    predict,
    report,
    sign,
    simulate,
    status,
    terms,
    tokens,
    train,
    tune,
    verify,
    warm_up,
)
from fedboost.cli.endings import REFUSED, end_in_one_line
from fedboost.cli.keys import keys_app
from fedboost.cli.privacy import privacy_app
from fedboost.cli.usage import Group, UsageError, usage_error
from fedboost.errors import ConfigError

app = typer.Typer(
    name="fedboost",
    help="Gradient-boosted trees over rows that may not be pooled. Start with: [bold]fedboost demo[/bold]",
    no_args_is_help=True,
    cls=Group,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=demo.EPILOG)(demo.demo)
app.command(epilog=simulate.EPILOG)(simulate.simulate)
app.command(epilog=compare.EPILOG)(compare.compare)
app.command(epilog=aggregator.EPILOG)(aggregator.aggregator)
app.command(epilog=health.EPILOG)(health.health)
app.command(epilog=status.EPILOG)(status.status)
app.command(epilog=party.EPILOG)(party.party)
app.command(epilog=keyholder.EPILOG)(keyholder.keyholder)
app.command(epilog=train.EPILOG)(train.train)
app.command(epilog=predict.EPILOG)(predict.predict)
app.command(epilog=assemble.EPILOG)(assemble.assemble)
app.command(epilog=explain.EPILOG)(explain.explain)
app.command(epilog=report.EPILOG)(report.report)
app.command(epilog=verify.EPILOG)(verify.verify)
app.command(epilog=check.EPILOG)(check.check)
app.command(epilog=columns.EPILOG)(columns.columns)
app.command(epilog=terms.EPILOG)(terms.terms)
app.command(epilog=describe.EPILOG)(describe.describe)
app.command(epilog=tune.EPILOG)(tune.tune)
app.command(epilog=evaluate.EPILOG)(evaluate.evaluate)
app.command(epilog=drift.EPILOG)(drift.drift)
app.command(epilog=estimate.EPILOG)(estimate.estimate)
app.command(epilog=approve.EPILOG)(approve.approve)
app.command(epilog=digest.EPILOG)(digest.digest)
app.command(epilog=sign.EPILOG)(sign.sign)
app.command(epilog=audit.EPILOG)(audit.audit)
app.command(epilog=backup.BACKUP_EPILOG)(backup.backup)
app.command(epilog=backup.RESTORE_EPILOG)(backup.restore)
app.command(epilog=warm_up.EPILOG)(warm_up.warm_up)
for command in (key_requests.request, key_requests.sign, key_requests.accept):
    keys_app.command(epilog=key_requests.EPILOGS[command.__name__])(command)
keys_app.command(epilog=tokens.EPILOG)(tokens.token)
app.add_typer(keys_app)
app.add_typer(privacy_app)


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
