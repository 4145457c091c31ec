"""What a site needs of a cluster: the workers there are, and a function that runs on one of them.

All else goes over connections of its own (`link`). An engine is one file: `dask_engine` is that of Dask.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class WorkerLost(Exception):
    """A worker is gone, or no longer answers. Who holds its rows rebuilds them elsewhere."""


@dataclass(frozen=True)
class Worker:
    """A worker: its address at the engine, its host, its threads, and the bytes of memory that it may use, 0
    if nobody says."""

    address: str
    host: str
    threads: int
    memory: int


class Running(Protocol):
    """A function that runs on a worker."""

    def result(self) -> Any:
        """What it returns, once it does. Raises WorkerLost, or what the function raised."""
        ...


class Engine(Protocol):
    """A cluster."""

    @property
    def name(self) -> str:
        """Its name, for people."""
        ...

    def workers(self) -> list[Worker]:
        """The workers there are, in the order of their addresses. ConfigError if the cluster does not
        answer."""
        ...

    def run(self, worker: Worker, name: str, function: Callable[..., Any], *arguments: Any) -> Running:
        """Run a function of a module on this worker. name: for its users' eyes. WorkerLost."""
        ...

    def close(self) -> None:
        """Leave the cluster; end it if it is this process's own."""
        ...
