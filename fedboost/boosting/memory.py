"""How much memory the sums of a session take at the aggregator, and what is done about too much.

Promises: an upper bound for each query, from the query alone, before anything is allocated for it.
Refuses: terms whose first sum is too much already, and, when it comes, a query that is (Refused).
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar, assert_never

from fedboost.boosting.queries import (
    EndRoundQuery,
    HistogramQuery,
    KllQuery,
    QuantileQuery,
    Query,
    RangeQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
    SumsQuery,
    VoteQuery,
)
from fedboost.boosting.state import Grown
from fedboost.errors import CutShort, Enough, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import first_bits
from fedboost.horizontal.sketch import most_bytes
from fedboost.protocol.terms import Terms

GIB = 1 << 30
HISTOGRAM_BYTES = 32
"""Bytes for each integer of a level's histograms: the running sum (8 of the root, else 4) and the integers it
opens to (8), while the level above, of which there may be half as many nodes twice over, is still there (16);
later the sum, its siblings and their parents, which are less."""
COUNT_BYTES = 64
"""Bytes for each count of a grid: the running sum (8) and what it opens to (8), then start, width and rows of
the cells it becomes (24) beside those it refines (24)."""
OTHER_BYTES = 16

P = TypeVar("P")


def needed(query: Query, parties: int) -> int:
    """Bytes that the aggregator needs, at most, from asking this until the next is asked."""
    match query:
        case HistogramQuery():
            return HISTOGRAM_BYTES * query.cells
        case QuantileQuery():
            return COUNT_BYTES * query.cells
        case KllQuery():
            return parties * query.features * most_bytes(query.max_bin) + OTHER_BYTES * query.cells
        case RowsQuery() | RangeQuery() | StartQuery() | EndRoundQuery():
            return OTHER_BYTES * query.cells
        case VoteQuery() | ResidualQuery() | SumsQuery():
            return OTHER_BYTES * query.cells
        case _:
            assert_never(query)


def check_terms(terms: Terms, allowed: int) -> None:
    """Raise Refused if the cut points alone need more than `allowed` bytes."""
    features = len(terms.columns.numeric)
    if terms.cut_points == "kll":
        _check(needed(KllQuery(1, features, terms.max_bin), len(terms.parties)), allowed)
    else:
        _check(COUNT_BYTES * features << first_bits(features), allowed)


def within(
    program: Callable[[Terms, Grown], Generator[Query, Int64, P]], allowed: int
) -> Callable[[Terms, Grown], Generator[Query, Int64, P]]:
    """The same program, which ends with Refused instead of a query that needs more than `allowed` bytes."""

    def bounded(terms: Terms, grown: Grown) -> Generator[Query, Int64, P]:
        inner = program(terms, grown)
        go_on: Callable[[], Query] = partial(next, inner)
        while True:
            try:
                query = go_on()
            except StopIteration as end:
                model: P = end.value
                return model
            _check(needed(query, len(terms.parties)), allowed)
            try:
                go_on = partial(inner.send, (yield query))
            except (CutShort, Enough) as error:
                go_on = partial(inner.throw, error)

    return bounded


def _check(bytes_needed: int, allowed: int) -> None:
    if bytes_needed > allowed:
        raise Refused(
            f"the aggregator would need {bytes_needed / GIB:.2g} GiB for the sums of this training, and "
            f"gives {allowed / GIB:.2g}; lower max_depth or max_bin, leave columns out, or have `memory` in "
            f"the aggregator's file raised"
        )
