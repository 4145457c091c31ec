"""Drafts schemas from tables, and splits tables among parties for experiments.

Guarantees: a drafted schema fits its table. A split assigns every row to exactly one party or block, and the
same seed gives the same split.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types
from pydantic import Field

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES, names_of, parameters_of
from fedboost.runtime.config import OFFER, read_toml, to_toml
from fedboost.runtime.data.table import dense_of, row_of, without_source
from fedboost.runtime.data.text import QID, SparseTable
from fedboost.runtime.data.values import column_of, kind_of, listing, numbers, texts
from fedboost.runtime.site.policy import Policy
from fedboost.terms.columns import NOT_IN_FEATURES, NOT_IN_TEXT, Schema
from fedboost.terms.reading import MAX_FEATURES, Name, Several, Table, UntrustedTable, read_model
from fedboost.terms.terms import Terms
from fedboost.views.words import counted

MAX_CLASSES = 100
"""Maximum number of classes in a draft. A text label with more distinct values is assumed to contain names or
notes rather than classes."""
FEW_NUMBERS = 20
"""A numeric label with at most this many distinct integers may denote classes. The draft uses regression for
such a label, and `Draft.few_numbers` is set."""
MEDIAN = 0.5  # the quantile that is drafted
_INDEX = "__index_level_"  # pandas' name for an unnamed index in a Parquet file
_MAX_NAME = 256


@dataclass(frozen=True)
class Draft:
    """A drafted schema and objective, for the analyst to edit."""

    columns: Schema
    objective: str
    num_class: int | None = None
    """Number of classes, if the labels are the class numbers 0, 1, ..."""
    few_numbers: int = 0
    """Number of distinct values of a regression label, if at most `FEW_NUMBERS` integers, else 0."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Column that cannot be a feature -> the reason."""
    few: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Column -> number of categories omitted because they are rare, and number of rows in these."""

    @property
    def min_child_weight(self) -> float | None:
        """The smallest `min_child_weight` with which each leaf has at least the number of rows that a site's
        default policy requires (`min_rows_per_leaf`), or None if no value ensures that."""
        kind = OBJECTIVES.get(self.objective)
        per = None if kind is None else kind.rows_per_hessian
        if per is None or self.columns.weight is not None:
            return None
        return Policy().min_rows_per_leaf / per

    @property
    def own_parameters(self) -> dict[str, Any]:
        """Objective parameters that have no default, each with a starting value for the analyst to edit."""
        own = parameters_of(self.objective) if self.objective in OBJECTIVES else {}
        return {"quantile_alpha": MEDIAN} if "quantile_alpha" in own else {}

    def settings(self) -> dict[str, Any]:
        class_count = {} if self.num_class is None else {"num_class": self.num_class}
        return {
            "objective": self.objective,
            **class_count,
            **self.own_parameters,
            "columns": self.columns.model_dump(mode="json"),
        }


def draft_schema(
    table: "pa.Table | SparseTable",
    label: str,
    weight: str | None = None,
    exclude: Sequence[str] = (),
    base_margin: str | None = None,
    objective: str | None = None,
    label_upper_bound: str | None = None,
    group: str | None = None,
    row_id: str | None = None,
    min_rows: int = 1,
) -> Draft:
    """Draft a schema in which every usable column is a feature, and choose an objective.

    Numbers, booleans and text that spells numbers become numeric features. Other text and dictionary-encoded
    columns become categorical features, with sorted categories. The label, the columns named in other
    arguments and the qid of a LIBSVM file are not features.

    Args:
        exclude: further columns that are not features.
        objective: name of the objective. By default it depends on the label: binary classification for two
            values, multiclass for 3 to `MAX_CLASSES` texts or categories, survival:aft with
            label_upper_bound, else regression.
        min_rows: minimum number of rows per category. Rarer categories are omitted.

    Raises:
        ConfigError: a column is missing, no column can be a feature, or the label does not fit the objective.
    """
    sparse: tuple[str, ...] = ()
    if isinstance(table, SparseTable):
        exclude = (*exclude, QID) if table.open_ended and QID in table.dense.column_names else exclude
        table, sparse = table.dense, table.names
    if label_upper_bound is not None and objective is None:
        objective = "survival:aft"
    about_label, of_label = _target(table, label, objective)
    beside = {
        "weight": weight,
        "base_margin": base_margin,
        "label_upper_bound": label_upper_bound,
        "group": group,
        "row_id": row_id,
    }
    no_features = [label, *filter(None, beside.values()), *exclude]
    for name in no_features:
        column_of(table, name)
    drafted = draft_features(table, no_features, min_rows)
    drafted.numeric.extend(name for name in sparse if name not in no_features)
    drafted.check_any()
    features = {"numeric": drafted.numeric, "categorical": drafted.categorical}
    schema = read_model(Schema, {"label": label, **of_label, **beside, **features}, "draft")
    return Draft(schema, **about_label, left_out=drafted.left_out, few=drafted.few)


@dataclass(frozen=True)
class Features:
    """The columns of a table, by how they can be used.

    Args:
        numeric: names of the numeric features.
        categorical: name of a categorical feature -> its sorted categories.
        left_out: column that cannot be a feature -> the reason.
        few: column -> number of categories omitted because they are too rare, and number of their rows.
    """

    numeric: list[str] = field(default_factory=list)
    categorical: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    few: dict[str, tuple[int, int]] = field(default_factory=dict)

    def check_any(self) -> None:
        if not self.numeric and not self.categorical:
            reasons = "".join(f"; {name!r} {reason}" for name, reason in [*self.left_out.items()][:3])
            raise ConfigError("draft-no-features", f"no column can be a feature{reasons}")


def draft_features(table: "pa.Table", exclude: Sequence[str] = (), min_rows: int = 1) -> Features:
    """Return the features that a table offers. Columns in `exclude` are skipped, and categories with fewer
    than `min_rows` rows are omitted."""
    aside, out = {*exclude}, Features()
    for name in table.column_names:
        if name in aside:
            continue
        use = _use(table.column(name), name)
        if use is None:
            out.numeric.append(name)
            continue
        if isinstance(use, str):
            out.left_out[name] = use
            continue
        kept = sorted(level for level, rows in use.items() if rows >= min_rows)
        if not kept:
            out.left_out[name] = f"has no category with at least {min_rows} rows"
            continue
        out.categorical[name] = kept
        if len(kept) < len(use):
            out.few[name] = len(use) - len(kept), sum(rows for rows in use.values() if rows < min_rows)
    return out


def split_by_site(table: "pa.Table | SparseTable", column: str, keep: bool = False) -> "dict[str, pa.Table]":
    """Split a table by the site names in a column. Returns site name -> its rows in their original order,
    sorted by name. keep: True to keep the column of site names in the result."""
    if table.num_rows == 0:
        raise ConfigError("table-empty", "the table has no rows")
    codes, sites = _named_in(dense_of(table), column, "site")
    if not keep:
        rest = dense_of(table).drop_columns([column])
        table = replace(table, dense=rest) if isinstance(table, SparseTable) else rest
    return dict(sorted(_shared_out(table, codes, sites).items()))


def _shared_out(
    table: "pa.Table | SparseTable", owners: Int64, names: Sequence[str]
) -> "dict[str, pa.Table]":
    """Split a table by owner. Returns name -> its rows in their original order. owners: index of each row's
    owner in `names`, int64 [rows]."""
    order = np.argsort(owners, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(owners, minlength=len(names)))[:-1])
    rest = without_source(table)
    return {name: rest.take(rows) for name, rows in zip(names, parts, strict=True)}


def _named_in(table: "pa.Table", column: str, what: str) -> tuple[Int64, tuple[str, ...]]:
    """Return each row's index into the distinct texts of a column, int64 [rows], and these texts. Raises
    ConfigError if a row has no text. what: description of what the texts name, for the message."""
    codes, names = texts(column_of(table, column), column)
    if (codes < 0).any():
        row = row_of(table, int(np.argmax(codes < 0)))
        raise ConfigError(
            "table-value-missing", f"column {column!r} has no {what} in {row}; fill it in, or drop the row"
        )
    return codes, names


def split_by_weights(
    table: "pa.Table", names: Sequence[str], weights: Sequence[float], seed: int, group: str | None = None
) -> "dict[str, pa.Table]":
    """Shuffle the rows and split them among parties in proportion to positive weights.

    Args:
        names: names of the parties.
        weights: relative number of rows of each party. Each party gets at least one row.
        seed: seed of the shuffle, at least 0.
        group: column of group names. All rows of a group go to one party, in their original order.

    Returns:
        Party name -> its rows.

    Raises:
        ConfigError: names, weights or seed are invalid, or there are too few rows or groups.
    """
    if group is not None:
        return _split_groups(table, names, weights, seed, group)
    rows, parties = table.num_rows, len(names)
    if not parties or len(set(names)) != parties or len(weights) != parties:
        raise ConfigError(
            "split-names-invalid",
            f"each party needs a unique name and a weight, not {listing(names)} and {[*weights]}",
        )
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ConfigError(
            "split-weights-invalid", f"the weights of the parties must be positive numbers, not {[*weights]}"
        )
    if rows < parties:
        raise ConfigError(
            "split-too-few-rows",
            f"cannot split {counted(rows, 'row')} among {counted(parties, 'party', 'parties')}; "
            "each needs at least one",
        )
    if seed < 0:
        raise ConfigError("split-seed-negative", f"the seed of a split must be at least 0, not {seed}")
    # Largest remainders: round down, but not to 0, then move to the exact total one row at a time.
    exact = np.array(weights, np.float64) / np.sum(weights) * rows
    sizes = np.maximum(np.floor(exact).astype(np.int64), 1)
    while sizes.sum() != rows:  # at most one step per party
        step = 1 if sizes.sum() < rows else -1
        short = np.where(sizes + step > 0, step * (exact - sizes), -np.inf)
        sizes[np.argmax(short)] += step
    order = np.random.default_rng(seed).permutation(rows)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    rest = without_source(table)
    return {name: rest.take(part) for name, part in zip(names, parts, strict=True)}


def split_by_blocks(table: "pa.Table", terms: Terms, seed: int) -> "dict[str, pa.Table]":
    """Split the rows among blocks of parties that hold different columns. All parties of a block (a label
    holder and its feature holders) get the same rows, with all columns. seed: seed of the shuffle."""
    names = [str(number) for number in range(len(terms.blocks))]
    rows = {"0": table}
    if len(names) > 1:
        rows = split_by_weights(table, names, [1.0] * len(names), seed, terms.columns.group)
    return {
        party: rows[name] for name, block in zip(names, terms.blocks, strict=True) for party in block.parties
    }


def _split_groups(
    table: "pa.Table | SparseTable", names: Sequence[str], weights: Sequence[float], seed: int, column: str
) -> "dict[str, pa.Table]":
    """Like `split_by_weights`, but splits groups instead of rows."""
    codes, groups = _named_in(dense_of(table), column, "group")
    if len(groups) < len(names):
        raise ConfigError(
            "split-too-few-rows",
            f"cannot split {counted(len(groups), 'group')} among {counted(len(names), 'party', 'parties')}; "
            "lower --parties",
        )
    shares = split_by_weights(pa.table({"group": np.arange(len(groups))}), names, weights, seed)
    owner = np.empty(len(groups), np.int64)
    for index, share in enumerate(shares.values()):
        owner[share.column("group").to_numpy()] = index
    return _shared_out(table, owner[codes], names)


def _target(table: "pa.Table", label: str, objective: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Derive two sets of fields from the label: fields of `Draft`, such as the objective, and fields of
    `Schema`, such as the classes or the positive value."""
    column, classifiers = column_of(table, label), names_of(LabelKind.CLASS)
    try:
        values = numbers(column, label)
    except ConfigError:
        if objective in OBJECTIVES and objective not in classifiers:
            raise
        distinct = np.zeros(0, np.float32)
    else:
        distinct = np.unique(values[~np.isnan(values)])
    if objective is None and distinct.size > 2 and not types.is_dictionary(column.type):
        whole = distinct.size <= FEW_NUMBERS and bool((distinct == np.floor(distinct)).all())
        return {"objective": "reg:squarederror", "few_numbers": distinct.size if whole else 0}, {}
    if objective is not None and objective not in classifiers:
        return {"objective": objective}, {}
    if objective != "multi:softprob" and distinct.tolist() == [0.0, 1.0]:
        return {"objective": "binary:logistic"}, {}
    codes, labels = texts(column, label)
    if not labels:
        raise ConfigError("table-label-empty", f"label {label!r} has no values")
    if len(labels) == 1:
        raise ConfigError(
            "table-label-constant", f"label {label!r} is constant: {listing(labels)} in every row"
        )
    if objective is None:
        objective = "binary:logistic" if len(labels) == 2 else "multi:softprob"
    if objective == "binary:logistic":
        if len(labels) > 2:
            raise ConfigError(
                "table-label-values",
                f"label {label!r} has {len(labels)} values ({listing(labels)}), but binary:logistic needs "
                f"two; use multi:softprob",
            )
        counts = Counter(labels[code] for code in codes[codes >= 0].tolist())
        rare = min(sorted(labels, reverse=True), key=counts.__getitem__)
        return {"objective": objective}, {"positive": rare}
    if len(labels) > MAX_CLASSES:
        raise ConfigError(
            "draft-many-classes",
            f"label {label!r} has too many values to be classes: {listing(labels, 3)}; check the column, or "
            f"set columns.classes (at most {MAX_CLASSES} are drafted)",
        )
    if distinct.tolist() == list(range(len(labels))):
        return {"objective": objective, "num_class": len(labels)}, {}
    return {"objective": objective}, {"classes": sorted(labels, key=_numbers_first)}


def _numbers_first(text: str) -> tuple[bool, float, str]:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    return not math.isfinite(number), number if math.isfinite(number) else 0.0, text


def _use(column: "pa.ChunkedArray", name: str) -> dict[str, int] | str | None:
    """Return the categories of a column with their row counts, None if the column is numeric, or the reason
    why it cannot be a feature."""
    if not name:
        return "has no name"
    if len(name) > _MAX_NAME:
        return f"has a name longer than {_MAX_NAME} characters"
    if odd := NOT_IN_FEATURES.search(name):
        return f"has the character {odd[0]!r} in its name and must be renamed"
    if name.startswith(_INDEX):
        return "is the index of a pandas DataFrame"
    if not types.is_dictionary(column.type):
        try:
            values = numbers(column, name)
        except ConfigError:
            pass  # text
        else:
            if np.isinf(values).any():
                return "has values that are infinite or too large for a 32-bit float"
            return "has no values" if np.isnan(values).all() else None
    try:
        codes, distinct = texts(column, name)
    except ConfigError:
        return f"has type {kind_of(column)}, neither numeric nor text"
    if len(distinct) > MAX_CATEGORIES:
        most = f"the limit of {MAX_CATEGORIES} categories"
        return f"has {len(distinct)} distinct values, more than {most}"
    if odd := next(filter(None, map(NOT_IN_TEXT.search, distinct)), None):
        return f"has the character {odd[0]!r} in a value"
    rows = np.bincount(codes[codes >= 0], minlength=len(distinct)).tolist()
    return dict(zip(distinct, rows, strict=True)) or "has no values"


# ---- Offers of columns: sent to an analyst by a site that has columns but no labels ---------------------
# A drafted offer has every column that `fedboost terms` would draft as a feature. With an alias, it contains
# no column name and no level of the table. It never contains a level with fewer than `min_rows` rows.


MAX_ALIAS = 200  # maximum length of an alias; a column name has at most 256 characters
_NO_LABEL = "[label]"  # stands for the label that an offer lacks; no feature can have this name


class Offer(UntrustedTable):
    """Columns that a party offers to an analyst for terms, with the levels of categorical columns."""

    holder: Name
    numeric: Several[Name] = Field(default=(), max_length=MAX_FEATURES)
    categorical: Table[Several[str]] = Field(default_factory=dict, max_length=MAX_FEATURES)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.numeric, *self.categorical)

    def to_toml(self) -> str:
        lines = ["# Columns for terms: fedboost terms TABLE --label COLUMN --with THIS_FILE"]
        lines += [f"{key} = {to_toml(value)}" for key, value in self.model_dump(mode="json").items() if value]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class OfferedColumn:
    """A column in an offer. name: its name in the terms; own: its name in the table; levels: level in the
    terms -> level in the table, or None if the column is numeric; few: number of levels omitted because they
    are too rare."""

    name: str
    own: str
    levels: dict[str, str] | None = None
    few: int = 0


@dataclass(frozen=True)
class DraftedOffer:
    """The columns of a table that can be offered, and the reasons why other columns cannot."""

    holder: str
    columns: tuple[OfferedColumn, ...]
    left_out: dict[str, str]

    @property
    def offer(self) -> Offer:
        numeric = tuple(column.name for column in self.columns if column.levels is None)
        categorical = {c.name: tuple(c.levels) for c in self.columns if c.levels is not None}
        return Offer(holder=self.holder, numeric=numeric, categorical=categorical)


def draft_offer(
    table: "pa.Table | SparseTable", holder: str, alias: str | None, exclude: Sequence[str], min_rows: int
) -> DraftedOffer:
    """Draft an offer of every usable column of a table.

    Args:
        holder: name of the party that holds the table.
        alias: if given, columns are offered as ALIAS.1, ALIAS.2, ... and levels as 1, 2, ...
        exclude: columns that are not offered.
        min_rows: minimum number of rows per level. Rarer levels are omitted.

    Raises:
        ConfigError: the alias is invalid, no column can be offered, or the table is sparse or empty.
    """
    if isinstance(table, SparseTable):
        raise ConfigError(
            "table-sparse-unnamed", "a LIBSVM file has no column names to offer; use a table with a header"
        )
    if alias is not None and (odd := NOT_IN_FEATURES.search(alias)):
        raise ConfigError(
            "offer-alias-invalid", f"--alias contains {odd[0]!r}, which column names must not contain"
        )
    if alias is not None and not 0 < len(alias) <= MAX_ALIAS:
        raise ConfigError("offer-alias-invalid", f"--alias must have 1 to {MAX_ALIAS} characters")
    if table.num_rows == 0:
        raise ConfigError("table-empty", "the table has no rows")
    for name in exclude:
        column_of(table, name)
    drafted = draft_features(table, exclude, min_rows)
    drafted.check_any()
    columns: list[OfferedColumn] = []
    for own in table.column_names:
        name = own if alias is None else f"{alias}.{len(columns) + 1}"
        if own in drafted.categorical:
            kept = enumerate(drafted.categorical[own], 1)
            levels = {level if alias is None else str(code): level for code, level in kept}
            columns.append(OfferedColumn(name, own, levels, drafted.few.get(own, (0, 0))[0]))
        elif own in drafted.numeric:
            columns.append(OfferedColumn(name, own))
    return DraftedOffer(holder, tuple(columns), drafted.left_out)


def read_offer(path: Path) -> Offer:
    offer = read_model(Offer, read_toml(path, OFFER), str(path))
    columns = {"label": _NO_LABEL, "numeric": offer.numeric, "categorical": offer.categorical}
    read_model(Schema, columns, str(path))
    return offer


def with_offers(draft: Draft, label_holder: str, table: str, offers: Sequence[tuple[Path, Offer]]) -> Draft:
    """Add the columns of other parties' offers to a draft.

    Args:
        draft: draft of the label holder's table.
        label_holder: name of the label holder.
        table: name of the label holder's table, for messages.
        offers: file and content of each offer.

    Raises:
        ConfigError: two offers come from the same party, or two parties have columns with the same name.
    """
    columns, holders = draft.columns, {label_holder: table}
    source = dict.fromkeys((*columns.features, *columns.others), table)
    for path, offer in offers:
        if offer.holder in holders:
            raise ConfigError(
                "offer-party-twice",
                f"{path}: {offer.holder!r} already has the columns of {holders[offer.holder]}; use one "
                f"offer per party, and name the label holder with --party",
            )
        holders[offer.holder] = str(path)
        for name in offer.names:
            if name in source:
                raise ConfigError(
                    "offer-column-twice",
                    f"column {name!r} is in both {source[name]} and {path}; remove one with --exclude, or "
                    f"offer it under another name with `fedboost columns --alias`",
                )
            source[name] = str(path)
    offered = [offer for _, offer in offers]
    values = columns.model_dump(mode="json") | {
        "numeric": [*columns.numeric, *(name for offer in offered for name in offer.numeric)],
        "categorical": dict(columns.categorical) | {n: v for o in offered for n, v in o.categorical.items()},
        "held": {offer.holder: list(offer.names) for offer in offered},
    }
    return replace(draft, columns=read_model(Schema, values, "draft"))
