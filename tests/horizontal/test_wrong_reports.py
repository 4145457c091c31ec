"""Reports that cannot be: the session fails with a sentence that names the turn."""

import dataclasses
import re

import pytest
from inprocess import one_party, run
from trainings import PARTITIONS, ROWS, SMALL, data, spoiling, turns_of

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.protocol.messages import Report

ALONE = {**SMALL, "on_loss": "shrink"}
"""Each query has a turn of its own."""


def test_a_report_that_breaks_an_invariant_fails_the_session_and_names_the_turn():
    X, y, _ = data()
    parts = PARTITIONS["3 at random"]
    asked = turns_of(X, y, parts, **ALONE)
    kinds = {}
    for turn, query in asked.items():
        kinds.setdefault(type(query).__name__, []).append(turn)
    spoilt = {
        "a grid": kinds["QuantileQuery"][0],
        "a finer grid": kinds["QuantileQuery"][1],
        "a root": kinds["HistogramQuery"][0],
        "a child": kinds["HistogramQuery"][1],
    }
    for what, turn in spoilt.items():
        last = sum(run.cells for run in asked[turn].segments) - 1
        for cell, by in ((3, 1), (3, -1), (3, 1 << 5), (last, 1), (last, -1)):
            session = run(X, y, parts, spoil=spoiling(turn, asked[turn], cell, by), **ALONE)
            assert session.phase == "failed", (what, cell, by)
            assert session.booster is None
            assert f"turn {turn}:" in str(session.error), what


@pytest.mark.parametrize(
    ("kind", "cell", "by", "says"),
    [
        ("RowsQuery", 0, -(10**6), "the parties report"),
        ("RowsQuery", 0, 1 << 62, "the parties report"),
        ("RowsQuery", 1, -(10**6), "the parties report"),
        ("StartQuery", 0, 1 << 38, "imply a mean label"),
        ("EndRoundQuery", 0, -(10**8), "metric sums are inconsistent"),
        ("EndRoundQuery", 1, -(1 << 36), "metric sums are inconsistent"),
    ],
)
def test_a_sum_that_cannot_be_fails_the_session_with_a_sentence(kind, cell, by, says):
    X, y, _ = data()
    parts = PARTITIONS["3 at random"]
    asked = turns_of(X, y, parts, **ALONE)
    turn = max(turn for turn, query in asked.items() if type(query).__name__ == kind)
    session = run(X, y, parts, spoil=spoiling(turn, asked[turn], cell, by), **ALONE)
    assert session.phase == "failed"
    assert str(session.error).startswith(f"turn {turn}: ")
    assert says in str(session.error)


@pytest.mark.parametrize("fewer", [(6, 0), (0, 6), (6, 6)])
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_cells_that_are_too_narrow_never_give_a_model(protection, fewer):
    """Parties see that their own sums do not fit where the aggregator may know it, and all is masked else:
    then the total of the bins shows it."""

    def narrow(terms, grown):
        program = train(terms, grown)
        query = next(program)
        while True:
            if isinstance(query, HistogramQuery):
                widths = bytes(width - fewer[side % 2] for side, width in enumerate(query.widths))
                query = dataclasses.replace(query, widths=widths)
            try:
                query = program.send((yield query))
            except StopIteration as end:
                return end.value

    X, y, _ = data()
    session = run(X, y, PARTITIONS["3 at random"], program=narrow, protection=protection, **SMALL)
    assert session.phase == "failed"
    assert session.booster is None
    says = "too narrow for this site's own sums" if protection == "plain" else "sum to the same total"
    assert says in str(session.error)


def test_a_party_of_too_few_bytes_is_named():
    X, y, _ = data()

    def cut(party, message):
        return (
            dataclasses.replace(message, cells=message.cells[:-1]) if isinstance(message, Report) else message
        )

    session = run(X, y, one_party(ROWS), spoil=cut, **SMALL)
    assert re.match("party p0 broke the protocol: it sent [0-9]+ bytes", str(session.error))
