"""Rows as codes: bins by row, joint codes, and lists of rare bins."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splits import layout_of

from fedboost.gbdt import binned as joint_codes
from fedboost.gbdt import histogram
from fedboost.gbdt.binned import BinnedRows
from fedboost.gbdt.threads import Threads
from tests.gbdt.reference import histogram as reference


def bins_of(binned):
    """The bins of the dense features of each row, taken apart again: [rows, D]."""
    columns = binned.columns
    alone = columns.begins.size - columns.bins.shape[1]
    out = [binned.by_row[:, column] for column in range(alone)]
    for column in range(alone, columns.sizes.size):
        start, end = columns.starts[column : column + 2] - alone
        assert (binned.by_row[:, column] < columns.sizes[column]).all()
        out += [*columns.bins[binned.by_row[:, column], start:end].T]
    return np.array(out).T


# ---- rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "width"),
    [(1, 1), (3, 4), (5, 8), (7, 8), (14, 16), (23, 23), (50, 64), (65, 65), (100, 128)],
)
def test_rows_of_codes_do_not_lie_across_lines_that_they_need_not(features, width):
    by_feature = np.random.default_rng(features).integers(0, 256, (features, 999)).astype(np.uint8)
    binned = BinnedRows.of(by_feature, np.full(features, 256))
    assert binned.by_row.shape == (999, width)
    assert binned.dense.tolist() == [*range(features)]
    assert (binned.by_row[:, :features] == by_feature.T).all()
    if width % 64 == 0 or 64 % width == 0:
        assert binned.by_row.ctypes.data % 64 == 0


def test_rows_are_stored_by_feature_alone_if_their_sums_are_as_fast():
    rng = np.random.default_rng(0)
    even, codes = rng.integers(0, 256, (5, 3000)).astype(np.uint8), np.full(5, 256)
    often, few = even.copy(), even.copy()
    often[:, ::3] = 7
    few[1:3] = few[1:3] % 8  # these two share a column
    assert BinnedRows.of(even, codes, by_row=False).by_row.shape == (3000, 0)
    assert BinnedRows.of(even, codes).by_row.shape == (3000, 8)
    assert BinnedRows.of(often, codes, by_row=False).by_row.shape == (3000, 8)
    assert BinnedRows.of(few, codes, by_row=False).by_row.shape == (3000, 4)
    assert BinnedRows.of(even[:, :0], codes, by_row=False).by_row.shape[0] == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("features", [3, 23, 50])
def test_both_ways_of_storing_rows_give_the_same_histograms(features, threads, monkeypatch):
    monkeypatch.setattr(histogram, "SHARED_CODES", 1)
    rng, layout = np.random.default_rng(features), layout_of(*[256] * features)
    by_feature = rng.integers(0, 256, (features, 5000)).astype(np.uint8)
    pairs = ((rng.integers(-128, 129, 5000) << 32) + rng.integers(0, 129, 5000)).reshape(1, -1)
    monkeypatch.setattr(histogram, "STRETCH", 1700)
    for shares in ((1.0,), (0.3, 0.0, 0.8)):
        nodes = [np.flatnonzero(rng.random(5000) < share).astype(np.uint32) for share in shares]
        ends = np.cumsum([0, *map(len, nodes)])
        places = np.stack([ends[:-1], ends[1:], 0 * ends[1:]], axis=1)
        asked = np.concatenate(nodes), places, pairs, layout, 128, Threads(threads)
        by_row, by_column = (
            histogram.build(BinnedRows.of(by_feature, layout.value_bins, by_row=by_row), *asked)
            for by_row in (True, False)
        )
        assert by_row.tolist() == by_column.tolist()


# ---- joint codes ------------------------------------------------------------------------------------


@st.composite
def tables(draw):
    """Bins of features with few and with many bins, constant, or following from another; and how many."""
    rows = draw(st.sampled_from([0, 1, 2, 40, 600]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns, sizes = [], []
    for _ in range(draw(st.integers(1, 12))):
        size = draw(st.sampled_from([1, 2, 3, 17, 128, 255, 256]))
        kind = draw(st.sampled_from(["any", "constant", "last", "rare", "follows"]))
        column = rng.integers(0, size, rows)
        if kind == "constant":
            column[:] = draw(st.integers(0, size - 1))
        elif kind == "last":  # where missing values are
            column[:] = size - 1
        elif kind == "rare":
            column[rng.random(rows) < 0.97] = 0
        elif kind == "follows" and columns:
            column = columns[-1] % size
        columns.append(column)
        sizes.append(size)
    return np.array(columns).astype(np.uint8).reshape(len(sizes), rows), sizes


@settings(max_examples=40)
@given(
    tables(), st.integers(0, 2**32), st.sampled_from([1, 2]), st.sampled_from([1, 64, joint_codes.MAX_TRIES])
)
def test_any_plan_gives_the_sums_of_the_bins(table, seed, threads, tries):
    by_feature, sizes = table
    rows, rng, layout = by_feature.shape[1], np.random.default_rng(seed), layout_of(*sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint_codes, "MAX_TRIES", tries)
        patch.setattr(joint_codes, "_ROWS_LOOKED_AT", 1 + seed % 50)  # so that many joins fail on all rows
        patch.setattr(joint_codes, "MAX_READS", seed % 3)
        binned = BinnedRows.of(by_feature, layout.value_bins)
    assert sorted(binned.dense.tolist()) == [*range(len(sizes))]
    assert bins_of(binned).tolist() == by_feature[binned.dense].T.tolist()
    assert (binned.columns.sizes <= 256).all()
    pairs = (rng.integers(-128, 129, rows) << 32) + rng.integers(0, 129, rows)
    nodes = [np.flatnonzero(rng.random(rows) < share).astype(np.uint32) for share in (1.0, 0.1)]
    ends = np.cumsum([node.size for node in nodes])
    places = np.array([[0, ends[0], 0], [ends[0], ends[1], 0]])
    every = np.concatenate(nodes)
    out = histogram.build(binned, every, places, pairs.reshape(1, -1), layout, 128, Threads(threads))
    for sums, node in zip(out, nodes, strict=True):
        due = reference.build_histogram(by_feature.T, node, pairs, layout.offsets, layout.bins)
        assert sums.tolist() == [*due, *reference.sum_positive(node, pairs)]


def columns_of(*features, rows=2000):
    """How many columns these features take, and which features are in each."""
    by_feature = np.array([np.resize(feature, rows) for feature in features]).astype(np.uint8)
    binned = BinnedRows.of(by_feature, np.full(len(features), 256))
    assert bins_of(binned).tolist() == by_feature[binned.dense].T.tolist()
    return [part.tolist() for part in np.split(binned.dense, binned.columns.starts[1:-1])]


def test_features_share_a_column_as_long_as_there_are_codes():
    sixteen, sixteen_times, all_bins = np.arange(16), np.repeat(np.arange(16), 16), np.arange(256)
    assert columns_of(sixteen, sixteen_times) == [[0, 1]]  # 256 combinations
    assert columns_of(sixteen, np.repeat(np.arange(17), 16)) == [[0], [1]]
    assert columns_of(all_bins, all_bins // 3, np.zeros(1)) == [[1], [0, 2]]
    assert columns_of(sixteen, all_bins, np.zeros(1), sixteen_times) == [[0, 3], [1, 2]]


def test_a_party_with_one_row_has_one_column():
    assert columns_of([7], [0], [255], rows=1) == [[0, 1, 2]]


def test_a_combination_in_a_row_that_was_not_sampled_keeps_features_apart():
    rare = np.arange(1 << 15) % 256
    other = np.zeros(1 << 15)
    other[1] = 1  # only every fourth row is sampled
    assert columns_of(rare, other, rows=1 << 15) == [[0], [1]]
    rare[rare == 9] = 10
    assert columns_of(rare, other, rows=1 << 15) == [[0, 1]]


# ---- lists of rare bins -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 300])
@pytest.mark.parametrize("rare", [[], [0, 3], [1, 2, 4], [0, 1, 2, 3, 4]])
def test_what_is_listed_of_rare_bins_and_what_is_not_are_all_bins(rows, rare, monkeypatch):
    monkeypatch.setattr("fedboost.gbdt.binned.MIN_SPARSE_FEATURES", 1)
    rng = np.random.default_rng(rows)
    codes = np.array([7, 256, 2, 30, 90])
    by_feature = np.stack([rng.integers(0, count, rows) for count in codes]).astype(np.uint8)
    for feature in rare:
        by_feature[feature, rng.random(rows) < 0.95] = codes[feature] - 1
    binned = BinnedRows.of(by_feature, codes)
    dense = sorted(binned.dense.tolist())
    if rows == 300 and rare:
        assert dense == [f for f in range(5) if f not in rare] or rare == [0, 1, 2, 3, 4]
    assert len(dense) >= 1
    assert (bins_of(binned) == by_feature[binned.dense].T).all()
    if binned.sparse is None:
        assert len(dense) == 5
        return
    listed, ends = binned.sparse, binned.sparse.starts.tolist()
    assert sorted([*dense, *listed.features.tolist()]) == [0, 1, 2, 3, 4]
    for row in range(rows):
        found = dict(zip(listed.features.tolist(), listed.most_frequent.tolist(), strict=True))
        for entry in listed.entries[ends[row] : ends[row + 1]].tolist():
            place = int(np.searchsorted(listed.offsets, entry, side="right")) - 1
            feature = int(listed.features[place])
            assert found[feature] == listed.most_frequent[place]  # listed once
            found[feature] = entry - int(listed.offsets[place])
            assert found[feature] != listed.most_frequent[place]
        assert {f: int(by_feature[f, row]) for f in found} == found


def test_a_feature_is_tried_with_the_columns_that_have_codes_left_and_no_others():
    def calls(features):
        bins = np.random.default_rng(0).permuted(np.tile(np.arange(256), (features, 1)), axis=1)
        by_feature, seen = bins.astype(np.uint8), []

        def count(frame, event, argument):
            if event == "call" and frame.f_code.co_filename == joint_codes.__file__:
                seen.append(frame.f_code.co_name)

        sys.setprofile(count)
        try:
            columns = joint_codes.plan(by_feature, np.arange(features), lambda: np.empty(256, np.uint8))
        finally:
            sys.setprofile(None)
        assert len(columns) == features
        return len(seen)

    assert calls(400) < 3 * calls(200)
