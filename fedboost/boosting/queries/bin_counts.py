"""The query that counts the rows of all parties by bin of each feature and of the score.

Promises: asked once, at the end of a training whose terms have a reference, or where rows are held against
one.
Refuses: other bins than those of the training, or of the model in the terms (PeerError).
"""

from dataclasses import dataclass
from typing import Any

from fedboost.boosting.queries.base import MAX_ROWS, BaseQuery, BeforeTrees, once
from fedboost.boosting.queries.rules import check_started
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import MAX_CELL_BITS
from fedboost.terms.session import TO_DRIFT, TO_TRAIN
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class BinCountsQuery(BeforeTrees, BaseQuery):
    """Counts of rows: in each bin of each feature, then of the score.

    sizes: bins of each feature, the one of missing values last; score: bins of the score; rounds: of the
    training, whose trees give the score."""

    description = "rows by bin of each column and of score"
    tasks = frozenset({TO_TRAIN, TO_DRIFT})

    sizes: tuple[int, ...]
    score: int
    rounds: int
    rows = MAX_ROWS

    @once
    def cells(self) -> int:
        return sum(self.sizes) + self.score

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where the terms say so."""
        return int(terms.task == TO_DRIFT or terms.evaluation.reference)

    def check_terms(self, terms: Terms) -> None:
        """Refuse counts that the terms do not name."""
        if terms.task == TO_TRAIN and not terms.evaluation.reference:
            raise Refused("rows by bin of each column, and the terms have no reference")
        if len(self.sizes) != len(terms.columns.features):
            raise Refused(f"bins of {len(self.sizes)} features, the terms have {len(terms.columns.features)}")

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        if terms.task == TO_DRIFT:
            return
        check_started(state)
        if state.splits or not 0 <= self.rounds < len(state.rounds):  # a root may have been asked ahead
            raise PeerError("rows are counted by bin once the trees have grown")

    def applied_to(self, state: Any) -> Any:
        """The same state: it changes nothing."""
        return state
