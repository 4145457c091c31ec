"""A holder that adds up the answers of a site's workers, and the rows of a site that has workers.

The answer equals that of a single holder of all rows, however they are distributed. Other workers replace a
lost one: they read its rows and catch up with training, so only a delay is visible outside the site. The site
votes once, based on the sum of its workers' histograms. After WORKERS_WITHIN seconds without a worker,
DurabilityError ends the process; a restarted process can continue the session. Raises Refused if files have
changed before rows are read again.
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
from fedboost.boosting.state import INITIAL_STATE, BoostingState
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

WORKERS_WITHIN = 60.0  # seconds that a site waits for a worker when all are lost
MAX_LOSSES = 50  # losses over one query, beyond which the query itself must be killing workers
LISTED_SECONDS = 5.0  # for which a scheduler may still list a lost worker
LOOKS_EVERY = 0.2  # seconds between two checks for a worker that is back


@dataclass(frozen=True)
class Share:
    """The site's rows on one worker. parts: partition numbers, if the rows are Dask partitions."""

    ranges: tuple[Range, ...]
    parts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return sum(last - first for first, last in self.ranges)


Loading = Callable[[Worker, Share], RunningAtDask]  # starts to load a share on a worker; the result is `Held`


@dataclass(frozen=True)
class Placed:
    """A share, its worker, the worker's report, and the connection to the holder on the worker."""

    share: Share
    worker: Worker
    held: Held
    link: Link


class WorkersHolder:
    """Holder of a party's rows in one session, on the workers of an engine. Implements `Holder` by adding up
    the workers' answers.

    Losing a worker leaves a share without a holder, a query without part of its answer, and an address that
    the scheduler may list for a while. `_ask` keeps the answers of the other workers, `_replace` loads the
    share on them, `_catch_up` moves the new holders to the state of training, and then the query is sent only
    to these.
    """

    earlier = None

    def __init__(
        self,
        engine: DaskEngine,
        shares: Sequence[tuple[Worker, Share]],
        load: Loading,
        terms: Terms,
        log: Any,
    ) -> None:
        self.state = INITIAL_STATE
        self._engine, self._load, self._terms, self._log = engine, load, terms, log
        self._lost: dict[str, float] = {}
        """Maps a lost worker's address to the time until which it is not used, even if it is listed."""
        self._key = b""
        self._hashes: dict[tuple[Range, ...], bytes] = {}
        """Maps the ranges of a share to the keyed hash of its rows, once computed."""
        self._losses = 0
        """Number of workers lost during the current query."""
        self._placed: list[Placed] = []
        self.close = weakref.finalize(self, _close, self._placed)
        """Makes the workers drop the rows."""
        self._placed += self._place(shares)
        self.rows = sum(placed.held.rows for placed in self._placed)
        """Total number of rows."""

    @property
    def held(self) -> list[Held]:
        """Each worker's report about its rows."""
        return [placed.held for placed in self._placed]

    @property
    def table(self) -> None:
        """None, because no later session needs facts about the table."""

    def rows_hashed(self, key: bytes) -> bytes:
        """Return the keyed hash of all rows. It equals the hash of the whole table."""
        hashes = [answer[1:] for answer in self._ask(hold.HASH + key)]
        self._key = key
        self._hashes = dict(zip((placed.share.ranges for placed in self._placed), hashes, strict=True))
        return add_hashes(hashes)

    def go_to(self, state: BoostingState) -> None:
        """Move to this state of training, from any other state."""
        self._ask(hold.going_to(state))
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """Return an empty tuple: all parties receive the same trees, so this one has none of its own."""
        return ()

    def answering(self, query: OfTurn) -> Answering:
        """Return the sum of the workers' answers, int64 [query.cells]."""
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
        """Return the site's votes, based on the sum of its workers' histograms."""
        assert self.state.start is not None
        answers = self._ask(hold.asking(hold.HISTOGRAMS, query))
        own = np.sum([np.frombuffer(answer, np.int64, offset=1) for answer in answers], axis=0)
        layout = Layout.of(self.state.start.cut_points)
        return votes(query, self._terms, self.rows, layout, own.reshape(len(query.nodes), layout.cells))

    def _ask(self, request: bytes) -> list[bytes]:
        """Return the answers of all holders to a request. Lost holders are replaced."""
        waiting, answers = list(self._placed), []
        self._losses = 0
        # `answers` has each row exactly once: a lost holder's answer is missing, and its replacements, which
        # hold exactly its rows, are queried next. Answers are summed, so their order does not matter.
        while waiting:
            told, lost = self._exchange(waiting, request)
            answers += told
            waiting = self._replace(lost) if lost else []
        return answers

    def _exchange(self, placed: Sequence[Placed], request: bytes) -> tuple[list[bytes], list[Placed]]:
        """Return the answers of these holders to a request, and the holders that were lost meanwhile."""
        answers, lost, fault = [], list[Placed](), None
        # All requests are sent before the first answer is read, so that workers compute at the same time.
        for each in placed:
            each.link.send(request)
        for each in placed:
            try:
                answers.append(each.link.receive())
            except FedboostError as error:  # raised after the last answer, else the next query would read it
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
                f"{self._engine.name} lost a worker {self._losses} times during one query: see the workers' "
                f"logs for the cause (often too little memory), fix it, and start this process again"
            )
        self._lost[worker.address] = time.monotonic() + LISTED_SECONDS
        self._log.warning("a worker was lost", worker=worker.address, reason=quoted(str(error)))

    def _replace(self, lost: Sequence[Placed]) -> list[Placed]:
        """Return new holders of the lost holders' shares, in the current state of training."""
        # Workers may be lost while they load or catch up, so this goes on until every share is placed. Shares
        # are kept whole: `_catch_up` compares their hashes with those of the first holders.
        self._placed[:] = [placed for placed in self._placed if placed not in lost]
        new: list[Placed] = []
        while lost:
            try:
                placed = self._place(self._shared_out([each.share for each in lost]))
            except ConfigError as error:  # its text has paths and addresses, which must stay at the site
                why = "its rows cannot be read again after a worker was lost; its own log says why"
                raise Refused("worker-rows-unreadable", why, str(error)) from None
            lost = self._catch_up(placed)
            new += [each for each in placed if each not in lost]
            self._placed += [each for each in placed if each not in lost]
        self._log.info("rows of lost workers are held again", workers=[each.worker.address for each in new])
        return new

    def _catch_up(self, placed: Sequence[Placed]) -> list[Placed]:
        """Move new holders to the current state of training, and return the holders lost meanwhile. Raises
        Refused if their rows differ from the original ones."""
        lost: list[Placed] = []
        if self._key:
            hashes, lost = self._exchange(placed, hold.HASH + self._key)
            kept = [each for each in placed if each not in lost]
            for each, told in zip(kept, hashes, strict=True):
                if told[1:] != self._hashes[each.share.ranges]:
                    raise Refused(
                        "worker-rows-changed",
                        "its rows differ from those that the session started with",
                        "files changed during the session, and were read again after a worker was lost",
                    )
        if self.state is not INITIAL_STATE:
            kept = [each for each in placed if each not in lost]
            lost += self._exchange(kept, hold.going_to(self.state))[1]
        return lost

    def _shared_out(self, shares: Sequence[Share]) -> list[tuple[Worker, Share]]:
        """Assign each share to the worker with the fewest rows per thread. If there are no workers, wait for
        one. Raises DurabilityError if none appears in time."""
        until, said = time.monotonic() + WORKERS_WITHIN, False
        while not (workers := self._workers()):
            if not said:
                self._log.error("all workers were lost: waiting for one", cluster=self._engine.name)
            said = True
            if time.monotonic() > until:
                raise DurabilityError(
                    f"{self._engine.name} has had no worker for {WORKERS_WITHIN:.0f} s; start at least one, "
                    f"and start this process again"
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
        """Return the workers that were not lost recently; none if the cluster does not answer."""
        now = time.monotonic()
        try:
            known = self._engine.workers()
        except ConfigError:  # the cluster is away, and may come back
            return []
        return [one for one in known if self._lost.get(one.address, 0.0) < now]

    def _place(self, shares: Sequence[tuple[Worker, Share]]) -> list[Placed]:
        """Load these shares in parallel, and return the holders. Shares of workers lost meanwhile go to other
        workers. Raises the first error in rows or files."""
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


# ---- Distributing a site's rows over its workers, and checks over all of them ---------------------------
# A share is contiguous rows, in proportion to the worker's threads. Groups are kept whole if their rows are
# adjacent. This section checks what no single worker can see: a label with more than two values, or a group
# whose rows are on two workers.


BYTES_A_VALUE, BYTES_A_ROW, BYTES_BESIDE = 6.6, 48, 280 << 20
"""Maximum bytes that a worker needs to load Parquet files: per value, per row, and a constant. These numbers
and the ones below were measured with 50 columns."""
COLLECTED_A_VALUE = 20.0  # bytes per value for partitions of a DataFrame, with what is made of them
GROWING_A_VALUE, GROWING_A_ROW, GROWING_BESIDE = 2.3, 32, 305 << 20
"""The same while trees grow. The constant is mostly the interpreter, libraries and compiled kernels."""
USABLE = 0.8  # share of a worker's memory above which Dask pauses it


def shares_of(
    rows: int, workers: Sequence[Worker], edge: Callable[[int], int] = lambda at: at
) -> list[tuple[Worker, Share]]:
    """Return each worker's share, in proportion to its threads; workers with an empty share are left out.
    edge: maps a row index to the next index at which the rows may be divided, e.g. between groups."""
    threads = np.cumsum([0, *(worker.threads for worker in workers)])
    cuts = [int(at) for at in rows * threads // threads[-1]]
    cuts = [0, *(edge(at) if 0 < at < rows else at for at in cuts[1:-1]), rows]
    pairs = zip(workers, pairwise(np.maximum.accumulate(cuts).tolist()), strict=True)
    return [(worker, Share((Range(first, last),))) for worker, (first, last) in pairs if first < last]


def loading_bytes(rows: int, features: int, a_value: float = BYTES_A_VALUE) -> int:
    """Return the bytes of memory that a worker needs to load this many rows. a_value: bytes per value."""
    return int(rows * (a_value * features + BYTES_A_ROW)) + BYTES_BESIDE


def growing_bytes(rows: int, features: int) -> int:
    """Return the bytes of memory that a worker needs to train on this many rows."""
    return int(rows * (GROWING_A_VALUE * features + GROWING_A_ROW)) + GROWING_BESIDE


def check_memory(
    terms: Terms, shares: Sequence[tuple[Worker, Share]], a_value: float = BYTES_A_VALUE
) -> None:
    """Raise ConfigError if a worker has too little memory to load its share. a_value: bytes per value."""
    for worker, share in shares:
        features = len(terms.columns.features)
        needed = loading_bytes(share.rows, features, a_value)
        if 0 < worker.memory * USABLE < needed:
            raise ConfigError(
                "worker-memory",
                "its workers have too little memory for these rows",
                f"{share.rows:,} rows of {features} features need {needed / 2**30:.1f} GiB on worker "
                f"{worker.address}, which may use {worker.memory * USABLE / 2**30:.1f} GiB; add workers or "
                f"RAM",
            )


def check_together(terms: Terms, held: Sequence[Held], party: str) -> None:
    """Raise SchemaMismatch if the workers' rows together do not fit the terms, although each worker's do."""
    refusal = f"party {party}: its rows do not fit the terms"
    labels = dict.fromkeys(label for each in held for label in each.labels)
    try:
        check_labels(terms.columns.label, tuple(labels))
    except ConfigError as error:
        raise SchemaMismatch("table-misfit", refusal, str(error)) from None
    groups = [np.frombuffer(each.groups, np.uint64) for each in held]
    if groups and np.unique(np.concatenate(groups)).size < sum(each.size for each in groups):
        raise SchemaMismatch(
            "table-misfit",
            refusal,
            f"rows of one {terms.columns.group!r} are on two workers; sort the rows by this column, and "
            f"put each group into one file",
        )


def undeclared_of(held: Sequence[Held]) -> Iterator[tuple[str, str, int]]:
    """Yield each column with undeclared categories: its name, one such category, and the number of rows."""
    rows: Counter[str] = Counter()
    example: dict[str, str] = {}
    for each in held:
        for column, category, count in each.undeclared:
            example.setdefault(column, category)
            rows[column] += count
    for column, category in example.items():
        yield column, category, rows[column]


# ---- Sessions that rows on workers cannot take part in --------------------------------------------------


def check_under_workers(terms: Terms, party: str) -> None:
    """Raise Refused for terms that a site with workers does not support."""
    if terms.blocks or terms.evaluation.level_names:
        raise Refused(
            "workers-columns-apart",
            f"party {party}: its rows are on workers, but if parties hold different columns, or name levels, "
            f"they must be on one machine; remove [workers] at that site",
        )


# ---- Dask collections as the rows of a site: each worker holds its own partitions -----------------------
# Rows are in the order of the partitions. Partitions are computed once, and are not moved.


class CollectionRows:
    """Rows of a party in a Dask DataFrame. Calling the object returns a session's holder of the rows, on the
    workers that have the rows.

    Unless the user persists the DataFrame, partitions are computed again for each session and after a loss:
    workers keep only what is derived from the partitions.
    """

    def __init__(self, data: Any, party: str, threads: int) -> None:
        if not hasattr(data, "columns"):
            raise ConfigError(
                "dask-not-frame", f"a Dask {type(data).__name__} has no columns; pass a DataFrame"
            )
        self._engine = DaskEngine.of(data)
        self._partitions = data.to_delayed()
        self._computed: dict[int, Any] = {}
        """Maps the number of a partition to its future, while the partition is on a worker."""
        self._party, self._threads = party, threads
        self._holder: WorkersHolder | None = None

    def __call__(self, terms: Terms, secret: bytes) -> Holder:
        """Return a session's holder of the rows, like `Site.holder`."""
        import structlog  # late, as it imports rich: a site without workers needs neither

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
        self._holder.rows_hashed(os.urandom(KEY_BYTES))  # to notice if recomputed partitions have other rows
        return self._holder

    def close(self) -> None:
        """Make the workers drop what they derived from the rows."""
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
    """Return each worker's partitions as a share. Raises ConfigError if there are no rows."""
    by_worker: dict[Worker, list[tuple[Range, int]]] = {}
    begin = 0
    for number, (worker, count) in enumerate(zip(places, rows, strict=True)):
        if count:
            by_worker.setdefault(worker, []).append((Range(begin, begin + count), number))
        begin += count
    if not begin:
        raise ConfigError("table-empty", "the table has no rows")
    shares = []
    for worker, own in by_worker.items():
        ranges, numbers = zip(*own, strict=True)
        shares.append((worker, Share(ranges, numbers)))
    return shares


# ---- The rows of a site whose file names workers --------------------------------------------------------
# Only workers read and hold rows, never the site's process. Sessions and checks get the same answers as for a
# table on this machine. Files are checked for changes before each session, which keeps the rows it began
# with.


def engine_of(config: WorkersConfig) -> DaskEngine:
    """Connect to the cluster named in a site's configuration, or start a local one. Raises ConfigError if the
    cluster does not answer."""
    if config.dask != LOCAL:
        return DaskEngine.at(config.dask)
    threads = config.threads or 1
    return DaskEngine.local(config.count or max(cores() // threads, 1), threads)


def rows_of(config: PartyConfig, log: Any) -> SiteRows:
    """Load the table named in a site's configuration. If workers are configured, only they hold the rows.
    Raises ConfigError if the table cannot be read."""
    return SiteRows(config, log) if config.workers is None else WorkerRows(config, log)


class WorkerRows(SiteRows):
    """Rows of a site with workers. Only the workers read and hold the rows, never the site's process."""

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
        return self._heads.rows

    def close(self) -> None:
        """Drop the rows, and disconnect from the cluster."""
        self.release()
        self._engine.close()

    def release(self) -> None:
        """Make the workers drop the rows of the last session."""
        if self._holder is not None:
            self._holder.close()

    def refresh(self) -> SiteTable | None:
        """Return the current table: columns without rows. Raises Refused if the files are unreadable."""
        with self._at_hand():
            return super().refresh()

    @contextmanager
    def _at_hand(self) -> Iterator[None]:
        """Context manager that converts a ConfigError, whose text must not leave this site, to Refused."""
        try:
            yield
        except ConfigError as error:
            raise Refused(
                "worker-rows-unreadable",
                f"party {self._party}: its rows cannot be read at the moment; its own log says why",
                str(error),
            ) from None

    def hold(
        self, terms: Terms, secret: bytes, key_of: KeyOf, model_of: ModelOf, table_of: TableOf
    ) -> Holder:
        """Return the holder of a session's rows on the current workers. Arguments: as for `SiteRows.hold`."""
        self.release()
        check_under_workers(terms, self._party)
        site = self.refresh()
        assert site is not None
        with self._at_hand(), self._explaining(site):
            shares = self._shares(terms)
            load = partial(self._load, terms.canonical(), True)
            self._holder = WorkersHolder(self._engine, shares, load, terms, self._log)
            check_together(terms, self._holder.held, self._party)
        self._warn(site, undeclared_of(self._holder.held))
        return self._holder

    def faults(self, terms: Terms) -> list[str]:
        """Return the reason why workers do not support the terms, if there is one, and the table's faults."""
        try:
            check_under_workers(terms, self._party)
        except Refused as error:
            return [error.public, *super().faults(terms)]
        return super().faults(terms)

    def looked(self, terms: Terms) -> list[Held]:
        """Let the workers read their rows under these terms, and return the workers' reports. The workers
        then drop the rows. Raises Refused if the rows do not fit, ConfigError if they cannot be read."""
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
            "worker-lost",
            f"{self._engine.name} lost a worker while reading the rows; see the worker's log (often, it "
            f"has too little memory)",
            str(error),
        )

    def _shares(self, terms: Terms) -> list[tuple[Worker, Share]]:
        """Distribute the rows over the workers. Raises ConfigError if they do not fit a worker's memory."""
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
        names = None if self._config.map_file is None else names_of(self._config)
        rows = self._party, terms, share.ranges, worker.threads, worker.host
        asked = Load(*rows, *self._files, names, keep, tuple(self._heads.sizes))
        name = f"{'load' if keep else 'check'} rows of {self._party}"
        return self._engine.run(worker, name, hold.hold, asked)

    def _workers(self) -> list[Worker]:
        if not (workers := self._engine.workers()):
            raise ConfigError("workers-missing", f"{self._engine.name} has no workers; start at least one")
        return workers

    def _result(self, worker: Worker, name: str, function: Any, *arguments: Any) -> Any:
        """Run a function on a worker and return its result. Raises ConfigError if the worker is lost."""
        try:
            return self._engine.run(worker, name, function, *arguments).result()
        except WorkerLost as error:
            raise self._lost(error) from None

    def _read(self) -> SiteTable:
        """Return the table without its rows, with the column names that the site uses in terms."""
        worker = self._workers()[0]
        heads = Heads(*self._result(worker, f"look at files of {self._party}", heads_of, *self._files))
        if heads.fault[0]:
            code, public, detail = heads.fault
            raise ConfigError(code, f"on worker {worker.address}, {public}", detail)
        if not heads.rows:
            raise ConfigError("table-empty", f"{shown(self._config.data)}: the table has no rows")
        self._heads = heads
        table = pa.Table.from_batches([], pa.ipc.read_schema(pa.py_buffer(heads.columns)))
        names = names_of(self._config)
        named_file = self._config.map_file
        return SiteTable(table, names) if named_file is None else named(table, names, str(named_file))

    def _stamp_now(self) -> Stamp:
        """Return a value that changes when the files change, as seen by a worker."""
        worker = self._workers()[0]
        states = self._result(worker, f"look at files of {self._party}", stamp_of, self._files[0])
        return tuple(map(tuple, states))


# ---- Checks of a site's rows on workers -----------------------------------------------------------------
# No row is read in this process, and workers drop the rows that they read.


COLUMNS_ALONE = "checked only the columns; with --terms they also read the rows, unless a column is missing"
ROWS_TOO = "read all rows and checked that they fit the terms; they did not look for other problems"


@contextmanager
def workers_of(site: PartyConfig) -> Iterator[tuple[WorkerRows, SiteTable]]:
    """Context manager that yields the rows named in a site's configuration, and the table without its rows.
    Raises ConfigError if the rows cannot be read."""
    rows = WorkerRows(site, logger("check", log_level="warning"))
    try:
        assert rows.table is not None
        yield rows, rows.table
    finally:
        rows.close()


def check_workers(
    site: PartyConfig, terms: Terms | None, label: str | None, exclude: Sequence[str]
) -> Checked:
    """Check the columns of a site's table and, with terms, its rows. Raises ConfigError if they cannot be
    read, Refused if the terms are not supported.

    Args:
        site: configuration of a site with workers.
        terms: terms that the rows must fit; None to check only the columns.
        label: name of the label column, if any.
        exclude: names of columns that are not features.
    """
    if terms is not None:
        check_under_workers(terms, site.party)
    with workers_of(site) as (rows, table):
        head = dense_of(table.under(None if terms is None else terms.columns))
        for name in (*exclude, *([] if label is None else [label])):
            column_of(head, name)
        sizes = rows.rows, 0, len(head.column_names)
        result = Checked.of(shown(site.data), *sizes, workers=COLUMNS_ALONE)
        if terms is None:
            return result
        columns = terms.blocks.columns_of(site.party)
        names = (*columns.others, *columns.features)
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
