"""Oddities of a column of numbers.

Promises: nothing is said of a column in which values repeat and vary, as those of most measurements do.
Refuses: nothing.
"""

import re
from collections.abc import Iterator

import numpy as np

from fedboost.fixedpoint import Float64
from fedboost.people.oddities import Oddity

NEARLY = 0.999
"""Share of the rows from which on a value makes a column nearly constant."""
EXACT = 2.0**24
"""Whole numbers up to this are exact as 32-bit floats."""
SPARSE = 0.9
"""Share of missing values beyond which a column is nearly empty."""
MIN_ROWS = 30
"""Rows from which on values that are all distinct are odd."""
MANY_DISTINCT = 0.95
"""Share of distinct values of a column that is called an identifier and has some twice."""
_PROBE = 2_000
"""Rows that are looked at first: most columns are told by them."""
_ID = re.compile(r"(^|[\W_])(id|uuid|guid|index|key|mrn|ssn|rowid|number|nr)$|^unnamed: \d+$", re.IGNORECASE)
_CAMEL_ID = re.compile(r"[a-z](ID|Id)$")


def is_named_id(name: str) -> bool:
    """Tell if a column is called an identifier."""
    return bool(_ID.search(name) or _CAMEL_ID.search(name))


def oddities(values: Float64, name: str, total: int) -> Iterator[Oddity]:
    """Yield the oddities of numbers, NaN where they are missing. total: rows of the table, of which these may
    be a part."""
    rows, present = values.size, values[~np.isnan(values)]
    if not present.size:
        yield Oddity("empty", name)
        return
    yield from nearly_empty(rows - present.size, rows, name)
    beyond = np.abs(present) > np.finfo(np.float32).max
    if beyond.any():
        yield Oddity("infinite", name, int(beyond.sum()), rows)
        return
    if present.min() == present.max():
        if present.size == rows:
            yield Oddity("constant", name, rows, rows, (spelled(present[0]),))
        return
    yield from _nearly_constant(present, name)
    yield from _distinct(present, name, total)


def nearly_empty(missing: int, rows: int, name: str) -> Iterator[Oddity]:
    """Yield the oddity of a column that has values in few rows."""
    if missing > SPARSE * rows:
        yield Oddity("nearly empty", name, missing, rows)


def _nearly_constant(present: Float64, name: str) -> Iterator[Oddity]:
    probe = present[:: max(present.size // _PROBE, 1)]
    distinct, counts = np.unique(probe, return_counts=True)
    mode = distinct[counts.argmax()]
    if counts.max() < probe.size * 0.99:
        return
    rows = int((present == mode).sum())
    if rows > NEARLY * present.size:
        yield Oddity(
            "nearly constant", name, rows, present.size, (spelled(mode),), figure=float(present.size - rows)
        )


def _distinct(present: Float64, name: str, total: int) -> Iterator[Oddity]:
    """Yield the oddity of whole numbers that identify rows, or that 32-bit floats take for each other."""
    probe = present[:: max(present.size // _PROBE, 1)]
    if present.size < MIN_ROWS or (probe != np.floor(probe)).any() or (present != np.floor(present)).any():
        return
    largest = np.abs(present).max()
    many = np.unique(probe).size >= MANY_DISTINCT * probe.size
    if not many and largest <= EXACT:
        return
    distinct = np.unique(present)
    examples = tuple(map(spelled, present[:3]))
    if many and distinct.size == present.size:
        steps = np.diff(present)
        ordered = bool((steps > 0).all() or (steps < 0).all())
        # Numbers drawn from a range of 4 a row would repeat among so many by all chance (e^-12).
        rows = total if present.size**2 > 100 * total else present.size
        dense = distinct[-1] - distinct[0] < 4 * rows
        kind = "identifier" if ordered or dense or is_named_id(name) else "distinct"
        yield Oddity(kind, name, distinct.size, present.size, examples)
        return
    if many and is_named_id(name) and distinct.size >= MANY_DISTINCT * present.size:
        yield Oddity("identifier", name, distinct.size, present.size, examples)
        return
    same = np.diff(distinct.astype(np.float32)) == 0
    merged = np.append(same, False) | np.append(False, same)
    if merged.any():
        examples = tuple(map(spelled, distinct[merged][:2]))
        yield Oddity("rounded", name, int(merged.sum()), distinct.size, examples)


def spelled(value: float) -> str:
    """Return a number for a message."""
    return str(int(value)) if value == np.floor(value) else repr(float(value))
