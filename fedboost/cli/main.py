"""The command `fedboost`: what it takes, and how it ends.

Promises: `--help` imports nothing heavy; whatever a user can get wrong ends in one line on standard error
and exit code 2, without a traceback; Ctrl-C ends with 130.
Refuses: nothing more than the commands themselves.
"""

import errno
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from fedboost import __version__
from fedboost.cli.keys import keys_app
from fedboost.cli.privacy import privacy_app
from fedboost.errors import FedboostError

app = typer.Typer(
    name="fedboost",
    help="Gradient-boosted trees over rows that may not be pooled. Start with: [bold]fedboost demo[/bold]",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in every shell."""

PIPE_CLOSED = 141
"""Exit code when the reader of a pipe has gone, as that of commands which the signal ends."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What ends the writing to standard output, be it a file or a device."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.")]
Data = Annotated[Path, typer.Argument(help="A table: .csv, .tsv, .parquet or .libsvm.", show_default=False)]
InsecureLoopback = Annotated[
    bool,
    typer.Option("--insecure-loopback", help="No keys, no encryption: on this machine alone."),
]
Site = Annotated[
    str | None, typer.Option("--site", help="Column that names the site of each row.", show_default=False)
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fedboost {__version__}")
        raise typer.Exit


@app.command(
    epilog="Example: fedboost demo\n\n"
    "Example: fedboost demo --data patients.csv --label diagnosis --site hospital"
)
def demo(
    data: Annotated[
        Path | None, typer.Option(help="Your own table instead of the breast-cancer one.", show_default=False)
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Label column of your table; words are classes.", show_default=False)
    ] = None,
    site: Site = None,
    parties: Annotated[
        int | None,
        typer.Option(help="Sites to split the rows among, unevenly (3).", min=1, max=50, show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Trees to boost.", min=1)] = 30,
    protection: Annotated[
        str | None,
        typer.Option(help="What hides sites' numbers (masked, from 3 sites on).", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the sites' files and the model.")] = Path(
        "fedboost-demo"
    ),
    json: Json = False,
) -> None:
    """Train across several processes on this machine, and compare with pooled rows."""
    from fedboost.cli.demo import run_demo

    run_demo(data, label, site, parties, rounds, protection, out, json)


@app.command(epilog="Example: fedboost simulate terms.toml --data all.csv --site hospital --out model.json")
def simulate(
    terms: Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)],
    data: Annotated[Path, typer.Option(help="The table whose rows the sites share out.", show_default=False)],
    site: Site = None,
    parties: Annotated[
        int | None, typer.Option(help="Split the rows evenly among so many.", min=1, show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the delivery order.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where to save the model.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Train in this one process, as if the rows were at several sites."""
    from fedboost.cli.training import run_simulation

    run_simulation(terms, data, site, parties, seed, out, json)


@app.command(epilog="Example: fedboost compare terms.toml --data all.csv --site hospital --seeds 10")
def compare(
    terms: Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)],
    data: Annotated[Path, typer.Option(help="A table with rows of all sites.", show_default=False)],
    site: Annotated[str, typer.Option(help="Column that names the site of each row.", show_default=False)],
    held_out: Annotated[
        float, typer.Option(help="Share of each site's rows to compare the models on.")
    ] = 0.2,
    seeds: Annotated[
        int, typer.Option(help="How many times to draw those rows, and train.", min=1, max=1000)
    ] = 5,
    json: Json = False,
) -> None:
    """Is joining worth it? Each site's model alone, the federated and the pooled one, on the same held-out
    rows of each site."""
    from fedboost.cli.compare import run_comparison

    run_comparison(terms, data, site, held_out, seeds, json)


@app.command(epilog="Example: fedboost aggregator --config aggregator.toml")
def aggregator(
    config: Annotated[Path, typer.Option(help="The aggregator's file, TOML.", show_default=False)],
    insecure_loopback: InsecureLoopback = False,
    json: Json = False,
) -> None:
    """Run the aggregator: parties and analysts dial it."""
    from fedboost.cli.serving import run_aggregator

    run_aggregator(config, insecure_loopback, json)


@app.command(epilog="Example: fedboost health --aggregator fed.example.org:7070 --keys keys/marie")
def health(
    aggregator: Annotated[str, typer.Option(help="HOST:PORT of the aggregator.", show_default=False)],
    keys: Annotated[
        Path | None, typer.Option(help="Folder of a party's or an analyst's keys.", show_default=False)
    ] = None,
    insecure_loopback: InsecureLoopback = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for an answer.", min=0)] = 5,
) -> None:
    """Ask an aggregator whether it is up: prints `serving`, or exits with code 2."""
    from fedboost.cli.serving import run_health

    run_health(aggregator, keys, insecure_loopback, wait)


@app.command(epilog="Example: fedboost party --config party.toml")
def party(
    config: Annotated[Path, typer.Option(help="This site's file, TOML.", show_default=False)],
    wait: Annotated[float, typer.Option(help="Seconds to wait for an aggregator that is away.", min=0)] = 600,
    once: Annotated[bool, typer.Option("--once", help="Exit after one session.")] = False,
    insecure_loopback: InsecureLoopback = False,
) -> None:
    """Take part with this site's rows, session after session."""
    from fedboost.cli.serving import run_party

    run_party(config, wait, once, insecure_loopback)


@app.command(epilog="Example: fedboost keyholder --config keyholder.toml")
def keyholder(
    config: Annotated[Path, typer.Option(help="The key holder's file, TOML.", show_default=False)],
    wait: Annotated[float, typer.Option(help="Seconds to wait for an aggregator that is away.", min=0)] = 600,
    once: Annotated[bool, typer.Option("--once", help="Exit after one session.")] = False,
    insecure_loopback: InsecureLoopback = False,
) -> None:
    """Hold the key of sessions that encrypt sums: take part without rows, and open sums it cannot read."""
    from fedboost.cli.serving import run_party

    run_party(config, wait, once, insecure_loopback, holds_rows=False)


@app.command(
    epilog="Example: fedboost train terms.toml --aggregator fed.example.org:7070 --keys keys/marie "
    "--out model.json"
)
def train(
    terms: Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)],
    aggregator: Annotated[str, typer.Option(help="HOST:PORT of the aggregator.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where to save the model.", show_default=False)],
    keys: Annotated[
        Path | None, typer.Option(help="Folder of the analyst's keys.", show_default=False)
    ] = None,
    insecure_loopback: InsecureLoopback = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the aggregator to answer.", min=0)] = 60,
    json: Json = False,
) -> None:
    """Submit terms to an aggregator and receive the model. Waits as long as it takes for absent parties."""
    from fedboost.cli.training import run_training

    run_training(terms, aggregator, keys, insecure_loopback, out, wait, json)


@app.command(epilog="Example: fedboost predict model.json new.csv --out predictions.csv")
def predict(
    model: Annotated[Path, typer.Argument(help="A model file.", show_default=False)],
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions.", show_default="standard output")
    ] = None,
) -> None:
    """Predict each row of a table: a CSV with one column, `prediction`. With classes it is the most probable
    one, and a column named after each class has its probability."""
    from fedboost.cli.tables import run_predict

    run_predict(model, data, out)


@app.command(
    epilog="Example: fedboost explain model.json\n\n"
    "Example: fedboost explain model.json --tree 0 --svg tree.svg\n\n"
    "Example: fedboost explain model.json --shap new.csv --out shap.csv\n\n"
    "Example: fedboost explain model.json --partial-dependence age --data new.csv"
)
def explain(
    model: Annotated[Path, typer.Argument(help="A model file.", show_default=False)],
    tree: Annotated[
        int | None, typer.Option(help="Print this tree, counted from 0.", min=0, show_default=False)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the tree to this file instead.", show_default=False)
    ] = None,
    shap: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Say what each feature adds to the margin of each row of this table, as a CSV.",
            show_default=False,
        ),
    ] = None,
    partial_dependence: Annotated[
        str | None,
        typer.Option(
            metavar="FEATURE",
            help="The mean prediction over the rows of --data by the values of this feature, as a CSV.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Rows for --partial-dependence.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the CSV of the two above.", show_default="standard output"),
    ] = None,
    json: Json = False,
) -> None:
    """Say which features a model goes by (gain, cover, weight), print or draw a tree, explain rows, or show
    how predictions depend on a feature."""
    from fedboost.cli.explain import run_explain

    run_explain(model, tree, svg, shap, partial_dependence, data, out, json)


@app.command(
    epilog="Example: fedboost terms north.csv --label diagnosis --party north --party south > terms.toml"
)
def terms(
    data: Data,
    label: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    label_upper_bound: Annotated[
        str | None,
        typer.Option(help="A column of upper bounds, for survival:aft.", show_default=False),
    ] = None,
    weight: Annotated[str | None, typer.Option(help="A column of row weights.", show_default=False)] = None,
    base_margin: Annotated[
        str | None,
        typer.Option(help="A column of margins to boost from, such as log(exposure).", show_default=False),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="With rank:ndcg, the column of each row's group (qid).", show_default=False),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="A column that names the site of each row: the parties.", show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="A column to leave out (may be repeated).", show_default=False)
    ] = None,
    party: Annotated[
        list[str] | None, typer.Option(help="A party's name (may be repeated).", show_default=False)
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What to predict, such as multi:softprob where numbers stand for classes.",
            show_default="what fits the label",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the terms.", show_default="standard output")
    ] = None,
) -> None:
    """Draft a terms file from a table, for the analyst to edit. A label of two values is predicted as a
    probability, one of up to 100 words as classes, one of more numbers as an amount."""
    from fedboost.cli.tables import run_terms

    columns = label, label_upper_bound, weight, base_margin, group
    run_terms(data, *columns, site, exclude or [], party or [], objective, out)


@app.command(epilog="Example: fedboost estimate terms.toml --rows 100000 --parties 5")
def estimate(
    terms: Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)],
    rows: Annotated[int, typer.Option(help="Rows of all parties.", min=1, show_default=False)],
    features: Annotated[
        int | None,
        typer.Option(help="Numeric features, in place of the terms' columns.", min=1, show_default=False),
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="In place of those of the terms.", min=1, show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the time and the bytes of a training under each protection, by a try on this machine."""
    from fedboost.cli.estimate import run_estimate

    run_estimate(terms, rows, features, parties, json)


@app.command(epilog="Example: fedboost approve terms.toml --config party.toml --analyst marie")
def approve(
    terms: Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)],
    config: Annotated[Path, typer.Option(help="This site's file, TOML.", show_default=False)],
    analyst: Annotated[
        list[str] | None,
        typer.Option(
            help="Who may train under these terms, as in the certificate (may be repeated).",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without a question.")] = False,
) -> None:
    """Say what terms would tell of this site's rows, to whom, and which rules of its policy they break; on
    yes allow them, and no others. Exit code 1 for a no."""
    from fedboost.cli.approve import run_approve

    run_approve(terms, config, analyst or [], yes)


@app.command(epilog="Example: fedboost digest terms.toml")
def digest(
    terms: Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)],
) -> None:
    """Say what a terms file asks for, and its digest, by which sites know it."""
    from fedboost.cli.tables import run_digest

    run_digest(terms)


@app.command(
    epilog="Example: fedboost audit party.audit.jsonl\n\n"
    "Example: fedboost audit party.audit.jsonl --session session-1f3a5c7e\n\n"
    "Example: fedboost audit party.audit.jsonl --strict --expect $(cat last-hash)"
)
def audit(
    log: Annotated[Path, typer.Argument(help="A party's audit log.", show_default=False)],
    session: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only the sessions of this name, or of the one that begins so, with each answer.",
            show_default=False,
        ),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="The hash an earlier audit ended with: exit code 2 if no entry has it (a log cut short).",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 if there are warnings.")] = False,
    json: Json = False,
) -> None:
    """Say in plain words what has left a site, by its own audit log: warnings first, the most serious before
    the others, then session by session what left and what the terms allow. No warnings: all that left is what
    the agreed terms allow."""
    from fedboost.cli.audit import run_audit

    if run_audit(log, json, expect, session) and strict:
        raise typer.Exit(1)


def _interrupted() -> None:
    print("fedboost: interrupted; nothing was saved", file=sys.stderr)
    sys.exit(INTERRUPTED)


app.add_typer(keys_app)
app.add_typer(privacy_app)


def _refused(text: str) -> None:
    from fedboost.cli.show import printable

    print(printable(f"fedboost: {text}"), file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """The entry point."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said here, once
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name may hold what the locale cannot write
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a failure can still be told
    except FedboostError as error:
        _refused(str(error))
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer makes this code 1 of it
            sys.exit(PIPE_CLOSED)
        if end.code != INTERRUPTED:  # typer's own answer to Ctrl-C, which says nothing
            raise
        _interrupted()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone: nobody is left to tell
        sys.exit(PIPE_CLOSED)
    except OSError as error:
        if error.errno not in FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
        _refused(f"cannot write the output: {error.strerror}")
