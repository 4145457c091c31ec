"""What the sums of a session may take at the aggregator: bounds before anything is allocated."""

import dataclasses

import numpy as np
import pytest
from raised import raised

from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.state import GIB, check_terms, within
from fedboost.errors import Refused, TreeAborted
from fedboost.fixedpoint import UNIT
from fedboost.gbdt.cut_points import Grids
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.terms.terms import Terms

DEFAULT = 4 * GIB


def terms(columns=1, **settings):
    names = [f"c{number}" for number in range(columns)]
    return Terms.read({"columns": {"label": "y", "numeric": names}, "protection": "plain", **settings})


def histogram(nodes, bins):
    return HistogramQuery(1000, 0, (), tuple(range(nodes)), bins, UNIT, UNIT)


def test_fifteen_thousand_columns_of_256_bins_and_depth_6_are_possible():
    check_terms(terms(15_000), DEFAULT)
    finest = dataclasses.replace(Grids.first(15_000), subdivisions=np.full(15_000, 12, np.uint8))
    assert QuantileQuery(1000, finest).bytes_needed(3) <= DEFAULT
    assert histogram(16, 15_000 * 256).bytes_needed(3) <= DEFAULT


def test_the_default_is_what_parties_answer_at_most():
    assert histogram(1, MAX_CELLS // 2 - 1).bytes_needed(3) == DEFAULT


def test_terms_that_cannot_do_are_refused_before_anything_is_asked():
    with pytest.raises(Refused) as caught:
        check_terms(terms(60_000), DEFAULT // 4)
    assert str(caught.value) == (
        "the aggregator would need 1.8 GiB for the sums of this session, but allows only 1 GiB; lower "
        "max_depth or max_bin, use fewer columns, or have `memory` raised in the "
        "aggregator's configuration file"
    )


def test_a_program_runs_as_before_until_it_asks_too_much():
    closed = []

    def program(given, grown):
        try:
            total = yield RowsQuery()
            yield histogram(int(total[0]), 100)
            yield histogram(100_000, 100)
        finally:
            closed.append(given)

    given = terms()
    running = within(program, 10_000_000)(given, [])
    assert next(running) == RowsQuery()
    assert running.send(np.array([3])) == histogram(3, 100)
    with raised(Refused, "memory-limit"):
        running.send(np.array([0]))
    assert closed == [given]


def test_a_program_returns_its_model_and_can_be_ended():
    ended = []

    def program(given, grown):
        try:
            yield RowsQuery()
        except GeneratorExit:
            ended.append(given)
            raise
        return "model"

    running = within(program, GIB)(terms(), [])
    next(running)
    with pytest.raises(StopIteration) as end:
        running.send(np.array([1]))
    assert end.value.value == "model"
    running = within(program, GIB)(terms(), [])
    next(running)
    running.close()
    assert len(ended) == 1


def test_a_program_hears_that_a_tree_is_cut_short():
    def program(given, grown):
        try:
            yield RowsQuery()
        except TreeAborted:
            yield histogram(3, 100)

    running = within(program, GIB)(terms(), [])
    next(running)
    assert running.throw(TreeAborted("test", "a party was lost")) == histogram(3, 100)
