"""`fedboost backup` and `fedboost restore`: a site's memory, audit log and parts of models in one file, and
back."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Force, SiteFile

BACKUP_EPILOG = "Example: fedboost backup --config party.toml --out north-2026-11-22.tar.gz"
RESTORE_EPILOG = "Example: fedboost restore north-2026-11-22.tar.gz --config party.toml"


def backup(
    config: SiteFile,
    out: Annotated[Path, typer.Option(help="The backup to write, .tar.gz.", show_default=False)],
    force: Force = False,
) -> None:
    """Back up this site's memory, its audit log, the terms of its sessions and its parts of models into one
    file, also while the party runs. Keep it as secret as the state folder; no key of the bundle is in it."""
    from fedboost.errors import printable
    from fedboost.people.text import moment
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.site.backup import write_backup
    from fedboost.runtime.site.config import read_party

    site = read_party(config, holds_rows=None)
    check_writable(out, config, force=force)
    about = write_backup(site, out)
    whose = f"party {printable(about.party)}, rows {printable(about.dataset)}"
    print(f"{out}: backup of {whose}, as of {moment(about.time)} UTC")


def restore(
    backup: Annotated[Path, typer.Argument(help="A file that `fedboost backup` wrote.", show_default=False)],
    config: SiteFile,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where a memory is, which is then kept in a folder beside it."),
    ] = False,
) -> None:
    """Put this site's memory back from a backup, where it was lost, and its audit log and parts of models if
    those were lost, too. Sessions that were under way are over; what an audit log that is still there has
    since is taken over."""
    from fedboost.people.text import counted
    from fedboost.runtime.site.backup import restore
    from fedboost.runtime.site.config import read_party

    restored = restore(backup, read_party(config, holds_rows=None), force)
    begun = restored.begun
    knows = f"{counted(begun.sessions, 'session')} and {counted(begun.releases, 'charged release')}"
    print(f"{begun.path}: the memory as of {restored.time}; it knows {knows}")
    if restored.parts:
        print(f"{counted(restored.parts, 'part of a model', 'parts of models')} put back.")
    if restored.aside is not None:
        print(f"What was there before is in {restored.aside}.")
    if restored.newer is None:
        print(
            "The audit log is that of the backup, too: what left this site later is not known. If the party "
            "ran after the backup, treat its privacy budget as spent."
        )
    elif restored.newer:
        newer = counted(restored.newer, "entry", "entries")
        print(f"It is older than the audit log, whose {newer} since then were taken over.")
