"""Checks of a table before training: problems in its columns, reasons why terms cannot be drafted from it,
and mismatches with given terms.

Each problem is reported as an `Oddity`: something that would stop training, harm the model, or cause a column
to be left out. The checks never modify the table. How well a column predicts the label is measured on an
evenly spaced sample of at most `SAMPLE_ROWS` rows.
"""

import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

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
from fedboost.runtime.data.shard import to_shard, undeclared_levels
from fedboost.runtime.data.table import Table, dense_of
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.data.values import (
    MISSING_NUMBERS,
    column_of,
    exact_numbers,
    finite,
    is_text,
    plain,
    text_of,
    texts,
)
from fedboost.terms.columns import Schema
from fedboost.terms.reading import nearest
from fedboost.terms.terms import Terms
from fedboost.views.results import notices
from fedboost.views.words import delimited, shorten

# ---- What the checks look at: a column's numbers, or its distinct texts ---------------------------------
# For most numeric columns, a probe of the rows is sufficient, and only other columns are sorted. Each
# distinct text is checked once, regardless of how many rows contain it.


NEARLY = 0.999  # a column is nearly constant if one value has more than this share of its rows
EXACT = 2.0**24  # integers up to this value are exact in float32
SPARSE = 0.9  # a column is nearly empty if more than this share of its values is missing
MIN_ROWS = 30  # minimum number of rows for which it is odd that all values are distinct
MANY_DISTINCT = 0.95  # minimum share of distinct values in a column with an identifier's name
_PROBE = 2_000  # approximate number of rows in a probe
_ID = re.compile(
    r"(?i:(^|[\W_])(id|uuid|guid|index|key|mrn|ssn|rowid|number|nr)$|^unnamed: \d+$)|[a-z](ID|Id)$"
)
"""Matches column names that suggest an identifier."""


class Numbers:
    """The values of a numeric column, as used by the checks. values: numbers, NaN where missing, of all rows
    or of a sample; total: number of rows of the whole table."""

    def __init__(self, values: Float64, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.present = values[~np.isnan(values)]
        self.rows = self.present.size
        """Number of rows with a value."""
        self.missing = values.size - self.rows
        self.probe = self.present[:: max(self.rows // _PROBE, 1)]

    @cached_property
    def variety(self) -> int:
        """Number of distinct values: 0, 1, or 2 for two or more."""
        return 0 if not self.rows else 1 if self.present.min() == self.present.max() else 2

    @cached_property
    def mode(self) -> tuple[str, int]:
        """Most frequent value and its number of rows, which is 0 unless nearly all rows have the value."""
        values, counts = np.unique(self.probe, return_counts=True)
        mode = values[counts.argmax()]
        rows = (self.present == mode).sum() if counts.max() >= self.probe.size * 0.99 else 0
        return spelled(mode), int(rows)

    @cached_property
    def are_whole(self) -> bool:
        """True if the column has at least `MIN_ROWS` values and all of them are integers."""
        parts = (self.probe, self.present)
        return self.rows >= MIN_ROWS and all((part == np.floor(part)).all() for part in parts)

    @cached_property
    def hardly_repeat(self) -> bool:
        """True if all values are integers (`are_whole`) and nearly all values in a sample are distinct."""
        return self.are_whole and np.unique(self.probe).size >= MANY_DISTINCT * self.probe.size

    @cached_property
    def distinct(self) -> Float64:
        return np.unique(self.present)

    @property
    def examples(self) -> tuple[str, ...]:
        return tuple(map(spelled, self.present[:3]))


def spelled(value: float) -> str:
    return text_of(float(value)) or ""


MAX_EXAMPLES, MAX_LEVELS = 4, 20
MANY_DISTINCT_TEXTS = 0.9  # minimum share of distinct texts in a column of names or identifiers
FEW_WORDS = 5  # words among numbers are an oddity if there are at least this many distinct numbers per word
MIN_NUMBERS = 10  # minimum of distinct numbers for which a word is odd, unless it means a missing value
MAX_SPELLED = 100_000
"""Maximum number of distinct texts whose spellings are compared. A column with more is not categorical."""
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
"""Lower-case spellings of a missing value."""


class Counts:
    """The distinct texts of a column with their row counts. Nulls and empty texts count as missing."""

    def __init__(self, column: "pa.ChunkedArray", name: str) -> None:
        self.name = name
        counted = column.value_counts()
        texts, counts = counted.field("values"), counted.field("counts").to_numpy()
        absent = compute.equal(texts, "").fill_null(True).to_numpy(zero_copy_only=False)
        self.texts, self.counts = texts.filter(~absent), counts[~absent]
        self.rows, self.missing = int(self.counts.sum()), int(counts[absent].sum())
        self.variety = min(len(self.texts), 2)
        """Number of distinct texts: 0, 1, or 2 for two or more."""

    @cached_property
    def mode(self) -> tuple[str, int]:
        place = int(self.counts.argmax())
        return shorten(repr(self.texts[place].as_py())), int(self.counts[place])

    def match(self, pattern: str, most: int | None = None) -> "np.ndarray":
        """Test which texts match a regular expression. Whitespace around a text is ignored. most: test only
        this many texts, starting with the first. Returns bool [texts]."""
        trimmed = compute.utf8_trim_whitespace(self.texts[:most])
        return np.asarray(compute.match_substring_regex(trimmed, pattern))

    def found(self, places: "np.ndarray", rows: int) -> "Found":
        """Return a finding with examples. places: indices of the affected texts, of which the first are
        shown; rows: number of affected rows."""
        shown = [
            f"{shorten(repr(self.texts[int(i)].as_py()))} ({self.counts[i]:,})" for i in places[:MAX_EXAMPLES]
        ]
        return Found(rows, self.rows, (*shown, *(["…"] if places.size > MAX_EXAMPLES else [])))

    @cached_property
    def written(self) -> Mapping[str, "np.ndarray"]:
        """In a mostly numeric column, the texts that cannot be read as plain numbers. Maps each kind of
        problem, e.g. decimal commas, to a mask, bool [texts]. Empty unless most rows are numbers."""
        number, thousands, decimal, signs = map(self.match, (_NUMBER, _THOUSANDS, _DECIMAL, _SIGNS))
        decimal &= ~thousands
        points = self.match(_POINTS)  # 1.500 may be a decimal or have a thousands point
        if (points & ~number).any():
            thousands |= points
            number &= ~points
        numbers = number | thousands | decimal | signs
        if self.counts[numbers].sum() * 2 < self.rows:
            return {}
        spelled = compute.utf8_lower(compute.utf8_trim_whitespace(self.texts))
        known = np.asarray(compute.is_in(spelled, value_set=pa.array(_MISSING_WORDS, spelled.type)))
        empty = np.asarray(compute.is_in(spelled, value_set=pa.array(MISSING_NUMBERS, spelled.type)))
        strange = ~numbers & ~empty
        if (strange & ~known).any() and numbers.sum() < max(MIN_NUMBERS, FEW_WORDS * strange.sum()):
            return {}  # too many words per number: codes, not numbers
        pointed = number & self.match(r"\.")
        if decimal.any() and not pointed.any():
            decimal, thousands = decimal | (thousands & ~points), thousands & points
        mixed = decimal | pointed if decimal.any() and pointed.any() else decimal & False
        clear = strange | decimal | thousands | signs | pointed & ~points
        kinds = (strange, mixed, decimal & ~mixed, pointed & (not clear.any()), thousands, signs)
        return {kind: which for kind, which in zip(WRITTEN, kinds, strict=True) if which.any()}


# ---- The checks of a column -----------------------------------------------------------------------------
# A column whose values repeat and vary, like most measurements, has no oddity.


class Found(NamedTuple):
    """What a check found in a column. The fields have the same meaning as in `Oddity`."""

    rows: int = 0
    of: int = 0
    values: tuple[str, ...] = ()
    figure: float = 0.0


def _nearly_empty(column: Numbers | Counts) -> Found | None:
    rows = column.missing + column.rows
    return Found(column.missing, rows) if column.missing > SPARSE * rows else None


def _infinite(numbers: Numbers) -> Found | None:
    beyond = int((np.abs(numbers.present) > np.finfo(np.float32).max).sum())
    return Found(beyond, numbers.rows + numbers.missing) if beyond else None


def _constant(column: Numbers | Counts) -> Found | None:
    if column.variety > 1 or column.missing:
        return None
    value = spelled(column.present[0]) if isinstance(column, Numbers) else repr(column.texts[0].as_py())
    return Found(column.rows, column.rows, (value,))


def _nearly_constant(column: Numbers | Counts) -> Found | None:
    value, rows = column.mode
    return Found(rows, column.rows, (value,), column.rows - rows) if rows > NEARLY * column.rows else None


def _row_numbers(numbers: Numbers) -> Found | None:
    if not numbers.hardly_repeat:
        return None
    distinct, rows = numbers.distinct, numbers.rows
    identify = _ID.search(numbers.name) is not None and distinct.size >= MANY_DISTINCT * rows
    if distinct.size == rows and not identify:
        steps = np.diff(numbers.present)
        # Random numbers from a range of 4 per row would almost surely repeat (else e^-12): these count rows.
        whole = numbers.total if rows**2 > 100 * numbers.total else rows
        dense = distinct[-1] - distinct[0] < 4 * whole
        identify = bool(dense or (steps > 0).all() or (steps < 0).all())
    return Found(distinct.size, rows, numbers.examples) if identify else None


def _distinct(numbers: Numbers) -> Found | None:
    if not numbers.hardly_repeat or numbers.distinct.size < numbers.rows:
        return None
    return Found(numbers.rows, numbers.rows, numbers.examples)


def _rounded(numbers: Numbers) -> Found | None:
    if not numbers.are_whole or np.abs(numbers.present).max() <= EXACT:
        return None
    distinct = numbers.distinct
    same = np.diff(distinct.astype(np.float32)) == 0
    merged = distinct[np.append(same, False) | np.append(False, same)]
    return Found(merged.size, distinct.size, tuple(map(spelled, merged[:2]))) if merged.size else None


def _written(counts: Counts, kind: str) -> Found | None:
    if kind not in counts.written:
        return None
    places = np.flatnonzero(counts.written[kind])
    places = places[np.argsort(-counts.counts[places], kind="stable")]
    return counts.found(places, int(counts.counts[places].sum()))


def _date(counts: Counts) -> Found | None:
    are_dates = counts.match(_DATE, 1000).mean() > 0.95
    return Found(values=(shorten(repr(counts.texts[0].as_py())),)) if are_dates else None


def _spelling(counts: Counts) -> Found | None:
    if len(counts.texts) > MAX_SPELLED:
        return None
    plain = compute.utf8_lower(compute.utf8_trim_whitespace(counts.texts))
    plain = compute.replace_substring_regex(plain, r"\s+", " ")
    _, group, sizes = np.unique(
        plain.to_numpy(zero_copy_only=False).astype(str), return_inverse=True, return_counts=True
    )
    order = np.lexsort((-counts.counts, group))
    order = order[sizes[group[order]] > 1]
    if not order.size:
        return None
    first = np.append(True, group[order][1:] != group[order][:-1])
    return counts.found(order, int(counts.counts[order[~first]].sum()))  # except each most frequent spelling


def _names(counts: Counts) -> Found | None:
    distinct = len(counts.texts)
    if counts.rows < MIN_ROWS or distinct < MANY_DISTINCT_TEXTS * counts.rows:
        return None
    return Found(distinct, counts.rows, tuple(shorten(repr(t), 20) for t in counts.texts[:3].to_pylist()))


def _many(counts: Counts) -> Found | None:
    distinct = len(counts.texts)
    return Found(distinct, counts.rows, figure=MAX_CATEGORIES) if distinct > MAX_CATEGORIES else None


@dataclass(frozen=True)
class Check:
    """A check of one column. looks_at: `Numbers`, `Counts`, or both; variety: minimum number of distinct
    values, 0 to 2; unless: kinds of findings after which the check is skipped."""

    kind: str
    looks_at: Any
    variety: int
    find: Callable[[Any], Found | None]
    unless: Collection[str] = ()


WRITTEN = ("words", "mixed decimals", "decimal commas", "decimal points", "thousands", "signs")
"""Kinds of findings about text columns that would be numeric without some words, commas, points or signs."""
ANY = (Numbers, Counts)
CHECKS = (
    Check("empty", ANY, 0, lambda column: None if column.rows else Found()),
    Check("nearly empty", ANY, 1, _nearly_empty),
    Check("infinite", Numbers, 1, _infinite),
    Check("constant", ANY, 1, _constant, ["infinite"]),
    Check("nearly constant", ANY, 2, _nearly_constant, ["infinite"]),
    Check("identifier", Numbers, 2, _row_numbers, ["infinite"]),
    Check("distinct", Numbers, 2, _distinct, ["infinite", "identifier"]),
    Check("rounded", Numbers, 2, _rounded, ["infinite", "identifier", "distinct"]),
    *(Check(kind, Counts, 1, partial(_written, kind=kind), ["constant"]) for kind in WRITTEN),
    Check("date", Counts, 2, _date, WRITTEN),
    Check("spelling", Counts, 2, _spelling, [*WRITTEN, "date"]),
    Check("identifier", Counts, 2, _names, [*WRITTEN, "date"]),
    Check("categories", Counts, 2, _many, [*WRITTEN, "date", "identifier"]),
)
"""All checks of a column, in the order in which they run. `results.check.KINDS` contains their messages."""


def checked(column: Numbers | Counts, kinds: Collection[str] | None = None) -> Iterator[Oddity]:
    """Run the checks on a column and yield what they find. kinds: run only the checks of these kinds."""
    known: set[str] = set()
    for check in CHECKS:
        if not isinstance(column, check.looks_at) or (kinds is not None and check.kind not in kinds):
            continue
        applies = column.variety >= check.variety and known.isdisjoint(check.unless)
        if applies and (found := check.find(column)) is not None:
            known.add(check.kind)
            yield Oddity(check.kind, column.name, *found)


# ---- Label leakage: how well one column predicts the label ----------------------------------------------
# Each half of the rows is predicted from the other half, so chance matches of many categories do not count. A
# column that is far from predicting the label is dismissed after a look at a few rows.


MIN_ROWS_TO_TELL = 100  # minimum number of rows for which a score is not chance
MIN_PER_CLASS = 10  # minimum number of rows in each of two classes
MAX_BINS = 256
FEW_ROWS = 1_000  # rows of the first look at a column
FAR = 0.05  # a column is dismissed if its first score is this far (>= 10 standard errors) below the limit
SURPRISES = 0.1  # largest error rate, relative to always predicting the most frequent class
TWO, CLASSES, AMOUNT = "gives away", "tells classes", "predicts"
"""Types of labels: two values, more than two classes, or a numeric amount. Each constant is also the kind of
finding that is reported for a column that predicts such a label."""
LIMITS = {TWO: 0.98, CLASSES: 0.98, AMOUNT: 0.99}
"""Type of label -> score above which a column is reported as giving the label away. The score is the AUC of
one split for two values, the accuracy for classes, and the rank correlation for amounts."""


@dataclass(frozen=True)
class Label:
    """The labels of a sample of rows. target: `TWO`, `CLASSES` or `AMOUNT`; rows: indices of the sampled rows
    that have a label; values: their labels or class codes."""

    target: str
    rows: Int64
    values: Float64

    @classmethod
    def of(cls, column: "pa.ChunkedArray", name: str, sample: Int64, classes: bool) -> "Label | None":
        """Return the labels at the row indices `sample`, or None if label leakage cannot be measured."""
        values, is_classes = _coded(column.take(pa.array(sample)), name, MAX_CLASSES, classes)
        if not values.size:
            return None
        present = np.isfinite(values)
        target = CLASSES if is_classes else AMOUNT
        if np.unique(values[present]).size == 2:
            target = TWO
        return cls(target, sample[present], values[present])

    def told_by(self, column: "pa.ChunkedArray", name: str) -> Iterator[Oddity]:
        """Yield a finding if the column nearly determines the label."""
        # First, a few rows are predicted from themselves instead of from another half. A categorical column's
        # score is then too high rather than too low, so no column is wrongly dismissed.
        limit = LIMITS[self.target]
        if self._few._figure(column, name, 5 * SURPRISES, by_others=False) < limit - FAR:
            return
        figure = self._figure(column, name, SURPRISES, by_others=True)
        if figure > limit:
            yield Oddity(self.target, name, figure=figure)

    def _figure(self, column: "pa.ChunkedArray", name: str, surprises: float, by_others: bool) -> float:
        """Return how well a column predicts the label (see `LIMITS`), or NaN if this cannot be measured."""
        _, classes, counts = self._classes
        if self.values.size < MIN_ROWS_TO_TELL or counts.size < 2:
            return np.nan
        if self.target == TWO and counts.min() < MIN_PER_CLASS:
            return np.nan
        values, categorical = _coded(column.take(pa.array(self.rows)), name)
        if not values.size:
            return np.nan
        if self.target == CLASSES:
            codes = _codes(values) if categorical else _bins(values)
            right = (_told_class(codes, classes, by_others or not categorical) == classes).mean()
            surprise = 1 - counts.max() / counts.sum()
            return float(right) if 1 - right < surprise * surprises else 0.0
        if categorical:
            amounts = classes.astype(np.float64) if self.target == TWO else self.values
            values = _told(_codes(values), amounts, by_others)
        if self.target == TWO:
            return one_split_auc(values, classes == 1)
        return _rank_correlation(values, self.values)

    @cached_property
    def _few(self) -> "Label":
        """The labels of at most `FEW_ROWS` evenly spaced rows. If the label has two values, at most half of
        these rows are chosen for each value."""
        kinds = [np.arange(self.values.size)]
        if self.target == TWO:
            kinds = [np.flatnonzero(self._classes[1] == code) for code in (0, 1)]
        most = FEW_ROWS // len(kinds)
        places = np.sort(np.concatenate([kind[evenly(kind.size, most)] for kind in kinds]))
        return Label(self.target, self.rows[places], self.values[places])

    @cached_property
    def _classes(self) -> tuple[Float64, Int64, Int64]:
        """The distinct label values, each row's index into them, and the number of rows per value."""
        return np.unique(self.values, return_inverse=True, return_counts=True)


def _coded(
    column: "pa.ChunkedArray", name: str, most: int = MAX_CATEGORIES, as_categories: bool = False
) -> tuple[Float64, bool]:
    """Return a column's numbers or category codes, float64 [rows], and whether they are codes. The array is
    empty if the column is neither numeric nor categorical, or has more than `most` categories."""
    values = None if as_categories else _spelled_numbers(column, name)
    if values is not None:
        return values, False
    try:
        codes, distinct = texts(column, name)
    except ConfigError:
        return np.zeros(0), True
    return (np.zeros(0) if len(distinct) > most else np.where(codes < 0, np.nan, codes)), True


def evenly(size: int, most: int) -> Int64:
    """Return at most `most` evenly spaced indices from 0 to `size - 1` (inclusive), int64."""
    return np.linspace(0, size - 1, min(size, most)).astype(np.int64)


def one_split_auc(column: Float64, positive: npt.NDArray[np.bool_]) -> float:
    """Return the AUC of the best split of a column into two parts. Missing values are assigned to one of the
    parts or form a part of their own, whichever gives the highest AUC. column, positive: [rows]."""
    # As the split moves over the sorted values, the signed shares below it sum to TPR - FPR, and a single
    # split has AUC 1/2 + |TPR - FPR| / 2.
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
    """Return the absolute value of Spearman's correlation over the rows where `column` has a value, or NaN if
    fewer than half of the rows have one."""
    present = ~np.isnan(column)
    if 2 * present.sum() < column.size:
        return float("nan")
    ranks = np.stack([_ranks(column[present]), _ranks(values[present])])
    ranks -= ranks.mean(axis=1, keepdims=True)
    spread = np.sqrt((ranks**2).sum(axis=1).prod())
    return float(abs((ranks[0] * ranks[1]).sum()) / spread) if spread > 0 else float("nan")


def _ranks(values: Float64) -> Float64:
    """Return the rank of each value. Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _codes(column: Float64) -> Int64:
    return np.where(np.isnan(column), 0, column + 1).astype(np.int64)


def _bins(column: Float64) -> Int64:
    """Return each row's bin, int64 [rows]. Bins start at 1 and have similar row counts; 0 means missing."""
    present = column[~np.isnan(column)]
    if not present.size:
        return np.zeros(column.size, np.int64)
    share = np.linspace(0, 1, min(MAX_BINS, max(column.size // 10, 2)) + 1)[1:-1]
    cuts = np.unique(np.quantile(present, share, method="lower"))
    return np.where(np.isnan(column), 0, np.searchsorted(cuts, column) + 1)


def _told(codes: Int64, values: Float64, by_others: bool) -> Float64:
    """Return, for each row, the mean of `values` over the rows with the same code. by_others: True to compute
    the means for each half of the rows from the other half."""
    out = np.empty(values.size)
    for half in (0, 1):
        rest = slice(1 - half, None, 2) if by_others else slice(None)
        counts = np.bincount(codes[rest], minlength=int(codes.max()) + 1)
        sums = np.bincount(codes[rest], values[rest], counts.size)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), values[rest].mean())
        out[half::2] = means[codes[half::2]]
    return out


def _told_class(codes: Int64, classes: Int64, by_others: bool) -> Int64:
    """Return, for each row, the most frequent class among the rows with the same code. by_others: True to
    count the classes for each half of the rows in the other half."""
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
MAX_CLASSES = 100  # maximum number of classes for which label leakage is measured
_NO_FEATURES = {"date", "identifier", "categories", "empty", "constant", "infinite"}
"""Kinds of findings that exclude a column from the features. Label leakage is not measured for it."""


def oddities(
    table: "pa.Table",
    label: str | None = None,
    aside: Collection[str] = (),
    classes: bool = False,
    whole: "pa.Table | None" = None,
) -> list[Oddity]:
    """Return all findings about a table's label and features.

    Args:
        label: name of the label column.
        aside: columns that are not features. Only the spelling of their values is checked.
        classes: True if a numeric label denotes classes.
        whole: the whole table, if `table` is a sample of its rows.
    """
    out: list[Oddity] = []
    whole = table if whole is None else whole
    known = None
    if label is not None:
        out += _of_label(column_of(table, label), label)
        known = Label.of(whole.column(label), label, evenly(whole.num_rows, SAMPLE_ROWS), classes)
    for name in table.column_names:
        if name == label:
            continue
        odd = list(_of_feature(table.column(name), name, whole.num_rows))
        if name in aside:
            odd = [oddity for oddity in odd if oddity.kind == "spelling"]
        elif known is not None and not _NO_FEATURES & {oddity.kind for oddity in odd}:
            odd += known.told_by(whole.column(name), name)
        out += odd
    return out


def _of_label(column: "pa.ChunkedArray", name: str) -> Iterator[Oddity]:
    values = plain(column)
    missing = values.null_count
    if is_text(values.type):
        counts = Counts(values, name)
        missing = counts.missing
        yield from checked(counts, WRITTEN)
        yield from checked(counts, ["spelling"])
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
    elif (numbers := _spelled_numbers(column, name)) is None:
        if is_text(values.type):  # others are lists and the like, which a draft leaves out
            yield from checked(Counts(values, name))
    else:
        if is_text(values.type):
            yield from checked(Counts(values, name), WRITTEN)
        yield from checked(Numbers(numbers, name, total))


def _spelled_numbers(column: "pa.ChunkedArray", name: str) -> Float64 | None:
    """Return a column's numbers, even if they are stored as text. Returns None if the column is categorical
    or contains text that is not a number."""
    try:
        if is_text(column.type):
            exact_numbers(column[:_FIRST_ROWS], name)  # a cheap test that rejects most columns of words
        elif types.is_dictionary(column.type):
            return None
        return exact_numbers(column, name)
    except ConfigError:
        return None


# ---- Fit of a table to terms ----------------------------------------------------------------------------
# Finds columns that are missing, have the wrong type, or have undeclared categories. A party accepts a table
# without an oddity here.


def misfits(table: "pa.Table | SparseTable", terms: Terms, party: str = "") -> list[Oddity]:
    """Return the mismatches between a table and the terms: missing columns, wrong types and undeclared
    categories. party: owner of the table, if parties hold different columns."""
    schema, dense = terms.blocks.columns_of(party), dense_of(table)
    there, features, numeric = {*dense.column_names}, {*schema.features}, {*schema.numeric}
    out = [Oddity("declared absent", name) for name in sorted(there & {*terms.columns.absent.get(party, ())})]
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
    except Refused as error:  # the label, or another column that is not a feature
        out.append(unfit(error, schema.others, schema.label))
    return out


def absent(name: str, others: Iterable[str]) -> Oddity:
    """Return the finding for a column that the terms name but the table lacks. others: the table's other
    columns; the finding suggests one with a similar name."""
    near = nearest(name, others)[2:-1]
    return Oddity("absent", name, values=(f"{near} Then " if near else "",))


def unfit(error: Refused, names: Sequence[str], otherwise: str) -> Oddity:
    """Return the finding for rows that do not fit the terms. names: the finding is reported for the first of
    these columns that the error mentions; otherwise: column to use if the error mentions none."""
    detail = error.detail or str(error)
    name = next((name for name in names if repr(name) in detail), otherwise)
    return Oddity("unfit", name, values=(_without_column(detail, name),))


def _without_column(error: object, name: str) -> str:
    return str(error).removeprefix(f"column {name!r} ")


def undeclared_categories(table: "pa.Table", name: str, categories: Sequence[str]) -> list[Oddity]:
    """Return a finding if a column has values that the terms do not declare as categories."""
    levels = undeclared_levels(table, name, categories)
    if not levels:
        return []
    shown = tuple(f"{shorten(repr(text))} ({n:,})" for text, n in levels.most_common(MAX_LEVELS))
    more = (f"and {len(levels) - MAX_LEVELS} more",) * (len(levels) > MAX_LEVELS)
    return [Oddity("undeclared", name, levels.total(), table.num_rows, (*shown, *more))]


# ---- The check: oddities of a table and of a draft (each once, by its most specific kind), and fit ------


MAX_STORED_ROWS = 1 << 20  # most rows checked of a table that stays in its file
MAX_WATCHED_ROWS = 20_000  # most rows that a simulation checks in all, a tenth of the time to its first tree
MIN_WATCHED_ROWS = 2_000  # minimum number of rows that a simulation checks in each table
_RUNS = 20  # contiguous runs in a sample: adjacent rows show whether values of a sorted column repeat
MAX_LABELS = 10  # most distinct labels that are listed with their counts
_TOLD = {"date", "identifier", "categories", "empty", "infinite", *WRITTEN} - {"decimal points"}
"""Kinds of findings that explain by themselves why a column was left out of a draft."""
_OF_NUMBERS = {"distinct", "rounded"}
"""Kinds of findings that do not apply to columns that the terms declare categorical."""


def check(
    source: str,
    table: Table,
    label: str | None,
    terms: Terms | None,
    exclude: Sequence[str] = (),
    party: str = "",
) -> Checked:
    """Check a table before training. Raises ConfigError if it has no rows or no label column.

    Args:
        source: name of the table in the result.
        label: name of the label column; ignored if terms are given.
        terms: if given, check only the columns that the terms name, and that they fit the terms.
        exclude: columns that are not features.
        party: owner of the table, if parties hold different columns.
    """
    rows = _rows(table, MAX_STORED_ROWS)
    if rows.num_rows == 0:
        raise ConfigError("table-empty", f"{source}: the table has no rows")
    whole = table if isinstance(table, SparseTable) else rows
    sentence, draft = "", None
    if terms is not None:
        odd = of_terms(whole, terms, party) + of_ids(table.num_rows, terms)
        if terms.columns.label in rows.column_names:
            sentence = label_sentence(rows, terms.columns.label, terms.objective.name, terms.columns.positive)
    else:
        odd = []
        if label is not None:
            try:
                draft = draft_schema(whole, label, exclude=exclude)
            except ConfigError as error:
                column_of(rows, label)  # raises if it is missing
                odd.append(Oddity("undraftable", label, values=(str(error),)))
            else:
                sentence = label_sentence(rows, label, draft.objective, draft.columns.positive)
        odd += of_draft(rows, label, draft, exclude)
    sizes = table.num_rows, rows.num_rows, len(rows.column_names)
    return Checked.of(source, *sizes, label=sentence, oddities=odd)


def of_draft(
    table: "pa.Table", label: str | None, draft: Draft | None, aside: Sequence[str] = ()
) -> list[Oddity]:
    """Return the findings about a table and the draft of terms for it. draft: None if drafting failed; aside:
    further columns that are not features."""
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
    """Return the findings about a table whose columns a site offers to an analyst. left_out: column that
    cannot be offered -> the reason; aside: columns that the site withholds."""
    return _with_left_out(oddities(table, None, aside, False), left_out)


def _with_left_out(odd: Iterable[Oddity], left_out: Mapping[str, str]) -> list[Oddity]:
    """Mark findings that explain why a column was left out, and add one for each unexplained column."""
    out = [replace(oddity, left_out=oddity.kind in _TOLD and oddity.column in left_out) for oddity in odd]
    told = {oddity.column for oddity in out if oddity.left_out}
    out += [
        Oddity("left out", name, values=(reason,)) for name, reason in left_out.items() if name not in told
    ]
    return out


def of_terms(table: "pa.Table | SparseTable", terms: Terms, party: str = "") -> list[Oddity]:
    """Return the findings about the columns that the terms name, including mismatches with the terms. party:
    owner of the table, if parties hold different columns."""
    odd = _in_terms(dense_of(table), terms, terms.blocks.columns_of(party))
    known = {oddity.column for oddity in odd if oddity.kind in ("unlabelled", "infinite")}
    return odd + [oddity for oddity in misfits(table, terms, party) if oddity.column not in known]


def of_ids(rows: int, terms: Terms) -> list[Oddity]:
    """Return a finding if a table has too many or too few rows to be matched with other parties by row id.
    rows: number of rows in the table."""
    vertical, name = terms.vertical, terms.columns.row_id
    if not vertical.aligns or name is None:
        return []
    if rows > vertical.most_ids and not vertical.repeated_ids:
        sentence = f"the table has {rows:,} ids, but the terms allow max_ids = {vertical.most_ids:,}"
    elif rows < vertical.fewest_common_rows:
        sentence = (
            f"the table has {rows:,} ids, but the terms need "
            f"min_common_rows = {vertical.fewest_common_rows:,}"
        )
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
        if oddity.kind != "categories"  # matters only where categories are drafted
        and not (oddity.column in schema.categorical and oddity.kind in _OF_NUMBERS)
    ]


def label_sentence(table: "pa.Table", label: str, objective: str, positive: str | None) -> str:
    """Describe the label in one line: its name, the objective and, if there are at most `MAX_LABELS` distinct
    values, the number of rows with each. positive: label value that counts as 1."""
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
    """Issue a `TableWarning` for each finding, attributed to the first caller outside fedboost."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == "fedboost":
        level, frame = level + 1, frame.f_back
    for line in notices(odd):
        warnings.warn(TableWarning(where + line), stacklevel=level)


class Watch:
    """Warns about problems in the tables of several parties, once per column and kind of problem."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def table(self, terms: Terms, name: str, table: Table) -> None:
        """Warn about problems in a party's table, and about its name if it nearly equals an earlier one."""
        self._names.append(name)
        warn(odd for odd in alike_sites(self._names) if odd.column == name)
        schema = terms.blocks.columns_of(name)
        whole = _rows(table, MAX_WATCHED_ROWS, {*schema.others, *schema.features})
        rows, most = whole, max(MAX_WATCHED_ROWS // len(terms.parties), MIN_WATCHED_ROWS)
        if whole.num_rows > most:
            size = max(most // _RUNS, 1)
            begins = evenly(whole.num_rows - size + 1, _RUNS).tolist()
            rows = pa.concat_tables([whole.slice(begin, size) for begin in begins])
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
    """Return a finding for each site whose name differs from an earlier one only in whitespace or case."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(" ".join(name.split()).casefold(), name), name) for name in names]
    return [Oddity("sites", name, values=(repr(other),)) for other, name in pairs if other != name]


def _rows(table: Table, most: int, names: Collection[str] | None = None) -> "pa.Table":
    """Return the rows to check: all rows of a table in memory, or the first row groups of a table in a file.
    most: approximate maximum number of rows from a file; names: columns to read (default: all)."""
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
