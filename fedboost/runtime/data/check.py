"""Checks of a table before a training: its oddities (what would stop a training with it, spoil it, or cost it
a column), those that a draft of terms met, and its fit to terms.

Promises: a table is looked at as it was read and stays as it is; what a column tells of the label is measured
on at most `SAMPLE_ROWS` rows, evenly spread; a table in order has no oddity.
"""

import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute, types

from fedboost.errors import ConfigError, Refused, TableWarning
from fedboost.fixedpoint import Float64, Int64
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.results.check import Checked, Oddity
from fedboost.runtime.data.draft import Draft, draft_schema
from fedboost.runtime.data.parquet import ParquetTable
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import Table, dense_of
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.data.values import (
    MISSING_NUMBERS,
    UNKNOWN,
    codes_of,
    column_of,
    exact_numbers,
    finite,
    is_text,
    plain,
    texts,
)
from fedboost.terms.columns import Schema
from fedboost.terms.reading import nearest
from fedboost.terms.terms import Terms
from fedboost.views.check import notices
from fedboost.views.words import delimited, shorten

# ---- Oddities of a column of numbers --------------------------------------------------------------------
# Promises: nothing is said of a column in which values repeat and vary, as those of most measurements do.


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


def oddities_of_numbers(values: Float64, name: str, total: int) -> Iterator[Oddity]:
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


# ---- Oddities of a column of text: numbers among which words stand, dates -------------------------------
# Categories that differ in blanks or case.
# Promises: it looks at distinct values, each once, however many rows have it.


MAX_EXAMPLES = 4
MANY_DISTINCT_TEXTS = 0.9
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
        trimmed = compute.utf8_trim_whitespace(self.texts)
        return np.asarray(compute.match_substring_regex(trimmed, pattern))

    def examples(self, which: "np.ndarray") -> tuple[str, ...]:
        """Return the most frequent of some texts, with their rows."""
        places = np.flatnonzero(which)
        return self.first(places[np.argsort(-self.counts[places], kind="stable")])

    def first(self, places: "np.ndarray") -> tuple[str, ...]:
        """Return the first of the texts at these places, with their rows."""
        shown = [
            f"{shorten(repr(self.texts[int(i)].as_py()))} ({self.counts[i]:,})" for i in places[:MAX_EXAMPLES]
        ]
        return (*shown, "…") if places.size > MAX_EXAMPLES else tuple(shown)


def oddities_of_texts(counts: Counts, name: str) -> Iterator[Oddity]:
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
    yield Oddity("spelling", name, rows, counts.rows, counts.first(order))


def _dates(counts: Counts, name: str) -> Iterator[Oddity]:
    head = Counts(counts.texts[:1000], counts.counts[:1000], 0)
    if head.match(_DATE).mean() > 0.95:
        yield Oddity("date", name, values=(shorten(repr(counts.texts[0].as_py())),))


def _many(counts: Counts, name: str) -> Iterator[Oddity]:
    """Yield the oddity of texts that are names of rows, or too many."""
    rows, distinct = counts.rows, len(counts.texts)
    if rows >= MIN_ROWS and distinct >= MANY_DISTINCT_TEXTS * rows:
        examples = tuple(shorten(repr(text), 20) for text in counts.texts[:3].to_pylist())
        yield Oddity("identifier", name, distinct, rows, examples)
    elif distinct > MAX_CATEGORIES:
        yield Oddity("categories", name, distinct, rows, figure=float(MAX_CATEGORIES))


# ---- Columns that give the label away: how well one column tells it -------------------------------------
# Promises: what a column with many categories seems to tell by chance is not counted: the rows of one half
# are told by the other half. A column that is far from telling the label is known by a few rows.


MIN_ROWS_TO_TELL = 100
"""Rows from which on a figure is more than chance."""
MIN_PER_CLASS = 10
"""Rows of each of two classes that a figure needs."""
MAX_BINS = 256
FEW_ROWS = 1_000
"""Rows that say whether a column is far from the limits."""
FAR = 0.05
"""How far below its limit the figure of these rows is then: ten times its standard error, or more."""
SURPRISES = 0.1
"""Share of the rows of other classes than the most frequent one that may be told wrong."""


class Target(Enum):
    """The kind of label, by the kind of oddity that a column is which tells it."""

    TWO = "gives away"
    CLASSES = "tells classes"
    AMOUNT = "predicts"


LIMITS = {Target.TWO: 0.98, Target.CLASSES: 0.98, Target.AMOUNT: 0.99}
"""The figure above which a column gives the label away: AUC of one split, share of the rows whose class is
told, rank correlation with an amount."""


@dataclass(frozen=True)
class Label:
    """A label: its kind, and the value of each row, or the code of its class; no row is missing."""

    target: Target
    values: Float64

    def told_by(self, column: Float64, categorical: bool) -> float:
        """Return the figure of a column: numbers, or codes of categories, NaN where it is missing."""
        return self._figure(column, categorical, SURPRISES, by_others=True)

    def is_far_from(self, column: Float64, categorical: bool) -> bool:
        """Tell if a column is far from giving the label away, by few rows: they may tell themselves, so that
        the figure of categories is rather too high."""
        figure = self._figure(column, categorical, 5 * SURPRISES, by_others=False)
        return figure < LIMITS[self.target] - FAR

    def _figure(self, column: Float64, categorical: bool, surprises: float, by_others: bool) -> float:
        _, classes, counts = self._classes
        if self.values.size < MIN_ROWS_TO_TELL or counts.size < 2:
            return float("nan")
        if self.target is Target.TWO and counts.min() < MIN_PER_CLASS:
            return float("nan")
        if self.target is Target.TWO:
            positive = classes == 1
            if categorical:
                column = _told(_codes(column), positive.astype(np.float64), by_others)
            return one_split_auc(column, positive)
        if self.target is Target.AMOUNT:
            if categorical:
                column = _told(_codes(column), self.values, by_others)
            return _rank_correlation(column, self.values)
        codes = _codes(column) if categorical else _bins(column)
        right = (_told_class(codes, classes, by_others or not categorical) == classes).mean()
        surprise = 1 - counts.max() / counts.sum()
        return float(right) if 1 - right < surprise * surprises else 0.0

    @property
    def few(self) -> Int64:
        """The places of a few rows, evenly spread; of each of two values half of them, or all there are."""
        kinds = [np.arange(self.values.size)]
        if self.target is Target.TWO:
            kinds = [np.flatnonzero(self._classes[1] == code) for code in (0, 1)]
        most = FEW_ROWS // len(kinds)
        return np.sort(np.concatenate([kind[evenly(kind.size, most)] for kind in kinds]))

    @cached_property
    def _classes(self) -> tuple[Float64, Int64, Int64]:
        """The distinct values, the number of each row's, and the rows of each."""
        return np.unique(self.values, return_inverse=True, return_counts=True)


def evenly(size: int, most: int) -> Int64:
    """The places of at most so many of these rows, evenly spread from the first to the last."""
    return np.linspace(0, size - 1, min(size, most)).astype(np.int64)


def one_split_auc(column: Float64, positive: npt.NDArray[np.bool_]) -> float:
    """Return the AUC of the best split of a column in two, rows without a value on either side or alone."""
    missing = np.isnan(column)
    share = np.where(positive, 1 / max(positive.sum(), 1), -1 / max((~positive).sum(), 1))
    none = share[missing].sum()
    values = column[~missing]
    order = np.argsort(values)
    values = values[order]
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], values.size > 0)[: values.size])
    below = share[~missing][order].cumsum()[ends]
    return float(0.5 + np.abs(np.concatenate([below, below + none, [none]])).max() / 2)


def _rank_correlation(column: Float64, values: Float64) -> float:
    """Return the magnitude of Spearman's correlation over the rows that have a value, if these are most."""
    present = ~np.isnan(column)
    if 2 * present.sum() < column.size:
        return float("nan")
    ranks = np.stack([_ranks(column[present]), _ranks(values[present])])
    ranks -= ranks.mean(axis=1, keepdims=True)
    spread = np.sqrt((ranks**2).sum(axis=1).prod())
    return float(abs((ranks[0] * ranks[1]).sum()) / spread) if spread > 0 else float("nan")


def _ranks(values: Float64) -> Float64:
    """The ranks of values, the mean of them where they are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _codes(column: Float64) -> Int64:
    """The categories as codes from 1 on, 0 where it is missing."""
    return np.where(np.isnan(column), 0, column + 1).astype(np.int64)


def _bins(column: Float64) -> Int64:
    """The bins of numbers, about as many rows in each, from 1 on; 0 where it is missing."""
    present = column[~np.isnan(column)]
    if not present.size:
        return np.zeros(column.size, np.int64)
    share = np.linspace(0, 1, min(MAX_BINS, max(column.size // 10, 2)) + 1)[1:-1]
    cuts = np.unique(np.quantile(present, share, method="lower"))
    return np.where(np.isnan(column), 0, np.searchsorted(cuts, column) + 1)


def _told(codes: Int64, values: Float64, by_others: bool) -> Float64:
    """The mean value of each row's code among the rows of the other half, or of both."""
    out = np.empty(values.size)
    for half in (0, 1):
        rest = slice(1 - half, None, 2) if by_others else slice(None)
        counts = np.bincount(codes[rest], minlength=int(codes.max()) + 1)
        sums = np.bincount(codes[rest], values[rest], counts.size)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), values[rest].mean())
        out[half::2] = means[codes[half::2]]
    return out


def _told_class(codes: Int64, classes: Int64, by_others: bool) -> Int64:
    """The most frequent class of each row's code among the rows of the other half, or of both."""
    out = np.empty(classes.size, np.int64)
    for half in (0, 1):
        rest = slice(1 - half, None, 2) if by_others else slice(None)
        shape = int(codes.max()) + 1, int(classes.max()) + 1
        both = codes[rest] * shape[1] + classes[rest]
        counts = np.bincount(both, minlength=shape[0] * shape[1]).reshape(shape)
        counts[counts.sum(axis=1) == 0] = np.bincount(classes[rest], minlength=counts.shape[1])
        out[half::2] = counts.argmax(axis=1)[codes[half::2]]
    return out


# ---- Oddities of a whole table --------------------------------------------------------------------------


SAMPLE_ROWS = 50_000
_FIRST_ROWS = 20
MAX_CLASSES = 100
"""Classes of a label beyond which no column is asked what it tells of them."""
_NO_FEATURES = {"date", "identifier", "categories", "empty", "constant", "infinite"}
"""Oddities of columns that are not asked what they tell of the label."""


def oddities(
    table: "pa.Table",
    label: str | None = None,
    aside: Collection[str] = (),
    classes: bool = False,
    whole: "pa.Table | None" = None,
) -> list[Oddity]:
    """Return the oddities of a table: of its label, and of all other columns as features.

    aside: columns that are no features, such as that of the site: only their spelling is looked at. classes:
    a label of numbers stands for classes. whole: the table of which `table` has some rows.
    """
    out: list[Oddity] = []
    whole = table if whole is None else whole
    target = None
    if label is not None:
        out += _of_label(column_of(table, label), label)
        target = _Target.of(whole.column(label), label, evenly(whole.num_rows, SAMPLE_ROWS), classes)
    for name in table.column_names:
        if name == label:
            continue
        column = table.column(name)
        odd = list(_of_feature(column, name, whole.num_rows))
        if name in aside:
            odd = [oddity for oddity in odd if oddity.kind == "spelling"]
        elif target is not None and not _NO_FEATURES & {oddity.kind for oddity in odd}:
            odd += target.told_by(whole.column(name), name)
        out += odd
    return out


def _of_label(column: "pa.ChunkedArray", name: str) -> Iterator[Oddity]:
    values = plain(column)
    missing = values.null_count
    if is_text(values.type):
        counts = Counts.of(values)
        missing = counts.missing
        yield from words(counts, name)
        yield from spelling(counts, name)
    elif types.is_floating(values.type):
        missing = int(np.isnan(exact_numbers(column, name)).sum())
    if missing:
        yield Oddity("unlabelled", name, missing, len(column))


def _of_feature(column: "pa.ChunkedArray", name: str, total: int) -> Iterator[Oddity]:
    values = plain(column)
    if values.null_count == len(values):
        yield Oddity("empty", name)
    elif types.is_temporal(values.type):
        first = next(filter(None, map(str, values.drop_null()[:1].to_pylist())), "")
        yield Oddity("date", name, values=(first,))
    elif not is_text(values.type):
        try:
            numbers = exact_numbers(column, name)
        except ConfigError:
            return  # lists and the like, which the draft leaves out
        yield from oddities_of_numbers(numbers, name, total)
    elif types.is_dictionary(column.type) or (spelled := _spelled_numbers(values, name)) is None:
        yield from oddities_of_texts(Counts.of(values), name)
    else:
        yield from words(Counts.of(values), name)
        yield from oddities_of_numbers(spelled, name, total)


def _spelled_numbers(values: "pa.ChunkedArray", name: str) -> Float64 | None:
    """The numbers that a text column spells, None if there are words."""
    try:
        if is_text(values.type):
            exact_numbers(values[:_FIRST_ROWS], name)  # where words are, they mostly are in these
        return exact_numbers(values, name)
    except ConfigError:
        return None


@dataclass(frozen=True)
class _Target:
    """The label of the rows of a sample, and of a few of them."""

    rows: "pa.Array"
    label: Label
    few_rows: "pa.Array"
    few: Label

    @classmethod
    def of(
        cls, column: "pa.ChunkedArray", name: str, sample: "np.ndarray", classes: bool
    ) -> "_Target | None":
        """Return the rows of a sample that have a label; None where the label has no figures: other
        types, very many classes."""
        part = plain(column.take(pa.array(sample)))
        values = None if types.is_dictionary(column.type) else _spelled_numbers(part, name)
        target = Target.AMOUNT
        if values is None or classes:
            try:
                codes, distinct = texts(part, name)
            except ConfigError:
                return None
            if len(distinct) > MAX_CLASSES:
                return None
            values, target = np.where(codes < 0, np.nan, codes), Target.CLASSES
        present = np.isfinite(values)
        if np.unique(values[present]).size == 2:
            target = Target.TWO
        rows, label = sample[present], Label(target, values[present])
        few = label.few
        return cls(pa.array(rows), label, pa.array(rows[few]), Label(target, label.values[few]))

    def told_by(self, column: "pa.ChunkedArray", name: str) -> Iterator[Oddity]:
        """Yield the oddity of a column that gives the label away."""
        values, categorical = _coded(column.take(self.few_rows), name)
        if values.size and self.few.is_far_from(values, categorical):
            return
        values, categorical = _coded(column.take(self.rows), name)
        figure = self.label.told_by(values, categorical) if values.size else np.nan
        if figure > LIMITS[self.label.target]:
            yield Oddity(self.label.target.value, name, figure=figure)


def _coded(column: "pa.ChunkedArray", name: str) -> tuple[Float64, bool]:
    """The numbers of a column, or the codes of its categories, and whether it is these; no values of a column
    that is neither, or has too many categories."""
    values = None if types.is_dictionary(column.type) else _spelled_numbers(plain(column), name)
    if values is not None:
        return values, False
    try:
        codes, distinct = texts(column, name)
    except ConfigError:
        return np.zeros(0), True
    return (np.zeros(0) if len(distinct) > MAX_CATEGORIES else np.where(codes < 0, np.nan, codes)), True


# ---- Fit of a table to terms ----------------------------------------------------------------------------
# Every column that is absent, cannot be read as the terms say, or has categories that they do not declare.
# Promises: a table without an oddity here is one that a party trains with.


def misfits(table: "pa.Table | SparseTable", terms: Terms, party: str = "") -> list[Oddity]:
    """Return what of a table does not fit the terms. party: whose it is, where each has its own columns."""
    schema, out, dense = terms.blocks.columns_of(party), [], dense_of(table)
    there, features, numeric = {*dense.column_names}, {*schema.features}, {*schema.numeric}
    wanted = features | {*schema.others}
    others = [name for name in dense.column_names if name not in wanted]
    for name in (*schema.others, *schema.features):
        if isinstance(table, SparseTable) and name in features and table.column(name) is not None:
            continue
        if name not in there:
            out.append(absent(name, others))
            continue
        try:
            if name in numeric:
                finite(dense, name)
            elif name in schema.categorical:
                out += undeclared_categories(dense, name, schema.categorical[name])
            elif name in schema.target_means:
                texts(column_of(dense, name), name)
        except ConfigError as error:
            out.append(Oddity("unfit", name, values=(_without_column(error, name),)))
    unread = {oddity.column for oddity in out if oddity.kind in ("absent", "unfit")}
    if unread & set(schema.others):
        return out
    for name in unread:
        index = dense.schema.get_field_index(name)
        nulls = pa.nulls(dense.num_rows)
        dense = dense.append_column(name, nulls) if index < 0 else dense.set_column(index, name, nulls)
    try:
        to_shard(replace(table, dense=dense) if isinstance(table, SparseTable) else dense, terms, party)
    except Refused as error:  # the label, or what stands beside it
        out.append(unfit(error, schema.others, schema.label))
    return out


def absent(name: str, others: Iterable[str]) -> Oddity:
    """Return the oddity of a column that is not there. others: columns that the terms do not name."""
    near = nearest(name, others)[2:-1]
    return Oddity("absent", name, values=(f"{near} Then " if near else "",))


def unfit(error: Refused, names: Sequence[str], otherwise: str) -> Oddity:
    """Return the oddity of rows that are refused, of the column that the error names: one of these names."""
    detail = error.detail or str(error)
    name = next((name for name in names if repr(name) in detail), otherwise)
    return Oddity("unfit", name, values=(_without_column(detail, name),))


def _without_column(error: object, name: str) -> str:
    """The text of an error about a column, without its name."""
    return str(error).removeprefix(f"column {name!r} ")


def undeclared_categories(table: "pa.Table", name: str, categories: Sequence[str]) -> list[Oddity]:
    """Return the oddity of a column with categories that the terms do not declare. Raises ConfigError."""
    strange = codes_of(table, name, categories) == UNKNOWN
    if not strange.any():
        return []
    codes, distinct = texts(column_of(table, name), name)
    counts = np.bincount(codes[strange], minlength=len(distinct))
    common = Counter(dict(zip(distinct, counts.tolist(), strict=True))).most_common(MAX_EXAMPLES)
    examples = tuple(f"{shorten(repr(text))} ({rows:,})" for text, rows in common if rows)
    return [Oddity("undeclared", name, int(strange.sum()), table.num_rows, examples)]


# ---- The check: oddities, those that a draft of terms met (each once, by its most telling kind), and fit -


MAX_STORED_ROWS = 1 << 20
"""Rows that are checked of a table which stays in its file."""
MAX_WATCHED_ROWS = 20_000
"""Rows that a simulation checks of its tables together: it was asked to train, and this is to take a tenth of
the time to the first tree."""
MIN_WATCHED_ROWS = 2_000
"""Rows that it checks of each table all the same."""
_RUNS = 20
"""Rows are checked in so many runs: rows side by side show that the values of a sorted column repeat."""
MAX_LABELS = 10
"""Distinct labels that are counted one by one."""
_TOLD = {
    *("date", "identifier", "categories", "words", "decimal commas", "mixed decimals"),
    *("thousands", "signs"),
    *("empty", "infinite"),
}
"""Kinds that say why a column was left out."""
_OF_NUMBERS = {"distinct", "rounded"}
"""Kinds that do not matter in columns which the terms take for categories."""


def check(
    source: str,
    table: Table,
    label: str | None,
    terms: Terms | None,
    exclude: Sequence[str] = (),
    party: str = "",
) -> Checked:
    """Return what is odd in a table: of the columns that the terms name, or of all. party: whose table it
    is, where the terms say which columns each party has."""
    rows = _rows(table, MAX_STORED_ROWS)
    if rows.num_rows == 0:
        raise ConfigError(f"{source}: the table has no rows")
    sentence, draft = "", None
    if terms is not None:
        odd = of_terms(table if isinstance(table, SparseTable) else rows, terms, party)
        odd += of_ids(table.num_rows, terms)
        if terms.columns.label in rows.column_names:
            sentence = label_sentence(rows, terms.columns.label, terms.objective.name, terms.columns.positive)
    else:
        odd = []
        if label is not None:
            try:
                draft = draft_schema(
                    table if isinstance(table, SparseTable) else rows, label, exclude=exclude
                )
            except ConfigError as error:
                column_of(rows, label)  # an absent one is refused
                odd.append(Oddity("undraftable", label, values=(str(error),)))
            else:
                sentence = label_sentence(rows, label, draft.objective, draft.columns.positive)
        odd += of_draft(rows, label, draft, exclude)
    sizes = table.num_rows, rows.num_rows, len(rows.column_names)
    return Checked.of(source, *sizes, label=sentence, oddities=odd)


def of_draft(
    table: "pa.Table", label: str | None, draft: Draft | None, aside: Sequence[str] = ()
) -> list[Oddity]:
    """Return the oddities of a table and of what was drafted from it. aside: further columns that are no
    features."""
    classes = draft is not None and draft.objective == "multi:softprob"
    aside = (*aside, *(() if draft is None else draft.columns.others[1:]))
    out = oddities(table, label, aside, classes)
    if draft is None or label is None:
        return out
    out = _with_left_out(out, draft.left_out)
    if draft.columns.positive is not None:
        codes, distinct = texts(column_of(table, label), label)
        positive = draft.columns.positive
        rows = int((codes == distinct.index(positive)).sum())
        out.append(Oddity("positive", label, rows, table.num_rows, (repr(positive),)))
    if draft.few_numbers:
        out.append(Oddity("few numbers", label, draft.few_numbers, table.num_rows))
    return out


def of_offer(table: "pa.Table", left_out: Mapping[str, str], aside: Sequence[str]) -> list[Oddity]:
    """Return the oddities of a table whose columns are offered. left_out: by column, why one is not; aside:
    columns that are not meant to be."""
    return _with_left_out(oddities(table, None, aside, False), left_out)


def _with_left_out(odd: Iterable[Oddity], left_out: Mapping[str, str]) -> list[Oddity]:
    """Return the oddities, with those columns marked that are left out, and the others that are."""
    out = [replace(oddity, left_out=oddity.kind in _TOLD and oddity.column in left_out) for oddity in odd]
    told = {oddity.column for oddity in out if oddity.left_out}
    out += [
        Oddity("left out", name, values=(reason,)) for name, reason in left_out.items() if name not in told
    ]
    return out


def of_terms(table: "pa.Table | SparseTable", terms: Terms, party: str = "") -> list[Oddity]:
    """Return the oddities of the columns that terms name, of this party where each has its own, and what of
    them does not fit."""
    odd = _in_terms(dense_of(table), terms, terms.blocks.columns_of(party))
    known = {oddity.column for oddity in odd if oddity.kind in ("unlabelled", "infinite")}
    return odd + [oddity for oddity in misfits(table, terms, party) if oddity.column not in known]


def of_ids(rows: int, terms: Terms) -> list[Oddity]:
    """Return what is wrong with the number of rows of a table, where rows are matched by their ids."""
    vertical, name = terms.vertical, terms.columns.row_id
    if not vertical.aligns or name is None:
        return []
    if rows > vertical.most_ids and not vertical.repeated_ids:
        sentence = f"has {rows:,} ids, and the terms say max_ids = {vertical.most_ids:,}"
    elif rows < vertical.fewest_common_rows:
        sentence = f"has {rows:,} ids, and the terms say min_common_rows = {vertical.fewest_common_rows:,}"
    else:
        return []
    return [Oddity("unfit", name, values=(sentence,))]


def _in_terms(
    table: "pa.Table", terms: Terms, schema: Schema, whole: "pa.Table | None" = None
) -> list[Oddity]:
    there = {*table.column_names}
    named = [name for name in (*schema.others, *schema.features) if name in there]
    label = schema.label if schema.label in named else None
    classes = terms.objective.num_class is not None
    aside = set(schema.others) - {schema.label}
    out = oddities(table.select(named), label, aside, classes, whole)
    return [
        oddity
        for oddity in out
        if oddity.kind != "categories"  # those that are not declared are drafted
        and not (oddity.column in schema.categorical and oddity.kind in _OF_NUMBERS)
    ]


def label_sentence(table: "pa.Table", label: str, objective: str, positive: str | None) -> str:
    """Return the label, its objective, and the rows of each value if these are few."""
    name = delimited(label)
    try:
        codes, distinct = texts(column_of(table, label), label)
    except ConfigError:
        return f"{name}: {objective}"
    if len(distinct) > MAX_LABELS:
        return f"{name}: {objective}, {len(distinct):,} distinct values"
    rows = np.bincount(codes[codes >= 0], minlength=len(distinct))
    ones = {positive} if positive is not None else {"1", "true"} if objective == "binary:logistic" else set()
    parts = [
        f"{shorten(repr(text))} in {rows[code]:,} rows" + (" (counts as 1)" if text in ones else "")
        for code, text in sorted(enumerate(distinct), key=lambda pair: pair[1])
    ]
    return f"{name}: {objective}, {', '.join(parts)}"


def warn(odd: Iterable[Oddity], where: str = "") -> None:
    """Warn in Python of what is odd, in the name of the first caller outside of fedboost."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == "fedboost":
        level, frame = level + 1, frame.f_back
    for line in notices(odd):
        warnings.warn(TableWarning(where + line), stacklevel=level)


class Watch:
    """The warnings about the tables of several parties: of each column and kind the first."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def table(self, terms: Terms, name: str, table: Table) -> None:
        """Warn of what is odd in the table of a party, and in its name beside those of the parties before."""
        self._names.append(name)
        warn(odd for odd in alike_sites(self._names) if odd.column == name)
        schema = terms.blocks.columns_of(name)
        whole = _rows(table, MAX_WATCHED_ROWS, {*schema.others, *schema.features})
        rows = _some(whole, max(MAX_WATCHED_ROWS // len(terms.parties), MIN_WATCHED_ROWS))
        where = f"party {name}"
        if rows.num_rows < table.num_rows:
            where += f", in a sample of its {table.num_rows:,} rows"
        odd = _in_terms(rows, terms, schema, whole)
        for column, categories in schema.categorical.items():
            odd += undeclared_categories(rows, column, categories)
        odd = [oddity for oddity in odd if (oddity.kind, oddity.column) not in self._seen]
        self._seen |= {(oddity.kind, oddity.column) for oddity in odd}
        warn(odd, f"{where}: ")


def alike_sites(names: Iterable[str]) -> list[Oddity]:
    """Return the sites whose names differ from one before in blanks or case alone."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(" ".join(name.split()).casefold(), name), name) for name in names]
    return [Oddity("sites", name, values=(repr(other),)) for other, name in pairs if other != name]


def _some(table: "pa.Table", most: int) -> "pa.Table":
    """At most so many rows of a table, in runs that are evenly spread."""
    if table.num_rows <= most:
        return table
    size = max(most // _RUNS, 1)
    begins = evenly(table.num_rows - size + 1, _RUNS).tolist()
    return pa.concat_tables([table.slice(begin, size) for begin in begins])


def _rows(table: Table, most: int, names: Collection[str] | None = None) -> "pa.Table":
    """The rows to check: all of a table in memory, the first of one in a file, of these columns."""
    if not isinstance(table, ParquetTable):
        return dense_of(table)
    groups = max(int(np.searchsorted(table.ends, most, side="right")) - 1, 1)
    columns = {}
    for name in table.head.column_names:
        if names is not None and name not in names:
            continue
        parts = [table.group(number, name) for number in range(min(groups, len(table.ends) - 1))]
        columns[name] = pa.concat_tables(parts or [table.head.select([name])]).column(name)
    return pa.table(columns)
