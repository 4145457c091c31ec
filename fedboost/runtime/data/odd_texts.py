"""Oddities of a column of text: numbers among which words stand, dates, categories that differ in blanks or
case.

Promises: it looks at distinct values, each once, however many rows have it.
Refuses: nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.people.oddities import Oddity
from fedboost.people.text import shorten
from fedboost.runtime.data.odd_numbers import MIN_ROWS, NEARLY, nearly_empty
from fedboost.runtime.data.values import MISSING_NUMBERS

if TYPE_CHECKING:
    import pyarrow as pa

MAX_EXAMPLES = 4
MANY_DISTINCT = 0.9
"""Share of the rows that have a text of their own in a column of names or identifiers."""
FEW_WORDS = 5
"""Among numbers, words are odd where there are this many distinct numbers for each of them."""
MIN_NUMBERS = 10
"""Distinct numbers among which a word is odd that does not stand for a missing value."""
MAX_SPELLED = 100_000
"""Distinct texts beyond which a column has no categories that could be spelled in two ways."""
_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_NUMBER = f"^{_PLAIN}$"
_THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"
_POINTS = r"^[+-]?\d{1,3}(\.\d{3})+(,\d+)?$"
_DECIMAL = r"^[+-]?\d*,\d+$"
_SIGNS = f"^[<>≤≥~±€$£]\\s*{_PLAIN}$|^{_PLAIN}\\s*[%€$£]$"
_DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})"
    r"|\d{1,2}[- ][A-Za-z]{3}[- ]\d{2,4})([T ]\d{1,2}:\d{2}.*)?$|^\d{1,2}:\d{2}(:\d{2})?$"
)
_MISSING_WORDS = (
    *("-", "--", "---", ".", "..", "*", "?", "x", "n/a", "#n/a", "na", "n.a.", "nan", "none", "null", "nil"),
    *("missing", "unknown", "unk", "unbekannt", "inconnu", "n.n.", "n.d.", "nd", "k.a.", "not known"),
    *("not available", "not done", "not measured", "not recorded", "(null)", "\\n"),
)
"""Words that stand for a missing value, in small letters."""


@dataclass(frozen=True)
class Counts:
    """The distinct texts of a column and the rows of each; texts of blanks alone, and nulls, are missing."""

    texts: "pa.Array"
    counts: Int64
    missing: int

    @classmethod
    def of(cls, column: "pa.ChunkedArray") -> "Counts":
        """Return the texts of a column."""
        from pyarrow import compute

        counted = column.value_counts()
        texts, counts = counted.field("values"), counted.field("counts").to_numpy()
        absent = compute.equal(texts, "").fill_null(True).to_numpy(zero_copy_only=False)
        return cls(texts.filter(~absent), counts[~absent], int(counts[absent].sum()))

    @property
    def rows(self) -> int:
        """Rows that have a text."""
        return int(self.counts.sum())

    def match(self, pattern: str) -> "np.ndarray":
        """Return which texts match, blanks around them apart."""
        from pyarrow import compute

        trimmed = compute.utf8_trim_whitespace(self.texts)
        return np.asarray(compute.match_substring_regex(trimmed, pattern))

    def examples(self, which: "np.ndarray") -> tuple[str, ...]:
        """Return the most frequent of some texts, with their rows."""
        places = np.flatnonzero(which)
        order = places[np.argsort(-self.counts[places], kind="stable")]
        shown = [
            f"{shorten(repr(self.texts[int(i)].as_py()))} ({self.counts[i]:,})" for i in order[:MAX_EXAMPLES]
        ]
        return (*shown, "…") if order.size > MAX_EXAMPLES else tuple(shown)


def oddities(counts: Counts, name: str) -> Iterator[Oddity]:
    """Yield the oddities of text that does not spell numbers throughout."""
    rows, distinct = counts.rows, len(counts.texts)
    if not distinct:
        yield Oddity("empty", name)
        return
    yield from nearly_empty(counts.missing, counts.missing + rows, name)
    if distinct == 1:
        if not counts.missing:
            yield Oddity("constant", name, rows, rows, (repr(counts.texts[0].as_py()),))
        return
    odd = [*words(counts, name)] or [*_dates(counts, name)]
    if not odd:
        odd = [*spelling(counts, name), *_many(counts, name)]
    top = int(counts.counts.argmax())
    if counts.counts[top] > NEARLY * rows:
        figure = float(rows - counts.counts[top])
        example = shorten(repr(counts.texts[top].as_py()))
        odd.append(Oddity("nearly constant", name, int(counts.counts[top]), rows, (example,), figure))
    yield from odd


def words(counts: Counts, name: str) -> Iterator[Oddity]:
    """Yield the oddities of texts that are numbers, but for words, commas or signs."""
    import pyarrow as pa
    from pyarrow import compute

    number, thousands, decimal, signs = map(counts.match, (_NUMBER, _THOUSANDS, _DECIMAL, _SIGNS))
    decimal &= ~thousands
    points = counts.match(_POINTS)  # 1.500 may be either
    if (points & ~number).any():
        thousands |= points
        number &= ~points
    numbers = number | thousands | decimal | signs
    if counts.counts[numbers].sum() * 2 < counts.rows:
        return
    spelled = compute.utf8_lower(compute.utf8_trim_whitespace(counts.texts))
    known = np.asarray(compute.is_in(spelled, value_set=pa.array(_MISSING_WORDS, spelled.type)))
    empty = np.asarray(compute.is_in(spelled, value_set=pa.array(MISSING_NUMBERS, spelled.type)))
    strange = ~numbers & ~empty
    if (strange & ~known).any() and numbers.sum() < max(MIN_NUMBERS, FEW_WORDS * strange.sum()):
        return  # codes
    pointed = number & counts.match(r"\.")
    if decimal.any() and not pointed.any():
        decimal, thousands = decimal | (thousands & ~points), thousands & points
    mixed = decimal | pointed if decimal.any() and pointed.any() else decimal & False
    clear = strange | decimal | thousands | signs | pointed & ~points
    doubtful = pointed & (not clear.any())
    for kind, which in (
        ("words", strange),
        ("mixed decimals", mixed),
        ("decimal commas", decimal & ~mixed),
        ("decimal points", doubtful),
        ("thousands", thousands),
        ("signs", signs),
    ):
        if which.any():
            yield Oddity(kind, name, int(counts.counts[which].sum()), counts.rows, counts.examples(which))


def spelling(counts: Counts, name: str) -> Iterator[Oddity]:
    """Yield the oddity of texts that differ from another in blanks or case alone."""
    from pyarrow import compute

    if len(counts.texts) > MAX_SPELLED:
        return
    plain = compute.utf8_lower(compute.utf8_trim_whitespace(counts.texts))
    plain = compute.replace_substring_regex(plain, r"\s+", " ")
    _, group, sizes = np.unique(
        plain.to_numpy(zero_copy_only=False).astype(str), return_inverse=True, return_counts=True
    )
    alike = sizes[group] > 1
    if not alike.any():
        return
    order = np.lexsort((-counts.counts, group))
    order = order[alike[order]]
    first = np.append(True, group[order][1:] != group[order][:-1])
    rows = int(counts.counts[order[~first]].sum())  # but for the most frequent of each group
    shown = [
        f"{shorten(repr(counts.texts[int(i)].as_py()))} ({counts.counts[i]:,})" for i in order[:MAX_EXAMPLES]
    ]
    yield Oddity("spelling", name, rows, counts.rows, (*shown, *["…"] * (order.size > MAX_EXAMPLES)))


def _dates(counts: Counts, name: str) -> Iterator[Oddity]:
    head = Counts(counts.texts[:1000], counts.counts[:1000], 0)
    if head.match(_DATE).mean() > 0.95:
        yield Oddity("date", name, values=(shorten(repr(counts.texts[0].as_py())),))


def _many(counts: Counts, name: str) -> Iterator[Oddity]:
    """Yield the oddity of texts that are names of rows, or too many."""
    rows, distinct = counts.rows, len(counts.texts)
    if rows >= MIN_ROWS and distinct >= MANY_DISTINCT * rows:
        examples = tuple(shorten(repr(text), 20) for text in counts.texts[:3].to_pylist())
        yield Oddity("identifier", name, distinct, rows, examples)
    elif distinct > MAX_CATEGORIES:
        yield Oddity("categories", name, distinct, rows, figure=float(MAX_CATEGORIES))
