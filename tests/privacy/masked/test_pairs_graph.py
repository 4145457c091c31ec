"""The graph of pairs: who shares masks, and that too few colluding parties never part the others."""

import random
from itertools import combinations, pairwise
from math import comb

import pytest
from consortium import SESSION

from fedboost.privacy.pairwise import (
    MAX_COMPLETE_PARTIES,
    MAX_FAILURE,
    _ring,
    degree,
    failure_bound,
    neighbours,
)

TABLE = {  # parties to colluding parties to neighbours: 5, 10, 20, 33 and 50 %
    200: {10: 12, 20: 22, 40: 36, 66: 52, 100: 78},
    500: {25: 24, 50: 32, 100: 46, 166: 64, 250: 100},
    1_000: {50: 26, 100: 34, 200: 48, 333: 70, 500: 108},
    5_000: {250: 30, 500: 38, 1_000: 54, 1_666: 78, 2_500: 120},
}


def parties_of(number):
    return tuple(sorted(f"site-{place}" for place in range(number)))


def graph_of(members, colluding=1, session=SESSION):
    return {me: neighbours(me, members, colluding, session) for me in members}


def circulant(parties, reach):
    return {
        place: tuple((place + step) % parties for step in range(-reach, reach + 1) if step)
        for place in range(parties)
    }


def is_connected(graph, kept):
    """True if every party that is kept reaches every other along pairs of them."""
    kept = set(kept)
    reached, rest = set(), [next(iter(kept))]
    while rest:
        party = rest.pop()
        if party not in reached:
            reached.add(party)
            rest += kept.intersection(graph[party])
    return reached == kept


def longest_runs(parties, colluding, reach):
    """The number of runs of at least `reach` colluding places on the ring, each between others."""
    honest = sorted(set(range(parties)) - set(colluding))
    gaps = [
        (after - before - 1) % parties for before, after in zip(honest, honest[1:] + honest[:1], strict=True)
    ]
    return sum(gap >= reach for gap in gaps)


# ---- the graph of a session -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [3, 20, MAX_COMPLETE_PARTIES])
def test_in_a_small_group_every_pair_shares_masks(number):
    members = parties_of(number)
    for me, peers in graph_of(members).items():
        assert peers == tuple(member for member in members if member != me)


@pytest.mark.parametrize("number", [MAX_COMPLETE_PARTIES + 1, 100, 257])
def test_in_a_large_group_a_party_has_as_many_neighbours_as_the_degree_and_they_have_it(number):
    members = parties_of(number)
    graph = graph_of(members)
    for me, peers in graph.items():
        assert len(set(peers)) == degree(number, 1) < number - 1
        assert me not in peers
        assert peers == tuple(sorted(peers))
        assert all(me in graph[peer] for peer in peers)


def test_every_party_computes_the_same_graph_of_a_digest_and_another_of_another():
    members = parties_of(100)
    graph = graph_of(members)
    _ring.cache_clear()
    assert graph_of(members) == graph
    assert graph_of(members, session=b"another".ljust(32)) != graph


def test_names_that_follow_each_other_are_not_put_side_by_side():
    members = parties_of(1_000)
    graph = graph_of(members)
    beside = sum(after in graph[before] for before, after in pairwise(members))
    assert beside < 150, "about one in 14 pairs shares masks"


# ---- colluding parties ------------------------------------------------------------------------------


@pytest.mark.parametrize(("parties", "reach"), [(9, 2), (10, 3), (11, 2), (12, 1)])
def test_the_others_are_parted_exactly_where_two_runs_of_colluding_parties_are_long_enough(parties, reach):
    """Every set of colluding parties."""
    graph, parted = circulant(parties, reach), 0
    for number in range(parties - 1):
        for colluding in combinations(range(parties), number):
            whole = is_connected(graph, set(range(parties)) - set(colluding))
            assert whole == (longest_runs(parties, colluding, reach) < 2)
            assert whole or number >= 2 * reach, "fewer than the degree never part the others"
            parted += not whole
    assert parted


@pytest.mark.parametrize(("parties", "reach"), [(9, 2), (10, 3), (12, 1), (13, 2)])
def test_the_bound_is_above_the_share_of_all_sets_that_part_the_others_and_grows_up_to_half(parties, reach):
    bounds = []
    for number in range(parties // 2 + 1):
        sets = combinations(range(parties), number)
        parting = sum(longest_runs(parties, colluding, reach) >= 2 for colluding in sets)
        bounds.append(failure_bound(parties, number, reach))
        assert parting / comb(parties, number) <= bounds[-1]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("parties", [61, 100, 200, 1_000])
def test_as_many_colluding_parties_as_the_terms_name_never_part_the_others_where_they_are_few(parties):
    """Fewer than the degree: also those that chose each other by the ring."""
    members, few = parties_of(parties), degree(parties, 1) - 1
    graph = graph_of(members, few)
    victim = members[7]
    nearest = graph[victim]
    for spared in nearest[:3]:
        colluding = set(nearest) - {spared}
        assert is_connected(graph, set(members) - colluding)
    assert not is_connected(graph, set(members) - set(nearest)), "the test can tell"


@pytest.mark.parametrize(
    ("parties", "colluding"), [(100, 33), (100, 50), (200, 66), (500, 250), (1_000, 333)]
)
def test_colluding_parties_of_any_number_that_is_allowed_do_not_part_the_others(parties, colluding):
    draw, members = random.Random(parties), parties_of(parties)
    graph = graph_of(members, colluding)
    for number in (colluding, colluding // 2, colluding):
        assert is_connected(graph, set(members) - set(draw.sample(members, number)))


# ---- the degree -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", TABLE)
def test_the_degrees_are_those_of_the_design(parties):
    for colluding, due in TABLE[parties].items():
        reach = due // 2
        assert failure_bound(parties, colluding, reach) <= MAX_FAILURE
        assert failure_bound(parties, colluding, reach - 1) > MAX_FAILURE
        if colluding >= parties // 3:
            assert degree(parties, colluding) == due


@pytest.mark.parametrize("parties", [61, 100, 1_000])
def test_a_third_may_collude_whatever_the_terms_say_and_beyond_half_every_pair_shares_masks(parties):
    assert degree(parties, 0) == degree(parties, 1) == degree(parties, parties // 3)
    assert degree(parties, parties // 3) < degree(parties, parties // 2) < parties - 1
    assert degree(parties, parties // 2 + 1) == degree(parties, parties - 2) == parties - 1


def test_more_colluding_parties_never_have_fewer_neighbours():
    for parties in (61, 99, 100, 201):
        degrees = [degree(parties, colluding) for colluding in range(parties - 1)]
        assert degrees == sorted(degrees)
