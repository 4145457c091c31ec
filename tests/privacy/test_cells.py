"""Integers in cells of 1 to 8 bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedboost.errors import PeerError
from fedboost.privacy.cells import RunningSum, pack

WIDTHS = range(1, 9)


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


@pytest.mark.parametrize("width", WIDTHS)
def test_cells_are_little_endian_twos_complement_in_planes(width):
    lowest, highest = ends(width)
    values = [0, 1, -1, lowest, highest, lowest + 1, highest - 1, highest // 3, lowest // 3]
    packed = pack(np.array(values, np.int64), width)
    assert packed == planes(values, width)
    assert len(packed) == width * len(values)


def test_a_cell_alone_is_its_bytes():
    for width in WIDTHS:
        assert pack(np.array([-2]), width) == (-2).to_bytes(width, "little", signed=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_does_not_fit_is_cut_to_its_residue(width):
    values = [2**63 - 1, -(2**63), 2**40 + 5, -(2**33) - 1]
    assert pack(np.array(values, np.int64), width) == planes(values, width)


def test_views_are_packed_like_their_copies():
    values = np.arange(-50, 50, dtype=np.int64)
    for width in WIDTHS:
        assert pack(values[::3], width) == pack(values[::3].copy(), width)
        assert pack(values[20:40], width) == pack(values[20:40].copy(), width)


@given(st.integers(1, 8), st.data())
def test_a_running_sum_is_the_sum(width, data):
    lowest, highest = ends(width)
    size = data.draw(st.integers(0, 5))
    cell = st.integers(lowest, highest)
    columns = [data.draw(st.lists(cell, max_size=6)) for _ in range(size)]  # residues may wrap on the way
    deepest = max(map(len, columns), default=0)
    running = RunningSum(size, width)
    for place in range(deepest):
        row = [column[place] if place < len(column) else 0 for column in columns]
        running.add(0, size, pack(np.array(row, np.int64), width))
    modulus = 2 ** (8 * width)
    due = [(sum(column) - lowest) % modulus + lowest for column in columns]
    assert running.signed().tolist() == due
    assert running.signed().dtype == np.int64


@pytest.mark.parametrize("width", WIDTHS)
def test_parts_are_added_at_their_places(width):
    running = RunningSum(5, width)
    running.add(0, 3, pack(np.array([1, -2, 3]), width))
    running.add(3, 2, pack(np.array([-4, 5]), width))
    running.add(3, 2, pack(np.array([-100, 100]), width))
    running.add(1, 0, b"")
    assert running.signed().tolist() == [1, -2, 3, -104, 105]
    assert running.signed().tolist() == [1, -2, 3, -104, 105]  # taking the sum does not change it


@pytest.mark.parametrize("width", WIDTHS)
def test_bytes_of_another_length_are_a_peer_error(width):
    running = RunningSum(4, width)
    for length in {0, 1, 4 * width - 1, 4 * width + 1, 8 * width} - {4 * width}:
        with pytest.raises(PeerError, match=f"{length} bytes of cells where 4 cells of {width} bytes"):
            running.add(0, 4, bytes(length))
    assert running.signed().tolist() == [0] * 4
