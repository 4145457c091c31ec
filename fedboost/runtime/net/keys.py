"""Key folders: the consortium's root, and the bundle that each party, aggregator and analyst holds.

A bundle is a folder: certificate.pem (the holder's, then its intermediates), key.pem, consortium.pem (the
roots it trusts) and, if anybody is to be kept out, denied.txt (a serial number in hex on each line, `#`
before a remark). An existing public-key infrastructure may write it too.

Promises: a private key is written for its owner's eyes alone, and read only where it is kept so; a bundle
that `read_bundle` returns can dial, be dialled, and sign, today; nothing here prints a key.
Refuses: to overwrite any file, and every bundle whose files do not fit each other (ConfigError: one line).
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity import (
    MAX_REQUEST_BYTES,
    CertificateRequest,
    Identified,
    PrivateKey,
    Signer,
    common_name,
    day,
    identify,
    new_request,
    read_request,
    read_roots,
    role_of,
    serial_of,
    to_pem,
)
from fedboost.runtime.files import file_errors, folder_name

CERTIFICATE, KEY, ROOTS, DENIED = "certificate.pem", "key.pem", "consortium.pem", "denied.txt"
REQUEST = "request.pem"
ROOT_KEY = "consortium-key.pem"

_A = {"party": "a party", "aggregator": "an aggregator", "analyst": "an analyst"}
PRIVATE, PUBLIC = 0o600, 0o644
_TLS_CURVES = ("secp256r1", "secp384r1")


@dataclass(frozen=True)
class Bundle:
    """The identity of a process: `roots` and `key` are PEM, `denied` serial numbers, `folder` the place that
    it was read from."""

    folder: Path
    signer: Signer
    roots: bytes = field(repr=False)
    key: bytes = field(repr=False)
    denied: frozenset[str]

    @property
    def certificate(self) -> bytes:
        """PEM: the leaf, then its intermediates if it has any."""
        return self.signer.certificate

    @property
    def ends(self) -> datetime:
        """The time until which it can be used: the end of the first of its certificates that ends."""
        chain = x509.load_pem_x509_certificates(self.certificate)
        return min(certificate.not_valid_after_utc for certificate in chain)


def read_bundle(folder: Path, role: str) -> Bundle:
    """The bundle in a folder, for use in a role; ConfigError unless everything in it is in order today."""
    check_folder(
        folder, f"{_A[role]}'s bundle ({CERTIFICATE}, {KEY}, {ROOTS}), which `fedboost keys {role}` writes"
    )
    if (folder / ROOT_KEY).exists() and not (folder / CERTIFICATE).exists():
        bundles = sorted(path.parent for path in folder.glob(f"*/{CERTIFICATE}"))
        example = f", such as {bundles[0]}" if bundles else ""
        raise ConfigError(f"{folder}: is the folder of the root; name that of {_A[role]}{example}")
    source, now = folder / CERTIFICATE, datetime.now(UTC)
    chain, roots = read_certificates(source), to_pem(*read_certificates(folder / ROOTS))
    key, denied = read_key(folder / KEY, None), _read_denied(folder / DENIED)
    if now > chain[0].not_valid_after_utc:
        raise ConfigError(f"{source}: {expired(chain[0].not_valid_after_utc, role)}")
    if now < (begins := chain[0].not_valid_before_utc):
        raise ConfigError(f"{source}: not valid before {day(begins)}; check this machine's clock")
    try:
        holder = identify(to_pem(*chain), roots, now, denied)
    except PeerError as error:
        raise ConfigError(f"{source}: {error}") from None
    if holder.role != role:
        raise ConfigError(f"{folder} is the bundle of {_A[holder.role]}, {_A[role]}'s is needed")
    if key.public_key() != holder.public_key:
        raise ConfigError(f"{folder / KEY}: this key does not belong to {source}; the two come in a pair")
    _check_tls(key, folder / KEY)
    signer = Signer(holder.name, holder.role, to_pem(*chain), key)
    return Bundle(folder, signer, roots, key_to_pem(key, NoEncryption()), denied)


def check_folder(folder: Path, due: str) -> None:
    """ConfigError for a folder that is not there, or that waits for its certificate. due: what it should
    be."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; it should be {due}")
    has_key, has_request = (folder / KEY).exists(), (folder / REQUEST).exists()
    if has_key and has_request and not (folder / CERTIFICATE).exists():
        raise ConfigError(
            f"{folder}: its certificate is still asked for; run `fedboost keys accept ANSWER` with what the "
            f"owner of the root sends back"
        )


def read_again(bundle: Bundle) -> Bundle:
    """The bundle as it is in its folder now, so that renewed keys need no new process. What cannot be used is
    as if it were not there yet, while the bundle itself can be; else ConfigError says what is wrong."""
    try:
        return read_bundle(bundle.folder, bundle.signer.role)
    except ConfigError:
        if datetime.now(UTC) > bundle.ends:
            raise
        return bundle


def read_certificates(path: Path) -> tuple[x509.Certificate, ...]:
    """The certificates of a file, at least one, as they stand: nobody has judged them."""
    with file_errors(path, "cannot read"):
        data = path.read_bytes()
    try:
        return read_roots(data)
    except ConfigError:
        raise ConfigError(f"{path}: not an X.509 certificate in PEM") from None


def read_trust(folder: Path) -> tuple[bytes, frozenset[str]]:
    """The roots that a bundle trusts, in PEM, and its deny list; nothing of its own key is read."""
    check_folder(folder, f"a bundle, or another folder with a {ROOTS}")
    return to_pem(*read_certificates(folder / ROOTS)), _read_denied(folder / DENIED)


def write_bundle(folder: Path, key: PrivateKey, certificate: x509.Certificate, roots: bytes) -> None:
    """Write a new folder with a bundle, for its owner's eyes alone."""
    files = {
        KEY: (key_to_pem(key, NoEncryption()), PRIVATE),
        CERTIFICATE: (to_pem(certificate), PUBLIC),
        ROOTS: (roots, PUBLIC),
    }
    _write_folder(
        folder, files, "exists already, and keys are never overwritten; move it away to issue again", False
    )


def _write_folder(folder: Path, files: Mapping[str, tuple[bytes, int]], refusal: str, parents: bool) -> None:
    """Write a new folder with these files, by their names, for its owner alone. refusal: where there is
    one."""
    try:
        folder.mkdir(mode=0o700, parents=parents)
    except FileExistsError:
        raise ConfigError(f"{folder}: {refusal}") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot write: {error.strerror}") from None
    try:
        write_new({folder / name: content for name, content in files.items()})
    except ConfigError:
        folder.rmdir()
        raise


def write_root(
    folder: Path, key: PrivateKey, root: x509.Certificate, passphrase: bytes | None = None
) -> None:
    """Write a consortium's root into a folder, made if it is not there; a passphrase encrypts the key."""
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    with file_errors(folder, "cannot write"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_new(
        {
            folder / ROOT_KEY: (key_to_pem(key, encryption), PRIVATE),
            folder / ROOTS: (to_pem(root), PUBLIC),
        }
    )


def read_root(folder: Path, passphrase: bytes | None = None) -> tuple[PrivateKey, x509.Certificate]:
    """The root that `write_root` wrote."""
    if not (folder / ROOT_KEY).exists():
        raise ConfigError(
            f"{folder / ROOT_KEY}: no such file; `fedboost keys init-consortium --folder {folder}` writes it"
        )
    key, root = read_key(folder / ROOT_KEY, passphrase), read_certificates(folder / ROOTS)[0]
    if key.public_key() != root.public_key():
        raise ConfigError(f"{folder / ROOT_KEY}: this key does not belong to {folder / ROOTS}")
    return key, root


def read_passphrase(path: Path) -> bytes:
    """A passphrase: the first line of a file."""
    passphrase = _read_private(path).partition(b"\n")[0].rstrip(b"\r")
    if not 1 <= len(passphrase) <= 1000:
        raise ConfigError(f"{path}: the first line must be a passphrase of 1 to 1000 bytes")
    return passphrase


def _read_denied(path: Path) -> frozenset[str]:
    """The serial numbers on a deny list; none where there is no such file."""
    denied = set()
    for number, line in enumerate(_lines(path), 1):
        text = line.partition("#")[0].strip()
        try:
            denied |= {serial_of(text)} if text else set()
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
    return frozenset(denied)


def _lines(path: Path) -> list[str]:
    """The lines of a text; none where there is no such file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text in UTF-8") from None


def read_key(path: Path, passphrase: bytes | None) -> PrivateKey:
    data = _read_private(path)
    try:
        key = load_pem_private_key(data, passphrase)
    except TypeError:
        if passphrase is not None:
            raise ConfigError(f"{path}: is not encrypted; leave the passphrase out") from None
        advice = "give --passphrase-file" if path.name == ROOT_KEY else "a bundle's key must not be"
        raise ConfigError(f"{path}: is encrypted; {advice}") from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = " that the passphrase opens" if passphrase is not None else ""
        raise ConfigError(f"{path}: not a private key in PEM{wrong}") from None
    if not isinstance(key, PrivateKey):
        raise ConfigError(f"{path}: a key that is neither EC nor RSA nor Ed25519")
    return key


def _read_private(path: Path) -> bytes:
    """The content of a file that nobody but its owner can read."""
    with file_errors(path, "cannot read"), path.open("rb") as file:
        status = os.fstat(file.fileno())
        if os.name == "posix" and stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
            raise ConfigError(
                f"{path}: others can read it (mode {status.st_mode & 0o777:o}); run: chmod 600 {path}"
            )
        return file.read()


def write_new(files: Mapping[Path, tuple[bytes, int]]) -> None:
    """Write all of these files (content, mode) or none; none may exist."""
    paths: list[Path] = []
    for path, (data, mode) in files.items():
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            paths.append(path)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            for done in paths:
                done.unlink(missing_ok=True)
            if isinstance(error, FileExistsError):
                raise ConfigError(
                    f"{path}: exists already, and keys are never overwritten; move it away first"
                ) from None
            raise ConfigError(f"{path}: cannot write: {error.strerror}") from None


def key_to_pem(key: PrivateKey, encryption: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def expired(end: datetime, role: str) -> str:
    return (
        f"expired on {day(end)}; have a new bundle issued with `fedboost keys {role}`, where the "
        f"consortium's root key is, and put it in place of this one"
    )


def _check_tls(key: PrivateKey, path: Path) -> None:
    """Raise ConfigError for a kind of key that gRPC's TLS does not take: it says so only in a failed
    handshake."""
    if isinstance(key, rsa.RSAPrivateKey):
        return
    kind = "Ed25519" if isinstance(key, ed25519.Ed25519PrivateKey) else key.curve.name
    if kind not in _TLS_CURVES:
        raise ConfigError(
            f"{path}: gRPC's TLS does not take {kind} keys; use P-256, P-384 or RSA for this certificate"
        )


# ---- Keys by request: a member makes its key where it stays ---------------------------------------------
# The root's owner signs the request for it, and the answer makes a bundle of the two.
# The list of all that a root has issued lies beside its key.
# Promises: the private key is in the member's folder alone; whose certificate was issued, and until when,
# stands in `issued.txt`, with the serial number that a deny list wants.
# Refuses: to overwrite any file; a request that is not to be signed, or for a name that has a certificate
# already; an answer that is not for the key in the folder (ConfigError: one line that names the file).


ISSUED, ANSWER_SUFFIX = "issued.txt", ".answer.pem"
_HEADING = "# serial number, role, end, name: of every certificate that was issued here\n"
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Issued:
    """A certificate that was issued."""

    serial: str
    role: str
    end: datetime
    name: str


def write_request(folder: Path, name: str, role: str) -> tuple[Path, CertificateRequest]:
    """Make a key in a new folder for this name, and the request for its certificate: the request's file."""
    key, request = new_request(name, role)
    bundle, pem = folder / folder_name(name), request.public_bytes(Encoding.PEM)
    files = {KEY: (key_to_pem(key, NoEncryption()), PRIVATE), REQUEST: (pem, PUBLIC)}
    _write_folder(
        bundle, files, "exists already, and keys are never overwritten; move it away to ask again", True
    )
    return bundle / REQUEST, read_request(pem)


def read_request_file(path: Path) -> CertificateRequest:
    """The request in a file. ConfigError that names it."""
    with file_errors(path, "cannot read"), path.open("rb") as file:
        data = file.read(MAX_REQUEST_BYTES + 1)
    if b"PRIVATE KEY" in data:
        raise ConfigError(
            f"{path}: holds a private key, which must not leave its site; send {REQUEST} beside it"
        )
    try:
        return read_request(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def check_new(folder: Path, name: str, now: datetime) -> None:
    """Raise ConfigError if a certificate of this name was issued here and is still good."""
    known = [issued for issued in _read_issued(folder) if issued.name == name and issued.end > now]
    if known:
        last = known[-1]
        raise ConfigError(
            f"{folder / ISSUED}: {name!r} has a certificate already, as {last.role}, until {day(last.end)} "
            f"(serial {last.serial}); if the request is really theirs, --renew signs it all the same"
        )


def note_issued(folder: Path, certificate: x509.Certificate) -> None:
    """Append a certificate to the list of those that were issued. ConfigError."""
    path = folder / ISSUED
    end = certificate.not_valid_after_utc.strftime(_TIME)
    line = f"{certificate.serial_number:x} {role_of(certificate)} {end} {common_name(certificate)}\n"
    with file_errors(path, "cannot write"):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(line if os.fstat(handle).st_size else _HEADING + line)


def _read_issued(folder: Path) -> list[Issued]:
    path, issued = folder / ISSUED, []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            serial, role, end, name = line.split(" ", 3)
            issued.append(Issued(serial, role, datetime.strptime(end, _TIME).replace(tzinfo=UTC), name))
        except ValueError:
            raise ConfigError(
                f"{path}, line {number}: is not a serial number, a role, a time and a name"
            ) from None
    return issued


def write_answer(folder: Path, certificate: x509.Certificate, root: x509.Certificate) -> Path:
    """Write the answer to a request beside the root's key, a new file: the certificate, then the root."""
    path = folder / f"{folder_name(common_name(certificate) or '')}{ANSWER_SUFFIX}"
    write_new({path: (to_pem(certificate, root), PUBLIC)})
    return path


def accept_answer(folder: Path, answer: Path, now: datetime) -> tuple[Path, Identified]:
    """Put an answer beside the key that it is for; the bundle's folder, and its owner."""
    if answer.is_file() and b"CERTIFICATE REQUEST" in answer.read_bytes():
        raise ConfigError(
            f"{answer}: is a request: the root's owner signs it (`fedboost keys sign`), and sends the answer"
        )
    leaf, *roots = read_certificates(answer)
    name = common_name(leaf)
    if name is None or not roots:
        raise ConfigError(
            f"{answer}: not the answer to a request: a certificate, and the root that signed it, as "
            f"`fedboost keys sign` writes them"
        )
    bundle = folder / folder_name(name)
    if not (bundle / KEY).exists():
        raise ConfigError(
            f"{bundle / KEY}: no such file, and {answer} is for the key of {name!r}; `fedboost keys request` "
            f"makes it, and --folder names where"
        )
    if read_key(bundle / KEY, None).public_key() != leaf.public_key():
        raise ConfigError(f"{answer}: is not for the key in {bundle / KEY}, but for another one of {name!r}")
    try:
        owner = identify(to_pem(leaf), to_pem(*roots), now, ())
    except PeerError as error:
        raise ConfigError(f"{answer}: {error}") from None
    write_new({bundle / CERTIFICATE: (to_pem(leaf), PUBLIC), bundle / ROOTS: (to_pem(*roots), PUBLIC)})
    return bundle, owner
