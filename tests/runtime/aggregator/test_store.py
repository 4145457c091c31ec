"""The journal: what was recorded is found again, what was half-written dropped, what was changed refused."""

import dataclasses
import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import after, raised

from fedboost.errors import ConfigError, DurabilityError
from fedboost.gbdt.tree import NO_SPLITS, Split, Splits, Tree
from fedboost.protocol import run
from fedboost.protocol.run import AttemptStarted, Begun, Opened, Stopped, TreeGrown
from fedboost.runtime.aggregator.sessions import VERSION_LINE, Folder, read_journal
from fedboost.terms.terms import Terms

TERMS = Terms.read({"columns": {"label": "y", "numeric": ["x"]}, "parties": ["a", "b", "c"]})
TREE = Tree.of_columns(
    [1, -1, -1],
    threshold=[float("inf"), 0.0, 0.0],
    missing_left=[True, False, False],
    value=[0.1, -0.3, 1e-30],
    gain=[0.5, 0, 0],
    cover=[4, 2, 2],
)
GREW = TreeGrown(8, TREE, NO_SPLITS, [[[0, 0, 3, True, 1, 0]], 1, None, None])
BY_LEVEL = Tree.of_columns([1, -1, -1], [1 << 254, 0, 0])
RECORDS = [
    Begun("session-1", TERMS, "analyst"),
    AttemptStarted(1, ("a", "b", "c")),
    Opened(1, b"q" * 32, np.arange(-3, 4)),
    GREW,
    TreeGrown(9, BY_LEVEL, Splits.of([Split(0, 1, 0, True, 1, 1 << 254)]), [[], 1, None, None]),
    AttemptStarted(2, ("a", "b")),
    Stopped(9),
    Opened(9, b"r" * 32, np.array([2**62, -(2**62)])),
]


def same(one, other):
    """Equal records; their arrays by value."""
    if isinstance(one, Opened) and isinstance(other, Opened):
        return (one.turn, one.query) == (other.turn, other.query) and np.array_equal(one.total, other.total)
    return one == other


def written(folder, records=RECORDS):
    """A journal with these records, closed; its path."""
    held = Folder(folder)
    one = held.begin("session-1")
    for record in records:
        one.append(record)
    one.close()
    held.close()
    return one.path


def refused(path, what):
    with pytest.raises(ConfigError) as caught:
        read_journal(path)
    assert after(path, str(caught.value)).startswith(what)
    assert "\n" not in str(caught.value)


def test_what_was_recorded_is_found_again(tmp_path):
    written(tmp_path)
    held = Folder(tmp_path)
    (one,) = held.unfinished()
    assert len(one.past) == len(RECORDS)
    assert all(map(same, one.past, RECORDS))
    one.append(GREW)
    one.close()
    held.close()
    past, _ = read_journal(one.path)
    assert all(map(same, past, [*RECORDS, GREW]))
    one = Folder(tmp_path).unfinished()[0]
    one.delete()
    assert not one.path.exists()


@given(
    st.one_of(
        st.builds(
            AttemptStarted, st.integers(0, 2**60), st.lists(st.text(max_size=5), max_size=3).map(tuple)
        ),
        st.builds(
            Opened,
            st.integers(0, 2**60),
            st.binary(max_size=40),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9).map(lambda v: np.array(v, np.int64)),
        ),
        st.just(GREW),
        st.builds(Begun, st.text(max_size=9), st.just(TERMS), st.text(max_size=9)),
    )
)
def test_every_record_comes_back(record):
    assert same(run.decode(run.encode(record)), record)


@pytest.mark.slow
def test_collected_records_are_written_together(tmp_path, monkeypatch):
    synced = []
    fdatasync = os.fdatasync
    held = Folder(tmp_path)
    one = held.begin("session-1")
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(fdatasync(file)))
    for record in RECORDS:
        one.collect(record)
    assert read_journal(one.path)[0] == ()
    one.sync()
    one.sync()
    past, _ = read_journal(one.path)
    assert len(synced) == 1
    assert all(same(*pair) for pair in zip(past, RECORDS, strict=True))
    one.close()
    held.close()


def test_wherever_the_process_died_only_the_last_record_is_lost(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    ends = [len(VERSION_LINE)]
    for record in RECORDS:
        ends.append(ends[-1] + 8 + len(run.encode(record)))
    assert ends[-1] == len(whole)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        past, kept = read_journal(path)
        complete = sum(end <= size for end in ends[1:])
        assert len(past) == complete
        assert kept == (ends[complete] if size > len(VERSION_LINE) else 0)


def test_a_torn_last_record_is_overwritten(tmp_path):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    held = Folder(tmp_path)
    (one,) = held.unfinished()
    one.append(RECORDS[-1])
    past, _ = read_journal(path)
    assert all(map(same, past, RECORDS))
    one.close()
    held.close()


def test_a_record_that_was_changed_is_refused_by_name(tmp_path):
    path = written(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[len(VERSION_LINE) + 20] ^= 1
    path.write_bytes(whole)
    refused(path, "record 1 was changed after it was written; move the file aside")


@pytest.mark.parametrize("zeros", [1, 8, 4096])
def test_zeros_at_the_end_are_what_a_power_cut_left(tmp_path, zeros):
    path = written(tmp_path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(zeros))
    past, kept = read_journal(path)
    assert (len(past), kept) == (len(RECORDS), size)


def test_zeros_in_the_middle_are_a_change(tmp_path):
    path = written(tmp_path)
    path.write_bytes(VERSION_LINE + bytes(8) + path.read_bytes()[len(VERSION_LINE) :])
    refused(path, "record 1 cannot be read: the bytes are not a session record")


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_is_refused_by_name(tmp_path, make):
    make(tmp_path / "session-1.journal")
    held = Folder(tmp_path)
    with pytest.raises(ConfigError, match=r"session-1\.journal: cannot read the journal"):
        held.unfinished()
    held.close()


@pytest.mark.parametrize("content", [b"", VERSION_LINE[:5]])
def test_a_journal_without_a_record_is_none(tmp_path, content):
    held = Folder(tmp_path)
    (tmp_path / "session-1.journal").write_bytes(content)
    assert held.unfinished() == []
    assert list(tmp_path.glob("*.journal")) == []
    held.close()


@pytest.mark.parametrize("content", [b"fedboost journal 2\n", b"PK\x03\x04 something else"])
def test_another_version_is_refused_by_name(tmp_path, content):
    path = tmp_path / "session-1.journal"
    path.write_bytes(content)
    refused(path, "is not a journal of this version; move the file aside")


def test_a_record_of_a_kind_that_is_not_known_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "encode", lambda record: b"\0\0\0\x03new")
    path = written(tmp_path, [GREW])
    refused(path, "record 1 cannot be read: the bytes are not a session record of this version of fedboost")


def test_two_aggregators_do_not_share_a_folder(tmp_path):
    held = Folder(tmp_path)
    with raised(ConfigError, "state-folder-in-use"):
        Folder(tmp_path)
    held.close()
    Folder(tmp_path).close()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with raised(ConfigError, "state-folder-unwritable"):
        Folder(tmp_path / "file" / "state")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    held = Folder(tmp_path)
    one = held.begin("session-1")
    one.append(RECORDS[0])
    write = os.write

    def full(file, data):
        if len(data) > 4:
            return write(file, data[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DurabilityError) as caught:
        one.append(RECORDS[1])
    assert str(caught.value) == f"{one.path} cannot be written: No space left on device"
    monkeypatch.undo()
    past, size = read_journal(one.path)
    assert (past, size) == ((RECORDS[0],), one.path.stat().st_size)
    one.close()
    held.close()


def test_terms_of_another_version_are_named(tmp_path):
    strange = dataclasses.replace(RECORDS[0])
    data = run.encode(strange).replace(b'"objective"', b'"objektive"')
    with raised(ConfigError, "journal-record"):
        run.decode(data)
