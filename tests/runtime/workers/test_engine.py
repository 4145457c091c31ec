"""The engine of Dask: a cluster that is not there, or not fit, is one line; nothing hangs."""

import logging
import pickle
import socket
import subprocess
import sys

import pytest
from distributed import Future, LocalCluster
from distributed.protocol import pickle as dask_pickle
from processes import free_port
from raised import raised

from fedboost.errors import ConfigError
from fedboost.runtime.site.config import WorkersConfig
from fedboost.runtime.workers import dask_engine
from fedboost.runtime.workers.dask_engine import DaskEngine
from fedboost.runtime.workers.holder import engine_of


@pytest.fixture
def hurried(monkeypatch):
    """Nobody waits long."""
    monkeypatch.setattr(dask_engine, "ANSWERS_WITHIN", 0.3)


def cluster(workers, port=0):
    settings = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    return LocalCluster(
        n_workers=workers, protocol="tcp://", host="127.0.0.1", scheduler_port=port, **settings
    )


def test_a_scheduler_that_is_not_there(hurried):
    address = f"tcp://127.0.0.1:{free_port()}"
    with raised(ConfigError, "dask-no-answer", naming=[address]):
        DaskEngine.at(address)


def test_what_listens_there_and_is_no_scheduler(hurried):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with raised(ConfigError, "dask-no-answer"):
            DaskEngine.at(address)


def test_tls_without_certificates(hurried):
    with raised(ConfigError, "dask-no-certificate"):
        DaskEngine.at("tls://127.0.0.1:8786")


def test_totals_that_come_in_place_of_workers_are_not_a_cluster_without_any(monkeypatch):
    """Dask's client asks for totals by itself, and both answers are kept in one place."""
    with cluster(1) as own:
        engine = DaskEngine.at(own.scheduler_address)
        ask, totals = engine.client.scheduler_info, [{"n_workers": 1, "workers": {}}] * 3
        monkeypatch.setattr(
            engine.client, "scheduler_info", lambda **how: totals.pop() if totals else ask(**how)
        )
        assert len(engine.workers()) == 1
        assert totals == []
        engine.client.close()


def test_a_scheduler_that_went_and_came_back_is_called_again(hurried):
    port = free_port()
    with cluster(1, port) as first:
        engine = DaskEngine.at(first.scheduler_address)
        assert len(engine.workers()) == 1
        engine.client.close()  # as Dask does once a scheduler was away for half a minute
    with raised(ConfigError, "dask-no-answer"):
        engine.workers()
    with cluster(2, port) as second:
        second.wait_for_workers(2, timeout=20)
        assert len(engine.workers()) == 2
        assert engine.run(engine.workers()[0], "adds", sum, (20, 1)).result() == 21
        engine.close()


def test_a_scheduler_that_went_says_so():
    with cluster(1) as own:
        engine = DaskEngine.at(own.scheduler_address)
        engine.client.close()
        engine._address = ""  # of a collection's client, which is the user's
        with raised(ConfigError, "dask-no-answer"):
            engine.workers()


def test_a_worker_of_another_version_is_named(monkeypatch):
    with cluster(1) as own:
        engine = DaskEngine.at(own.scheduler_address)
        (worker,) = engine.workers()
        monkeypatch.setattr(dask_engine, "VERSION", "9.9.9")
        words = (
            rf"worker {worker.address} does not support fedboost 9\.9\.9 \(it has .*\); install this version"
        )
        with pytest.raises(ConfigError, match=words):
            engine.run(worker, "adds", sum, (20, 1)).result()
        engine.close()


def test_what_is_sent_can_be_read_without_fedboost():
    """Else a scheduler could not pass it on, and a worker would end instead of saying what it lacks."""
    sent = dask_pickle.dumps(dask_engine._by_value())
    code = (
        "import pickle, sys; sys.modules['fedboost'] = None\n"
        f"call = pickle.loads({sent!r})\n"
        f"try: call('1', {pickle.dumps((sum, ((1, 2),)))!r})\n"
        "except ImportError as error: print('lacks', error.name)"
    )
    end = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert end.stdout == "lacks fedboost.version\n"


def test_dask_says_nothing_on_the_terminal():
    with cluster(1) as own:
        DaskEngine.at(own.scheduler_address).close()
    names = ("distributed", "distributed.client", "distributed.scheduler", "distributed.core", "tornado")
    assert not any(logging.getLogger(name).isEnabledFor(logging.CRITICAL) for name in names)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_processes_of_this_machine_are_called_with_a_certificate():
    engine = engine_of(WorkersConfig(dask="local", count=2, threads=3))
    try:
        workers = engine.workers()
        assert [worker.threads for worker in workers] == [3, 3]
        assert all(worker.address.startswith("tls://127.0.0.1:") for worker in workers)
    finally:
        engine.close()


def test_a_wait_that_dask_itself_cancels_is_waited_again(monkeypatch):
    """dask/distributed#8514: an UnboundLocalError, where a wait ends at the moment in which it is over."""
    result, calls = Future.result, []

    def cancelled_once(future, timeout=None):
        calls.append(timeout)
        if len(calls) == 1:
            raise UnboundLocalError("cannot access local variable 'result'")
        return result(future, timeout)

    with cluster(1) as own:
        engine = DaskEngine.at(own.scheduler_address)
        (worker,) = engine.workers()
        monkeypatch.setattr(Future, "result", cancelled_once)
        assert engine.run(worker, "sum", sum, [1, 2]).result() == 3
        assert len(calls) >= 2
        with pytest.raises(UnboundLocalError, match="of the function itself"):
            engine.run(worker, "raises", unbound).result()
        engine.close()


def unbound():
    raise UnboundLocalError("of the function itself")
