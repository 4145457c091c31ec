"""The codec loses nothing: what was said comes back."""

import dataclasses
import struct
from typing import get_args

import numpy as np
import pytest
from generated import (
    from_adder,
    from_party,
    queries,
    requests,
    terms,
    to_adder,
    to_party,
    train_events,
)
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from fedboost.boosting.queries import Query
from fedboost.gbdt.cut_points import CutPoints
from fedboost.protocol.adding import FromAdder, ToAdder
from fedboost.protocol.messages import Ask, FromParty, Offer, Report, ToParty
from fedboost.wire import codec
from fedboost.wire.messages import (
    TrainCommand,
    TrainRequest,
    decode_from_adder,
    decode_from_party,
    decode_to_adder,
    decode_to_party,
    decode_train_event,
    decode_train_request,
    encode_from_adder,
    encode_from_party,
    encode_to_adder,
    encode_to_party,
    encode_train_event,
    encode_train_request,
    size_from_party,
)
from fedboost.wire.v1 import fedboost_pb2 as pb


def same(one, other):
    """Equal in type and value; arrays by dtype and content, floats by their bits."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return one == other


@given(from_party)
def test_what_a_party_says_comes_back(message):
    data = encode_from_party(message)
    assert same(decode_from_party(data), message)
    assert size_from_party(message) == len(data)


@pytest.mark.parametrize("size", [0, 1, 90, 127, 128, 16_300, 16_383, 16_384, 524_296])
@pytest.mark.parametrize("others", [{}, {"note": b"n" * 200}, {"ctx": bytes(32), "part": 300}])
def test_the_size_of_a_report_is_known_without_encoding_it(size, others):
    report = Report(**{"turn": 1, "attempt": 2, "part": 0, **others}, cells=b"c" * size)
    assert size_from_party(report) == len(encode_from_party(report))


@given(to_party)
def test_what_the_aggregator_says_comes_back(message):
    back = decode_to_party(encode_to_party(message))
    assert same(back, message)
    if isinstance(message, Offer):
        assert back.terms.digest == message.terms.digest
        assert back.terms.columns.features == message.terms.columns.features


@given(from_adder)
def test_what_an_adder_sends_up_comes_back(frame):
    assert same(decode_from_adder(encode_from_adder(frame)), frame)


@given(to_adder)
def test_what_an_adder_hears_comes_back(frame):
    assert same(decode_to_adder(encode_to_adder(frame)), frame)


@given(train_events)
def test_what_an_analyst_hears_comes_back(event):
    assert same(decode_train_event(encode_train_event(event)), event)


@given(terms(), st.sampled_from(TrainCommand), requests)
def test_what_an_analyst_submits_comes_back(submitted, wish, request):
    data = encode_train_request(TrainRequest(submitted.canonical(), wish, request))
    assert decode_train_request(data) == (submitted.canonical(), wish, request)


def draws(strategy, kind):
    """Whether a strategy draws messages of this kind."""
    found = settings(max_examples=2000, phases=[Phase.generate], database=None)
    return type(find(strategy, lambda message: type(message) is kind, settings=found)) is kind


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [(from_party, FromParty), (to_party, ToParty), (from_adder, FromAdder), (to_adder, ToAdder)],
)
def test_every_message_of_a_session_comes_back(strategy, kinds):
    """The strategies of all directions have each kind of message."""
    assert all(draws(strategy, kind) for kind in get_args(kinds))


def test_every_query_comes_back():
    seen = set()

    @settings(max_examples=1000)
    @given(queries)
    def comes_back(query):
        asked = Ask(1, 1, b"a", query)
        assert same(decode_to_party(encode_to_party(asked)), asked)
        seen.add(type(query))

    comes_back()
    assert seen == set(get_args(Query))


@dataclasses.dataclass(frozen=True)
class Unbounded:
    """A message whose repeated field has no bound."""

    greetings: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A message with a field that protobuf does not have."""

    turn: int
    nickname: str


def test_a_field_that_may_repeat_needs_a_bound():
    with pytest.raises(TypeError, match="greetings may repeat, but has no bound"):
        codec.pair_of(Unbounded, pb.Introduce.DESCRIPTOR)


def test_a_field_needs_one_of_its_name():
    with pytest.raises(TypeError, match="lacks a field of type"):
        codec.pair_of(Unknown, pb.Ask.DESCRIPTOR)


def test_the_comparison_of_these_tests_sees_small_differences():
    cut = np.array([1.0], np.float32)
    cuts = CutPoints.of((cut,), (True,))
    assert not same(cuts, dataclasses.replace(cuts, values=cut.astype(np.float64)))
    assert not same((0.0,), (-0.0,))
    assert not same(Report(1, 1, 2, b"a"), Report(1, 1, 2, b"b"))
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
