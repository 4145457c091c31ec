"""Sums under encryption: they are exact, and what an opener refuses.

What every protection promises is in test_contract.py. Keys of 512 bits stand for larger ones where the size
does not matter; keys of 2048 come through the public door.
"""

import sys

import numpy as np
import pytest
from consortium import (
    SESSION,
    encrypted_opener,
    encrypted_sealers,
    help_open,
    keys_of_pairs,
    setup_of,
    small_secret,
    tag_of,
    upload,
    vectors,
)
from encrypted_turn import GROUP, HOLDER, OTHER, PARTIES, THIRD, asked, cipher_of, needs_paillier
from raised import raised

from fedboost.errors import ConfigError, PeerError, SessionFailed
from fedboost.privacy import packing
from fedboost.privacy.ends import NAME_BYTES, EncryptedSealer, KeyHolder
from fedboost.privacy.protections import greeted_keys, greeting_of, scheme_of

pytestmark = needs_paillier

# ---- sums are exact ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(2, 65))
def test_sums_of_signed_numbers_of_every_width(bits):
    """Each party's number fits the cell, too, as the numbers of a training do."""
    rng, cells = np.random.default_rng(bits), 30
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    due = rng.integers(lowest, highest, cells, endpoint=True)
    due[:3] = lowest, highest, 0
    first = due // 2
    of = {HOLDER: first, OTHER: due - first, THIRD: np.zeros(cells, np.int64)}
    tag = tag_of(PARTIES, cells=cells, bits=bits)
    sealers, opener = encrypted_sealers(PARTIES), encrypted_opener(tag)
    upload(opener, sealers, of, tag)
    assert help_open(opener, sealers).tolist() == due.tolist()


def test_the_key_of_the_public_door_opens_sums():
    secret = scheme_of("paillier").new_secret(2048)
    public = scheme_of("paillier").read_public(secret.public.to_bytes(), 2048)
    tag = tag_of(PARTIES, cells=500, bits=46)
    of, due = vectors(PARTIES, 500, 46)
    keys = keys_of_pairs(PARTIES)
    sealers = {
        party: EncryptedSealer(
            setup_of(
                party,
                GROUP,
                keys,
                public=public,
                secret=secret if party == HOLDER else None,
                max_openings=1,
            )
        )
        for party in PARTIES
    }
    opener = encrypted_opener(tag, public)
    upload(opener, sealers, of, tag)
    assert help_open(opener, sealers).tolist() == due.tolist()
    public.close()
    secret.public.close()


def test_sealed_parts_are_as_long_as_said():
    tag = tag_of(PARTIES, cells=9000, bits=46)
    (part,) = encrypted_sealers(PARTIES)[OTHER].seal(np.zeros(9000, np.int64), tag)
    cipher = cipher_of(9000, 46, checked=True)
    assert len(part) == len(cipher.encrypt(np.zeros(9001, np.uint64))) + NAME_BYTES


def test_a_key_holder_of_its_own_opens_what_was_announced():
    """One that seals nothing, and is in no roster."""
    tag = tag_of(PARTIES, cells=10, bits=46)
    of, due = vectors(PARTIES, 10, 46)
    opener = encrypted_opener(tag, keyholder="keyholder")
    upload(opener, encrypted_sealers(PARTIES), of, tag)
    holder = KeyHolder(small_secret(), GROUP, SESSION, 1)
    (request,) = opener.requests().values()
    with raised(PeerError, "help-stale"):
        holder.assist(request)
    holder.announce(tag)
    opener.assist("keyholder", holder.assist(request))
    assert opener.open().tolist() == due.tolist()


# ---- what an opener refuses -------------------------------------------------------------------------


def sealed_by(party=OTHER, cells=3, bits=46):
    tag = tag_of(PARTIES, cells=cells, bits=bits)
    (part,) = encrypted_sealers(PARTIES)[party].seal(np.arange(cells), tag)
    return tag, part


def test_cells_under_another_key_are_a_peer_error():
    from fedboost.privacy import paillier

    tag, _ = sealed_by()
    other = paillier.generate(512).public
    sealer = EncryptedSealer(setup_of(OTHER, GROUP, keys_of_pairs(PARTIES), public=other))
    (part,) = sealer.seal(np.arange(3), tag)
    with raised(PeerError, "cells-other-key"):
        encrypted_opener(tag).add(OTHER, 0, part)
    other.close()


def test_numbers_that_are_no_ciphertexts_of_paillier_are_a_peer_error():
    tag, part = sealed_by()
    public, key = small_secret().public, small_secret()._key
    n, square, size = int(public.n), int(public.square), len(part) - NAME_BYTES
    for number in (0, square, square + 1, (1 << 8 * size) - 1):
        opener = encrypted_opener(tag)
        with raised(PeerError, "ciphertext-out-of-range"):
            opener.add(OTHER, 0, part[:NAME_BYTES] + number.to_bytes(size, "little"))
    for number in (n, 7 * n, key.p, 12345 * key.q, square - n):
        with raised(PeerError, "ciphertext-not-unit"):
            opener.add(OTHER, 0, part[:NAME_BYTES] + number.to_bytes(size, "little"))
    opener.add(OTHER, 0, part)


def test_one_bad_ciphertext_among_many_is_found():
    tag, part = sealed_by(cells=100)
    public = small_secret().public
    size, n = 2 * public.bytes, int(public.n)
    rows = (len(part) - NAME_BYTES) // size
    assert rows > 3
    for row in range(rows):
        at = NAME_BYTES + row * size
        with raised(PeerError, "ciphertext-not-unit"):
            encrypted_opener(tag).add(
                OTHER, 0, part[:at] + (3 * n).to_bytes(size, "little") + part[at + size :]
            )


def test_answers_of_another_kind_are_refused():
    sealers, opener, request, due = asked()
    (answer,) = packing.unpack(sealers[HOLDER].assist(request))
    for wrong in (answer[:-1], answer + b"\0", b""):
        with raised(PeerError, "numbers-length"):
            opener.assist(HOLDER, packing.pack(wrong))
    for wrong in (b"", packing.pack(answer, answer)):
        with raised(PeerError, "opening-parts"):
            opener.assist(HOLDER, wrong)
    with raised(PeerError, "sum-not-open"):
        opener.open()
    opener.assist(HOLDER, packing.pack(answer))
    assert opener.open().tolist() == due.tolist()


def test_an_answer_that_is_no_sum_ends_the_session_and_blames_nobody():
    sealers, opener, request, _ = asked()
    (answer,) = packing.unpack(sealers[HOLDER].assist(request))
    with raised(SessionFailed, "plaintext-impossible"):
        opener.assist(HOLDER, packing.pack(bytes(len(answer))))


# ---- keys in greetings ------------------------------------------------------------------------------


def test_a_greeting_has_both_keys():
    public = small_secret().public
    greeted = greeting_of(b"a" * 32, public.to_bytes())
    assert greeted_keys(greeted) == [b"a" * 32, public.to_bytes()]
    assert greeted_keys(greeting_of(b"a" * 32, b""))[1] == b""
    for wrong in (b"", b"a" * 32, packing.pack(b"a"), packing.pack(b"a", b"b", b"c")):
        with pytest.raises(PeerError):
            greeted_keys(wrong)


def test_powers_of_the_secret_key_are_taken_in_constant_time(monkeypatch):
    """GMP's other powers take a time that depends on the exponent."""
    import gmpy2

    secret, cipher = small_secret(), cipher_of(3, 46)
    read = cipher.read(cipher.encrypt(np.arange(3, dtype=np.uint64)))

    def refused(*arguments):
        raise AssertionError("a power whose time depends on its exponent")

    for name in ("powmod", "powmod_base_list", "powmod_exp_list"):
        monkeypatch.setattr(gmpy2, name, refused)
    assert secret.decrypt(read)[:18] == b"".join(cell.to_bytes(6, "little") for cell in range(3))


def test_without_powers_in_constant_time_there_is_no_paillier(monkeypatch):
    import gmpy2

    monkeypatch.delattr(gmpy2, "powmod_sec")
    monkeypatch.delitem(sys.modules, "fedboost.privacy.paillier", raising=False)
    monkeypatch.delattr("fedboost.privacy.paillier", raising=False)
    with raised(ConfigError, "paillier-gmpy2-build"):
        scheme_of("paillier")
