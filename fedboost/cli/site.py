"""Commands for a site: join, approve, audit, backup, restore, columns."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from pyarrow import types

from fedboost.cli import common
from fedboost.cli.keys import Role, store_answer
from fedboost.cli.output import notice, print_text, show, unless_nobody_reads
from fedboost.cli.serve import Part
from fedboost.cli.terms import checked_site
from fedboost.errors import ConfigError, Refused, printable
from fedboost.privacy.identity import is_name
from fedboost.results.check import ERROR
from fedboost.results.site import Counts
from fedboost.runtime.config import to_toml
from fedboost.runtime.data.check import MIN_ROWS, of_offer
from fedboost.runtime.data.database import Reading
from fedboost.runtime.data.draft import DraftedOffer, draft_offer
from fedboost.runtime.data.locations import local_files
from fedboost.runtime.data.locations import shown as source_name
from fedboost.runtime.data.table import dense_of, read_table
from fedboost.runtime.data.values import column_of, is_text, texts
from fedboost.runtime.files import check_writable, folder_name, write_atomically
from fedboost.runtime.net import keys
from fedboost.runtime.site import audit as audits
from fedboost.runtime.site.approval import (
    analysts_of,
    approval_of,
    count_columns,
    count_rows,
    look,
    withdraw_by_digest,
)
from fedboost.runtime.site.approval import approve as write_approval
from fedboost.runtime.site.backup import restore as put_back
from fedboost.runtime.site.backup import write_backup
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.site.rows import Names, site_rows
from fedboost.runtime.tasks import read_terms
from fedboost.runtime.telemetry import ask_terminal
from fedboost.runtime.workers.holder import check_under_workers, workers_of
from fedboost.terms.tasks import terms_to_describe
from fedboost.terms.terms import Terms
from fedboost.views.approval import approval
from fedboost.views.as_text import text
from fedboost.views.audit import audit as audit_view
from fedboost.views.results import check as checked_table
from fedboost.views.results import notices
from fedboost.views.words import Block, cell, counted, delimited, listed, moment, table

# ---- `fedboost join`: everything that a site does before its party runs, one step after the other -------
# Guarantees: a step that is done is not repeated, and none is left out: terms are only approved by a person
# who was shown them, once the table fits them.


JOIN_EPILOG = (
    "Example: fedboost join --config party.toml\n\n"
    "Example: fedboost join --config party.toml --terms terms.toml --run\n\n"
    "Example: fedboost join --config bank.toml --terms terms.toml --analyst marie --run"
)
INCOMPLETE = 1  # exit code if a step is missing


def join(
    config: common.SiteFile,
    terms: Annotated[
        Path | None, typer.Option(help="Terms file (TOML), once the analyst has sent it.")
    ] = None,
    analyst: Annotated[
        str | None,
        typer.Option(
            help="Analyst of this organisation: also request and store this analyst's key, and approve the "
            "terms for this analyst."
        ),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Then run the party, like `fedboost party`.")] = False,
) -> None:
    """Take all steps before this site's party can run, and say which one is missing. Requests keys and stores
    the signed certificates, checks the table against the terms, and asks you to approve them. Steps that are
    done are skipped, so run this command again at any time. Exits with code 1 if a step is missing."""
    site = read_party(config)
    if site.keys is None:
        raise ConfigError(
            "site-keys-missing", f"{config}: key 'keys' is missing; add, e.g., keys = \"keys/site\""
        )
    if site.keys.name != folder_name(site.party):
        raise ConfigError(
            "keys-other-party",
            f"{config}: keys is {site.keys}, but the folder of party {site.party!r} must "
            f"be named {folder_name(site.party)}",
        )
    analysts = [] if analyst is None else [analyst]
    _check_analysts(analysts)
    if analyst == site.party:
        raise ConfigError(
            "analyst-is-party",
            f"--analyst: {analyst!r} is the name of the party in {config}; an analyst needs another name",
        )
    owners: list[tuple[str, Role]] = [(site.party, "party"), *((name, "analyst") for name in analysts)]
    folder = site.keys.parent
    beside = [folder / folder_name(name) for name, _ in owners]
    missing = [line for owner in owners for line in _missing_keys(folder, config, *owner, beside)]
    missing += _missing_terms(config, site, terms, analyst)
    for line in missing:
        print(f"missing: {line}")
    if missing:
        print("Then run this command again.")
        raise typer.Exit(INCOMPLETE)
    if not run:
        print(f"nothing is missing; next: fedboost party --config {config}")
        return
    Part().take("party", config)


def _missing_keys(folder: Path, config: Path, name: str, role: Role, beside: Sequence[Path]) -> Iterator[str]:
    """Request a key, or store its signed certificate. Yields what is still missing, if anything. folder:
    parent of the key's folder; config: the site's file, next to which requests and answers are; beside: all
    bundles of this site, which must trust the same root."""
    bundle, own = folder / folder_name(name), folder_name(name)
    answer, request = config.parent / f"{own}{keys.ANSWER_SUFFIX}", config.parent / f"{own}.{keys.REQUEST}"
    if (bundle / keys.CERTIFICATE).exists():
        if (
            answer.exists()
            and keys.read_certificates(answer)[0] != keys.read_certificates(bundle / keys.CERTIFICATE)[0]
        ):
            raise ConfigError(
                "keys-answer-unused",
                f"{answer} is not the certificate in {bundle}; to use it, move {keys.CERTIFICATE} and "
                f"{keys.ROOTS} in that folder aside, else move the answer aside",
            )
        if (known := keys.read_bundle(bundle, role).signer.name) != name:
            raise ConfigError("keys-other-name", f"{bundle} is the bundle of {known!r}, not of {name!r}")
        keys.check_same_root(bundle / keys.ROOTS, keys.read_certificates(bundle / keys.ROOTS), beside)
        print(f"keys of {role} {name!r}: {bundle}")
        return
    if answer.exists():
        store_answer(answer, folder, name, beside)
        return
    if not bundle.exists():
        keys.write_request(folder, name, role)
    if not ((bundle / keys.KEY).exists() and (bundle / keys.REQUEST).exists()):
        raise ConfigError(
            "keys-incomplete",
            f"{bundle} lacks {keys.KEY} or {keys.REQUEST}; if no other command is creating it now, move it "
            f"aside",
        )
    due = keys.read_request_file(bundle / keys.REQUEST)
    if not request.exists():
        keys.write_new({request: ((bundle / keys.REQUEST).read_bytes(), keys.PUBLIC)})
    if keys.read_request_file(request).fingerprint != due.fingerprint:
        raise ConfigError("keys-request-other", f"{request} is not the request in {bundle}; move it aside")
    yield (
        f"the certificate of {role} {name!r}\n"
        f"Send {request} to the holder of the consortium's root key. Confirm over\n"
        f"another channel, e.g. by telephone, the fingerprint of its key:\n    {due.fingerprint}\n"
        f"Store the answer as {answer}."
    )


def _missing_terms(config: Path, site: PartyConfig, terms: Path | None, analyst: str | None) -> Iterator[str]:
    """Check the table against the terms, and ask for approval. Yields what is still missing, if anything."""
    if terms is None:
        yield "the terms: add --terms FILE when the analyst has sent them"
        return
    agreed = read_terms(terms)
    _check_names(agreed, terms, site, config)
    earlier = approval_of(site, agreed.digest)
    if earlier is not None and (analyst is None or analyst in analysts_of(site, earlier)):
        print(f"approved: {terms}")
        return
    result = checked_site(site, agreed)
    print_text(text(checked_table(result)))
    print()
    if result.number(ERROR):
        yield f"a table that fits {terms}: remove the errors above, or ask the analyst to change the terms"
        return
    approve(terms, config, None if analyst is None else [analyst])


# ---- `fedboost approve`: a person reviews terms --------------------------------------------------------


APPROVE_EPILOG = "Example: fedboost approve terms.toml --config party.toml --analyst marie"
REFUSED = 1  # exit code if the person declines
ANY = "any"
NOT_ANY = 'is not an analyst; name the analysts, or set analysts = "any" under [policy]'


def approve(
    terms: common.TermsFile,
    config: common.SiteFile,
    analyst: Annotated[
        list[str] | None,
        typer.Option(help="Analyst who may use these terms: the name in the certificate (may be repeated)."),
    ] = None,
    describe: Annotated[
        bool,
        typer.Option("--describe", help="Approve a description (`fedboost describe`) instead of training."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    withdraw: Annotated[
        bool,
        typer.Option("--withdraw", help="Withdraw an approval. TERMS may also be the start of the digest."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show every name and level.")] = False,
) -> None:
    """Review terms and approve them for this site's rows. Shows which rules of this site's policy the terms
    break, and who would learn what about its rows. If you confirm, exactly these terms are allowed. Exits
    with code 1 if you decline."""
    if withdraw and not terms.exists():
        print(f"withdrawn: {withdraw_by_digest(read_party(config, holds_rows=None), terms.name)}")
        return
    agreed, site = read_terms(terms), read_party(config, holds_rows=None)
    _check_names(agreed, terms, site, config)
    agreed = terms_to_describe(agreed) if describe else agreed
    if withdraw:
        print(f"withdrawn: {withdraw_by_digest(site, agreed.digest)}")
        return
    analysts = _analysts(site, agreed, analyst or [])
    looked = look(site, agreed, analysts, _read_rows(site, agreed))
    review = looked.review
    print_text(text(approval(looked.view), "--full shows", full))
    print()
    if not review.fault and not yes:
        names, broken = review.analysts, [rule.key for rule in looked.view.rules]
        whom = f", for analyst{'s' * (len(names) > 1)} {listed(names)}," if names else ""
        still = f"They break {counted(len(broken), 'rule')} ({', '.join(broken)}). " if broken else ""
        question = f"{still}Approve these terms{whom} for the rows of this site? [y/N] "
        if not common.is_agreed(question, "use `fedboost approve --yes` to approve without asking"):
            notice("not approved: nothing was written")
            raise typer.Exit(REFUSED)
    write_approval(site, agreed, review, datetime.now(UTC))
    print("approved; `fedboost approve --withdraw` withdraws the approval")


def _check_names(agreed: Terms, terms: Path, site: PartyConfig, config: Path) -> None:
    """Raise ConfigError unless the terms name the party of this site."""
    if site.party not in agreed.parties:
        known = listed(agreed.parties) or "no parties"
        raise ConfigError(
            "terms-without-party",
            f"{terms} does not name party {site.party!r} of {config}; it names {known}",
        )


def _analysts(site: PartyConfig, agreed: Terms, names: list[str]) -> tuple[str, ...]:
    """Return the names of the analysts to approve: the given names, else the names in the policy, else one
    name typed at the terminal. Returns no names for a prediction, because the label holder requests it."""
    if not agreed.task.by_analyst:
        if names:
            raise ConfigError(
                "approval-without-analyst",
                f"--analyst: the terms are for a prediction, which is requested by label holder "
                f"{agreed.vertical.label_holder}, not by an analyst; remove --analyst",
            )
        return ()
    _check_analysts(names)
    if names or site.keys is None:
        return tuple(names)
    if site.policy.analysts and site.policy.analysts != "any":
        return site.policy.analysts
    try:
        name = ask_terminal("Which analyst may use these terms? Enter the name in the certificate: ")
    except Refused:
        name = ""
    if name == ANY:
        raise ConfigError("analyst-any", f"{ANY!r} {NOT_ANY}")
    if not is_name(name):
        raise ConfigError(
            "analyst-missing", "no analyst was named; specify who may use these terms with --analyst NAME"
        )
    return (name,)


def _check_analysts(names: Sequence[str]) -> None:
    """Raise ConfigError unless an analyst can have each of these names."""
    for name in names:
        if name == ANY:
            raise ConfigError("analyst-any", f"--analyst: {ANY!r} {NOT_ANY}")
        if not is_name(name):
            raise ConfigError(
                "analyst-name-invalid", f"--analyst: {name!r} is not a valid name of an analyst"
            )


def _read_rows(site: PartyConfig, agreed: Terms) -> Counts | None:
    """Count this site's rows for the approval. For rows on workers, only the total number is known. Returns
    None if the site holds no rows under these terms. Raises ConfigError if the rows do not fit the terms."""
    if site.data is None or site.party not in agreed.holders:
        return None
    if site.workers is None:
        return count_rows(site, agreed, site_rows(site))
    check_under_workers(agreed, site.party)
    with workers_of(site) as (rows, read):
        return count_columns(site, agreed, read, rows.rows)


# ---- `fedboost audit`: what has left a site, according to its audit log ---------------------------------
# Guarantees: nothing about a log is printed before its whole hash chain is verified.


AUDIT_EPILOG = (
    "Example: fedboost audit fedboost.state/north/memory.sqlite\n\n"
    "Example: fedboost audit fedboost.state/north/memory.sqlite --session session-1f3a5c7e\n\n"
    "Example: fedboost audit fedboost.state/north/memory.sqlite --export north.jsonl\n\n"
    "Example: fedboost audit north.jsonl --strict --expect $(cat last-hash)"
)


def audit(
    log: Annotated[
        Path,
        typer.Argument(
            help="A site's memory, which contains its audit log, or an export of the log. The memory is "
            "fedboost.state/PARTY/memory.sqlite next to the site's configuration file, unless that file sets "
            "`state` or `dataset`."
        ),
    ],
    session: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show every answer in sessions whose name starts with NAME."),
    ] = None,
    last: Annotated[int | None, typer.Option(metavar="N", help="Show only the last N sessions.")] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="Last hash of an earlier audit. Exits with code 2 if no entry has this hash, e.g. because "
            "the log was truncated.",
        ),
    ] = None,
    party: Annotated[
        str | None, typer.Option(help="Show the log of this party, if several parties share the memory.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Export the log to this file as JSON lines.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="With --export: remove the exported entries from the memory.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if there are warnings.")] = False,
    json: common.Json = False,
) -> None:
    """Show what data has left a site, according to its audit log. Warnings come first, the most serious at
    the top. Then, for each session, the command shows what left and what the terms allow. If there are no
    warnings, nothing has left the site except what the agreed terms allow."""
    if session is not None and last is not None:
        raise ConfigError("option-conflict", "--session and --last cannot be combined; remove one of them")
    if last is not None and last < 1:
        raise ConfigError("option-invalid", f"--last is {last}, but at least one session must be shown")
    if remove and export is None:
        raise ConfigError("option-alone", "--remove only removes exported entries; add --export FILE")
    if export is not None:
        check_writable(export, log, force=False)
    if party is not None:
        audits.check_party(log, party)
    entries = audits.read_log(log, party)
    expected = None if expect is None else audits.number_of(expect, entries, log)
    if export is not None:
        audits.export_log(log, export, party, remove)
    sessions = audits.sessions_of(entries)
    name = None if session is None else audits.named_session(session, sessions, log)
    result = audits.audit_of(log, entries, sessions, expected, name, last)
    with unless_nobody_reads():
        document = audit_view(result, in_full=True)
        show(json, result.lines(), chain([document.lead, ""], text(document, full=True)))
    if result.warnings and strict:
        raise typer.Exit(1)


# ---- `fedboost backup` and `fedboost restore`: a site's memory and model parts in one file --------------


BACKUP_EPILOG = "Example: fedboost backup --config party.toml --out north-2026-11-22.tar.gz"
RESTORE_EPILOG = "Example: fedboost restore north-2026-11-22.tar.gz --config party.toml"


def backup(
    config: common.SiteFile,
    out: Annotated[Path, typer.Option(help="Backup file to write (.tar.gz).")],
    force: common.Force = False,
) -> None:
    """Back up this site's memory and its model parts to a single file. The memory includes the audit log and
    approvals. The party may keep running. The backup contains no private keys from the bundle, but protect it
    as carefully as the state folder."""
    site = read_party(config, holds_rows=None)
    check_writable(out, config, force=force)
    about = write_backup(site, out)
    whose = f"party {printable(about.party)}, rows {printable(about.dataset)}"
    print(f"{out}: backup of {whose}, as of {moment(about.time)} UTC")


def restore(
    backup: Annotated[Path, typer.Argument(help="Backup file written by `fedboost backup`.")],
    config: common.SiteFile,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace a damaged or different memory; the old one is moved to a new folder."
        ),
    ] = False,
) -> None:
    """Restore this site's memory from a backup after a loss. The memory includes the audit log and approvals.
    Lost model parts are restored, too. Sessions that were in progress cannot be continued."""
    restored = put_back(backup, read_party(config, holds_rows=None), force)
    begun = restored.begun
    knows = f"{counted(begun.sessions, 'session')} and {counted(begun.releases, 'charged release')}"
    print(f"{begun.path}: restored the memory as of {restored.time}, with {knows}")
    if restored.parts:
        print(f"{counted(restored.parts, 'model part')} restored.")
    if restored.aside is not None:
        print(f"The previous state was moved to {restored.aside}.")
    print(begun.loss)


# ---- `fedboost columns`: an offer of columns, from which an analyst drafts terms ------------------------
# Guarantees: the command writes two files: the offer for the analyst, and the site's own names for the
# columns, readable by their owner only. With an alias, the offer contains no name or level of the table.


COLUMNS_EPILOG = "Example: fedboost columns customers.parquet --row-id customer_no --alias telco"
OWNER_ONLY = 0o600

Alias = Annotated[
    str | None,
    typer.Option(help="Offer columns as ALIAS.1, ALIAS.2, ... and levels as 1, 2, ... instead of by name."),
]


@common.reads_a_table
def columns(
    data: common.Data,
    read: Reading,
    row_id: Annotated[str | None, typer.Option(help="Column with the row ids; it is not offered.")] = None,
    alias: Alias = None,
    party: Annotated[
        str | None, typer.Option(help="Name of this party in the terms (default: the alias).")
    ] = None,
    exclude: common.Exclude = None,
    min_rows_per_level: common.MinRowsPerLevel = common.MIN_ROWS_PER_LEVEL,
    out: Annotated[
        Path | None,
        typer.Option(help="Offer file to send to the analyst (default: PARTY.offer.toml)."),
    ] = None,
    names_out: Annotated[
        Path | None,
        typer.Option(help="Name mapping, which must stay at this site (default: PARTY.names.toml)."),
    ] = None,
    force: common.Force = False,
) -> None:
    """Offer this site's columns to an analyst who drafts terms. Terms can then use only these columns and
    levels, under the names in the offer."""
    holder = party or alias
    if not holder:
        raise ConfigError(
            "option-missing", "the owner of the columns is not known; add --party NAME or --alias NAME"
        )
    out = out or Path(f"{folder_name(holder)}.offer.toml")
    names_out = names_out or Path(f"{folder_name(holder)}.names.toml")
    source = read.source(data)
    if out.absolute() == names_out.absolute():
        raise ConfigError(
            "output-twice",
            f"--out and --names-out must be different files, not both {out}: the offer goes to the analyst, "
            "but the names must not leave this site",
        )
    for path in (out, names_out):
        check_writable(path, *local_files(source), force=force)
    table = read_table(source, None, read.options)
    aside = [*(exclude or []), *([] if row_id is None else [row_id])]
    try:
        drafted = draft_offer(table, holder, alias, aside, min_rows_per_level)
    except ConfigError as error:
        raise ConfigError(error.code, f"{source_name(source)}: {error.public}", error.detail) from None
    _check_no_ids(dense_of(table), row_id, aside, source_name(source))
    for line in notices(of_offer(dense_of(table), drafted.left_out, aside)):
        notice(line)
    if row_id is not None:
        _notice_ids(dense_of(table), row_id)
    names = Names(
        row_id=row_id,
        names={column.name: column.own for column in drafted.columns},
        levels={column.name: column.levels for column in drafted.columns if column.levels},
    )
    write_atomically(names_out, names.to_toml(names_out.name).encode(), OWNER_ONLY)
    write_atomically(out, drafted.offer.to_toml().encode())
    with unless_nobody_reads():
        print_text(_text(drafted, min_rows_per_level, out, names_out))


def _check_no_ids(table: pa.Table, row_id: str | None, aside: list[str], source: str) -> None:
    """If no row id is named, raise ConfigError for a text or integer column with a different value in each
    row. Such a column probably contains the row ids, which must not be a feature."""
    for name in table.column_names if row_id is None else ():
        column = table.column(name)
        takes = types.is_integer(column.type) or is_text(column.type)
        if name in aside or not takes or column.null_count or table.num_rows < MIN_ROWS:
            continue
        codes, distinct = texts(column, name)
        if len(distinct) == table.num_rows and (codes >= 0).all():
            raise ConfigError(
                "row-id-unnamed",
                f"{source}: column {name!r} has a distinct value in each row and may be the row id; add "
                f"--row-id {name} if it is, else --exclude {name}",
            )


def _notice_ids(table: pa.Table, name: str) -> None:
    """Print a notice if some rows cannot be matched, because their id is missing or is not unique."""
    codes, distinct = texts(column_of(table, name), name)
    missing = int((codes < 0).sum())
    several = int((np.bincount(codes[codes >= 0], minlength=len(distinct)) > 1).sum())
    faults = [f"{counted(missing, 'row has', 'rows have')} no id"] * bool(missing)
    faults += [f"{counted(several, 'id is', 'ids are')} in more than one row"] * bool(several)
    if faults:
        notice(f"{delimited(name)}: {' and '.join(faults)}; only rows with a unique id can be matched")


def _text(drafted: DraftedOffer, min_rows: int, out: Path, names_out: Path) -> Iterator[Block]:
    """Yield a table of the offered columns with their real names, then instructions for the two files."""
    rows = table("in terms", "at this site", "kind", "levels", numbers=())
    for column in drafted.columns:
        kind, levels = "numeric", ""
        if column.levels is not None:
            few = f" ({column.few} with fewer than {min_rows} rows not offered)" if column.few else ""
            kind, levels = "categorical", f"{len(column.levels)}{few}"
        rows.add_row(cell(delimited(column.name)), cell(delimited(column.own)), kind, levels)
    yield rows
    yield ""
    yield f"{out}: the offer; send it to the analyst"
    yield f"{names_out}: the real names, which must stay at this site; add to the site's configuration file:"
    yield f"names = {to_toml(str(names_out))}"
