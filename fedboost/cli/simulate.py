"""`fedboost simulate`: a training in this one process."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedboost.cli.options import Force, Json, Site, Tables, TermsFile, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Database, Reading
    from fedboost.terms.terms import Terms

ALL = ""
"""Stands for a table that is not one party's."""
EPILOG = "Example: fedboost simulate terms.toml --data all.csv --site hospital --out model.json"


@reads_a_table
def simulate(
    terms: TermsFile,
    data: Tables,
    read: "Reading",
    site: Site = None,
    parties: Annotated[
        int | None, typer.Option(help="Split the rows evenly among that many.", min=1, show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the delivery order.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where to save the model.", show_default=False)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train in this one process, as if the rows were at several sites. Ctrl-C ends the training with the
    round under way, Ctrl-C again at once."""
    from fedboost.cli.inputs import notice_shared_groups, notice_undeclared, rows_as_in_file
    from fedboost.cli.interruption import finish_at_interrupt
    from fedboost.cli.output import show
    from fedboost.cli.progress import progress
    from fedboost.cli.trained import facts_of, save
    from fedboost.people import as_json, training
    from fedboost.runtime.data.locations import local_files
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.local import simulation
    from fedboost.runtime.signed_model import session_file
    from fedboost.runtime.terms_file import read_training

    if site is not None and parties is not None:
        raise ConfigError("give --site or --parties, not both")
    agreed = read_training(terms)
    sources = _sources(agreed, data, read, site is not None or parties is not None)
    inputs = [name for source in sources.values() for name in local_files(source)]
    for file in (out, session_file(out)) if out is not None else ():
        check_writable(file, terms, *inputs, force=force)
    tables = {name: read_table(source, None, read.options) for name, source in sources.items()}
    shards: Mapping[str, Any] = tables
    misfits: AbstractContextManager[None] = nullcontext()
    if ALL in tables:
        shards = _shares(agreed, terms, tables[ALL], sources[ALL], site, parties, seed)
        if not agreed.blocks:
            misfits = rows_as_in_file(tables[ALL], agreed, sources[ALL])
    with misfits, finish_at_interrupt() as interruption, progress(agreed, json) as draw:

        def after_round(row: Mapping[str, float]) -> None:
            draw(row)
            interruption.count()

        callbacks = [lambda number, metrics: interruption.asked]
        result = simulation.simulate(agreed, shards, seed=seed, on_round=after_round, callbacks=callbacks)
    for name, read_rows in tables.items():
        notice_undeclared(read_rows, agreed.blocks.columns_of(name))
    if site is not None and agreed.columns.group is not None:
        notice_shared_groups(tables[ALL], agreed.columns.group, site)
    save(result.model, out)
    facts = facts_of(result.model, result.traffic, out)
    show(json, as_json.training(facts), training.conclusion(facts))


def _sources(
    agreed: "Terms", data: Sequence[str], read: "Reading", splits_rows: bool
) -> dict[str, "str | Database"]:
    """The table of each party, or under ALL that of all. splits_rows: the command line says how."""
    from fedboost.cli.inputs import own_tables

    own = own_tables(agreed, data)
    if splits_rows and (own or agreed.blocks):
        reason = "each party has a table of its own" if own else "the terms say which columns each party has"
        raise ConfigError(f"--site and --parties split the rows of one table, and {reason}")
    return {name: read.source(text) for name, text in (own or {ALL: data[0]}).items()}


def _shares(
    agreed: "Terms", terms: Path, table: Any, source: Any, site: str | None, parties: int | None, seed: int
) -> dict[str, Any]:
    """The share of each party: its columns where the terms hold them apart, else the rows that a column names
    or an even split."""
    from fedboost.cli.inputs import by_columns, rows_of_sites
    from fedboost.runtime.data.draft import split_by_weights

    if agreed.blocks:
        return by_columns(agreed, table, seed)
    if site is not None:
        return rows_of_sites(agreed, terms, table, source, site)
    by_terms = parties is None and agreed.parties
    names = agreed.parties if by_terms else [f"party-{i + 1}" for i in range(parties or 3)]
    return split_by_weights(table, names, [1.0] * len(names), seed, agreed.columns.group)
