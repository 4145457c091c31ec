"""Naive references of `fedboost.gbdt.kernels.split`."""

import math


def score(gradient, hessian, reg_lambda, reg_alpha, max_delta_step):
    """Twice the loss that the best step of at most max_delta_step takes away: -2 T s - (H + lambda) s**2."""
    shrunk, curve = max(abs(gradient) - reg_alpha, 0.0), hessian + reg_lambda
    if curve <= 0:
        return 0.0
    if shrunk <= max_delta_step * curve:
        return shrunk * shrunk / curve
    return max_delta_step * (2 * shrunk - max_delta_step * curve)


def ways_to_part(pairs, factors, penalties, most_levels):
    """Of the sums of the levels of a feature: whether one level goes right at a time, and which levels go
    right in each way to part them."""
    reg_lambda, reg_alpha, min_child_weight, _ = penalties
    every = [*range(len(pairs))]
    if len(pairs) < most_levels[0]:
        return True, [*([level] for level in every), every]

    def leaf_value(level):
        gradient, hessian = pairs[level][0] / factors[0], pairs[level][1] / factors[1]
        if hessian < min_child_weight or hessian <= 0:
            return 0.0
        return -math.copysign(max(abs(gradient) - reg_alpha, 0.0), gradient) / (hessian + reg_lambda)

    order = sorted(every, key=leaf_value)
    return False, [order[: way + 1] for way in every]


def candidates_by_level(pairs, absent, factors, penalties, most_levels):
    """(way, missing left, left gradient, left hessian) for each way to part levels that is tried."""
    one_hot, ways = ways_to_part(pairs, factors, penalties, most_levels)
    most = len(pairs) if one_hot else min(most_levels[1], len(pairs))
    for way, right in enumerate(ways):
        left = [level for level in range(len(pairs)) if level not in right]
        stays = tuple(sum(pairs[level][stat] for level in left) for stat in (0, 1))
        few = one_hot or most == len(pairs) or len(right) < most
        if few and (left or absent != (0, 0)):
            yield way, True, stays[0] + absent[0], stays[1] + absent[1]
        if (one_hot or len(left) < most) and left and (absent != (0, 0) or not few):
            yield way, False, *stays


def candidates(histogram, value_bins, missing, categorical, factors, penalties, most_levels):
    """Every way to part a node: (feature, bin, missing left, left gradient, left hessian)."""
    first = 0
    features = zip(value_bins.tolist(), missing.tolist(), categorical.tolist(), strict=True)
    for feature, (size, has_missing, by_level) in enumerate(features):
        pairs = [(int(histogram[2 * b]), int(histogram[2 * b + 1])) for b in range(first, first + size)]
        first += size
        absent = (0, 0)
        if has_missing:
            absent = int(histogram[2 * first]), int(histogram[2 * first + 1])
            first += 1
        if by_level:
            for one in candidates_by_level(pairs, absent, factors, penalties, most_levels):
                yield feature, *one
            continue
        for b in range(size):
            below = tuple(sum(stat) for stat in zip(*pairs[: b + 1], strict=True))
            last = b == size - 1
            if not last or absent != (0, 0):
                yield feature, b, False, *below
            if not last and absent != (0, 0):
                yield feature, b, True, below[0] + absent[0], below[1] + absent[1]


def best_split(histogram, value_bins, missing, categorical, factors, penalties, most_levels, total):
    reg_lambda, reg_alpha, min_child_weight, step = penalties
    root = score(total[0] / factors[0], total[1] / factors[1], reg_lambda, reg_alpha, step)
    found = []
    kinds = value_bins, missing, categorical
    tried = candidates(histogram, *kinds, factors, penalties, most_levels)
    for feature, b, missing_left, g_left, h_left in tried:
        gl, hl = g_left / factors[0], h_left / factors[1]
        gr, hr = (total[0] - g_left) / factors[0], (total[1] - h_left) / factors[1]
        if min(hl, hr) < min_child_weight or min(hl, hr) <= 0:
            continue
        children = [score(g, h, reg_lambda, reg_alpha, step) for g, h in ((gl, hl), (gr, hr))]
        gain = sum(children) - root
        if gain > 0:
            last = missing_left != bool(categorical[feature])  # of two directions that gain the same
            found.append((-gain, feature, b, last, missing_left, g_left, h_left))
    if not found:
        return 0.0, -1, -1, False, 0, 0
    gain, feature, b, _, *rest = min(found)
    return -gain, feature, b, *rest
