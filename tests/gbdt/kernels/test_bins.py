"""Every kernel of cut points and bins equals its numpy reference bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedboost.gbdt.kernels.bins import (
    bin_column,
    count_cells,
    float_keys,
    join_codes,
    sample_bins,
    transpose,
    weigh_residuals,
)
from tests.gbdt.reference import bins as reference

NAN_PAYLOADS = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF], np.uint32)

# ---- element-wise functions -------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "width"), [(0, 32), (0x80000000, 24), (0xBF800000, 16), (0x3F000000, 24)])
def test_weigh_residuals(start, width):
    rng = np.random.default_rng(width)
    label = np.concatenate([rng.normal(0, 2, 300), rng.integers(-2, 3, 300), [2.0**60, 0, 1]]).astype(
        np.float32
    )
    margin = np.concatenate([rng.normal(0, 1, 300), np.zeros(300), [-1e39, 1e39, np.nextafter(1, 2)]])
    weight = rng.exponential(1, label.size).astype(np.float32)
    rows = np.sort(rng.choice(label.size, 500, replace=False)).astype(np.uint32)
    arguments = label, margin, weight, rows, start, width, 8, 64.0
    out = np.zeros(256, np.int64)
    weigh_residuals(*arguments, 128.0, out)
    assert out.tolist() == reference.weigh_residuals(*arguments, 128)
    assert out.any()


# ---- cut points and bins ----------------------------------------------------------------------------


def extreme_floats():
    info = np.finfo(np.float32)
    positive = [0.0, info.smallest_subnormal, 1e-40, info.tiny, 1e-20, 0.5, 1, np.nextafter(np.float32(1), 2)]
    positive += [255, 256, 1e30, info.max, np.inf]
    both = np.array([*positive, *(-np.array(positive))], np.float32)
    return np.concatenate([both, NAN_PAYLOADS.view(np.float32)])


def test_float_keys():
    rng = np.random.default_rng(2)
    any_bits = rng.integers(0, 1 << 32, 3000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([extreme_floats(), any_bits])
    keys = float_keys(values)
    assert keys.dtype == np.uint32
    assert keys.tolist() == reference.float_keys(values)
    assert float_keys(np.zeros(0, np.float32)).size == 0


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_float_keys_keep_the_order(a, b):
    key_a, key_b, missing = float_keys(np.array([a, b, math.nan], np.float32)).tolist()
    assert (a < b) == (key_a < key_b)
    assert (a == b) == (key_a == key_b)
    assert max(key_a, key_b) < missing


@given(seed=st.integers(0, 2**32), cells=st.integers(0, 8), keys=st.sampled_from([0, 1, 200]))
def test_count_cells(seed, cells, keys):
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(16, cells, replace=False)).astype(np.uint32)  # 16 places of 2**28 keys
    widths = rng.choice([0, 1, 5, 20, 28], cells)
    subdivisions = np.minimum(rng.integers(0, 7, cells), widths)
    starts = places << np.uint32(28)
    some = rng.integers(0, 1 << 32, keys, dtype=np.uint32)
    if cells and keys:  # most keys into a cell, the edges of cells above all
        home = rng.integers(0, cells, keys)
        into = rng.integers(0, 1 << widths[home])
        some[1::2] = (starts[home] + into.astype(np.uint32))[1::2]
        some[0] = starts[0] + np.uint32((1 << int(widths[0])) - 1)
    out = np.zeros(int((1 << subdivisions).sum()), np.int64)
    count_cells(some, None, starts, widths, subdivisions, out)
    assert out.tolist() == reference.count_cells(some, np.ones_like(some), starts, widths, subdivisions)
    units = rng.integers(0, 1 << 30, keys)
    out[:] = 0
    count_cells(some, units, starts, widths, subdivisions, out)
    assert out.tolist() == reference.count_cells(some, units, starts, widths, subdivisions)


def test_count_cells_at_the_edges_of_cells():
    starts, widths = np.array([8, 32, 48], np.uint32), np.array([3, 4, 0])
    keys = np.array([7, 8, 15, 16, 31, 32, 47, 48, 49], np.uint32)
    out = np.zeros(2 + 4 + 1 + 1, np.int64)
    count_cells(keys, None, starts, widths, np.array([1, 2, 0]), out)
    assert out.tolist() == [1, 1, 1, 0, 0, 1, 1, 0]  # nothing beyond the last cell is touched


def test_count_cells_over_all_keys_at_once():
    keys = np.array([0, 1, 2**21 - 1, 2**21, 2**31, 2**32 - 1, 2**32 - 1], np.uint32)
    out = np.zeros(2048, np.int64)
    count_cells(keys, None, np.zeros(1, np.uint32), np.array([32]), np.array([11]), out)
    assert {int(i): int(out[i]) for i in np.flatnonzero(out)} == {0: 3, 1: 1, 1024: 1, 2047: 2}


@pytest.mark.parametrize("count", [0, 1, 2, 17, 255])
def test_bin_column(count):
    rng = np.random.default_rng(count)
    cuts = np.unique(rng.normal(0, 10, count).astype(np.float32))
    if count > 10:
        cuts = np.unique(np.concatenate([cuts[2:], [np.float32(0), np.float32(-1e-42)]]).astype(np.float32))
    values = np.concatenate([extreme_floats(), cuts, np.nextafter(cuts, np.float32(-np.inf))])
    values = np.concatenate([values, rng.normal(0, 10, 300).astype(np.float32)])
    codes = np.zeros(values.size, np.uint8)
    bin_column(values, cuts, 255, codes)
    assert codes.tolist() == reference.bin_column(values, cuts, 255)


@pytest.mark.parametrize("width", [1e-3, 1.0, 1e30])
@pytest.mark.parametrize("count", [0, 1, 100, 255])
def test_bin_column_of_many_values(count, width):
    """So many that the search has a large table; close together, and over all numbers."""
    rng = np.random.default_rng(count)
    values = (1 + width * rng.normal(size=1 << 15)).astype(np.float32)
    cuts = np.unique(rng.choice(values, count))
    codes = np.zeros(values.size, np.uint8)
    bin_column(values, cuts, 255, codes)
    assert codes.tolist() == np.searchsorted(cuts, values, side="right").tolist()


@pytest.mark.parametrize("spread", [2**12, 2**20, 2**31])
def test_count_cells_of_many_keys(spread):
    rng = np.random.default_rng(spread)
    starts = np.unique(rng.integers(2**10, spread, 300)).astype(np.uint32)
    widths = np.zeros(starts.size, np.int64)
    keys = np.concatenate([rng.integers(0, 2 * spread, 1 << 15), np.repeat(starts, 3)]).astype(np.uint32)
    out = np.zeros(starts.size, np.int64)
    count_cells(keys, None, starts, widths, widths, out)
    found, counts = np.unique(keys[np.isin(keys, starts)], return_counts=True)
    assert (found == starts).all()
    assert out.tolist() == counts.tolist()


@pytest.mark.parametrize("shape", [(1, 0), (1, 1), (3, 255), (5, 256), (2, 1000)])
def test_transpose(shape):
    by_feature = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    for features in (np.arange(shape[0]), np.arange(shape[0])[::-2].copy()):
        by_row = np.zeros((shape[1], features.size), np.uint8)
        transpose(by_feature, features, by_row)
        assert by_row.tolist() == by_feature[features].T.tolist()


@pytest.mark.parametrize("rows", [0, 1, 300])
@pytest.mark.parametrize("step", [1, 7])
def test_sample_bins(rows, step):
    rng = np.random.default_rng(rows)
    by_feature = np.stack([rng.integers(0, size, rows) for size in (1, 2, 5, 256)]).astype(np.uint8)
    assert sample_bins(by_feature, step).tolist() == reference.sample_bins(by_feature, step)


@pytest.mark.parametrize("rows", [0, 1, 400, 3000])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 256), (16, 16), (2, 129), (40, 90), (256, 256)])
def test_join_codes(rows, sizes):
    rng = np.random.default_rng(rows)
    codes, bins = (rng.integers(0, size, rows).astype(np.uint8) for size in sizes)
    out, parts = np.zeros(rows, np.uint8), np.zeros((256, 2), np.uint8)
    due, due_parts = reference.join_codes(codes, bins)
    count = join_codes(codes, bins, out, parts)
    if due_parts is None:
        assert count == due
    else:
        assert (count, out.tolist(), parts[:count].tolist()) == (len(due_parts), due, due_parts)
