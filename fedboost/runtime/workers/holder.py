"""The holder of rows that are on workers, whose answer is the sum of theirs; and the rows of such a site.

Promises: the vector is the one that a holder of all rows would answer, however the rows are shared out; a
worker that is lost is replaced by others, which read its rows and go where the training stands, and nothing
but the delay is noticed outside. Votes are the site's, by the sum of its workers' histograms.
Refuses: to wait for workers longer than WORKERS_WITHIN (DurabilityError: a later process goes on); what a
worker refuses; files that have changed when rows have to be read again (Refused).
"""

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from fedboost.boosting.queries import OfTurn, Query
from fedboost.boosting.queries.trees import VoteQuery
from fedboost.boosting.state import NOTHING_YET, BoostingState
from fedboost.errors import ConfigError, DurabilityError, FedboostError, Refused, SchemaMismatch, quoted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.tree import Tree
from fedboost.holders.other_tasks import TableOf
from fedboost.holders.shard import add_hashes
from fedboost.holders.whole_rows import votes
from fedboost.protocol.contracts import Answering, Holder
from fedboost.protocol.site import KEY_BYTES
from fedboost.results.check import Checked, Oddity
from fedboost.runtime.config import cores
from fedboost.runtime.data.check import absent, of_ids, unfit
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import check_labels
from fedboost.runtime.data.table import dense_of
from fedboost.runtime.data.values import column_of
from fedboost.runtime.site.config import LOCAL, PartyConfig, WorkersConfig
from fedboost.runtime.site.rows import KeyOf, ModelOf, SiteRows, SiteTable, Stamp, named, names_of
from fedboost.runtime.telemetry import logger
from fedboost.runtime.workers import hold
from fedboost.runtime.workers.dask_engine import DaskEngine, RunningAtDask
from fedboost.runtime.workers.hold import (
    Heads,
    Held,
    Link,
    Load,
    Range,
    Worker,
    WorkerLost,
    group_end_of,
    heads_of,
    stamp_of,
)
from fedboost.terms.terms import Terms
from fedboost.views.words import shorten

WORKERS_WITHIN = 60.0
"""Seconds that a site waits for a worker when all are lost."""
MAX_LOSSES = 50
"""Workers that may be lost over one question: more are lost by what they are asked to do."""
LISTED_SECONDS = 5.0
"""Seconds that a scheduler may list a worker which is gone."""
LOOKS_EVERY = 0.2
"""Seconds between two looks at whether one is back."""


@dataclass(frozen=True)
class Share:
    """Rows of the site that one worker holds. parts: the numbers of partitions, of rows that come in some."""

    ranges: tuple[Range, ...]
    parts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(last - first for first, last in self.ranges)


Loading = Callable[[Worker, Share], RunningAtDask]
"""Begins to load a share on a worker; the result is `Held`."""


@dataclass(frozen=True)
class Placed:
    """A share, the worker that holds it, and the connection to it."""

    share: Share
    worker: Worker
    held: Held
    link: Link


class WorkersHolder:
    """The rows of a party in one session, on the workers of an engine."""

    def __init__(
        self,
        engine: DaskEngine,
        shares: Sequence[tuple[Worker, Share]],
        load: Loading,
        terms: Terms,
        log: Any,
    ) -> None:
        self.state = NOTHING_YET
        self._engine, self._load, self._terms, self._log = engine, load, terms, log
        self._lost: dict[str, float] = {}
        """The moment until which a worker that was lost is not looked for."""
        self._key = b""
        self._hashes: dict[tuple[Range, ...], bytes] = {}
        """The hash under the key of each share, once they were asked for."""
        self._losses = 0
        """Workers that were lost over the question under way."""
        self._placed: list[Placed] = []
        self.close = weakref.finalize(self, _close, self._placed)
        """Lets the workers drop the rows."""
        self._placed += self._place(shares)
        self.rows = sum(placed.held.rows for placed in self._placed)
        """Number of rows."""

    @property
    def held(self) -> list[Held]:
        """What each worker said that it holds."""
        return [placed.held for placed in self._placed]

    @property
    def table(self) -> None:
        """None: no later session needs to know it."""

    def rows_hashed(self, key: bytes) -> bytes:
        """Keyed hash of all rows: that of the whole table."""
        hashes = [answer[1:] for answer in self._ask(hold.HASH + key)]
        self._key = key
        self._hashes = dict(zip((placed.share.ranges for placed in self._placed), hashes, strict=True))
        return add_hashes(hashes)

    def go_to(self, state: BoostingState) -> None:
        """Move to this state, whatever was answered before."""
        self._ask(hold.going_to(state))
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """None: all parties are told the same."""
        return ()

    def answering(self, query: OfTurn) -> Answering:
        """The sum of the workers' integers: int64 [query.cells]."""
        yield from ()
        state = self.state
        for part in cast(tuple[Query, ...], query.parts):
            part.check_order(self._terms, state)
            state = state.after(part)
        answer = self._votes(query) if isinstance(query, VoteQuery) else self._sum(query)
        self.state = state
        return answer

    def _sum(self, query: OfTurn) -> Int64:
        return hold.total(self._ask(hold.asking(hold.ANSWER, query)), query)

    def _votes(self, query: VoteQuery) -> Int64:
        """The site's own votes, by the sum of its workers' histograms."""
        assert self.state.start is not None
        answers = self._ask(hold.asking(hold.HISTOGRAMS, query))
        own = np.sum([np.frombuffer(answer, np.int64, offset=1) for answer in answers], axis=0)
        layout = Layout.of(self.state.start.cut_points)
        return votes(query, self._terms, self.rows, layout, own.reshape(len(query.nodes), layout.cells))

    def _ask(self, request: bytes) -> list[bytes]:
        """The answers of all holders to a request, those of lost ones by who takes their place."""
        waiting, answers = list(self._placed), []
        self._losses = 0
        while waiting:
            told, lost = self._exchange(waiting, request)
            answers += told
            waiting = self._replace(lost) if lost else []
        return answers

    def _exchange(self, placed: Sequence[Placed], request: bytes) -> tuple[list[bytes], list[Placed]]:
        """The answers of these holders to a request, and those that were lost over it."""
        answers, lost, fault = [], list[Placed](), None
        for each in placed:
            each.link.send(request)
        for each in placed:
            try:
                answers.append(each.link.receive())
            except FedboostError as error:  # raised once all have answered, so that no answer is left over
                fault = fault or error
            except WorkerLost as error:
                each.link.close()
                self._note_lost(each.worker, error)
                lost.append(each)
        if fault is not None:
            raise fault
        return answers, lost

    def _note_lost(self, worker: Worker, error: WorkerLost) -> None:
        self._losses += 1
        if self._losses > MAX_LOSSES:
            raise DurabilityError(
                f"{self._engine.name} lost a worker {self._losses} times over one question: their logs say "
                f"why, and too little memory is a usual reason; mend it, and then start this again"
            )
        self._lost[worker.address] = time.monotonic() + LISTED_SECONDS
        self._log.warning("a worker is lost", worker=worker.address, reason=quoted(str(error)))

    def _replace(self, lost: Sequence[Placed]) -> list[Placed]:
        """New holders of what lost ones had, where the training stands."""
        self._placed[:] = [placed for placed in self._placed if placed not in lost]
        new: list[Placed] = []
        while lost:
            try:
                placed = self._place(self._shared_out([each.share for each in lost]))
            except ConfigError as error:  # speaks of paths and addresses of the site
                why = "its rows cannot be read again for a worker that was lost; its own log says why"
                raise Refused(why, str(error)) from None
            lost = self._catch_up(placed)
            new += [each for each in placed if each not in lost]
            self._placed += [each for each in placed if each not in lost]
        self._log.info("rows of lost workers are held again", workers=[each.worker.address for each in new])
        return new

    def _catch_up(self, placed: Sequence[Placed]) -> list[Placed]:
        """Have new holders go where the training stands; those that were lost over it. Refused if their rows
        have become others."""
        lost: list[Placed] = []
        if self._key:
            hashes, lost = self._exchange(placed, hold.HASH + self._key)
            kept = [each for each in placed if each not in lost]
            for each, told in zip(kept, hashes, strict=True):
                if told[1:] != self._hashes[each.share.ranges]:
                    raise Refused(
                        "its rows are not those that the session began with",
                        "files were changed while it ran, and were read again for a worker that was lost",
                    )
        if self.state is not NOTHING_YET:
            kept = [each for each in placed if each not in lost]
            lost += self._exchange(kept, hold.going_to(self.state))[1]
        return lost

    def _shared_out(self, shares: Sequence[Share]) -> list[tuple[Worker, Share]]:
        """A worker for each of these shares: the one with the fewest rows a thread. Waits for one if there is
        none. DurabilityError if none comes."""
        until, said = time.monotonic() + WORKERS_WITHIN, False
        while not (workers := self._workers()):
            if not said:
                self._log.error("all workers are lost: waiting for one", cluster=self._engine.name)
            said = True
            if time.monotonic() > until:
                raise DurabilityError(
                    f"{self._engine.name} has had no worker for {WORKERS_WITHIN:.0f} s: start some, and then "
                    f"this again"
                )
            time.sleep(LOOKS_EVERY)
        rows = {worker.address: 0 for worker in workers}
        for placed in self._placed:
            if placed.worker.address in rows:
                rows[placed.worker.address] += placed.share.rows
        chosen = []
        for share in shares:
            worker = min(workers, key=lambda one: rows[one.address] / one.threads)
            rows[worker.address] += share.rows
            chosen.append((worker, share))
        return chosen

    def _workers(self) -> list[Worker]:
        """The workers that were not lost just now; none of a cluster that does not answer."""
        now = time.monotonic()
        try:
            known = self._engine.workers()
        except ConfigError:  # the cluster is away, and may come back
            return []
        return [one for one in known if self._lost.get(one.address, 0.0) < now]

    def _place(self, shares: Sequence[tuple[Worker, Share]]) -> list[Placed]:
        """Load these shares, all at once; what a worker that is lost meanwhile was to hold, on others. What
        does not fit is raised."""
        placed: list[Placed] = []
        while shares:
            running, left, fault = [], [], b""
            for worker, share in shares:
                try:
                    running.append((worker, share, self._load(worker, share)))
                except WorkerLost as error:
                    self._note_lost(worker, error)
                    left.append(share)
            for worker, share, each in running:
                try:
                    held: Held = each.result()
                except WorkerLost as error:
                    self._note_lost(worker, error)
                    left.append(share)
                    continue
                fault = fault or held.fault
                if held.door is not None:
                    placed.append(Placed(share, worker, held, Link(held.door)))
            if fault:
                for kept in placed:
                    kept.link.close()
                hold.raise_failed(fault)
            shares = self._shared_out(left) if left else []
        return placed


def _close(placed: list[Placed]) -> None:
    for each in placed:
        each.link.close()
    placed.clear()


# ---- How the rows of a site are shared out among its workers, and what is checked over all of them ------
# Promises: contiguous rows, as many as a worker has threads; groups of rows that are ranked stay whole where
# rows of a group stand together. What one worker cannot see is checked here: a label of more than two values,
# a group whose rows are at two workers.


BYTES_A_VALUE, BYTES_A_ROW, BYTES_BESIDE = 6.6, 48, 280 << 20
"""Bytes that a worker needs while it loads Parquet files, at most: measured with 50 columns, as below."""
COLLECTED_A_VALUE = 20.0
"""The same of partitions of a DataFrame: theirs, and what is made of them."""
GROWING_A_VALUE, GROWING_A_ROW, GROWING_BESIDE = 2.3, 32, 305 << 20
"""Bytes that it needs while trees grow; most beside is interpreter, libraries and compiled kernels."""
USABLE = 0.8
"""The part of a worker's memory above which Dask pauses it."""


def shares_of(
    rows: int, workers: Sequence[Worker], edge: Callable[[int], int] = lambda at: at
) -> list[tuple[Worker, Share]]:
    """A share for each worker, by its threads; none for workers without rows. edge: the first row from there
    on at which rows may be cut."""
    threads = np.cumsum([0, *(worker.threads for worker in workers)])
    cuts = [int(at) for at in rows * threads // threads[-1]]
    cuts = [0, *(edge(at) if 0 < at < rows else at for at in cuts[1:-1]), rows]
    pairs = zip(workers, pairwise(np.maximum.accumulate(cuts).tolist()), strict=True)
    return [(worker, Share((Range(first, last),))) for worker, (first, last) in pairs if first < last]


def loading_bytes(rows: int, features: int, a_value: float = BYTES_A_VALUE) -> int:
    """Bytes of memory that a worker needs while it loads so many rows."""
    return int(rows * (a_value * features + BYTES_A_ROW)) + BYTES_BESIDE


def growing_bytes(rows: int, features: int) -> int:
    """Bytes of memory that it needs while trees grow over them."""
    return int(rows * (GROWING_A_VALUE * features + GROWING_A_ROW)) + GROWING_BESIDE


def check_memory(
    terms: Terms, shares: Sequence[tuple[Worker, Share]], a_value: float = BYTES_A_VALUE
) -> None:
    """Raise ConfigError if a worker has less memory than its share takes. a_value: bytes a value."""
    for worker, share in shares:
        features = len(terms.columns.features)
        needed = loading_bytes(share.rows, features, a_value)
        if 0 < worker.memory * USABLE < needed:
            raise ConfigError(
                "its workers have too little memory for these rows",
                f"{share.rows:,} rows of {features} features take {needed / 2**30:.1f} GiB at worker "
                f"{worker.address}, which may use {worker.memory * USABLE / 2**30:.1f}: add workers, or give "
                f"them more memory",
            )


def check_together(terms: Terms, held: Sequence[Held], party: str) -> None:
    """Raise SchemaMismatch for what the rows of all workers together cannot be."""
    refusal = f"party {party}: its rows do not fit the terms"
    labels = dict.fromkeys(label for each in held for label in each.labels)
    try:
        check_labels(terms.columns.label, tuple(labels))
    except ConfigError as error:
        raise SchemaMismatch(refusal, str(error)) from None
    groups = [np.frombuffer(each.groups, np.uint64) for each in held]
    if groups and np.unique(np.concatenate(groups)).size < sum(each.size for each in groups):
        raise SchemaMismatch(
            refusal,
            f"rows of one {terms.columns.group!r} are at two workers: sort the rows by it, and write each "
            f"group into one file",
        )


def undeclared_of(held: Sequence[Held]) -> Iterator[tuple[str, str, int]]:
    """Each column with categories that the terms do not declare: its name, one of them, the rows."""
    rows: Counter[str] = Counter()
    example: dict[str, str] = {}
    for each in held:
        for column, category, count in each.undeclared:
            example.setdefault(column, category)
            rows[column] += count
    for column, category in example.items():
        yield column, category, rows[column]


# ---- Sessions that a site whose rows are on workers takes no part in, with the remedy -------------------


def check_under_workers(terms: Terms, party: str) -> None:
    """Raise Refused for terms that rows on workers cannot follow."""
    if terms.blocks:
        raise Refused(
            f"party {party}: its rows are on workers, and parties with different columns hold theirs on one "
            f"machine: take [workers] away there"
        )


# ---- Collections of Dask as the rows of a site: each worker holds the partitions that it has ------------
# Promises: rows come in the order of the partitions; partitions are computed once, and stay where they are.


def is_collection(data: object) -> bool:
    """Tell if this is a collection of Dask, which need not be installed."""
    return type(data).__module__.split(".")[0] in ("dask", "dask_expr") and hasattr(data, "to_delayed")


class CollectionRows:
    """The rows of a DataFrame of Dask, for a party: called, it places them on the workers that have them.

    Partitions are computed again for each session, and when a worker is lost, unless the user persists them:
    in between workers have only what is made of them."""

    def __init__(self, data: Any, party: str, threads: int) -> None:
        if not hasattr(data, "columns"):
            raise ConfigError(f"{type(data).__name__} of Dask has no columns: give a DataFrame")
        self._engine = DaskEngine.of(data)
        self._partitions = data.to_delayed()
        self._computed: dict[int, Any] = {}
        """Partitions that are at workers at the moment, by number."""
        self._party, self._threads = party, threads
        self._holder: WorkersHolder | None = None

    def __call__(self, terms: Terms, secret: bytes) -> Holder:
        """A `Site.holder`."""
        import structlog  # and with it rich: a site without workers needs neither here

        self.close()
        check_under_workers(terms, self._party)
        futures, rows = self._engine.computed(self._partitions)
        self._computed = dict(enumerate(futures))
        shares = _shares(self._engine.places(futures), rows)
        check_memory(terms, shares, COLLECTED_A_VALUE)
        load = partial(self._load, terms.canonical())
        self._holder = WorkersHolder(self._engine, shares, load, terms, structlog.get_logger())
        self._computed.clear()
        check_together(terms, self._holder.held, self._party)
        self._holder.rows_hashed(
            os.urandom(KEY_BYTES)
        )  # so that others are noticed, if any are computed anew
        return self._holder

    def close(self) -> None:
        """Let the workers drop what they made of the rows."""
        self._computed.clear()
        if self._holder is not None:
            self._holder.close()

    def _load(self, terms: str, worker: Worker, share: Share) -> RunningAtDask:
        parts = [
            self._computed.get(number) or self._engine.compute(self._partitions[number], worker)
            for number in share.parts
        ]
        asked = Load(self._party, terms, share.ranges, min(self._threads, worker.threads), worker.host)
        return self._engine.run(worker, f"load rows of {self._party}", hold.hold, asked, *parts)


def _shares(places: Sequence[Worker], rows: Sequence[int]) -> list[tuple[Worker, Share]]:
    """The partitions of each worker. ConfigError if there is no row."""
    by_worker: dict[Worker, list[tuple[Range, int]]] = {}
    begin = 0
    for number, (worker, count) in enumerate(zip(places, rows, strict=True)):
        if count:
            by_worker.setdefault(worker, []).append((Range(begin, begin + count), number))
        begin += count
    if not begin:
        raise ConfigError("the table has no rows")
    shares = []
    for worker, own in by_worker.items():
        ranges, numbers = zip(*own, strict=True)
        shares.append((worker, Share(ranges, numbers)))
    return shares


# ---- The rows of a site whose file names workers --------------------------------------------------------
# They read and hold the rows, the site's process never does. What a session and a check are told of the rows
# is what they would be told of a table on this machine; before each session the files are looked at, and a
# session keeps the rows that it began with.


def engine_of(config: WorkersConfig) -> DaskEngine:
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
        self._files = str(config.data), config.read
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
            hold.raise_failed(told.fault)
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

    def _load(self, terms: str, keep: bool, worker: Worker, share: Share) -> RunningAtDask:
        names = None if self._config.names is None else names_of(self._config)
        rows = self._party, terms, share.ranges, worker.threads, worker.host
        asked = Load(*rows, *self._files, names, keep, tuple(self._heads.sizes))
        name = f"{'load' if keep else 'check'} rows of {self._party}"
        return self._engine.run(worker, name, hold.hold, asked)

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
        table = pa.Table.from_batches([], pa.ipc.read_schema(pa.py_buffer(heads.columns)))
        names = names_of(self._config)
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
        names = (*terms.columns.others, *terms.columns.features)
        others = [name for name in head.column_names if name not in {*names}]
        odd = [absent(name, others) for name in names if name not in {*head.column_names}]
        seen: dict[str, Any] = {}
        if not odd:
            odd, seen = of_ids(rows.rows, terms), {"rows_checked": rows.rows, "workers": ROWS_TOO}
            try:
                for column, category, count in undeclared_of(rows.looked(terms)):
                    odd.append(Oddity("undeclared", column, count, rows.rows, (shorten(repr(category)),)))
            except Refused as error:
                odd.append(unfit(error, names, terms.columns.label))
        odd = [replace(oddity, column=table.both(oddity.column)) for oddity in odd]
        return result.model_copy(update={**seen, "oddities": odd})
