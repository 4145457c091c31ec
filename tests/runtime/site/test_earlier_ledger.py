"""A ledger of an earlier version: a person moves it, and it is never ignored."""

import hashlib
import sqlite3
from contextlib import closing

import pytest
from memories import BUDGET, noisy, spend_all
from sites import fedboost, rows, written
from starts import RULES, SITE, Running, starts

from fedboost.errors import ConfigError, Refused
from fedboost.privacy import fields
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.memory import make_file
from tests.cli.test_privacy import lines, refused


@pytest.fixture
def site(tmp_path):
    """A site's file, without a budget."""
    written(tmp_path, {"north": rows(8)})
    file = tmp_path / "party.toml"
    file.write_text(SITE)
    return file


def earlier_ledger(path, dataset="patients", sessions=("s",), charged=0.4):
    """A ledger as the version before this one wrote it."""

    def sealed(*row):
        parts = (value if isinstance(value, bytes) else repr(value).encode() for value in row)
        return *row, hashlib.sha256(fields.pack(*parts)).digest()

    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.executescript(
            """
            CREATE TABLE sessions (dataset TEXT, party TEXT, session TEXT, terms TEXT, delta REAL,
                planned REAL, begun TEXT, secret BLOB, seal BLOB);
            CREATE TABLE rows (dataset TEXT, party TEXT, session TEXT, terms TEXT, hash BLOB, seal BLOB);
            CREATE TABLE charges (dataset TEXT, party TEXT, session TEXT, release TEXT, cost REAL, at TEXT,
                seal BLOB);
            PRAGMA application_id = 0x46424C31;
            PRAGMA user_version = 2;
            """
        )
        for name in sessions:
            for digest in ("one digest", "another"):
                row = dataset, "north", name, digest, 1e-5, 0.5, "2026-01-01T00:00:00Z", b"k" * 32
                file.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", sealed(*row))
            row = dataset, "north", name, "a release", charged, "2026-01-01T00:00:00Z"
            file.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", sealed(*row))


@pytest.mark.parametrize("rules", ["", RULES])
@pytest.mark.parametrize("name", ["party.toml", "renamed.toml"])
def test_an_earlier_ledger_is_moved_by_a_person_and_never_ignored(site, rules, name):
    ledger, file = site.parent / "party.ledger.sqlite", site.parent / name
    earlier_ledger(ledger, charged=0.02)
    site.rename(file)
    file.write_text(SITE + rules)
    command = f"`fedboost privacy init --from {ledger} --config {file}` moves it"
    with pytest.raises(ConfigError) as error:
        starts(file)
    assert command in str(error.value)
    for arguments in (("budget",), ("init",)):
        assert command in refused("privacy", *arguments, "--config", file)
    end = fedboost("privacy", "init", "--from", ledger, "--config", file)
    assert "it knows 1 sessions and 1 releases" in end.out
    starts(file)
    (spent,) = lines("privacy", "budget", "--config", file)
    assert (spent["cost"], spent["sessions"], spent["releases"]) == (0.02, 1, 1)
    with Running(file) as running:
        with pytest.raises(Refused, match="session s"):
            running.begin("s", noisy(0.1))
        running.begin("t", noisy(0.1))


def test_a_budget_counts_what_was_moved(site):
    ledger = site.parent / "party.ledger.sqlite"
    earlier_ledger(ledger, charged=BUDGET.cost)
    site.write_text(SITE + RULES)
    fedboost("privacy", "init", "--from", ledger, "--config", site)
    with Running(site) as running, pytest.raises(Refused, match="no session with noise fits"):
        spend_all(running.memory, "t", noisy(0.01))


def test_a_ledger_of_other_rows_is_nobodys_business(site):
    earlier_ledger(site.parent / "south.ledger.sqlite", dataset="others")
    starts(site)


def test_a_key_that_is_no_more_says_how_to_move_what_it_named(site):
    earlier_ledger(site.parent / "mine.sqlite")
    site.write_text('ledger = "mine.sqlite"\n' + SITE)
    line = refused("privacy", "budget", "--config", site)
    assert "key 'ledger' was removed" in line
    assert f"`fedboost privacy init --from mine.sqlite --config {site}`" in line


def test_an_earlier_ledger_in_the_place_of_the_memory_is_said(site):
    path = memory_path(read_party(site))
    path.parent.mkdir(parents=True)
    earlier_ledger(path)
    with pytest.raises(ConfigError, match="is a ledger of an earlier version; move it away, then"):
        starts(site)
    moved = path.rename(site.parent / "moved")
    assert fedboost("privacy", "init", "--from", moved, "--config", site).code == 0


def test_what_is_no_ledger_is_not_moved(site):
    assert "cannot read" in refused("privacy", "init", "--from", site.parent / "none", "--config", site)
    for source in (site, site.parent / "north.parquet"):
        line = refused("privacy", "init", "--from", source, "--config", site)
        assert f"{source}: is no ledger of an earlier version of fedboost" in line
    other = site.parent / "other.sqlite"
    make_file(other, "patients")
    line = refused("privacy", "init", "--from", other, "--config", site)
    assert "is a site's memory of this version; --from wants a ledger of an earlier version" in line
    assert not memory_path(read_party(site)).exists()
