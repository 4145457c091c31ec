"""Rows of one party as arrays, and base classes of the holders that compute a party's answers.

Guarantees: arrays have a fixed dtype and one element per row. The hash covers everything that answers depend
on. The table reader has already checked the rows against the terms.
Raises: PeerError for queries that are out of order."""

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedboost.boosting.queries import OfTurn, Query
from fedboost.boosting.queries.base import View, view_of
from fedboost.boosting.state import INITIAL_STATE, BoostingState
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.binned import Allocator, Column, allocate_in_memory
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.metrics import TRAIN, VALIDATION
from fedboost.gbdt.sampling import Keys, Mask, mixed, sampled
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import Tree
from fedboost.protocol.contracts import Answering, HeldTable, NeedKeys, Receive, Send
from fedboost.terms.terms import Terms
from fedboost.terms.vertical import Block
from fedboost.version import VERSION

# ---- A keyed hash of rows, by which a site recognises its rows ------------------------------------------
# Guarantees: the hash is a sum over rows, computed from their values and their indices in the table. The
# hashes of a table's shares therefore sum to the hash of the table, however its rows are divided among
# workers. A table that differs in one value has a different hash. Anyone with the key could construct rows
# with the same hash, so the key never leaves the site.

LANES = 4
"""Number of 64-bit words in a hash."""
_BLOCK = 1 << 14
"""Number of rows hashed at a time, so that their sums stay in the cache."""
_READ = 1 << 20
"""Number of rows that are read from a column at a time."""
Values = Column | npt.NDArray[np.generic]
Words = npt.NDArray[np.uint64]


def hash_rows(key: bytes, software: str, columns: Iterable[tuple[str, Values]], places: Keys) -> bytes:
    """Return the keyed hash of rows, 32 bytes.

    Args:
        key: secret key of the site.
        software: text with the software versions, which the hash also covers.
        columns: (name, values) of each column. Each value has one, four or eight bytes.
        places: indices of the rows in the whole table, uint64 [rows].
    """
    key = hmac.digest(key, software.encode(), "sha256")
    tags = np.zeros((LANES, places.size), np.uint64)
    for name, column in columns:
        for half in range(2):
            multipliers = _words(key, f"{half} of {name}") | np.uint64(1)
            if not _add(tags, column, half, multipliers):
                break
    sums = [mixed(tag + mixed(places, lane), "row").sum(dtype=np.uint64) for lane, tag in enumerate(tags)]
    return np.array(sums, "<u8").tobytes()


def add_hashes(hashes: Sequence[bytes]) -> bytes:
    """Combine the hashes of a table's shares (the rows on each worker) into the hash of the table."""
    words = [np.frombuffer(share, "<u8") for share in hashes]
    return np.sum(words, axis=0, dtype=np.uint64).astype("<u8").tobytes()


def words_of(texts: Sequence[bytes]) -> Keys:
    """Return a 64-bit hash of each text, uint64 [texts]."""
    return np.array([int.from_bytes(hashlib.sha256(text).digest()[:8]) for text in texts], np.uint64)


def _add(tags: Words, column: Values, half: int, multipliers: Words) -> bool:
    """Add one half of each value of a column to the tags, in place. A value of up to four bytes has only a
    first half. Returns False if there is no second half."""
    for start in range(0, tags.shape[1], _READ):
        values = np.ascontiguousarray(column[start : start + _READ])
        if values.dtype.itemsize == 1:
            values = values.astype(np.uint32)
        words = values.view(np.uint32).reshape(values.size, -1)
        if half >= words.shape[1]:
            return False
        for first in range(0, values.size, _BLOCK):
            block = words[first : first + _BLOCK, half].astype(np.uint64) + np.uint64(1)
            for lane, multiplier in zip(tags, multipliers, strict=True):
                lane[start + first : start + first + block.size] += multiplier * block
    return True


def _words(key: bytes, what: str) -> Words:
    """Return pseudo-random words, uint64 [4], that cannot be computed without the key."""
    return np.frombuffer(hmac.digest(key, what.encode(), "sha256"), "<u8")


# ---- The rows of one party ------------------------------------------------------------------------------

RowIds = Sequence[bytes]
"""Row ids, normalised for comparison."""
Ranges = Sequence[tuple[int, int]]
"""Ranges [first, end) of row indices."""
_ALL = slice(None)
_MAX_VALUES = 1 << 22
"""Number of feature values read at a time."""


@dataclass(frozen=True)
class Shard:
    """Rows of a party, with the columns that the terms name.

    Args:
        columns: values of each feature, float32 [rows] each; NaN = missing.
        label: float32 [rows], or [2, rows] for intervals.
        weight: float32 [rows].
        allocate: allocator of derived arrays.
        keys: keys by which rows are sampled, uint64 [rows], if the terms sample rows.
        validation: bool [rows], True for validation rows, if the terms have a column for them.
        base_margin: initial margins, float32 [rows]; None means 0.
        group: key of each row's group, uint64 [rows], for ranking objectives.
        ids: id of each row, if rows are matched by id.
        subgroups: levels of each subgroup column, float32 [rows] each.
        ranges: indices of the rows in the whole table, if the rows are only a share of that table.
        texts: of each column whose levels are named, the index of each row's level, int64 [rows] (-1 if
            missing), and the levels.
    """

    columns: tuple[Column, ...]
    label: Float32
    weight: Float32
    allocate: Allocator = allocate_in_memory
    keys: Keys | None = None
    validation: Mask | None = None
    base_margin: Float32 | None = None
    group: Keys | None = None
    ids: RowIds | None = None
    subgroups: tuple[Float32, ...] = ()
    ranges: Ranges | None = None
    texts: tuple[tuple[Int64, tuple[str, ...]], ...] = ()

    @cached_property
    def rows(self) -> int:
        return int(self.weight.size)

    def pick(self, rows: Int64) -> "Shard":
        """Return the rows with these indices, in this order, without ids. Index -1 yields a row of missing
        values, and is allowed only if the rows have no labels."""
        beside: dict[str, Any] = {
            name: None if values is None else values[rows]
            for name, values in vars(self).items()
            if name in ("keys", "validation", "base_margin", "group")
        }
        beside["subgroups"] = tuple(codes[rows] for codes in self.subgroups)
        columns = tuple(column[0 : column.size][rows] for column in self.columns)
        if (unknown := rows < 0).any():
            for values in columns:
                values[unknown] = np.nan
        label = self.label[..., rows] if self.label.size else self.label
        return replace(self, columns=columns, label=label, weight=self.weight[rows], ids=None, **beside)

    def values(self, rows: Int64 | slice = _ALL) -> Float32:
        """Return the values of the columns in these rows, float32 [rows, columns]; NaN = missing."""
        number = self.weight[rows].size
        values = np.empty((number, len(self.columns)), np.float32)
        for place, column in enumerate(self.columns):
            values[:, place] = column[0 : column.size][rows]
        return values

    def first(self, rows: int) -> "Shard":
        return self if rows == self.rows else self.pick(np.arange(rows))

    def hashed(self, key: bytes, columns: Sequence[Column], software: str = "") -> bytes:
        """Return the keyed hash of the rows with these feature columns, 32 bytes. software: versions that the
        hash also covers."""
        places = places_of(self.ranges or ((0, self.rows),))
        return hash_rows(key, software, self._named(columns), places)

    def _named(self, columns: Sequence[Column]) -> Iterator[tuple[str, Values]]:
        for name in ("weight", "keys", "validation", "base_margin", "group"):
            if (values := getattr(self, name)) is not None:
                yield name, values
        if self.ids is not None:
            yield "ids", words_of(self.ids)
        if self.label.size:
            yield from zip(("label", "upper bound"), np.atleast_2d(self.label), strict=False)
        yield from ((f"subgroups {number}", codes) for number, codes in enumerate(self.subgroups))
        yield from ((f"feature {number}", column) for number, column in enumerate(columns))
        for number, (codes, levels) in enumerate(self.texts):
            yield f"texts {number}", words_of([*map(str.encode, levels), b""])[codes]


def places_of(ranges: Ranges) -> Keys:
    """Return the indices of all rows in these ranges, uint64 [rows]."""
    return np.concatenate([np.arange(first, last, dtype=np.uint64) for first, last in ranges])


def continue_margins(
    margin: Float64, base_margin: Float64 | Float32 | None, earlier: Booster, columns: Sequence[Column]
) -> None:
    """Write the margins of an earlier model for all rows into `margin`, float64 [outputs, rows]. base_margin:
    initial margins that replace the margin of the model's base score, or None to keep that margin."""
    step = _MAX_VALUES // len(columns) + 1
    for start in range(0, margin.shape[1], step):
        rows = slice(start, start + step)
        features = np.column_stack([column[rows] for column in columns])
        margin[:, rows] = earlier.margins(features, None if base_margin is None else base_margin[rows])


def holds_out(terms: Terms) -> bool:
    """Return True if the terms hold out validation rows, which trees are not trained on."""
    return terms.columns.validation is not None or terms.evaluation.validation_fraction > 0.0


def row_sets(shard: Shard, terms: Terms) -> dict[str, Mask]:
    """Return masks, bool [rows], of the training rows and the validation rows. Validation rows are marked in
    the table, or sampled. If rows have groups, whole groups are sampled."""
    if not holds_out(terms):
        return {TRAIN: np.broadcast_to(True, shard.rows), VALIDATION: np.broadcast_to(False, shard.rows)}
    held_out = shard.validation
    if terms.columns.validation is None:
        keys = shard.keys if shard.group is None else shard.group
        assert keys is not None
        held_out = sampled(keys, terms.evaluation.validation_fraction, terms.draws.seed, "validation")
    assert held_out is not None
    return {TRAIN: ~held_out, VALIDATION: held_out}


# ---- Base classes of holders ----------------------------------------------------------------------------

Exchange = Generator[Send | Receive | NeedKeys, Any, Any]
"""Generator that exchanges bytes with other parties of the block while a party computes its answer."""


def place_of(terms: Terms, name: str) -> tuple[View, Block]:
    """Return the view and the block of a party that holds some of the columns."""
    view, block = view_of(terms, name), terms.blocks.of(name)
    assert view is not None
    assert block is not None
    return view, block


class BaseHolder:
    """Base class of holders. A holder computes a party's answers in one session, and keeps its state."""

    earlier: Booster | None = None

    def __init__(self, terms: Terms, nthread: int) -> None:
        self.state = INITIAL_STATE
        self._terms = terms
        self._threads = Threads(nthread)

    @property
    def table(self) -> HeldTable | None:
        """Data by which later sessions recognise the table, or None if they do not need to."""
        return None

    def go_to(self, state: BoostingState) -> None:
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """Return this party's view of the trees; empty if all see the same trees, or if there are none."""
        return ()


class RowsHolder(BaseHolder, ABC):
    """Base class of holders that compute answers from their own rows, without data from other parties."""

    def __init__(self, read: Callable[[], Shard], terms: Terms, nthread: int = 1) -> None:
        """Read the rows. read: returns the rows; called again if values are needed after binning."""
        super().__init__(terms, nthread)
        self._read = read
        self._shard = read()

    @property
    def rows(self) -> int:
        return self._shard.rows

    @property
    def shard(self) -> Shard:
        """The rows. Their columns are dropped after binning."""
        return self._shard

    @property
    def columns(self) -> tuple[Column, ...]:
        """Values of the features, which are read again if they have been dropped after binning."""
        return self._shard.columns or self._read().columns

    @property
    def base_margin(self) -> Float32 | None:
        return self._shard.base_margin

    def rows_hashed(self, key: bytes) -> bytes:
        """Return an HMAC of all that answers depend on, 32 bytes: the rows and the software versions."""
        return self._shard.hashed(key, self.columns, repr((VERSION, self._terms.objective.package)))

    def answering(self, query: OfTurn) -> Answering:
        """Return this party's answer, int64 [query.cells], as a generator that never waits."""
        yield from ()
        return self.answer(query)

    def answer(self, query: OfTurn) -> Int64:
        """Return this party's answer, int64 [query.cells]. Raises PeerError if the query is out of order."""
        answers = []
        for part in cast(tuple[Query, ...], query.parts):
            part.check_order(self._terms, self.state)
            answers.append(self.compute(part))
            self.state = self.state.after(part)
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    @abstractmethod
    def compute(self, query: Query) -> Int64:
        """Return the answer to a query, int64 [query.cells]. Raises PeerError for another task's query."""
