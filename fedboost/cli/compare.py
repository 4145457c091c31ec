"""`fedboost compare`: compares site-alone, federated and pooled models on the same held-out rows.

Guarantees: no model is trained on a held-out row of any site. The same table, terms and options yield the
same figures. Raises: ConfigError if there is only one site, if the sites are not the parties in the terms, or
if rows do not fit the terms.

Models are trained in this process without protection, since every protection yields the same model.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from pyarrow import concat_tables

from fedboost.boosting.queries.ids import few_in_common
from fedboost.cli.common import Force, Json, PageFile, Site, Tables, TermsFile, check_page, reads_a_table
from fedboost.cli.output import notice, show, write
from fedboost.cli.train import notice_undeclared, own_tables, rows_as_in_file, rows_of_sites, steps
from fedboost.errors import ConfigError, FedboostError
from fedboost.evaluation import HeldOut, Trial, shown_metrics, together, unprotected
from fedboost.results.model import ALONE, FEDERATED, POOLED, Comparison
from fedboost.runtime.config import cores
from fedboost.runtime.data.database import Reading
from fedboost.runtime.data.draft import split_by_blocks
from fedboost.runtime.data.locations import local_files, shown
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import read_table
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.tasks import read_training
from fedboost.terms.terms import Terms
from fedboost.views import as_html, comparison

COMPARE_EPILOG = "Example: fedboost compare terms.toml --data all.csv --site hospital --seeds 10"
MANY_ROWS = 50_000  # number of rows above which several threads are faster than one


Split = Callable[[int, Callable[[str], None]], bool]
"""Function that trains on one split and scores the models. Its arguments are the seed of the split and a
function to call with the name of each model before it is trained. Returns whether the federated model equals
the pooled one."""


@reads_a_table
def compare(
    terms: TermsFile,
    data: Tables,
    read: Reading,
    site: Site = None,
    held_out: Annotated[
        float, typer.Option(help="Fraction of each site's rows to hold out for scoring.")
    ] = 0.2,
    seeds: Annotated[int, typer.Option(help="Number of random splits to train on.", min=1, max=1000)] = 5,
    report: PageFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Compare each site's own model with the federated one and with a model trained on the pooled rows.
    All models are scored on the same held-out rows of each site. If parties hold different columns, the
    command compares the label holder's own model, the joint model and the pooled model."""
    if not 0 < held_out < 1:
        raise ConfigError(
            "option-invalid", f"--held-out must be between 0 and 1 (e.g. 0.2), not {held_out:g}"
        )
    agreed = read_training(terms)
    texts = own_tables(agreed, data) if agreed.vertical.is_used else {}
    sources = {name: read.source(text) for name, text in (texts or {"": data[-1]}).items()}
    inputs = [name for source in sources.values() for name in local_files(source)]
    check_page(report, terms, *inputs, force=force)
    if agreed.columns.group is not None:
        raise ConfigError(
            "compare-ranking",
            f"{terms} cannot be compared: {agreed.objective.name} ranks whole groups, but "
            "`fedboost compare` holds out individual rows",
        )
    more: dict[str, Any]
    if agreed.vertical.is_used:
        if site is not None:
            raise ConfigError(
                "option-split",
                "--site is for sites with different rows, but these parties have different columns",
            )
        trials, split, more = _of_columns(agreed, sources, read, held_out)
    else:
        if site is None:
            raise ConfigError(
                "option-missing", "specify --site, the column that contains the site of each row"
            )
        trials, split = _of_sites(agreed, terms, sources[""], read, site, held_out)
        more = {"site_column": None if site in agreed.columns.features else site}
    with steps(seeds * (len(trials) + 2), json) as step:
        equal = [split(seed, step) for seed in range(seeds)]
    names = shown_metrics(agreed)
    compared = tuple(trial.compared(names) for trial in trials)
    result = Comparison(
        sites=compared,
        together=compared[0] if agreed.vertical.is_used else together(trials, names),
        metrics=names,
        splits=seeds,
        share=held_out,
        equal=all(equal),
        **more,
    )
    shown_as = comparison.comparison(result)
    if report is not None:
        write(as_html.report(shown_as), report)
    show(json, comparison.as_lines(result), shown_as)


def _of_sites(
    agreed: Terms, file: Path, source: Any, read: Reading, column: str, share: float
) -> tuple[list[Trial], Split]:
    """Return the trials (one per site) and the split function if sites hold different rows. column: name of
    the column that contains the site of each row."""
    table = read_table(source, None, read.options)
    sites = rows_of_sites(agreed, file, table, source, column)
    if len(sites) < 2:
        raise ConfigError(
            "compare-one-site",
            f"column {column!r} of {shown(source)} contains only one site; at least two are needed",
        )
    with rows_as_in_file(table, agreed, source):
        for name, rows in sites.items():
            to_shard(rows, agreed, name)  # reports misfits before rows are shuffled
    notice_undeclared(table, agreed.columns)
    terms, names = unprotected(agreed), shown_metrics(agreed)
    whole = terms.among(())  # a single site has the columns that its table has
    nthread = cores() if table.num_rows > MANY_ROWS else 1
    trials = [Trial(name, rows.num_rows, share, number) for number, (name, rows) in enumerate(sites.items())]

    def split(seed: int, step: Callable[[str], None]) -> bool:
        train, held = {}, {}
        for trial in trials:
            rest, held[trial.site] = trial.split(seed)
            train[trial.site] = sites[trial.site].take(rest)
        step(f"split {seed + 1}, federated")
        federated = simulate(terms, train, nthread=nthread).model
        step(f"split {seed + 1}, pooled")
        pooled = simulate(whole, {POOLED: concat_tables(train.values())}, nthread=nthread).model
        equal = federated.booster == pooled.booster
        for trial in trials:
            name = trial.site
            step(f"split {seed + 1}, {name} alone")
            models = {FEDERATED: federated, POOLED: federated if equal else pooled}
            try:
                models = {ALONE: simulate(whole, {name: train[name]}, nthread=nthread).model, **models}
            except FedboostError as error:
                trial.cannot(error)
            if held[name].size:
                rows = HeldOut.from_shard(to_shard(sites[name].take(held[name]), terms, name))
                trial.score(models, rows, held[name], names)
        return equal

    return trials, split


# ---- `fedboost compare` for parties with different columns: the label holder alone, and all joined ------


IN_ORDER: dict[str, object] = {
    **{"protection": "plain", "keyholder": None, "keyholder_rows": True, "on_loss": "wait", "quorum": None},
    **{"rows": "in_order", "min_common_rows": None, "max_ids": None, "id_form": None},
    "label_epsilon": None,
}
"""Settings for the same model in this process: rows in order, nothing hidden, no party lost."""
ONE_PARTY: dict[str, object] = {
    **{"parties": [], "label_holder": None, "rows": None, "model": None},
    **{"alone_rounds": 0, "min_rows_per_bin": 1},
}


def _of_columns(
    agreed: Terms, sources: Mapping[str, Any], read: Reading, share: float
) -> tuple[list[Trial], Split, dict[str, Any]]:
    """Return the trial of the label holder, the split function, and additional fields of the comparison.
    sources: party -> location of its table, or ALL -> location of a single table with all columns."""
    if agreed.vertical.label_holder is None:
        raise ConfigError(
            "compare-blocks",
            "`fedboost compare` supports only one label holder, but these terms have several blocks; compare "
            "one block at a time",
        )
    if agreed.vertical.repeated_ids:
        raise ConfigError(
            "compare-repeated-ids",
            "`fedboost compare` needs unique row ids, but with repeated_ids some rows of an id could be "
            "trained on and others held out; keep one row per id, and set repeated_ids = false",
        )
    holder = agreed.vertical.label_holder
    if not agreed.parties:
        agreed = agreed.with_parties([holder, *agreed.columns.held])
    tables: dict[str, Any] = {name: read_table(own, None, read.options) for name, own in sources.items()}
    if set(tables) != set(agreed.parties):
        tables = split_by_blocks(next(iter(tables.values())), agreed, 0)
    if agreed.vertical.label_epsilon is not None:
        notice("label_epsilon is ignored: labels do not leave this process")
    common, terms, names = _in_common(agreed, tables), agreed.changed(**IN_ORDER), shown_metrics(agreed)
    trial = Trial(holder, common[holder].num_rows, share, 0)
    whole_terms = one_party(terms, terms.columns)

    def split(seed: int, step: Callable[[str], None]) -> bool:
        rest, held = trial.split(seed)
        train = {party: table.take(rest) for party, table in common.items()}
        held_rows = _pooled(common, holder).take(held)
        step(f"split {seed + 1}, joined")
        joined = simulate(terms, train).model
        step(f"split {seed + 1}, pooled")
        pooled = simulate(whole_terms, {POOLED: _pooled(train, holder)}).model
        equal = joined.booster == pooled.booster
        step(f"split {seed + 1}, {holder} alone")
        models, own_rows = {FEDERATED: joined, POOLED: joined if equal else pooled}, None
        try:
            own_terms = one_party(terms, terms.blocks.columns_of(holder))
            models = {ALONE: simulate(own_terms, {holder: train[holder]}).model, **models}
            own_rows = HeldOut.from_shard(to_shard(held_rows, own_terms, holder))
        except FedboostError as error:
            trial.cannot(error)
        if held.size:
            rows = HeldOut.from_shard(to_shard(held_rows, whole_terms, holder))
            trial.score(models, rows, held, names, own_rows)
        return equal

    hides = agreed.protection.hides or agreed.hides_columns
    counts = {party: table.num_rows for party, table in tables.items()}
    return [trial], split, {"tables": counts, "protection": agreed.hiding.protection if hides else ""}


def _in_common(agreed: Terms, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return party -> table of its columns, with only the matched rows, in the same order. Raises ConfigError
    if too few rows match or, for rows in order, if tables have different lengths."""
    shards = {party: to_shard(table, agreed, party) for party, table in tables.items()}
    holder = str(agreed.vertical.label_holder)
    if agreed.vertical.aligns:
        places = {
            party: {row_id: row for row, row_id in enumerate(shard.ids or ())}
            for party, shard in shards.items()
        }
        common, fewest = [*places[holder]], agreed.vertical.fewest_common_rows
        if not agreed.vertical.takes_all_rows:
            common = [row_id for row_id in common if all(row_id in own for own in places.values())]
        for own in places.values():
            known = sum(row_id in own for row_id in common)
            if known < fewest:
                raise ConfigError("common-rows-too-few", few_in_common(known, fewest, agreed.parties))
        tables = {
            party: table.take(pa.array([*map(places[party].get, common)], pa.int64()))
            for party, table in tables.items()
        }
    for party, table in tables.items():
        if table.num_rows != tables[holder].num_rows:
            raise ConfigError(
                "rows-in-order-differ",
                f"party {party} holds {table.num_rows} rows, but label holder {holder} holds "
                f"{tables[holder].num_rows}: both must hold the same rows in the same order",
            )
    given = {}
    for party, table in tables.items():
        columns = agreed.blocks.columns_of(party)
        beside = columns.others if agreed.blocks.has_labels(party) else ()
        given[party] = table.select([*dict.fromkeys([*columns.features, *beside])])
    return given


def one_party(terms: Terms, columns: Any) -> Terms:
    """Return terms for training by a single party that holds `columns`."""
    return terms.changed(columns={**columns.model_dump(), "held": {}}, **ONE_PARTY)


def _pooled(tables: Mapping[str, Any], holder: str) -> Any:
    """Return a single table with the columns of all parties."""
    whole = tables[holder]
    for table in tables.values():
        for name in table.column_names:
            whole = whole if name in whole.column_names else whole.append_column(name, table[name])
    return whole
