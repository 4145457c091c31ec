"""A question that nobody has written rules for is permitted nowhere, with noise or without."""

from dataclasses import dataclass

import pytest
from inprocess import terms_of
from liar import X

from fedboost.boosting import memory, queries
from fedboost.boosting.state import NOTHING_YET
from fedboost.protocol import ledger


@dataclass(frozen=True)
class Unknown:
    """A query that was added to the union and forgotten elsewhere."""

    rows: int = 1
    cells: int = 1


@pytest.mark.parametrize(
    "look",
    [
        lambda terms: queries.check(Unknown(), terms),
        lambda terms: NOTHING_YET.after(Unknown()),
        lambda terms: memory.needed(Unknown(), 3),
        lambda terms: ledger.release_of(Unknown(), terms),
    ],
)
def test_an_unknown_query_is_no_query(look):
    with pytest.raises(AssertionError, match="Unknown"):
        look(terms_of(X, 3, protection="masked"))
