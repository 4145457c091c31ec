"""The start of a site's memory: nothing is forgotten without a person who says so, in one line each."""

import asyncio
import hashlib
import shutil
import sqlite3
from contextlib import closing

import pytest
from sites import Log, fedboost, rows, terms, written
from test_memory_file import ANY, BUDGET, THREE, begun, noisy, question, spend_all
from test_privacy_cli import lines, refused

from fedboost.errors import ConfigError, Refused
from fedboost.privacy import fields
from fedboost.protocol.contracts import NOWHERE
from fedboost.protocol.ledger import Charge
from fedboost.protocol.site import Release
from fedboost.protocol.site_memory import Offer
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.memory_file import make_file
from fedboost.runtime.site.memory_start import memory_path, open_log, open_memory
from fedboost.runtime.site.node import PartyNode

SITE = 'party = "north"\naggregator = "localhost:7070"\ndata = "north.parquet"\ndataset = "patients"\n'
RULES = "[policy]\nepsilon = 1.2\ndelta = 1e-5\n"


@pytest.fixture
def site(tmp_path):
    """A site's file, without a budget."""
    written(tmp_path, {"north": rows(8)})
    file = tmp_path / "party.toml"
    file.write_text(SITE)
    return file


class Running:
    """What a party has at its start, and what it notes of sessions."""

    def __init__(self, file):
        self.config, self.log = read_party(file), Log()
        self.audit = open_log(self.config)
        try:
            self.memory = open_memory(self.config, self.audit, self.log)
        except ConfigError:
            self.audit.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory.close()
        self.audit.close()

    def begin(self, name, agreement):
        session = self.memory.begin(Offer(name, agreement), ANY)
        self.audit.admitted(name, agreement)
        return session

    def answer(self, session, name, turn, charge=None):
        """As a session does: first the memory, then the log."""
        if charge:
            session.charge(charge.name, charge.cost)
        session.ask(question(turn), NOWHERE, question(turn).after)
        self.record(name, turn, charge)

    def record(self, name, turn, charge=None):
        place = question(turn).digest.hex(), ""
        self.audit.record(Release(name, turn, 1, "RangeQuery", 256, 100, "masked", THREE, charge, *place))

    def end(self, session, name, reason=""):
        session.end(reason)
        self.audit.ended(name, reason)


def held(file, name, turns, agreement=None, ends=True):
    """A session that the site of this file takes part in; each turn is charged 0.1 where there is noise."""
    agreement = agreement or terms(THREE, protection="masked")
    with Running(file) as site:
        session = site.begin(name, agreement)
        for turn in range(1, turns + 1):
            charge = Charge(f"{name} {turn}", 0.01) if agreement.noise else None
            site.answer(session, name, turn, charge)
        if ends:
            site.end(session, name)


def starts(file):
    """A party that starts and stops again: what it logged."""
    log = Log()
    node = PartyNode(read_party(file), log, None)
    node._close()
    return log.events


# ---- a new one --------------------------------------------------------------------------------------


def test_a_party_says_where_its_memory_is_and_what_it_knows(site):
    path = str(site.parent / "fedboost.state" / "patients" / "memory.sqlite")
    ((event, values),) = starts(site)
    assert "a new memory of this site's sessions was begun" in event
    assert (values["path"], values["sessions"]) == (path, 0)
    held(site, "s", 2)
    ((event, values),) = starts(site)
    assert event == "memory of this site's sessions"
    assert (values["path"], values["sessions"]) == (path, 1)


def test_under_a_budget_a_person_begins_the_memory(site):
    site.write_text(SITE + RULES)
    with pytest.raises(ConfigError) as error:
        starts(site)
    assert "\n" not in str(error.value)
    assert f"`fedboost privacy init --config {site}` begins one" in str(error.value)
    end = fedboost("privacy", "init", "--config", site)
    assert (end.code, end.err) == (0, "")
    assert "a new memory, of the rows patients; it knows 0 sessions" in end.out
    starts(site)
    assert "there is a memory already" in refused("privacy", "init", "--config", site)
    assert lines("privacy", "budget", "--config", site)[0]["left"] == pytest.approx(1.2, rel=1e-9)


def test_a_state_folder_that_cannot_be_made_is_one_line(site):
    (site.parent / "fedboost.state").write_text("")
    with pytest.raises(ConfigError, match="cannot make this state folder"):
        starts(site)
    assert "cannot make this state folder" in refused("privacy", "init", "--config", site)


# ---- one that is gone -------------------------------------------------------------------------------


@pytest.mark.parametrize("audit", ["", 'audit = "elsewhere.jsonl"\n'])
def test_where_the_memory_is_gone_a_person_decides(site, audit):
    site.write_text(SITE + audit)
    held(site, "s", 2)
    path = memory_path(read_party(site))
    path.unlink()
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"the memory of this site is gone, .* restore the memory from a"
        ):
            starts(site)
    assert "the memory of this site is gone" in refused("privacy", "budget", "--config", site)
    assert not path.exists()
    end = fedboost("privacy", "init", "--config", site)
    assert "it knows 1 sessions" in end.out
    starts(site)
    with (
        Running(site) as again,
        pytest.raises(Refused, match="session s has ended here"),
    ):
        again.begin("s", terms(THREE, protection="masked"))


def test_a_new_memory_knows_what_the_audit_log_has(site):
    site.write_text(SITE + RULES)
    fedboost("privacy", "init", "--config", site)
    held(site, "s", 4, noisy())
    before = lines("privacy", "budget", "--config", site)
    memory_path(read_party(site)).unlink()
    fedboost("privacy", "init", "--config", site)
    (after,) = lines("privacy", "budget", "--config", site)
    assert [{**after, "took_part": 0, "never_began": 1}] == before  # what was answered began
    with Running(site) as again:
        more = noisy(parties=[*THREE, "west"])
        with pytest.raises(Refused, match="would show fewer than 3 of them"):
            again.begin("t", more)


def test_a_log_that_was_moved_away_is_no_reason_to_stop(site):
    held(site, "s", 3)
    read_party(site).audit.unlink()
    (warning, _), _ = starts(site)
    assert "the audit log is not the one" in warning
    held(site, "t", 3)
    assert len(starts(site)) == 1


# ---- an older copy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("since", ["a session", "more turns", "the end"])
def test_an_older_copy_is_not_gone_on_with(site, since):
    held(site, "s", 2, noisy(), ends=False)
    path = memory_path(read_party(site))
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    if since == "a session":
        held(site, "t", 0, noisy())
    else:
        with Running(site) as running:
            session = begun(running.memory)
            for turn in (3, 4) if since == "more turns" else ():
                running.answer(session, "s", turn, Charge(f"s {turn}", 0.01))
            if since == "the end":
                running.end(session, "s")
    newest = lines("privacy", "budget", "--config", site)
    shutil.copy(copy, path)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"this memory is older than .*: a copy was put back"):
            starts(site)
    assert "this memory is older than" in refused("privacy", "budget", "--config", site)
    end = fedboost("privacy", "init", "--restored", "--config", site)
    assert (end.code, end.err) == (0, "")
    assert lines("privacy", "budget", "--config", site) == newest
    with Running(site) as running:
        for name in ("s", "t") if since == "a session" else ("s",):
            with pytest.raises(Refused, match=f"session {name} has ended here"):
                running.begin(name, noisy())


def test_a_copy_that_missed_nothing_is_gone_on_with(site):
    held(site, "s", 2)
    path = memory_path(read_party(site))
    shutil.copy(path, path.with_name("copy"))
    path.unlink()
    shutil.move(path.with_name("copy"), path)
    starts(site)


def test_a_party_that_was_killed_between_its_two_writes_starts_again(site):
    """The log may then have the ends of offers that were refused, that the memory has not noted; or the
    memory has an answer that the log has not."""
    agreement = terms(THREE, protection="masked")
    with Running(site) as running:
        running.answer(running.begin("s", agreement), "s", 1)
        for name in "tuv":
            running.audit.ended(name, "refused")
    starts(site)
    with Running(site) as running:
        begun(running.memory, agreement=agreement).ask(question(2), NOWHERE, NOWHERE)
    starts(site)
    with Running(site) as running:
        for turn in (2, 3):
            running.record("s", turn)
    with pytest.raises(ConfigError, match="older"):
        starts(site)


def test_a_restored_memory_is_there_and_not_made_with_a_ledger(site):
    assert "there is no memory; put it back first" in refused(
        "privacy", "init", "--restored", "--config", site
    )
    ledger = site.parent / "a"
    said = refused("privacy", "init", "--restored", "--from", ledger, "--config", site)
    assert "exclude each other" in said


# ---- a ledger of an earlier version -----------------------------------------------------------------


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


# ---- a damaged one, and two processes ---------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"no database" * 100])
def test_a_damaged_memory_without_a_backup_is_moved_away_and_another_begun(site, content):
    held(site, "s", 2)
    path = memory_path(read_party(site))
    path.write_bytes(content)
    remedy = "move it away, then `fedboost privacy init --config FILE` begins one"
    with pytest.raises(ConfigError) as error:
        starts(site)
    assert remedy in str(error.value)
    for command in (["init"], ["init", "--restored"], ["budget"]):
        assert remedy in refused("privacy", *command, "--config", site)
    path.rename(path.with_name("damaged"))
    assert "it knows 1 sessions" in fedboost("privacy", "init", "--config", site).out
    starts(site)


def test_the_rest_of_a_memory_that_was_moved_away_does_not_get_into_a_new_one(site):
    path = memory_path(read_party(site))
    path.parent.mkdir(parents=True)
    rest = path.with_name(f"{path.name}-wal")
    rest.write_bytes(b"pages")
    assert "is the rest of a memory that was moved away" in refused("privacy", "init", "--config", site)
    assert not path.exists()
    rest.unlink()
    starts(site)


def test_a_party_that_is_started_twice_is_named(site):
    with Running(site):
        with pytest.raises(ConfigError, match=r"another process of party 'north' works with this memory$"):
            starts(site)
        assert lines("privacy", "budget", "--config", site)[0]["sessions"] == 0
        assert "stop the party first" in refused("privacy", "init", "--restored", "--config", site)
    starts(site)


def test_the_memory_of_other_rows_is_no_budget(site):
    held(site, "s", 1)
    folder = memory_path(read_party(site)).parent
    site.write_text(SITE.replace("patients", "others") + RULES)
    folder.rename(folder.with_name("others"))
    said = "is the memory of the rows 'patients', not of 'others'"
    with pytest.raises(ConfigError, match=said):
        starts(site)
    assert said in refused("privacy", "budget", "--config", site)


def test_the_command_that_is_logged_names_the_sites_file(site):
    file = site.rename(site.with_name("hospital.toml"))
    log = Log()
    node = PartyNode(read_party(file).model_copy(update={"aggregator": "127.0.0.1:1"}), log, None)
    with pytest.raises(ConfigError, match="no aggregator"):
        asyncio.run(node.run(0.1, False))
    (hint,) = [event for event, _ in log.events if "nothing is approved here" in event]
    assert f"--config {file}" in hint
