"""Sessions that a site whose rows are on workers takes no part in, with the remedy."""

from fedboost.errors import Refused
from fedboost.terms.terms import Terms


def check_under_workers(terms: Terms, party: str) -> None:
    """Raise Refused for terms that rows on workers cannot follow."""
    if terms.blocks or terms.vertical.predicts:
        raise Refused(
            f"party {party}: its rows are on workers, and parties with different columns hold theirs on one "
            f"machine: take [workers] away there"
        )
