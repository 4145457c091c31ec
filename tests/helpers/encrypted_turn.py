"""A turn of protection `paillier`: its ciphertexts, and who is asked for what."""

import pytest
from consortium import (
    encrypted_opener,
    encrypted_sealers,
    installed,
    names,
    small_secret,
    tag_of,
    upload,
    vectors,
)

from fedboost.privacy.packing import Chunk
from fedboost.privacy.pairwise import Group

PARTIES = names(3)
HOLDER, OTHER, THIRD = PARTIES
GROUP = Group.of(PARTIES)
needs_paillier = pytest.mark.skipif(not installed("paillier"), reason="no paillier")


def asked(turn=1, attempt=0, cells=3, bits=46, sealers=None, seed=0, roster=PARTIES):
    """Sealers, and the opener of a turn whose vectors have arrived; its request; the sum that is due."""
    tag = tag_of(roster, turn=turn, attempt=attempt, cells=cells, bits=bits)
    sealers, opener = sealers or encrypted_sealers(PARTIES), encrypted_opener(tag)
    of, due = vectors(roster, cells, bits, seed)
    upload(opener, sealers, of, tag)
    return sealers, opener, opener.requests()[HOLDER], due


def cipher_of(cells, bits, parties=3, checked=False):
    pieces = [(cells, bits), (1, 64)] if checked else [(cells, bits)]
    return small_secret().public.cipher(Chunk(0, pieces), parties)
