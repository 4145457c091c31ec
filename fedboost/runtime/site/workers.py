"""The rows of a site whose file names workers: they read and hold them, this process never does.

Promises: what a session and a check are told of the rows is what they would be told of a table on this
machine; before each session the files are looked at, and a session keeps the rows that it began with.
Refuses: a cluster that does not answer or has no workers, files that cannot be read (ConfigError when the
process starts, Refused later); what `SiteRows` refuses.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from fedboost.errors import ConfigError, Refused
from fedboost.holders.other_tasks import TableOf
from fedboost.protocol.contracts import Holder
from fedboost.results.check import Checked, Oddity
from fedboost.runtime.config import cores
from fedboost.runtime.data.check import absent, of_ids, unfit
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.table import dense_of
from fedboost.runtime.data.values import column_of
from fedboost.runtime.site.config import LOCAL, PartyConfig, WorkersConfig
from fedboost.runtime.site.rows import KeyOf, ModelOf, SiteRows, SiteTable, Stamp, named, names_of
from fedboost.runtime.telemetry import logger
from fedboost.runtime.workers import hold as link
from fedboost.runtime.workers.dask_engine import DaskEngine
from fedboost.runtime.workers.hold import (
    Engine,
    Heads,
    Held,
    Load,
    Running,
    Worker,
    WorkerLost,
    group_end_of,
    heads_of,
    schema_in,
    stamp_of,
)
from fedboost.runtime.workers.hold import hold as hold_rows
from fedboost.runtime.workers.holder import (
    Share,
    WorkersHolder,
    check_memory,
    check_together,
    check_under_workers,
    shares_of,
    undeclared_of,
)
from fedboost.terms.terms import Terms
from fedboost.views.words import shorten


def engine_of(config: WorkersConfig) -> Engine:
    """The cluster that a site's file names. ConfigError."""
    if config.dask != LOCAL:
        return DaskEngine.at(config.dask)
    threads = config.threads or 1
    return DaskEngine.local(config.count or max(cores() // threads, 1), threads)


def rows_of(config: PartyConfig, log: Any) -> SiteRows:
    """The rows that a site's file names. ConfigError."""
    return SiteRows(config, log) if config.workers is None else WorkerRows(config, log)


class WorkerRows(SiteRows):
    """The rows of a site's files, on workers. ConfigError."""

    def __init__(self, config: PartyConfig, log: Any) -> None:
        assert config.workers is not None
        self._engine = engine_of(config.workers)
        self._heads = Heads()
        self._holder: WorkersHolder | None = None
        self._files = str(config.data), config.read.chosen
        try:
            super().__init__(config, log)
        except BaseException:
            self._engine.close()
            raise

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._heads.rows

    def close(self) -> None:
        """Leave the cluster."""
        self.release()
        self._engine.close()

    def release(self) -> None:
        """Let the workers drop the rows of the last session."""
        if self._holder is not None:
            self._holder.close()

    def refresh(self) -> SiteTable | None:
        """The table without its rows, as its files are now. Refused if they cannot be read."""
        with self._at_hand():
            return super().refresh()

    @contextmanager
    def _at_hand(self) -> Iterator[None]:
        """Keep what is said of the cluster and its files at this site."""
        try:
            yield
        except ConfigError as error:
            raise Refused(
                f"party {self._party}: its rows cannot be read at the moment; its own log says why",
                str(error),
            ) from None

    def hold(
        self, terms: Terms, secret: bytes, key_of: KeyOf, model_of: ModelOf, table_of: TableOf
    ) -> Holder:
        """What holds the rows of a session, on the workers that there are now."""
        self.release()
        check_under_workers(terms, self._party)
        site = self.refresh()
        assert site is not None
        with self._at_hand(), self._counting_misfits(), self._explaining(site):
            shares = self._shares(terms)
            load = partial(self._load, terms.canonical(), True)
            self._holder = WorkersHolder(self._engine, shares, load, terms, self._log)
            check_together(terms, self._holder.held, self._party)
        self._warn(site, undeclared_of(self._holder.held))
        return self._holder

    def faults(self, terms: Terms) -> list[str]:
        """As of any table, and what rows on workers cannot follow."""
        try:
            check_under_workers(terms, self._party)
        except Refused as error:
            return [error.public, *super().faults(terms)]
        return super().faults(terms)

    def looked(self, terms: Terms) -> list[Held]:
        """What each worker says of its rows under these terms, which it reads and drops. Refused unless they
        fit; ConfigError where workers cannot read them."""
        loading = [self._load(terms.canonical(), False, *each) for each in self._shares(terms)]
        held: list[Held] = []
        for each in loading:
            try:
                held.append(each.result())
            except WorkerLost as error:
                raise self._lost(error) from None
        for told in held:
            link.raise_failed(told.fault)
        check_together(terms, held, self._party)
        return held

    def _lost(self, error: WorkerLost) -> ConfigError:
        return ConfigError(
            f"{self._engine.name}: a worker was lost while it read the rows; its own log says why, and too "
            f"little memory is a usual reason",
            str(error),
        )

    def _shares(self, terms: Terms) -> list[tuple[Worker, Share]]:
        """The rows of each worker. ConfigError where they do not fit in its memory."""
        workers = self._workers()
        edge = partial(self._group_end, workers[0], terms.columns.group) if terms.columns.group else int
        shares = shares_of(self.rows, workers, edge)
        check_memory(terms, shares)
        return shares

    def _group_end(self, worker: Worker, column: str, at: int) -> int:
        name = f"find where a group of {self._party} ends"
        column = names_of(self._config).names.get(column, column)
        return int(self._result(worker, name, group_end_of, *self._files, column, at))

    def _load(self, terms: str, keep: bool, worker: Worker, share: Share) -> Running:
        names = names_of(self._config)
        asked = Load(
            self._party,
            terms,
            share.ranges,
            worker.threads,
            worker.host,
            *self._files,
            {} if self._config.names is None else names.model_dump(),
            keep,
            tuple(self._heads.sizes),
        )
        name = f"{'load' if keep else 'check'} rows of {self._party}"
        return self._engine.run(worker, name, hold_rows, asked)

    def _workers(self) -> list[Worker]:
        """The workers of the cluster. ConfigError if there are none."""
        if not (workers := self._engine.workers()):
            raise ConfigError(f"{self._engine.name} has no workers: start some")
        return workers

    def _result(self, worker: Worker, name: str, function: Any, *arguments: Any) -> Any:
        """What a function returns on a worker. ConfigError if the worker is lost over it."""
        try:
            return self._engine.run(worker, name, function, *arguments).result()
        except WorkerLost as error:
            raise self._lost(error) from None

    def _read(self) -> SiteTable:
        """The table without its rows, under the names that the site gives its columns."""
        worker = self._workers()[0]
        heads = Heads(*self._result(worker, f"look at files of {self._party}", heads_of, *self._files))
        if heads.fault[0]:
            public, detail = heads.fault
            raise ConfigError(f"at worker {worker.address}, {public}", detail)
        if not heads.rows:
            raise ConfigError(f"{shown(self._config.data)}: the table has no rows")
        self._heads = heads
        table, names = schema_in(heads.columns), names_of(self._config)
        named_file = self._config.names
        return SiteTable(table, names) if named_file is None else named(table, names, str(named_file))

    def _stamp_now(self) -> Stamp:
        """What tells that files have changed, as a worker sees them."""
        worker = self._workers()[0]
        states = self._result(worker, f"look at files of {self._party}", stamp_of, self._files[0])
        return tuple(map(tuple, states))


# ---- A look at a site's rows that are on workers, for its own people ------------------------------------
# The columns and whether rows fit terms.
# Promises: no row is read in this process; what workers read, they drop again.
# Refuses: what `WorkerRows` refuses, and terms that rows on workers cannot follow.


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
) -> Checked:
    """What is odd in the rows of a site: of columns, and with terms of rows. ConfigError, Refused."""
    if terms is not None:
        check_under_workers(terms, site.party)
    with workers_of(site) as (rows, table):
        head = dense_of(table.under(None if terms is None else terms.columns.row_id))
        for name in (*exclude, *([] if label is None else [label])):
            column_of(head, name)
        sizes = rows.rows, 0, len(head.column_names)
        result = Checked.of(shown(site.data), *sizes, workers=COLUMNS_ALONE)
        if terms is None:
            return result
        odd = _of_terms(rows, table, terms)
        odd = [replace(oddity, column=table.both(oddity.column)) for oddity in odd]
        if any(oddity.kind == "absent" for oddity in odd):
            return result.model_copy(update={"oddities": odd})
        seen = {"rows_checked": rows.rows, "oddities": odd, "workers": ROWS_TOO}
        return result.model_copy(update=seen)


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
