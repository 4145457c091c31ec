"""Histograms: their layout, and their totals."""

import numpy as np
import pytest
from raised import raised
from splits import layout_of

from fedboost.errors import PeerError
from fedboost.gbdt import binned
from fedboost.gbdt import histogram as histograms
from fedboost.gbdt.binned import BinnedRows
from fedboost.gbdt.kernels.histogram import fit_level
from fedboost.gbdt.threads import ONE, Threads


def test_layout_stands_feature_after_feature_with_the_missing_bin_last():
    layout = layout_of(3, 1, 2, missing=[0, 2])
    assert layout.offsets.tolist() == [0, 4, 5]
    assert layout.value_bins.tolist() == [3, 1, 2]
    assert layout.missing.tolist() == [True, False, True]
    assert (layout.bins, layout.cells) == (8, 16)


def build(bins, nodes, pairs, layout, limit, threads):
    """Histograms of nodes with these rows, of one output."""
    ends = np.cumsum([0, *map(len, nodes)])
    places = np.stack([ends[:-1], ends[1:], np.zeros(len(nodes), np.int64)], axis=1)
    rows = np.concatenate(nodes).astype(np.uint32)
    return histograms.build(bins, rows, places, pairs[None], layout, limit, threads)


def test_build_and_the_sibling_by_subtraction():
    rng = np.random.default_rng(0)
    layout = layout_of(5, 9, missing=[1])
    codes = np.stack([rng.integers(0, 5, 500), rng.integers(0, 10, 500)]).astype(np.uint8)
    bins = BinnedRows.of(codes, np.array([5, 10]))
    gradient, hessian = rng.integers(-128, 129, 500), rng.integers(0, 129, 500)
    pairs = (gradient << 32) + hessian

    def built(rows):
        return build(bins, [np.flatnonzero(rows)], pairs, layout, 128, ONE)[0]

    some = rng.random(500) < 0.3
    assert (built(np.ones(500, bool)) - built(some)).tolist() == built(~some).tolist()
    total = int(gradient[some].sum()), int(hessian[some].sum())
    assert histograms.node_total(built(some)[: layout.cells], layout) == total


@pytest.mark.parametrize("bits", [8, 16, 24])
@pytest.mark.parametrize("sign", [1, -1])
def test_build_takes_any_number_of_rows_at_the_bound(bits, sign):
    limit, rows = 1 << (bits - 1), 1500
    codes = np.zeros((1, rows), np.uint8)
    pairs = np.full(rows, (sign * limit << 32) + limit, np.int64)
    bins = BinnedRows.of(codes, np.array([1]))
    out = build(bins, [np.arange(rows)], pairs, layout_of(1), limit, ONE)
    assert out[0, :2].tolist() == [sign * limit * rows, limit * rows]


@pytest.mark.parametrize("share_of_rare", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("features", [1, 2, 63, 64, 65, 200])
def test_threads_blocks_of_features_and_rare_bins_make_the_same_histograms(
    features, share_of_rare, monkeypatch
):
    rng = np.random.default_rng(features)
    layout = layout_of(*rng.integers(9, 256, features))
    codes = rng.integers(0, layout.value_bins, (300, features)).astype(np.uint8)
    monkeypatch.setattr(binned, "MIN_SPARSE_FEATURES", 1)
    often = rng.random(features) < share_of_rare
    codes[rng.random(codes.shape) < 0.97 * often] = 0  # whatever bin is the common one
    bins = BinnedRows.of(np.ascontiguousarray(codes.T), layout.value_bins)
    assert (bins.sparse is not None) == (share_of_rare > 0 and features > 1)
    pairs = (rng.integers(-128, 129, 300) << 32) + rng.integers(0, 129, 300)
    nodes = [np.sort(rng.choice(300, size, replace=False)) for size in (300, 0, 40)]
    due = np.zeros((3, layout.bins, 2), np.int64)
    for node, rows in enumerate(nodes):
        for stat, values in enumerate((pairs[rows] >> 32, pairs[rows] & 0xFFFFFFFF)):
            for feature, offset in enumerate(layout.offsets.tolist()):
                np.add.at(due[node, :, stat], offset + codes[rows, feature].astype(int), values)
    for number in (1, 2, 3):
        out = build(bins, nodes, pairs, layout, 128, Threads(number))
        assert out[:, : layout.cells].tolist() == due.reshape(3, -1).tolist()
        for sums, rows in zip(out, nodes, strict=True):
            gradient, hessian = pairs[rows] >> 32, pairs[rows] & 0xFFFFFFFF
            assert sums[layout.cells :].tolist() == [gradient[gradient > 0].sum(), hessian.sum()]


def test_features_that_disagree_are_a_peer_error():
    layout = layout_of(2, 2)
    sound = np.array([1, 2, 3, 4, 4, 6, 0, 0], np.int64)
    assert histograms.node_total(sound, layout) == (4, 6)
    for place in range(4, 8):
        wrong = sound.copy()
        wrong[place] += 1
        with raised(PeerError, "histogram-totals-disagree"):
            histograms.node_total(wrong, layout)


def test_a_negative_hessian_is_a_peer_error():
    with raised(PeerError, "histogram-negative-hessian"):
        histograms.node_total(np.array([1, -2, 3, 8], np.int64), layout_of(2))


@pytest.mark.parametrize(
    ("sums", "fits"),
    [
        ([7, 15], True),
        ([-7, 15], True),
        ([8, 15], False),
        ([-8, 0], True),
        ([-9, 0], False),
        ([0, 16], False),
        ([], True),
    ],
)
def test_what_fits_cells_of_4_and_4_bits(sums, fits):
    assert fit_level(np.array(sums, np.int64), np.array([len(sums) // 2]), np.array([[4, 4]])) == fits
