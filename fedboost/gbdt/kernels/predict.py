"""Kernels for prediction and explanation: margins of rows, leaves that decisions do not rule out, and SHAP
values.

Node columns hold the nodes of several trees, one tree after the other (`booster.node_columns`):
- `roots`, int64 [trees]: the first node of each tree.
- `left`, `right`, int64 [nodes]: children, counted from the root and higher than their parent; -1 at leaves.
- `feature`, `threshold`, `default_left`, `value`: int64, float32, bool and float64 [nodes].
- `set_of`, uint64 [nodes]: the row of `sets` with the categories that go right. Row 0 is empty and stands for
a split by threshold. Nodes with any other row have threshold NaN.
- `sets`, uint64 [sets, 4]: bit c of the 256 is set for category c."""

import numpy as np

from fedboost.gbdt.kernels import elementwise, loop
from fedboost.gbdt.kernels.bins import MAX_CODES

_PREDICTED = 128
"""Number of rows that pass through a tree together."""


@loop
def predict_margins(
    features, roots, left, right, feature, threshold, default_left, value, set_of, sets, margin
):
    """Add the leaf value of every tree to margin, float64 [N], tree after tree. As in XGBoost, a value that
    is not a category goes left.

    A block of rows passes through a tree together, level by level. The computations for different rows are
    independent, no branch has to be predicted, and the tree stays in the cache. The loops share all
    variables, so this is deliberately one function of over 60 lines. features: float32 [N, F], NaN if
    missing. The other arguments are the node columns (see the module docstring)."""
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
            at[:] = roots[t]  # a row at a leaf stays there, as a leaf is its own child
            for _ in range(deepest[t]):
                # The last loop, for trees without categories and blocks of rows without missing values, is
                # one comparison per row. NaN >= threshold is False, so the others test for NaN as well.
                if has_sets[t]:
                    for i in range(size):
                        node = at[i]
                        x = block[i, column[node]]
                        # Converting NaN or a float out of range to an integer is undefined, so x is first
                        # clamped to 0 to 255, and `chosen` tests x itself. Of the three terms only one
                        # can be True: a category node has threshold NaN, any other node an empty set.
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
                # Each row adds up its trees in the same order, whatever the block: floats depend on it.
                margin[start + i] += value[at[i]]


# ---- Kernels for prediction by several parties ----------------------------------------------------------
# Unlike in `predict_margins` no row descends: a party cannot know whether a row reaches its nodes, so it
# decides all of them for every row. A tree costs a comparison per row and own node, and one `_shut` for each
# word of 32 leaves below the node.
# Each party's decisions leave some leaves open; the row's leaf is open for all parties. Leaves are numbered
# within their tree from the left, so that those below a node are consecutive. A row has a bit for each leaf
# of a tree, in whole bytes, lowest bit first; the bits after the last leaf are 0.


_ROWS = 256
"""Number of rows whose bits are computed together, so that the bits of one tree stay in the cache."""
_WORD = 32
"""Number of leaves whose bits are cleared together. Such a word is as wide as a feature's value, so a vector
register holds as many words as values."""
_ALL = np.uint32(0xFFFFFFFF)
_NONE = np.uint32(0)


@loop
def leaf_bits(
    features, ends, leaves, feature, threshold, missing_right, by_level, sets, begin, middle, end, bits
):
    """Write one bit per leaf for each row: 0 if a decision rules the leaf out, else 1. Decisions are as
    in `predict_margins`.

    Args:
        features: float32 [N, F].
        ends: int64 [T + 1], tree t has the nodes ends[t] to ends[t + 1] - 1.
        leaves: int64 [T], number of leaves of each tree.
        feature, threshold: int64 and float32 [nodes].
        missing_right, by_level: bool [nodes], whether missing values go right, and whether the split is by
            levels.
        sets: uint64 [nodes, 4], the levels that go right, bit by bit.
        begin, middle, end: int64 [nodes], a node covers leaves begin to end - 1, its right child leaves
            middle to end - 1.
        bits: uint8 [N, total bytes of all trees], receives the result.
    """
    size = 0
    for t in range(leaves.size):
        size = max(size, leaves[t])
    open_ = np.empty(((size + _WORD - 1) // _WORD, _ROWS), np.uint32)
    right = np.empty(_ROWS, np.uint32)
    columns = np.empty((features.shape[1], _ROWS), np.float32)
    for start in range(0, features.shape[0], _ROWS):
        # The kernels below always work on _ROWS rows, so that their loops have a constant length. In the last
        # block, what lies beyond `rows` is left over from earlier, and its bits are not written.
        rows = min(_ROWS, features.shape[0] - start)
        for i in range(rows):
            for f in range(columns.shape[0]):
                columns[f, i] = features[start + i, f]
        place = 0
        for t in range(leaves.size):
            open_[:] = _ALL
            for node in range(ends[t], ends[t + 1]):
                x = columns[feature[node]]
                if by_level[node]:
                    _by_level(x, sets[node], missing_right[node], right)
                else:
                    _by_threshold(x, threshold[node], missing_right[node], right)
                #     leaves of the tree    ... [begin     middle       end) ...
                #     row goes right        1 1 |0 0 0 0 0 |1 1 1 1 1 1 | 1 1     left child's leaves out
                #     row goes left         1 1 |1 1 1 1 1 |0 0 0 0 0 0 | 1 1     right child's leaves out
                for word in range(begin[node] // _WORD, (end[node] - 1) // _WORD + 1):
                    left = _outside(word, middle[node], end[node])
                    _shut(open_[word], right, left, _outside(word, begin[node], middle[node]))
            place = _write(open_, rows, leaves[t], bits[start : start + rows], place)


@loop
def _by_threshold(x, threshold, missing_right, right):
    """Set all bits of `right` for rows whose value x goes right, and clear them for other rows. x: float32
    [_ROWS]; right: uint32 [_ROWS]."""
    for i in range(_ROWS):
        goes_right = (x[i] >= threshold) | ((x[i] != x[i]) & missing_right)
        right[i] = _ALL if goes_right else _NONE


@loop
def _by_level(x, levels, missing_right, right):
    """Like `_by_threshold`, but for a split by levels. levels: uint64 [4], the levels that go right. Other
    values go left."""
    for i in range(_ROWS):
        within = x[i] if x[i] > 0.0 else np.float32(0.0)
        level = np.uint64(within if within < MAX_CODES - 1 else np.float32(MAX_CODES - 1))
        bit = levels[level >> np.uint64(6)] >> (level & np.uint64(63))
        chosen = (bit & np.uint64(1) != 0) & (x[i] >= 0.0) & (x[i] < MAX_CODES)
        right[i] = _ALL if chosen | ((x[i] != x[i]) & missing_right) else _NONE


@loop
def _outside(word, first, end):
    """Return a word in which the bits of all leaves outside [first, end) are set."""
    # Bit j is leaf 32 word + j. (1 << high) - (1 << low) has ones from `low` to `high` - 1, the leaves
    # within; int64, as 1 << 32 does not fit the word.
    #     leaves              first       end
    #     within         [0 0 1 1 1 1 1 1 0 0]     lowest bit on the left
    #     result         [1 1 0 0 0 0 0 0 1 1]
    low = min(max(first - _WORD * word, 0), _WORD)
    high = min(max(end - _WORD * word, 0), _WORD)
    return np.uint32(~((1 << high) - (1 << low)) & 0xFFFFFFFF)


@loop
def _shut(bits, right, if_left, if_right):
    """For each row, clear the bits of the leaves on the side to which the row does not go."""
    for i in range(_ROWS):
        bits[i] &= (if_right & right[i]) | (if_left & ~right[i])


@loop
def _write(open_, rows, leaves, bits, place):
    """Write the bits of a tree, starting at byte `place` of each row. Returns the first byte of the next
    tree."""
    # 32 is a multiple of 8, so the eight leaves of a byte lie in one word.
    for first in range(0, leaves, 8):
        last = np.uint32((1 << min(leaves - first, 8)) - 1)
        word, shift = open_[first // _WORD], np.uint32(first % _WORD)
        for i in range(rows):
            bits[i, place] = (word[i] >> shift) & last
        place += 1
    return place


@loop
def keep_open(bits, runs, open_):
    """Combine a party's leaf bits with the bits of all trees by a bitwise AND.

    Args:
        bits: uint8 [N, bytes of the party].
        runs: int64 [runs, 3], the start in `bits`, the start in `open_` and the length of each run of
            consecutive bytes.
        open_: uint8 [N, bytes of all trees], updated in place.
    """
    for i in range(bits.shape[0]):
        for run in range(runs.shape[0]):
            start, place, size = runs[run, 0], runs[run, 1], runs[run, 2]
            own, kept = bits[i, start : start + size], open_[i, place : place + size]
            for byte in range(size):
                kept[byte] &= own[byte]


@loop
def exit_leaves(open_, byte_ends, leaf_ends, nodes, leaf):
    """Find the only leaf that remains possible in each tree. Returns -1 if there is exactly one in every
    tree. Otherwise, returns row * trees + tree for the first case in which no leaf or several leaves remain.

    Args:
        open_: uint8 [N, bytes of all trees], the remaining leaves.
        byte_ends, leaf_ends: int64 [trees + 1], where the bytes and the leaves of each tree begin, and the
            total.
        nodes: int32 [leaves], node of each leaf.
        leaf: int32 [N, trees], receives the node of the remaining leaf.
    """
    # Tables by byte: how many bits are set, and the number of the highest. `found` adds up the numbers over
    # all bytes. If exactly one bit is set, which `count` checks, the sum has a single term: that leaf.
    ones, highest = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for byte in range(1, 256):
        ones[byte] = ones[byte >> 1] + (byte & 1)
        highest[byte] = highest[byte >> 1] + 1 if byte > 1 else 0
    trees = leaf.shape[1]
    for i in range(open_.shape[0]):
        for t in range(trees):
            count, found = 0, 0
            for byte in range(byte_ends[t], byte_ends[t + 1]):
                bits = open_[i, byte]
                count += ones[bits]
                found += highest[bits] + (8 * (byte - byte_ends[t]) if bits else 0)
            if count != 1:
                return i * trees + t
            leaf[i, t] = nodes[leaf_ends[t] + found]
    return -1


# ---- Kernels for explanations ---------------------------------------------------------------------------
# Guarantees: `add_contributions` adds Shapley values by their definition (tested against a reference in
# Python), to the rounding of float64.
# A leaf's value reaches a row's prediction through the features on its path. For each feature, z is the
# share of the training rows that pass its splits on the path, and o is 1 if this row passes them, else 0.
# If the features in a set S are known and the others are not, the leaf contributes its value times the o of
# those in S and the z of the others. A feature's Shapley value is the mean change it makes, over every order
# in which the features can become known. The probability that k given features come before it and m given
# ones after is the integral of t**k (1 - t)**m over t from 0 to 1. So the mean is the integral of
#     value * (o - z) * product over the other features of (z (1 - t) + o t),
# a polynomial in t that a few Gauss-Legendre points integrate exactly. At each point, one walk through the
# tree collects these products. The cost of a row is the number of nodes times half the depth.
# Sources: the integral of t**k (1 - t)**m is k! m! / (k + m + 1)!, Shapley's weight of a set of k among
# k + m + 1 features (G. Owen, "Multilinear extensions of games", 1972). TreeSHAP (S. Lundberg et al., 2020)
# keeps a weight for each number of known features instead. With d distinct features on a path the polynomial
# has degree d - 1, and p points are exact up to degree 2 p - 1, so d / 2 points suffice.
# Features may be known in groups, like the columns of a party: below, a group takes the place of a feature.


_TOGETHER = 64
"""Number of rows that pass through a tree together, so that one instruction processes several."""
_ROWS_AT_A_TIME, _VALUES = 4096, 1 << 22
"""Maximum number of rows, and maximum number of values, in a block. Each tree is prepared once per block."""
_ALONG, _OFF, _AWAY = 0, 1, 2
"""State of a row at an edge, for the edge's feature. _ALONG: the row passes this edge and all edges of the
feature above it. _OFF: the row passes the edges above, but not this one. _AWAY: the row does not pass all
edges above."""


@loop
def _go_left(x, node, threshold, default_left, set_of, sets, lefts):
    """Fill `lefts`, bool [_TOGETHER], with True for rows whose value x goes left at this node. x: float32
    [_TOGETHER]."""
    for i in range(_TOGETHER):
        lefts[i] = (x[i] < threshold[node]) | ((x[i] != x[i]) & default_left[node])
    own = set_of[node]
    if own > 0:
        for i in range(_TOGETHER):
            if x[i] == x[i]:
                lefts[i] = True
                if x[i] >= 0 and x[i] < MAX_CODES:
                    level = np.uint64(x[i])
                    word = sets[own, level >> np.uint64(6)]
                    lefts[i] = word >> (level & np.uint64(63)) & np.uint64(1) == 0


@loop
def depth_of(roots, left):
    """Return the maximum number of edges from a root to a leaf. roots, left: node columns (see
    the module docstring)."""
    depth = np.zeros(left.size, np.int64)
    for t in range(roots.size):
        root = roots[t]
        for node in range(root, roots[t + 1] if t + 1 < roots.size else left.size):
            if left[node] >= 0:
                depth[root + left[node]] = depth[root + left[node] + 1] = depth[node] + 1
    return depth.max()


@loop
def _edges(left, right, group, cover):
    """List the edges of a tree in depth-first order, left first. Returns six arrays with an entry for each
    edge.

    begin, end: the nodes that the edge connects. depth: number of edges from the root to `end`. again: the
    nearest edge above with the same group, or -1. share: fraction of the training rows at `begin` that pass
    the edge; 1/2 if there are no such rows. product: share of the edge times the shares of all edges above
    with the same group."""
    edges = left.size - 1
    begin, end, depth = np.empty(edges, np.int64), np.empty(edges, np.int64), np.empty(edges, np.int64)
    again, share, product = np.full(edges, -1, np.int64), np.empty(edges), np.empty(edges)
    parent, edge_to = np.full(left.size, -1, np.int64), np.full(left.size, -1, np.int64)
    waiting = np.zeros(left.size, np.int64)
    count, edge = 1, 0
    # A stack yields depth-first order: the right child is pushed first, so the left one and all below it come
    # first. An edge follows the one into its begin, so `edge_to[above]` is known.
    while count > 0:
        count -= 1
        node = waiting[count]
        if left[node] >= 0:
            waiting[count], waiting[count + 1] = right[node], left[node]
            parent[left[node]] = parent[right[node]] = node
            count += 2
        if node == 0:
            continue
        above = parent[node]
        begin[edge], end[edge] = above, node
        depth[edge] = depth[edge_to[above]] + 1 if above > 0 else 1
        rows = cover[left[above]] + cover[right[above]]
        share[edge] = product[edge] = cover[node] / rows if rows > 0.0 else 0.5
        # Find the nearest edge above whose begin splits by the same group: a walk up the path, so this
        # takes edges times depth, once per tree and block of rows. Edges into `at` begin at parent[at].
        at = above
        while at > 0 and group[parent[at]] != group[above]:
            at = parent[at]
        if at > 0:
            again[edge] = edge_to[at]
            product[edge] *= product[edge_to[at]]
        edge_to[node] = edge
        edge += 1
    return begin, end, depth, again, share, product


@loop
def _factors(again, share, product, points, weights):
    """Return two factors for each combination of edge, row state and integration point: two float64 [edges,
    3, points].

    The first factor updates the product of (z (1 - t) + o t) over the features on the path. The second factor
    is multiplied by the sum of value times product over the leaves below. The result is what the edge adds to
    its feature's contribution.

    The second factor is the point's weight times (o - z) / (z (1 - t) + o t). The same term for the nearest
    edge above with this feature is subtracted, because that edge has already counted these leaves."""
    change = np.empty((again.size, 3, points.size))
    adds = np.empty((again.size, 3, points.size))
    for edge in range(again.size):
        z, z_above = product[edge], product[again[edge]] if again[edge] >= 0 else 1.0
        # Path extension. A path has one factor z (1 - t) + o t for each distinct feature. The first edge of a
        # feature multiplies by it (z_above = 1 makes `before` 1). A later one replaces z_above in it by
        # z = z_above * share:
        #     along    o = 1 stays 1     (z (1 - t) + t) / (z_above (1 - t) + t)
        #     off      o falls to 0      z (1 - t) / (z_above (1 - t) + t)
        #     away     o was 0 already   z (1 - t) / (z_above (1 - t)) = share
        # With o = 0, (o - z) / (z (1 - t)) = -1 / (1 - t) does not depend on z: an edge passed `away` adds
        # nothing. Points lie strictly between 0 and 1, so that no denominator is 0.
        for q in range(points.size):
            t, w = points[q], weights[q]
            here, before = z * (1.0 - t) + t, z_above * (1.0 - t) + t
            counted = w * (1.0 - z_above) / before
            change[edge, _ALONG, q] = here / before
            change[edge, _OFF, q] = z * (1.0 - t) / before
            change[edge, _AWAY, q] = share[edge]
            adds[edge, _ALONG, q] = w * (1.0 - z) / here - counted
            adds[edge, _OFF, q] = -w / (1.0 - t) - counted
            adds[edge, _AWAY, q] = 0.0
    return change, adds


@elementwise
def _select(standing, along, off, away):
    return along if standing == _ALONG else off if standing == _OFF else away


@loop
def _add_tree(
    columns,
    left,
    right,
    feature,
    threshold,
    default_left,
    value,
    set_of,
    sets,
    cover,
    group,
    points,
    weights,
    out,
):
    """Add the contributions of one tree to `out`, like `add_contributions`. columns: float32 [F, N or more],
    the features, with N rounded up to a multiple of _TOGETHER."""
    begin, end, depth, again, share, product = _edges(left, right, group, cover)
    out[:, -1] += _mean(left, value, begin, end, share)
    change, adds = _factors(again, share, product, points, weights)
    levels = (depth.max() if depth.size else 0) + 1
    way = np.empty(levels, np.int64)  # edges on the current path from the root
    stands = np.full((levels, _TOGETHER), _ALONG, np.uint8)
    lefts = np.empty(_TOGETHER, np.bool_)
    products = np.ones((levels, points.size, _TOGETHER))
    below = np.zeros((levels, points.size, _TOGETHER))  # product times value of the leaves so far
    for first in range(0, out.shape[0], _TOGETHER):
        block = out[first : first + _TOGETHER]
        at = 0
        # Invariant: way[1 : at + 1] is the path from the root. For each level on it, products[level] is the
        # product over the path down to there, and below[level] the sum of value * product over the leaves
        # visited below it. Leaving an edge (the unwind) adds its part to its feature and its `below` to the
        # level above. Products are kept by level, so that nothing has to be divided out again.
        for edge in range(begin.size):
            while at >= depth[edge]:
                _leave(stands[at], adds[way[at]], below[at], below[at - 1], group[begin[way[at]]], block)
                at -= 1
            at += 1
            way[at] = edge
            node = begin[edge]
            x = columns[feature[node], first : first + _TOGETHER]
            # The edge above with this group is on the path, so its state is at its level. stands[0] is
            # always _ALONG: for the first edge of a group, nothing above has turned the row away.
            earlier = stands[depth[again[edge]] if again[edge] >= 0 else 0]
            _go_left(x, node, threshold, default_left, set_of, sets, lefts)
            for i in range(_TOGETHER):
                along = lefts[i] == (end[edge] == left[node])
                stands[at, i] = _AWAY if earlier[i] != _ALONG else _ALONG if along else _OFF
            leaf = value[end[edge]] if left[end[edge]] < 0 else 0.0
            _enter(stands[at], change[edge], products[at - 1], products[at], leaf, below[at])
        while at > 0:
            _leave(stands[at], adds[way[at]], below[at], below[at - 1], group[begin[way[at]]], block)
            at -= 1


@loop
def _mean(left, value, begin, end, share):
    """Return the mean value of a tree over the training rows. This is the expected value if no feature of a
    row is known."""
    # reach: the share of the training rows that reach a node. An edge comes after the one into its begin.
    reach, mean = np.ones(left.size), 0.0
    for edge in range(begin.size):
        reach[end[edge]] = reach[begin[edge]] * share[edge]
    for node in range(left.size):
        mean += reach[node] * value[node] if left[node] < 0 else 0.0
    return mean


@loop
def _enter(stands, change, above, products, leaf, below):
    """Enter an edge: compute the products for the leaves below it. leaf: value of the leaf at the edge's end,
    or 0 if the end is an inner node."""
    for q in range(change.shape[1]):
        along, off, away = change[_ALONG, q], change[_OFF, q], change[_AWAY, q]
        for i in range(_TOGETHER):
            products[q, i] = above[q, i] * _select(stands[i], along, off, away)
            below[q, i] = leaf * products[q, i]


@loop
def _leave(stands, adds, below, above, group, out):
    # The factor is the same for all leaves below the edge: one product per edge and point, not per leaf.
    contribution = np.zeros(_TOGETHER)
    for q in range(adds.shape[1]):
        along, off, away = adds[_ALONG, q], adds[_OFF, q], adds[_AWAY, q]
        for i in range(_TOGETHER):
            contribution[i] += below[q, i] * _select(stands[i], along, off, away)
            above[q, i] += below[q, i]
    for i in range(out.shape[0]):
        out[i, group] += contribution[i]


@loop
def add_contributions(
    features,
    roots,
    left,
    right,
    feature,
    threshold,
    default_left,
    value,
    set_of,
    sets,
    cover,
    group,
    points,
    weights,
    output,
    out,
):
    """Compute the SHAP values of one output (the contribution of each group of features to its margin), and
    add them to out[:, output].

    Args:
        features: float32 [N, F], NaN if missing.
        roots, left, right, feature, threshold, default_left, value, set_of, sets: node columns (see the
            module docstring).
        cover: float64 [nodes], sum of hessians.
        group: int64 [nodes], the group of the node's feature, below G. If each feature is a group, `feature`.
        points, weights: float64 [points], Gauss-Legendre quadrature from 0 to 1. The number of points must be
            at least half the depth of the trees, or half of G.
        output: index of the output.
        out: float64 [N, outputs, G + 1], updated in place. The last column receives the sum of leaf values
            that is expected if no feature is known.
    """
    rows, width = features.shape
    step = min(_ROWS_AT_A_TIME, max(_VALUES // width // _TOGETHER, 1) * _TOGETHER)
    columns = np.zeros((width, min(step, -(-rows // _TOGETHER) * _TOGETHER)), np.float32)
    for first in range(0, rows, step):
        block = features[first : first + step]
        for i in range(block.shape[0]):
            for f in range(width):
                columns[f, i] = block[i, f]
        for t in range(roots.size):
            begin, end = roots[t], roots[t + 1] if t + 1 < roots.size else left.size
            _add_tree(
                columns,
                left[begin:end],
                right[begin:end],
                feature[begin:end],
                threshold[begin:end],
                default_left[begin:end],
                value[begin:end],
                set_of[begin:end],
                sets,
                cover[begin:end],
                group[begin:end],
                points,
                weights,
                out[first : first + step, output],
            )
