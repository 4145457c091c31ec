"""The base of all queries.

Promises: a class without a rule cannot be instantiated; with noise, only queries that support it are allowed.
"""

import functools
import hashlib
from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedboost.boosting.queries.views import View, view_of
from fedboost.errors import Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt.tree import NO_SPLITS, Splits
from fedboost.privacy import fields
from fedboost.privacy.bit_packing import Segment
from fedboost.privacy.protection import HiddenSums
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.terms.noise import ROWS, Noise, Release
from fedboost.terms.session import TRAINING
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    once = functools.cached_property
else:

    class once:
        """A property that is computed at first use, without the lock of `cached_property`."""

        def __init__(self, compute):
            self._compute, self._name = compute, compute.__name__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value


CONSTANT_TREE = -1
MAX_ROWS = 1 << 48
"""Limit of the rows of a sum, exclusive."""
BYTES_PER_CELL = 16
"""Bytes that the aggregator needs for each integer: of the running sum, and of the opened sum."""


class BaseQuery(ABC):
    """A query (`protocol.contracts.Query`) with the usual answers. Each query is a frozen dataclass with the
    fields `rows`, `tree` and `splits` (made of `Split` objects, or columns), or with `BeforeTrees`."""

    rows: int
    tree: int
    splits: Splits
    description: ClassVar[str]
    """The contents of an answer, for people: at most 42 characters."""
    of_tree: ClassVar[bool] = False
    """True if it is about a tree before its end."""
    ends_tree: ClassVar[bool] = False
    """True if it ends a tree, and the round with it."""
    only_turn: ClassVar[int | None] = None
    """The turn that it is asked in, alone, if it is asked once in a session."""
    needs_noise: ClassVar[bool] = False
    """True if only answers with noise are allowed."""
    tasks: ClassVar[frozenset[str]] = TRAINING
    """What the sessions do that it is asked in (`Terms.task`)."""

    def __post_init__(self) -> None:
        if type(self.splits) is not Splits:
            object.__setattr__(self, "splits", Splits.of(self.splits))

    @classmethod
    @abstractmethod
    def max_count(cls, terms: Terms) -> int:
        """The most queries of this kind in one session, by a program of fedboost."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """Integers of the answer."""

    @property
    @abstractmethod
    def cell_bits(self) -> int:
        """Bits in which the sum of each integer over all rows fits."""

    @abstractmethod
    def check_terms(self, terms: Terms) -> None:
        """Raise Refused if the terms do not allow it."""

    @abstractmethod
    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next in that state (`boosting.state`)."""

    @abstractmethod
    def applied_to(self, state: Any) -> Any:
        """The state (`boosting.state`) after its answer."""

    @classmethod
    def serves(cls, terms: Terms) -> bool:
        """True if it is for what a session under these terms does."""
        return terms.task in cls.tasks

    def is_allowed_with(self, noise: Noise) -> bool:
        """True if it is allowed where answers get this noise."""
        return False

    @property
    def parts(self) -> "tuple[BaseQuery, ...]":
        """The query itself: it is not made of others."""
        return (self,)

    @property
    def name(self) -> str:
        """Name in logs."""
        return type(self).__name__

    @property
    def stage(self) -> int:
        """Stage in the session: two a tree, its growth and its end."""
        return 2 * self.tree + self.ends_tree

    @once
    def segments(self) -> tuple[Segment, ...]:
        """The cells in which an answer travels."""
        return (Segment(self.cells, self.cell_bits),)

    @once
    def digest(self) -> bytes:
        """Hash of all its content: 32 bytes."""
        return digest_of(self)

    def check(self, terms: Terms) -> None:
        """Raise Refused if the terms do not allow it."""
        if not self.serves(terms):
            raise Refused(f"{self.name} is asked, and the terms {terms.task}, and do nothing else")
        if self.cells > MAX_CELLS:
            raise Refused(
                f"an answer of {self.cells} integers, at most {MAX_CELLS} are given; lower max_depth"
            )
        if terms.noise is None and self.needs_noise:
            raise Refused("sums that would need noise, and the terms have none")
        if terms.noise is not None:
            if not self.is_allowed_with(terms.noise):
                raise Refused(
                    "sums without noise, or about trees of another method, and the terms say otherwise"
                )
            if self.rows != ROWS:  # else a refusal would reveal whether there are that many
                raise Refused("sums over a number of rows, which nobody may know where they get noise")
        self.check_terms(terms)

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
        """The query as a party is told it, or as all parties of its block are (`views`)."""
        view = view_of(terms, party)
        if view is None:
            return self
        seen: dict[tuple[str, bool], Self] = self.__dict__.setdefault("_seen", {})
        if (party, publicly) not in seen:
            seen[party, publicly] = self.in_view(view.public if publicly else view)
        return seen[party, publicly]

    def in_view(self, view: View) -> Self:
        """The query as it is told in this view."""
        splits = view.splits(self.splits)
        if splits is self.splits:
            return self
        return replace(self, splits=splits)  # type: ignore[type-var]  # a dataclass

    def fits(self, answer: Int64) -> bool:
        """True if the cells hold this answer, when no other party adds to it."""
        return True

    def to_cells(self, answer: Int64) -> Int64:
        """An answer as it is sealed: an integer for each cell."""
        return answer

    def from_cells(self, total: Int64) -> Int64:
        """The sum of answers, from the sum of their cells: [cells]."""
        return total

    def relayed_bytes(self, terms: Terms) -> int:
        """Bytes that a party relays before it answers, beside those of trees."""
        return 0

    def bytes_needed(self, parties: int) -> int:
        """Most bytes that the aggregator needs from this query until the next."""
        return BYTES_PER_CELL * self.cells

    def release(self, terms: Terms) -> Release | None:
        """The release of an answer, where the terms have noise; None if it does not depend on rows."""
        return None

    def hidden(self, terms: Terms, state: Any) -> HiddenSums | None:
        """The sums that some parties report encrypted, asked in this state; None without any."""
        return None

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of the round that it ends: all of them, and those for the analyst."""
        return {}, {}


class BeforeTrees:
    """A query before the first tree."""

    tree = CONSTANT_TREE
    splits = NO_SPLITS


def digest_of(value: object) -> bytes:
    """Hash of all content of a dataclass of queries, splits, numbers and arrays: 32 bytes.

    Hashed are a header and the bytes of each array, each behind its length. The header is the text of the
    members under the name of their type, with the type and shape of arrays in the place of these."""
    arrays: list[bytes] = []
    header = repr(_header(value, arrays)).encode()
    return hashlib.sha256(fields.pack(header, *arrays)).digest()


def _few_members(value: Any) -> list[Any]:
    return [getattr(value, name) for name in value.__dataclass_fields__]


APART = {"hashed": "apart"}
"""Metadata of a member that `digest_of` leaves out, since most sessions do not have it; the query's own
`digest` has it where it says something."""


_TEXT = {bool, int, float, str, bytes, type(None)}
"""Types whose text says all."""
_MEMBERS: dict[type, Any] = {}
"""For each dataclass the function to its members, in order."""


def _header(value: Any, arrays: list[bytes]) -> object:
    kind = type(value)
    if kind in _TEXT:
        return value
    if kind is tuple:
        types = set(map(type, value))
        if types <= _TEXT or (types == {tuple} and _TEXT.issuperset(map(type, chain.from_iterable(value)))):
            return value
        return tuple([_header(member, arrays) for member in value])
    if kind is Splits:
        arrays.append(value.packed)
        return "Splits", len(value)
    if kind is np.ndarray:
        arrays.append(value.tobytes())
        return value.dtype.str, value.shape
    if kind not in _MEMBERS:
        names = [name for name, member in kind.__dataclass_fields__.items() if member.metadata != APART]
        _MEMBERS[kind] = attrgetter(*names) if len(names) > 1 else _few_members
    members = _MEMBERS[kind](value)
    if _TEXT.issuperset(map(type, members)):
        return kind.__name__, *members
    return kind.__name__, *[
        member if type(member) in _TEXT else _header(member, arrays) for member in members
    ]
