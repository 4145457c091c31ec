"""`fedboost tune`: settings of trees tried side by side in one session."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from fedboost.cli.options import Force, InsecureLoopback, Json, Keys, SomeAggregator, TermsFile, Wait
from fedboost.errors import ConfigError

EPILOG = (
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
    from fedboost.cli.output import notice, show
    from fedboost.cli.progress import progress
    from fedboost.cli.sessions import check_asked, ended
    from fedboost.gbdt.metrics.registry import grows
    from fedboost.people import results as text
    from fedboost.runtime.files import write_atomically
    from fedboost.runtime.results import Tuning, terms_to_tune
    from fedboost.runtime.terms_file import read_terms, terms_to_toml

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
    show(json, [facts], text.trials(found.metric, found.trials, found.best, grows(found.metric)))
    if out is not None:
        found.save(out)
        notice(f"{out}: terms of a training with the best settings, {found.terms.trees.rounds} rounds")


def _space(path: Path | None) -> dict[str, Any] | None:
    """Return the space of a file."""
    from fedboost.runtime.config import read_toml

    return None if path is None else read_toml(path)


def _check_files(terms: Path, out: Path | None, save_terms: Path | None, force: bool) -> None:
    """ConfigError for files that cannot be written, and for one that both terms would go to."""
    from fedboost.runtime.files import check_writable

    for file in filter(None, (out, save_terms)):
        check_writable(file, terms, force=force)
    if out is not None and out == save_terms:
        raise ConfigError(f"{out}: named by both --out and --save-terms; give two files")
