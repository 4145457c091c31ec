"""Paillier: its numbers are phe's own; powers are made ahead and used once."""

import gc
import os
import secrets
import threading
import time
import warnings

import numpy as np
import pytest
from consortium import encrypted_sealers, small_secret, tag_of
from encrypted_turn import HOLDER, PARTIES, asked, cipher_of, needs_paillier
from hypothesis import given
from hypothesis import strategies as st
from processes import wait_until
from raised import raised

from fedboost.errors import PeerError

pytestmark = needs_paillier

# ---- Paillier beside phe ----------------------------------------------------------------------------


@given(words=st.lists(st.integers(0, (1 << 46) - 1), min_size=1, max_size=60))
def test_phe_decrypts_what_was_packed_here(words):
    secret, cipher = small_secret(), cipher_of(len(words), 46)
    sealed = cipher.encrypt(np.array(words, np.uint64))
    size, seen = 2 * secret.public.bytes, []
    for at in range(0, len(sealed), size):
        plain = secret._key.raw_decrypt(int.from_bytes(sealed[at : at + size], "little"))
        seen += [(plain >> (48 * slot)) & ((1 << 48) - 1) for slot in range(10)]
    assert seen[: len(words)] == words
    assert not any(seen[len(words) :])


def test_what_phe_encrypted_is_added_and_opened_here():
    """By its `raw_encrypt`, and by the encrypted numbers of its own interface."""
    secret, cipher = small_secret(), cipher_of(10, 46)
    public, size = secret._key.public_key, 2 * secret.public.bytes
    words = np.arange(10, dtype=np.uint64) << np.uint64(40) | np.uint64(5)
    packed = sum(int(word) << (48 * slot) for slot, word in enumerate(words))
    raw = public.raw_encrypt(packed).to_bytes(size, "little")
    number = public.encrypt(packed).ciphertext().to_bytes(size, "little")
    total = cipher.add(cipher.add(cipher.read(raw), cipher.read(number)), cipher.read(cipher.encrypt(words)))
    request, blind = cipher.blind(total, secrets.token_bytes)
    assert cipher.unblind(secret.decrypt(cipher.read(request)), blind).tolist() == (3 * words).tolist()


def test_phe_and_this_decrypt_alike_over_all_plaintexts():
    secret, cipher = small_secret(), cipher_of(1, 46)
    key, n = secret._key, int(secret.public.n)
    for plain in (0, 1, n // 3, n // 2, n - n // 3 + 5, n - 1, *(secrets.randbelow(n) for _ in range(20))):
        number = (1 + n * plain) * pow(secrets.randbelow(n), n, n * n) % (n * n)
        answer = secret.decrypt(cipher.read(number.to_bytes(2 * secret.public.bytes, "little")))
        assert int.from_bytes(answer, "little") == plain == key.raw_decrypt(number)


# ---- powers and their pool --------------------------------------------------------------------------


def pool_threads():
    return [thread for thread in threading.enumerate() if thread.name == "fedboost-powers"]


def test_a_power_is_an_nth_power_and_used_once():
    """What it randomises decrypts to the same; no two are alike, whoever made them and whenever."""
    from fedboost.privacy.paillier import Pool

    secret = small_secret()
    pool = Pool(secret.public.n, 50)
    wait_until(lambda: len(pool) >= 50)
    taken = pool.take(30) + pool.take(100) + pool.take(1)
    assert len(set(taken)) == 131
    assert {secret._key.raw_decrypt(int(power)) for power in taken} == {0}
    pool.close()


def test_threads_that_take_from_one_pool_never_get_the_same_power():
    from fedboost.privacy.paillier import Pool

    pool, taken = Pool(small_secret().public.n, 40), []
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


def test_a_pool_holds_no_more_than_it_was_told_and_fills_up_again():
    from fedboost.privacy.paillier import Pool

    pool = Pool(small_secret().public.n, 20)
    wait_until(lambda: len(pool) >= 20)
    pool.take(15)
    wait_until(lambda: len(pool) >= 20)
    time.sleep(0.05)
    assert len(pool) == 20
    pool.close()
    assert len(pool) == 0
    assert not pool.alive


def test_the_thread_of_a_pool_ends_with_the_key_it_belongs_to():
    from fedboost.privacy.paillier import generate

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_was_forked_off_does_not_use_its_parents_powers():
    public = small_secret().public
    wait_until(lambda: len(public.pool()) >= 30)
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


def test_a_request_of_another_session_is_refused():
    """With the same key, tag and parties: its masks are others."""
    _, _, request, _ = asked()
    other = encrypted_sealers(PARTIES, session=b"another")
    list(other[HOLDER].seal(np.arange(3), tag_of(PARTIES, bits=46)))
    with raised(PeerError, "help-stale"):
        other[HOLDER].assist(request)
