"""Floats to integers and back, and the proof that sums fit their cells."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from inprocess import pack, unpack
from raised import raised

from fedboost.errors import ConfigError
from fedboost.fixedpoint import EXPONENT_CELLS, UNIT, Scale, bound_exponent, cell_bits, exponent_counts
from fedboost.gbdt.kernels.histogram import quantise

scales = st.builds(Scale, st.integers(-60, 130), st.integers(2, 32))
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(scales, st.lists(numbers, max_size=20))
def test_decode_of_encode_is_the_nearest_unit_within_the_bound(scale, values):
    unit, bound = 2.0 ** (scale.exponent - scale.bits + 1), 2.0**scale.exponent
    encoded = scale.encode(np.array(values))
    assert encoded.dtype == np.int64
    for value, integer in zip(values, encoded.tolist(), strict=True):
        assert abs(integer) <= scale.limit
        within = max(-bound, min(bound, value))
        assert abs(scale.decode(integer) - within) <= unit / 2


@given(scales, st.integers(-(2**31), 2**31))
def test_encode_of_decode_is_exact(scale, integer):
    assume(abs(integer) <= scale.limit)
    assert scale.encode(np.array([scale.decode(integer)])).tolist() == [integer]


def test_what_lies_beyond_the_bound_is_clipped_to_it():
    scale = Scale(exponent=1, bits=8)
    assert scale.limit == 128
    values = [2.0, -2.0, 2.001, -1e30, math.inf, -math.inf]
    assert scale.encode(np.array(values)).tolist() == [128, -128, 128, -128, 128, -128]
    assert [scale.decode(i) for i in (128, -128, 1)] == [2.0, -2.0, 2.0**-6]


def test_ties_go_to_the_even_unit():
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    assert Scale(8, 9).encode(values).tolist() == [0, 2, 2, 0, -2, -2]


def test_the_unit_scale_counts():
    assert UNIT.encode(np.array([0.0, 1.0])).tolist() == [0, 1]
    assert (UNIT.decode(7), UNIT.limit) == (7.0, 1)


@given(
    st.lists(st.tuples(numbers, st.floats(0, 1e6)), max_size=30),
    st.integers(-30, 30),
    st.integers(8, 24),
)
def test_quantise_packs_what_encode_gives(pairs, exponent, bits):
    gradient, hessian = np.array(pairs, np.float64).reshape(-1, 2).T
    of_gradient, of_hessian = Scale(exponent, bits), Scale(exponent - 2, bits)
    packed = np.empty(len(pairs), np.int64)
    quantise(
        np.ascontiguousarray(gradient),
        np.ascontiguousarray(hessian),
        of_gradient.factor,
        of_hessian.factor,
        float(of_gradient.limit),
        packed,
    )
    due = (of_gradient.encode(gradient) << 32) + of_hessian.encode(hessian)
    assert packed.tolist() == due.tolist()


@given(st.integers(1, 1 << 32), st.integers(0, 1 << 40))
def test_cell_bits_is_the_narrowest_cell_that_holds_every_sum(limit, rows):
    largest = limit * max(rows, 1)
    if largest > 2**63 - 1:
        with raised(ConfigError, "terms-cell-overflow"):
            cell_bits(limit, rows)
        return
    bits = cell_bits(limit, rows)
    assert 2 ** (bits - 2) - 1 < largest <= 2 ** (bits - 1) - 1


@pytest.mark.parametrize("bits", range(3, 64))
def test_cell_bits_at_its_boundaries(bits):
    fits = 2 ** (bits - 1) - 1
    assert (cell_bits(1, fits), cell_bits(1, fits + 1)) == (bits, bits + 1)
    assert (cell_bits(fits, 1), cell_bits(fits + 1, 1)) == (bits, bits + 1)
    for total in (fits, -fits):  # and the cells themselves: fits, and one bit fewer does not
        assert unpack(pack([total], (1, bits)), (1, bits)).tolist() == [total]
        assert unpack(pack([total], (1, bits - 1)), (1, bits - 1)).tolist() != [total]


def test_the_widest_cell():
    assert cell_bits(1, 2**63 - 1) == 64
    with pytest.raises(ConfigError, match=str(2**63)):
        cell_bits(1, 2**63)


finite = st.floats(-(2.0**63), 2.0**63)


@given(st.lists(st.lists(finite, max_size=10), min_size=1, max_size=4))
def test_exponent_counts_add_over_parties_and_bound_every_value(parties):
    pooled = [value for values in parties for value in values]
    counts = sum(exponent_counts(np.array(values)) for values in parties)
    assert counts.tolist() == exponent_counts(np.array(pooled)).tolist()
    assert counts.shape == (EXPONENT_CELLS,)
    assert counts.sum() == sum(value != 0 for value in pooled)
    exponent = bound_exponent(counts)
    assert all(abs(value) <= 2.0**exponent for value in pooled)
    largest = max(map(abs, pooled), default=0.0)
    assert exponent == 0 if largest == 0 else (exponent == -63 or 2.0 ** (exponent - 1) <= largest)


def test_exponents_beyond_the_cells_are_counted_at_the_ends():
    counts = exponent_counts(np.array([2.0**-200, 2.0**200, -np.inf, 0.0]))
    assert (counts[0], counts[-1], counts.sum()) == (1, 2, 3)
    assert bound_exponent(exponent_counts(np.array([2.0**-200]))) == -63
    assert bound_exponent(np.zeros(EXPONENT_CELLS, np.int64)) == 0
