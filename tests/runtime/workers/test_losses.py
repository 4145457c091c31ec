"""A worker that is lost, with its cluster away for a while or its files gone: in this process."""

import itertools
import time
from unittest import mock

import dask
import dask.dataframe as dd
import pytest
from dask_rows import cluster, cuts_of, on_workers, shared_out, table, terms
from raised import raised

import fedboost as fb
from fedboost.errors import ConfigError, SessionFailed
from fedboost.runtime.data.database import DEFAULT_OPTIONS
from fedboost.runtime.workers import holder
from fedboost.runtime.workers.dask_engine import DaskEngine
from fedboost.runtime.workers.hold import Files, Link, Range, WorkerLost
from fedboost.runtime.workers.holder import WorkersHolder

pytestmark = pytest.mark.filterwarnings("ignore::fedboost.errors.TableWarning")
SECRET = "tcp://inside.hospital:8786"


@pytest.fixture
def lost(monkeypatch):
    """One worker is lost at the fourth exchange; `after` is what DaskEngine.workers does from then on, until
    it says nothing more."""
    exchange, workers, seen = WorkersHolder._exchange, DaskEngine.workers, []
    after = []

    def spoiled(self, placed, request):
        seen.append(request[:1])
        if len(seen) == 4:
            placed[0].link.close()
        return exchange(self, placed, request)

    def known(engine):
        if len(seen) >= 4 and after:
            raise after.pop()
        return workers(engine)

    monkeypatch.setattr(WorkersHolder, "_exchange", spoiled)
    monkeypatch.setattr(DaskEngine, "workers", known)
    monkeypatch.setattr(holder, "LOOKS_EVERY", 0.01)
    return after


def trained(frame, agreed):
    return on_workers(agreed, {"north": shared_out(frame, cuts_of(frame, 5))}, 3)


def test_a_cluster_that_is_away_for_a_while_changes_nothing(lost):
    agreed, frame = terms(subsample=0.7), table()
    lost += [ConfigError("test", f"{SECRET} no longer answers")] * 3
    expected = fb.simulate(agreed, {"north": frame}).model.to_bytes()
    assert trained(frame, agreed).to_bytes() == expected
    assert not lost


def test_a_cluster_that_stays_away_is_given_up(lost, monkeypatch):
    monkeypatch.setattr(holder, "WORKERS_WITHIN", 0.1)
    lost += [ConfigError("test", "no longer answers")] * 1000
    with raised(ConfigError, "workers-lost"):
        trained(table(), terms())


def test_what_cannot_be_read_again_is_told_to_the_site_alone(lost, monkeypatch):
    load, loads = holder.CollectionRows._load, []

    def gone(rows, agreed, worker, share):
        loads.append(share)
        if len(loads) > 3:
            raise ConfigError("test", f"{SECRET}/1.parquet: No such file or directory")
        return load(rows, agreed, worker, share)

    monkeypatch.setattr(holder.CollectionRows, "_load", gone)
    with pytest.raises(SessionFailed) as told:
        trained(table(), terms())
    assert str(told.value) == (
        "party north left: its rows cannot be read again after a worker was lost; its own log says why"
    )
    assert len(loads) == 4
    assert cluster(3).status == "running"


def test_rows_that_are_others_when_they_are_computed_again_are_refused():
    """A partition that is not the same each time it is computed: after a loss the rows would be others."""
    frame = table()

    def partition():
        return frame.assign(dose=frame["dose"] + time.perf_counter())

    rows = dd.from_delayed([dask.delayed(partition)()], meta=frame.iloc[:0])
    seen = itertools.count()
    receive = Link.receive

    def lost(link):
        if next(seen) == 4:
            raise WorkerLost("as if")
        return receive(link)

    with (
        mock.patch.object(Link, "receive", lost),
        pytest.raises(
            SessionFailed, match="party north left: its rows differ from those that the session started with"
        ),
    ):
        on_workers(terms(), {"north": rows}, 2)


def test_a_file_that_differs_between_workers_is_refused(tmp_path):
    frame = table()
    frame.to_parquet(tmp_path / "a.parquet")
    sizes = Files(str(tmp_path), DEFAULT_OPTIONS).heads().sizes
    frame.iloc[:-1].to_parquet(tmp_path / "a.parquet")
    with raised(ConfigError, "worker-rows-changed"):
        Files(str(tmp_path), DEFAULT_OPTIONS).rows([Range(0, 10)], sizes)
