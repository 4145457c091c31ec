"""Whoever is killed, stopped or full, nothing of a training is lost."""

import asyncio
import errno
import os

import pytest
from crashes import bare, crashed, stopped
from sites import consortium, in_time, shared_out, terms, until, written

from fedboost.errors import ConfigError
from fedboost.shell.aggregator_server import AggregatorServer
from fedboost.shell.config import AggregatorConfig
from fedboost.shell.loopback import ANYTHING
from fedboost.shell.simulation import simulate

THREE = ("north", "south", "east")
ROUNDS = 30


def undisturbed(agreement, tables):
    """The model file that the rows give, without signatures."""
    return bare(simulate(agreement, tables).model)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_killed_processes_that_come_back_change_nothing(tmp_path, protection):
    tables = shared_out(3)
    agreement = terms(THREE, rounds=ROUNDS, protection=protection)
    model, kills, _ = crashed(tmp_path, written(tmp_path, tables), agreement, 5, 1, ANYTHING)
    assert kills == 5
    assert bare(model) == undisturbed(agreement, tables)
    assert set(model.attestations) == set(THREE)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_party_that_sleeps_beyond_the_deadline_changes_nothing(tmp_path):
    tables = shared_out(3)
    agreement = terms(THREE, rounds=ROUNDS, protection="masked", turn_timeout=1.0)
    model, _ = stopped(tmp_path, written(tmp_path, tables), agreement, 3, ANYTHING)
    assert bare(model) == undisturbed(agreement, tables)


def test_a_full_disk_stops_the_aggregator_and_loses_nothing(tmp_path, monkeypatch):
    tables = shared_out(2)
    agreement = terms(["north", "south"], rounds=5)
    write, written_so_far = os.pwrite, []

    def filling_up(file, data, place):
        written_so_far.append(len(data))
        if len(written_so_far) == 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, place)

    monkeypatch.setattr(os, "pwrite", filling_up)

    async def scenario():
        async with consortium(tmp_path / "c", tables, state=tmp_path / "state") as one:
            training = asyncio.create_task(one.train(agreement))
            with pytest.raises(ConfigError, match=r"No space left on device; put that right and start"):
                await one.server.serve()
            await one.server.stop()
            config = AggregatorConfig(listen=one.address, state=tmp_path / "state")
            one.server = AggregatorServer(config, one.log, None)
            await one.server.start()
            model = (await training).model
            await until(lambda: not list((tmp_path / "state").glob("*.journal")))
            return model, one.log

    model, log = in_time(scenario())
    assert bare(model) == undisturbed(agreement, tables)
    assert len(log.named("session goes on")) == 1
    assert [node["reason"] for node in log.named("cannot go on")]


def test_a_journal_that_was_changed_is_refused_when_the_aggregator_starts(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "session-1.journal").write_bytes(b"something else")

    async def scenario():
        async with consortium(tmp_path / "c", {}, state=folder):
            pass

    with pytest.raises(ConfigError, match=r"session-1\.journal: not a journal of this version of fedboost"):
        in_time(scenario())
