"""The columns of the table that every party has: label, features, and what stands beside them.

Refuses: columns named twice, names that no model file takes, levels and ranges that cannot be.
"""

import re
from collections import Counter
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.objectives.objective import MAX_LABEL
from fedboost.gbdt.target_means import MAX_BUCKETS, MIN_BUCKETS
from fedboost.terms.reading import MAX_CHARS, MAX_FEATURES, Name, Several, Submitted, Table, nearest

MAX_CLASSES = 1 << 10
NOT_IN_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no column name and no level can have: control characters and lone surrogates."""
NOT_IN_FEATURES = re.compile(rf"[][<]|{NOT_IN_TEXT.pattern}")
"""Characters that the name of a feature cannot have: the above, and those XGBoost refuses."""


class Schema(Submitted):
    """The columns every party must have. Features stand in this order: numeric, target_means, categorical."""

    label: Name = Field(
        description="Column to predict. For `survival:aft`, the lower bound of a time: 0 if there is none."
    )
    label_upper_bound: Name | None = Field(
        default=None,
        description="Column of the upper bound of a time, for `survival:aft`: infinite or missing if the "
        "event has not happened yet.",
    )
    positive: str | None = Field(
        default=None,
        description="Label value that counts as 1, for `binary:logistic` with labels that are words. "
        "Without it, labels are 0 and 1.",
    )
    classes: Several[str] = Field(
        default=(),
        max_length=MAX_CLASSES,
        description="Label values from class 0 on, for `multi:softprob` with labels that are words or other "
        "numbers. Without it, labels are 0, 1, 2 and so on.",
    )
    weight: Name | None = Field(
        default=None, description="Column of row weights, 0 or more. Without it, every row weighs 1."
    )
    validation: Name | None = Field(
        default=None,
        description="Column of 0 and 1, or false and true: no tree grows on rows with 1, and metrics of "
        "these rows are reported. Use it in place of `validation_fraction` to choose the rows.",
    )
    row_id: Name | None = Field(
        default=None,
        description="Column of row identifiers. With it, the same rows are drawn whichever party holds them; "
        "without it, draws depend on the party and the position in its table. With `label_holder`, also the "
        "column by which the rows of the parties are matched, text or whole numbers, each once.",
    )
    base_margin: Name | None = Field(
        default=None,
        description="Column of margins that boosting starts from, such as log(exposure) for claim counts. "
        "Not for several classes.",
    )
    group: Name | None = Field(
        default=None,
        description="Column of text or whole numbers, for `rank:ndcg` and `rank:pairwise`: rows with the "
        "same value are ranked against each other. XGBoost calls it qid.",
    )
    numeric: Several[Name] = Field(
        default=(), max_length=MAX_FEATURES, description="Names of the numeric features, in order."
    )
    ranges: Table[tuple[float, float]] = Field(
        default_factory=dict,
        max_length=MAX_FEATURES,
        description="Lowest and highest value of each numeric feature, such as `{ age = [17, 90] }`. Needed "
        "with `noise`; declare what is generally known, not what the rows show.",
    )
    target_means: Table[int] = Field(
        default_factory=dict,
        max_length=MAX_FEATURES,
        description="Names of columns with too many levels to declare, such as `{ merchant = 4096 }`: a "
        "level becomes the mean label of other rows that have it. The number is that of buckets, into which "
        f"levels are hashed, {MIN_BUCKETS} to {MAX_BUCKETS} for all such columns together; take several for "
        "each level. See [target means](objectives.md#target-means).",
    )
    label_range: tuple[float, float] | None = Field(
        default=None,
        description="Lowest and highest label, such as `[0, 100]`. Needed with `noise` if labels are "
        "numbers; declare what is generally known, not what the rows show.",
    )
    categorical: Table[Several[str]] = Field(
        default_factory=dict,
        max_length=MAX_FEATURES,
        description="Names of the categorical features, each with its levels, at most "
        f"{MAX_CATEGORIES}. A level that is not declared counts as a missing value.",
    )
    subgroups: Table[Several[str]] = Field(
        default_factory=dict,
        max_length=MAX_FEATURES,
        description="Names of categorical columns that are no features, each with its levels, such as "
        '`{ sex = ["F", "M"] }`: a model may be evaluated by them (`subgroups`). No training reads them.',
    )
    held: Table[Several[Name]] = Field(
        default_factory=dict,
        max_length=MAX_FEATURES,
        description="With `label_holder`: the features that each other party holds, such as "
        '`{ telco = ["minutes", "calls"] }`. The label holder has all columns that are not named here.',
    )

    @property
    def features(self) -> tuple[str, ...]:
        """Feature names, in order."""
        return (*self.ordered, *self.categorical)

    @property
    def ordered(self) -> tuple[str, ...]:
        """The features that trees split by thresholds, in order: numbers, and means of the label."""
        return (*self.numeric, *self.target_means)

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that are no features: the label, and what stands beside it."""
        beside = (
            *(self.label_upper_bound, self.weight, self.base_margin, self.group),
            *(self.validation, self.row_id),
        )
        return (*filter(None, (self.label, *beside)), *self.subgroups)

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """The levels of each categorical feature, then of each column of subgroups."""
        return {**self.categorical, **self.subgroups}

    def held_by(self, party: str, has_labels: bool, by_id: bool) -> "Schema":
        """The columns of a party where columns are held apart. The columns of a party without labels have no
        label and nothing that stands beside it, but the row ids if rows are matched by them."""
        if has_labels:
            elsewhere = {name for names in self.held.values() for name in names}
            own = [name for name in self.features if name not in elsewhere]
            bare: dict[str, Any] = {}
        else:
            own = [*self.held[party]]
            names = "label_upper_bound", "positive", "weight", "validation", "base_margin", "group"
            bare = {"label": "", "classes": (), "subgroups": {}, **dict.fromkeys(names)}
            bare["row_id"] = self.row_id if by_id else None
        kept = {*own}
        return self.model_copy(
            update={
                "numeric": tuple(name for name in self.numeric if name in kept),
                "target_means": {n: buckets for n, buckets in self.target_means.items() if n in kept},
                "categorical": {n: levels for n, levels in self.categorical.items() if n in kept},
                **bare,
            }
        )

    def unlabelled(self) -> "Schema":
        """The columns of rows that are to be predicted: features, row ids, and the margins to begin from."""
        names = "label_upper_bound", "positive", "weight", "validation", "group"
        nothing: dict[str, Any] = {"label": "", "classes": (), "subgroups": {}}
        return self.model_copy(update=nothing | dict.fromkeys(names))

    @model_serializer(mode="wrap")
    def _without_what_is_not_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Terms without these keys have the digest that they had before there were any."""
        content: dict[str, Any] = dump(self)
        for name in ("held", "subgroups", "target_means"):
            if not content.get(name):
                content.pop(name, None)
        return content

    @property
    def category_counts(self) -> tuple[int, ...]:
        """Number of categories of each categorical feature, in order."""
        return tuple(map(len, self.categorical.values()))

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "Schema":
        columns = [*self.features, *self.others]
        twice = sorted(name for name, count in Counter(columns).items() if count > 1)
        if twice:
            raise ValueError(f"column {twice[0]!r} is named more than once")
        if not self.features:
            raise ValueError("no features: name at least one column in numeric, target_means or categorical")
        numeric = {*self.numeric}
        for name, (low, high) in self.ranges.items():
            if name not in numeric:
                hint = nearest(name, self.numeric)
                raise ValueError(f"ranges names {name[:MAX_CHARS]!r}, which is no numeric column{hint}")
            if not -MAX_LABEL <= low < high <= MAX_LABEL:
                raise ValueError(f"the range of {name!r} must be two numbers, the lower first")
        if (
            self.label_range is not None
            and not -MAX_LABEL <= self.label_range[0] < self.label_range[1] <= MAX_LABEL
        ):
            raise ValueError("label_range must be two numbers, the lower first")
        for name, levels in self.levels.items():
            if not levels or len(set(levels)) != len(levels):
                raise ValueError(f"the levels of {name!r} must be at least one, each once")
            if len(levels) > MAX_CATEGORIES:
                raise ValueError(
                    f"column {name!r} has {len(levels)} levels, at most {MAX_CATEGORIES} can be: name it in "
                    f"target_means, group the rare ones in the tables, or declare the column numeric"
                )
        return self

    @model_validator(mode="after")
    def _buckets_fit(self) -> "Schema":
        for name, buckets in self.target_means.items():
            if buckets < MIN_BUCKETS:
                raise ValueError(f"target_means: {name!r} has {buckets} buckets, it needs {MIN_BUCKETS}")
        if (every := sum(self.target_means.values())) > MAX_BUCKETS:
            raise ValueError(f"target_means: {every} buckets in all, at most {MAX_BUCKETS} can be")
        return self

    @model_validator(mode="after")
    def _held_columns_are_features(self) -> "Schema":
        features = {*self.features}
        for party, names in self.held.items():
            for name in names:
                if name == self.label:
                    raise ValueError(
                        f"held names {name[:MAX_CHARS]!r} of party {party[:MAX_CHARS]!r}, which is the "
                        f"label: the label holder has it, take it out"
                    )
                if name not in features:
                    hint = nearest(name, self.features)
                    raise ValueError(
                        f"held names {name[:MAX_CHARS]!r} of party {party[:MAX_CHARS]!r}, which is no "
                        f"feature{hint}: name it in numeric or categorical"
                    )
            if len(set(names)) != len(names):
                raise ValueError(f"held names a column of party {party[:MAX_CHARS]!r} twice")
        return self

    @model_validator(mode="after")
    def _classes_are_distinct(self) -> "Schema":
        if self.classes and self.positive is not None:
            raise ValueError("positive is for labels of two values, classes for more: take one away")
        if len(self.classes) == 1 or len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must be two label values or more, each once")
        for name in self.classes:
            if not name or NOT_IN_TEXT.search(name):
                raise ValueError(
                    f"class {name!r} is "
                    + ("no label value: it counts as missing" if not name else "not one line of text")
                    + "; replace it in the tables"
                )
        return self

    @model_validator(mode="after")
    def _names_can_be_written(self) -> "Schema":
        rules = [(name, NOT_IN_FEATURES) for name in self.features]
        for name, rule in [*rules, *((name, NOT_IN_TEXT) for name in self.others)]:
            if odd := rule.search(name):
                raise ValueError(
                    f"the name of column {name!r} cannot have the character {odd[0]!r}: rename it"
                )
        for name, levels in self.levels.items():
            if odd := next(filter(None, map(NOT_IN_TEXT.search, levels)), None):
                raise ValueError(
                    f"a level of {name!r} has the character {odd[0]!r}: replace it in the tables"
                )
        return self
