"""Encryption schemes, their keys, and who is asked for what."""

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

from fedboost.privacy.masked.keys import Group
from fedboost.privacy.packing import Chunk

PARTIES = names(3)
HOLDER, OTHER, THIRD = PARTIES
GROUP = Group.of(PARTIES)
SCHEMES = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"no {name}"))
    for name in ("paillier", "bfv")
]
needs_paillier = pytest.mark.skipif(not installed("paillier"), reason="no paillier")
needs_bfv = pytest.mark.skipif(not installed("bfv"), reason="no bfv")


def asked(scheme, turn=1, attempt=0, cells=3, bits=46, sealers=None, seed=0, roster=PARTIES):
    """Sealers, and the opener of a turn whose vectors have arrived; its request; the sum that is due."""
    tag = tag_of(roster, turn=turn, attempt=attempt, cells=cells, bits=bits)
    sealers, opener = sealers or encrypted_sealers(scheme, PARTIES), encrypted_opener(scheme, tag)
    of, due = vectors(roster, cells, bits, seed)
    upload(opener, sealers, of, tag)
    return sealers, opener, opener.requests()[HOLDER], due


def cipher_of(scheme, cells, bits, parties=3, checked=False):
    pieces = [(cells, bits), (1, 64)] if checked else [(cells, bits)]
    return small_secret(scheme).public.cipher(Chunk(0, pieces), parties)
