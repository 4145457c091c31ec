"""Key folders, the command that writes them, and what TLS makes of them: who gets in, and what others see."""

import asyncio
import errno
import os
import re
import shlex
import shutil
import socket
import ssl
import stat
import struct
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from sites import fedboost, in_time

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity.certificates import SERVER_NAME, identify, to_pem
from fedboost.privacy.identity.issue import issue, new_root
from fedboost.privacy.identity.signatures import Signer, verify
from fedboost.privacy.masked.pairwise import Handshake
from fedboost.protocol.key_exchange import Attempt, Credentials, greet, meet
from fedboost.runtime.files import folder_name
from fedboost.runtime.net import tls
from fedboost.runtime.net.keys import Bundle, read_bundle, read_certificates, write_bundle
from fedboost.runtime.net.tls import (
    CLIENT_TLS_OPTIONS,
    TlsFault,
    channel_credentials,
    peer_of,
    server_credentials,
    tls_fault,
)
from fedboost.terms.terms import Terms
from tests.test_docs import ROOT as REPOSITORY
from tests.test_docs import blocks

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
OURS, THEIRS = (new_root("study", NOW - 100 * DAY, 1000) for _ in range(2))


def made(folder, name, role, root=OURS, since=NOW, days=10):
    """A bundle of a root, as a folder."""
    key, certificate = issue(*root, name, role, since, days)
    write_bundle(folder, key, certificate, to_pem(root[1]))
    return folder


def loaded(folder, role="party"):
    """A bundle that nobody judged, as somebody hostile would load it."""
    chain = read_certificates(folder / "certificate.pem")
    key = (folder / "key.pem").read_bytes()
    signer = Signer("?", role, to_pem(*chain), load_pem_private_key(key, None))
    return Bundle(folder, signer, (folder / "consortium.pem").read_bytes(), key, frozenset())


def refusal(action, *said):
    """It is a ConfigError of one line that says these things."""
    with pytest.raises(ConfigError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    for part in said:
        assert str(part) in text
    return text


@pytest.fixture
def north(tmp_path):
    return made(tmp_path / "north", "north", "party")


# ---- the command ------------------------------------------------------------------------------------------


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


def secrets_in(folder):
    """What no output may have: the lines of every private key below a folder."""
    files = [file for file in folder.rglob("*.pem") if b"PRIVATE" in file.read_bytes()]
    return {line for file in files for line in file.read_text().splitlines()[1:-1]}


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
    assert found == {*folders, "consortium-key.pem", "consortium.pem"}
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
    assert "old/certificate.pem: expired on" in fails("show", "old")
    out = fedboost("keys", "show", "old").out
    assert out.startswith("This bundle cannot be used, for the reason given last.")
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
    assert "keys/north: exists already" in fails("party", "north")
    assert "keys/north: exists already" in fails("analyst", "north")
    assert "keys/consortium-key.pem: exists already" in fails("init-consortium")
    (here / "keys" / "consortium-key.pem").rename(here / "away.pem")
    assert "keys/consortium.pem: exists already" in fails("init-consortium")
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


@pytest.mark.parametrize("name", ["..", "a/b", "/", "ä" * 32, "consortium.pem", "CON: x"])
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
    assert "keys/consortium-key.pem: this key does not belong to keys/consortium.pem" in fails("aggregator")
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
    assert "the root's key, encrypted" in out
    assert b"ENCRYPTED PRIVATE KEY" in (here / "keys" / "consortium-key.pem").read_bytes()
    out += run("party", "north", "--passphrase-file", words)
    assert "sesame" not in out
    assert read_bundle(here / "keys" / "north", "party")
    assert "is encrypted; give --passphrase-file" in fails("party", "south")
    words.write_text("open barley\n")
    line = fails("party", "south", "--passphrase-file", words)
    assert "that the passphrase opens" in line
    assert "barley" not in line
    words.write_text("\n")
    assert "the first line must be a passphrase" in fails("party", "south", "--passphrase-file", words)
    words.chmod(0o604)
    assert "chmod 600" in fails("party", "south", "--passphrase-file", words)
    assert "missing.txt: cannot read" in fails("party", "south", "--passphrase-file", "missing.txt")
    run("init-consortium", "--folder", "plain")
    words.chmod(0o600)
    words.write_text("open sesame")
    line = fails("party", "south", "--passphrase-file", words, "--folder", "plain")
    assert "is not encrypted; leave the passphrase out" in line
    assert not (here / "keys" / "south").exists()


def test_a_certificate_does_not_outlive_its_root(here):
    run("init-consortium", "--days", "30")
    assert "ask for at most 29 days" in fails("party", "north", "--days", "31")
    run("party", "north", "--days", "29")


def test_the_commands_of_the_page_on_identity_run(here):
    """One after the other, in one folder, with nothing but what they wrote."""
    lines = "\n".join(blocks(REPOSITORY / "docs" / "identity.md", "sh")).splitlines()
    done = []
    for line in lines:
        match shlex.split(line, comments=True):
            case ["fedboost", "keys", *words]:
                assert max(map(len, run(*words).splitlines())) <= 80
                done.append(words[0])
            case ["mv", source, target]:
                shutil.move(source, target)
            case []:
                pass
            case other:
                raise AssertionError(f"nobody runs {other}")
    assert set(done) == {"init-consortium", "aggregator", "party", "analyst", "show"}
    before, after = (read_bundle(here / "keys" / name, "party") for name in ("north-old", "north"))
    assert before.signer.name == after.signer.name == "north"
    assert before.certificate != after.certificate


# ---- bundles ----------------------------------------------------------------------------------------------


def test_a_bundle_reads_back(north):
    bundle = read_bundle(north, "party")
    assert (bundle.signer.name, bundle.signer.role, bundle.denied) == ("north", "party", frozenset())
    holder = identify(bundle.certificate, bundle.roots, NOW, ())
    verify(holder, b"message", bundle.signer.sign(b"message"))
    for secret in secrets_in(north):
        assert secret not in repr(bundle)


def test_a_bundle_of_another_role(north):
    for role, said in [("aggregator", "an aggregator's is needed"), ("analyst", "an analyst's is needed")]:
        refusal(lambda role=role: read_bundle(north, role), north, "the bundle of a party", said)


def test_a_folder_that_is_not_there(tmp_path):
    refusal(lambda: read_bundle(tmp_path / "no", "analyst"), "no such folder", "fedboost keys analyst")


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem", "consortium.pem"])
def test_a_file_that_is_not_there_or_is_nonsense(north, name):
    content = (north / name).read_bytes()
    for damaged in (b"", content[:-40], b"\xff" * 9):
        (north / name).write_bytes(damaged)
        refusal(lambda: read_bundle(north, "party"), north / name, "in PEM")
    (north / name).unlink()
    refusal(lambda: read_bundle(north, "party"), north / name, "cannot read: No such file")


def test_anothers_key(north, tmp_path):
    south = made(tmp_path / "south", "south", "party")
    shutil.copy(south / "key.pem", north / "key.pem")
    refusal(lambda: read_bundle(north, "party"), north / "key.pem", "does not belong to")


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o700 | 0o010])
def test_a_key_that_others_can_read(north, bits):
    (north / "key.pem").chmod(bits)
    refusal(lambda: read_bundle(north, "party"), f"chmod 600 {north / 'key.pem'}")


def test_an_encrypted_key(north):
    key = load_pem_private_key((north / "key.pem").read_bytes(), None)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"words"))
    (north / "key.pem").write_bytes(secret)
    refusal(lambda: read_bundle(north, "party"), north / "key.pem", "is encrypted", "must not be")


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


# ---- an infrastructure that is not ours -------------------------------------------------------------------


@cache
def key_of(kind, owner):
    """A key for each owner, made once."""
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key({"p256": ec.SECP256R1(), "p521": ec.SECP521R1()}[kind])


def certified(key, issuer_key, issuer, subject, *extensions):
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    algorithm = None if isinstance(issuer_key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(issuer_key, algorithm)


def named(name, unit=None):
    unit = [] if unit is None else [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)]
    return x509.Name([*unit, x509.NameAttribute(NameOID.COMMON_NAME, name)])


@cache
def hospital(kind):
    """A hospital's own authority: the intermediate's key, the intermediate, the root."""
    authority = (x509.BasicConstraints(True, None), True)
    root_key, middle_key = key_of(kind, "root"), key_of(kind, "middle")
    root = certified(root_key, root_key, named("Hospital Root"), named("Hospital Root"), authority)
    return middle_key, certified(middle_key, root_key, root.subject, named("Devices"), authority), root


def of_a_hospital(folder, name, role, kind):
    """A bundle of root -> intermediate -> leaf."""
    middle_key, middle, root = hospital(kind)
    host = SERVER_NAME if role == "aggregator" else f"{name}.hospital.example"
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    key = key_of(kind, name)
    leaf = certified(
        key,
        middle_key,
        middle.subject,
        named(name, role),
        (x509.SubjectAlternativeName([x509.DNSName(host)]), False),
        (x509.ExtendedKeyUsage(purposes), False),
    )
    folder.mkdir()
    (folder / "certificate.pem").write_bytes(to_pem(leaf, middle))
    (folder / "consortium.pem").write_bytes(to_pem(root))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    (folder / "key.pem").chmod(0o600)
    return folder


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
    met = [meet(site, own, attempt, tuple(said)) for site, own in zip(sites, said, strict=True)]
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


# ---- who gets in ------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(bundle, credentials=None):
    """An aggregator that says who calls it: its address."""

    async def who(request, context):
        try:
            known = peer_of(context.auth_context(), bundle, datetime.now(UTC))
        except PeerError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return f"{known.role} {known.name}".encode()

    server = grpc.aio.server()
    methods = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", methods)])
    port = server.add_secure_port("127.0.0.1:0", credentials or server_credentials(bundle))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def call(server, client, credentials=None, options=CLIENT_TLS_OPTIONS):
    """Who the server says calls it, or the status and the details with which the call ends."""
    async with serving(server) as address:
        credentials = credentials or channel_credentials(client)
        async with grpc.aio.secure_channel(address, credentials, options=options) as opened:
            try:
                return (await opened.unary_unary("/test/Who")(b"")).decode()
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details()


def fault(server, client):
    """What `tls_fault` says of a server that runs."""

    async def look():
        async with serving(server) as address:
            seen = await asyncio.to_thread(tls_fault, address, client)
            assert seen is None or not seen.passes
            return seen and seen.reason.replace(address, "ADDRESS")

    return in_time(look())


def unavailable(server, client, said, **more):
    """The call ends so; `said` is part of the details."""
    code, details = in_time(call(server, client, **more))
    assert code == grpc.StatusCode.UNAVAILABLE
    assert said in details


CLOSED = "Socket closed"
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate"


@pytest.fixture
def hub(tmp_path):
    return read_bundle(made(tmp_path / "hub", "hub", "aggregator"), "aggregator")


@pytest.mark.parametrize("role", ["party", "analyst"])
def test_whoever_belongs_gets_in(hub, tmp_path, role):
    """OK: the server knows name and role. All is well, so there is no fault to tell."""
    bundle = read_bundle(made(tmp_path / "marie", "marie", role), role)
    assert in_time(call(hub, bundle)) == f"{role} marie"
    assert fault(hub, bundle) is None


def test_nobody_gets_in_without_a_certificate(hub):
    """UNAVAILABLE, "... last error: UNAVAILABLE: ipv4:HOST:PORT: Socket closed"."""
    unavailable(hub, None, CLOSED, credentials=grpc.ssl_channel_credentials(hub.roots))


def test_nobody_gets_in_with_a_certificate_of_another_root(hub, tmp_path):
    """UNAVAILABLE, "... Socket closed" where the client trusts the server's root, which does not trust it."""
    bundle = loaded(made(tmp_path / "north", "north", "party", THEIRS))
    bundle = replace(bundle, roots=to_pem(OURS[1], THEIRS[1]))
    unavailable(hub, bundle, CLOSED)
    assert fault(hub, bundle) == (
        f"the aggregator at ADDRESS refuses {tmp_path}/north/certificate.pem: it trusts another consortium, "
        f"or its clock is wrong; compare the fingerprints that `fedboost keys show` prints there and here"
    )


def test_nobody_calls_an_aggregator_of_another_root(hub, tmp_path):
    """UNAVAILABLE, "... Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL
    routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK"."""
    bundle = read_bundle(made(tmp_path / "north", "north", "party", THEIRS), "party")
    unavailable(hub, bundle, UNTRUSTED)
    assert fault(hub, bundle) == (
        "the certificate of the aggregator at ADDRESS is of another consortium; compare the fingerprints "
        "that `fedboost keys show` prints there and here"
    )


def test_nobody_gets_in_with_an_expired_certificate(hub, tmp_path):
    """UNAVAILABLE, "... Socket closed"."""
    bundle = loaded(made(tmp_path / "north", "north", "party", since=NOW - 20 * DAY))
    unavailable(hub, bundle, CLOSED)
    day = f"{NOW - 10 * DAY:%Y-%m-%d %H:%M} UTC"
    assert fault(hub, bundle) == (
        f"{tmp_path}/north/certificate.pem: expired on {day}; have a new bundle issued with `fedboost keys "
        f"party`, where the consortium's root key is, and put it in place of this one"
    )


def test_nobody_calls_an_aggregator_with_an_expired_certificate(north, tmp_path):
    """UNAVAILABLE, "... CERTIFICATE_VERIFY_FAILED: certificate has expired: OK"."""
    old = loaded(made(tmp_path / "old", "hub", "aggregator", since=NOW - 20 * DAY))
    bundle = read_bundle(north, "party")
    unavailable(old, bundle, "CERTIFICATE_VERIFY_FAILED: certificate has expired")
    assert fault(old, bundle) == (
        "the certificate of the aggregator at ADDRESS is expired; it needs a new bundle, which "
        "`fedboost keys aggregator` writes"
    )


def test_an_aggregator_whose_clock_is_ahead(north, tmp_path):
    """UNAVAILABLE, "... CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK"."""
    new = loaded(made(tmp_path / "new", "hub", "aggregator", since=NOW + DAY))
    bundle = read_bundle(north, "party")
    unavailable(new, bundle, "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid")
    said = "the certificate of the aggregator at ADDRESS is not valid yet; check this machine's clock"
    assert fault(new, bundle) == said


def test_an_aggregator_is_no_party(hub):
    """UNAVAILABLE, "... Socket closed": its certificate is for servers only."""
    unavailable(hub, hub, CLOSED)


def test_an_aggregator_that_may_be_a_client_is_known_for_what_it_is(tmp_path):
    """OK, and the role is "aggregator": to refuse it is for whoever asks `peer_of`."""
    hub = read_bundle(of_a_hospital(tmp_path / "hub", "hub", "aggregator", "p256"), "aggregator")
    assert in_time(call(hub, hub)) == "aggregator hub"


NO_AGGREGATOR = (
    "the certificate of the aggregator at ADDRESS is not an aggregator's, which has the DNS name "
    "aggregator.fedboost"
)


def test_a_party_cannot_pretend_to_be_the_aggregator(north, tmp_path):
    """UNAVAILABLE, "... CERTIFICATE_VERIFY_FAILED: unsupported certificate purpose: OK"."""
    south = loaded(made(tmp_path / "south", "south", "party"))
    bundle = read_bundle(north, "party")
    unavailable(south, bundle, "CERTIFICATE_VERIFY_FAILED: unsupported certificate purpose")
    assert fault(south, bundle) == NO_AGGREGATOR


def test_not_even_one_whose_certificate_is_for_servers_too(tmp_path):
    """UNAVAILABLE, "... Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification
    Check failed."."""
    south = loaded(of_a_hospital(tmp_path / "south", "south", "party", "p256"))
    bundle = read_bundle(of_a_hospital(tmp_path / "north", "north", "party", "p256"), "party")
    unavailable(south, bundle, "Hostname Verification Check failed")
    assert fault(south, bundle) == NO_AGGREGATOR


def test_who_is_denied_is_told_so(hub, north):
    """What the server makes of `peer_of`: here PERMISSION_DENIED and its sentence. TLS lets them in."""
    bundle = read_bundle(north, "party")
    serial = identify(bundle.certificate, bundle.roots, NOW, ()).serial
    strict = replace(hub, denied=frozenset({serial}))
    code, said = in_time(call(strict, bundle))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert said == f"the certificate of 'north' is denied: its serial number {serial} is on the deny list"
    assert fault(strict, bundle) is None


def test_a_connection_without_tls_shows_nobody(hub):
    with pytest.raises(PeerError, match="shows no certificate"):
        peer_of({"transport_security_type": [b"insecure"]}, hub, NOW)


# ---- what else may listen ---------------------------------------------------------------------------------


@contextmanager
def listening(answer):
    """Somebody who is no gRPC server: takes a connection and does `answer(socket)`; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            taken, _ = server.accept()
            with taken:
                answer(taken)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join()


def shouts(taken):
    taken.recv(9)
    taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def resets(taken):
    taken.recv(9)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def closes(taken):
    taken.recv(9)


def encrypted(answer, bundle, trusted):
    """The same over TLS, as this bundle's aggregator, for whom these roots let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle.folder / "certificate.pem", bundle.folder / "key.pem")

    context.load_verify_locations(cadata=trusted.decode())
    context.verify_mode = ssl.CERT_REQUIRED

    def handshake_first(taken):
        with suppress(ssl.SSLError), context.wrap_socket(taken, server_side=True) as secured:
            answer(secured)

    return handshake_first


def waits(taken):
    while taken.recv(4096):
        pass


def test_what_listens_does_not_speak_tls(north):
    with listening(shouts) as address:
        seen = tls_fault(address, read_bundle(north, "party"))
    said = f"what listens at {address} does not speak TLS as a fedboost aggregator with keys does"
    assert seen == TlsFault(said)


def closes_unread(taken):
    """With a reset, since something is unread; maybe before the client has looked at its connection."""


@pytest.mark.parametrize("answer", [resets, closes, closes_unread])
def test_a_hang_up_says_nothing_of_tls(north, answer):
    """An aggregator at its limit of connections hangs up, too: it is worth dialling again."""
    with listening(answer) as address:
        seen = tls_fault(address, read_bundle(north, "party"))
    assert seen.passes
    assert seen.reason.startswith(f"what listens at {address} hangs up before TLS: ")


def test_a_silence_says_nothing_of_tls(north, monkeypatch):
    monkeypatch.setattr(tls, "_PATIENCE", 0.3)
    with listening(waits) as address:
        seen = tls_fault(address, read_bundle(north, "party"))
    assert seen.passes
    assert seen.reason.startswith(f"what listens at {address} does not answer: ")


def test_an_aggregator_that_is_silent_may_be_busy(hub, north, monkeypatch):
    monkeypatch.setattr(tls, "_PATIENCE", 0.3)
    with listening(encrypted(waits, hub, hub.roots)) as address:
        assert tls_fault(address, read_bundle(north, "party")) is None


def test_a_refusal_in_the_words_of_tls_is_one(hub, north):
    """gRPC only hangs up; OpenSSL, in front of an aggregator, says what it thinks of a certificate."""
    with listening(encrypted(waits, hub, to_pem(THEIRS[1]))) as address:
        seen = tls_fault(address, read_bundle(north, "party"))
    assert not seen.passes
    assert seen.reason.startswith(f"the aggregator at {address} refuses {north}/certificate.pem: ")


def test_an_aggregator_without_keys_does_not_speak_tls(hub, north):
    """A call there ends UNAVAILABLE, "... SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:
    WRONG_VERSION_NUMBER: Invalid certificate verification context"."""
    bundle = read_bundle(north, "party")

    async def look():
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        address = f"127.0.0.1:{port}"
        async with grpc.aio.secure_channel(
            address, channel_credentials(bundle), options=CLIENT_TLS_OPTIONS
        ) as opened:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await opened.unary_unary("/test/Who")(b"")
        seen = await asyncio.to_thread(tls_fault, address, bundle)
        await server.stop(0)
        return caught.value, seen

    error, seen = in_time(look())
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert "WRONG_VERSION_NUMBER" in error.details()
    assert "does not speak TLS" in seen.reason
    assert not seen.passes


def test_where_nobody_listens_there_is_no_fault_of_tls(north):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    bundle = read_bundle(north, "party")
    assert tls_fault(f"127.0.0.1:{port}", bundle) is None
    assert tls_fault(f"[::1]:{port}", bundle) is None


def test_a_bundle_that_went_away(hub, north):
    bundle = read_bundle(north, "party")
    shutil.rmtree(north)
    refusal(lambda: fault(hub, bundle), north, "cannot read the bundle again", "No such file")
