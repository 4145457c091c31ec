"""A sentence about what a training does not hide of single parties, from the aggregator and from each other.

Promises: where every party learns all labels, that comes first, and loud.
Refuses: nothing.
"""

from fedboost.people.words import NOT_HIDDEN
from fedboost.terms.terms import Terms


def not_hidden(terms: Terms) -> str:
    """Return what others see, under terms whose protection does not hide each party's numbers."""
    if not terms.blocks:
        return NOT_HIDDEN
    return _encrypted(terms) if terms.hides_columns else _plain(terms)


def _encrypted(terms: Terms) -> str:
    sums = _sums(terms, "of no row by itself unless it is alone in a bin")
    learn = "feature holders learn which rows go left, no gradients"
    return f"the aggregator sees {sums}; {learn}"


def _plain(terms: Terms) -> str:
    labels = "ALL LABELS"
    if len(terms.blocks) > 1:
        labels += " OF ITS ROWS"
    if terms.vertical.label_epsilon is not None:
        labels += " AS THE NOISE LEAVES THEM"
    sums = _sums(terms, "of a row alone in a bin its own")
    return (
        f"EVERY PARTY LEARNS {labels}; the aggregator sees of every column how many rows lie in each "
        f"interval, {sums}, and the metrics"
    )


def _sums(terms: Terms, alone: str) -> str:
    """Return the sums of gradients that are told. alone: what they show of a row, where no floor is under
    bins."""
    fewest = terms.vertical.min_rows_per_bin
    sums = f"sums of gradients by bin, {alone}"
    if fewest > 1:
        sums = f"sums of gradients over groups of bins, each of {fewest} rows at least, or none"
    if terms.objective.loss.quantile is None:
        return sums
    return f"{sums}, and of each leaf how many rows have residuals of which size"
