"""What is measured in each round, on which rows, and when training stops early."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fedboost.gbdt.metrics.registry import fits, is_metric, metrics_for
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.terms.columns import Schema
from fedboost.terms.draws import MIN_SHARE
from fedboost.terms.flat import Group
from fedboost.terms.objective import Objective
from fedboost.terms.reading import MAX_CHARS, Several, nearest, require_known
from fedboost.terms.trees import MAX_ROUNDS

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
