"""Queries that share a turn, where the terms allow it.

Promises: the sums are the same whether queries share a turn or not.
Refuses: nothing.
"""

from collections.abc import Generator

from fedboost.boosting.queries.union import OfTurn, Query
from fedboost.fixedpoint import Int64
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.protocol.several import Several
from fedboost.terms.terms import Terms


def together(terms: Terms, *queries: Query) -> Generator[OfTurn, Int64, list[Int64]]:
    """Ask queries of which none depends on the sum of another, in one turn if the terms allow it and one
    vector can hold all answers. Returns the sum of each."""
    if len(queries) > 1 and terms.shares_turns:
        several = Several(queries)
        if several.cells <= MAX_CELLS:
            return several.split((yield several))
    sums = []
    for query in queries:
        sums.append((yield query))
    return sums
