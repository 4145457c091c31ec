"""A naive reference of `fedboost.gbdt.kernels.predict`."""

import math
from fractions import Fraction
from itertools import combinations

from tests.gbdt.reference.predict import goes_left


def shapley_values(row, tree, group=None):
    """What each group of features adds to the value a row gets from a tree, and what a row gets of which
    nothing is known: the definition of Shapley's values, in fractions. `tree`: as above, each node with its
    cover at the end. group: that of each feature; without it each feature is one.
    """
    group = range(len(row)) if group is None else group

    def value(known, number=0):
        left, right, feature, threshold, default_left, leaf, _ = tree[number]
        if left < 0:
            return Fraction(leaf)
        if group[feature] in known:
            return value(known, left if goes_left(row[feature], threshold, default_left) else right)
        covers = Fraction(tree[left][6]), Fraction(tree[right][6])
        share = covers[0] / sum(covers) if sum(covers) else Fraction(1, 2)
        return share * value(known, left) + (1 - share) * value(known, right)

    features = max(group) + 1
    out = []
    for feature in range(features):
        others = [other for other in range(features) if other != feature]
        total = Fraction(0)
        for count in range(features):
            orders = math.factorial(count) * math.factorial(features - 1 - count)
            for known in combinations(others, count):
                total += orders * (value({*known, feature}) - value(known))
        out.append(total / math.factorial(features))
    return [*out, value(())]
