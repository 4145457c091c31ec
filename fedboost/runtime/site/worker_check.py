"""A look at a site's rows that are on workers, for its own people: the columns, and whether rows fit terms.

Promises: no row is read in this process; what workers read, they drop again.
Refuses: what `WorkerRows` refuses, and terms that rows on workers cannot follow.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fedboost.errors import Refused
from fedboost.people.oddities import CheckFacts, Oddity
from fedboost.people.text import shorten
from fedboost.runtime.data.check import of_ids
from fedboost.runtime.data.fits import absent, unfit
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.table import dense_of
from fedboost.runtime.data.values import column_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.names import SiteTable
from fedboost.runtime.site.worker_rows import WorkerRows
from fedboost.runtime.telemetry import logger
from fedboost.runtime.workers.refusals import check_under_workers
from fedboost.runtime.workers.sharing import undeclared_of
from fedboost.terms.terms import Terms

COLUMNS_ALONE = "looked at the columns alone; with --terms they read the rows, too, unless a column is absent"
ROWS_TOO = "read all rows, and held them against the terms; what else may be odd in them was not looked for"


@contextmanager
def workers_of(site: PartyConfig) -> Iterator[tuple[WorkerRows, SiteTable]]:
    """The rows of a site's file, and the table without them, until the block is left. ConfigError."""
    rows = WorkerRows(site, logger("check", log_level="warning"))
    try:
        assert rows.table is not None
        yield rows, rows.table
    finally:
        rows.close()


def check_workers(
    site: PartyConfig, terms: Terms | None, label: str | None, exclude: Sequence[str]
) -> CheckFacts:
    """The facts about the rows of a site: of columns, and with terms of rows. ConfigError, Refused."""
    if terms is not None:
        check_under_workers(terms, site.party)
    with workers_of(site) as (rows, table):
        head = dense_of(table.under(None if terms is None else terms.columns.row_id))
        for name in (*exclude, *([] if label is None else [label])):
            column_of(head, name)
        facts = CheckFacts(shown(site.data), 0, rows.rows, len(head.column_names), "", [], COLUMNS_ALONE)
        if terms is None:
            return facts
        odd = _of_terms(rows, table, terms)
        odd = [replace(oddity, column=table.both(oddity.column)) for oddity in odd]
        if any(oddity.kind == "absent" for oddity in odd):
            return replace(facts, oddities=odd)
        return replace(facts, rows=rows.rows, oddities=odd, workers=ROWS_TOO)


def _of_terms(rows: WorkerRows, table: SiteTable, terms: Terms) -> list[Oddity]:
    """What of the rows does not fit the terms."""
    schema = terms.columns
    head = dense_of(table.under(schema.row_id))
    named = (*schema.others, *schema.features)
    there = {*head.column_names}
    others = [name for name in head.column_names if name not in {*named}]
    if odd := [absent(name, others) for name in named if name not in there]:
        return odd
    odd = of_ids(rows.rows, terms)
    try:
        held = rows.looked(terms)
    except Refused as error:
        return [*odd, unfit(error, named, schema.label)]
    for column, category, count in undeclared_of(held):
        odd.append(Oddity("undeclared", column, count, rows.rows, (shorten(repr(category)),)))
    return odd
