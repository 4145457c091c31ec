"""The sessions that an aggregator keeps for its console."""

import asyncio
import json

import pytest
from console_facts import ended
from sites import Log

from fedboost.errors import ConfigError
from fedboost.runtime.aggregator import archive
from fedboost.runtime.aggregator.archive import FOLDER, Archive


@pytest.fixture(autouse=True)
def facts_stand_for_sessions(monkeypatch):
    """What is added here is the facts of a session, with a model."""
    monkeypatch.setattr(archive, "facts_of", lambda facts: (facts, facts.name.encode()))


def added(state, *sessions):
    """An archive with these sessions, all written."""

    async def work():
        kept = Archive(state, Log())
        kept.open()
        for each in sessions:
            kept.add(each)
        await kept.close()
        return kept

    return asyncio.run(work())


def names(kept):
    return [facts.name[-2:] for facts in kept.ended]


def test_the_latest_are_kept_over_a_restart_and_the_oldest_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_ENDED", 3)
    kept = added(tmp_path, *(ended(number) for number in (4, 3, 2, 1)))
    assert names(kept) == ["01", "02", "03"]
    again = added(tmp_path)
    assert again.ended == kept.ended
    assert again.model(kept.ended[0].name) == kept.ended[0].name.encode()
    assert len([*(tmp_path / FOLDER).iterdir()]) == 6
    assert again.model("session-0000000000000004") is None
    assert again.model("../../tokens") is None


def test_a_record_of_an_older_version_is_read(tmp_path):
    """Without what follows from the rest: the state, the number of rounds, and the task."""
    (tmp_path / FOLDER).mkdir()
    old = {
        **{"name": ended(1).name, "analyst": "marie", "terms": "cd" * 32, "program": "describe"},
        **{"protection": "masked", "parties": ["north"], "ended": 1_795_000_000, "seconds": 3.5},
        **{"reason": "", "rounds": [], "traffic": {"north": [12, 34]}, "model_bytes": 7},
        **{"has_report": True, "request": "ab"},
    }
    (tmp_path / FOLDER / f"{ended(1).name}.json").write_text(json.dumps(old))
    (read,) = added(tmp_path).ended
    assert (read.task, read.state, read.rounds_done, read.model) == ("describe", "done", 0, True)
    assert {key: getattr(read, key) for key in old} == {
        **old,
        "parties": ("north",),
        "traffic": {"north": (12, 34)},
    }


def test_failures_and_other_analysts_take_the_place_of_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_ENDED", 3)
    monkeypatch.setattr(archive, "MAX_FAILED", 2)
    of_pierre = [ended(number).model_copy(update={"analyst": "pierre"}) for number in (8, 7, 6, 5)]
    failed = [ended(number, "refused").model_copy(update={"analyst": "pierre"}) for number in (4, 3, 2)]
    sessions = [ended(10), ended(9, "refused"), *of_pierre, *failed]
    kept = added(tmp_path, *sessions)
    assert names(kept) == ["02", "05", "06", "09", "0a"]
    assert kept.model(ended(10).name) == ended(10).name.encode()
    assert added(tmp_path).ended == kept.ended


def test_of_analysts_with_as_many_the_oldest_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_ENDED", 2)
    kept = added(
        tmp_path, *(ended(number).model_copy(update={"analyst": str(number)}) for number in (3, 2, 1))
    )
    assert names(kept) == ["01", "02"]


def test_a_disk_that_is_full_leaves_few_models_in_memory(tmp_path, monkeypatch):
    def full(*_):
        raise ConfigError("test", "No space left on device")

    monkeypatch.setattr(archive, "write_atomically", full)
    kept = added(tmp_path, *(ended(number) for number in range(archive.MAX_ENDED + 1)))
    assert len(kept.ended) == archive.MAX_ENDED
    assert [kept.model(facts.name) is not None for facts in kept.ended[:5]] == [True] * 4 + [False]
    assert len(kept._models) == archive.MAX_IN_MEMORY
    assert kept._log.named("the session cannot be stored")


def test_a_session_that_a_restart_ends_again_keeps_its_first_record(tmp_path):
    first = ended(1)
    added(tmp_path, first)
    assert added(tmp_path, ended(1, "counted anew")).ended == [first]


def test_without_a_folder_few_models_are_kept(monkeypatch):
    monkeypatch.setattr(archive, "MAX_IN_MEMORY", 2)
    kept = added(None, *(ended(number) for number in range(3)))
    assert [kept.model(facts.name) is not None for facts in kept.ended] == [True, True, False]


@pytest.mark.parametrize("content", ["[", "{}", '{"name": 1}', "\xff", "[" * 100_000])
def test_what_is_no_record_is_left_out(tmp_path, content):
    added(tmp_path, ended(1))
    (tmp_path / FOLDER / "session-00000000000000aa.json").write_bytes(content.encode("latin-1"))
    (tmp_path / FOLDER / "other.json").write_text("{}")
    kept = added(tmp_path)
    assert names(kept) == ["01"]
    assert len(kept._log.named("the file is not a record of a session")) == 1


def test_a_folder_that_cannot_be_made_keeps_sessions_in_memory(tmp_path):
    (tmp_path / "state").write_text("a file")
    kept = added(tmp_path / "state", ended(1))
    assert names(kept) == ["01"]
    assert kept._log.named("ended sessions cannot be stored")
