"""A party's part in leaf renewal: weights of residuals by cell.

Promises: the weights of parties add to those of the pooled rows, bit for bit.
"""

from collections.abc import Sequence

import numpy as np

from fedboost.boosting.queries.labels import RESIDUAL_BITS, ResidualQuery
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.histogram import Rows
from fedboost.gbdt.kernels.bins import weigh_residuals
from fedboost.gbdt.threads import Threads


def residual_weights(
    nodes: Sequence[Rows],
    query: ResidualQuery,
    label: Float32,
    margin: Float64,
    weight: Float32,
    threads: Threads,
) -> Int64:
    """Weights of the rows of each node by the cell of their residual: int64 [nodes, 2**RESIDUAL_BITS]."""
    out = np.zeros((len(nodes), 1 << RESIDUAL_BITS), np.int64)
    scale = query.weight.factor, float(query.weight.limit)

    def weigh(piece: tuple[Rows, int, Int64]) -> None:
        rows, start, cells = piece
        weigh_residuals(label, margin, weight, rows, start, query.width, RESIDUAL_BITS, *scale, cells)

    threads.each(weigh, list(zip(nodes, query.starts, out, strict=True)))
    return out
