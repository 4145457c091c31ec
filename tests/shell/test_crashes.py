"""Whoever is killed, stopped or full, nothing of a training is lost."""

import asyncio
import errno
import os

import numpy as np
import pytest
from crashes import bare, crashed, stopped
from sites import consortium, in_time, shared_out, terms, until, written

from fedboost.errors import ConfigError
from fedboost.gbdt.tree import Tree
from fedboost.protocol.journal import Begun, Gathered, Grew, Opened
from fedboost.protocol.queries import RowsQuery, digest
from fedboost.shell.aggregator_server import AggregatorServer
from fedboost.shell.config import AggregatorConfig
from fedboost.shell.loopback import ANYTHING
from fedboost.shell.simulation import simulate
from fedboost.shell.store import Folder

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


AGREED = terms(["north", "south", "east"], on_loss="shrink")
FIRST = Begun("s", AGREED, "")
GATHERED = Gathered(1, AGREED.parties)
COUNTS = RowsQuery().cells


def journals(folder, *sessions):
    """The journals of these sessions, in a folder of their own; its path."""
    held = Folder(folder)
    for number, records in enumerate(sessions):
        one = held.begin(f"session-{number}")
        for record in records:
            one.append(record)
        one.close()
    held.close()
    return folder


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([GATHERED], "does not begin with its terms"),
        ([Begun("s", terms(), "")], "its terms name no parties"),
        ([Begun("s", AGREED.changed(program="mine:too"), "")], "program 'mine:too' is not offered here"),
        ([FIRST, FIRST], "the session begins twice"),
        ([FIRST, GATHERED, GATHERED], "attempt 1 of 3 parties cannot follow"),
        ([FIRST, GATHERED, Gathered(2, ("north", "south"))], "attempt 2 of 2 parties cannot follow"),
        ([FIRST, GATHERED, Grew(1, Tree(), (), (), 1)], "a tree in turn 1 that does not grow there"),
        ([FIRST, GATHERED, Opened(1, b"x" * 32, np.ones(COUNTS, np.int64))], "does not ask for"),
        ([FIRST, GATHERED, Opened(1, digest(RowsQuery()), np.ones(7, np.int64))], "another size"),
        (
            [FIRST, GATHERED, Opened(1, digest(RowsQuery()), np.zeros(COUNTS, np.int64)), Gathered(2, THREE)],
            "count 0 rows in all",
        ),
    ],
)
def test_a_journal_that_cannot_be_is_refused_by_name_when_the_aggregator_starts(tmp_path, records, said):
    folder = journals(tmp_path / "state", records)
    kept = (folder / "session-0.journal").read_bytes()

    async def scenario():
        async with consortium(tmp_path / "c", {}, state=folder):
            pass

    with pytest.raises(ConfigError) as caught:
        in_time(scenario())
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{folder / 'session-0.journal'}: ")
    assert str(caught.value).endswith("move the file away to go on without it")
    assert "\n" not in str(caught.value)
    assert (folder / "session-0.journal").read_bytes() == kept


def test_a_program_that_breaks_over_the_sums_of_a_journal_is_refused_by_name(tmp_path):
    begun = Begun("s", AGREED.changed(program="sites:fails_later"), "")
    sums = Opened(1, digest(RowsQuery()), np.ones(COUNTS, np.int64))
    folder = journals(tmp_path / "state", [begun, GATHERED, sums])

    async def scenario():
        async with consortium(tmp_path / "c", {}, ["sites:fails_later"], state=folder):
            pass

    with pytest.raises(ConfigError, match=r"session-0\.journal: the program fails over these sums: ZeroDiv"):
        in_time(scenario())


def test_an_analyst_stops_a_session_that_waits_for_another(tmp_path):
    """Both are of an earlier process. The other one goes on, and no party hears of it."""
    later = AGREED.changed(rounds=7)
    folder = journals(tmp_path / "state", [FIRST, GATHERED], [Begun("t", later, ""), GATHERED])

    async def scenario():
        async with consortium(tmp_path / "c", {}, state=folder) as one:
            await asyncio.to_thread(one.analyst.train(later).stop)
            left = [path.name for path in folder.glob("*.journal")]
            await asyncio.to_thread(one.analyst.train(AGREED).stop)
            return left, [path.name for path in folder.glob("*.journal")]

    assert in_time(scenario()) == (["session-0.journal"], [])
