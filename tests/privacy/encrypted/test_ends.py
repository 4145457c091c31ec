"""Sums under encryption: who learns what, what is refused, and that the numbers are phe's and TenSEAL's own.

What every protection promises is in test_contract.py. Keys of 512 bits stand for larger ones where the size
does not matter; keys of 2048 come through the public door.
"""

import builtins
import gc
import os
import secrets
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from consortium import (
    SESSION,
    encrypted_opener,
    encrypted_sealers,
    help_open,
    installed,
    keys_of_pairs,
    names,
    small_secret,
    tag_of,
    upload,
    vectors,
)
from hypothesis import given
from hypothesis import strategies as st

from fedboost.errors import ConfigError, PeerError, SessionFailed
from fedboost.privacy import fields
from fedboost.privacy.bit_packing import Chunk
from fedboost.privacy.encrypted.ends import EncryptedSealer
from fedboost.privacy.encrypted.key_holder import KeyHolder
from fedboost.privacy.encrypted.scheme import (
    NAME_BYTES,
    agreement_key,
    digest_of,
    greeting_of,
    scheme_key,
)
from fedboost.privacy.masked.pairwise import Group
from fedboost.privacy.protections import scheme_of

PARTIES = names(3)
HOLDER, OTHER, THIRD = PARTIES
GROUP = Group.of(PARTIES)
SCHEMES = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"no {name}"))
    for name in ("paillier", "bfv")
]
needs_paillier = pytest.mark.skipif(not installed("paillier"), reason="no paillier")
needs_bfv = pytest.mark.skipif(not installed("bfv"), reason="no bfv")


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


@pytest.fixture(scope="session")
def large_secret():
    """A Paillier key of the least size, through the public door."""
    return scheme_of("paillier").new_secret(2048)


def asked(scheme, turn=1, attempt=0, cells=3, bits=46, sealers=None, seed=0, roster=PARTIES):
    """Sealers, and the opener of a turn whose vectors have arrived; its request; the sum that is due."""
    tag = tag_of(roster, turn=turn, attempt=attempt, cells=cells, bits=bits)
    sealers, opener = sealers or encrypted_sealers(scheme, PARTIES), encrypted_opener(scheme, tag)
    of, due = vectors(roster, cells, bits, seed)
    upload(opener, sealers, of, tag)
    return sealers, opener, opener.requests()[HOLDER], due


def cipher_of(scheme, cells, bits, parties=3):
    return small_secret(scheme).public.cipher(Chunk(0, [(cells, bits)]), parties)


# ---- sums are exact ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(2, 65))
def test_sums_of_signed_numbers_of_every_width(scheme, bits):
    """Each party's number fits the cell, too, as the numbers of a training do."""
    rng, cells = np.random.default_rng(bits), 30
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    due = rng.integers(lowest, highest, cells, endpoint=True)
    due[:3] = lowest, highest, 0
    first = due // 2
    of = {HOLDER: first, OTHER: due - first, THIRD: np.zeros(cells, np.int64)}
    tag = tag_of(PARTIES, cells=cells, bits=bits)
    sealers, opener = encrypted_sealers(scheme, PARTIES), encrypted_opener(scheme, tag)
    upload(opener, sealers, of, tag)
    assert help_open(opener, sealers).tolist() == due.tolist()


def test_the_key_of_the_public_door_opens_sums(scheme):
    secret = scheme_of(scheme).new_secret(2048)
    public = scheme_of(scheme).read_public(secret.public.to_bytes(), 2048)
    tag = tag_of(PARTIES, cells=500, bits=46)
    of, due = vectors(PARTIES, 500, 46)
    keys = keys_of_pairs(PARTIES)
    sealers = {
        party: EncryptedSealer(
            party, GROUP, SESSION, keys[party], public, secret if party == HOLDER else None, 1
        )
        for party in PARTIES
    }
    opener = encrypted_opener(scheme, tag, public)
    upload(opener, sealers, of, tag)
    assert help_open(opener, sealers).tolist() == due.tolist()
    public.close()
    secret.public.close()


def test_sealed_parts_are_no_longer_than_said(scheme):
    tag = tag_of(PARTIES, cells=9000, bits=46)
    (part,) = encrypted_sealers(scheme, PARTIES)[OTHER].seal(np.zeros(9000, np.int64), tag)
    most = cipher_of(scheme, 9000, 46).most_bytes() + NAME_BYTES
    assert len(part) <= most
    assert scheme != "paillier" or len(part) == most


def test_a_key_holder_of_its_own_opens_what_was_announced(scheme):
    """One that seals nothing, and is in no roster."""
    tag = tag_of(PARTIES, cells=10, bits=46)
    of, due = vectors(PARTIES, 10, 46)
    opener = encrypted_opener(scheme, tag, keyholder="keyholder")
    upload(opener, encrypted_sealers(scheme, PARTIES), of, tag)
    holder = KeyHolder(small_secret(scheme), GROUP, SESSION, 1)
    (request,) = opener.requests().values()
    with pytest.raises(PeerError, match="not the last"):
        holder.assist(request)
    holder.announce(tag)
    opener.assist("keyholder", holder.assist(request))
    assert opener.open().tolist() == due.tolist()


# ---- who learns what --------------------------------------------------------------------------------


def decrypted(scheme, request, cells, bits, blind=None):
    """The sums in a request, less this blind or none: the lowest 64 bits of each."""
    cipher = cipher_of(scheme, cells, bits)
    answer = small_secret(scheme).decrypt(cipher.read(fields.unpack(request)[1]))
    return answer if blind is None else cipher.unblind(answer, blind)


@needs_paillier
def test_the_key_holder_of_paillier_sees_a_number_that_is_uniform():
    """Of all that fit the key: sum + blind modulo n, whose highest byte is as likely to be any."""
    n = int(small_secret("paillier").public.n)
    _, opener, request, due = asked("paillier", cells=1)
    blind = int(opener._blinds[0][0])
    seen = int.from_bytes(decrypted("paillier", request, 1, 46), "little")
    assert ((seen - blind) % n - int(due[0])) % (1 << 46) == 0
    cipher, counts = cipher_of("paillier", 1, 46), np.zeros(8)
    total = cipher.read(cipher.encrypt(np.array([5], np.uint64)))
    for _ in range(800):
        _, (blind,) = cipher.blind(total, secrets.token_bytes)
        assert 0 <= blind < n
        counts[int(8 * blind // n)] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 35  # chi-square of 7 degrees: beyond it once in 100,000


@needs_bfv
def test_the_key_holder_of_bfv_sees_numbers_that_are_uniform():
    from fedboost.privacy.encrypted.bfv import DEGREE, MODULUS, uniform

    _, opener, request, _ = asked("bfv", cells=5)
    seen = np.frombuffer(decrypted("bfv", request, 5, 46), np.uint8).reshape(-1, 7)
    numbers = np.array([int.from_bytes(row.tobytes(), "little") for row in seen])
    due = (numbers - opener._blinds[0]) % MODULUS
    assert not due[5:].any()
    assert numbers.size == DEGREE
    for drawn in (numbers, uniform(DEGREE, secrets.token_bytes)):
        counts = np.bincount((drawn * 8.0 / MODULUS).astype(int), minlength=8)
        assert ((counts - DEGREE / 8) ** 2 / (DEGREE / 8)).sum() < 35


def test_two_openings_of_the_same_sum_differ(scheme):
    """In what is sent, and in what the key holder sees."""
    secret, cipher = small_secret(scheme), cipher_of(scheme, 3, 46)
    sealed = cipher.encrypt(np.arange(3, dtype=np.uint64))
    requests = [cipher.blind(cipher.read(sealed), secrets.token_bytes)[0] for _ in range(4)]
    assert len(set(requests)) == 4
    assert len({secret.decrypt(cipher.read(request)) for request in requests}) == 4


def test_a_blind_of_nothing_still_randomises_the_sum(scheme):
    """The ciphertext of a sum is not what anybody can compute from those of the parties."""
    cipher = cipher_of(scheme, 3, 46)
    sealed = cipher.encrypt(np.arange(3, dtype=np.uint64))
    requests = {cipher.blind(cipher.read(sealed), bytes)[0] for _ in range(3)}
    assert len({sealed, *requests}) == 4


def test_equal_vectors_have_ciphertexts_that_differ(scheme):
    """That of zeros, too, which would otherwise be 1, or a polynomial of zeros."""
    tag, zeros = tag_of(PARTIES, bits=46), np.zeros(3, np.int64)
    sealed = [next(encrypted_sealers(scheme, PARTIES)[OTHER].seal(zeros, tag)) for _ in range(5)]
    assert len(set(sealed)) == 5
    cipher = cipher_of(scheme, 3, 46)
    assert len({cipher.encrypt(np.zeros(3, np.uint64)) for _ in range(5)}) == 5


def test_a_sum_does_not_say_how_many_of_its_numbers_were_negative(scheme):
    """The plaintexts of equal sums are equal modulo the cell's size, whatever their parts; what is carried
    above it is the masks' doing."""
    below, carried = set(), {}
    for parts in ((-5, 3, 3), (1, 0, 0), (-1, -1, 3)):
        cells = 400
        tag = tag_of(PARTIES, cells=cells, bits=20)
        sealers, opener = encrypted_sealers(scheme, PARTIES), encrypted_opener(scheme, tag)
        upload(opener, sealers, {p: np.full(cells, x) for p, x in zip(PARTIES, parts, strict=True)}, tag)
        plain = decrypted(scheme, opener.requests()[HOLDER], cells, 20, opener._blinds[0])
        below |= set((plain & np.uint64((1 << 20) - 1)).tolist())
        carried[parts] = np.bincount((plain >> np.uint64(20)).astype(int), minlength=3).tolist()
    assert below == {1}
    assert len(set(map(tuple, carried.values()))) == 1, "the same masks carry the same"


def test_nothing_of_the_secret_is_printed_or_sent(scheme):
    secret = small_secret(scheme)
    sealers, opener, _, _ = asked(scheme)
    holder = KeyHolder(secret, GROUP, SESSION, 1)
    shown = " ".join(map(repr, (secret, secret.public, sealers[HOLDER], opener, holder)))
    assert len(shown) < 400
    if scheme == "paillier":
        key = secret._key
        assert not any(str(part)[:20] in shown for part in (key.p, key.q))
        assert int.from_bytes(secret.public.to_bytes()) == key.p * key.q
    else:
        import tenseal as ts

        assert not ts.context_from(secret.public.to_bytes()).has_secret_key()


# ---- what a key holder refuses ----------------------------------------------------------------------


def test_a_second_opening_of_a_turn_is_refused(scheme):
    sealers, _, request, _ = asked(scheme)
    answer = sealers[HOLDER].assist(request)
    assert sealers[HOLDER].assist(request) == answer  # the same once more: it may have been lost on the way
    assert sealers[HOLDER].openings == 1
    fresh = encrypted_sealers(scheme, PARTIES)
    _, _, again, _ = asked(scheme, sealers=fresh)
    with pytest.raises(PeerError, match="a second time"):
        sealers[HOLDER].assist(again)
    with pytest.raises(PeerError, match="turn 1 was opened: no other attempt of it is"):
        sealers[HOLDER].seal(np.arange(3), tag_of(PARTIES, turn=1, attempt=1, bits=46))


def test_an_attempt_that_was_not_opened_may_be_followed_by_another(scheme):
    sealers, _, old, _ = asked(scheme)
    _, opener, new, due = asked(scheme, attempt=1, sealers=sealers)
    with pytest.raises(PeerError, match="not the last"):
        sealers[HOLDER].assist(old)
    opener.assist(HOLDER, sealers[HOLDER].assist(new))
    assert opener.open().tolist() == due.tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"turn": 2},
        {"attempt": 1},
        {"epoch": 1},
        {"transcript": b"another"},
        {"cells": 4},
        {"bits": 45},
    ],
)
def test_only_the_sum_that_was_sealed_last_is_opened(scheme, change):
    _, _, request, _ = asked(scheme)
    sealer = encrypted_sealers(scheme, PARTIES)[HOLDER]
    tag = tag_of(**{"roster": PARTIES, "bits": 46, **change})
    list(sealer.seal(np.zeros(tag.cells, np.int64), tag))
    with pytest.raises(PeerError, match="not the last"):
        sealer.assist(request)


def test_no_more_sums_are_opened_than_the_terms_have(scheme):
    sealers = encrypted_sealers(scheme, PARTIES, max_openings=2)
    for turn in (1, 2):
        _, opener, _, due = asked(scheme, turn=turn, sealers=sealers)
        assert help_open(opener, sealers).tolist() == due.tolist()
    _, _, request, _ = asked(scheme, turn=3, sealers=sealers)
    with pytest.raises(PeerError, match="more than the 2 sums"):
        sealers[HOLDER].assist(request)


def test_only_who_has_the_secret_key_helps(scheme):
    sealers, _, request, _ = asked(scheme)
    with pytest.raises(PeerError, match="without the secret key"):
        sealers[OTHER].assist(request)


@pytest.mark.parametrize("roster", [(HOLDER, OTHER), (OTHER, THIRD), (HOLDER, HOLDER, OTHER), names(4)])
def test_a_roster_that_is_not_all_parties_is_not_sealed_for(scheme, roster):
    sealers = encrypted_sealers(scheme, PARTIES)
    for party in PARTIES:
        with pytest.raises(PeerError, match="roster"):
            sealers[party].seal(np.arange(3), tag_of(roster))
    with pytest.raises(PeerError, match=r"roster of . parties that is not all 3"):
        KeyHolder(small_secret(scheme), GROUP, SESSION, 1).announce(tag_of(roster))


def test_requests_of_another_shape_are_refused(scheme):
    """And do not cost the turn its one opening."""
    for spoil in (
        lambda ctx, part: (ctx,),
        lambda ctx, part: (ctx, part, part),
        lambda ctx, part: (ctx, part[:-1]),
        lambda ctx, part: (ctx, b""),
        lambda ctx, part: (ctx, bytes(len(part))),
        lambda ctx, part: (bytes(32), part),
    ):
        sealers, _, request, _ = asked(scheme)
        spoilt = fields.pack(*spoil(*fields.unpack(request)))
        with pytest.raises(PeerError):
            sealers[HOLDER].assist(spoilt)
        assert sealers[HOLDER].openings == 0
        assert sealers[HOLDER].assist(request)


# ---- what an opener refuses -------------------------------------------------------------------------


def sealed_by(scheme, party=OTHER, cells=3, bits=46):
    tag = tag_of(PARTIES, cells=cells, bits=bits)
    (part,) = encrypted_sealers(scheme, PARTIES)[party].seal(np.arange(cells), tag)
    return tag, part


def test_cells_under_another_key_are_a_peer_error(scheme):
    tag, _ = sealed_by(scheme)
    if scheme == "paillier":
        from fedboost.privacy.encrypted import paillier

        other = paillier.generate(512).public
    else:
        other = scheme_of("bfv").new_secret(0).public
    sealer = EncryptedSealer(OTHER, GROUP, SESSION, keys_of_pairs(PARTIES)[OTHER], other, None, 0)
    (part,) = sealer.seal(np.arange(3), tag)
    with pytest.raises(PeerError, match="another key"):
        encrypted_opener(scheme, tag).add(OTHER, 0, part)
    other.close()


@needs_paillier
def test_numbers_that_are_no_ciphertexts_of_paillier_are_a_peer_error():
    tag, part = sealed_by("paillier")
    public, key = small_secret("paillier").public, small_secret("paillier")._key
    n, square, size = int(public.n), int(public.square), len(part) - NAME_BYTES
    for number in (0, square, square + 1, (1 << 8 * size) - 1):
        opener = encrypted_opener("paillier", tag)
        with pytest.raises(PeerError, match="out of range"):
            opener.add(OTHER, 0, part[:NAME_BYTES] + number.to_bytes(size, "little"))
    for number in (n, 7 * n, key.p, 12345 * key.q, square - n):
        with pytest.raises(PeerError, match="no unit"):
            opener.add(OTHER, 0, part[:NAME_BYTES] + number.to_bytes(size, "little"))
    opener.add(OTHER, 0, part)


@needs_paillier
def test_one_bad_ciphertext_among_many_is_found():
    tag, part = sealed_by("paillier", cells=100)
    public = small_secret("paillier").public
    size, n = 2 * public.bytes, int(public.n)
    rows = (len(part) - NAME_BYTES) // size
    assert rows > 3
    for row in range(rows):
        at = NAME_BYTES + row * size
        with pytest.raises(PeerError, match="no unit"):
            encrypted_opener("paillier", tag).add(
                OTHER, 0, part[:at] + (3 * n).to_bytes(size, "little") + part[at + size :]
            )


@needs_bfv
def test_bytes_that_are_no_ciphertext_of_bfv_are_a_peer_error():
    import tenseal as ts

    tag, part = sealed_by("bfv")
    name, (row,) = part[:NAME_BYTES], fields.unpack(part[NAME_BYTES:])
    context = small_secret("bfv").public.context
    short = ts.bfv_vector(context, [1, 2, 3]).serialize()
    product = ts.bfv_vector(context, [1] * 8192).serialize()
    wrong = [b"", b"x", row[:-1], row[:100], bytes(len(row)), row[:200] + bytes(9) + row[209:], short]
    opener = encrypted_opener("bfv", tag)
    for data in wrong:
        with pytest.raises(PeerError):
            opener.add(OTHER, 0, name + fields.pack(data))
    with pytest.raises(PeerError, match="2 ciphertexts where 1"):
        opener.add(OTHER, 0, name + fields.pack(row, product))
    opener.add(OTHER, 0, name + fields.pack(product))


def test_answers_of_another_kind_are_refused(scheme):
    sealers, opener, request, due = asked(scheme)
    (answer,) = fields.unpack(sealers[HOLDER].assist(request))
    for wrong in (answer[:-1], answer + b"\0", b""):
        with pytest.raises(PeerError, match="bytes"):
            opener.assist(HOLDER, fields.pack(wrong))
    for wrong in (b"", fields.pack(answer, answer)):
        with pytest.raises(PeerError, match="parts of plaintexts"):
            opener.assist(HOLDER, wrong)
    with pytest.raises(PeerError, match="cannot be opened yet"):
        opener.open()
    opener.assist(HOLDER, fields.pack(answer))
    assert opener.open().tolist() == due.tolist()


def test_an_answer_that_is_no_sum_ends_the_session_and_blames_nobody(scheme):
    sealers, opener, request, _ = asked(scheme)
    (answer,) = fields.unpack(sealers[HOLDER].assist(request))
    with pytest.raises(SessionFailed, match="the key holder answered with something else, or a party"):
        opener.assist(HOLDER, fields.pack(bytes(len(answer))))


# ---- keys -------------------------------------------------------------------------------------------


@needs_paillier
@pytest.mark.parametrize("bits", [0, 512, 1024, 2040, 2047, 2049, 1 << 20])
def test_no_key_of_paillier_is_made_below_2048_bits(bits):
    with pytest.raises(ConfigError, match="2048 to 8192"):
        scheme_of("paillier").new_secret(bits)


@needs_paillier
def test_keys_of_paillier_that_cannot_be_are_refused(large_secret):
    read, good = scheme_of("paillier").read_public, large_secret.public.to_bytes()
    n = int.from_bytes(good)
    assert int(read(good, 2048).n) == n
    for data, least in (
        (small_secret("paillier").public.to_bytes(), 0),  # whatever the terms say, 2048 is the floor
        (good, 3072),
        (good[1:], 2048),
        (b"", 2048),
        (b"\xff" * 4096, 2048),
    ):
        with pytest.raises(PeerError, match="bits; this session takes"):
            read(data, least)
    with pytest.raises(PeerError, match="another length"):
        read(b"\0" + good, 2048)
    import gmpy2

    top = 1 << 2047
    root, prime = int(gmpy2.next_prime(3 << 1022)), int(gmpy2.next_prime(top))
    for number in (n + 1, top + 1 - (top + 1) % 3 + 3, n - n % 65521, root**2, prime):
        assert number.bit_length() == 2048
        with pytest.raises(PeerError, match="no product of two large primes"):
            read(number.to_bytes(256), 2048)


@needs_paillier
def test_keys_of_paillier_are_of_fresh_primes_that_are_3_modulo_4(large_secret):
    key = large_secret._key
    assert key.p % 4 == key.q % 4 == 3
    assert (key.p * key.q).bit_length() == 2048
    assert abs(key.p.bit_length() - key.q.bit_length()) <= 1
    assert large_secret.public.n != scheme_of("paillier").new_secret(2048).public.n


@needs_bfv
def test_keys_of_bfv_of_other_parameters_are_refused():
    import tenseal as ts

    read = scheme_of("bfv").read_public
    good = small_secret("bfv").public.to_bytes()
    assert digest_of(read(good, 0)) == digest_of(small_secret("bfv").public)
    assert len(good) < 400_000

    def saved(secret=False, degree=8192, plain=0x3FFFFFFFEF8001, primes=(40, 40, 40)):
        context = ts.context(ts.SCHEME_TYPE.BFV, degree, plain, coeff_mod_bit_sizes=list(primes))
        return context.serialize(save_secret_key=secret, save_galois_keys=False, save_relin_keys=False)

    read(saved(), 0)
    for data, why in (
        (saved(secret=True), "secret key"),
        (saved(degree=4096, primes=(30, 30, 30)), "other parameters"),
        (saved(plain=1032193), "other parameters"),
        (saved(primes=(40, 40, 41)), "other parameters"),
        (good[:-1], "no BFV key"),
        (b"", "no BFV key"),
        (bytes(2 << 20), "more than any has"),
    ):
        with pytest.raises(PeerError, match=why):
            read(data, 0)


@pytest.mark.parametrize("name", ["paillier", "bfv"])
def test_what_is_not_installed_is_named_with_the_extra_that_installs_it(name, monkeypatch):
    real = builtins.__import__

    def without(package, *rest):
        if package.split(".")[0] in ("phe", "gmpy2", "tenseal"):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(package, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, f"fedboost.privacy.encrypted.{name}", raising=False)
    monkeypatch.delattr(f"fedboost.privacy.encrypted.{name}", raising=False)
    with pytest.raises(ConfigError) as caught:
        scheme_of(name)
    assert f'pip install "fedboost[{name}]"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheme_of_another_name_is_a_config_error():
    with pytest.raises(ConfigError, match="known: paillier, bfv"):
        scheme_of("rsa")


# ---- Paillier beside phe ----------------------------------------------------------------------------


@needs_paillier
@given(words=st.lists(st.integers(0, (1 << 46) - 1), min_size=1, max_size=60))
def test_phe_decrypts_what_was_packed_here(words):
    secret, cipher = small_secret("paillier"), cipher_of("paillier", len(words), 46)
    sealed = cipher.encrypt(np.array(words, np.uint64))
    size, seen = 2 * secret.public.bytes, []
    for at in range(0, len(sealed), size):
        plain = secret._key.raw_decrypt(int.from_bytes(sealed[at : at + size], "little"))
        seen += [(plain >> (48 * slot)) & ((1 << 48) - 1) for slot in range(10)]
    assert seen[: len(words)] == words
    assert not any(seen[len(words) :])


@needs_paillier
def test_what_phe_encrypted_is_added_and_opened_here():
    """By its `raw_encrypt`, and by the encrypted numbers of its own interface."""
    secret, cipher = small_secret("paillier"), cipher_of("paillier", 10, 46)
    public, size = secret._key.public_key, 2 * secret.public.bytes
    words = np.arange(10, dtype=np.uint64) << np.uint64(40) | np.uint64(5)
    packed = sum(int(word) << (48 * slot) for slot, word in enumerate(words))
    raw = public.raw_encrypt(packed).to_bytes(size, "little")
    number = public.encrypt(packed).ciphertext().to_bytes(size, "little")
    total = cipher.add(cipher.add(cipher.read(raw), cipher.read(number)), cipher.read(cipher.encrypt(words)))
    request, blind = cipher.blind(total, secrets.token_bytes)
    assert cipher.unblind(secret.decrypt(cipher.read(request)), blind).tolist() == (3 * words).tolist()


@needs_paillier
def test_phe_and_this_decrypt_alike_over_all_plaintexts():
    secret, cipher = small_secret("paillier"), cipher_of("paillier", 1, 46)
    key, n = secret._key, int(secret.public.n)
    for plain in (0, 1, n // 3, n // 2, n - n // 3 + 5, n - 1, *(secrets.randbelow(n) for _ in range(20))):
        number = (1 + n * plain) * pow(secrets.randbelow(n), n, n * n) % (n * n)
        answer = secret.decrypt(cipher.read(number.to_bytes(2 * secret.public.bytes, "little")))
        assert int.from_bytes(answer, "little") == plain == key.raw_decrypt(number)


# ---- powers and their pool --------------------------------------------------------------------------


def pool_threads():
    return [thread for thread in threading.enumerate() if thread.name == "fedboost-powers"]


def filled(pool, count):
    deadline = time.monotonic() + 20
    while len(pool) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@needs_paillier
def test_a_power_is_an_nth_power_and_used_once():
    """What it randomises decrypts to the same; no two are alike, whoever made them and whenever."""
    from fedboost.privacy.encrypted.paillier import Pool

    secret = small_secret("paillier")
    pool = Pool(secret.public.n, 50)
    filled(pool, 50)
    taken = pool.take(30) + pool.take(100) + pool.take(1)
    assert len(set(taken)) == 131
    assert {secret._key.raw_decrypt(int(power)) for power in taken} == {0}
    pool.close()


@needs_paillier
def test_threads_that_take_from_one_pool_never_get_the_same_power():
    from fedboost.privacy.encrypted.paillier import Pool

    pool, taken = Pool(small_secret("paillier").public.n, 40), []
    takers = [
        threading.Thread(target=lambda: taken.extend([p for _ in range(20) for p in pool.take(5)]))
        for _ in range(4)
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert len(taken) == len(set(taken)) == 400
    pool.close()


@needs_paillier
def test_a_pool_holds_no_more_than_it_was_told_and_fills_up_again():
    from fedboost.privacy.encrypted.paillier import Pool

    pool = Pool(small_secret("paillier").public.n, 20)
    filled(pool, 20)
    pool.take(15)
    filled(pool, 20)
    time.sleep(0.05)
    assert len(pool) == 20
    pool.close()
    assert len(pool) == 0
    assert not pool.alive


@needs_paillier
def test_the_thread_of_a_pool_ends_with_the_key_it_belongs_to():
    from fedboost.privacy.encrypted.paillier import generate

    before = set(pool_threads())
    public = generate(512).public
    public.prepare()
    (started,) = set(pool_threads()) - before
    del public
    gc.collect()
    started.join(10)
    assert not started.is_alive()
    closed = generate(512).public
    closed.prepare()
    closed.close()
    closed.close()
    assert set(pool_threads()) <= before
    closed.pool().take(1)  # what was closed begins anew when it is needed
    closed.close()
    assert set(pool_threads()) <= before


@needs_paillier
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_was_forked_off_does_not_use_its_parents_powers():
    public = small_secret("paillier").public
    filled(public.pool(), 30)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the test
        child = os.fork()
    if not child:
        try:
            os.write(writing, b" ".join(b"%d" % power for power in public.pool().take(5)))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        theirs = {int(word) for word in pipe.read().split()}
    os.waitpid(child, 0)
    assert len(theirs) == 5
    assert not theirs & set(map(int, public.pool().take(30)))


def test_a_request_of_another_session_is_refused(scheme):
    """With the same key, tag and parties: its masks are others."""
    _, _, request, _ = asked(scheme)
    other = encrypted_sealers(scheme, PARTIES, session=b"another")
    list(other[HOLDER].seal(np.arange(3), tag_of(PARTIES, bits=46)))
    with pytest.raises(PeerError, match="another session's sum"):
        other[HOLDER].assist(request)


# ---- keys in greetings ------------------------------------------------------------------------------


def test_a_greeting_has_both_keys(scheme):
    public = small_secret(scheme).public
    greeted = greeting_of(b"a" * 32, public)
    assert agreement_key(greeted) == b"a" * 32
    assert scheme_key(greeted) == public.to_bytes()
    assert scheme_key(greeting_of(b"a" * 32, None)) == b""
    for wrong in (b"", b"a" * 32, fields.pack(b"a"), fields.pack(b"a", b"b", b"c")):
        for read in (agreement_key, scheme_key):
            with pytest.raises(PeerError):
                read(wrong)


@needs_paillier
def test_powers_of_the_secret_key_are_taken_in_constant_time(monkeypatch):
    """GMP's other powers take a time that depends on the exponent."""
    import gmpy2

    secret, cipher = small_secret("paillier"), cipher_of("paillier", 3, 46)
    read = cipher.read(cipher.encrypt(np.arange(3, dtype=np.uint64)))

    def refused(*arguments):
        raise AssertionError("a power whose time depends on its exponent")

    for name in ("powmod", "powmod_base_list", "powmod_exp_list"):
        monkeypatch.setattr(gmpy2, name, refused)
    assert secret.decrypt(read)[:18] == b"".join(cell.to_bytes(6, "little") for cell in range(3))


@needs_paillier
def test_without_powers_in_constant_time_there_is_no_paillier(monkeypatch):
    import gmpy2

    monkeypatch.delattr(gmpy2, "powmod_sec")
    monkeypatch.delitem(sys.modules, "fedboost.privacy.encrypted.paillier", raising=False)
    monkeypatch.delattr("fedboost.privacy.encrypted.paillier", raising=False)
    with pytest.raises(ConfigError, match=r"needs gmpy2 2\.2 or later"):
        scheme_of("paillier")
