"""Every kernel of the rows of nodes equals its numpy reference bit for bit."""

import numpy as np
import pytest
from kernel_cases import binned

from fedboost.gbdt.kernels.rows import add_value, count_up, partition
from tests.gbdt.reference import rows as reference


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [0, 1, 40, 300])
def test_partition(count, share):
    rng = np.random.default_rng(count)
    table, _ = binned(rng, 400, [10, 256, 5])
    everyone = rng.permutation(400).astype(np.uint32)
    rows, scratch = everyone[20 : 20 + count], np.empty(400, np.uint32)
    before, around = rows.copy(), (everyone[:20].tolist(), everyone[20 + count :].tolist())
    goes_left = (rng.random(256) < share).astype(np.uint8)
    for codes in np.ascontiguousarray(table.T):
        left, right = reference.partition(codes, goes_left, before)
        rows[:] = before
        split = partition(codes, goes_left, rows, scratch)
        assert (split, rows.tolist()) == (len(left), left + right)
        assert (everyone[:20].tolist(), everyone[20 + count :].tolist()) == around


def test_count_up():
    rows = np.full(5, 9, np.uint32)
    count_up(rows)
    assert rows.tolist() == [0, 1, 2, 3, 4]


def test_add_value():
    margin = np.arange(6.0)
    add_value(margin, np.array([4, 1], np.uint32), 0.1)
    assert margin.tolist() == [0.0, 1.1, 2.0, 3.0, 4.0 + 0.1, 5.0]
    add_value(margin, np.zeros(0, np.uint32), 9.0)
    assert margin.tolist() == [0.0, 1.1, 2.0, 3.0, 4.0 + 0.1, 5.0]
