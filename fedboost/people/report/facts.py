"""Facts that a report is made from: plain values, which the runtime fills.

Promises: nothing here reads, predicts or formats.
Refuses: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedboost.fixedpoint import Float64
from fedboost.people.facts import ModelFacts, Traffic, VerificationFacts
from fedboost.terms.terms import Terms

KINDS = "gain", "cover", "weight"
"""The importances of a feature, in this order."""


@dataclass(frozen=True)
class TreeFacts:
    """A tree of the model. title: which one it is; leaves: how many it has; picture: SVG for a page, ''
    where the tree is too large for one; text: XGBoost's dump."""

    title: str
    leaves: int
    picture: str
    text: str


@dataclass(frozen=True)
class DependenceFacts:
    """Partial dependence on one feature. grid: numbers, or categories; means: float64 [grid, outputs]."""

    feature: str
    is_categorical: bool
    grid: Sequence[Any]
    means: Float64


@dataclass(frozen=True)
class RowsFacts:
    """The model on some rows. source: the name of their table; summary: what an evaluation on them says
    (docs/lifecycle-evaluate.md); dependence: on the features of the highest gains."""

    source: str
    summary: Mapping[str, Any]
    dependence: Sequence[DependenceFacts]


@dataclass(frozen=True)
class SessionFacts:
    """A session that was followed to its end. traffic: of each party; rounds: a row a round, with `seconds`
    and `bytes` of all parties, both ways; since_restart: traffic is known only since the aggregator was
    restarted."""

    traffic: Traffic
    rounds: Sequence[Mapping[str, float]] = ()
    since_restart: bool = False


@dataclass(frozen=True)
class ResultFacts:
    """The result of a session that trained nothing. summary: as `--json` prints it; terms, signed_by: of the
    session, and who signed what it answered; None and nobody where a file is all there is; session: None
    there, too."""

    summary: Mapping[str, Any]
    terms: Terms | None = None
    signed_by: Sequence[str] = ()
    session: SessionFacts | None = None


@dataclass(frozen=True)
class ReportFacts:
    """A model, and what a report says of it. rounds: the metrics of each round, as in the model file;
    importance: feature to its importances, in the order of KINDS, the highest gain first; trees: the first
    ones; classes: of a label of classes; verification: None where no root was at hand to check signatures by;
    rows: None where no table was given; session: None where the model file is all there is."""

    model: ModelFacts
    rounds: Sequence[Mapping[str, float]]
    importance: Mapping[str, Sequence[float]]
    trees: Sequence[TreeFacts]
    classes: Sequence[str] = ()
    verification: VerificationFacts | None = None
    rows: RowsFacts | None = field(default=None, repr=False)
    session: SessionFacts | None = field(default=None, repr=False)
