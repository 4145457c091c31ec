"""Memory of the sums of a session at the aggregator, and a limit on it.

Promises: an upper bound for each query, from the query alone, before anything is allocated for it.
Refuses: terms whose first sum is too large, and each query whose sum is (Refused).
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from fedboost.boosting.queries.columns import BYTES_PER_COUNT
from fedboost.boosting.queries.union import Query
from fedboost.errors import Refused, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import first_bits
from fedboost.protocol.contracts import GrownTrees
from fedboost.terms.terms import Terms

GIB = 1 << 30

P = TypeVar("P")


def check_terms(terms: Terms, allowed: int) -> None:
    """Raise Refused if the cut points alone need more than `allowed` bytes."""
    features = len(terms.columns.numeric)
    _check(BYTES_PER_COUNT * features << first_bits(features), allowed)


def within(
    program: Callable[[Terms, GrownTrees], Generator[Query, Int64, P]], allowed: int
) -> Callable[[Terms, GrownTrees], Generator[Query, Int64, P]]:
    """The same program, which ends with Refused instead of a query that needs more than `allowed` bytes."""

    def bounded(terms: Terms, grown: GrownTrees) -> Generator[Query, Int64, P]:
        inner = program(terms, grown)
        go_on: Callable[[], Query] = partial(next, inner)
        while True:
            try:
                query = go_on()
            except StopIteration as end:
                model: P = end.value
                return model
            _check(query.bytes_needed(len(terms.parties)), allowed)
            try:
                go_on = partial(inner.send, (yield query))
            except (TreeAborted, TrainingStopped) as error:
                go_on = partial(inner.throw, error)

    return bounded


def _check(bytes_needed: int, allowed: int) -> None:
    if bytes_needed > allowed:
        raise Refused(
            f"the aggregator would need {bytes_needed / GIB:.2g} GiB for the sums of this training, and "
            f"gives {allowed / GIB:.2g}; lower max_depth or max_bin, leave columns out, or have `memory` in "
            f"the aggregator's file raised"
        )
