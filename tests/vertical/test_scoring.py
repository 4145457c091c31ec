"""Scores of single rows: equal to those of the whole model, in one round trip; and what each end can do to
the other."""

import hashlib
from datetime import timedelta

import numpy as np
import pytest
from predictions import due, trained
from raised import raised
from scorings import FEWEST, ID, NOW, Scoring

from fedboost.errors import ConfigError, PeerError, Refused
from fedboost.holders import scoring
from fedboost.holders.scoring import Link, TokenTable
from fedboost.privacy.packing import number, pack
from fedboost.privacy.points import PRIME, multiply, points_of, tokens_of
from fedboost.protocol.key_exchange import Credentials

# ---- scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        ("logistic", "two holders"),
        ("logistic", "three holders"),
        ("logistic", "one a column"),
        ("logistic", "no own columns"),
        ("classes", "three holders"),
        ("absolute", "two holders"),
        ("forest", "three holders"),
        ("base margins", "two holders"),
        ("lossguide", "three holders"),
        ("stump", "one a column"),
    ],
)
def test_scores_are_those_of_the_whole_model(setting, layout):
    one = Scoring(layout, setting).begin_all()
    margins, _ = due(layout, setting, one.tables)
    values = trained(setting).loss.predict(margins)
    assert (one.score(one.tables["bank"]) == values).all()
    for row in range(0, one.tables["bank"].num_rows, 17):
        alone = one.score(one.tables["bank"].slice(row, 1))
        assert (alone[0] == values[row]).all()


def predicted(layout, tables):
    """Predictions of the whole logistic model."""
    return trained("logistic").loss.predict(due(layout, "logistic", tables)[0])


def test_a_row_may_be_asked_about_twice_in_a_request():
    one = Scoring("two holders").begin_all()
    rows = one.tables["bank"].take([3, 5, 3, 3])
    scores, values = one.score(rows), predicted("two holders", one.tables)
    assert scores.tolist() == values[[3, 5, 3, 3]].tolist()
    assert one.meters["telco"].charged == [2]


def test_a_party_that_does_not_answer_counts_as_missing():
    one = Scoring("three holders").begin_all()
    scores = one.score(one.tables["bank"], without=("telco",))
    nobody = {**one.tables, "telco": one.tables["telco"].slice(0, 0)}
    assert (scores == predicted("three holders", nobody)).all()


# ---- the table ------------------------------------------------------------------------------------------


def test_a_table_is_made_once_and_again_when_it_no_longer_applies():
    one = Scoring("two holders").begin_all()
    kept, scores = one.ends["telco"].table, one.score(one.tables["bank"])
    assert one.begin("telco", kept)[0] == scoring.READY
    assert (one.score(one.tables["bank"]) == scores).all()
    one.meters["telco"].lists = 3
    one.secrets["telco"] = b"\7" * 32
    one.begin("telco", kept)
    assert one.ends["telco"].table.made_for != kept.made_for
    one.secrets["telco"], one.tables["telco"] = b"\2" * 32, one.tables["telco"].slice(1)
    one.begin("telco", kept)
    assert one.ends["telco"].table.tokens.size == kept.tokens.size - 1
    one.scorer = one.scorer_with(b"\7" * 32)
    one.begin("telco", kept)
    assert one.ends["telco"].table.made_for != kept.made_for
    assert one.meters["telco"].lists == 0


def test_long_lists_travel_in_parts_one_at_a_time(monkeypatch):
    """If both ends wrote before they read, full queues between them would stop both."""
    monkeypatch.setattr(scoring, "MAX_POINTS", 30)
    one = Scoring("two holders").begin_all()
    kinds = bytes(content[0] for _, content in one.told)
    parts = -(-2 * one.tables["telco"].num_rows // 30)
    pair = bytes([scoring.LIST, scoring.MULTIPLIED])
    assert kinds == bytes([scoring.HELLO]) + parts * pair + bytes([scoring.READY])
    bank = one.tables["bank"].slice(0, 30)
    assert (one.score(bank) == predicted("two holders", {**one.tables, "bank": bank})).all()


def test_a_table_and_one_secret_do_not_find_an_id():
    """A dictionary of all ids, with the table of a feature holder and one of the two secrets."""
    one = Scoring("two holders").begin_all()
    table, end = one.ends["telco"].table, one.ends["telco"]
    dictionary = points_of([str(i).encode() for i in range(120)], b"fedboost/1/score" + ID)
    for scalar in (end._scalar, one.scorer._scalar):
        assert (table.find(multiply(dictionary, scalar)) == -1).all()
    both = multiply(multiply(dictionary, end._scalar), one.scorer._scalar)
    assert (table.find(both) >= 0).sum() == one.tables["telco"].num_rows


def test_nothing_that_is_sent_can_be_compared_with_points_of_ids():
    one = Scoring("two holders").begin_all()
    one.score(one.tables["bank"])
    sent = b"".join(content for _, content in one.told)
    dictionary = points_of([str(i).encode() for i in range(120)], b"fedboost/1/score" + ID)
    points = [dictionary[at : at + 32] for at in range(0, len(dictionary), 32)]
    assert not any(point in sent for point in points)
    assert not any(bytes(token) in sent for token in tokens_of(dictionary))


def known_and_unknown(one):
    """A row of the label holder that the other party knows, and one that it does not."""
    own = set(one.tables["telco"]["id"].to_pylist())
    knows = [row_id in own for row_id in one.tables["bank"]["id"].to_pylist()]
    return knows.index(True), knows.index(False)


def test_sizes_do_not_depend_on_who_is_known():
    one = Scoring("two holders").begin_all()
    sizes = set()
    for row in known_and_unknown(one):
        one.told.clear()
        one.score(one.tables["bank"].slice(row, 1))
        sizes.add(tuple(len(content) for _, content in one.told))
    assert len(sizes) == 1


# ---- a label holder that asks too much ------------------------------------------------------------------


def test_a_limit_on_ids_is_for_all_requests_together():
    one = Scoring("two holders", most=5).begin_all()
    one.score(one.tables["bank"].slice(0, 3))
    with raised(Refused, "score-limit"):
        one.score(one.tables["bank"].slice(3, 3))
    one.score(one.tables["bank"].slice(3, 2))
    assert one.meters["telco"].charged == [3, 2]


def test_requests_about_few_known_ids_are_refused_and_charged():
    """Whether it is refused tells something, so what is refused is charged, too."""
    one = Scoring("two holders", fewest=FEWEST).begin_all()
    with raised(Refused, "score-few-known"):
        one.score(one.tables["bank"].slice(0, 1))
    assert one.meters["telco"].charged == [1]
    assert (one.score(one.tables["bank"]) == predicted("two holders", one.tables)).all()


def test_an_id_counts_once_under_however_many_points():
    """Points that differ by one of small order have the same product: 1/x is such a point for x."""
    one = Scoring("two holders", fewest=2).begin_all()
    known, _ = known_and_unknown(one)
    points, _ = one.scorer.question([b"%d" % one.tables["bank"]["id"][known].as_py()])
    other = pow(int.from_bytes(points, "little"), -1, PRIME).to_bytes(32, "little")
    with raised(Refused, "score-few-known"):
        one.ask("telco", points + other)
    own = one.tables["telco"]["id"].to_pylist()[:2]
    points, _ = one.scorer.question([b"%d" % row_id for row_id in own])
    assert len(one.ask("telco", points)) == 2 * len(one.ready["telco"])


def test_where_single_rows_are_allowed_an_unknown_one_is_not_refused():
    one = Scoring("two holders", fewest=1).begin_all()
    _, unknown = known_and_unknown(one)
    one.score(one.tables["bank"].slice(unknown, 1))


def test_a_list_of_ids_is_not_sent_again_and_again():
    one = Scoring("two holders", lists=1).begin_all()
    assert one.begin("telco")[0] == scoring.REFUSAL


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda points: points[:-1], "points-cut-short"),
        (lambda points: points + points[:32], "points-repeated"),
        (lambda points: bytes(32), "points-zero"),
        (lambda points: b"\xff" * 32, "points-beyond-prime"),
        (lambda points: b"", "points-count"),
        (lambda points: b"\1" + bytes(31), "points-small-order"),
    ],
)
def test_malformed_points_are_an_error(change, code):
    one = Scoring("two holders").begin_all()
    points, _ = one.scorer.question([b"1", b"2"])
    with raised(PeerError, code):
        one.ask("telco", change(points))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda part: part[:-32], "points-count"),
        (lambda part: part + part[:32], "points-count"),
        (lambda part: part[:32] * (len(part) // 32), "points-repeated"),
        (lambda part: bytes(len(part)), "points-zero"),
    ],
)
def test_a_table_of_other_points_is_refused(change, code):
    """A label holder could otherwise find one row under many ids."""
    one = Scoring("two holders")
    one.links["telco"], one.ends["telco"] = one.linked("telco"), one.end("telco")
    part = one.say("telco", one.scorer.hello("telco"))
    (products,) = scoring.fields_of(one.scorer.multiplied(part, "telco"), scoring.MULTIPLIED, 1, "bank")
    changed = scoring.message(scoring.MULTIPLIED, change(products))
    with raised(PeerError, code):
        one.say("telco", changed)


def test_points_are_due_only_after_a_list_and_never_none():
    one = Scoring("two holders", lists=1)
    end = one.end("telco")
    part = end.take(one.scorer.hello("telco"))
    with raised(PeerError, "points-count"):
        end.take(scoring.message(scoring.MULTIPLIED, b""))
    assert end.take(scoring.message(scoring.HELLO, bytes(32)))[0] == scoring.REFUSAL
    with raised(PeerError, "points-count"):
        end.take(one.scorer.multiplied(part, "telco"))


def multiplied_otherwise(change):
    """Begin, and return other products than those of the label holder's secret. change: returns them, from
    the points of the list."""
    one = Scoring("two holders")
    one.links["telco"], one.ends["telco"] = one.linked("telco"), one.end("telco")
    part = one.say("telco", one.scorer.hello("telco"))
    _, points = scoring.fields_of(part, scoring.LIST, 2, "telco")
    products = change([points[at : at + 32] for at in range(0, len(points), 32)])
    one.say("telco", scoring.message(scoring.MULTIPLIED, b"".join(products)))
    return one


def scalar(place):
    return hashlib.sha256(b"%d" % place).digest()


@pytest.mark.parametrize(
    "change",
    [
        lambda points: [multiply(point, scalar(place)) for place, point in enumerate(points)],
        lambda points: [multiply(point, scalar(place == 0)) for place, point in enumerate(points)],
        lambda points: [multiply(points[0], scalar(place)) for place, _ in enumerate(points)],
        lambda points: [multiply(point, scalar(0)) for point in reversed(points)],
    ],
    ids=["each by its own number", "one place apart", "multiples of one point", "another order"],
)
def test_places_that_are_not_multiplied_alike_are_found(change):
    """With an id that both have, a label holder could otherwise ask about each place of the list, without
    the ids of others."""
    with raised(PeerError, "score-uneven-table"):
        multiplied_otherwise(change)


def test_places_multiplied_alike_are_accepted():
    one = multiplied_otherwise(lambda points: [multiply(point, scalar(0)) for point in points])
    assert one.ends["telco"].table is not None


def test_nothing_is_answered_before_the_table_is_made():
    one = Scoring("two holders")
    one.links["telco"], one.ends["telco"] = one.linked("telco"), one.end("telco")
    with raised(PeerError, "score-message"):
        one.ask("telco", one.scorer.question([b"1"])[0])


def test_a_request_whose_answer_would_be_too_long_is_refused_here(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(scoring, "MAX_BYTES", 100)
        one = Scoring("two holders")
    one.begin_all()
    with raised(ConfigError, "score-many-rows"):
        one.score(one.tables["bank"])
    one.score(one.tables["bank"].slice(0, 5))


# ---- a feature holder that answers wrongly --------------------------------------------------------------


def test_a_list_longer_than_the_label_holder_allows_is_an_error():
    """A party could enter the ids of a whole town, and would learn who of it is scored."""
    one = Scoring("two holders", most_ids=FEWEST)
    with raised(PeerError, "score-many-ids"):
        one.begin("telco")


def listed(one, total, count):
    """A part of a list with this many points, said to be of `total` ids."""
    points = points_of([str(i).encode() for i in range(count)], b"guessed")
    return one.scorer.multiplied(scoring.message(scoring.LIST, number(total), points), "telco")


def test_a_list_is_not_longer_than_announced():
    """The limit on ids would otherwise be no limit on what the label holder multiplies."""
    one = Scoring("two holders", most_ids=FEWEST)
    with raised(PeerError, "points-count"):
        listed(one, 3, 3)  # before the label holder's first message
    for wrong in (FEWEST + 1, 0):
        one.scorer.hello("telco")
        with raised(PeerError, "points-count"):
            listed(one, FEWEST, wrong)
    one.scorer.hello("telco")
    listed(one, 3, 2)
    with raised(PeerError, "points-count"):
        listed(one, 3, 2)
    with raised(PeerError, "points-count"):
        listed(one, FEWEST, 2)  # the first part announced three
    listed(one, 3, 1)
    with raised(PeerError, "points-count"):
        listed(one, 3, 1)


@pytest.mark.parametrize("size", [0, 1])
def test_leaf_bits_of_a_wrong_length_are_an_error(size):
    one = Scoring("two holders").begin_all()
    rows = one.rows(one.tables["bank"].slice(0, 2))
    _, of_row = one.scorer.question(rows.ids)
    with raised(PeerError, "leaf-bits-length"):
        one.scorer.score(rows, of_row, {"telco": bytes(size)})


def test_leaf_bits_that_no_decisions_give_are_an_error():
    one = Scoring("two holders").begin_all()
    rows = one.rows(one.tables["bank"].slice(0, 1))
    _, of_row = one.scorer.question(rows.ids)
    with raised(PeerError, "leaf-bits-impossible"):
        one.scorer.score(rows, of_row, {"telco": bytes(len(one.ready["telco"]))})


# ---- the link -------------------------------------------------------------------------------------------


def frame(link, content):
    """A short message, which travels in one frame."""
    (sealed,) = link.seal(content)
    return sealed


def ends_of_link():
    one = Scoring("two holders")
    return one, *one.linked("telco")


def test_a_message_is_accepted_once_in_its_order_and_unchanged():
    _, ours, theirs = ends_of_link()
    first, second = frame(ours, b"first"), frame(ours, b"second")
    for wrong in (second, first[:-1] + bytes([first[-1] ^ 1]), b"", frame(theirs, b"first")):
        _, again, receiver = ends_of_link()
        frame(again, b"first")
        with raised(PeerError, "link-not-authentic"):
            receiver.open(wrong)
    assert theirs.open(first) == b"first"
    with raised(PeerError, "link-not-authentic"):
        theirs.open(first)
    _, ours, theirs = ends_of_link()
    with raised(PeerError, "link-not-authentic"):
        theirs.open([frame(ours, b"1"), frame(ours, b"2")][1])


def test_a_false_message_does_not_hide_that_one_was_left_out():
    _, ours, theirs = ends_of_link()
    first, second = frame(ours, b"first"), frame(ours, b"second")
    with raised(PeerError, "link-not-authentic"):
        theirs.open(bytes(40))
    with raised(PeerError, "link-not-authentic"):
        theirs.open(second)
    assert [theirs.open(first), theirs.open(second)] == [b"first", b"second"]


def test_messages_of_one_link_do_not_open_on_another_of_the_same_parties():
    one, ours, theirs = ends_of_link()
    other, their_other = one.linked("telco")
    for wrong, receiver in ((ours, their_other), (other, theirs), (theirs, other), (their_other, ours)):
        with raised(PeerError, "link-not-authentic"):
            receiver.open(frame(wrong, b"1"))


def test_the_two_ways_have_different_keys():
    _, ours, theirs = ends_of_link()
    with raised(PeerError, "link-not-authentic"):
        ours.open(frame(ours, b"x"))
    assert frame(theirs, b"x") != frame(ours, b"x")


def link(one, me, peer, asks=True, model=ID, credentials=None):
    from os import urandom

    return Link(me, peer, asks, model, credentials or one.credentials(me), urandom)


def test_greetings_of_others_are_refused():
    one = Scoring("three holders")
    ours = link(one, "bank", "telco")
    for other, code in (
        (link(one, "shop", "bank", False), "greeting-other-party"),
        (link(one, "telco", "shop", False), "signature-invalid"),
        (link(one, "telco", "bank", False, b"\1" * 32), "signature-invalid"),
    ):
        with raised(PeerError, code):
            ours.meet(other.greeting)
    stranger = Scoring("three holders")
    with raised(PeerError, "certificate-untrusted"):
        ours.meet(link(stranger, "telco", "bank", False).greeting)
    theirs = link(one, "telco", "bank", False).greeting
    public, certificate, signature = theirs[4:36], *theirs_fields(theirs)
    with raised(PeerError, "signature-invalid"):
        ours.meet(pack(bytes([public[0] ^ 1]) + public[1:], certificate, signature))
    for wrong in (b"", pack(b"x"), pack(b"x" * 32, b"y")):
        with raised(PeerError, "greeting-invalid"):
            ours.meet(wrong)
    with raised(PeerError, "greeting-missing"):
        ours.open(b"x")


def theirs_fields(greeting):
    from fedboost.privacy.packing import unpack

    return unpack(greeting)[1:]


def test_denied_and_expired_certificates_are_refused():
    one = Scoring("two holders")
    theirs = link(one, "telco", "bank", False)
    late = Credentials(one.signers["bank"], one.roots, (), lambda: NOW + timedelta(days=100_000))
    with raised(PeerError, "certificate-untrusted"):
        link(one, "bank", "telco", credentials=late).meet(theirs.greeting)


def test_a_repeated_greeting_opens_nothing():
    """Someone in between who repeats an old greeting has none of its keys."""
    one = Scoring("two holders")
    old = link(one, "telco", "bank", False)
    _, theirs = one.linked("telco")
    sealed = frame(theirs, b"old")
    again = link(one, "bank", "telco")
    again.meet(old.greeting)
    with raised(PeerError, "link-not-authentic"):
        again.open(sealed)


# ---- the pieces -----------------------------------------------------------------------------------------


def test_tokens_are_found_as_in_a_dictionary():
    draw = np.random.default_rng(0)
    points = [bytes(draw.integers(0, 256, 31, np.uint8)) + b"\0" for _ in range(500)]
    tokens = tokens_of(b"".join(points)).view("S16").reshape(-1)
    table = TokenTable(tokens, b"")
    by_token = {hashlib.sha256(point).digest()[:16]: row for row, point in enumerate(points)}
    asked = points[::3] + [bytes(draw.integers(0, 256, 32, np.uint8)) for _ in range(50)]
    wanted = [by_token.get(hashlib.sha256(point).digest()[:16], -1) for point in asked]
    assert table.find(b"".join(asked)).tolist() == wanted


def test_messages_of_another_kind_or_form_are_an_error():
    for content in (
        b"",
        b"\0",
        scoring.message(scoring.ASK, b"a"),
        scoring.message(scoring.HELLO, b"a", b"b"),
    ):
        with raised(PeerError, "score-message"):
            scoring.fields_of(content, scoring.ASK, 2, "telco")
    with raised(PeerError, "fields-cut-short"):
        scoring.fields_of(bytes([scoring.ASK]) + b"\0\0\0\5ab", scoring.ASK, 2, "telco")
    assert scoring.fields_of(scoring.message(scoring.ASK, number(1), b"p"), scoring.ASK, 2, "x") == [
        number(1),
        b"p",
    ]
