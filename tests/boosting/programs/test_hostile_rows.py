"""What any row, however hostile, adds to the integers that leave a party: at most the sensitivity of each."""

from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import shard_of, terms_of
from noisy_trainings import LOCAL, RANGES, data

from fedboost.boosting.programs import private
from fedboost.holders.whole_rows import HorizontalHolder

OBJECTIVES = {
    "binary:logistic": ("binary", {}, (0.0, 1.0)),
    "multi:softprob": ("classes", {"num_class": 3}, (0.0, 1.0, 2.0)),
    "reg:squarederror": ("number", {"label_range": (0, 100)}, (-1e30, 0.0, 50.0, 1e30)),
    "count:poisson": ("count", {"label_range": (0, 12)}, (0.0, 1.0, 12.0, 1e30)),
}


@cache
def training(objective):
    """Terms, and the queries of a training on 300 rows with noise."""
    kind, more, _ = OBJECTIVES[objective]
    X, y = data(kind, rows=300)
    terms = terms_of(X, 1, levels=(3, 8), ranges=RANGES, objective=objective, **LOCAL, **more)
    party, draw = HorizontalHolder(lambda: shard_of(X, y), terms), np.random.default_rng(1)
    program, queries, answer = private.train(terms, []), [], None
    with suppress(StopIteration):
        while True:
            queries.append(program.send(answer))
            answer, release = party.answer(queries[-1]), queries[-1].release(terms)
            answer += np.rint(draw.normal(0, release.share if release else 0, answer.size)).astype(np.int64)
    return terms, queries


def added(objective, cells, label):
    """The norm of what a row adds to each answer, in units of the sensitivity."""
    terms, queries = training(objective)
    party = HorizontalHolder(lambda: shard_of(np.float32([cells]), [label]), terms)
    answers = [(query.release(terms), party.answer(query).tolist()) for query in queries]
    return [np.sqrt(sum(x * x for x in own)) / release.sensitivity for release, own in answers if release]


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=50)
@given(data=st.data())
def test_no_row_adds_more_than_the_sensitivity(objective, data):
    cuts = training(objective)[1][1].cut_points.values
    number = st.floats(width=32) | st.sampled_from([*cuts.tolist(), np.nan])
    levels = (st.sampled_from([np.nan, *range(size)]) for size in (3, 8))
    cells = data.draw(st.tuples(number, number, number, *levels))
    assert max(added(objective, cells, data.draw(st.sampled_from(OBJECTIVES[objective][2])))) <= 1


def test_one_of_two_labels_comes_near_it():
    cells = [0.0, 1.0, 50.0, 1.0, 2.0]
    assert min(map(max, *(added("binary:logistic", cells, label) for label in (0.0, 1.0)))) > 0.999
