"""Kernel of prediction: margins of rows from the columns of all trees."""

import numpy as np

from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.compile import loop

_PREDICTED = 128
"""Rows that go down a tree together."""


@loop
def predict_margins(
    features, roots, left, right, feature, threshold, default_left, value, set_of, sets, margin
):
    """Add to margin the leaf value of every tree, tree after tree, for float32 features [N, F].

    The trees stand one after the other in the node columns; `roots` [trees] is the first node of each, and
    child numbers, higher than their parent's, count from there. A leaf has left = -1. set_of: uint64, the row
    of `sets` that has the categories a node sends right; sets: uint64 [S, 4], bit c of the 256 is set for
    category c. A node with a threshold has row 0, which is empty, one with categories NaN for a threshold. A
    value that is no category goes left, as in XGBoost.

    A block of rows goes down a tree together, level by level: the walks of different rows do not wait for
    each other, no branch has to be predicted, and the tree stays in the cache. The loops are one function of
    over 60 lines on purpose: each variable is shared by all of them.
    """
    nodes, rows = left.size, features.shape[0]
    child = np.empty(2 * nodes, np.uint32)  # next node: left, right; a leaf is its own
    column = feature.astype(np.uint32)
    depth = np.zeros(nodes, np.int32)
    deepest = np.zeros(roots.size, np.int32)
    has_sets = np.zeros(roots.size, np.bool_)
    for t in range(roots.size):
        root = roots[t]
        for node in range(root, roots[t + 1] if t + 1 < roots.size else nodes):
            has_sets[t] |= set_of[node] > 0
            child[2 * node] = child[2 * node + 1] = node
            if left[node] >= 0:
                child[2 * node], child[2 * node + 1] = root + left[node], root + right[node]
                depth[root + left[node]] = depth[root + right[node]] = depth[node] + 1
                deepest[t] = max(deepest[t], depth[node] + 1)
    words, per_set = sets.ravel(), np.uint64(MAX_CODES // 64)
    at = np.empty(_PREDICTED, np.uint32)
    for start in range(0, rows, _PREDICTED):
        block = features[start : start + _PREDICTED]
        size = block.shape[0]
        missing = False
        for i in range(size):
            for f in range(block.shape[1]):
                missing |= block[i, f] != block[i, f]
        for t in range(roots.size):
            at[:] = roots[t]
            for _ in range(deepest[t]):
                if has_sets[t]:
                    for i in range(size):
                        node = at[i]
                        x = block[i, column[node]]
                        within = x if x > 0.0 else np.float32(0.0)
                        level = np.uint64(within if within < MAX_CODES - 1 else np.float32(MAX_CODES - 1))
                        bit = words[set_of[node] * per_set + (level >> np.uint64(6))] >> (
                            level & np.uint64(63)
                        )
                        chosen = (bit & np.uint64(1) != 0) & (x >= 0.0) & (x < MAX_CODES)
                        missing_right = (x != x) & (not default_left[node])
                        goes_right = (x >= threshold[node]) | missing_right | chosen
                        at[i] = child[2 * node + np.uint32(goes_right)]
                elif missing:
                    for i in range(size):
                        node = at[i]
                        x = block[i, column[node]]
                        goes_right = (x >= threshold[node]) | ((x != x) & (not default_left[node]))
                        at[i] = child[2 * node + np.uint32(goes_right)]
                else:
                    for i in range(size):
                        node = at[i]
                        goes_right = block[i, column[node]] >= threshold[node]
                        at[i] = child[2 * node + np.uint32(goes_right)]
            for i in range(size):
                margin[start + i] += value[at[i]]
