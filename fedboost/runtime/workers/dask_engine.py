"""The engine of Dask: an existing cluster, or processes of this machine.

Promises: a function runs on the worker that it was given, once; the loss of a worker is found soon; the
scheduler needs no fedboost, and a worker with none, or another version, says so and lives on; what Dask logs
in this process does not reach the terminal.
"""

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from fedboost.errors import ConfigError
from fedboost.runtime.workers.hold import Worker, WorkerLost
from fedboost.version import VERSION

ANSWERS_WITHIN = 10.0
"""Seconds in which a scheduler has to answer."""
LOOKS_EVERY = 0.5
"""Seconds between two looks at whether a worker is still there."""
MAX_LOOKS = 20
"""Answers without workers, of a scheduler that says it has some, before that is believed."""
_LOGGERS = "distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application"
"""Loggers of Dask that write to the terminal by handlers of their own."""
_NEVER = logging.CRITICAL + 1
"""The level of a logger that says nothing."""
_INSTALL = 'workers of Dask need the extra: pip install "fedboost[dask]"'


class DaskEngine:
    """A cluster of Dask."""

    def __init__(self, client: Any, name: str, own: Any = None, address: str = "") -> None:
        """own: the cluster of this process, which ends with the engine; address: of the scheduler, where it
        may be called again."""
        self.client = client
        self._own = own
        self._address = address
        self.name = name

    @classmethod
    def at(cls, address: str) -> Self:
        """The cluster whose scheduler has this address. ConfigError."""
        return cls(_client_at(address), f"the Dask cluster at {address}", address=address)

    @classmethod
    def local(cls, count: int, threads: int) -> Self:
        """A cluster of so many processes on this machine, which other users of it cannot call."""
        distributed = _distributed()
        _hush()
        cluster = distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=threads,
            host="127.0.0.1",
            security=True,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # else it warns of a port in use
            silence_logs=_NEVER,
        )
        client = distributed.Client(cluster, set_as_default=False)
        return cls(client, f"{count} workers of this machine", cluster)

    @classmethod
    def of(cls, collection: Any) -> Self:
        """The cluster of the client in use, where collections are persisted. ConfigError if there is none."""
        try:
            client = _distributed().default_client()
        except ValueError:
            raise ConfigError(
                f"a {type(collection).__name__} of Dask needs a client: from dask.distributed import Client; "
                "Client()"
            ) from None
        return cls(client, f"the Dask cluster at {client.scheduler.address}")

    def computed(self, partitions: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """These delayed partitions, computed where Dask likes, and the rows of each. ConfigError for what
        cannot be computed."""
        if not self.workers():
            raise ConfigError(f"{self.name} has no workers: start some")
        futures = self.client.compute(partitions)
        try:
            rows = self.client.gather(self.client.map(len, futures, pure=False))
        except Exception as error:  # noqa: BLE001 - whatever the user's own graph raises
            why = f"{type(error).__name__}: {error}"
            raise ConfigError("the partitions of Dask cannot be computed", why) from None
        return futures, [int(count) for count in rows]

    def compute(self, partition: Any, worker: Worker) -> Any:
        """A delayed partition, computed there if it may be."""
        return self.client.compute(partition, workers=[worker.address], allow_other_workers=True)

    def places(self, futures: Sequence[Any]) -> list[Worker]:
        """A worker that has each of these results; the first of all where none does any more."""
        workers = {worker.address: worker for worker in self.workers()}
        if not workers:
            raise ConfigError(f"{self.name} has no workers: start some")
        known = self.client.who_has(futures)
        first = next(iter(workers.values()))
        return [
            next((workers[at] for at in sorted(known.get(future.key, ())) if at in workers), first)
            for future in futures
        ]

    def workers(self) -> list[Worker]:
        """The workers there are, in the order of their addresses. ConfigError."""
        if self._address and self.client.status == "closed":  # it gave up a scheduler that was away
            self.client = _client_at(self._address)
        try:
            known = self._known()
        except (OSError, RuntimeError):
            known = None
        if known is None:
            raise ConfigError(f"{self.name} no longer answers: start its scheduler again")
        workers = [
            Worker(address, str(said["host"]), int(said["nthreads"]), int(said.get("memory_limit") or 0))
            for address, said in known.items()
            if said.get("status", "running") == "running"
        ]
        return sorted(workers, key=lambda worker: worker.address)

    def _known(self) -> Any:
        """What the scheduler says of its workers; None where nobody answers. A client also asks for
        totals, every two seconds, and keeps one answer only: totals may come in place of the workers."""
        for _ in range(MAX_LOOKS):
            said = self.client.scheduler_info(n_workers=-1)
            known = said.get("workers")
            if known or known is None or not said.get("n_workers"):
                break
        return known

    def run(
        self, worker: Worker, name: str, function: Callable[..., Any], *arguments: Any
    ) -> "RunningAtDask":
        """Run a function on this worker. Partitions stand last among the arguments. WorkerLost."""
        parts = [argument for argument in arguments if hasattr(argument, "key")]
        rest = arguments[: len(arguments) - len(parts)]
        try:
            future = self.client.submit(
                _by_value(),
                VERSION,
                pickle.dumps((function, rest)),
                *parts,
                key=f"{name}-{time.monotonic_ns()}",
                workers=[worker.address],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )
        except (OSError, RuntimeError) as error:  # of a scheduler that is gone
            raise WorkerLost(str(error)) from None
        return RunningAtDask(self, worker, future)

    def close(self) -> None:
        """Leave the cluster; end it if it is this process's own."""
        self.client.close()
        if self._own is not None:
            self._own.close()


class RunningAtDask:
    """A task of Dask."""

    def __init__(self, engine: DaskEngine, worker: Worker, future: Any) -> None:
        self._engine, self._worker, self._future = engine, worker, future

    def result(self) -> Any:
        """What it returns. Dask would wait for ever for a worker that is gone: whether it is still there is
        looked at now and then. Raises WorkerLost."""
        distributed = _distributed()
        while True:
            try:
                result = self._future.result(timeout=LOOKS_EVERY)
                self._future.release()  # Dask would run it again, once its worker is lost
                return result
            except (distributed.TimeoutError, TimeoutError, UnboundLocalError) as error:
                # the last where Dask itself cancels a wait that is over at this moment: dask/distributed#8514
                if isinstance(error, UnboundLocalError) and self._future.status == "error":
                    raise
                if self._future.cancelled() or not self._is_there():
                    self._future.cancel()
                    raise WorkerLost(self._worker.address) from None
            except (distributed.scheduler.KilledWorker, distributed.CancelledError):
                raise WorkerLost(self._worker.address) from None
            except ImportError as error:
                raise ConfigError(
                    f"worker {self._worker.address} cannot work for fedboost {VERSION} ({error}): install "
                    f"this version there, with all that it needs"
                ) from None

    def _is_there(self) -> bool:
        try:
            return self._worker in self._engine.workers()
        except ConfigError:  # with its cluster
            return False


def _by_value() -> Callable[..., Any]:
    """What calls a function at a worker. It is defined in here so that it travels by value: what travels by
    name ends a worker, or scheduler, that does not know the name."""

    def call(version: str, content: bytes, *parts: Any) -> Any:
        import pickle

        from fedboost.version import VERSION

        if version != VERSION:
            raise ImportError(f"it has {VERSION}")
        function, arguments = pickle.loads(content)
        return function(*arguments, *parts)

    return call


def _client_at(address: str) -> Any:
    """A client of the scheduler there. ConfigError."""
    distributed = _distributed()
    _hush()
    try:
        with ThreadPoolExecutor(1) as thread:  # this one may be in an event loop
            thread.submit(asyncio.run, _call_at(address)).result()
        return distributed.Client(address, timeout=ANSWERS_WITHIN, set_as_default=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the Dask scheduler at {address} does not answer within {ANSWERS_WITHIN:.0f} s: start it, "
            f"or correct `dask` of [workers]",
            _cause(error),
        ) from None
    except TypeError:  # of TLS without a certificate, by Dask
        raise ConfigError(
            f"the Dask scheduler at {address} wants TLS, and Dask knows no certificates here: give them "
            f"in Dask's configuration (distributed.comm.tls)"
        ) from None


async def _call_at(address: str) -> None:
    """Raise OSError unless a scheduler answers there; a Client of Dask would wait for ever for some that do
    not, and long for others. TypeError without certificates for TLS."""
    distributed = _distributed()
    arguments = distributed.Security().get_connection_args("client")
    calling = distributed.comm.connect(address, timeout=ANSWERS_WITHIN, **arguments)
    answered = await asyncio.wait_for(calling, ANSWERS_WITHIN + 1.0)  # its own tells what went wrong
    await answered.close()


def _cause(error: BaseException) -> str:
    """What is at the bottom of an error; '' for the time that has run out."""
    while error.__cause__ is not None:
        error = error.__cause__
    return "" if isinstance(error, TimeoutError) else str(error).partition("\n")[0]


def _hush() -> None:
    """Keep what Dask logs from the terminal: what a site has to know of it is said by its own log."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(_NEVER)


def _distributed() -> Any:
    """The library, or ConfigError without it."""
    try:
        import distributed
        import distributed.comm
        import distributed.scheduler
    except ImportError:
        raise ConfigError(_INSTALL) from None
    return distributed
