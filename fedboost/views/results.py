"""The results of sessions by what they do: the type of each, and its view."""

from collections.abc import Callable
from typing import Any

from fedboost.results.base import Result
from fedboost.results.description import Description
from fedboost.results.drift import Drift
from fedboost.results.evaluation import Evaluation
from fedboost.results.tuning import Tuning
from fedboost.views.description import description
from fedboost.views.document import Document
from fedboost.views.drift import drift
from fedboost.views.evaluation import evaluation
from fedboost.views.tuning import tuning

RESULTS: dict[str, type[Result]] = {kind.task: kind for kind in (Description, Evaluation, Drift, Tuning)}
VIEWS: dict[str, Callable[[Any], Document]] = {
    Description.task: description,
    Evaluation.task: evaluation,
    Drift.task: drift,
    Tuning.task: tuning,
}


def document(result: Result) -> Document:
    """Return a result as people read it."""
    return VIEWS[result.task](result)
