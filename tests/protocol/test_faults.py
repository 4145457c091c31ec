"""Seeds of the simulator of faults (tests/helpers/faults.py): more than 600 here; a script in
benchmarks/robustness plays more."""

import collections

import pytest
from faults import CONTINUED, NOISY, REFRESHED, play
from faults_adders import LIES, AddersWorld, play_liars

COUNTED = 70
"""Seeds of each kind of which it is counted what goes wrong, and how they end."""
SEEDS = range(COUNTED, 500)
BATCHES, FEW = 7, 3
"""Batches of the seeds, and how many of them are not long."""
ONCE_FAILED = [25, 141, 344, 1309, 3521, 8413]
"""A party that was back before the next question without having met the others; help that was given twice; a
roster that grew within a tree; a party that had missed the turns before a restart; a tree that was asked for
again after the roster had changed at its end; a party that knew the end alone of a tree that was asked for
again."""


RARE = {0: 26, REFRESHED: 123, NOISY: 69}
"""Of these many seeds the first in which messages are swapped."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch", [*range(FEW), *(pytest.param(batch, marks=pytest.mark.long) for batch in range(FEW, BATCHES))]
)
def test_seeds(batch):
    outcomes = [play(seed) for seed in SEEDS[batch::BATCHES]]
    assert sum(outcome.model is not None for outcome in outcomes) > len(outcomes) // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*ONCE_FAILED, *range(CONTINUED, CONTINUED + 25)])
def test_a_seed(seed):
    play(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, REFRESHED, NOISY])
def test_the_seeds_have_every_fault_and_every_end(first):
    outcomes = [play(seed) for seed in {*range(first, first + COUNTED), first + RARE[first]}]
    faults = sum((outcome.faults for outcome in outcomes), collections.Counter())
    assert {"drop", "twice", "swap", "back", "restart", "blackout", "crash", "tick"} <= set(faults)
    assert {outcome.terms.hiding.protection for outcome in outcomes} == {"plain", "masked"}
    assert {outcome.model is None for outcome in outcomes} == {True, False}
    changed = any(outcome.model and len(set(outcome.rosters)) > 1 for outcome in outcomes)
    assert changed == (first == 0)  # a roster cannot shrink where leaves are refreshed, or sums get noise


# ---- with adders between some parties and the aggregator --------------------------------------------------

CHECKED = [15, 35, 52]
"""Seeds that once failed: the terms were checked at one party of an adder during a session."""


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, pytest.param(100, marks=pytest.mark.long), REFRESHED, CONTINUED, NOISY])
def test_seeds_with_adders(first):
    count = {0: 30, 100: 100}.get(first, 15)
    seeds = sorted({*range(first, first + count), *(CHECKED if not first else ())})
    outcomes = [play(seed, AddersWorld) for seed in seeds]
    assert sum(outcome.model is not None for outcome in outcomes) > len(outcomes) // 2
    faults = sum((outcome.faults for outcome in outcomes), collections.Counter())
    assert {"kill", "cut_off", "drop", "twice", "crash"} <= set(faults)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [45, pytest.param(150, marks=pytest.mark.long)])
def test_seeds_with_adders_that_lie(seeds):
    """Under masks, no sum opens that is not exact; every session ends, with a model or with a sentence."""
    outcomes = [play_liars(seed) for seed in range(seeds)]
    told = sum((outcome.faults for outcome in outcomes), collections.Counter())
    assert {*LIES, "was cut off"} <= set(told)
    masked = [outcome for outcome in outcomes if outcome.terms.hiding.protection == "masked"]
    assert {outcome.model is None for outcome in masked} == {True, False}
    assert any("did not cancel" in (outcome.error or "") for outcome in masked)
