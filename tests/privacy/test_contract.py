"""The contract of a protection, held against every one of them. A new protection is a line in PROTECTIONS."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from fedboost.errors import PeerError
from fedboost.privacy.plain import PlainOpener, PlainSealer
from fedboost.privacy.protection import PART_CELLS, Opener, Sealer, Tag

PARTIES = ("north", "south", "west")


@dataclass(frozen=True)
class Protection:
    """How to set up one protection for some parties."""

    sealers: Callable[[tuple[str, ...]], dict[str, Sealer]]
    opener: Callable[[Tag], Opener]


PROTECTIONS = {
    "plain": Protection(lambda parties: {party: PlainSealer() for party in parties}, PlainOpener),
}


@pytest.fixture(params=PROTECTIONS)
def protection(request):
    return PROTECTIONS[request.param]


def vectors(cells, cell_bytes, seed=0):
    """A vector for each party, of which every sum fits the cell and some reach its very ends."""
    rng = np.random.default_rng(seed)
    largest = 2 ** (8 * cell_bytes - 1) - 1
    of = {party: rng.integers(-(largest // 3), largest // 3, cells, endpoint=True) for party in PARTIES}
    others = sum(of.values()) - of["north"]
    ends = rng.integers(0, 4, cells)
    reach_top, reach_bottom = ends == 0, ends == 1
    of["north"][reach_top] = largest - others[reach_top]
    of["north"][reach_bottom] = -largest - 1 - others[reach_bottom]
    return of


def sealed(protection, of, tag):
    sealers = protection.sealers(PARTIES)
    return {party: list(sealers[party].seal(of[party], tag)) for party in PARTIES}


@pytest.mark.parametrize("cell_bytes", range(1, 9))
@pytest.mark.parametrize("cells", [0, 1, 2, 1000])
def test_the_opened_sum_is_the_exact_sum(protection, cells, cell_bytes):
    tag = Tag(1, cells, cell_bytes)
    of = vectors(cells, cell_bytes)
    opener = protection.opener(tag)
    for parts in sealed(protection, of, tag).values():
        assert len(parts) == opener.parts == 1
        opener.add(0, parts[0])
    total = opener.open()
    assert total.dtype == np.int64
    assert total.tolist() == sum(of.values()).tolist()


@pytest.mark.parametrize("cells", [PART_CELLS, PART_CELLS + 1, 3 * PART_CELLS - 1])
@pytest.mark.parametrize("cell_bytes", [3, 4, 8])
def test_long_vectors_travel_in_parts_and_the_order_of_parties_does_not_matter(protection, cells, cell_bytes):
    tag = Tag(7, cells, cell_bytes)
    of = vectors(cells, cell_bytes)
    parts = sealed(protection, of, tag)
    due = -(-cells // PART_CELLS)
    opened = []
    for seed in range(3):
        opener = protection.opener(tag)
        assert opener.parts == tag.parts == due
        waiting = {party: list(enumerate(parts[party])) for party in PARTIES}
        rng = np.random.default_rng(seed)
        while waiting:
            party = str(rng.choice(sorted(waiting)))
            part, cells_of_part = waiting[party].pop(0)
            opener.add(part, cells_of_part)
            if not waiting[party]:
                del waiting[party]
        opened.append(opener.open().tolist())
    assert opened == [sum(of.values()).tolist()] * 3


def test_a_sum_may_wrap_on_its_way(protection):
    """Only the whole sum has to fit the cell: the sums on the way are taken modulo its size."""
    tag = Tag(1, 1, 1)
    of = {"north": np.array([127]), "south": np.array([127]), "west": np.array([-128])}
    opener = protection.opener(tag)
    for parts in sealed(protection, of, tag).values():
        opener.add(0, parts[0])
    assert opener.open().tolist() == [126]


@pytest.mark.parametrize("cell_bytes", [1, 3, 4, 8])
def test_a_part_of_another_length_is_a_peer_error(protection, cell_bytes):
    tag = Tag(1, PART_CELLS + 2, cell_bytes)
    of = vectors(tag.cells, cell_bytes)
    first, last = sealed(protection, of, tag)["north"]
    opener = protection.opener(tag)
    for part, cells in ((0, last), (1, first), (0, b""), (1, b""), (0, first + b"\0"), (1, last[:-1])):
        with pytest.raises(PeerError, match="bytes"):
            opener.add(part, cells)


@pytest.mark.parametrize("part", [-1, 2, 1 << 40])
def test_a_part_of_another_number_is_a_peer_error(protection, part):
    tag = Tag(1, PART_CELLS + 2, 4)
    parts = sealed(protection, vectors(tag.cells, 4), tag)["north"]
    opener = protection.opener(tag)
    for cells in (*parts, b""):
        with pytest.raises(PeerError, match="part"):
            opener.add(part, cells)


def test_what_was_refused_is_not_in_the_sum(protection):
    tag = Tag(1, 3, 3)
    of = vectors(3, 3)
    opener = protection.opener(tag)
    for parts in sealed(protection, of, tag).values():
        with pytest.raises(PeerError):
            opener.add(0, parts[0] + b"\1")
        with pytest.raises(PeerError):
            opener.add(1, parts[0])
        opener.add(0, parts[0])
    assert opener.open().tolist() == sum(of.values()).tolist()


def test_two_openers_do_not_share_a_sum(protection):
    tag = Tag(1, 3, 4)
    of = vectors(3, 4)
    one, other = protection.opener(tag), protection.opener(tag)
    for parts in sealed(protection, of, tag).values():
        one.add(0, parts[0])
        other.add(0, parts[0])
    assert one.open().tolist() == other.open().tolist() == sum(of.values()).tolist()


def test_sealing_leaves_the_vector_as_it_was(protection):
    tag = Tag(1, 100, 5)
    of = vectors(100, 5)
    before = {party: vector.copy() for party, vector in of.items()}
    sealed(protection, of, tag)
    assert all((of[party] == before[party]).all() for party in PARTIES)


def test_parts_of_a_tag():
    assert [Tag(1, cells, 4).parts for cells in (0, 1, PART_CELLS, PART_CELLS + 1)] == [1, 1, 1, 2]
    tag = Tag(1, PART_CELLS + 3, 4)
    assert [tag.part_cells(part) for part in range(tag.parts)] == [PART_CELLS, 3]
