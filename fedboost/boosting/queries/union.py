"""The closed set of queries: every match on a query has a case for each of these."""

from fedboost.boosting.queries.alignment import AlignQuery, IdCountQuery, PlacesQuery
from fedboost.boosting.queries.bin_counts import BinCountsQuery
from fedboost.boosting.queries.cut_points import BinsQuery, QuantileQuery, RangeQuery
from fedboost.boosting.queries.evaluation import EvaluationQuery, MagnitudesQuery
from fedboost.boosting.queries.leaves import ResidualQuery
from fedboost.boosting.queries.noisy import SumsQuery
from fedboost.boosting.queries.reach import ReachQuery
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import RowsQuery, StartQuery
from fedboost.boosting.queries.summary import SummaryQuery
from fedboost.boosting.queries.target_means import LevelSumsQuery
from fedboost.boosting.queries.trees import HistogramQuery, VoteQuery
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
