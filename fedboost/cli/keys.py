"""`fedboost keys`: the root key and certificate of a consortium, key bundles, certificate requests and
tokens.

Guarantees: each command writes only new files and prints which of them to send to whom. It never prints a
private key.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from cryptography.x509 import Certificate

from fedboost.cli.common import is_agreed
from fedboost.cli.output import group, notice
from fedboost.errors import ConfigError
from fedboost.privacy import identity
from fedboost.runtime.files import folder_name
from fedboost.runtime.net import keys
from fedboost.runtime.web.logins import add_token

keys_app = group("keys", "Example: fedboost keys init-consortium\n\nExample: fedboost keys request north")

Folder = Annotated[Path, typer.Option(help="Folder with the consortium's root key and the key bundles.")]
Days = Annotated[int, typer.Option(help="Validity of the certificate in days.", min=1, max=36_500)]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        help="File whose first line is the root key's passphrase (omit if the key is not encrypted)."
    ),
]
KEYS, TOKENS = Path("keys"), Path("tokens.toml")
ISSUED_DAYS = 365
"""Default validity of a member's certificate."""


@keys_app.command(
    epilog="Example: fedboost keys init-consortium\n\n"
    "Example: fedboost keys init-consortium --name heart-study --passphrase-file passphrase.txt"
)
def init_consortium(
    name: Annotated[str, typer.Option(help="Name of the consortium.")] = "consortium",
    folder: Folder = KEYS,
    days: Days = 3650,
    passphrase_file: Passphrase = None,
    aggregator: Annotated[
        bool, typer.Option("--aggregator", help="Also issue the aggregator's bundle.")
    ] = False,
) -> None:
    """Create the root of a new consortium. Anyone who has the root key can admit members, so run this
    once, on an offline machine."""
    passphrase = keys.read_passphrase(passphrase_file) if passphrase_file else None
    key, root = identity.new_root(name, datetime.now(UTC), days)
    keys.write_root(folder, key, root, passphrase)
    state = "encrypted" if passphrase else "not encrypted"
    elsewhere = "" if folder == KEYS else f"\neach with --folder {folder}"
    first = "" if aggregator else "fedboost keys aggregator, "
    typer.echo(
        f"{folder / keys.ROOT_KEY}: the root key, {state}\n"
        f"{folder / keys.ROOTS}: the root certificate, valid until {identity.day(root.not_valid_after_utc)}\n"
        f"{fingerprint_of(root)}\n"
        f"Keep the key offline: anyone who has it can admit members. Now issue bundles:\n"
        f"{first}fedboost keys party NAME, fedboost keys analyst NAME{elsewhere}"
    )
    if aggregator:
        _issue("aggregator", "aggregator", folder, ISSUED_DAYS, passphrase_file)


@keys_app.command(epilog="Example: fedboost keys party north\n\nExample: fedboost keys party south")
def party(
    name: Annotated[str, typer.Argument(help="Name of the party, as in the terms.")],
    folder: Folder = KEYS,
    days: Days = ISSUED_DAYS,
    passphrase_file: Passphrase = None,
) -> None:
    """Issue a key bundle to a party (a site with data)."""
    _issue(name, "party", folder, days, passphrase_file)


@keys_app.command(epilog="Example: fedboost keys aggregator --host fed.example.org")
def aggregator(
    folder: Folder = KEYS,
    days: Days = ISSUED_DAYS,
    passphrase_file: Passphrase = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name to include in the certificate, so that browsers can open the console (may be "
            "repeated)."
        ),
    ] = None,
) -> None:
    """Issue a key bundle to the aggregator, which adds up the parties' reports."""
    _issue("aggregator", "aggregator", folder, days, passphrase_file, host or ())


@keys_app.command(epilog="Example: fedboost keys adder europe")
def adder(
    name: Annotated[str, typer.Argument(help="Name of the adder, as in the files of its sites.")],
    folder: Folder = KEYS,
    days: Days = ISSUED_DAYS,
    passphrase_file: Passphrase = None,
) -> None:
    """Issue a key bundle to an adder, which adds the reports of some sites."""
    _issue(name, "adder", folder, days, passphrase_file)


@keys_app.command(epilog="Example: fedboost keys analyst marie")
def analyst(
    name: Annotated[str, typer.Argument(help="Name of the analyst, as shown to sites.")],
    folder: Folder = KEYS,
    days: Days = ISSUED_DAYS,
    passphrase_file: Passphrase = None,
) -> None:
    """Issue a key bundle to an analyst, who submits terms and receives models."""
    _issue(name, "analyst", folder, days, passphrase_file)


@keys_app.command(epilog="Example: fedboost keys show keys/north\n\nExample: fedboost keys show keys")
def show(folder: Annotated[Path, typer.Argument(help="Folder of a key bundle or of a consortium.")]) -> None:
    """Show whose key bundle a folder contains, and how long it is valid. Exits with code 2 if the bundle
    cannot be used."""
    keys.check_folder(folder, "a key bundle, or the folder where `fedboost keys init-consortium` was run")
    has_leaf, fault = (folder / keys.CERTIFICATE).exists(), None
    if has_leaf:
        leaf = keys.read_certificates(folder / keys.CERTIFICATE)[0]
        try:
            keys.read_bundle(folder, identity.role_of(leaf) or "party")
        except ConfigError as error:
            fault = error
            typer.echo("This bundle cannot be used, for the reason in the last line. Its certificates:")
        typer.echo(f"name        {identity.common_name(leaf) or 'none'}")
        typer.echo(f"role        {identity.role_of(leaf) or 'none'}")
        typer.echo(known_by(leaf))
    for root in keys.read_certificates(folder / keys.ROOTS):
        typer.echo(f"consortium  {identity.common_name(root) or 'none'}")
        typer.echo(validity(root))
        typer.echo(fingerprint_of(root))
    if fault is not None:
        raise fault
    if has_leaf:
        typer.echo("This bundle can be used.")


def fingerprint_of(root: Certificate) -> str:
    return f"fingerprint, which must be the same at every site:\n    {identity.fingerprint(root)}"


def validity(certificate: Certificate) -> str:
    dates = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    first, last = map(identity.day, dates)
    return f"valid       {first} to {last}"


def known_by(certificate: Certificate) -> str:
    return f"{validity(certificate)}\nserial      {certificate.serial_number:x}"


def _root(folder: Path, passphrase_file: Path | None) -> tuple[identity.PrivateKey, Certificate]:
    return keys.read_root(folder, keys.read_passphrase(passphrase_file) if passphrase_file else None)


def _issue(
    name: str, role: str, folder: Path, days: int, passphrase_file: Path | None, hosts: Sequence[str] = ()
) -> None:
    """Write a new bundle next to the root key, and print what to do with it."""
    root_key, root = _root(folder, passphrase_file)
    key, certificate = identity.issue(root_key, root, name, role, datetime.now(UTC), days, hosts)
    bundle = folder / folder_name(name)
    keys.write_bundle(bundle, key, certificate, identity.to_pem(root))
    keys.note_issued(folder, certificate)
    typer.echo(
        f"{bundle}: the bundle of {role} {name!r}\n"
        f"{known_by(certificate)}\n"
        f"Transfer this folder over a trusted channel and keep no copy: anyone who has its\n"
        f"key.pem can act under this name. On arrival, `fedboost keys show` prints the\n"
        f"{fingerprint_of(root)}"
    )


# ---- `fedboost keys request`, `sign` and `accept`: a key that never leaves the site where it is created ---
# Guarantees: only the site's own file contains the private key. Nothing is signed before name, role and
# fingerprint are shown.


NOT_SIGNED = 1  # exit code if the person declines
OwnFolder = Annotated[
    Path, typer.Option(help="Folder with this site's key bundles, each in its own subfolder.")
]
Role = Literal["party", "aggregator", "analyst", "adder"]


@keys_app.command(
    epilog="Example: fedboost keys request north\n\nExample: fedboost keys request marie --role analyst"
)
def request(
    name: Annotated[str, typer.Argument(help="Name to request.")],
    role: Annotated[Role, typer.Option(help="Role to request.")] = "party",
    folder: OwnFolder = KEYS,
) -> None:
    """Create a private key on this machine and a certificate request for it. The holder of the root key signs
    the request."""
    path, made = keys.write_request(folder, name, role)
    typer.echo(
        f"{path}: the certificate request of {made.role} {made.name!r}\n"
        f"fingerprint of its key:\n    {made.fingerprint}\n"
        f"Send only this file to the holder of the consortium's root key. Confirm the\n"
        f"fingerprint over another channel, e.g. by telephone. key.pem next to it must not\n"
        f"leave this machine. When the answer arrives, run: fedboost keys accept ANSWER"
    )


@keys_app.command(epilog="Example: fedboost keys sign request.pem")
def sign(
    requests: Annotated[list[Path], typer.Argument(help="Certificate requests, as received.")],
    folder: Folder = KEYS,
    days: Days = ISSUED_DAYS,
    passphrase_file: Passphrase = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Sign even if there is a valid certificate for this name.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
) -> None:
    """Sign members' certificate requests, on the machine that has the root key. Asks about each of them.
    Exits with code 1 if you decline one."""
    root_key, root = _root(folder, passphrase_file)
    declined = False
    for asked in [keys.read_request_file(request) for request in requests]:
        now = datetime.now(UTC)
        if not renew:
            keys.check_new(folder, asked.name, now)
        typer.echo(
            f"name        {_distinct(asked.name)}\nrole        {asked.role}\n"
            f"fingerprint of its key, to be confirmed by its owner over another channel:\n"
            f"    {asked.fingerprint}"
        )
        question = f"Admit {asked.role} {asked.name!r} with this key? [y/N] "
        if not yes and not is_agreed(question, "use --yes to sign without asking"):
            notice("not signed: nothing was written")
            declined = True
            continue
        certificate = identity.certify(root_key, root, asked.key, asked.name, asked.role, now, days)
        answer = keys.write_answer(folder, certificate, root)
        keys.note_issued(folder, certificate)
        typer.echo(
            f"{known_by(certificate)}\n"
            f"{answer}: the signed certificate, which is not secret. Send it\n"
            f"back. There, `fedboost keys accept` stores it next to the key and prints the\n"
            f"{fingerprint_of(root)}"
        )
    if declined:
        raise typer.Exit(NOT_SIGNED)


@keys_app.command(epilog="Example: fedboost keys accept north.answer.pem")
def accept(
    answer: Annotated[Path, typer.Argument(help="Answer file received from the holder of the root key.")],
    folder: OwnFolder = KEYS,
) -> None:
    """Store the signed certificate next to its key. Together they form a key bundle."""
    store_answer(answer, folder)


def store_answer(answer: Path, folder: Path, name: str | None = None, beside: Sequence[Path] = ()) -> None:
    """Store an answer, and print whose it is. Arguments are as for `accept_answer`."""
    bundle, owner = keys.accept_answer(folder, answer, datetime.now(UTC), name, beside)
    leaf, root = (keys.read_certificates(bundle / file)[0] for file in (keys.CERTIFICATE, keys.ROOTS))
    typer.echo(
        f"{bundle}: the bundle of {owner.role} {owner.name!r}\n"
        f"{known_by(leaf)}\n"
        f"Ask the holder of the root key, e.g. by telephone, to confirm the\n{fingerprint_of(root)}"
    )


def _distinct(name: str) -> str:
    """Return a name for display. If the name could be mistaken for another one (because it is not ASCII, or
    starts or ends with whitespace), an escaped version of the name is appended."""
    return name if name.isascii() and name == name.strip() else f"{name}, which is {name!a}"


# ---- `fedboost keys token`: a token for a console or a site's page --------------------------------------


@keys_app.command(
    epilog="Example: fedboost keys token marie --file tokens.toml\n\n"
    "Example: fedboost keys token marie --role analyst --days 30\n\n"
    "Example: fedboost keys token jo --role officer"
)
def token(
    name: Annotated[
        str, typer.Argument(help="Name of the owner. For an analyst, the name in the certificate.")
    ],
    role: Annotated[
        Literal["viewer", "analyst", "officer", "client"],
        typer.Option(
            help="viewer: read only; analyst: read an aggregator's console and submit signed terms; officer: "
            "read a site's page and approve or refuse terms; client: ask a scoring service."
        ),
    ] = "viewer",
    file: Annotated[
        Path, typer.Option(help="Token file (`tokens` under `console` in the configuration file).")
    ] = TOKENS,
    days: Annotated[int, typer.Option(help="Validity in days.", min=1, max=3650)] = 90,
) -> None:
    """Create an access token for the console of an aggregator, the page of a site, or a scoring service."""
    made, ends = add_token(file, name, role, days)
    print(made)
    notice(f"{file}: added an entry for {role} {name!r}, valid until {ends}; delete it to revoke the token")
    notice("the token is printed only once and not stored; pass it on over a trusted channel")
