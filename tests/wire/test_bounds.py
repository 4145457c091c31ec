"""Decoding is total: any bytes give a message or a PeerError."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from captured import read_check_request, read_train_request
from generated import from_adder, from_party, terms, to_adder, to_party, train_events, u32, u64
from hypothesis import given
from hypothesis import strategies as st
from raised import raised

from fedboost.boosting.queries.base import MAX_NODES
from fedboost.errors import ConfigError, PeerError
from fedboost.gbdt.metrics import METRICS
from fedboost.protocol.adding import MAX_NAME, MAX_SEGMENTS
from fedboost.protocol.messages import MAX_GREETING, PART_BYTES, Join, Relay, Report
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms
from fedboost.wire.codec import MAX_FRAME, MAX_FROM_AGGREGATOR, MAX_TO_AGGREGATOR
from fedboost.wire.messages import (
    MAX_MEMBERS,
    MAX_OBJECTIONS,
    MAX_SENTENCE_LENGTH,
    MAX_SENTENCES,
    MAX_SESSIONS,
    Objections,
    TrainRequest,
    decode_check_reply,
    decode_from_adder,
    decode_from_party,
    decode_objections,
    decode_review,
    decode_status,
    decode_to_adder,
    decode_to_party,
    decode_train_event,
    encode_from_adder,
    encode_from_party,
    encode_objections,
    encode_to_adder,
    encode_to_party,
    encode_train_event,
    encode_train_request,
)
from fedboost.wire.v1 import fedboost_pb2 as pb

ROOT = Path(__file__).parents[2]
TERMS = Terms.read({"columns": {"label": "y", "numeric": ["x"]}, "parties": ["a", "b", "c"]})
DECODERS = {
    "from_party": (decode_from_party, (PeerError,)),
    "to_party": (decode_to_party, (PeerError,)),
    "train_event": (decode_train_event, (PeerError,)),
    "train_request": (read_train_request, (PeerError, ConfigError)),
    "check_request": (read_check_request, (PeerError, ConfigError)),
    "review": (decode_review, (PeerError,)),
    "objections": (decode_objections, (PeerError,)),
    "check_reply": (decode_check_reply, (PeerError,)),
    "status": (decode_status, (PeerError,)),
    "from_adder": (decode_from_adder, (PeerError,)),
    "to_adder": (decode_to_adder, (PeerError,)),
}


def decode_or_refuse(kind, data):
    """Whatever else is raised fails the test."""
    decode, errors = DECODERS[kind]
    try:
        decode(data)
    except errors:
        return "refused"
    return "message"


@pytest.mark.parametrize("kind", DECODERS)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_refusal(kind, data):
    decode_or_refuse(kind, data)


@st.composite
def damaged(draw, valid):
    """A message with some bytes changed, taken out, doubled or cut off."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "remove", "insert", "cut", "double"])):
            case "change" if place < len(data):
                data[place] = draw(st.integers(0, 255))
            case "remove":
                del data[place : place + draw(st.integers(1, 8))]
            case "insert":
                data[place:place] = draw(st.binary(min_size=1, max_size=8))
            case "cut":
                del data[place:]
            case "double":
                data += data[place:]
    return bytes(data)


MESSAGES = {
    "from_party": from_party.map(encode_from_party),
    "to_party": to_party.map(encode_to_party),
    "train_event": train_events.map(encode_train_event),
    "from_adder": from_adder.map(encode_from_adder),
    "to_adder": to_adder.map(encode_to_adder),
    "train_request": terms().map(lambda t: encode_train_request(TrainRequest(t.canonical()))),
}


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
def test_damaged_messages_are_refused_at_most(kind, data):
    decode_or_refuse(kind, data.draw(damaged(MESSAGES[kind])))


def uint32s(numbers):
    return np.array(numbers, "<u4").tobytes()


def float32s(numbers):
    return np.array(numbers, "<f4").tobytes()


any_scale = st.builds(pb.Scale, exponent=st.integers(-(2**31), 2**31 - 1), bits=u32)
any_query = st.one_of(
    st.builds(
        lambda **q: pb.Ask(quantiles=pb.QuantileQuery(**q)),
        rows=u64,
        sizes=st.lists(st.integers(0, 2), max_size=3).map(uint32s),
        starts=st.lists(u32, max_size=4).map(uint32s) | st.binary(max_size=9),
        widths=st.binary(max_size=4),
        subdivisions=st.binary(max_size=4),
        weight=st.none() | any_scale,
    ),
    st.builds(
        lambda **q: pb.Ask(start=pb.StartQuery(**q)),
        rows=u64,
        sizes=st.lists(st.integers(0, 2), max_size=3).map(bytes),
        cuts=st.lists(st.floats(width=32), max_size=4).map(float32s) | st.binary(max_size=9),
        kinds=st.lists(st.integers(0, 4), max_size=3).map(bytes),
        gradient=any_scale,
        hessian=any_scale,
    ),
    st.builds(
        lambda **q: pb.Ask(histograms=pb.HistogramQuery(**q)),
        rows=u64,
        tree=u32,
        nodes=st.lists(u32, max_size=3),
        bins=u32,
        gradient=any_scale,
        hessian=any_scale,
        widths=st.binary(max_size=7),
        elected=st.lists(
            st.builds(lambda **e: pb.Elected(**e), features=st.lists(u32, max_size=3), bins=u32), max_size=3
        ),
    ),
    st.builds(
        lambda **q: pb.Ask(votes=pb.VoteQuery(**q)),
        rows=u64,
        tree=u32,
        nodes=st.lists(u32, max_size=3),
        features=u32,
        parties=u32,
        gradient=any_scale,
        hessian=any_scale,
    ),
    st.builds(
        lambda **q: pb.Ask(residuals=pb.ResidualQuery(**q)),
        rows=u64,
        tree=st.integers(-(2**31), 2**31 - 1),
        nodes=st.lists(u32, max_size=3),
        starts=st.lists(u32, max_size=3),
        width=u32,
        weight=any_scale,
    ),
    st.builds(
        lambda **q: pb.Ask(end_round=pb.EndRoundQuery(**q)),
        rows=u64,
        tree=st.integers(-(2**31), 2**31 - 1),
        metrics=st.lists(st.sampled_from([*METRICS, "auc2", "error@", "error@nan", "auc@1", ""]), max_size=2),
        weight=any_scale,
    ),
)


@given(any_query)
def test_queries_of_any_numbers_give_a_message_or_a_refusal(ask):
    decode_or_refuse("to_party", pb.ToParty(ask=ask).SerializeToString())


@given(st.text(alphabet='{}[]":,0123456789.eE+-truefalsn \\"uxd8', max_size=60))
def test_terms_of_any_text_give_a_message_or_a_refusal(text):
    decode_or_refuse("train_request", pb.TrainRequest(terms=text).SerializeToString())
    decode_or_refuse("to_party", pb.ToParty(admit=pb.Offer(terms=text)).SerializeToString())


SCALE = pb.Scale(exponent=0, bits=16)


def grids(sizes=(), starts=(), widths=b"", subdivisions=b""):
    sizes = sizes if isinstance(sizes, bytes) else uint32s(sizes)
    columns = {"starts": uint32s(starts), "widths": widths, "subdivisions": subdivisions}
    return pb.Ask(quantiles=pb.QuantileQuery(rows=1, sizes=sizes, **columns))


def start(sizes, cuts=(), kinds=b"\0"):
    cuts = cuts if isinstance(cuts, bytes) else float32s(cuts)
    features = {"sizes": sizes, "cuts": cuts, "kinds": kinds}
    return pb.Ask(start=pb.StartQuery(rows=1, **features, gradient=SCALE, hessian=SCALE))


BAD_ASKS = {
    "no rows": pb.Ask(quantiles=pb.QuantileQuery(rows=0)),
    "too many rows": pb.Ask(quantiles=pb.QuantileQuery(rows=1 << 48)),
    "half a number of cells": grids(sizes=b"\1"),
    "columns of a grid": grids([2], [1, 9], b"\x01", b"\1"),
    "sizes of grids": grids([3], [1, 9], b"\x01\x01", b"\1\1"),
    "a cell cut finer than keys": grids([1], [0], b"\x01", b"\2"),
    "a cell wider than all keys": grids([1], [0], b"\x21", b"\0"),
    "cells that overlap": grids([2], [0, 1], b"\x01\x01", b"\0\0"),
    "cells of a later feature that overlap": grids([1, 2], [5, 0, 1], b"\0\x01\x01", b"\0\0\0"),
    "cells beyond the last key": grids([1], [2], b"\x20", b"\0"),
    "too many subcells": grids([1], [0], b"\x20", b"\x18"),
    "too many grids": grids([0] * (MAX_FEATURES + 1)),
    "half a cut point": start(b"\1", cuts=b"\0\0"),
    "cut points that fall": start(b"\2", [2, 1]),
    "equal cut points": start(b"\2", [1, 1]),
    "cut points of a later feature that fall": start(b"\1\2", [7, 2, 1], b"\0\0"),
    "a cut point that is no number": start(b"\1", [float("nan")]),
    "more cut points than features have": start(b"\1", [1, 2]),
    "fewer cut points than features have": start(b"\3", [1, 2]),
    "a feature without a kind": start(b"\1\1", [1, 2]),
    "a feature of an unknown kind": start(b"\1", [1], b"\4"),
    "too many features": start(bytes(MAX_FEATURES + 1), kinds=bytes(MAX_FEATURES + 1)),
    "weights of a scale without bits": pb.Ask(
        quantiles=pb.QuantileQuery(rows=1, weight=pb.Scale(exponent=1))
    ),
    "a scale without bits": pb.Ask(start=pb.StartQuery(rows=1, gradient=SCALE)),
    "a scale beyond float64": pb.Ask(
        start=pb.StartQuery(rows=1, gradient=pb.Scale(exponent=257, bits=1), hessian=SCALE)
    ),
    "a tree before the constant": pb.Ask(end_round=pb.EndRoundQuery(rows=1, tree=-2, weight=SCALE)),
    "an unknown metric": pb.Ask(end_round=pb.EndRoundQuery(rows=1, metrics=["luck"], weight=SCALE)),
    **{
        what: pb.Ask(end_round=pb.EndRoundQuery(rows=1, splits=pb.Splits(**columns), weight=SCALE))
        for what, columns in {
            "more levels than there can be": {"columns": bytes(20), "categories": bytes(33)},
            "levels of no split": {"categories": bytes(32)},
            "a split that ends within": {"columns": bytes(19)},
            "a split of no node": {"columns": b"\xff" * 4 + bytes(16)},
            "missing values that go nowhere": {"columns": bytes(12) + b"\x02" + bytes(7)},
            "more splits than a tree has": {"columns": bytes(20 * (MAX_NODES + 1))},
        }.items()
    },
    "an empty query": pb.Ask(turn=1),
}


@pytest.mark.parametrize("ask", BAD_ASKS.values(), ids=BAD_ASKS)
def test_values_out_of_range_are_refused(ask):
    with pytest.raises(PeerError):
        decode_to_party(pb.ToParty(ask=ask).SerializeToString())


@pytest.mark.parametrize("kind", DECODERS)
def test_messages_over_the_limit_are_refused_unread(kind):
    to_aggregator = dict.fromkeys(("from_party", "train_request", "check_request"), MAX_TO_AGGREGATOR)
    frames = {"from_adder": MAX_TO_AGGREGATOR + MAX_FRAME, "to_adder": MAX_FROM_AGGREGATOR + MAX_FRAME}
    own = {**to_aggregator, **frames, "objections": MAX_OBJECTIONS}
    limit = own.get(kind, MAX_FROM_AGGREGATOR)
    decode, _ = DECODERS[kind]
    with pytest.raises(PeerError, match=f"{limit + 1} bytes, but at most {limit} are allowed"):
        decode(bytes(limit + 1))


def test_a_greeting_that_would_not_fit_into_what_all_parties_hear_is_refused():
    fits = Join("s", "d", 1, bytes(MAX_GREETING))
    assert decode_from_party(encode_from_party(fits)) == fits
    longer = encode_from_party(Join("s", "d", 1, bytes(MAX_GREETING + 1)))
    with pytest.raises(PeerError, match="greeting"):
        decode_from_party(longer)


@pytest.mark.parametrize("way", ["from_party", "to_party"])
def test_a_part_of_a_relay_has_a_largest_size_and_so_many_receivers(way):
    decode = {"from_party": decode_from_party, "to_party": decode_to_party}[way]
    encode = {"from_party": encode_from_party, "to_party": encode_to_party}[way]
    everybody = tuple(f"p{i}" for i in range(MAX_PARTIES))
    largest = Relay(2**32 - 1, 2**32 - 1, 2**32 - 1, bytes(PART_BYTES), False, everybody, "p0")
    assert decode(encode(largest)) == largest
    with pytest.raises(PeerError, match=f"bytes in this part of the relay is {PART_BYTES + 1};"):
        decode(encode(replace(largest, content=bytes(PART_BYTES + 1))))
    with pytest.raises(PeerError, match=f"number of parties is {MAX_PARTIES + 1};"):
        decode(encode(replace(largest, to=(*everybody, "one more"))))


def test_the_largest_part_of_a_report_is_far_below_the_limit():
    part = encode_from_party(Report(2**32 - 1, 2**32 - 1, 2**32 - 1, bytes(8 << 16)))
    assert len(part) < MAX_TO_AGGREGATOR / 2


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "null", "[]", "1", "", '"\ud7ff'])
def test_terms_that_are_no_terms_are_refused(text):
    assert decode_or_refuse("train_request", pb.TrainRequest(terms=text).SerializeToString()) == "refused"
    admit = pb.ToParty(admit=pb.Offer(terms=text))
    assert decode_or_refuse("to_party", admit.SerializeToString()) == "refused"


def test_names_without_text_of_their_own_are_refused():
    """A lone surrogate has no UTF-8: it could not travel on, nor be printed."""
    half = TERMS.canonical().replace('"a"', '"\\ud800"')
    assert decode_or_refuse("train_request", pb.TrainRequest(terms=half).SerializeToString()) == "refused"


@pytest.mark.parametrize(
    "kind",
    ["from_party", "to_party", "train_event", "train_request", "check_request", "from_adder", "to_adder"],
)
def test_nothing_at_all_is_refused(kind):
    assert decode_or_refuse(kind, b"") == "refused"


def test_messages_of_a_newer_version_are_refused():
    unknown = pb.FromParty()
    unknown.ParseFromString(b"\xfa\x07\x03abc")  # field 127
    decoders = decode_from_party, decode_to_party, decode_train_event, decode_from_adder, decode_to_adder
    for decode in decoders:
        with raised(PeerError, "wire-unknown-message"):
            decode(unknown.SerializeToString())


def test_the_committed_generated_code_is_that_of_the_proto(tmp_path):
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")
    proto = "fedboost/wire/v1/fedboost.proto"
    command = ["-m", "grpc_tools.protoc", "-Iprotos", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, *command, f"protos/{proto}"], cwd=ROOT, check=True, timeout=60)
    for suffix in ("_pb2.py", "_pb2.pyi"):
        file = proto.replace(".proto", suffix)
        fresh, committed = (tmp_path / file).read_text(), (ROOT / file).read_text()
        versions = [re.findall(r"Protobuf Python Version: (\S+)", text) for text in (fresh, committed)]
        if versions[0] != versions[1]:
            pytest.skip(f"this protoc generates for protobuf {versions[0]}, committed is {versions[1]}")
        assert fresh == committed, f"{file} is stale: make protos"


def test_a_site_cuts_its_sentences_to_what_is_allowed():
    odd = Objections(7, ("\x1b[2J" * 1000, *["why"] * 200), ("\N{PILE OF POO}" * 2000,) * 100)
    data = encode_objections(odd)
    assert len(data) <= MAX_OBJECTIONS
    read = decode_objections(data)
    assert (read.number, len(read.reasons), len(read.notes)) == (7, MAX_SENTENCES, MAX_SENTENCES)
    assert all(len(text) <= MAX_SENTENCE_LENGTH and text.isprintable() for text in read.reasons + read.notes)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("objections", pb.Objections(reasons=["no"] * (MAX_SENTENCES + 1))),
        ("objections", pb.Objections(notes=["x" * (MAX_SENTENCE_LENGTH + 1)])),
        ("objections", pb.Objections(reasons=["x" * MAX_OBJECTIONS])),
        ("check_reply", pb.CheckReply(sites=[pb.SiteReply()] * (MAX_PARTIES + 1))),
        ("check_reply", pb.CheckReply(sites=[pb.SiteReply(reasons=["no"] * (MAX_SENTENCES + 1))])),
        ("status", pb.StatusReply(members=[pb.Member()] * (MAX_MEMBERS + 1))),
        ("status", pb.StatusReply(sessions=[pb.SessionStatus()] * (MAX_SESSIONS + 1))),
        ("status", pb.StatusReply(sessions=[pb.SessionStatus(parties=["p"] * (MAX_PARTIES + 1))])),
        ("status", pb.StatusReply(sessions=[pb.SessionStatus(state=9)])),
        ("train_event", pb.TrainEvent(waiting=pb.Waiting(absent=[pb.Absence()] * (MAX_PARTIES + 1)))),
        ("from_adder", pb.FromAdder(here=pb.Here(number=1))),
        ("from_adder", pb.FromAdder(here=pb.Here(number=1, party="n" * (MAX_NAME + 1)))),
        ("from_adder", pb.FromAdder(sum=pb.RegionSum(ctx=b"short"))),
        ("from_adder", pb.FromAdder(sum=pb.RegionSum(sizes=[1] * (MAX_PARTIES + 1)))),
        ("from_adder", pb.FromAdder(held=pb.Held(numbers=[1] * (MAX_PARTIES + 1)))),
        ("to_adder", pb.ToAdder(to=pb.To(numbers=[1] * (MAX_PARTIES + 1)))),
        (
            "to_adder",
            pb.ToAdder(to=pb.To(adds=pb.Addition(segments=[pb.Segment()] * (MAX_SEGMENTS + 1)))),
        ),
    ],
)
def test_more_than_there_can_be_is_refused(kind, message):
    assert decode_or_refuse(kind, message.SerializeToString()) == "refused"
