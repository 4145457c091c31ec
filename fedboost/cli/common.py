"""Options, inputs and outputs that several commands share."""

import inspect
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from fedboost.cli.output import notice
from fedboost.errors import ConfigError, SchemaMismatch
from fedboost.people.facts import Traffic, TrainingFacts
from fedboost.people.report.markup import SessionFacts
from fedboost.runtime.data.check import alike_sites
from fedboost.runtime.data.database import Reading, ReadOptions
from fedboost.runtime.data.draft import split_by_site, split_by_weights
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import to_shard, undeclared
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.values import listing
from fedboost.runtime.files import check_writable, saved
from fedboost.runtime.model import Model, signature_facts
from fedboost.runtime.party_model import PartyModel
from fedboost.runtime.signed_model import SignedModel, session_file, written
from fedboost.runtime.site.backup import NAME_CHARS
from fedboost.runtime.tracking import MLflowCallback
from fedboost.terms.columns import Schema
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    import pyarrow as pa

    from fedboost.runtime.analyst import Training


Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.")]
Data = Annotated[
    str,
    typer.Argument(
        help="A table: a file (.csv, .parquet, .xlsx, ...), a folder or glob of Parquet files, an address "
        "(s3://, https://), or a database (postgresql://, sqlite:///, duckdb:///) with --query.",
        show_default=False,
    ),
]
TermsFile = Annotated[Path, typer.Argument(help="The terms, a TOML file.", show_default=False)]
ModelFile = Annotated[Path, typer.Argument(help="A model file.", show_default=False)]
SiteFile = Annotated[Path, typer.Option(help="This site's file, TOML.", show_default=False)]
Tables = Annotated[
    list[str],
    typer.Option(
        help="The table whose rows, or columns, the sites share out; or PARTY=TABLE for each of them.",
        show_default=False,
    ),
]
Site = Annotated[
    str | None, typer.Option("--site", help="Column that names the site of each row.", show_default=False)
]
Aggregator = Annotated[str, typer.Option(help="HOST:PORT of the aggregator.", show_default=False)]
Keys = Annotated[Path | None, typer.Option(help="Folder of the analyst's keys.", show_default=False)]
InsecureLoopback = Annotated[
    bool,
    typer.Option("--insecure-loopback", help="No keys, no encryption: on this machine alone."),
]
SomeAggregator = Annotated[str | None, typer.Option(help="HOST:PORT of the aggregator.", show_default=False)]
SaveTerms = Annotated[
    Path | None,
    typer.Option(help="Save the terms of the session, for sites to approve.", show_default=False),
]
MinCount = Annotated[
    int | None,
    typer.Option(help="Fewest rows of a count, in place of the terms' own.", min=1, show_default=False),
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for an aggregator that is away.", min=0)]
PageFile = Annotated[
    Path | None,
    typer.Option(
        "--report", help="Also write a page for people to this file, such as report.html.", show_default=False
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
Once = Annotated[bool, typer.Option("--once", help="Exit after one session.")]
LogFormat = Annotated[
    str, typer.Option(metavar="text|json", help="Lines for people, or a JSON object a line.")
]
LogLevel = Annotated[
    str, typer.Option(metavar="debug|info|warning|error", help="Log nothing less serious than this.")
]
MIN_ROWS_PER_LEVEL = 10
"""A level of fewer rows is not written for others unless its owner says otherwise: its name may point at a
person, and so may a split on it. As many rows as sites want in a leaf."""
MinRowsPerLevel = Annotated[
    int, typer.Option(help="Rows that a level has at least; others are left out.", min=1)
]
_TABLES: dict[str, Any] = {"rich_help_panel": "How the table is read", "show_default": False}
_READ = {
    "separator": Annotated[
        str | None,
        typer.Option(help="What stands between columns of a text (a comma; in a .tsv a tab).", **_TABLES),
    ],
    "decimal": Annotated[
        str | None, typer.Option(help="What stands in numbers of a text: . or ,", **_TABLES)
    ],
    "encoding": Annotated[
        str | None, typer.Option(help="Of a text, such as latin-1 or utf-16 (utf-8).", **_TABLES)
    ],
    "na": Annotated[
        list[str] | None,
        typer.Option(help="A word that means a missing value (may be repeated).", **_TABLES),
    ],
    "query": Annotated[str | None, typer.Option(help="SELECT ...: the rows of a database.", **_TABLES)],
    "query_file": Annotated[Path | None, typer.Option(help="A file that has the query.", **_TABLES)],
    "sheet": Annotated[str | None, typer.Option(help="Of a workbook (the first one).", **_TABLES)],
}


def reads_a_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options by which a table is read; it gets them as `read`."""

    @wraps(command)
    def run(**arguments: Any) -> None:

        values = {name: arguments.pop(name) for name in _READ}
        query = values.pop("query"), values.pop("query_file")
        try:
            options = ReadOptions(**{name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            fault = error.errors()[0]
            raise ConfigError(f"--{fault['loc'][0]}: {fault['ctx']['error']}") from None
        command(**arguments, read=Reading(options, *query))

    own = inspect.signature(command)
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in _READ.items()]
    parameters = [parameter for name, parameter in own.parameters.items() if name != "read"]
    run.__signature__ = own.replace(parameters=[*parameters, *more])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **_READ}
    run.__annotations__.pop("read")
    return run


# ---- Tables that commands read: the rows of each site, and notices about rows ---------------------------
# Promises: a notice names a column, never a row.
# Refuses: a table of other sites than the terms name (ConfigError).


@contextmanager
def rows_as_in_file(table: Any, terms: Terms, data: object) -> Iterator[None]:
    """Count the rows of a misfit as the file does, and not as a site does that got some of them."""
    try:
        yield
    except SchemaMismatch:
        try:
            to_shard(table, terms, shown(data))
        except SchemaMismatch as error:
            raise ConfigError(f"{shown(data)}: its rows do not fit the terms", error.detail) from None
        raise


def rows_of_sites(terms: Terms, terms_file: Path, table: Any, data: object, column: str) -> dict[str, Any]:
    """Return each site's rows by the column that names it, which stays where the terms name it, too.
    ConfigError if the terms name other parties."""
    if isinstance(table, SparseTable):
        raise ConfigError(
            f"{shown(data)}: a sparse table has no column of names; give a .csv, .tsv or .parquet"
        )
    sites = split_by_site(table, column, column in (*terms.columns.features, *terms.columns.others))
    if terms.parties and set(terms.parties) != set(sites):
        raise ConfigError(
            f"{terms_file} names the parties {listing(sorted(terms.parties))}, column {column!r} of "
            f"{shown(data)} names {listing(list(sites))}"
        )
    for oddity in alike_sites(sites):
        notice(oddity.line)
    return sites


def own_tables(terms: Terms, given: Sequence[str]) -> dict[str, str]:
    """Return the table of each party, given as PARTY=TABLE; empty for one table of all. ConfigError where a
    party has none, or more than one."""
    pairs = [text.partition("=") for text in given]
    if len(given) == 1 and pairs[0][0] not in terms.parties:
        return {}
    tables: dict[str, str] = {}
    for name, sign, table in pairs:
        if not sign or not table:
            raise ConfigError(f"--data {name}: with a table for each party write --data PARTY={name}")
        if terms.parties and name not in terms.parties:
            known = listing(list(terms.parties))
            raise ConfigError(f"--data {name}={table}: {name!r} is not one of the parties, {known}")
        if name in tables:
            raise ConfigError(f"--data {name}={table}: party {name!r} has a table already, {tables[name]}")
        tables[name] = table
    absent = [name for name in terms.parties if name not in tables]
    if absent:
        raise ConfigError(f"party {absent[0]!r} has no table: add --data {absent[0]}=TABLE")
    return tables


def by_columns(terms: Terms, table: "pa.Table", seed: int) -> "dict[str, pa.Table]":
    """Return the rows of each party where parties have different columns of them: those of its block. Of a
    party's rows only its own columns are read."""
    names = [str(number) for number in range(len(terms.blocks))]
    rows = {"0": table}
    if len(names) > 1:
        rows = split_by_weights(table, names, [1.0] * len(names), seed, terms.columns.group)
    return {
        party: rows[name] for name, block in zip(names, terms.blocks, strict=True) for party in block.parties
    }


def notice_undeclared(table: "pa.Table", schema: Schema) -> None:
    """Print a line for each categorical column that has categories nobody declared."""
    notice_categories(undeclared(table, schema))


def notice_categories(strange: Iterable[tuple[str, str, int]]) -> None:
    """Print a line for each column with categories nobody declared: its name, one of them, how many rows."""
    for column, category, count in strange:
        notice(
            f"{column} has {count} rows with a category nobody declared ({category!r}, ...): they "
            f"count as missing"
        )


def notice_shared_groups(table: "pa.Table", group: str, site: str) -> None:
    """Print a line if groups have rows at several sites: they are ranked as a group of each."""
    pairs = table.select([group, site]).group_by([group, site]).aggregate([])
    counts = Counter(pairs.column(group).to_pylist())
    shared = [name for name, sites in counts.items() if sites > 1]
    if shared:
        notice(
            f"groups of {group} with rows at several sites: {len(shared)} ({shared[0]!r}, ...); groups do "
            f"not cross sites, so each site's rows of them are a group of their own"
        )


# ---- Pages that commands write beside their result (`--report`) -----------------------------------------
# Promises: a page appears whole or not at all, and in the place of no other file of the command.
# Refuses: a file that exists, without --force (ConfigError, exit code 2).


def check_page(page: Path | None, *inputs: Path, force: bool, outputs: tuple[Path, ...] = ()) -> None:
    """Raise ConfigError now if a page could not be written later, or would replace an input or an output."""

    if page is None:
        return
    if os.path.realpath(page) in map(os.path.realpath, outputs):
        raise ConfigError(
            f"--report: {page} is another output of this very command; give the page another name"
        )
    check_writable(page, *inputs, force=force)


# ---- Models that commands trained: saved, and the facts of them -----------------------------------------
# Promises: the model file appears whole or not at all; a model that cannot be saved where it was to be is
# saved elsewhere.


def save(model: SignedModel, out: Path | None, reproducible: bool = False) -> None:
    """Save a model, if need be elsewhere: the aggregator has it no more. reproducible: as in `Model.save`."""
    if out is None:
        return
    try:
        model.save(out, reproducible)
    except ConfigError as error:
        spare = Path(tempfile.mkdtemp(prefix="fedboost-")) / out.name
        model.save(spare, reproducible)
        raise ConfigError(f"{error}; the model is in {spare}") from None


def facts_of(
    model: SignedModel, traffic: Traffic, file: Path | None, since_restart: bool = False
) -> TrainingFacts:
    """Return the facts of a finished training."""
    shares = model.importance if isinstance(model, PartyModel) else None
    return TrainingFacts(model.outline, traffic, str(file) if file else None, since_restart, shares)


def check_outputs(agreed: Terms, out: Path, report: Path | None, terms: Path, force: bool) -> None:
    """Raise ConfigError now if the model, its session or its report could not be written later. agreed: what
    the file `terms` says."""
    files = out, session_file(out)
    for file in files:
        check_writable(file, terms, force=force)
    check_page(report, terms, force=force, outputs=files)
    if report is not None and agreed.keeps_parts:
        raise ConfigError("--report is of a whole model, and under these terms each party keeps its part")


def write_report(page: Path, model: SignedModel, session: "Training", keys: Path | None) -> None:
    """Write the report of a model that was trained, with the traffic and time of its session. keys: a folder
    of keys, to check the signatures by."""

    assert isinstance(model, Model)
    signatures = None if keys is None else signature_facts(model, keys)
    followed = SessionFacts(session.traffic, session.history, session.uncounted)
    saved(written(model, None, signatures, followed), page)


def notice_parts(model: SignedModel) -> None:
    """Print the id of a model of which each party keeps its part, and what the parts' files are called."""

    if isinstance(model, PartyModel):
        name = model.id[:NAME_CHARS]
        notice(f"model id {name}: each party keeps its part in its state folder, as models/{name}.json")


@contextmanager
def tracked(terms: Terms, uri: str | None) -> Iterator[MLflowCallback | None]:
    """Log a training to an MLflow server, if there is one; what fails in its midst is a notice."""

    if uri is None:
        yield None
        return
    with warnings.catch_warnings(), MLflowCallback(terms, uri) as log:
        warnings.showwarning = lambda message, *about, **more: notice(str(message))
        yield log
