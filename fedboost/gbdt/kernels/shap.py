"""The compiled loops of explanations: arrays in, arrays out, no objects.

Promises: `add_contributions` adds Shapley values by their definition (tested against a
reference in Python), to the rounding of float64.
Refuses nothing: callers have validated their arrays.

A leaf's value reaches a row's prediction through the features on the way to it. Let z of a feature be the
share of the training rows that its splits on the way let along, and o be 1 if they let this row along, else
0. Where S of the features are known and the others are not, the leaf counts with its value times the o of
those in S and the z of the others. A feature's Shapley value is the mean of the change it makes, over every
order in which the features can become known; as the chance that k given ones come before it and m given ones
after is the integral of t**k (1 - t)**m over t from 0 to 1, the mean is the integral of

    value * (o - z) * product over the other features of (z (1 - t) + o t),

a polynomial in t whose integral a few Gauss-Legendre points give exactly. At each of them one walk through
the tree gathers these products, so that a row costs as much as there are nodes, times half the depth.
"""

import numpy as np

from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.compile import elementwise, loop

_TOGETHER = 64
"""Rows that go down a tree together, so that one instruction processes several."""
_ROWS, _VALUES = 4096, 1 << 22
"""Rows for which a tree is prepared once, fewer where their values are many."""
_ALONG, _OFF, _AWAY = 0, 1, 2
"""State of a row at an edge, for the edge's feature: its values lead along this edge, and along those of
this feature above it; along those above, but not this one; not even along those above."""


@loop
def _go_left(x, node, threshold, default_left, set_of, sets, lefts):
    """Fill lefts with True for rows whose value of the node's feature goes left; NaN is missing. The columns
    are those of `gbdt.kernels.predict_margins`."""
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
    """The most edges from a root to a leaf; the trees stand as `gbdt.kernels.predict_margins` has them."""
    depth = np.zeros(left.size, np.int64)
    for t in range(roots.size):
        root = roots[t]
        for node in range(root, roots[t + 1] if t + 1 < roots.size else left.size):
            if left[node] >= 0:
                depth[root + left[node]] = depth[root + left[node] + 1] = depth[node] + 1
    return depth.max()


@loop
def _edges(left, right, feature, cover):
    """The edges of one tree in the order of a walk that goes left first, each an entry of six arrays.

    Begin, end: its nodes. Depth: the edges from the root to its end. Again: the nearest edge above it that
    has the same feature, -1 if none has. Share: of the training rows where it begins, those that go along it;
    half where there are none. Product: of its share and those of all edges above it that have its feature.
    """
    edges = left.size - 1
    begin, end, depth = np.empty(edges, np.int64), np.empty(edges, np.int64), np.empty(edges, np.int64)
    again, share, product = np.full(edges, -1, np.int64), np.empty(edges), np.empty(edges)
    parent, edge_to = np.full(left.size, -1, np.int64), np.full(left.size, -1, np.int64)
    waiting = np.zeros(left.size, np.int64)
    count, edge = 1, 0
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
        at = above
        while at > 0 and feature[parent[at]] != feature[above]:
            at = parent[at]
        if at > 0:
            again[edge] = edge_to[at]
            product[edge] *= product[edge_to[at]]
        edge_to[node] = edge
        edge += 1
    return begin, end, depth, again, share, product


@loop
def _factors(again, share, product, points, weights):
    """Factors of an edge, by the state of a row there and at each point: two float64 [edges, 3, points].

    The first is the factor on the product of (z (1 - t) + o t) over the features above. The second, times the
    sum of value times product over the leaves below, is the edge's part of the contribution of its feature:
    the weight of the point times (o - z) / (z (1 - t) + o t), less the same of the edge above that has this
    feature, where these leaves are counted as well."""
    change = np.empty((again.size, 3, points.size))
    adds = np.empty((again.size, 3, points.size))
    for edge in range(again.size):
        z, z_above = product[edge], product[again[edge]] if again[edge] >= 0 else 1.0
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
    points,
    weights,
    out,
):
    """`add_contributions` of one tree; columns: the features as float32 [F, N or more], N filled up to a
    multiple of _TOGETHER."""
    begin, end, depth, again, share, product = _edges(left, right, feature, cover)
    out[:, -1] += _mean(left, value, begin, end, share)
    change, adds = _factors(again, share, product, points, weights)
    levels = (depth.max() if depth.size else 0) + 1
    way = np.empty(levels, np.int64)  # the edges from the root to where the walk is
    stands = np.full((levels, _TOGETHER), _ALONG, np.uint8)
    lefts = np.empty(_TOGETHER, np.bool_)
    products = np.ones((levels, points.size, _TOGETHER))
    below = np.zeros((levels, points.size, _TOGETHER))  # product times value of the leaves so far
    for first in range(0, out.shape[0], _TOGETHER):
        block = out[first : first + _TOGETHER]
        at = 0
        for edge in range(begin.size):
            while at >= depth[edge]:
                _leave(stands[at], adds[way[at]], below[at], below[at - 1], feature[begin[way[at]]], block)
                at -= 1
            at += 1
            way[at] = edge
            node = begin[edge]
            x = columns[feature[node], first : first + _TOGETHER]
            earlier = stands[depth[again[edge]] if again[edge] >= 0 else 0]
            _go_left(x, node, threshold, default_left, set_of, sets, lefts)
            for i in range(_TOGETHER):
                along = lefts[i] == (end[edge] == left[node])
                stands[at, i] = _AWAY if earlier[i] != _ALONG else _ALONG if along else _OFF
            leaf = value[end[edge]] if left[end[edge]] < 0 else 0.0
            _enter(stands[at], change[edge], products[at - 1], products[at], leaf, below[at])
        while at > 0:
            _leave(stands[at], adds[way[at]], below[at], below[at - 1], feature[begin[way[at]]], block)
            at -= 1


@loop
def _mean(left, value, begin, end, share):
    """The value of a tree for a row without known features."""
    reach, mean = np.ones(left.size), 0.0
    for edge in range(begin.size):
        reach[end[edge]] = reach[begin[edge]] * share[edge]
    for node in range(left.size):
        mean += reach[node] * value[node] if left[node] < 0 else 0.0
    return mean


@loop
def _enter(stands, change, above, products, leaf, below):
    """Enter an edge; `leaf` is the value of the leaf at its end, 0 at inner nodes."""
    for q in range(change.shape[1]):
        along, off, away = change[_ALONG, q], change[_OFF, q], change[_AWAY, q]
        for i in range(_TOGETHER):
            products[q, i] = above[q, i] * _select(stands[i], along, off, away)
            below[q, i] = leaf * products[q, i]


@loop
def _leave(stands, adds, below, above, feature, out):
    """Leave an edge, after all leaves below it."""
    contribution = np.zeros(_TOGETHER)
    for q in range(adds.shape[1]):
        along, off, away = adds[_ALONG, q], adds[_OFF, q], adds[_AWAY, q]
        for i in range(_TOGETHER):
            contribution[i] += below[q, i] * _select(stands[i], along, off, away)
            above[q, i] += below[q, i]
    for i in range(out.shape[0]):
        out[i, feature] += contribution[i]


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
    points,
    weights,
    output,
    out,
):
    """Add to out[:, output], of float64 [N, K, F + 1], what each feature contributes to the sum of the trees'
    leaf values for each row of features, float32 [N, F], and in the last column that sum where nothing is
    known of a row.

    The trees stand in the columns of `gbdt.kernels.predict_margins`, and cover [nodes] beside them. Points,
    weights: of Gauss-Legendre from 0 to 1, at least half as many as the trees are deep.
    """
    rows, width = features.shape
    step = min(_ROWS, max(_VALUES // width // _TOGETHER, 1) * _TOGETHER)
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
                points,
                weights,
                out[first : first + step, output],
            )
