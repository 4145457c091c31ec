"""The proof of a Paillier key: good keys pass, keys that open blinds do not, and no other proof stands in."""

import gmpy2
import pytest
from paillier_keys import best_root, good_secret, key_of, prime, secret_of
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy.paillier import Paillier, PaillierPublic, generate
from fedboost.privacy.rowsums import ends

CONTEXT = b"session, attempt 1, bank"
P17, P20, P40 = prime(17), prime(20), prime(40)


def numbers_of(public, context):
    """The numbers hashed for a key, told by a proof that is right for none."""
    return ends._hashed(public, context)


def best_proof(factors, context):
    """The proof by whoever knows the factors, and the numbers that have a root at all, counted from 1."""
    public = key_of(factors)
    roots = [best_root(factors, number) for number in numbers_of(public, context)]
    proof = b"".join(root.to_bytes(public.bytes, "little") for root, _ in roots)
    return proof, [at for at, (_, right) in enumerate(roots, 1) if right]


def written(roots, public):
    return b"".join(int(root).to_bytes(public.bytes, "little") for root in roots)


def roots_of(proof, public):
    size = public.bytes
    return [int.from_bytes(proof[at : at + size], "little") for at in range(0, len(proof), size)]


# ---- good keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_a_key_that_is_generated_passes(bits):
    secret = generate(bits)
    proof = ends.prove(secret, CONTEXT)
    assert len(proof) == 8 * bits // 8
    ends.check(secret.public, CONTEXT, proof)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2048, 3072])
def test_a_key_of_a_session_passes_with_the_bytes_that_travel(bits):
    secret = Paillier().new_secret(bits)
    public = Paillier().read_public(secret.public.to_bytes(), bits)
    ends.check(public, CONTEXT, ends.prove(secret, CONTEXT))


def test_the_proof_is_the_only_one():
    """Roots are unique for a good key, so that the proof can tell nothing that its maker chose."""
    p, q = prime(40, 1, 3), prime(41, 1, 3)
    factors = {p: 1, q: 1}
    proof, right = best_proof(factors, CONTEXT)
    assert right == [*range(1, 9)]
    assert proof == ends.prove(secret_of(p, q), CONTEXT)


def test_many_primes_1_modulo_4_pass():
    """They do not harm blinds by uniform units; test_openings shows what they do to powers of one base."""
    factors = {prime(20, nth, 1): 1 for nth in range(1, 13)}
    proof, right = best_proof(factors, CONTEXT)
    assert len(right) == 8
    ends.check(key_of(factors), CONTEXT, proof)


def test_the_numbers_are_spread_over_all_below_n():
    """The mean of 8,000 is within 5 standard errors of the middle, and each of 16 parts has its share."""
    public = good_secret().public
    numbers = [x for context in range(1000) for x in numbers_of(public, b"%d" % context)]
    parts = [0] * 16
    for number in numbers:
        assert 0 <= number < public.n
        parts[int(16 * number // public.n)] += 1
    assert max(abs(part - 500) for part in parts) < 5 * (8000 / 16 * 15 / 16) ** 0.5
    assert len(set(numbers)) == 8000


# ---- bad keys: whoever knows the factors has no proof -----------------------------------------------


def one_modulo(p, bits):
    q = (p << bits) + 1
    while not (gmpy2.is_prime(q) and (q - 1) // p % p):
        q += 2 * p
    return q


BAD = {
    "a square": {P20: 2, P40: 1},
    "a high power": {P20: 20, P40: 1},
    "one prime, 1 modulo the other": {P17: 1, one_modulo(P17, 41): 1},
    "a power alone": {P20: 3},
}


@pytest.mark.parametrize("factors", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("context", [CONTEXT, b"", b"another"])
def test_none_of_the_numbers_has_a_root_under_a_bad_key(factors, context):
    proof, right = best_proof(factors, context)
    assert right == []
    with raised(PeerError, "key-proof-wrong"):
        ends.check(key_of(factors), context, proof)


def test_a_number_that_happens_to_have_a_root_does_not_save_a_bad_key():
    """One context in 65,537 gives one: this is the first found by trying."""
    factors = {P17: 1, 144117387100291091: 1}
    proof, right = best_proof(factors, b"253725")
    assert right == [1]
    with raised(PeerError, "key-proof-wrong"):
        ends.check(key_of(factors), b"253725", proof)


def test_a_number_that_is_no_unit_counts_for_nothing():
    """0 modulo a prime has the root 0, whatever the key; the number 1 of this context is 0 modulo 65,537."""
    factors = {P17: 1, prime(61): 1}
    public, context = key_of(factors), b"6268"
    number = numbers_of(public, context)[0]
    assert number % P17 == 0
    proof, _ = best_proof(factors, context)
    assert pow(roots_of(proof, public)[0], int(public.n), int(public.n)) == number
    with raised(PeerError, "key-proof-wrong"):
        ends.check(public, context, proof)


@pytest.mark.parametrize("small", [257, 65521])
def test_a_small_factor_is_refused_though_all_roots_are_right(small):
    """Under such keys roots say less: of a factor 257, one number in 257 has one by chance."""
    factors = {small: 1, prime(64): 1}
    proof, right = best_proof(factors, CONTEXT)
    assert right == [*range(1, 9)]
    with raised(PeerError, "paillier-key-invalid"):
        ends.check(key_of(factors), CONTEXT, proof)


@pytest.mark.parametrize("n", [0, 1])
def test_no_number_at_all_is_refused(n):
    with raised(PeerError, "paillier-key-invalid"):
        ends.check(PaillierPublic(n), CONTEXT, b"")


def test_a_bad_key_of_full_size_is_refused_here_alone():
    """p**20 q of 2048 bits is a key to all other checks."""
    factors = {prime(97): 20, prime(128): 1}
    bits = int(key_of(factors).n).bit_length()
    factors = {prime(97): 20, prime(128 + 2048 - bits): 1}
    public = Paillier().read_public(key_of(factors).to_bytes(), 2048)
    proof, right = best_proof(factors, CONTEXT)
    assert right == []
    with raised(PeerError, "key-proof-wrong"):
        ends.check(public, CONTEXT, proof)


# ---- other proofs -----------------------------------------------------------------------------------


def test_a_proof_of_another_context_or_key_is_refused():
    secret, other = good_secret(), good_secret(254)
    proof = ends.prove(secret, CONTEXT)
    for context in (b"", CONTEXT + b" ", b"session, attempt 2, bank"):
        with raised(PeerError, "key-proof-wrong"):
            ends.check(secret.public, context, proof)
    assert secret.public.bytes == other.public.bytes
    with raised(PeerError, "key-proof-wrong"):
        ends.check(secret.public, CONTEXT, ends.prove(other, CONTEXT))


@pytest.mark.parametrize("change", [lambda p: p[:-1], lambda p: p + b"\0", lambda p: b"", lambda p: p[:32]])
def test_a_proof_cut_or_longer_is_refused(change):
    secret = good_secret()
    with raised(PeerError, "key-proof-length"):
        ends.check(secret.public, CONTEXT, change(ends.prove(secret, CONTEXT)))


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("change", ["zero", "n", "plus n", "negative", "plus one", "swapped"])
def test_every_root_counts_and_has_one_form(at, change):
    """n has one bit more than whole bytes, so that a root plus n still fits."""
    secret = good_secret(249)
    public, n = secret.public, int(secret.public.n)
    assert n.bit_length() % 8 == 1
    roots = roots_of(ends.prove(secret, CONTEXT), public)
    root = roots[at]
    changed = {"zero": 0, "n": n, "plus n": root + n, "negative": n - root, "plus one": root + 1}
    roots[at] = changed.get(change, roots[at - 1])
    with raised(PeerError, "key-proof-wrong", naming=[at + 1]):
        ends.check(public, CONTEXT, written(roots, public))
