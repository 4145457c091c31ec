"""Key folders: the folder of the consortium's root, and the bundles of parties, aggregators and analysts.

A bundle is a folder with certificate.pem (the member's certificate, then intermediates), key.pem and
consortium.pem (the trusted roots). An optional denied.txt has one revoked serial number per line, in hex; #
starts a comment. An existing public-key infrastructure may also create these files.

Guarantees: a bundle returned by `read_bundle` can currently be used to connect, accept connections and sign.
No file is ever overwritten, and no key is ever printed.
Rejects: private keys that anyone but the owner can read.
"""

import os
from collections.abc import Mapping, Sequence
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
    fingerprint,
    identify,
    new_request,
    read_request,
    read_roots,
    role_of,
    serial_of,
    to_pem,
)
from fedboost.runtime.files import file_errors, folder_name
from fedboost.system import others_may

CERTIFICATE, KEY, ROOTS, DENIED = "certificate.pem", "key.pem", "consortium.pem", "denied.txt"
REQUEST = "request.pem"
ROOT_KEY = "consortium-key.pem"

_A = {"party": "a party", "aggregator": "an aggregator", "analyst": "an analyst", "adder": "an adder"}
PRIVATE, PUBLIC = 0o600, 0o644
_TLS_CURVES = ("secp256r1", "secp384r1")


@dataclass(frozen=True)
class Bundle:
    """The identity of a process: its certificate and key, and the root certificates that it trusts.

    Attributes:
        folder: where the bundle was read from.
        signer: name, role and private key.
        roots, key: trusted root certificates and private key, PEM.
        denied: serial numbers of revoked certificates.
    """

    folder: Path
    signer: Signer
    roots: bytes = field(repr=False)
    key: bytes = field(repr=False)
    denied: frozenset[str]

    @property
    def certificate(self) -> bytes:
        """The certificate followed by any intermediates, PEM."""
        return self.signer.certificate

    @property
    def ends(self) -> datetime:
        """Earliest time at which any of the bundle's certificates expires."""
        chain = x509.load_pem_x509_certificates(self.certificate)
        return min(certificate.not_valid_after_utc for certificate in chain)


def read_bundle(folder: Path, role: str) -> Bundle:
    """Read the bundle in a folder. role: "party", "aggregator" or "analyst". Raises ConfigError unless the
    bundle is complete, consistent, currently valid and issued for this role."""
    check_folder(folder, f"{_A[role]}'s bundle ({CERTIFICATE}, {KEY}, {ROOTS}) from `fedboost keys {role}`")
    if (folder / ROOT_KEY).exists() and not (folder / CERTIFICATE).exists():
        bundles = sorted(path.parent for path in folder.glob(f"*/{CERTIFICATE}"))
        example = f", such as {bundles[0]}" if bundles else ""
        raise ConfigError(
            "keys-folder",
            f"{folder} is the folder of the root key; use the folder of {_A[role]}{example}",
        )
    source, now = folder / CERTIFICATE, datetime.now(UTC)
    chain, roots = read_certificates(source), to_pem(*read_certificates(folder / ROOTS))
    key, denied = read_key(folder / KEY, None), _read_denied(folder / DENIED)
    if now > chain[0].not_valid_after_utc:
        raise ConfigError("keys-expired", f"{source} {expired(chain[0].not_valid_after_utc, role)}")
    if now < (begins := chain[0].not_valid_before_utc):
        raise ConfigError(
            "keys-not-yet-valid", f"{source} is not valid before {day(begins)}; check this machine's clock"
        )
    try:
        holder = identify(to_pem(*chain), roots, now, denied)
    except PeerError as error:
        raise ConfigError("keys-certificate-invalid", f"{source}: {error}") from None
    if holder.role != role:
        raise ConfigError(
            "keys-role", f"{folder} is the bundle of {_A[holder.role]}; use {_A[role]}'s bundle"
        )
    if key.public_key() != holder.public_key:
        raise ConfigError(
            "keys-pair-mismatch", f"{folder / KEY} does not match {source}; copy both from the same bundle"
        )
    _check_tls(key, folder / KEY)
    signer = Signer(holder.name, holder.role, to_pem(*chain), key)
    return Bundle(folder, signer, roots, key_to_pem(key, NoEncryption()), denied)


def check_folder(folder: Path, due: str) -> None:
    """Raise ConfigError if a folder is missing, or does not contain a certificate yet. due: description of
    the expected folder, for the message."""
    if not folder.is_dir():
        raise ConfigError("keys-folder-missing", f"the folder {folder} does not exist; it should be {due}")
    has_key, has_request = (folder / KEY).exists(), (folder / REQUEST).exists()
    if has_key and has_request and not (folder / CERTIFICATE).exists():
        raise ConfigError(
            "keys-certificate-pending",
            f"{folder} does not have its certificate yet; run `fedboost keys accept ANSWER` with the answer "
            "from the holder of the root key",
        )


def read_again(bundle: Bundle) -> Bundle:
    """Return the current content of the bundle's folder, so that renewed keys do not require a restart. If
    the folder cannot be used, return the old bundle while it is valid, else raise ConfigError."""
    try:
        return read_bundle(bundle.folder, bundle.signer.role)
    except ConfigError:
        if datetime.now(UTC) > bundle.ends:
            raise
        return bundle


def read_certificates(path: Path) -> tuple[x509.Certificate, ...]:
    """Read the certificates in a PEM file, without verifying them. Raises ConfigError if there is none."""
    with file_errors(path, "cannot read"):
        data = path.read_bytes()
    try:
        return read_roots(data)
    except ConfigError:
        raise ConfigError(
            "keys-not-certificate", f"{path} is not an X.509 certificate in PEM format"
        ) from None


def read_trust(folder: Path) -> tuple[bytes, frozenset[str]]:
    """Read a bundle's root certificates (PEM) and deny list. Raises ConfigError if they are unreadable."""
    check_folder(folder, f"a bundle, or another folder with a {ROOTS}")
    return to_pem(*read_certificates(folder / ROOTS)), _read_denied(folder / DENIED)


def write_bundle(folder: Path, key: PrivateKey, certificate: x509.Certificate, roots: bytes) -> None:
    """Write a bundle to a new folder that only its owner can read. Raises ConfigError if the folder exists or
    cannot be written."""
    files = {
        KEY: (key_to_pem(key, NoEncryption()), PRIVATE),
        CERTIFICATE: (to_pem(certificate), PUBLIC),
        ROOTS: (roots, PUBLIC),
    }
    _write_folder(folder, files, "issue a new bundle")


def _write_folder(folder: Path, files: Mapping[str, tuple[bytes, int]], purpose: str) -> None:
    """Write files to a new folder that only its owner can read. files: maps name -> content and mode;
    purpose: end of the message if the folder exists."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise ConfigError(
            "keys-exist",
            f"{folder} already exists, and keys are never overwritten; move it aside to {purpose}",
        ) from None
    except OSError as error:
        raise ConfigError("keys-unwritable", f"{folder}: cannot write: {error.strerror}") from None
    try:
        write_new({folder / name: content for name, content in files.items()})
    except ConfigError:
        folder.rmdir()
        raise


def write_root(
    folder: Path, key: PrivateKey, root: x509.Certificate, passphrase: bytes | None = None
) -> None:
    """Write the key and certificate of a consortium's root to a folder, which is created if missing.
    passphrase: if passed, encrypts the key. Raises ConfigError if a file exists or cannot be written."""
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    with file_errors(folder, "cannot write"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_new(
        {folder / ROOT_KEY: (key_to_pem(key, encryption), PRIVATE), folder / ROOTS: (to_pem(root), PUBLIC)}
    )


def read_root(folder: Path, passphrase: bytes | None = None) -> tuple[PrivateKey, x509.Certificate]:
    if not (folder / ROOT_KEY).exists():
        raise ConfigError(
            "keys-root-missing",
            f"{folder / ROOT_KEY} does not exist; run `fedboost keys init-consortium --folder {folder}`",
        )
    key, root = read_key(folder / ROOT_KEY, passphrase), read_certificates(folder / ROOTS)[0]
    if key.public_key() != root.public_key():
        raise ConfigError("keys-pair-mismatch", f"{folder / ROOT_KEY} does not match {folder / ROOTS}")
    return key, root


def read_passphrase(path: Path) -> bytes:
    """Return the first line of a file as a passphrase. Raises ConfigError if the passphrase is empty or too
    long, or if others can read the file."""
    passphrase = _read_private(path).partition(b"\n")[0].rstrip(b"\r")
    if not 1 <= len(passphrase) <= 1000:
        raise ConfigError(
            "keys-passphrase", f"the first line of {path} must be a passphrase of 1 to 1000 bytes"
        )
    return passphrase


def _read_denied(path: Path) -> frozenset[str]:
    """Read the serial numbers in a deny list. A missing file counts as an empty list."""
    denied = set()
    for number, line in enumerate(_lines(path), 1):
        text = line.partition("#")[0].strip()
        try:
            denied |= {serial_of(text)} if text else set()
        except ConfigError as error:
            raise ConfigError("keys-denied-invalid", f"{path}, line {number}: {error}") from None
    return frozenset(denied)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError("keys-unreadable", f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("keys-unreadable", f"{path} is not UTF-8 text") from None


def read_key(path: Path, passphrase: bytes | None) -> PrivateKey:
    data = _read_private(path)
    try:
        key = load_pem_private_key(data, passphrase)
    except TypeError:
        if passphrase is not None:
            raise ConfigError("keys-plain", f"{path} is not encrypted; omit the passphrase") from None
        advice = (
            "specify --passphrase-file" if path.name == ROOT_KEY else "a bundle's key must be unencrypted"
        )
        raise ConfigError("keys-encrypted", f"{path} is encrypted; {advice}") from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = ", or the passphrase is wrong" if passphrase is not None else ""
        raise ConfigError("keys-not-private", f"{path} is not a private key in PEM format{wrong}") from None
    if not isinstance(key, PrivateKey):
        raise ConfigError("keys-type", f"{path} must be an EC, RSA or Ed25519 key")
    return key


def _read_private(path: Path) -> bytes:
    """Read a file. Raises ConfigError if anyone but its owner can read it."""
    with file_errors(path, "cannot read"), path.open("rb") as file:
        if others_may(status := os.fstat(file.fileno()), 0o077):
            raise ConfigError(
                "keys-permissions",
                f"other users can read {path} (mode {status.st_mode & 0o777:o}); run: chmod 600 {path}",
            )
        return file.read()


def write_new(files: Mapping[Path, tuple[bytes, int]]) -> None:
    """Write all of these files, or none if one of them cannot be written. files: maps path -> content and
    mode. Raises ConfigError if a file exists or cannot be written."""
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
                    "keys-exist", f"{path} already exists, and keys are never overwritten; move it aside"
                ) from None
            raise ConfigError("keys-unwritable", f"{path}: cannot write: {error.strerror}") from None


def key_to_pem(key: PrivateKey, encryption: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def expired(end: datetime, role: str) -> str:
    return (
        f"expired on {day(end)}; on the machine that has the consortium's root key, run "
        f"`fedboost keys {role}` to issue a new bundle, then replace this one with it"
    )


def _check_tls(key: PrivateKey, path: Path) -> None:
    """Raise ConfigError for a key type that gRPC's TLS does not support. Without this check, the handshake
    would fail without giving the reason."""
    if isinstance(key, rsa.RSAPrivateKey):
        return
    kind = "Ed25519" if isinstance(key, ed25519.Ed25519PrivateKey) else key.curve.name
    if kind not in _TLS_CURVES:
        raise ConfigError(
            "keys-type", f"{path} is a {kind} key, which gRPC's TLS does not support; use P-256, P-384 or RSA"
        )


# ---- Keys by request: a member's key never leaves its folder --------------------------------------------
# The member creates a key and a request, the holder of the root key signs the request, and the answer
# completes the bundle. `issued.txt` next to the root key lists each issued certificate with its name, end and
# serial number (for deny lists). Requests for a name that has a valid certificate are rejected, and so are
# answers for a different key.


ISSUED, ANSWER_SUFFIX = "issued.txt", ".answer.pem"
_HEADING = "# serial number, role, end, name: of every certificate that was issued here\n"
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Issued:
    serial: str
    role: str
    end: datetime
    name: str


def write_request(folder: Path, name: str, role: str) -> tuple[Path, CertificateRequest]:
    """Create a private key in a new folder, and a request for a certificate for this key. Returns the path of
    the request file, and the request."""
    key, request = new_request(name, role)
    bundle, pem = folder / folder_name(name), request.public_bytes(Encoding.PEM)
    files = {KEY: (key_to_pem(key, NoEncryption()), PRIVATE), REQUEST: (pem, PUBLIC)}
    _write_folder(bundle, files, "create a new request")
    return bundle / REQUEST, read_request(pem)


def read_request_file(path: Path) -> CertificateRequest:
    with file_errors(path, "cannot read"), path.open("rb") as file:
        data = file.read(MAX_REQUEST_BYTES + 1)
    if b"PRIVATE KEY" in data:
        raise ConfigError(
            "keys-request-private",
            f"{path} is a private key, which must not leave its machine; send {REQUEST} instead",
        )
    try:
        return read_request(data)
    except ConfigError as error:
        raise ConfigError("keys-request-invalid", f"{path}: {error}") from None


def check_new(folder: Path, name: str, now: datetime) -> None:
    """Raise ConfigError if the root in this folder has already issued a certificate for this name, and the
    certificate is still valid at `now`."""
    known = [issued for issued in _read_issued(folder) if issued.name == name and issued.end > now]
    if known:
        last = known[-1]
        raise ConfigError(
            "keys-name-taken",
            f"{folder / ISSUED}: {name!r} already has a certificate as {last.role} until {day(last.end)} "
            f"(serial {last.serial}); if the request really comes from this member, sign it with --renew",
        )


def note_issued(folder: Path, certificate: x509.Certificate) -> None:
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
                "keys-issued-invalid",
                f"{path}, line {number}: the line must consist of a serial number, a role, a time and a name",
            ) from None
    return issued


def write_answer(folder: Path, certificate: x509.Certificate, root: x509.Certificate) -> Path:
    """Write the answer to a certificate request, i.e. the member's certificate followed by the root
    certificate, to a new file next to the root key. Returns its path."""
    path = folder / f"{folder_name(common_name(certificate) or '')}{ANSWER_SUFFIX}"
    write_new({path: (to_pem(certificate, root), PUBLIC)})
    return path


def check_same_root(path: Path, roots: Sequence[x509.Certificate], beside: Sequence[Path]) -> None:
    """Raise ConfigError, naming a file, unless each complete bundle among those beside it trusts one of its
    roots."""
    for other in (bundle / ROOTS for bundle in beside if (bundle / ROOTS).exists()):
        if not {*roots} & {*read_certificates(other)}:
            raise ConfigError(
                "keys-other-root",
                f"{path} is of another consortium than {other}: its root has the fingerprint "
                f"{fingerprint(roots[0])}; ask the holder of the root key which is right",
            )


def accept_answer(
    folder: Path, answer: Path, now: datetime, due: str | None = None, beside: Sequence[Path] = ()
) -> tuple[Path, Identified]:
    """Store an answer, i.e. a signed certificate and its root, next to the private key of the certificate.
    folder: parent of the key's folder; due: name that the certificate must have; beside: bundles that must
    trust the same root. Returns the folder and the owner of the completed bundle. Raises ConfigError if the
    answer is invalid or does not match the key."""
    if answer.is_file() and b"CERTIFICATE REQUEST" in answer.read_bytes():
        raise ConfigError(
            "keys-answer",
            f"{answer} is a request; ask the holder of the root key to sign it (fedboost keys sign)",
        )
    leaf, *roots = read_certificates(answer)
    name = common_name(leaf)
    if name is None or not roots:
        raise ConfigError(
            "keys-answer",
            f"{answer} must contain a certificate and its root, as written by `fedboost keys sign`",
        )
    if due is not None and name != due:
        raise ConfigError("keys-answer-other", f"{answer} is the answer for {name!r}, not for {due!r}")
    check_same_root(answer, roots, beside)
    bundle = folder / folder_name(name)
    if not (bundle / KEY).exists():
        raise ConfigError(
            "keys-request-missing",
            f"{bundle / KEY} does not exist, but {answer} is for the key of {name!r}; specify its folder "
            f"with --folder, or move the answer aside and request a new certificate",
        )
    if read_key(bundle / KEY, None).public_key() != leaf.public_key():
        raise ConfigError(
            "keys-answer-mismatch", f"{answer} is for {name!r}, but does not match the key {bundle / KEY}"
        )
    try:
        owner = identify(to_pem(leaf), to_pem(*roots), now, ())
    except PeerError as error:
        raise ConfigError("keys-answer", f"{answer}: {error}") from None
    write_new({bundle / CERTIFICATE: (to_pem(leaf), PUBLIC), bundle / ROOTS: (to_pem(*roots), PUBLIC)})
    return bundle, owner
