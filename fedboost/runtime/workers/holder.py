"""The holder of a site whose rows are on workers: its answer is the sum of theirs.

Promises: the vector is the one that a holder of all rows would answer, however the rows are shared out; a
worker that is lost is replaced by others, which read its rows and go where the training stands, and nothing
but the delay is noticed outside. Votes are the site's, by the sum of its workers' histograms.
Refuses: to wait for workers longer than WORKERS_WITHIN (DurabilityError: a later process goes on); what a
worker refuses; files that have changed when rows have to be read again (Refused).
"""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from fedboost.boosting.queries.trees import VoteQuery
from fedboost.boosting.queries.union import OfTurn, Query
from fedboost.boosting.state import NOTHING_YET, BoostingState
from fedboost.errors import ConfigError, DurabilityError, FedboostError, Refused, quoted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.tree import Tree
from fedboost.holders.shard import add_hashes
from fedboost.holders.whole_rows import votes
from fedboost.protocol.contracts import Answering
from fedboost.runtime.workers import link
from fedboost.runtime.workers.engine import Engine, Worker, WorkerLost
from fedboost.runtime.workers.hold import Held
from fedboost.runtime.workers.link import Door, Link
from fedboost.runtime.workers.source import Range
from fedboost.terms.terms import Terms

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


Loading = Callable[[Worker, Share], Any]
"""Begins to load a share on a worker: a `Running` whose result is `Held`."""


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
        self, engine: Engine, shares: Sequence[tuple[Worker, Share]], load: Loading, terms: Terms, log: Any
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
        hashes = [answer[1:] for answer in self._ask(link.HASH + key)]
        self._key = key
        self._hashes = dict(zip((placed.share.ranges for placed in self._placed), hashes, strict=True))
        return add_hashes(hashes)

    def go_to(self, state: BoostingState) -> None:
        """Move to this state, whatever was answered before."""
        self._ask(link.going_to(state))
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
        return link.total(self._ask(link.asking(link.ANSWER, query)), query)

    def _votes(self, query: VoteQuery) -> Int64:
        """The site's own votes, by the sum of its workers' histograms."""
        assert self.state.start is not None
        answers = self._ask(link.asking(link.HISTOGRAMS, query))
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
            hashes, lost = self._exchange(placed, link.HASH + self._key)
            kept = [each for each in placed if each not in lost]
            for each, told in zip(kept, hashes, strict=True):
                if told[1:] != self._hashes[each.share.ranges]:
                    raise Refused(
                        "its rows are not those that the session began with",
                        "files were changed while it ran, and were read again for a worker that was lost",
                    )
        if self.state is not NOTHING_YET:
            kept = [each for each in placed if each not in lost]
            lost += self._exchange(kept, link.going_to(self.state))[1]
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

    def _begun(self, worker: Worker, share: Share) -> Callable[[], Any]:
        """Begin to load a share; what waits for its result, or raises WorkerLost."""
        try:
            result: Callable[[], Any] = self._load(worker, share).result
        except WorkerLost as error:
            return partial(_raise, error)
        return result

    def _place(self, shares: Sequence[tuple[Worker, Share]]) -> list[Placed]:
        """Load these shares, all at once; what a worker that is lost meanwhile was to hold, on others. What
        does not fit is raised."""
        placed: list[Placed] = []
        while shares:
            running = [(worker, share, self._begun(worker, share)) for worker, share in shares]
            left, fault = [], b""
            for worker, share, each in running:
                try:
                    held: Held = each()
                except WorkerLost as error:
                    self._note_lost(worker, error)
                    left.append(share)
                    continue
                fault = fault or held.fault
                if held.door:
                    placed.append(Placed(share, worker, held, Link(Door(**held.door))))
            if fault:
                for kept in placed:
                    kept.link.close()
                link.raise_failed(fault)
            shares = self._shared_out(left) if left else []
        return placed


def _close(placed: list[Placed]) -> None:
    for each in placed:
        each.link.close()
    placed.clear()


def _raise(error: WorkerLost) -> None:
    raise error
