"""The columns that every party's table must have: label, features, weights, row ids and so on.

Rejects: columns named twice, names that a model file cannot store, and impossible levels and ranges."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.objectives.objective import MAX_LABEL
from fedboost.gbdt.target_means import MAX_BUCKETS, MIN_BUCKETS
from fedboost.terms.reading import MAX_CHARS, MAX_FEATURES, Name, Several, Table, UntrustedTable, nearest

T = TypeVar("T")
MAX_CLASSES = 1 << 10
ByName = Annotated[Table[T], Field(default_factory=dict, max_length=MAX_FEATURES)]
"""Table with values for some of the features, by name."""
NOT_IN_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that column names and levels must not contain: control characters and lone surrogates."""
NOT_IN_FEATURES = re.compile(rf"[][<]|{NOT_IN_TEXT.pattern}")
"""Characters not allowed in feature names: those in NOT_IN_TEXT, and those that XGBoost rejects."""

_NO_LABEL: dict[str, Any] = {
    **{"label": "", "classes": (), "subgroups": {}},
    **dict.fromkeys(("label_upper_bound", "positive", "weight", "validation", "group")),
}
"""Values of the label columns in a schema without labels."""


class Schema(UntrustedTable):
    """Columns that every party's table must have. Features are ordered as follows: numeric, target_means,
    categorical."""

    label: Name = Field(
        description="Column to predict. For survival times, the lower bound of a time; 0 means no lower "
        "bound."
    )
    label_upper_bound: Name | None = Field(
        default=None,
        description="Column with the upper bound of a time, for survival times. An infinite or missing "
        "value means that the event has not happened yet.",
    )
    positive: str | None = Field(
        default=None,
        description="Label value of the positive class, for `binary:logistic` with text labels. By default, "
        "labels are 0 and 1.",
    )
    classes: Several[str] = Field(
        default=(),
        max_length=MAX_CLASSES,
        description="Label values in class order, starting with class 0, for `multi:softprob` with labels "
        "that are text or arbitrary numbers. By default, labels are 0, 1, 2 and so on.",
    )
    weight: Name | None = Field(
        default=None,
        description="Column of row weights, which must not be negative. By default, every row has weight 1.",
    )
    validation: Name | None = Field(
        default=None,
        description="Column that marks validation rows, with values 0 and 1, or false and true. Rows with 1 "
        "are not used to train trees; their metrics are reported. Use it instead of `validation_fraction` "
        "to choose the rows yourself.",
    )
    row_id: Name | None = Field(
        default=None,
        description="Column of row identifiers. With it, the same rows are sampled no matter which party "
        "holds them; without it, sampling depends on the party and on the row's position in its table. With "
        "`label_holder`, the parties' rows are also matched by it; it must then contain unique text or "
        "whole numbers.",
    )
    base_margin: Name | None = Field(
        default=None,
        description="Column of margins that boosting starts from, e.g. log(exposure) for claim counts. Not "
        "available for multiclass objectives.",
    )
    group: Name | None = Field(
        default=None,
        description="Column of group identifiers, text or whole numbers, for `rank:ndcg` and "
        "`rank:pairwise`. Rows with the same value are ranked against each other. XGBoost calls it `qid`.",
    )
    numeric: Several[Name] = Field(
        default=(), max_length=MAX_FEATURES, description="Names of the numeric features, in order."
    )
    ranges: ByName[tuple[float, float]] = Field(
        description="Minimum and maximum of each numeric feature, e.g. `{ age = [17, 90] }`. Required with "
        "`noise`. Use limits that are publicly known, not those of the rows."
    )
    target_means: ByName[int] = Field(
        description="Columns with too many levels to declare, e.g. `{ merchant = 4096 }`. Each level is "
        "replaced by the mean label of other rows with this level. The number is the column's number of "
        f"hash buckets, {MIN_BUCKETS} or more, and at most {MAX_BUCKETS} for all such columns together. "
        "Choose several times the number of levels. See [target means](objectives.md#target-means)."
    )
    label_range: tuple[float, float] | None = Field(
        default=None,
        description="Minimum and maximum of the label, e.g. `[0, 100]`. Required with `noise` if labels are "
        "numeric. Use limits that are publicly known, not those of the rows.",
    )
    categorical: ByName[Several[str]] = Field(
        description=f"Categorical features with the levels of each, at most {MAX_CATEGORIES} per feature. "
        "An undeclared level is treated as a missing value."
    )
    subgroups: ByName[Several[str]] = Field(
        description="Categorical columns that are not features, with the levels of each, e.g. `{ sex = "
        '["F", "M"] }`. An evaluation can report results by them (`subgroups`); training ignores them.',
    )
    held: ByName[Several[Name]] = Field(
        description="With `label_holder`: the features that each other party holds, e.g. `{ telco = "
        '["minutes", "calls"] }`. The label holder has all columns that are not listed here.',
    )
    absent: ByName[Several[Name]] = Field(
        description='Features that the tables of some parties lack, e.g. `{ west = ["albumin"] }`. They '
        "count as missing values there, even if the table has them ([absent "
        "columns](tables.md#tables-that-differ)).",
    )

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features, in order."""
        return (*self.ordered, *self.categorical)

    @property
    def ordered(self) -> tuple[str, ...]:
        """Names of the features split by thresholds, in order: numeric features, then target means."""
        return (*self.numeric, *self.target_means)

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the columns that are not features: label, weight, row id and so on."""
        beside = (
            *(self.label_upper_bound, self.weight, self.base_margin, self.group),
            *(self.validation, self.row_id),
        )
        return (*filter(None, (self.label, *beside)), *self.subgroups)

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Levels of each categorical feature, then of each subgroup column, by name."""
        return {**self.categorical, **self.subgroups}

    def held_by(self, party: str, has_labels: bool, by_id: bool) -> "Schema":
        """Return the columns of one party if parties hold different columns.

        has_labels: True if the party has the labels; its columns are then all columns that no other party
        holds. The columns of any other party are only its features, and the row ids if `by_id` is true."""
        if has_labels:
            elsewhere = {name for names in self.held.values() for name in names}
            own = [name for name in self.features if name not in elsewhere]
            bare: dict[str, Any] = {}
        else:
            own = [*self.held[party]]
            bare = _NO_LABEL | {"base_margin": None, "row_id": self.row_id if by_id else None}
        return self._with_features({*own}, **bare)

    def in_table_of(self, party: str) -> "Schema":
        """Return the columns that a party's table must have if parties hold different rows."""
        lacks = {*self.absent.get(party, ())}
        return self._with_features({*self.features} - lacks) if lacks else self

    def group_of(self, party: str, holders: Sequence[str], trees: bool) -> int:
        """Return the number of parties in the smallest sum over a party's rows that `absent` sets apart.

        A tree that separates missing values of several columns sets apart the parties that lack the same
        columns. Other sums are over one column, of the parties that have it.

        Args:
            party: the party.
            holders: the parties with rows.
            trees: True if trees grow, or if results are by level of such a column.
        """
        if trees and party in holders:
            own = {*self.absent.get(party, ())}
            return sum({*self.absent.get(each, ())} == own for each in holders)
        return len(holders) - max([len(group) for group in self.lacking() if party not in group], default=0)

    def lacking(self) -> set[frozenset[str]]:
        """Return the distinct groups of parties that lack a column which others have."""
        parties: dict[str, list[str]] = defaultdict(list)
        for party, names in self.absent.items():
            for name in names:
                parties[name].append(party)
        return {*map(frozenset, parties.values())}

    def _with_features(self, kept: set[str], **changes: Any) -> "Schema":
        """Return a copy with only the features in `kept`. changes: new values of other fields."""
        features = {
            "numeric": tuple(name for name in self.numeric if name in kept),
            "target_means": {n: buckets for n, buckets in self.target_means.items() if n in kept},
            "categorical": {n: levels for n, levels in self.categorical.items() if n in kept},
        }
        return self.model_copy(update=features | changes)

    def unlabelled(self) -> "Schema":
        """Return the columns of rows to predict: features, row ids and base margins."""
        return self.model_copy(update=_NO_LABEL)

    @model_serializer(mode="wrap")
    def _without_what_is_not_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit newer keys that are not used, so that the digest of terms without them does not change."""
        content: dict[str, Any] = dump(self)
        for name in ("held", "absent", "subgroups", "target_means"):
            if not content.get(name):
                content.pop(name, None)
        return content

    @property
    def category_counts(self) -> tuple[int, ...]:
        """Number of levels of each categorical feature, in order."""
        return tuple(map(len, self.categorical.values()))

    def _faults(self) -> Iterator[str]:
        counted = Counter((*self.features, *self.others))
        if twice := sorted(name for name, count in counted.items() if count > 1):
            yield f"column {twice[0]!r} is named more than once"
        if not self.features:
            yield "there are no features: name at least one column in numeric, target_means or categorical"
        numeric = {*self.numeric}
        for name, (low, high) in self.ranges.items():
            if name not in numeric:
                hint = nearest(name, self.numeric)
                yield f"ranges names {name[:MAX_CHARS]!r}, which is not a numeric column{hint}"
            if not -MAX_LABEL <= low < high <= MAX_LABEL:
                yield f"ranges: the range of {name!r} must be two numbers, with the lower one first"
        if self.label_range is not None:
            low, high = self.label_range
            if not -MAX_LABEL <= low < high <= MAX_LABEL:
                yield "label_range must be two numbers, with the lower one first"
        for name, levels in self.levels.items():
            if not levels or len(set(levels)) != len(levels):
                yield f"column {name!r} must have at least one level, and must list each level only once"
            if len(levels) > MAX_CATEGORIES:
                yield (
                    f"column {name!r} has {len(levels)} levels, but at most {MAX_CATEGORIES} are allowed: "
                    f"name it in target_means, merge rare levels in the tables, or declare the column numeric"
                )
        for name, buckets in self.target_means.items():
            if buckets < MIN_BUCKETS:
                yield f"target_means: {name!r} has {buckets} buckets, but needs at least {MIN_BUCKETS}"
        if (every := sum(self.target_means.values())) > MAX_BUCKETS:
            yield f"target_means has {every} buckets in total, but at most {MAX_BUCKETS} are allowed"
        yield from self._faults_of_lists("held", "the label holder has it, so")
        yield from self._faults_of_lists("absent", "every party must have it, so")
        yield from self._faults_of_texts()

    def _faults_of_lists(self, key: str, reason: str) -> Iterator[str]:
        """Yield an error message for each column that the table `key` (party -> features) cannot list.
        reason: why the label is not among them."""
        features = {*self.features}
        for party, names in getattr(self, key).items():
            of_party = f"of party {party[:MAX_CHARS]!r}"
            for name in names:
                told = f"{key} lists column {name[:MAX_CHARS]!r} {of_party}"
                if name == self.label:
                    yield f"{told}, which is the label: {reason} remove it from the list"
                if name not in features:
                    hint = nearest(name, self.features)
                    yield f"{told}, which is not a feature{hint}: name it in numeric or categorical"
            if len(set(names)) != len(names):
                yield f"{key} lists a column {of_party} more than once"

    def _faults_of_texts(self) -> Iterator[str]:
        if self.classes and self.positive is not None:
            yield "positive is for labels with two values, but classes is for more: remove one of them"
        if len(self.classes) == 1 or len(set(self.classes)) != len(self.classes):
            yield "classes must list at least two label values, and each only once"
        for name in self.classes:
            if not name or NOT_IN_TEXT.search(name):
                why = "not one line of text" if name else "not a label value, because it is a missing value"
                yield f"class {name!r} is {why}; replace it in the tables"
        for rule, names in ((NOT_IN_FEATURES, self.features), (NOT_IN_TEXT, self.others)):
            for name in names:
                if odd := rule.search(name):
                    yield f"the name of column {name!r} must not contain the character {odd[0]!r}: rename it"
        for name, levels in self.levels.items():
            if odd := next(filter(None, map(NOT_IN_TEXT.search, levels)), None):
                yield f"a level of {name!r} contains the character {odd[0]!r}: replace it in the tables"
