"""Workers that are killed while they answer."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from unittest import mock

from distributed import Client, LocalCluster

from fedboost.runtime.workers.holder import WorkersHolder


@contextmanager
def processes(workers):
    """A client of a cluster of processes, whose workers come back when they are killed."""
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as own,
        Client(own, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def bare_workers(workers):
    """A client of a cluster of processes that nobody starts again, and how to start one more."""
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as own,
        Client(own, set_as_default=False) as client,
    ):
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        command = [sys.executable, "-m", "dask", "worker", own.scheduler_address, *options]
        started = []

        def start():
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        try:
            for _ in range(workers):
                start()
            client.wait_for_workers(workers, timeout=120)
            yield client, start
        finally:
            for each in started:
                each.kill()
                each.wait()


@contextmanager
def killed(client, at, when, every=False, then=lambda: None):
    """Kill a worker with rows at this exchange with them, from 0 on: before the request is sent, or after;
    every: all of them; then: called when they are dead. Yields the list of exchanges so far."""
    exchange, seen = WorkersHolder._exchange, []

    def kill(placed):
        pids = client.run(os.getpid)
        for each in placed if every else placed[:1]:
            os.kill(pids[each.worker.address], signal.SIGKILL)
        then()

    def spoiled(holder, placed, request):
        number = len(seen)
        seen.append(request[:1])
        if number != at:
            return exchange(holder, placed, request)
        if when == "before":
            kill(placed)
            return exchange(holder, placed, request)
        for each in placed:
            each.link.send(request)
        kill(placed)
        with mock.patch.object(type(placed[0].link), "send"):
            return exchange(holder, placed, request)

    with mock.patch.object(WorkersHolder, "_exchange", spoiled):
        yield seen
