"""All queries that a program can send, one family per file. The set is closed: every `match` on a query
handles all query classes.

A query determines the number of integers in its answer, and the maximum that one row adds to each integer.
Both sides therefore know the width of each cell before anything is computed. `rows`, a public number, is an
upper bound on the number of rows in the sum. `check` raises Refused if the terms do not allow a query."""

from collections.abc import Generator

from fedboost.boosting.queries.columns import OfColumns
from fedboost.boosting.queries.ids import OfRows
from fedboost.boosting.queries.labels import OfLabels, ResidualQuery, RowsQuery
from fedboost.boosting.queries.trees import EndRoundQuery, SumsQuery, TreeQuery
from fedboost.fixedpoint import Int64
from fedboost.protocol.contracts import MAX_CELLS, Several
from fedboost.terms.terms import Terms

OfTree = TreeQuery | ResidualQuery | SumsQuery
"""Queries about a tree that is still growing."""
Query = OfRows | RowsQuery | OfColumns | OfLabels | OfTree | EndRoundQuery
OfTurn = Query | Several
"""Everything that a program can send in one turn."""


# ---- Queries that share a turn, if the terms allow it ---------------------------------------------------
# Guarantees: the sums are the same whether or not queries share a turn.


def together(terms: Terms, *queries: Query) -> Generator[OfTurn, Int64, list[Int64]]:
    """Send queries that do not depend on each other's sums, and return the sum of the answers to each query.
    The queries share one turn if the terms allow it and all answers fit into one vector."""
    if len(queries) > 1 and terms.shares_turns:
        several = Several(queries)
        if several.cells <= MAX_CELLS:
            return several.split((yield several))
    sums = []
    for query in queries:
        sums.append((yield query))
    return sums
