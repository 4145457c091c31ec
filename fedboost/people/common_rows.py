"""Rows that parties with different columns have in common, in words.

Refuses: nothing.
"""

from fedboost.people.text import delimited
from fedboost.terms.terms import Terms


def rows_of_blocks(terms: Terms) -> str:
    """Which rows of the parties belong together."""
    if not terms.vertical.aligns:
        return "those of all tables, in the order in which they stand"
    vertical, name = terms.vertical, delimited(terms.columns.row_id or "")
    sites = "all sites of a block" if len(terms.blocks) > 1 else "all sites"
    form = {"digits": ", their digits alone", "lower": ", in lower case"}.get(vertical.id_form or "", "")
    if vertical.takes_all_rows:
        holder = delimited(vertical.label_holder or "")
        return (
            f"all of label holder {holder}, matched by {name}{form}: where another site does not have one, "
            f"its columns are missing values, and {holder} learns which rows these are; each other site has "
            f"{vertical.fewest_common_rows:,} at least, and learns which of its own; a site enters "
            f"{vertical.most_ids:,} ids at most; the aggregator learns how many each site has, and how many "
            f"are common to which sites{_repeats(terms)}"
        )
    return (
        f"those whose {name} {sites} have{form}: {vertical.fewest_common_rows:,} at least; a site enters "
        f"{vertical.most_ids:,} ids at most, and learns which of them all others have; the "
        f"aggregator learns how many each site has, and how many are common to which sites{_repeats(terms)}"
    )


def _repeats(terms: Terms) -> str:
    """What it means that rows of a label holder may have the same id."""
    if not terms.vertical.repeated_ids:
        return ""
    if terms.vertical.predicts:
        return "; the label holder may have several rows of one"
    return "; the label holder may have several rows of one, and each other site is told how many of each"


def use_of_ids(terms: Terms) -> str:
    """What row ids are for."""
    if not terms.vertical.aligns:
        return "drawn"
    return "matched and drawn" if terms.draws_rows else "matched"
