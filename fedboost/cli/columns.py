"""`fedboost columns`: the columns that a site offers, for an analyst to draft terms with.

Promises: two files: the offer, which goes to the analyst, and the site's names for its columns, which their
owner alone may read; under an alias the offer has no name and no level of the table.
Refuses: options that exclude or need each other, tables without a usable column, and without a row id columns
that look like one (ConfigError).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import MIN_ROWS_PER_LEVEL, Data, Force, MinRowsPerLevel, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from fedboost.people.text import Block
    from fedboost.runtime.data.database import Reading
    from fedboost.runtime.data.draft import DraftedOffer

EPILOG = "Example: fedboost columns customers.parquet --row-id customer_no --alias telco"
OWNER_ONLY = 0o600

Alias = Annotated[
    str | None,
    typer.Option(
        help="Offer columns as ALIAS.1, ALIAS.2, ... and levels as 1, 2, ...; without it by their own names.",
        show_default=False,
    ),
]


@reads_a_table
def columns(
    data: Data,
    read: "Reading",
    row_id: Annotated[
        str | None,
        typer.Option(help="The column of row identifiers, which is not offered.", show_default=False),
    ] = None,
    alias: Alias = None,
    party: Annotated[
        str | None, typer.Option(help="This party's name in terms.", show_default="the alias")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="A column that is not offered (may be repeated).", show_default=False),
    ] = None,
    min_rows_per_level: MinRowsPerLevel = MIN_ROWS_PER_LEVEL,
    out: Annotated[
        Path | None, typer.Option(help="The offer, for the analyst.", show_default="PARTY.offer.toml")
    ] = None,
    names_out: Annotated[
        Path | None,
        typer.Option(help="The names, which stay at this site.", show_default="PARTY.names.toml"),
    ] = None,
    force: Force = False,
) -> None:
    """Offer this site's columns to an analyst, who drafts terms with them. Terms then reach these columns and
    levels alone, by the names of the offer."""
    from fedboost.cli.output import print_text, unless_nobody_reads
    from fedboost.runtime.data.draft import draft_offer
    from fedboost.runtime.data.locations import local_files, shown
    from fedboost.runtime.data.table import dense_of, read_table
    from fedboost.runtime.files import folder_name, write_atomically
    from fedboost.runtime.site.rows import Names

    holder = party or alias
    if not holder:
        raise ConfigError("whose columns are these? Name the party, --party NAME, or its alias, --alias NAME")
    out = out or Path(f"{folder_name(holder)}.offer.toml")
    names_out = names_out or Path(f"{folder_name(holder)}.names.toml")
    source = read.source(data)
    _check_files(out, names_out, local_files(source), force)
    table = read_table(source, None, read.options)
    aside = [*(exclude or []), *([] if row_id is None else [row_id])]
    try:
        drafted = draft_offer(table, holder, alias, aside, min_rows_per_level)
    except ConfigError as error:
        raise ConfigError(f"{shown(source)}: {error.public}", error.detail) from None
    _check_no_ids(dense_of(table), row_id, aside, shown(source))
    _notice_odd(dense_of(table), drafted, aside, row_id)
    names = Names(
        row_id=row_id,
        names={column.name: column.own for column in drafted.columns},
        levels={column.name: column.levels for column in drafted.columns if column.levels},
    )
    write_atomically(names_out, names.to_toml(names_out.name).encode(), OWNER_ONLY)
    write_atomically(out, drafted.offer.to_toml().encode())
    with unless_nobody_reads():
        print_text(_text(drafted, min_rows_per_level, out, names_out))


def _check_files(out: Path, names_out: Path, inputs: tuple[Path, ...], force: bool) -> None:
    """ConfigError where one of the two files could not be written."""
    from fedboost.runtime.files import check_writable

    if out.absolute() == names_out.absolute():
        raise ConfigError(f"--out and --names-out: {out} cannot be both, the names stay at this site")
    for path in (out, names_out):
        check_writable(path, *inputs, force=force)


def _check_no_ids(table: "pa.Table", row_id: str | None, aside: list[str], source: str) -> None:
    """ConfigError, where no row id is named, for a column of text or whole numbers with another value in
    every row: it may well be the row ids, which are no feature."""
    from pyarrow import types

    from fedboost.runtime.data.oddities import MIN_ROWS
    from fedboost.runtime.data.values import is_text, texts

    for name in table.column_names if row_id is None else ():
        column = table.column(name)
        takes = types.is_integer(column.type) or is_text(column.type)
        if name in aside or not takes or column.null_count or table.num_rows < MIN_ROWS:
            continue
        codes, distinct = texts(column, name)
        if len(distinct) == table.num_rows and (codes >= 0).all():
            raise ConfigError(
                f"{source}: column {name!r} has another value in every row: is it the row id? Say --row-id "
                f"{name}, or --exclude {name}"
            )


def _notice_odd(table: "pa.Table", drafted: "DraftedOffer", aside: list[str], row_id: str | None) -> None:
    """Print what is odd in a table, and why columns are not offered."""
    from fedboost.cli.output import notice
    from fedboost.people.oddities import lines, worth_a_line
    from fedboost.runtime.data.check import of_offer

    for line in lines(filter(worth_a_line, of_offer(table, drafted.left_out, aside))):
        notice(line)
    if row_id is not None:
        _notice_ids(table, row_id)


def _notice_ids(table: "pa.Table", name: str) -> None:
    """Print a line if rows cannot be matched by their ids: rows without one, ids of several rows."""
    import numpy as np

    from fedboost.cli.output import notice
    from fedboost.people.text import counted, delimited
    from fedboost.runtime.data.values import column_of, texts

    codes, distinct = texts(column_of(table, name), name)
    missing = int((codes < 0).sum())
    several = int((np.bincount(codes[codes >= 0], minlength=len(distinct)) > 1).sum())
    faults = [f"{counted(missing, 'row has', 'rows have')} no id"] * bool(missing)
    faults += [f"{counted(several, 'id is', 'ids are')} in more than one row"] * bool(several)
    if faults:
        notice(f"{delimited(name)}: {', and '.join(faults)}; rows are matched by ids, each in one row")


def _text(drafted: "DraftedOffer", min_rows: int, out: Path, names_out: Path) -> "Iterator[Block]":
    """Yield the offer beside what it is of here, and where the files go."""
    from fedboost.people.text import cell, delimited, table
    from fedboost.runtime.config import to_toml

    rows = table("in terms", "here", "kind", "levels", numbers=())
    for column in drafted.columns:
        kind, levels = "numeric", ""
        if column.levels is not None:
            few = (
                f", and {column.few} of fewer than {min_rows} rows that are not offered" if column.few else ""
            )
            kind, levels = "categorical", f"{len(column.levels)}{few}"
        rows.add_row(cell(delimited(column.name)), cell(delimited(column.own)), kind, levels)
    yield rows
    yield ""
    yield f"{out}: the offer, which goes to the analyst"
    yield f"{names_out}: what the names stand for, which stays here; in this site's file:"
    yield f"names = {to_toml(str(names_out))}"
