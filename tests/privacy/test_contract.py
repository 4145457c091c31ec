"""The contract of a protection, held against every row of the table."""

import random
from dataclasses import replace

import numpy as np
import pytest
from consortium import (
    help_open,
    installed,
    keyholder_of,
    names,
    opener_of,
    sealers_of,
    tag_of,
    upload,
    vectors,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import PeerError, RosterTooSmall
from fedboost.privacy import packing
from fedboost.privacy.packing import Segment
from fedboost.privacy.protections import PROTECTIONS

PARTIES = names(3)


class Protection:
    """One row of the table, set up for some parties."""

    def __init__(self, name):
        self.name, _, legs = name.partition(", ")
        self.shrinks = bool(legs)
        self.keyholder = PROTECTIONS[self.name].uses_key_holder
        """Whether one party alone, the first by name, can help; and for one opener a turn."""

    def sealers(self, parties):
        return sealers_of(self.name, parties, shrinks=self.shrinks)

    def opener(self, tag):
        return opener_of(self.name, tag, self.shrinks)


CHUNK_CELLS = {"paillier": 256}
"""Integers in a part, fewer where each costs much more."""
IN_TWO_LEGS = "masked, in two legs"
INSTALLED = [name for name, row in PROTECTIONS.items() if not row.uses_key_holder or installed(name)]
INSTALLED.append(IN_TWO_LEGS)


@pytest.fixture(params=[*PROTECTIONS, IN_TWO_LEGS])
def protection(request, monkeypatch):
    if request.param not in INSTALLED:
        pytest.skip(f"what {request.param} needs is not installed")
    monkeypatch.setattr(packing, "CHUNK_CELLS", CHUNK_CELLS.get(request.param, packing.CHUNK_CELLS))
    return Protection(request.param)


def sealed(protection, of, tag):
    sealers = protection.sealers(tag.roster)
    return {party: list(sealers[party].seal(of[party], tag)) for party in tag.roster}


def opened(protection, parties, size, bits, seed=0, sealers=None, turn=1):
    """The sum that a turn comes to with everything arriving in a random order, and the one that is due."""
    sealers = sealers or protection.sealers(parties)
    tag = tag_of(parties, turn=turn, cells=size, bits=bits)
    of, due = vectors(parties, size, bits, seed)
    opener, order = protection.opener(tag), random.Random(seed)
    assert opener.chunks == len(tag.chunks) == max(1, -(-size // packing.CHUNK_CELLS))
    upload(opener, sealers, of, tag, order)
    return help_open(opener, sealers, order), due


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parties", "bits"),
    [
        *((3, bits) for bits in (1, 7, 24, 33, 55, 63, 64)),
        (5, 33),
        (5, 64),
        (10, 1),
        (10, 55),
        (50, 24),
        (50, 64),
    ],
)
def test_the_opened_sum_is_the_exact_sum(protection, parties, bits):
    """Turn after turn of one session, of every size of part."""
    parties = names(parties)
    sealers = protection.sealers(parties)
    sizes = [0, 1, packing.CHUNK_CELLS - 1, packing.CHUNK_CELLS, packing.CHUNK_CELLS + 1]
    if len(parties) == 50:
        sizes = [0, 1, packing.CHUNK_CELLS + 1] if bits == 24 else [1000]
    for turn, size in enumerate(sizes):
        total, due = opened(protection, parties, size, bits, turn, sealers, turn)
        assert total.dtype == np.int64
        assert np.array_equal(total, due)


@pytest.mark.slow
@given(
    name=st.sampled_from(sorted(INSTALLED)),
    parties=st.integers(3, 7),
    size=st.integers(0, 40),
    bits=st.integers(1, 64),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=40)
def test_any_number_of_parties_in_any_order(name, parties, size, bits, seed):
    total, due = opened(Protection(name), names(parties), size, bits, seed)
    assert total.tolist() == due.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("bits", [24, 47, 64])
def test_parts_of_different_parties_may_arrive_in_any_order(protection, bits):
    sums = [opened(protection, PARTIES, 3 * packing.CHUNK_CELLS - 1, bits, seed) for seed in range(2)]
    assert all(np.array_equal(total, due) for total, due in sums)


def test_every_order_of_three_parties_gives_the_same_sum(protection):
    tag = tag_of(PARTIES)
    of, due = vectors(PARTIES, 3, 64)
    for seed in range(12):
        sealers, opener = protection.sealers(PARTIES), protection.opener(tag)
        upload(opener, sealers, of, tag, random.Random(seed))
        assert help_open(opener, sealers, random.Random(seed)).tolist() == due.tolist()


def test_the_order_of_the_roster_does_not_matter(protection):
    of, due = vectors(PARTIES, 3, 64)
    sealers, opener = protection.sealers(PARTIES), protection.opener(tag_of(PARTIES[::-1]))
    upload(opener, sealers, of, tag_of((PARTIES[1], PARTIES[0], PARTIES[2])))
    assert help_open(opener, sealers).tolist() == due.tolist()


def test_a_sum_may_wrap_on_its_way(protection):
    """Only the whole sum has to fit the cell: the sums on the way are taken modulo its size."""
    tag = tag_of(PARTIES, cells=1, bits=8)
    of = dict(zip(PARTIES, (np.array([127]), np.array([127]), np.array([-128])), strict=True))
    sealers, opener = protection.sealers(PARTIES), protection.opener(tag)
    upload(opener, sealers, of, tag)
    assert help_open(opener, sealers).tolist() == [126]


@pytest.mark.parametrize("lost", range(5))
def test_a_party_lost_after_its_upload_stays_in_the_sum(protection, lost):
    parties = names(5)
    tag = tag_of(parties, cells=70, bits=40)
    of, due = vectors(parties, 70, 40)
    sealers, opener = protection.sealers(parties), protection.opener(tag)
    upload(opener, sealers, of, tag)
    opener.lose(parties[lost])
    del sealers[parties[lost]]
    if protection.keyholder and parties[lost] == keyholder_of(parties):
        with raised(RosterTooSmall, "key-holder-lost"):
            opener.requests()
        return
    assert help_open(opener, sealers).tolist() == due.tolist()


def test_a_party_that_was_lost_may_take_part_in_the_next_turn(protection):
    parties = names(5)
    sealers = protection.sealers(parties)
    for turn in (1, 2, 3):
        tag = tag_of(parties, turn=turn)
        of, due = vectors(parties, 3, 64, turn)
        opener = protection.opener(tag)
        upload(opener, sealers, of, tag)
        if turn == 2:
            opener.lose(parties[1])
        assert help_open(opener, sealers).tolist() == due.tolist()


@pytest.mark.parametrize("bits", [1, 24, 47, 64])
def test_a_part_of_another_length_is_a_peer_error(protection, bits):
    tag = tag_of(PARTIES, cells=packing.CHUNK_CELLS + 2, bits=bits)
    of, _ = vectors(PARTIES, tag.cells, bits)
    first, last = sealed(protection, of, tag)[PARTIES[0]]
    opener = protection.opener(tag)
    for part, wrong in ((0, last), (1, first), (0, b""), (1, b""), (0, first + b"\0"), (1, last[:-1])):
        with raised(PeerError, "cells-length", "numbers-length"):
            opener.add(PARTIES[0], part, wrong)


@pytest.mark.parametrize("part", [-1, 2, 1 << 40])
def test_a_part_of_another_number_is_a_peer_error(protection, part):
    tag = tag_of(PARTIES, cells=packing.CHUNK_CELLS + 2, bits=32)
    parts = sealed(protection, vectors(PARTIES, tag.cells, 32)[0], tag)[PARTIES[0]]
    opener = protection.opener(tag)
    for some in (*parts, b""):
        with raised(PeerError, "chunk-number"):
            opener.add(PARTIES[0], part, some)


def test_what_was_refused_is_not_in_the_sum(protection):
    tag = tag_of(PARTIES, bits=24)
    of, due = vectors(PARTIES, 3, 24)
    sealers, opener = protection.sealers(PARTIES), protection.opener(tag)
    for party in PARTIES:
        (part,) = sealers[party].seal(of[party], tag)
        with pytest.raises(PeerError):
            opener.add(party, 0, part + b"\1")
        with pytest.raises(PeerError):
            opener.add(party, 1, part)
        opener.add(party, 0, part)
        opener.note(party, sealers[party].note())
    assert help_open(opener, sealers).tolist() == due.tolist()


@pytest.mark.parametrize("answer", [b"", b"x", bytes(32), bytes(100)])
def test_help_that_was_not_asked_for_is_a_peer_error(protection, answer):
    tag = tag_of(PARTIES)
    sealers, opener = protection.sealers(PARTIES), protection.opener(tag)
    with pytest.raises(PeerError):
        opener.assist(PARTIES[0], answer)
    upload(opener, sealers, vectors(PARTIES, 3, 64)[0], tag)
    with pytest.raises(PeerError):
        opener.assist("a stranger", answer)
    for party, request in opener.requests().items():
        opener.assist(party, sealers[party].assist(request))
    with pytest.raises(PeerError):
        opener.assist(PARTIES[0], answer)


def test_a_note_of_another_kind_is_a_peer_error(protection):
    with pytest.raises(PeerError):
        protection.opener(tag_of(PARTIES)).note(PARTIES[0], b"not what any protection sends")


def test_a_request_that_is_none_is_a_peer_error(protection):
    sealer = protection.sealers(PARTIES)[PARTIES[0]]
    for turn in (1, 2):
        for request in (b"", b"help", b"\0\0\0\4help", bytes(60)):
            with pytest.raises(PeerError):
                sealer.assist(request)
        list(sealer.seal(np.arange(3), tag_of(PARTIES, turn)))


def test_two_openers_do_not_share_a_sum(protection):
    tag = tag_of(PARTIES, bits=32)
    of, due = vectors(PARTIES, 3, 32)
    sealers = protection.sealers(PARTIES)
    openers = [protection.opener(tag), protection.opener(tag)]
    for party in PARTIES:
        (part,) = sealers[party].seal(of[party], tag)
        for opener in openers:
            opener.add(party, 0, part)
            opener.note(party, sealers[party].note())
    assert help_open(openers[0], sealers).tolist() == due.tolist()
    if protection.keyholder:
        with raised(PeerError, "opening-other"):
            help_open(openers[1], sealers)
        sealers = protection.sealers(PARTIES)
        list(sealers[PARTIES[0]].seal(of[PARTIES[0]], tag))  # the same vector, so the same tag may be opened
    assert help_open(openers[1], sealers).tolist() == due.tolist()


def test_sealing_leaves_the_vector_as_it_was(protection):
    of, _ = vectors(PARTIES, 100, 40)
    before = {party: vector.copy() for party, vector in of.items()}
    sealed(protection, of, tag_of(PARTIES, cells=100, bits=40))
    assert all((of[party] == before[party]).all() for party in PARTIES)


# ---- a tag is sealed once ---------------------------------------------------------------------------

SEALED = tag_of(PARTIES, turn=5, attempt=3)


@pytest.mark.parametrize(
    "again",
    [
        SEALED,
        replace(SEALED, transcript=b"other"),
        replace(SEALED, segments=(Segment(4, 64),)),
        replace(SEALED, attempt=2),
        replace(SEALED, turn=4),
        replace(SEALED, turn=4, attempt=9),
    ],
)
def test_a_tag_that_was_sealed_or_an_older_one_is_refused(protection, again):
    sealer = protection.sealers(PARTIES)[PARTIES[0]]
    list(sealer.seal(np.arange(3), SEALED))
    with raised(PeerError, "tag-used"):
        sealer.seal(np.arange(3), again)  # refused at once, not when the first part is taken


@pytest.mark.parametrize("newer", [replace(SEALED, attempt=4), replace(SEALED, turn=6, attempt=0)])
def test_a_newer_tag_is_sealed(protection, newer):
    sealer = protection.sealers(PARTIES)[PARTIES[0]]
    list(sealer.seal(np.arange(3), SEALED))
    assert len(list(sealer.seal(np.arange(3), newer))) == 1


def test_parts_of_a_tag():
    sizes = (0, 1, packing.CHUNK_CELLS, packing.CHUNK_CELLS + 1)
    assert [len(tag_of(PARTIES, cells=size).chunks) for size in sizes] == [1, 1, 1, 2]
    tag = tag_of(PARTIES, cells=packing.CHUNK_CELLS + 3, bits=10)
    assert [part.cells for part in tag.chunks] == [packing.CHUNK_CELLS, 3]
    assert [part.size for part in tag.chunks] == [packing.CHUNK_CELLS * 10 // 8, 8]
    assert tag.size == packing.CHUNK_CELLS * 10 // 8 + 8


def test_runs_of_cells_of_different_bits_open_to_their_sum(protection):
    """Wherever parts begin and end among them."""
    full = packing.CHUNK_CELLS
    segments = (
        Segment(70, 13),
        Segment(0, 5),
        Segment(full, 1),
        Segment(1, 64),
        Segment(200, 63),
        Segment(full - 5, 40),
    )
    tag = replace(tag_of(PARTIES), segments=segments)
    both = [vectors(PARTIES, run.cells, run.bits, run.bits) for run in segments]
    of = {party: np.concatenate([of[party] for of, _ in both]) for party in PARTIES}
    sealers, opener = protection.sealers(PARTIES), protection.opener(tag)
    upload(opener, sealers, of, tag, random.Random(0))
    assert np.array_equal(help_open(opener, sealers), np.concatenate([due for _, due in both]))
