"""The description of all parties' rows as a program: counts, then quantiles by grid refinement.

Promises: a pure function of the terms and the sums; each count is told to the nearest unit on its own, so
that what is told of a level does not depend on the others that are declared.
Refuses: counts that contradict each other (PeerError), and fewer rows than `min_count` (ConfigError).
"""

from collections.abc import Generator
from functools import partial
from itertools import islice
from typing import Any

from fedboost.boosting.programs.coarse import part, possible, unit_of
from fedboost.boosting.programs.dp_describe import summarise
from fedboost.boosting.programs.initialisation import no_model
from fedboost.boosting.queries.cut_points import QuantileQuery
from fedboost.boosting.queries.summary import SummaryQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, Quantiles, Told
from fedboost.protocol.contracts import GrownTrees, Outcome
from fedboost.terms.noise import ROWS
from fedboost.terms.tasks import MISSING, SHARES, class_names, columns_of_levels, gridded
from fedboost.terms.terms import Terms

UNIT_FACTOR = 10.0
"""Values on the two sides of a gap this wide may be of different units, such as m and cm."""
GAP_SHARE = 0.02
"""Share of the rows on either side of it."""


def describe(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Count the rows of all parties, and find the quantiles of their numbers."""
    if terms.noise is not None:
        return Outcome(no_model(terms), (yield from summarise(terms)))
    query = SummaryQuery.of(terms)
    total = yield query
    counts = iter(total.tolist())
    rows = next(counts)
    if not 0 < rows < ROWS or (total < 0).any() or (total > rows).any():
        raise PeerError(f"the parties count {rows} rows in all, and more or fewer than can be in a part")
    if rows < terms.evaluation.min_count:
        raise ConfigError(f"the parties have fewer rows than min_count = {terms.evaluation.min_count}")
    missing = [*islice(counts, query.numeric)]
    levels = [[*islice(counts, size + 2)] for size in query.levels]
    classes = [*counts]
    if any(sum(each) != rows for each in (*levels, *filter(None, [classes]))):
        raise PeerError(f"the counts of a column do not sum to the {rows} rows there are")
    quantiles = Quantiles(terms.histograms.max_bin, rows, len(gridded(terms)))
    for _ in range(MAX_REFINEMENTS if gridded(terms) else 0):
        if not quantiles.grids.cells:
            break
        quantiles.refine((yield QuantileQuery(rows, quantiles.grids)))
    summary = _summary(terms, rows, missing, levels, classes, quantiles)
    return Outcome(no_model(terms), summary)


def _summary(
    terms: Terms,
    rows: int,
    missing: list[int],
    levels: list[list[int]],
    classes: list[int],
    quantiles: Quantiles,
) -> dict[str, Any]:
    """The result, as JSON: what it says stands in docs/lifecycle.md."""
    floor, schema = terms.evaluation.min_count, terms.columns
    if quantiles.missing.tolist() != [*missing, *[0] * (len(gridded(terms)) - len(missing))]:
        raise PeerError("the values of a column are not as many as the rows that have one")
    unit = unit_of(floor)
    told = partial(part, total=rows, unit=unit)
    absent = [*map(told, quantiles.missing.tolist())]
    between = (possible(count, rows, unit) for count in absent)
    numbers = [_numbers(Told(quantiles, place, floor, each), floor) for place, each in enumerate(between)]
    columns: list[dict[str, Any]] = []
    for name, count, known in zip(schema.numeric, absent, numbers, strict=False):
        columns.append({"name": name, "kind": "numeric", MISSING: count, **known})
    columns += columns_of_levels(terms, levels, told)
    label: dict[str, Any] = {"name": schema.label}
    if classes:
        label["levels"] = dict(zip(class_names(terms), map(told, classes), strict=True))
    elif len(gridded(terms)) > len(schema.numeric):
        label |= numbers[-1]
    return {"rows": rows, "min_count": floor, "columns": columns, "label": label}


def _numbers(told: Told, floor: int) -> dict[str, Any]:
    """The quantiles of a column of numbers, each as the interval that it lies in; None where fewer rows than
    the floor lie beyond it."""
    shares = [share for share in SHARES if min(share, 1 - share) * told.values >= floor]
    known: dict[str, Any] = dict.fromkeys(f"{share:g}" for share in SHARES)
    if shares:
        known |= zip((f"{share:g}" for share in shares), told.intervals(shares), strict=True)
    gap = told.gap(max(floor, int(GAP_SHARE * told.values)), UNIT_FACTOR)
    return {"quantiles": known, "constant": told.is_constant and told.values >= floor, "gap": gap}
