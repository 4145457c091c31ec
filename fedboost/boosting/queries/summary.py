"""The query that counts the rows, missing values, categories and labels of all parties.

Promises: one sum tells the number of rows; asked once in a session, in its first turn.
Refuses: counts of other columns than the terms name (Refused).
"""

from dataclasses import dataclass
from typing import Any, Self

from fedboost.boosting.queries.base import BaseQuery, BeforeTrees
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import cell_bits
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.terms.noise import ROWS, SUMMARY, Noise, Release
from fedboost.terms.session import TO_DESCRIBE
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class SummaryQuery(BeforeTrees, BaseQuery):
    """Counts of rows: all; those with a missing value, for each feature; those of each declared level and of
    undeclared ones, for each categorical feature; those of each class of the label.

    numeric: numeric features; levels: declared levels of each categorical feature; classes: of the label, 0
    where it is a number. Answer: int64 in this order, a feature's counts together."""

    description = "rows: all, with missing values, by level"
    only_turn = 1
    tasks = frozenset({TO_DESCRIBE})

    numeric: int
    levels: tuple[int, ...]
    classes: int
    rows = ROWS

    @classmethod
    def of(cls, terms: Terms) -> Self:
        """The query about the columns of these terms."""
        columns, loss = terms.columns, terms.objective.loss.xgboost_equivalent
        classes = max(2, terms.objective.num_class or 0) if loss.label_kind is LabelKind.CLASS else 0
        return cls(len(columns.numeric), tuple(columns.category_counts), classes)

    @property
    def cells(self) -> int:
        return 1 + self.numeric + sum(levels + 2 for levels in self.levels) + self.classes

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.rows)  # how many there are is not known yet

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where rows are described."""
        return int(terms.task == TO_DESCRIBE)

    def is_allowed_with(self, noise: Noise) -> bool:
        """Always."""
        return True

    def release(self, terms: Terms) -> Release | None:
        """The counts."""
        return terms.plan.releases[SUMMARY]

    def check_terms(self, terms: Terms) -> None:
        """Refuse counts of other columns than the terms'."""
        if self != self.of(terms):
            raise Refused("counts of other columns, levels or classes than those of the terms")

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        if state.grids:
            raise PeerError("rows are counted by level before they are counted by value")

    def applied_to(self, state: Any) -> Any:
        """The same state: it changes nothing."""
        return state
