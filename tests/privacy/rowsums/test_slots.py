"""Slots: what is read from opened plaintexts is what was summed, and nothing that no rows sum to."""

import numpy as np
import pytest
from raised import raised

from fedboost.errors import ConfigError, LocalProtocolError, SessionFailed
from fedboost.privacy.rowsums.scheme import Slots

LIMIT = 1 << 15


def packed(gradients, hessians):
    return (np.array(gradients, np.int64) << 32) + np.array(hessians, np.int64)


def plaintexts(slots, cells):
    """The plaintexts of these pairs of sums, biased."""
    plain = []
    for first in range(0, len(cells), slots.cells):
        group = cells[first : first + slots.cells]
        sums = [(g + (h << (8 * slots.width))) << (slots.shift * k) for k, (g, h) in enumerate(group)]
        plain.append(sum(sums) + slots.bias(len(group)))
    return plain


def test_a_key_of_2048_bits_holds_25_cells_of_up_to_16_million_rows():
    assert Slots.of(LIMIT, (1 << 24) - 1, 2048) == Slots(LIMIT, LIMIT * ((1 << 24) - 1), 5, 25)
    assert Slots.of(LIMIT, 1 << 24, 2048).width == 6


@pytest.mark.parametrize("rows", [1, 1000, (1 << 24) - 1, 1 << 40, (1 << 48) - 1])
def test_sums_at_the_limits_of_a_slot_are_read_as_they_are(rows):
    """Up to slots of 64 bits; neighbours do not disturb each other."""
    slots = Slots.of(LIMIT, rows, 2048)
    most = LIMIT * rows
    cells = [(-most, 0), (most, most), (-most, most), (0, 0), (most, 0), (-1, 0), (0, most)] * 8
    assert slots.read(plaintexts(slots, cells), len(cells)).tolist() == [[*cell] for cell in cells]


def test_no_cells_are_no_plaintexts():
    slots = Slots.of(LIMIT, 10, 2048)
    assert slots.ciphertexts(0) == 0
    assert slots.read([], 0).shape == (0, 2)


@pytest.mark.parametrize("cell", [(11 * LIMIT, 0), (-11 * LIMIT, 0), (0, 11 * LIMIT), (0, -1), (5, -LIMIT)])
def test_sums_that_no_rows_have_are_refused(cell):
    slots = Slots.of(LIMIT, 10, 2048)
    with raised(SessionFailed, "plaintext-impossible"):
        slots.read(plaintexts(slots, [(1, 1), cell, (1, 1)]), 3)


@pytest.mark.parametrize("above", [lambda s: 1 << (s.shift * 3), lambda s: 1 << (s.shift * s.cells)])
def test_numbers_above_the_cells_are_refused(above):
    slots = Slots.of(LIMIT, 10, 2048)
    (plain,) = plaintexts(slots, [(1, 1)] * 3)
    assert slots.read([plain], 3).tolist() == [[1, 1]] * 3
    with pytest.raises(SessionFailed):
        slots.read([plain + above(slots)], 3)


def test_another_number_of_plaintexts_is_a_defect():
    with pytest.raises(LocalProtocolError):
        Slots.of(LIMIT, 10, 2048).read([0, 0], 3)


@pytest.mark.parametrize("pair", [(LIMIT + 1, 0), (-LIMIT - 1, 0), (0, LIMIT + 1)])
def test_rows_beyond_their_bound_are_never_encrypted(pair):
    slots = Slots.of(LIMIT, 10, 2048)
    with pytest.raises(LocalProtocolError):
        slots.plain(packed([0, pair[0]], [0, pair[1]]))


def test_rows_are_taken_apart_as_histograms_do():
    slots = Slots.of(LIMIT, 10, 2048)
    pairs = packed([-LIMIT, -1, 0, LIMIT], [0, 7, 0, LIMIT])
    unit = 1 << (8 * slots.width)
    assert slots.plain(pairs) == [-LIMIT, -1 + 7 * unit, 0, LIMIT + LIMIT * unit]


def test_a_key_too_short_for_a_cell_is_refused():
    with raised(ConfigError, "key-too-short"):
        Slots.of(LIMIT, 1 << 20, 64)
