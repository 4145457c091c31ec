"""Parties that hold different columns, one of which says what cannot be: the session ends with one line that
names who and what, or goes on; nothing is raised."""

import random
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

import fedboost as fb
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.errors import Refused, SessionFailed
from fedboost.privacy.ends import PlainOpener, PlainSealer
from fedboost.privacy.protection import Tag
from fedboost.protocol.messages import (
    Ask,
    Close,
    Introduce,
    Leave,
    Offer,
    OpenRequest,
    Relay,
    Report,
    SessionEnded,
)
from fedboost.protocol.party import PartySession
from tests.helpers.apart_sessions import LOST, SMALL, Apart, once, one_line, sealing
from tests.helpers.columns_apart import LAYOUTS, pooled, terms_of

THREE = LAYOUTS["three holders"]


# ---- reports --------------------------------------------------------------------------------------------


def play_spoilt(session, party, find, change):
    """A session in which the integers in the first report of a party to a query of this kind are changed."""
    done = []

    def up(name, message):
        if not isinstance(message, Report) or (name, message.part) != (party, 0) or done:
            return None
        ask = apart.heard(Ask, party)[-1]
        if not any(map(find, ask.query.parts)):
            return None
        done.append(message)
        tag = Tag(ask.turn, ask.attempt, ask.roster, b"", ask.query.segments)
        opener = PlainOpener(tag)
        opener.add(party, 0, message.cells)
        cells, place = opener.open().copy(), 0
        for part in ask.query.parts:
            if find(part):
                break
            place += sum(segment.cells for segment in part.segments)
        change(cells[place:])
        (packed,) = PlainSealer().seal(cells, tag)
        return [replace(message, cells=packed)]

    apart = session(up=up)
    apart.play()
    assert done
    return apart


def is_histogram(query):
    return isinstance(query, HistogramQuery)


def add(place, by):
    def change(cells):
        cells[place] += by

    return change


@pytest.mark.parametrize("party", ["telco", "bank"])
@pytest.mark.parametrize("by", [1, -1, 1 << 20])
def test_sums_that_cannot_be_fail_the_session_with_the_turn(party, by):
    apart = play_spoilt(Apart, party, is_histogram, add(0, by))
    assert apart.session.phase == "failed"
    assert apart.session.booster is None
    assert one_line(apart.error).startswith("turn ")


@pytest.mark.parametrize(
    ("kind", "says"), [("RowsQuery", "the parties report"), ("EndRoundQuery", "metric sums are inconsistent")]
)
def test_a_feature_holder_that_adds_to_what_is_about_labels_fails_the_session(kind, says):
    apart = play_spoilt(Apart, "telco", lambda query: query.name == kind, add(0, -(10**6)))
    assert apart.session.booster is None
    assert says in one_line(apart.error)


def test_a_report_of_too_few_bytes_names_its_party():
    cut = once(
        lambda party, m: party == "shop" and isinstance(m, Report),
        lambda report: [replace(report, cells=report.cells[:-1])],
    )
    apart = Apart(up=cut).play()
    assert one_line(apart.error).startswith("party shop broke the protocol: ")


# ---- what is relayed ------------------------------------------------------------------------------------


def lying(monkeypatch, party, kind, change):
    """What this party seals of that kind is changed by it, once."""
    done = []

    def first(me, send, ask):
        if (me, send.kind) != (party, kind) or done:
            return None
        done.append(change(send.content))
        return done[0]

    sealing(monkeypatch, first)
    return done


@pytest.mark.parametrize(
    ("party", "kind", "left"),
    [("bank", "gradients", "telco"), ("shop", "which rows go left", "bank")],
)
@pytest.mark.parametrize("by", [-1, 1, 8])
def test_relayed_bytes_of_another_length_name_their_sender(monkeypatch, party, kind, left, by):
    done = lying(monkeypatch, party, kind, lambda content: content[:by] if by < 0 else content + bytes(by))
    apart = Apart(max_depth=3, rounds=3).play()
    size = len(done[0])
    assert apart.session.booster is None
    assert apart.left(left) == one_line(
        f"party {party} relayed {size} bytes ({kind}) instead of {size - by}: its rows do not match this "
        f"party's rows"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"\xff" * len(content),
        lambda content: b"\x7f" * len(content),
        lambda content: bytes(len(content)),
        lambda content: b"\x80" + bytes(len(content) - 1),
        lambda content: random.Random(3).randbytes(len(content)),
        lambda content: content[::-1],
    ],
)
@pytest.mark.parametrize(("party", "kind"), [("bank", "gradients"), ("shop", "which rows go left")])
def test_nonsense_that_is_relayed_ends_the_session_or_makes_a_model(monkeypatch, party, kind, change):
    """A label holder may lie about gradients, and a holder about its split: a bit is a bit. Where sums then
    cannot be, the session says so."""
    done = lying(monkeypatch, party, kind, change)
    apart = Apart(max_depth=3, rounds=3).play()
    assert done
    assert apart.session.phase in ("done", "failed")
    if apart.session.phase == "failed":
        assert one_line(apart.error).startswith(("turn ", "party "))
    for reason in map(apart.left, apart.terms.parties):
        assert reason is None or one_line(reason)


# ---- tables ---------------------------------------------------------------------------------------------


def tables(**changes):
    """Those of three holders; `changes` of a party's table."""
    parts = THREE.tables(pooled(60))
    return parts | {party: change(parts[party]) for party, change in changes.items()}


def fails(error, tables, layout=THREE):
    with pytest.raises(error) as raised:
        fb.simulate(terms_of(layout, **SMALL), tables)
    return one_line(str(raised.value))


def of_rows(rows):
    """The first rows of a table; more than there are: some of them again."""
    return lambda table: pa.concat_tables([table, table]).slice(0, rows)


@pytest.mark.parametrize("rows", [1, 59, 61, 120])
def test_a_feature_holder_with_other_rows_is_named(rows):
    assert fails(SessionFailed, tables(telco=of_rows(rows))) == (
        f"party telco left: it has {rows} rows, but label holder bank has 60: both must have the same rows "
        f"in the same order"
    )


def test_a_feature_holder_of_one_of_two_blocks_with_other_rows_is_named():
    layout = LAYOUTS["blocks"]
    parts = layout.tables(pooled(60))
    parts["telco2"] = parts["telco2"].slice(0, 29)
    assert fails(SessionFailed, parts, layout) == (
        "party telco2 left: it has 29 rows, but label holder bank2 has 30: both must have the same rows in "
        "the same order"
    )


@pytest.mark.parametrize(
    ("party", "column", "says"),
    [
        ("telco", "minutes", "party telco: column 'minutes' is missing"),
        ("shop", "colour", "party shop: column 'colour' is missing"),
        ("bank", "age", "party bank: column 'age' is missing"),
        ("bank", "y", "party bank: column 'y' is missing"),
    ],
)
def test_a_column_that_a_table_lacks_is_named_with_its_party(party, column, says):
    said = fails(Refused, tables(**{party: lambda table: table.drop_columns([column])}))
    assert said.startswith(says)


def test_columns_that_another_party_holds_are_not_looked_for():
    """Nor are they read where a table has them, too: the label least of all."""
    table = pooled(60)
    whole = dict.fromkeys(("bank", "telco", "shop"), table)
    settings = terms_of(THREE, **SMALL)
    assert fb.simulate(settings, whole).model.booster == fb.simulate(settings, tables()).model.booster
    wrong = table.set_column(table.column_names.index("y"), "y", pa.array(["?"] * 60))
    whole |= {"telco": wrong, "shop": wrong}
    assert fb.simulate(settings, whole).model.booster == fb.simulate(settings, tables()).model.booster


# ---- any order of messages ------------------------------------------------------------------------------


def odd_relay(draw, party, known):
    """A relay of known or odd numbers, names and bytes."""
    names = [*known.terms.parties, "mall", ""]
    turn, attempt = known.session.turn, known.session.attempt
    seen = [message for _, message in known.told if isinstance(message, Relay)]
    content = draw.choice([b"", bytes(80), draw.randbytes(200), *(relay.content for relay in seen[-3:])])
    return Relay(
        max(turn + draw.choice([0, 0, 0, 1, -1]), 0),
        max(attempt + draw.choice([0, 0, 0, 0, 1, -1]), 0),
        draw.choice([0, 1, 1, 2, 3, 2**32 - 1]),
        content,
        draw.random() < 0.8,
        tuple(draw.sample(names, draw.randrange(3))),
        draw.choice(names),
    )


def any_message(draw, party, known):
    """A message that some party was told before, in whole or with another label; or an odd relay."""
    told = [message for _, message in known.told]
    message = draw.choice(told) if told else SessionEnded("so soon")
    if isinstance(message, SessionEnded | Leave) or draw.random() < 0.4:
        return odd_relay(draw, party, known)
    if isinstance(message, Ask) and draw.random() < 0.5:
        return replace(message, turn=known.session.turn, attempt=known.session.attempt)
    return message


def of_seeds(layout, batch, hook, names_telco):
    """Ten sessions, each with `hook(draw, apart, party, message)`. How they end: with the model, or with one
    line that names somebody."""
    honest = Apart(layout).play().session.booster
    ends = set()
    for seed in range(10 * batch, 10 * batch + 10):
        draw, apart = random.Random(f"{layout} {seed}"), Apart(layout)
        setattr(apart, hook.__name__, partial(hook, draw, apart))
        apart.play()
        ends.add(apart.session.phase)
        for party in apart.terms.parties:
            reason = apart.left(party)
            assert reason is None or one_line(reason)
        if apart.session.phase == "failed":
            assert one_line(apart.error).startswith(("party ", "turn "))
            assert not names_telco or "party telco" in apart.error
        if apart.session.phase == "done":
            assert apart.session.booster == honest
    assert "failed" in ends


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["three holders", "blocks"])
@pytest.mark.parametrize("batch", range(6))
def test_whatever_an_aggregator_says_a_party_leaves_with_one_line_or_goes_on(layout, batch):
    def down(draw, apart, party, message):
        if draw.random() > 0.06:
            return None
        match draw.randrange(4):
            case 0:
                return []
            case 1:
                return [message, message]
            case 2:
                return [any_message(draw, party, apart), message]
            case _:
                return [any_message(draw, party, apart)] * draw.choice([1, 2])

    of_seeds(layout, batch, down, names_telco=False)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["three holders", "blocks"])
@pytest.mark.parametrize("batch", range(3))
def test_whatever_a_party_says_the_session_ends_and_names_it_or_goes_on(layout, batch):
    def up(draw, apart, party, message):
        if party != "telco" or draw.random() > 0.2:
            return None
        match draw.randrange(4):
            case 0:
                return LOST
            case 1:
                return [message, message]
            case 2:
                return [odd_relay(draw, party, apart), message]
            case _:
                return [odd_relay(draw, party, apart)]

    of_seeds(layout, batch, up, names_telco=True)


def test_messages_in_any_phase_raise_nothing():
    """All that a party was told in a session, in a random order, to one that knows the session or not."""
    apart = Apart(down=once(lambda p, m: p == "shop" and isinstance(m, Ask) and m.turn == 8, lambda m: LOST))
    apart.play()
    told = [message for _, message in apart.told]
    kinds = {type(message) for message in told}
    assert kinds == {Offer, Introduce, Ask, Relay, Close, SessionEnded}
    told.append(OpenRequest(1, 1, b"x"))
    left = set()
    for seed in range(60):
        draw = random.Random(seed)
        party = PartySession(replace(apart.sites["telco"], memory=None))
        begun = [m for m in apart.heard(Offer, "telco")[:1] if seed % 3]
        for message in [*begun, *draw.sample(told, 25)]:
            for reply in party.handle(message):
                if isinstance(reply, Leave):
                    left.add(one_line(reply.reason))
    assert len(left) > 3
