"""Work shared out over threads: the same results in the same order, and the first error."""

import pytest

from fedboost.gbdt.threads import BLOCK, Threads, blocks


@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7, 50])
def test_results_come_in_the_order_of_the_pieces(number, pieces):
    assert Threads(number).each(lambda piece: piece * piece, range(pieces)) == [p * p for p in range(pieces)]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("bad", [0, 1, 2, 9])
def test_an_error_of_a_piece_is_raised(number, bad):
    def work(piece):
        if piece == bad:
            raise ValueError(f"piece {piece}")
        return piece

    with pytest.raises(ValueError, match=f"piece {bad}"):
        Threads(number).each(work, range(10))


@pytest.mark.parametrize("rows", [0, 1, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_blocks_are_all_rows(rows):
    found = [row for block in blocks(rows) for row in (block.start, block.stop)]
    assert found[0] == 0
    assert found[-1] == rows
    assert found[1:-1:2] == found[2::2]
