"""Naive references of `fedboost.gbdt.kernels.split`."""

from tests.gbdt.reference.split import candidates, score, ways_to_part


def goes_right(feature, place, missing_left, pooled_pairs, categorical, rule):
    """The bins of a feature that go right, the missing one behind the others."""
    size = len(pooled_pairs)
    right = [*range(place + 1, size)]
    if categorical[feature]:
        right = ways_to_part(pooled_pairs, *rule)[1][place]
    return {*right, *(() if missing_left else (size,))}


def gain(left, right, factors, penalties):
    """The gain of a split of one leaf, or None where it may not be split so."""
    (gl, hl), (gr, hr) = [(g / factors[0], h / factors[1]) for g, h in (left, right)]
    reg_lambda, reg_alpha, min_child_weight, step = penalties
    if min(hl, hr) < min_child_weight or min(hl, hr) <= 0:
        return None
    whole = (left[0] + right[0]) / factors[0], (left[1] + right[1]) / factors[1]
    shrinks = reg_lambda, reg_alpha, step
    return score(gl, hl, *shrinks) + score(gr, hr, *shrinks) - score(*whole, *shrinks)


def shared_split(histograms, value_bins, missing, categorical, factors, penalties, most_levels, above, least):
    """Of each leaf (gain, feature, bin, missing left, left gradient, left hessian), or None where it is not
    split; histograms: int64 [leaves, 2 T]."""
    kinds, rule = (value_bins, missing, categorical), (factors, penalties, most_levels)
    starts, bins = [0], (value_bins + missing).tolist()
    for width in bins:
        starts.append(starts[-1] + width)

    def pairs(cells, feature, count):
        first = starts[feature]
        return [(int(cells[2 * b]), int(cells[2 * b + 1])) for b in range(first, first + count)]

    best, found = 0.0, [None] * len(histograms)
    pooled = histograms.sum(axis=0)
    for feature, place, missing_left, *_ in candidates(pooled, *kinds, *rule):
        of_all = pairs(pooled, feature, int(value_bins[feature]))
        right = goes_right(feature, place, missing_left, of_all, categorical, rule)
        splits = []
        for cells in histograms:
            own = pairs(cells, feature, bins[feature])
            sides = [
                tuple(
                    sum(pair[stat] for b, pair in enumerate(own) if (b in right) == side) for stat in (0, 1)
                )
                for side in (False, True)
            ]
            gained = gain(*sides, factors, penalties)
            split = None if gained is None else (gained, feature, place, missing_left, *sides[0])
            splits.append(split)
        total = 0.0
        for split in splits:
            total += split[0] if split else 0.0
        if total > best:
            enough = total > above and total >= least * sum(split is not None for split in splits)
            best, found = total, splits if enough else [None] * len(histograms)
    return found
