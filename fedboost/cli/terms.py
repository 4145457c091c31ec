"""`fedboost terms`, `digest`, `sign` and `check`: terms drafted from a table, and checks of tables."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.common import (
    MIN_ROWS_PER_LEVEL,
    Data,
    Exclude,
    Force,
    InsecureLoopback,
    Json,
    Keys,
    Label,
    MinRowsPerLevel,
    SomeAggregator,
    TermsFile,
    Wait,
    reads_a_table,
)
from fedboost.cli.output import notice, show, unless_nobody_reads, write
from fedboost.errors import ConfigError
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.site import MAX_SPLITS, splits_by
from fedboost.results.check import Checked
from fedboost.runtime import signed_model
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import check_address, choose_keys
from fedboost.runtime.data import check as checked
from fedboost.runtime.data.check import of_draft
from fedboost.runtime.data.database import Database, Reading
from fedboost.runtime.data.draft import Draft, Offer, draft_schema, read_offer, split_by_site, with_offers
from fedboost.runtime.data.locations import is_remote, local_files, shown
from fedboost.runtime.data.table import dense_of, read_table
from fedboost.runtime.data.values import column_of, listing
from fedboost.runtime.files import check_writable, write_atomically
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
from fedboost.views.results import notices
from fedboost.views.words import counted, delimited

TERMS_EPILOG = (
    "Example: fedboost terms north.csv --label diagnosis --party north --party south > terms.toml\n\n"
    "Example: fedboost terms bank.csv --label default --row-id customer --with telco.offer.toml"
)

SiteFeature = Annotated[bool, typer.Option("--site-feature", help="The column of --site is a feature, too.")]
Protection = Annotated[
    str | None,
    typer.Option(
        help="What hides sites' numbers; plain for more than 100.", show_default="masked; plain with --with"
    ),
]
RowId = Annotated[str | None, typer.Option(help="A column of row identifiers, which is no feature.")]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="OFFER",
        help="Another party's columns of the same rows, from `fedboost columns` (may be repeated).",
    ),
]
Party = Annotated[
    list[str] | None,
    typer.Option(
        help="A party's name (may be repeated). With --with, that of the party with this table, which has "
        "the labels; its file's name unless given."
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        help="What to predict, such as multi:softprob where numbers stand for classes.",
        show_default="what fits the label",
    ),
]


@reads_a_table
def terms(
    data: Data,
    read: Reading,
    label: Annotated[str, typer.Option(help="The column to predict.")],
    label_upper_bound: Annotated[
        str | None, typer.Option(help="A column of upper bounds, for survival:aft.")
    ] = None,
    weight: Annotated[str | None, typer.Option(help="A column of row weights.")] = None,
    base_margin: Annotated[
        str | None, typer.Option(help="A column of margins to boost from, such as log(exposure).")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="With rank:ndcg, the column of each row's group (qid).")
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="A column that names the site of each row: the parties.")
    ] = None,
    site_feature: SiteFeature = False,
    exclude: Exclude = None,
    party: Party = None,
    row_id: RowId = None,
    offers: With = None,
    objective: Objective = None,
    protection: Protection = None,
    min_rows_per_level: MinRowsPerLevel = MIN_ROWS_PER_LEVEL,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the terms.", show_default="standard output")
    ] = None,
    force: Force = False,
) -> None:
    """Draft a terms file from a table, for the analyst to edit. A label of two values is predicted as a
    probability, one of up to 100 words as classes, one of more numbers as an amount."""
    source = read.source(data)
    if site is not None and party:
        raise ConfigError("give --site or --party, not both: the values of the column are the parties")
    if site is None and site_feature:
        raise ConfigError("--site-feature makes a feature of the column of --site: name that, too")
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
        notice(f"{name} = {value} is drafted; set the one you want")
    if offered:
        draft = with_offers(draft, parties[0], shown(source), offered)
    write(_drafted(draft, parties, protection), out)
    if not parties:
        notice('before training over the network, name the sites: parties = ["north", "south"]')


def _offers(
    files: list[Path], source: str | Database, party: list[str], site: str | None
) -> tuple[list[tuple[Path, Offer]], list[str]]:
    """Return the offers in these files, and the parties: the one with the labels, then those that offer."""
    if not files:
        return [], party
    if site is not None:
        raise ConfigError(
            "--site is for parties with different rows, --with for parties with different columns"
        )
    offers = [(path, read_offer(path)) for path in files]
    holders = [offer.holder for _, offer in offers]
    if strange := [name for name in party if name not in holders][1:]:
        raise ConfigError(f"--party {strange[0]}: there is no offer of it; its columns come by --with OFFER")
    named = [name for name in party if name not in holders] or party[:1]
    if not named:
        if isinstance(source, Database) or is_remote(source):
            raise ConfigError(
                f"{shown(source)}: whose table is it? Name the party with the labels: --party NAME"
            )
        named = [Path(source).resolve().name.partition(".")[0]]
        notice(f"label_holder = {named[0]!r} is drafted, after the file; --party NAME sets another")
    return offers, [*named, *holders]


def _notice_few(draft: Draft, min_rows: int) -> None:
    """Print how many levels were left out for they have few rows, if any were."""
    columns = [
        f"{delimited(name)} ({counted(levels, 'level')} in {counted(rows, 'row')})"
        for name, (levels, rows) in draft.few.items()
    ]
    if columns:
        notice(
            f"levels of fewer than {min_rows} rows are left out, and count as missing: {', '.join(columns)}; "
            f"--min-rows-per-level sets another number"
        )


def _drafted(draft: Draft, parties: list[str], protection: str | None) -> str:
    """Return the terms file of a draft. The first party is drafted as key holder, where there is one."""
    weight = draft.min_child_weight
    settings = {} if weight is None else {"min_child_weight": weight}
    hiding = {} if protection is None else {"protection": protection}
    if draft.columns.held:
        hiding = {"label_holder": parties[0], "protection": "plain", **hiding}
        if protection is None:
            notice('protection = "plain" is drafted: with it every party learns the labels')
    row = PROTECTIONS.get(protection or "")
    bins: dict[str, int] = {}
    if draft.columns.held and row is not None and row.by_columns is not None:
        bins = {"min_rows_per_bin": MIN_ROWS_PER_BIN}
    if row is not None and row.uses_key_holder and parties and not draft.columns.held:
        hiding["keyholder"] = parties[0]
        notice(f"keyholder = {parties[0]!r} is drafted; set the one you want")
    values = {**draft.settings(), **settings, **bins, "parties": parties, **hiding}
    agreed = Terms.read(values)
    comments = {}
    if (splits := max((splits_by(agreed, party) for party in parties), default=0)) > MAX_SPLITS:
        agreed = Terms.read({**values, "rounds": max(1, MAX_SPLITS * agreed.trees.rounds // splits)})
        comments["rounds"] = (
            f"{MAX_SPLITS:,} splits by a party's columns at most: sites refuse more by default"
        )
    rows = Policy().min_rows_per_leaf
    comment = f"{rows} rows in a leaf at least: sites refuse fewer by default"
    of_bins = f"{MIN_ROWS_PER_BIN} rows in a bin at least: sites refuse fewer by default"
    return terms_to_toml(agreed, comments | dict.fromkeys(settings, comment) | dict.fromkeys(bins, of_bins))


# ---- `fedboost digest`: terms in words, and their digest ------------------------------------------------


DIGEST_EPILOG = "Example: fedboost digest terms.toml"


def digest(terms: TermsFile) -> None:
    """Say what a terms file asks for, and its digest, by which sites know it."""
    agreed = read_terms(terms)
    if not agreed.parties:
        raise ConfigError(
            f'{terms}: names no parties, and no site is offered such terms; add parties = ["north", "south"]'
        )
    print(summary(agreed))
    print(f"\nA site approves these terms, and no others, by\n{COMMAND}")


# ---- `fedboost sign`: terms that an analyst signs, as a file to submit ----------------------------------


SIGN_EPILOG = "Example: fedboost sign terms.toml --keys keys/marie --out signed.json"


def sign(
    terms: TermsFile,
    out: Annotated[Path, typer.Option(help="Where to write the signed terms.")],
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    force: Force = False,
) -> None:
    """Sign terms, for the console of an aggregator: who has the file can submit them once, within 30 days,
    and cannot change them."""
    check_writable(out, terms, force=force)
    agreed = read_terms(terms)
    if not agreed.parties:
        raise ConfigError(f'{terms}: names no parties; add parties = ["north", "south"]')
    bundle = choose_keys(keys, "analyst", "127.0.0.1:0", insecure_loopback)
    write_atomically(out, signed_model.sign_terms(agreed, bundle), 0o600)
    signer = "nobody, for an aggregator without keys" if bundle is None else f"analyst {bundle.signer.name!r}"
    notice(f"{out}: terms {agreed.digest[:12]}..., signed by {signer}")


# ---- `fedboost check`: what is odd in a table, or which sites would take part under some terms ----------


CHECK_EPILOG = (
    "Example: fedboost check north.csv --label diagnosis\n\n"
    "Example: fedboost check --config party.toml --terms terms.toml\n\n"
    "Example: fedboost check terms.toml --aggregator fed.example.org:7070 --keys keys/marie\n\n"
    "Example: fedboost check terms.toml --describe --aggregator fed.example.org:7070 --keys keys/marie"
)
ODD = REFUSED = 1
"""Exit codes where a training would be stopped or spoilt, and if a site would not, or cannot be asked."""


@reads_a_table
def check(
    read: Reading,
    table: Annotated[
        str | None, typer.Argument(help="A table: a file, a folder or an address; with --aggregator, terms.")
    ] = None,
    label: Label = None,
    config: Annotated[Path | None, typer.Option(help="This site's file, which names its table.")] = None,
    terms: Annotated[Path | None, typer.Option(help="Terms that the table must fit.")] = None,
    party: Annotated[
        str | None, typer.Option(help="Whose table it is, where the terms hold columns apart.")
    ] = None,
    exclude: Exclude = None,
    aggregator: SomeAggregator = None,
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    describe: Annotated[
        bool, typer.Option("--describe", help="With --aggregator: would they take part in a description?")
    ] = False,
    wait: Wait = 60,
    json: Json = False,
) -> None:
    """Say what is odd in a table, and what to do about it; or whether all sites would take part under terms.
    Exit code 1 for an error or a warning, 0 if there are at most notes. With --aggregator: ask all sites at
    once whether they would take part, without a session; each says all its reasons. Exit code 1 unless all
    would."""
    if aggregator is not None:
        if (table is None) == (terms is None) or label or config or party or exclude or read != Reading():
            raise ConfigError(
                "--aggregator asks all sites about terms: fedboost check terms.toml --aggregator HOST:PORT"
            )
        asked = terms if table is None else Path(table)
        assert asked is not None
        check_address(aggregator, "--aggregator")
        session = terms_to_describe(read_terms(asked)) if describe else read_terms(asked)
        connection = connect(aggregator, keys, insecure_loopback)
        sites = connection.check(session, wait, lambda who: notice(text.waiting(who, {})))
        show(json, [site.summary for site in sites], text.check(sites))
        if not all(site.would for site in sites):
            raise typer.Exit(REFUSED)
        return
    if keys is not None or insecure_loopback or describe:
        raise ConfigError("--keys, --insecure-loopback, --describe are for --aggregator HOST:PORT: name it")
    exclude = exclude or []
    if table is None and config is None:
        raise ConfigError("nothing to check: give a table, or --config with the file of a site that names it")
    if table is not None and Path(table).suffix == ".toml":
        raise ConfigError(
            f"{table}: is no table; --terms {table} checks a table against terms, --aggregator HOST:PORT "
            f"asks the sites about them"
        )
    if table is not None and config is not None:
        raise ConfigError(
            f"{table} and --config {config}: the site's file names its table; give one of the two"
        )
    agreed = None if terms is None else read_terms(terms)
    if agreed is not None and (label is not None or exclude):
        raise ConfigError(f"--label and --exclude: {terms} names the columns already; take them away")
    apart = agreed is not None and bool(agreed.blocks)
    if party is not None and not apart:
        raise ConfigError(f"--party {party}: it is for terms with label_holder or blocks; take it away")
    site = None if config is None else read_party(config)
    holder = party or "" if site is None else site.party
    if agreed is not None and apart and agreed.blocks.of(holder) is None:
        known = ", ".join(agreed.parties)
        raise ConfigError(f"{terms} says which columns each party has: add --party NAME, one of {known}")
    if site is not None and site.workers is not None:
        site = site.model_copy(update={"read": site.read.model_copy(update=read.options.chosen)})
        result = check_workers(site, agreed, label, exclude)
    else:
        result = _checked(table, site, read, label, agreed, exclude, holder)
    with unless_nobody_reads():
        show(json, result.lines, checked_table(result))
    if result.is_serious:
        raise typer.Exit(ODD)


def _checked(
    table: str | None,
    site: PartyConfig | None,
    read: Reading,
    label: str | None,
    agreed: Terms | None,
    exclude: list[str],
    party: str,
) -> Checked:
    """What is odd in a table that this process reads: this one, or that of a site's file."""
    if site is None:
        assert table is not None
        source: Path | str | Database = read.source(table)
        site_table = SiteTable(read_table(source, None, read.options), Names())
    else:
        assert site.data is not None
        source = site.data
        site_table = site_rows(site, site.read.model_copy(update=read.options.chosen))
    rows = site_table.under(None if agreed is None else agreed.columns.row_id)
    for name in exclude:
        column_of(dense_of(rows), name)
    result = checked.check(shown(source), rows, label, agreed, exclude, party)
    both = [replace(oddity, column=site_table.both(oddity.column)) for oddity in result.oddities]
    return result.model_copy(update={"oddities": both})
