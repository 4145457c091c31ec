"""`fedboost keys`: a consortium's root, bundles, requests for certificates, and tokens.

Promises: each command writes new files only and says what is to be handed to whom; keys never print.
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
from fedboost.privacy.identity import (
    PrivateKey,
    certify,
    common_name,
    day,
    fingerprint,
    issue,
    new_root,
    role_of,
    to_pem,
)
from fedboost.runtime.files import folder_name
from fedboost.runtime.net.keys import (
    CERTIFICATE,
    ROOT_KEY,
    ROOTS,
    accept_answer,
    check_folder,
    check_new,
    note_issued,
    read_bundle,
    read_certificates,
    read_passphrase,
    read_request_file,
    read_root,
    write_answer,
    write_bundle,
    write_request,
    write_root,
)
from fedboost.runtime.web.logins import add_token

keys_app = group(
    "keys",
    "Example: fedboost keys init-consortium\n\nExample: fedboost keys request north",
)

Folder = Annotated[Path, typer.Option(help="Where the consortium's root key lies; bundles go beside it.")]
Days = Annotated[int, typer.Option(help="Days that the certificate is valid.", min=1, max=36_500)]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        help="A file whose first line is the passphrase of the root key (not encrypted without one)."
    ),
]
KEYS, TOKENS = Path("keys"), Path("tokens.toml")


@keys_app.command(
    epilog="Example: fedboost keys init-consortium\n\n"
    "Example: fedboost keys init-consortium --name heart-study --passphrase-file passphrase.txt"
)
def init_consortium(
    name: Annotated[str, typer.Option(help="The consortium's name.")] = "consortium",
    folder: Folder = KEYS,
    days: Days = 3650,
    passphrase_file: Passphrase = None,
) -> None:
    """Make a new consortium's root: the key that says who belongs to it. Do it once, offline."""
    passphrase = read_passphrase(passphrase_file) if passphrase_file else None
    key, root = new_root(name, datetime.now(UTC), days)
    write_root(folder, key, root, passphrase)
    state = "encrypted" if passphrase else "not encrypted"
    elsewhere = "" if folder == KEYS else f"\neach with --folder {folder}"
    typer.echo(
        f"{folder / ROOT_KEY}: the root's key, {state}\n"
        f"{folder / ROOTS}: the root, valid until {day(root.not_valid_after_utc)}\n"
        f"{fingerprint_of(root)}\n"
        f"Keep the key offline: anyone who has it can let anybody in. Now issue bundles:\n"
        f"fedboost keys aggregator, fedboost keys party NAME, fedboost keys analyst NAME{elsewhere}"
    )


@keys_app.command(epilog="Example: fedboost keys party north\n\nExample: fedboost keys party south")
def party(
    name: Annotated[str, typer.Argument(help="The party's name, as terms name it.")],
    folder: Folder = KEYS,
    days: Days = 365,
    passphrase_file: Passphrase = None,
) -> None:
    """Issue a bundle to a party, which holds rows."""
    _issue(name, "party", folder, days, passphrase_file)


@keys_app.command(
    epilog="Example: fedboost keys aggregator\n\nExample: fedboost keys aggregator --host fed.example.org"
)
def aggregator(
    folder: Folder = KEYS,
    days: Days = 365,
    passphrase_file: Passphrase = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name of its machine, for browsers of its console (may be repeated)."),
    ] = None,
) -> None:
    """Issue a bundle to the aggregator, which adds what the parties report."""
    _issue("aggregator", "aggregator", folder, days, passphrase_file, host or ())


@keys_app.command(epilog="Example: fedboost keys analyst marie")
def analyst(
    name: Annotated[str, typer.Argument(help="The analyst's name, as sites see it.")],
    folder: Folder = KEYS,
    days: Days = 365,
    passphrase_file: Passphrase = None,
) -> None:
    """Issue a bundle to an analyst, who submits terms and receives models."""
    _issue(name, "analyst", folder, days, passphrase_file)


@keys_app.command(epilog="Example: fedboost keys show keys/north\n\nExample: fedboost keys show keys")
def show(
    folder: Annotated[Path, typer.Argument(help="A bundle, or a consortium's folder.")],
) -> None:
    """Say whose bundle a folder holds and until when; exit code 2 if it cannot be used."""
    check_folder(folder, "a bundle, or the folder where `fedboost keys init-consortium` ran")
    has_leaf, fault = (folder / CERTIFICATE).exists(), None
    if has_leaf:
        leaf = read_certificates(folder / CERTIFICATE)[0]
        try:
            read_bundle(folder, role_of(leaf) or "party")
        except ConfigError as error:
            fault = error
            typer.echo("This bundle cannot be used, for the reason given last. Its certificates say:")
        typer.echo(f"name        {common_name(leaf) or 'none'}")
        typer.echo(f"role        {role_of(leaf) or 'none'}")
        typer.echo(known_by(leaf))
    for root in read_certificates(folder / ROOTS):
        typer.echo(f"consortium  {common_name(root) or 'none'}")
        typer.echo(validity(root))
        typer.echo(fingerprint_of(root))
    if fault is not None:
        raise fault
    if has_leaf:
        typer.echo("This bundle can be used.")


def fingerprint_of(root: Certificate) -> str:
    return f"fingerprint, which must be the same at every site:\n    {fingerprint(root)}"


def validity(certificate: Certificate) -> str:
    first, last = day(certificate.not_valid_before_utc), day(certificate.not_valid_after_utc)
    return f"valid       {first} to {last}"


def known_by(certificate: Certificate) -> str:
    return f"{validity(certificate)}\nserial      {certificate.serial_number:x}"


def _root(folder: Path, passphrase_file: Path | None) -> tuple[PrivateKey, Certificate]:
    return read_root(folder, read_passphrase(passphrase_file) if passphrase_file else None)


def _issue(
    name: str,
    role: str,
    folder: Path,
    days: int,
    passphrase_file: Path | None,
    hosts: Sequence[str] = (),
) -> None:
    """Write a new bundle beside the root's key and say what to do with it."""
    root_key, root = _root(folder, passphrase_file)
    key, certificate = issue(root_key, root, name, role, datetime.now(UTC), days, hosts)
    bundle = folder / folder_name(name)
    write_bundle(bundle, key, certificate, to_pem(root))
    note_issued(folder, certificate)
    typer.echo(
        f"{bundle}: the bundle of {role} {name!r}\n"
        f"{known_by(certificate)}\n"
        f"Hand this folder over in a safe way and keep no copy: its key.pem is all that\n"
        f"it takes to act in this name. Where it arrives, `fedboost keys show` prints the\n"
        f"{fingerprint_of(root)}"
    )


# ---- `fedboost keys request`, `sign` and `accept`: a key that never leaves the site that makes it -------
# The private key is only in the site's file; nothing is signed before name, role and fingerprint were shown.


NOT_SIGNED = 1
"""Exit code of a person's no."""
OwnFolder = Annotated[Path, typer.Option(help="Where this site's bundles lie, each in a folder of its own.")]
Role = Literal["party", "aggregator", "analyst"]


@keys_app.command(
    epilog="Example: fedboost keys request north\n\nExample: fedboost keys request marie --role analyst"
)
def request(
    name: Annotated[str, typer.Argument(help="The name to ask for.")],
    role: Annotated[Role, typer.Option(help="The role to ask for.")] = "party",
    folder: OwnFolder = KEYS,
) -> None:
    """Make a key that stays here, and a request for its certificate: for the owner of the root to sign."""
    path, made = write_request(folder, name, role)
    typer.echo(
        f"{path}: the request of {made.role} {made.name!r}\n"
        f"fingerprint of its key:\n    {made.fingerprint}\n"
        f"Send this one file to the owner of the consortium's root, and tell them the\n"
        f"fingerprint in another way, by telephone for example. key.pem beside it never\n"
        f"leaves this machine. What comes back goes to: fedboost keys accept ANSWER"
    )


@keys_app.command(epilog="Example: fedboost keys sign request.pem")
def sign(
    request: Annotated[Path, typer.Argument(help="A request, as it arrived.")],
    folder: Folder = KEYS,
    days: Days = 365,
    passphrase_file: Passphrase = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Sign also for a name that has a certificate already.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without a question.")] = False,
) -> None:
    """Sign the request of a member, where the root's key lies. Exit code 1 for a no."""
    asked, now = read_request_file(request), datetime.now(UTC)
    root_key, root = _root(folder, passphrase_file)
    if not renew:
        check_new(folder, asked.name, now)
    typer.echo(
        f"name        {_distinct(asked.name)}\nrole        {asked.role}\n"
        f"fingerprint of its key, which its owner must tell you in another way:\n    {asked.fingerprint}"
    )
    question = f"Let {asked.role} {asked.name!r} in, with this key? [y/N] "
    if not yes and not is_agreed(question, "--yes signs without a question"):
        notice("not signed: nothing was written")
        raise typer.Exit(NOT_SIGNED)
    certificate = certify(root_key, root, asked.key, asked.name, asked.role, now, days)
    answer = write_answer(folder, certificate, root)
    note_issued(folder, certificate)
    typer.echo(
        f"{known_by(certificate)}\n"
        f"{answer}: the answer, which is no secret. Send it back;\n"
        f"there, `fedboost keys accept` makes a bundle of it and prints the\n{fingerprint_of(root)}"
    )


@keys_app.command(epilog="Example: fedboost keys accept north.answer.pem")
def accept(
    answer: Annotated[Path, typer.Argument(help="What the root's owner sent back.")],
    folder: OwnFolder = KEYS,
) -> None:
    """Put the answer to a request beside the key that it is for: the two are a bundle."""
    bundle, owner = accept_answer(folder, answer, datetime.now(UTC))
    leaf, root = read_certificates(bundle / CERTIFICATE)[0], read_certificates(bundle / ROOTS)[0]
    typer.echo(
        f"{bundle}: the bundle of {owner.role} {owner.name!r}\n"
        f"{known_by(leaf)}\n"
        f"Compare with the owner of the root, by telephone for example, the\n{fingerprint_of(root)}"
    )


def _distinct(name: str) -> str:
    """A name, also in escapes where it may look like another one: of letters of two alphabets, or blanks."""
    return name if name.isascii() and name == name.strip() else f"{name}, which is {name!a}"


# ---- `fedboost keys token`: a token for a console or a site's page --------------------------------------


@keys_app.command(
    epilog="Example: fedboost keys token marie --file tokens.toml\n\n"
    "Example: fedboost keys token marie --role analyst --days 30\n\n"
    "Example: fedboost keys token jo --role officer"
)
def token(
    name: Annotated[str, typer.Argument(help="Whose it is; an analyst's name as in the certificate.")],
    role: Annotated[
        Literal["viewer", "analyst", "officer"],
        typer.Option(
            help="viewer: read; analyst: read an aggregator's console, and submit signed terms; officer: "
            "read a site's page, and approve or refuse terms."
        ),
    ] = "viewer",
    file: Annotated[Path, typer.Option(help="The file that `tokens` in [console] names.")] = TOKENS,
    days: Annotated[int, typer.Option(help="Days that it counts.", min=1, max=3650)] = 90,
) -> None:
    """Make a token for the console of an aggregator, or for the page of a site."""
    made, ends = add_token(file, name, role, days)
    print(made)
    notice(f"{file}: has an entry for the {role} {name!r}, until {ends}; delete it to take the token away")
    notice("the token is printed this once, and is kept nowhere: hand it over in a safe way")
