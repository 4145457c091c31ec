"""The query by which parties that hold different columns predict together (`vertical.prediction`).

All rows of the label holder are predicted. Each feature holder is told which rows of its own they are; where
it does not have an id it answers as for missing values. It relays to the label holder which leaves each row
can reach, so one turn is enough, whatever the depth of the trees.

Promises: a party is told the places of its own rows alone; it is asked once in a session, in a turn of its
own; the label holder is told a hash of which rows each feature holder has, so that none can say it has others
and be shown a hash of their ids.
Refuses: another number of rows than the terms say, feature holders that know fewer of them than
`min_common_rows`, since an id alone is a look-up, and places that cannot be (Refused).
"""

from dataclasses import dataclass

from fedboost.boosting.queries.alignment import ToldPlaces
from fedboost.errors import Refused
from fedboost.privacy.relay import sealed_size
from fedboost.terms.session import TO_PREDICT
from fedboost.terms.terms import Terms

BATCH_BYTES = 1 << 24
"""Most bytes of leaf bits that are relayed together, of a party, but where a row alone takes more."""


@dataclass(frozen=True)
class ReachQuery(ToldPlaces):
    """The rows that are predicted, in the order of the label holder's list of ids.

    total: how many they are; sizes: places that are told of each party, `total` of each feature holder, and
    of the label holder the words of a hash for each of these; places: int32 [sum of sizes], in the holder's
    own list, UNKNOWN where it does not have the id, and `hash_of` the rows that each has. Answer: the number
    of rows, from the label holder."""

    description = "number of rows that were predicted"
    tasks = frozenset({TO_PREDICT})

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where rows are predicted."""
        return int(terms.vertical.predicts)

    def relayed_bytes(self, terms: Terms) -> int:
        """Most bytes that a feature holder relays, a bit a row and its leaf bits, and the label holder, a
        hash for each."""
        roots, names = len(terms.roots), terms.parties
        of_row = terms.trees.rounds * roots * -(-terms.max_leaves_per_round // roots // 8)
        batches = -(-self.total // rows_of_batch(of_row))
        return self.total * of_row + batches * sealed_size(0, names) + self.known_bytes(terms)

    def check_terms(self, terms: Terms) -> None:
        """Refuse another number of rows, places that are told twice or that cannot be, and too few known."""
        super().check_terms(terms)
        check_predicted(terms, self.total)
        self.check_known(terms, "predicted")


def rows_of_batch(size: int) -> int:
    """The rows whose leaf bits are relayed together. size: of a row, of the party that has most."""
    return max(1, BATCH_BYTES // max(1, size))


def check_predicted(terms: Terms, rows: int) -> None:
    """Refused unless the terms say that so many rows are predicted."""
    due = terms.vertical.predict_rows
    if rows != due:
        raise Refused(
            f"label holder {terms.vertical.label_holder} has {rows} rows to predict, and the terms say "
            f"predict_rows = {due}"
        )


def check_batch(terms: Terms) -> None:
    """Refused for fewer rows than each feature holder has to know: whether that is so would tell of them."""
    rows, fewest = terms.vertical.predict_rows or 0, terms.vertical.fewest_common_rows
    if rows < fewest:
        raise Refused(
            f"{rows} rows are to be predicted, and the terms say min_common_rows = {fewest}: predict that "
            f"many together, or set it lower by --min-common-rows where the other parties allow that"
        )
