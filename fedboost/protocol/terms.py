"""What every party agreed to for one session: the model, the data schema, the protection. Frozen, hashed.

Promises: `Terms.digest` is the same on every machine for the same terms; everything that decides the model
is in here, and nothing else is.
Refuses: unknown keys and values (naming the nearest known one), and combinations that cannot be trained.
"""

import difflib
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from fedboost.errors import ConfigError, quoted
from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import MAX_LEVELS, MAX_REFINEMENTS
from fedboost.gbdt.metrics.by_set import OF_PARTY, TRAIN, VALIDATION
from fedboost.gbdt.metrics.registry import fits, is_metric, metrics_for
from fedboost.gbdt.objectives import plugins, sensitivity
from fedboost.gbdt.objectives.labels import LARGEST_LABEL, LabelKind
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.objectives.ranking import MAX_PAIRS
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective, names_of, parameters_of
from fedboost.gbdt.sampling import MOST_COPIES
from fedboost.gbdt.split import SplitRule
from fedboost.privacy.identity.certificates import MAX_NAME_BYTES, is_name
from fedboost.privacy.masked.pairwise import LARGEST_GROUP, SMALLEST_GROUP, Group
from fedboost.privacy.protections import check_name
from fedboost.protocol import earlier
from fedboost.protocol.noise import Noise, Plan, plan_of

_LONGEST = 100
"""Characters of a key or a value that stand in an error."""
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Name = Annotated[str, Field(min_length=1, max_length=256)]
ProtectionName = Annotated[str, AfterValidator(check_name)]
Several = Annotated[tuple[T, ...], FailFast()]
"""The first fault is enough: each takes half a kilobyte, and terms from outside could have millions."""
MAX_FEATURES = 1 << 16
_ENTRIES_AT_ONCE = 1 << 10


def _validate_in_parts(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a table part by part and stop at the first part with a fault, as FailFast does for lists."""
    if not isinstance(value, dict) or not _ENTRIES_AT_ONCE < len(value) <= MAX_FEATURES:
        return validate(value)
    entries = iter(value.items())
    out: dict[str, Any] = {}
    while part := dict(islice(entries, _ENTRIES_AT_ONCE)):
        out |= validate(part)
    return out


Table = Annotated[Mapping[Name, T], WrapValidator(_validate_in_parts)]
"""A mapping by name of which the first faults are enough, too."""
MAX_NEAR = 256
"""Known names, at most, among which one like an unknown one is looked for: two are compared in 0.5 ms."""
MAX_ROUNDS = 100_000
MAX_DEPTH = 16
SMALLEST_SHARE = 0.05
"""Of the rows, for a sum over rows that are drawn: of a handful of rows it would show each."""
MAX_ROOTS = 1 << 10
"""Trees of a round: a party keeps the rows of each."""
MAX_LEAVES = 1 << 16
"""Of a round."""
MAX_PARTIES = 1 << 12
MAX_CLASSES = 1 << 10
MAX_METRICS = 1 << 8
MAX_FIGURES = 1 << 14
"""Of a round: each metric of each set of rows."""
MOST_REFRESHING = 3
"""Questions about the residuals in the leaves of a tree."""
TREES_A_FEATURE, HIST_TREES = 4, 10
"""Rounds of a session with noise, unless the terms say otherwise."""
_WITH_NOISE = {
    *("columns", "parties", "objective", "num_class", "rounds", "max_depth", "learning_rate", "reg_lambda"),
    *("max_bin", "seed", "base_score", "protection", "colluding", "allow_two_parties", "on_loss"),
    *("keyholder", "keyholder_rows", "key_bits"),
    *("turn_timeout", "rejoin_timeout", "quorum", "noise", "program", "cut_points"),
}
"""Settings that mean something with noise."""
_WHY_NOT = {
    "eval_metric": "metrics of private rows would be one more release each round",
    "early_stopping_rounds": "metrics of private rows would be one more release each round",
    "validation_fraction": "metrics of private rows would be one more release each round",
    "subsample": "noise that hides a row in all rows is never worse than noise that hides it in some",
    "vote_top_k": "votes have no noise",
}
MAX_STEP = 1e6
"""What parameters of objectives, and their inverses, stay below."""
_OTHER_NAMES = {
    "num_leaves": "max_leaves",
    "max_leaf_nodes": "max_leaves",
    "random_state": "seed",
    "n_iter_no_change": "early_stopping_rounds",
    "num_boost_round": "rounds",
    "n_estimators": "rounds",
    "num_rounds": "rounds",
    "iterations": "rounds",
    "eta": "learning_rate",
    "lambda": "reg_lambda",
    "alpha": "reg_alpha",
    "min_split_loss": "gamma",
    "max_bins": "max_bin",
    "metric": "eval_metric",
    "loss": "objective",
    "target": "label",
    "qid": "group",
}

NOT_IN_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What no column name and no level can have: control characters and lone surrogates."""
NOT_IN_FEATURES = re.compile(rf"[][<]|{NOT_IN_TEXT.pattern}")
"""What the name of a feature cannot have: the above, and what XGBoost refuses."""


_NOT_BUILT = {
    "survival:cox": "the gradient of a row needs sums over all rows, of all parties, that are at risk at its "
    "time; survival:aft is for such times, too"
}
"""Objectives of XGBoost's that do not fit: the gradients of a row are made of rows of its own site alone."""
_FOR_ALL = ("max_delta_step",)
"""Parameters of an objective that mean something for the others, too."""


class Frozen(BaseModel):
    """Base of what users write: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Submitted(Frozen):
    """Base of what anybody may submit, with any number of keys."""

    @model_validator(mode="before")
    @classmethod
    def _drop_most_unknown(cls, values: Any) -> Any:
        """Keep one unknown key of many: each is a fault of its own, and one is reported."""
        if not isinstance(values, dict) or len(values) <= len(cls.model_fields):
            return values
        known = {name: value for name, value in values.items() if name in cls.model_fields}
        unknown = next(name for name in values if name not in cls.model_fields)
        return known | {unknown: values[unknown]}


class Schema(_Submitted):
    """The columns every party must have. Features stand in this order: numeric, then categorical."""

    label: Name
    label_upper_bound: Name | None = Field(
        default=None, description="a column of upper bounds, where the label is a lower one"
    )
    positive: str | None = Field(
        default=None, description="the label value that counts as 1, where labels are words"
    )
    classes: Several[str] = Field(
        default=(),
        max_length=MAX_CLASSES,
        description="the label values, from class 0 on, where labels are words or other numbers",
    )
    weight: Name | None = Field(default=None, description="a column of row weights")
    validation: Name | None = Field(
        default=None, description="a column of 0 and 1 or false and true: rows that no tree grows on"
    )
    row_id: Name | None = Field(
        default=None, description="a column by which rows are drawn, wherever they are held"
    )
    base_margin: Name | None = Field(default=None, description="a column of margins to boost from")
    group: Name | None = Field(
        default=None, description="a column that says which rows are ranked against each other"
    )
    numeric: Several[Name] = Field(default=(), max_length=MAX_FEATURES)
    ranges: Table[tuple[float, float]] = Field(
        default_factory=dict,
        max_length=MAX_FEATURES,
        description="from where to where the values of a numeric column go; with noise nobody may look",
    )
    label_range: tuple[float, float] | None = Field(
        default=None, description="from where to where labels go; with noise nobody may look"
    )
    categorical: Table[Several[str]] = Field(default_factory=dict, max_length=MAX_FEATURES)

    @property
    def features(self) -> tuple[str, ...]:
        """Feature names, in order."""
        return (*self.numeric, *self.categorical)

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that are no features: the label, and what stands beside it."""
        beside = (
            *(self.label_upper_bound, self.weight, self.base_margin, self.group),
            *(self.validation, self.row_id),
        )
        return (self.label, *filter(None, beside))

    @property
    def levels(self) -> tuple[int, ...]:
        """How many levels each categorical feature has, in order."""
        return tuple(map(len, self.categorical.values()))

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "Schema":
        columns = [*self.features, *self.others]
        twice = sorted(name for name, count in Counter(columns).items() if count > 1)
        if twice:
            raise ValueError(f"column {twice[0]!r} is named more than once")
        if not self.features:
            raise ValueError("no features: name at least one column in numeric or categorical")
        numeric = {*self.numeric}
        for name, (low, high) in self.ranges.items():
            if name not in numeric:
                hint = nearest(name, self.numeric)
                raise ValueError(f"ranges names {name[:_LONGEST]!r}, which is no numeric column{hint}")
            if not -LARGEST_LABEL <= low < high <= LARGEST_LABEL:
                raise ValueError(f"the range of {name!r} must be two numbers, the lower first")
        if (
            self.label_range is not None
            and not -LARGEST_LABEL <= self.label_range[0] < self.label_range[1] <= LARGEST_LABEL
        ):
            raise ValueError("label_range must be two numbers, the lower first")
        for name, levels in self.categorical.items():
            if not levels or len(set(levels)) != len(levels):
                raise ValueError(f"the levels of {name!r} must be at least one, each once")
            if len(levels) > MAX_LEVELS:
                raise ValueError(
                    f"column {name!r} has {len(levels)} levels, at most {MAX_LEVELS} can be: group the rare "
                    f"ones in the tables, or give them as numbers and declare the column numeric"
                )
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
        for name, levels in self.categorical.items():
            if odd := next(filter(None, map(NOT_IN_TEXT.search, levels)), None):
                raise ValueError(
                    f"a level of {name!r} has the character {odd[0]!r}: replace it in the tables"
                )
        return self


class Terms(_Submitted):
    """The agreement of one session. Parameters have XGBoost's names and defaults, but for `rounds`."""

    columns: Schema
    parties: Several[str] = Field(default=(), max_length=MAX_PARTIES)
    objective: str = "binary:logistic"
    objective_params: Mapping[Name, int | float | str] = Field(default_factory=dict, max_length=MAX_METRICS)
    objective_package: Name | None = None
    rounds: int = Field(default=100, ge=1, le=MAX_ROUNDS)
    max_depth: int = Field(default=6, ge=1, le=MAX_DEPTH)
    learning_rate: float = Field(default=0.3, gt=0, le=1)
    max_bin: int = Field(default=256, ge=2, le=256)
    max_cat_to_onehot: int = Field(default=4, ge=1, le=256)
    max_cat_threshold: int = Field(default=64, ge=2, le=256)
    reg_lambda: float = Field(default=1.0, ge=0)
    reg_alpha: float = Field(default=0.0, ge=0)
    gamma: float = Field(default=0.0, ge=0)
    min_child_weight: float = Field(default=1.0, ge=0)
    grow_policy: Literal["depthwise", "lossguide"] = "depthwise"
    max_leaves: int = Field(default=0, ge=0, le=MAX_LEAVES)
    num_parallel_tree: int = Field(default=1, ge=1, le=MAX_CLASSES)
    subsample: float = Field(default=1.0, ge=SMALLEST_SHARE, le=1)
    sampling_method: Literal["uniform", "gradient_based", "bootstrap"] = "uniform"
    colsample_bytree: float = Field(default=1.0, gt=0, le=1)
    colsample_bylevel: float = Field(default=1.0, gt=0, le=1)
    colsample_bynode: float = Field(default=1.0, gt=0, le=1)
    monotone_constraints: Table[Literal[-1, 0, 1]] = Field(default_factory=dict, max_length=MAX_FEATURES)
    interaction_constraints: Several[Several[Name]] = Field(default=(), max_length=MAX_FEATURES)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    max_delta_step: float | None = Field(default=None, ge=0, le=MAX_STEP)
    base_score: float | None = None
    num_class: int | None = Field(default=None, ge=2, le=MAX_CLASSES)
    scale_pos_weight: float | None = Field(default=None, ge=1.0 / MAX_STEP, le=MAX_STEP)
    tweedie_variance_power: float | None = Field(default=None, gt=1, lt=2)
    huber_slope: float | None = Field(default=None, ge=1.0 / MAX_STEP, le=MAX_STEP)
    quantile_alpha: float | None = Field(default=None, gt=0, lt=1)
    lambdarank_pair_method: Literal["topk", "mean"] | None = None
    lambdarank_num_pair_per_sample: int | None = Field(default=None, ge=1, le=MAX_PAIRS)
    lambdarank_normalization: bool | None = None
    lambdarank_score_normalization: bool | None = None
    ndcg_exp_gain: bool | None = None
    aft_loss_distribution: Literal["normal", "logistic", "extreme"] | None = None
    aft_loss_distribution_scale: float | None = Field(default=None, ge=1.0 / MAX_STEP, le=MAX_STEP)
    eval_metric: Several[str] = Field(default=(), max_length=MAX_METRICS)
    party_metrics: bool = False
    validation_fraction: float = Field(default=0.0, ge=0, le=0.9)
    early_stopping_rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    xgb_model: str | None = Field(default=None, repr=False)
    cut_points: Literal["grid", "kll", "even"] = "grid"
    gradient_bits: int | None = Field(default=None, ge=8, le=24)
    protection: ProtectionName = "masked"
    keyholder: Name | None = None
    keyholder_rows: bool = True
    key_bits: int = Field(default=3072, ge=2048, le=8192)
    colluding: int | None = Field(default=None, ge=0, le=98)
    allow_two_parties: bool = False
    on_loss: Literal["wait", "shrink", "stop"] = "wait"
    turn_timeout: float = Field(default=600.0, gt=0)
    rejoin_timeout: float = Field(default=600.0, ge=0)
    quorum: int | None = Field(default=None, ge=1)
    vote_top_k: int = Field(default=0, ge=0, le=MAX_FEATURES)
    noise: Noise | None = None
    program: Name = "boosting"

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        if value in _NOT_BUILT:
            raise ValueError(f"{value} is not built: {_NOT_BUILT[value]}")
        if value in OBJECTIVES or value in (others := plugins.names()):
            return value
        offered = f"; of packages here (entry points of group {plugins.GROUP}): {', '.join(others) or 'none'}"
        raise ValueError(_unknown(value, [*OBJECTIVES, *others], OBJECTIVES, "objective") + offered)

    @field_validator("parties")
    @classmethod
    def _distinct_parties(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a party is named more than once")
        for name in value:
            if not is_name(name):
                raise ValueError(
                    f"{name[:_LONGEST]!r} cannot be a party's name: it takes 1 to {MAX_NAME_BYTES} "
                    f"bytes of printable characters"
                )
        return value

    @field_validator("eval_metric", mode="before")
    @classmethod
    def _one_metric_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _holds_together(self) -> "Terms":
        self._check_installed()
        if self.noise is not None:
            self._check_noise()
        self._check_classes()
        self._check_parameters()
        self._check_groups()
        self._check_intervals()
        if len(self.roots) > MAX_ROOTS:
            raise ValueError(f"{len(self.roots)} trees a round are too many: at most {MAX_ROOTS}")
        if len(self.roots) > 1 and self.most_leaves > MAX_LEAVES:
            raise ValueError(
                f"{len(self.roots)} trees a round of depth {self.max_depth} are too many: at most "
                f"{MAX_LEAVES} leaves; lower max_depth, or set max_leaves"
            )
        equivalent = self.loss.xgboost_equivalent
        with_metrics = self.loss if self.objective in OBJECTIVES else equivalent
        fitting = metrics_for(with_metrics)
        for name in self.metrics:
            if not is_metric(name):
                _known(name, fitting, "eval_metric")
                raise ValueError(f"eval_metric {name[:_LONGEST]!r} takes a number for t, such as 0.5 or 1.5")
            if not fits(name, with_metrics):
                raise ValueError(
                    f"eval_metric {name} does not fit objective {self.objective}; use {', '.join(fitting)}"
                )
        figures = len(self.metrics) * len(self.sets)
        if figures > MAX_FIGURES:
            raise ValueError(
                f"{figures} metrics a round are too many: at most {MAX_FIGURES}; leave party_metrics out"
            )
        if self.max_leaves == 1:
            raise ValueError("max_leaves 1 is a tree without a split; 0 is no limit")
        self._check_draws()
        if self.base_score is not None:
            try:
                if abs(self.base_score) > LARGEST_LABEL:
                    raise ConfigError(f"base_score {self.base_score} is beyond 2**60")
                self.loss.margin(float(np.float32(self.base_score)))
            except ConfigError as error:
                raise ValueError(str(error)) from None
        if self.hides and self.parties:
            self._check_group()
        self._check_keyholder()
        if self.cut_points == "even" and self.noise is None:
            raise ValueError(
                "cut_points even lays them evenly over declared ranges, which only noise asks for"
            )
        if self.cut_points == "kll" and self.hides:
            raise ValueError(
                'cut_points kll shows raw values to the aggregator: it needs protection = "plain"'
            )
        if self.quorum is not None and self.on_loss != "shrink":
            raise ValueError('quorum needs on_loss = "shrink": else the roster is always that of all parties')
        if self.quorum is not None and self.parties and not self.fewest == self.quorum <= len(self.parties):
            raise ValueError(
                f"quorum {self.quorum} of {len(self.parties)} parties: protection {self.protection} opens no "
                f"sum of fewer than {self.fewest}"
                if self.quorum < self.fewest
                else f"quorum {self.quorum} is more than the {len(self.parties)} parties"
            )
        if self.on_loss == "shrink" and self.loss.quantile is not None:
            raise ValueError(
                f'{self.objective} with on_loss = "shrink": its gradients are signs, which stay as they are '
                f"when margins move, so that two rosters would show the difference; set wait or stop"
            )
        if self.on_loss == "shrink" and self.parties and self.fewest == len(self.parties):
            raise ValueError(
                f'on_loss = "shrink": protection {self.protection} with this quorum opens no sum of fewer '
                f"than {self.fewest} parties, so the roster cannot shrink; add parties, or lower quorum"
            )
        if self.vote_top_k > len(self.columns.features):
            raise ValueError(
                f"vote_top_k {self.vote_top_k} is more than the {len(self.columns.features)} features; set "
                f"it lower, or to 0 for no votes"
            )
        if self.columns.base_margin is not None and self.loss.outputs > 1:
            raise ValueError(
                f"columns.base_margin is one number a row; {self.objective} would need one for each class"
            )
        if self.columns.positive is not None and equivalent.classes_key != "positive":
            raise ValueError(f"columns.positive needs objective binary:logistic, not {self.objective}")
        if self.xgb_model is not None:
            self._check_earlier(self.xgb_model)
        return self

    def _check_noise(self) -> None:
        """What noise needs, and what it leaves no room for. Sets what has another default with it."""
        assert self.noise is not None
        trees = HIST_TREES if self.noise.method == "hist" else TREES_A_FEATURE * len(self.columns.features)
        own = {"rounds": trees, "max_depth": 3}
        for name, value in own.items():
            if name not in self.model_fields_set:
                self.__dict__[name] = value
        for name, field in type(self).model_fields.items():
            if name not in _WITH_NOISE and getattr(self, name) != field.get_default(
                call_default_factory=True
            ):
                of_method = (
                    "it is not built for" if self.noise.method == "hist" else "there is no use for it in"
                )
                why = _WHY_NOT.get(name, f"{of_method} trees of noise.method {self.noise.method}")
                raise ValueError(f"{name} with noise: {why}; leave it out")
        for name in ("weight", "base_margin", "validation"):
            if getattr(self.columns, name) is not None:
                raise ValueError(
                    f"columns.{name} with noise: what a row can do has no bound then; leave it out"
                )
        bounded = OBJECTIVES[self.objective].sensitivity if self.objective in OBJECTIVES else None
        if bounded is None:
            bounds = ((name, kind.sensitivity) for name, kind in OBJECTIVES.items())
            ranges = {name: bound.needs_label_range for name, bound in bounds if bound is not None}
            known = ", ".join(sorted(ranges, key=ranges.__getitem__))
            raise ValueError(f"{self.objective} has no bound for what a row can do; with noise use {known}")
        if bounded.needs_label_range and self.columns.label_range is None:
            raise ValueError(
                f"{self.objective} with noise needs the range of the labels, by what is known and not by the "
                f"rows: columns.label_range = [0, 100]"
            )
        self._check_label_range()
        missing = [name for name in self.columns.numeric if name not in self.columns.ranges]
        if missing:
            raise ValueError(
                f"noise needs the range of every numeric column, by what is known and not by the rows; "
                f"{missing[0]!r} has none: columns.ranges = {{ {missing[0][:_LONGEST]!r} = [0, 100] }}"
            )
        if self.noise.placement == "distributed" and not self.hides:
            raise ValueError(
                "distributed noise under protection plain: the aggregator would see every party's sums with "
                'a share of the noise; set protection = "masked", or placement = "local"'
            )
        if self.cut_points == "kll":
            raise ValueError(
                'cut_points kll shows values of rows, with or without noise; set "grid" or "even"'
            )
        if self.on_loss == "shrink":
            raise ValueError(
                'on_loss = "shrink" with noise: a question that is asked again of fewer parties would be one '
                "more release; set wait or stop"
            )
        if self.noise.placement == "distributed" and self.parties and self.honest < 1:
            raise ValueError(
                "distributed noise needs two parties, one of which draws some that others do not know"
            )

    def _check_label_range(self) -> None:
        """Gradients are clipped to it, and boosting starts from its middle."""
        objective = OBJECTIVES[self.objective]
        bounded = objective.sensitivity
        if bounded is None or not bounded.needs_label_range:
            return
        assert self.columns.label_range is not None
        low, high = self.columns.label_range
        if high - low < 1.0 / LARGEST_LABEL:
            raise ValueError("label_range is so narrow that no gradient can be measured by it; widen it")
        if objective.label_kind is LabelKind.COUNT and low < 0.0:
            raise ValueError(f"label_range begins at {low:g}, and no label of {self.objective} is below 0")

    @property
    def honest(self) -> int:
        """Parties with rows, at least, whose shares of the noise nobody else knows. One party can always
        subtract its own; a key holder without rows draws none."""
        return len(self.holders) - max(1, Group.of(self.parties, self.colluding).colluding)

    @property
    def bound(self) -> sensitivity.Bound:
        """What of a row enters sums that get noise."""
        return sensitivity.bound_of(self.loss, self.columns.label_range)

    @cached_property
    def plan(self) -> Plan:
        """What a session with noise releases."""
        assert self.noise is not None
        counted = len(self.columns.numeric) if self.cut_points == "grid" else 0
        honest, parties = max(self.honest, 1), max(len(self.holders), 1)
        about_trees = self.rounds * self.levels, 1.0
        if self.noise.method == "hist":  # of a row a level's histograms have a pair for each feature, and one
            about_trees = self.rounds * self.levels, math.sqrt(len(self.columns.features) + 1)
        return plan_of(self.noise, counted, about_trees, self.bound.sensitivity, honest, parties)

    def _check_earlier(self, text: str) -> None:
        if self.program != "boosting":
            raise ValueError(f"xgb_model is continued by the program boosting, not by {self.program!r}")
        try:
            earlier.check(text, self)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def _check_installed(self) -> None:
        """An objective of a package: the same version everywhere."""
        if self.objective in OBJECTIVES:
            if self.objective_params or self.objective_package:
                raise ValueError(
                    f"objective_params and _package are for installed ones, not {self.objective}"
                )
            return
        try:
            here = plugins.package_of(self.objective)
            if self.objective_package not in (None, here):
                raise ConfigError(
                    f"objective {self.objective} is that of {self.objective_package[:_LONGEST]!r} in these "
                    f"terms, and of {here} here: install the same"
                )
            told = plugins.parameters(self.objective, self.objective_params)
            self.__dict__ |= {"objective_package": here, "objective_params": told}
            _ = self.loss
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def _check_classes(self) -> None:
        """The number of classes follows from their names."""
        classes_key = OBJECTIVES[self.objective].classes_key if self.objective in OBJECTIVES else None
        multi, named = classes_key == "classes", len(self.columns.classes)
        if named and not multi:
            instead = "; for two values set columns.positive" if classes_key == "positive" else ""
            raise ValueError(f"columns.classes needs objective multi:softprob, not {self.objective}{instead}")
        if named and self.num_class is None:
            self.__dict__["num_class"] = named  # so that saying it says nothing new
        if named and self.num_class != named:
            raise ValueError(
                f"num_class is {self.num_class}, columns.classes names {named}: leave num_class out"
            )
        if multi and self.num_class is None:
            raise ValueError(
                "multi:softprob needs num_class, the number of classes, or columns.classes, their names"
            )

    def _check_intervals(self) -> None:
        """Labels that are intervals take two columns."""
        two = self.columns.label_upper_bound is not None
        if two != (self.loss.xgboost_equivalent.label_kind is LabelKind.INTERVAL):
            raise ValueError(
                f"columns.label_upper_bound is for {', '.join(names_of(LabelKind.INTERVAL))}; "
                f"{self.objective} has one label a row"
                if two
                else f"{self.objective} needs columns.label_upper_bound, the column of upper bounds: what "
                f"columns.label says where a time is known, infinite or missing where it is not over"
            )

    def _check_draws(self) -> None:
        validation = self.columns.validation
        if validation is not None and self.validation_fraction:
            raise ValueError(
                f"validation_fraction draws validation rows, and column {validation!r} names them: give one"
            )
        if 0.0 < self.validation_fraction < SMALLEST_SHARE:
            raise ValueError(f"validation_fraction must be 0, or {SMALLEST_SHARE:g} to 0.9")
        if self.early_stopping_rounds is not None and not self.validates:
            raise ValueError(
                "early_stopping_rounds needs validation rows: set validation_fraction, or columns.validation"
            )
        if self.draws_by_size and self.subsample == 1.0:
            raise ValueError("sampling_method gradient_based with subsample 1 would draw every row: lower it")
        if self.draws_by_size and self.loss.quantile is not None:
            raise ValueError(
                f"sampling_method gradient_based draws rows by the sizes of their gradients; those of "
                f"{self.objective} are signs and say nothing: set uniform"
            )
        if self.draws_by_size and self.vote_top_k:
            raise ValueError(
                "vote_top_k elects features by each party's own rows, and sampling_method gradient_based may "
                "draw hardly any of those: give one of both"
            )
        numeric, features = {*self.columns.numeric}, {*self.columns.features}
        for name in {name for group in self.interaction_constraints for name in group}:
            if name not in features:
                raise ValueError(
                    f"interaction_constraints names {name[:_LONGEST]!r}, which is no feature"
                    f"{nearest(name, self.columns.features)}"
                )
        for name in self.monotone_constraints:
            if name not in numeric:
                what = "has levels, which have no order" if name in features else "is no feature"
                hint = nearest(name, self.columns.numeric)
                raise ValueError(f"monotone_constraints names {name[:_LONGEST]!r}, which {what}{hint}")
        if self._monotone and self.vote_top_k:
            raise ValueError("vote_top_k elects features without a look at monotone_constraints: give one")
        if self._monotone and self.loss.quantile is not None:
            raise ValueError(f"{self.objective} gives leaves their values after they grew: no constraints")
        columns = min(self.colsample_bytree, self.colsample_bylevel, self.colsample_bynode)
        if self.vote_top_k and columns < 1.0:
            raise ValueError("vote_top_k elects features, and colsample_* draws them: give one of both")

    def _check_parameters(self) -> None:
        """Those of another objective are a mistake."""
        own = parameters_of(self.objective) if self.objective in OBJECTIVES else {}
        for kind in OBJECTIVES:
            for name in parameters_of(kind):
                if name not in own and name not in _FOR_ALL and vars(self).get(name) is not None:
                    raise ValueError(f"{name} is for {kind}; {self.objective} has none")
        for name, needed in own.items():
            if needed and vars(self)[name] is None:
                raise ValueError(f"{self.objective} needs {name}")

    def _check_keyholder(self) -> None:
        """Who can decrypt, where sums are encrypted."""
        if not self.encrypts:
            for name in ("keyholder", "keyholder_rows"):
                if vars(self)[name] != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is for protection paillier or bfv, not {self.protection}")
            return
        if self.keyholder is None and self.parties:
            raise ValueError(
                f"protection {self.protection} needs keyholder, the party that decrypts sums it cannot read"
            )
        if self.parties and self.keyholder not in self.parties:
            name = str(self.keyholder)[:_LONGEST]
            raise ValueError(f"keyholder {name!r} is none of the parties{nearest(name, self.parties)}")
        if self.on_loss == "shrink":
            raise ValueError(
                f'on_loss = "shrink" with protection {self.protection}: nothing holds two rosters of one '
                f"turn apart; set wait or stop"
            )

    @property
    def hides(self) -> bool:
        """Whether the aggregator sees sums alone, and no party's vector."""
        return self.protection != "plain"

    @property
    def encrypts(self) -> bool:
        """Whether sums are encrypted, and a key holder opens them."""
        return self.protection in ("paillier", "bfv")

    @property
    def most_turns(self) -> int:
        """Questions of a session, at most."""
        return 2 + MAX_REFINEMENTS + MOST_REFRESHING + (self.rounds + 1) * (self.levels + 1)

    def _check_groups(self) -> None:
        rankings = names_of(LabelKind.RELEVANCE)
        ranks = self.objective in rankings
        if ranks and self.columns.group is None:
            raise ValueError(
                f"{self.objective} needs columns.group, the column that says which rows are ranked against "
                f"each other (XGBoost's qid)"
            )
        if not ranks and self.columns.group is not None:
            raise ValueError(f"columns.group needs objective {' or '.join(rankings)}, not {self.objective}")
        if self.lambdarank_pair_method == "mean":
            raise ValueError(
                "lambdarank_pair_method mean draws pairs at random, and draws would depend on who holds the "
                "rows; leave it out, for topk"
            )

    def _check_group(self) -> None:
        """Who can hide whom: masks hide a party among those with rows that do not collude."""
        parties, smallest = len(self.holders), 2 if self.allow_two_parties else SMALLEST_GROUP
        if parties < smallest:
            hint = "" if parties < 2 else " (a party can subtract itself from the sum of two)"
            shared = self.noise is not None and self.noise.placement == "distributed"
            plain = 'protection = "plain"' + (' with noise.placement = "local"' if shared else "")
            two = (
                "allow_two_parties = true, which hides from the aggregator alone, or " if parties == 2 else ""
            )
            needed = f"{smallest} parties with rows" if self.encrypts else f"{smallest} parties"
            beside = "" if self.keyholder_rows else f" beside the key holder {quoted(str(self.keyholder))}"
            raise ValueError(
                f"protection {self.protection} needs {needed}, the terms name {parties}{beside}{hint}; "
                f"add parties, or set {two}{plain}"
            )
        if len(self.parties) > LARGEST_GROUP:
            raise ValueError(
                f"protection {self.protection} with {len(self.parties)} parties: {LARGEST_GROUP} is the most"
            )
        colluding = Group.of(self.parties, self.colluding).colluding
        if colluding > parties - 2:
            rows, counted = (" with rows", ", the key holder counted first,") if self.encrypts else ("", "")
            raise ValueError(
                f"protection {self.protection} with {parties} parties{rows} of which {colluding} collude"
                f"{counted} hides nobody: it takes two that do not, so colluding is at most {parties - 2}"
            )

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that hold rows: all but a key holder without any."""
        if self.keyholder_rows:
            return self.parties
        return tuple(party for party in self.parties if party != self.keyholder)

    @property
    def fewest(self) -> int:
        """The fewest parties whose sums are ever opened."""
        if self.on_loss != "shrink":
            return len(self.parties)
        masked = Group.of(self.parties, self.colluding).smallest_roster if self.protection == "masked" else 1
        return max(masked, self.quorum or len(self.parties) // 2 + 1)

    @property
    def signers(self) -> int:
        """The fewest parties whose signatures a model is worth something with: as many as a sum needs."""
        if self.encrypts:
            return len(self.parties) // 2 + 1
        masked = self.protection == "masked"
        return Group.of(self.parties, self.colluding).smallest_roster if masked else 0

    @property
    def levels(self) -> int:
        """The most questions about one tree before its end: its levels, the votes before each but the root's,
        and those about the residuals in its leaves."""
        deepest = self.max_depth if self.grow_policy == "depthwise" else self.most_leaves
        refreshing = 0 if self.loss.quantile is None else MOST_REFRESHING
        if self.noise is not None:
            return self.max_depth if self.noise.method == "hist" else 1
        return (2 * deepest - 1 if self.vote_top_k else deepest) + refreshing

    @cached_property
    def loss(self) -> Objective:
        """The objective."""
        if self.objective not in OBJECTIVES:
            return plugins.objective(self.objective, self.objective_params)
        return make_objective(self.objective, vars(self))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The roots that grow in a round: num_parallel_tree for the first output, then for the second."""
        return tuple(range(self.loss.outputs * self.num_parallel_tree))

    @cached_property
    def earlier(self) -> Booster | None:
        """The model that is continued."""
        return None if self.xgb_model is None else earlier.read(self.xgb_model)

    @property
    def constant_rounds(self) -> int:
        """Rounds of the model before this session's first tree: those of the model that is continued, and the
        constant's, which is a leaf where there are base margins."""
        of_constant = int(self.columns.base_margin is not None)
        return of_constant if self.earlier is None else len(self.earlier.trees) // len(self.roots)

    @property
    def first_tree(self) -> int:
        """The number of this session's first tree among all of the model: by it rows and columns are drawn,
        as if all were trained in one go."""
        return self.constant_rounds - int(self.columns.base_margin is not None)

    @property
    def most_leaves(self) -> int:
        """Of a round's trees."""
        deepest: int = 1 << self.max_depth
        return len(self.roots) * min(deepest, self.max_leaves or deepest)

    def rule(self, gradient: Scale, hessian: Scale) -> SplitRule:
        """What decides on splits and leaf values, for sums of these scales."""
        return SplitRule(
            self.reg_lambda,
            self.reg_alpha,
            self.gamma,
            self.min_child_weight,
            self.step,
            self.leaf_rate,
            gradient,
            hessian,
            self.max_cat_to_onehot,
            self.max_cat_threshold,
            self._monotone,
        )

    @property
    def leaf_rate(self) -> float:
        """What a leaf's value is multiplied with."""
        return self.learning_rate / self.num_parallel_tree

    @property
    def step(self) -> float:
        """The longest step of a leaf before the learning rate, 0 for any: max_delta_step, and where it is not
        given the objective's own."""
        own: float = vars(self.loss).get("max_delta_step", 0.0)
        return own if self.max_delta_step is None else self.max_delta_step

    @property
    def bits(self) -> int:
        """Bits of a row's gradient and hessian, sign included: gradient_bits, or the objective's own."""
        if self.noise is not None:
            return sensitivity.NOISE_BITS
        return self.gradient_bits or self.loss.gradient_bits

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of each round: eval_metric, or the objective's own."""
        return () if self.noise is not None else self.eval_metric or (self.loss.default_metric,)

    @property
    def _monotone(self) -> tuple[int, ...]:
        """For each feature 1, -1 or 0; nothing where there is no constraint."""
        signs = tuple(self.monotone_constraints.get(name, 0) for name in self.columns.features)
        return signs if any(signs) else ()

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets of rows that metrics are of: first those of all parties."""
        if self.noise is not None:
            return ()
        sets = (TRAIN, VALIDATION) if self.validates else (TRAIN,)
        owners = self.parties if self.party_metrics else ()
        return (*sets, *(f"{party}{OF_PARTY}{rows}" for party in owners for rows in sets))

    @property
    def validates(self) -> bool:
        """Whether there are validation rows."""
        return self.validation_fraction > 0.0 or self.columns.validation is not None

    @property
    def draws_for_trees(self) -> bool:
        """Whether trees grow on rows that are drawn."""
        return self.subsample < 1.0 or self.most_copies > 1

    @property
    def draws_rows(self) -> bool:
        """Whether rows are drawn, so that each needs a key."""
        return self.draws_for_trees or self.validation_fraction > 0.0

    @property
    def draws_by_size(self) -> bool:
        """Whether the chance of a row to be drawn depends on its gradients."""
        return self.sampling_method == "gradient_based"

    @property
    def most_copies(self) -> int:
        """How often a tree counts a row at most."""
        return MOST_COPIES if self.sampling_method == "bootstrap" else 1

    @property
    def share_drawn(self) -> float:
        """The share of the rows that a tree grows on, each counted once."""
        return -math.expm1(-self.subsample) if self.sampling_method == "bootstrap" else self.subsample

    @property
    def asks_for_exponents(self) -> bool:
        """Whether gradients have no public bound, so that the parties must count their exponents."""
        return self.noise is None and (self.loss.bounds is None or self.columns.weight is not None)

    @property
    def known_weight_scale(self) -> Scale | None:
        """The scale of row weights where they all are 1."""
        return None if self.columns.weight else UNIT

    def canonical(self) -> str:
        """These terms as JSON, keys in the order of the fields here: what is hashed and what travels.

        Categorical columns keep the order of their declaration, which is the order of the features.
        """
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Terms) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def with_parties(self, parties: Iterable[str]) -> Self:
        """The same terms for these parties."""
        return self.changed(parties=tuple(parties))

    def changed(self, **settings: object) -> Self:
        """The same terms with other settings, checked anew; what nobody has set gets its default there."""
        return type(self).read({**self.model_dump(mode="json", exclude_unset=True), **settings})

    @classmethod
    def read(cls, values: Mapping[str, Any], source: str = "terms") -> Self:
        """Terms from plain values (TOML, JSON). Raises ConfigError with one line that names the key."""
        return read_model(cls, values, source)

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """Terms from what `canonical` wrote."""
        try:
            values = json.loads(text, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"terms: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("terms: not a JSON object")
        return cls.read(values)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of no more keys than can be meant: each unknown one is a fault, and takes memory."""
    if len(pairs) > MAX_FEATURES:
        raise ConfigError(f"terms: {len(pairs)} keys in one table; {MAX_FEATURES} are allowed")
    return dict(pairs)


def _known(value: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    if value not in names:
        raise ValueError(_unknown(value, names, names, what))
    return value


def _unknown(value: str, near: Iterable[str], known: Iterable[str], what: str) -> str:
    return f"unknown {what} {value[:_LONGEST]!r}{nearest(value, near)}; known: {', '.join(known)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)', or nothing if no known word is near, of the first MAX_NEAR."""
    names, word = [name[:_LONGEST] for name in islice(known, MAX_NEAR)], word[:_LONGEST]
    other = _OTHER_NAMES.get(word)
    close = [other] if other in names else difflib.get_close_matches(word, names, 1)
    return f" (did you mean {close[0]}?)" if close else ""


_SHOULD_BE = {
    "tuple_type": "should be a list, in brackets",
    "dict_type": "should be a table, { key = value }",
    "mapping_type": "should be a table, { key = value }",
    "model_type": "should be a table, { key = value }",
    "path_type": "should be a path, in quotes",
}
"""What TOML calls things, by the type of a fault."""


def _has(table: Any, key: str) -> bool:
    """Whether this type of a field is a table that has the key."""
    return isinstance(table, type) and issubclass(table, BaseModel) and key in table.model_fields


def read_model(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """Validate values from a user; the first fault becomes a ConfigError of one line."""
    try:
        read = model.model_validate(values)
    except ValidationError as error:
        raise first_fault(model, error, source) from None
    if no_number := _no_number(model, values):
        raise ConfigError(f"{source}: {quoted(no_number)}")
    return read


def _no_number(model: type[BaseModel], values: Mapping[str, Any]) -> str | None:
    """What is wrong with the first value of a key for numbers that is true, false or text, which pydantic
    would take for a number."""
    for key, value in values.items():
        wanted = model.model_fields[key].annotation
        kinds = [one for one in get_args(wanted) or (wanted,) if one is not type(None)]
        if isinstance(value, (bool, str)) and all(one in (int, float) for one in kinds):
            return f"{key}: should be a number, got {value!r}"[:_LONGEST]
        tables = (one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel))
        table = next(tables, None) if isinstance(value, Mapping) else None
        if table is not None and (found := _no_number(table, value)):
            return f"{key}.{found}"
    return None


def first_fault(model: type[BaseModel], error: ValidationError, source: str) -> ConfigError:
    """One line about one fault of values for this model."""
    faults = error.errors(include_url=False)
    # A key that is missing is often one that is misspelt: the unknown one tells more.
    fault = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    place = [str(part) for part in fault["loc"]]
    owner = model
    for part in place[:-1]:
        inner = owner.model_fields[part].annotation if part in owner.model_fields else None
        tables = [one for one in (inner, *get_args(inner)) if isinstance(one, type)]  # `X | None` has X in it
        owner = next((one for one in tables if issubclass(one, BaseModel)), owner)
    key = ".".join(place)[:_LONGEST]
    if fault["type"] == "extra_forbidden":
        homes = (name for name, field in model.model_fields.items() if _has(field.annotation, key))
        table = next(homes, None) if len(place) == 1 else None
        hint = f": it belongs under [{table}]" if table else nearest(place[-1], owner.model_fields)
        message = f"unknown key {key!r}{hint}"
    elif fault["type"] == "missing":
        message = f"key {key!r} is missing"
    elif fault["type"] == "value_error":
        message = f"{key + ': ' if key else ''}{fault['ctx']['error']}"
    else:
        got = fault["input"]
        shown = f", got {got!r}"[:_LONGEST] if isinstance(got, (str, int, float, bool)) else ""
        said = _SHOULD_BE.get(fault["type"], fault["msg"])
        message = f"{key}: {said[0].lower()}{said[1:]}{shown}"
    return ConfigError(f"{source}: {quoted(message)}")
