"""The questions that a program can ask, one family a file, and the closed set of them: every match
on a query has a case for each of these.

A query says how many integers answer it and how large one row's share of any of them can be, so both ends
know the bits of a cell before anything is computed. `rows` is the number of rows behind the sum, a public
number; it bounds the cells. `check` raises Refused for what the terms do not allow.
"""

from collections.abc import Generator

from fedboost.boosting.queries.columns import OfColumns
from fedboost.boosting.queries.ids import OfRows
from fedboost.boosting.queries.labels import OfLabels, ResidualQuery, RowsQuery
from fedboost.boosting.queries.trees import EndRoundQuery, SumsQuery, TreeQuery
from fedboost.fixedpoint import Int64
from fedboost.protocol.contracts import MAX_CELLS, Several
from fedboost.terms.terms import Terms

OfTree = TreeQuery | ResidualQuery | SumsQuery
"""Queries about a tree before its end."""
Query = OfRows | RowsQuery | OfColumns | OfLabels | OfTree | EndRoundQuery
OfTurn = Query | Several
"""What a program asks in one turn."""


# ---- Queries that share a turn, where the terms allow it ------------------------------------------------
# Promises: the sums are the same whether queries share a turn or not.


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
