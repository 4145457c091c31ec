"""`fedboost check`: what is odd in a table, before a training stumbles over it; or, with an aggregator, which
sites would take part under some terms.

Promises: nothing is written; of a table nothing leaves the machine: the text names columns and values, and is
for the site's own eyes.
Refuses: a table and a site's file at once, or neither (ConfigError).
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.common import InsecureLoopback, Json, reads_a_table
from fedboost.cli.output import notice, show, unless_nobody_reads
from fedboost.errors import ConfigError
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import check_address
from fedboost.runtime.data import check as checked
from fedboost.runtime.data.database import Database, Reading
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.table import dense_of, read_table
from fedboost.runtime.data.values import column_of
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.site.rows import Names, SiteTable, site_rows
from fedboost.runtime.terms_file import read_terms
from fedboost.runtime.workers.holder import check_workers
from fedboost.terms.tasks import terms_to_describe
from fedboost.views import status as text
from fedboost.views.check import check as checked_table

if TYPE_CHECKING:
    from fedboost.results.check import Checked
    from fedboost.terms.terms import Terms


CHECK_EPILOG = (
    "Example: fedboost check north.csv --label diagnosis\n\n"
    "Example: fedboost check --config party.toml --terms terms.toml\n\n"
    "Example: fedboost check terms.toml --aggregator fed.example.org:7070 --keys keys/marie\n\n"
    "Example: fedboost check terms.toml --describe --aggregator fed.example.org:7070 --keys keys/marie"
)
ODD = REFUSED = 1
"""Exit codes where a training would be stopped or spoilt, and if a site would not, or cannot be asked."""


@reads_a_table
def check(
    read: "Reading",
    table: Annotated[
        str | None,
        typer.Argument(
            help="A table: a file, a folder or an address; with --aggregator, terms.", show_default=False
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)] = None,
    config: Annotated[
        Path | None, typer.Option(help="This site's file, which names its table.", show_default=False)
    ] = None,
    terms: Annotated[
        Path | None, typer.Option(help="Terms that the table must fit.", show_default=False)
    ] = None,
    party: Annotated[
        str | None,
        typer.Option(help="Whose table it is, where the terms hold columns apart.", show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that is no feature, such as the site's (may be repeated).", show_default=False
        ),
    ] = None,
    aggregator: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of the aggregator whose sites are asked.", show_default=False),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="Folder of the analyst's keys.", show_default=False)
    ] = None,
    insecure_loopback: InsecureLoopback = False,
    describe: Annotated[
        bool, typer.Option("--describe", help="With --aggregator: would they take part in a description?")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the aggregator to answer.", min=0)] = 60,
    json: Json = False,
) -> None:
    """Say what is odd in a table, and what to do about it; or whether all sites would take part under terms.
    Exit code 1 for an error or a warning, 0 if there are at most notes. With --aggregator: ask all sites at
    once whether they would take part, without a session; each says all its reasons. Exit code 1 unless all
    would."""
    if aggregator is not None:
        if (table is None) == (terms is None) or label or config or party or exclude or read != Reading():
            raise ConfigError(
                "--aggregator asks all sites about terms: fedboost check terms.toml --aggregator HOST:PORT"
            )
        asked = terms if table is None else Path(table)
        assert asked is not None
        check_address(aggregator, "--aggregator")
        session = terms_to_describe(read_terms(asked)) if describe else read_terms(asked)
        connection = connect(aggregator, keys, insecure_loopback)
        sites = connection.check(session, wait, lambda who: notice(text.waiting(who, {})))
        show(json, [site.summary for site in sites], text.check(sites))
        if not all(site.would for site in sites):
            raise typer.Exit(REFUSED)
        return
    if keys is not None or insecure_loopback or describe:
        raise ConfigError("--keys, --insecure-loopback, --describe are for --aggregator HOST:PORT: name it")
    exclude = exclude or []
    if table is None and config is None:
        raise ConfigError("nothing to check: give a table, or --config with the file of a site that names it")
    if table is not None and Path(table).suffix == ".toml":
        raise ConfigError(
            f"{table}: is no table; --terms {table} checks a table against terms, --aggregator HOST:PORT "
            f"asks the sites about them"
        )
    if table is not None and config is not None:
        raise ConfigError(
            f"{table} and --config {config}: the site's file names its table; give one of the two"
        )
    agreed = None if terms is None else read_terms(terms)
    if agreed is not None and (label is not None or exclude):
        raise ConfigError(f"--label and --exclude: {terms} names the columns already; take them away")
    apart = agreed is not None and bool(agreed.blocks)
    if party is not None and not apart:
        raise ConfigError(f"--party {party}: it is for terms with label_holder or blocks; take it away")
    site = None if config is None else read_party(config)
    holder = party or "" if site is None else site.party
    if agreed is not None and apart and agreed.blocks.of(holder) is None:
        known = ", ".join(agreed.parties)
        raise ConfigError(f"{terms} says which columns each party has: add --party NAME, one of {known}")
    if site is not None and site.workers is not None:
        site = site.model_copy(update={"read": site.read.model_copy(update=read.options.chosen)})
        result = check_workers(site, agreed, label, exclude)
    else:
        result = _checked(table, site, read, label, agreed, exclude, holder)
    with unless_nobody_reads():
        show(json, result.lines, checked_table(result))
    if result.is_serious:
        raise typer.Exit(ODD)


def _checked(
    table: str | None,
    site: "PartyConfig | None",
    read: "Reading",
    label: str | None,
    agreed: "Terms | None",
    exclude: list[str],
    party: str,
) -> "Checked":
    """What is odd in a table that this process reads: this one, or that of a site's file."""
    if site is None:
        assert table is not None
        source: Path | str | Database = read.source(table)
        site_table = SiteTable(read_table(source, None, read.options), Names())
    else:
        assert site.data is not None
        source = site.data
        site_table = site_rows(site, site.read.model_copy(update=read.options.chosen))
    rows = site_table.under(None if agreed is None else agreed.columns.row_id)
    for name in exclude:
        column_of(dense_of(rows), name)
    result = checked.check(shown(source), rows, label, agreed, exclude, party)
    both = [replace(oddity, column=site_table.both(oddity.column)) for oddity in result.oddities]
    return result.model_copy(update={"oddities": both})
