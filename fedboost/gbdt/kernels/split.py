"""Split kernels: the best split of each leaf of a level, from its histogram.

The candidate splits of a leaf are listed in order of their priority in a tie. Then all gains are computed,
and the first candidate with the highest gain is chosen. A candidate has the code

    feature << 10 | bin or partition << 1 | (1 if missing values go left)

Ties go to the lowest feature, then the lowest bin, then to missing values going right. For a categorical
feature they go to the lowest partition (see `categories_right`), then to missing values going left.

In this module, `factors` are the units per 1.0 of gradients and hessians, `penalties` are reg_lambda,
reg_alpha, min_child_weight and max_delta_step (infinite if unlimited), `max_categories` are max_cat_to_onehot
and max_cat_threshold, and `layout` contains the first four arrays of a `Layout`: offsets, uint32 [F],
value_bins, int64 [F], missing and categorical, bool [F]."""

import numpy as np

from fedboost.gbdt.kernels import elementwise, loop
from fedboost.gbdt.kernels.bins import MAX_CODES

# The lowest 10 bits of a code are 9 for the bin or partition, which is at most MAX_CODES = 256, and one for
# missing values. In an int32 this leaves room for 2**21 features.
_TOGETHER = 512
"""Gains are computed as soon as this many candidates are listed, so that the list stays in the cache."""
# Gains are computed once the list has _TOGETHER candidates. One more feature adds at most 2 for each code.
_LIST = _TOGETHER + 2 * (MAX_CODES + 1)
_NARROW, _MAGIC = np.int64(1) << 51, np.int64(0x4338000000000000)
_MAGIC_FLOAT = 6755399441055744.0
"""The bits of the float _MAGIC_FLOAT + i are _MAGIC + i if |i| < _NARROW. Unlike a cast, this conversion of
integers is vectorised."""


@elementwise
def _soft_threshold(gradient, reg_alpha):
    """Return the gradient, soft-thresholded at reg_alpha."""
    # XGBoost's ThresholdL1, sign(G) max(|G| - alpha, 0): the loss G w + (H + lambda) w**2 / 2 + alpha |w| is
    # least at w = -T(G) / (H + lambda).
    above, below = gradient - reg_alpha, gradient + reg_alpha
    return above if above > 0.0 else (below if below < 0.0 else 0.0)


@elementwise
def _score(gradient, hessian, reg_lambda, reg_alpha, max_delta_step):
    """Return twice the loss reduction of a leaf: T(G)**2 / (H + lambda), where T is the soft threshold at
    alpha. The result is lower if the best step exceeds max_delta_step."""
    # T. Chen and C. Guestrin, "XGBoost: A scalable tree boosting system", KDD 2016, equation 6, without its
    # 1/2. If the best step is longer than s = max_delta_step, the leaf takes the step s in the same
    # direction, which reduces twice the loss by 2 |T| s - (H + lambda) s**2. An infinite s gives limit = inf,
    # or NaN for h = 0, and neither is ever exceeded.
    g = _soft_threshold(gradient, reg_alpha)
    h = hessian + reg_lambda
    best = g * g / h if h > 0.0 else 0.0
    limit = max_delta_step * h
    beyond = (h > 0.0) & (abs(g) > limit)
    return max_delta_step * (2.0 * abs(g) - limit) if beyond else best


@loop
def _order_categories(cells, factors, penalties):
    """Sort the categories of a feature by the leaf value that each would have, lowest first: int64 [B].

    cells: int64 [2 B], sums of the B categories. The sort is stable. As in XGBoost, a category that has no
    rows, or a sum of hessians below min_child_weight, has the value 0."""
    reg_lambda, reg_alpha, min_child_weight, _ = penalties
    g_unit, h_unit = 1.0 / factors[0], 1.0 / factors[1]
    order, values = np.empty(cells.size // 2, np.int64), np.empty(cells.size // 2, np.float64)
    for category in range(order.size):
        hessian, value = cells[2 * category + 1] * h_unit, 0.0
        if hessian >= min_child_weight and hessian > 0.0:
            value = -_soft_threshold(cells[2 * category] * g_unit, reg_alpha) / (hessian + reg_lambda)
        values[category] = value
    # With B categories there are 2**(B - 1) - 1 ways to divide them. Without penalties, the best one is
    # contiguous in this order (W. D. Fisher, "On grouping for maximum homogeneity", 1958), so that B - 1
    # candidates suffice. With penalties this is a heuristic, and the same one as XGBoost's.
    # Of equal values the earlier category gets the lower rank (<= before, < after), so ranks are a
    # permutation.
    for category in range(order.size):  # counting ranks needs no branch prediction, unlike sorting
        value, rank = values[category], 0
        for other in values[:category]:
            rank += np.int64(other <= value)
        for other in values[category + 1 :]:
            rank += np.int64(other < value)
        order[rank] = category
    return order


@loop
def categories_right(cells, partition, one_hot, factors, penalties):
    """Return the categories that go right in a partition of a categorical feature, int64.

    If one_hot, partition b sends category b right, and the partition after the last category sends all of
    them right. Otherwise partition b sends the first b + 1 categories right, in the order of their leaf
    values (`_order_categories`).

    Args:
        cells: int64 [2 B], sums of the feature's categories.
        partition: number of the partition.
        one_hot: whether a split separates a single category.
        factors, penalties: see the module docstring.
    """
    if one_hot:
        last = partition >= cells.size // 2
        return np.arange(cells.size // 2) if last else np.arange(partition, partition + 1)
    return _order_categories(cells, factors, penalties)[: partition + 1]


@loop
def _order(cells, max_categories, factors, penalties):
    """Return the order of the categories (`_order_categories`), or an empty array if the feature is split
    one-hot."""
    if cells.size // 2 < max_categories[0]:
        return np.empty(0, np.int64)
    return _order_categories(cells, factors, penalties)


@loop
def _sum_categories(cells, order, gradient, hessian):
    """Write the sums over the categories that go left in each partition to `gradient` and `hessian`, int64 [B
    + 1]. order: result of `_order`."""
    #     one-hot      entry b < B: all but category b        entry B: none
    #     by order     entry b < B: all but the first b + 1   entry B: not used, as entry B - 1 is none
    # An entry with none left separates present from missing values.
    categories = cells.size // 2
    total_gradient, total_hessian = 0, 0
    for category in range(categories):
        total_gradient += cells[2 * category]
        total_hessian += cells[2 * category + 1]
    gradient[categories], hessian[categories] = 0, 0
    if order.size == 0:
        for category in range(categories):
            gradient[category] = total_gradient - cells[2 * category]
            hessian[category] = total_hessian - cells[2 * category + 1]
        return
    for partition in range(categories):
        total_gradient -= cells[2 * order[partition]]
        total_hessian -= cells[2 * order[partition] + 1]
        gradient[partition], hessian[partition] = total_gradient, total_hessian


@elementwise
def _step(gradient, hessian, reg_lambda, reg_alpha, max_delta_step, lower, upper):
    """Return the best value of a leaf, before the learning rate, between `lower` and `upper`."""
    h = hessian + reg_lambda
    best = -_soft_threshold(gradient, reg_alpha) / h if h > 0.0 else 0.0
    best = min(max(best, -max_delta_step), max_delta_step)
    return min(max(best, lower), upper)


@elementwise
def _score_of(gradient, hessian, step, reg_lambda, reg_alpha):
    """Return twice the loss reduction of a leaf with the value `step`."""
    return -(2.0 * gradient * step + (hessian + reg_lambda) * step * step + 2.0 * reg_alpha * abs(step))


@loop
def _list_bins(cells, absent, code, shift, sums, codes, count):
    """Append the splits of a numeric feature to a list of `count` splits. Returns the new number. Splits are
    listed by increasing bin. For each bin, the split that sends missing values right comes before the one
    that sends them left. Bins without rows are omitted, since a split after such a bin equals the split after
    the bin below.

    cells: int64 [2 B]; absent: sums over the missing values; shift: added to the sums; sums: int64 [2, list],
    receives the sums that go left; codes: int32 [list], receives code + 2 * bin + (1 if missing values go
    left)."""
    # For example, with R or L for missing values right or left:
    #     bin           0       1       2       3       missing
    #     rows          5       0       2       4       3
    #     candidates    0R 0L   -       2R 2L   3R
    # 3L would send all rows left, and R and L are the same split if no value is missing.
    gradients, hessians = sums[0], sums[1]
    gradient, hessian, last = shift, shift, cells.size // 2 - 1
    if absent[0] == 0 and absent[1] == 0:
        # A candidate is always written, and kept only if the count moves on: the next one overwrites an empty
        # bin. Without missing values only "right" is listed, so that is their default direction.
        for b in range(last):
            g, h = cells[2 * b], cells[2 * b + 1]
            gradient += g
            hessian += h
            gradients[count], hessians[count], codes[count] = gradient, hessian, code + 2 * b
            count += np.int64((g | h) != 0)
        return count
    for b in range(last + 1):
        g, h = cells[2 * b], cells[2 * b + 1]
        gradient += g
        hessian += h
        gradients[count], hessians[count], codes[count] = gradient, hessian, code + 2 * b
        gradients[count + 1], hessians[count + 1] = gradient + absent[0], hessian + absent[1]
        codes[count + 1] = code + 2 * b + 1
        # The first bin is kept even if empty: with missing values left it separates these from all others.
        count += 2 * np.int64((g | h) != 0 or b == 0)
    # The last bin separates present from missing values, so it is listed only with missing right.
    if count and codes[count - 1] == code + 2 * last + 1:
        count -= 1
    return count


@loop
def _list_partitions(cells, absent, missing, order, most, code, shift, sums, codes, count):
    """Append the splits of a categorical feature to a list of `count` splits. Returns the new number. Splits
    are listed by increasing partition. For each partition, the split that sends missing values left comes
    before the one that sends them right.

    missing: whether any value is missing; order: result of `_order`; most: max_cat_threshold. The other
    arguments are as in `_list_bins`."""
    bins, one_hot = cells.size // 2, order.size == 0
    reach = bins if one_hot else min(bins, most)
    gradient, hessian = np.empty(bins + 1, np.int64), np.empty(bins + 1, np.int64)
    _sum_categories(cells, order, gradient, hessian)
    usual = bins - 1 + np.int64(one_hot)
    # The last partition separates the present from the missing: tried only with both.
    # One side has fewer than max_cat_threshold categories (`reach`): the right one of the first partitions,
    # with missing values left, or the left one of the last partitions, with missing values right.
    for b in range(usual + np.int64(missing and reach == bins)):
        if reach == bins or b < reach - 1:
            sums[0, count], sums[1, count] = shift + gradient[b] + absent[0], shift + hessian[b] + absent[1]
            codes[count] = code + 2 * b + 1
            count += 1
        if b < usual and b >= bins - reach and (missing or reach < bins):
            sums[0, count], sums[1, count] = shift + gradient[b], shift + hessian[b]
            codes[count] = code + 2 * b
            count += 1
    return count


@loop
def _gains(sums, count, total, units, penalties, bounds, constrained, sign, shift, gains, above):
    """Write the gain of each listed split, or 0 if the split is not allowed. Returns the highest gain, its
    bits as an integer, and the index of the first split with this gain. The index is -1 if the bits do not
    exceed `above`.

    bounds: lower and upper bound of leaf values below the node, before the learning rate; sign: the feature's
    monotone constraint, 1, -1 or 0. Both apply only if `constrained`. The loops have no branches, so that
    they are vectorised."""
    # The gain is score(left) + score(right) - score(parent), equation 7 of the paper above, again without
    # 1/2. The sums of the right child are differences of integers, or in the last loop of floats below 2**52
    # that are integers: they are exact, and cannot overflow, as they are sums over some rows of the node.
    reg_lambda, reg_alpha, min_child_weight, step = penalties
    g_unit, h_unit = units
    gradients, hessians, shifted = sums[0, :count], sums[1, :count], sums.view(np.float64)
    g, h = total[0] * g_unit, total[1] * h_unit
    if constrained:
        own = _step(g, h, reg_lambda, reg_alpha, step, bounds[0], bounds[1])
        root = _score_of(g, h, own, reg_lambda, reg_alpha)
    else:
        root = _score(g, h, reg_lambda, reg_alpha, step)
    if constrained:
        for i in range(count):
            gl, hl = gradients[i] * g_unit, hessians[i] * h_unit
            gr, hr = (total[0] - gradients[i]) * g_unit, (total[1] - hessians[i]) * h_unit
            allowed = (hl >= min_child_weight) & (hr >= min_child_weight) & (hl > 0.0) & (hr > 0.0)
            left = _step(gl, hl, reg_lambda, reg_alpha, step, bounds[0], bounds[1])
            right = _step(gr, hr, reg_lambda, reg_alpha, step, bounds[0], bounds[1])
            both = _score_of(gl, hl, left, reg_lambda, reg_alpha)
            both += _score_of(gr, hr, right, reg_lambda, reg_alpha)
            allowed &= (right - left) * sign >= 0.0
            gains[i] = both - root if allowed else 0.0
    elif shift == 0:
        for i in range(count):
            gl, hl = gradients[i] * g_unit, hessians[i] * h_unit
            gr, hr = (total[0] - gradients[i]) * g_unit, (total[1] - hessians[i]) * h_unit
            allowed = (hl >= min_child_weight) & (hr >= min_child_weight) & (hl > 0.0) & (hr > 0.0)
            both = _score(gl, hl, reg_lambda, reg_alpha, step)
            both += _score(gr, hr, reg_lambda, reg_alpha, step)
            gains[i] = both - root if allowed else 0.0
    else:
        # The same floats as in the loop above, for the penalties that `_best` calls simple: reg_alpha = 0
        # makes the soft threshold the identity, and h > 0 holds wherever a gain is allowed. Elsewhere a
        # division by 0 gives NaN or infinity, which the last line discards.
        # The list was summed from _MAGIC on: seen as float64 the sums are _MAGIC_FLOAT + i, and the
        # subtraction is exact.
        left_gradients, left_hessians = shifted[0, :count], shifted[1, :count]
        for i in range(count):
            gradient, hessian = left_gradients[i] - _MAGIC_FLOAT, left_hessians[i] - _MAGIC_FLOAT
            gl, hl = gradient * g_unit, hessian * h_unit
            gr, hr = (total[0] - gradient) * g_unit, (total[1] - hessian) * h_unit
            allowed = (hl >= min_child_weight) & (hr >= min_child_weight) & (hl > 0.0) & (hr > 0.0)
            both = gl * gl / (hl + reg_lambda) + gr * gr / (hr + reg_lambda)
            gains[i] = both - root if allowed else 0.0
    # The bits of positive floats are in the order of the floats; those of negative ones are below 0. A later
    # call must exceed `above` strictly, and the first place is taken: ties go to the candidate listed first.
    bits, top_bits = gains.view(np.int64), np.int64(0)
    for i in range(count):
        top_bits = max(top_bits, bits[i])
    if top_bits <= above:
        return 0.0, above, -1
    place = 0
    while bits[place] != top_bits:
        place += 1
    return gains[place], top_bits, place


@loop
def _best(cells, allowed, layout, factors, penalties, max_categories, total, largest, bounds, signs, lists):
    """Find the split with the highest gain for one node, like `best_split`. Returns the same values.

    allowed: bool [F], features that may split, or empty if all may; largest: bound for the sums of bins;
    signs: int64 [F], monotone constraints, or empty; lists: arrays for the list of splits (`_lists`)."""
    offsets, value_bins, missing, categorical = layout
    sums, codes, gains = lists
    units = 1.0 / factors[0], 1.0 / factors[1]  # powers of two: exact, and faster than dividing
    features, constrained = offsets.size, signs.size > 0
    simple = not constrained and penalties[1] == 0.0 and penalties[3] == np.inf
    # The float _MAGIC_FLOAT is 1.5 * 2**52, in the middle of the floats that are 1 apart: 2**52 to 2**53.
    # Adding an integer i with |i| < 2**51 stays among them and changes only the lowest bits, so an int64
    # addition to the bits does the same as a float addition. Partial sums are over some rows of the node, so
    # that `largest` bounds them, too.
    shift = _MAGIC if simple and largest < _NARROW else np.int64(0)
    best_gain, best_feature, best_bin, best_missing_left = 0.0, np.int64(-1), np.int64(-1), False
    left_gradient, left_hessian = np.int64(0), np.int64(0)
    top, sign, count = np.int64(0), np.int64(0), 0
    for f in range(features):
        if allowed.size == 0 or allowed[f]:
            first = np.int64(offsets[f])
            end = first + value_bins[f]
            absent = (np.int64(0), np.int64(0))
            if missing[f]:
                absent = (cells[2 * end], cells[2 * end + 1])
            own, code = cells[2 * first : 2 * end], f << 10
            if categorical[f]:
                order, has = _order(own, max_categories, factors, penalties), absent != (0, 0)
                most = max_categories[1]
                count = _list_partitions(own, absent, has, order, most, code, shift, sums, codes, count)
            else:
                count = _list_bins(own, absent, code, shift, sums, codes, count)
            if constrained:
                sign = signs[f]
        # Features share a list, as one with few candidates would leave vectors half empty. With constraints
        # each has its own sign, and so its own list. `top` carries over: a later list must exceed it.
        if count >= _TOGETHER or f == features - 1 or constrained:
            gain, top, at = _gains(
                sums, count, total, units, penalties, bounds, constrained, sign, shift, gains, top
            )
            if at >= 0:
                best_gain, best_feature, best_bin = gain, codes[at] >> 10, codes[at] >> 1 & 0x1FF
                best_missing_left = codes[at] & 1 == 1
                left_gradient, left_hessian = sums[0, at] - shift, sums[1, at] - shift
            count = 0
    return best_gain, best_feature, best_bin, best_missing_left, left_gradient, left_hessian


@loop
def _lists():
    """Allocate the arrays for a list of splits: sums that go left, codes and gains."""
    return np.empty((2, _LIST), np.int64), np.empty(_LIST, np.int32), np.empty(_LIST, np.float64)


@loop
def best_split(
    histogram, offsets, value_bins, missing, categorical, factors, penalties, max_categories, total, limits
):
    """Find the split with the highest gain for one node. Ties are broken as described in the module
    docstring.

    Args:
        histogram: int64 [2 T].
        offsets: uint32 [F], first bin of each feature.
        value_bins: int64 [F], number of bins, not including a bin for missing values.
        missing: bool [F], True if a bin for missing values follows the value bins.
        categorical: bool [F], True if the bins are categories, of which a split sends a subset right.
        factors, penalties: see the module docstring.
        max_categories: two numbers. Features with fewer categories than the first are split one-hot. In a
            split of any other feature, one side has either fewer categories than the second, or all
            categories.
        total: sums of gradients and hessians of the node.
        limits: None, or a tuple: lower and upper bound of leaf values below the node, before the learning
            rate; and monotone constraints, int64 [F], each 1, -1 or 0.

    Returns:
        (gain, feature, bin, missing values go left, left gradient, left hessian). The feature is -1 if no
        split is allowed. For a categorical feature, the bin is the number of the partition
        (`categories_right`).
    """
    layout, largest = (offsets, value_bins, missing, categorical), max(abs(total[0]), abs(total[1]))
    gradients, hessians = 0, 0
    # The sum of positive gradients is not known here. The magnitudes of all bins bound any partial sum, too;
    # that they cover every feature makes the bound larger than needed, which may select the slower loop.
    for i in range(histogram.size // 2):
        gradients += abs(histogram[2 * i])
        hessians += abs(histogram[2 * i + 1])
    lower, upper, signs = -np.inf, np.inf, np.zeros(0, np.int64)
    if limits is not None:
        lower, upper, signs = limits
    largest = max(largest, gradients, hessians)
    features, rule = np.zeros(0, np.bool_), (factors, penalties, max_categories)
    return _best(histogram, features, layout, *rule, total, largest, (lower, upper), signs, _lists())


@loop
def best_splits(leaves, histograms, allowed, layout, factors, penalties, max_categories, signs):
    """Find the best split of each leaf, like `best_split`, and write it to the leaf's record (`LEAF`).

    Args:
        leaves: `LEAF` [L], updated in place.
        histograms: int64 [slots, 2 T].
        allowed: bool [L, F], features that may split each leaf; empty if all may.
        layout, factors, penalties, max_categories: see the module docstring.
        signs: int64 [F], monotone constraints, or empty.
    """
    rule, features, lists = (factors, penalties, max_categories), np.zeros(0, np.bool_), _lists()
    for i in range(leaves.size):
        leaf = leaves[i]
        if allowed.size:
            features = allowed[i]
        total, largest = (leaf.gradient, leaf.hessian), max(leaf.positive, leaf.hessian)
        # P, the sum of positive gradients, and P - G, the magnitude of the negative ones, bound every bin.
        largest, bounds = max(largest, leaf.positive - leaf.gradient), (leaf.lower, leaf.upper)
        best = _best(histograms[leaf.slot], features, layout, *rule, total, largest, bounds, signs, lists)
        leaf.gain, leaf.feature, leaf.bin = best[0], best[1], best[2]
        leaf.missing_left, leaf.left_gradient, leaf.left_hessian = best[3], best[4], best[5]


@loop
def best_gains(
    histogram, offsets, value_bins, missing, categorical, factors, penalties, max_categories, total
):
    """Return the highest gain of a split by each feature, 0 if there is none: float64 [F]. The arguments are
    as in `best_split`."""
    out = np.zeros(offsets.size, np.float64)
    for f in range(offsets.size):
        own, first = slice(f, f + 1), np.int64(offsets[f])
        cells = histogram[2 * first : 2 * (first + value_bins[f] + missing[f])]
        feature = np.zeros(1, np.uint32), value_bins[own], missing[own], categorical[own]
        out[f] = best_split(cells, *feature, factors, penalties, max_categories, total, None)[0]
    return out


# ---- Kernels for the splits of a level; in symmetric trees all its leaves share one ---------------------


@loop
def _list_all_bins(cells, absent, missing, code, sums, codes):
    """List the splits of a numeric feature like `_list_bins`, but include splits after bins without rows,
    since the leaves of a level have rows in different bins. Returns their number. missing: whether a value is
    missing in any leaf."""
    gradients, hessians = sums[0], sums[1]
    gradient, hessian, last, count = np.int64(0), np.int64(0), cells.size // 2 - 1, 0
    for b in range(last + np.int64(missing)):
        gradient += cells[2 * b]
        hessian += cells[2 * b + 1]
        gradients[count], hessians[count], codes[count] = gradient, hessian, code + 2 * b
        count += 1
        if missing and b < last:
            gradients[count], hessians[count] = gradient + absent[0], hessian + absent[1]
            codes[count] = code + 2 * b + 1
            count += 1
    return count


@loop
def _list_feature(cells, order, has, f, layout, most, sums, codes):
    """List the splits of a feature for one leaf, in the same order for all leaves of a level. Returns their
    number.

    cells: int64 [2 T], the leaf's histogram; order, has: results of `_pool`; most: max_cat_threshold."""
    offsets, value_bins, missing, categorical = layout
    first, code, zero = np.int64(offsets[f]), f << 10, 0
    end, absent = first + value_bins[f], (np.int64(0), np.int64(0))
    if missing[f]:
        absent = (cells[2 * end], cells[2 * end + 1])
    own = cells[2 * first : 2 * end]
    if categorical[f]:
        return _list_partitions(own, absent, has, order, most, code, np.int64(zero), sums, codes, zero)
    return _list_all_bins(own, absent, has, code, sums, codes)


@loop
def _pool(leaves, histograms, f, layout, rule, pooled):
    """Write the sums of a feature's bins over all these leaves to `pooled`. Returns the order of its
    categories by these sums (`_order`; empty for a numeric feature), and whether a value is missing in any
    leaf."""
    offsets, value_bins, missing, categorical = layout
    factors, penalties, max_categories = rule
    first, bins = 2 * np.int64(offsets[f]), value_bins[f]
    size = 2 * (bins + np.int64(missing[f]))
    pooled[: 2 * bins + 2] = 0
    for leaf in leaves:
        cells = histograms[leaf.slot]
        for i in range(size):
            pooled[i] += cells[first + i]
    order = np.empty(0, np.int64)
    if categorical[f]:
        order = _order(pooled[: 2 * bins], max_categories, factors, penalties)
    return order, pooled[2 * bins] != 0 or pooled[2 * bins + 1] != 0


@elementwise
def _may_part(left, right, units, penalties, bounds, sign):
    """Return True if a leaf may be split into children with these sums."""
    reg_lambda, reg_alpha, least, step = penalties
    gl, hl, gr, hr = left[0] * units[0], left[1] * units[1], right[0] * units[0], right[1] * units[1]
    low = _step(gl, hl, reg_lambda, reg_alpha, step, bounds[0], bounds[1])
    high = _step(gr, hr, reg_lambda, reg_alpha, step, bounds[0], bounds[1])
    heavy = (hl >= least) & (hr >= least) & (hl > 0.0) & (hr > 0.0)
    return heavy & ((high - low) * sign >= 0.0)


@loop
def _find(leaves, histograms, features, layout, rule, signs, lists, pooled):
    """Find the split with the highest sum of gains over these leaves. Returns the sum and the split's code,
    which is -1 if no sum is above 0."""
    factors, penalties, (_, most) = rule
    (sums, codes, gains), units = lists, (1.0 / factors[0], 1.0 / factors[1])
    totals, best, code = np.empty(_LIST, np.float64), 0.0, np.int64(-1)
    constrained, sign, zero = signs.size > 0, np.int64(0), np.int64(0)
    for f in range(layout[0].size):
        if features.size and not features[f]:
            continue
        order, has = _pool(leaves, histograms, f, layout, rule, pooled)
        totals[: 2 * (layout[1][f] + 1)] = 0.0
        count = 0
        if constrained:
            sign = signs[f]
        # `_list_feature` lists the same candidates in the same places for every leaf, so gains are added by
        # place. The leaves come in node order, so the float sum is the same in every run.
        for leaf in leaves:
            cells, total = histograms[leaf.slot], (leaf.gradient, leaf.hessian)
            bounds = (leaf.lower, leaf.upper)
            count = _list_feature(cells, order, has, f, layout, most, sums, codes)
            _gains(sums, count, total, units, penalties, bounds, constrained, sign, zero, gains, zero)
            for i in range(count):
                totals[i] += gains[i]
        for i in range(count):
            if totals[i] > best:
                best, code = totals[i], np.int64(codes[i])
    return best, code


@loop
def _assign(leaves, histograms, code, layout, rule, signs, lists, pooled):
    """Write the split of this code to the leaves' records, with each leaf's gain and sums. Returns the number
    of leaves that may be split; the feature of the others is -1. The sums of the feature's bins are written
    to `pooled`."""
    factors, penalties, (_, most) = rule
    (sums, codes, gains), units = lists, (1.0 / factors[0], 1.0 / factors[1])
    f, zero, parted = code >> 10, np.int64(0), 0
    constrained = signs.size > 0
    sign = signs[f] if constrained else zero
    order, has = _pool(leaves, histograms, f, layout, rule, pooled)
    for leaf in leaves:
        total, bounds = (leaf.gradient, leaf.hessian), (leaf.lower, leaf.upper)
        _list_feature(histograms[leaf.slot], order, has, f, layout, most, sums, codes)
        place = 0
        while codes[place] != code:
            place += 1
        left = (sums[0, place], sums[1, place])
        sums[0, 0], sums[1, 0] = left
        _gains(sums, 1, total, units, penalties, bounds, constrained, sign, zero, gains, zero)
        right = (total[0] - left[0], total[1] - left[1])
        may = _may_part(left, right, units, penalties, bounds, sign)
        parted += np.int64(may)
        leaf.feature = f if may else -1
        leaf.gain, leaf.bin, leaf.missing_left = gains[0], code >> 1 & 0x1FF, code & 1
        leaf.left_gradient, leaf.left_hessian = left
    return parted


@loop
def shared_splits(
    leaves, histograms, allowed, layout, factors, penalties, max_categories, signs, above, least, pooled
):
    """Find one split for all leaves of a level that have the same root, as in a symmetric tree: the split
    with the highest sum of gains. It is written to the leaves' records (`LEAF`).

    If min_child_weight or a constraint forbids the split in a leaf, the leaf has gain 0 and is not split (its
    feature is -1). The level is split if the sum of gains exceeds `above`, and is at least `least` times the
    number of split leaves. Ties are broken as in `best_split`.

    Args:
        leaves: `LEAF` [L], updated in place. Leaves of the same root are consecutive and have the same
            allowed features.
        histograms, allowed, layout, factors, penalties, max_categories, signs: as in `best_splits`.
        above, least: gain that must be exceeded, and gain that must be reached.
        pooled: int64 [roots, 2 * 256 + 2], receives the sums of the split's feature over the leaves of each
            root. They determine the order of its categories (`categories_right`).
    """
    rule, lists, begin = (factors, penalties, max_categories), _lists(), 0
    features = np.zeros(0, np.bool_)
    while begin < leaves.size:
        end, root = begin + 1, leaves[begin].root
        while end < leaves.size and leaves[end].root == root:
            end += 1
        own, room = leaves[begin:end], pooled[root]
        if allowed.size:
            features = allowed[begin]
        total, code = _find(own, histograms, features, layout, rule, signs, lists, room)
        parted = 0
        if code >= 0 and total > above:
            parted = _assign(own, histograms, code, layout, rule, signs, lists, room)
        if parted == 0 or total < least * parted:
            for leaf in own:
                leaf.feature = -1
        begin = end


@loop
def level_splits(leaves, sums, allowed, layout, factors, penalties, max_categories, signs, above, least):
    """Find the splits of a level's leaves and write them to the leaves' records (`LEAF`). The feature is -1
    if the gain does not exceed `above` or is less than `least`.

    Args:
        leaves: `LEAF` [L], updated in place.
        sums: histograms, int64 [slots, 2 T], and `pooled` as in `shared_splits`, or empty if each leaf has
            its own split.
        allowed, layout, factors, penalties, max_categories, signs: as in `best_splits`.
        above, least: gain to exceed, and gain to reach.
    """
    histograms, pooled = sums
    asked = histograms, allowed, layout, factors, penalties, max_categories, signs
    if pooled.size:
        shared_splits(leaves, *asked, above, least, pooled)
        return
    best_splits(leaves, *asked)
    for leaf in leaves:
        if not (leaf.gain > above and leaf.gain >= least):
            leaf.feature = -1
