"""Models that commands trained: saved, and the facts of them.

Promises: the model file appears whole or not at all; a model that cannot be saved where it was to be is saved
elsewhere.
Refuses: nothing.
"""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedboost.cli.pages import check_page
from fedboost.errors import ConfigError
from fedboost.people.facts import Traffic, TrainingFacts
from fedboost.runtime.files import check_writable, saved
from fedboost.runtime.party_model import PartyModel
from fedboost.runtime.signed_model import SignedModel, session_file
from fedboost.runtime.tracking import MLflowCallback
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.runtime.analyst import Training


def save(model: SignedModel, out: Path | None, reproducible: bool = False) -> None:
    """Save a model, if need be elsewhere: the aggregator has it no more. reproducible: as in `Model.save`."""
    if out is None:
        return
    try:
        model.save(out, reproducible)
    except ConfigError as error:
        spare = Path(tempfile.mkdtemp(prefix="fedboost-")) / out.name
        model.save(spare, reproducible)
        raise ConfigError(f"{error}; the model is in {spare}") from None


def facts_of(
    model: SignedModel, traffic: Traffic, file: Path | None, since_restart: bool = False
) -> TrainingFacts:
    """Return the facts of a finished training."""
    shares = model.importance if isinstance(model, PartyModel) else None
    return TrainingFacts(model.outline, traffic, str(file) if file else None, since_restart, shares)


def check_outputs(agreed: Terms, out: Path, report: Path | None, terms: Path, force: bool) -> None:
    """Raise ConfigError now if the model, its session or its report could not be written later. agreed: what
    the file `terms` says."""
    files = out, session_file(out)
    for file in files:
        check_writable(file, terms, force=force)
    check_page(report, terms, force=force, outputs=files)
    if report is not None and agreed.keeps_parts:
        raise ConfigError("--report is of a whole model, and under these terms each party keeps its part")


def write_report(page: Path, model: SignedModel, session: "Training", keys: Path | None) -> None:
    """Write the report of a model that was trained, with the traffic and time of its session. keys: a folder
    of keys, to check the signatures by."""
    from fedboost.people.report.markup import SessionFacts
    from fedboost.runtime.model import Model
    from fedboost.runtime.report import signature_facts
    from fedboost.runtime.signed_model import written

    assert isinstance(model, Model)
    signatures = None if keys is None else signature_facts(model, keys)
    followed = SessionFacts(session.traffic, session.history, session.uncounted)
    saved(written(model, None, signatures, followed), page)


def notice_parts(model: SignedModel) -> None:
    """Print the id of a model of which each party keeps its part, and what the parts' files are called."""
    from fedboost.cli.output import notice
    from fedboost.runtime.site.backup import NAME_CHARS

    if isinstance(model, PartyModel):
        name = model.id[:NAME_CHARS]
        notice(f"model id {name}: each party keeps its part in its state folder, as models/{name}.json")


@contextmanager
def tracked(terms: Terms, uri: str | None) -> Iterator[MLflowCallback | None]:
    """Log a training to an MLflow server, if there is one; what fails in its midst is a notice."""
    from fedboost.cli.output import notice

    if uri is None:
        yield None
        return
    with warnings.catch_warnings(), MLflowCallback(terms, uri) as log:
        warnings.showwarning = lambda message, *about, **more: notice(str(message))
        yield log
