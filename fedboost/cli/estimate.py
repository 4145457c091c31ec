"""`fedboost estimate`: the time and the bytes of a training, by protection."""

from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Json, TermsFile, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Reading

EPILOG = "Example: fedboost estimate terms.toml --rows 100000 --parties 5"


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
    json: Json = False,
) -> None:
    """Estimate the time and the bytes of a training under each protection, by trees that it grows on this
    machine for some seconds."""
    from fedboost.cli.output import show
    from fedboost.people import as_json, training
    from fedboost.privacy.protections import PROTECTIONS
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.local import estimate as calibration
    from fedboost.runtime.terms_file import read_terms
    from fedboost.terms.terms import Terms

    if features is not None and data is not None:
        raise ConfigError("give --features or --data, not both: the columns are those of the table")
    agreed = read_terms(terms)
    if features is not None:
        names = [f"f{number}" for number in range(features)]
        columns = {"label": "a label that is no feature", "numeric": names}
        own = {name: getattr(agreed, name) for name in ("rounds", "max_depth", "max_bin", "key_bits")}
        agreed = Terms.read({"columns": columns, **own})
    number = parties or len(agreed.parties) or 3
    table = None if data is None else read_table(read.source(data), None, read.options)
    total = rows or (0 if table is None else table.num_rows)
    if not total:
        raise ConfigError("give --rows, the rows of all parties, or a table by --data")
    if total < number:
        raise ConfigError(f"--rows is {total}: {number} parties need a row each at least")
    estimates = calibration.estimate(agreed, total, number, table)
    known = [facts.protection for facts in estimates]
    missing = {
        name: f'not installed here: pip install "fedboost[{name}]"'
        if row.max_parties is None or number <= row.max_parties
        else f"takes {row.max_parties} parties at most"
        for name, row in PROTECTIONS.items()
        if name not in known
    }
    show(
        json,
        as_json.estimates(estimates, total, number),
        training.estimates(estimates, missing, agreed.trees.rounds, total, number),
    )
