"""Ctrl-C at a training: once ends it with the rounds so far, twice stops it at once."""

import os
import signal
import subprocess
import threading
import time

import pytest
from anything import ANYTHING
from commands import objects, start
from sites import fedboost, rows, shared_out, terms, written

from fedboost.cli.train import Interruption
from fedboost.runtime.data.table import as_table
from fedboost.runtime.local.cluster import LocalCluster
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.tasks import terms_to_toml

ROUNDS = 3000
SIMULATE = ("simulate", "terms.toml", "--data", "rows.csv", "--site", "site", "--out", "m.json")


@pytest.fixture
def pressed(monkeypatch):
    """Ctrl-C is pressed after these rounds, counted from 1: a list to fill."""
    pressed = []

    def count(self):
        Interruption.counted(self)
        for _ in range(pressed.count(self._rounds)):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Interruption, "counted", Interruption.count, raising=False)
    monkeypatch.setattr(Interruption, "count", count)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield pressed
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def long(folder):
    """A folder with terms of many rounds."""
    (folder / "terms.toml").write_text(terms_to_toml(terms(rounds=30)))
    return folder


def test_one_ends_a_simulation_with_the_rounds_so_far(long, pressed):
    pressed.append(4)
    end = fedboost(*SIMULATE)
    assert end.code == 0, end.err
    line = "stopping after the current round (4 done); press Ctrl-C again to stop immediately, without saving"
    assert line in end.err.splitlines()
    assert "stopped after 5 of 30 rounds" in end.out
    table = as_table(rows())
    sites = {
        name: table.filter([each == name for each in table["site"].to_pylist()])
        for name in ("north", "south", "east")
    }
    due = simulate(terms(rounds=5), sites).model
    assert Model.load("m.json").fingerprint == due.fingerprint
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_stop_it_at_once(long, pressed):
    pressed.extend([4, 4])
    end = fedboost(*SIMULATE)
    assert end.code == 130
    assert end.err.splitlines()[-1] == "fedboost: interrupted; nothing was saved"
    assert not (long / "m.json").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_stops_at_once_what_has_no_round_yet(long, pressed, monkeypatch):
    pressed.append(0)
    monkeypatch.setattr(Interruption, "count", lambda self: signal.raise_signal(signal.SIGINT))
    end = fedboost(*SIMULATE)
    assert end.code == 130
    assert "stopping" not in end.err
    assert not (long / "m.json").exists()


def test_one_that_is_switched_off_stays_off(long, pressed):
    """As nohup and scripts with `&` have it."""
    pressed.append(4)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = fedboost(*SIMULATE)
    assert end.code == 0, end.err
    assert len(Model.load("m.json").rounds) == 30


# ---- over the network -------------------------------------------------------------------------------


def interrupted(times, *arguments):
    """Run a command in a process group of its own, as a terminal does; press Ctrl-C after some rounds."""
    process = start(
        *arguments, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        lines = []
        while len(lines) < 3:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            lines += [line] if '"round"' in line else []
        os.killpg(process.pid, signal.SIGINT)
        err = process.stderr.readline()
        while "stopping after" not in err:
            assert err
            err = process.stderr.readline()
        for _ in range(times - 1):
            os.killpg(process.pid, signal.SIGINT)
        late = threading.Timer(30, process.kill)
        late.start()
        out, err = process.stdout.read(), process.stderr.read()  # communicate() would lose what is buffered
        process.wait(10)
        late.cancel()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        process.stdout.close()
        process.stderr.close()
    return process.returncode, objects("".join(lines) + out), err


@pytest.mark.slow
def test_a_training_over_the_network(tmp_path):
    tables = shared_out(3)
    agreed = terms([*tables], rounds=ROUNDS, protection="masked")
    (tmp_path / "long.toml").write_text(terms_to_toml(agreed))
    with LocalCluster(tmp_path, written(tmp_path, tables), policy=ANYTHING, state=tmp_path / "s") as one:
        keys = ("--aggregator", one.address, "--keys", one.keys / "analyst")
        for times, out in ((2, tmp_path / "twice.json"), (1, tmp_path / "once.json")):
            arguments = ("train", tmp_path / "long.toml", *keys, "--out", out)
            code, (*lines, last), err = interrupted(times, *map(str, arguments))
            assert "Traceback" not in err
            assert code == (130 if times == 2 else 0), err
            assert out.exists() == (times == 1)
        assert [process.poll() for process in (one.aggregator, *one.parties.values())] == [None] * 4
    assert last["event"] == "done"
    assert last["signed_by"] == [*tables]
    assert 3 <= len(lines) < ROUNDS
    due = simulate(agreed.changed(rounds=len(lines)), tables).model
    assert last["fingerprint"] == due.fingerprint


@pytest.mark.slow
@pytest.mark.long
def test_a_demo(folder):
    options = ("--out", "d", "--rounds", str(ROUNDS))
    code, (*lines, last), err = interrupted(1, "demo", *options)
    assert code == 0, err
    assert last["equal"] is True
    assert 3 <= len(lines) == len(Model.load("d/model.json").rounds) < ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "describe"])
def test_one_ends_the_wait_for_an_aggregator_at_once(folder, command):
    (folder / "terms.toml").write_text(terms_to_toml(terms(["north", "south"])))
    out = ("--out", "m.json") if command == "train" else ()
    words = command, "terms.toml", "--aggregator", "127.0.0.1:1", "--insecure-loopback", *out
    process = start(*words, stderr=subprocess.PIPE, start_new_session=True)
    try:
        line = "waiting for the aggregator at 127.0.0.1:1, which does not answer yet\n"
        assert process.stderr.readline() == line
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 10.0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
    assert (process.returncode, err) == (130, "fedboost: interrupted; nothing was saved\n")
