"""`fedboost approve`: a person at a site reads what terms would tell of its rows, and allows them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import SiteFile, TermsFile
from fedboost.errors import ConfigError, Refused, SchemaMismatch

if TYPE_CHECKING:
    from fedboost.people.summary import Counts
    from fedboost.runtime.site.approval import Approval
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
    from fedboost.people import approval as text
    from fedboost.people.facts import ApprovalFacts, SiteFacts
    from fedboost.people.summary import summary
    from fedboost.people.text import entry
    from fedboost.runtime.data.database import Database
    from fedboost.runtime.data.locations import shown
    from fedboost.runtime.site import approval
    from fedboost.runtime.site.config import read_party
    from fedboost.runtime.site.names import names_of
    from fedboost.runtime.terms_file import read_terms
    from fedboost.terms.describing import terms_to_describe

    agreed, site = read_terms(terms), read_party(config, holds_rows=None)
    agreed = terms_to_describe(agreed) if describe else agreed
    _check_party(agreed, site, terms, config)
    analysts = _analysts(site, agreed, analyst or [])
    earlier = _earlier(site, agreed)
    approved = () if earlier is None else approval.analysts_of(site, earlier)
    review = approval.review(site, agreed, tuple(dict.fromkeys((*approved, *analysts))))
    counted = _read_rows(site, agreed)
    rows, counts = counted or (0, None)
    file = None
    if counted is not None:
        file = site.data.name if isinstance(site.data, Database) else Path(shown(site.data)).name
    used, renamed = review.used, names_of(site).told(agreed.blocks.columns_of(site.party))
    predicted = (review.predicted, site.policy.max_predicted_rows) if agreed.vertical.predicts else None
    sessions = site.policy.max_sessions, used
    facts = SiteFacts(site.party, *sessions, file=file, rows=rows, renamed=renamed, predicted=predicted)
    rules = [approval.facts_of(breach) for breach in review.breaches]
    before = None if earlier is None else (earlier.time, approved)
    print_text(text.site(facts))
    if counted is not None and counts is None:
        print_text([entry("workers", COLUMNS_ALONE)])
    print(f"{summary(agreed, review.analysts, counts)}\n")
    print_text(text.approval(ApprovalFacts(rules, bool(review.fault), review.analysts, before)))
    if not review.fault and not yes and not _agreed(review.analysts):
        notice("not approved: nothing was written")
        raise typer.Exit(REFUSED)
    path = approval.approve(site, agreed, review, datetime.now(UTC))
    print(f"approved, until this file is removed: {path}")


def _check_party(agreed: "Terms", site: "PartyConfig", terms: Path, config: Path) -> None:
    """ConfigError unless the terms name the site."""
    from fedboost.people.text import listed

    if site.party not in agreed.parties:
        raise ConfigError(
            f"{terms}: does not name party {site.party!r} of {config}; it names "
            f"{listed(agreed.parties) or 'no parties'}"
        )


def _earlier(site: "PartyConfig", agreed: "Terms") -> "Approval | None":
    """Return the approval that these terms have already."""
    from fedboost.cli.output import notice
    from fedboost.runtime.site.approval import approved

    try:
        return approved(site, agreed)
    except ConfigError as error:
        notice(f"an earlier approval counts for nothing, and yes replaces it: {error}")
        return None


def _analysts(site: "PartyConfig", agreed: "Terms", names: list[str]) -> tuple[str, ...]:
    """Return the analysts that an approval names: these, those that the policy names, or the one typed; none
    for a prediction, which the label holder asks for."""
    from fedboost.privacy.identity.certificates import is_name
    from fedboost.runtime.site.terminal import ask_terminal

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


def _read_rows(site: "PartyConfig", agreed: "Terms") -> "tuple[int, Counts | None] | None":
    """Return the number of rows of this site, and those by category and by value of the label, if it has any;
    of rows on workers the number alone. ConfigError where they do not fit."""
    from fedboost.people.summary import Counts
    from fedboost.runtime.data.features import category_rows, label_counts, undeclared
    from fedboost.runtime.data.locations import shown
    from fedboost.runtime.data.shard import to_shard
    from fedboost.runtime.site.names import site_rows

    if site.data is None or site.party not in agreed.holders:
        return None
    if site.workers is not None:
        return _look_at_columns(site, agreed), None
    read, columns = site_rows(site), agreed.blocks.columns_of(site.party)
    table = read.under(agreed.columns.row_id)
    try:
        label = to_shard(table, agreed, site.party).label
    except SchemaMismatch as error:
        why = read.explained(error.detail)
        raise ConfigError(f"{shown(site.data)}: its rows do not fit the terms: {why}") from None
    except Refused as error:
        raise ConfigError(f"{shown(site.data)}: {read.explained(str(error))}") from None
    categories = category_rows(table, columns)
    if agreed.blocks.has_labels(site.party):
        categories[columns.label] = label_counts(label, agreed)
    others = {name: rows for name, _, rows in undeclared(table, columns)}
    return table.num_rows, Counts(categories, others, site.policy.min_rows_per_leaf)


def _look_at_columns(site: "PartyConfig", agreed: "Terms") -> int:
    """Return the number of rows of a site that are on workers, whose columns alone are looked at. ConfigError
    where one is missing."""
    from fedboost.runtime.data.locations import shown
    from fedboost.runtime.data.shard import column_faults
    from fedboost.runtime.site.worker_check import workers_of
    from fedboost.runtime.workers.refusals import check_under_workers

    check_under_workers(agreed, site.party)
    with workers_of(site) as (rows, read):
        for fault in column_faults(read.under(agreed.columns.row_id), agreed.columns):
            raise ConfigError(f"{shown(site.data)}: {read.explained(str(fault))}")
        return rows.rows


def _agreed(analysts: tuple[str, ...]) -> bool:
    from fedboost.people.text import listed
    from fedboost.runtime.site.terminal import ask_terminal, is_yes

    names = f", for analyst{'s' * (len(analysts) > 1)} {listed(analysts)}," if analysts else ""
    try:
        return is_yes(ask_terminal(f"Approve these terms{names} for the rows of this site? [y/N] "))
    except Refused:
        raise ConfigError(
            "standard input is no terminal, so nobody can be asked; --yes approves without a question"
        ) from None
