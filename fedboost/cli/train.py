"""`fedboost train`: a training over the network."""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Aggregator, Force, InsecureLoopback, Json, Keys, PageFile, TermsFile

EPILOG = (
    "Example: fedboost train terms.toml --aggregator fed.example.org:7070 --keys keys/marie --out model.json"
)


def train(
    terms: TermsFile,
    aggregator: Aggregator,
    out: Annotated[Path, typer.Option(help="Where to save the model.", show_default=False)],
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the aggregator to answer.", min=0)] = 60,
    reproducible: Annotated[
        bool,
        typer.Option(
            "--reproducible",
            help="Leave session and signatures in a file beside the model: the same terms, parties and rows "
            "then give the same bytes.",
        ),
    ] = False,
    report: PageFile = None,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Log the training to this MLflow server, too.", show_default=False),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Submit terms to an aggregator and receive the model. Waits as long as it takes for absent parties.
    Ctrl-C ends the training with the round under way, and the model of the rounds so far is saved; Ctrl-C
    again stops at once."""
    from fedboost.cli.live_training import TrainingProgress, follow
    from fedboost.cli.output import notice, show
    from fedboost.cli.trained import check_outputs, facts_of, notice_parts, save, tracked, write_report
    from fedboost.people import as_json, training
    from fedboost.runtime.analyst import connect
    from fedboost.runtime.config import check_address
    from fedboost.runtime.terms_file import read_training

    check_address(aggregator, "--aggregator")
    agreed = read_training(terms)
    check_outputs(agreed, out, report, terms, force)
    with tracked(agreed, mlflow) as log:
        progress = TrainingProgress(agreed, aggregator)
        session = connect(aggregator, keys, insecure_loopback).train(agreed, wait, progress.waiting)
        progress.training = session
        follow(session, progress, json, log or (lambda row: None))
        model, asked = session.model, session.asked
        if asked is not None:
            notice(f"this model is that of your request of {asked:%Y-%m-%d %H:%M} UTC, under these terms")
        save(model, out, reproducible)
        if report is not None:
            write_report(report, model, session, keys)
        facts = facts_of(model, session.traffic, out, session.uncounted)
        show(json, as_json.training(facts), training.conclusion(facts))
        notice_parts(model)
        if log is not None:
            log.log_model(model)
