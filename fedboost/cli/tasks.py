"""`fedboost describe`, `drift`, `evaluate` and `tune`: sessions that end with a result.

Promises: Ctrl-C ends the session at the aggregator; it is said who is waited for, and what is not hidden.
Refuses: what the session refuses.
"""

import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedboost.cli.common import (
    Aggregator,
    Force,
    InsecureLoopback,
    Json,
    Keys,
    MinCount,
    ModelFile,
    PageFile,
    SaveTerms,
    SomeAggregator,
    TermsFile,
    Wait,
    check_page,
)
from fedboost.cli.output import notice, show
from fedboost.cli.train import Draw, notice_not_hidden, progress
from fedboost.errors import ConfigError
from fedboost.gbdt.metrics import grows
from fedboost.runtime.analyst import Training, connect
from fedboost.runtime.config import check_address, read_toml
from fedboost.runtime.files import check_writable, write_atomically
from fedboost.runtime.results import (
    Description,
    Drift,
    Evaluation,
    Tuning,
    drift_terms,
    evaluation_terms,
    terms_to_tune,
)
from fedboost.runtime.terms_file import read_terms, terms_to_toml
from fedboost.terms.tasks import terms_to_describe
from fedboost.views import tasks as results
from fedboost.views.status import waiting
from fedboost.views.tasks import drifted, evaluated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedboost.terms.terms import Terms
    from fedboost.views.words import Block


SECONDS = 0.2
"""Between two looks whether the session is over."""


def ended(
    aggregator: str,
    keys: Path | None,
    insecure_loopback: bool,
    terms: "Terms",
    wait: float,
    draw: "Draw | None" = None,
) -> "Training":
    """Ask an aggregator for a session under these terms; return it once it is over. draw: called with each
    round, where there are any."""
    session = connect(aggregator, keys, insecure_loopback).train(
        terms, wait, lambda parties: notice(waiting(parties, session.absent))
    )
    fault: list[Exception] = []

    def follow() -> None:
        try:
            for row in session:
                if draw is not None:
                    draw(row)
            _ = session.model
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            fault.append(error)

    # Not in this thread: Ctrl-C could come with a lock of gRPC held, which to stop the session needs.
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(SECONDS)
    except KeyboardInterrupt:
        session.stop()
        raise
    if fault:
        raise fault[0]
    notice_not_hidden(terms)
    return session


def show_result(json: bool, result: Any, words: "Iterable[Block]", known: Any, report: Path | None) -> None:
    """Show the result of a session, then write its page (`known.report`), if one is asked for: one that
    cannot be written loses nothing of what the session cost."""
    show(json, [result], words)
    if report is not None:
        known.report(report)


def save_terms_of(model: Path, terms: "Terms", file: Path, force: bool) -> None:
    """Write the terms of a session about a model for sites to approve, with the path of the model in them."""
    check_writable(file, model, force=force)
    write_atomically(file, terms_to_toml(terms, model=os.path.relpath(model, file.parent)).encode())
    notice(f"{file}: for sites to approve, together with {model}")


def check_asked(aggregator: str | None, save_terms: Path | None) -> None:
    """ConfigError unless an aggregator is to be asked, or terms to be written."""
    if aggregator is None and save_terms is None:
        raise ConfigError("give --aggregator, or --save-terms to write the terms for sites to approve")
    if aggregator is not None:
        check_address(aggregator, "--aggregator")


def check_report(
    report: Path | None,
    aggregator: str | None,
    inputs: list[Path | None],
    save_terms: Path | None,
    force: bool,
) -> None:
    """ConfigError unless a page of the result can be written later, if one is asked for."""
    if report is not None and aggregator is None:
        raise ConfigError("--report is of a result: give --aggregator")
    outputs = () if save_terms is None else (save_terms,)
    check_page(report, *filter(None, inputs), force=force, outputs=outputs)


# ---- `fedboost describe`: counts and quantiles over the rows of all parties -----------------------------


DESCRIBE_EPILOG = "Example: fedboost describe terms.toml --aggregator fed.example.org:7070 --keys keys/marie"


def describe(
    terms: TermsFile,
    aggregator: Aggregator,
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    min_count: MinCount = None,
    wait: Wait = 60,
    report: PageFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Count the rows of all sites before a training under these terms: missing values, levels, labels,
    quantiles; and say what to change in the terms. Sites have to agree to it as to a training."""
    check_address(aggregator, "--aggregator")
    check_page(report, terms, force=force)
    agreed = terms_to_describe(read_terms(terms), min_count)
    session = ended(aggregator, keys, insecure_loopback, agreed, wait)
    known = Description.of(session.model, session.traffic)
    result = known.summary | {"advice": [*known.advice]}
    show_result(json, result, results.describe(known.summary), known, report)


# ---- `fedboost drift`: the rows of all parties against those that a model was trained on ----------------


DRIFT_EPILOG = "Example: fedboost drift model.json --aggregator fed.example.org:7070 --keys keys/marie"


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


# ---- `fedboost evaluate`: a model measured on the rows of all parties -----------------------------------


RowsToMeasure = Literal["held-out", "all", "new"]
EVALUATE_EPILOG = (
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


# ---- `fedboost tune`: settings of trees tried side by side in one session -------------------------------


TUNE_EPILOG = (
    "Example: fedboost tune terms.toml --aggregator fed.example.org:7070 --keys keys/marie --out best.toml"
)


def tune(
    terms: TermsFile,
    out: Annotated[
        Path | None, typer.Option(help="Where to save the best terms.", show_default=False)
    ] = None,
    aggregator: SomeAggregator = None,
    space: Annotated[
        Path | None,
        typer.Option(help="TOML file: setting = [low, high], or three values and more.", show_default=False),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Candidates (27).", min=2, show_default=False)] = None,
    sampler: Annotated[
        str | None,
        typer.Option(metavar="random|qmc|tpe", help="A sampler of Optuna (extra).", show_default=False),
    ] = None,
    save_terms: Annotated[
        Path | None,
        typer.Option(help="Save the terms with all candidates, for sites to approve.", show_default=False),
    ] = None,
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    wait: Wait = 60,
    force: Force = False,
    json: Json = False,
) -> None:
    """Try settings of trees side by side in one session, drop the worst by validation rows, and save the
    terms of a training with the best. Sites agree to all candidates at once: with --save-terms and
    without --aggregator the terms are written, and nobody is asked."""
    _check_files(terms, out, save_terms, force)
    check_asked(aggregator, save_terms)
    agreed = terms_to_tune(read_terms(terms), _space(space), trials, sampler)
    if save_terms is not None:
        write_atomically(save_terms, terms_to_toml(agreed).encode())
        notice(f"{save_terms}: {len(agreed.objective.candidates)} candidates, for sites to approve")
    if aggregator is None:
        return
    if out is None:
        notice("no --out: the best terms are shown, and not saved")
    with nullcontext(None) if json else progress(agreed, json) as draw:
        session = ended(aggregator, keys, insecure_loopback, agreed, wait, draw)
    found = Tuning.of(agreed, session.model, session.traffic)
    if not json:
        print()  # after the rounds
    facts = {"metric": found.metric, "best": found.best, "trials": [*found.trials]}
    show(json, [facts], results.trials(found.metric, found.trials, found.best, grows(found.metric)))
    if out is not None:
        found.save(out)
        notice(f"{out}: terms of a training with the best settings, {found.terms.trees.rounds} rounds")


def _space(path: Path | None) -> dict[str, Any] | None:
    """Return the space of a file."""
    return None if path is None else read_toml(path)


def _check_files(terms: Path, out: Path | None, save_terms: Path | None, force: bool) -> None:
    """ConfigError for files that cannot be written, and for one that both terms would go to."""
    for file in filter(None, (out, save_terms)):
        check_writable(file, terms, force=force)
    if out is not None and out == save_terms:
        raise ConfigError(f"{out}: named by both --out and --save-terms; give two files")
