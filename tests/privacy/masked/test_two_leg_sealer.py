"""Protection `masked` in two legs: what a party does not seal.

Each rule of `TwoLegSealer` has a test of its name here or in test_help.py. That sums come out right is in
test_contract.py; what the aggregator can make of all it sees is in test_curious_aggregator.py.
"""

from dataclasses import replace
from itertools import combinations, product

import pytest
from consortium import help_open, masked_opener, masked_sealers, names, upload, vectors
from masked_turn import GROUP, ME, OTHER, PARTIES, TAG, Turn, X
from raised import raised

from fedboost.errors import PeerError
from fedboost.privacy.pairwise import Group

# ---- the group --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parties", "threshold"), [(3, 2), (4, 3), (5, 4), (6, 4), (10, 6), (100, 51)])
def test_the_threshold_of_the_design(parties, threshold):
    assert Group.of(names(parties)).threshold == threshold


def test_the_order_in_which_the_terms_name_the_parties_does_not_matter():
    assert Group.of(PARTIES) == Group.of(PARTIES[::-1])
    assert [GROUP.point(party) for party in PARTIES] == [1, 2, 3, 4, 5]


def both_open(threshold, colluding, rosters, answers):
    """Whether each roster gets its answers: an honest party answers for one of them, a colluder for both."""
    return all(
        sum(party in colluding or answers[party] == number for party in roster) >= threshold
        for number, roster in enumerate(rosters)
    )


@pytest.mark.parametrize("parties", range(3, 7))
@pytest.mark.parametrize("short", [0, 1])
def test_no_two_rosters_of_one_turn_can_both_be_opened(parties, short):
    """Exhaustively, over who colludes, all pairs of rosters, and every split of the honest answers.

    With a threshold smaller by one some pair of rosters can: the threshold is no larger than it must be.
    """
    members, group = names(parties), Group.of(names(parties))
    least = group.threshold - short
    rosters = [set(r) for size in range(least, parties + 1) for r in combinations(members, size)]
    found = 0
    for colluding in combinations(members, group.colluding):
        honest = [party for party in members if party not in colluding]
        for pair in combinations(rosters, 2):
            for split in product((0, 1), repeat=len(honest)):
                found += both_open(least, colluding, pair, dict(zip(honest, split, strict=True)))
    assert bool(found) == bool(short)


@pytest.mark.parametrize("parties", [3, 5, 7])
@pytest.mark.parametrize("colluding", range(4))
def test_colluding_parties_alone_never_reach_the_threshold(parties, colluding):
    group = Group.of(names(parties), colluding)
    assert group.threshold >= colluding + 2, "at least two honest parties are in every sum"
    assert 2 * group.threshold - colluding > parties


# ---- what a party does not seal ---------------------------------------------------------------------


def test_an_upload_after_this_turns_commit_is_refused(turn):
    turn.commit()
    with raised(PeerError, "turn-committed"):
        turn.sealers[ME].seal(X, replace(TAG, attempt=2))
    turn.sealers[ME].seal(X, replace(TAG, turn=4, attempt=0))


@pytest.mark.parametrize("newer", [replace(TAG, turn=4), replace(TAG, attempt=2)])
def test_another_roster_under_the_same_keys_is_refused(sealers, newer):
    Turn(sealers)
    for roster in combinations(PARTIES, 4):
        if ME in roster:
            with raised(PeerError, "roster-changed"):
                sealers[ME].seal(X, replace(newer, roster=roster))
    sealers[ME].seal(X, newer)


def test_a_larger_roster_under_the_same_keys_is_refused(sealers):
    few = PARTIES[:4]
    Turn(sealers, replace(TAG, roster=few))
    with raised(PeerError, "roster-changed"):
        sealers[ME].seal(X, replace(TAG, turn=4))


def test_the_roster_may_be_another_one_with_the_keys_of_another_attempt(sealers):
    Turn(sealers)
    tag = replace(TAG, turn=4, attempt=2, roster=PARTIES[:4])
    of, due = vectors(PARTIES[:4], 3, 8)
    opener, again = masked_opener(tag, PARTIES), masked_sealers(PARTIES, seed=2)
    upload(opener, again, of, tag)
    assert help_open(opener, again).tolist() == due.tolist()


def test_a_roster_with_a_stranger_is_refused(sealers):
    for roster in ((*PARTIES, "p99"), (*PARTIES[:4], "p99"), (ME, "p97", "p98", "p99")):
        with raised(PeerError, "roster-invalid"):
            sealers[ME].seal(X, replace(TAG, roster=roster))


def test_a_roster_without_this_party_is_refused(sealers):
    with raised(PeerError, "roster-invalid"):
        sealers[ME].seal(X, replace(TAG, roster=PARTIES[1:]))


@pytest.mark.parametrize("roster", [(), (ME,), PARTIES[:3]])
def test_a_roster_smaller_than_the_threshold_is_refused(sealers, roster):
    with raised(PeerError, "roster-invalid", "roster-too-small"):
        sealers[ME].seal(X, replace(TAG, roster=roster))
    sealers[ME].seal(X, replace(TAG, roster=PARTIES[:4]))


def test_of_three_parties_no_two_make_a_roster():
    """Two would open, yet each could subtract itself; who runs the aggregator may well be one of them."""
    three, two = names(3), names(2)
    for roster in combinations(three, 2):
        with raised(PeerError, "roster-too-small"):
            masked_sealers(three)[roster[0]].seal(X, replace(TAG, roster=roster))
    masked_sealers(two)[ME].seal(X, replace(TAG, roster=two))  # terms that name two have allowed it


@pytest.mark.parametrize("roster", [(ME, *PARTIES), (ME, ME, ME, ME), (*PARTIES[:3], OTHER)])
def test_a_roster_that_names_a_party_twice_is_refused(sealers, roster):
    with raised(PeerError, "roster-repeats-party"):
        sealers[ME].seal(X, replace(TAG, roster=roster))


def test_what_was_refused_leaves_the_party_as_it_was(turn):
    bad = [
        replace(TAG, turn=2),
        replace(TAG, turn=4, roster=PARTIES[:4]),
        replace(TAG, turn=4, roster=PARTIES[:2]),
    ]
    before = dict(vars(turn.sealers[ME]))
    for tag in bad:
        with pytest.raises(PeerError):
            turn.sealers[ME].seal(X, tag)
    assert vars(turn.sealers[ME]) == before
    assert len(turn.commit()) == 32
