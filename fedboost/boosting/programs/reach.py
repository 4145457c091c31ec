"""The prediction of rows by parties that hold different columns: three turns, whatever the trees.

Promises: a pure function of the terms and the sums; the places of a party's rows do not depend on what other
feature holders have.
Refuses: lists that no parties can have told (PeerError); another number of rows than the terms say, and rows
of which a feature holder knows too few (Refused).
"""

from collections.abc import Generator

from fedboost.boosting.programs.alignment import known_places, lists_of
from fedboost.boosting.programs.initialisation import no_model
from fedboost.boosting.queries.alignment import AlignQuery, IdCountQuery
from fedboost.boosting.queries.reach import ReachQuery, check_predicted
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.protocol.contracts import GrownTrees
from fedboost.terms.terms import Terms


def predict(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Booster]:
    """Have the feature holders tell the label holder which leaves its rows reach. A model without trees: the
    aggregator has none."""
    counts = yield IdCountQuery(len(terms.parties))
    query = AlignQuery(tuple(counts.tolist()))
    (block,) = terms.blocks
    check_predicted(terms, query.sizes[terms.parties.index(block.label_holder)])
    query.check(terms)
    reach = reach_of(terms, query, (yield query))
    reach.check(terms)
    if int((yield reach)[0]) != reach.total:
        raise PeerError(f"the label holder has predicted other rows than the {reach.total} there are")
    return no_model(terms)


def reach_of(terms: Terms, query: AlignQuery, tokens: Int64) -> ReachQuery:
    """The places of the rows that are predicted, from the tokens of all lists."""
    return ReachQuery(*known_places(terms, lists_of(terms, query, tokens)))
