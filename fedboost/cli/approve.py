"""`fedboost approve`: a person at a site reads what terms would tell of its rows, and allows them."""

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import typer

from fedboost.cli.show import notice
from fedboost.errors import ConfigError, Misfit, Refused, quoted
from fedboost.people.summary import WIDTH, Counts, ask_terminal, entry, is_yes, listed, summary
from fedboost.privacy.identity.certificates import is_name
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.terms import Terms
from fedboost.runtime.config import PartyConfig, read_party, read_terms, read_toml
from fedboost.runtime.data.features import label_counts, level_counts, undeclared
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import read_table
from fedboost.runtime.site.approval import Approval, Review, analysts_of, approve, approved, review
from fedboost.runtime.site.policy import PROTECTS

REFUSED = 1
"""Exit code of a person's no."""
ANY = "any"
NOT_ANY = 'no analyst has this name; write analysts = "any" in [policy], or name the analysts'
LOUD = {
    **{
        ("protections", protection.name): "THE AGGREGATOR SEES THIS SITE'S OWN NUMBERS: no mask hides them."
        for protection in PROTECTIONS.values()
        if not protection.hides
    },
    ("placements", "central"): "THE AGGREGATOR SEES EXACT SUMS: the noise is not on what leaves.",
}
"""What is said besides, of a rule and the value that it is relaxed to."""


def run_approve(terms_file: Path, config_file: Path, analysts: list[str], yes: bool) -> None:
    """`fedboost approve`."""
    _check_order(terms_file, config_file)
    terms, config = read_terms(terms_file), read_party(config_file, holds_rows=None)
    if config.party not in terms.parties:
        raise ConfigError(
            f"{terms_file}: does not name party {config.party!r} of {config_file}; it names "
            f"{listed(terms.parties) or 'no parties'}"
        )
    given = _analysts(config, analysts)
    earlier = _earlier(config, terms)
    kept = () if earlier is None else analysts_of(config, earlier)
    reviewed = review(config, terms, tuple(dict.fromkeys((*kept, *given))))
    counts = _of_rows(config, terms)
    print(entry("sessions", f"{reviewed.used} of {config.policy.max_sessions} used (max_sessions)"))
    print(f"{summary(terms, reviewed.analysts, counts)}\n")
    if reviewed.breaches or not reviewed.fault:
        print(f"{_explained(reviewed)}\n")
    if earlier is not None:
        print(f"{_already(earlier, kept, reviewed.analysts)}\n")
    if not reviewed.fault and not yes and not _agreed():
        notice("not approved: nothing was written")
        raise typer.Exit(REFUSED)
    path = approve(config, terms, reviewed, datetime.now(UTC))
    print(f"approved, until this file is removed: {path}")


def _check_order(terms_file: Path, config_file: Path) -> None:
    """ConfigError where the two files stand in each other's place."""
    if "aggregator" in read_toml(terms_file) and "columns" in read_toml(config_file):
        raise ConfigError(
            f"{config_file}: this looks like terms, and {terms_file} like a site's file: the two are swapped"
        )


def _earlier(config: PartyConfig, terms: Terms) -> Approval | None:
    """The approval that these terms have already."""
    try:
        return approved(config, terms)
    except ConfigError as error:
        notice(f"an earlier approval counts for nothing, and yes replaces it: {error}")
        return None


def _already(earlier: Approval, kept: Sequence[str], allowed: Sequence[str]) -> str:
    text = f"already approved at {quoted(earlier.time)}" + (f" for {listed(kept)}" if kept else "")
    added = [name for name in allowed if name not in kept]
    if added:
        text += f"; {listed(added)} {'is' if len(added) == 1 else 'are'} added"
    return _filled(text)


def _analysts(config: PartyConfig, given: list[str]) -> tuple[str, ...]:
    """The analysts that an approval names: those given, those that the policy names, or the one typed."""
    for name in given:
        if name == ANY:
            raise ConfigError(f"--analyst {ANY}: {NOT_ANY}")
        if not is_name(name):
            raise ConfigError(f"--analyst: {name!r} cannot be an analyst's name")
    if given or config.keys is None:
        return tuple(given)
    if config.policy.analysts and config.policy.analysts != "any":
        return config.policy.analysts
    try:
        name = ask_terminal("Which analyst may train under these terms? The name in the certificate: ")
    except Refused:
        name = ""
    if name == ANY:
        raise ConfigError(f"{ANY}: {NOT_ANY}")
    if not is_name(name):
        raise ConfigError("no analyst: name who may train under these terms, --analyst NAME")
    return (name,)


def _of_rows(config: PartyConfig, terms: Terms) -> Counts | None:
    """Rows of this site by level and by value of the label, if it has any. ConfigError where they do not
    fit."""
    if config.data is None or config.party not in terms.holders:
        return None
    table = read_table(config.data, config.scratch)
    try:
        label = to_shard(table, terms, config.party).label
    except Misfit as error:
        raise ConfigError(f"{config.data}: its rows do not fit the terms: {error.detail}") from None
    except Refused as error:
        raise ConfigError(f"{config.data}: {error}") from None
    print(f"{entry('this site', f'{config.party}, {table.num_rows} rows of {config.data.name}')}")
    levels = {**level_counts(table, terms.columns), terms.columns.label: label_counts(label, terms)}
    others = {name: rows for name, _, rows in undeclared(table, terms.columns)}
    return Counts(levels, others, config.policy.min_rows_per_leaf)


def _explained(reviewed: Review) -> str:
    """The rules that terms break, what for, and what is given up."""
    breaches = reviewed.breaches
    if not breaches:
        return _filled("The policy of this site has nothing against these terms; their names are pinned.")
    rules = "a rule" if len(breaches) == 1 else f"{len(breaches)} rules"
    yes = ":" if reviewed.fault else ". Yes allows it for these terms alone:"
    lines = [_filled(f"The terms break {rules} of this site's policy{yes}")]
    for breach in breaches:
        lines.append(f"\n  {breach.key} = {breach.value}")
        lines.append(_filled(f"{'; '.join(filter(None, (breach.why, breach.detail)))}.", "    "))
        lines.append(_filled(f"Why the rule: {PROTECTS[breach.rule]}.", "    "))
        if breach.instead and breach.allow is not None:
            lines.append(_filled(f"If you say no, the analyst can: {breach.instead}.", "    "))
        for (key, value), loud in LOUD.items():
            if breach.key == key and isinstance(breach.allow, tuple) and value in breach.allow:
                lines.append(_filled(loud, "    "))
    return "\n".join(lines)


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text[0].upper() + text[1:],
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _agreed() -> bool:
    try:
        return is_yes(ask_terminal("Approve these terms for the rows of this site? [y/N] "))
    except Refused:
        raise ConfigError(
            "standard input is no terminal, so nobody can be asked; --yes approves without a question"
        ) from None
