"""Kernels of splits: the best split of a node from its histogram."""

import numpy as np

from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.compile import elementwise, loop


@elementwise
def _shrunk(gradient, reg_alpha):
    """The soft threshold at alpha."""
    above, below = gradient - reg_alpha, gradient + reg_alpha
    return above if above > 0.0 else (below if below < 0.0 else 0.0)


@elementwise
def _score(gradient, hessian, reg_lambda, reg_alpha, max_delta_step):
    """The loss a leaf takes away, doubled: T(G)**2 / (H + lambda), T the soft threshold at alpha; less where
    the step would be beyond max_delta_step."""
    shrunk = _shrunk(gradient, reg_alpha)
    curve = hessian + reg_lambda
    best = shrunk * shrunk / curve if curve > 0.0 else 0.0
    most = max_delta_step * curve
    beyond = (curve > 0.0) & (abs(shrunk) > most)
    return max_delta_step * (2.0 * abs(shrunk) - most) if beyond else best


@loop
def _order_levels(cells, factors, penalties):
    """The levels of a feature by the value a leaf of each alone would have, lowest first: int64 [B].

    cells: int64 [2 B], their sums. Equal ones stay in their order. A level with less than min_child_weight,
    or with no rows, has the value 0, as in XGBoost.
    """
    reg_lambda, reg_alpha, min_child_weight, _ = penalties
    g_unit, h_unit = 1.0 / factors[0], 1.0 / factors[1]
    order, values = np.empty(cells.size // 2, np.int64), np.empty(cells.size // 2, np.float64)
    for level in range(order.size):
        hessian, value = cells[2 * level + 1] * h_unit, 0.0
        if hessian >= min_child_weight and hessian > 0.0:
            value = -_shrunk(cells[2 * level] * g_unit, reg_alpha) / (hessian + reg_lambda)
        values[level] = value
    for level in range(order.size):  # counting has no branch that must be foreseen, as sorting has
        value, place = values[level], 0
        for other in values[:level]:
            place += np.int64(other <= value)
        for other in values[level + 1 :]:
            place += np.int64(other < value)
        order[place] = level
    return order


@loop
def categories_right(cells, way, one_hot, factors, penalties):
    """The levels that go right in one way to part them, in increasing number or that of `_order_levels`.

    One-hot: way b sends level b right, and the way after the last all. Else way b sends the first b + 1.
    """
    if one_hot:
        return np.arange(way, way + 1) if way < cells.size // 2 else np.arange(cells.size // 2)
    return _order_levels(cells, factors, penalties)[: way + 1]


@loop
def _sum_levels(cells, one_hot, factors, penalties, gradient, hessian):
    """gradient, hessian = the sums of the levels that stay left, for each way to part them: int64 [B + 1]."""
    levels = cells.size // 2
    all_gradient, all_hessian = 0, 0
    for level in range(levels):
        all_gradient += cells[2 * level]
        all_hessian += cells[2 * level + 1]
    gradient[levels], hessian[levels] = 0, 0
    if one_hot:
        for level in range(levels):
            gradient[level] = all_gradient - cells[2 * level]
            hessian[level] = all_hessian - cells[2 * level + 1]
        return
    order = _order_levels(cells, factors, penalties)
    for way in range(levels):
        all_gradient -= cells[2 * order[way]]
        all_hessian -= cells[2 * order[way] + 1]
        gradient[way], hessian[way] = all_gradient, all_hessian


@elementwise
def _step(gradient, hessian, reg_lambda, reg_alpha, max_delta_step, lower, upper):
    """The best value of a leaf, before the learning rate, from `lower` to `upper`."""
    best = -_shrunk(gradient, reg_alpha) / (hessian + reg_lambda) if hessian + reg_lambda > 0.0 else 0.0
    best = min(max(best, -max_delta_step), max_delta_step)
    return min(max(best, lower), upper)


@elementwise
def _score_of(gradient, hessian, step, reg_lambda, reg_alpha):
    """The loss a leaf of this value takes away, doubled."""
    return -(2.0 * gradient * step + (hessian + reg_lambda) * step * step + 2.0 * reg_alpha * abs(step))


@loop
def best_split(
    histogram, offsets, value_bins, missing, categorical, factors, penalties, most_levels, total, limits
):
    """The split of highest gain of one node; ties go to the lowest feature, then bin, then missing right.

    histogram: int64 [2 T]; value_bins: int64 [F], bins without the missing one; missing: bool [F], whether a
    missing bin follows them; categorical: bool [F], whether the bins are levels, of which a split sends some
    right; factors: units per 1.0 of gradient and hessian; penalties: reg_lambda, reg_alpha, min_child_weight,
    max_delta_step (infinite for none); most_levels: features of fewer levels than the first split one level
    from all others, a side of other splits has fewer than the second, or all; total: the node's own two sums;
    limits: None, or the least and the largest value of leaves below this node, before the learning rate, and
    int64 [F], 1 for a feature with which they may not fall, -1 for one with which they may not rise.
    Returns (gain, feature, bin, missing goes left, left gradient, left hessian); feature -1 if none. For a
    categorical feature the bin is the number of the way to part its levels, see `categories_right`, and equal
    gains send missing values left: with the levels that are not chosen.
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
        # What goes left in each way to part the bins, but for missing values.
        ways = reach = bins
        if categorical[f]:
            one_hot = bins < most_levels[0]
            _sum_levels(cells, one_hot, factors, penalties, gradient, hessian)
            if one_hot:
                ways += 1
            else:
                reach = min(bins, most_levels[1])
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
            # The last way parts the present from the missing: tried only with both.
            begin, end = 0, ways if directions == 2 and direction == 0 else ways - 1
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
def best_gains(histogram, offsets, value_bins, missing, categorical, factors, penalties, most_levels, total):
    """The highest gain of a split by each feature alone, 0 where none gains: float64 [F]. As `best_split`."""
    out = np.zeros(offsets.size, np.float64)
    for f in range(offsets.size):
        one = slice(f, f + 1)
        of = offsets[one], value_bins[one], missing[one], categorical[one]
        out[f] = best_split(histogram, *of, factors, penalties, most_levels, total, None)[0]
    return out
