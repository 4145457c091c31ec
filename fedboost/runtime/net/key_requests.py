"""Keys by request: a member makes its key where it stays, the root's owner signs the request for it, and the
answer makes a bundle of the two. The list of all that a root has issued lies beside its key.

Promises: the private key is in the member's folder alone; whose certificate was issued, and until when,
stands in `issued.txt`, with the serial number that a deny list wants.
Refuses: to overwrite any file; a request that is not to be signed, or for a name that has a certificate
already; an answer that is not for the key in the folder (ConfigError: one line that names the file).
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity.certificates import Identified, common_name, day, identify, role_of, to_pem
from fedboost.privacy.identity.issue import MAX_REQUEST_BYTES, CertificateRequest, new_request, read_request
from fedboost.runtime.files import folder_name
from fedboost.runtime.net.keys import (
    CERTIFICATE,
    KEY,
    PRIVATE,
    PUBLIC,
    REQUEST,
    ROOTS,
    key_to_pem,
    read_certificates,
    read_key,
    write_new,
)

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
    try:
        bundle.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise ConfigError(
            f"{bundle}: exists already, and keys are never overwritten; move it away to ask again"
        ) from None
    except OSError as error:
        raise ConfigError(f"{bundle}: cannot write: {error.strerror}") from None
    try:
        write_new({bundle / KEY: (key_to_pem(key, NoEncryption()), PRIVATE), bundle / REQUEST: (pem, PUBLIC)})
    except ConfigError:
        bundle.rmdir()
        raise
    return bundle / REQUEST, read_request(pem)


def read_request_file(path: Path) -> CertificateRequest:
    """The request in a file. ConfigError that names it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_REQUEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
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
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(line if os.fstat(handle).st_size else _HEADING + line)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None


def _read_issued(folder: Path) -> list[Issued]:
    path = folder / ISSUED
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text in UTF-8") from None
    issued = []
    for number, line in enumerate(lines, 1):
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
