"""The audit log: written before anything leaves, and no change of it goes unseen."""

import dataclasses
import errno
import hashlib
import json
import os
import sqlite3
from itertools import pairwise

import pytest
from audit_logs import PAIR, PLACE, RELEASE, AuditLog, written
from refusals import refusal
from sites import fedboost, rows, terms

from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.cli import site as audit
from fedboost.errors import ConfigError, DurabilityError
from fedboost.holders.columns import holder_for
from fedboost.privacy import packing
from fedboost.protocol.messages import Ask, Introduce, Join, Offer, Report, digest_of_roster
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Charge, Limits, SessionOffer, Site
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.site import memory as memory_module
from fedboost.runtime.site import store
from fedboost.runtime.site.audit import read_admitted, read_log, terms_in
from fedboost.runtime.site.store import make_file, reading


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
    first, released, placed, admitted, ended = (json.loads(e.line)["event"] for e in read_log(path))
    assert first["attempt"] == 1
    assert {"analyst", "request", "placement"}.isdisjoint(first)
    assert {"question", "position"}.isdisjoint(released)
    assert (placed["question"], placed["position"]) == ("ab" * 32, "cd" * 32)
    assert (admitted["analyst"], admitted["request"], admitted["attempt"]) == ("anna", "ef" * 32, 2)
    assert ended["paused"] is True


def test_the_terms_are_kept_once_under_their_digest(path):
    with AuditLog(path) as log:
        log.admitted("s", terms(PAIR))
        log.admitted("t", terms(PAIR))
    kept = terms_in(path)
    assert {*kept} == {terms(PAIR).digest}
    assert hashlib.sha256(kept[terms(PAIR).digest].encode()).hexdigest() == terms(PAIR).digest
    assert read_admitted(kept, terms(PAIR).digest, path) == terms(PAIR)


def test_the_last_entry_is_known_to_who_writes(path):
    with AuditLog(path) as log:
        assert log.last == (0, "0" * 64)
        log.admitted("s", terms(PAIR))
        log.record(RELEASE)
        assert log.last == (2, read_log(path)[-1].hash)
    with AuditLog(path) as log:
        assert log.last == (2, read_log(path)[-1].hash)


@pytest.fixture
def session(path):
    """A plain session of site north, introduced to the others, that its memory knows; and the memory."""
    shard = to_shard(rows(), terms(PAIR), "north")
    with AuditLog(path) as log:
        memory = log.memory
        holder = holder_for(lambda _: shard, "north")
        one = PartySession(Site("north", holder, os.urandom, record=memory.record, memory=memory))
        (join,) = one.handle(Offer("s", terms(PAIR)))
        assert isinstance(join, Join)
        assert (
            list(one.handle(Introduce(tuple(packing.pack(name.encode()) for name in PAIR), INITIAL_STATE)))
            == []
        )
        yield one, memory


ASK = Ask(1, 1, digest_of_roster(PAIR), RowsQuery())


def test_an_entry_is_in_the_file_before_the_first_report_is_handed_out(session, path):
    one, _ = session
    assert len(read_log(path)) == 1
    report = next(one.handle(ASK))
    *_, entry = read_log(path)
    assert isinstance(report, Report)
    event = entry.event
    assert (event.turn, event.what, event.roster) == (1, "RowsQuery", PAIR)
    assert (event.cells, event.bytes) == (RowsQuery().cells, len(report.cells))


@pytest.mark.parametrize("full", ["entries", "questions"])
def test_nothing_leaves_when_it_cannot_be_recorded(session, path, monkeypatch, full):
    """And then neither the question nor its entry is there."""
    one, memory = session
    before = read_log(path)
    put = store.put

    def fails(file, table, *row):
        if table == full:
            raise sqlite3.OperationalError("database or disk is full")
        put(file, table, *row)

    with monkeypatch.context() as patched:
        for module in (store, memory_module):
            patched.setattr(module, "put", fails)
        with pytest.raises(
            DurabilityError, match="cannot write this memory: database or disk is full; fix the cause"
        ):
            next(one.handle(ASK))
    assert read_log(path) == before
    with reading(path) as file:
        assert file.execute("SELECT count(*) FROM questions").fetchone() == (0,)
    memory.ended("s", "stopped")  # there is room again
    assert read_log(path)[-1].event.reason == "stopped"


@pytest.mark.parametrize(
    ("step", "synced"),
    [
        (lambda memory: memory.begin(SessionOffer("t", terms(PAIR)), Limits()), True),
        (lambda memory: memory.record(RELEASE), False),
        (lambda memory: memory.record(dataclasses.replace(RELEASE, charge=Charge("a", 0.1))), True),
        (lambda memory: memory.ended("s", ""), True),
    ],
)
def test_starts_charges_and_ends_are_on_the_disk_or_an_error(step, synced, path, monkeypatch):
    """Of the store SQLite sees to it, which Python cannot watch; so of the counter."""

    def fails(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with AuditLog(path) as log:
        log.admitted("s", terms(PAIR))
        monkeypatch.setattr(os, "fsync", fails)
        if synced:
            with pytest.raises(DurabilityError, match=r"cannot write this counter file: Input/output error"):
                step(log.memory)
        else:
            step(log.memory)


# ---- tampering --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """An export."""
    return tmp_path / "north.jsonl"


def test_a_changed_byte_anywhere_is_found_in_its_line(path, file):
    lines = written(path, releases=1)
    whole = b"".join(lines)
    position = 0
    for number, line in enumerate(lines, 1):
        for _ in line:
            changed = bytearray(whole)
            changed[position] ^= (0x01, 0x20, 0x80)[position % 3]
            file.write_bytes(changed)
            assert fault(file)[0] == number
            position += 1


def test_dropped_swapped_and_inserted_lines_are_found(path, file):
    lines = written(path)
    for at in range(len(lines) - 1):
        file.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
        number, words = fault(file)
        assert number == at + 1
        assert words.startswith(f"found entry {at + 2}, expected {at + 1}: lines were removed or moved")
        file.write_bytes(b"".join([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]))
        assert fault(file)[0] == at + 1
    for at in range(len(lines)):
        file.write_bytes(b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
        assert fault(file)[0] == at + 2
        file.write_bytes(b"".join([*lines[:at], b"\n", *lines[at:]]))
        assert fault(file)[0] == at + 1


def test_a_line_written_in_another_way_is_found(path, file):
    lines = written(path)
    spaced = json.dumps(json.loads(lines[1])).encode() + b"\n"
    file.write_bytes(b"".join([lines[0], spaced, *lines[2:]]))
    assert fault(file) == (
        2,
        "the entry was changed after it was written: its hash does not match its content",
    )


def test_a_forged_entry_with_a_hash_of_its_own_does_not_fit_the_next(path, file):
    lines = written(path)
    second = read_log(path)[1]
    less = second.event.model_copy(update={"cells": 1})
    forged = second.model_copy(update={"event": less})
    forged = forged.model_copy(update={"hash": forged.due_hash})
    file.write_bytes(b"".join([lines[0], forged.line, *lines[2:]]))
    assert fault(file) == (3, "the entry lacks the hash of the entry before it: one of the two was replaced")


def test_a_log_of_the_other_log_s_lines_is_found(path, file):
    written(path)
    other = [entry.line for entry in read_log(path)]
    path.unlink()
    with AuditLog(path) as log:
        log.admitted("another", terms(PAIR))
    file.write_bytes(read_log(path)[0].line + other[1])
    assert fault(file)[0] == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[" * 10_000, '{"n":1}', "\udcff"])
def test_what_is_no_entry_is_one_line(file, text):
    file.write_bytes(text.encode(errors="surrogateescape") + b"\n")
    assert fault(file)[0] == 1


def test_a_half_written_last_line_is_found(path, file):
    lines = written(path)
    whole = b"".join(lines)
    for kept in range(1, len(lines[-1])):
        file.write_bytes(whole[:-kept])
        assert fault(file)[0] == len(lines)
        assert fault(file)[1].startswith("the line is incomplete")


def test_a_log_cut_short_has_another_last_hash(path, file, capsys):
    def last_hash(source):
        audit.audit(source, json=True)
        return json.loads(capsys.readouterr().out.splitlines()[-1])["hash"]

    lines = written(path)
    before = last_hash(path)
    assert before == json.loads(lines[-1])["hash"]
    file.write_bytes(b"".join(lines[:-1]))
    assert last_hash(file) != before


def test_the_hash_that_was_kept_is_found_again(path):
    lines = written(path)
    kept = json.loads(lines[-1])["hash"]
    assert "Entry 5 of 5 has the expected hash" in fedboost("audit", path, "--expect", kept).out
    written(path)
    end = fedboost("audit", path, "--expect", f" {kept.upper()}\n")
    assert end.code == 0
    assert "\nEntry 5 of 10 has the expected hash: nothing up to that entry has changed.\n" in end.out
    assert "expected" not in fedboost("audit", path).out
    end = fedboost("audit", path, "--json", "--expect", kept)
    assert json.loads(end.out.splitlines()[-1])["expected"] == 5


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_log_without_the_hash_that_was_kept_is_an_error(path, file, as_json):
    lines = written(path)
    kept = json.loads(lines[-1])["hash"]
    cut_short = b"".join(lines[:-1])
    path.unlink()
    anew = b"".join(written(path, releases=4))
    for content in (cut_short, anew, b""):
        file.write_bytes(content)
        assert fedboost("audit", file, *as_json).code == 0
        end = fedboost("audit", file, *as_json, "--expect", kept)
        assert (end.code, end.out) == (2, "")
        entries = content.count(b"\n")
        assert end.err.startswith(f"fedboost: {file}: none of its {entries} entries has the hash {kept}: ")
        assert end.err.count("\n") == 1


def test_the_hash_of_an_empty_log_is_before_the_first_entry(path):
    make_file(path, "rows")
    kept = json.loads(fedboost("audit", path, "--json").out)["hash"]
    assert fedboost("audit", path, "--expect", kept).code == 0
    written(path)
    end = fedboost("audit", path, "--expect", kept)
    assert end.code == 0
    assert "The empty log before the first entry has the expected hash" in end.out


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "0" * 65])
def test_what_is_no_hash_cannot_be_expected(path, text):
    written(path)
    said = refusal("audit", path, "--expect", text)
    assert said.startswith("fedboost: --expect must be a hash")
    assert "64 hex digits" in said
