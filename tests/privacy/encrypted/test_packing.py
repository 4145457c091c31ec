"""Cells in slots: what is packed can be added row by row, and is read back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import SessionFailed
from fedboost.privacy.packing import Layout

PIECES = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 64)), max_size=5)


def rows_as_integers(rows):
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def as_rows(numbers, row_bytes):
    data = b"".join(number.to_bytes(row_bytes, "little") for number in numbers)
    return np.frombuffer(data, np.uint8).reshape(-1, row_bytes)


def greatest(pieces):
    """The greatest cell of each: 2**bits - 1."""
    return np.concatenate([np.zeros(0, np.uint64), *(np.full(c, (1 << b) - 1, np.uint64) for c, b in pieces)])


def layout_of(pieces, parties, row_bytes):
    return Layout(np.array(pieces, np.int64).reshape(-1, 2), parties, row_bytes)


@given(pieces=PIECES, parties=st.integers(1, 256), row_bytes=st.integers(9, 80), seed=st.integers(0, 99))
def test_sums_of_rows_are_sums_of_cells(pieces, parties, row_bytes, seed):
    layout = layout_of(pieces, parties, row_bytes)
    most = greatest(pieces)
    some = np.random.default_rng(seed).integers(0, most, most.size, np.uint64, endpoint=True)
    whole = [
        one + (parties - 1) * other
        for one, other in zip(
            rows_as_integers(layout.pack(some)), rows_as_integers(layout.pack(most)), strict=True
        )
    ]
    with np.errstate(over="ignore"):
        due = some + np.uint64(parties - 1) * most
    assert np.array_equal(layout.unpack(as_rows(whole, row_bytes)), due)


@given(pieces=PIECES, parties=st.integers(1, 256), row_bytes=st.integers(9, 80))
def test_no_two_slots_share_a_byte_and_rows_are_well_filled(pieces, parties, row_bytes):
    layout = layout_of(pieces, parties, row_bytes)
    taken = np.zeros((layout.rows, row_bytes), int)
    for block in layout._blocks:
        block.of(taken)[:] += 1
    assert taken.max(initial=0) <= 1
    assert taken.sum() == sum(cells * -(-(bits + (parties - 1).bit_length()) // 8) for cells, bits in pieces)
    wide = max((-(-(bits + 8) // 8) for _, bits in pieces), default=0)
    assert (row_bytes - taken.sum(axis=1) < wide)[:-1].all()


def test_a_key_of_2048_bits_has_42_slots_of_48_bits():
    assert layout_of([(4200, 46)], 3, 2047 // 8).rows == 100
    assert layout_of([(6300, 46)], 3, 3071 // 8).rows == 100


@pytest.mark.parametrize("bits", [1, 8, 46, 57, 63, 64])
@pytest.mark.parametrize("parties", [1, 3, 200])
def test_a_slot_above_what_the_parties_can_have_added_is_noticed(bits, parties):
    layout = layout_of([(3, bits)], parties, 80)
    (row,) = rows_as_integers(layout.pack(greatest([(3, bits)])))
    layout.unpack(as_rows([parties * row], 80))
    if -(-(bits + (parties - 1).bit_length()) // 8) * 8 > bits + (parties - 1).bit_length():
        with raised(SessionFailed, "plaintext-impossible"):
            layout.unpack(as_rows([parties * row + (1 << bits) * parties], 80))
