"""Collections of Dask as the rows of a site: each worker holds the partitions that it has.

Promises: rows come in the order of the partitions; partitions are computed once, and stay where they are.
Refuses: a collection without a client, with partitions of other columns, or without rows (ConfigError).
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from fedboost.errors import ConfigError
from fedboost.protocol.contracts import Holder
from fedboost.protocol.site import KEY_BYTES
from fedboost.runtime.workers.dask_engine import DaskEngine
from fedboost.runtime.workers.engine import Running, Worker
from fedboost.runtime.workers.hold import Load, hold
from fedboost.runtime.workers.holder import Share, WorkersHolder
from fedboost.runtime.workers.refusals import check_under_workers
from fedboost.runtime.workers.sharing import COLLECTED_A_VALUE, check_memory, check_together
from fedboost.runtime.workers.source import Range
from fedboost.terms.terms import Terms


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

    def _load(self, terms: str, worker: Worker, share: Share) -> Running:
        parts = [
            self._computed.get(number) or self._engine.compute(self._partitions[number], worker)
            for number in share.parts
        ]
        asked = Load(self._party, terms, share.ranges, min(self._threads, worker.threads), worker.host)
        return self._engine.run(worker, f"load rows of {self._party}", hold, asked, *parts)


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
