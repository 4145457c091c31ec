"""Sums opened by the label holder: what it was sent tells it nothing, and it can open it in one way only.

Each attack stands here twice: against blinds or checks without the rule, where it succeeds, and with it.
"""

import math
import os
import random
import subprocess
import sys

import gmpy2
import pytest
from consortium import drawing
from gmpy2 import mpz
from paillier_keys import best_root, encrypted, good_secret, key_of, prime, secret_of
from raised import raised

from fedboost.errors import PeerError, SessionFailed
from fedboost.privacy.packing import Chunk
from fedboost.privacy.paillier import PaillierPublic, PaillierSecret, Powers
from fedboost.privacy.rowsums import ends as key_proof
from fedboost.privacy.rowsums.ends import ROUNDS, blind, open_blinded, unblind

SECRET = good_secret(256)
PUBLIC = SECRET.public
BANK = "bank"


def ciphertexts(plain, public=PUBLIC, seed=0):
    draw = random.Random(seed)
    return [encrypted(public, m, draw.randrange(1, int(public.n))) for m in plain]


def asked(count, secret=SECRET, seed=0):
    """The plaintexts, the request for them, what the aggregator keeps, and the honest answer."""
    plain = [mpz(1000 * at + 7) for at in range(count)]
    request, kept = blind(secret.public, ciphertexts(plain, secret.public, seed), drawing(f"blinds {seed}"))
    return plain, request, kept, open_blinded(secret, request, count)


def numbers_of(data, public=PUBLIC):
    size = public.bytes
    return [mpz.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def written(numbers, public=PUBLIC):
    return b"".join(int(number).to_bytes(public.bytes, "little") for number in numbers)


# ---- honest parties ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, ROUNDS, ROUNDS + 1, 40])
def test_what_was_encrypted_comes_back(count):
    plain, request, kept, answer = asked(count)
    assert len(request) == len(answer) == count * 2 * PUBLIC.bytes
    assert unblind(PUBLIC, answer, kept, BANK, os.urandom) == plain


def test_all_plaintexts_come_back():
    n = PUBLIC.n
    plain = [mpz(0), mpz(1), n // 2, n - 1]
    request, kept = blind(PUBLIC, ciphertexts(plain), os.urandom)
    assert unblind(PUBLIC, open_blinded(SECRET, request, 4), kept, BANK, os.urandom) == plain


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2048, 3072])
def test_at_the_size_of_a_session(bits):
    secret = good_secret(bits)
    plain, _, kept, answer = asked(ROUNDS + 1, secret)
    assert unblind(secret.public, answer, kept, BANK, os.urandom) == plain


def test_neither_what_is_kept_nor_a_blind_prints():
    _, _, kept, _ = asked(3)
    assert repr(kept) == "Blinded(3 numbers)"
    assert f"{kept}" == "Blinded(3 numbers)"


def test_importing_fedboost_imports_no_paillier():
    code = "import fedboost.privacy.rowsums, sys; sys.exit(not {'gmpy2', 'phe'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- rule 1: a blinded number is uniform, whatever it was -------------------------------------------


def every_blind(n, number):
    """How often each number comes out, over all blinds under a key small enough to try them."""
    public, seen = PaillierPublic(n), []
    for added in range(n):
        for rho in range(n):
            if math.gcd(rho, n) == 1:
                script = iter([added, rho])
                _, kept = blind(
                    public, [mpz(number)], lambda size, s=script: next(s).to_bytes(size, "little")
                )
                seen.append(int(kept.ciphertexts[0]))
    return seen


def units(square):
    return [x for x in range(1, square) if math.gcd(x, square) == 1]


@pytest.mark.parametrize("n", [15, 35, 51])
def test_all_blinds_make_each_unit_once_from_any_number(n):
    """The theorem, by trying all: gcd(n, phi(n)) = 1."""
    due = units(n * n)
    for number in due[:: len(due) // 7]:
        assert sorted(every_blind(n, number)) == due


@pytest.mark.parametrize("n", [9, 21])
def test_without_the_key_proof_blinds_leave_a_part_as_it_was(n):
    """gcd(n, phi(n)) = 3: the units fall into classes that no blind leaves."""
    due = units(n * n)
    classes = {frozenset(every_blind(n, number)) for number in due}
    assert len(classes) == 3
    assert sum(map(len, classes)) == len(due)


def test_a_draw_that_has_a_factor_of_n_is_drawn_again():
    script = iter([5, 3, 0, 10, 2])
    _, kept = blind(PaillierPublic(15), [mpz(1)], lambda size: next(script).to_bytes(size, "little"))
    assert kept.added == [5]
    assert kept.ciphertexts == [(1 + 15 * 5) * 2**15 % 225]


def test_no_blind_is_used_twice():
    ones = [mpz(1)] * 50
    _, kept = blind(PUBLIC, ones, os.urandom)
    _, again = blind(PUBLIC, ones, os.urandom)
    assert len({*kept.ciphertexts, *again.ciphertexts}) == 100
    assert (
        len({number % PUBLIC.n for number in kept.ciphertexts}) == 50
    )  # the part of rho, which is alone here


# ---- attack A, channel 1: what powers of one base never change --------------------------------------


def by_powers(public):
    """The blind of sums in `privacy.paillier`: a number below n, and a power of -x**2."""
    powers, draw = Powers(public.n), drawing("added")

    def blinded(number):
        m = int.from_bytes(draw(public.bytes), "little")
        return number * (1 + public.n * m) * powers.next() % public.square

    return blinded


def by_units(public):
    """The blind of this file."""
    draw = drawing("units")
    return lambda number: blind(public, [number], draw)[1].ciphertexts[0]


def likely(trials):
    """Least and most heads that a fair coin shows in all but a millionth of series."""
    tail, heads = 0, -1
    while 2_000_000 * tail <= 2**trials:
        heads += 1
        tail += math.comb(trials, heads)
    return heads, trials - heads


def jacobi_guesses(blinded, openings):
    """How often the label holder rightly tells whether its marked row is in a sum.

    It drew the r of the marked row with Jacobi symbol -1, all others with 1. The feature holder multiplies
    the rows of a bin, and a fresh power.
    """
    draw, fresh, right = random.Random("rows"), Powers(PUBLIC.n), 0
    drawn = (r for r in iter(lambda: draw.randrange(2, int(PUBLIC.n)), 0))
    others = [encrypted(PUBLIC, 5, r) for r in with_symbol(drawn, 1, 10)]
    marked = encrypted(PUBLIC, 5, with_symbol(drawn, -1, 1)[0])
    for _ in range(openings):
        inside = draw.random() < 0.5
        number = mpz(1)
        for row in draw.sample(others, 4) + [marked] * inside:
            number = number * row % PUBLIC.square
        seen = blinded(number * fresh.next() % PUBLIC.square)
        right += (gmpy2.jacobi(seen, PUBLIC.n) == -1) == inside
    return right


def with_symbol(numbers, symbol, count):
    return [next(r for r in numbers if gmpy2.jacobi(r, PUBLIC.n) == symbol) for _ in range(count)]


def test_powers_of_one_base_show_a_marked_row_at_every_opening():
    assert jacobi_guesses(by_powers(PUBLIC), 1000) == 1000


def test_uniform_units_show_a_marked_row_by_chance_alone():
    low, high = likely(1000)
    assert 400 < low < high < 600
    assert low <= jacobi_guesses(by_units(PUBLIC), 1000) <= high


MANY = [prime(20, nth, 1) for nth in range(1, 13)]
MANY_PUBLIC = key_of(dict.fromkeys(MANY, 1))


def quadratic_guesses(blinded, openings):
    """The same for one marked row a prime factor, each a non-residue modulo that prime alone: all at once."""
    draw, fresh, right = random.Random("rows"), Powers(MANY_PUBLIC.n), 0
    marked = []
    for own in MANY:
        r, modulus = mpz(0), mpz(1)
        for p in MANY:
            here = next(x for x in range(2, 1000) if gmpy2.legendre(x, p) == (-1 if p == own else 1))
            r += (here - r) * gmpy2.invert(modulus, p) % p * modulus
            modulus *= p
        marked.append(encrypted(MANY_PUBLIC, 5, r))
    for _ in range(openings):
        inside = [draw.random() < 0.5 for _ in MANY]
        number = mpz(1)
        for row, taken in zip(marked, inside, strict=True):
            number = number * (row if taken else 1) % MANY_PUBLIC.square
        seen = blinded(number * fresh.next() % MANY_PUBLIC.square)
        right += sum((gmpy2.legendre(seen, p) == -1) == taken for p, taken in zip(MANY, inside, strict=True))
    return right


def test_under_a_key_of_many_primes_powers_show_which_of_many_rows_are_in_a_bin():
    """The key passes its proof (see test_key_proof): the blind alone stands against it."""
    assert quadratic_guesses(by_powers(MANY_PUBLIC), 100) == 1200


def test_under_a_key_of_many_primes_uniform_units_show_none():
    low, high = likely(1200)
    assert low <= quadratic_guesses(by_units(MANY_PUBLIC), 100) <= high


# ---- attack A, channel 2: keys that carry a second message ------------------------------------------

BINS, BIN_BITS = 23, 16
POWER = 20
P, Q = prime(21), prime(40)
TWISTED = {P: POWER, Q: 1}
TWISTED_PUBLIC = key_of(TWISTED)


def logarithm(number):
    """log(number) modulo P**POWER, of a number that is 1 modulo P."""
    modulus, total, power = P**POWER, mpz(0), mpz(1)
    for k in range(1, POWER + 1):
        power = power * (number - 1) % modulus
        total += (-1) ** (k + 1) * power * gmpy2.invert(k, modulus)
    return total % modulus


def second_message(ciphertext):
    """What a ciphertext under the twisted key carries in powers of 1 + P, modulo P**(POWER - 1)."""
    modulus, order = P**POWER, P ** (POWER - 1)
    carried = logarithm(gmpy2.powmod(ciphertext % modulus, P - 1, modulus)) // P
    return carried * gmpy2.invert((P - 1) * (logarithm(1 + P) // P), order) % order


def test_a_twisted_key_shows_all_sums_of_a_column_through_the_blind():
    """One ciphertext holds the sums of 23 bins, as the feature holder packs them. It is blinded by uniform
    units, and still the label holder reads its marks of all bins: no blind helps under such a key."""
    draw, public = random.Random("twisted"), TWISTED_PUBLIC
    bins = [draw.randrange(BINS) for _ in range(200)]
    marks = [draw.randrange(2) for _ in bins]
    packed = mpz(1)
    for at, mark in zip(bins, marks, strict=True):
        row = encrypted(public, draw.randrange(100), draw.randrange(2, 1 << 300))
        row = row * gmpy2.powmod(1 + P, mark, public.square)
        packed = packed * gmpy2.powmod(row, 1 << (BIN_BITS * at), public.square) % public.square
    request, _ = blind(public, [packed * Powers(public.n).next() % public.square], os.urandom)
    carried = second_message(public.read(request, 1)[0])
    sums = [int(carried >> (BIN_BITS * at)) & 0xFFFF for at in range(BINS)]
    assert sums == [sum(m for b, m in zip(bins, marks, strict=True) if b == at) for at in range(BINS)]
    assert sum(sums) > 50


def test_a_twisted_key_is_refused_before_anything_is_encrypted_under_it():
    numbers = key_proof._hashed(TWISTED_PUBLIC, b"session")
    roots = [best_root(TWISTED, number) for number in numbers]
    assert not any(right for _, right in roots)
    with raised(PeerError, "key-proof-wrong"):
        key_proof.check(TWISTED_PUBLIC, b"session", written([root for root, _ in roots], TWISTED_PUBLIC))


# ---- attack B: the label holder opens something else ------------------------------------------------


@pytest.mark.parametrize("count", [5, 30])
@pytest.mark.parametrize("place", [0, 2, -1])
@pytest.mark.parametrize("amount", [1, -1, 1 << 40])
def test_a_changed_opening_is_refused_with_name_and_number(count, place, amount):
    _, _, kept, answer = asked(count)
    numbers = numbers_of(answer)
    place %= count
    numbers[place] = (numbers[place] + amount) % PUBLIC.n
    with raised(PeerError, "opening-wrong", naming=[place + 1, count]):
        unblind(PUBLIC, written(numbers), kept, BANK, drawing("exponents"))


def test_the_first_of_many_changed_openings_is_named():
    """The totals stay as they were: what one cell gets, another loses."""
    _, _, kept, answer = asked(30)
    numbers = numbers_of(answer)
    for place, amount in ((11, 5), (12, -5), (20, 7), (29, -7)):
        numbers[place] = (numbers[place] + amount) % PUBLIC.n
    with raised(PeerError, "opening-wrong"):
        unblind(PUBLIC, written(numbers), kept, BANK, drawing("exponents"))


def test_without_roots_a_changed_opening_is_taken():
    """The blind of sums in `privacy.paillier`, by the same lie: the cells that were to win."""
    secret = good_secret(512)
    public, n = secret.public, secret.public.n
    cipher = public.cipher(Chunk(0, [(2, 40)]), 3)
    request, kept = cipher.blind(ciphertexts([3 + (4 << 48)], public), drawing("blind"))
    public.close()
    lie = (int.from_bytes(secret.decrypt(cipher.read(request)), "little") + 100) % n
    honest = cipher.unblind(secret.decrypt(cipher.read(request)), kept)
    assert (cipher.unblind(written([lie], public), kept) - honest).tolist() == [100, 0]


def test_a_lie_with_any_other_root_is_refused():
    """The true root, its negative and inverse, and roots that have nothing to do with it."""
    _, _, kept, answer = asked(1)
    m, r = numbers_of(answer)
    n = PUBLIC.n
    for other in (r, n - r, r * r % n, gmpy2.invert(r, n), r * (1 + 100 * n) % n, mpz(1), n - 1):
        with raised(PeerError, "opening-wrong"):
            unblind(PUBLIC, written([(m + 100) % n, other]), kept, BANK, os.urandom)


SMALL_FACTOR = secret_of(prime(17), prime(240))


def lie_of_small_order(count, place):
    """Openings that are right modulo all factors but 65,537: an exponent that it divides hides the lie."""
    _, _, kept, answer = asked(count, SMALL_FACTOR)
    public = SMALL_FACTOR.public
    numbers = numbers_of(answer, public)
    numbers[place] = (numbers[place] + public.n // 65537) % public.n
    return public, kept, written(numbers, public)


def scripted(count, place, shown):
    """Exponents that are 0 at the place of the lie, but for one round."""
    rounds = iter(range(ROUNDS))

    def draw(size):
        exponents = [b"\x12\x34"] * count
        exponents[place] = b"\0\x01" if next(rounds) == shown else b"\0\0"
        assert size == 2 * count
        return b"".join(exponents)

    return draw


@pytest.mark.parametrize("shown", range(ROUNDS))
def test_each_round_counts_against_a_lie_that_others_miss(shown):
    """A key with a factor of 17 bits passes its proof: one round finds this lie with 1 - 2**-16."""
    public, kept, answer = lie_of_small_order(12, 4)
    with raised(PeerError, "opening-wrong"):
        unblind(public, answer, kept, BANK, scripted(12, 4, shown))


def test_rounds_are_what_finds_a_lie_of_small_order():
    """Whoever knows all exponents beforehand passes: they are drawn when the answer is there."""
    public, kept, answer = lie_of_small_order(12, 4)
    assert unblind(public, answer, kept, BANK, scripted(12, 4, None))[4] == 4007 + public.n // 65537


def test_a_root_of_wrong_sign_changes_no_plaintext():
    """Even exponents do not see it, in one of 256 answers; what is taken then is right."""
    plain, _, kept, answer = asked(12)
    numbers = numbers_of(answer)
    numbers[12 + 3] = PUBLIC.n - numbers[12 + 3]
    assert unblind(PUBLIC, written(numbers), kept, BANK, lambda size: b"\x12\x34" * (size // 2)) == plain
    with raised(PeerError, "opening-wrong"):
        unblind(PUBLIC, written(numbers), kept, BANK, lambda size: b"\x12\x35" * (size // 2))


def test_without_the_key_proof_one_ciphertext_has_two_openings():
    """n = p**2 q: (1 + (n / p) k)**n = 1 + n (n / p) k, so the root takes up a change of the plaintext."""
    p, q = prime(60), prime(70)
    factors = {p: 2, q: 1}
    public = key_of(factors)
    step = public.n // p
    _, kept = blind(public, [encrypted(public, 42, 17)], drawing("two openings"))
    root, right = best_root(factors, kept.ciphertexts[0] % public.n)
    assert right
    part = kept.ciphertexts[0] * gmpy2.powmod(root, -public.n, public.square) % public.square
    assert part % public.n == 1
    m = part // public.n
    two = [
        unblind(
            public,
            written([(m - k * step) % public.n, root * (1 + k * step) % public.n], public),
            kept,
            BANK,
            os.urandom,
        )[0]
        for k in (0, 5)
    ]
    assert (two[0] - two[1]) % public.n == 5 * step
    roots = [best_root(factors, number)[0] for number in key_proof._hashed(public, b"")]
    with pytest.raises(PeerError):
        key_proof.check(public, b"", written(roots, public))


# ---- what is no request, and what is no answer ------------------------------------------------------


@pytest.mark.parametrize("number", [0, PUBLIC.square, PUBLIC.square + 1])
def test_a_request_out_of_range_is_refused(number):
    request = int(number).to_bytes(2 * PUBLIC.bytes, "little")
    with raised(PeerError, "ciphertext-out-of-range"):
        open_blinded(SECRET, request, 1)


def test_a_request_of_no_unit_is_refused():
    for number in (prime(128, 1, 3), PUBLIC.n, PUBLIC.n * 5):
        with raised(PeerError, "ciphertext-not-unit"):
            open_blinded(SECRET, PUBLIC.written([mpz(1), number]), 2)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_request_of_another_length_is_refused(count):
    _, request, _, _ = asked(3)
    with raised(PeerError, "numbers-length"):
        open_blinded(SECRET, request, count)


@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: a + b"\0", lambda a: b""])
def test_an_answer_of_another_length_is_refused(change):
    _, _, kept, answer = asked(3)
    with raised(PeerError, "openings-length"):
        unblind(PUBLIC, change(answer), kept, BANK, os.urandom)


@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("part", ["m", "r"])
@pytest.mark.parametrize("change", [lambda x, n: x + n, lambda x, n: n, lambda x, n: 2 * n - 1])
def test_a_number_that_is_out_of_range_is_refused(count, part, change):
    """n has a bit more than whole bytes, so that numbers beyond it fit; the first change is none modulo n."""
    secret = good_secret(257)
    public = secret.public
    _, _, kept, answer = asked(count, secret)
    numbers = numbers_of(answer, public)
    place = 1 if part == "m" else count + 1
    numbers[place] = change(numbers[place], public.n)
    with raised(PeerError, "opening-wrong", naming=[count]):
        unblind(public, written(numbers, public), kept, BANK, os.urandom)


@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("root", [mpz(0), prime(128, 1, 3)])
def test_a_root_that_is_no_unit_is_refused(count, root):
    _, _, kept, answer = asked(count)
    numbers = numbers_of(answer)
    numbers[count + 1] = root
    with raised(PeerError, "opening-wrong", naming=[count]):
        unblind(PUBLIC, written(numbers), kept, BANK, os.urandom)


# ---- a machine that computes wrongly ----------------------------------------------------------------


class Faulty(PaillierSecret):
    """Computes one number wrongly modulo q alone, which shows p to whoever sees it."""

    def roots(self, numbers):
        return [(root + prime(128, 1, 3)) % self.public.n for root in super().roots(numbers)]


class FaultyPlaintexts(PaillierSecret):
    def decrypt(self, numbers):
        wrong = [(m + prime(128, 1, 3)) % self.public.n for m in numbers_of(super().decrypt(numbers))]
        return written(wrong)


@pytest.mark.parametrize("kind", [Faulty, FaultyPlaintexts])
def test_a_wrong_computation_is_not_shown(kind):
    """A root right modulo p alone gives p: gcd(r**n - c, n)."""
    _, request, _, answer = asked(1)
    faulty = kind(SECRET._key)
    c = PUBLIC.read(request, 1)[0]
    if kind is Faulty:
        shown = faulty.roots([c % PUBLIC.n])[0]
        assert gmpy2.gcd(gmpy2.powmod(shown, PUBLIC.n, PUBLIC.n) - c, PUBLIC.n) == prime(128, 1, 3)
    with raised(SessionFailed, "decrypted-wrongly"):
        open_blinded(faulty, request, 1)
    assert open_blinded(SECRET, request, 1) == answer
