"""The canary audit: what telling sessions apart proves of epsilon is never more than the terms state; and the
audit finds it out where noise or bounds are broken."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedboost.gbdt.objectives import objective
from fedboost.gbdt.objectives.objective import Bound
from fedboost.privacy import noise
from fedboost.privacy.noise import noise_of
from fedboost.protocol import site

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "quality"))

import canary

RUNS = 160
EPSILON = 8.0


def drawn(epsilon, times_mu, segments=4000):
    """Statistics as if the sessions were so many times as far from each other as is stated."""
    mu = noise.mu_of(epsilon, canary.DELTA) * times_mu
    draw = np.random.default_rng(1)
    return draw.normal(-mu * mu / 2, mu, segments), draw.normal(mu * mu / 2, mu, segments)


@pytest.mark.slow
@pytest.mark.parametrize("placement", [pytest.param("local", marks=pytest.mark.long), "distributed"])
def test_no_more_is_proved_than_is_stated(placement):
    terms = canary.terms_of(EPSILON, placement)
    audits = [canary.audit(terms, RUNS, seed) for seed in range(4)]
    assert all(found.holds for found in audits)
    assert np.mean([found.gaussian for found in audits]) > 0.3 * EPSILON  # the attack is worth something


@pytest.mark.slow
def test_half_the_noise_is_found_out(monkeypatch):
    monkeypatch.setattr(site, "noise_of", lambda key, sigma, count: noise_of(key, sigma // 2, count))
    assert not canary.audit(canary.terms_of(EPSILON), RUNS).holds


@pytest.mark.slow
def test_a_row_beyond_its_bound_is_found_out(monkeypatch):
    monkeypatch.setattr(objective, "bound_of", lambda *_: Bound(8.0, 1.0, 0.5))
    assert not canary.audit(canary.terms_of(EPSILON), RUNS).holds


def test_a_share_that_the_attacker_knows_is_found_out(monkeypatch):
    monkeypatch.setattr(canary, "shares_of", lambda terms: 0)
    assert not canary.audit(canary.terms_of(EPSILON, "distributed"), RUNS).holds


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_the_bounds_stay_below_what_is_true(epsilon):
    found = canary.judge(canary.terms_of(epsilon), *drawn(epsilon, 1.0))
    assert 0.0 < found.gaussian < epsilon
    assert found.epsilon <= epsilon


def test_either_bound_rises_above_what_is_stated_wrongly():
    assert canary.judge(canary.terms_of(1.0), *drawn(1.0, 2.0)).gaussian > 1.0
    assert canary.judge(canary.terms_of(1.0), *drawn(1.0, 8.0)).epsilon > 1.0


def test_statistics_that_say_nothing_prove_nothing():
    found = canary.judge(canary.terms_of(1.0), np.zeros(400), np.zeros(400))
    assert (found.epsilon, found.gaussian) == (0.0, 0.0)


@pytest.mark.slow
def test_the_same_seed_plays_the_same_sessions():
    terms = canary.terms_of(1.0)
    first, again = (canary.audit(terms, 60, 1) for _ in range(2))
    assert first == again
    assert any(canary.audit(terms, 60, seed) != first for seed in range(2, 6))
