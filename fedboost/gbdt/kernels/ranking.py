"""Kernels of ranking: lambda gradients and NDCG of groups of rows."""

import numpy as np

from fedboost.gbdt.kernels.compile import loop
from fedboost.gbdt.kernels.elementwise import LOG2_E, log, sigmoid


@loop
def _discounts(starts):
    """1 / log2(rank + 2) for each rank in the largest of these groups."""
    top = 0
    for g in range(starts.size - 1):
        top = max(top, starts[g + 1] - starts[g])
    out = np.empty(top, np.float64)
    for rank in range(top):
        out[rank] = 1.0 / (log(rank + 2.0) * LOG2_E)
    return out


@loop
def _best_dcg(gain, top, discount):
    """The DCG of the first `top` rows where those of the highest gain come first."""
    best, total = np.sort(gain), 0.0
    for rank in range(min(top, gain.size)):
        total += best[gain.size - 1 - rank] * discount[rank]
    return total


@loop
def lambda_gradients(margin, label, gain, weight, starts, top, by_ndcg, score_normalization, normalization):
    """Gradients and hessians of LambdaMART: two float64 [N]. Group g has the rows from starts[g] to
    starts[g + 1].

    Each of the first `top` rows of a group, by margin, makes a pair with each row behind it of another label.
    Equal margins: the earlier row comes first. The weight of a pair: with by_ndcg the change of the NDCG of
    the group if the two swap ranks, over the DCG of the best first `top` rows, else 1; with
    score_normalization over the distance of their margins plus 1/100, unless all margins are equal. With
    normalization all of a group is times log2(1 + s) / s, s the sum of the magnitudes of its pairs' parts of
    gradients."""
    gradient = np.zeros(margin.size, np.float64)
    hessian = np.zeros(margin.size, np.float64)
    discount = _discounts(starts)
    for g in range(starts.size - 1):
        first, size = starts[g], starts[g + 1] - starts[g]
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        scale = 1.0
        if by_ndcg:
            ideal = _best_dcg(gain[first : first + size], top, discount)
            scale = 1.0 / ideal if ideal > 0.0 else 0.0
        by_distance = score_normalization and margin[order[0]] != margin[order[size - 1]]
        total = 0.0
        for i in range(min(top, size)):
            for j in range(i + 1, size):
                high, low = order[i], order[j]
                if label[high] == label[low]:
                    continue
                if label[high] < label[low]:
                    high, low = low, high
                distance = margin[high] - margin[low]
                pair_weight = 1.0
                if by_ndcg:
                    pair_weight = (gain[high] - gain[low]) * (discount[i] - discount[j]) * scale
                if by_distance:
                    pair_weight /= abs(distance) + 0.01
                p = sigmoid(distance)
                pair_gradient = (1.0 - p) * pair_weight
                pair_hessian = max(p * (1.0 - p), 1e-16) * pair_weight * 2.0
                gradient[high] -= pair_gradient
                gradient[low] += pair_gradient
                hessian[high] += pair_hessian
                hessian[low] += pair_hessian
                total += 2.0 * pair_gradient
        factor = 1.0
        if normalization and total > 0.0:
            factor = log(1.0 + total) * LOG2_E / total
        for i in range(first, first + size):
            gradient[i] = gradient[i] * factor * weight[i]
            hessian[i] = hessian[i] * factor * weight[i]
    return gradient, hessian


@loop
def ndcgs(margin, gain, starts, top, without):
    """The NDCG of the first `top` rows of each group, by margin, equal ones in their order: float64
    [groups]; `without` for groups without a gain."""
    out = np.empty(starts.size - 1, np.float64)
    discount = _discounts(starts)
    for g in range(out.size):
        first, size = starts[g], starts[g + 1] - starts[g]
        ideal = _best_dcg(gain[first : first + size], top, discount)
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        total = 0.0
        for rank in range(min(top, size)):
            total += gain[order[rank]] * discount[rank]
        out[g] = total / ideal if ideal > 0.0 else without
    return out
