"""Cut points from counts: the same for every partition, bins of even mass, "x < cut goes left"."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inprocess import randomly
from raised import raised

from fedboost.errors import PeerError
from fedboost.gbdt.binned import SparseColumn
from fedboost.gbdt.cut_points import (
    MAX_REFINEMENTS,
    CutPoints,
    Grids,
    Quantiles,
    count_cells,
    keys_to_floats,
)
from fedboost.gbdt.kernels.bins import float_keys
from fedboost.gbdt.threads import ONE, Threads

RNG = np.random.default_rng(0)
NAN = float("nan")
NORMAL = RNG.normal(size=20_000)
HEAVY_ZERO = np.where(RNG.random(20_000) < 0.7, 0.0, NORMAL)
HOLES = np.where(RNG.random(20_000) < 0.1, np.nan, NORMAL)
DISTRIBUTIONS = {
    "normal": NORMAL,
    "uniform": RNG.random(20_000),
    "exponential": RNG.exponential(1e-3, 20_000),
    "lognormal": np.exp(10 * NORMAL),
    "negative": -np.exp(NORMAL),
    "far from zero": 1e6 + NORMAL,
    "huge": NORMAL * 5e37,
    "subnormal": NORMAL * 1e-40,
    "all magnitudes": np.sign(NORMAL) * 10.0 ** RNG.uniform(-44, 38, 20_000),
    "few integers": RNG.integers(-3, 9, 20_000).astype(float),
    "256 integers": RNG.integers(0, 256, 20_000).astype(float),
    "many integers": RNG.integers(0, 5000, 20_000).astype(float),
    "skewed integers": RNG.geometric(0.3, 20_000).astype(float),
    "heavy zero": HEAVY_ZERO,
    "heavy zero and holes": np.where(RNG.random(20_000) < 0.2, np.nan, HEAVY_ZERO),
    "holes": HOLES,
    "constant": np.full(5000, 3.25),
    "constant zero": np.zeros(5000),
    "signed zeros": np.where(RNG.random(5000) < 0.5, 0.0, -0.0),
    "constant and holes": np.where(RNG.random(5000) < 0.5, 3.25, np.nan),
    "two values": np.where(RNG.random(5000) < 0.01, -1.0, 1.0),
    "neighbours": np.where(RNG.random(5000) < 0.5, 1.0, np.nextafter(np.float32(1), np.float32(2))),
    "all missing": np.full(5000, np.nan),
    "no rows": np.zeros(0),
    "one row": np.array([-7.5]),
    "two rows": np.array([1.0, np.nan]),
    "tiny": RNG.normal(size=9),
}
COLUMNS = {name: values.astype(np.float32) for name, values in DISTRIBUTIONS.items()}
CONTINUOUS = ("normal", "uniform", "exponential", "lognormal", "negative", "huge", "all magnitudes", "holes")


def find_cut_points(column, max_bin=256, parts=1):
    """Cut points of one column over `parts` parties, whether it has missing values, and the turns it took."""
    shares = [column[rows] for rows in randomly(column.size, parts)] if column.size > parts else [column]
    quantiles = Quantiles(max_bin, column.size)
    turns = 0
    while quantiles.grids.cells and turns < MAX_REFINEMENTS:
        quantiles.refine(sum(count_cells([share], quantiles.grids) for share in shares))
        turns += 1
    cut_points, (missing,) = quantiles.cut_points(), quantiles.missing.tolist()
    assert cut_points.missing.tolist() == [missing > 0]
    return cut_points.values, missing, turns


def bins_of(column, cuts):
    codes = CutPoints.of((cuts,), (bool(np.isnan(column).any()),)).bin_rows((column,)).by_feature[0]
    return codes[~np.isnan(column)], codes[np.isnan(column)]


@pytest.mark.parametrize("max_bin", [2, 16, 255, 256])
@pytest.mark.parametrize("name", COLUMNS)
def test_cut_points(name, max_bin):
    column = COLUMNS[name]
    cuts, missing, turns = find_cut_points(column, max_bin)
    assert cuts.dtype == np.float32
    assert (cuts[1:] > cuts[:-1]).all()
    assert np.isfinite(cuts).all()
    assert missing == np.isnan(column).sum()
    assert cuts.size + 1 <= min(max_bin, 255 if missing else 256)
    assert turns <= MAX_REFINEMENTS
    # "x < cut goes left": bin b holds [cut[b - 1], cut[b]), and the missing have the bin after the last.
    present, absent = bins_of(column, cuts)
    for b, cut in enumerate(cuts):
        assert ((column[~np.isnan(column)] < cut) == (present <= b)).all()
    assert (absent == cuts.size + 1).all()
    # No bin is empty: a cut nobody is right of, or left of, splits nothing.
    if present.size:
        assert np.bincount(present, minlength=cuts.size + 1).all()
    for parts in (2, 5):
        again, missing_again, _ = find_cut_points(column, max_bin, parts)
        assert again.tobytes() == cuts.tobytes()
        assert missing_again == missing


@pytest.mark.parametrize("max_bin", [16, 64, 256])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_bins_of_continuous_values_are_even(name, max_bin):
    cuts, missing, _ = find_cut_points(COLUMNS[name], max_bin)
    assert cuts.size + 1 == min(max_bin, 255 if missing else 256)
    present, _ = bins_of(COLUMNS[name], cuts)
    even = present.size / (cuts.size + 1)
    mass = np.bincount(present)
    assert mass.max() <= 1.25 * even
    assert mass.min() >= 0.75 * even


@pytest.mark.parametrize(
    "name", ["few integers", "256 integers", "two values", "neighbours", "constant", "tiny"]
)
def test_every_value_has_its_own_bin_where_there_are_bins_enough(name):
    column = COLUMNS[name]
    cuts, _, _ = find_cut_points(column)
    present, _ = bins_of(column, cuts)
    assert cuts.size + 1 == np.unique(column).size == np.unique(present).size


def test_a_heavy_value_begins_a_bin_that_ends_at_the_next_quantile():
    for max_bin in (16, 256):
        column = COLUMNS["heavy zero"]
        cuts, _, _ = find_cut_points(column, max_bin)
        present, _ = bins_of(column, cuts)
        (code,) = set(present[column == 0].tolist())
        assert cuts[code - 1] == 0
        beside = ((present == code) & (column != 0)).sum()
        assert beside <= 1.5 * column.size / max_bin


def test_cuts_lie_at_the_quantiles_each_once():
    column = np.repeat(np.arange(4, dtype=np.float32), [30, 300, 30, 300])
    cuts, _, _ = find_cut_points(column, max_bin=3)  # ranks 220 and 440 of 660
    assert cuts.tolist() == [1, 3]


@pytest.mark.slow
@given(
    st.lists(st.one_of(st.floats(width=32, allow_infinity=False), st.integers(-3, 3)), max_size=60),
    st.sampled_from([2, 3, 16, 256]),
    st.integers(1, 4),
)
def test_any_values_any_partition(values, max_bin, parts):
    column = np.array(values, np.float32)
    cuts, missing, _ = find_cut_points(column, max_bin)
    again, _, _ = find_cut_points(column, max_bin, parts)
    assert again.tobytes() == cuts.tobytes()
    assert (cuts[1:] > cuts[:-1]).all()
    assert cuts.size + 1 <= min(max_bin, 255 if missing else 256)


def test_missing_values_of_any_payload_are_counted_as_missing():
    words = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x3F800000], np.uint32)
    _, missing, _ = find_cut_points(words.view(np.float32))
    assert missing == 4


def test_counts_that_do_not_add_up():
    column = COLUMNS["normal"]
    honest = count_cells([column], Grids.first(1))
    for change in ({3: 1}, {3: -1}, {int(honest.argmax()): 1, 0: -1}):
        counts = honest.copy()
        for cell, by in change.items():
            counts[cell] += by
        with raised(PeerError, "cells-sum-mismatch"):
            Quantiles(256, column.size).refine(counts)
    quantiles = Quantiles(256, column.size)
    quantiles.refine(honest)
    second = count_cells([column], quantiles.grids)
    second[0] += 1
    with raised(PeerError, "cells-sum-mismatch"):
        quantiles.refine(second)


def test_a_second_refinement_checks_each_cell_not_only_the_total():
    column = COLUMNS["normal"]
    quantiles = Quantiles(256, column.size)
    quantiles.refine(count_cells([column], quantiles.grids))
    assert quantiles.grids.starts.size > 1
    counts = count_cells([column], quantiles.grids)
    counts[0] += 1
    counts[-1] -= 1 if counts[-1] else -1
    with raised(PeerError, "cells-sum-mismatch"):
        quantiles.refine(counts)


def test_an_empty_grid_asks_nothing():
    quantiles = Quantiles(256, 3)
    column = np.array([1, 2, 3], np.float32)
    quantiles.refine(count_cells([column], quantiles.grids))
    assert quantiles.grids.cells == 0
    assert count_cells([column], quantiles.grids).shape == (0,)
    quantiles.refine(np.zeros(0, np.int64))
    assert quantiles.cut_points().sizes.tolist() == [2]


def test_features_are_refined_each_on_its_own():
    columns = [np.resize(column, 20_000) for column in COLUMNS.values() if column.size]
    quantiles = Quantiles(64, 20_000, len(columns))
    turns = 0
    while quantiles.grids.cells and turns < MAX_REFINEMENTS:
        quantiles.refine(count_cells(columns, quantiles.grids))
        turns += 1
    cut_points = quantiles.cut_points()
    for column, cuts, missing in zip(columns, cut_points.cuts, cut_points.missing, strict=True):
        alone, missing_alone, _ = find_cut_points(column, 64)
        assert cuts.tobytes() == alone.tobytes()
        assert missing == (missing_alone > 0)


@pytest.mark.parametrize("threads", [ONE, Threads(3)])
def test_of_sparse_columns_the_same_is_known_as_of_dense_ones(threads):
    rng = np.random.default_rng(0)
    dense, mixed = [], []
    for feature in range(40):
        rows = np.flatnonzero(rng.random(200) < 0.1)
        values = rng.choice([1, -2.5, 1e-40, 0, -0.0, np.nan, np.inf], rows.size).astype(np.float32)
        sparse = SparseColumn(200, rows, values)
        dense.append(sparse[:])
        mixed.append(sparse if feature % 3 else sparse[:])
    quantiles = Quantiles(16, 200, 40)
    for _ in range(3):
        counts = count_cells(dense, quantiles.grids, threads)
        assert count_cells(mixed, quantiles.grids, threads).tolist() == counts.tolist()
        quantiles.refine(counts)
    cut_points = quantiles.cut_points()
    assert cut_points.sizes.max() > 1
    due = cut_points.bin_rows(dense, threads).by_feature
    assert cut_points.bin_rows(mixed, threads).by_feature.tolist() == due.tolist()
    unseen = dataclasses.replace(cut_points, missing=np.zeros(40, np.bool_))
    due = unseen.bin_rows(dense, threads).by_feature
    assert unseen.bin_rows(mixed, threads).by_feature.tolist() == due.tolist()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_keys_and_floats(values):
    column = np.array(values, np.float32)
    keys = float_keys(column)
    assert keys_to_floats(keys).tolist() == column.tolist()
    order = np.argsort(keys, kind="stable")
    assert (column[order][1:] >= column[order][:-1]).all()
    for a, b in zip(values, reversed(values), strict=True):
        assert (a < b) == bool(float_keys(np.float32([a]))[0] < float_keys(np.float32([b]))[0])


def test_binning_puts_a_value_at_its_cut_right_of_it():
    cuts = np.array([-1.0, 0.0, 2.5], np.float32)
    column = np.array([-2, -1, -0.5, -0.0, 0.0, 2.4, 2.5, 9, math.nan, math.inf, -math.inf], np.float32)
    due = [0, 1, 1, 2, 2, 2, 3, 3, 4, 3, 0]
    binned = CutPoints.of((cuts, cuts[:0]), (True, True)).bin_rows((column, -column))
    assert binned.by_feature.dtype == binned.by_row.dtype == np.uint8
    assert binned.by_feature.tolist() == [due, np.isnan(column).tolist()]


# ---- levels -----------------------------------------------------------------------------------------


def test_each_level_is_a_bin_and_missing_values_have_one_more():
    cuts = CutPoints.of((np.array([0.5], np.float32),), (False,)).with_categories((3, 1, 255))
    assert (cuts.missing.tolist(), cuts.categorical) == ([False, True, True, True], (1, 2, 3))
    assert [of.size + 1 for of in cuts.cuts] == [2, 3, 1, 255]
    columns = [[0, 1, 0, 1], [0, 2, NAN, 1], [0, NAN, NAN, 0], [254, NAN, 0, 100]]
    binned = cuts.bin_rows([np.array(column, np.float32) for column in columns])
    assert binned.by_feature.tolist() == [[0, 1, 0, 1], [0, 2, 3, 1], [0, 1, 1, 0], [254, 255, 0, 100]]
