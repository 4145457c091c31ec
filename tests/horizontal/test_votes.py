"""Votes on features: a party's own histograms, what it votes for, and in which order it is asked."""

import dataclasses

import numpy as np
import pytest
from inprocess import shard_of, terms_of
from naive_trees import best_split
from raised import raised

from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import Elected, EndRoundQuery, HistogramQuery, VoteQuery
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import histogram
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.partition import Bins
from fedboost.gbdt.tree import Split
from fedboost.holders.whole_rows import HorizontalHolder, OwnHistograms, vote

ROWS = 60
BITS = Scale(0, 16)
CUTS = CutPoints.of(tuple(np.array([0.25, 0.5, 0.75], np.float32) for _ in range(4)), (False,) * 4)
START = StartQuery(ROWS, CUTS, BITS, BITS)
CONSTANT = EndRoundQuery(ROWS, CONSTANT_TREE, (), ((0, 0.0),), ("logloss",), UNIT, False)
ROOT = HistogramQuery(ROWS, 0, (), (0,), 16, BITS, BITS)
SPLIT = Split(0, 0, 1, False, 1)
VOTE = VoteQuery(ROWS, 0, (SPLIT,), (1, 2), 4, 1, BITS, BITS)
CHILD = HistogramQuery(ROWS, 0, (), (1,), 16, BITS, BITS, bytes((40, 40)), (Elected((1, 2), 8),))


def rows():
    X = np.random.default_rng(0).random((ROWS, 4)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] * (X[:, 0] > 0.5) + X[:, 2] * (X[:, 0] <= 0.5) > 1).astype(np.float32)


def terms(**settings):
    return terms_of(rows()[0], 1, **{"vote_top_k": 2, **settings})


def party_after(*asked, **settings):
    X, y = rows()
    party = HorizontalHolder(lambda: shard_of(X, y), terms(**settings))
    for query in (START, CONSTANT, *asked):
        party.answer(query)
    return party


def test_a_party_votes_for_the_features_it_would_split_by():
    votes = party_after(ROOT).answer(VOTE).reshape(2, 4)
    assert set(votes.reshape(-1).tolist()) <= {0, 1}
    assert (votes.sum(axis=1) <= 2).all()
    # The best split of each node, by all features, is by one it voted for.
    every = party_after(ROOT, vote_top_k=0).answer(dataclasses.replace(ROOT, splits=(SPLIT,), nodes=(1, 2)))
    rule, layout = terms().rule(BITS, BITS), Layout.of(CUTS)
    for cells, of_node in zip(every.reshape(2, -1), votes, strict=True):
        best = best_split(rule, cells[:-2], layout, histogram.node_total(cells[:-2], layout))
        assert best is not None
        assert of_node[best.feature] == 1


def test_what_is_answered_of_elected_features_is_what_all_would_show():
    for nodes in ((1,), (2,), (1, 2)):
        every = party_after(ROOT, vote_top_k=0).answer(
            dataclasses.replace(ROOT, splits=(SPLIT,), nodes=nodes)
        )
        elected = (Elected((1, 3), 8),) * len(nodes)
        query = dataclasses.replace(CHILD, nodes=nodes, widths=bytes((40, 40)) * len(nodes), elected=elected)
        answer = party_after(ROOT, VOTE).answer(query).reshape(len(nodes), 9, 2)
        due = every.reshape(len(nodes), 17, 2)[:, [4, 5, 6, 7, 12, 13, 14, 15, 16]]
        assert answer.tolist() == due.tolist()


def test_a_party_that_forgot_its_histograms_answers_the_same():
    there = party_after(ROOT, VOTE)
    back = party_after()
    back.go_to(there.state)
    assert back.answer(CHILD).tolist() == there.answer(CHILD).tolist()


def test_votes_go_to_the_highest_gains_and_ties_to_the_lowest_feature():
    layout, rule = Layout.of(CUTS), terms(reg_lambda=0.0, min_child_weight=0.0).rule(UNIT, UNIT)
    best, good, none = [-4, 4, 0, 0, 0, 0, 4, 4], [-3, 4, 0, 0, 0, 0, 3, 4], [0, 8, 0, 0, 0, 0, 0, 0]
    for features, due in (
        ([none, best, good, best], [0, 1, 0, 1]),
        ([good, none, good, good], [1, 0, 1, 0]),
        ([none, none, none, good], [0, 0, 0, 1]),
        ([none] * 4, [0, 0, 0, 0]),
    ):
        own = np.array(features, np.int64).reshape(-1)
        assert vote(own, layout, rule, 2).tolist() == due


def test_features_with_levels_are_voted_for_by_the_gain_of_their_sets():
    layout = Layout.of(CutPoints.of(CUTS.cuts[:1], (False,)).with_categories((4, 4)))
    rule = terms(reg_lambda=0.0, min_child_weight=0.0).rule(UNIT, UNIT)
    numeric, in_turns = [-4, 4, 4, 4, -4, 4, 4, 4], [-4, 4, 4, 4, -4, 4, 4, 4, 0, 0]
    level = [0, 4, 0, 4, 0, 4, 0, 4, 0, 0]
    # A set parts -4, -4 from 4, 4, which no cut does.
    assert vote(np.array([*numeric, *level, *in_turns]), layout, rule, 1).tolist() == [0, 0, 1]
    assert vote(np.array([*numeric, *level, *in_turns]), layout, rule, 3).tolist() == [1, 0, 1]


def test_own_histograms_are_bounded():
    with raised(Refused, "query-size"):
        OwnHistograms(None, Bins(None, CUTS, Layout.of(CUTS), Layout.of(CUTS)), None).descend(
            (), (1, 2), 1, 63
        )


@pytest.mark.parametrize(
    ("before", "query", "says"),
    [
        ((), VOTE, "the root must be queried first, and only once"),
        ((ROOT,), dataclasses.replace(CHILD, splits=(SPLIT,)), "votes and histograms must alternate"),
        ((ROOT, VOTE), dataclasses.replace(VOTE, splits=()), "votes and histograms must alternate"),
        ((ROOT, VOTE), dataclasses.replace(CHILD, elected=(Elected((1, 2), 7),)), "the query has 7 bins"),
        ((ROOT, VOTE), dataclasses.replace(CHILD, nodes=(3,)), "node 3 is not a leaf"),
        ((ROOT,), dataclasses.replace(VOTE, nodes=(3,)), "node 3 is not a leaf"),
    ],
)
def test_questions_out_of_order(before, query, says):
    with pytest.raises(PeerError, match=says):
        party_after(*before).answer(query)


def test_no_more_questions_of_a_tree_than_its_levels_and_votes():
    again = dataclasses.replace(VOTE, splits=(Split(1, 1, 1, False, 3),), nodes=(3, 4))
    with raised(PeerError, "query-order"):
        party_after(ROOT, VOTE, CHILD, max_depth=2).answer(again)


@pytest.mark.parametrize(
    ("settings", "query", "says"),
    [
        ({"vote_top_k": 0}, VOTE, r"do not allow this vote \(parties: 1, features: 4\)"),
        ({}, dataclasses.replace(VOTE, features=5), r"do not allow this vote \(parties: 1, features: 5\)"),
        ({}, dataclasses.replace(VOTE, parties=2), r"do not allow this vote \(parties: 2, features: 4\)"),
        ({}, dataclasses.replace(VOTE, parties=0), r"do not allow this vote \(parties: 0, features: 4\)"),
        ({}, dataclasses.replace(VOTE, nodes=(1, 1)), "or names a node twice"),
        ({}, dataclasses.replace(VOTE, tree=-1, splits=()), "before the first tree"),
        ({"gradient_bits": 8}, VOTE, "8-bit gradients"),
        ({"vote_top_k": 0}, CHILD, "vote_top_k does not allow this number of nodes with elected features: 1"),
        ({}, dataclasses.replace(CHILD, elected=()), "nodes with elected features: 0"),
        ({}, dataclasses.replace(ROOT, elected=CHILD.elected), "nodes with elected features: 1"),
        (
            {},
            dataclasses.replace(CHILD, elected=CHILD.elected * 2),
            r"elected features \(2\) differs from the number of nodes in the query \(1\)",
        ),
        ({}, dataclasses.replace(CHILD, elected=(Elected((1, 2, 3), 12),)), "are too many, or one"),
        ({}, dataclasses.replace(CHILD, elected=(Elected((1, 1), 8),)), "or one is unknown or repeated"),
        ({}, dataclasses.replace(CHILD, elected=(Elected((2, 1), 8),)), "or one is unknown or repeated"),
        ({}, dataclasses.replace(CHILD, elected=(Elected((3, 4), 8),)), "or one is unknown or repeated"),
    ],
)
def test_what_the_terms_do_not_allow(settings, query, says):
    VOTE.check(terms())
    CHILD.check(terms())
    with pytest.raises(Refused, match=says):
        query.check(terms(**settings))
