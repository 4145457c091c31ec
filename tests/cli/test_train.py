"""A training over the network, as users type its commands."""

import json
import signal
import subprocess
import time

import pyarrow as pa
import pytest
from commands import done, objects, start
from sites import fedboost, rows, shared_out, terms, written

from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.tasks import terms_to_toml
from fedboost.views.aggregator import NEVER

INSECURE = "--insecure-loopback"
ALONE = 'parties = ["north"], protections = ["plain"], min_parties = 1, min_rows_per_leaf = 1 }\n'


@pytest.fixture
def processes():
    """Processes a test started; those that still run at its end are ended, by their ids."""
    started = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.slow
def test_the_whole_walk_by_hand(folder, processes):
    """Parties first, then the aggregator, then the analyst; and everything stops when told to."""
    tables = shared_out(3)
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    serving = start("aggregator", "--config", "aggregator.toml", "--json", INSECURE, stdout=subprocess.PIPE)
    processes.append(serving)
    listening = json.loads(serving.stdout.readline())
    assert listening["event"] == "listening"
    address = listening["address"]
    (folder / "three.toml").write_text(terms_to_toml(terms(tables)))
    for name, file in written(folder, tables).items():
        config = f'party = "{name}"\naggregator = "{address}"\ndata = "{file.name}"\n'
        (folder / f"{name}.toml").write_text(config)
        done("approve", "three.toml", "--config", f"{name}.toml", "--yes")
        once = ("--once",) if name == "east" else ()
        processes.append(start("party", "--config", f"{name}.toml", INSECURE, *once, stderr=subprocess.PIPE))
    end = done("train", "three.toml", "--aggregator", address, INSECURE, "--out", "m.json", "--json")
    assert (folder / "m.json").read_bytes() == simulate(terms(), tables).model.to_bytes()
    *rounds, last = objects(end.out)
    assert [line["round"] for line in rounds] == [0, 1, 2]
    assert set(last["traffic"]) == set(tables)
    assert "protection plain: the aggregator sees" in end.err
    *attending, once = processes[1:]
    assert once.wait(10) == 0
    for process, stop in zip(
        (*attending, serving), (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True
    ):
        assert process.poll() is None
        process.send_signal(stop)
        assert process.wait(10) == 0
    for process in processes[1:]:
        logged = process.stderr.read()
        assert "session done" in logged
        assert "Traceback" not in logged


@pytest.mark.slow
def test_a_party_that_is_to_attend_once_fails_with_its_session(folder, processes):
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    serving = start("aggregator", "--config", "aggregator.toml", "--json", INSECURE, stdout=subprocess.PIPE)
    processes.append(serving)
    address = json.loads(serving.stdout.readline())["address"]
    rows_of_words = rows().set_column(0, "age", pa.array(["old"] * rows().num_rows))
    (file,) = written(folder, {"north": rows_of_words}).values()
    config = f'party = "north"\naggregator = "{address}"\ndata = "{file.name}"\n'
    (folder / "party.toml").write_text(config + 'policy = { columns = "any", ' + ALONE)
    party = start("party", "--config", "party.toml", "--once", INSECURE, stderr=subprocess.PIPE)
    processes.append(party)
    (folder / "one.toml").write_text(terms_to_toml(terms(["north"])))
    end = fedboost("train", "one.toml", "--aggregator", address, INSECURE, "--out", "m.json")
    assert end.code == 2
    *_, last = end.err.splitlines()
    assert last.startswith("fedboost: ")
    assert "north" in last
    assert "its rows do not fit the terms" in last
    assert "'age'" not in last
    assert "old" not in last
    assert not (folder / "m.json").exists()
    assert party.wait(10) == 2
    *_, last = party.stderr.read().splitlines()
    assert last.startswith("fedboost: ")
    assert "'old' in row 1" in last


@pytest.mark.slow
def test_ctrl_c_ends_a_training_quietly(folder, processes):
    (folder / "aggregator.toml").write_text('listen = "127.0.0.1:0"\n')
    serving = start("aggregator", "--config", "aggregator.toml", "--json", INSECURE, stdout=subprocess.PIPE)
    processes.append(serving)
    address = json.loads(serving.stdout.readline())["address"]
    training = start(
        "train", "terms.toml", "--aggregator", address, INSECURE, "--out", "m.json", stderr=subprocess.PIPE
    )
    processes.append(training)
    assert training.stderr.readline() == f"waiting for north ({NEVER}), south ({NEVER})\n"
    training.send_signal(signal.SIGINT)
    assert training.wait(10) == 130
    assert "Traceback" not in training.stderr.read()
    time.sleep(0.1)
    assert serving.poll() is None
