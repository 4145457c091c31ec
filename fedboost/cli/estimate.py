"""`fedboost estimate`: the time and the bytes of a training, by protection."""

import itertools
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Json, TermsFile, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Reading
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
    json: Json = False,
) -> None:
    """Estimate the time and the bytes of a training under each protection, by trees that it grows on this
    machine for some seconds; with --rtt or --bandwidth also over links, with histograms of all features, with
    votes, and with all rows in one place."""
    from fedboost.cli.inputs import refuse_columns_apart
    from fedboost.cli.output import show
    from fedboost.people import as_json, training
    from fedboost.people import layouts as links
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.local import estimate as calibration
    from fedboost.runtime.local.layouts import Link, layouts
    from fedboost.runtime.terms_file import read_terms

    if features is not None and data is not None:
        raise ConfigError("give --features or --data, not both: the columns are those of the table")
    agreed = read_terms(terms)
    refuse_columns_apart(agreed, "estimate")
    if features is not None:
        agreed = _of_features(agreed, features)
    link, number = Link.of(rtt, bandwidth), parties or len(agreed.parties) or 3
    table = None if data is None else read_table(read.source(data), None, read.options)
    total = rows or (0 if table is None else table.num_rows)
    if not total:
        raise ConfigError("give --rows, the rows of all parties, or a table by --data")
    if total < number:
        raise ConfigError(f"--rows is {total}: {number} parties need a row each at least")
    estimates = calibration.estimate(agreed, total, number, table)
    rounds, lines = agreed.trees.rounds, as_json.estimates(estimates, total, number)
    missing = _missing([facts.protection for facts in estimates], number)
    blocks = training.estimates(estimates, missing, rounds, total, number)
    if link is not None:
        facts = layouts(agreed, total, number, table, estimates, link)
        lines = itertools.chain(lines, as_json.layouts(facts, total, number))
        blocks = itertools.chain(blocks, links.layouts(facts, rounds))
    show(json, lines, blocks)


def _of_features(terms: "Terms", features: int) -> "Terms":
    """The terms with so many numeric features in place of their columns."""
    columns = {"label": "a label that is no feature", "numeric": [f"f{number}" for number in range(features)]}
    return type(terms).read({"columns": columns, **{name: terms.flat[name] for name in KEPT}})


def _missing(known: list[str], parties: int) -> dict[str, str]:
    """The protections without an estimate, each with the reason."""
    from fedboost.privacy.protections import PROTECTIONS

    return {
        name: f'not installed here: pip install "fedboost[{name}]"'
        if row.max_parties is None or parties <= row.max_parties
        else f"takes {row.max_parties} parties at most"
        for name, row in PROTECTIONS.items()
        if name not in known
    }
