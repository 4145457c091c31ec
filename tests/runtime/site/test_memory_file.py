"""A site's memory on disk: what it noted is there after a crash, or the process does not go on."""

import math
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from memories import BUDGET, LONG, THREE, begun, cost_of, noisy, opened, question, spend_all
from raised import raised
from sites import terms

from fedboost.boosting.queries.columns import RangeQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, DurabilityError, LocalProtocolError, Refused
from fedboost.holders.columns import holder_for
from fedboost.holders.shard import Shard
from fedboost.privacy import noise as accounting
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import NOWHERE
from fedboost.protocol.messages import Leave, Offer
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Budget, Site, Spending
from fedboost.runtime.site import store
from fedboost.runtime.site.memory import FileMemory, read_spent
from fedboost.runtime.site.store import NAME, make_file

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / NAME


def files_with(folder, data):
    """The files in a folder in which some bytes are."""
    return [file.name for file in folder.iterdir() if file.is_file() and data in file.read_bytes()]


# ---- what is kept -----------------------------------------------------------------------------------


def test_the_memory_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        path = tmp_path / "state" / "patients" / NAME
        with opened(path) as memory:
            begun(memory).ask(question(1), NOWHERE, NOWHERE)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
            kept = {NAME, "north.counter", "north.counter-lock", "north.lock"}
            assert modes == dict.fromkeys({f"{NAME}-shm", f"{NAME}-wal", *kept}, 0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {file.name for file in path.parent.iterdir()} == kept


def test_a_secret_is_gone_from_the_disk_with_its_session(path):
    with opened(path) as memory:
        session = begun(memory)
        secret, asked = session.secret, question(3)
        digest = asked.digest.hex().encode()
        session.ask(asked, NOWHERE, asked.after)
        assert files_with(path.parent, secret)
        assert files_with(path.parent, digest)
        session.end("")
        assert files_with(path.parent, secret) == files_with(path.parent, digest) == []
        for late in (lambda: session.secret, session.sign, lambda: session.charge("a", 0.1)):
            with raised(LocalProtocolError, "session-ended"):
                late()
        with raised(Refused, "session-ended"):
            begun(memory)


def test_a_secret_that_a_killed_process_left_in_the_log_is_overwritten_at_the_next_opening(
    path, tmp_path, monkeypatch
):
    left = tmp_path / "left"
    with opened(path) as memory:
        session = begun(memory)
        secret = session.secret
        with monkeypatch.context() as patch:
            patch.setattr(FileMemory, "overwrite", lambda self: shutil.copytree(path.parent, left))
            session.end("")  # the copy is what a kill leaves here
    assert files_with(left, secret) == [f"{NAME}-wal"]
    with opened(left / NAME) as memory:
        assert memory.sessions == 1
        assert files_with(left, secret) == []


def test_a_session_without_noise_has_its_secret_too_and_spends_nothing(path):
    with opened(path, budget=None) as memory:
        session = begun(memory, agreement=terms(THREE))
        assert len(session.secret) == 32
        with raised(Refused, "session-over-plan"):
            session.charge("one", 0.1)
    assert (read_spent(path).with_noise, cost_of(path)) == (0, 0.0)


def test_a_release_is_charged_once_and_sessions_add(path):
    agreement = noisy()
    with opened(path) as memory:
        spend_all(memory, "s", agreement)
    with opened(path) as memory:
        spend_all(memory, "s", agreement)  # a restart; all of it was charged
        assert cost_of(path) == pytest.approx(agreement.plan.cost, rel=1e-12, abs=0)
        spend_all(memory, "t", agreement).end("")
    spent = read_spent(path)
    assert spent.cost == pytest.approx(2 * agreement.plan.cost, rel=1e-12, abs=0)
    assert (spent.sessions, spent.releases) == (2, 8)
    assert spent.epsilon(1e-5) == accounting.epsilon_of(math.sqrt(spent.cost), 1e-5)


def test_a_memory_is_of_one_dataset(path, tmp_path):
    other = tmp_path / "other" / NAME
    with opened(path, budget=BUDGET) as one, opened(other, "others", BUDGET) as two:
        spend_all(one, "s", noisy(1.2))
        spend_all(two, "s", noisy(1.2))
        with pytest.raises(Refused):
            begun(one, "t", noisy(0.5))
    assert (read_spent(path).dataset, read_spent(other).dataset) == ("patients", "others")
    assert cost_of(path) == cost_of(other)
    with raised(ConfigError, "memory-other-dataset"):
        FileMemory(other, "north", "patients")


# ---- answers ----------------------------------------------------------------------------------------


def tag(roster=THREE, turn=1):
    """Of an answer."""
    return Tag(turn, 1, roster, b"", ())


def test_the_same_answer_after_a_restart_is_the_same_bytes_and_another_roster_is_charged(path):
    agreement, query = noisy(), RangeQuery(1 << 40, 2, 512)
    values = np.arange(query.cells)
    with opened(path) as memory:
        spending = Spending(agreement, begun(memory, agreement=agreement))
        before, _ = spending.release(query, INITIAL_STATE, tag(), values)
    once = cost_of(path)
    with opened(path) as memory:
        spending = Spending(agreement, begun(memory, agreement=agreement))
        assert (spending.release(query, INITIAL_STATE, tag(turn=7), values)[0] == before).all()
        assert cost_of(path) == once
        fewer, _ = spending.release(query, INITIAL_STATE, tag(THREE[:2]), values)
        charges = {
            spending.release(query, INITIAL_STATE, tag(roster), values)[1]
            for roster in (THREE, THREE[:2], THREE[:2])
        }
    assert np.mean(fewer == before) < 0.5
    assert cost_of(path) == 2 * once == math.fsum(charge.cost for charge in charges)


def test_a_session_whose_plan_does_not_fit_leaves_before_it_reads_a_row(path):
    with opened(path, budget=Budget(0.5, 1e-5)) as memory:
        site = Site(
            "north", holder_for(lambda _: pytest.fail("rows were read"), "north"), os.urandom, memory=memory
        )
        (reply,) = PartySession(site).handle(Offer("s", noisy()))
    assert isinstance(reply, Leave)
    assert "has only 0.5 left" in reply.reason


@pytest.mark.parametrize("noise", [None, {"epsilon": 1.0, "delta": 1e-5, "placement": "local"}])
def test_a_session_goes_on_with_the_rows_it_began_with_and_no_others(path, noise):
    """Of two answers to one question, about rows before and after a change, the difference would show what
    changed; at ebe8635 only sessions with noise were held to their rows."""
    agreement = noisy(protection="plain", noise=noise)
    columns = tuple(np.arange(8, dtype=np.float32) for _ in range(3))

    def joined(session, rows=slice(None), label=0.0):
        labels, weights = np.full(8, label, np.float32)[rows], np.ones(8, np.float32)[rows]
        shard = Shard(tuple(column[rows] for column in columns), labels, weights)
        with opened(path) as memory:
            party = PartySession(
                Site("north", holder_for(lambda _: shard, "north"), os.urandom, memory=memory)
            )
            (reply,) = party.handle(Offer(session, agreement))
        return (reply.reason, party.ended) if isinstance(reply, Leave) else "joined"

    fewer = slice(1, None)
    assert joined("s") == joined("s") == joined("t", fewer) == "joined"
    for session, other in (("s", {"rows": fewer}), ("t", {"label": 1.0, "rows": fewer})):
        outside, own = joined(session, **other)
        assert outside == f"party north does not continue session {session}; train again"
        assert "its rows differ from those that the session started with" in own
    assert "has already ended session s" in joined("s")[0]


def test_a_memory_that_cannot_be_written_lets_nothing_leave(path):
    for gone in (path, path.with_name(f"{NAME}-wal")):
        with opened(path) as memory:
            begun(memory, f"before {gone.name}")
            site = Site(
                "north",
                holder_for(lambda _: pytest.fail("rows were read"), "north"),
                os.urandom,
                memory=memory,
            )
            gone.rename(path.parent / "away")
            with pytest.raises(DurabilityError, match="was removed or replaced"):
                list(PartySession(site).handle(Offer("s", noisy())))
            (path.parent / "away").rename(gone)


# ---- processes --------------------------------------------------------------------------------------


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [".", "tests/helpers"]
from fedboost.errors import Refused
from fedboost.protocol.contracts import NOWHERE
from fedboost.runtime.site.memory import FileMemory
from memories import BUDGET, LONG, THREE, begun, question
path, party, work = Path(sys.argv[1]), *sys.argv[2:]
memory = FileMemory(path, party, "patients", BUDGET if party in THREE else None)
session = begun(memory, f"s {party}", LONG)
costs = [release.cost for release in LONG.plan.releases.values() for _ in range(release.times)]
print("ready", flush=True)
sys.stdin.readline()
try:
    for number in range(20):
        if work == "charge":
            session.charge(f"{number}", costs[number])
        else:
            session.ask(question(number), NOWHERE, question(number).after)
        print(number, flush=True)
except Refused:
    print("refused", flush=True)
if work == "ask":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def working(path, party="north", work="charge"):
    """A process of a party that notes one thing after another, once it is told to begin."""
    words = [sys.executable, "-c", CHILD, str(path), party, work]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=ROOT, env=environment, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_two_processes_do_not_both_spend_the_last(path):
    make_file(path, "patients")
    with working(path) as one, working(path, "south") as other:
        for process in (one, other):
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate()[0].split() for process in (one, other)]
    charged = sum(len(lines) - ("refused" in lines) for lines in outputs)
    assert any("refused" in lines for lines in outputs)
    spent = read_spent(path)
    assert spent.releases == charged < 40
    assert 0.9 * BUDGET.cost < spent.cost <= BUDGET.cost


def test_a_party_has_one_process(path):
    make_file(path, "patients")
    with working(path):
        with raised(ConfigError, "memory-in-use"):
            FileMemory(path, "north", "patients")
        with opened(path, party="south") as memory:
            begun(memory)
        assert read_spent(path).sessions == 2


@pytest.mark.slow
def test_a_question_that_was_noted_by_a_process_that_was_killed_is_known(path):
    make_file(path, "patients")
    with working(path, work="ask") as process:
        process.communicate("\n")
        assert process.returncode == -signal.SIGKILL
    with opened(path) as memory:
        standing = begun(memory, "s north", LONG).standing
    assert standing.questions == tuple(question(number) for number in range(20))
    assert standing.reached == question(19).after


# ---- files that are no memory -----------------------------------------------------------------------


@pytest.mark.slow
def test_no_byte_of_a_memory_can_be_changed_or_cut_off_unseen(path, tmp_path):
    with opened(path) as memory:
        spend_all(memory, "s", noisy()).ask(question(1), NOWHERE, NOWHERE)
    data, before = path.read_bytes(), read_spent(path)
    (other := tmp_path / "other" / NAME).parent.mkdir()
    found = 0
    for place in range(0, len(data), 37):
        for file in other.parent.iterdir():
            file.unlink()
        other.write_bytes(data[:place] + bytes([data[place] ^ 0x24]) + data[place + 1 :])
        try:
            assert read_spent(other) == before, place  # what no row and no page needs
        except ConfigError:
            found += 1
    assert found > 20
    for size in range(0, len(data), 511):
        other.write_bytes(data[:size])
        with pytest.raises(ConfigError):
            FileMemory(other, "north", "patients")
        assert other.stat().st_size == size  # it was not begun again


def test_another_file_is_no_memory(path):
    for content in (b"", b"party,epsilon\n" * 100):
        path.write_bytes(content)
        with raised(ConfigError, "memory-damaged"):
            FileMemory(path, "north", "patients")
        assert path.read_bytes() == content
    path.unlink()
    sqlite3.connect(path).executescript("CREATE TABLE charges (cost)").connection.close()
    with raised(ConfigError, "memory-version"):
        FileMemory(path, "north", "patients")
    with raised(ConfigError, "memory-unreadable"):
        FileMemory(path.parent, "north", "patients")
    with raised(ConfigError, "memory-exists"):
        make_file(path, "patients")


def test_a_disk_that_is_full_is_one_line_and_notes_nothing(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as memory:
        session = begun(memory)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
            for note in (lambda: session.charge("one", 0.01), lambda: session.meet(1)):
                with pytest.raises(DurabilityError, match="cannot write this memory"):
                    note()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert cost_of(path) == 0.0
        assert session.standing.attempt == 0
        session.charge("one", 0.01)
        session.meet(1)
    assert cost_of(path) == 0.01


def test_a_memory_that_cannot_be_begun_or_is_held_is_one_line(path, monkeypatch):
    (path.parent / "file").write_text("")
    with raised(ConfigError, "state-folder-unwritable"):
        make_file(path.parent / "file" / "folder" / NAME, "patients")
    with opened(path) as memory:
        pass
    monkeypatch.setattr(store, "PATIENCE", 0.05)
    with opened(path) as memory:
        session = begun(memory)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DurabilityError, match="locked"):
            session.charge("one", 0.1)
        holder.close()
