"""`fedboost check`: what is odd in a table, before a training stumbles over it.

Promises: nothing is written and nothing leaves the machine; the text names columns and values, and is for the
site's own eyes.
Refuses: a table and a site's file at once, or neither (ConfigError).
"""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Json
from fedboost.errors import ConfigError

EPILOG = (
    "Example: fedboost check north.csv --label diagnosis\n\n"
    "Example: fedboost check --config party.toml --terms terms.toml"
)
ODD = 1
"""Exit code where a training would be stopped or spoilt."""


def check(
    table: Annotated[
        Path | None, typer.Argument(help="A table: .csv, .tsv, .parquet or .libsvm.", show_default=False)
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)] = None,
    config: Annotated[
        Path | None, typer.Option(help="This site's file, which names its table.", show_default=False)
    ] = None,
    terms: Annotated[
        Path | None, typer.Option(help="Terms that the table must fit.", show_default=False)
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that is no feature, such as the site's (may be repeated).", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say what is odd in a table, and what to do about it. Exit code 1 for an error or a warning, 0 if there
    are at most notes."""
    from fedboost.cli.output import show, unless_nobody_reads
    from fedboost.people import oddities
    from fedboost.runtime.data import check as checked
    from fedboost.runtime.data.table import dense_of, read_table
    from fedboost.runtime.data.values import column_of
    from fedboost.runtime.site.config import read_party
    from fedboost.runtime.terms_file import read_terms

    if table is None and config is None:
        raise ConfigError("nothing to check: give a table, or --config with the file of a site that names it")
    if table is not None and config is not None:
        raise ConfigError(
            f"{table} and --config {config}: the site's file names its table; give one of the two"
        )
    _check_files(config, terms)
    agreed = None if terms is None else read_terms(terms)
    if agreed is not None and (label is not None or exclude):
        raise ConfigError(f"--label and --exclude: {terms} names the columns already; take them away")
    scratch = None
    if config is not None:
        site = read_party(config)
        table, scratch = site.data, site.scratch
    assert table is not None
    rows = read_table(table, scratch)
    for name in exclude or []:
        column_of(dense_of(rows), name)
    facts = checked.check(str(table), rows, label, agreed, exclude or [])
    with unless_nobody_reads():
        show(json, oddities.as_json(facts), oddities.check(facts))
    if facts.serious:
        raise typer.Exit(ODD)


def _check_files(config: Path | None, terms: Path | None) -> None:
    """ConfigError where terms stand in the place of a site's file, or a site's file in that of terms."""
    from fedboost.runtime.config import read_toml

    if config is not None and "columns" in read_toml(config):
        raise ConfigError(f"{config}: these are terms, and no site's file; give them as --terms")
    if terms is not None and "aggregator" in read_toml(terms):
        raise ConfigError(f"{terms}: this is a site's file, and no terms; give it as --config")
