"""Whatever bytes come: a message that travels on as it came, or an error made for it; and little memory."""

import json
import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from captured import DECODERS, ENCODERS, corpus, terms_of
from hypothesis import given
from hypothesis import strategies as st
from mutants import bombs, mutate, text_bombs

from fedboost.boosting.queries.labels import StartQuery
from fedboost.errors import ConfigError, PeerError
from fedboost.gbdt.cut_points import CutPoints
from fedboost.wire.messages import TrainRequest, decode_to_party, encode_to_party, encode_train_request

ERRORS = dict.fromkeys(("train_request", "check_request"), (PeerError, ConfigError))
draws = st.integers(0, 2**32).map(random.Random)


def decode(kind, data):
    """The message, or None if it is refused in one line; anything else that is raised fails the test."""
    try:
        return DECODERS[kind](data)
    except ERRORS.get(kind, PeerError) as error:
        why = str(error)
    assert why.isprintable()
    return None


def check(kind, data):
    message = decode(kind, data)
    if message is None:
        return False
    again = ENCODERS[kind](message)
    assert ENCODERS[kind](DECODERS[kind](again)) == again
    return True


@pytest.mark.parametrize("kind", DECODERS)
def test_what_was_captured_is_read_and_written_the_same(kind):
    assert len(corpus()[kind]) >= 4
    for data in corpus()[kind]:
        assert ENCODERS[kind](DECODERS[kind](data)) == data


@pytest.mark.parametrize("kind", DECODERS)
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes(kind, data):
    check(kind, data)


@pytest.mark.parametrize("kind", DECODERS)
@given(draw=draws)
def test_damaged_real_messages(kind, draw):
    messages = corpus()[kind]
    check(kind, mutate(draw, draw.choice(messages), messages))


def test_damage_reaches_both_ends_of_the_codec():
    """Else these tests would test protobuf alone."""
    draw, messages = random.Random(1), corpus()["to_party"]
    read = sum(check("to_party", mutate(draw, draw.choice(messages), messages)) for _ in range(500))
    assert 50 < read < 450


# ---- memory -----------------------------------------------------------------------------------------

BOMB = 1 << 20
AT_MOST = 48
"""Bytes of Python's memory for each byte of a message of this size. Protobuf takes some 20 more."""


TERMS = terms_of("plain").canonical()
PARTIES = '"parties":["p0","p1"]'


def peak(kind, data):
    """The most memory that Python had while it decoded this, over what it had before."""
    tracemalloc.start()
    try:
        decode(kind, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "kind",
    [
        "from_party",
        pytest.param("to_party", marks=pytest.mark.slow),
        *("train_event", "objections", "check_reply", "status"),
    ],
)
def test_no_message_takes_much_more_memory_than_it_has_bytes(kind):
    by_path = {path: bomb for data in corpus()[kind] for path, bomb in bombs(data, BOMB)}
    assert len(by_path) > (1 if kind == "objections" else 5)
    for path, bomb in by_path.items():
        assert peak(kind, bomb) < AT_MOST * len(bomb), path


@pytest.mark.slow
@pytest.mark.parametrize("little", ['""', "1", "[]"])
def test_a_list_of_a_million_faults_is_refused_at_the_first(little):
    assert PARTIES in TERMS
    text = TERMS.replace(PARTIES, '"parties":[' + ",".join([little] * (BOMB // (len(little) + 1))) + "]")
    assert peak("train_request", encode_train_request(TrainRequest(text))) < AT_MOST * len(text)


@pytest.mark.slow
def test_no_terms_take_much_more_memory_than_they_have_characters():
    for text in text_bombs(json.loads(TERMS), BOMB):
        assert peak("train_request", encode_train_request(TrainRequest(text))) < AT_MOST * len(text), text[
            :300
        ]


def test_cut_points_may_lie_as_far_apart_as_float32_allows():
    """Their difference is beyond float32: no warning, and no refusal."""
    for data in corpus()["to_party"]:
        message = decode_to_party(data)
        if isinstance(query := getattr(message, "query", None), StartQuery):
            break
    largest = np.finfo(np.float32).max
    far = CutPoints.of((np.array([-largest, largest], np.float32),), (False,))
    asked = replace(message, query=replace(query, cut_points=far))
    assert check("to_party", encode_to_party(asked))
