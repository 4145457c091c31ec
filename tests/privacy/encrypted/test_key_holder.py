"""Sums under encryption: who learns what, and what a key holder refuses."""

import secrets

import numpy as np
import pytest
from consortium import (
    SESSION,
    encrypted_opener,
    encrypted_sealers,
    help_open,
    names,
    small_secret,
    tag_of,
    upload,
)
from encrypted_turn import GROUP, HOLDER, OTHER, PARTIES, THIRD, asked, cipher_of, needs_paillier
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy import packing
from fedboost.privacy.ends import KeyHolder

pytestmark = needs_paillier

# ---- who learns what --------------------------------------------------------------------------------


def decrypted(request, cells, bits, blind=None):
    """The sums in a request, less this blind or none: the lowest 64 bits of each."""
    cipher = cipher_of(cells, bits, checked=True)
    answer = small_secret().decrypt(cipher.read(packing.unpack(request)[1]))
    return answer if blind is None else cipher.unblind(answer, blind)[:cells]


def test_the_key_holder_of_paillier_sees_a_number_that_is_uniform():
    """Of all that fit the key: sum + blind modulo n, whose highest byte is as likely to be any."""
    n = int(small_secret().public.n)
    _, opener, request, due = asked(cells=1)
    blind = int(opener._blinds[0][0])
    seen = int.from_bytes(decrypted(request, 1, 46), "little")
    assert ((seen - blind) % n - int(due[0])) % (1 << 46) == 0
    cipher, counts = cipher_of(1, 46), np.zeros(8)
    total = cipher.read(cipher.encrypt(np.array([5], np.uint64)))
    for _ in range(800):
        _, (blind,) = cipher.blind(total, secrets.token_bytes)
        assert 0 <= blind < n
        counts[int(8 * blind // n)] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 35  # chi-square of 7 degrees: beyond it once in 100,000


def test_two_openings_of_the_same_sum_differ():
    """In what is sent, and in what the key holder sees."""
    secret, cipher = small_secret(), cipher_of(3, 46)
    sealed = cipher.encrypt(np.arange(3, dtype=np.uint64))
    requests = [cipher.blind(cipher.read(sealed), secrets.token_bytes)[0] for _ in range(4)]
    assert len(set(requests)) == 4
    assert len({secret.decrypt(cipher.read(request)) for request in requests}) == 4


def test_a_blind_of_nothing_still_randomises_the_sum():
    """The ciphertext of a sum is not what anybody can compute from those of the parties."""
    cipher = cipher_of(3, 46)
    sealed = cipher.encrypt(np.arange(3, dtype=np.uint64))
    requests = {cipher.blind(cipher.read(sealed), bytes)[0] for _ in range(3)}
    assert len({sealed, *requests}) == 4


def test_equal_vectors_have_ciphertexts_that_differ():
    """That of zeros, too, which would otherwise be 1."""
    tag, zeros = tag_of(PARTIES, bits=46), np.zeros(3, np.int64)
    sealed = [next(encrypted_sealers(PARTIES)[OTHER].seal(zeros, tag)) for _ in range(5)]
    assert len(set(sealed)) == 5
    cipher = cipher_of(3, 46)
    assert len({cipher.encrypt(np.zeros(3, np.uint64)) for _ in range(5)}) == 5


def test_a_sum_does_not_say_how_many_of_its_numbers_were_negative():
    """The plaintexts of equal sums are equal modulo the cell's size, whatever their parts; what is carried
    above it is the masks' doing."""
    below, carried = set(), {}
    for parts in ((-5, 3, 3), (1, 0, 0), (-1, -1, 3)):
        cells = 400
        tag = tag_of(PARTIES, cells=cells, bits=20)
        sealers, opener = encrypted_sealers(PARTIES), encrypted_opener(tag)
        upload(opener, sealers, {p: np.full(cells, x) for p, x in zip(PARTIES, parts, strict=True)}, tag)
        plain = decrypted(opener.requests()[HOLDER], cells, 20, opener._blinds[0])
        below |= set((plain & np.uint64((1 << 20) - 1)).tolist())
        carried[parts] = np.bincount((plain >> np.uint64(20)).astype(int), minlength=3).tolist()
    assert below == {1}
    assert len(set(map(tuple, carried.values()))) == 1, "the same masks carry the same"


def test_nothing_of_the_secret_is_printed_or_sent():
    secret = small_secret()
    sealers, opener, _, _ = asked()
    holder = KeyHolder(secret, GROUP, SESSION, 1)
    shown = " ".join(map(repr, (secret, secret.public, sealers[HOLDER], opener, holder)))
    assert len(shown) < 400
    key = secret._key
    assert not any(str(part)[:20] in shown for part in (key.p, key.q))
    assert int.from_bytes(secret.public.to_bytes()) == key.p * key.q


# ---- what a key holder refuses ----------------------------------------------------------------------


def test_a_second_opening_of_a_turn_is_refused():
    sealers, _, request, _ = asked()
    answer = sealers[HOLDER].assist(request)
    assert sealers[HOLDER].assist(request) == answer  # the same once more: it may have been lost on the way
    assert sealers[HOLDER].openings == 1
    fresh = encrypted_sealers(PARTIES)
    _, _, again, _ = asked(sealers=fresh)
    with raised(PeerError, "opening-other"):
        sealers[HOLDER].assist(again)
    with raised(PeerError, "turn-opened"):
        sealers[HOLDER].seal(np.arange(3), tag_of(PARTIES, turn=1, attempt=1, bits=46))


def test_an_attempt_that_was_not_opened_may_be_followed_by_another():
    sealers, _, old, _ = asked()
    _, opener, new, due = asked(attempt=1, sealers=sealers)
    with raised(PeerError, "help-stale"):
        sealers[HOLDER].assist(old)
    opener.assist(HOLDER, sealers[HOLDER].assist(new))
    assert opener.open().tolist() == due.tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"turn": 2},
        {"attempt": 1},
        {"transcript": b"another"},
        {"cells": 4},
        {"bits": 45},
    ],
)
def test_only_the_sum_that_was_sealed_last_is_opened(change):
    _, _, request, _ = asked()
    sealer = encrypted_sealers(PARTIES)[HOLDER]
    tag = tag_of(**{"roster": PARTIES, "bits": 46, **change})
    list(sealer.seal(np.zeros(tag.cells, np.int64), tag))
    with raised(PeerError, "help-stale"):
        sealer.assist(request)


def test_no_more_sums_are_opened_than_the_terms_have():
    sealers = encrypted_sealers(PARTIES, max_openings=2)
    for turn in (1, 2):
        _, opener, _, due = asked(turn=turn, sealers=sealers)
        assert help_open(opener, sealers).tolist() == due.tolist()
    _, _, request, _ = asked(turn=3, sealers=sealers)
    with raised(PeerError, "openings-exceeded"):
        sealers[HOLDER].assist(request)


def test_only_who_has_the_secret_key_helps():
    sealers, _, request, _ = asked()
    with raised(PeerError, "secret-key-missing"):
        sealers[OTHER].assist(request)


@pytest.mark.parametrize("roster", [(HOLDER, OTHER), (OTHER, THIRD), (HOLDER, HOLDER, OTHER), names(4)])
def test_a_roster_that_is_not_all_parties_is_not_sealed_for(roster):
    sealers = encrypted_sealers(PARTIES)
    for party in PARTIES:
        with raised(PeerError, "roster-invalid", "roster-partial", "roster-repeats-party"):
            sealers[party].seal(np.arange(3), tag_of(roster))
    with raised(PeerError, "roster-partial"):
        KeyHolder(small_secret(), GROUP, SESSION, 1).announce(tag_of(roster))


def test_requests_of_another_shape_are_refused():
    """And do not cost the turn its one opening."""
    for spoil in (
        lambda ctx, part: (ctx,),
        lambda ctx, part: (ctx, part, part),
        lambda ctx, part: (ctx, part[:-1]),
        lambda ctx, part: (ctx, b""),
        lambda ctx, part: (ctx, bytes(len(part))),
        lambda ctx, part: (bytes(32), part),
    ):
        sealers, _, request, _ = asked()
        spoilt = packing.pack(*spoil(*packing.unpack(request)))
        with pytest.raises(PeerError):
            sealers[HOLDER].assist(spoilt)
        assert sealers[HOLDER].openings == 0
        assert sealers[HOLDER].assist(request)
