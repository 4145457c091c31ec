"""`fedboost estimate`: the time and the bytes of a training, by protection."""

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedboost.cli.options import Json, TermsFile, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.people.facts import EstimateFacts
    from fedboost.runtime.data.database import Database, Reading
    from fedboost.runtime.local.estimate import Link
    from fedboost.terms.terms import Terms

KEPT = (
    *("parties", "rounds", "max_depth", "max_bin", "vote_top_k"),
    *("protection", "keyholder", "key_bits", "on_loss"),
)
"""Settings of the terms that count where their columns are others."""
EPILOG = "Example: fedboost estimate terms.toml --rows 100000 --parties 5 --rtt 50 --bandwidth 100"


@reads_a_table
def estimate(
    terms: TermsFile,
    read: "Reading",
    rows: Annotated[
        int | None, typer.Option(help="Rows of all parties; those of --data.", min=1, show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A table to grow the trees over, instead of generated rows.", show_default=False),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(help="Numeric features, in place of the terms' columns.", min=1, show_default=False),
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="In place of those of the terms.", min=1, show_default=False)
    ] = None,
    rtt: Annotated[
        float | None,
        typer.Option(help="Milliseconds of a round trip: compares layouts.", show_default=False),
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="Mbit/s of each party's link: compares layouts.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Workers of a site, each of one thread: their memory and traffic.", min=1, show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the time and the bytes of a training under each protection, by trees that it grows on this
    machine for some seconds; with --rtt or --bandwidth also over links, with histograms of all features, with
    votes, and with all rows in one place; with --workers what a site's workers need. Where parties hold
    different columns, rows are those in common."""
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.local.estimate import Link
    from fedboost.runtime.terms_file import read_training

    if features is not None and data is not None:
        raise ConfigError("give --features or --data, not both: the columns are those of the table")
    agreed = read_training(terms)
    if agreed.vertical.is_used:
        refused = {"--features": features, "--parties": parties, "--rtt": rtt, "--bandwidth": bandwidth}
        refused |= {"--workers": workers}
        return _by_columns(agreed, None if data is None else read.source(data), read, rows, refused, json)
    if features is not None:
        agreed = _of_features(agreed, features)
    link, number = Link.of(rtt, bandwidth), parties or len(agreed.parties) or 3
    table = None if data is None else read_table(read.source(data), None, read.options)
    total = rows or (0 if table is None else table.num_rows)
    if not total:
        raise ConfigError("give --rows, the rows of all parties, or a table by --data")
    if total < number:
        raise ConfigError(f"--rows is {total}: {number} parties need a row each at least")
    _by_rows(agreed, total, number, table, link, workers, json)


def _by_rows(
    agreed: "Terms", rows: int, parties: int, table: Any, link: "Link | None", workers: int | None, json: bool
) -> None:
    """The estimate where parties hold different rows."""
    from fedboost.cli.output import show
    from fedboost.people import as_json, training
    from fedboost.people import estimates as links
    from fedboost.runtime.local import estimate as calibration
    from fedboost.runtime.local.estimate import layouts, of_workers

    if workers is not None and agreed.histograms.vote_top_k:
        raise ConfigError("--workers: with vote_top_k they send other bytes, which are not estimated")
    costs = calibration.costs_of(agreed, rows, parties, table)
    estimates = calibration.estimates(costs, agreed, parties)
    rounds, lines = agreed.trees.rounds, as_json.estimates(estimates, rows, parties)
    blocks = training.estimates(estimates, _missing(estimates, parties), rounds, rows, parties)
    if link is not None:
        facts = layouts(agreed, rows, parties, table, estimates, link)
        lines = itertools.chain(lines, as_json.layouts(facts, rows, parties))
        blocks = itertools.chain(blocks, links.layouts(facts, rounds))
    if workers is not None:
        inside = of_workers(costs, agreed, rows, parties, workers)
        lines = itertools.chain(lines, as_json.workers_estimate(inside))
        blocks = itertools.chain(blocks, training.workers_estimate(inside))
    show(json, lines, blocks)


def _by_columns(
    agreed: "Terms",
    source: "str | Database | None",
    read: "Reading",
    rows: int | None,
    refused: dict[str, float | None],
    json: bool,
) -> None:
    """The estimate where parties hold different columns. refused: options that others have."""
    from fedboost.cli.output import show
    from fedboost.people import as_json
    from fedboost.people import estimates as columns_estimate
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.local import estimate as estimate_columns

    for option, value in refused.items():
        if value is not None:
            raise ConfigError(
                f"{option}: it is for parties that have all columns, these terms hold them apart"
            )
    table = None if source is None else read_table(source, None, read.options)
    total = rows or (0 if table is None else table.num_rows)
    if not total:
        raise ConfigError(
            "give --rows, the rows that the parties have in common, or a table of all columns by --data"
        )
    facts, missing = estimate_columns.estimate_columns(agreed, total, table)
    lines = as_json.columns_estimates(facts, total)
    matches, rounds = agreed.vertical.aligns, agreed.trees.rounds
    show(json, lines, columns_estimate.estimates(facts, missing, rounds, total, matches))


def _of_features(terms: "Terms", features: int) -> "Terms":
    """The terms with so many numeric features in place of their columns."""
    columns = {"label": "a label that is no feature", "numeric": [f"f{number}" for number in range(features)]}
    return type(terms).read({"columns": columns, **{name: terms.flat[name] for name in KEPT}})


def _missing(estimates: "list[EstimateFacts]", parties: int) -> dict[str, str]:
    """The protections without an estimate, each with the reason."""
    from fedboost.privacy.protections import PROTECTIONS

    known = [facts.protection for facts in estimates]
    return {
        name: f'not installed here: pip install "fedboost[{name}]"'
        if row.max_parties is None or parties <= row.max_parties
        else f"takes {row.max_parties} parties at most"
        for name, row in PROTECTIONS.items()
        if name not in known
    }
