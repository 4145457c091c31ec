"""Relays at both ends: what the aggregator passes on, what a party takes, and what a hostile one of them can
make of that: nothing opens, and the error names who and what."""

import itertools
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from raised import raised

from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import PeerError
from fedboost.gbdt.tree import Splits
from fedboost.privacy.pairwise import MIN_SEALED_BYTES
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Receive, Send
from fedboost.protocol.key_exchange import Attempt
from fedboost.protocol.messages import Ask, Close, Join, Relay, Report
from fedboost.protocol.relaying import PART_BYTES, Ends, Order, PendingAnswer, max_relayed
from tests.helpers.apart_sessions import LOST, Apart, changed, once, relay_of
from tests.helpers.columns_apart import LAYOUTS, terms_of

NOT_OPENED = (
    "the bytes relayed by party {} cannot be decrypted: they were changed in transit, or are for a different "
    "turn or tree"
)


def is_relay_from(sender, receiver, number=1):
    """True for what a receiver is told of a sender's relay."""
    return lambda party, m: isinstance(m, Relay) and (m.sender, party, m.number) == (sender, receiver, number)


def honest(**settings):
    apart = Apart(**settings).play()
    assert apart.session.phase == "done"
    return apart.session.booster


# ---- the order of parts ---------------------------------------------------------------------------------

WHOLE = bytes(MIN_SEALED_BYTES)
FULL = bytes(PART_BYTES)


def part(number, content=WHOLE, last=True, to=("a",)):
    return Relay(1, 1, number, content, last, to)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([part(0)], "relay 0 comes after relay 0"),
        ([part(2), part(1)], "relay 1 comes after relay 2"),
        ([part(1), part(1, WHOLE + b"x")], "relay 1 comes after relay 1"),
        ([part(1, FULL, False), part(2)], "relay 2 comes after relay 1"),
        ([part(1, FULL, False), part(1, to=("b",))], "relay 1 comes after relay 1"),
        ([part(1, b"")], "relay 1 has an invalid part of 0 bytes"),
        ([part(1, WHOLE[1:])], f"relay 1 has an invalid part of {len(WHOLE) - 1} bytes"),
        ([part(1, WHOLE, False)], f"relay 1 has an invalid part of {len(WHOLE)} bytes"),
        ([part(1, FULL, False), part(1, b"", False)], "relay 1 has an invalid part of 0 bytes"),
        ([part(1, FULL, False), part(1, FULL + b"x")], f"has an invalid part of {len(FULL) + 1} bytes"),
        (
            [part(n, FULL, False) for n in [1] for _ in "ab"] + [part(1, b"x" * PART_BYTES, False)],
            "relay 1 exceeds the byte limit of a turn",
        ),
    ],
)
def test_parts_out_of_order_or_size_are_refused(parts, says):
    order = Order()
    for each in parts[:-1]:
        order.add(each, 3 * PART_BYTES // 2)
    with raised(PeerError, "relay-order", "relay-part-size", "relay-too-large") as caught:
        order.add(parts[-1], 3 * PART_BYTES // 2)
    assert str(caught.value).endswith(says)


def test_parts_in_order_are_taken_and_a_repeated_one_once():
    order = Order()
    parts = [part(1), part(3, FULL, False), part(3, b"end"), part(4)]
    taken = [order.add(each, 2 * PART_BYTES) for each in parts for _ in range(2)]
    assert taken == [True, False] * 4
    assert order.size == 2 * len(WHOLE) + PART_BYTES + 3


# ---- an answer under way --------------------------------------------------------------------------------

ASK = Ask(5, 2, b"", None)
SECRET = b"k" * 32


def ends(me, other, transcript=b"told", secret=SECRET):
    numbers = itertools.count(1)
    return Ends(me, {other: secret}, transcript, lambda size: next(numbers).to_bytes(size))


def sent(content, to="telco", kind="gradients", ask=ASK, number=1, **settings):
    return ends("bank", to, **settings).seal(Send(kind, (to,), content, 1), ask, number)


def waiting(size, kind="gradients", receives=1, most=1 << 20):
    """A party that waits for so much of bank."""
    opened = []

    def steps():
        for _ in range(receives):
            opened.append((yield Receive(kind, "bank", size)))
        return np.zeros(1, np.int64)

    underway = PendingAnswer(ASK, None, steps(), ends("telco", "bank"), most)
    assert [*underway.advance()] == []
    return underway, opened


def take(underway, content, number=1, sender="bank"):
    underway.take(Relay(5, 2, number, content, True, sender=sender))
    return [*underway.advance()]


def test_an_answer_goes_on_once_all_that_it_waits_for_has_come():
    underway, opened = waiting(3, receives=2)
    take(underway, sent(b"abc"))
    assert (opened, underway.answered) == ([b"abc"], None)
    take(underway, sent(b"def", number=4), number=4)
    assert opened == [b"abc", b"def"]
    assert underway.answered.values.tolist() == [0]


SHUT = "^the bytes relayed by party bank cannot be decrypted: "


@pytest.mark.parametrize(
    ("of", "says"),
    [
        ({"number": 2}, SHUT),
        ({"kind": "which rows go left"}, SHUT),
        ({"transcript": b"told otherwise"}, SHUT),
        ({"secret": b"x" * 32}, SHUT),
        ({"ask": replace(ASK, turn=4)}, SHUT),
        ({"ask": replace(ASK, attempt=1)}, SHUT),
        ({"to": "shop"}, SHUT),
        (
            {"content": b"abcd"},
            r"^party bank relayed 4 bytes \(gradients\) instead of 3: its rows do not match",
        ),
        ({"content": b""}, r"^party bank relayed 0 bytes \(gradients\) instead of 3: its rows do not match"),
    ],
)
def test_what_is_of_another_place_does_not_open(of, says):
    underway, opened = waiting(3)
    sealed = sent(**{"content": b"abc", **of})
    with pytest.raises(PeerError, match=says):
        take(underway, sealed)
    assert (opened, underway.answered) == ([], None)


def test_a_sender_that_is_not_of_the_block_is_refused_by_name():
    for name in ("shop", "telco", "", "x" * 500):
        underway, _ = waiting(3)
        with raised(PeerError, "relay-sender"):
            take(underway, sent(b"abc"), sender=name)


def test_more_bytes_than_a_turn_can_need_are_refused():
    underway, _ = waiting(3, most=2 * len(sent(b"abc")) - 1)
    take(underway, sent(b"abc"))
    with raised(PeerError, "relay-too-large"):
        take(underway, sent(b"abc", number=2), number=2)


def test_where_nothing_is_relayed_nothing_is_taken():
    underway = PendingAnswer(ASK, None, iter(()), None, 0)
    with raised(PeerError, "relay-sender"):
        underway.take(Relay(5, 2, 1, WHOLE, True, sender="bank"))


def test_long_content_travels_in_parts():
    content = bytes(range(256)) * (3 * PART_BYTES // 512)

    def steps():
        yield Send("gradients", ("telco",), content, 1)
        return np.zeros(1, np.int64)

    sender = PendingAnswer(ASK, None, steps(), ends("bank", "telco"), 0)
    ((_, messages),) = [(send, [*messages]) for send, messages, _ in sender.advance()]
    assert [len(message.content) == PART_BYTES for message in messages] == [True, False]
    assert [(m.number, m.last, m.to) for m in messages] == [(1, False, ("telco",)), (1, True, ("telco",))]
    receiver, opened = waiting(len(content), most=1 << 22)
    for message in messages:
        assert opened == []
        receiver.take(replace(message, to=(), sender="bank"))
        assert [*receiver.advance()] == []
    assert opened == [content]


# ---- a hostile party ------------------------------------------------------------------------------------

BLOCK = "it relayed bytes to no one, to itself, to a party outside its block, or to a party twice"
RELAYS = {
    "nobody": ({"to": ()}, BLOCK),
    "a stranger": ({"to": ("telco", "mall")}, BLOCK),
    "itself": ({"to": ("telco", "bank")}, BLOCK),
    "a party of another block": ({"to": ("telco2",)}, BLOCK),
    "a party twice": ({"to": ("telco", "telco")}, BLOCK),
    "the aggregator": ({"to": ("aggregator",)}, BLOCK),
    "a turn to come": ({"turn": 99}, "it relayed bytes for turn 99 at the wrong time: the current turn is "),
    "an attempt to come": ({"attempt": 2}, "it sent a message for attempt 2 during attempt 1"),
    "no number": ({"number": 0}, "relay 0 comes after relay 0"),
    "nothing": ({"content": b""}, "relay 1 has an invalid part of 0 bytes"),
    "too much": ({"content": FULL}, "relay 1 exceeds the byte limit of a turn"),
}


@pytest.mark.parametrize("layout", ["three holders", "blocks"])
@pytest.mark.parametrize("what", RELAYS)
def test_a_party_that_relays_what_it_must_not_is_named(what, layout):
    fields, says = RELAYS[what]
    lie = once(relay_of("bank"), lambda relay: changed(relay, **fields))
    apart = Apart(layout, up=lie).play()
    assert lie.done
    assert apart.error.startswith(f"party bank broke the protocol: {says}")
    others = {party: apart.left(party) for party in apart.terms.parties}
    assert others == dict.fromkeys(others)


def beside(*relays):
    """A hook: these arrive before the message."""
    return lambda message: [*(replace(relay, turn=message.turn) for relay in relays), message]


ODD = Relay(0, 1, 1, WHOLE, True, ("bank",))


def reports(party, at):
    return lambda name, m: isinstance(m, Report) and name == party and at(m)


def in_turn(find):
    """The turn of the first query that `find` is true of, in an honest training."""
    apart = Apart().play()
    return next(ask.turn for ask in apart.heard(Ask, "bank") if find(ask.query))


def is_root(query):
    return any(isinstance(each, HistogramQuery) and each.tree == 0 for each in query.parts)


def test_little_is_relayed_before_there_are_bins_and_a_tree():
    """Bins and the first tree may share a turn: where the base score is known."""
    terms = terms_of(LAYOUTS["three holders"]).with_parties(["bank", "telco", "shop"])
    few, *many = (
        max_relayed(
            terms,
            "bank",
            SimpleNamespace(stage=stage, relayed_bytes=lambda terms: 0),
            1_000_000,
            SimpleNamespace(position=SimpleNamespace(started=started)),
        )
        for started, stage in ((False, -2), (True, -2), (False, 0))
    )
    assert few < PART_BYTES < 8 * 1_000_000 < min(many)


@pytest.mark.parametrize("to_answered", [False, True])
def test_a_party_that_relays_after_its_answer_or_to_one_that_has_answered_is_named(to_answered):
    """Else that one would leave, and the session would end in its name."""
    turn = in_turn(is_root)
    both = beside(ODD) if to_answered else lambda report: [report, replace(ODD, turn=report.turn)]
    lie = once(reports("telco", lambda m: m.turn == turn), both)
    says = (
        f"it relayed bytes to party bank, which has already answered turn {turn}"
        if to_answered
        else f"it relayed bytes for turn {turn} at the wrong time: the current turn is {turn}"
    )
    end = "" if to_answered else ", and relays must arrive before the party's report"
    assert Apart(up=lie).play().error == f"party telco broke the protocol: {says}{end}"


@pytest.mark.parametrize(("message", "phase"), [(Join, "joining"), (Close, "closing")])
def test_a_party_that_relays_while_nothing_is_asked_is_named(message, phase):
    strays = replace(ODD, turn=50)
    if message is Join:
        lie = once(lambda party, m: party == "telco" and isinstance(m, Join), lambda join: [strays, join])
        apart = Apart(up=lie).play()
        assert apart.error == f"party telco broke the protocol: it relayed bytes in phase {phase}"
    else:
        apart = Apart()
        apart.down = once(
            lambda party, m: party == "telco" and isinstance(m, Close),
            lambda close: apart.arrive("telco", strays) or [close],
        )
        apart.play()
        assert apart.session.closing.unsigned == {"telco"}
        assert apart.session.booster == honest()  # nobody keeps it from the others


@pytest.mark.parametrize("fields", [{"turn": 3}, {"attempt": 0}, {"sender": "shop"}])
def test_what_is_of_an_earlier_turn_is_ignored_and_a_sender_cannot_choose_its_name(fields):
    turn = in_turn(is_root)
    if "sender" in fields:
        lie = once(relay_of("bank"), lambda relay: changed(relay, **fields))
    else:
        lie = once(reports("telco", lambda m: m.turn == turn), lambda m: [replace(ODD, **fields), m])
    apart = Apart(up=lie).play()
    assert lie.done
    assert apart.session.booster == honest()


@pytest.mark.parametrize("key", [b"", b"short", bytes(33)])
def test_a_party_that_greets_without_a_key_for_what_it_relays_is_named(key):
    """Else the others would leave, and the session would end in the name of one of them."""

    def greets(join):
        attempt, credentials = Attempt("s", 1, apart.terms), apart.sites["telco"].credentials
        return [replace(join, greeting=key_exchange.greet(credentials, "telco", attempt, key, os.urandom))]

    apart = Apart(up=once(lambda party, m: party == "telco" and isinstance(m, Join), greets))
    apart.play()
    assert apart.error == (
        "party telco broke the protocol: its greeting lacks an X25519 key for masks or relays"
    )


def test_a_party_that_sends_junk_is_named_by_who_cannot_open_it():
    junk = once(relay_of("bank"), lambda relay: changed(relay, content=bytes(len(relay.content))))
    apart = Apart("two holders", up=junk).play()
    assert apart.error == f"party telco left: {NOT_OPENED.format('bank')}"


# ---- a hostile aggregator -------------------------------------------------------------------------------


def refused_by(apart, party):
    """The reason that a party left with; there is no model."""
    assert apart.down.done
    assert apart.session.phase == "failed"
    assert apart.session.booster is None
    return apart.left(party)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"number": 2}, NOT_OPENED.format("bank")),
        ({"content": None}, NOT_OPENED.format("bank")),
        ({"sender": "mall"}, "party mall relayed bytes, but is not in this party's block"),
        ({"sender": "telco"}, "party telco relayed bytes, but is not in this party's block"),
        ({"turn": 99}, "party bank relayed unexpected bytes for turn 99"),
        ({"attempt": 2}, "relayed unexpected bytes for turn {turn}"),
        ({"number": 0}, "relay 0 of party bank comes after relay 0"),
        ({"content": b""}, "relay 1 of party bank has an invalid part of 0 bytes"),
    ],
)
def test_what_was_changed_on_the_way_is_refused(fields, says):
    def change(relay):
        if fields == {"content": None}:
            return changed(
                relay, content=relay.content[:9] + bytes([relay.content[9] ^ 1]) + relay.content[10:]
            )
        return changed(relay, **fields)

    apart = Apart(down=once(is_relay_from("bank", "telco"), change)).play()
    reason = refused_by(apart, "telco")
    assert reason.endswith(says.format(turn=apart.down.done[0].turn))


def test_what_is_dropped_is_waited_for_until_the_timeout():
    apart = Apart(down=once(is_relay_from("bank", "telco"), lambda relay: [])).play(silences=100)
    assert apart.session.phase == "done"  # a new attempt, in which nothing was dropped
    assert apart.session.attempt == 2
    always = Apart(down=lambda party, m: [] if is_relay_from("bank", "telco")(party, m) else None)
    always.play(silences=100)
    assert always.session.phase == "failed"
    assert "party telco did not answer turn" in always.error


@pytest.mark.parametrize("times", [2, 5])
def test_what_is_duplicated_is_taken_once(times):
    def again(party, message):
        return [message] * times if isinstance(message, Relay) else None

    assert Apart(down=again).play().session.booster == honest()


def restarted(party="shop"):
    """A hook: this party is lost at a level of the second tree, so that all tell how far they have come."""
    return once(
        lambda name, m: (
            name == party
            and isinstance(m, Ask)
            and m.query.tree == 1
            and any(len(q.splits) for q in m.query.parts)
        ),
        lambda ask: LOST,
    )


def test_relays_in_another_order_are_refused():
    lost, held = restarted(), []

    def down(party, message):
        if (party, getattr(message, "sender", "")) == ("telco", "bank") and message.attempt == 2:
            held.append(message)
            if message.number == 1:
                return []
            return [message, held[0]]
        return lost(party, message)

    apart = Apart(down=down).play()
    assert [relay.number for relay in held[:2]] == [1, 2]
    assert apart.left("telco") == NOT_OPENED.format("bank")


def test_a_relay_cannot_stand_for_that_of_another_party():
    """Both wait for both: each gets the other's bytes."""
    lost, swap = restarted(), {"telco": "shop", "shop": "telco"}

    def down(party, message):
        if party == "bank" and isinstance(message, Relay) and message.attempt == 2:
            return changed(message, sender=swap[message.sender])
        return lost(party, message)

    apart = Apart(down=down).play()
    assert apart.left("bank") in {NOT_OPENED.format("telco"), NOT_OPENED.format("shop")}
    assert apart.session.booster is None


@pytest.mark.parametrize("earlier", ["turn", "attempt"])
def test_a_relay_of_earlier_is_refused(earlier):
    """The same sender, receiver and number: of another turn, or of the attempt before."""
    lost, kept = restarted(), []

    def down(party, message):
        if is_relay_from("bank", "telco")(party, message):
            kept.append(message)
            replayed = message.attempt == 2 if earlier == "attempt" else len(kept) == 2
            if replayed:
                return changed(kept[-2], turn=message.turn, attempt=message.attempt)
        return lost(party, message) if earlier == "attempt" else None

    apart = Apart(down=down).play()
    assert apart.left("telco") == NOT_OPENED.format("bank")
    assert len({kept[0].content, kept[1].content}) == 2


def ask_changed(party, change):
    """A hook: `change(part)` may return another query for one of those that a party is told."""
    done = []

    def hook(name, message):
        if name != party or not isinstance(message, Ask) or done:
            return None
        parts = [change(each) or each for each in message.query.parts]
        if all(a is b for a, b in zip(parts, message.query.parts, strict=True)):
            return None
        done.append(message)
        query = parts[0] if len(parts) == 1 else replace(message.query, parts=tuple(parts))
        return [replace(message, query=query)]

    hook.done = done
    return hook


def test_gradients_open_for_the_same_question_alone():
    def other_scale(query):
        if isinstance(query, HistogramQuery) and query.nodes == (0,):
            scale = replace(query.gradient, exponent=query.gradient.exponent + 1)
            return replace(query, gradient=scale)
        return None

    apart = Apart(down=ask_changed("telco", other_scale)).play()
    assert refused_by(apart, "telco") == NOT_OPENED.format("bank")


def test_row_sets_open_for_the_same_tree_alone():
    """Of two leaves one party is told that the one is split, and another party that the other is."""

    def other_leaf(query):
        if not isinstance(query, HistogramQuery) or len(query.splits) != 1:
            return None
        columns = query.splits.columns.copy()
        if columns[0, 0] not in (1, 2) or columns[1, 0] != 6:
            return None
        columns[0, 0] = 3 - columns[0, 0]
        return replace(query, splits=Splits(columns, query.splits.categories.copy()))

    settings = {"max_depth": 4, "grow_policy": "lossguide", "max_leaves": 5}
    apart = Apart("two holders", down=ask_changed("telco", other_leaf), **settings).play()
    assert refused_by(apart, "telco") == NOT_OPENED.format("bank")


def test_what_all_of_a_block_are_told_binds_the_next_turns_too():
    """A lie about a question for which nothing is relayed shows with the next relay."""

    def other_metric_weight(query):
        if query.name == "StartQuery":
            return replace(query, gradient=replace(query.gradient, exponent=query.gradient.exponent + 1))
        return None

    apart = Apart(down=ask_changed("telco", other_metric_weight)).play()
    assert refused_by(apart, "telco") == NOT_OPENED.format("bank")


def test_another_question_while_an_answer_waits_is_refused():
    """A turn has one question, also where nothing of its answer has left yet."""
    turn = in_turn(is_root)

    def other(ask):
        parts = [
            replace(q, gradient=replace(q.gradient, exponent=q.gradient.exponent + 1))
            if isinstance(q, HistogramQuery)
            else q
            for q in ask.query.parts
        ]
        query = parts[0] if len(parts) == 1 else replace(ask.query, parts=tuple(parts))
        return [ask, ask, replace(ask, query=query)]

    asks = once(lambda p, m: p == "telco" and isinstance(m, Ask) and m.turn == turn, other)
    apart = Apart(down=asks).play()
    assert refused_by(apart, "telco") == (f"the aggregator sent turn {turn} before turn {turn} was answered")
