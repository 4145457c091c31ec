"""Check cells: behind the cells of each masked chunk stands one more of 64 bits, which is 1.

Promises: in the opened sum each is the number of parties if their masks cancelled there, and any other number
with a probability of 1 - 2**-64 if they did not. That says nothing of the cells themselves.
Refuses: a sum whose check cells are other numbers (SessionFailed: whose fault it is is unknown).
"""

import numpy as np

from fedboost.errors import SessionFailed
from fedboost.fixedpoint import Int64
from fedboost.privacy.bit_packing import Words, signed
from fedboost.privacy.protection import Tag

CHECK = 1
"""The check cell of each party."""


def zeros(tag: Tag) -> Words:
    """A sum that nobody has added to, with check cells."""
    return np.zeros(tag.cells + len(tag.checked), np.uint64)


def with_checks(values: Int64, tag: Tag) -> Words:
    """A copy of a vector, as words with check cells."""
    words, whole = zeros(tag), values.view(np.uint64)
    for chunk, checked in zip(tag.chunks, tag.checked, strict=True):
        cells = checked.of(words)
        cells[:-1], cells[-1] = chunk.of(whole), CHECK
    return words


def add(total: Words, tag: Tag, number: int, packed: bytes) -> None:
    """Add one masked chunk to such a sum; PeerError if it cannot be one."""
    tag.chunk(number)
    checked = tag.checked[number]
    checked.add(checked.of(total), packed)


def checked_sum(words: Words, tag: Tag) -> Int64:
    """The sum of all parties of a tag, once its check cells were looked at; overwrites the words."""
    due = CHECK * len(tag.roster)
    if any(int(checked.of(words)[-1]) != due for checked in tag.checked):
        raise SessionFailed(
            f"the masks of the {due} parties did not cancel in turn {tag.turn}, so a party sent something "
            f"else than was due, or it was changed on the way; train again, and if that fails, too, see that "
            f"all sites and the aggregator run the same version of fedboost"
        )
    for chunk, checked in zip(tag.chunks, tag.checked, strict=True):
        chunk.of(words)[:] = checked.of(words)[:-1]
    return signed(words[: tag.cells], tag.segments)
