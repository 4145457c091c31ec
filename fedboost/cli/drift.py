"""`fedboost drift`: the rows of all parties against those that a model was trained on."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import (
    Force,
    InsecureLoopback,
    Json,
    Keys,
    MinCount,
    ModelFile,
    PageFile,
    SaveTerms,
    SomeAggregator,
    Wait,
)

EPILOG = "Example: fedboost drift model.json --aggregator fed.example.org:7070 --keys keys/marie"


def drift(
    model: ModelFile,
    aggregator: SomeAggregator = None,
    save_terms: SaveTerms = None,
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    terms: Annotated[
        Path | None,
        typer.Option(help="Terms with the columns and parties, in place of the model's.", show_default=False),
    ] = None,
    min_count: MinCount = None,
    wait: Wait = 60,
    report: PageFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Hold the rows of all sites against those that a model was trained on, by column and by its score. The
    model's terms had reference = true. Labels are not needed."""
    from fedboost.cli.sessions import check_asked, check_report, ended, save_terms_of, show_result
    from fedboost.people.results import drifted
    from fedboost.runtime.results import Drift, drift_terms
    from fedboost.runtime.terms_file import read_terms

    check_asked(aggregator, save_terms)
    check_report(report, aggregator, [model, terms], save_terms, force)
    given = None if terms is None else read_terms(terms)
    agreed, reference = drift_terms(model, given, min_count)
    if save_terms is not None:
        save_terms_of(model, agreed, save_terms, force)
    if aggregator is None:
        return
    session = ended(aggregator, keys, insecure_loopback, agreed, wait)
    known = Drift.of(session.model, reference, session.traffic)
    show_result(json, known.summary, drifted(known.summary), known, report)
