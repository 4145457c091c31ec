"""Settings of a training: the objective with its parameters, metrics, trees, histograms, and draws of rows
and columns.

Promises: what follows from a name, or from an installed package, is filled in, so that writing it says
nothing new.
Refuses: unknown objectives (naming the nearest known one), and parameters and columns of another one.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, StrictFloat, StrictInt, field_validator

from fedboost.errors import ConfigError
from fedboost.gbdt.metrics import fits, is_metric, metrics_for
from fedboost.gbdt.objectives import objective as objectives
from fedboost.gbdt.objectives import registry
from fedboost.gbdt.objectives.built_in import MAX_PAIRS
from fedboost.gbdt.objectives.objective import MAX_LABEL, LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES, Trials, make_objective, names_of, parameters_of
from fedboost.gbdt.sampling import MAX_BOOTSTRAP_COUNT
from fedboost.terms.columns import MAX_CLASSES, ByName, Schema
from fedboost.terms.reading import (
    MAX_CHARS,
    MAX_FEATURES,
    Group,
    Name,
    Several,
    Table,
    nearest,
    require_known,
    unknown,
)

# ---- Trees, the histograms they grow from, and draws of rows and columns --------------------------------


MAX_ROUNDS = 100_000
MAX_DEPTH = 16
MAX_ROOTS = 1 << 10
"""Trees of a round: a party keeps the rows of each."""
MAX_LEAVES = 1 << 16
"""Of a round."""
Share = Annotated[float, Field(default=1.0, gt=0, le=1)]
Penalty = Annotated[float, Field(ge=0)]


class Trees(Group):
    """Shape and values of the trees."""

    rounds: int = Field(
        default=100,
        ge=1,
        le=MAX_ROUNDS,
        description="Boosting rounds. More rounds with a lower `learning_rate` often predict better and take "
        "longer. With `noise` the default is 4 for each feature, or 10 for `noise.method` `hist`.",
    )
    max_depth: int = Field(
        default=6,
        ge=1,
        le=MAX_DEPTH,
        description="Levels of splits in a tree. Each further level may double the bytes sent; lower it for "
        "few rows. With `noise` the default is 3.",
    )
    learning_rate: Share = Field(
        default=0.3, description="Factor on the value of every leaf. Lower it together with more `rounds`."
    )
    max_cat_to_onehot: int = Field(
        default=4,
        ge=1,
        le=256,
        description="A categorical feature with fewer levels than this is split one level against all "
        "others; a feature with as many or more, by sets of levels.",
    )
    max_cat_threshold: int = Field(
        default=64,
        ge=2,
        le=256,
        description="One side of a split by sets of levels has fewer levels than this. Lower it if features "
        "with many levels overfit.",
    )
    reg_lambda: Penalty = Field(
        default=1.0, description="L2 penalty on the values of leaves. Raise it against overfitting."
    )
    reg_alpha: Penalty = Field(
        default=0.0,
        description="L1 penalty on the values of leaves. Raise it to bring the values of weak leaves to 0.",
    )
    gamma: Penalty = Field(
        default=0.0, description="Least gain of a split. Raise it to leave out splits that gain little."
    )
    min_child_weight: Penalty = Field(
        default=1.0,
        description="Least sum of hessians in a leaf. Most sites want a value that amounts to ten rows, "
        "which `fedboost terms` drafts.",
    )
    grow_policy: Literal["depthwise", "lossguide", "symmetric"] = Field(
        default="depthwise",
        description="Order of splits: `depthwise` splits all leaves of a level in one turn; `lossguide` "
        "splits the better half of the leaves of a tree in each turn, for trees limited by `max_leaves`; "
        "`symmetric` splits all leaves of a level by [one feature and cut](models.md#symmetric-trees).",
    )
    max_leaves: int = Field(
        default=0, ge=0, le=MAX_LEAVES, description="Most leaves of a tree; 0 means no limit."
    )
    num_parallel_tree: int = Field(
        default=1,
        ge=1,
        le=MAX_CLASSES,
        description="Trees of each round and output. For a random forest set it to 100, `rounds` and "
        "`learning_rate` to 1, and `sampling_method` to `bootstrap`.",
    )
    monotone_constraints: ByName[Literal[-1, 0, 1]] = Field(
        description="Direction of numeric features, such as `{ age = 1, dose = -1 }`: with 1 predictions "
        "never fall as the feature rises, with -1 predictions never rise."
    )
    interaction_constraints: Several[Several[Name]] = Field(
        default=(),
        max_length=MAX_FEATURES,
        description='Groups of features, such as `[["age", "dose"], ["dose", "sex"]]`: all features on the '
        "way from the root to a leaf are in one group. Without groups any features go together.",
    )

    @property
    def penalties(self) -> tuple[float, float, float, float]:
        """The bounds of splits and leaf values: reg_lambda, reg_alpha, gamma, min_child_weight."""
        return self.reg_lambda, self.reg_alpha, self.gamma, self.min_child_weight

    @property
    def leaf_rate(self) -> float:
        """The factor on the value of a leaf."""
        return self.learning_rate / self.num_parallel_tree

    def monotone(self, columns: Schema) -> tuple[int, ...]:
        """For each feature 1, -1 or 0; nothing where there is no constraint."""
        if not self.monotone_constraints:
            return ()
        signs = tuple(self.monotone_constraints.get(name, 0) for name in columns.features)
        return signs if any(signs) else ()

    def faults_of_names(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless constraints name features that can have them."""
        if not self.interaction_constraints and not self.monotone_constraints:
            return
        ordered, features = {*columns.ordered}, {*columns.features}
        for name in {name for group in self.interaction_constraints for name in group}:
            if name not in features:
                yield (
                    f"interaction_constraints names {name[:MAX_CHARS]!r}, which is no feature"
                    f"{nearest(name, columns.features)}"
                )
        for name in self.monotone_constraints:
            if name not in ordered:
                what = "has levels, which have no order" if name in features else "is no feature"
                hint = nearest(name, columns.ordered)
                yield f"monotone_constraints names {name[:MAX_CHARS]!r}, which {what}{hint}"

    def faults_of_size(self, roots: int, max_leaves_per_round: int) -> Iterator[str]:
        """Yield a fault if a round with this number of trees, or of their leaves together, is too
        large."""
        if roots > MAX_ROOTS:
            yield f"{roots} trees a round are too many: at most {MAX_ROOTS}"
        if roots > 1 and max_leaves_per_round > MAX_LEAVES:
            yield (
                f"{roots} trees a round of depth {self.max_depth} are too many: at most {MAX_LEAVES} leaves; "
                f"lower max_depth, or set max_leaves"
            )

    def _faults(self) -> Iterator[str]:
        if self.max_leaves == 1:
            yield "max_leaves 1 is a tree without a split; 0 is no limit"


class Histograms(Group):
    """The histograms from which splits are found."""

    max_bin: int = Field(
        default=256,
        ge=2,
        le=256,
        description="Most bins of a numeric feature. Lower it to send fewer bytes: 64 bins are a quarter.",
    )
    cut_points: Literal["grid", "even"] = Field(
        default="grid",
        description="How the bins of numeric features are found: `grid` counts rows in three to five "
        "turns; `even`, with `noise` alone, takes bins of equal width.",
    )
    gradient_bits: int | None = Field(
        default=None,
        ge=8,
        le=24,
        description="Bits of the gradient and of the hessian of a row, sign included. The default is that of "
        "the objective: 16, or 24 for counts, amounts and rankings. Lower it to send fewer bytes.",
    )
    vote_top_k: int = Field(
        default=0,
        ge=0,
        le=MAX_FEATURES,
        description="Features of each node whose histograms are sent, elected by the parties; 0 sends all. "
        "Set it, to 20 say, for tables of hundreds of features and slow links; the model may change.",
    )

    def faults_of_votes(self, columns: Schema) -> Iterator[str]:
        """Yield a fault for votes on more features than there are."""
        if self.vote_top_k > len(columns.features):
            yield (
                f"vote_top_k {self.vote_top_k} is more than the {len(columns.features)} features; set "
                f"it lower, or to 0 for no votes"
            )


# ---- Sampling of the rows and the features that a tree grows on -----------------------------------------


MIN_SHARE = 0.05
"""Smallest share of rows that are sampled for a sum: a sum of a few rows would reveal each."""


class Draws(Group):
    """Draws of rows and features, all of which follow from the seed."""

    seed: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="Start of all random draws. The same seed gives the same model; change it to see how "
        "much results depend on the draws.",
    )
    subsample: float = Field(
        default=1.0,
        ge=MIN_SHARE,
        le=1,
        description="Share of the rows each tree grows on, drawn again for each tree. Lower it, to 0.5 say, "
        "against overfitting; a site must [allow it](policy.md).",
    )
    sampling_method: Literal["uniform", "gradient_based", "bootstrap"] = Field(
        default="uniform",
        description="How rows are drawn: `uniform`, all alike; `gradient_based`, rather rows that are "
        "predicted badly; `bootstrap`, each row a Poisson number of times, for forests. See "
        "[sampling](sampling.md).",
    )
    colsample_bytree: Share = Field(
        description="Share of the features a tree may split by. Lower it against overfitting."
    )
    colsample_bylevel: Share = Field(
        description="Share of the features of the tree that each level may split by."
    )
    colsample_bynode: Share = Field(
        description="Share of the features of the level that each node may split by. Lower it, to 0.5 say, "
        "for random forests."
    )

    @property
    def draws_for_trees(self) -> bool:
        """True if trees grow on sampled rows."""
        return self.subsample < 1.0 or self.max_bootstrap_count > 1

    @property
    def by_gradient_norm(self) -> bool:
        """True if the probability of a row depends on its gradients."""
        return self.sampling_method == "gradient_based"

    @property
    def draws_columns(self) -> bool:
        """True if trees, levels or nodes split by sampled features."""
        return min(self.colsample_bytree, self.colsample_bylevel, self.colsample_bynode) < 1.0

    @property
    def max_bootstrap_count(self) -> int:
        """Largest count of a row in a tree."""
        return MAX_BOOTSTRAP_COUNT if self.sampling_method == "bootstrap" else 1

    @property
    def share_drawn(self) -> float:
        """The share of the rows that a tree grows on, each counted once."""
        return -math.expm1(-self.subsample) if self.sampling_method == "bootstrap" else self.subsample

    def _faults(self) -> Iterator[str]:
        if self.by_gradient_norm and self.subsample == 1.0:
            yield "sampling_method gradient_based with subsample 1 would draw every row: lower it"


# ---- The objective: its name, its parameters, and where boosting starts ---------------------------------


MAX_PARAMETERS = 1 << 8
MAX_CANDIDATES = 128
MAX_STEP = 1e6
"""A bound on parameters of objectives, and on their inverses."""
Factor = Annotated[float | None, Field(default=None, ge=1.0 / MAX_STEP, le=MAX_STEP)]
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
    scale_pos_weight: Factor = Field(
        description="Weight of rows with label 1, for `binary:logistic`; 1 by default. Set it to the ratio "
        "of labels 0 to labels 1 if ones are rare and their ranking matters more than probabilities."
    )
    tweedie_variance_power: float | None = Field(
        default=None,
        gt=1,
        lt=2,
        description="Power of the variance, for `reg:tweedie`; 1.5 by default. Close to 1 is nearly a count, "
        "close to 2 nearly a gamma distribution.",
    )
    huber_slope: Factor = Field(
        description="Size of an error from which on it counts in proportion and not squared, for "
        "`reg:pseudohubererror`, in units of the label; 1 by default."
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
    aft_loss_distribution_scale: Factor = Field(
        description="Scale of that distribution, for `survival:aft`; 1 by default."
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

    @property
    def step(self) -> float:
        """The longest step of a leaf before the learning rate, 0 for any: max_delta_step, or its own."""
        own: float = vars(self.loss).get("max_delta_step", 0.0)
        return own if self.max_delta_step is None else self.max_delta_step

    def completed(self, columns: Schema | None) -> "Objective":
        """The same objective, completed from the installed packages, and from the columns if they are
        known."""
        objective = self
        if self.name not in OBJECTIVES:
            try:
                objective = self._as_installed()
            except ConfigError as error:
                raise ValueError(str(error)) from None
        elif self.params or self.package:
            raise ValueError(f"objective_params and _package are for installed ones, not {self.name}")
        if columns is not None and columns.classes and self.num_class is None:
            return objective.replaced(num_class=len(columns.classes))
        return objective

    def faults(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless parameters and columns are those of this objective."""
        yield from self._faults_of_classes(columns)
        yield from self._faults_of_parameters()
        yield from self._faults_of_groups(columns)
        yield from self._faults_of_intervals(columns)

    def faults_of_start(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless boosting can start from these margins, and from base_score."""
        if self.base_score is not None:
            try:
                if abs(self.base_score) > MAX_LABEL:
                    raise ConfigError(f"base_score {self.base_score} is beyond 2**60")
                self.loss.margin(float(np.float32(self.base_score)))
            except ConfigError as error:
                yield str(error)
                return
        if columns.base_margin is not None and self.loss.outputs > 1:
            each = f"{self.name} needs one for each {'candidate' if self.candidates else 'class'}"
            yield f"columns.base_margin is one number a row; {each}"

    def _as_installed(self) -> "Objective":
        here = registry.package_of(self.name)
        if self.package not in (None, here):
            raise ConfigError(
                f"objective {self.name} is that of {str(self.package)[:MAX_CHARS]!r} in these terms, and of "
                f"{here} here: install the same"
            )
        objective = self.replaced(package=here, params=registry.parameters(self.name, self.params))
        _ = objective.loss
        return objective

    def _faults_of_classes(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless the number of classes is that of their names."""
        classes_key = OBJECTIVES[self.name].classes_key if self.name in OBJECTIVES else None
        multi, named = classes_key == "classes", len(columns.classes)
        if named and not multi:
            instead = "; for two values set columns.positive" if classes_key == "positive" else ""
            yield f"columns.classes needs objective multi:softprob, not {self.name}{instead}"
        if named and self.num_class != named:
            yield f"num_class is {self.num_class}, columns.classes names {named}: leave num_class out"
        if multi and self.num_class is None:
            yield "multi:softprob needs num_class, the number of classes, or columns.classes, their names"

    def _faults_of_parameters(self) -> Iterator[str]:
        """Yield a fault for parameters of another objective, and for missing ones."""
        own = parameters_of(self.name) if self.name in OBJECTIVES else {}
        for kind in OBJECTIVES:
            for name in parameters_of(kind):
                if name not in own and name not in _FOR_ALL and vars(self).get(name) is not None:
                    yield f"{name} is for {kind}; {self.name} has none"
        for name, needed in own.items():
            if needed and vars(self)[name] is None:
                yield f"{self.name} needs {name}"

    def _faults_of_groups(self, columns: Schema) -> Iterator[str]:
        rankings = names_of(LabelKind.RELEVANCE)
        ranks = self.name in rankings
        if ranks and columns.group is None:
            yield (
                f"{self.name} needs columns.group, the column that says which rows are ranked against "
                f"each other (XGBoost's qid)"
            )
        if not ranks and columns.group is not None:
            yield f"columns.group needs objective {' or '.join(rankings)}, not {self.name}"
        if self.lambdarank_pair_method == "mean":
            yield (
                "lambdarank_pair_method mean draws pairs at random, and draws would depend on who holds the "
                "rows; leave it out, for topk"
            )

    def _faults_of_intervals(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless labels that are intervals have two columns."""
        two = columns.label_upper_bound is not None
        if two != (self.loss.xgboost_equivalent.label_kind is LabelKind.INTERVAL):
            yield (
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

    def faults_of_metrics(self, objective: Objective, names: tuple[str, ...], sets: int) -> Iterator[str]:
        """Yield a fault unless metrics of these names fit the objective, and are few enough for so many sets
        of rows."""
        equivalent = objective.loss.xgboost_equivalent
        with_metrics = objective.loss if objective.name in OBJECTIVES else equivalent
        fitting = metrics_for(with_metrics)
        for name in names:
            if not is_metric(name):
                require_known(name, fitting, "eval_metric")
                yield f"eval_metric {name[:MAX_CHARS]!r} takes a number for t, such as 0.5 or 1.5"
            if not fits(name, with_metrics):
                yield f"eval_metric {name} does not fit objective {objective.name}; use {', '.join(fitting)}"
        if len(names) * sets > MAX_FIGURES:
            yield (
                f"{len(names) * sets} metrics a round are too many: at most {MAX_FIGURES}; leave "
                f"party_metrics out"
            )

    def faults_of_rows(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless validation rows are chosen in one way, and are there if they are needed."""
        if columns.validation is not None and self.validation_fraction:
            yield (
                f"validation_fraction draws validation rows, and column {columns.validation!r} names them: "
                f"give one"
            )
        if self.early_stopping_rounds is not None and not self.validates(columns):
            yield (
                "early_stopping_rounds needs validation rows: set validation_fraction, or columns.validation"
            )

    def faults_of_counts(self, inexact: Iterable[str]) -> Iterator[str]:
        """Yield a fault where rows are to be counted under settings that leave no exact counts of all
        columns. inexact: such settings that the terms have."""
        if self.reference:
            yield from (
                f"reference = true with {setting}: rows are counted exactly, of all columns"
                for setting in inexact
            )

    def faults_of_subgroups(self, columns: Schema) -> Iterator[str]:
        """Yield a fault unless subgroups are levels of declared features."""
        for number, name in enumerate(self.subgroups):
            if name not in columns.levels:
                near, known = nearest(name, columns.levels), ", ".join(columns.levels) or "none"
                why = f"is no categorical column of the terms{near}; there are: {known}"
                yield f"subgroups: {name[:MAX_CHARS]!r} {why}; or declare its levels (--by NAME=A,B)"
            if name in self.subgroups[:number]:
                yield f"subgroups name {name!r} more than once"
        if self.subgroups and columns.group is not None:
            yield "subgroups: rows of one group are ranked together, whatever their levels"

    @field_validator("eval_metric", mode="before")
    @classmethod
    def _one_metric_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    def _faults(self) -> Iterator[str]:
        if 0.0 < self.validation_fraction < MIN_SHARE:
            yield f"validation_fraction must be 0, or {MIN_SHARE:g} to 0.9"
