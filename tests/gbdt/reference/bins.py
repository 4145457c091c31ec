"""Naive references of `fedboost.gbdt.kernels.bins`."""

import math
import struct

import numpy as np


def float_keys(values):
    out = []
    for value in values:
        (word,) = struct.unpack("<I", value.tobytes())
        if math.isnan(value):
            out.append(2**32 - 1)
        elif value == 0:
            out.append(2**31)
        else:
            out.append(2**32 - 1 - word if value < 0 else 2**31 + word)
    return out


def count_cells(keys, units, starts, widths, subdivisions):
    out, rows = [], list(zip(keys.tolist(), units.tolist(), strict=True))
    for start, width, bits in zip(starts.tolist(), widths.tolist(), subdivisions.tolist(), strict=True):
        step = 2 ** (width - bits)
        for low in range(start, start + 2**width, step):
            out.append(sum(own for key, own in rows if low <= key < low + step))
    return out


def weigh_residuals(label, margin, weight, rows, start, width, bits, factor, limit):
    out = [0] * 2**bits
    for row in rows.tolist():
        with np.errstate(over="ignore"):
            residual = (np.float64(label[row]) - margin[row]).astype(np.float32)
        (key,) = float_keys([residual])
        if start <= key < start + 2**width:
            out[(key - start) // 2 ** (width - bits)] += min(round(float(weight[row]) * factor), limit)
    return out


def bin_column(values, cuts, missing_bin):
    return [missing_bin if math.isnan(v) else sum(bool(cut <= v) for cut in cuts) for v in values]


def sample_bins(by_feature, step):
    out = []
    for column in by_feature[:, ::step].tolist():
        counts = [column.count(code) for code in range(256)]
        out.append([counts.index(max(counts)), max(counts), len({*column})])
    return out


def join_codes(codes, bins):
    """The joint codes, and the pair that each stands for; the rows until there are too many."""
    pairs = list(zip(codes.tolist(), bins.tolist(), strict=True))
    parts = list(dict.fromkeys(pairs))
    if len(parts) > 256:
        return -1 - pairs.index(parts[256]), None
    return [parts.index(pair) for pair in pairs], [list(part) for part in parts]
