"""A site's store under attack: files put back, processes killed, power lost, disks full. Nothing that the
site promised is forgotten silently."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from audit_logs import AuditLog, written
from memories import THREE, noisy
from raised import raised
from sites import fedboost, rows, terms
from sites import written as tables
from starts import SITE, Running, starts

from fedboost.errors import ConfigError, DurabilityError, Refused
from fedboost.protocol.site import Charge
from fedboost.runtime.site import memory as memory_file
from fedboost.runtime.site import store as store_file
from fedboost.runtime.site.approval import approve, approved_in, review, withdraw
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.store import Counter, head_of, reading
from tests.cli.test_privacy import lines, refused

VERIFY = Path(__file__).parents[3] / "docs" / "verify_export.py"
AGREED = noisy(1.2, rounds=18)
CHARGES = [release.cost for release in AGREED.plan.releases.values() for _ in range(release.times)]


@pytest.fixture
def site(tmp_path):
    """A site's file, without a budget."""
    tables(tmp_path, {"north": rows(8)})
    file = tmp_path / "party.toml"
    file.write_text(SITE)
    return file


def state(file):
    return memory_path(read_party(file)).parent


def held(file, name="s", turns=2, ends=True):
    """A session of the site, each of whose turns is charged."""
    with Running(file) as running:
        session = running.begin(name, AGREED)
        session.meet(1)
        for turn in range(1, turns + 1):
            running.answer(session, name, turn, Charge(f"{name} {turn}", CHARGES[turn]))
        if ends:
            running.end(session, name)


def facts(file):
    """What the store says that the site promised: sessions that met, charges and entries."""
    with reading(memory_path(read_party(file))) as store:
        met = {name for (name,) in store.execute("SELECT session FROM standings WHERE attempt > 0")}
        charged = {name for (name,) in store.execute("SELECT release FROM charges")}
        return met, charged, head_of(store, "north")[0]


# ---- files put back ---------------------------------------------------------------------------------


def test_an_older_counter_is_brought_up(site):
    held(site)
    counter = state(site) / "north.counter"
    older = counter.read_bytes()
    held(site, "t")
    counter.write_bytes(older)
    starts(site)
    assert Counter(memory_path(read_party(site)), "north").last()[0] == facts(site)[2]
    memory_path(read_party(site)).unlink()
    fedboost("privacy", "init", "--restored", "--config", site)
    assert facts(site)[:2] == ({"s", "t"}, {"s 1", "s 2", "t 1", "t 2"})


def test_a_counter_of_another_chain_is_refused(site, tmp_path):
    held(site)
    other = tmp_path / "other" / "party.toml"
    other.parent.mkdir()
    tables(other.parent, {"north": rows(8)})
    other.write_text(SITE)
    held(other, "other")
    shutil.copy(state(other) / "north.counter", state(site))
    with raised(ConfigError, "memory-behind-counter"):
        starts(site)


def test_a_store_that_was_put_back_takes_no_entry_of_a_decision(site):
    """An approval beside the party would otherwise count anew, and the party start as if nothing was lost."""
    held(site)
    store = memory_path(read_party(site))
    copy = store.read_bytes()
    held(site, "t")
    store.write_bytes(copy)
    config, agreement = read_party(site), terms(THREE, protection="masked")
    with raised(ConfigError, "memory-behind-counter"):
        approve_at(config, agreement)
    with raised(ConfigError, "memory-behind-counter"):
        starts(site)
    assert "this memory is older than" in refused("audit", store)


def test_who_shares_a_store_that_was_put_back_does_not_start(site):
    south = site.with_name("south.toml")
    south.write_text(SITE.replace('"north"', '"south"', 1))
    held(south, "t")
    store = memory_path(read_party(site))
    copy = store.read_bytes()
    held(site)
    held(south, "u")
    store.write_bytes(copy)
    for file in (site, south):
        with raised(ConfigError, "memory-behind-counter"):
            starts(file)


def test_all_files_put_back_show_in_an_export_that_was_kept(site, tmp_path):
    """Nothing at the site can notice it."""
    held(site)
    shutil.copytree(state(site), tmp_path / "copy")
    held(site, "t")
    store = memory_path(read_party(site))
    kept = lines("audit", store)[-1]["hash"]
    shutil.rmtree(state(site))
    shutil.copytree(tmp_path / "copy", state(site))
    starts(site)
    assert "was truncated or rewritten" in refused("audit", store, "--expect", kept)


def test_an_older_store_under_a_newer_write_ahead_log_is_noticed(site):
    """Its last entry is there, so by that it is no older."""
    for name in "abcd":
        held(site, name)
    store = memory_path(read_party(site))
    assert fedboost("audit", store, "--export", site.with_name("old.jsonl"), "--remove").code == 0
    copy = store.read_bytes()
    held(site, "t", 0)
    with Running(site) as running:
        running.memory.checked("ab" * 32, "", True)
        log = Path(f"{store}-wal").read_bytes()
    store.write_bytes(copy)
    Path(f"{store}-wal").write_bytes(log)
    with raised(ConfigError, "memory-behind-counter"):
        starts(site)
    assert fedboost("privacy", "init", "--restored", "--config", site).code == 0
    with Running(site) as running, raised(Refused, "session-ended"):
        running.begin("t", AGREED)


def test_a_counter_that_is_begun_anew_knows_all_that_the_store_knows(site):
    """So that the store may be lost after it."""
    held(site)
    (state(site) / "north.counter").unlink()
    for _ in range(2):
        assert fedboost("privacy", "init", "--restored", "--config", site).code == 0
        assert facts(site)[:2] == ({"s"}, {"s 1", "s 2"})
        memory_path(read_party(site)).unlink()


def test_a_store_that_knows_more_than_its_counter_is_not_put_back_by_it(site):
    """As after a crash between the two, by whom goes on with `--restored` at once."""
    config, agreement = read_party(site), terms(THREE, protection="masked")
    approve_at(config, agreement)
    with Running(site) as running:
        session = running.begin("s", AGREED)
        counter = state(site) / "north.counter"
        older = counter.read_bytes()
        session.meet(1)
    withdraw(config, agreement.digest, "")
    counter.write_bytes(older)
    assert fedboost("privacy", "init", "--restored", "--config", site).code == 0
    assert (approved_in(config), facts(site)[0]) == ([], {"s"})


def test_who_begins_to_share_a_store_is_not_forgotten_with_it(site):
    """What it spent is spent for all: its counter is there, though the copy that is put back has no entry of
    it."""
    south = site.with_name("south.toml")
    south.write_text(SITE.replace('"north"', '"south"', 1))
    held(site)
    out = site.with_name("north.tar.gz")
    assert fedboost("backup", "--config", site, "--out", out).code == 0
    held(south, "t")
    memory_path(read_party(site)).unlink()
    assert "older than south.counter" in refused("privacy", "init", "--restored", "--config", site)
    with raised(ConfigError, "memory-behind-counter"):
        starts(site)
    memory_path(read_party(site)).unlink()
    assert fedboost("restore", out, "--config", site).code == 0
    for file in (site, south):
        starts(file)
    assert facts(site)[1] == {"s 1", "s 2", "t 1", "t 2"}


def test_a_party_that_reads_its_own_log_keeps_the_locks_of_its_store(site):
    """Another process would otherwise take the write-ahead log away, as the last one to close the store."""
    config = read_party(site)
    with Running(site) as running:
        session = running.begin("s", AGREED)
        read_log(memory_path(config), "north")
        child = os.fork()
        if child == 0:
            try:
                approve_at(config, terms(THREE, protection="masked"))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        running.answer(session, "s", 1)
    assert len(approved_in(config)) == 1


def test_a_party_may_write_its_first_entry_while_its_memory_is_checked(site, monkeypatch):
    config, parties_of = read_party(site), store_file.parties_of
    with Running(site) as running:

        def then_one_more(file):
            found = parties_of(file)
            monkeypatch.undo()
            running.answer(running.begin("s", AGREED), "s", 1)
            return found

        monkeypatch.setattr(store_file, "parties_of", then_one_more)
        approve_at(config, terms(THREE, protection="masked"))
    assert len(approved_in(config)) == 1


# ---- processes killed -------------------------------------------------------------------------------


DONE = "done"


def approve_at(config, agreement):
    from datetime import UTC, datetime

    approve(config, agreement, review(config, agreement, ()), datetime.now(UTC))


def life(file, say):
    """All that a site writes: says each thing once it could have left."""
    approve_at(read_party(file), terms(THREE, protection="masked"))
    say("approved")
    with Running(file) as running:
        session = running.begin("s", AGREED)
        session.meet(1)
        say("met")
        for turn in (1, 2):
            running.answer(session, "s", turn, Charge(f"s {turn}", CHARGES[turn]))
            say(f"s {turn}")
        running.answer(session, "s", 3)
        say("turn 3")
        running.end(session, "s")
    say("ended")
    say(DONE)


def killed_at(file, place):
    """What a process said that was killed at this place, of those before and after each write of `life`."""
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        left = [place]

        def tick():
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        def between_writes(write):
            def written(*arguments):
                tick()
                result = write(*arguments)
                tick()
                return result

            return written

        try:
            store_file.put = memory_file.put = between_writes(store_file.put)  # a row of a transaction
            counter = store_file.Counter  # after the transaction's end
            counter.count = between_writes(counter.count)
            os.fsync = between_writes(os.fsync)
            life(file, lambda text: os.write(writing_end, f"{text}\n".encode()))
        finally:
            os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading_end) as said:
        texts = said.read().split("\n")[:-1]
    os.waitpid(child, 0)
    return texts


def check_kept(file, said):
    """Nothing that was said is forgotten, and the party starts."""
    with Running(file):
        pass
    met, charged, _ = facts(file)
    assert ("met" in said) <= ("s" in met)
    assert {text for text in said if text.startswith("s ")} <= charged
    assert ("approved" in said) <= bool(approved_in(read_party(file)))
    entries = read_log(memory_path(read_party(file)))
    turns = {entry.event.turn for entry in entries if entry.event.kind == "released"}
    assert {1, 2, 3} & {int(text[-1]) for text in said if text[-1].isdigit()} <= turns
    assert ("ended" in said) <= any(entry.event.kind == "ended" for entry in entries)
    logged = {entry.event.charge for entry in entries if entry.event.kind == "released"} - {None}
    assert logged == charged  # of one transaction
    with reading(memory_path(read_party(file))) as store:
        asked = {turn for (turn,) in store.execute("SELECT turn FROM questions")}
    assert asked in (turns, set())


@pytest.mark.slow
def test_a_process_that_is_killed_between_any_two_writes_forgets_nothing(site):
    place, said = 0, []
    while DONE not in said:
        shutil.rmtree(site.parent / "fedboost.state", ignore_errors=True)
        said = killed_at(site, place)
        check_kept(site, said)
        place += 1
        assert place < 400
    assert place > 60


def test_two_processes_that_write_at_once_make_one_chain(site):
    """A party that answers, and a person who approves meanwhile."""
    config = read_party(site)
    starts(site)
    child = os.fork()
    if child == 0:
        try:
            with Running(site) as running:
                session = running.begin("s", AGREED)
                for turn in range(1, 60):
                    running.answer(session, "s", turn)
            os._exit(0)
        finally:
            os._exit(1)
    agreements = [terms(THREE, protection="masked", rounds=number) for number in range(1, 9)]
    for agreement in agreements:
        approve_at(config, agreement)
    assert os.waitpid(child, 0)[1] == 0
    kinds = [entry.event.kind for entry in read_log(memory_path(config))]
    assert (kinds.count("released"), kinds.count("approved")) == (59, 8)
    assert Counter(memory_path(config), "north").last()[0] == len(kinds)
    assert len(approved_in(config)) == 8


# ---- power lost -------------------------------------------------------------------------------------


SECTOR = 512


def torn(draw, whole, synced):
    """A file of which only so many bytes were synced: of the rest any sectors, in any order."""
    size = draw.choice([synced, len(whole), draw.randint(synced, len(whole))])
    data = bytearray(whole[:size])
    for start in range(synced - synced % SECTOR, size, SECTOR):
        if start >= synced and draw.random() < 0.3:
            data[start : start + SECTOR] = bytes(len(data[start : start + SECTOR]))
    return bytes(data)


@pytest.mark.slow
def test_whatever_of_the_unsynced_writes_is_on_the_disk_what_was_synced_is_known(site):
    """Charges wait for the disk, and turns do not. Either the party goes on, or it says that it may have
    forgotten turns, and goes on by a person's command; a session or a charge is never lost."""
    store, known = memory_path(read_party(site)), {}
    counter, log = store.with_name("north.counter"), Path(f"{store}-wal")
    history = []
    with Running(site) as running:
        session = running.begin("s", AGREED)

        def note(durable):
            known.update({"wal": log.read_bytes(), "counter": counter.read_bytes()})
            history.append((durable, len(known["wal"]), len(known["counter"])))

        note(durable=True)
        for turn in range(1, 9):
            charge = Charge(f"s {turn}", CHARGES[turn]) if turn % 4 == 0 else None
            running.answer(session, "s", turn, charge)
            note(durable=charge is not None)
        database = store.read_bytes()
    draw, ends = random.Random(1), {"went on": 0, "asked": 0}
    for _ in range(80):
        now = draw.randrange(len(history))
        synced = max(number for number in range(now + 1) if history[number][0])
        _, wal_synced, counter_synced = history[synced]
        if now == synced and synced and draw.random() < 0.5:  # the power failed before the counter's sync
            counter_synced = history[synced - 1][2]
        _, wal_size, counter_size = history[now]
        shutil.rmtree(store.parent)
        store.parent.mkdir(parents=True)
        store.write_bytes(database)
        log.write_bytes(torn(draw, known["wal"][:wal_size], wal_synced))
        counter.write_bytes(torn(draw, known["counter"][:counter_size], counter_synced))
        try:
            starts(site)
            ends["went on"] += 1
        except ConfigError as error:
            assert "or the power failed" in str(error)  # noqa: PT017
            assert fedboost("privacy", "init", "--restored", "--config", site).code == 0
            starts(site)
            ends["asked"] += 1
            with Running(site) as running, pytest.raises(Refused, match="has already ended session s"):
                running.begin("s", AGREED)
        with reading(store) as file:
            charged = {name for (name,) in file.execute("SELECT release FROM charges")}
            assert file.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        assert charged >= {f"s {turn}" for turn in range(4, synced + 1, 4)}
        read_log(store)
    assert min(ends.values()) > 5


# ---- full disks -------------------------------------------------------------------------------------


def test_a_counter_that_cannot_be_written_lets_nothing_leave_and_is_made_up_for(site, monkeypatch):
    with Running(site) as running:
        session = running.begin("s", AGREED)
        write = os.write

        def full(file, data):
            write(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(DurabilityError, match=r"north\.counter: cannot write .*No space left"):
                running.answer(session, "s", 1, Charge("s 1", CHARGES[1]))
    starts(site)
    assert facts(site) == (set(), {"s 1"}, 2)
    store = memory_path(read_party(site))
    assert Counter(store, "north").last()[0] == 2
    store.unlink()
    fedboost("privacy", "init", "--restored", "--config", site)
    assert facts(site)[1] == {"s 1"}  # the counter got it, too


def test_a_decision_that_could_not_be_counted_is_counted_with_the_next_entry(site, monkeypatch):
    """Of another process: the party itself goes on."""
    config, agreement = read_party(site), terms(THREE, protection="masked")
    approve_at(config, agreement)

    def full(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Running(site) as running:
        session = running.begin("s", AGREED)
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with raised(ConfigError, "decision-not-written"):
                withdraw(config, agreement.digest, "")
        running.answer(session, "s", 1)
    memory_path(config).unlink()
    assert fedboost("privacy", "init", "--restored", "--config", site).code == 0
    assert approved_in(config) == []


# ---- exports ----------------------------------------------------------------------------------------


def verify(file, *hashes):
    """What the script in the docs says, without fedboost: exit code and words."""
    words = [sys.executable, "-I", str(VERIFY), str(file), *hashes]
    end = subprocess.run(words, capture_output=True, text=True, check=False)
    return end.returncode, (end.stdout + end.stderr).strip()


def test_an_export_is_verified_without_fedboost(tmp_path):
    path, file = tmp_path / "north.sqlite", tmp_path / "north.jsonl"
    written(path)
    end = fedboost("audit", path, "--export", file)
    assert (end.code, end.err) == (0, ""), end.err
    assert file.stat().st_mode & 0o777 == 0o600
    entries, kept = read_log(file), lines("audit", file)[-1]["hash"]
    assert entries == read_log(path)
    assert fedboost("audit", file).out.replace(str(file), str(path)) == fedboost("audit", path).out
    assert (
        verify(file)
        == verify(file, kept)
        == (0, f"unbroken from entry 1 to entry 5, which has the hash {kept}")
    )
    assert verify(file, "ab" * 32)[0] == 1
    whole = file.read_bytes().splitlines(keepends=True)
    assert len(VERIFY.read_text().splitlines()) < 40
    for changed in (
        [*whole[:2], *whole[3:]],
        [whole[1], whole[0], *whole[2:]],
        [whole[0].replace(b'"attempt":1', b'"attempt":2'), *whole[1:]],
        [*whole[:-1], whole[-1].replace(b"rounds", b"Rounds")],
        [whole[0][:-2] + b',"more":1}\n', *whole[1:]],
        [b'{"terms":"%s","text":"",' % sha256().hexdigest().encode() + whole[0][1:], *whole],  # an entry more
    ):
        file.write_bytes(b"".join(changed))
        assert verify(file)[0] == 1
    assert "the line has no terms, or was changed" in refused("audit", file)
    assert "already exists" in refused("audit", path, "--export", file)
    assert "no entries were removed" in refused("audit", path, "--export", "/dev/null", "--remove")
    assert read_log(path) == entries


def test_entries_that_were_exported_are_removed_and_the_chain_goes_on(tmp_path):
    path, file, later = tmp_path / "north.sqlite", tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    written(path)
    before = read_log(path)
    assert fedboost("audit", path, "--export", file, "--remove").code == 0
    written(path)
    entries = read_log(path)
    assert [entry.n for entry in entries] == [*range(6, 12)]
    assert (entries[0].event.kind, entries[0].event.last) == ("exported", before[-1].hash)
    assert fedboost("audit", path, "--expect", before[-1].hash).code == 0
    assert fedboost("audit", path, "--export", later).code == 0
    assert [verify(each)[0] for each in (file, later)] == [0, 0]
    both = tmp_path / "both.jsonl"
    both.write_bytes(file.read_bytes() + later.read_bytes())
    assert read_log(both) == [*before, *entries]
    assert verify(both, before[2].hash, entries[-1].hash)[0] == 0
    with AuditLog(path) as log:
        log.ended("t", "")  # its counter goes on with it
    assert read_log(path)[-1].n == 12


def test_a_log_of_several_parties_is_named(site):
    south = site.with_name("south.toml")
    south.write_text(SITE.replace('"north"', '"south"', 1))
    held(site)
    held(south, "t")
    store = memory_path(read_party(site))
    assert "has logs of north, south; select one with --party" in refused("audit", store)
    assert {entry.event.session for entry in read_log(store, "south")} == {"t"}
    assert "The log of party south." in fedboost("audit", store, "--party", "south").out


def test_decisions_are_in_the_log_and_its_audit(site):
    config, agreement = read_party(site), terms(THREE, protection="masked")
    approve_at(config, agreement)
    assert fedboost("approve", agreement.digest[:8], "--config", site, "--withdraw").code == 0
    kinds = [entry.event.kind for entry in read_log(memory_path(config))]
    assert kinds == ["approved", "withdrawn"]
    text = " ".join(fedboost("audit", memory_path(config)).out.split())
    assert f"approved {agreement.digest[:12]}" in text
    assert f"withdrawn {agreement.digest[:12]}" in text
    assert "0 approvals of this site have a digest" in refused(
        "approve", "ab", "--config", site, "--withdraw"
    )
