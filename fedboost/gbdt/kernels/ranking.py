"""Kernels of ranking: lambda gradients and NDCG of groups of rows."""

import numpy as np

from fedboost.gbdt.kernels.compile import loop
from fedboost.gbdt.kernels.elementwise import LOG2_E, log, sigmoid


@loop
def _discounts(starts):
    """1 / log2(place + 2) for each place in the largest of these groups."""
    most = 0
    for g in range(starts.size - 1):
        most = max(most, starts[g + 1] - starts[g])
    out = np.empty(most, np.float64)
    for place in range(most):
        out[place] = 1.0 / (log(place + 2.0) * LOG2_E)
    return out


@loop
def _best_dcg(gain, most, discount):
    """The DCG of the first `most` rows where those of the highest gain come first."""
    best, total = np.sort(gain), 0.0
    for place in range(min(most, gain.size)):
        total += best[gain.size - 1 - place] * discount[place]
    return total


@loop
def lambda_gradients(margin, label, gain, weight, starts, most, by_ndcg, score_normalization, normalization):
    """Gradients and hessians of LambdaMART: two float64 [N]. Group g has the rows from starts[g] to
    starts[g + 1].

    Each of the first `most` rows of a group, by margin, makes a pair with each row behind it of another
    label. Equal margins: the earlier row comes first. What a pair counts: with by_ndcg how much the NDCG of
    the group changes if the two change places, over the DCG of the best first `most` rows, else 1; with
    score_normalization over the distance of their margins plus 1/100, unless all margins are equal. With
    normalization all of a group is times log2(1 + s) / s, s the sum of the magnitudes of its pairs' parts of
    gradients.
    """
    gradient = np.zeros(margin.size, np.float64)
    hessian = np.zeros(margin.size, np.float64)
    discount = _discounts(starts)
    for g in range(starts.size - 1):
        first, size = starts[g], starts[g + 1] - starts[g]
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        scale = 1.0
        if by_ndcg:
            ideal = _best_dcg(gain[first : first + size], most, discount)
            scale = 1.0 / ideal if ideal > 0.0 else 0.0
        by_distance = score_normalization and margin[order[0]] != margin[order[size - 1]]
        total = 0.0
        for i in range(min(most, size)):
            for j in range(i + 1, size):
                high, low = order[i], order[j]
                if label[high] == label[low]:
                    continue
                if label[high] < label[low]:
                    high, low = low, high
                distance = margin[high] - margin[low]
                counts = 1.0
                if by_ndcg:
                    counts = (gain[high] - gain[low]) * (discount[i] - discount[j]) * scale
                if by_distance:
                    counts /= abs(distance) + 0.01
                p = sigmoid(distance)
                pull = (1.0 - p) * counts
                bend = max(p * (1.0 - p), 1e-16) * counts * 2.0
                gradient[high] -= pull
                gradient[low] += pull
                hessian[high] += bend
                hessian[low] += bend
                total += 2.0 * pull
        factor = 1.0
        if normalization and total > 0.0:
            factor = log(1.0 + total) * LOG2_E / total
        for i in range(first, first + size):
            gradient[i] = gradient[i] * factor * weight[i]
            hessian[i] = hessian[i] * factor * weight[i]
    return gradient, hessian


@loop
def ndcgs(margin, gain, starts, most, without):
    """The NDCG of the first `most` rows of each group, by margin, equal ones in their order: float64
    [groups]; `without` for groups without a gain."""
    out = np.empty(starts.size - 1, np.float64)
    discount = _discounts(starts)
    for g in range(out.size):
        first, size = starts[g], starts[g + 1] - starts[g]
        ideal = _best_dcg(gain[first : first + size], most, discount)
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        total = 0.0
        for place in range(min(most, size)):
            total += gain[order[place]] * discount[place]
        out[g] = total / ideal if ideal > 0.0 else without
    return out
