"""Kernels of prediction by several parties: the leaves that decisions leave open, and the one that all do.

Leaves are numbered within their tree from the leftmost on, so that those below a node are consecutive. A row
has a bit for each leaf of a tree, in whole bytes, the lowest bit first; bits behind the last leaf are 0.
"""

import numpy as np

from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.compile import loop

_ROWS = 256
"""Rows whose bits are computed together: those of a tree stay in the cache."""
_WORD = 32
"""Leaves whose bits are shut off together: in words as wide as a feature, so that both fill a register."""
_ALL = np.uint32(0xFFFFFFFF)
_NONE = np.uint32(0)


@loop
def leaf_bits(
    features, ends, leaves, feature, threshold, missing_right, by_level, sets, begin, middle, end, bits
):
    """Write the leaf bits of float32 features [N, F]: 0 where a decision shuts the leaf off.

    ends: int64 [T + 1], tree t has the nodes from ends[t] to ends[t + 1]; leaves: int64 [T], how many it has.
    Of each node: its column, float32 threshold, True if missing values go right, True if it splits by
    levels, and sets: uint64 [nodes, 4], the levels that go right, as in `predict_margins`, where rows go
    the same way; its leaves are from `begin` to `end`, those of its right child from `middle`.
    bits: uint8 [N, bytes of all trees].
    """
    size = 0
    for t in range(leaves.size):
        size = max(size, leaves[t])
    open_ = np.empty(((size + _WORD - 1) // _WORD, _ROWS), np.uint32)
    right = np.empty(_ROWS, np.uint32)
    columns = np.empty((features.shape[1], _ROWS), np.float32)
    for start in range(0, features.shape[0], _ROWS):
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
                for word in range(begin[node] // _WORD, (end[node] - 1) // _WORD + 1):
                    left = _outside(word, middle[node], end[node])
                    _shut(open_[word], right, left, _outside(word, begin[node], middle[node]))
            place = _write(open_, rows, leaves[t], bits[start : start + rows], place)


@loop
def _by_threshold(x, threshold, missing_right, right):
    """right = all bits where x goes right, else none."""
    for i in range(_ROWS):
        goes_right = (x[i] >= threshold) | ((x[i] != x[i]) & missing_right)
        right[i] = _ALL if goes_right else _NONE


@loop
def _by_level(x, levels, missing_right, right):
    """The same by the set of levels that go right; what is no level goes left."""
    for i in range(_ROWS):
        within = x[i] if x[i] > 0.0 else np.float32(0.0)
        level = np.uint64(within if within < MAX_CODES - 1 else np.float32(MAX_CODES - 1))
        bit = levels[level >> np.uint64(6)] >> (level & np.uint64(63))
        chosen = (bit & np.uint64(1) != 0) & (x[i] >= 0.0) & (x[i] < MAX_CODES)
        right[i] = _ALL if chosen | ((x[i] != x[i]) & missing_right) else _NONE


@loop
def _outside(word, first, end):
    """The bits of a word that are those of leaves before `first` or from `end` on."""
    low = min(max(first - _WORD * word, 0), _WORD)
    high = min(max(end - _WORD * word, 0), _WORD)
    return np.uint32(~((1 << high) - (1 << low)) & 0xFFFFFFFF)


@loop
def _shut(bits, right, if_left, if_right):
    """Keep of the bits of each row those of the side that it goes to."""
    for i in range(_ROWS):
        bits[i] &= (if_right & right[i]) | (if_left & ~right[i])


@loop
def _write(open_, rows, leaves, bits, place):
    """Write the bits of a tree from the byte `place` on; returns where the next tree begins."""
    for first in range(0, leaves, 8):
        last = np.uint32((1 << min(leaves - first, 8)) - 1)
        word, shift = open_[first // _WORD], np.uint32(first % _WORD)
        for i in range(rows):
            bits[i, place] = (word[i] >> shift) & last
        place += 1
    return place


@loop
def keep_open(bits, runs, open_):
    """And the leaf bits of a party into those of all trees. runs: int64 [runs, 3], where bytes that stand
    together begin in `bits` and in `open_`, and how many they are."""
    for i in range(bits.shape[0]):
        for run in range(runs.shape[0]):
            start, place, size = runs[run, 0], runs[run, 1], runs[run, 2]
            own, kept = bits[i, start : start + size], open_[i, place : place + size]
            for byte in range(size):
                kept[byte] &= own[byte]


@loop
def exit_leaves(open_, byte_ends, leaf_ends, nodes, leaf):
    """leaf[row, tree] = the node of the one open leaf. Returns row * trees + tree of the first that has none
    or several, or -1.

    byte_ends, leaf_ends: int64 [trees + 1], where bytes and leaves of each tree begin and end; nodes: int32,
    the node of each leaf.
    """
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
