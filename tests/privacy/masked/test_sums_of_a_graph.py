"""Sums under the masks of a graph: they are exact, and colluding parties are left with that of all others."""

import random

import numpy as np
import pytest
from consortium import SESSION, drawing, keystream, masked_opener, setup_of, tag_of, vectors

from fedboost.privacy.ends import OneLegSealer
from fedboost.privacy.pairwise import (
    MAX_COMPLETE_PARTIES,
    ONE_LEG,
    Group,
    Handshake,
    context,
    degree,
    mask_keys,
)

PARTIES = tuple(sorted(f"site-{place}" for place in range(MAX_COMPLETE_PARTIES + 3)))
GROUP = Group.of(PARTIES)
CELLS = 4  # of eight bytes: two different sums are equal by chance with probability 2**-256
TAG = tag_of(PARTIES, cells=CELLS)


@pytest.fixture(scope="module")
def keys():
    """Party to neighbour to the key of both, from handshakes."""
    shakes = {party: Handshake(drawing(party)) for party in PARTIES}
    publics = {party: shake.public for party, shake in shakes.items()}
    return {
        party: shake.pair_keys(party, publics, SESSION, GROUP.peers(party, SESSION, every_pair=False))
        for party, shake in shakes.items()
    }


@pytest.fixture(scope="module")
def truth():
    return vectors(PARTIES, CELLS, 64)


@pytest.fixture(scope="module")
def uploads(keys, truth):
    """Party to its masked vector."""
    sealers = {party: OneLegSealer(setup_of(party, GROUP, keys)) for party in PARTIES}
    return {party: b"".join(sealers[party].seal(truth[0][party], TAG)) for party in PARTIES}


def test_a_party_has_the_keys_of_its_neighbours_alone(keys):
    assert {len(of) for of in keys.values()} == {degree(len(PARTIES), 1)}
    assert (
        len({key for of in keys.values() for key in of.values()}) == len(PARTIES) * len(keys[PARTIES[0]]) / 2
    )
    assert all(keys[one][other] == keys[other][one] for one in PARTIES for other in keys[one])


def test_every_pair_may_share_masks():
    assert GROUP.peers(PARTIES[1], SESSION, every_pair=True) == (PARTIES[0], *PARTIES[2:])


def test_the_sum_of_all_is_exact(uploads, truth):
    opener = masked_opener(TAG, legs=1)
    for party in random.Random(0).sample(PARTIES, len(PARTIES)):
        opener.add(party, 0, uploads[party])
        opener.note(party, b"")
    assert opener.open().tolist() == truth[1].tolist()


def bare(party, uploads, keys, colluding):
    """What is left of a vector without the masks that colluding parties know."""
    cells = np.frombuffer(uploads[party], "<u8")[:CELLS].copy()
    for peer in sorted(colluding & keys[party].keys()):
        key, _ = mask_keys(keys[peer][party], context(ONE_LEG, SESSION, GROUP, TAG))
        mask = np.frombuffer(keystream(key, 8 * CELLS), "<u8")
        cells = cells - mask if peer > party else cells + mask
    return cells


def free_combinations(honest, keys):
    """The dimension of the combinations of vectors in which no mask is left that nobody else knows, by
    elimination over GF(2): masks of pairs are rows, as bits."""
    column = {party: 1 << place for place, party in enumerate(honest)}
    pivots = {}
    for one in honest:
        for other in keys[one].keys() & column.keys():
            row = column[one] | column[other]
            while row and (lead := row.bit_length()) in pivots:
                row ^= pivots[lead]
            if row:
                pivots[row.bit_length()] = row
    return len(honest) - len(pivots)


def total(parties, of):
    return sum((of(party) for party in parties), np.zeros(CELLS, np.uint64))


@pytest.mark.parametrize("seed", range(10))
def test_elimination_leaves_the_sum_of_all_that_do_not_collude_and_no_other(seed, uploads, keys, truth):
    """Any fewer than a party's neighbours may collude, here those of one party but one among them."""
    draw = random.Random(seed)
    victim = draw.choice(PARTIES)
    near = draw.sample(sorted(keys[victim]), len(keys[victim]) - 1)
    colluding = set(near if seed % 2 else draw.sample(PARTIES, len(near)))
    honest = [party for party in PARTIES if party not in colluding]
    assert free_combinations(honest, keys) == 1
    left = {party: bare(party, uploads, keys, colluding) for party in honest}
    true = {party: truth[0][party].astype(np.uint64) for party in honest}
    assert np.array_equal(total(honest, left.get), total(honest, true.get))
    assert not any(np.array_equal(left[party], true[party]) for party in honest)


def test_all_neighbours_of_a_party_together_open_its_vector(uploads, keys, truth):
    """The attack that the degree stops, so that the tests above are known to be able to see it."""
    victim = PARTIES[7]
    colluding = set(keys[victim])
    honest = [party for party in PARTIES if party not in colluding]
    assert free_combinations(honest, keys) == 2
    assert np.array_equal(bare(victim, uploads, keys, colluding), truth[0][victim].astype(np.uint64))
