"""`fedboost evaluate`: a model measured on the rows of all parties."""

from pathlib import Path
from typing import Annotated, Literal

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

RowsToMeasure = Literal["held-out", "all", "new"]
EPILOG = (
    "Example: fedboost evaluate model.json --aggregator fed.example.org:7070 --keys keys/marie\n\n"
    "Example: fedboost evaluate model.json --aggregator fed.example.org:7070 --keys keys/marie --by sex"
)


def evaluate(
    model: ModelFile,
    aggregator: SomeAggregator = None,
    save_terms: SaveTerms = None,
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    terms: Annotated[
        Path | None,
        typer.Option(
            help="Terms with the columns and parties, in place of the model's own.", show_default=False
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="A categorical column to split results by, with its levels where it is no feature: "
            "sex=F,M (may be repeated).",
            show_default=False,
        ),
    ] = None,
    by_site: Annotated[bool, typer.Option("--by-site", help="Split results by site.")] = False,
    threshold: Annotated[
        float | None,
        typer.Option(help="Probability above which a row is predicted positive.", show_default="0.5"),
    ] = None,
    rows: Annotated[
        RowsToMeasure | None,
        typer.Option(
            help="The rows to measure: those that the training held out, all, or those added since.",
            show_default="held-out where the training held rows out, else all",
        ),
    ] = None,
    min_count: MinCount = None,
    wait: Wait = 60,
    report: PageFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure a model on the rows of all sites: metrics, and for two classes ROC curve, calibration,
    and rates by subgroup. Sites have to agree to it as to a training."""
    from fedboost.cli.sessions import check_asked, check_report, ended, save_terms_of, show_result
    from fedboost.people.results import evaluated
    from fedboost.runtime.results import Evaluation, evaluation_terms
    from fedboost.runtime.terms_file import read_terms

    check_asked(aggregator, save_terms)
    check_report(report, aggregator, [model, terms], save_terms, force)
    given = None if terms is None else read_terms(terms)
    agreed = evaluation_terms(model, given, by or (), by_site, threshold, min_count, rows)
    if save_terms is not None:
        save_terms_of(model, agreed, save_terms, force)
    if aggregator is None:
        return
    session = ended(aggregator, keys, insecure_loopback, agreed, wait)
    known = Evaluation.of(session.model, session.traffic)
    show_result(json, known.summary, evaluated(known.summary), known, report)
