"""`fedboost compare`: site-alone, federated and pooled models on the same held-out rows.

Promises: no model sees a held-out row of any site; the same table, terms and options give the same figures.
Refuses: tables of one site, or of other sites than the terms name, and rows that do not fit the terms.

Training is plain and in this process, which makes the model of any protection.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedboost.cli.options import Force, Json, PageFile, Site, Tables, TermsFile, reads_a_table
from fedboost.errors import ConfigError, FedboostError

if TYPE_CHECKING:
    from fedboost.evaluation import Trial
    from fedboost.people.facts import ComparisonFacts
    from fedboost.runtime.data.database import Reading
    from fedboost.terms.terms import Terms

EPILOG = "Example: fedboost compare terms.toml --data all.csv --site hospital --seeds 10"
MANY_ROWS = 50_000
"""Rows from which on several threads are faster than one."""


@reads_a_table
def compare(
    terms: TermsFile,
    data: Tables,
    read: "Reading",
    site: Site = None,
    held_out: Annotated[
        float, typer.Option(help="Share of each site's rows to compare the models on.")
    ] = 0.2,
    seeds: Annotated[
        int, typer.Option(help="How many times to draw those rows, and train.", min=1, max=1000)
    ] = 5,
    csv: Annotated[
        Path | None, typer.Option(help="Also write a line for each site to this file.", show_default=False)
    ] = None,
    report: PageFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Is joining worth it? Each site's model alone, the federated and the pooled one, on the same held-out
    rows of each site; where parties hold different columns, the label holder's alone and the joined one."""
    from fedboost.cli.compare_columns import compare_columns
    from fedboost.cli.inputs import own_tables
    from fedboost.cli.output import show, write
    from fedboost.cli.pages import check_page
    from fedboost.cli.progress import steps
    from fedboost.people import as_json, comparison
    from fedboost.people.report.results import comparison_page
    from fedboost.runtime.data.locations import local_files
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.terms_file import read_training

    if not 0 < held_out < 1:
        raise ConfigError(f"--held-out is {held_out:g}: give a share between 0 and 1, such as 0.2")
    agreed = read_training(terms)
    texts = own_tables(agreed, data) if agreed.vertical.is_used else {}
    sources = {name: read.source(text) for name, text in (texts or {"": data[-1]}).items()}
    inputs = [name for source in sources.values() for name in local_files(source)]
    if csv is not None:
        check_writable(csv, terms, *inputs, force=force)
    check_page(report, terms, *inputs, force=force, outputs=() if csv is None else (csv,))
    if agreed.columns.group is not None:
        raise ConfigError(
            f"{terms}: {agreed.objective.name} ranks whole groups, and rows are held out one by one"
        )
    if agreed.vertical.is_used:
        if site is not None:
            raise ConfigError("--site names sites with different rows, and these terms hold columns apart")
        with steps(3 * seeds, json) as step:
            facts, counts = compare_columns(agreed, sources, read, held_out, seeds, step)
        blocks = comparison.of_columns(facts, counts, agreed.hiding.protection)
    else:
        if site is None:
            raise ConfigError("give --site, the column of the table that names the site of each row")
        facts = _of_sites(agreed, terms, sources[""], read, site, held_out, seeds, json)
        blocks = comparison.comparison(facts)
    if csv is not None:
        write(as_json.comparison_as_csv(facts), csv)
    if report is not None:
        write(comparison_page(facts), report)
    show(json, as_json.comparison(facts), blocks)


def _of_sites(
    agreed: "Terms",
    terms: Path,
    source: Any,
    read: "Reading",
    site: str,
    held_out: float,
    seeds: int,
    json: bool,
) -> "ComparisonFacts":
    """The comparison of sites with different rows, by the column that names them."""
    from fedboost.cli.inputs import notice_undeclared
    from fedboost.cli.progress import steps
    from fedboost.evaluation import Trial, shown_metrics, together, unprotected
    from fedboost.people.facts import ComparisonFacts
    from fedboost.runtime.data.table import read_table

    table = read_table(source, None, read.options)
    sites = _sites(agreed, terms, table, source, site)
    notice_undeclared(table, agreed.columns)
    names, equal = shown_metrics(agreed), True
    trials = {
        name: Trial(name, rows.num_rows, held_out, number)
        for number, (name, rows) in enumerate(sites.items())
    }
    with steps(seeds * (len(sites) + 2), json) as step:
        for seed in range(seeds):
            equal &= _split(unprotected(agreed), sites, trials, seed, names, step)
    compared = [trial.compared(names) for trial in trials.values()]
    of_all = together([*trials.values()], names)
    feature = site in agreed.columns.features
    return ComparisonFacts(compared, of_all, names, seeds, held_out, equal, None if feature else site)


def _sites(agreed: "Terms", terms: Path, table: Any, data: object, column: str) -> dict[str, Any]:
    """Return the rows of two or more sites, which fit the terms."""
    from fedboost.cli.inputs import rows_as_in_file, rows_of_sites
    from fedboost.runtime.data.locations import shown
    from fedboost.runtime.data.shard import to_shard

    sites = rows_of_sites(agreed, terms, table, data, column)
    if len(sites) < 2:
        raise ConfigError(f"column {column!r} of {shown(data)} names one site: there is nobody to join")
    with rows_as_in_file(table, agreed, data):
        for name, rows in sites.items():
            to_shard(rows, agreed, name)  # what does not fit is told before its rows are shuffled
    return sites


def _split(
    terms: "Terms",
    sites: Mapping[str, Any],
    trials: Mapping[str, "Trial"],
    seed: int,
    names: tuple[str, ...],
    step: Callable[[str], None],
) -> bool:
    """Train on the rows of one split and score the models; return whether the federated model is the pooled
    one."""
    from pyarrow import concat_tables

    from fedboost.evaluation import HeldOut
    from fedboost.people.facts import ALONE, FEDERATED, POOLED
    from fedboost.runtime.config import cores
    from fedboost.runtime.data.shard import to_shard
    from fedboost.runtime.local.simulation import simulate

    nthread = cores() if sum(rows.num_rows for rows in sites.values()) > MANY_ROWS else 1
    train, held = {}, {}
    for name, rows in sites.items():
        rest, held[name] = trials[name].split(seed)
        train[name] = rows.take(rest)
    step(f"split {seed + 1}, federated")
    federated = simulate(terms, train, nthread=nthread).model
    step(f"split {seed + 1}, pooled")
    pooled = simulate(terms, {POOLED: concat_tables(train.values())}, nthread=nthread).model
    equal = federated.booster == pooled.booster
    for name, trial in trials.items():
        step(f"split {seed + 1}, {name} alone")
        models = {FEDERATED: federated, POOLED: federated if equal else pooled}
        try:
            models = {ALONE: simulate(terms, {name: train[name]}, nthread=nthread).model, **models}
        except FedboostError as error:
            trial.cannot(error)
        if held[name].size:
            rows = HeldOut.from_shard(to_shard(sites[name].take(held[name]), terms, name))
            trial.score(models, rows, held[name], names)
    return equal
