"""Vertical terms: parties that hold different columns of the same rows."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fedboost.errors import quoted
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Group, Name, Several, Submitted, nearest, refused
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
MAX_ROWS_PER_BIN = 1_000_000
"""Largest floor under the rows of a bin: beyond it hardly any session could split."""
Rows = Literal["common", "label_holder", "in_order"]
OF_IDS = "min_common_rows", "max_ids", "repeated_ids", "id_form"
"""Keys for rows that are matched by their ids."""
MAX_LABEL_EPSILON = 20.0
"""Beyond this noise changes no label of a million."""
ID_BYTES = 32
"""Bytes of the id of a model that parties have parts of."""


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

    rows: Rows | None = Field(
        default=None,
        description="With `label_holder` or `blocks`: `common`, the default, trains on the rows whose "
        "`columns.row_id` all parties of a block have; `label_holder`, without `blocks`, on all rows of the "
        "label holder, with missing values in the columns of a party that does not have a row's id; "
        "`in_order` takes the tables as they are, where all have the same rows in the same order.",
    )
    min_common_rows: int | None = Field(
        default=None,
        ge=1,
        description="Fewest rows that the parties of a block must have in common, or with "
        '`rows = "label_holder"` fewest rows of the label holder of which each other party must have the '
        f"id; {MIN_COMMON_ROWS:,} unless given.",
    )
    max_ids: int | None = Field(
        default=None,
        ge=1,
        le=MOST_IDS,
        description=f"Most row ids that a party may enter; {MAX_IDS:,} unless given.",
    )
    repeated_ids: bool = Field(
        default=False,
        description="Several rows of a label holder may have the same row id, such as the loans of a "
        "customer. Other parties have each id once, and are told how many rows the label holder has of each "
        "that is common ([vertical](vertical.md#several-rows-of-an-id)).",
    )
    id_form: IdForm | None = Field(
        default=None,
        description="What is compared of row ids: `digits` only their digits, `lower` their text in lower "
        "case; else their text without spaces around it.",
    )

    model: Literal["parties", "whole"] | None = Field(
        default=None,
        description="With `label_holder`: `parties` leaves each party with its own part of the model, and "
        "the analyst with its structure; `whole` gives the analyst the model. The default is `parties` with "
        "`paillier`, else `whole`.",
    )
    label_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=MAX_LABEL_EPSILON,
        description="The label holder puts noise on the labels of classes, once for each row id, so that all "
        "that leaves it is this much [differentially private](vertical.md#noise-on-labels) in each label.",
    )
    alone_rounds: int = Field(
        default=0,
        ge=0,
        description="With `label_holder`: so many rounds, the first ones, grow on the label holder's columns "
        "alone. Nothing of them is relayed ([vertical](vertical.md#first-rounds-alone)).",
    )
    min_rows_per_bin: int = Field(
        default=1,
        ge=1,
        le=MAX_ROWS_PER_BIN,
        description="With `label_holder`: of a node the parties tell sums over groups of bins, each of so "
        "many of its rows or of none ([vertical](vertical.md#a-floor-under-bins)).",
    )
    predict_with: str | None = Field(
        default=None,
        pattern=f"^[0-9a-f]{{{2 * ID_BYTES}}}$",
        description="The session trains nothing: the parties predict rows of the label holder with the parts "
        "that they have of the model with this id ([predict together](vertical.md#predict-together)). "
        "`fedboost predict --party` writes it.",
    )
    predict_rows: int | None = Field(
        default=None,
        ge=1,
        le=MOST_IDS,
        description="With `predict_with`: how many rows are predicted; with `repeated_ids` how many ids.",
    )

    @property
    def predicts(self) -> bool:
        """True if rows are predicted, and nothing is trained."""
        return self.predict_with is not None

    @property
    def is_used(self) -> bool:
        """True if parties hold different columns."""
        return self.label_holder is not None or bool(self.blocks)

    @property
    def aligns(self) -> bool:
        """True if rows are matched by their ids."""
        return self.is_used and self.rows != "in_order"

    @property
    def takes_all_rows(self) -> bool:
        """True if all rows of the label holder take part: where another party does not have the id of one,
        its columns are missing values there."""
        return self.predicts or self.rows == "label_holder"

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

    def grows_alone(self, tree: int) -> bool:
        """True for a tree of this session that grows on the label holder's columns alone."""
        return tree < self.alone_rounds

    def blocks_of(self, parties: tuple[str, ...]) -> tuple[Block, ...]:
        """The blocks of these parties; none where each party has all columns."""
        if self.label_holder is None:
            return self.blocks
        return (Block.model_construct(parties=parties, label_holder=self.label_holder),)

    def keeps_parts(self, hides_columns: bool) -> bool:
        """True if each party keeps its part of a model. hides_columns: where nobody else knows cut points,
        that is the default."""
        model = self.model or ("parties" if hides_columns else "whole")
        return self.is_used and model == "parties"

    def _faults(self) -> Iterator[str]:
        has_floor, one_holder = self.min_rows_per_bin > 1, "each split has one holder; set label_holder"
        twice, of_one = self.label_holder is not None, self.rows == "label_holder"
        if self.blocks:
            own = "each block would have groups of bins of its own; set label_holder"
            yield from refused(
                "blocks",
                (twice, "label_holder", "give it under each of [[blocks]] alone"),
                (self.predicts, "predict_with", one_holder),
                (self.model == "parties", 'model = "parties"', one_holder),
                (of_one, 'rows = "label_holder"', "it takes the rows of one label holder; set that"),
                (self.alone_rounds > 0, "alone_rounds", "label holders differ in their columns; set one"),
                (has_floor, "min_rows_per_bin", own),
            )
        if self.repeated_ids and not self.predicts:
            alike = "all rows of a bin may be those of one id; keep one row of each"
            shown = "one known label of an id would show its others; keep one row of each"
            yield from refused(
                "repeated_ids",
                (has_floor, "min_rows_per_bin", alike),
                (self.label_epsilon is not None, "label_epsilon", shown),
            )
        if (self.predict_with is None) != (self.predict_rows is None):
            yield "predict_with and predict_rows: give both, or none"

    def faults(self, parties: tuple[str, ...], columns: Schema) -> Iterator[str]:
        """Yield a fault unless each party is in one block, and each column has one holder in each."""
        if not self.is_used:
            keys = "rows", *OF_IDS, "model", "alone_rounds", "label_epsilon", "predict_with"
            given = ["columns.held"] * bool(columns.held) + [key for key in keys if getattr(self, key)]
            for key in [*given, *["min_rows_per_bin"] * (self.min_rows_per_bin > 1)]:
                yield f"{key} is for parties that hold different columns: set label_holder"
            return
        if not parties:
            return  # of a simulation, which names them later
        blocks = self.blocks_of(parties)
        places = Counter(party for block in blocks for party in block.parties)
        for party in parties:
            if places[party] != 1:
                times = "no block" if not places[party] else "more than one block"
                yield f"party {quoted(party)!r} is in {times}: each party belongs to one"
        for name in places:
            if name not in parties:
                yield f"blocks name {_shown(name)}, which is not one of the parties"
        for name in columns.held:
            if name not in parties:
                hint = nearest(name, parties)
                yield f"columns.held names {_shown(name)}, which is not one of the parties{hint}"
        for block in blocks:
            yield from self._faults_of_block(block, columns)
        if self.alone_rounds and not set(columns.features).difference(*columns.held.values()):
            yield (
                f"alone_rounds: label holder {_shown(self.label_holder or '')} has no columns, on which "
                f"these rounds could grow"
            )

    def faults_of_rows(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless it is clear which rows of the parties belong together."""
        if self.predicts and not self.aligns:
            yield 'predict_with: the rows are matched by their ids, so rows = "in_order" cannot be'
        if self.aligns and columns.row_id is None:
            yield (
                f"{self.key}: name the column by which the rows of the parties are matched, "
                f'columns.row_id, or set rows = "in_order" where all have the same rows in the same order'
            )
        if not self.aligns:
            for key in OF_IDS:
                if getattr(self, key):
                    yield f'{key} is for rows that are matched by their ids, not for "in_order"'

    def _faults_of_block(self, block: Block, columns: Schema) -> Iterator[str]:
        holder = block.label_holder
        if holder not in block.parties:
            hint = nearest(holder, block.parties)
            yield f"label_holder {_shown(holder)} is not one of the parties{hint}"
        if not block.feature_holders:
            yield f"label_holder {_shown(holder)} is the only party: nobody holds other columns"
        if holder in columns.held:
            yield (
                f"columns.held names the label holder {_shown(holder)}: it has all columns that no other "
                f"party has, so take it out"
            )
        claimed: dict[str, str] = {}
        for party in block.feature_holders:
            if not columns.held.get(party):
                yield f"columns.held names no column of party {_shown(party)}: it needs one at least"
            for name in columns.held[party]:
                if name in claimed:
                    yield f"column {_shown(name)} is held by {claimed[name]} and by {party}: name it once"
                claimed[name] = party


def _shown(name: str) -> str:
    return repr(quoted(name)[:MAX_CHARS])
