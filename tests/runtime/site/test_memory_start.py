"""The start of a site's memory: nothing is forgotten without a person who says so, in one line each."""

import asyncio
import shutil

import pytest
from memories import THREE, begun, noisy
from raised import raised
from sites import Log, fedboost, rows, terms, written
from starts import RULES, SITE, Running, starts

from fedboost.errors import ConfigError, Refused
from fedboost.protocol.site import Charge
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.node import PartyNode
from tests.cli.test_privacy import lines, refused


@pytest.fixture
def site(tmp_path):
    """A site's file, without a budget."""
    written(tmp_path, {"north": rows(8)})
    file = tmp_path / "party.toml"
    file.write_text(SITE)
    return file


def held(file, name, turns, agreement=None, ends=True):
    """A session that the site of this file takes part in; each turn is charged 0.1 where there is noise."""
    agreement = agreement or terms(THREE, protection="masked")
    with Running(file) as site:
        session = site.begin(name, agreement)
        session.meet(1)
        for turn in range(1, turns + 1):
            charge = Charge(f"{name} {turn}", 0.01) if agreement.noise else None
            site.answer(session, name, turn, charge)
        if ends:
            site.end(session, name)


# ---- a new one --------------------------------------------------------------------------------------


def test_a_party_says_where_its_memory_is_and_what_it_knows(site):
    path = str(site.parent / "fedboost.state" / "patients" / "memory.sqlite")
    ((event, values),) = starts(site)
    assert "created a new memory of sessions" in event
    assert (values["path"], values["sessions"]) == (path, 0)
    held(site, "s", 2)
    ((event, values),) = starts(site)
    assert event == "opened the memory of sessions"
    assert (values["path"], values["sessions"]) == (path, 1)


def test_under_a_budget_a_person_begins_the_memory(site):
    site.write_text(SITE + RULES)
    with pytest.raises(ConfigError) as error:
        starts(site)
    assert "\n" not in str(error.value)
    assert f"`fedboost privacy init --config {site}` to create one" in str(error.value)
    end = fedboost("privacy", "init", "--config", site)
    assert (end.code, end.err) == (0, "")
    assert "new memory of dataset patients, with 0 sessions and " in end.out
    starts(site)
    assert "already exists and was not changed" in refused("privacy", "init", "--config", site)
    assert lines("privacy", "budget", "--config", site)[0]["left"] == pytest.approx(1.2, rel=1e-9)


# ---- one that is gone -------------------------------------------------------------------------------


def test_a_state_folder_that_cannot_be_made_is_one_line(site):
    (site.parent / "fedboost.state").write_text("")
    with raised(ConfigError, "state-folder-unwritable"):
        starts(site)
    assert "cannot create this state folder" in refused("privacy", "init", "--config", site)


def test_where_the_memory_is_gone_a_person_decides(site):
    held(site, "s", 2)
    path = memory_path(read_party(site))
    path.unlink()
    for _ in range(2):
        with raised(ConfigError, "memory-gone"):
            starts(site)
    assert "this site's memory " in refused("privacy", "budget", "--config", site)
    assert "this site's memory " in refused("privacy", "init", "--config", site)
    assert not path.exists()
    end = fedboost("privacy", "init", "--restored", "--config", site)
    assert "restored memory of dataset patients, with 1 session and " in end.out
    assert "4 entries of its log are lost" in end.out
    (entry,) = read_log(path)
    assert (entry.event.kind, entry.event.known) == ("restored", 4)
    starts(site)
    with (
        Running(site) as again,
        raised(Refused, "session-ended"),
    ):
        again.begin("s", terms(THREE, protection="masked"))


def test_a_new_memory_knows_what_the_counter_has(site):
    site.write_text(SITE + RULES)
    fedboost("privacy", "init", "--config", site)
    held(site, "s", 4, noisy())
    before = lines("privacy", "budget", "--config", site)
    memory_path(read_party(site)).unlink()
    fedboost("privacy", "init", "--restored", "--config", site)
    assert lines("privacy", "budget", "--config", site) == before
    with Running(site) as again:
        more = noisy(parties=[*THREE, "west"])
        with raised(Refused, "groups-reveal-parties"):
            again.begin("t", more)


def test_a_memory_without_its_counter_is_not_gone_on_with(site):
    """It was copied alone, say, and may be old."""
    held(site, "s", 3)
    counter = memory_path(read_party(site)).with_name("north.counter")
    counter.unlink()
    for _ in range(2):
        with raised(ConfigError, "memory-counter-missing"):
            starts(site)
    assert (
        "Its counter file has no later entries"
        in fedboost("privacy", "init", "--restored", "--config", site).out
    )
    starts(site)
    assert counter.exists()


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
            session = begun(running.memory, attempt=2)
            for turn in (3, 4) if since == "more turns" else ():
                running.answer(session, "s", turn, Charge(f"s {turn}", 0.01))
            if since == "the end":
                running.end(session, "s")
    newest = lines("privacy", "budget", "--config", site)
    shutil.copy(copy, path)
    for _ in range(2):
        with raised(ConfigError, "memory-behind-counter"):
            starts(site)
    assert "this memory is older than" in refused("privacy", "budget", "--config", site)
    end = fedboost("privacy", "init", "--restored", "--config", site)
    assert (end.code, end.err) == (0, "")
    assert lines("privacy", "budget", "--config", site) == newest
    with Running(site) as running:
        for name in ("s", "t") if since == "a session" else ("s",):
            with raised(Refused, "session-ended", naming=[name]):
                running.begin(name, noisy())


def test_a_copy_that_missed_nothing_is_gone_on_with(site):
    held(site, "s", 2)
    path = memory_path(read_party(site))
    shutil.copy(path, path.with_name("copy"))
    path.unlink()
    shutil.move(path.with_name("copy"), path)
    starts(site)


def test_a_restored_memory_is_there(site):
    assert "there is no memory; restore it, or omit --restored" in refused(
        "privacy", "init", "--restored", "--config", site
    )


# ---- a damaged one, and two processes ---------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"no database" * 100])
def test_a_damaged_memory_without_a_backup_is_moved_away_and_another_begun(site, content):
    held(site, "s", 2)
    path = memory_path(read_party(site))
    path.write_bytes(content)
    remedy = "move this memory aside and run `fedboost privacy init --restored --config FILE`"
    with pytest.raises(ConfigError) as error:
        starts(site)
    assert remedy in str(error.value)
    for command in (["init"], ["init", "--restored"], ["budget"]):
        assert remedy in refused("privacy", *command, "--config", site)
    path.rename(path.with_name("damaged"))
    assert (
        "restored memory of dataset patients, with 1 session and "
        in fedboost("privacy", "init", "--restored", "--config", site).out
    )
    starts(site)


def test_the_rest_of_a_memory_that_was_moved_away_does_not_get_into_a_new_one(site):
    path = memory_path(read_party(site))
    path.parent.mkdir(parents=True)
    rest = path.with_name(f"{path.name}-wal")
    rest.write_bytes(b"pages")
    assert "was left behind by a memory that was moved" in refused("privacy", "init", "--config", site)
    assert not path.exists()
    rest.unlink()
    starts(site)


def test_a_party_that_is_started_twice_is_named(site):
    with Running(site):
        with raised(ConfigError, "memory-in-use"):
            starts(site)
        assert lines("privacy", "budget", "--config", site)[0]["sessions"] == 0
        assert "stop the party first" in refused("privacy", "init", "--restored", "--config", site)
    starts(site)


def test_the_memory_of_other_rows_is_no_budget(site):
    held(site, "s", 1)
    folder = memory_path(read_party(site)).parent
    site.write_text(SITE.replace("patients", "others") + RULES)
    folder.rename(folder.with_name("others"))
    said = "is the memory of dataset 'patients', not of 'others'"
    with pytest.raises(ConfigError, match=said):
        starts(site)
    assert said in refused("privacy", "budget", "--config", site)


def test_the_command_that_is_logged_names_the_sites_file(site):
    file = site.rename(site.with_name("hospital.toml"))
    log = Log()
    node = PartyNode(read_party(file).model_copy(update={"aggregator": "127.0.0.1:1"}), log, None)
    with raised(ConfigError, "aggregator-unreachable"):
        asyncio.run(node.run(0.1, False))
    (hint,) = [event for event, _ in log.events if "has approved nothing" in event]
    assert f"--config {file}" in hint
