"""Parties gather again after a loss: what an aggregator that lies can make of that."""

import dataclasses
from itertools import permutations

import pytest
from gathering import begun
from liar import Left, Liar, end_of, never, root_of

from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.state import BoostingState, Round
from fedboost.gbdt.tree import Split
from fedboost.privacy import packing
from fedboost.protocol.messages import Attest, Close, Offer, OpenRequest


def test_the_liar_can_also_be_honest():
    liar = Liar()
    liar.train(end_of(2))
    assert liar.state.tree == 3
    assert all(isinstance(*liar.say(party, Close(1, 100)), Attest) for party in liar.terms.parties)


SPLIT = Split(0, 0, 2, True, 1)


def claimed(state, values):
    """The session after one more tree, of one split, that nobody was asked for."""
    done = Round((SPLIT,), tuple(zip((1, 2), values, strict=True)))
    return dataclasses.replace(state, rounds=(*state.rounds, done), splits=(), levels=0)


def test_sums_before_the_first_tree_are_over_all_parties():
    """Counts and label sums over two rosters would show the difference exactly, and they are the same in each
    session: so neither a new session nor a restarted party helps."""
    for after_it in (False, True):
        liar = Liar(on_loss="shrink")
        if after_it:
            liar.gather()
            liar.forget()
        liar.gather(roster=liar.terms.parties[:3])
        with pytest.raises(Left, match="lacks parties, although no tree has split yet"):
            liar.ask(RowsQuery())


@pytest.mark.parametrize("lost_memory", [False, True])
@pytest.mark.parametrize("kind", [QuantileQuery, RowsQuery])
def test_what_comes_before_the_trees_is_not_asked_of_fewer_after_a_loss(kind, lost_memory):
    liar = Liar(on_loss="shrink")
    query = liar.train(lambda query: isinstance(query, kind))
    if lost_memory:
        liar.forget()
    liar.gather(roster=liar.terms.parties[:3])
    with pytest.raises(Left, match=r"lacks parties, although no tree has split yet|different query"):
        liar.ask(query, liar.turn + lost_memory)


@pytest.mark.parametrize("values", [(0.0, 0.0), (0.5, 0.5), (0.0, 0.5), (-0.0, 0.1)])
def test_roots_over_two_rosters_need_a_tree_between_them_that_moves_every_row(values):
    liar = Liar(on_loss="shrink")
    root = liar.train(root_of(1))
    liar.gather(claimed(liar.state, values), liar.terms.parties[:3])
    with pytest.raises(Left, match="the difference between two sums would reveal a party"):
        liar.ask(dataclasses.replace(root, tree=2), liar.turn + 2)


def test_a_tree_that_moves_every_row_is_enough():
    liar = Liar(on_loss="shrink")
    root = liar.train(root_of(1))
    liar.gather(claimed(liar.state, (-0.5, 0.5)), liar.terms.parties[:3])
    assert liar.ask(dataclasses.replace(root, tree=2), liar.turn + 2).any()


@pytest.mark.parametrize("values", [(0.0, 0.0), (0.0, 0.5)])
def test_metrics_over_two_rosters_need_a_tree_between_them_that_moves_every_row(values):
    liar = Liar(on_loss="shrink")
    end = liar.train(end_of(0))
    root = dataclasses.replace
    liar.gather(roster=liar.terms.parties[:3])
    lie = root(end, tree=1, splits=(SPLIT,), values=tuple(zip((1, 2), values, strict=True)))
    with pytest.raises(Left, match="the difference between two sums would reveal a party"):
        liar.ask(lie)


def test_metrics_of_a_round_are_not_asked_of_two_rosters():
    liar = Liar(on_loss="shrink")
    end = liar.train(never, before=end_of(1))
    state = liar.state
    liar.ask(end)
    liar.gather(state, liar.terms.parties[:3])
    with pytest.raises(Left, match="the difference between two sums would reveal a party"):
        liar.ask(end, liar.turn)


def test_a_tree_that_is_asked_for_again_does_not_make_a_party_forget_its_end():
    """After the end of a tree its root is asked for once more, of all: as a restarted aggregator does."""
    liar = Liar(on_loss="shrink")
    root = liar.train(never, before=root_of(1))
    before, turn = liar.state, liar.turn + 1
    liar.ask(root)
    tree_end = EndRoundQuery(root.rows, 1, (SPLIT,), ((1, -0.5), (2, 0.5)), *ends_with(liar))
    liar.ask(tree_end)
    liar.gather(before)
    liar.ask(root, turn)
    liar.gather(liar.state, liar.terms.parties[:3])
    with pytest.raises(Left, match="the difference between two sums would reveal a party"):
        liar.ask(tree_end, liar.turn + 1)


def ends_with(liar):
    """What every end of a round has, whatever the tree."""
    return liar.terms.metrics, liar.last_end.weight, liar.last_end.exponents


def test_children_are_not_asked_of_another_roster_than_their_parent():
    liar = Liar(on_loss="shrink")
    children = liar.train(never, before=lambda q: isinstance(q, HistogramQuery) and q.nodes != (0,))
    liar.gather(roster=liar.terms.parties[:3])
    with pytest.raises(Left, match=r"lacks parties|the difference between two sums would reveal a party"):
        liar.ask(children)


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_a_lost_turn_is_no_way_to_another_question(on_loss):
    """The turn was asked and not opened; other nodes of the same tree are asked for in its place."""
    liar = Liar(on_loss=on_loss)
    children = liar.train(never, before=lambda q: isinstance(q, HistogramQuery) and q.nodes != (0,))
    state = liar.state
    liar.ask(children, opened=False)
    liar.gather(state)
    others = dataclasses.replace(children, nodes=(3 - children.nodes[0],))
    with pytest.raises(Left, match="was repeated with a different query or position"):
        liar.ask(others, liar.turn)


@pytest.mark.parametrize("on_loss", ["wait", "stop"])
def test_where_nothing_is_opened_without_a_party_it_knows_where_the_session_stands(on_loss):
    """Else a pretended loss would be a way to counts over grids, or levels, beyond those that were asked."""
    liar = Liar(on_loss=on_loss)
    liar.train(root_of(0))
    for lie in (
        dataclasses.replace(liar.state, levels=2),
        dataclasses.replace(liar.state, levels=2, splits=(SPLIT,)),
        claimed(liar.state, (-0.5, 0.5)),
        liar.state.before_tree,  # between two queries of a turn
    ):
        other = Liar(on_loss=on_loss)
        other.train(root_of(0))
        with pytest.raises(Left, match="a state that contradicts this site's earlier answers"):
            other.gather(lie)


def test_the_first_attempt_begins_at_the_beginning():
    with pytest.raises(Left, match="a state that contradicts this site's earlier answers"):
        Liar().gather(BoostingState(grids=1))


def test_a_party_that_met_the_others_but_was_asked_nothing_remembers_too():
    liar = Liar()
    liar.gather()
    liar.forget()
    with pytest.raises(Left, match="a state that contradicts this site's earlier answers"):
        liar.gather(BoostingState(grids=1))


@pytest.mark.parametrize("grids", [6, 2**31])
def test_no_more_grids_than_there_are(grids):
    """A party that believed it had been asked for six would count over any number of further ones."""
    with pytest.raises(Left, match=f"grids were counted {grids} times, but at most 5 are allowed"):
        begun().gather(BoostingState(grids=grids))


@pytest.fixture(scope="module")
def grown():
    liar = Liar()
    liar.train(root_of(1))
    return liar.state


def leaf(*values):
    return tuple(values)


HUGE = Split(0, 0, 2, True, 5)
IMPOSSIBLE = {
    "the constant splits": lambda s: (Round((SPLIT,), leaf((1, 0.1), (2, 0.2))), *s.rounds[1:]),
    "the constant twice": lambda s: (Round((), leaf((0, 0.1), (0, 0.2))), *s.rounds[1:]),
    "no constant value": lambda s: (Round((), ()), *s.rounds[1:]),
    "constant of another node": lambda s: (Round((), leaf((1, 0.1))), *s.rounds[1:]),
    "constant is no number": lambda s: (Round((), leaf((0, float("nan")))), *s.rounds[1:]),
    "leaf twice": lambda s: (s.rounds[0], Round((SPLIT,), leaf((1, 0.1), (2, 0.2), (2, 0.3)))),
    "leaf without value": lambda s: (s.rounds[0], Round((SPLIT,), leaf((1, 0.1)))),
    "value of no leaf": lambda s: (s.rounds[0], Round((SPLIT,), leaf((1, 0.1), (2, 0.1), (3, 0.1)))),
    "value infinite": lambda s: (s.rounds[0], Round((SPLIT,), leaf((1, 0.1), (2, float("inf"))))),
    "children far away": lambda s: (s.rounds[0], Round((HUGE,), leaf((5, 0.1), (6, 0.2)))),
    "no such feature": lambda s: (
        s.rounds[0],
        Round((dataclasses.replace(SPLIT, feature=9),), leaf((1, 0.1), (2, 0.2))),
    ),
    "no such bin": lambda s: (
        s.rounds[0],
        Round((dataclasses.replace(SPLIT, bin=999),), leaf((1, 0.1), (2, 0.2))),
    ),
    "no such node": lambda s: (
        s.rounds[0],
        Round((dataclasses.replace(SPLIT, node=7),), leaf((1, 0.1), (2, 0.2))),
    ),
    "split twice": lambda s: (
        s.rounds[0],
        Round((SPLIT, dataclasses.replace(SPLIT, left=3)), leaf((1, 0.1), (2, 0.2))),
    ),
    "too deep": lambda s: (
        s.rounds[0],
        Round(
            tuple(Split(max(2 * n - 1, 0), 0, 2, True, 2 * n + 1) for n in range(3)),
            leaf(*((node, 0.1 + node) for node in (2, 4, 5, 6))),
        ),
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_party_that_was_away_believes_no_model_that_cannot_be(grown, what):
    state = dataclasses.replace(grown.before_tree, rounds=IMPOSSIBLE[what](grown))
    with pytest.raises(Left):
        begun().gather(state)


@pytest.mark.parametrize(
    "change",
    [
        {"splits": (SPLIT,), "levels": 0},
        {"levels": 3},
        {"levels": 2**31},
        {"start": None},
        {"rounds": (), "levels": 1},
        {"splits": (SPLIT, SPLIT), "levels": 1},
        {"splits": (HUGE,), "levels": 1},
        {"splits": (dataclasses.replace(SPLIT, bin=999),), "levels": 1},
    ],
)
def test_nor_a_tree_that_cannot_grow(grown, change):
    with pytest.raises(Left):
        begun().gather(dataclasses.replace(grown, **change))


def test_but_one_that_can(grown):
    liar = begun()
    liar.gather(grown.before_tree)
    (signed,) = {(end._member.holder.state.structure(100, end._member.terms)) for end in liar.ends.values()}
    assert len(signed) == 32


@pytest.mark.parametrize("splits", [(HUGE,), (SPLIT, SPLIT), (SPLIT, Split(0, 0, 1, True, 3))])
def test_a_question_about_a_tree_that_cannot_be(splits):
    liar = Liar()
    children = liar.train(never, before=lambda q: isinstance(q, HistogramQuery) and q.nodes != (0,))
    with pytest.raises(Left):
        liar.ask(dataclasses.replace(children, splits=splits))


def test_help_that_is_asked_for_again_is_given_again_and_recorded_once():
    liar = begun()
    liar.ask(RowsQuery())
    before = list(liar.recorded)
    again = [liar.say("p0", OpenRequest(1, 1, liar.requests["p0"])) for _ in range(50)]
    assert liar.recorded == before
    assert all(one == again[0] for one in again)
    assert before.count(("p0", "help to open the sum")) == 1


def test_a_request_for_help_that_names_a_party_again_and_again():
    """Its answer would be ten times as long."""
    liar = begun()
    liar.ask(RowsQuery())
    _, ctx, *_ = packing.unpack(liar.requests["p0"])
    with pytest.raises(Left, match="asked for shares of 100000 of 4 parties"):
        liar.say("p0", OpenRequest(1, 1, packing.pack(b"recover", ctx, *[b"p1"] * 100_000)))


def test_help_is_not_asked_for_without_end():
    liar = Liar(parties=5, colluding=0, on_loss="shrink")
    liar.gather()
    liar.ask(RowsQuery())
    _, ctx, *_ = packing.unpack(liar.requests["p0"])
    lost = list(permutations([b"p1", b"p2", b"p3", b"p4"], 2))
    requests = [OpenRequest(1, 1, packing.pack(b"recover", ctx, *names)) for names in lost]
    for request in requests[:5]:
        liar.say("p0", request)
    with pytest.raises(Left, match="sent too many requests to open the sum of turn"):
        liar.say("p0", requests[5])
    assert liar.recorded.count(("p0", "help to open the sum")) == 6


def test_no_help_after_the_model_was_signed():
    liar = begun()
    liar.ask(RowsQuery())
    liar.say("p0", Close(1, 100))
    with pytest.raises(Left, match="requested data to open a sum after the signature"):
        liar.say("p0", OpenRequest(1, 1, liar.requests["p0"]))


def test_after_a_signature_the_last_question_alone_is_asked_again():
    liar = Liar()
    end = liar.train(never, before=end_of(0))
    state = liar.state
    liar.ask(end)
    for party in liar.terms.parties:
        liar.say(party, Close(1, 100))
    liar.gather(state)
    liar.ask(end, liar.turn)
    after = liar.state
    liar.gather(after)
    with pytest.raises(Left, match="a query after the model was signed"):
        liar.ask(HistogramQuery(end.rows, 1, (), (0,), 1, *[liar.last_end.weight] * 2))


def test_an_old_attempt_is_not_opened_after_a_new_one_began():
    liar = Liar()
    liar.gather()
    liar.ask(RowsQuery(), opened=False)
    old = OpenRequest(1, 1, b"anything")
    liar.say("p0", Offer("s", liar.terms, 2))
    with pytest.raises(Left, match="not the current turn"):
        liar.say("p0", old)
