"""Trees, queries and refusals are the same however many threads share the work on a level, and whether or not
the rounds share their growth settings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedboost.boosting.programs.boosting import grow_tree
from fedboost.boosting.programs.frontier import GrowthSettings
from fedboost.boosting.programs.initialisation import Scales
from fedboost.errors import PeerError
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import threads
from tests.boosting.programs.test_frontier import ROWS, SETTINGS, WITHOUT_VOTES, Rows, grown, terms

SCALES = Scales(Scale(4, 20), Scale(2, 18), UNIT)
ROUNDS = 3


@pytest.fixture(autouse=True)
def even_small_levels_are_shared(monkeypatch):
    monkeypatch.setattr(threads, "SHARED_SUMS", 1)


def trained(changed, seed, small, lie, shared):
    """What is asked, the trees and the unsent splits of each round; last, what was refused."""
    of, out, trees = terms(rounds=ROUNDS, **changed), [], []
    ground = Rows(seed, 1, small).cut_points
    if shared:
        before = threads.SEARCH.set(threads.Threads(3))
        ground = GrowthSettings(of, ground)
        threads.SEARCH.reset(before)
    for number in range(ROUNDS):
        rows = Rows(seed, len(of.roots), small)
        rows.gradient = np.roll(rows.gradient, number)
        try:
            told = lie if number == ROUNDS - 1 else None
            out.append(grown(grow_tree(of, ROWS, number, ground, SCALES, trees), rows, lie=told))
        except PeerError as error:
            out.append(str(error))
    return out


LIES = st.none() | st.tuples(st.integers(1, 4), st.integers(-10, -1), st.sampled_from([1, -1, 1 << 20]))


@settings(deadline=None, max_examples=80, derandomize=True)
@given(SETTINGS, st.booleans(), st.integers(0, 1 << 20), st.booleans(), LIES)
def test_threads_change_nothing(changed, symmetric, seed, small, lie):
    left_out = set()
    if "vote_top_k" in changed:
        left_out = WITHOUT_VOTES
    elif symmetric:
        changed, left_out = {**changed, "grow_policy": "symmetric"}, {"max_leaves", "monotone_constraints"}
    changed = {name: value for name, value in changed.items() if name not in left_out}
    assert trained(changed, seed, small, lie, False) == trained(changed, seed, small, lie, True)
