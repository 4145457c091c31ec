"""The closed set of queries: every match on a query has a case for each of these."""

from fedboost.boosting.queries.columns import (
    BinCountsQuery,
    BinsQuery,
    QuantileQuery,
    RangeQuery,
    SummaryQuery,
)
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery
from fedboost.boosting.queries.labels import (
    EvaluationQuery,
    LevelSumsQuery,
    MagnitudesQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
)
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery, SumsQuery, VoteQuery
from fedboost.protocol.several import Several

TreeQuery = HistogramQuery | VoteQuery
"""What is asked while a tree grows."""
OfTree = TreeQuery | ResidualQuery | SumsQuery
"""What is asked of a tree before its end."""
OfRows = IdCountQuery | AlignQuery | PlacesQuery | ReachQuery
"""What is asked to match rows by their ids, and of rows that are predicted."""
OfColumns = SummaryQuery | BinCountsQuery | BinsQuery | QuantileQuery | RangeQuery
"""What is asked of the values of columns."""
OfLabels = MagnitudesQuery | EvaluationQuery | LevelSumsQuery | StartQuery
"""What is asked of labels before the first tree, or of a model."""
Query = OfRows | RowsQuery | OfColumns | OfLabels | OfTree | EndRoundQuery
OfTurn = Query | Several
"""What a program asks in one turn."""
