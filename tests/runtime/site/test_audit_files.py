"""An audit log goes on in the next file when one is full: nothing is lost, and it is one chain."""

import dataclasses
import os
import shutil

import pytest
from audit_logs import PAIR, PLACE, RELEASE
from memories import ANY
from refusals import refusal
from sites import fedboost, terms
from starts import Running, starts

from fedboost.errors import ConfigError, DurabilityError
from fedboost.protocol.site import SessionOffer
from fedboost.runtime.site import audit
from fedboost.runtime.site.audit import NO_LOG, AuditLog, end_of, entries_after, lines_of, read_log
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from tests.runtime.site.test_memory_start import held, site

__all__ = ["site"]
SMALL = 2000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.audit.jsonl"


def write(path, sessions):
    """Sessions of three answers each, in files of a few lines."""
    with AuditLog(path, SMALL) as log:
        for name in sessions:
            log.admitted(name, terms(PAIR))
            for turn in (1, 2, 3):
                log.record(dataclasses.replace(RELEASE, session=name, turn=turn, **PLACE))
            log.ended(name, "")


def fill(log, until):
    """Answers of a session, until then."""
    turn = log.last[0]
    while not until():
        log.record(dataclasses.replace(RELEASE, session="a", turn=turn, **PLACE))
        turn += 1


def files(path):
    return sorted(file.name for file in path.parent.iterdir() if file.is_file())


def test_the_chain_goes_on_from_file_to_file(path):
    write(path, ["a", "b"])
    write(path, ["c", "d"])
    older = audit.older_files(path)
    assert len(older) >= 3
    assert all(file.path.stat().st_size <= SMALL for file in older)
    assert all(file.path.stat().st_mode & 0o777 == 0o600 for file in older)
    assert [file.first for file in older] == [1, *(file.last + 1 for file in older[:-1])]
    entries = read_log(path)
    assert [entry.n for entry in entries] == list(range(1, 21))
    assert end_of(path) == (20, entries[-1].hash)
    for number in (0, 1, 7, 19):
        end = (number, entries[number - 1].hash) if number else NO_LOG
        assert entries_after(path, end, 20) == entries[number:]
        assert entries_after(path, end, 19) == entries[number:19]
    assert entries_after(path, (7, "0" * 64), 20) is None


def test_the_command_reads_them_in_order(path):
    write(path, ["a", "b", "c", "d"])
    out = fedboost("audit", path).out
    assert out.startswith(f"{path}: unbroken, 20 entries")
    older = audit.older_files(path)
    assert f"it is an older file; give the log itself, {path}" in refusal("audit", older[1].path)
    shutil.move(older[0].path, path.parent / "elsewhere")
    assert f"if an older file ({older[0].path.name}, or several) was moved away, put it back" in refusal(
        "audit", path
    )
    write(path, ["e"])  # the party itself needs them not
    assert end_of(path)[0] == 25


def test_a_change_of_an_older_file_is_found(path):
    write(path, ["a", "b", "c"])
    older = audit.older_files(path)[1].path
    text = older.read_bytes()
    older.write_bytes(text.replace(b'"RowsQuery"', b'"RowsQuerY"', 1))
    with pytest.raises(ConfigError, match=rf"{older.name}, line \d: changed after it was written"):
        read_log(path)
    older.write_bytes(b"".join(text.splitlines(keepends=True)[:-1]))
    with pytest.raises(ConfigError, match="stands where"):
        read_log(path)


@pytest.mark.parametrize("step", ["open", "fsync", "rename 1", "rename 2"])
def test_a_crash_while_a_file_is_put_aside_loses_nothing(path, step, monkeypatch):
    """The process ends at each step of it; the next one goes on after the last entry."""

    class Crash(BaseException):
        pass

    log = AuditLog(path, SMALL)
    name, _, number = step.partition(" ")
    real, calls = getattr(os, name), []

    def crash(*args, **settings):
        calls.append(args)
        if len(calls) == int(number or 1):
            raise Crash
        return real(*args, **settings)

    log.admitted("a", terms(PAIR))
    fill(log, until=lambda: path.stat().st_size + 700 > SMALL)
    monkeypatch.setattr(os, name, crash)
    with pytest.raises(Crash):
        fill(log, until=lambda: False)
    monkeypatch.undo()
    os.close(log._file)
    before = read_log(path)
    assert len(before) == log.last[0]  # all but the answer that could not be recorded
    write(path, ["b"])
    assert [entry.n for entry in read_log(path)] == list(range(1, len(before) + 6))
    assert not [file for file in files(path) if file.endswith(".new")] or step in ("open", "fsync")


def test_a_disk_that_refuses_is_one_line(path, monkeypatch):
    with AuditLog(path, SMALL) as log:
        log.admitted("a", terms(PAIR))

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", full)
        with pytest.raises(DurabilityError, match="cannot write this audit log: No space left on device"):
            fill(log, until=lambda: False)
        monkeypatch.undo()
    write(path, ["b"])
    assert read_log(path)[-1].event.session == "b"


def test_who_reads_while_a_file_is_put_aside_reads_each_entry_once(path):
    with AuditLog(path, SMALL) as log:
        log.admitted("a", terms(PAIR))
        reading = lines_of(path)
        first = next(reading)
        for turn in range(1, 12):
            log.record(dataclasses.replace(RELEASE, session="a", turn=turn, **PLACE))
        assert audit.older_files(path)
        numbers = [line.entry.n for line in (first, *reading)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_memory_knows_its_place_in_older_files(site):
    site.write_text(site.read_text() + "audit_size = 0.001\n")
    held(site, "s", 8)
    held(site, "t", 8, ends=False)
    assert len(audit.older_files(read_party(site).audit)) >= 3
    ((_, values),) = starts(site)
    assert values["sessions"] == 2
    with Running(site) as again:
        assert len(again.audit.after(again.memory.logged)) == 1  # noted before it was written
        assert len(again.audit.after(NO_LOG)) == end_of(read_party(site).audit)[0]
    for file in ("memory.sqlite", "memory.sqlite-wal"):
        (read_party(site).audit.parent / file).unlink(missing_ok=True)
    end = fedboost("privacy", "init", "--config", site)
    assert "it knows 2 sessions" in end.out
    audit.older_files(read_party(site).audit)[0].path.unlink()
    memory_path(read_party(site)).unlink()
    assert "was moved away, put it back" in refusal("privacy", "init", "--config", site)
    assert not memory_path(read_party(site)).exists()


def test_two_parties_and_two_datasets_of_one_folder_do_not_mix(tmp_path):
    places = set()
    for party in ("north", "south"):
        for dataset in ("patients", "visits"):
            file = tmp_path / f"{party}-{dataset}.toml"
            file.write_text(
                f'party = "{party}"\ndataset = "{dataset}"\naggregator = "localhost:1"\ndata = "x"\n'
            )
            held(file, "s", 2)
            places.add(read_party(file).audit)
            assert len(read_log(read_party(file).audit)) == 4
    assert len(places) == 4


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ('party = "south"\n', "is the audit log of party 'north', not of 'south'"),
        ('party = "north"\ndataset = "visits"\n', "is the audit log of the rows 'north', not of 'visits'"),
    ],
)
def test_a_log_that_is_named_is_of_one_party_and_its_rows(tmp_path, other, words):
    about = 'aggregator = "localhost:1"\ndata = "x"\naudit = "all.jsonl"\n'
    for name, party in (("one.toml", 'party = "north"\n'), ("other.toml", other)):
        (tmp_path / name).write_text(party + about)
    with Running(tmp_path / "one.toml") as one:
        one.memory.begin(SessionOffer("s", terms(PAIR)), ANY)
        one.audit.admitted("s", terms(PAIR), party="north", dataset="north")
    with pytest.raises(ConfigError, match=words) as error:
        Running(tmp_path / "other.toml")
    assert "name another file as `audit`" in str(error.value)
    with Running(tmp_path / "one.toml"):
        pass
