"""Kernels of splits: the best split of a node from its histogram."""

import numpy as np

from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.compile import elementwise, loop


@elementwise
def _soft_threshold(gradient, reg_alpha):
    """The gradient, soft-thresholded at alpha."""
    above, below = gradient - reg_alpha, gradient + reg_alpha
    return above if above > 0.0 else (below if below < 0.0 else 0.0)


@elementwise
def _score(gradient, hessian, reg_lambda, reg_alpha, max_delta_step):
    """The loss reduction of a leaf, doubled: T(G)**2 / (H + lambda), T the soft threshold at alpha; less
    where the step would be beyond max_delta_step."""
    g = _soft_threshold(gradient, reg_alpha)
    h = hessian + reg_lambda
    best = g * g / h if h > 0.0 else 0.0
    limit = max_delta_step * h
    beyond = (h > 0.0) & (abs(g) > limit)
    return max_delta_step * (2.0 * abs(g) - limit) if beyond else best


@loop
def _order_categories(cells, factors, penalties):
    """The categories of a feature by the value of a leaf of each alone, lowest first: int64 [B].

    cells: int64 [2 B], their sums. The sort is stable. A category with less than min_child_weight, or with no
    rows, has the value 0, as in XGBoost.
    """
    reg_lambda, reg_alpha, min_child_weight, _ = penalties
    g_unit, h_unit = 1.0 / factors[0], 1.0 / factors[1]
    order, values = np.empty(cells.size // 2, np.int64), np.empty(cells.size // 2, np.float64)
    for category in range(order.size):
        hessian, value = cells[2 * category + 1] * h_unit, 0.0
        if hessian >= min_child_weight and hessian > 0.0:
            value = -_soft_threshold(cells[2 * category] * g_unit, reg_alpha) / (hessian + reg_lambda)
        values[category] = value
    for category in range(order.size):  # counting has no branches to predict, as sorting has
        value, rank = values[category], 0
        for other in values[:category]:
            rank += np.int64(other <= value)
        for other in values[category + 1 :]:
            rank += np.int64(other < value)
        order[rank] = category
    return order


@loop
def categories_right(cells, partition, one_hot, factors, penalties):
    """The categories that go right in a partition, increasing or in the order of `_order_categories`.

    One-hot: partition b sends category b right, and the partition after the last all. Else partition b sends
    the first b + 1.
    """
    if one_hot:
        last = partition >= cells.size // 2
        return np.arange(cells.size // 2) if last else np.arange(partition, partition + 1)
    return _order_categories(cells, factors, penalties)[: partition + 1]


@loop
def _sum_categories(cells, one_hot, factors, penalties, gradient, hessian):
    """gradient, hessian = the sums of the categories that go left in each partition: int64 [B + 1]."""
    categories = cells.size // 2
    total_gradient, total_hessian = 0, 0
    for category in range(categories):
        total_gradient += cells[2 * category]
        total_hessian += cells[2 * category + 1]
    gradient[categories], hessian[categories] = 0, 0
    if one_hot:
        for category in range(categories):
            gradient[category] = total_gradient - cells[2 * category]
            hessian[category] = total_hessian - cells[2 * category + 1]
        return
    order = _order_categories(cells, factors, penalties)
    for partition in range(categories):
        total_gradient -= cells[2 * order[partition]]
        total_hessian -= cells[2 * order[partition] + 1]
        gradient[partition], hessian[partition] = total_gradient, total_hessian


@elementwise
def _step(gradient, hessian, reg_lambda, reg_alpha, max_delta_step, lower, upper):
    """The best value of a leaf, before the learning rate, from `lower` to `upper`."""
    h = hessian + reg_lambda
    best = -_soft_threshold(gradient, reg_alpha) / h if h > 0.0 else 0.0
    best = min(max(best, -max_delta_step), max_delta_step)
    return min(max(best, lower), upper)


@elementwise
def _score_of(gradient, hessian, step, reg_lambda, reg_alpha):
    """The loss reduction of a leaf of this value, doubled."""
    return -(2.0 * gradient * step + (hessian + reg_lambda) * step * step + 2.0 * reg_alpha * abs(step))


@loop
def best_split(
    histogram, offsets, value_bins, missing, categorical, factors, penalties, max_categories, total, limits
):
    """The split of highest gain of one node; ties go to the lowest feature, then bin, then missing right.

    histogram: int64 [2 T]; value_bins: int64 [F], bins without the missing one; missing: bool [F], True if a
    missing bin follows them; categorical: bool [F], True if the bins are categories, of which a split sends a
    subset right; factors: units per 1.0 of gradient and hessian; penalties: reg_lambda, reg_alpha,
    min_child_weight, max_delta_step (infinite for none); max_categories: features of fewer categories than
    the first are split one-hot, a side of other splits has fewer than the second, or all; total: the node's
    own two sums; limits: None, or the smallest and the largest value of leaves below this node, before the
    learning rate, and int64 [F], 1 for a feature with which they may not fall, -1 for one with which they may
    not rise. Returns (gain, feature, bin, missing goes left, left gradient, left hessian); feature -1 if
    none. For a categorical feature the bin is the number of the partition, see `categories_right`, and equal
    gains send missing values left.

    One loop of over 60 lines on purpose: calls inside it would cost time, and every variable is shared.
    """
    reg_lambda, reg_alpha, min_child_weight, max_delta_step = penalties
    g_unit, h_unit = 1.0 / factors[0], 1.0 / factors[1]  # powers of two: as exact as dividing, and faster
    step = max_delta_step
    if limits is None:
        root = _score(total[0] * g_unit, total[1] * h_unit, reg_lambda, reg_alpha, step)
    else:
        lower, upper, signs = limits
        g, h = total[0] * g_unit, total[1] * h_unit
        own = _step(g, h, reg_lambda, reg_alpha, step, lower, upper)
        root = _score_of(g, h, own, reg_lambda, reg_alpha)
    best_gain, best_feature, best_bin, best_missing_left = 0.0, -1, -1, False
    best_left_gradient, best_left_hessian = 0, 0
    gradient, hessian = np.empty(MAX_CODES, np.int64), np.empty(MAX_CODES, np.int64)
    gain = np.empty(MAX_CODES, np.float64)
    for f in range(offsets.size):
        first, bins = np.int64(offsets[f]), value_bins[f]
        cells = histogram[2 * first : 2 * (first + bins)]
        # The sums that go left in each partition of the bins, without missing values.
        partitions = reach = bins
        if categorical[f]:
            one_hot = bins < max_categories[0]
            _sum_categories(cells, one_hot, factors, penalties, gradient, hessian)
            if one_hot:
                partitions += 1
            else:
                reach = min(bins, max_categories[1])
        else:
            gradient_below, hessian_below = 0, 0
            for b in range(bins):
                gradient_below += cells[2 * b]
                hessian_below += cells[2 * b + 1]
                gradient[b], hessian[b] = gradient_below, hessian_below
        absent_gradient, absent_hessian = 0, 0
        if missing[f]:
            absent_gradient = histogram[2 * (first + bins)]
            absent_hessian = histogram[2 * (first + bins) + 1]
        directions = 2 if absent_gradient != 0 or absent_hessian != 0 or reach < bins else 1
        for direction in range(directions):
            missing_left = 1 - direction if categorical[f] else direction
            # The last partition separates the present from the missing: tried only with both.
            begin, end = 0, partitions if directions == 2 and direction == 0 else partitions - 1
            if reach < bins:
                begin, end = (0, reach - 1) if direction == 0 else (bins - reach, bins - 1)
            top = 0.0
            for b in range(end):  # from 0 and without branches: several gains are then computed together
                left_gradient = gradient[b] + absent_gradient * missing_left
                left_hessian = hessian[b] + absent_hessian * missing_left
                gl, hl = left_gradient * g_unit, left_hessian * h_unit
                gr = (total[0] - left_gradient) * g_unit
                hr = (total[1] - left_hessian) * h_unit
                allowed = (hl >= min_child_weight) & (hr >= min_child_weight) & (hl > 0.0) & (hr > 0.0)
                if limits is None:
                    both = _score(gl, hl, reg_lambda, reg_alpha, step)
                    both += _score(gr, hr, reg_lambda, reg_alpha, step)
                else:
                    left = _step(gl, hl, reg_lambda, reg_alpha, step, lower, upper)
                    right = _step(gr, hr, reg_lambda, reg_alpha, step, lower, upper)
                    both = _score_of(gl, hl, left, reg_lambda, reg_alpha)
                    both += _score_of(gr, hr, right, reg_lambda, reg_alpha)
                    allowed &= (right - left) * signs[f] >= 0.0
                gain[b] = both - root if allowed else 0.0
            for b in range(begin, end):
                top = max(top, gain[b])
            if top < best_gain or top == 0.0:
                continue
            for b in range(begin, end):
                if gain[b] == top:
                    if top > best_gain or (f == best_feature and b < best_bin):
                        best_gain, best_feature, best_bin = top, f, b
                        best_missing_left = missing_left == 1
                        best_left_gradient = gradient[b] + absent_gradient * missing_left
                        best_left_hessian = hessian[b] + absent_hessian * missing_left
                    break
    return best_gain, best_feature, best_bin, best_missing_left, best_left_gradient, best_left_hessian


@loop
def best_gains(
    histogram, offsets, value_bins, missing, categorical, factors, penalties, max_categories, total
):
    """The highest gain of a split by each feature alone, 0 where none gains: float64 [F]. As `best_split`."""
    out = np.zeros(offsets.size, np.float64)
    for f in range(offsets.size):
        own = slice(f, f + 1)
        feature = offsets[own], value_bins[own], missing[own], categorical[own]
        out[f] = best_split(histogram, *feature, factors, penalties, max_categories, total, None)[0]
    return out
