"""`fedboost terms`, `sign`, `preflight` and `check`: draft, sign and check terms, and check tables."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli import common
from fedboost.cli.output import notice, show, unless_nobody_reads, write
from fedboost.errors import ConfigError
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.site import MAX_SPLITS, splits_by
from fedboost.results.check import Checked, Oddity
from fedboost.results.network import OK
from fedboost.runtime import signed_model
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import check_address, choose_keys
from fedboost.runtime.data import check as checked
from fedboost.runtime.data.check import of_draft
from fedboost.runtime.data.database import Database, Reading, ReadOptions
from fedboost.runtime.data.draft import Draft, Offer, draft_schema, read_offer, split_by_site, with_offers
from fedboost.runtime.data.locations import is_remote, local_files, shown
from fedboost.runtime.data.table import dense_of, read_table
from fedboost.runtime.data.values import column_of, listing
from fedboost.runtime.files import check_writable, write_atomically
from fedboost.runtime.net.diagnosis import follow
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.approval import approval_of, review
from fedboost.runtime.site.config import PartyConfig, read_party
from fedboost.runtime.site.policy import COMMAND, MIN_ROWS_PER_BIN, Policy
from fedboost.runtime.site.rows import Names, SiteTable, site_rows
from fedboost.runtime.tasks import read_terms, terms_to_toml
from fedboost.runtime.workers.holder import check_workers
from fedboost.terms.tasks import terms_to_describe
from fedboost.terms.terms import Terms
from fedboost.views import aggregator as text
from fedboost.views.approval import summary
from fedboost.views.results import check as checked_table
from fedboost.views.results import notices, way
from fedboost.views.words import counted, delimited

TERMS_EPILOG = (
    "Example: fedboost terms north.csv --label diagnosis --party north --party south > terms.toml\n\n"
    "Example: fedboost terms bank.csv --label default --row-id customer --with telco.offer.toml\n\n"
    "Example: fedboost terms terms.toml --digest"
)

SiteFeature = Annotated[bool, typer.Option("--site-feature", help="Use the column of --site as a feature.")]
Protection = Annotated[
    str | None,
    typer.Option(
        help="How to protect the sites' values; masked supports at most 1,000 parties (default: masked; with "
        "--with: plain)."
    ),
]
RowId = Annotated[str | None, typer.Option(help="Column with the row ids; it is not a feature.")]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", metavar="OFFER", help="Another party's offer, from `fedboost columns` (may be repeated)."
    ),
]
Party = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a party (may be repeated). With --with, name of the party that has this table and the "
        "labels (default: the name of the table's file)."
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(help="Objective, e.g. multi:softprob for numbered classes (default: depends on the label)."),
]


@common.reads_a_table
def terms(
    data: Annotated[
        str,
        typer.Argument(
            help="Table: a file, a folder, a URL, or a database with --query. With --digest, a terms file."
        ),
    ],
    read: Reading,
    label: Annotated[str | None, typer.Option(help="Column to predict (required without --digest).")] = None,
    label_upper_bound: Annotated[
        str | None, typer.Option(help="Column with the upper bounds of labels, for survival times.")
    ] = None,
    weight: Annotated[str | None, typer.Option(help="Column with the row weights.")] = None,
    base_margin: Annotated[
        str | None, typer.Option(help="Column with base margins, e.g. log(exposure).")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Column with the groups (qid), for rank:ndcg.")] = None,
    site: Annotated[
        str | None, typer.Option(help="Column that contains each row's site; the sites become the parties.")
    ] = None,
    site_feature: SiteFeature = False,
    exclude: common.Exclude = None,
    party: Party = None,
    row_id: RowId = None,
    offers: With = None,
    objective: Objective = None,
    protection: Protection = None,
    min_rows_per_level: common.MinRowsPerLevel = common.MIN_ROWS_PER_LEVEL,
    out: Annotated[Path | None, typer.Option(help="File to write (default: standard output).")] = None,
    digest: Annotated[
        bool,
        typer.Option(
            "--digest",
            help="Describe an existing terms file in words and print its digest, instead of drafting terms.",
        ),
    ] = False,
    force: common.Force = False,
) -> None:
    """Draft a terms file from a table, or show an existing terms file and its digest. The task is
    binary classification for a label with two values, multiclass for a text label with up to 100 values, and
    regression for a numeric label."""
    if digest:
        given = [name for name, value in locals().items() if value and value != NOT_GIVEN.get(name)]
        _show_digest(Path(data), [name for name in given if name not in ("data", "digest")])
        return
    if label is None:
        is_terms = Path(data).suffix == ".toml"
        way_out = "use --digest to show a terms file" if is_terms else "use --label COLUMN"
        raise ConfigError("option-missing", f"{data}: no label was specified; {way_out}")
    source = read.source(data)
    if site is not None and party:
        raise ConfigError(
            "option-conflict", "--site and --party cannot be combined: with --site, the sites are the parties"
        )
    if site is None and site_feature:
        raise ConfigError("option-alone", "--site-feature uses the column of --site as a feature; add --site")
    if out is not None:
        check_writable(out, *local_files(source), force=force)
    offered, parties = _offers(offers or [], source, party or [], site)
    table, excluded = read_table(source, None, read.options), [*(exclude or [])]
    if site is not None:
        parties, excluded = list(split_by_site(table, site)), excluded + [site] * (not site_feature)
    beside = base_margin, objective, label_upper_bound, group, row_id
    draft = draft_schema(table, label, weight, excluded, *beside, min_rows_per_level)
    _notice_few(draft, min_rows_per_level)
    for line in notices(of_draft(dense_of(table), label, draft, excluded)):
        notice(line)
    if draft.columns.classes:
        notice(f"{label} has {len(draft.columns.classes)} classes: {listing(draft.columns.classes)}")
    for name, value in draft.own_parameters.items():
        notice(f"{name} = {value} is only a draft; change it as needed")
    if offered:
        draft = with_offers(draft, parties[0], shown(source), offered)
    write(_drafted(draft, parties, protection), out)
    if not parties:
        notice('before training over the network, name the sites in the terms: parties = ["north", "south"]')


def _offers(
    files: list[Path], source: str | Database, party: list[str], site: str | None
) -> tuple[list[tuple[Path, Offer]], list[str]]:
    """Read offers. Returns the offers with their files, and the parties: the party with the labels, then the
    parties of the offers. If there are no offers, the parties are those in `party`."""
    if not files:
        return [], party
    if site is not None:
        raise ConfigError(
            "option-conflict",
            "--site and --with cannot be combined: parties hold either different rows or different columns",
        )
    offers = [(path, read_offer(path)) for path in files]
    holders = [offer.holder for _, offer in offers]
    if strange := [name for name in party if name not in holders][1:]:
        raise ConfigError("offer-missing", f"--party {strange[0]} has no offer; add it with --with OFFER")
    named = [name for name in party if name not in holders] or party[:1]
    if not named:
        if isinstance(source, Database) or is_remote(source):
            raise ConfigError(
                "option-missing",
                f"the owner of {shown(source)} is not known; name the label holder with --party NAME",
            )
        named = [Path(source).resolve().name.partition(".")[0]]
        notice(f"label_holder = {named[0]!r} is taken from the file's name; use --party NAME to change it")
    return offers, [*named, *holders]


def _notice_few(draft: Draft, min_rows: int) -> None:
    """Print which columns have levels that were left out because they have too few rows."""
    columns = [
        f"{delimited(name)} ({counted(levels, 'level')} in {counted(rows, 'row')})"
        for name, (levels, rows) in draft.few.items()
    ]
    if columns:
        notice(
            f"levels with fewer than {min_rows} rows are left out and treated as missing: "
            f"{', '.join(columns)}; use --min-rows-per-level to change this limit"
        )


def _drafted(draft: Draft, parties: list[str], protection: str | None) -> str:
    """Return the text of the terms file. If the protection needs a key holder, the first party is chosen."""
    weight = draft.min_child_weight
    settings = {} if weight is None else {"min_child_weight": weight}
    hiding = {} if protection is None else {"protection": protection}
    if draft.columns.held:
        hiding = {"label_holder": parties[0], "protection": "plain", **hiding}
        if protection is None:
            notice('the draft has protection = "plain", under which every party learns the labels')
    row = PROTECTIONS.get(protection or "")
    bins: dict[str, int] = {}
    if draft.columns.held and row is not None and row.by_columns is not None:
        bins = {"min_rows_per_bin": MIN_ROWS_PER_BIN}
    if row is not None and row.uses_key_holder and parties and not draft.columns.held:
        hiding["keyholder"] = parties[0]
        notice(f"keyholder = {parties[0]!r} is only a draft; change it as needed")
    values = {**draft.settings(), **settings, **bins, "parties": parties, **hiding}
    agreed = Terms.read(values)
    comments = {}
    if (splits := max((splits_by(agreed, party) for party in parties), default=0)) > MAX_SPLITS:
        agreed = Terms.read({**values, "rounds": max(1, MAX_SPLITS * agreed.trees.rounds // splits)})
        comments["rounds"] = (
            f"at most {MAX_SPLITS:,} splits on a party's columns: by default, sites refuse more"
        )
    rows = Policy().min_rows_per_leaf
    comment = f"at least {rows} rows in a leaf: by default, sites refuse fewer"
    of_bins = f"at least {MIN_ROWS_PER_BIN} rows in a bin: by default, sites refuse fewer"
    return terms_to_toml(agreed, comments | dict.fromkeys(settings, comment) | dict.fromkeys(bins, of_bins))


# ---- `fedboost terms --digest`: terms in words, and their digest ----------------------------------------


NOT_GIVEN = {"read": Reading(), "min_rows_per_level": common.MIN_ROWS_PER_LEVEL}
"""Parameter of `terms` -> its default, for parameters whose default is truthy."""


def _show_digest(terms: Path, given: list[str]) -> None:
    """Print a terms file in words, with its digest. Raises ConfigError if `given`, the names of other
    parameters of `terms` that were specified, is not empty."""
    if given:
        options = {"read": "the options for reading a table", "offers": "--with"}
        option = options.get(given[0], f"--{given[0].replace('_', '-')}")
        raise ConfigError("option-conflict", f"--digest only shows a terms file; remove {option}")
    agreed = read_terms(terms)
    if not agreed.parties:
        raise ConfigError(
            "terms-no-parties",
            f'{terms} names no parties, so no site can approve it; add e.g. parties = ["north", "south"]',
        )
    print(summary(agreed))
    print(f"\nTo approve exactly these terms, a site runs\n{COMMAND}")


# ---- `fedboost sign`: terms signed by an analyst, as a file to submit -----------------------------------


SIGN_EPILOG = "Example: fedboost sign terms.toml --keys keys/marie --out signed.json"


def sign(
    terms: common.TermsFile,
    out: Annotated[Path, typer.Option(help="File for the signed terms.")],
    keys: common.Keys = None,
    insecure_loopback: common.InsecureLoopback = False,
    force: common.Force = False,
) -> None:
    """Sign terms so that they can be submitted on an aggregator's console. Anyone who has the file can submit
    the terms once, within 30 days, but cannot change them."""
    check_writable(out, terms, force=force)
    agreed = read_terms(terms)
    if not agreed.parties:
        raise ConfigError(
            "terms-no-parties", f'{terms} names no parties; add e.g. parties = ["north", "south"]'
        )
    bundle = choose_keys(keys, "analyst", "127.0.0.1:0", insecure_loopback)
    write_atomically(out, signed_model.sign_terms(agreed, bundle), 0o600)
    unsigned = "not signed (for an aggregator without keys)"
    signer = unsigned if bundle is None else f"signed by analyst {bundle.signer.name!r}"
    notice(f"{out}: terms {agreed.digest[:12]}..., {signer}")


# ---- `fedboost preflight`: which sites would take part under given terms --------------------------------


PREFLIGHT_EPILOG = (
    "Example: fedboost preflight terms.toml --aggregator fed.example.org:7070 --keys keys/marie\n\n"
    "Example: fedboost preflight terms.toml --describe --aggregator fed.example.org:7070 --keys keys/marie"
)
REFUSED = 1  # exit code if a site would not take part, or does not answer


def preflight(
    terms: common.TermsFile,
    aggregator: common.Aggregator,
    keys: common.Keys = None,
    insecure_loopback: common.InsecureLoopback = False,
    describe: Annotated[
        bool,
        typer.Option("--describe", help="Ask about a description (`fedboost describe`) instead of training."),
    ] = False,
    wait: common.Wait = 60,
    json: common.Json = False,
) -> None:
    """Ask all sites whether they would take part under these terms. No session starts. A site that would
    refuse reports all its reasons. Exits with code 1 unless all sites would take part."""
    check_address(aggregator, "--aggregator")
    agreed = terms_to_describe(read_terms(terms)) if describe else read_terms(terms)
    connection = connect(aggregator, keys, insecure_loopback)
    sites = connection.check(agreed, wait, lambda who: notice(text.waiting(who, {})))
    show(json, [site.summary for site in sites], text.check(sites))
    if not all(site.would for site in sites):
        raise typer.Exit(REFUSED)


# ---- `fedboost check`: problems in a table --------------------------------------------------------------


CHECK_EPILOG = (
    "Example: fedboost check north.csv --label diagnosis\n\n"
    "Example: fedboost check --config party.toml --terms terms.toml\n\n"
    "Example: fedboost check --network --config party.toml\n\n"
    "Example: fedboost check --network --aggregator fed.example.org:7070 --keys keys/marie"
)
ODD = 1  # exit code if a finding would prevent or harm training


@common.reads_a_table
def check(
    read: Reading,
    table: Annotated[str | None, typer.Argument(help="Table: a file, a folder or a URL.")] = None,
    label: common.Label = None,
    config: Annotated[
        Path | None, typer.Option(help="This site's configuration file, which names its table.")
    ] = None,
    terms: Annotated[Path | None, typer.Option(help="Terms file (TOML) that the table must fit.")] = None,
    party: Annotated[
        str | None,
        typer.Option(help="Party that the table belongs to, if parties hold different columns."),
    ] = None,
    exclude: common.Exclude = None,
    network: Annotated[
        bool, typer.Option("--network", help="Check the way to the aggregator instead.")
    ] = False,
    aggregator: common.SomeAggregator = None,
    keys: common.Keys = None,
    idle: Annotated[int, typer.Option(help="Seconds to watch a silent connection.", min=0)] = 70,
    json: common.Json = False,
) -> None:
    """Check a table for problems that would prevent or harm training, or the network. Each finding includes a
    remedy. Exits with code 1 if there is an error or a warning, else with code 0."""
    of_table = {"--label": label, "--terms": terms, "--party": party, "--exclude": exclude, table: table}
    of_network = {"--aggregator": aggregator, "--keys": keys}
    for name in (name for name, value in (of_table if network else of_network).items() if value is not None):
        raise ConfigError(
            "option-conflict", f"{name} {'cannot be combined with' if network else 'requires'} --network"
        )
    if network:
        _check_network(config, aggregator, keys, idle, json)
        return
    exclude = exclude or []
    if table is None and config is None:
        raise ConfigError(
            "option-missing", "there is nothing to check; specify a table, or a site's file with --config"
        )
    if table is not None and Path(table).suffix == ".toml":
        raise ConfigError(
            "table-is-terms",
            f"{table} is not a table; use --terms {table} to check a table against terms, or run "
            f"fedboost preflight {table} to ask all sites about them",
        )
    if table is not None and config is not None:
        raise ConfigError(
            "option-conflict",
            f"{table} and --config {config} cannot be combined: a site's file names its own table; remove "
            "one of them",
        )
    agreed = None if terms is None else read_terms(terms)
    if agreed is not None and (label is not None or exclude):
        raise ConfigError(
            "option-conflict",
            f"--label and --exclude cannot be combined with --terms: {terms} already names the columns",
        )
    apart = agreed is not None and bool(agreed.blocks)
    if party is not None and not apart:
        raise ConfigError(
            "option-columns", f"--party {party} only applies to terms with label_holder or blocks"
        )
    site = None if config is None else read_party(config)
    holder = party or "" if site is None else site.party
    if agreed is not None and apart and agreed.blocks.of(holder) is None:
        known = ", ".join(agreed.parties)
        raise ConfigError(
            "option-missing",
            f"under {terms}, parties have different columns; add --party NAME with one of {known}",
        )
    result = _checked(table, site, read, label, agreed, exclude, holder)
    if site and agreed and site.policy.parties and site.policy.columns:  # at others a person approves terms
        broken = review(site, agreed, ()).breaches if approval_of(site, agreed.digest) is None else ()
        told = {b.key: b.refusal(site.party).public.replace("party.toml", str(config)) for b in broken}
        odd = (Oddity("refused", f"policy.{key}", values=(text,)) for key, text in told.items())
        result = result.model_copy(update={"oddities": [*result.oddities, *odd]})
    with unless_nobody_reads():
        show(json, result.lines, checked_table(result))
    if result.is_serious:
        raise typer.Exit(ODD)


def _check_network(
    config: Path | None, aggregator: str | None, keys: Path | None, idle: int, json: bool
) -> None:
    given = [value is not None for value in (config, aggregator, keys)]
    if given == [True, False, False] and config:
        site = read_party(config, holds_rows=None)
        servers, bundle = site.servers, choose_keys(site.keys, "party", site.aggregator[0], False)
    elif given == [False, True, True] and aggregator:
        address = check_address(aggregator, "--aggregator")
        servers, bundle = (Server(address),), choose_keys(keys, "analyst", address, False)
    else:
        raise ConfigError("option-missing", "--network requires either --config, or --aggregator and --keys")
    assert bundle is not None
    ways = {str(server): follow(server, bundle, idle, notice) for server in servers}
    for server, steps in ways.items():
        with unless_nobody_reads():
            show(json, steps, way(server, steps))
    if any(step["severity"] != OK for steps in ways.values() for step in steps):
        raise typer.Exit(ODD)


def checked_site(site: PartyConfig, agreed: Terms) -> Checked:
    """Check the table of a site's configuration file against terms."""
    return _checked(None, site, Reading(ReadOptions(), None, None), None, agreed, [], site.party)


def _checked(
    table: str | None,
    site: PartyConfig | None,
    read: Reading,
    label: str | None,
    agreed: Terms | None,
    exclude: list[str],
    party: str,
) -> Checked:
    """Check a table: `table`, or the table in the site's configuration file."""
    if site is None:
        assert table is not None
        source: Path | str | Database = read.source(table)
        site_table = SiteTable(read_table(source, None, read.options), Names())
    else:
        options = site.read.model_copy(update=read.options.chosen)
        if site.workers is not None:
            return check_workers(site.model_copy(update={"read": options}), agreed, label, exclude)
        assert site.data is not None
        source, site_table = site.data, site_rows(site, options)
    rows = site_table.under(None if agreed is None else agreed.columns)
    for name in exclude:
        column_of(dense_of(rows), name)
    result = checked.check(shown(source), rows, label, agreed, exclude, party)
    both = [replace(oddity, column=site_table.both(oddity.column)) for oddity in result.oddities]
    return result.model_copy(update={"oddities": both})
