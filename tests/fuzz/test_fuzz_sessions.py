"""Damaged messages in the middle of real trainings: they end, and never with another model."""

import random
from dataclasses import replace

import pytest
from captured import TRAININGS
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import mutate
from sessions import train

from fedboost.errors import SessionFailed
from fedboost.wire.messages import decode_to_party, encode_to_party

draws = st.integers(0, 2**32).map(random.Random)
clean = {}


def undamaged(name):
    """The same training without damage, made once."""
    if name not in clean:
        clean[name] = train(name)
    return clean[name]


def check(name, damage):
    training = train(name, damage)
    aggregator = training.aggregator
    assert aggregator.awaited == ()
    if aggregator.error is not None:
        assert isinstance(aggregator.error, SessionFailed)
        assert str(aggregator.error).isprintable()
        return None
    assert training.model is not None
    all_signed = set(aggregator.attestations) == set(aggregator.terms.parties)
    if all_signed and not training.lied:
        assert training.model == undamaged(name).model
    return training.model


CHEAP = [name for name in TRAININGS if name != "hidden"]
"""Trainings without encryption, which takes a second each time."""


@pytest.mark.parametrize("name", TRAININGS)
def test_without_damage_there_is_a_model_that_all_attest(name):
    training = undamaged(name)
    assert training.aggregator.error is None
    assert set(training.aggregator.attestations) == set(training.parties)
    assert all(session.ended == "" for session in training.parties.values())
    assert check(name, lambda way, number, data: data) == training.model


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
@settings(max_examples=40)
@given(draw=draws)
def test_one_damaged_message(name, draw):
    way = draw.choice(("up", "down"))
    place = draw.randrange(len(undamaged(name).delivered[way]))
    seen = []

    def damage(at, number, data):
        seen.append(data)
        return mutate(draw, data, tuple(seen[-20:])) if (at, number) == (way, place) else data

    check(name, damage)


@pytest.mark.parametrize("name", CHEAP)
@settings(max_examples=10)
@given(draw=draws)
def test_many_damaged_messages(name, draw):
    check(name, lambda way, number, data: mutate(draw, data) if draw.random() < 0.05 else data)


def test_a_name_that_would_write_lines_of_its_own_into_a_sites_log():
    """`heard` of `sessions` looks at the reason."""
    damaged = []

    def damage(way, number, data):
        changed = data.replace(b"\0\0\0\x02p1", b"\0\0\0\x02p\n") if way == "down" else data
        damaged.extend([changed] * (changed != data))
        return changed

    assert check("masked", damage) is None
    assert damaged


@pytest.mark.parametrize("value", [1e39, -1e200])
@pytest.mark.parametrize("name", TRAININGS)
def test_leaf_values_whose_squares_are_beyond_float64(name, value):
    """They are finite, and a warning of numpy's is an error here."""
    damaged = []

    def damage(way, number, data):
        message = decode_to_party(data) if way == "down" else None
        query = getattr(message, "query", None)
        if not getattr(query, "values", ()):
            return data
        damaged.append(number)
        values = tuple((node, value) for node, _ in query.values)
        return encode_to_party(replace(message, query=replace(query, values=values)))

    assert check(name, damage) is None
    assert damaged
