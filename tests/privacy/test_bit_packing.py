"""Integers in cells of 1 to 64 bits, modulo the size of a cell."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy.kernels import ADDED, SUBTRACTED
from fedboost.privacy.packing import CHUNK_CELLS, Segment, chunks_of, signed
from tests.privacy.reference import kernels as reference

BITS = (1, 2, 7, 8, 13, 31, 32, 33, 40, 52, 63, 64)
SIZES = (0, 1, 5, 63, 64, 65, 127, 128, 200)


def whole(*segments):
    """The one part of a short vector."""
    (part,) = chunks_of(tuple(Segment(*run) for run in segments))
    return part


def words(values):
    return np.array(values, np.int64).view(np.uint64)


def packed(values, bits):
    return whole((len(values), bits)).packed(words(values))


def ends(bits):
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def wrapped(value, bits):
    """The integer of a cell that a sum comes to."""
    lowest, _ = ends(bits)
    return (value - lowest) % 2**bits + lowest


def some(bits, size, seed=0):
    """Integers that reach both ends of a cell, and beyond it."""
    lowest, highest = ends(bits)
    values = np.random.default_rng([bits, size, seed]).integers(-(2**63), 2**63 - 1, size).tolist()
    return [lowest, highest, -1, 0, 1, *values][:size]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", SIZES)
def test_cells_travel_as_the_twin_lays_them_out(bits, size):
    values = some(bits, size)
    assert np.frombuffer(packed(values, bits), np.uint64).tolist() == reference.packed(values, bits)


def test_every_number_of_bits_and_no_byte_too_many():
    for bits, size in itertools.product(range(1, 65), (3, 64, 130)):
        values = some(bits, size)
        part = whole((size, bits))
        assert np.frombuffer(part.packed(words(values)), np.uint64).tolist() == reference.packed(values, bits)
        assert part.size == len(reference.packed(values, bits)) * 8 < size * bits / 8 + 8


def test_a_few_cells_are_a_stream_of_bits_lowest_first():
    assert packed([1, 2, 3], 4) == bytes([0x21, 0x03]) + bytes(6)
    assert packed([-2], 64) == (-2).to_bytes(8, "little", signed=True)


@pytest.mark.slow
@given(
    segments=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 64)), max_size=4),
    signs=st.lists(st.booleans(), max_size=4),
    seed=st.integers(0, 1000),
)
def test_a_running_sum_of_runs_is_the_sum(segments, signs, seed):
    part = whole(*segments)
    total, due = np.zeros(part.cells, np.uint64), [0] * part.cells
    for number, sign in enumerate(signs):
        values = [value for cells, bits in segments for value in some(bits, cells, seed + number)]
        part.add(total, part.packed(words(values)), ADDED if sign else SUBTRACTED)
        due = [before + (value if sign else -value) for before, value in zip(due, values, strict=True)]
    bits_of = [bits for cells, bits in segments for _ in range(cells)]
    due = [wrapped(value, bits) for value, bits in zip(due, bits_of, strict=True)]
    again = part.packed(total)
    opened = signed(total, tuple(Segment(*run) for run in segments))
    assert opened.tolist() == due
    assert opened.dtype == np.int64
    assert part.packed(words(due)) == again


@pytest.mark.parametrize("bits", BITS)
def test_any_bytes_are_cells_and_come_back_as_they_were(bits):
    """A mask is any bytes: adding it to nothing, and taking it off again, must lose none of them."""
    part = whole((6400, bits))
    mask = np.random.default_rng(bits).bytes(part.size)
    total = np.zeros(6400, np.uint64)
    part.add(total, mask)
    assert part.packed(total) == mask
    part.add(total, mask, SUBTRACTED)
    assert part.packed(total) == bytes(part.size)


@pytest.mark.parametrize("bits", BITS)
def test_bits_behind_the_last_cell_do_not_matter(bits):
    part = whole((65, bits))
    data = bytearray(part.packed(words(some(bits, 65))))
    data[-1] |= 0x80 if bits < 64 else 0
    total = np.zeros(65, np.uint64)
    part.add(total, data)
    assert part.packed(total) == packed(some(bits, 65), bits)


@pytest.mark.parametrize("bits", BITS)
def test_the_bytes_may_be_of_any_kind_and_stand_anywhere(bits):
    values = [wrapped(value, bits) for value in (1, -2, 3, *ends(bits))]
    data = packed(values, bits)
    within = memoryview(b"x" + data + b"x")[1:-1]
    for kind in (data, bytearray(data), memoryview(data), memoryview(bytearray(data)), within):
        total = np.zeros(5, np.uint64)
        whole((5, bits)).add(total, kind)
        assert signed(total, (Segment(5, bits),)).tolist() == values


def test_packing_leaves_the_integers_as_they_were():
    values = words([1, -2, 3])
    whole((3, 5)).packed(values)
    assert values.view(np.int64).tolist() == [1, -2, 3]


@pytest.mark.parametrize("bits", BITS)
def test_bytes_of_another_length_are_a_peer_error(bits):
    part, total = whole((70, bits)), np.zeros(70, np.uint64)
    for length in {0, 1, part.size - 8, part.size - 1, part.size + 1, part.size + 8}:
        with raised(PeerError, "cells-length", naming=[length, part.size]):
            part.add(total, bytes(length))
    assert not total.any()


# ---- few cells that are not 0 -----------------------------------------------------------------------


@given(
    segments=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 64)), max_size=4),
    share=st.sampled_from([0.0, 0.02, 0.3, 0.85, 1.0]),
    seed=st.integers(0, 1000),
)
def test_sparse_or_not_it_is_the_same_sum_and_never_longer(segments, share, seed):
    part = whole(*segments)
    there = np.random.default_rng(seed).random(part.cells) < share
    values = words([value for cells, bits in segments for value in some(bits, cells, seed)]) * there
    sparse = part.packed_sparsely(values)
    assert len(sparse) <= part.size
    totals = np.full((2, part.cells), 5, np.uint64)
    part.add_sparsely(totals[0], sparse)
    part.add(totals[1], part.packed(values))
    of = tuple(Segment(*run) for run in segments)
    assert signed(totals[0], of).tolist() == signed(totals[1], of).tolist()


def test_a_bitmap_and_the_cells_behind_it():
    part = whole((100, 40), (100, 10))
    values = words([0] * 200)
    values[[3, 64, 199]] = 7, 8, 9
    sparse = np.frombuffer(part.packed_sparsely(values), np.uint64).tolist()
    assert sparse == [1 << 3, 1, 0, 1 << 7, 7 | 8 << 40 & (1 << 64) - 1, 8 >> 24, 9]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:-8],
        lambda data: data + bytes(8),
        lambda data: data[:16],
        lambda data: b"",
        lambda data: b"\xff" + data[1:],
        lambda data: data[:31] + b"\x80" + data[32:],
        lambda data: b"\xff" * len(data),
    ],
)
def test_a_malformed_bitmap_is_a_peer_error_and_adds_nothing(spoil):
    part = whole((100, 40), (100, 10))
    values = words([0] * 200)
    values[[3, 64, 199]] = 7, 8, 9
    total = np.zeros(200, np.uint64)
    with raised(PeerError, "cells-length"):
        part.add_sparsely(total, spoil(part.packed_sparsely(values)))
    assert not total.any()


@given(st.binary(max_size=200))
def test_any_bytes_are_added_or_a_peer_error(data):
    total = np.zeros(130, np.uint64)
    part = whole((100, 5), (30, 7))
    try:
        part.add_sparsely(total, data)
    except PeerError:
        assert not total.any()


# ---- parts ------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 100, CHUNK_CELLS - 1, CHUNK_CELLS, 3 * CHUNK_CELLS]), st.just(9)),
        max_size=5,
    )
)
def test_parts_follow_one_another_and_only_the_last_is_not_full(segments):
    parts = chunks_of(tuple(Segment(*run) for run in segments))
    cells = sum(cells for cells, _ in segments)
    assert [part.start for part in parts] == [CHUNK_CELLS * number for number in range(len(parts))]
    assert all(part.cells == CHUNK_CELLS for part in parts[:-1])
    assert sum(part.cells for part in parts) == cells
    assert len(parts) == max(1, -(-cells // CHUNK_CELLS))


def test_no_part_is_larger_than_its_cells_of_eight_bytes():
    ones = tuple(Segment(1, bits) for bits in (1, 64) for _ in range(CHUNK_CELLS // 2))
    assert [part.size for part in chunks_of(ones)] == [8 * CHUNK_CELLS]


def test_a_run_goes_on_in_the_next_part():
    segments = (Segment(CHUNK_CELLS - 10, 3), Segment(30, 50))
    first, last = chunks_of(segments)
    values = some(3, CHUNK_CELLS - 10) + some(50, 30)
    total = np.zeros(len(values), np.uint64)
    for part in (first, last):
        part.add(part.of(total), part.packed(part.of(words(values))))
    assert last.cells == 20
    assert signed(total, segments)[-30:].tolist() == [wrapped(value, 50) for value in values[-30:]]
