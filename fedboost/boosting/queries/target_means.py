"""The query that sums labels by level, for columns whose levels become means of the label.

Promises: asked once in a session, after all other counts and before the cut points.
Refuses: sums of other columns, buckets or scales than the terms have (Refused), and sums that are asked twice
(PeerError).
"""

from dataclasses import dataclass, replace
from typing import Any

from fedboost.boosting.queries.base import BaseQuery, BeforeTrees, once
from fedboost.boosting.queries.cut_points import LEVELS_SUMMED, are_weighted, weight_scale
from fedboost.boosting.queries.rules import check_bits
from fedboost.boosting.queries.start import START_BITS
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Scale, cell_bits
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.objectives.objective import NOISE_BITS
from fedboost.privacy.bit_packing import Segment
from fedboost.terms.noise import LEVELS, Noise, Release
from fedboost.terms.session import TO_TRAIN
from fedboost.terms.terms import Terms, slots_of


@dataclass(frozen=True)
class LevelSumsQuery(BeforeTrees, BaseQuery):
    """Sums over the rows of each slot of each column of `target_means`, at the initial margins.

    slots: of each column, with those of missing values; gradient, hessian: scales; counted: True where rows
    are counted, too, which is not needed with noise; weight: the scale of row weights, where the terms have
    them and rows count by them among quantiles. Answer: of each slot gradient and hessian, int64 [slots, 2],
    in which validation rows have no part; then the rows of each slot, then their weights.
    """

    description = "sums of labels by level of a column"
    tasks = frozenset({TO_TRAIN})

    rows: int
    slots: tuple[int, ...]
    gradient: Scale
    hessian: Scale
    counted: bool = True
    weight: Scale | None = None

    @property
    def all_slots(self) -> int:
        """Slots of all columns."""
        return sum(self.slots)

    @property
    def cells(self) -> int:
        return self.all_slots * (STATS + self.counted + (self.weight is not None))

    @property
    def cell_bits(self) -> int:
        return max(bits for _, bits in self.segments)

    @once
    def segments(self) -> tuple[Segment, ...]:
        """Sums of gradients, and where they are asked for counts and weights, in cells of their own width."""
        slots, limit = self.all_slots, max(self.gradient.limit, self.hessian.limit)
        segments = [Segment(STATS * slots, cell_bits(limit, self.rows))]
        if self.counted:
            segments.append(Segment(slots, cell_bits(1, self.rows)))
        if self.weight is not None:
            segments.append(Segment(slots, cell_bits(self.weight.limit, self.rows)))
        return tuple(segments)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where the terms have such columns."""
        return int(bool(terms.columns.target_means))

    def is_allowed_with(self, noise: Noise) -> bool:
        """Always."""
        return True

    def release(self, terms: Terms) -> Release | None:
        """The sums by level."""
        return terms.plan.releases[LEVELS]

    def check_terms(self, terms: Terms) -> None:
        """Refuse sums of other columns, or finer ones, than the terms'."""
        due = tuple(slots.with_missing for slots in slots_of(terms).values())
        if not due or self.slots != due:
            raise Refused("sums of labels by other levels than those of target_means in the terms")
        check_bits(START_BITS if terms.noise is None else NOISE_BITS, self.gradient, self.hessian)
        weight = weight_scale(terms, self.rows, 0).bits if are_weighted(terms) else None
        asked = None if self.weight is None else self.weight.bits
        if self.counted != (terms.noise is None) or asked != weight:
            raise Refused("rows by level are counted, or weighed, otherwise than the terms say")

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        if state.start is not None or state.grids >= LEVELS_SUMMED:
            raise PeerError("labels are summed by level once, before the cut points")

    def applied_to(self, state: Any) -> Any:
        """The state after which nothing is counted any more before the cut points."""
        return replace(state, grids=state.grids + LEVELS_SUMMED)
