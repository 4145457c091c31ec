"""`fedboost describe`, `drift`, `evaluate` and `tune`: sessions that end with a result instead of a model.

Guarantees: Ctrl-C ends the session at the aggregator. Notices say which parties the session waits for, and
what the protection does not hide.
"""

import os
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedboost.cli import common
from fedboost.cli.output import notice, show
from fedboost.cli.train import Draw, notice_not_hidden, progress
from fedboost.errors import ConfigError
from fedboost.results.base import Traffic
from fedboost.runtime import tasks
from fedboost.runtime.analyst import connect
from fedboost.runtime.config import check_address, read_toml
from fedboost.runtime.files import check_writable, write_atomically
from fedboost.runtime.signed_model import SignedModel
from fedboost.terms.tasks import terms_to_describe
from fedboost.terms.terms import Terms
from fedboost.views.aggregator import waiting
from fedboost.views.results import document
from fedboost.views.words import counted

SECONDS = 0.2  # interval for checking whether the session has ended


@dataclass(frozen=True)
class Run:
    """Options shared by all commands that run a session and show its result."""

    aggregator: common.SomeAggregator = None
    save_terms: common.SaveTerms = None
    keys: common.Keys = None
    insecure_loopback: common.InsecureLoopback = False
    wait: common.Wait = 60
    report: common.PageFile = None
    force: common.Force = False
    json: common.Json = False

    def check(self, *inputs: Path | None) -> None:
        """Raise ConfigError if there is nothing to do, or if an output is not writable or is an input."""
        if self.aggregator is None and self.save_terms is None:
            raise ConfigError(
                "option-missing",
                "specify --aggregator to run a session, or --save-terms to write terms for approval",
            )
        if self.aggregator is not None:
            check_address(self.aggregator, "--aggregator")
        elif self.report is not None:
            raise ConfigError("option-alone", "--report shows the result of a session; specify --aggregator")
        files = [*filter(None, inputs)]
        if self.save_terms is not None:
            check_writable(self.save_terms, *files, force=self.force)
        outputs = () if self.save_terms is None else (self.save_terms,)
        common.check_page(self.report, *files, force=self.force, outputs=outputs)

    def save(self, terms: Terms, model: Path | None = None) -> None:
        """Write the terms, for sites to approve, if --save-terms is given. model: model file, to which the
        terms refer by its path relative to the terms file."""
        if self.save_terms is None:
            return
        path = None if model is None else os.path.relpath(model, self.save_terms.parent)
        write_atomically(self.save_terms, tasks.terms_to_toml(terms, model=path).encode())
        candidates = len(terms.objective.candidates)
        what = f"terms with {candidates} candidates for sites" if candidates else "terms for sites"
        notice(f"{self.save_terms}: {what} to approve{'' if model is None else f', together with {model}'}")

    def ended(self, terms: Terms, draw: Draw | None = None) -> tuple[SignedModel, Traffic]:
        """Request a session under these terms and wait until it ends. Returns its model and traffic. draw:
        function to call after each round, if the session has rounds."""
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
            except Exception as error:  # noqa: BLE001 - raised again by the main thread
                fault.append(error)

        # In another thread: Ctrl-C in this one could interrupt it with a gRPC lock held that `stop` needs.
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

    def show(self, result: tasks.Reported, **more: Any) -> None:
        """Print the result of a session, then write its page if requested. In this order, the result is
        printed even if writing fails. more: additional values for the JSON output."""
        show(self.json, [result.summary | more], document(result))
        if self.report is not None:
            result.report(self.report)


runs_a_session = common.gathers("run", Run)
"""Decorator that adds the options of `Run` to a command. The command receives them as `run`."""


# ---- The commands ---------------------------------------------------------------------------------------


DESCRIBE_EPILOG = "Example: fedboost describe terms.toml --aggregator fed.example.org:7070 --keys keys/marie"
TUNE_EPILOG = (
    "Example: fedboost tune terms.toml --aggregator fed.example.org:7070 --keys keys/marie --out best.toml"
)
EVALUATE_EPILOG = (
    "Example: fedboost evaluate model.json --aggregator fed.example.org:7070 --keys keys/marie\n\n"
    "Example: fedboost evaluate model.json --aggregator fed.example.org:7070 --keys keys/marie --by sex\n\n"
    "Example: fedboost evaluate structure.json --predict-rows 5000 --aggregator fed.example.org:7070 "
    "--keys keys/marie"
)
DRIFT_EPILOG = "Example: fedboost drift model.json --aggregator fed.example.org:7070 --keys keys/marie"
ColumnsFile = Annotated[
    Path | None,
    typer.Option("--terms", help="Use the columns and parties of this terms file instead of the model's."),
]
BySite = Annotated[bool, typer.Option("--by-site", help="Split results by site.")]
RowsToMeasure = Literal["held-out", "all", "new"]


@runs_a_session
def describe(
    terms: common.TermsFile,
    run: Run,
    by_site: BySite = False,
    levels: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Feature whose levels all sites name together.")
    ] = None,
    min_count: common.MinCount = None,
) -> None:
    """Summarise the rows of all sites before training. Counts missing values, levels and labels, shows
    quantiles, and suggests changes to the terms. As with training, every site has to agree first."""
    run.check(terms)
    agreed = terms_to_describe(tasks.read_terms(terms), min_count, by_site, levels or ())
    run.save(agreed)
    if run.aggregator is not None:
        known = tasks.Description.from_model(*run.ended(agreed))
        run.show(known, advice=[*known.advice])


@runs_a_session
def drift(
    model: common.ModelFile, run: Run, terms: ColumnsFile = None, min_count: common.MinCount = None
) -> None:
    """Compare the rows of all sites with a model's training rows. Compares each column and the score. The
    model must have been trained with reference = true. Labels are not needed."""
    run.check(model, terms)
    given = None if terms is None else tasks.read_terms(terms)
    agreed, reference = tasks.drift_terms(model, given, min_count)
    run.save(agreed, model)
    if run.aggregator is not None:
        run.show(tasks.Drift.held_against(reference, *run.ended(agreed)))


@runs_a_session
def evaluate(
    model: common.ModelFile,
    run: Run,
    terms: ColumnsFile = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Categorical column by which to split results. If it is not a feature, add its levels, e.g. "
            "sex=F,M (may be repeated)."
        ),
    ] = None,
    by_site: BySite = False,
    threshold: Annotated[
        float | None, typer.Option(help="Probability above which a row is positive (default: 0.5).")
    ] = None,
    at: Annotated[
        list[float] | None,
        typer.Option(
            help="For survival times: time for which to report AUC and Brier score, in the label's unit (may "
            "be repeated)."
        ),
    ] = None,
    rows: Annotated[
        RowsToMeasure | None,
        typer.Option(
            help="Rows to evaluate on: those held out during training, all, or those added since then "
            "(default: held-out if the training held out rows, else all)."
        ),
    ] = None,
    min_count: common.MinCount = None,
    predict_rows: Annotated[
        int | None,
        typer.Option(
            help="For sites that hold different columns: maximum number of row ids of the label holder.",
            min=1,
        ),
    ] = None,
) -> None:
    """Evaluate a model on the rows of all sites. Reports metrics and, for binary classification, the ROC
    curve, calibration and rates by subgroup; for survival times, the C-index and survival curves. As with
    training, every site has to agree first."""
    run.check(model, terms)
    given = None if terms is None else tasks.read_terms(terms)
    settings = by or (), by_site, threshold, min_count, rows, predict_rows
    agreed = tasks.evaluation_terms(model, given, *settings, at=at or ())
    run.save(agreed, None if agreed.vertical.predict_with else model)
    if run.aggregator is not None:
        run.show(tasks.Evaluation.from_model(*run.ended(agreed)))


@runs_a_session
def tune(
    terms: common.TermsFile,
    run: Run,
    out: Annotated[Path | None, typer.Option(help="File for the best terms.")] = None,
    space: Annotated[
        Path | None,
        typer.Option(
            help="TOML file that gives each setting's range (low and high) or a list of at least three "
            "values."
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of candidates (default: 27).", min=2)] = None,
    sampler: Annotated[str | None, typer.Option(metavar="random|qmc|tpe", help="Optuna sampler.")] = None,
) -> None:
    """Search for the best tree settings in one session. Candidates are trained in parallel, and those that
    score worst on the validation rows are dropped. The terms for training with the best settings are saved.
    Sites approve all candidates at once: to write the terms for approval without starting a session, use
    --save-terms without --aggregator."""
    if out is not None:
        check_writable(out, terms, force=run.force)
        if out == run.save_terms:
            raise ConfigError(
                "output-twice", f"{out} is specified with both --out and --save-terms; use two files"
            )
    run.check(terms, out)
    agreed = tasks.terms_to_tune(
        tasks.read_terms(terms), None if space is None else read_toml(space), trials, sampler
    )
    run.save(agreed)
    if run.aggregator is None:
        return
    if out is None:
        notice("--out is not specified: the best terms are shown, but not saved")
    with nullcontext(None) if run.json else progress(agreed, False) as draw:
        found = tasks.Tuning.from_model(*run.ended(agreed, draw))
    if not run.json:
        print()  # after the rounds
    run.show(found)
    if out is not None:
        found.save(out)
        notice(
            f"{out}: terms for training with the best settings, {counted(found.terms.trees.rounds, 'round')}"
        )
