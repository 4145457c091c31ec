"""The Dask engine: runs functions on the workers of an existing Dask cluster, or of one started on this
machine.

A function runs once, on the worker that was chosen for it. The loss of a worker is detected within about a
second. The scheduler does not need fedboost. A worker without fedboost, or with a different version, reports
this and keeps running. The logs that Dask writes in this process do not appear in the terminal.
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

ANSWERS_WITHIN = 10.0  # seconds within which a scheduler must answer
LOOKS_EVERY = 0.5  # seconds between two checks that a worker still exists
MAX_LOOKS = 20  # answers without workers, from a scheduler that counts some, until they are believed
_LOGGERS = "distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application"
"""Dask's loggers whose handlers write to the terminal."""
_NEVER = logging.CRITICAL + 1  # level of a silent logger
_INSTALL = 'Dask workers require an extra; run pip install "fedboost[dask]"'


class DaskEngine:
    """A connection to a Dask cluster, which runs functions on its workers."""

    def __init__(self, client: Any, name: str, own: Any = None, address: str = "") -> None:
        """Use a cluster through an existing client.

        Args:
            client: Dask client of the cluster.
            name: description of the cluster for messages.
            own: the cluster, if this process started it; it is closed together with this object.
            address: address of the scheduler, used to reconnect.
        """
        self.client = client
        self._own = own
        self._address = address
        self.name = name

    @classmethod
    def at(cls, address: str) -> Self:
        """Connect to the Dask scheduler at `address`. Raises ConfigError if it does not answer."""
        return cls(_client_at(address), f"the Dask cluster at {address}", address=address)

    @classmethod
    def local(cls, count: int, threads: int) -> Self:
        """Start a cluster of processes on this machine. Other users of the machine cannot connect to it.
        count: number of processes; threads: number of threads per process."""
        distributed = _distributed()
        _hush()
        cluster = distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=threads,
            host="127.0.0.1",
            security=True,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # avoids a warning about a port in use
            silence_logs=_NEVER,
        )
        client = distributed.Client(cluster, set_as_default=False)
        return cls(client, f"{count} workers of this machine", cluster)

    @classmethod
    def of(cls, collection: Any) -> Self:
        """Use the cluster of the current Dask client. Raises ConfigError if there is no client."""
        try:
            client = _distributed().default_client()
        except ValueError:
            raise ConfigError(
                "dask-no-client",
                f"a Dask {type(collection).__name__} needs a client; create one with "
                f"dask.distributed.Client()",
            ) from None
        return cls(client, f"the Dask cluster at {client.scheduler.address}")

    def computed(self, partitions: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """Compute delayed partitions on workers that Dask chooses, and return their futures and row counts.
        Raises ConfigError if there are no workers or a partition cannot be computed."""
        if not self.workers():
            raise ConfigError("workers-missing", f"{self.name} has no workers; start at least one")
        futures = self.client.compute(partitions)
        try:
            rows = self.client.gather(self.client.map(len, futures, pure=False))
        except Exception as error:  # noqa: BLE001 - the user's own graph may raise anything
            why = f"{type(error).__name__}: {error}"
            raise ConfigError("dask-failed", "the Dask partitions cannot be computed", why) from None
        return futures, [int(count) for count in rows]

    def compute(self, partition: Any, worker: Worker) -> Any:
        """Compute a delayed partition, on this worker if possible, and return its future."""
        return self.client.compute(partition, workers=[worker.address], allow_other_workers=True)

    def places(self, futures: Sequence[Any]) -> list[Worker]:
        """Return, for each future, a worker that has its result, or the first worker if no worker has it any
        more. Raises ConfigError if there are no workers."""
        workers = {worker.address: worker for worker in self.workers()}
        if not workers:
            raise ConfigError("workers-missing", f"{self.name} has no workers; start at least one")
        known = self.client.who_has(futures)
        first = next(iter(workers.values()))
        return [
            next((workers[at] for at in sorted(known.get(future.key, ())) if at in workers), first)
            for future in futures
        ]

    def workers(self) -> list[Worker]:
        """Return the current workers by address. Raises ConfigError if the cluster does not answer."""
        if self._address and self.client.status == "closed":  # the client gave up on an absent scheduler
            self.client = _client_at(self._address)
        try:
            known = self._known()
        except (OSError, RuntimeError):
            known = None
        if known is None:
            raise ConfigError("dask-no-answer", f"{self.name} no longer answers; restart its scheduler")
        workers = [
            Worker(address, str(said["host"]), int(said["nthreads"]), int(said.get("memory_limit") or 0))
            for address, said in known.items()
            if said.get("status", "running") == "running"
        ]
        return sorted(workers, key=lambda worker: worker.address)

    def _known(self) -> Any:
        """Return the scheduler's list of workers; None if it does not answer."""
        # A Dask client also requests totals every two seconds, and keeps only one answer, so totals without
        # workers may arrive instead.
        for _ in range(MAX_LOOKS):
            said = self.client.scheduler_info(n_workers=-1)
            known = said.get("workers")
            if known or known is None or not said.get("n_workers"):
                break
        return known

    def run(
        self, worker: Worker, name: str, function: Callable[..., Any], *arguments: Any
    ) -> "RunningAtDask":
        """Start a function on a worker, and return the running task. Raises WorkerLost if it cannot be
        started.

        Args:
            worker: the worker.
            name: start of the task's name.
            function: function to call.
            arguments: its arguments; futures of partitions must come last.
        """
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
        except (OSError, RuntimeError) as error:  # the scheduler is lost
            raise WorkerLost(str(error)) from None
        return RunningAtDask(self, worker, future)

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if this process started it."""
        self.client.close()
        if self._own is not None:
            self._own.close()


class RunningAtDask:
    """A function that is running on a Dask worker."""

    def __init__(self, engine: DaskEngine, worker: Worker, future: Any) -> None:
        self._engine, self._worker, self._future = engine, worker, future

    def result(self) -> Any:
        """Wait for the function to finish, and return its result. Raises WorkerLost if the worker is lost
        first, ConfigError if the worker has a different fedboost version."""
        # Dask itself would wait indefinitely for a lost worker, so its existence is checked regularly.
        distributed = _distributed()
        while True:
            try:
                result = self._future.result(timeout=LOOKS_EVERY)
                self._future.release()  # otherwise Dask runs it again when its worker is lost
                return result
            except (distributed.TimeoutError, TimeoutError, UnboundLocalError) as error:
                # UnboundLocalError: Dask cancels a wait that ends at the same moment, dask/distributed#8514
                if isinstance(error, UnboundLocalError) and self._future.status == "error":
                    raise
                if self._future.cancelled() or not self._is_there():
                    self._future.cancel()
                    raise WorkerLost(self._worker.address) from None
            except (distributed.scheduler.KilledWorker, distributed.CancelledError):
                raise WorkerLost(self._worker.address) from None
            except ImportError as error:
                raise ConfigError(
                    "worker-version",
                    f"worker {self._worker.address} does not support fedboost {VERSION} ({error}); install "
                    f"this version and its dependencies on it",
                ) from None

    def _is_there(self) -> bool:
        try:
            return self._worker in self._engine.workers()
        except ConfigError:  # the whole cluster is lost
            return False


def _by_value() -> Callable[..., Any]:
    """Return a function that calls another one on a worker. It is local, so it is pickled by value: by name,
    it would crash a worker or scheduler that cannot import it."""

    def call(version: str, content: bytes, *parts: Any) -> Any:
        import pickle

        from fedboost.version import VERSION

        if version != VERSION:
            raise ImportError(f"it has {VERSION}")
        function, arguments = pickle.loads(content)
        return function(*arguments, *parts)

    return call


def _client_at(address: str) -> Any:
    """Return a client of the Dask scheduler at `address`. Raises ConfigError if it does not answer."""
    distributed = _distributed()
    _hush()
    try:
        with ThreadPoolExecutor(1) as thread:  # this thread may run an event loop
            thread.submit(asyncio.run, _call_at(address)).result()
        return distributed.Client(address, timeout=ANSWERS_WITHIN, set_as_default=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "dask-no-answer",
            f"the Dask scheduler at {address} did not answer within {ANSWERS_WITHIN:.0f} s; start it, "
            f"or correct `dask` under [workers]",
            _cause(error),
        ) from None
    except TypeError:  # Dask's error for TLS without a certificate
        raise ConfigError(
            "dask-no-certificate",
            f"the Dask scheduler at {address} requires TLS, but Dask has no certificates on this machine; "
            f"set them in Dask's configuration (distributed.comm.tls)",
        ) from None


async def _call_at(address: str) -> None:
    """Raise OSError unless a scheduler answers in time. Without this check, a Dask client could wait for a
    long time, or indefinitely. Raises TypeError if certificates for TLS are missing."""
    distributed = _distributed()
    arguments = distributed.Security().get_connection_args("client")
    calling = distributed.comm.connect(address, timeout=ANSWERS_WITHIN, **arguments)
    answered = await asyncio.wait_for(calling, ANSWERS_WITHIN + 1.0)  # its own timeout reports the cause
    await answered.close()


def _cause(error: BaseException) -> str:
    """Return the first line of an error's root cause; '' for a timeout."""
    while error.__cause__ is not None:
        error = error.__cause__
    return "" if isinstance(error, TimeoutError) else str(error).partition("\n")[0]


def _hush() -> None:
    """Keep Dask's logs off the terminal; the site's own log contains everything needed."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(_NEVER)


def _distributed() -> Any:
    try:
        import distributed
        import distributed.comm
        import distributed.scheduler
    except ImportError:
        raise ConfigError("extra-missing", _INSTALL) from None
    return distributed
