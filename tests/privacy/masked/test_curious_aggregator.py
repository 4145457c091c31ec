"""An aggregator that keeps everything it ever sees, of attempts that were aborted too, and asks for more.

Parties are sealers of one leg or of two; the aggregator here is the test. It asks whatever it likes in any
order, takes every answer that is not a refusal, and then tries to open what it must not: the sum of some of
the roster. `benchmarks/robustness/curious.py` plays more seeds.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from consortium import names
from curious import WithAdders, check_only_whole_rosters_open, played


@pytest.mark.parametrize("legs", [1, 2])
def test_no_schedule_of_faults_opens_less_than_a_roster(legs):
    seen = Counter()
    for seed in range(30):
        aggregator = played(seed, names(3 + seed % 3), legs=legs)
        opened = check_only_whole_rosters_open(aggregator)
        seen["opened"] += len(opened)
        seen["not opened"] += len(aggregator.uploads) - len(opened)
        turns = Counter(tag.turn for tag in opened)
        seen["opened twice"] += sum(count > 1 for count in turns.values())
        if legs == 2:
            seen["recovered"] += sum(
                any((tag, party) not in aggregator.masks for party in tag.roster) for tag in opened
            )
            seen["in part"] += sum(
                any((tag, party) in aggregator.masks for party in tag.roster)
                for tag in aggregator.uploads
                if tag not in opened
            )
        seen.update(aggregator.refused)
    wanted = {"opened": 30, "not opened": 30, "seal": 30}
    wanted |= (
        {"opened twice": 5} if legs == 1 else {"recovered": 5, "in part": 7, "commit": 30, "recover": 30}
    )
    for what, least in wanted.items():
        assert seen[what] >= least, f"the schedules have too few of: {what} ({dict(seen)})"


@pytest.mark.parametrize("legs", [1, 2])
def test_a_colluding_party_does_not_open_less_than_the_honest_of_a_roster_either(legs):
    opened = 0
    for seed in range(16):
        parties = names(4 + seed % 2)
        colluding = parties[seed % 4 : seed % 4 + 1]
        opened += len(check_only_whole_rosters_open(played(seed, parties, colluding, legs)))
    assert opened >= 16


def test_in_one_leg_as_many_as_leave_two_may_collude():
    opened = 0
    for seed in range(16):
        parties = names(4 + seed % 3)
        opened += len(check_only_whole_rosters_open(played(seed, parties, parties[2:], legs=1)))
    assert opened >= 16


def test_an_aggregator_with_adders_opens_nothing_more():
    """What adders see passes the aggregator of the model, too, and sums of regions follow from it."""
    opened = 0
    for seed in range(12):
        parties = names(4 + seed % 2)
        colluding = parties[: seed // 3 % 3]
        alone = played(seed, parties, colluding, legs=1)
        together = played(seed, parties, colluding, 1, WithAdders)
        together.adds_nothing()
        assert check_only_whole_rosters_open(together) == check_only_whole_rosters_open(alone)
        opened += len(together.opened())
    assert opened >= 12


@pytest.mark.parametrize("legs", [1, 2])
def test_no_sum_of_uploads_of_different_attempts_opens_anything(legs):
    """Each upload added, subtracted or left out, all attempts of a turn mixed: only whole rosters open."""
    checked = opened = 0
    for seed in range(16):
        aggregator = played(seed, names(3), legs=legs)
        for turn in range(4):
            tags = [tag for tag in aggregator.uploads if tag.turn == turn]
            kept = [(tag, party) for tag in tags for party in aggregator.uploads[tag]][:8]
            if len({tag for tag, _ in kept}) < 2:
                continue
            signs = np.array(list(product((0, 1, -1), repeat=len(kept)))).astype(np.uint64)
            bare = np.array([aggregator.bare(*upload) for upload in kept])
            truth = np.array([aggregator.truth[turn][party].astype(np.uint64) for _, party in kept])
            matching = signs[(signs @ bare == signs @ truth).all(axis=1)].astype(np.int64)
            whole = {tag for tag in aggregator.opened() if tag.turn == turn}
            for row in matching[matching.any(axis=1)]:
                for tag in {kept[place][0] for place in np.flatnonzero(row)}:
                    factors = [row[place] for place, upload in enumerate(kept) if upload[0] == tag]
                    assert tag in whole
                    assert len(set(factors)) == 1
                    assert len(factors) == len(tag.roster)
                opened += 1
            checked += 1
    assert checked >= 8
    assert opened >= 4
