"""Settings for sessions in which parties hold different columns of the same rows (vertical terms)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from fedboost.errors import quoted
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Group, Name, OrNone, Several, UntrustedTable, nearest, refused
from fedboost.terms.session import MAX_PARTIES, Parties

MAX_BLOCKS = MAX_PARTIES // 2
MIN_COMMON_ROWS = 1000
"""Default of min_common_rows. If the parties had only a few rows in common, a party could identify the people
whose rows a split sends left."""
MAX_IDS = 10_000_000
"""Default of max_ids. A party that submits all telephone numbers of a town learns which of these numbers the
other parties have."""
MOST_IDS = 14_000_000
"""Upper limit of max_ids: so many row numbers fit into a 64 MiB message to a party that reconnects."""
IdForm = Literal["text", "digits", "lower"]
MAX_ROWS_PER_BIN = 1_000_000
"""Upper limit of min_rows_per_bin. With a higher value, hardly any node could be split."""
Rows = Literal["common", "label_holder", "in_order"]
OF_IDS = "min_common_rows", "max_ids", "repeated_ids", "id_form"
"""Keys that apply only if rows are matched by their ids."""
MAX_LABEL_EPSILON = 20.0
"""Upper limit of label_epsilon. With a higher value, noise would change fewer than one label in a million."""
ID_BYTES = 32
"""Size in bytes of a model's id, if each party keeps its own part of the model."""


class Block(UntrustedTable):
    """Parties that hold different columns of the same rows."""

    parties: Parties = Field(max_length=MAX_PARTIES, description="Names of the parties in this block.")
    label_holder: Name = Field(description="Party in this block that has the labels.")

    @property
    def feature_holders(self) -> tuple[str, ...]:
        """Parties of this block that have no labels."""
        return tuple(party for party in self.parties if party != self.label_holder)


@dataclass(frozen=True)
class Blocks:
    """Blocks of a session, with the columns of each party. Empty (false) if each party has all columns."""

    blocks: tuple[Block, ...]
    columns: Schema
    by_id: bool
    """True if each party has the row id column."""
    views: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Views of the parties (`boosting.queries.base.view_of`), so that each is computed once."""

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def of(self, party: str) -> Block | None:
        """Return the party's block, or None if the party has all columns."""
        return next((block for block in self.blocks if party in block.parties), None)

    def viewer(self, party: str) -> str:
        """Return the party's name if parties receive different views of queries, or '' if they do not."""
        return party if self.blocks else ""

    def has_labels(self, party: str) -> bool:
        """Return True if the party has the labels of its rows."""
        block = self.of(party)
        return block is None or block.label_holder == party

    def columns_of(self, party: str, whole: bool = False) -> Schema:
        """Return the columns that the party's table must have. whole: True for the columns of its rows, which
        include features that its table lacks."""
        block = self.of(party)
        if block is None:
            return self.columns if whole else self.columns.in_table_of(party)
        held = {name: names for name, names in self.columns.held.items() if name in block.parties}
        columns = self.columns.model_copy(update={"held": held})
        return columns.held_by(party, self.has_labels(party), self.by_id)


class Vertical(Group):
    """Settings for parties that hold different columns of the same rows."""

    label_holder: OrNone[Name] = Field(
        description="Party that has the labels, if the parties hold different columns of the same rows "
        "([vertical](vertical.md)). It has all columns except those in `columns.held`.",
    )
    blocks: Several[Block] = Field(
        default=(),
        max_length=MAX_BLOCKS,
        description="Groups of parties, each group with its own rows, as an alternative to `label_holder`: "
        '`[[blocks]]` with `parties = ["a", "b"]` and `label_holder = "a"`. Only with protection `plain`.',
    )
    rows: OrNone[Rows] = Field(
        description="With `label_holder` or `blocks`: rows to train on. `common` (default): rows whose "
        "`columns.row_id` all parties of a block have. `label_holder` (not with `blocks`): all rows of the "
        "label holder; a party without a row's id has missing values there. `in_order`: all rows of the "
        "tables, which must contain the same rows in the same order.",
    )
    min_common_rows: OrNone[int] = Field(
        ge=1,
        description="Minimum number of rows that the parties of a block must have in common. With `rows = "
        '"label_holder"`, minimum number of the label holder\'s rows whose id each other party must have. '
        f"The default is {MIN_COMMON_ROWS:,}.",
    )
    max_ids: OrNone[int] = Field(
        ge=1,
        le=MOST_IDS,
        description=f"Maximum number of row ids that a party may enter. The default is {MAX_IDS:,}.",
    )
    repeated_ids: bool = Field(
        default=False,
        description="Whether several rows of a label holder may have the same row id, e.g. the loans of a "
        "customer. Other parties must have each id only once. They learn how many rows the label holder has "
        "for each common id ([vertical](vertical.md#several-rows-of-an-id)).",
    )
    id_form: OrNone[IdForm] = Field(
        description="How row ids are compared. `digits`: only by their digits. `lower`: as lower-case text. "
        "`text` (default): as text. Surrounding spaces are ignored.",
    )

    model: OrNone[Literal["parties", "whole"]] = Field(
        description="With `label_holder`: who gets the model. `parties`: each party keeps its part, and the "
        "analyst gets the structure. `whole`: the analyst gets the whole model. The default is `parties` "
        "with `paillier`, otherwise `whole`.",
    )
    label_epsilon: OrNone[float] = Field(
        gt=0,
        le=MAX_LABEL_EPSILON,
        description="Epsilon of the [differential privacy of each label](vertical.md#noise-on-labels), for "
        "all data that leave the label holder. It adds noise to class labels, once for each row id. By "
        "default, there is no noise.",
    )
    alone_rounds: int = Field(
        default=0,
        ge=0,
        description="With `label_holder`: number of initial rounds whose trees use only the label holder's "
        "columns. Nothing about them is relayed ([vertical](vertical.md#first-rounds-alone)).",
    )
    min_rows_per_bin: int = Field(
        default=1,
        ge=1,
        le=MAX_ROWS_PER_BIN,
        description="With `label_holder`: parties report a node's sums over groups of bins. Each group "
        "contains at least this many rows of the node, or none "
        "([vertical](vertical.md#minimum-rows-per-bin)).",
    )
    predict_with: OrNone[str] = Field(
        pattern=f"^[0-9a-f]{{{2 * ID_BYTES}}}$",
        description="Id of a model whose parts the parties keep. If it is set, the session does not train; "
        "the parties predict rows of the label holder ([predict together](vertical.md#predict-together)). "
        'With `program = "evaluate"`, they evaluate the model on these rows. `fedboost predict --party` and '
        "`fedboost evaluate` set it.",
    )
    predict_rows: OrNone[int] = Field(
        ge=1,
        le=MOST_IDS,
        description="With `predict_with`: number of rows to predict; with `repeated_ids`, number of ids. "
        'With `program = "evaluate"`: maximum number of ids in the table of the label holder.',
    )

    @property
    def predicts(self) -> bool:
        """True if the session predicts rows of the label holder instead of training."""
        return self.predict_rows is not None

    @property
    def is_used(self) -> bool:
        """True if the parties hold different columns of the same rows."""
        return self.label_holder is not None or bool(self.blocks)

    @property
    def aligns(self) -> bool:
        """True if rows are matched by their ids."""
        return self.is_used and self.rows != "in_order"

    @property
    def takes_all_rows(self) -> bool:
        """True if all rows of the label holder take part. A party that lacks a row's id then has missing
        values for this row."""
        return self.predicts or self.rows == "label_holder"

    @property
    def fewest_common_rows(self) -> int:
        """Minimum number of rows that the parties of a block must have in common."""
        return self.min_common_rows or MIN_COMMON_ROWS

    @property
    def most_ids(self) -> int:
        """Maximum number of row ids that a party may submit."""
        return self.max_ids or MAX_IDS

    @property
    def key(self) -> str:
        """The key of the terms that makes a session vertical, for messages."""
        return "blocks" if self.label_holder is None else "label_holder"

    def grows_alone(self, tree: int) -> bool:
        """Return True if this tree of the session uses only the label holder's columns."""
        return tree < self.alone_rounds

    def relays_samples(self, columns: Schema, draws_rows: bool) -> bool:
        """Return True if a label holder relays which rows are sampled, and gradients only of these rows.
        Without a minimum number of rows per bin, which needs them, it does so only if the sample reveals
        nothing: each party can draw it from its own ids, or from the order of the rows."""
        if not self.is_used or self.min_rows_per_bin > 1:
            return self.is_used
        own_ids = self.aligns and not self.takes_all_rows and self.id_form in (None, "text")
        is_public = own_ids or (not self.aligns and columns.row_id is None)
        return draws_rows and is_public and columns.validation is None and columns.group is None

    def blocks_of(self, parties: tuple[str, ...]) -> tuple[Block, ...]:
        """Return the blocks of these parties, or () if each party has all columns."""
        if self.label_holder is None:
            return self.blocks
        return (Block.model_construct(parties=parties, label_holder=self.label_holder),)

    def keeps_parts(self, hides_columns: bool) -> bool:
        """Return True if each party keeps its own part of the model. hides_columns: True if only the holder
        of a column knows its cut points; keeping parts is then the default."""
        model = self.model or ("parties" if hides_columns else "whole")
        return self.is_used and model == "parties"

    def _faults(self) -> Iterator[str]:
        has_floor = self.min_rows_per_bin > 1
        one_holder = "each split must have a single holder; set label_holder instead"
        twice, of_one = self.label_holder is not None, self.rows == "label_holder"
        if self.blocks:
            own = "each block would have its own groups of bins; set label_holder instead"
            yield from refused(
                "blocks",
                (twice, "label_holder", "set it only in each of [[blocks]]"),
                (self.predicts, "predict_rows", one_holder),
                (self.model == "parties", 'model = "parties"', one_holder),
                (of_one, 'rows = "label_holder"', "it needs one label holder; set label_holder"),
                (
                    self.alone_rounds > 0,
                    "alone_rounds",
                    "label holders have different columns; set label_holder",
                ),
                (has_floor, "min_rows_per_bin", own),
            )
        if self.repeated_ids:
            alike = "all rows of a bin could belong to a single id; keep one row per id"
            shown = "one known label of an id would reveal its others; keep one row per id"
            yield from refused(
                "repeated_ids",
                (has_floor, "min_rows_per_bin", alike),
                (self.label_epsilon is not None, "label_epsilon", shown),
            )

    def faults(self, parties: tuple[str, ...], columns: Schema) -> Iterator[str]:
        """Yield an error message for each party that is not in exactly one block, and for each column that
        does not have exactly one holder in each block."""
        if not self.is_used:
            keys = "rows", *OF_IDS, "model", "alone_rounds", "label_epsilon", "predict_with", "predict_rows"
            given = ["columns.held"] * bool(columns.held) + [key for key in keys if getattr(self, key)]
            for key in [*given, *["min_rows_per_bin"] * (self.min_rows_per_bin > 1)]:
                yield f"{key} is only for parties that hold different columns: set label_holder, or remove it"
            return
        if not parties:
            return  # a simulation sets the names later
        blocks = self.blocks_of(parties)
        places = Counter(party for block in blocks for party in block.parties)
        for party in parties:
            if places[party] != 1:
                times = "no block" if not places[party] else "more than one block"
                yield f"party {quoted(party)!r} is in {times}: put each party into exactly one block"
        for name in places:
            if name not in parties:
                yield f"blocks names {_shown(name)}, which is not one of the parties"
        for name in columns.held:
            if name not in parties:
                hint = nearest(name, parties)
                yield f"columns.held names {_shown(name)}, which is not one of the parties{hint}"
        for block in blocks:
            yield from self._faults_of_block(block, columns)
        if self.alone_rounds and not set(columns.features).difference(*columns.held.values()):
            yield (
                f"alone_rounds: label holder {_shown(self.label_holder or '')} has no features that these "
                f"rounds could use; remove alone_rounds"
            )

    def faults_of_rows(self, columns: Schema) -> Iterator[str]:
        """Yield an error message unless the settings define clearly how the parties' rows are matched."""
        if self.predicts and not self.aligns:
            yield 'predict_rows: rows are matched by their ids, so remove rows = "in_order"'
        if self.aligns and columns.row_id is None:
            yield (
                f"{self.key} needs columns.row_id, the column that the parties' rows are matched by; set it, "
                f'or set rows = "in_order" if all tables have the same rows in the same order'
            )
        if not self.aligns:
            for key in OF_IDS:
                if getattr(self, key):
                    yield f'{key} is only for rows matched by their ids, not for rows = "in_order"'

    def _faults_of_block(self, block: Block, columns: Schema) -> Iterator[str]:
        holder = block.label_holder
        if holder not in block.parties:
            hint = nearest(holder, block.parties)
            yield f"label_holder {_shown(holder)} is not one of the parties{hint}"
        if not block.feature_holders:
            yield f"label_holder {_shown(holder)} is the only party of its block: add a party with columns"
        if holder in columns.held:
            yield (
                f"columns.held names the label holder {_shown(holder)}, which has all columns that no other "
                f"party has: remove it"
            )
        claimed: dict[str, str] = {}
        for party in block.feature_holders:
            if not columns.held.get(party):
                yield f"columns.held lists no columns for party {_shown(party)}: list at least one"
            for name in columns.held[party]:
                if name in claimed:
                    yield f"column {_shown(name)} is held by {claimed[name]} and by {party}: list it once"
                claimed[name] = party


def _shown(name: str) -> str:
    return repr(quoted(name)[:MAX_CHARS])
