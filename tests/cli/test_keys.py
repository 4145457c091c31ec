"""The command that writes key folders."""

import os
import re
import shlex
import shutil
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from key_folders import DAY, NOW, made, secrets_in
from sites import fedboost

from fedboost.runtime.files import folder_name
from fedboost.runtime.net.keys import read_bundle, read_certificates
from tests.test_docs import ROOT as REPOSITORY
from tests.test_docs import blocks


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    """What a run of `fedboost keys` prints; it ends well."""
    done = fedboost("keys", *words)
    assert (done.code, done.err) == (0, "")
    return done.out


def fails(*words):
    """The one line with which a run of `fedboost keys` ends badly."""
    done = fedboost("keys", *words)
    assert done.code == 2, done
    assert done.out == "" or words[0] == "show"
    (line,) = done.err.splitlines()
    assert line.startswith("fedboost: ")
    return line


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_consortium_from_nothing(here):
    """Modes, roles, names and fingerprints; what was printed names no secret."""
    old = os.umask(0o002)
    try:
        printed = [
            run("init-consortium", "--name", "heart study"),
            run("aggregator"),
            run("party", "north"),
            run("party", "Ärzte Süd"),
            run("analyst", "marie"),
        ]
    finally:
        os.umask(old)
    folders = {"aggregator": "aggregator", "north": "party", folder_name("Ärzte Süd"): "party"}
    folders["marie"] = "analyst"
    found = {path.name for path in (here / "keys").iterdir()}
    assert found == {*folders, "consortium-key.pem", "consortium.pem", "issued.txt"}
    assert mode(here / "keys") == 0o700
    assert mode(here / "keys" / "consortium-key.pem") == 0o600
    for folder, role in folders.items():
        bundle = here / "keys" / folder
        assert mode(bundle) == 0o700
        assert {file.name: mode(file) for file in bundle.iterdir()} == {
            "key.pem": 0o600,
            "certificate.pem": 0o644,
            "consortium.pem": 0o644,
        }
        assert read_bundle(bundle, role).signer.role == role
        assert (bundle / "consortium.pem").read_bytes() == (here / "keys" / "consortium.pem").read_bytes()
        printed.append(run("show", bundle))
        assert printed[-1].endswith("This bundle can be used.\n")
    assert read_bundle(here / "keys" / folder_name("Ärzte Süd"), "party").signer.name == "Ärzte Süd"
    root_key = load_pem_private_key((here / "keys" / "consortium-key.pem").read_bytes(), None)
    assert isinstance(root_key, ed25519.Ed25519PrivateKey)
    printed.append(run("show", "keys"))
    fingerprints = {print for out in printed for print in re.findall(r"(?:[0-9a-f]{8} ){7}[0-9a-f]{8}", out)}
    assert len(fingerprints) == 1
    assert all(len(line) <= 80 for out in printed for line in out.splitlines())
    assert all(secret not in out for secret in secrets_in(here) for out in printed)
    assert len(secrets_in(here)) > 5


def test_what_show_says(here):
    run("init-consortium")
    run("party", "north", "--days", "20")
    serial = read_certificates(here / "keys" / "north" / "certificate.pem")[0].serial_number
    lines = run("show", "keys/north").splitlines()
    assert lines[0] == "name        north"
    assert lines[1] == "role        party"
    assert re.fullmatch(
        r"valid       \d{4}-\d\d-\d\d \d\d:\d\d UTC to \d{4}-\d\d-\d\d \d\d:\d\d UTC", lines[2]
    )
    assert lines[3] == f"serial      {serial:x}"
    assert lines[4] == "consortium  consortium"
    assert run("show", "keys").splitlines()[0] == lines[4]


def test_show_ends_badly_for_what_cannot_be_used(here):
    made(here / "old", "north", "party", since=NOW - 20 * DAY, days=10)
    assert "old/certificate.pem expired on" in fails("show", "old")
    out = fedboost("keys", "show", "old").out
    assert out.startswith("This bundle cannot be used, for the reason in the last line.")
    assert "\nname        north\n" in out
    assert "can be used" not in out
    assert max(map(len, out.splitlines())) <= 80
    made(here / "open", "north", "party")
    (here / "open" / "key.pem").chmod(0o640)
    assert "run: chmod 600 open/key.pem" in fails("show", "open")
    assert "nowhere" in fails("show", "nowhere")


@pytest.mark.parametrize("words", [(), ("init-consortium",), ("party",), ("show",)])
def test_examples_in_help_have_lines_of_their_own(words):
    lines = [line.strip() for line in run(*words, "--help").splitlines()]
    assert sum(line.startswith("Example: fedboost keys ") for line in lines) == 2
    assert all(line.count("Example") <= 1 for line in lines)


def test_nothing_is_overwritten(here):
    run("init-consortium")
    run("party", "north")
    before = {path: path.read_bytes() for path in here.rglob("*.pem")}
    assert "keys/north already exists" in fails("party", "north")
    assert "keys/north already exists" in fails("analyst", "north")
    assert "keys/consortium-key.pem already exists" in fails("init-consortium")
    (here / "keys" / "consortium-key.pem").rename(here / "away.pem")
    assert "keys/consortium.pem already exists" in fails("init-consortium")
    assert not (here / "keys" / "consortium-key.pem").exists()
    (here / "away.pem").rename(here / "keys" / "consortium-key.pem")
    assert {path: path.read_bytes() for path in here.rglob("*.pem")} == before


@pytest.mark.parametrize("name", ["", "n" * 65, "nor\nth", "\x1b[2J"])
def test_names_that_no_certificate_holds(here, name):
    run("init-consortium")
    assert "cannot be a name" in fails("party", name)
    assert "cannot be a name" in fails("init-consortium", "--name", name, "--folder", "other")
    assert not (here / "other").exists()
    assert len(list((here / "keys").iterdir())) == 2


@pytest.mark.parametrize("name", ["..", "a/b", "/", "ä" * 32, "consortium.pem", "CON: x", "con"])
def test_names_that_are_no_folders(here, name):
    run("init-consortium")
    run("party", name)
    (bundle,) = (path for path in (here / "keys").iterdir() if path.is_dir())
    assert read_bundle(bundle, "party").signer.name == name
    assert len(list(here.iterdir())) == 1
    assert folder_name(name) != folder_name(name + ".")


def test_without_a_root_nobody_is_issued_anything(here):
    assert "fedboost keys init-consortium --folder keys" in fails("party", "north")
    assert "--folder elsewhere" in fails("party", "north", "--folder", "elsewhere")
    assert list(here.iterdir()) == []


def test_another_roots_key(here):
    run("init-consortium")
    run("init-consortium", "--folder", "other")
    shutil.copy("other/consortium.pem", "keys/consortium.pem")
    assert "keys/consortium-key.pem does not match keys/consortium.pem" in fails("aggregator")
    (here / "keys" / "consortium-key.pem").write_text("-----BEGIN NOTHING-----\n")
    assert "not a private key" in fails("aggregator")


def test_a_root_key_that_others_can_read(here):
    run("init-consortium")
    (here / "keys" / "consortium-key.pem").chmod(0o644)
    assert "chmod 600 keys/consortium-key.pem" in fails("aggregator")


def test_a_root_key_with_a_passphrase(here):
    words = here / "words.txt"
    words.write_text("open sesame\nand a second line\n")
    words.chmod(0o600)
    out = run("init-consortium", "--passphrase-file", words)
    assert "the root key, encrypted" in out
    assert b"ENCRYPTED PRIVATE KEY" in (here / "keys" / "consortium-key.pem").read_bytes()
    out += run("party", "north", "--passphrase-file", words)
    assert "sesame" not in out
    assert read_bundle(here / "keys" / "north", "party")
    assert "is encrypted; specify --passphrase-file" in fails("party", "south")
    words.write_text("open barley\n")
    line = fails("party", "south", "--passphrase-file", words)
    assert "or the passphrase is wrong" in line
    assert "barley" not in line
    words.write_text("\n")
    assert "must be a passphrase of 1 to 1000 bytes" in fails("party", "south", "--passphrase-file", words)
    words.chmod(0o604)
    assert "chmod 600" in fails("party", "south", "--passphrase-file", words)
    assert "missing.txt: cannot read" in fails("party", "south", "--passphrase-file", "missing.txt")
    run("init-consortium", "--folder", "plain")
    words.chmod(0o600)
    words.write_text("open sesame")
    line = fails("party", "south", "--passphrase-file", words, "--folder", "plain")
    assert "is not encrypted; omit the passphrase" in line
    assert not (here / "keys" / "south").exists()


def test_a_certificate_does_not_outlive_its_root(here):
    run("init-consortium", "--days", "30")
    assert "use at most 29 days" in fails("party", "north", "--days", "31")
    run("party", "north", "--days", "29")


def test_the_commands_of_the_page_on_identity_run(here):
    """One after the other, in one folder, with nothing but what they wrote."""
    lines = "\n".join(blocks(REPOSITORY / "docs" / "identity.md", "sh")).splitlines()
    done = []
    for line in lines:
        match shlex.split(line, comments=True):
            case ["fedboost", "keys", *words]:
                words += ["--yes"] * (words[0] == "sign")  # nobody is there to be asked
                assert max(map(len, run(*words).splitlines())) <= 80
                done.append(words[0])
            case ["mv", source, target]:
                shutil.move(source, target)
            case []:
                pass
            case other:
                raise AssertionError(f"nobody runs {other}")
    by_request = {"request", "sign", "accept"}
    assert set(done) == {"init-consortium", "aggregator", "party", "analyst", "show", *by_request}
    before, after = (read_bundle(here / "keys" / name, "party") for name in ("north-old", "north"))
    assert before.signer.name == after.signer.name == "north"
    assert before.certificate != after.certificate
