"""`fedboost keys request`, `sign` and `accept`: a key that never leaves the site that makes it.

Promises: keys never print, and the private one is in no file but the site's; nothing is signed before its
name, role and fingerprint were shown.
Refuses: what `fedboost.runtime.net.keys` refuses (ConfigError).
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedboost.cli.keys import KEYS, Days, Folder, Passphrase, fingerprint_of, validity
from fedboost.errors import ConfigError, Refused

EPILOGS = {
    "request": "Example: fedboost keys request north\n\nExample: fedboost keys request marie --role analyst",
    "sign": "Example: fedboost keys sign request.pem",
    "accept": "Example: fedboost keys accept north.answer.pem",
}
NOT_SIGNED = 1
"""Exit code of a person's no."""
OwnFolder = Annotated[Path, typer.Option(help="Where this site's bundles lie, each in a folder of its own.")]
Role = Literal["party", "aggregator", "analyst"]


def request(
    name: Annotated[str, typer.Argument(help="The name to ask for.", show_default=False)],
    role: Annotated[Role, typer.Option(help="The role to ask for.")] = "party",
    folder: OwnFolder = KEYS,
) -> None:
    """Make a key that stays here, and a request for its certificate: for the owner of the root to sign."""
    from fedboost.runtime.net.keys import write_request

    path, made = write_request(folder, name, role)
    typer.echo(
        f"{path}: the request of {made.role} {made.name!r}\n"
        f"fingerprint of its key:\n    {made.fingerprint}\n"
        f"Send this one file to the owner of the consortium's root, and tell them the\n"
        f"fingerprint in another way, by telephone for example. key.pem beside it never\n"
        f"leaves this machine. What comes back goes to: fedboost keys accept ANSWER"
    )


def sign(
    request: Annotated[Path, typer.Argument(help="A request, as it arrived.", show_default=False)],
    folder: Folder = KEYS,
    days: Days = 365,
    passphrase_file: Passphrase = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Sign also for a name that has a certificate already.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without a question.")] = False,
) -> None:
    """Sign the request of a member, where the root's key lies. Exit code 1 for a no."""
    from datetime import UTC, datetime

    from fedboost.cli.output import notice
    from fedboost.privacy.identity import certify
    from fedboost.runtime.net.keys import (
        check_new,
        note_issued,
        read_passphrase,
        read_request_file,
        read_root,
        write_answer,
    )

    asked, now = read_request_file(request), datetime.now(UTC)
    passphrase = read_passphrase(passphrase_file) if passphrase_file else None
    root_key, root = read_root(folder, passphrase)
    if not renew:
        check_new(folder, asked.name, now)
    typer.echo(
        f"name        {_distinct(asked.name)}\nrole        {asked.role}\n"
        f"fingerprint of its key, which its owner must tell you in another way:\n    {asked.fingerprint}"
    )
    if not yes and not _agreed(asked.name, asked.role):
        notice("not signed: nothing was written")
        raise typer.Exit(NOT_SIGNED)
    certificate = certify(root_key, root, asked.key, asked.name, asked.role, now, days)
    answer = write_answer(folder, certificate, root)
    note_issued(folder, certificate)
    typer.echo(
        f"valid       {validity(certificate)}\n"
        f"serial      {certificate.serial_number:x}\n"
        f"{answer}: the answer, which is no secret. Send it back;\n"
        f"there, `fedboost keys accept` makes a bundle of it and prints the\n{fingerprint_of(root)}"
    )


def accept(
    answer: Annotated[Path, typer.Argument(help="What the root's owner sent back.", show_default=False)],
    folder: OwnFolder = KEYS,
) -> None:
    """Put the answer to a request beside the key that it is for: the two are a bundle."""
    from datetime import UTC, datetime

    from fedboost.runtime.net.keys import CERTIFICATE, ROOTS, accept_answer, read_certificates

    bundle, owner = accept_answer(folder, answer, datetime.now(UTC))
    leaf, root = read_certificates(bundle / CERTIFICATE)[0], read_certificates(bundle / ROOTS)[0]
    typer.echo(
        f"{bundle}: the bundle of {owner.role} {owner.name!r}\n"
        f"valid       {validity(leaf)}\n"
        f"serial      {owner.serial}\n"
        f"Compare with the owner of the root, by telephone for example, the\n{fingerprint_of(root)}"
    )


def _distinct(name: str) -> str:
    """A name, also in escapes where it may look like another one: of letters of two alphabets, or blanks."""
    return name if name.isascii() and name == name.strip() else f"{name}, which is {name!a}"


def _agreed(name: str, role: str) -> bool:
    from fedboost.runtime.site.approval import ask_terminal, is_yes

    try:
        return is_yes(ask_terminal(f"Let {role} {name!r} in, with this key? [y/N] "))
    except Refused:
        raise ConfigError(
            "standard input is no terminal, so nobody can be asked; --yes signs without a question"
        ) from None
