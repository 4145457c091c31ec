"""Integers in cells of 1 to 8 bytes, modulo the size of a cell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedboost.errors import PeerError
from fedboost.privacy.cells import Residues

WIDTHS = range(1, 9)


def packed(values, width):
    """All cells of a vector as they travel."""
    return Residues.of(np.asarray(values, np.int64), width).packed(0, len(values))


def planes(values, width):
    """The cells as the module says they travel: planes of 8, 4, 2, 1 bytes, the lowest bytes first."""
    out, start = b"", 0
    for plane in (8, 4, 2, 1):
        if width & plane:
            cells = [(value % 2**64).to_bytes(8, "little") for value in values]
            out += b"".join(cell[start : start + plane] for cell in cells)
            start += plane
    return out


def ends(width):
    return -(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1


def wrapped(value, width):
    """The integer of a cell that a sum comes to."""
    lowest, _ = ends(width)
    return (value - lowest) % 2 ** (8 * width) + lowest


@pytest.mark.parametrize("width", WIDTHS)
def test_cells_are_little_endian_twos_complement_in_planes(width):
    lowest, highest = ends(width)
    values = [0, 1, -1, lowest, highest, lowest + 1, highest - 1, highest // 3, lowest // 3]
    assert packed(values, width) == planes(values, width)
    assert len(packed(values, width)) == width * len(values)


def test_a_cell_alone_is_its_bytes():
    for width in WIDTHS:
        assert packed([-2], width) == (-2).to_bytes(width, "little", signed=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_does_not_fit_is_cut_to_its_residue(width):
    values = [2**63 - 1, -(2**63), 2**40 + 5, -(2**33) - 1]
    assert packed(values, width) == planes(values, width)


def test_views_are_packed_like_their_copies():
    values = np.arange(-50, 50, dtype=np.int64)
    for width in WIDTHS:
        assert packed(values[::3], width) == packed(values[::3].copy(), width)
        assert packed(values[20:40], width) == packed(values[20:40].copy(), width)


@given(st.integers(1, 8), st.data())
def test_a_running_sum_is_the_sum(width, data):
    lowest, highest = ends(width)
    size = data.draw(st.integers(0, 5))
    row = st.lists(st.integers(lowest, highest), min_size=size, max_size=size)
    added = data.draw(st.lists(row, max_size=4))  # residues may wrap on the way
    subtracted = data.draw(st.lists(row, max_size=4))
    running = Residues(size, width)
    for values in added:
        running.add(0, size, packed(values, width))
    for values in subtracted:
        running.subtract(0, size, packed(values, width))
    due = [
        wrapped(sum(row[cell] for row in added) - sum(row[cell] for row in subtracted), width)
        for cell in range(size)
    ]
    assert running.signed().tolist() == due
    assert running.signed().dtype == np.int64
    assert running.packed(0, size) == planes(due, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_any_bytes_are_cells_and_come_back_as_they_were(width):
    """A mask is any bytes: adding it to nothing, and taking it off again, must lose none of them."""
    mask = np.random.default_rng(width).bytes(1000 * width)
    residues = Residues(1000, width)
    residues.add(0, 1000, mask)
    assert residues.packed(0, 1000) == mask
    residues.subtract(0, 1000, mask)
    assert residues.packed(0, 1000) == bytes(1000 * width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_bytes_may_be_of_any_kind_and_stand_anywhere(width):
    values = [1, -2, 3, ends(width)[0], ends(width)[1]]
    data = packed(values, width)
    within = memoryview(b"x" + data + b"x")[1:-1]
    for kind in (data, bytearray(data), memoryview(data), memoryview(bytearray(data)), within):
        running = Residues(5, width)
        running.add(0, 5, kind)
        assert running.signed().tolist() == values


@pytest.mark.parametrize("width", WIDTHS)
def test_parts_are_added_at_their_places(width):
    running = Residues(5, width)
    running.add(0, 3, packed([1, -2, 3], width))
    running.add(3, 2, packed([-4, 5], width))
    running.add(3, 2, packed([-100, 100], width))
    running.add(1, 0, b"")
    running.subtract(4, 1, packed([50], width))
    assert running.signed().tolist() == [1, -2, 3, -104, 55]
    assert running.signed().tolist() == [1, -2, 3, -104, 55]  # taking the sum does not change it
    assert running.packed(2, 3) == planes([3, -104, 55], width)


@pytest.mark.parametrize("width", WIDTHS)
def test_residues_are_their_own_copy(width):
    values = np.array([1, 2, 3])
    residues = Residues.of(values, width)
    residues.add(0, 3, packed([10, 10, 10], width))
    assert values.tolist() == [1, 2, 3]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("operation", [Residues.add, Residues.subtract])
def test_bytes_of_another_length_are_a_peer_error(operation, width):
    running = Residues(4, width)
    for length in {0, 1, 4 * width - 1, 4 * width + 1, 8 * width} - {4 * width}:
        with pytest.raises(PeerError, match=f"{length} bytes of cells where 4 cells of {width} bytes"):
            operation(running, 0, 4, bytes(length))
    assert running.signed().tolist() == [0] * 4
