"""`fedboost keys`: a consortium's root, and the bundles that its parties, aggregator and analysts hold.

Promises: each command writes new files only and says what is to be handed to whom; keys never print;
`--help` imports nothing heavy.
Refuses: what `fedboost.runtime.net.keys` refuses (ConfigError).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.usage import Group
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

keys_app = typer.Typer(
    name="keys",
    help="Who may take part: certificates and keys for parties, the aggregator and analysts.",
    epilog="Example: fedboost keys init-consortium\n\nExample: fedboost keys request north",
    no_args_is_help=True,
    cls=Group,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[Path, typer.Option(help="Where the consortium's root key lies; bundles go beside it.")]
Days = Annotated[int, typer.Option(help="Days that the certificate is valid.", min=1, max=36_500)]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        help="A file whose first line is the passphrase of the root key (not encrypted without one).",
        show_default=False,
    ),
]
KEYS = Path("keys")


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
    from datetime import UTC, datetime

    from fedboost.privacy.identity import day, new_root
    from fedboost.runtime.net.keys import ROOT_KEY, ROOTS, read_passphrase, write_root

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
    name: Annotated[str, typer.Argument(help="The party's name, as terms name it.", show_default=False)],
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
    name: Annotated[str, typer.Argument(help="The analyst's name, as sites see it.", show_default=False)],
    folder: Folder = KEYS,
    days: Days = 365,
    passphrase_file: Passphrase = None,
) -> None:
    """Issue a bundle to an analyst, who submits terms and receives models."""
    _issue(name, "analyst", folder, days, passphrase_file)


@keys_app.command(epilog="Example: fedboost keys show keys/north\n\nExample: fedboost keys show keys")
def show(
    folder: Annotated[Path, typer.Argument(help="A bundle, or a consortium's folder.", show_default=False)],
) -> None:
    """Say whose bundle a folder holds and until when; exit code 2 if it cannot be used."""
    from fedboost.privacy.identity import common_name, role_of
    from fedboost.runtime.net.keys import CERTIFICATE, ROOTS, check_folder, read_bundle, read_certificates

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
        typer.echo(f"valid       {validity(leaf)}")
        typer.echo(f"serial      {leaf.serial_number:x}")
    for root in read_certificates(folder / ROOTS):
        typer.echo(f"consortium  {common_name(root) or 'none'}")
        typer.echo(f"valid       {validity(root)}")
        typer.echo(fingerprint_of(root))
    if fault is not None:
        raise fault
    if has_leaf:
        typer.echo("This bundle can be used.")


def fingerprint_of(root: "Certificate") -> str:
    from fedboost.privacy.identity import fingerprint

    return f"fingerprint, which must be the same at every site:\n    {fingerprint(root)}"


def validity(certificate: "Certificate") -> str:
    from fedboost.privacy.identity import day

    return f"{day(certificate.not_valid_before_utc)} to {day(certificate.not_valid_after_utc)}"


def _issue(
    name: str,
    role: str,
    folder: Path,
    days: int,
    passphrase_file: Path | None,
    hosts: Sequence[str] = (),
) -> None:
    """Write a new bundle beside the root's key and say what to do with it."""
    from datetime import UTC, datetime

    from fedboost.privacy.identity import issue, to_pem
    from fedboost.runtime.files import folder_name
    from fedboost.runtime.net.keys import note_issued, read_passphrase, read_root, write_bundle

    passphrase = read_passphrase(passphrase_file) if passphrase_file else None
    root_key, root = read_root(folder, passphrase)
    key, certificate = issue(root_key, root, name, role, datetime.now(UTC), days, hosts)
    bundle = folder / folder_name(name)
    write_bundle(bundle, key, certificate, to_pem(root))
    note_issued(folder, certificate)
    typer.echo(
        f"{bundle}: the bundle of {role} {name!r}\n"
        f"valid       {validity(certificate)}\n"
        f"serial      {certificate.serial_number:x}\n"
        f"Hand this folder over in a safe way and keep no copy: its key.pem is all that\n"
        f"it takes to act in this name. Where it arrives, `fedboost keys show` prints the\n"
        f"{fingerprint_of(root)}"
    )
