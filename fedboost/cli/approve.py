"""`fedboost approve`: a person at a site reads what terms would tell of its rows, and allows them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import SiteFile, TermsFile
from fedboost.errors import ConfigError, Refused

if TYPE_CHECKING:
    from fedboost.runtime.site.approval import Counted
    from fedboost.runtime.site.config import PartyConfig
    from fedboost.terms.terms import Terms

EPILOG = "Example: fedboost approve terms.toml --config party.toml --analyst marie"
REFUSED = 1
"""Exit code of a person's no."""
ANY = "any"
COLUMNS_ALONE = "the columns alone were looked at: `fedboost check` has the rows read, under --terms"
NOT_ANY = 'no analyst has this name; write analysts = "any" in [policy], or name the analysts'


def approve(
    terms: TermsFile,
    config: SiteFile,
    analyst: Annotated[
        list[str] | None,
        typer.Option(
            help="Who may train under these terms, as in the certificate (may be repeated).",
            show_default=False,
        ),
    ] = None,
    describe: Annotated[
        bool,
        typer.Option("--describe", help="Allow rows to be described (`fedboost describe`), and no training."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without a question.")] = False,
) -> None:
    """Say what terms would tell of this site's rows, to names, and which rules of its policy they break; on
    yes allow them, and no others. Exit code 1 for a no."""
    from fedboost.cli.output import notice, print_text
    from fedboost.people import summary as text
    from fedboost.people.summary import summary
    from fedboost.people.text import entry
    from fedboost.runtime.site.approval import approve as write_approval
    from fedboost.runtime.site.approval import earlier_approval, look
    from fedboost.runtime.site.config import read_party
    from fedboost.runtime.terms_file import read_terms
    from fedboost.terms.tasks import terms_to_describe

    agreed, site = read_terms(terms), read_party(config, holds_rows=None)
    agreed = terms_to_describe(agreed) if describe else agreed
    _check_party(agreed, site, terms, config)
    analysts = _analysts(site, agreed, analyst or [])
    earlier, fault = earlier_approval(site, agreed)
    if fault:
        notice(f"an earlier approval counts for nothing, and yes replaces it: {fault}")
    looked = look(site, agreed, analysts, earlier, _read_rows(site, agreed))
    counted, review = looked.counted, looked.review
    counts = None if counted is None else counted.counts
    print_text(text.site(looked.site))
    if counted is not None and counts is None:
        print_text([entry("workers", COLUMNS_ALONE)])
    print(f"{summary(agreed, review.analysts, counts, looked.origin)}\n")
    print_text(text.approval(looked.decision))
    if not review.fault and not yes and not _agreed(review.analysts):
        notice("not approved: nothing was written")
        raise typer.Exit(REFUSED)
    path = write_approval(site, agreed, review, datetime.now(UTC))
    print(f"approved, until this file is removed: {path}")


def _check_party(agreed: "Terms", site: "PartyConfig", terms: Path, config: Path) -> None:
    """ConfigError unless the terms name the site."""
    from fedboost.people.text import listed

    if site.party not in agreed.parties:
        raise ConfigError(
            f"{terms}: does not name party {site.party!r} of {config}; it names "
            f"{listed(agreed.parties) or 'no parties'}"
        )


def _analysts(site: "PartyConfig", agreed: "Terms", names: list[str]) -> tuple[str, ...]:
    """Return the analysts that an approval names: these, those that the policy names, or the one typed; none
    for a prediction, which the label holder asks for."""
    from fedboost.privacy.identity import is_name
    from fedboost.runtime.site.approval import ask_terminal

    if agreed.vertical.predicts:
        if names:
            raise ConfigError(
                f"--analyst: the terms predict rows, and label holder {agreed.vertical.label_holder} asks "
                f"for that itself; leave it out"
            )
        return ()
    for name in names:
        if name == ANY:
            raise ConfigError(f"--analyst {ANY}: {NOT_ANY}")
        if not is_name(name):
            raise ConfigError(f"--analyst: {name!r} cannot be an analyst's name")
    if names or site.keys is None:
        return tuple(names)
    if site.policy.analysts and site.policy.analysts != "any":
        return site.policy.analysts
    try:
        name = ask_terminal("Which analyst may ask for a session under them? The name in the certificate: ")
    except Refused:
        name = ""
    if name == ANY:
        raise ConfigError(f"{ANY}: {NOT_ANY}")
    if not is_name(name):
        raise ConfigError("no analyst: name who may train under these terms, --analyst NAME")
    return (name,)


def _read_rows(site: "PartyConfig", agreed: "Terms") -> "Counted | None":
    """Return the rows of this site, counted, if it has any; of rows on workers the number alone. ConfigError
    where they do not fit."""
    from fedboost.runtime.site.approval import count_columns, count_rows
    from fedboost.runtime.site.rows import site_rows
    from fedboost.runtime.site.workers import workers_of
    from fedboost.runtime.workers.holder import check_under_workers

    if site.data is None or site.party not in agreed.holders:
        return None
    if site.workers is None:
        return count_rows(site, agreed, site_rows(site))
    check_under_workers(agreed, site.party)
    with workers_of(site) as (rows, read):
        return count_columns(site, agreed, read, rows.rows)


def _agreed(analysts: tuple[str, ...]) -> bool:
    from fedboost.people.text import listed
    from fedboost.runtime.site.approval import ask_terminal, is_yes

    names = f", for analyst{'s' * (len(analysts) > 1)} {listed(analysts)}," if analysts else ""
    try:
        return is_yes(ask_terminal(f"Approve these terms{names} for the rows of this site? [y/N] "))
    except Refused:
        raise ConfigError(
            "standard input is no terminal, so nobody can be asked; --yes approves without a question"
        ) from None
