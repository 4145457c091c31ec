"""`fedboost simulate`: a training in this one process."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Force, Json, Site, TermsFile, reads_a_table
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.data.database import Reading

EPILOG = "Example: fedboost simulate terms.toml --data all.csv --site hospital --out model.json"


@reads_a_table
def simulate(
    terms: TermsFile,
    data: Annotated[str, typer.Option(help="The table whose rows the sites share out.", show_default=False)],
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
    from fedboost.cli.inputs import notice_shared_groups, notice_undeclared, rows_as_in_file, rows_of_sites
    from fedboost.cli.interruption import finish_at_interrupt
    from fedboost.cli.output import show
    from fedboost.cli.progress import progress
    from fedboost.cli.trained import facts_of, save
    from fedboost.people import as_json, training
    from fedboost.runtime.data.draft import split_by_weights
    from fedboost.runtime.data.locations import local_files
    from fedboost.runtime.data.table import read_table
    from fedboost.runtime.files import check_writable
    from fedboost.runtime.local import simulation
    from fedboost.runtime.signed_model import session_file
    from fedboost.runtime.terms_file import read_terms

    if site is not None and parties is not None:
        raise ConfigError("give --site or --parties, not both")
    source = read.source(data)
    if out is not None:
        for file in (out, session_file(out)):
            check_writable(file, terms, *local_files(source), force=force)
    agreed, table = read_terms(terms), read_table(source, None, read.options)
    if site is not None:
        shards = rows_of_sites(agreed, terms, table, source, site)
    else:
        by_terms = parties is None and agreed.parties
        names = agreed.parties if by_terms else [f"party-{i + 1}" for i in range(parties or 3)]
        shards = split_by_weights(table, names, [1.0] * len(names), seed, agreed.columns.group)
    misfits = rows_as_in_file(table, agreed, source)
    with misfits, finish_at_interrupt() as interruption, progress(agreed, json) as draw:

        def after_round(row: Mapping[str, float]) -> None:
            draw(row)
            interruption.count()

        callbacks = [lambda number, metrics: interruption.asked]
        result = simulation.simulate(agreed, shards, seed=seed, on_round=after_round, callbacks=callbacks)
    notice_undeclared(table, agreed.columns)
    if site is not None and agreed.columns.group is not None:
        notice_shared_groups(table, agreed.columns.group, site)
    save(result.model, out)
    facts = facts_of(result.model, result.traffic, out)
    show(json, as_json.training(facts), training.conclusion(facts))
