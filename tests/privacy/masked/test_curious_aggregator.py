"""An aggregator that keeps everything it ever sees, of attempts that were aborted too, and asks for more.

Parties are `MaskedSealer`s; the aggregator here is the test. It asks whatever it likes in any order, takes
every answer that is not a refusal, and then tries to open what it must not: the sum of some of the roster.
"""

import random
from collections import Counter
from itertools import product

import numpy as np
from consortium import names, tag_of
from curious import CELLS, Aggregator, check_only_whole_rosters_open


def schedule(rng, parties, least):
    """What an aggregator may do in four turns of two trees, in some order: mostly the due one."""
    steps, start = [], 0.0
    for turn, tree in enumerate((0, 0, 1, 1)):
        for attempt in range(rng.choice((1, 1, 2, 3))):
            size = len(parties) if rng.random() < 0.8 else rng.randint(least, len(parties))
            roster = tuple(rng.sample(parties, size))
            tag = tag_of(roster, turn, attempt, tree, CELLS, transcript=bytes([turn]))
            lost = rng.sample(roster, rng.choice((0, 0, 1, 2)))
            early = rng.random() < 0.3  # lost before the upload
            for party in parties:
                if not (early and party in lost):
                    steps.append((start + rng.random() * rng.choice((1, 1, 1, 4)), "seal", party, tag, ()))
                if party not in lost:
                    for _ in range(rng.choice((1, 1, 2))):
                        late = start + 1 + rng.random() * rng.choice((1, 1, 3))
                        steps.append((late, "commit", party, tag, ()))
                    steps.append((start + 2 + rng.random(), "recover", party, tag, tuple(lost)))
            start += rng.choice((0.5, 2.0, 3.0))
        start += 3.0
    return sorted(steps, key=lambda step: step[0])


def played(seed, parties, colluding=()):
    """An aggregator after a whole schedule."""
    rng = random.Random(seed)
    aggregator = Aggregator(parties, seed, colluding)
    for _, act, party, tag, lost in schedule(rng, parties, aggregator.group.min_roster):
        if act == "seal":
            aggregator.seal(party, tag)
        elif act == "commit":
            aggregator.commit(party, tag)
        else:
            aggregator.recover(party, tag, lost)
    return aggregator


def test_no_schedule_of_faults_opens_less_than_a_roster():
    seen = Counter()
    for seed in range(60):
        aggregator = played(seed, names(3 + seed % 3))
        opened = check_only_whole_rosters_open(aggregator)
        seen["opened"] += len(opened)
        seen["not opened"] += len(aggregator.uploads) - len(opened)
        seen["recovered"] += sum(
            any((tag, party) not in aggregator.masks for party in tag.roster) for tag in opened
        )
        seen["in part"] += sum(
            any((tag, party) in aggregator.masks for party in tag.roster)
            for tag in aggregator.uploads
            if tag not in opened
        )
        seen.update(aggregator.refused)
    wanted = {"opened": 60, "not opened": 60, "recovered": 10, "in part": 15}
    for what, least in {**wanted, "seal": 60, "commit": 60, "recover": 60}.items():
        assert seen[what] >= least, f"the schedules have too few of: {what} ({dict(seen)})"


def test_a_colluding_party_does_not_open_less_than_the_honest_of_a_roster_either():
    opened = 0
    for seed in range(40):
        parties = names(4 + seed % 2)
        opened += len(check_only_whole_rosters_open(played(seed, parties, parties[seed % 4 : seed % 4 + 1])))
    assert opened >= 40


def test_no_sum_of_uploads_of_different_attempts_opens_anything():
    """Each upload added, subtracted or left out, all attempts of a turn mixed: only whole rosters open."""
    checked = opened = 0
    for seed in range(40):
        aggregator = played(seed, names(3))
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
                (tag,) = {kept[place][0] for place in np.flatnonzero(row)}
                assert tag in whole
                assert abs(int(row.sum())) == np.count_nonzero(row) == len(tag.roster)
                opened += 1
            checked += 1
    assert checked >= 20
    assert opened >= 10
