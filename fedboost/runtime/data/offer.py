"""An offer of columns: what a site with columns and no labels tells an analyst of its table.

Promises: a drafted offer has every column that `fedboost terms` would draft as a feature; under an alias it
holds no name and no level of the table; a level of fewer rows than the floor is not in it.
Refuses: a table without a usable column, an alias that no column can have (ConfigError); offers that name a
column twice, or a party twice (ConfigError with both files).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from fedboost.errors import ConfigError
from fedboost.runtime.config import OFFER, read_toml, to_toml
from fedboost.runtime.data.draft import Draft, draft_features
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.values import column_of
from fedboost.terms.columns import NOT_IN_FEATURES, Schema
from fedboost.terms.reading import MAX_FEATURES, Name, Several, Submitted, Table, read_model

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ALIAS = 200
"""Characters of an alias: a column's name has 256."""
_NO_LABEL = "[label]"  # what an offer lacks; no feature can be called so


class Offer(Submitted):
    """The columns that a party offers, with the levels of the categorical ones."""

    holder: Name
    numeric: Several[Name] = Field(default=(), max_length=MAX_FEATURES)
    categorical: Table[Several[str]] = Field(default_factory=dict, max_length=MAX_FEATURES)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, numeric ones first."""
        return (*self.numeric, *self.categorical)

    def to_toml(self) -> str:
        """The content of the file that goes to the analyst."""
        lines = ["# Columns for terms: fedboost terms TABLE --label COLUMN --with THIS_FILE"]
        lines += [f"{key} = {to_toml(value)}" for key, value in self.model_dump(mode="json").items() if value]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class OfferedColumn:
    """A column under its name in terms, and what it is in the table. levels: of a categorical one, those of
    the table by their names in terms; few: how many levels have too few rows."""

    name: str
    own: str
    levels: dict[str, str] | None = None
    few: int = 0


@dataclass(frozen=True)
class DraftedOffer:
    """The columns of a table that can be offered, and the reasons why others cannot."""

    holder: str
    columns: tuple[OfferedColumn, ...]
    left_out: dict[str, str]

    @property
    def offer(self) -> Offer:
        """What goes to the analyst."""
        numeric = tuple(column.name for column in self.columns if column.levels is None)
        categorical = {c.name: tuple(c.levels) for c in self.columns if c.levels is not None}
        return Offer(holder=self.holder, numeric=numeric, categorical=categorical)


def draft_offer(
    table: "pa.Table | SparseTable",
    holder: str,
    alias: str | None,
    exclude: Sequence[str],
    min_rows: int,
) -> DraftedOffer:
    """An offer of every usable column but those of `exclude`. alias: columns are called alias.1, alias.2, ...
    and levels 1, 2, ... in place of their names; min_rows: rows that a level has at least. Raises
    ConfigError."""
    if isinstance(table, SparseTable):
        raise ConfigError("a LIBSVM file has no names of columns to offer; give a table with a header")
    if alias is not None and (odd := NOT_IN_FEATURES.search(alias)):
        raise ConfigError(f"--alias: the name of a column cannot have the character {odd[0]!r}")
    if alias is not None and not 0 < len(alias) <= MAX_ALIAS:
        raise ConfigError(f"--alias: must have 1 to {MAX_ALIAS} characters")
    if table.num_rows == 0:
        raise ConfigError("the table has no rows")
    for name in exclude:
        column_of(table, name)
    drafted = draft_features(table, exclude, min_rows)
    numeric, categorical, left_out = {*drafted.numeric}, drafted.categorical, drafted.left_out
    columns: list[OfferedColumn] = []
    for own in table.column_names:
        if own not in categorical and own not in numeric:
            continue
        name = own if alias is None else f"{alias}.{len(columns) + 1}"
        if own not in categorical:
            columns.append(OfferedColumn(name, own))
            continue
        kept = enumerate(categorical[own], 1)
        levels = {level if alias is None else str(code): level for code, level in kept}
        columns.append(OfferedColumn(name, own, levels, drafted.few.get(own, (0, 0))[0]))
    if not columns:
        reasons = "".join(f"; {name!r} {reason}" for name, reason in [*left_out.items()][:3])
        raise ConfigError(f"no column can be a feature{reasons}")
    return DraftedOffer(holder, tuple(columns), left_out)


def read_offer(path: Path) -> Offer:
    """An offer from its file. ConfigError."""
    offer = read_model(Offer, read_toml(path, OFFER), str(path))
    columns = {"label": _NO_LABEL, "numeric": offer.numeric, "categorical": offer.categorical}
    read_model(Schema, columns, str(path))
    return offer


def with_offers(draft: Draft, label_holder: str, table: str, offers: Sequence[tuple[Path, Offer]]) -> Draft:
    """The draft of the label holder's table with the columns of these offers, each from its file. Raises
    ConfigError where a party or a column is there twice."""
    columns, holders = draft.columns, {label_holder: table}
    source = dict.fromkeys((*columns.features, *columns.others), table)
    for path, offer in offers:
        if offer.holder in holders:
            raise ConfigError(
                f"{path}: {offer.holder!r} has the columns of {holders[offer.holder]} already; each party "
                f"makes one offer, --party names the one with the labels"
            )
        holders[offer.holder] = str(path)
        for name in offer.names:
            if name in source:
                raise ConfigError(
                    f"column {name!r} is in {source[name]} and in {path}: one party has it; leave it out "
                    f"with --exclude, or offer it under another name with `fedboost columns --alias`"
                )
            source[name] = str(path)
    offered = [offer for _, offer in offers]
    values = columns.model_dump(mode="json") | {
        "numeric": [*columns.numeric, *(name for offer in offered for name in offer.numeric)],
        "categorical": dict(columns.categorical) | {n: v for o in offered for n, v in o.categorical.items()},
        "held": {offer.holder: list(offer.names) for offer in offered},
    }
    return replace(draft, columns=read_model(Schema, values, "draft"))
