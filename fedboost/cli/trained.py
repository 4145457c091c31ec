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

from fedboost.errors import ConfigError
from fedboost.people.facts import Traffic, TrainingFacts
from fedboost.runtime.party_model import PartyModel
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.tracking import MLflowCallback
from fedboost.terms.terms import Terms


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


def notice_parts(model: SignedModel) -> None:
    """Print the id of a model of which each party keeps its part, and what the parts' files are called."""
    from fedboost.cli.output import notice
    from fedboost.runtime.site.models import NAME_CHARS

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
