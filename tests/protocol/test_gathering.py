"""Parties gather anew after a loss: what a lying aggregator makes of that, what a hostile party makes of it,
and what a journal can say of it."""

import dataclasses
import random
from collections import deque
from itertools import permutations

import numpy as np
import pytest
from liar import Left, Liar, agreed, end_of, never, places, root_of

from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.cut_points import QuantileQuery
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import RowsQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.state import NOTHING_YET, BoostingState, Round
from fedboost.errors import ConfigError
from fedboost.gbdt.tree import Split, Tree
from fedboost.privacy import fields
from fedboost.protocol import journal, key_exchange
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.attendance import MAX_LOSSES_PER_TURN
from fedboost.protocol.events import Connected, Disconnected
from fedboost.protocol.journal import Begun, Gathered, Grew, Opened
from fedboost.protocol.key_exchange import Attempt, Trust
from fedboost.protocol.messages import Admit, Ask, Assist, Attest, Close, Join, Leave, Open, Report
from fedboost.protocol.party import PartySession

# ---- an aggregator that lies ------------------------------------------------------------------------


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
    for begun in (False, True):
        liar = Liar(on_loss="shrink")
        if begun:
            liar.gather()
            liar.forget()
        liar.gather(roster=liar.terms.parties[:3])
        with pytest.raises(Left, match="lacks parties before the first tree split"):
            liar.ask(RowsQuery())


@pytest.mark.parametrize("lost_memory", [False, True])
@pytest.mark.parametrize("kind", [QuantileQuery, RowsQuery])
def test_what_comes_before_the_trees_is_not_asked_of_fewer_after_a_loss(kind, lost_memory):
    liar = Liar(on_loss="shrink")
    query = liar.train(lambda query: isinstance(query, kind))
    if lost_memory:
        liar.forget()
    liar.gather(roster=liar.terms.parties[:3])
    with pytest.raises(Left, match=r"lacks parties before the first tree split|another question"):
        liar.ask(query, liar.turn + lost_memory)


@pytest.mark.parametrize("values", [(0.0, 0.0), (0.5, 0.5), (0.0, 0.5), (-0.0, 0.1)])
def test_roots_over_two_rosters_need_a_tree_between_them_that_moves_every_row(values):
    liar = Liar(on_loss="shrink")
    root = liar.train(root_of(1))
    liar.gather(claimed(liar.state, values), liar.terms.parties[:3])
    with pytest.raises(Left, match="the difference of two sums would show a party"):
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
    with pytest.raises(Left, match="the difference of two sums would show a party"):
        liar.ask(lie)


def test_metrics_of_a_round_are_not_asked_of_two_rosters():
    liar = Liar(on_loss="shrink")
    end = liar.train(never, before=end_of(1))
    state = liar.state
    liar.ask(end)
    liar.gather(state, liar.terms.parties[:3])
    with pytest.raises(Left, match="the difference of two sums would show a party"):
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
    with pytest.raises(Left, match="the difference of two sums would show a party"):
        liar.ask(tree_end, liar.turn + 1)


def ends_with(liar):
    """What every end of a round has, whatever the tree."""
    return liar.terms.metrics, liar.last_end.weight, liar.last_end.exponents


def test_children_are_not_asked_of_another_roster_than_their_parent():
    liar = Liar(on_loss="shrink")
    children = liar.train(never, before=lambda q: isinstance(q, HistogramQuery) and q.nodes != (0,))
    liar.gather(roster=liar.terms.parties[:3])
    with pytest.raises(Left, match=r"lacks parties|the difference of two sums would show a party"):
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
    with pytest.raises(Left, match="another question in turn"):
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
        NOTHING_YET,
    ):
        other = Liar(on_loss=on_loss)
        other.train(root_of(0))
        with pytest.raises(Left, match="stand where it cannot"):
            other.gather(lie)


def test_the_first_attempt_begins_at_the_beginning():
    with pytest.raises(Left, match="stand where it cannot"):
        Liar().gather(BoostingState(grids=1))


def test_a_party_that_met_the_others_but_was_asked_nothing_remembers_too():
    liar = Liar()
    liar.gather()
    liar.forget()
    with pytest.raises(Left, match="stand where it cannot"):
        liar.gather(BoostingState(grids=1))


def begun():
    """An aggregator of a session that goes on without those who are lost: one that comes back has to believe
    where the others stand."""
    liar = Liar(on_loss="shrink")
    liar.gather()
    return liar


@pytest.mark.parametrize("grids", [6, 2**31])
def test_no_more_grids_than_there_are(grids):
    """A party that believed it had been asked for six would count over any number of further ones."""
    with pytest.raises(Left, match=f"rows were counted over grids {grids} times, of 5"):
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
    (signed,) = {(end._member.holder.state.structure(100)) for end in liar.ends.values()}
    assert len(signed) == 32


@pytest.mark.parametrize("splits", [(HUGE,), (SPLIT, SPLIT), (SPLIT, Split(0, 0, 1, True, 3))])
def test_a_question_about_a_tree_that_cannot_be(splits):
    liar = Liar()
    children = liar.train(never, before=lambda q: isinstance(q, HistogramQuery) and q.nodes != (0,))
    with pytest.raises(Left):
        liar.ask(dataclasses.replace(children, splits=splits))


def test_help_that_is_asked_for_again_is_given_again_and_recorded_once():
    liar = Liar()
    liar.gather()
    liar.ask(RowsQuery())
    before = list(liar.recorded)
    again = [liar.say("p0", Open(1, 1, liar.requests["p0"])) for _ in range(50)]
    assert liar.recorded == before
    assert all(one == again[0] for one in again)
    assert before.count(("p0", "help to open the sum")) == 1


def test_a_request_for_help_that_names_a_party_again_and_again():
    """Its answer would be ten times as long."""
    liar = Liar()
    liar.gather()
    liar.ask(RowsQuery())
    _, ctx, *_ = fields.unpack(liar.requests["p0"])
    with pytest.raises(Left, match="asked to recover 100000 of 4 parties"):
        liar.say("p0", Open(1, 1, fields.pack(b"recover", ctx, *[b"p1"] * 100_000)))


def test_help_is_not_asked_for_without_end():
    liar = Liar(parties=5, colluding=0)
    liar.gather()
    liar.ask(RowsQuery())
    _, ctx, *_ = fields.unpack(liar.requests["p0"])
    lost = list(permutations([b"p1", b"p2", b"p3", b"p4"], 2))
    requests = [Open(1, 1, fields.pack(b"recover", ctx, *names)) for names in lost]
    for request in requests[:5]:
        liar.say("p0", request)
    with pytest.raises(Left, match="more often than parties can be lost"):
        liar.say("p0", requests[5])
    assert liar.recorded.count(("p0", "help to open the sum")) == 6


def test_no_help_after_the_model_was_signed():
    liar = Liar()
    liar.gather()
    liar.ask(RowsQuery())
    liar.say("p0", Close(1, 100))
    with pytest.raises(Left, match="asked for help after the model was signed"):
        liar.say("p0", Open(1, 1, liar.requests["p0"]))


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
    with pytest.raises(Left, match="asked after the model was signed"):
        liar.ask(HistogramQuery(end.rows, 1, (), (0,), 1, end.weight, end.weight))


def test_an_old_attempt_is_not_opened_after_a_new_one_began():
    liar = Liar()
    liar.gather()
    liar.ask(RowsQuery(), opened=False)
    old = Open(1, 1, b"anything")
    liar.say("p0", Admit("s", liar.terms, 2))
    with pytest.raises(Left, match="not the last"):
        liar.say("p0", old)


# ---- a party that is hostile ------------------------------------------------------------------------


class Together:
    """A whole session whose party p3 may do what the test wants: `change(message)` is what it does when the
    aggregator tells it something (messages, Disconnected and Connected), None for what an honest one does."""

    def __init__(self, change, trust=None, sites=None, **settings):
        self.terms = agreed(**settings)
        self.change = change
        self.sites = sites or places(self.terms)
        self.ends = {n: PartySession(site) for n, site in self.sites.items()}
        self.written = []
        self.session = AggregatorSession(
            "s",
            self.terms,
            boosting.train,
            NOTHING_YET,
            lambda record: self.written.append(journal.encode(record)),
            trust=trust,
        )
        self.now = 0.0

    def play(self, most=20_000, may_wait=False):
        """To the end. With may_wait, or to where p3 is waited for again and again."""
        waiting = deque(self.session.start())
        for _ in range(most):
            if self.session.phase in ("done", "failed"):
                return self.session
            if not waiting:
                self.now += 300.0
                waiting.extend(self.session.tick(self.now))
                continue
            party, message = waiting.popleft()
            does = self.change(message) if party == "p3" else None
            for event in self.ends[party].handle(message) if does is None else does:
                waiting.extend(self.session.handle(party, event))
        assert may_wait, f"no end: {self.session.phase}, turn {self.session.turn}"
        return self.session


def reason_of(session):
    return str(session.error or "")


NUMBERS = (0, 1, 2, 5, 2**31, 2**32 - 1)


def odd(draw, session):
    """A message with odd numbers, or ones that might be right."""

    def number(right):
        return draw.choice([right, right, right, draw.choice(NUMBERS)])

    turn, attempt = number(session.turn), number(session.attempt)
    digest = draw.choice([session.terms.digest, "other"])
    return draw.choice(
        [
            Join(draw.choice(["s", "t"]), digest, attempt, draw.choice([b"", b"x", bytes(200)])),
            Report(turn, attempt, number(0), bytes(draw.choice([0, 8, 1000])), draw.choice([b"", b"x"])),
            Assist(turn, attempt, bytes(draw.choice([0, 32]))),
            Attest(attempt, number(3), draw.randbytes(32), draw.randbytes(32), b"", b""),
            Leave("\x1b[2J" + "x" * 5000, draw.choice(["", "s", "t"])),
            Disconnected("its connection closed"),
            Connected(),
        ]
    )


@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_whatever_a_party_says_the_session_ends_or_names_it(protection, on_loss):
    ends = set()
    for seed in range(12):
        draw, said = random.Random(seed), []

        def change(message, draw=draw, said=said):
            if draw.random() < 0.7:
                return None
            return [odd(draw, said[0]) for _ in range(draw.randrange(3))]

        together = Together(change, protection=protection, on_loss=on_loss, turn_timeout=10.0)
        said.append(together.session)
        session = together.play(2000, may_wait=True)
        ends.add(session.phase)
        if session.phase == "failed":
            assert "p3" in reason_of(session), reason_of(session)
        elif session.phase != "done":
            assert on_loss == "wait" or session.attempt == 1
            assert session.awaited == ("p3",)
    assert "failed" in ends


def test_a_party_that_was_left_out_is_not_heard():
    """It still is connected, and talks: no message of any kind changes anything, or fails."""
    left = []

    def change(message):
        session = together.session
        if isinstance(message, Ask) and message.query and session.run.state.tree == 1 and not left:
            left.append(message)
            return [Leave("it has had enough")]
        return None

    together = Together(change, protection="plain", on_loss="shrink")
    handle, draw = together.session.handle, random.Random(1)

    def talking(party, event):
        for _ in range(5 if left and party != "p3" and not isinstance(event, Leave) else 0):
            said = odd(draw, together.session)
            assert handle("p3", said) == [], said
        return handle(party, event)

    together.session.handle = talking
    session = together.play()
    assert session.phase == "done", session.error
    assert session.roster == ("p0", "p1", "p2")
    assert set(session.attestations) == {"p0", "p1", "p2"}


@pytest.mark.parametrize("on_loss", ["stop", "shrink"])
@pytest.mark.parametrize("silent", [False, True])
def test_a_party_that_always_comes_back_and_never_answers_does_not_keep_the_others(on_loss, silent):
    def change(message):
        if isinstance(message, Ask) and together.session.run.state.tree >= 1:
            return [] if silent else [Disconnected("its connection closed"), Connected()]
        return None

    together = Together(change, protection="plain", on_loss=on_loss)
    session = together.play()
    if on_loss == "shrink":
        assert session.phase == "done", session.error
        assert set(session.attestations) == {"p0", "p1", "p2"}
    else:
        assert reason_of(session).startswith("party p3 ")
        assert f"for the {MAX_LOSSES_PER_TURN + 1}th time in turn" in reason_of(session)
    assert session.attempt < 4 * MAX_LOSSES_PER_TURN


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
@pytest.mark.parametrize("silent", [False, True])
def test_nobody_keeps_a_finished_model_from_the_others(on_loss, silent):
    def change(message):
        if isinstance(message, Close):
            return [] if silent else [Disconnected("its connection closed"), Connected()]
        return None

    session = Together(change, protection="plain", on_loss=on_loss).play()
    assert session.phase == "done", session.error
    assert set(session.attestations) == {"p0", "p1", "p2"}


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
@pytest.mark.parametrize("does", ["leaves", "joins twice", "reports other rows"])
def test_nor_spoils_it_where_the_last_question_is_asked_again(on_loss, does):
    closed = []

    def change(message):
        if isinstance(message, Close) and not closed:
            closed.append(message)
            return [Disconnected("its connection closed"), Connected()]
        if not (closed and isinstance(message, Ask)):
            return None
        if does == "leaves":
            return [Leave("it has had enough")]
        if does == "joins twice":
            return [Join("s", together.terms.digest, message.attempt, b"other")]
        (report,) = together.ends["p3"].handle(message)
        return [dataclasses.replace(report, cells=bytes([report.cells[0] ^ 1]) + report.cells[1:])]

    together = Together(change, protection="plain", on_loss=on_loss)
    session = together.play()
    assert session.phase == "done", session.error
    assert set(session.attestations) == {"p0", "p1", "p2"}


def trusting(terms):
    """Sites with keys, and whom the aggregator trusts."""
    sites = places(terms)
    credentials = sites["p0"].credentials
    return sites, Trust(credentials.roots, credentials.denied, credentials.clock)


def check_signatures(session, trust):
    assert session.attestations
    for party, attest in session.attestations.items():
        attempt = Attempt("s", session.attempt, session.terms)
        key_exchange.check_attest(trust, attempt, session.digest, party, attest)


def test_signatures_belong_to_the_meeting_they_were_given_in():
    """A party is lost before it signed, joins again, and is lost for good: the others' signatures are those
    of the meeting before."""
    closed, gone = [], []

    def change(message):
        if isinstance(message, Close) and not closed:
            closed.append(message)
            return [Disconnected("its connection closed"), Connected()]
        if isinstance(message, Ask) and closed:
            gone.append(message)
            return [Disconnected("its connection closed")]
        return [] if gone else None

    sites, trust = trusting(agreed())
    session = Together(change, sites=sites).play()
    assert (session.phase, set(session.attestations)) == ("done", {"p0", "p1", "p2"})
    check_signatures(session, trust)


@pytest.mark.parametrize("field", ["turns", "transcript", "structure", "certificate", "signature"])
def test_who_attests_something_else_has_not_signed(field):
    def change(message):
        if not isinstance(message, Close):
            return None
        (attest,) = together.ends["p3"].handle(message)
        wrong = 99 if field == "turns" else b"x" * 32
        return [dataclasses.replace(attest, **{field: wrong})]

    sites, trust = trusting(agreed())
    together = Together(change, sites=sites, trust=trust)
    session = together.play()
    assert (session.phase, set(session.attestations)) == ("done", {"p0", "p1", "p2"})
    check_signatures(session, trust)


def test_who_greets_with_what_nobody_accepts_is_named_itself():
    """Else the others would leave, and the session would end in the name of one of them."""
    sites, trust = trusting(agreed())
    others = {}

    def change(message):
        if not isinstance(message, Admit):
            return None
        (join,) = together.ends["p3"].handle(message)
        return [dataclasses.replace(join, greeting=others.get("greeting", b"nothing"))]

    together = Together(change, sites=sites, trust=trust)
    assert reason_of(together.play()) == (
        "party p3 broke the protocol: a party was introduced without a greeting"
    )
    (join,) = PartySession(sites["p0"]).handle(Admit("s", together.terms, 1))
    others["greeting"] = join.greeting
    together = Together(change, sites=sites, trust=trust)
    assert reason_of(together.play()) == "party p3 broke the protocol: it greets as party p0"


# ---- journals that cannot be ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest():
    """The records of a training with a tree that was cut short because p3 was lost."""
    lost = []

    def change(message):
        query = message.query if isinstance(message, Ask) else None
        if isinstance(query, HistogramQuery) and query.tree == 1 and query.splits:
            lost.append(message)
            return [Disconnected("its connection closed")]
        return [] if lost else None

    together = Together(change, protection="plain", on_loss="shrink")
    session = together.play()
    assert session.phase == "done", session.error
    records = [journal.decode(data) for data in together.written]
    assert any(isinstance(record, Grew) for record in records)
    return together.terms, records, session.booster.to_xgboost()


def resumed(terms, records):
    return AggregatorSession("s", terms, boosting.train, NOTHING_YET, past=records)


def test_a_journal_is_believed_wherever_it_ends(honest):
    terms, records, _ = honest
    for size in range(len(records) + 1):
        session = resumed(terms, records[:size])
        assert session.start() != []
        assert session.phase == "joining"


def place_of(records, kind, number=0):
    return [place for place, record in enumerate(records) if isinstance(record, kind)][number]


def changed(records, kind, number=0, **fields):
    place = place_of(records, kind, number)
    return [*records[:place], dataclasses.replace(records[place], **fields), *records[place + 1 :]]


def moved(records, kind, to):
    place = place_of(records, kind)
    rest = records[:place] + records[place + 1 :]
    return [*rest[:to], records[place], *rest[to:]]


def in_disorder(splits, *rest):
    return [splits[::-1] * 2, *rest]


HAND_MADE = {
    "begun twice": lambda r, t: [Begun("s", t, "analyst"), *r],
    "sums swapped": lambda r, t: [r[0], r[2], r[1], *r[3:]],
    "a sum missing": lambda r, t: [r[0], *r[2:]],
    "a sum twice": lambda r, t: [*r[:2], r[1], *r[2:]],
    "a sum too short": lambda r, t: changed(r, Opened, 1, total=r[2].total[:-1]),
    "a sum of nothing": lambda r, t: changed(r, Opened, 0, total=np.zeros(0, np.int64)),
    "a sum too long": lambda r, t: changed(r, Opened, 0, total=np.ones(10**6, np.int64)),
    "other counts": lambda r, t: changed(r, Opened, 1, total=r[2].total + 1),
    "no rows": lambda r, t: changed(r, Opened, 0, total=r[1].total * 0),
    "attempts that go back": lambda r, t: changed(r, Gathered, 1, attempt=1),
    "attempt 0": lambda r, t: changed(r, Gathered, 0, attempt=0),
    "attempt -1": lambda r, t: changed(r, Gathered, 0, attempt=-1),
    "an attempt beyond all numbers": lambda r, t: changed(r, Gathered, 0, attempt=2**70),
    "never gathered": lambda r, t: r[1:],
    "strangers": lambda r, t: changed(r, Gathered, 0, roster=("p0", "p1", "p2", "x")),
    "one twice": lambda r, t: changed(r, Gathered, 0, roster=("p0", "p0", "p1", "p2")),
    "nobody": lambda r, t: changed(r, Gathered, 0, roster=()),
    "too few": lambda r, t: changed(r, Gathered, -1, roster=("p0",)),
    "fewer from the beginning": lambda r, t: changed(r, Gathered, 0, roster=("p0", "p1", "p2")),
    "a tree before its time": lambda r, t: moved(r, Grew, 1),
    "a tree after its end": lambda r, t: moved(r, Grew, place_of(r, Grew) + 1),
    "a tree twice": lambda r, t: [*r[: place_of(r, Grew)], r[place_of(r, Grew)], *r[place_of(r, Grew) :]],
    "a tree missing": lambda r, t: [one for one in r if one is not r[place_of(r, Grew)]],
    "a tree after the last": lambda r, t: [*r, r[place_of(r, Grew)]],
    "a tree without leaves": lambda r, t: changed(r, Grew, tree=Tree()),
    "a tree of other splits": lambda r, t: changed(r, Grew, known=[[], 1, None, None], last=()),
    "splits in disorder": lambda r, t: changed(r, Grew, known=in_disorder(*r[place_of(r, Grew)].known)),
    "a tree of no level": lambda r, t: changed(r, Grew, known=[r[place_of(r, Grew)].known[0], 0, None, None]),
    "a tree in another turn": lambda r, t: changed(r, Grew, turn=10**6),
    "turns that go back": lambda r, t: changed(r, Opened, -1, turn=1),
    "more sums after the end": lambda r, t: [*r, next(x for x in reversed(r) if isinstance(x, Opened))],
}


@pytest.mark.parametrize("what", HAND_MADE)
def test_a_journal_that_cannot_be_is_refused(honest, what):
    terms, records, _ = honest
    with pytest.raises(ConfigError) as caught:
        resumed(terms, HAND_MADE[what](list(records), terms))
    assert "\n" not in str(caught.value)


def test_sums_with_which_the_program_failed_fail_again(honest):
    """The process died after it had recorded the sum that nothing can be learnt from: the session ends with
    the program's sentence, and the aggregator starts."""
    terms, records, _ = honest
    session = resumed(terms, [records[0], dataclasses.replace(records[1], total=records[1].total * 0)])
    session.start()
    assert session.phase == "failed"
    assert "0 rows" in reason_of(session)


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_turns_of_earlier_trees_are_no_way_to_ask_about_a_tree_again(on_loss):
    """A restarted aggregator begins the tree again, by the numbers that its turns had. Others would not be
    compared with what was asked: so the children of any split could be asked for, one after the other."""
    liar = Liar(on_loss=on_loss)
    first = liar.train(root_of(1))
    tree_begins, turn = liar.state.before_tree, liar.turn
    liar.gather(tree_begins)
    liar.ask(first, turn)  # as an honest one does
    liar.gather(tree_begins)
    with pytest.raises(Left, match="turn 1 asked after turn"):
        liar.ask(first, 1)


def test_a_party_that_was_away_comes_back_where_a_tree_begins():
    """In the midst of one it would have to believe how gradients were rounded, and which rows were drawn."""
    liar = Liar(on_loss="shrink")
    liar.train(root_of(1))
    begun().gather(liar.state.before_tree)
    with pytest.raises(Left, match="stand where it cannot"):
        begun().gather(liar.state)


def test_before_a_tree_split_no_party_was_away():
    liar = Liar(on_loss="shrink")
    liar.train(root_of(0))
    with pytest.raises(Left, match="stand where it cannot"):
        begun().gather(liar.state.before_tree)


def test_turns_beyond_those_of_the_terms_are_not_asked():
    liar = Liar(rounds=1, max_depth=1)
    liar.gather()
    for _ in range(liar.terms.max_turns):
        liar.ask(RowsQuery())
    with pytest.raises(Left, match="where the terms have"):
        liar.ask(RowsQuery())
