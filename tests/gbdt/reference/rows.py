"""Naive references of `fedboost.gbdt.kernels.rows`: a tree that grows as rows by leaf."""


def goes_left(code, split, codes):
    """True if a split sends a code left. split: (node, feature, bin, missing_left, left, categories); codes:
    (values, missing, categorical) of the feature."""
    _, _, bin_, missing_left, _, categories = split
    values, missing, categorical = codes
    if missing and code == values:
        return bool(missing_left)
    return not categories >> code & 1 if categorical else code <= bin_


def split(rows_of, splits, by_feature, kinds):
    """The rows of each leaf after the splits, a tuple as above each."""
    rows_of = dict(rows_of)
    for each in splits:
        node, feature, _, _, left, _ = each
        rows, codes = rows_of.pop(node), by_feature[feature]
        sides = [goes_left(int(codes[row]), each, kinds[feature]) for row in rows]
        rows_of[left] = [row for row, side in zip(rows, sides, strict=True) if side]
        rows_of[left + 1] = [row for row, side in zip(rows, sides, strict=True) if not side]
    return rows_of
