"""The columns of the table that every party has: label, features, and what stands beside them.

Refuses: columns named twice, names that no model file takes, levels and ranges that cannot be.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.objectives.objective import MAX_LABEL
from fedboost.gbdt.target_means import MAX_BUCKETS, MIN_BUCKETS
from fedboost.terms.reading import MAX_CHARS, MAX_FEATURES, Name, Several, Submitted, Table, nearest

T = TypeVar("T")
MAX_CLASSES = 1 << 10
ByName = Annotated[Table[T], Field(default_factory=dict, max_length=MAX_FEATURES)]
"""What is said of some features, by their names."""
NOT_IN_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no column name and no level can have: control characters and lone surrogates."""
NOT_IN_FEATURES = re.compile(rf"[][<]|{NOT_IN_TEXT.pattern}")
"""Characters that the name of a feature cannot have: the above, and those XGBoost refuses."""

_NO_LABEL: dict[str, Any] = {
    **{"label": "", "classes": (), "subgroups": {}},
    **dict.fromkeys(("label_upper_bound", "positive", "weight", "validation", "group")),
}
"""What a schema has in place of the columns that go with labels."""


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
    ranges: ByName[tuple[float, float]] = Field(
        description="Lowest and highest value of each numeric feature, such as `{ age = [17, 90] }`. Needed "
        "with `noise`; declare what is generally known, not what the rows show."
    )
    target_means: ByName[int] = Field(
        description="Names of columns with too many levels to declare, such as `{ merchant = 4096 }`: a "
        "level becomes the mean label of other rows that have it. The number is that of buckets, into which "
        f"levels are hashed, {MIN_BUCKETS} to {MAX_BUCKETS} for all such columns together; take several for "
        "each level. See [target means](objectives.md#target-means)."
    )
    label_range: tuple[float, float] | None = Field(
        default=None,
        description="Lowest and highest label, such as `[0, 100]`. Needed with `noise` if labels are "
        "numbers; declare what is generally known, not what the rows show.",
    )
    categorical: ByName[Several[str]] = Field(
        description="Names of the categorical features, each with its levels, at most "
        f"{MAX_CATEGORIES}. A level that is not declared counts as a missing value."
    )
    subgroups: ByName[Several[str]] = Field(
        description="Names of categorical columns that are no features, each with its levels, such as "
        '`{ sex = ["F", "M"] }`: a model may be evaluated by them (`subgroups`). No training reads them.',
    )
    held: ByName[Several[Name]] = Field(
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
            bare = _NO_LABEL | {"base_margin": None, "row_id": self.row_id if by_id else None}
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
        return self.model_copy(update=_NO_LABEL)

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

    def _faults(self) -> Iterator[str]:
        """A sentence on each thing that cannot be."""
        counted = Counter((*self.features, *self.others))
        if twice := sorted(name for name, count in counted.items() if count > 1):
            yield f"column {twice[0]!r} is named more than once"
        if not self.features:
            yield "no features: name at least one column in numeric, target_means or categorical"
        numeric = {*self.numeric}
        for name, (low, high) in self.ranges.items():
            if name not in numeric:
                hint = nearest(name, self.numeric)
                yield f"ranges names {name[:MAX_CHARS]!r}, which is no numeric column{hint}"
            if not -MAX_LABEL <= low < high <= MAX_LABEL:
                yield f"the range of {name!r} must be two numbers, the lower first"
        if self.label_range is not None:
            low, high = self.label_range
            if not -MAX_LABEL <= low < high <= MAX_LABEL:
                yield "label_range must be two numbers, the lower first"
        for name, levels in self.levels.items():
            if not levels or len(set(levels)) != len(levels):
                yield f"the levels of {name!r} must be at least one, each once"
            if len(levels) > MAX_CATEGORIES:
                yield (
                    f"column {name!r} has {len(levels)} levels, at most {MAX_CATEGORIES} can be: name it in "
                    f"target_means, group the rare ones in the tables, or declare the column numeric"
                )
        for name, buckets in self.target_means.items():
            if buckets < MIN_BUCKETS:
                yield f"target_means: {name!r} has {buckets} buckets, it needs {MIN_BUCKETS}"
        if (every := sum(self.target_means.values())) > MAX_BUCKETS:
            yield f"target_means: {every} buckets in all, at most {MAX_BUCKETS} can be"
        yield from self._faults_of_held()
        yield from self._faults_of_texts()

    def _faults_of_held(self) -> Iterator[str]:
        features = {*self.features}
        for party, names in self.held.items():
            of_party = f"of party {party[:MAX_CHARS]!r}"
            for name in names:
                told = f"held names {name[:MAX_CHARS]!r} {of_party}"
                if name == self.label:
                    yield f"{told}, which is the label: the label holder has it, take it out"
                if name not in features:
                    hint = nearest(name, self.features)
                    yield f"{told}, which is no feature{hint}: name it in numeric or categorical"
            if len(set(names)) != len(names):
                yield f"held names a column {of_party} twice"

    def _faults_of_texts(self) -> Iterator[str]:
        if self.classes and self.positive is not None:
            yield "positive is for labels of two values, classes for more: take one away"
        if len(self.classes) == 1 or len(set(self.classes)) != len(self.classes):
            yield "classes must be two label values or more, each once"
        for name in self.classes:
            if not name or NOT_IN_TEXT.search(name):
                why = "not one line of text" if name else "no label value: it counts as missing"
                yield f"class {name!r} is {why}; replace it in the tables"
        for rule, names in ((NOT_IN_FEATURES, self.features), (NOT_IN_TEXT, self.others)):
            for name in names:
                if odd := rule.search(name):
                    yield f"the name of column {name!r} cannot have the character {odd[0]!r}: rename it"
        for name, levels in self.levels.items():
            if odd := next(filter(None, map(NOT_IN_TEXT.search, levels)), None):
                yield f"a level of {name!r} has the character {odd[0]!r}: replace it in the tables"
