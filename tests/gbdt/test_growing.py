"""Rows of the trees that grow: which are sampled, and that every row's margin moves once a tree."""

import numpy as np
import pytest
from raised import raised

from fedboost.errors import PeerError
from fedboost.gbdt import histogram
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.partition import UNBINNED, Bins, GrowingRows
from fedboost.gbdt.sampling import ALL_ROWS, NormSample, RowSampling, bootstrap, mixed, subsample
from fedboost.gbdt.threads import ONE
from fedboost.gbdt.tree import LeafValues, Split, Splits

ROWS, OUTPUTS, PARALLEL = 400, 2, 3
TRAINING = np.arange(ROWS) % 5 != 0
KEYS = mixed(np.arange(ROWS, dtype=np.uint64))
DRAWS = RowSampling(KEYS, 7, 0, PARALLEL)
SAMPLERS = [
    ALL_ROWS,
    subsample(TRAINING, DRAWS, 1.0),
    subsample(TRAINING, DRAWS, 0.4),
    bootstrap(TRAINING, DRAWS, 1.0),
]
ROOTS = tuple(range(OUTPUTS * PARALLEL))


def growing_of(sampler):
    return GrowingRows(ROWS, OUTPUTS, PARALLEL, sampler, ONE)


def bins_of():
    column = np.random.default_rng(0).random(ROWS).astype(np.float32)
    cuts = CutPoints.of((np.array([0.25, 0.5], np.float32),), (False,))
    return column, Bins.of((column,), cuts, ONE, lambda shape, dtype: np.empty(shape, dtype))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_margin_moves_by_the_leaf_of_each_parallel_tree(sampler):
    growing, (column, bins) = growing_of(sampler), bins_of()
    left = ROOTS[-1] + 1
    splits = Splits.of(Split(root, 0, 0, False, left + 2 * root) for root in ROOTS)
    growing.begin(1)
    margin = np.zeros((OUTPUTS, ROWS))
    values = [(node, float(1 << (node - left))) for node in range(left, left + 2 * len(ROOTS))]
    growing.move_margins(splits, LeafValues.of(values), bins, margin)
    for output in range(OUTPUTS):
        sides = [2.0 ** (2 * (PARALLEL * output + tree)) for tree in range(PARALLEL)]
        due = np.where(column < 0.25, sum(sides), 2 * sum(sides))
        assert margin[output].tolist() == due.tolist()
    growing.apply(splits, bins)
    assert [growing.output_of(left + 2 * root) for root in ROOTS] == [0, 0, 0, 1, 1, 1]


def test_samples_are_of_training_rows_alike_for_outputs_and_different_for_trees():
    for sampler in SAMPLERS[1:]:
        growing = growing_of(sampler)
        members = [growing.of(root).tolist() for root in ROOTS]
        assert members[:PARALLEL] == members[PARALLEL:]
        assert all(TRAINING[rows].all() and rows == sorted(rows) for rows in members)
    growing = growing_of(SAMPLERS[2])
    first = [growing.of(root).tolist() for root in ROOTS[:PARALLEL]]
    growing.begin(1)
    assert len({*map(tuple, first), *(tuple(growing.of(root).tolist()) for root in ROOTS[:PARALLEL])}) == 6
    growing.begin(0)
    assert [growing.of(root).tolist() for root in ROOTS[:PARALLEL]] == first


def test_rows_of_large_gradients_are_kept_and_others_weighed_by_their_probabilities():
    gradient = np.where(np.arange(ROWS) < 100, 8.0, 1.0)
    sample = NormSample(TRAINING, DRAWS, 0, 0.5, 1.0, 4.0)
    for rows in (slice(0, 150), np.arange(150, ROWS)):
        weighed, hessian = sample.reweigh(rows, gradient[rows], np.zeros(gradient[rows].size))
        assert weighed.tolist() == np.where(gradient[rows] > 4, 8.0, 4.0).tolist()
        assert not hessian.any()
    for mask in sample.masks:
        assert mask[:100].tolist() == TRAINING[:100].tolist()
        assert not mask[~TRAINING].any()
        assert 0.15 < mask[100:][TRAINING[100:]].mean() < 0.35
    growing = growing_of(subsample(TRAINING, DRAWS, 1.0))
    growing.begin_on(sample.masks)
    assert growing.of(1).tolist() == np.flatnonzero(sample.masks[1]).tolist()


def test_histograms_are_those_of_the_sampled_rows():
    growing, (column, bins) = growing_of(SAMPLERS[3]), bins_of()
    numbers = np.arange(ROWS, dtype=np.int64)
    pairs = np.stack([(numbers << 32) + 1, (2 * numbers << 32) + 1])
    codes = np.searchsorted([0.25, 0.5], column, side="right")
    found = growing.histograms((0, 4), pairs, bins, 1 << 12)
    assert found.shape == (2, 3 * histogram.STATS + histogram.STATS)
    for cells, root, factor in zip(found, (0, 4), (1, 2), strict=True):
        rows = growing.of(root)
        due = [
            [factor * numbers[rows][codes[rows] == code].sum(), (codes[rows] == code).sum()]
            for code in range(3)
        ]
        assert cells[:6].reshape(3, 2).tolist() == due


def test_nothing_splits_before_there_are_bins():
    with raised(PeerError, "split-invalid"):
        growing_of(ALL_ROWS).apply(Splits.of([Split(0, 0, 0, True, 10)]), UNBINNED)
