"""`fedboost privacy` and `fedboost estimate`: what was spent of the rows' privacy, what terms would spend,
what a training would cost.

Promises: only `init` writes to a site's memory.
"""

from typing import Annotated

import typer

from fedboost.cli.common import Json, ModelFile, SiteFile, TermsFile, reads_a_table
from fedboost.cli.output import group, show
from fedboost.errors import ConfigError, printable
from fedboost.results.privacy import Plan, PrivacyCard
from fedboost.runtime.data.database import Reading
from fedboost.runtime.data.table import read_table
from fedboost.runtime.local import estimate as local
from fedboost.runtime.local.estimate import Link
from fedboost.runtime.model import Model
from fedboost.runtime.site.backup import accept_restored, init_memory, site_budget
from fedboost.runtime.site.config import read_party
from fedboost.runtime.tasks import read_terms, read_training
from fedboost.views import session, site
from fedboost.views.model import estimates

privacy_app = group(
    "privacy",
    "Example: fedboost privacy budget --config party.toml\n\n"
    "Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000",
)

EXAMPLES = (1_000, 10_000, 100_000)
"""Numbers of rows to plan for where nobody says how many there are."""


@privacy_app.command(epilog="Example: fedboost privacy budget --config party.toml")
def budget(
    config: SiteFile,
    json: Json = False,
) -> None:
    """Show what all sessions so far have spent of the privacy of this site's rows, and what is left."""
    result = site_budget(read_party(config))
    spent = (each.model_dump() for each in result.datasets)
    show(json, spent, site.budget(result))


@privacy_app.command(
    name="init",
    epilog="Example: fedboost privacy init --config party.toml",
)
def begin(
    config: SiteFile,
    restored: Annotated[
        bool,
        typer.Option("--restored", help="Use a memory that is older than its counter, or begin a lost one."),
    ] = False,
) -> None:
    """Begin the memory of this site's sessions, where only a person can decide to: under a budget, or because
    it was lost."""
    site = read_party(config, holds_rows=None)
    memory = accept_restored(site) if restored else init_memory(site)
    how = "the memory that was put back" if restored else "a new memory"
    print(
        f"{memory.path}: {how}, of the rows {printable(site.rows_name)}; it knows {memory.sessions} sessions "
        f"and {memory.releases} releases that were charged"
    )
    if restored:
        print(memory.loss)
    if memory.sessions:
        print("None of those sessions continues: its analyst begins again.")


@privacy_app.command(epilog="Example: fedboost privacy plan terms.toml --epsilon 1 --rows 20000 --parties 5")
def plan(
    terms: TermsFile,
    epsilon: Annotated[float | None, typer.Option(help="In place of the terms' own.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Rows of all parties together.", min=1, max=10**12, show_default="a few examples"),
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="So many, in place of those named.", min=1, max=4096)
    ] = None,
    json: Json = False,
) -> None:
    """Say what terms with noise would release, how much noise that gets, and what to expect of the model."""
    agreed = read_terms(terms)
    noise = agreed.noise
    if noise is None:
        raise ConfigError(f"{terms}: has no noise to plan; add noise = {{ epsilon = 1.0, delta = 1e-5 }}")
    if parties is not None:
        agreed = agreed.with_parties(f"party-{number + 1}" for number in range(parties))
    if not agreed.parties:
        raise ConfigError(f"{terms}: names no parties, by whose number noise goes; give --parties 3")
    if epsilon is not None:
        agreed = agreed.changed(noise={**noise.model_dump(), "epsilon": epsilon})
    planned = Plan.of(agreed, (rows,) if rows else EXAMPLES)
    show(json, planned.lines, session.plan(planned))


@privacy_app.command(epilog="Example: fedboost privacy explain model.json")
def explain(
    model: ModelFile,
    json: Json = False,
) -> None:
    """Print a model's privacy card: what it promises, every release, and what is not covered."""
    agreed = Model.load(model).terms
    if agreed.noise is None:
        raise ConfigError(
            f"{model}: was trained without noise, so it has no card: nothing bounds what it tells of a row"
        )
    card = PrivacyCard.of(agreed)
    show(json, [card.summary], session.card(card))


# ---- `fedboost estimate`: the time and the bytes of a training, by protection ---------------------------


ESTIMATE_EPILOG = "Example: fedboost estimate terms.toml --rows 100000 --parties 5 --rtt 50 --bandwidth 100"


@reads_a_table
def estimate(
    terms: TermsFile,
    read: Reading,
    rows: Annotated[int | None, typer.Option(help="Rows of all parties; those of --data.", min=1)] = None,
    data: Annotated[
        str | None, typer.Option(help="A table to grow the trees over, instead of generated rows.")
    ] = None,
    parties: Annotated[int | None, typer.Option(help="In place of those of the terms.", min=1)] = None,
    rtt: Annotated[float | None, typer.Option(help="Milliseconds of a round trip: compares layouts.")] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="Mbit/s of each party's link: compares layouts.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Workers of a site, each of one thread: their memory and traffic.", min=1),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the time and the bytes of a training under each protection, by trees that it grows on this
    machine for some seconds; with --rtt or --bandwidth also over links, with histograms of all features, with
    votes, and with all rows in one place; with --workers what a site's workers need. Where parties hold
    different columns, rows are those in common."""
    agreed = read_training(terms)
    apart = agreed.vertical.is_used
    refused = {"--parties": parties, "--rtt": rtt, "--bandwidth": bandwidth, "--workers": workers}
    for option, value in refused.items():
        if apart and value is not None:
            raise ConfigError(
                f"{option}: it is for parties that have all columns, these terms hold them apart"
            )
    link, number = Link.of(rtt, bandwidth), parties or len(agreed.parties) or 3
    table = None if data is None else read_table(read.source(data), None, read.options)
    total = rows or (0 if table is None else table.num_rows)
    if not total:
        raise ConfigError(
            "give --rows, the rows that the parties have in common, or a table of all columns by --data"
            if apart
            else "give --rows, the rows of all parties, or a table by --data"
        )
    if apart:
        result = local.estimate_columns(agreed, total, table)
    elif total < number:
        raise ConfigError(f"--rows is {total}: {number} parties need a row each at least")
    else:
        result = local.estimate(agreed, total, number, table, link, workers)
    show(json, result.lines, estimates(result))
