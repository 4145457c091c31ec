"""Rows are matched by ids, and a party lies: the session ends with one line that says who and what, without a
model, and no message shows a point that is made of an id alone."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import fedboost as fb
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery
from fedboost.errors import Refused
from fedboost.holders.alignment import CHECK as CHECK_KIND
from fedboost.holders.alignment import IDS, Alignment
from fedboost.privacy.pairwise import sealed_size
from fedboost.privacy.points import POINT_BYTES, PRIME, TOKEN_WORDS
from fedboost.protocol import relaying
from fedboost.protocol.contracts import Send
from fedboost.protocol.messages import Ask, Relay, Report, digest_of_roster
from fedboost.terms.vertical import MOST_IDS
from fedboost.wire.codec import MAX_FROM_AGGREGATOR
from fedboost.wire.messages import encode_to_party
from tests.helpers.alignments import ALIGN, CHECK, FEWEST, PLACES, asking, matching, refused, tables_of
from tests.helpers.apart_sessions import one_line, sealing
from tests.helpers.columns_apart import LAYOUTS, matched, pooled, scattered
from tests.helpers.memories import reopening
from tests.vertical.test_hostile_party import add, play_spoilt


def lying(monkeypatch, change, number=1):
    """A list of points that party telco sends, the first or a later one, is changed."""
    seen = Counter()

    def list_of(party, send, ask):
        if (party, send.kind) != ("telco", IDS):
            return None
        seen[ask.attempt] += 1
        return change(send.content, ask) if seen[ask.attempt] == number else None

    sealing(monkeypatch, list_of)


def point(x):
    return x.to_bytes(POINT_BYTES, "little")


def first_is(points):
    return lambda content, ask: points + content[len(points) :]


def and_its_sum_with_a_small_point(content, ask):
    """x of P + (0, 0) is 1 / x."""
    first = int.from_bytes(content[:POINT_BYTES], "little")
    return content[:-POINT_BYTES] + point(pow(first, -1, PRIME))


OF = "the list of points of party telco contains "
BAD_LISTS = {
    "a cut list": (lambda content, ask: content[:-POINT_BYTES], "party telco relayed "),
    "a list cut within a point": (lambda content, ask: content[:-5], "party telco relayed "),
    "a longer list": (lambda content, ask: content + point(9), "party telco relayed "),
    "a doubled point": (
        lambda content, ask: 2 * content[:POINT_BYTES] + content[2 * POINT_BYTES :],
        OF + "a duplicate point",
    ),
    "a zero": (first_is(point(0)), OF + "a zero"),
    "a point beyond the prime": (first_is(point(PRIME + 9)), OF + "a number that is not below the prime"),
    "a point with its highest bit": (
        first_is(point(9 + (1 << 255))),
        OF + "a number that is not below the prime",
    ),
    "a point of order 4": (first_is(point(1)), OF + "a point of small order, whose product is zero"),
    "a point of small order of the twist": (
        first_is(point(PRIME - 1)),
        OF + "a point of small order, whose product is zero",
    ),
    "two points with one product": (and_its_sum_with_a_small_point, OF + "a duplicate point"),
}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("lie", BAD_LISTS)
def test_a_list_that_cannot_be_is_refused_by_the_party_that_gets_it(monkeypatch, lie, number):
    change, says = BAD_LISTS[lie]
    lying(monkeypatch, change, number=number)
    apart = matching()
    error = refused(apart)
    assert error.startswith(f"party shop left: {says}")
    assert apart.session.turn == ALIGN


def test_a_list_of_other_ids_in_the_place_of_another_partys_makes_no_model(monkeypatch):
    """A party passes its own list on again as that of the label holder."""
    own = []

    def again(content, ask):
        own.append(content)
        more = b"".join(point(4 + n) for n in range(len(content) // POINT_BYTES))
        return (own[0] + more)[: len(content)]

    for number in (1, 2):
        lying(monkeypatch, again, number=number)
    assert "have only 0 rows in common" in refused(matching())


def test_a_list_more_behind_the_last_is_refused(monkeypatch):

    def tokens(self, query):
        answer = yield from honest_tokens(self, query)
        if self._me == "telco":
            yield Send(IDS, ("shop",), bytes(POINT_BYTES * 3), 3)
        return answer

    honest_tokens = Alignment.tokens
    monkeypatch.setattr(Alignment, "tokens", tokens)
    says = "party telco broke the protocol: it relayed bytes to party shop, which has already answered turn 2"
    assert refused(matching()) == says


def test_a_list_more_at_the_second_hop_makes_no_model(monkeypatch):
    """It is read in the place of the one that is due."""

    def tokens(self, query):
        if self._me == "telco":
            yield Send(IDS, ("shop",), self._blinded(), 0)
        return (yield from honest_tokens(self, query))

    honest_tokens = Alignment.tokens
    monkeypatch.setattr(Alignment, "tokens", tokens)
    assert "have only 0 rows in common" in refused(matching())


# ---- answers of a hostile party -------------------------------------------------------------------------


def spoilt_answer(kind, change, party="telco"):
    return refused(play_spoilt(matching, party, lambda query: isinstance(query, kind), change))


def tokens_at(party, change):
    """A change of the tokens of the ids of a party, as they were reported."""
    begin = 0
    for name in ("bank", "telco", "shop"):
        size = TOKEN_WORDS * tables_of("three holders")[name].num_rows
        if name == party:
            break
        begin += size

    def of_cells(cells):
        tokens = cells[begin : begin + size].reshape(-1, TOKEN_WORDS)
        tokens[:] = change(tokens.copy())

    return of_cells


TWICE = "turn 2: row ids of parties bank, telco, shop: list {} of 3 contains a duplicate token"
BAD_TOKENS = {
    "others": ("shop", lambda tokens: tokens + 1, "have only 0 rows in common"),
    "none": ("shop", lambda tokens: 0 * tokens, TWICE.format(3)),
    "one twice": ("shop", lambda tokens: tokens[[0, *range(len(tokens) - 1)]], TWICE.format(3)),
    "in another order": ("shop", lambda tokens: tokens[::-1], CHECK),
    "of another party": ("bank", lambda tokens: tokens + 1, "have only 0 rows in common"),
}


@pytest.mark.parametrize("lie", BAD_TOKENS)
def test_tokens_that_are_not_those_of_the_list_make_no_model(lie):
    party, change, says = BAD_TOKENS[lie]
    assert says in spoilt_answer(AlignQuery, tokens_at(party, change))


def test_a_count_of_ids_that_is_not_that_of_a_party_is_refused_by_it():
    sizes = [tables_of("three holders")[party].num_rows for party in ("bank", "telco", "shop")]
    for place, party in enumerate(("bank", "telco", "shop")):
        error = spoilt_answer(IdCountQuery, add(place, 2))
        assert error == (
            f"party {party} left: the query has {sizes[place] + 2} row ids for this party, "
            f"which has {sizes[place]}"
        )


def test_a_count_of_ids_that_cannot_be_names_its_party():
    for by in (-(10**6), 10**9):
        error = spoilt_answer(IdCountQuery, add(1, by))
        assert error.startswith("party telco submits ")
        assert "row ids, but the terms allow only 1 to 10,000,000" in error


def test_a_label_holder_with_another_number_of_rows_is_refused():
    error = spoilt_answer(PlacesQuery, add(0, 1), "bank")
    assert error.startswith("turn 3: the row counts of the label holders do not sum to the ")


def test_a_check_value_of_other_ids_is_refused(monkeypatch):
    def other(party, send, ask):
        return send.content[:-1] + bytes([send.content[-1] ^ 1]) if send.kind == CHECK_KIND else None

    sealing(monkeypatch, other)
    apart = matching()
    assert CHECK in refused(apart)
    assert not [report for report in apart.said(Report, "telco") if report.turn == PLACES]


# ---- lists that are too long ----------------------------------------------------------------------------


def test_more_ids_than_the_terms_allow_are_refused_by_each_party():
    """Whatever the aggregator thinks of them."""

    most = max(table.num_rows for table in tables_of("three holders").values()) - 1
    apart = matching(program=asking(), max_ids=most)
    refused(apart)
    reasons = {apart.left(party) for party in apart.terms.parties} - {None}
    assert reasons
    assert all("row ids, but the terms allow only 1 to" in reason for reason in reasons)
    assert not apart.said(Relay)


def test_more_ids_than_a_session_can_match_are_one_line():
    terms = matching(max_ids=14_000_000).terms
    with pytest.raises(Refused) as raised:
        AlignQuery((14_000_000, 14_000_000, 14_000_000)).check(terms)
    assert str(raised.value) == (
        "the parties submit 42,000,000 row ids in total, but a session can match at most 33,554,432; remove "
        "rows that no other party can have"
    )


def test_places_of_as_many_rows_as_there_can_be_fit_in_a_message():
    """And an eighth of it is left for all else that a party is told when it comes back."""
    query = PlacesQuery(MOST_IDS, (MOST_IDS, 0), np.arange(MOST_IDS))
    message = encode_to_party(Ask(PLACES, 1, digest_of_roster(("bank", "telco")), query))
    assert len(message) < MAX_FROM_AGGREGATOR * 7 / 8
    with pytest.raises(fb.ConfigError, match="max_ids"):
        matching(max_ids=MOST_IDS + 1)


@pytest.mark.parametrize("parties", [2, 3, 20, 100])
@pytest.mark.parametrize("ids", [1, 1000])
@pytest.mark.parametrize("length", [1, 60])
def test_all_lists_of_a_ring_may_be_relayed_in_one_turn_and_little_more(parties, ids, length):
    names = [f"{number:x<{length}}"[:length] if length > 3 else f"{number}" for number in range(parties)]
    block = SimpleNamespace(parties=names)
    terms = SimpleNamespace(
        xgb_model=None,
        vertical=SimpleNamespace(repeated_ids=False),
        blocks=SimpleNamespace(of=lambda party: block),
    )
    query, state = AlignQuery((ids,) * parties), SimpleNamespace(position=SimpleNamespace(started=False))
    needed = sum(sealed_size(POINT_BYTES * ids, names[1:2]) for _ in range(parties - 1))
    assert needed <= relaying.max_relayed(terms, names[0], query, query.rows, state) < 2 * needed + 4096


@pytest.mark.parametrize(("after", "attempts"), [(2.9, 1), (3.1, 2)])
def test_each_party_of_a_ring_has_the_time_of_a_turn(after, attempts):
    """A list of a million ids takes each of them half a minute, one after the other."""

    def up(party, message):
        if (party, type(message)) == ("shop", Relay) and message.turn == ALIGN and not late:
            late.append(party)
            apart.waiting.extend(apart.session.tick(after * apart.terms.session.turn_timeout))
        return None

    late, apart = [], matching(up=up)
    apart.play()
    assert late
    assert (apart.session.phase, apart.session.attempt) == ("done", attempts)


def test_a_block_with_too_few_rows_in_common_is_named():
    layout, table = LAYOUTS["blocks"], pooled(200)
    tables = dict(scattered(layout, table)[0])
    tables["telco2"] = tables["telco2"].slice(0, 5)
    with pytest.raises(fb.FedboostError) as raised:
        fb.simulate(matched(layout, min_common_rows=FEWEST), tables)
    assert one_line(str(raised.value)).startswith("parties bank2, telco2 have ")


# ---- memories -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_another_list_is_refused_when_the_question_is_asked_again(monkeypatch, tmp_path, on_disk):
    """The party that got the first one was killed, and knows it by what it wrote down."""
    lying(
        monkeypatch,
        lambda content, ask: content[POINT_BYTES:] + content[:POINT_BYTES] if ask.attempt > 1 else content,
    )
    memory = reopening(tmp_path / "memory", "shop") if on_disk else dict
    apart = matching(memories={"shop": memory()["memory"]} if on_disk else {}).dying("shop", ALIGN, memory)
    says = "party shop left: party telco changed what it relays (blinded row ids) in turn 2"
    assert refused(apart) == says
    assert not [report for report in apart.said(Report, "shop") if report.turn == ALIGN]


def test_the_same_list_is_taken_when_the_question_is_asked_again(tmp_path):
    memory = reopening(tmp_path / "memory", "shop")
    apart = matching(memories={"shop": memory()["memory"]}).dying("shop", ALIGN, memory).play()
    assert (apart.session.phase, apart.session.attempt) == ("done", 2)
    assert apart.session.booster == matching().play().session.booster
