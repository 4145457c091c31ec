"""The audit log: written before anything leaves, and no change of it goes unseen."""

import dataclasses
import errno
import hashlib
import json
import os
import stat
from itertools import pairwise

import pytest
from audit_logs import PAIR, PLACE, RELEASE, written
from refusals import refusal
from sites import fedboost, rows, terms

from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.state import NOTHING_YET
from fedboost.cli import site as audit
from fedboost.errors import ConfigError, DurabilityError
from fedboost.holders.columns import holder_for
from fedboost.protocol.messages import Ask, Introduce, Join, Leave, Offer, Report
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Charge, Site
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.site.audit import AuditLog, read_admitted, read_log, terms_file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.audit.jsonl"


def fault(path):
    """What is wrong with a log: the line number, and the words."""
    with pytest.raises(ConfigError) as error:
        read_log(path)
    place, words = str(error.value).removeprefix(f"{path}, line ").split(": ", 1)
    assert len(words.splitlines()) == 1
    return int(place), words


# ---- writing ----------------------------------------------------------------------------------------


def test_what_is_written_is_read_and_goes_on_when_opened_again(path):
    written(path)
    written(path)
    entries = read_log(path)
    assert [entry.n for entry in entries] == list(range(1, 11))
    assert [entry.event.kind for entry in entries] == 2 * ["admitted", *3 * ["released"], "ended"]
    assert entries[0].previous == "0" * 64
    assert all(one.hash == other.previous for one, other in pairwise(entries))
    admitted, released, ended = entries[0].event, entries[1].event, entries[-1].event
    assert admitted.terms == terms(PAIR).digest
    assert admitted.columns == ("y", "age", "dose", "ward")
    left = (released.session, released.turn, released.attempt, released.what, released.cells)
    assert left == ("s", 1, 1, "RowsQuery", 385)
    assert (released.bytes, released.protection, released.roster) == (3080, "plain", PAIR)
    assert (ended.session, ended.reason) == ("s", "")


def test_what_is_not_known_is_not_in_the_line(path):
    with AuditLog(path) as log:
        log.admitted("s", terms(PAIR))
        log.record(RELEASE)
        log.record(dataclasses.replace(RELEASE, **PLACE))
        log.admitted("s", terms(PAIR), "anna", "ef" * 32, 2)
        log.ended("s", "this site stopped", paused=True)
    first, released, placed, admitted, ended = (
        json.loads(line)["event"] for line in path.read_text().splitlines()
    )
    assert first["attempt"] == 1
    assert {"analyst", "request", "placement"}.isdisjoint(first)
    assert {"question", "position"}.isdisjoint(released)
    assert (placed["question"], placed["position"]) == ("ab" * 32, "cd" * 32)
    assert (admitted["analyst"], admitted["request"], admitted["attempt"]) == ("anna", "ef" * 32, 2)
    assert ended["paused"] is True


def test_the_terms_are_beside_the_log_once_under_their_digest(path):
    with AuditLog(path) as log:
        log.admitted("s", terms(PAIR))
        file = terms_file(path, terms(PAIR).digest)
        assert file == path.parent / "terms" / f"{terms(PAIR).digest}.json"
        assert hashlib.sha256(file.read_bytes()).hexdigest() == terms(PAIR).digest
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        written_at = file.stat().st_mtime_ns
        log.admitted("t", terms(PAIR))
        assert file.stat().st_mtime_ns == written_at
        file.write_bytes(b"{}")
        log.admitted("u", terms(PAIR))
    assert read_admitted(path, terms(PAIR).digest) == terms(PAIR)
    assert list(file.parent.iterdir()) == [file]


def test_a_session_whose_terms_cannot_be_kept_is_not_admitted(path):
    (path.parent / "terms").write_text("no folder")
    with AuditLog(path) as log, pytest.raises(DurabilityError, match=r"terms.*put that right and start this"):
        log.admitted("s", terms(PAIR))
    assert not path.exists()


def test_the_last_entry_is_known_to_who_writes(path):
    with AuditLog(path) as log:
        assert log.last == (0, "0" * 64)
        log.admitted("s", terms(PAIR))
        log.record(RELEASE)
        assert log.last == (2, read_log(path)[-1].hash)
    with AuditLog(path) as log:
        assert log.last == (2, read_log(path)[-1].hash)


def test_the_log_is_for_its_owner_alone(path):
    before = os.umask(0)
    try:
        with AuditLog(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not path.exists()  # nothing was written


def test_a_log_has_one_writer(path):
    with AuditLog(path), pytest.raises(ConfigError, match="another process writes this audit log"):
        AuditLog(path)
    AuditLog(path).close()


@pytest.mark.parametrize("name", ["no folder/log", "."])
def test_a_log_that_cannot_be_opened_is_one_line(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot write this audit log"):
        AuditLog(tmp_path / name)


def test_a_log_is_a_plain_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="plain file"):
        AuditLog(tmp_path / "pipe")


@pytest.fixture
def session(path):
    """A plain session of site north, introduced to the others, that records in a log; and the log."""
    shard = to_shard(rows(), terms(PAIR), "north")
    with AuditLog(path) as log:
        site = Site(
            "north",
            holder_for(lambda _: shard, "north"),
            os.urandom,
            taken=lambda offer: log.admitted("s", offer.terms),
            record=log.record,
        )
        one = PartySession(site)
        (join,) = one.handle(Offer("s", terms(PAIR)))
        assert isinstance(join, Join)
        assert list(one.handle(Introduce((b"", b""), NOTHING_YET))) == []
        yield one, log


ASK = Ask(1, 1, PAIR, RowsQuery())


def test_an_entry_is_in_the_file_before_the_first_report_is_handed_out(session, path):
    one, _ = session
    assert len(read_log(path)) == 1
    report = next(one.handle(ASK))
    *_, entry = read_log(path)
    assert isinstance(report, Report)
    event = entry.event
    assert (event.turn, event.what, event.roster) == (1, "RowsQuery", PAIR)
    assert (event.cells, event.bytes) == (RowsQuery().cells, len(report.cells))


def half_of_it(monkeypatch):
    """From now on a line is half written: the disk is full."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))


def test_nothing_leaves_when_it_cannot_be_recorded(session, path, monkeypatch):
    one, log = session
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        half_of_it(patched)
        with pytest.raises(
            DurabilityError, match="cannot write this audit log: No space left on device; put"
        ):
            next(one.handle(ASK))
    assert path.read_bytes() == before
    log.ended("s", "stopped")  # there is room again
    assert read_log(path)[-1].event.reason == "stopped"


@pytest.mark.parametrize(
    ("step", "synced"),
    [
        (lambda log: log.admitted("s", terms(PAIR)), True),
        (lambda log: log.record(RELEASE), False),
        (lambda log: log.record(dataclasses.replace(RELEASE, charge=Charge("a", 0.1))), True),
        (lambda log: log.ended("s", ""), True),
    ],
)
def test_starts_charges_and_ends_are_on_the_disk_or_an_error(step, synced, path, monkeypatch):
    def fails(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with AuditLog(path) as log:
        log.admitted("s", terms(PAIR))
        monkeypatch.setattr(os, "fsync", fails)
        if synced:
            with pytest.raises(DurabilityError, match=r"cannot write this audit log: Input/output error"):
                step(log)
        else:
            step(log)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes() + b"{}\n"),
    ],
)
def test_nothing_leaves_when_somebody_else_meddles_with_the_log(session, path, spoil):
    one, _ = session
    spoil(path)
    assert list(one.handle(ASK)) == [Leave("this site cannot write its audit log", "s")]
    assert "changed or removed" in one.ended


# ---- tampering --------------------------------------------------------------------------------------


def test_a_changed_byte_anywhere_is_found_in_its_line(path):
    lines = written(path, releases=1)
    whole = b"".join(lines)
    position = 0
    for number, line in enumerate(lines, 1):
        for _ in line:
            changed = bytearray(whole)
            changed[position] ^= (0x01, 0x20, 0x80)[position % 3]
            path.write_bytes(changed)
            assert fault(path)[0] == number
            position += 1


def test_dropped_swapped_and_inserted_lines_are_found(path):
    lines = written(path)
    for at in range(len(lines) - 1):
        path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
        number, words = fault(path)
        assert number == at + 1
        assert words.startswith(f"entry {at + 2} stands where {at + 1} is due: lines were removed or moved")
        assert ("older file" in words) == (at == 0)
        path.write_bytes(b"".join([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]))
        assert fault(path)[0] == at + 1
    for at in range(len(lines)):
        path.write_bytes(b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
        assert fault(path)[0] == at + 2
        path.write_bytes(b"".join([*lines[:at], b"\n", *lines[at:]]))
        assert fault(path)[0] == at + 1


def test_a_line_written_in_another_way_is_found(path):
    lines = written(path)
    spaced = json.dumps(json.loads(lines[1])).encode() + b"\n"
    path.write_bytes(b"".join([lines[0], spaced, *lines[2:]]))
    assert fault(path) == (2, "changed after it was written: its hash is not the one of its content")


def test_a_forged_entry_with_a_hash_of_its_own_does_not_fit_the_next(path):
    lines = written(path)
    second = read_log(path)[1]
    less = second.event.model_copy(update={"cells": 1})
    forged = second.model_copy(update={"event": less})
    forged = forged.model_copy(update={"hash": forged.due_hash})
    path.write_bytes(b"".join([lines[0], forged.line, *lines[2:]]))
    assert fault(path) == (3, "does not follow from the line before: one of them was replaced")


def test_a_log_of_the_other_log_s_lines_is_found(path):
    written(path)
    other = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    with AuditLog(path) as log:
        log.admitted("another", terms(PAIR))
    path.write_bytes(path.read_bytes() + other[1])
    assert fault(path)[0] == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[" * 10_000, '{"n":1}', "\udcff"])
def test_what_is_no_entry_is_one_line(path, text):
    path.write_bytes(text.encode(errors="surrogateescape") + b"\n")
    assert fault(path)[0] == 1
    with pytest.raises(ConfigError, match=r"last line: .*move the file away"):
        AuditLog(path)


def test_a_half_written_last_line_is_found_and_nothing_is_appended(path):
    lines = written(path)
    whole = b"".join(lines)
    for kept in range(1, len(lines[-1])):
        path.write_bytes(whole[:-kept])
        assert fault(path)[0] == len(lines)
        assert fault(path)[1].startswith("half-written")
        with pytest.raises(ConfigError, match=r"last line: half-written.*move the file away"):
            AuditLog(path)
        assert path.read_bytes() == whole[:-kept]


def test_a_log_cut_short_has_another_last_hash(path, capsys):
    def last_hash():
        audit.audit(path, json=True)
        return json.loads(capsys.readouterr().out.splitlines()[-1])["hash"]

    lines = written(path)
    before = last_hash()
    assert before == json.loads(lines[-1])["hash"]
    path.write_bytes(b"".join(lines[:-1]))
    assert last_hash() != before


def test_the_hash_that_was_kept_is_found_again(path):
    lines = written(path)
    kept = json.loads(lines[-1])["hash"]
    assert "Entry 5 of 5 has the hash that was expected" in fedboost("audit", path, "--expect", kept).out
    written(path)
    end = fedboost("audit", path, "--expect", f" {kept.upper()}\n")
    assert end.code == 0
    assert "\nEntry 5 of 10 has the hash that was expected: all up to it is as it was.\n" in end.out
    assert "expected" not in fedboost("audit", path).out
    end = fedboost("audit", path, "--json", "--expect", kept)
    assert json.loads(end.out.splitlines()[-1])["expected"] == 5


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_log_without_the_hash_that_was_kept_is_an_error(path, as_json):
    lines = written(path)
    kept = json.loads(lines[-1])["hash"]
    cut_short = b"".join(lines[:-1])
    path.unlink()
    anew = b"".join(written(path, releases=4))
    for content in (cut_short, anew, b""):
        path.write_bytes(content)
        assert fedboost("audit", path, *as_json).code == 0
        end = fedboost("audit", path, *as_json, "--expect", kept)
        assert (end.code, end.out) == (2, "")
        entries = content.count(b"\n")
        assert end.err.startswith(f"fedboost: {path}: none of its {entries} entries has the hash {kept}: ")
        assert end.err.count("\n") == 1


def test_the_hash_of_an_empty_log_is_before_the_first_entry(path):
    path.touch()
    kept = json.loads(fedboost("audit", path, "--json").out)["hash"]
    assert fedboost("audit", path, "--expect", kept).code == 0
    written(path)
    end = fedboost("audit", path, "--expect", kept)
    assert end.code == 0
    assert "The empty log before the first entry has the hash that was expected" in end.out


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "0" * 65])
def test_what_is_no_hash_cannot_be_expected(path, text):
    written(path)
    said = refusal("audit", path, "--expect", text)
    assert said.startswith("fedboost: --expect: ")
    assert "64 hex digits" in said
