"""Kernels of all nodes of a level: their histograms, and pairs of sums as cells and back.

A level's sums are those of its nodes one after the other, pairs (g, h, g, h ...). `pairs_of` is int64
[nodes], the number of pairs of each; `widths` int64 [nodes, 2], the bits of a g, with the sign, and of an h.
A pair is one cell, g * 2**(bits of h) + h modulo 2**64, where the widths add to at most MAX_BITS; else it is
two.
"""

import numpy as np

from fedboost.gbdt.kernels.compile import loop
from fedboost.gbdt.kernels.histogram import STRIDE, TOGETHER, WORD, build_histogram, build_sparse

MAX_BITS = 64


@loop
def build_level(by_row, rows, pairs, places, pieces, targets, columns, first, last, block, out):
    """Add the pairs of pieces of nodes (`kernels.rows`) into the bins of the features in the columns from
    `first` to before `last`. places: int64 [nodes, 3], last the row of `pairs` of each; targets: int64
    [pieces], the row of `out` for each; out: int64 [rows, 2 T + 2]; otherwise as `build_histogram`."""
    scratch = np.zeros(STRIDE * min(max(last - first, WORD), TOGETHER), np.int64)
    for piece in range(pieces.shape[0]):
        own, cells = rows[pieces[piece, 1] : pieces[piece, 2]], out[targets[piece]]
        own_pairs = pairs[places[pieces[piece, 0], 2]]
        for start in range(first, last, TOGETHER):
            end = min(start + TOGETHER, last)
            build_histogram(by_row, own, own_pairs, columns, start, end, block, scratch, cells)


@loop
def build_sparse_level(
    starts, entries, offsets, most_frequent, rows, pairs, places, pieces, targets, begins, block, out
):
    """Add the pairs of pieces of nodes into the bins of sparse features: as `build_level` and
    `build_sparse`."""
    for piece in range(pieces.shape[0]):
        own, cells = rows[pieces[piece, 1] : pieces[piece, 2]], out[targets[piece]]
        own_pairs = pairs[places[pieces[piece, 0], 2]]
        build_sparse(starts, entries, own, own_pairs, offsets, most_frequent, begins, block, cells)


@loop
def fit_level(sums, pairs_of, widths):
    """True if cells of these widths hold each of the pairs."""
    start = 0
    for node in range(pairs_of.size):
        gradient, hessian = np.int64(0), np.int64(0)
        own = sums[start : start + 2 * pairs_of[node]]
        for pair in range(own.size // 2):
            gradient |= own[2 * pair] ^ (own[2 * pair] >> 63)  # the bits of -1 - g where g is negative
            hessian |= own[2 * pair + 1]
        if gradient >> (widths[node, 0] - 1) or hessian < 0 or hessian >> widths[node, 1]:
            return False
        start += own.size
    return True


@loop
def pack_level(sums, pairs_of, widths, cells):
    """Pack the pairs of a level into cells: int64."""
    start, cell = 0, 0
    for node in range(pairs_of.size):
        own, bits = sums[start : start + 2 * pairs_of[node]], widths[node, 1]
        together = widths[node, 0] + bits <= MAX_BITS
        packed = cells[cell : cell + (pairs_of[node] if together else own.size)]
        if together:
            for pair in range(packed.size):
                packed[pair] = (own[2 * pair] << bits) + own[2 * pair + 1]
        else:
            packed[:] = own
        start, cell = start + own.size, cell + packed.size


@loop
def unpack_level(cells, pairs_of, widths, sums):
    """Unpack the cells of `pack_level`, each h at least 0 and below 2**its bits."""
    start, cell = 0, 0
    for node in range(pairs_of.size):
        own, bits = sums[start : start + 2 * pairs_of[node]], widths[node, 1]
        together = widths[node, 0] + bits <= MAX_BITS
        packed = cells[cell : cell + (pairs_of[node] if together else own.size)]
        mask = (np.int64(1) << bits) - 1
        if together:
            for pair in range(packed.size):
                own[2 * pair], own[2 * pair + 1] = packed[pair] >> bits, packed[pair] & mask
        else:
            own[:] = packed
        start, cell = start + own.size, cell + packed.size
