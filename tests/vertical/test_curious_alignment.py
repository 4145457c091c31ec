"""Rows are matched by ids, and everybody keeps what it gets: what is in it, and what is not.

What is looked for is computed with the secrets of all parties, which nobody has; each test also finds
something there, so that it would find what must not be."""

import itertools
from functools import cache

import numpy as np
import pytest

from fedboost.boosting.queries.ids import PlacesQuery
from fedboost.holders.alignment import IDS, Alignment
from fedboost.privacy.points import POINT_BYTES, multiply, points_of, tokens_of
from fedboost.protocol import run
from fedboost.protocol.messages import Ask, Introduce, Relay
from fedboost.wire.messages import encode_from_party, encode_to_party
from tests.helpers.alignments import COMMON, PLACES, ROWS
from tests.helpers.apart_sessions import LOST, Apart, once, opening
from tests.helpers.columns_apart import LAYOUTS, pooled, scattered

PARTIES = ("bank", "telco", "shop")
Points = dict[str, bytes]


class Kept:
    """A session of three parties: what each of them got, and what the aggregator got and wrote down."""

    def __init__(self, down=None):
        written = {name: f"person {name:07}@example" for name in range(ROWS)}
        tables, _ = scattered(LAYOUTS["three holders"], pooled(ROWS), ids=[written.get])
        self.scalars, self.records = {}, []
        with pytest.MonkeyPatch.context() as patch:
            self._spy(patch)
            self.apart = Apart(tables=tables, down=down, **COMMON)
            journal = self.apart.session.run
            journal._record, journal.trees.durable = self.records.append, True
            self.apart.play()
        assert self.apart.session.phase == "done"
        self.ids = {party: [i.encode() for i in table["id"].to_pylist()] for party, table in tables.items()}

    def _spy(self, patch):
        init = Alignment.__init__

        def begin(alignment, terms, name, ids, secret):
            init(alignment, terms, name, ids, secret)
            self.scalars[name] = alignment._scalar

        patch.setattr(Alignment, "__init__", begin)
        self.opened = opening(patch)

    def lists(self, *parties):
        """The lists that these parties opened."""
        return [content for who, get, content in self.opened if who in parties and get.kind == IDS]

    def points(self, ids, parties=()) -> Points:
        """The point of each id times the secrets of these parties."""
        points = points_of(ids, self.apart.terms.digest.encode())
        for party in parties:
            points = multiply(points, self.scalars[party])
        starts = range(0, len(points), POINT_BYTES)
        return {row_id: points[at : at + POINT_BYTES] for row_id, at in zip(ids, starts, strict=True)}

    @property
    def everybody(self):
        """The ids of all parties."""
        return sorted(set().union(*self.ids.values()))

    @property
    def at_aggregator(self):
        """All bytes that the aggregator is sent, says or writes down."""
        up = [encode_from_party(m) for _, m in self.apart.sent if hasattr(m, "attempt")]
        down = [encode_to_party(message) for _, message in self.apart.told]
        return [*up, *down, *map(run.encode, self.records)]


@cache
def kept():
    return Kept()


def found(needles, hay):
    """Those that are anywhere in these bytes."""
    whole = b"\0".join(hay)
    return {needle for needle in needles if needle in whole}


def as_integers(tokens):
    """Tokens as the journal has them: eight bytes a word."""
    return [words.view(np.int32).astype("<i8").tobytes() for words in tokens]


def test_an_aggregator_keeps_no_id_and_no_point_of_one():
    one, hay = kept(), kept().at_aggregator
    assert any(isinstance(message, Relay) for _, message in one.apart.sent)
    assert not found(one.everybody, hay)
    for size in range(len(PARTIES) + 1):
        for parties in itertools.combinations(PARTIES, size):
            points = [*one.points(one.everybody, parties).values()]
            assert not found(points, hay), parties
            of_points = as_integers(tokens_of(b"".join(points)))
            expected = len(of_points) if parties == PARTIES else 0
            assert len(found(of_points, hay)) == expected, parties


def test_who_opens_relays_would_find_points():
    """The search of the test above, in what was sealed."""
    one = kept()
    hay = [content for *_, content in one.opened]
    assert len(found(one.points(one.ids["bank"], ["bank"]).values(), hay)) == len(one.ids["bank"])
    assert not found(one.points(one.everybody).values(), hay)


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_is_relayed_no_point_that_all_have_multiplied(party):
    one = kept()
    lists = one.lists(party)
    assert len(lists) == 2
    assert not found(one.points(one.everybody, PARTIES).values(), lists)
    assert not found(one.points(one.everybody, [party]).values(), lists)
    own = [name for name in PARTIES if name != party]
    assert found(one.points(one.everybody, own).values(), lists)


@pytest.mark.parametrize("party", PARTIES)
def test_with_its_own_secret_a_party_has_points_of_all_for_one_other_list_alone(party):
    """So of its own ids it knows the points of those that this other party has, too, and no others."""
    one = kept()
    mine = PARTIES.index(party)
    other = PARTIES[(mine + 1) % 3]
    lists = one.lists(party)
    multiplied = [multiply(content, one.scalars[party]) for content in lists]
    points = one.points(one.everybody, PARTIES)
    known = {row_id for row_id, point in points.items() if found([point], multiplied)}
    assert known == set(one.ids[other])
    assert set(one.ids[party]) - known


def test_lists_are_in_an_order_that_says_nothing_of_the_table():
    one = kept()
    (first, _) = one.lists("telco")
    order = one.points(one.ids["bank"], ["bank"])
    places = [first.index(point) // POINT_BYTES for point in order.values()]
    assert sorted(places) == [*range(len(places))]
    assert abs(np.corrcoef(places, np.arange(len(places)))[0, 1]) < 0.5


@pytest.mark.parametrize("restarted", [False, True])
def test_a_party_is_told_its_own_places_alone(restarted):
    lost = once(lambda party, m: party == "shop" and isinstance(m, Ask) and m.turn == 6, lambda m: LOST)
    apart = Kept(lost).apart if restarted else kept().apart
    whole = apart.session.run.state.places
    assert all(whole.sizes)
    for party, message in apart.told:
        number = PARTIES.index(party)
        told = None
        if isinstance(message, Ask) and message.turn == PLACES:
            told = message.query
        if isinstance(message, Introduce) and message.state.places is not None:
            told = message.state.places
        if told is not None:
            assert isinstance(told, PlacesQuery)
            assert (told.places == whole.of(number)).all()
            assert [place for place, size in enumerate(told.sizes) if size] == [number]
        bytes_of = encode_to_party(message)
        for place in range(len(PARTIES)):
            own = whole.of(place).astype("<i4").tobytes()
            assert (own in bytes_of) == (told is not None and place == number)
    again = [party for party, m in apart.told if isinstance(m, Introduce) and m.state.places is not None]
    assert set(again) == (set(PARTIES) if restarted else set())


def test_two_sessions_over_the_same_ids_have_no_point_and_no_token_in_common():
    one, two = kept(), Kept()
    assert one.apart.terms.digest == two.apart.terms.digest
    lists = [{piece for content in each.lists(*PARTIES) for piece in pieces(content)} for each in (one, two)]
    assert len(lists[0]) > 100
    assert not lists[0] & lists[1]
    tokens = [tokens_of(b"".join(each.points(each.everybody, PARTIES).values())) for each in (one, two)]
    assert not set(map(bytes, tokens[0])) & set(map(bytes, tokens[1]))


def pieces(content):
    return [content[at : at + POINT_BYTES] for at in range(0, len(content), POINT_BYTES)]
