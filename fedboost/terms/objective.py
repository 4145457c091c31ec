"""The objective: its name, its parameters, and where boosting starts.

Promises: what follows from a name, or from an installed package, is filled in, so that writing it says
nothing new.
Refuses: unknown objectives (naming the nearest known one), and parameters and columns of another one.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal, Self

import numpy as np
from pydantic import Field, StrictFloat, StrictInt, field_validator, model_validator

from fedboost.errors import ConfigError
from fedboost.gbdt.metrics import OF_TRIAL, fits, is_metric, metrics_for
from fedboost.gbdt.objectives import objective as objectives
from fedboost.gbdt.objectives import registry
from fedboost.gbdt.objectives.built_in import MAX_PAIRS
from fedboost.gbdt.objectives.objective import MAX_LABEL, LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES, Trials, make_objective, names_of, parameters_of
from fedboost.terms.columns import MAX_CLASSES, Schema
from fedboost.terms.reading import MAX_CHARS, Group, Name, Several, Table, nearest, require_known, unknown
from fedboost.terms.trees import MAX_ROUNDS, MIN_SHARE

MAX_PARAMETERS = 1 << 8
MAX_CANDIDATES = 128
MAX_STEP = 1e6
"""A bound on parameters of objectives, and on their inverses."""
_NOT_BUILT = {
    "survival:cox": "the gradient of a row needs sums over all rows, of all parties, that are at risk at its "
    "time; survival:aft is for such times, too"
}
"""Objectives of XGBoost that do not fit: here the gradients of a row depend on rows of its own party
alone."""
_FOR_ALL = ("max_delta_step",)
"""Parameters of an objective that apply to the others, too."""


class Objective(Group):
    """The objective of the model. Its parameters are None where the objective's own default holds."""

    name: str = Field(
        default="binary:logistic",
        alias="objective",
        description="Loss to minimise, by its name in XGBoost, or the name of an objective of an installed "
        "package. See [objectives](objectives.md).",
    )
    params: Mapping[Name, int | float | str] = Field(
        default_factory=dict,
        alias="objective_params",
        max_length=MAX_PARAMETERS,
        description="Parameters of an objective of an installed package, such as `{ over = 3.0 }`. What is "
        "left out has the default of the package.",
    )
    package: Name | None = Field(
        default=None,
        alias="objective_package",
        description="Package and version of an objective of an installed package, such as `acme==1.2`: every "
        "site must have this version. The default is the version installed where the terms are read first.",
    )
    max_delta_step: float | None = Field(
        default=None,
        ge=0,
        le=MAX_STEP,
        description="Longest step of a leaf before the learning rate; 0 means no limit. The default is 0, "
        "and 0.7 for `count:poisson`. Set it if classes are very unbalanced.",
    )
    base_score: float | None = Field(
        default=None,
        description="Constant prediction that boosting starts from. The default is the best constant for the "
        "labels of all parties.",
    )
    num_class: int | None = Field(
        default=None,
        ge=2,
        le=MAX_CLASSES,
        description="Number of classes, for `multi:softprob`. The default is the number of "
        "`columns.classes`; without those, set it.",
    )
    scale_pos_weight: float | None = Field(
        default=None,
        ge=1.0 / MAX_STEP,
        le=MAX_STEP,
        description="Weight of rows with label 1, for `binary:logistic`; 1 by default. Set it to the ratio "
        "of labels 0 to labels 1 if ones are rare and their ranking matters more than probabilities.",
    )
    tweedie_variance_power: float | None = Field(
        default=None,
        gt=1,
        lt=2,
        description="Power of the variance, for `reg:tweedie`; 1.5 by default. Close to 1 is nearly a count, "
        "close to 2 nearly a gamma distribution.",
    )
    huber_slope: float | None = Field(
        default=None,
        ge=1.0 / MAX_STEP,
        le=MAX_STEP,
        description="Size of an error from which on it counts in proportion and not squared, for "
        "`reg:pseudohubererror`, in units of the label; 1 by default.",
    )
    quantile_alpha: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Quantile to predict, for `reg:quantileerror`, such as 0.9. It must be set.",
    )
    lambdarank_pair_method: Literal["topk", "mean"] | None = Field(
        default=None,
        description="How pairs of rows are chosen, for rankings. Only `topk` is built, so leave it out.",
    )
    lambdarank_num_pair_per_sample: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PAIRS,
        description="Number of top rows of a group that are paired with the others, for rankings; 32 by "
        "default. Set it to the length of the list that matters.",
    )
    lambdarank_normalization: bool | None = Field(
        default=None,
        description="Scale the gradients of each group by the sum over its pairs, for rankings; true by "
        "default.",
    )
    lambdarank_score_normalization: bool | None = Field(
        default=None,
        description="Divide the change of a pair by the distance of its scores, for rankings; true by "
        "default.",
    )
    ndcg_exp_gain: bool | None = Field(
        default=None,
        description="Gain of a label is 2^label - 1, for rankings; true by default. Set it to false for "
        "labels that are not whole numbers from 0 to 31.",
    )
    aft_loss_distribution: Literal["normal", "logistic", "extreme"] | None = Field(
        default=None,
        description="Distribution of the noise in the logarithm of a time, for `survival:aft`; `normal` by "
        "default.",
    )
    aft_loss_distribution_scale: float | None = Field(
        default=None,
        ge=1.0 / MAX_STEP,
        le=MAX_STEP,
        description="Scale of that distribution, for `survival:aft`; 1 by default.",
    )

    candidates: Several[Table[StrictInt | StrictFloat]] = Field(
        default=(),
        max_length=MAX_CANDIDATES,
        description='With `program = "tune"`: settings of trees that are tried side by side, such as '
        "`[{ learning_rate = 0.1, max_depth = 4 }, { learning_rate = 0.3, max_depth = 6 }]`. See "
        "[tune](lifecycle.md#tune).",
    )

    @cached_property
    def loss(self) -> objectives.Objective:
        """The objective itself; with candidates that of all of them side by side."""
        if self.name not in OBJECTIVES:
            return registry.objective(self.name, self.params)
        loss = make_objective(self.name, vars(self))
        return Trials(loss, len(self.candidates)) if self.candidates else loss

    def of_trials(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of these metrics, of each candidate where there are any."""
        trials = range(len(self.candidates))
        return tuple(f"{trial}{OF_TRIAL}{name}" for trial in trials for name in names) or names

    @property
    def step(self) -> float:
        """The longest step of a leaf before the learning rate, 0 for any: max_delta_step, or its own."""
        own: float = vars(self.loss).get("max_delta_step", 0.0)
        return own if self.max_delta_step is None else self.max_delta_step

    def completed(self, columns: Schema | None) -> "Objective":
        """The same objective, completed from the installed packages, and from the columns if they are
        known."""
        try:
            objective = self._as_installed()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if columns is not None and columns.classes and self.num_class is None:
            return objective.replaced(num_class=len(columns.classes))
        return objective

    def check(self, columns: Schema) -> None:
        """Raise ValueError unless parameters and columns are those of this objective."""
        self._check_classes(columns)
        self._check_parameters()
        self._check_groups(columns)
        self._check_intervals(columns)

    def check_start(self, columns: Schema) -> None:
        """Raise ValueError unless boosting can start from these margins, and from base_score."""
        if self.base_score is not None:
            try:
                if abs(self.base_score) > MAX_LABEL:
                    raise ConfigError(f"base_score {self.base_score} is beyond 2**60")
                self.loss.margin(float(np.float32(self.base_score)))
            except ConfigError as error:
                raise ValueError(str(error)) from None
        if columns.base_margin is not None and self.loss.outputs > 1:
            each = f"{self.name} needs one for each {'candidate' if self.candidates else 'class'}"
            raise ValueError(f"columns.base_margin is one number a row; {each}")

    def check_positive(self, columns: Schema) -> None:
        """Raise ValueError for a positive label where labels do not have two values."""
        if columns.positive is not None and self.loss.xgboost_equivalent.classes_key != "positive":
            raise ValueError(f"columns.positive needs objective binary:logistic, not {self.name}")

    def _as_installed(self) -> "Objective":
        if self.name in OBJECTIVES:
            if self.params or self.package:
                raise ConfigError(f"objective_params and _package are for installed ones, not {self.name}")
            return self
        here = registry.package_of(self.name)
        if self.package not in (None, here):
            raise ConfigError(
                f"objective {self.name} is that of {str(self.package)[:MAX_CHARS]!r} in these terms, and of "
                f"{here} here: install the same"
            )
        objective = self.replaced(package=here, params=registry.parameters(self.name, self.params))
        _ = objective.loss
        return objective

    def _check_classes(self, columns: Schema) -> None:
        """Raise ValueError unless the number of classes is that of their names."""
        classes_key = OBJECTIVES[self.name].classes_key if self.name in OBJECTIVES else None
        multi, named = classes_key == "classes", len(columns.classes)
        if named and not multi:
            instead = "; for two values set columns.positive" if classes_key == "positive" else ""
            raise ValueError(f"columns.classes needs objective multi:softprob, not {self.name}{instead}")
        if named and self.num_class != named:
            raise ValueError(
                f"num_class is {self.num_class}, columns.classes names {named}: leave num_class out"
            )
        if multi and self.num_class is None:
            raise ValueError(
                "multi:softprob needs num_class, the number of classes, or columns.classes, their names"
            )

    def _check_parameters(self) -> None:
        """Raise ValueError for parameters of another objective, and for missing ones."""
        own = parameters_of(self.name) if self.name in OBJECTIVES else {}
        for kind in OBJECTIVES:
            for name in parameters_of(kind):
                if name not in own and name not in _FOR_ALL and vars(self).get(name) is not None:
                    raise ValueError(f"{name} is for {kind}; {self.name} has none")
        for name, needed in own.items():
            if needed and vars(self)[name] is None:
                raise ValueError(f"{self.name} needs {name}")

    def _check_groups(self, columns: Schema) -> None:
        rankings = names_of(LabelKind.RELEVANCE)
        ranks = self.name in rankings
        if ranks and columns.group is None:
            raise ValueError(
                f"{self.name} needs columns.group, the column that says which rows are ranked against "
                f"each other (XGBoost's qid)"
            )
        if not ranks and columns.group is not None:
            raise ValueError(f"columns.group needs objective {' or '.join(rankings)}, not {self.name}")
        if self.lambdarank_pair_method == "mean":
            raise ValueError(
                "lambdarank_pair_method mean draws pairs at random, and draws would depend on who holds the "
                "rows; leave it out, for topk"
            )

    def _check_intervals(self, columns: Schema) -> None:
        """Raise ValueError unless labels that are intervals have two columns."""
        two = columns.label_upper_bound is not None
        if two != (self.loss.xgboost_equivalent.label_kind is LabelKind.INTERVAL):
            raise ValueError(
                f"columns.label_upper_bound is for {', '.join(names_of(LabelKind.INTERVAL))}; "
                f"{self.name} has one label a row"
                if two
                else f"{self.name} needs columns.label_upper_bound, the column of upper bounds: what "
                f"columns.label says where a time is known, infinite or missing where it is not over"
            )

    @field_validator("name")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        if value in _NOT_BUILT:
            raise ValueError(f"{value} is not built: {_NOT_BUILT[value]}")
        if value in OBJECTIVES or value in (others := registry.names()):
            return value
        offered = (
            f"; of packages here (entry points of group {registry.GROUP}): {', '.join(others) or 'none'}"
        )
        raise ValueError(unknown(value, [*OBJECTIVES, *others], OBJECTIVES, "objective") + offered)


# ---- What is measured in each round, on which rows, and when training stops early -----------------------


MAX_METRICS = 1 << 8
MAX_MIN_COUNT = 1_000_000
MAX_SUBGROUPS = 1 << 4
MAX_FIGURES = 1 << 14
"""Of a round: each metric of each set of rows."""


class Evaluation(Group):
    """Metrics and the rows they are of."""

    eval_metric: Several[str] = Field(
        default=(),
        max_length=MAX_METRICS,
        description="Metrics of each round, one or a list. The default is that of the objective. Any of "
        "`logloss`, `error`, `error@t`, `auc`, `aucpr`, `ks`, `ece`; `mlogloss`, `merror`; `rmse`, `mae`, "
        "`mphe`, `quantile`; `poisson-nloglik`, `gamma-nloglik`, `gamma-deviance`, `tweedie-nloglik@power`; "
        "`aft-nloglik`, `interval-regression-accuracy`; `ndcg`, `ndcg@k`, and with `-` behind these, groups "
        "without a relevant row count 0 in place of 1.",
    )
    party_metrics: bool = Field(
        default=False,
        description="Report the metrics of the rows of each party alone, too, such as `north:logloss`. A "
        "site must [allow it](policy.md).",
    )
    validation_fraction: float = Field(
        default=0.0,
        ge=0,
        le=0.9,
        description="Share of the rows that no tree grows on; metrics of these rows are `validation-...`. "
        f"0 for none, or {MIN_SHARE:g} and more.",
    )
    early_stopping_rounds: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="Stop once the last metric of the validation rows has not improved for that many rounds, "
        "and keep the rounds up to the best. By default all rounds are trained.",
    )

    min_count: int = Field(
        default=10,
        ge=1,
        le=MAX_MIN_COUNT,
        description='With `program = "describe"` or `"evaluate"`: the fewest rows of a count that the '
        "analyst gets; with `columns.target_means` of a level that has a mean of its own. The aggregator "
        "sees all counts of all parties together. A site may ask for [more](policy.md).",
    )
    subgroups: Several[str] = Field(
        default=(),
        max_length=MAX_SUBGROUPS,
        description='With `program = "evaluate"`: names of categorical features, or of `columns.subgroups`, '
        'such as `["sex"]`. Metrics and rates are also those of the rows of each level. A site has to '
        "[allow](policy.md) it.",
    )
    threshold: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description='With `program = "evaluate"` and `binary:logistic`: rows of a larger probability count '
        "as predicted positive. A site has to [allow](policy.md) another one than 0.5.",
    )

    evaluate_rows: Literal["all", "held-out", "new"] = Field(
        default="all",
        description='With `program = "evaluate"`: the rows that the model is measured on. `held-out`: those '
        "that no tree was grown on, as the terms of the training draw or name them; `new`: those that were "
        "added to the table since. A site has to [allow](policy.md) these two (`validation`).",
    )

    reference: bool = Field(
        default=False,
        description="Count the rows by bin of each feature and of the score after the last round, and keep "
        "the counts in the model file: `fedboost drift` holds other rows [against them]"
        "(lifecycle-evaluate.md#drift). Counts of fewer than `min_count` rows are left out.",
    )

    def validates(self, columns: Schema) -> bool:
        """True if there are validation rows."""
        return self.validation_fraction > 0.0 or columns.validation is not None

    def check_metrics(self, objective: Objective, names: tuple[str, ...], sets: int) -> None:
        """ValueError unless metrics of these names fit the objective, and are not too many for the number of
        sets of rows."""
        equivalent = objective.loss.xgboost_equivalent
        with_metrics = objective.loss if objective.name in OBJECTIVES else equivalent
        fitting = metrics_for(with_metrics)
        for name in names:
            if not is_metric(name):
                require_known(name, fitting, "eval_metric")
                raise ValueError(f"eval_metric {name[:MAX_CHARS]!r} takes a number for t, such as 0.5 or 1.5")
            if not fits(name, with_metrics):
                raise ValueError(
                    f"eval_metric {name} does not fit objective {objective.name}; use {', '.join(fitting)}"
                )
        if len(names) * sets > MAX_FIGURES:
            raise ValueError(
                f"{len(names) * sets} metrics a round are too many: at most {MAX_FIGURES}; leave "
                f"party_metrics out"
            )

    def check_rows(self, columns: Schema) -> None:
        """ValueError unless validation rows are chosen in one way, and are there if they are needed."""
        if columns.validation is not None and self.validation_fraction:
            raise ValueError(
                f"validation_fraction draws validation rows, and column {columns.validation!r} names them: "
                f"give one"
            )
        if self.early_stopping_rounds is not None and not self.validates(columns):
            raise ValueError(
                "early_stopping_rounds needs validation rows: set validation_fraction, or columns.validation"
            )

    def check_counted(self, refused: Iterable[str]) -> None:
        """ValueError if rows are to be counted under settings that leave no exact counts of all columns.
        refused: such settings that the terms have."""
        for setting in refused:
            if self.reference:
                raise ValueError(f"reference = true with {setting}: rows are counted exactly, of all columns")

    def check_subgroups(self, columns: Schema) -> None:
        """ValueError unless subgroups are levels of declared features."""
        for number, name in enumerate(self.subgroups):
            if name not in columns.levels:
                near, known = nearest(name, columns.levels), ", ".join(columns.levels) or "none"
                why = f"is no categorical column of the terms{near}; there are: {known}"
                raise ValueError(
                    f"subgroups: {name[:MAX_CHARS]!r} {why}; or declare its levels (--by NAME=A,B)"
                )
            if name in self.subgroups[:number]:
                raise ValueError(f"subgroups name {name!r} more than once")
        if self.subgroups and columns.group is not None:
            raise ValueError("subgroups: rows of one group are ranked together, whatever their levels")

    @field_validator("eval_metric", mode="before")
    @classmethod
    def _one_metric_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _enough_rows(self) -> Self:
        if 0.0 < self.validation_fraction < MIN_SHARE:
            raise ValueError(f"validation_fraction must be 0, or {MIN_SHARE:g} to 0.9")
        return self
