"""Key folders: what is read back, and what is refused."""

import errno
import os
import shutil
from dataclasses import replace

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from key_folders import DAY, NOW, THEIRS, call, fault, hospital, made, of_a_hospital, refusal, secrets_in
from sites import in_time

from fedboost.privacy.identity import identify, to_pem, verify
from fedboost.privacy.pairwise import Handshake
from fedboost.protocol.key_exchange import Attempt, Credentials, greet, hash_of, meet
from fedboost.runtime.net.keys import read_bundle, read_certificates
from fedboost.terms.terms import Terms


@pytest.fixture
def north(tmp_path):
    return made(tmp_path / "north", "north", "party")


# ---- bundles ----------------------------------------------------------------------------------------


def test_a_bundle_reads_back(north):
    bundle = read_bundle(north, "party")
    assert (bundle.signer.name, bundle.signer.role, bundle.denied) == ("north", "party", frozenset())
    holder = identify(bundle.certificate, bundle.roots, NOW, ())
    verify(holder, b"message", bundle.signer.sign(b"message"))
    for secret in secrets_in(north):
        assert secret not in repr(bundle)


def test_a_bundle_of_another_role(north):
    for role, said in [("aggregator", "use an aggregator's"), ("analyst", "use an analyst's")]:
        refusal(lambda role=role: read_bundle(north, role), north, "the bundle of a party", said)


def test_a_folder_that_is_not_there(tmp_path):
    refusal(lambda: read_bundle(tmp_path / "no", "analyst"), "does not exist", "fedboost keys analyst")


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem", "consortium.pem"])
def test_a_file_that_is_not_there_or_is_nonsense(north, name):
    content = (north / name).read_bytes()
    for damaged in (b"", content[:-40], b"\xff" * 9):
        (north / name).write_bytes(damaged)
        refusal(lambda: read_bundle(north, "party"), north / name, "in PEM")
    (north / name).unlink()
    refusal(lambda: read_bundle(north, "party"), north / name, "cannot read: No such file")


def test_the_folder_of_the_root_is_no_bundle(north, tmp_path):
    root = north.parent
    (root / "consortium-key.pem").touch()
    refusal(
        lambda: read_bundle(root, "party"),
        "is the folder of the root key; use the folder of a party, such as",
        north,
    )


def test_anothers_key(north, tmp_path):
    south = made(tmp_path / "south", "south", "party")
    shutil.copy(south / "key.pem", north / "key.pem")
    refusal(lambda: read_bundle(north, "party"), north / "key.pem", "does not match")


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o700 | 0o010])
def test_a_key_that_others_can_read(north, bits):
    (north / "key.pem").chmod(bits)
    refusal(lambda: read_bundle(north, "party"), f"chmod 600 {north / 'key.pem'}")


def test_an_encrypted_key(north):
    key = load_pem_private_key((north / "key.pem").read_bytes(), None)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"words"))
    (north / "key.pem").write_bytes(secret)
    refusal(lambda: read_bundle(north, "party"), north / "key.pem", "is encrypted", "must be unencrypted")


def test_a_bundle_out_of_date(tmp_path):
    old = made(tmp_path / "old", "north", "party", since=NOW - 20 * DAY)
    refusal(lambda: read_bundle(old, "party"), old / "certificate.pem", "expired on", "fedboost keys party")
    new = made(tmp_path / "new", "north", "party", since=NOW + DAY)
    refusal(lambda: read_bundle(new, "party"), new / "certificate.pem", "not valid before", "clock")


def test_a_bundle_of_another_consortium(north):
    (north / "consortium.pem").write_bytes(to_pem(THEIRS[1]))
    refusal(lambda: read_bundle(north, "party"), north / "certificate.pem", "another consortium")


def test_a_deny_list(north):
    (serial,) = (c.serial_number for c in read_certificates(north / "certificate.pem"))
    (north / "denied.txt").write_text("# gone\n\n 4f:A0:17 # lost laptop\n0x00beef\n")
    assert read_bundle(north, "party").denied == {"4fa017", "beef"}
    (north / "denied.txt").write_text("beef\nthe laptop\n")
    refusal(lambda: read_bundle(north, "party"), north / "denied.txt", "line 2", "'the laptop'")
    (north / "denied.txt").write_bytes(b"\xff\xfe")
    refusal(lambda: read_bundle(north, "party"), north / "denied.txt", "UTF-8")
    (north / "denied.txt").write_text(f"{serial:x}\n")
    refusal(lambda: read_bundle(north, "party"), north / "certificate.pem", "denied")


def test_a_bundle_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder = tmp_path / "north"
    refusal(lambda: made(folder, "north", "party"), folder, "cannot write: No space left on device")
    assert list(tmp_path.iterdir()) == []


# ---- an infrastructure that is not ours -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["p256", "rsa"])
def test_keys_of_an_existing_infrastructure_work(tmp_path, kind):
    """Root, intermediate and leaf: both ends know each other."""
    hub = read_bundle(of_a_hospital(tmp_path / "hub", "hub", "aggregator", kind), "aggregator")
    north = read_bundle(of_a_hospital(tmp_path / "north", "north", "party", kind), "party")
    assert in_time(call(hub, north)) == "party north"
    assert fault(hub, north) is None


def test_parties_of_an_existing_infrastructure_meet(tmp_path):
    names = ("north", "south", "east")
    folders = [of_a_hospital(tmp_path / name, name, "party", "p256") for name in names]
    terms = Terms.read({"columns": {"label": "y", "numeric": ["age"]}, "parties": list(names)})
    sites = [
        Credentials(bundle.signer, bundle.roots, bundle.denied, lambda: NOW)
        for bundle in (read_bundle(folder, "party") for folder in folders)
    ]
    attempt = Attempt("s", 1, terms)
    said = [
        greet(site, name, attempt, Handshake(os.urandom).public, os.urandom)
        for name, site in zip(names, sites, strict=True)
    ]
    certificates = {hash_of(site.signer.certificate): site.signer.certificate for site in sites}
    met = [meet(site, own, attempt, tuple(said), certificates) for site, own in zip(sites, said, strict=True)]
    assert met[0] == met[1] == met[2]


def test_an_intermediate_alone_may_be_trusted(tmp_path):
    """So that not everybody whom the root let in anywhere belongs to the consortium."""
    _, middle, _ = hospital("p256")
    ends = [of_a_hospital(tmp_path / "hub", "hub", "aggregator", "p256")]
    ends += [of_a_hospital(tmp_path / "north", "north", "party", "p256")]
    for end in ends:
        (end / "consortium.pem").write_bytes(to_pem(middle))
    hub, north = read_bundle(ends[0], "aggregator"), read_bundle(ends[1], "party")
    assert in_time(call(hub, north)) == "party north"
    assert fault(hub, north) is None


def test_a_denied_intermediate_keeps_its_holders_out(tmp_path):
    hub = read_bundle(of_a_hospital(tmp_path / "hub", "hub", "aggregator", "p256"), "aggregator")
    north = read_bundle(of_a_hospital(tmp_path / "north", "north", "party", "p256"), "party")
    _, middle, _ = hospital("p256")
    code, said = in_time(call(replace(hub, denied=frozenset({f"{middle.serial_number:x}"})), north))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert "the certificate of 'Devices' is denied" in said


def test_a_key_that_tls_does_not_take_is_named_before_it_fails(tmp_path):
    folder = of_a_hospital(tmp_path / "north", "north", "party", "p521")
    refusal(lambda: read_bundle(folder, "party"), folder / "key.pem", "secp521r1", "P-256")
