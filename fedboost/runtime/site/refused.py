"""Terms that a person at a site refused: files in its state folder, beside those of approvals.

Promises: a refusal counts for terms of its digest and its analysts, from the next offer on, until its file is
removed; it holds whatever the policy allows, but for terms that are approved.
Refuses: a refusal that cannot be read (ConfigError).
"""

from datetime import datetime
from pathlib import Path

from fedboost.errors import ConfigError, Refused
from fedboost.runtime.config import read_toml, to_toml
from fedboost.runtime.files import write_atomically
from fedboost.runtime.site.config import PartyConfig, state_folder
from fedboost.runtime.site.memory_file import make_folder
from fedboost.terms.reading import Frozen, Name, read_model

OWNER_ALONE = 0o600


class Refusal(Frozen):
    """A refusal as its file has it. analysts: those who were refused these terms; none where connections
    have no keys, and whoever asks is."""

    digest: str
    time: str
    analysts: tuple[Name, ...]

    def is_of(self, analyst: str) -> bool:
        """Tell if an analyst was refused."""
        return not self.analysts or analyst in self.analysts


def refusal_of(config: PartyConfig, digest: str) -> Refusal | None:
    """The refusal of the terms with a digest; None where there is none. ConfigError if it cannot be read."""
    if config.state is None:
        return None
    path = _file(config, digest)
    if not path.exists():
        return None
    refusal = read_model(Refusal, read_toml(path), str(path))
    if refusal.digest != digest:
        raise ConfigError(f"{path}: is of the terms with digest {refusal.digest}")
    return refusal


def refuse(config: PartyConfig, digest: str, analyst: str, now: datetime) -> Path:
    """Write that terms are refused to an analyst, too; the file. ConfigError if it cannot be written."""
    before = refusal_of(config, digest)
    analysts: tuple[str, ...] = (analyst,) if analyst else ()
    if analyst and before is not None:
        analysts = tuple(dict.fromkeys((*before.analysts, analyst))) if before.analysts else ()
    path = _file(config, digest)
    lines = [
        f"digest = {to_toml(digest)}",
        f"time = {to_toml(now.isoformat(timespec='seconds'))}",
        f"analysts = {to_toml(analysts)}",
    ]
    make_folder(path.parent)
    write_atomically(path, "\n".join([*lines, ""]).encode(), OWNER_ALONE)
    return path


def check_not_refused(config: PartyConfig, digest: str, analyst: str) -> None:
    """Raise Refused where a person refused terms to an analyst, or may have."""
    try:
        refusal = refusal_of(config, digest)
    except ConfigError as error:
        unread = (
            f"site {config.party} refuses: its refusal of these terms cannot be read; its own log says why"
        )
        raise Refused(unread, str(error)) from None
    if refusal is not None and refusal.is_of(analyst):
        raise Refused(
            f"site {config.party} refuses: a person there refused these terms on {refusal.time[:10]}; ask "
            f"that person, or change the terms"
        )


def _file(config: PartyConfig, digest: str) -> Path:
    return state_folder(config) / "refused" / f"{digest}.toml"
