"""`fedboost backup` and `fedboost restore`: what was backed up comes back, and an older memory is noticed."""

import io
import tarfile

import pytest
from columns_apart import LAYOUTS, pooled, train_apart
from memories import THREE, noisy
from refusals import refused
from sites import fedboost, terms
from starts import RULES, SITE, Running, starts

from fedboost.errors import ConfigError, Refused
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.backup import memory_path
from fedboost.runtime.site.config import read_party
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


def test_all_of_it_comes_back(site):
    site.write_text(SITE + RULES)
    fedboost("privacy", "init", "--config", site)
    held(site, "s", 4, noisy())
    log = read_party(site).audit
    before, entries, files = budget(site), read_log(log), sorted(log.parent.rglob("*.json"))
    out = backup(site)
    assert out.stat().st_mode & 0o777 == 0o600
    lose(site)
    told = restore(out, site)
    assert "1 session and 4 charged releases" in told
    assert "treat its privacy budget as spent" in told
    assert (budget(site), read_log(log)) == (before, entries)
    assert sorted(log.parent.rglob("*.json")) == files
    starts(site)
    with Running(site) as again, pytest.raises(Refused, match="session s has ended here"):
        again.begin("s", noisy())


def test_a_backup_has_the_memory_and_the_log_and_no_keys(site):
    (site.parent / "keys").mkdir()
    (site.parent / "keys" / "key.pem").write_text("a key")
    site.write_text(SITE + 'keys = "keys"\n')
    held(site, "s", 2)
    with tarfile.open(backup(site)) as archive:
        names = archive.getnames()
        assert all(b"a key" not in archive.extractfile(name).read() for name in names)
    assert names == ["backup.json", "memory.sqlite", "audit.jsonl", f"terms/{AGREED.digest}.json"]


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
    assert len(read_log(read_party(site).audit)) == 4
    starts(site)
    with Running(site) as again, pytest.raises(Refused, match="session s has ended here"):
        again.begin("s", AGREED)  # it was under way, and nobody knows what was answered since


def test_an_older_memory_takes_over_what_the_log_has(site):
    site.write_text(SITE + RULES)
    fedboost("privacy", "init", "--config", site)
    held(site, "s", 2, noisy())
    out = backup(site)
    held(site, "t", 3, noisy())
    before = budget(site)
    lose(site, "memory")
    told = restore(out, site)
    assert "It is older than the audit log, whose 5 entries since then were taken over." in told
    assert budget(site) == before
    assert len(read_log(read_party(site).audit)) == 9


def test_an_older_memory_that_is_put_back_by_hand_is_noticed(site):
    held(site, "s", 2)
    out = backup(site)
    held(site, "t", 2)
    lose(site, "memory")
    path = memory_path(read_party(site))
    with tarfile.open(out) as archive:
        path.write_bytes(archive.extractfile("memory.sqlite").read())
    with pytest.raises(ConfigError) as error:
        starts(site)
    assert "this memory is older than" in str(error.value)
    assert f"`fedboost privacy init --restored --config {site}`" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_there_is_kept(site):
    held(site, "s", 2)
    out = backup(site)
    held(site, "t", 2)
    refused(site.parent, ("restore", out, "--config", site), "there is a memory already", "--force")
    refused(site.parent, ("backup", "--config", site, "--out", out), "exists already", "--force")
    memory = memory_path(read_party(site)).read_bytes()
    told = restore(out, site, "--force")
    (aside,) = memory_path(read_party(site)).parent.glob("before-*")
    assert f"What was there before is in {aside}." in told
    assert (aside / "memory.sqlite").read_bytes() == memory
    assert len(read_log(read_party(site).audit)) == 8  # the log was newer, and stays
    with Running(site) as again, pytest.raises(Refused, match="session t has ended here"):
        again.begin("t", AGREED)


def test_another_log_in_the_way_stays_unless_it_is_forced(site):
    held(site, "s", 2)
    out = backup(site)
    lose(site)
    held(site, "u", 1)
    lose(site, "memory")
    refused(site.parent, ("restore", out, "--config", site), "does not go on from the backup", "--force")
    restore(out, site, "--force")
    log = read_party(site).audit
    assert {entry.event.session for entry in read_log(log)} == {"s"}
    (aside,) = log.parent.glob("before-*")
    assert {entry.event.session for entry in read_log(aside / log.name)} == {"u"}


def test_a_log_of_several_files_comes_back_whole(site):
    site.write_text(SITE + "audit_size = 0.001\n")
    held(site, "s", 9)
    log = read_party(site).audit
    entries = read_log(log)
    out = backup(site)
    lose(site)
    restore(out, site)
    assert read_log(log) == entries
    held(site, "t", 1)
    assert read_log(log)[: len(entries)] == entries


def test_nobody_works_with_a_memory_that_is_put_back(site):
    held(site, "s", 1)
    out = backup(site)
    with Running(site):
        refused(site.parent, ("restore", out, "--config", site, "--force"), "'north' works with", "stop it")


def test_sessions_of_all_who_share_a_memory_are_over(site):
    south = site.parent / "south.toml"
    south.write_text(SITE.replace('"north"', '"south"', 1))
    held(site, "s", 1)
    held(south, "t", 2, ends=False)
    out = backup(site)
    lose(site, "memory", "north")
    restore(out, site)
    with Running(south) as again, pytest.raises(Refused, match="session t has ended here"):
        again.begin("t", AGREED)


def test_a_backup_of_others_is_refused(site):
    held(site, "s", 1)
    out = backup(site)
    other = site.parent / "other.toml"
    for text, words in (
        (SITE.replace('"north"', '"south"', 1), "is a backup of party 'north', and"),
        (SITE.replace("patients", "visits"), "is a backup of the rows 'patients', and"),
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
    refused(site.parent, ("restore", out, "--config", site), "is no backup, or is damaged")


@pytest.mark.parametrize("odd", ["link", "loop", "name", "up", "large"])
def test_an_archive_of_other_things_is_no_backup(site, odd, monkeypatch):
    """Links, other names, and more than fits into a memory, are refused before anything is read of them."""
    held(site, "s", 1)
    out = backup(site)
    members = {"link": "audit.jsonl", "loop": "memory.sqlite", "name": "x", "up": "terms/../../x.json"}
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
    refused(site.parent, ("restore", out, "--config", site), "is no backup, or is damaged")
    assert not {path for path in {*site.parent.rglob("*")} - {*before} if path.is_file()}


def test_terms_that_were_changed_in_a_backup_are_refused(site):
    """They say which sums of other sessions a site may not answer again."""
    held(site, "s", 1)
    out = backup(site)
    with tarfile.open(out, "r:gz") as archive:
        kept = [(member, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(out, "w:gz") as archive:
        for member, content in kept:
            text = content.replace(b"south", b"SOUTH") if member.name.startswith("terms/") else content
            archive.addfile(member, io.BytesIO(text))
    lose(site)
    refused(site.parent, ("restore", out, "--config", site), "was changed; take another backup")


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
    assert "1 part of a model put back." in told
    assert kept.read_bytes() == part.to_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        assert [name for name in archive.getnames() if "models" in name] == [f"models/{kept.name}"]


def test_parts_that_are_there_stay(site, part):
    kept = keep(site, part)
    out = backup(site)
    lose(site, "memory")
    before = kept.stat().st_mtime_ns
    assert "put back" not in restore(out, site)
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == (part.to_bytes(), before)


def test_another_part_in_the_way_stays_unless_it_is_forced(site, part):
    kept = keep(site, part)
    out = backup(site)
    lose(site, "memory")
    kept.write_text("mine")
    refused(site.parent, ("restore", out, "--config", site), "is another part of this model", "--force")
    assert kept.read_text() == "mine"
    assert not memory_path(read_party(site)).exists()
    restore(out, site, "--force")
    (aside,) = memory_path(read_party(site)).parent.glob("before-*")
    assert (aside / kept.name).read_text() == "mine"
    assert kept.read_bytes() == part.to_bytes()


def test_a_backup_without_parts_is_restored(site, part):
    """As versions before wrote them."""
    held(site, "s", 1)
    out = backup(site)
    kept = keep(site, part, "t")
    lose(site, "memory")
    assert "put back" not in restore(out, site)
    assert kept.read_bytes() == part.to_bytes()


def test_a_part_that_is_damaged_is_in_no_backup(site, part):
    kept = keep(site, part)
    kept.write_bytes(part.to_bytes()[:-9])
    out = site.parent / "north.tar.gz"
    refused(site.parent, ("backup", "--config", site, "--out", out), f"{kept.name}: not ")
    kept.unlink()
    other = kept.with_name("0123456789abcdef.json")
    other.write_bytes(part.to_bytes())
    refused(site.parent, ("backup", "--config", site, "--out", out), "is the part of another model")
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
    refused(site.parent, ("restore", out, "--config", site), f"is damaged: models/{kept.name}: a part of")
    assert not kept.exists()
