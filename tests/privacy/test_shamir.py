"""Shamir's secret sharing: enough shares give the secret back, fewer say nothing."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import pytest
from consortium import drawing
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy import pairwise
from fedboost.privacy.pairwise import PRIME, SHARE_BYTES, combine, draw_number, split


def at(place, points):
    """Reference: Lagrange's polynomial through `points` (point to value) at `place`, first as a fraction."""
    total = Fraction(0)
    for point, value in points.items():
        term = Fraction(value)
        for other in points:
            if other != point:
                term *= Fraction(place - other, point - other)
        total += term
    return total.numerator * pow(total.denominator, -1, PRIME) % PRIME


def shares_of(secret, threshold, points, seed=0):
    return dict(zip(points, split(secret, threshold, points, drawing(seed)), strict=True))


def test_the_prime_is_a_mersenne_prime():
    """Lucas and Lehmer: 2**p - 1 is prime if and only if the series 4, s*s - 2, ... is 0 at its end."""
    term = 4
    for _ in range(521 - 2):
        term = (term * term - 2) % PRIME
    assert PRIME == 2**521 - 1
    assert term == 0


@pytest.mark.parametrize("secret", [0, 1, 2**256 - 1, PRIME - 1])
@pytest.mark.parametrize("threshold", range(1, 6))
def test_any_threshold_shares_or_more_give_the_secret_back(threshold, secret):
    shares = shares_of(secret, threshold, range(1, 6))
    for count in range(threshold, 6):
        for chosen in combinations(shares, count):
            assert combine({point: shares[point] for point in chosen}) == secret


@pytest.mark.parametrize("threshold", range(2, 6))
def test_fewer_shares_do_not(threshold):
    secret = 2**255 + 12345
    shares = shares_of(secret, threshold, range(1, 6))
    for count in range(threshold):
        for chosen in combinations(shares, count):
            assert combine({point: shares[point] for point in chosen}) != secret


@given(st.data())
@settings(max_examples=20)
def test_the_shares_are_the_polynomial_that_was_drawn(data):
    threshold = data.draw(st.integers(1, 8))
    points = data.draw(st.lists(st.integers(1, 200), min_size=threshold, max_size=10, unique=True))
    secret, seed = data.draw(st.integers(0, 2**256 - 1)), data.draw(st.integers(0, 99))
    draw = drawing(seed)
    coefficients = [secret, *(draw_number(draw) for _ in range(threshold - 1))]
    shares = shares_of(secret, threshold, points, seed)
    assert shares == {x: sum(c * x**power for power, c in enumerate(coefficients)) % PRIME for x in points}
    chosen = data.draw(st.permutations(points))[:threshold]
    few = {point: shares[point] for point in chosen}
    assert combine(few) == at(0, few) == secret
    assert all(at(point, few) == share for point, share in shares.items())


def test_one_share_short_every_secret_is_as_possible_as_any_other():
    """Through all shares but one and any secret goes a polynomial: the missing share alone decides."""
    shares = shares_of(777, 4, range(1, 6))
    for known in combinations(shares, 3):
        held = {point: shares[point] for point in known}
        missing = min(set(shares) - set(known))
        for other in (0, 1, 776, 2**256 - 1, PRIME - 1):
            forged = at(missing, {0: other, **held})
            assert combine({**held, missing: forged}) == other


def test_in_a_small_field_fewer_shares_are_distributed_the_same_for_every_secret(monkeypatch):
    """Exhaustively: over all polynomials, what two of three holders see says nothing about the secret."""
    monkeypatch.setattr(pairwise, "PRIME", 7)
    points = (1, 2, 5)
    for seen in ((0, 1), (0, 2), (1, 2)):
        views = []
        for secret in range(7):
            counts = Counter()
            for drawn in product(range(7), repeat=2):
                numbers = iter(drawn)
                monkeypatch.setattr(pairwise, "draw_number", lambda _, numbers=numbers: next(numbers))
                shares = split(secret, 3, points, None)
                assert combine(dict(zip(points, shares, strict=True))) == secret
                counts[tuple(shares[place] for place in seen)] += 1
            views.append(counts)
        assert views == [views[0]] * 7
        assert set(views[0].values()) == {1}


def test_two_splits_of_one_secret_have_nothing_in_common():
    draw = drawing(0)
    one, other = (split(5, 3, range(1, 6), draw) for _ in range(2))
    assert not set(one) & set(other)


def test_a_drawn_number_is_the_high_521_bits_and_below_the_prime():
    draws = iter([b"\xff" * SHARE_BYTES, b"\xff" * (SHARE_BYTES - 1) + b"\x7f"])
    assert draw_number(lambda size: next(draws)) == PRIME - 1, "the prime itself is drawn again"
    assert draw_number(lambda size: b"\x80".ljust(size, b"\0")) == 1 << 520
    assert draw_number(bytes) == 0
    assert SHARE_BYTES == -(-521 // 8)


def test_drawn_numbers_fill_the_field_evenly():
    draw = drawing("even")
    eighths = Counter(draw_number(draw) * 8 // PRIME for _ in range(4000))
    assert set(eighths) == set(range(8))
    assert sum((count - 500) ** 2 / 500 for count in eighths.values()) < 24.3, "chi-square, 7 degrees, 0.1 %"


@pytest.mark.parametrize("secret", [-1, PRIME, PRIME + 5])
def test_a_secret_outside_the_field_is_refused(secret):
    with raised(PeerError, "share-threshold"):
        split(secret, 2, (1, 2, 3), drawing(0))


@pytest.mark.parametrize("threshold", [-1, 0, 4])
def test_a_threshold_that_the_points_cannot_meet_is_refused(threshold):
    with raised(PeerError, "share-threshold", naming=[threshold]):
        split(1, threshold, (1, 2, 3), drawing(0))


@pytest.mark.parametrize("points", [(0, 1), (1, 1), (1, -1), (1, PRIME), (1, PRIME + 1)])
def test_points_that_would_give_the_secret_away_or_coincide_are_refused(points):
    with raised(PeerError, "share-points-invalid"):
        split(1, 2, points, drawing(0))


@pytest.mark.parametrize(
    ("point", "share"), [(0, 1), (PRIME, 1), (-1, 1), (2, -1), (2, PRIME), (2, 1 << 528)]
)
def test_a_share_outside_the_field_is_refused(point, share):
    with raised(PeerError, "share-invalid"):
        combine({1: 5, point: share})
