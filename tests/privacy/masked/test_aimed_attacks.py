"""Attacks of an aggregator that keeps everything it ever sees, aimed at one rule each."""

from dataclasses import replace
from itertools import combinations, permutations, product

import pytest
from consortium import names, tag_of
from curious import CELLS, Aggregator, check_only_whole_rosters_open, subsets

from fedboost.privacy.pairwise import Group

PARTIES = names(4)  # three open a turn, one may collude
TAG = tag_of(PARTIES, cells=CELLS)


def seal_everybody(aggregator, tag):
    return [aggregator.seal(party, tag) for party in tag.roster]


def commit_everybody(aggregator, tag):
    return [aggregator.commit(party, tag) for party in tag.roster]


def test_the_whole_roster_opens_and_no_proper_subset_of_it():
    aggregator = Aggregator(PARTIES)
    assert all(seal_everybody(aggregator, TAG))
    assert aggregator.opened() == {}
    assert all(commit_everybody(aggregator, TAG))
    assert all(aggregator.recover(party, TAG, [lost]) for party, lost in permutations(PARTIES, 2))
    assert aggregator.opened() == {TAG: [PARTIES]}


@pytest.mark.parametrize("committed", range(3))
def test_fewer_than_the_threshold_open_nothing(committed):
    aggregator = Aggregator(PARTIES)
    for party in PARTIES:
        aggregator.seal(party, TAG)
    for party in PARTIES[:committed]:
        assert aggregator.commit(party, TAG)
        for lost in set(PARTIES) - {party}:
            assert aggregator.recover(party, TAG, [lost])
    assert aggregator.opened() == {}


def test_an_attempt_that_was_aborted_never_opens_not_even_with_a_late_upload():
    aggregator, again = Aggregator(PARTIES), replace(TAG, attempt=1)
    for party in PARTIES[:3]:
        aggregator.seal(party, TAG)
    for party in PARTIES[:3]:
        assert aggregator.seal(party, again)
    assert aggregator.seal(PARTIES[3], TAG), "the late upload of the first attempt"
    assert commit_everybody(aggregator, TAG) == [False] * 3 + [True]
    assert aggregator.seal(PARTIES[3], again) is False, "it committed the turn to the first attempt"
    assert commit_everybody(aggregator, again) == [False] * 4
    assert aggregator.opened() == {}


def test_every_mixture_of_two_attempts_shares_is_refused():
    """For each other party its share of the one attempt or of the other: only the pure set commits."""
    for mixture in product((0, 1), repeat=3):
        aggregator, again = Aggregator(PARTIES), replace(TAG, attempt=1)
        for tag in (TAG, again):
            for party in PARTIES:
                aggregator.seal(party, tag)
        me = PARTIES[0]
        shares = {
            peer: aggregator.sealed[(TAG, again)[of]][peer, me]
            for peer, of in zip(PARTIES[1:], mixture, strict=True)
        }
        assert aggregator.commit(me, again, **shares) == all(mixture)


def test_telling_parties_different_rosters_of_one_tree_opens_one_at_most():
    """Every way to tell each of four parties one of two rosters in turn 1; in turn 2 everything is tried."""
    opened = 0
    rosters = subsets(PARTIES, least=3)
    for pair in combinations(rosters, 2):
        for told in product((0, 1), repeat=4):
            aggregator = Aggregator(PARTIES)
            for party, choice in zip(PARTIES, told, strict=True):
                aggregator.seal(party, replace(TAG, roster=pair[choice]))
            for roster in pair:
                tag = replace(TAG, roster=roster)
                for party in roster:
                    aggregator.commit(party, tag)
                    aggregator.recover(party, tag, [next(iter(set(roster) - {party}))])
            opened += len(check_only_whole_rosters_open(aggregator))
    assert opened


def test_with_a_threshold_smaller_by_one_two_rosters_of_one_turn_do_open():
    """The attack that the threshold stops, so that the tests above are known to be able to see it."""

    class Lower(Group):
        threshold = 3

    parties = names(6)
    assert Group.of(parties).threshold == 4
    aggregator = Aggregator(parties, group=Lower(parties, 1))
    for roster in (parties[:3], parties[3:]):
        tag = replace(TAG, roster=roster)
        assert all(seal_everybody(aggregator, tag))
        assert all(commit_everybody(aggregator, tag))
    assert len(aggregator.opened()) == 2


def test_parent_minus_children_across_a_roster_change_finds_no_step():
    """parent(with the leaver) - left - right(without it) would be the leaver's own histogram.

    The aggregator opens the root with all four, then tries for the children every smaller roster, in the same
    turn and the next, in each order; and the other way round, the small roster first.
    """
    small = [roster for roster in subsets(PARTIES, least=3) if len(roster) == 3]
    for roster in small:
        for first, second in ((PARTIES, roster), (roster, PARTIES)):
            aggregator = Aggregator(PARTIES)
            root = replace(TAG, roster=first)
            for party in first:
                assert aggregator.seal(party, root)
            assert all(commit_everybody(aggregator, root))
            for turn, attempt in ((1, 1), (2, 0), (2, 1), (3, 0)):
                child = replace(TAG, turn=turn, attempt=attempt, roster=second, transcript=b"children")
                sealed = [party for party in second if aggregator.seal(party, child)]
                assert set(sealed) <= set(second) - set(first), "whoever was asked for the root refuses"
                assert not any(commit_everybody(aggregator, child))
            assert set(aggregator.opened()) == {root}


def test_parent_minus_children_within_one_roster_is_what_everybody_may_know():
    """The same steps with one roster open both: it is the roster that the attack above fails for."""
    aggregator = Aggregator(PARTIES)
    for turn in (1, 2):
        tag = replace(TAG, turn=turn)
        for party in PARTIES:
            assert aggregator.seal(party, tag)
        assert all(commit_everybody(aggregator, tag))
    assert len(aggregator.opened()) == 2


def test_a_party_that_was_asked_something_else_stops_the_turn():
    """An aggregator that shows one party other splits, to look at its rows alone, opens nothing."""
    for victim in PARTIES:
        aggregator = Aggregator(PARTIES)
        aimed = replace(TAG, transcript=b"splits for you alone")
        for party in PARTIES:
            aggregator.seal(party, aimed if party == victim else TAG)
        for party in PARTIES:
            assert not aggregator.commit(party, TAG)
            assert not aggregator.commit(party, aimed)
        merged = {**aggregator.sealed[TAG], **aggregator.sealed[aimed]}
        aggregator.sealed[TAG] = aggregator.sealed[aimed] = merged
        for party in PARTIES:
            assert not aggregator.commit(party, TAG)
            assert not aggregator.commit(party, aimed)
        assert aggregator.opened() == {}
