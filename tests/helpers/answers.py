"""What is asked of a party, and a party that was asked."""

import math

import numpy as np
from inprocess import shard_of, terms_of

from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.tree import Split
from fedboost.holders.whole_rows import HorizontalHolder

BITS = Scale(0, 16)
CUTS = CutPoints.of((np.array([0.0, 1.0], np.float32),), (True,))
START = StartQuery(4, CUTS, BITS, BITS)
CONSTANT = EndRoundQuery(4, CONSTANT_TREE, (), ((0, 0.25),), ("logloss",), UNIT, False)
ROOT = HistogramQuery(4, 0, (), (0,), 4, BITS, BITS)
SPLIT = Split(0, 0, 0, True, 1)


def party_after(*queries):
    X = np.array([[-1.0], [0.5], [2.0], [math.nan]], np.float32)
    party = HorizontalHolder(lambda: shard_of(X, [0, 1, 1, 0]), terms_of(X, 1))
    for query in queries:
        party.answer(query)
    return party


LEVELS_OF = terms_of(np.zeros((1, 3)), 1, levels=(3, 5))
LEVEL_CUTS = CUTS.with_categories((3, 5))
