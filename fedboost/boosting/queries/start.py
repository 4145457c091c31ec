"""Queries at the initial margins: the number of rows, and the sums of their gradients."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedboost.boosting.queries.base import APART, MAX_ROWS, BaseQuery, BeforeTrees, digest_of, once
from fedboost.boosting.queries.cut_points import LEVELS_SUMMED
from fedboost.boosting.queries.rules import check_bits
from fedboost.boosting.queries.views import View
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import EXPONENT_CELLS, MAX_CELL_BITS, Float32, Scale, cell_bits
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.objectives.objective import NOISE_BITS
from fedboost.terms.noise import START, Noise, Release
from fedboost.terms.terms import Terms, slots_of

START_BITS = 31
"""Bits of the gradients behind the base score, whatever gradient_bits: it is two integers, and a mean that
carries through the whole model."""
EXPONENT_VECTORS = 3
"""Exponents are counted of gradients, hessians and weights."""


@dataclass(frozen=True)
class RowsQuery(BeforeTrees, BaseQuery):
    """The number of rows, and the magnitudes of gradients, hessians and weights at the initial margins.

    Answer: the row count, then exponent counts of gradients, hessians and weights.
    """

    description = "row count; magnitudes of labels, weights"
    rows = MAX_ROWS

    @property
    def cells(self) -> int:
        return 1 + EXPONENT_VECTORS * EXPONENT_CELLS

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS  # the number of rows is not known yet

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """The count of rows, once."""
        return int(terms.noise is None)

    def check_terms(self, terms: Terms) -> None:
        """Allow it always."""

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        if state.start is not None:
            raise PeerError("the count of rows comes before the cut points")
        if terms.vertical.aligns and state.places is None:
            raise PeerError("rows are counted once they are matched")

    def applied_to(self, state: Any) -> Any:
        """The same state: it changes nothing."""
        return state


@dataclass(frozen=True)
class StartQuery(BeforeTrees, BaseQuery):
    """The cut points, and the sums of gradients and hessians at the initial margins.

    means: of each column of `target_means` those of its slots, float32 [buckets, folds]: the last are those
    that rows get which no tree grows on.
    """

    description = "sum over all rows (for the mean label)"

    rows: int
    cut_points: CutPoints
    gradient: Scale
    hessian: Scale
    means: tuple[Float32, ...] = field(default=(), metadata=APART)

    @once
    def digest(self) -> bytes:
        """Hash of all its content: 32 bytes."""
        return digest_of((self, "means", self.means)) if self.means else digest_of(self)

    @property
    def last_means(self) -> tuple[Float32, ...]:
        """The means of each column that are in the model: float32 [buckets]."""
        return tuple(means[:, -1] for means in self.means)

    @property
    def cells(self) -> int:
        return STATS

    @property
    def cell_bits(self) -> int:
        return cell_bits(max(self.gradient.limit, self.hessian.limit), self.rows)

    def is_allowed_with(self, noise: Noise) -> bool:
        """Always."""
        return True

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one set of cut points."""
        return 1

    def check_terms(self, terms: Terms) -> None:
        """Refuse cut points, or means, that are not those of the terms' features."""
        features, numeric = len(terms.columns.features), len(terms.columns.ordered)
        cut_points = self.cut_points
        check_bits(START_BITS if terms.noise is None else NOISE_BITS, self.gradient, self.hessian)
        if cut_points.sizes.size != features:
            raise Refused(f"cut points of {cut_points.sizes.size} features, the terms have {features}")
        if (cut_points.sizes + 1 + cut_points.missing > MAX_CODES).any():
            raise Refused("more bins than a byte can number")
        head = cut_points.head(numeric)
        if digest_of(cut_points) != digest_of(head.with_categories(terms.columns.category_counts)):
            raise Refused("bins of categorical features that are not the levels of the terms")
        if terms.hides_columns and digest_of(head) != digest_of(head.numbered):
            raise Refused("cut points that are no numbers of bins, where their owners alone know them")
        self._check_means(terms)

    def _check_means(self, terms: Terms) -> None:
        """Refuse means of other slots than the terms', and those that are no numbers."""
        if [means.shape for means in self.means] != [slots.shape for slots in slots_of(terms).values()]:
            raise Refused("means of other levels than those of target_means in the terms")
        if not all(np.isfinite(means).all() for means in self.means):
            raise Refused("a mean of a level that is no finite number")

    def in_view(self, view: View) -> "StartQuery":
        """The query with the cut points and scales that are seen."""
        cut_points, gradient = view.cut_points(self.cut_points), view.scale(self.gradient)
        return replace(self, cut_points=cut_points, gradient=gradient, hessian=view.scale(self.hessian))

    def release(self, terms: Terms) -> Release | None:
        """The sums that boosting starts from."""
        return terms.plan.releases[START]

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        if state.start is not None:
            raise PeerError("the cut points were given already")
        if (state.grids >= LEVELS_SUMMED) != bool(terms.columns.target_means):
            raise PeerError("cut points before labels were summed by level, or the terms have no such levels")

    def applied_to(self, state: Any) -> Any:
        """The state with these cut points."""
        return replace(state, start=self)
