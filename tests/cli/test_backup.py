"""`fedboost backup` and `fedboost restore`: what was backed up comes back, and nothing is forgotten."""

import io
import sqlite3
import tarfile
from contextlib import closing

import pytest
from columns_apart import LAYOUTS, pooled, train_apart
from memories import THREE, noisy
from raised import raised
from refusals import refused
from sites import fedboost, terms
from starts import RULES, SITE, Running, starts

from fedboost.errors import Refused
from fedboost.runtime.site.approval import approved_in
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.store import _SCHEMA, put
from fedboost.runtime.tasks import terms_to_toml
from tests.cli.test_privacy import lines
from tests.runtime.site.test_memory_start import held, site

__all__ = ["site"]
AGREED = terms(THREE, protection="masked")


def backup(file, name="north.tar.gz"):
    out = file.parent / name
    end = fedboost("backup", "--config", file, "--out", out)
    assert (end.code, end.err) == (0, ""), end.err
    return out


def restore(out, file, *options):
    end = fedboost("restore", out, "--config", file, *options)
    assert (end.code, end.err) == (0, ""), end.err
    return end.out


def lose(file, *names):
    """Remove files of the state folder; all of them unless named."""
    for path in [*memory_path(read_party(file)).parent.rglob("*")]:
        if path.is_file() and (not names or any(path.name.startswith(name) for name in names)):
            path.unlink()


def budget(file):
    (facts,) = lines("privacy", "budget", "--config", file)
    return facts["releases"], facts["spent"], facts["sessions"]


def approve(file):
    """A person approves the terms of these tests."""
    (file.parent / "terms.toml").write_text(terms_to_toml(AGREED))
    end = fedboost("approve", file.parent / "terms.toml", "--config", file, "--yes")
    assert end.code == 0, end.err


def test_all_of_it_comes_back(site):
    site.write_text(SITE + RULES)
    fedboost("privacy", "init", "--config", site)
    held(site, "s", 4, noisy())
    store = memory_path(read_party(site))
    before, entries = budget(site), read_log(store)
    out = backup(site)
    assert out.stat().st_mode & 0o777 == 0o600
    lose(site)
    told = restore(out, site)
    assert "1 session and 4 charged releases" in told
    assert (
        "If this file may also be an older copy, and the party has run after the copy was made, treat the "
        "privacy budget as spent" in told
    )
    *kept, restored = read_log(store)
    assert (budget(site), kept, restored.event.kind) == (before, entries, "restored")
    starts(site)
    with Running(site) as again, raised(Refused, "session-ended"):
        again.begin("s", noisy())


def test_approvals_come_back(site):
    approve(site)
    held(site, "s", 1)
    out = backup(site)
    lose(site)
    restore(out, site)
    assert approved_in(read_party(site)) == [AGREED.digest]


def test_an_approval_that_was_withdrawn_since_does_not_come_back(site):
    approve(site)
    out = backup(site)
    end = fedboost("approve", AGREED.digest[:9], "--config", site, "--withdraw")
    assert (end.code, end.out) == (0, f"withdrawn: {AGREED.digest}\n")
    lose(site, "memory")
    restore(out, site)
    assert approved_in(read_party(site)) == []
    assert backup(site, "again.tar.gz").exists()


def test_a_backup_has_the_store_and_no_keys(site):
    (site.parent / "keys").mkdir()
    (site.parent / "keys" / "key.pem").write_text("a key")
    site.write_text(SITE + 'keys = "keys"\n')
    held(site, "s", 2)
    with tarfile.open(backup(site)) as archive:
        names = archive.getnames()
        assert all(b"a key" not in archive.extractfile(name).read() for name in names)
    assert names == ["backup.json", "memory.sqlite"]


def test_a_backup_is_made_while_the_party_runs(site):
    with Running(site) as running:
        session = running.begin("s", AGREED)
        for turn in range(1, 4):
            running.answer(session, "s", turn)
        out = backup(site)
        running.answer(session, "s", 4)
        running.end(session, "s")
    lose(site)
    restore(out, site)
    assert len(read_log(memory_path(read_party(site)))) == 5
    starts(site)
    with Running(site) as again, raised(Refused, "session-ended"):
        again.begin("s", AGREED)  # it was under way, and nobody knows what was answered since


def test_an_older_memory_takes_over_what_the_counter_has(site):
    site.write_text(SITE + RULES)
    fedboost("privacy", "init", "--config", site)
    held(site, "s", 2, noisy())
    out = backup(site)
    held(site, "t", 3, noisy())
    before = budget(site)
    lose(site, "memory")
    told = restore(out, site)
    assert "5 entries of its log are lost, and the log now records this. Later sessions and charges" in told
    assert budget(site) == before
    *_, last = read_log(memory_path(read_party(site)))
    assert (last.n, last.event.kind, last.event.known) == (5, "restored", 9)
    with Running(site) as again, raised(Refused, "session-ended"):
        again.begin("t", noisy())


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_memory_that_is_whole_stays(site, force):
    """To put an older one in its place would only forget."""
    held(site, "s", 2)
    out = backup(site)
    held(site, "t", 2)
    words = "is intact and no older than the backup of"
    refused(site.parent, ("restore", out, "--config", site, *force), words)
    refused(site.parent, ("backup", "--config", site, "--out", out), "already exists", "--force")
    with Running(site) as again, raised(Refused, "session-ended"):
        again.begin("t", AGREED)


def test_a_memory_that_is_damaged_is_kept_aside(site):
    held(site, "s", 2)
    out = backup(site)
    path = memory_path(read_party(site))
    path.write_bytes(b"damaged")
    refused(site.parent, ("restore", out, "--config", site), "already exists and was not replaced", "--force")
    told = restore(out, site, "--force")
    (aside,) = path.parent.glob("before-*")
    assert f"The previous state was moved to {aside}." in told
    assert (aside / "memory.sqlite").read_bytes() == b"damaged"
    starts(site)


def test_nothing_is_restored_beside_a_lock_that_cannot_be_opened(site):
    held(site, "s", 1)
    out, lock = backup(site), memory_path(read_party(site)).with_name("south.lock")
    lock.symlink_to("elsewhere")
    end = fedboost("restore", out, "--config", site)
    assert end.code == 2
    assert f"{lock}: cannot lock this file: Too many levels of symbolic links" in end.err
    lock.unlink()
    lose(site)
    restore(out, site)


def test_a_backup_that_the_counter_has_never_seen_is_refused(site):
    """Of another log, or made up by somebody."""
    held(site, "s", 2)
    out = backup(site)
    lose(site)
    held(site, "u", 1)
    lose(site, "memory")
    words = "has no record of the backup's last entry, 4"
    refused(site.parent, ("restore", out, "--config", site), words, "--force")
    restore(out, site, "--force")
    store = memory_path(read_party(site))
    assert {entry.event.session for entry in read_log(store)[:-1]} == {"s"}
    with Running(site) as again, raised(Refused, "session-ended"):
        again.begin("u", AGREED)


def test_entries_that_were_exported_are_not_in_a_backup(site):
    held(site, "s", 2)
    store = memory_path(read_party(site))
    assert fedboost("audit", store, "--export", site.parent / "old.jsonl", "--remove").code == 0
    held(site, "t", 1)
    out = backup(site)
    lose(site)
    restore(out, site)
    assert [entry.n for entry in read_log(store)] == [5, 6, 7, 8, 9]
    with Running(site) as again, raised(Refused, "session-ended"):
        again.begin("s", AGREED)


def changed(out, change):
    """Change the store of a backup."""
    with tarfile.open(out, "r:gz") as archive:
        kept = [(member, archive.extractfile(member).read()) for member in archive]
    store = out.parent / "changed.sqlite"
    with tarfile.open(out, "w:gz") as archive:
        for member, content in kept:
            if member.name == "memory.sqlite":
                store.write_bytes(content)
                with closing(sqlite3.connect(store, isolation_level=None)) as file:
                    change(file)
                    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                content = store.read_bytes()
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    for left in out.parent.glob("changed.sqlite*"):
        left.unlink()


def hide_a_trigger(file):
    """Under the name of a table that is made after it."""
    file.execute("CREATE TABLE kept AS SELECT * FROM charges")
    file.execute("DROP TABLE charges")
    file.execute("CREATE TRIGGER charges AFTER INSERT ON entries BEGIN DELETE FROM charges; END")
    file.execute(_SCHEMA["charges"])
    file.execute("INSERT INTO charges SELECT * FROM kept")
    file.execute("DROP TABLE kept")


NEVER = "it has values of the wrong type"
HOSTILE = {
    "a hidden trigger": (hide_a_trigger, "was not written by this version"),
    "a charge that gives back": (lambda file: put(file, "charges", "north", "t", "t 1", -1.0, ""), NEVER),
    "a charge in words": (lambda file: put(file, "charges", "north", "t", "t 1", "much", ""), NEVER),
    "no dataset": (lambda file: file.execute("DELETE FROM site"), NEVER),
    "other rows": (
        lambda file: [file.execute("DELETE FROM site"), put(file, "site", "visits", bytes(32))],
        "is the memory of dataset 'visits'",
    ),
    "a session that nobody can read": (
        lambda file: [
            put(file, "sessions", "north", "t", "", b"", "", 0.0, 0.0, ""),
            put(file, "standings", "north", "t", 0, b"", "", None),
        ],
        NEVER,
    ),
    "another last hash": (
        lambda file: file.execute("UPDATE entries SET hash = '' WHERE n > 1"),
        "the numbers of its log entries do not match their content",
    ),
    "a trigger": (
        lambda file: file.execute(
            "CREATE TRIGGER free AFTER INSERT ON charges BEGIN DELETE FROM charges; END"
        ),
        "was not written by this version",
    ),
    "a view": (
        lambda file: file.execute("CREATE VIEW more AS SELECT * FROM secrets"),
        "was not written by this version",
    ),
    "a charge less": (
        lambda file: file.execute("DELETE FROM charges WHERE release = 's 1'"),
        "lacks the row for entry 3 of its log",
    ),
    "a smaller charge": (
        lambda file: put(file, "charges", "north", "s", "s 1", 0.0, ""),
        "lacks the row for entry 3 of its log",
    ),
    "a session less": (
        lambda file: file.execute("DELETE FROM sessions"),
        "lacks the row for entry 2 of its log",
    ),
    "an approval more": (
        lambda file: put(
            file, "decisions", "north", "ab" * 32, "approved", '{"digest": "' + "ab" * 32 + '"}'
        ),
        "its approvals and refusals do not match its log",
    ),
    "another approval": (
        lambda file: put(file, "decisions", "north", AGREED.digest, "approved", "{}"),
        "its approvals and refusals do not match its log",
    ),
    "a row of another kind": (
        lambda file: put(file, "decisions", "north", AGREED.digest, "approved", 7.0),
        "it has values of the wrong type",
    ),
    "an entry of another kind": (
        lambda file: file.execute("UPDATE entries SET line = 9999999999999 WHERE n = 2"),
        "line 2: the line is incomplete",
    ),
    "an entry less": (lambda file: file.execute("DELETE FROM entries WHERE n = 2"), "line 2: found entry 3"),
    "another row": (lambda file: file.execute("UPDATE charges SET cost = 0"), "was changed after it was"),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_backup_is_one_line(site, change):
    approve(site)
    held(site, "s", 2, noisy())
    out = backup(site)
    hostile, words = HOSTILE[change]
    changed(out, hostile)
    lose(site)
    refused(site.parent, ("restore", out, "--config", site), "is damaged: ", words)
    assert not memory_path(read_party(site)).exists()


def test_a_backup_that_is_hostile_to_another_who_shares_the_memory_is_refused(site):
    south = site.parent / "south.toml"
    south.write_text(SITE.replace('"north"', '"south"', 1))
    held(site, "s", 1)
    held(south, "t", 1)
    out = backup(site)
    changed(out, lambda file: put(file, "decisions", "south", AGREED.digest, "approved", "{}"))
    lose(site)
    words = "its approvals and refusals do not match its log"
    refused(site.parent, ("restore", out, "--config", site), "is damaged: memory.sqlite", words)


def test_a_backup_that_was_cut_back_is_not_what_the_counter_has_seen(site):
    """A chain that is whole, and shorter, at a site that lost its memory alone: what was counted since is
    taken over all the same."""
    held(site, "s", 2, noisy())
    before = budget(site)
    out = backup(site)
    changed(out, lambda file: file.execute("DELETE FROM entries WHERE n > 1"))
    lose(site, "memory")
    restore(out, site)
    assert budget(site) == before


def test_a_backup_that_forgets_a_meeting_is_made_up_for_by_the_counter(site):
    held(site, "s", 2, noisy())
    out = backup(site)
    changed(out, lambda file: put(file, "standings", "north", "s", 0, b"", "", "over"))
    lose(site, "memory")
    restore(out, site)
    assert lines("privacy", "budget", "--config", site)[0]["took_part"] == 1


def test_an_approval_that_was_put_into_a_backup_is_refused_by_the_counter(site):
    """Where entries were exported the log alone does not say that it was never given."""
    held(site, "s", 1)
    store = memory_path(read_party(site))
    assert fedboost("audit", store, "--export", site.parent / "old.jsonl", "--remove").code == 0
    out = backup(site)
    changed(out, lambda file: put(file, "decisions", "north", AGREED.digest, "approved", "{}"))
    lose(site, "memory")
    refused(site.parent, ("restore", out, "--config", site, "--force"), "has no record", "forged")
    assert not store.exists()


def test_nobody_works_with_a_memory_that_is_put_back(site):
    held(site, "s", 1)
    out = backup(site)
    with Running(site):
        refused(
            site.parent,
            ("restore", out, "--config", site, "--force"),
            "'north' is using this memory",
            "stop this party",
        )


def test_sessions_of_all_who_share_a_memory_are_over(site):
    south = site.parent / "south.toml"
    south.write_text(SITE.replace('"north"', '"south"', 1))
    held(site, "s", 1)
    held(south, "t", 2, ends=False)
    out = backup(site)
    lose(site)
    restore(out, site)
    with Running(south) as again, raised(Refused, "session-ended"):
        again.begin("t", AGREED)


def test_a_backup_of_others_is_refused(site):
    held(site, "s", 1)
    out = backup(site)
    other = site.parent / "other.toml"
    for text, words in (
        (SITE.replace('"north"', '"south"', 1), "is a backup of party 'north', but"),
        (SITE.replace("patients", "visits"), "is a backup of dataset 'patients', but"),
    ):
        other.write_text(text)
        refused(site.parent, ("restore", out, "--config", other), words)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:60]]
)
def test_a_damaged_backup_is_one_line(site, damage):
    held(site, "s", 1)
    out = backup(site)
    out.write_bytes(damage(out.read_bytes()))
    lose(site)
    refused(site.parent, ("restore", out, "--config", site), "is not a backup or is damaged")


@pytest.mark.parametrize("odd", ["link", "loop", "name", "up", "large"])
def test_an_archive_of_other_things_is_no_backup(site, odd, monkeypatch):
    """Links, other names, and more than fits into a memory, are refused before anything is read of them."""
    held(site, "s", 1)
    out = backup(site)
    members = {"link": "backup.json", "loop": "memory.sqlite", "name": "x", "up": "models/../../x.json"}
    info = tarfile.TarInfo(members.get(odd, "memory.sqlite"))
    with tarfile.open(out, "r:gz") as archive:
        kept = [(member, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(out, "w:gz") as archive:
        if odd in ("link", "loop"):
            info.type, info.linkname = tarfile.SYMTYPE, "memory.sqlite"
        archive.addfile(info)
        for member, content in kept:
            archive.addfile(member, io.BytesIO(content))
    if odd == "large":
        monkeypatch.setattr("fedboost.runtime.site.backup.MAX_BYTES", 1000)
    lose(site)
    before = sorted(site.parent.rglob("*"))
    refused(site.parent, ("restore", out, "--config", site), "is not a backup or is damaged")
    assert not {path for path in {*site.parent.rglob("*")} - {*before} if path.is_file()}


# ---- parts of models --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def part():
    """A party's part of a model."""
    result = train_apart(LAYOUTS["two holders"], pooled(), model="parties", rounds=2, max_depth=3)
    return result.party_models["telco"]


def keep(file, part, session="s"):
    """Keep a part of a session as a party does; its file."""
    held(file, session, 1)
    kept = read_party(file).models / f"{part.id[:16]}.json"
    kept.parent.mkdir()
    kept.write_bytes(part.to_bytes())
    return kept


@pytest.mark.parametrize("models", ["", 'models = "parts/kept"\n'])
def test_parts_of_models_come_back(site, part, models):
    (site.parent / "parts").mkdir()
    site.write_text(SITE + models)
    kept = keep(site, part)
    (kept.parent / "notes.txt").write_text("no part")
    out = backup(site)
    lose(site)
    kept.unlink(missing_ok=True)
    told = restore(out, site)
    assert "1 model part restored." in told
    assert kept.read_bytes() == part.to_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        assert [name for name in archive.getnames() if "models" in name] == [f"models/{kept.name}"]


def test_parts_that_are_there_stay(site, part):
    kept = keep(site, part)
    out = backup(site)
    lose(site, "memory")
    before = kept.stat().st_mtime_ns
    assert "model part" not in restore(out, site)
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == (part.to_bytes(), before)


def test_another_part_in_the_way_stays_unless_it_is_forced(site, part):
    kept = keep(site, part)
    out = backup(site)
    lose(site, "memory")
    kept.write_text("mine")
    refused(
        site.parent,
        ("restore", out, "--config", site),
        "differs from the model part in the backup of",
        "--force",
    )
    assert kept.read_text() == "mine"
    assert not memory_path(read_party(site)).exists()
    restore(out, site, "--force")
    (aside,) = memory_path(read_party(site)).parent.glob("before-*")
    assert (aside / kept.name).read_text() == "mine"
    assert kept.read_bytes() == part.to_bytes()


def test_a_part_that_is_damaged_is_in_no_backup(site, part):
    kept = keep(site, part)
    kept.write_bytes(part.to_bytes()[:-9])
    out = site.parent / "north.tar.gz"
    refused(site.parent, ("backup", "--config", site, "--out", out), f"{kept.name} is not a model part")
    kept.unlink()
    other = kept.with_name("0123456789abcdef.json")
    other.write_bytes(part.to_bytes())
    refused(
        site.parent, ("backup", "--config", site, "--out", out), f"{other.name} belongs to a different model"
    )
    assert not out.exists()


def test_a_part_that_was_changed_in_a_backup_is_refused(site, part):
    kept = keep(site, part)
    out = backup(site)
    with tarfile.open(out, "r:gz") as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(out, "w:gz") as archive:
        for member, content in members:
            text = content.replace(b'"version":1', b'"version":9') if "models/" in member.name else content
            archive.addfile(member, io.BytesIO(text))
    lose(site)
    refused(
        site.parent,
        ("restore", out, "--config", site),
        f"is damaged: models/{kept.name} is a model part from",
    )
    assert not kept.exists()
