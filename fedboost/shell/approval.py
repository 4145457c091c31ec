"""What a site approved: terms by their digest, in files of its state folder that `fedboost approve` writes.

Promises: an approval counts for terms of exactly its digest, from the next offer on, until its file is
removed; it has the parties, analysts and columns that were shown, and the rules of the policy that the person
was told these terms break. Names that the policy has since struck are struck here, too. A file is written
whole or not at all, for its owner's eyes alone.
Refuses: to change the budget of the rows' privacy (ConfigError); an approval that cannot be read, or that
relaxes a rule which has changed since (Refused).
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError, Refused
from fedboost.protocol.terms import Frozen, Name, Terms, read_model
from fedboost.shell.config import PartyConfig, read_toml, state_folder, to_toml
from fedboost.shell.files import write_atomically
from fedboost.shell.policy import COMMAND, PINNED, Breach, ColumnRules, Policy
from fedboost.shell.summary import columns_by_role

OWNER_ALONE = 0o600
NEVER_RELAXED = (*PINNED, "epsilon", "delta", "max_sessions", "similar_groups", "approval")
"""Keys of the policy that no approval of single terms changes as a rule that they break."""


class Approval(Frozen):
    """An approval as its file has it. relaxed: keys of the policy, with their values for these terms;
    relaxed_from: the rules that were relaxed, names too, with the values that the policy had."""

    digest: str
    time: str
    parties: tuple[Name, ...]
    analysts: tuple[Name, ...]
    columns: ColumnRules
    relaxed: Mapping[str, Any] = {}
    relaxed_from: Mapping[str, Any] = {}


def approve(config: PartyConfig, terms: Terms, analysts: tuple[str, ...], now: datetime) -> Path:
    """Write the approval of these terms, relaxing every rule that they break; its file. ConfigError where a
    rule cannot be relaxed, or the file cannot be written."""
    breaches = broken_rules(config.policy, terms, analysts)
    for breach in breaches:
        if breach.allow is None:
            raise ConfigError(
                f"party {config.party} cannot approve these terms: its policy has {breach.key} = "
                f"{breach.value}, and {breach.why}; {breach.instead}, or change the policy"
            )
    relaxed = {breach.key: breach.allow for breach in breaches if breach.rule not in PINNED}
    values = config.policy.model_dump(mode="json")
    relaxed_from = {breach.rule: values[breach.rule] for breach in breaches}
    path = _file(config, terms.digest)
    lines = [
        f"digest = {to_toml(terms.digest)}",
        f"time = {to_toml(now.isoformat(timespec='seconds'))}",
        f"parties = {to_toml(terms.parties)}",
        f"analysts = {to_toml(analysts)}",
        "[columns]",
        *(f"{role} = {to_toml(names)}" for role, names in columns_by_role(terms).items()),
        "[relaxed]",
        *(f"{key} = {to_toml(value)}" for key, value in relaxed.items()),
        "[relaxed_from]",
        *(f"{key} = {to_toml(value)}" for key, value in relaxed_from.items() if value is not None),
    ]
    try:
        for folder in reversed((path.parent, *path.parent.parents[:2])):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path.parent}: cannot make this folder: {error.strerror}") from None
    write_atomically(path, "\n".join([*lines, ""]).encode(), OWNER_ALONE)
    return path


def broken_rules(policy: Policy, terms: Terms, analysts: tuple[str, ...]) -> list[Breach]:
    """The rules that these terms, or these analysts, break. Where the policy has no names there is no rule
    about them: those of the approval are enough."""
    broken = [*policy.breaches(terms)]
    broken += [one for name in analysts for one in policy.breaches(terms, name) if one.rule == "analysts"]
    return [one for one in broken if one.rule not in PINNED or getattr(policy, one.rule) is not None]


def policy_for(config: PartyConfig, terms: Terms) -> Policy:
    """The policy that holds for these terms: that of the site's file, with what was approved of them."""
    if config.state is None:
        return config.policy
    path = _file(config, terms.digest)
    try:
        if not path.exists():
            return config.policy
        approval = read_model(Approval, read_toml(path), str(path))
        if approval.digest != terms.digest:
            raise ConfigError(f"{path}: is of the terms with digest {approval.digest}")
        for key in NEVER_RELAXED:
            if key in approval.relaxed:
                raise ConfigError(f"{path}: {key} is not for an approval to relax")
        _check_unchanged(config, approval)
        values = {
            **config.policy.model_dump(exclude_unset=True),
            **approval.relaxed,
            **_names(config.policy, approval),
            "approval": "auto",
        }
        return read_model(Policy, values, str(path))
    except ConfigError as error:
        said = (
            f"site {config.party} refuses: its approval of these terms cannot be read; run there `{COMMAND}`"
        )
        raise Refused(said, str(error)) from None


def _check_unchanged(config: PartyConfig, approval: Approval) -> None:
    """Refused where a rule that the approval relaxes is not what it was then."""
    values = config.policy.model_dump(mode="json")
    for key in {**approval.relaxed, **approval.relaxed_from}:
        if values.get(key) != approval.relaxed_from.get(key):
            raise Refused(
                f"site {config.party} refuses: {key} of its policy has changed since the approval of these "
                f"terms; run there `{COMMAND}` again"
            )


def _names(policy: Policy, approval: Approval) -> dict[str, Any]:
    """The names that count: those of the approval that the policy has, too, where it has any and was not
    relaxed."""
    names: dict[str, Any] = {key: getattr(approval, key) for key in PINNED}
    for key in PINNED:
        own = getattr(policy, key)
        if own in (None, "any") or key in approval.relaxed_from:
            continue
        if isinstance(own, ColumnRules):
            by_role = {role: _common(among, getattr(own, role)) for role, among in approval.columns}
            names[key] = ColumnRules(**by_role)
        else:
            names[key] = _common(names[key], own)
    return names


def _common(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in others)


def nothing_approved(config: PartyConfig) -> str:
    """What a site whose policy allows no terms yet, and that approved none, has to do; '' for any other."""
    policy = config.policy
    if policy.parties and policy.columns and (policy.analysts or config.keys is None):
        return ""
    if config.state is not None and any(_folder(config).glob("*.toml")):
        return ""
    return f"nothing is approved here, and every session will be refused; run `{COMMAND}`"


def _folder(config: PartyConfig) -> Path:
    return state_folder(config) / "approved"


def _file(config: PartyConfig, digest: str) -> Path:
    return _folder(config) / f"{digest}.toml"
