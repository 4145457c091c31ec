"""What the sums over several groups of parties tell together, beside all combinations with small factors."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedboost.protocol.contracts import MAX_GROUPS, smallest_revealed_set

PARTIES = "abcdefg"
groups = st.lists(
    st.sets(st.sampled_from(PARTIES), min_size=3).map(frozenset), min_size=1, max_size=MAX_GROUPS
)


def fewest(known):
    """Parties in the combination that is over the fewest, by trying: the minors of three rows of 0 and 1 are
    at most 2, so factors up to that are enough."""
    sizes = []
    for factors in product(range(-2, 3), repeat=len(known)):
        sums = {
            party: sum(factor for factor, group in zip(factors, known, strict=True) if party in group)
            for party in PARTIES
        }
        sizes.append(sum(value != 0 for value in sums.values()))
    return min(size for size in sizes if size)


@given(groups, st.integers(0, 5))
def test_no_combination_is_over_fewer(known, colluding):
    shown = smallest_revealed_set(known, colluding)
    due = fewest(known)
    assert len(shown) == (due if due < colluding + 2 else 0)


@pytest.mark.parametrize(
    ("known", "colluding", "shown"),
    [
        (["abcd", "abc"], 0, "d"),
        (["abcd", "abcx"], 0, ""),
        (["abcd", "abcx"], 1, "dx"),
        (["abcdx", "abc", "adx"], 0, "a"),
        (["abcdefg", "abcd", "aefg"], 0, "a"),
        (["abcd"], 1, ""),
    ],
)
def test_the_parties_are_named(known, colluding, shown):
    assert smallest_revealed_set(map(frozenset, known), colluding) == frozenset(shown)
