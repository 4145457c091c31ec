"""`fedboost terms` and `fedboost digest`: terms drafted from a table, and their digest."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.common import MIN_ROWS_PER_LEVEL, Data, Force, MinRowsPerLevel, TermsFile, reads_a_table
from fedboost.cli.output import notice, write
from fedboost.errors import ConfigError
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.site import MAX_SPLITS, splits_by
from fedboost.results.check import Oddity
from fedboost.runtime.data.check import of_draft
from fedboost.runtime.data.database import Database, Reading
from fedboost.runtime.data.draft import Draft, Offer, draft_schema, read_offer, split_by_site, with_offers
from fedboost.runtime.data.locations import is_remote, local_files, shown
from fedboost.runtime.data.table import dense_of, read_table
from fedboost.runtime.data.values import listing
from fedboost.runtime.files import check_writable
from fedboost.runtime.site.policy import Policy
from fedboost.runtime.site.policy_keys import COMMAND, MIN_ROWS_PER_BIN
from fedboost.runtime.terms_file import read_terms, terms_to_toml
from fedboost.terms.terms import Terms
from fedboost.views.approval import summary
from fedboost.views.check import notices
from fedboost.views.words import counted, delimited

TERMS_EPILOG = (
    "Example: fedboost terms north.csv --label diagnosis --party north --party south > terms.toml\n\n"
    "Example: fedboost terms bank.csv --label default --row-id customer --with telco.offer.toml"
)

Exclude = Annotated[
    list[str] | None, typer.Option(help="A column to leave out (may be repeated).", show_default=False)
]
SiteFeature = Annotated[bool, typer.Option("--site-feature", help="The column of --site is a feature, too.")]
Protection = Annotated[
    str | None,
    typer.Option(
        help="What hides sites' numbers; plain for more than 100.", show_default="masked; plain with --with"
    ),
]
RowId = Annotated[
    str | None, typer.Option(help="A column of row identifiers, which is no feature.", show_default=False)
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="OFFER",
        help="Another party's columns of the same rows, from `fedboost columns` (may be repeated).",
        show_default=False,
    ),
]
Party = Annotated[
    list[str] | None,
    typer.Option(
        help="A party's name (may be repeated). With --with, that of the party with this table, which has "
        "the labels; its file's name unless given.",
        show_default=False,
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
    read: "Reading",
    label: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    label_upper_bound: Annotated[
        str | None,
        typer.Option(help="A column of upper bounds, for survival:aft.", show_default=False),
    ] = None,
    weight: Annotated[str | None, typer.Option(help="A column of row weights.", show_default=False)] = None,
    base_margin: Annotated[
        str | None,
        typer.Option(help="A column of margins to boost from, such as log(exposure).", show_default=False),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="With rank:ndcg, the column of each row's group (qid).", show_default=False),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="A column that names the site of each row: the parties.", show_default=False),
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
    _check(out, source, force, site, site_feature, party or [])
    offered, parties = _offers(offers or [], source, party or [], site)
    table, excluded = read_table(source, None, read.options), [*(exclude or [])]
    if site is not None:
        parties, excluded = list(split_by_site(table, site)), excluded + [site] * (not site_feature)
    beside = base_margin, objective, label_upper_bound, group, row_id
    draft = draft_schema(table, label, weight, excluded, *beside, min_rows_per_level)
    _notice_few(draft, min_rows_per_level)
    _notice_draft(draft, label, of_draft(dense_of(table), label, draft, excluded))
    if offered:
        draft = with_offers(draft, parties[0], shown(source), offered)
    write(_drafted(draft, parties, protection), out)
    if not parties:
        notice('before training over the network, name the sites: parties = ["north", "south"]')


def _check(
    out: Path | None,
    source: "str | Database",
    force: bool,
    site: str | None,
    site_feature: bool,
    party: list[str],
) -> None:
    """ConfigError for options that exclude or need each other, and where the file could not be written."""
    if site is not None and party:
        raise ConfigError("give --site or --party, not both: the values of the column are the parties")
    if site is None and site_feature:
        raise ConfigError("--site-feature makes a feature of the column of --site: name that, too")
    if out is not None:
        check_writable(out, *local_files(source), force=force)


def _offers(
    files: list[Path], source: "str | Database", party: list[str], site: str | None
) -> "tuple[list[tuple[Path, Offer]], list[str]]":
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


def _notice_few(draft: "Draft", min_rows: int) -> None:
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


def _notice_draft(draft: "Draft", label: str, odd: "list[Oddity]") -> None:
    """Print what was decided in a draft, and what is odd in its table, for the analyst to check."""
    for line in notices(odd):
        notice(line)
    if draft.columns.classes:
        notice(f"{label} has {len(draft.columns.classes)} classes: {listing(draft.columns.classes)}")
    for name, value in draft.own_parameters.items():
        notice(f"{name} = {value} is drafted; set the one you want")


def _drafted(draft: "Draft", parties: list[str], protection: str | None) -> str:
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
