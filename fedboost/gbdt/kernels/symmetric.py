"""Kernels of the splits of a level; in symmetric trees all its leaves have one."""

import numpy as np

from fedboost.gbdt.kernels.compile import elementwise, loop
from fedboost.gbdt.kernels.split import _LIST, _gains, _list_partitions, _lists, _order, _step, best_splits


@loop
def _list_all_bins(cells, absent, missing, code, sums, codes):
    """List the splits of a numeric feature, as `_list_bins`, but those after bins without rows, too: leaves
    of a level have theirs in different bins. missing: True if a value of any leaf is. Returns how many are
    listed."""
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
    """List the splits of a feature in one leaf: the same ones in the same order for all leaves of a level.

    cells: int64 [2 T], the histogram of the leaf; order, has: as of `_pool`; most: max_cat_threshold. Returns
    how many are listed."""
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
    """pooled = the sums of the bins of a feature over these leaves. Returns the order of its categories by
    these sums (`_order`), empty for a numeric feature; and True if a value of any leaf is missing."""
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
    """True if a leaf may be split into children of these sums."""
    reg_lambda, reg_alpha, least, step = penalties
    gl, hl, gr, hr = left[0] * units[0], left[1] * units[1], right[0] * units[0], right[1] * units[1]
    low = _step(gl, hl, reg_lambda, reg_alpha, step, bounds[0], bounds[1])
    high = _step(gr, hr, reg_lambda, reg_alpha, step, bounds[0], bounds[1])
    heavy = (hl >= least) & (hr >= least) & (hl > 0.0) & (hr > 0.0)
    return heavy & ((high - low) * sign >= 0.0)


@loop
def _find(leaves, histograms, features, layout, rule, signs, lists, pooled):
    """(sum of gains, code) of the split of highest sum over these leaves, the first of them; code -1 if none
    is above 0."""
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
        for leaf in leaves:
            cells, total, bounds = (
                histograms[leaf.slot],
                (leaf.gradient, leaf.hessian),
                (leaf.lower, leaf.upper),
            )
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
    """Give these leaves the split of this code, with the gain and the sums of each; feature -1 to a leaf that
    may not be split by it, and pooled the sums of its feature. Returns how many may."""
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
    """Give the leaves of a level (`LEAF`) one split for each root: that of the highest sum of gains.

    In a leaf that a split may not part, for min_child_weight or a constraint, its gain counts as 0, and the
    leaf stays one: its feature is -1. A level is split if the sum of gains exceeds `above`, and is at least
    `least` for each leaf that is split. Ties go as in `best_split`.

    leaves: those of a root one behind the other; pooled: int64 [roots, 2 * 256 + 2], room for the sums of the
    split's feature over the leaves of each root, from which the order of its categories is
    (`categories_right`); otherwise as in `best_splits`, with the same features allowed for all leaves of a
    root."""
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
    """Give the leaves of a level their splits, or the feature -1 where these do not gain enough: more than
    `above`, and at least `least`.

    sums: histograms, and room as in `shared_splits`, or empty where each leaf has a split of its own
    (`best_splits`); otherwise as these."""
    histograms, pooled = sums
    asked = histograms, allowed, layout, factors, penalties, max_categories, signs
    if pooled.size:
        shared_splits(leaves, *asked, above, least, pooled)
        return
    best_splits(leaves, *asked)
    for leaf in leaves:
        if not (leaf.gain > above and leaf.gain >= least):
            leaf.feature = -1
