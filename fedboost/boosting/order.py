"""The order of questions: which query may come next where a session stands, by the state and the terms alone.

Promises: every holder keeps the same order, whatever rows or columns it has.
Refuses: queries out of order (PeerError: they come from outside).
"""

from typing import assert_never

from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.cut_points import QuantileQuery, RangeQuery
from fedboost.boosting.queries.leaves import RESIDUAL_TURNS, ResidualQuery
from fedboost.boosting.queries.noisy import SumsQuery
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import RowsQuery, StartQuery
from fedboost.boosting.queries.trees import HistogramQuery, VoteQuery
from fedboost.boosting.queries.union import Query, TreeQuery
from fedboost.boosting.state import ModelSoFar, Scales
from fedboost.errors import PeerError
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, Grid
from fedboost.protocol.terms import Terms


def check_order(query: Query, terms: Terms, state: ModelSoFar) -> None:
    """Raise PeerError unless the query may be asked next."""
    match query:
        case RowsQuery():
            if state.start is not None:
                raise PeerError("the count of rows comes before the cut points")
        case QuantileQuery(_, grids):
            _check_grids(grids, state)
        case RangeQuery():
            if state.start is not None or state.grids:
                raise PeerError("counts over ranges are given once, before the cut points")
        case StartQuery():
            if state.start is not None:
                raise PeerError("the cut points were given already")
        case HistogramQuery() | VoteQuery():
            _check_started(state)
            _check_growing(query, terms, state)
        case ResidualQuery():
            _check_started(state)
            _check_residuals(query, terms, state)
        case SumsQuery():
            _check_started(state)
            tree = state.tree
            if query.tree != tree or state.levels:
                raise PeerError(f"sums in the leaves of tree {query.tree} while tree {tree} grows, or again")
        case EndRoundQuery():
            _check_started(state)
            if query.tree != state.tree:
                raise PeerError(f"the end of tree {query.tree} while tree {state.tree} grows")
        case _:
            assert_never(query)


def _check_started(state: ModelSoFar) -> None:
    if state.start is None:
        raise PeerError("no cut points were given yet")


def _check_grids(grids: tuple[Grid, ...], state: ModelSoFar) -> None:
    """Counts over ever finer grids find any single value: no more of them than cut points need."""
    if state.start is not None or state.grids == MAX_REFINEMENTS:
        raise PeerError(f"counts over grids are given {MAX_REFINEMENTS} times, before the cut points")
    coarse = Grid.first(len(grids)).shape
    if state.grids == 0 and any(grid.shape != coarse for grid in grids):
        raise PeerError("the first grid is not the coarse one over all numbers")


def _check_growing(query: TreeQuery, terms: Terms, state: ModelSoFar) -> None:
    """Questions about the nodes of a tree: its root first, with the same gradients and rows throughout."""
    tree, levels = state.tree, state.levels
    if query.tree != tree:
        raise PeerError(f"a query for tree {query.tree} while tree {tree} grows")
    if state.residual is not None:
        raise PeerError(f"tree {tree}: a question about nodes after one about residuals")
    if state.scales not in (None, Scales.of(query)):
        raise PeerError(
            f"tree {tree}: a question about nodes whose gradients are scaled or drawn otherwise than the "
            f"root's"
        )
    if (levels == 0) != (query.nodes == terms.roots):
        raise PeerError(f"tree {tree}: the root must be asked for once, and first")
    if levels == terms.levels:
        raise PeerError(f"tree {tree}: more levels than the terms allow")
    if terms.vote_top_k and isinstance(query, VoteQuery) != bool(levels % 2):
        raise PeerError(f"tree {tree}: votes and histograms take turns")


def _check_residuals(query: ResidualQuery, terms: Terms, state: ModelSoFar) -> None:
    """Questions about residuals: after the tree has grown, each within the cells of the one before."""
    tree, levels = state.tree, state.levels
    constant = tree == CONSTANT_TREE
    max_levels = RESIDUAL_TURNS if constant else terms.levels
    if query.tree != tree or levels >= max_levels or (levels == 0 and not constant):
        raise PeerError(f"residuals of tree {query.tree} after {levels} questions about tree {tree}")
    if state.residual is not None and not query.narrows(state.residual):
        raise PeerError(f"residuals of tree {tree} in cells that are not within those asked for before")
