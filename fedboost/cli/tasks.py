"""`fedboost describe`, `drift`, `evaluate` and `tune`: sessions that end with a result.

Promises: Ctrl-C ends the session at the aggregator; a notice names the parties that it waits for, and what is
not hidden.
"""

import os
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedboost.cli.common import (
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
    gathers,
)
from fedboost.cli.output import notice, show
from fedboost.cli.train import Draw, notice_not_hidden, progress
from fedboost.errors import ConfigError
from fedboost.results.base import Traffic
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import check_address, read_toml
from fedboost.runtime.files import check_writable, write_atomically
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.tasks import (
    Description,
    Drift,
    Evaluation,
    Reported,
    Tuning,
    drift_terms,
    evaluation_terms,
    read_terms,
    terms_to_toml,
    terms_to_tune,
)
from fedboost.terms.tasks import terms_to_describe
from fedboost.terms.terms import Terms
from fedboost.views.aggregator import waiting
from fedboost.views.results import document

SECONDS = 0.2
"""Between two looks whether the session is over."""


@dataclass(frozen=True)
class Run:
    """The options of a session, whatever it does."""

    aggregator: SomeAggregator = None
    save_terms: SaveTerms = None
    keys: Keys = None
    insecure_loopback: InsecureLoopback = False
    wait: Wait = 60
    report: PageFile = None
    force: Force = False
    json: Json = False

    def check(self, *inputs: Path | None) -> None:
        """ConfigError unless there is something to do, and its outputs can be written. inputs: files of the
        command, which no output replaces."""
        if self.aggregator is None and self.save_terms is None:
            raise ConfigError("give --aggregator, or --save-terms to write the terms for sites to approve")
        if self.aggregator is not None:
            check_address(self.aggregator, "--aggregator")
        elif self.report is not None:
            raise ConfigError("--report is of a result: give --aggregator")
        files = [*filter(None, inputs)]
        if self.save_terms is not None:
            check_writable(self.save_terms, *files, force=self.force)
        outputs = () if self.save_terms is None else (self.save_terms,)
        check_page(self.report, *files, force=self.force, outputs=outputs)

    def save(self, terms: Terms, model: Path | None = None) -> None:
        """Write the terms for sites to approve, if they are to be saved. model: whose path stands in them."""
        if self.save_terms is None:
            return
        path = None if model is None else os.path.relpath(model, self.save_terms.parent)
        write_atomically(self.save_terms, terms_to_toml(terms, model=path).encode())
        candidates = len(terms.objective.candidates)
        what = f"{candidates} candidates, for sites" if candidates else "for sites"
        notice(f"{self.save_terms}: {what} to approve{'' if model is None else f', together with {model}'}")

    def ended(self, terms: Terms, draw: Draw | None = None) -> tuple[SignedModel, Traffic]:
        """Request a session under these terms; return its model and traffic once it is over. draw: called
        with each round, where there are any."""
        assert self.aggregator is not None
        session = connect(self.aggregator, self.keys, self.insecure_loopback).train(
            terms, self.wait, lambda parties: notice(waiting(parties, session.absent))
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
        return session.model, session.traffic

    def show(self, result: Reported, **more: Any) -> None:
        """Show the result of a session, then write its page, if it is asked for: one that cannot be written
        loses nothing of what the session cost. more: values of the JSON besides."""
        show(self.json, [result.summary | more], document(result))
        if self.report is not None:
            result.report(self.report)


runs_a_session = gathers("run", Run)
"""Give a command the options of `Run`; it gets them as `run`."""


# ---- The commands ---------------------------------------------------------------------------------------


DESCRIBE_EPILOG = "Example: fedboost describe terms.toml --aggregator fed.example.org:7070 --keys keys/marie"
TUNE_EPILOG = (
    "Example: fedboost tune terms.toml --aggregator fed.example.org:7070 --keys keys/marie --out best.toml"
)
EVALUATE_EPILOG = (
    "Example: fedboost evaluate model.json --aggregator fed.example.org:7070 --keys keys/marie\n\n"
    "Example: fedboost evaluate model.json --aggregator fed.example.org:7070 --keys keys/marie --by sex"
)
DRIFT_EPILOG = "Example: fedboost drift model.json --aggregator fed.example.org:7070 --keys keys/marie"
ColumnsFile = Annotated[
    Path | None, typer.Option("--terms", help="Terms with the columns and parties, in place of the model's.")
]
RowsToMeasure = Literal["held-out", "all", "new"]


@runs_a_session
def describe(
    terms: TermsFile,
    run: Run,
    min_count: MinCount = None,
) -> None:
    """Count the rows of all sites before a training under these terms: missing values, levels, labels,
    quantiles; and say what to change in the terms. Sites have to agree to it as to a training."""
    run.check(terms)
    agreed = terms_to_describe(read_terms(terms), min_count)
    run.save(agreed)
    if run.aggregator is not None:
        known = Description.from_model(*run.ended(agreed))
        run.show(known, advice=[*known.advice])


@runs_a_session
def drift(
    model: ModelFile,
    run: Run,
    terms: ColumnsFile = None,
    min_count: MinCount = None,
) -> None:
    """Hold the rows of all sites against those that a model was trained on, by column and by its score. The
    model's terms had reference = true. Labels are not needed."""
    run.check(model, terms)
    given = None if terms is None else read_terms(terms)
    agreed, reference = drift_terms(model, given, min_count)
    run.save(agreed, model)
    if run.aggregator is not None:
        run.show(Drift.held_against(reference, *run.ended(agreed)))


@runs_a_session
def evaluate(
    model: ModelFile,
    run: Run,
    terms: ColumnsFile = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="A categorical column to split results by, with its levels where it is no feature: "
            "sex=F,M (may be repeated)."
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
) -> None:
    """Measure a model on the rows of all sites: metrics, and for two classes ROC curve, calibration,
    and rates by subgroup. Sites have to agree to it as to a training."""
    run.check(model, terms)
    given = None if terms is None else read_terms(terms)
    agreed = evaluation_terms(model, given, by or (), by_site, threshold, min_count, rows)
    run.save(agreed, model)
    if run.aggregator is not None:
        run.show(Evaluation.from_model(*run.ended(agreed)))


@runs_a_session
def tune(
    terms: TermsFile,
    run: Run,
    out: Annotated[Path | None, typer.Option(help="Where to save the best terms.")] = None,
    space: Annotated[
        Path | None, typer.Option(help="TOML file: setting = [low, high], or three values and more.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Candidates (27).", min=2)] = None,
    sampler: Annotated[
        str | None, typer.Option(metavar="random|qmc|tpe", help="A sampler of Optuna (extra).")
    ] = None,
) -> None:
    """Try settings of trees side by side in one session, drop the worst by validation rows, and save the
    terms of a training with the best. Sites agree to all candidates at once: with --save-terms and
    without --aggregator the terms are written, and no session is requested."""
    if out is not None:
        check_writable(out, terms, force=run.force)
        if out == run.save_terms:
            raise ConfigError(f"{out}: named by both --out and --save-terms; give two files")
    run.check(terms, out)
    agreed = terms_to_tune(read_terms(terms), None if space is None else read_toml(space), trials, sampler)
    run.save(agreed)
    if run.aggregator is None:
        return
    if out is None:
        notice("no --out: the best terms are shown, and not saved")
    with nullcontext(None) if run.json else progress(agreed, False) as draw:
        found = Tuning.from_model(*run.ended(agreed, draw))
    if not run.json:
        print()  # after the rounds
    run.show(found)
    if out is not None:
        found.save(out)
        notice(f"{out}: terms of a training with the best settings, {found.terms.trees.rounds} rounds")
