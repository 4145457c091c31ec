"""A model, its signatures, and what a report says of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedboost.fixedpoint import Float64
from fedboost.results.base import Ended, Part, Row
from fedboost.results.evaluation import Evaluation
from fedboost.terms.terms import Terms


class ModelSummary(Part, allow_inf_nan=True):  # a file from elsewhere may have any metrics
    """A trained model. signed_by: parties that signed it; rosters: by the first round of each, where it
    changed; trained, kept: rounds, and those whose trees the model has; last_row: the history's row of the
    last kept round; shares: party to its share of the gains, where parties keep parts of the model."""

    terms: Terms
    fingerprint: str
    trees: int
    trained: int
    kept: int
    last_row: Row
    signed_by: tuple[str, ...]
    rosters: Mapping[int, tuple[str, ...]]
    shares: Mapping[str, float] | None = None


class Verification(Part):
    """The signatures of a model file. faults: by party that signed what is wrong with its signature, nothing
    if it holds; needed: signatures that a model under these terms has at least; analyst, asked: who requested
    the session, and when; request_fault: what is wrong with the request, nothing if it holds."""

    file: str
    terms: Terms
    fingerprint: str
    trees: int
    faults: Mapping[str, str]
    needed: int
    analyst: str
    asked: str
    request_fault: str

    @property
    def signed(self) -> tuple[str, ...]:
        """The parties whose signatures hold."""
        return tuple(party for party, fault in self.faults.items() if not fault)

    @property
    def holds(self) -> bool:
        """True if there are signatures, enough of them, and nothing is wrong with any."""
        sound = not self.request_fault and len(self.signed) == len(self.faults)
        return sound and len(self.signed) >= max(self.needed, 1)

    @property
    def conclusion(self) -> str:
        """The outcome in one sentence."""
        if not self.faults:
            return "nobody signed this model: anybody may have made it"
        if wrong := [fault for fault in (*self.faults.values(), self.request_fault) if fault]:
            return wrong[0]
        parties = f"{len(self.signed)} of {len(self.terms.parties)} parties"
        if len(self.signed) < self.needed:
            return f"{parties} signed; {self.needed} are needed"
        return f"{parties} signed these trees, under these terms"

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome as JSON."""
        return {
            "model": self.file,
            "holds": self.holds,
            "conclusion": self.conclusion,
            "fingerprint": self.fingerprint,
            "terms": self.terms.digest,
            "protection": self.terms.hiding.protection,
            "parties": list(self.terms.parties),
            "signatures": {
                party: {"holds": not fault, **({"fault": fault} if fault else {})}
                for party, fault in self.faults.items()
            },
            "needed": self.needed,
            "analyst": self.analyst or None,
            "asked": self.asked or None,
        }


# ---- What a report shows of a model ---------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnTree:
    """A tree of the model. title: which one it is; leaves: how many it has; picture: SVG for a page, ''
    where the tree is too large for one; text: XGBoost's dump."""

    title: str
    leaves: int
    picture: str
    text: str


@dataclass(frozen=True)
class Dependence:
    """Partial dependence on one feature. grid: numbers, or categories; means: float64 [grid, outputs]."""

    feature: str
    is_categorical: bool
    grid: Sequence[Any]
    means: Float64


@dataclass(frozen=True)
class GivenRows:
    """The model on rows that were given for a report. source: the name of their table; dependence: on the
    features of the highest gains."""

    source: str
    evaluation: Evaluation
    dependence: Sequence[Dependence]


@dataclass(frozen=True)
class ModelReport:
    """A model, and what a report says of it. rounds: the metrics of each round, as in the model file;
    importance: feature to its IMPORTANCES, the highest gain first; trees: the first ones; classes: of a label
    of classes; made: when the session was requested, UTC, if that is known; training_rows: of all parties, if
    that is known; verification: None where signatures could not be checked; rows: None where no table was
    given; session: None where the model file is all there is."""

    model: ModelSummary
    rounds: Sequence[Row]
    importance: Mapping[str, Sequence[float]]
    trees: Sequence[DrawnTree]
    classes: Sequence[str] = ()
    made: str = ""
    training_rows: int | None = None
    verification: Verification | None = None
    rows: GivenRows | None = field(default=None, repr=False)
    session: Ended | None = field(default=None, repr=False)
