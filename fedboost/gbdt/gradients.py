"""Margins of a party's rows, and the objective's gradients at these margins: counted, summed and quantised.

Guarantees: each result is a sum over blocks of rows or is written row by row, so it does not depend on the
number of threads. No block splits a group of ranked rows. Only labels are read, never features.
Raises: Refused if an objective from an installed package returns invalid gradients.
"""

from collections.abc import Callable

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale, exponent_counts
from fedboost.gbdt import metrics, sampling
from fedboost.gbdt.binned import Allocator, allocate_in_memory
from fedboost.gbdt.kernels import histogram as kernels
from fedboost.gbdt.kernels.histogram import sum_pairs
from fedboost.gbdt.objectives import registry
from fedboost.gbdt.objectives.built_in import in_groups
from fedboost.gbdt.objectives.objective import HasGradients, Objective
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.sampling import Block, Keys, Mask, RowIndex, blocks
from fedboost.gbdt.threads import ONE, SHARED, Threads

Quantise = Callable[[Float64, Float64, Int64], None]
"""Function that writes each row's gradient and hessian in fixed point, as (gradient << 32) + hessian. Its
arguments are gradients and hessians, float64 [N] each, and an int64 [N] that receives the result."""
Reweigh = Callable[[RowIndex, Float64, Float64], tuple[Float64, Float64]]
"""Function that multiplies the gradients and hessians of some rows by their sampling weights."""


SumOfRows = Callable[[Objective, Float64, Float32, Float32], Int64]
"""Computes sums over rows, int64 [cells], from the objective and the rows' margins, labels and weights."""


def in_units(gradient: Scale, hessian: Scale) -> Quantise:
    factors, limit = (gradient.factor, hessian.factor), float(gradient.limit)
    return lambda gradients, hessians, pairs: kernels.quantise(gradients, hessians, *factors, limit, pairs)


def _unweighted(_: RowIndex, gradient: Float64, hessian: Float64) -> tuple[Float64, Float64]:
    return gradient, hessian


class Gradients:
    """Margins of all rows of a party, with the gradients and hessians that trees are trained on.

    margin: float64 [outputs, rows]; pairs: int64 [outputs, rows], each row's packed gradient and hessian, as
    last written by `quantise`. Neither array is initialised."""

    def __init__(
        self,
        objective: Objective,
        label: Float32,
        weight: Float32,
        group: Keys | None,
        threads: Threads,
        allocate: Allocator = allocate_in_memory,
    ) -> None:
        """Allocate the arrays.

        Args:
            objective: objective of the training run.
            label: float32 [rows], or [2, rows] if labels are intervals.
            weight: float32 [rows].
            group: uint64 [rows], equal for the rows of a group; None if there are no groups.
            allocate: function that allocates the arrays.
        """
        self._objective = objective
        self._is_installed = objective.name not in OBJECTIVES
        self._label = label
        self._weight = weight
        self._blocks = blocks(weight.size, group)
        self._threads = threads if weight.size >= SHARED else ONE
        shape = objective.outputs, weight.size
        self.margin: Float64 = allocate(shape, np.dtype(np.float64))
        self.pairs: Int64 = allocate(shape, np.dtype(np.int64))
        self._every: Mask | None = None
        """The last mask of `sum_rows` that contains all rows."""

    def quantise(
        self, slopes: HasGradients, quantise: Quantise, shift: float = 0.0, reweigh: Reweigh = _unweighted
    ) -> None:
        """Compute gradients and hessians and write them to `pairs` in fixed point.

        Args:
            slopes: the loss to differentiate.
            quantise: function that converts gradients and hessians to fixed point.
            shift: number to add to every margin first.
            reweigh: function that applies sampling weights.
        """

        def write(block: Block) -> None:
            rows = block.rows
            gradients, hessians = reweigh(rows, *self._at(slopes, block, self._weight[rows], shift))
            for output, pairs in enumerate(self.pairs):
                block_pairs = pairs[rows]
                if gradients.ndim == 1:
                    quantise(gradients, hessians, block_pairs)
                else:
                    quantise(gradients[output], hessians[output], block_pairs)
                if not isinstance(rows, slice):  # indexing by row numbers made a copy
                    pairs[rows] = block_pairs

        self._threads.each(write, self._blocks)

    def sum_pairs(self, among: Mask) -> Int64:
        """Sum the first output's gradients and hessians over `among`, bool [rows]. Returns int64 [2]."""
        return self._sum(lambda block: np.array(sum_pairs(self.pairs[0][block.only(among).rows]), np.int64))

    def count_exponents(self, slopes: HasGradients) -> Int64:
        """Count three numbers of each row by binary exponent: its gradient and hessian at weight 1, and its
        weight. Returns int64 [3 * EXPONENT_CELLS]."""

        def count(block: Block) -> Int64:
            weight = self._weight[block.rows]
            gradient, hessian = self._at(slopes, block, np.ones_like(weight))
            return np.concatenate(
                [exponent_counts(v) for v in (gradient, hessian, weight.astype(np.float64))]
            )

        return self._sum(count)

    def count_norms(self, reg_lambda: float, among: Mask) -> Int64:
        """Count gradient norms by magnitude, int64 [sampling.NORM_CELLS], over `among`, bool [rows]."""

        def count(block: Block) -> Int64:
            gradients = self._at(self._objective, block, self._weight[block.rows])
            return sampling.count_norms(sampling.gradient_norms(*gradients, reg_lambda)[among[block.rows]])

        return self._sum(count)

    def sum_metrics(self, names: tuple[str, ...], weight: Scale, among: Mask) -> Int64:
        """Compute the sums of these metrics over the rows in `among`, bool [rows], which must contain whole
        groups. weight: public scale of row weights."""
        return self.sum_rows(lambda loss, m, y, w: metrics.sums(names, loss, m, y, w, weight), among)

    def sum_rows(self, of_rows: SumOfRows, among: Mask) -> Int64:
        if among is not self._every and among.all():
            self._every = among

        def sums(block: Block) -> Int64:
            part = block if among is self._every else block.only(among)
            label, weights = self._label[..., part.rows], self._weight[part.rows]
            return of_rows(in_groups(self._objective, part.starts), self._margins(part), label, weights)

        return self._sum(sums)

    def _at(
        self, slopes: HasGradients, block: Block, weight: Float32, shift: float = 0.0
    ) -> tuple[Float64, Float64]:
        """Return the gradients and hessians of a block's rows, computed with these weights at the rows'
        margins plus `shift`."""
        margin = self._margins(block)
        rows = margin + shift if shift else margin, self._label[..., block.rows], weight
        if self._is_installed:
            return registry.gradients(slopes, self._objective.name, *rows)
        return in_groups(slopes, block.starts).gradients(*rows)

    def _margins(self, block: Block) -> Float64:
        if len(self.margin) == 1:
            return self.margin[0, block.rows]
        return np.ascontiguousarray(self.margin[:, block.rows])

    def _sum(self, block_values: Callable[[Block], Int64]) -> Int64:
        total, *others = self._threads.each(block_values, self._blocks)
        for other in others:
            total = total + other
        return total
