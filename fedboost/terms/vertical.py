"""Vertical terms: parties that hold different columns of the same rows."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from fedboost.errors import quoted
from fedboost.terms.columns import Schema
from fedboost.terms.flat import Group
from fedboost.terms.reading import MAX_CHARS, Name, Several, Submitted, nearest
from fedboost.terms.session import MAX_PARTIES, Parties

MAX_BLOCKS = MAX_PARTIES // 2
MIN_COMMON_ROWS = 1000
"""Fewest rows in common, unless the terms say otherwise: among few people a party knows those that a split
sends left by name."""
MAX_IDS = 10_000_000
"""Most ids that a party enters, unless the terms say otherwise: in a small space of ids (telephone numbers of
a town) a party that enters all of them learns whom the others know."""
MOST_IDS = 14_000_000
"""Ids that a party can enter at most: places of so many rows, four bytes each, and all else that a party is
told when it comes back, fit in a message of 64 MiB."""
IdForm = Literal["text", "digits", "lower"]


class Block(Submitted):
    """Parties that hold different columns of the same rows."""

    parties: Parties = Field(max_length=MAX_PARTIES, description="Names of the parties of this block.")
    label_holder: Name = Field(description="Party of this block that has the labels.")

    @property
    def feature_holders(self) -> tuple[str, ...]:
        """The parties without labels."""
        return tuple(party for party in self.parties if party != self.label_holder)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a session, and the columns of each party. False where each party has all columns."""

    blocks: tuple[Block, ...]
    columns: Schema
    by_id: bool
    """True if each party has the column of row ids."""

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def of(self, party: str) -> Block | None:
        """The block of a party; None where it has all columns."""
        return next((block for block in self.blocks if party in block.parties), None)

    def viewer(self, party: str) -> str:
        """The party, where each is told something else; '' where all are told the same."""
        return party if self.blocks else ""

    def has_labels(self, party: str) -> bool:
        """True unless another party has the labels of its rows."""
        block = self.of(party)
        return block is None or block.label_holder == party

    def columns_of(self, party: str) -> Schema:
        """The columns of a party."""
        block = self.of(party)
        if block is None:
            return self.columns
        held = {name: names for name, names in self.columns.held.items() if name in block.parties}
        columns = self.columns.model_copy(update={"held": held})
        return columns.held_by(party, self.has_labels(party), self.by_id)


class Vertical(Group):
    """Which parties hold different columns of the same rows."""

    label_holder: Name | None = Field(
        default=None,
        description="Party that has the labels, where the parties hold different columns of the same rows "
        "([vertical](vertical.md)). It has all columns but those of `columns.held`.",
    )
    blocks: Several[Block] = Field(
        default=(),
        max_length=MAX_BLOCKS,
        description="Groups of parties in place of `label_holder`, each with rows of its own, as "
        '`[[blocks]]` with `parties = ["a", "b"]` and `label_holder = "a"`. Only with protection `plain`.',
    )

    rows: Literal["common", "in_order"] | None = Field(
        default=None,
        description="With `label_holder` or `blocks`: `common`, the default, trains on the rows whose "
        "`columns.row_id` all parties of a block have; `in_order` takes the tables as they are, where all "
        "have the same rows in the same order.",
    )
    min_common_rows: int | None = Field(
        default=None,
        ge=1,
        description="Fewest rows that the parties of a block must have in common; "
        f"{MIN_COMMON_ROWS:,} unless given.",
    )
    max_ids: int | None = Field(
        default=None,
        ge=1,
        le=MOST_IDS,
        description=f"Most row ids that a party may enter; {MAX_IDS:,} unless given.",
    )
    id_form: IdForm | None = Field(
        default=None,
        description="What is compared of row ids: `digits` only their digits, `lower` their text in lower "
        "case; else their text without spaces around it.",
    )

    @property
    def is_used(self) -> bool:
        """True if parties hold different columns."""
        return self.label_holder is not None or bool(self.blocks)

    @property
    def aligns(self) -> bool:
        """True if rows are matched by their ids."""
        return self.is_used and self.rows != "in_order"

    @property
    def fewest_common_rows(self) -> int:
        """Fewest rows that the parties of a block have in common."""
        return self.min_common_rows or MIN_COMMON_ROWS

    @property
    def most_ids(self) -> int:
        """Most row ids that a party enters."""
        return self.max_ids or MAX_IDS

    @property
    def key(self) -> str:
        """The key of the terms that says so."""
        return "blocks" if self.label_holder is None else "label_holder"

    def blocks_of(self, parties: tuple[str, ...]) -> tuple[Block, ...]:
        """The blocks of these parties; none where each party has all columns."""
        if self.label_holder is None:
            return self.blocks
        return (Block.model_construct(parties=parties, label_holder=self.label_holder),)

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.label_holder is not None and self.blocks:
            raise ValueError("label_holder and blocks: give label_holder under each of [[blocks]] alone")
        return self

    def check(self, parties: tuple[str, ...], columns: Schema) -> None:
        """Raise ValueError unless each party is in one block, and each column has one holder in each."""
        if not self.is_used:
            if columns.held:
                raise ValueError("columns.held is for parties that hold different columns: set label_holder")
            for key in ("rows", "min_common_rows", "max_ids", "id_form"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} is for parties that hold different columns: set label_holder")
            return
        if not parties:
            return  # of a simulation, which names them later
        blocks = self.blocks_of(parties)
        places = Counter(party for block in blocks for party in block.parties)
        for party in parties:
            if places[party] != 1:
                times = "no block" if not places[party] else "more than one block"
                raise ValueError(f"party {quoted(party)!r} is in {times}: each party belongs to one")
        for name in places:
            if name not in parties:
                raise ValueError(f"blocks name {_shown(name)}, which is not one of the parties")
        for name in columns.held:
            if name not in parties:
                hint = nearest(name, parties)
                raise ValueError(f"columns.held names {_shown(name)}, which is not one of the parties{hint}")
        for block in blocks:
            self._check_block(block, columns)

    def check_rows(self, columns: Schema) -> None:
        """Raise ValueError unless it is clear which rows of the parties belong together."""
        if not self.is_used:
            return
        if self.aligns and columns.row_id is None:
            raise ValueError(
                f"{self.key}: name the column by which the rows of the parties are matched, "
                f'columns.row_id, or set rows = "in_order" where all have the same rows in the same order'
            )
        if not self.aligns:
            for key in ("min_common_rows", "max_ids", "id_form"):
                if getattr(self, key) is not None:
                    raise ValueError(f'{key} is for rows = "common", where rows are matched by their ids')

    def _check_block(self, block: Block, columns: Schema) -> None:
        holder = block.label_holder
        if holder not in block.parties:
            hint = nearest(holder, block.parties)
            raise ValueError(f"label_holder {_shown(holder)} is not one of the parties{hint}")
        if not block.feature_holders:
            raise ValueError(f"label_holder {_shown(holder)} is the only party: nobody holds other columns")
        if holder in columns.held:
            raise ValueError(
                f"columns.held names the label holder {_shown(holder)}: it has all columns that no other "
                f"party has, so take it out"
            )
        claimed: dict[str, str] = {}
        for party in block.feature_holders:
            if not columns.held.get(party):
                raise ValueError(
                    f"columns.held names no column of party {_shown(party)}: it needs one at least"
                )
            for name in columns.held[party]:
                if name in claimed:
                    raise ValueError(
                        f"column {_shown(name)} is held by {claimed[name]} and by {party}: name it once"
                    )
                claimed[name] = party


def _shown(name: str) -> str:
    return repr(quoted(name)[:MAX_CHARS])
