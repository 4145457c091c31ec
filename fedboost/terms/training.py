"""Settings of training: objective and its parameters, metrics, trees, histograms, and sampling.

Guarantees: settings that follow from the objective's name, or from an installed package, are filled in. Terms
that set them explicitly have the same digest.
Rejects: unknown objectives (suggesting the nearest known one), and parameters or columns of another
objective."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, StrictFloat, StrictInt, field_validator

from fedboost.errors import ConfigError
from fedboost.gbdt.metrics import fits, is_metric, metrics_for, time_of
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
    OrNone,
    Several,
    Table,
    nearest,
    one_or_several,
    refused,
    require_known,
    unknown,
)

# ---- Trees, the histograms that they are built from, and sampling of rows and columns -------------------

MAX_ROUNDS = 100_000
MAX_DEPTH = 16
MAX_ROOTS = 1 << 10
"""Maximum number of trees per round: a party stores the leaf of each row for each tree."""
MAX_LEAVES = 1 << 16
"""Maximum total number of leaves of all trees in a round."""
Share = Annotated[float, Field(default=1.0, gt=0, le=1)]
Penalty = Annotated[float, Field(ge=0)]


class Trees(Group):
    """Settings for the size, splits and leaf values of trees."""

    rounds: int = Field(
        default=100,
        ge=1,
        le=MAX_ROUNDS,
        description="Number of boosting rounds. More rounds with a lower `learning_rate` often predict "
        "better but take longer. With `noise`, the default is 4 per feature and 2 per pair of features.",
    )
    max_depth: int = Field(
        default=6,
        ge=1,
        le=MAX_DEPTH,
        description="Maximum depth of a tree. Each additional level may double the bytes sent. Lower it for "
        "small tables. With `noise`, the default is 7.",
    )
    learning_rate: Share = Field(
        default=0.3,
        description="Shrinkage: every leaf value is multiplied by it. Lower it together with more `rounds`.",
    )
    max_cat_to_onehot: int = Field(
        default=4,
        ge=1,
        le=256,
        description="A categorical feature with fewer levels than this is split one level against all "
        "others (one-hot). Other categorical features are split by sets of levels.",
    )
    max_cat_threshold: int = Field(
        default=64,
        ge=2,
        le=256,
        description="In a split by sets of levels, one side has fewer levels than this. Lower it if "
        "features with many levels overfit.",
    )
    reg_lambda: Penalty = Field(
        default=1.0, description="L2 regularization of leaf values. Raise it to reduce overfitting."
    )
    reg_alpha: Penalty = Field(
        default=0.0,
        description="L1 regularization of leaf values. Raise it to set the values of weak leaves to 0.",
    )
    gamma: Penalty = Field(
        default=0.0, description="Minimum gain of a split. Raise it to avoid splits with little gain."
    )
    min_child_weight: Penalty = Field(
        default=1.0,
        description="Minimum sum of hessians in a leaf. Most sites require a value that corresponds to "
        "about ten rows; `fedboost terms` drafts such a value.",
    )
    grow_policy: Literal["depthwise", "lossguide", "symmetric"] = Field(
        default="depthwise",
        description="How trees are grown. `depthwise`: all leaves of a level are split in one turn. "
        "`lossguide`: each turn splits the better half of a tree's leaves; use it with `max_leaves`. "
        "`symmetric`: all leaves of a level are split by [the same feature and cut "
        "point](models.md#symmetric-trees).",
    )
    max_leaves: int = Field(
        default=0, ge=0, le=MAX_LEAVES, description="Maximum number of leaves of a tree; 0 means no limit."
    )
    num_parallel_tree: int = Field(
        default=1,
        ge=1,
        le=MAX_CLASSES,
        description="Number of trees per round and output. For a random forest, set it to e.g. 100, set "
        "`rounds` and `learning_rate` to 1, and set `sampling_method` to `bootstrap`.",
    )
    monotone_constraints: ByName[Literal[-1, 0, 1]] = Field(
        description="Monotonicity of numeric features, e.g. `{ age = 1, dose = -1 }`. 1: predictions never "
        "decrease as the feature increases. -1: they never increase. 0: no constraint."
    )
    interaction_constraints: Several[Several[Name]] = Field(
        default=(),
        max_length=MAX_FEATURES,
        description='Groups of features that may interact, e.g. `[["age", "dose"], ["dose", "sex"]]`: all '
        "features on a path from the root to a leaf must be in the same group. By default, all features may "
        "interact.",
    )

    @property
    def penalties(self) -> tuple[float, float, float, float]:
        """The tuple (reg_lambda, reg_alpha, gamma, min_child_weight)."""
        return self.reg_lambda, self.reg_alpha, self.gamma, self.min_child_weight

    @property
    def leaf_rate(self) -> float:
        """Factor by which leaf values are multiplied."""
        return self.learning_rate / self.num_parallel_tree

    def monotone(self, columns: Schema) -> tuple[int, ...]:
        """Return the constraint (1, -1 or 0) of each feature, or () if there are none."""
        if not self.monotone_constraints:
            return ()
        signs = tuple(self.monotone_constraints.get(name, 0) for name in columns.features)
        return signs if any(signs) else ()

    def faults_of_names(self, columns: Schema) -> Iterator[str]:
        """Yield an error message for each constraint on a feature that cannot have one."""
        if not self.interaction_constraints and not self.monotone_constraints:
            return
        ordered, features = {*columns.ordered}, {*columns.features}
        for name in {name for group in self.interaction_constraints for name in group}:
            if name not in features:
                yield (
                    f"interaction_constraints names {name[:MAX_CHARS]!r}, which is not a feature"
                    f"{nearest(name, columns.features)}"
                )
        for name in self.monotone_constraints:
            if name not in ordered:
                what = "has levels without an order" if name in features else "is not a feature"
                hint = nearest(name, columns.ordered)
                yield f"monotone_constraints names {name[:MAX_CHARS]!r}, which {what}{hint}"

    def faults_of_symmetric(self, draws: "Draws", histograms: "Histograms", floor: int) -> Iterator[str]:
        """Yield an error message for each setting that symmetric trees exclude. floor: min_rows_per_bin."""
        if self.grow_policy != "symmetric":
            return
        whole = "levels are split as a whole; set max_depth and remove max_leaves"
        by_node = "all nodes of a level share one split; set colsample_bylevel instead"
        elected = "features are elected per node, but a level has only one split; remove vote_top_k"
        one_cut = "each node has its own groups of bins, but a level has only one cut point; set depthwise"
        yield from refused(
            "grow_policy symmetric",
            (self.max_leaves > 0, f"max_leaves = {self.max_leaves}", whole),
            (draws.colsample_bynode < 1.0, f"colsample_bynode = {draws.colsample_bynode:g}", by_node),
            (histograms.vote_top_k > 0, "vote_top_k", elected),
            (floor > 1, "min_rows_per_bin", one_cut),
        )

    def faults_of_size(self, roots: int, max_leaves_per_round: int) -> Iterator[str]:
        """Yield an error message if a round has too many trees, or its trees too many leaves in total."""
        if roots > MAX_ROOTS:
            yield f"a round has {roots} trees, but at most {MAX_ROOTS} are allowed"
        if roots > 1 and max_leaves_per_round > MAX_LEAVES:
            yield (
                f"{roots} trees of depth {self.max_depth} per round can have more than {MAX_LEAVES} leaves "
                f"in total: lower max_depth, or set max_leaves"
            )

    def _faults(self) -> Iterator[str]:
        if self.max_leaves == 1:
            yield "max_leaves = 1 allows no split; set 0 for no limit"


class Histograms(Group):
    """Settings of the histograms from which splits are found."""

    max_bin: int = Field(
        default=256,
        ge=2,
        le=256,
        description="Maximum number of bins of a numeric feature. Lower it to send fewer bytes: 64 bins "
        "take a quarter of the bytes of 256.",
    )
    gradient_bits: OrNone[int] = Field(
        ge=8,
        le=24,
        description="Bits of a row's gradient, and of its hessian, including the sign. The default is 24 "
        "for counts, amounts and rankings, and 16 for other objectives. Lower it to send fewer bytes.",
    )
    vote_top_k: int = Field(
        default=0,
        ge=0,
        le=MAX_FEATURES,
        description="Number of features per node whose histograms are sent; the parties elect these "
        "features. 0 means all. Set it to e.g. 20 for hundreds of features and slow links; the model may "
        "change.",
    )

    def faults_of_votes(self, columns: Schema) -> Iterator[str]:
        if self.vote_top_k > len(columns.features):
            yield (
                f"vote_top_k = {self.vote_top_k} is larger than the number of features, "
                f"{len(columns.features)}: lower it, or set 0 for no votes"
            )


# ---- Sampling of the rows and features that a tree is trained on ----------------------------------------

MIN_SHARE = 0.05
"""Minimum fraction of rows that may be sampled, because a sum over few rows would reveal individual rows."""


class Draws(Group):
    """Settings for random sampling of rows and features. All samples depend only on the seed."""

    seed: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="Random seed. The same seed gives the same model; change it to see how much results "
        "depend on random sampling.",
    )
    subsample: float = Field(
        default=1.0,
        ge=MIN_SHARE,
        le=1,
        description="Fraction of the rows that each tree is trained on, sampled again for each tree. Lower "
        "it, to e.g. 0.5, to reduce overfitting. Every site's policy must [allow it](policy.md).",
    )
    sampling_method: Literal["uniform", "gradient_based", "bootstrap"] = Field(
        default="uniform",
        description="How rows are sampled. `uniform`: all with the same probability. `gradient_based`: rows "
        "with larger gradients are more likely. `bootstrap`: each row is drawn a Poisson-distributed "
        "number of times, for random forests. See [sampling](sampling.md).",
    )
    colsample_bytree: Share = Field(
        description="Fraction of the features sampled for each tree. Lower it to reduce overfitting."
    )
    colsample_bylevel: Share = Field(description="Fraction of the tree's features sampled for each level.")
    colsample_bynode: Share = Field(
        description="Fraction of the level's features sampled for each node. Lower it, to e.g. 0.5, for "
        "random forests."
    )

    @property
    def draws_for_trees(self) -> bool:
        """True if trees are trained on sampled rows."""
        return self.subsample < 1.0 or self.max_bootstrap_count > 1

    @property
    def by_gradient_norm(self) -> bool:
        """True if a row's probability of being sampled depends on its gradients."""
        return self.sampling_method == "gradient_based"

    @property
    def max_bootstrap_count(self) -> int:
        """Maximum number of times that a row can be sampled for one tree."""
        return MAX_BOOTSTRAP_COUNT if self.sampling_method == "bootstrap" else 1

    @property
    def share_drawn(self) -> float:
        """Expected fraction of the rows on which a tree is trained; a row that is sampled several times
        counts once."""
        return -math.expm1(-self.subsample) if self.sampling_method == "bootstrap" else self.subsample

    def _faults(self) -> Iterator[str]:
        if self.by_gradient_norm and self.subsample == 1.0:
            yield "sampling_method gradient_based with subsample = 1 would sample every row: lower subsample"


# ---- The objective: its name, its parameters, and where boosting starts ---------------------------------

MAX_PARAMETERS = 1 << 8
MAX_CANDIDATES = 128
MAX_STEP = 1e6
"""Upper limit of objective parameters, and of their inverses."""
Factor = Annotated[float | None, Field(default=None, ge=1.0 / MAX_STEP, le=MAX_STEP)]
_FOR_ALL = ("max_delta_step",)
"""Parameters of an objective that also apply to other objectives."""


class Objective(Group):
    """Objective of the model, with its parameters. If a parameter is None, the objective's default
    applies."""

    name: str = Field(
        default="binary:logistic",
        alias="objective",
        description="Loss to minimize: an objective of XGBoost, or of an installed package. See "
        "[objectives](objectives.md).",
    )
    params: Mapping[Name, int | float | str] = Field(
        default_factory=dict,
        alias="objective_params",
        max_length=MAX_PARAMETERS,
        description="Parameters of an objective from an installed package, e.g. `{ over = 3.0 }`. "
        "Parameters that are not listed have the package's defaults.",
    )
    package: OrNone[Name] = Field(
        alias="objective_package",
        description="Package and version that provide the objective, e.g. `acme==1.2`. Every site must have "
        "this version. The default is the version installed where the terms are first read.",
    )
    max_delta_step: OrNone[float] = Field(
        ge=0,
        le=MAX_STEP,
        description="Maximum absolute leaf value before the learning rate is applied; 0 means no limit. The "
        "default is 0, or 0.7 for `count:poisson`. Set it if classes are extremely imbalanced.",
    )
    base_score: OrNone[float] = Field(
        description="Initial prediction for all rows. By default, it is estimated from the labels of all "
        "parties.",
    )
    num_class: OrNone[int] = Field(
        ge=2,
        le=MAX_CLASSES,
        description="Number of classes, for `multi:softprob`. The default is the number of "
        "`columns.classes`; without those, it is required.",
    )
    scale_pos_weight: Factor = Field(
        description="Weight of rows with label 1, for `binary:logistic`; 1 by default. If positives are "
        "rare and their ranking matters more than probabilities, set it to the number of rows with label 0 "
        "divided by the number with label 1."
    )
    tweedie_variance_power: OrNone[float] = Field(
        gt=1,
        lt=2,
        description="Variance power of the Tweedie distribution, for `reg:tweedie`; 1.5 by default. Values "
        "close to 1 approach a Poisson distribution, values close to 2 a gamma distribution.",
    )
    huber_slope: Factor = Field(
        description="Delta of the pseudo-Huber loss, for `reg:pseudohubererror`, in units of the label; 1 "
        "by default. The loss is quadratic for smaller errors and linear for larger ones."
    )
    quantile_alpha: OrNone[float] = Field(
        gt=0,
        lt=1,
        description="Quantile level to predict, for `reg:quantileerror`, e.g. 0.9. Required.",
    )
    lambdarank_pair_method: OrNone[Literal["topk", "mean"]] = Field(
        description="How pairs of rows are chosen, for rankings. Only `topk` (default) is supported.",
    )
    lambdarank_num_pair_per_sample: OrNone[int] = Field(
        ge=1,
        le=MAX_PAIRS,
        description="Number of top rows of each group that are paired with the others, for rankings; 32 by "
        "default. Set it to the length of the ranked list that matters to you.",
    )
    lambdarank_normalization: OrNone[bool] = Field(
        description="Whether to normalize the gradients of each group by the sum over its pairs, for "
        "rankings; true by default.",
    )
    lambdarank_score_normalization: OrNone[bool] = Field(
        description="Whether to divide a pair's change of the metric by the difference between its scores, "
        "for rankings; true by default.",
    )
    ndcg_exp_gain: OrNone[bool] = Field(
        description="Whether the gain of a label is 2^label - 1, for rankings; true by default. Set it to "
        "false if labels are not whole numbers from 0 to 31.",
    )
    aft_loss_distribution: OrNone[Literal["normal", "logistic", "extreme"]] = Field(
        description="Distribution of the noise in the logarithm of the survival time, for `survival:aft`; "
        "`normal` by default.",
    )
    aft_loss_distribution_scale: Factor = Field(
        description="Scale of `aft_loss_distribution`, for `survival:aft`; 1 by default."
    )

    candidates: Several[Table[StrictInt | StrictFloat]] = Field(
        default=(),
        max_length=MAX_CANDIDATES,
        description='With `program = "tune"`: list of tree settings that are tried in parallel, e.g. `[{ '
        "learning_rate = 0.1, max_depth = 4 }, { learning_rate = 0.3, max_depth = 6 }]`. See "
        "[tune](lifecycle.md#tune).",
    )

    @cached_property
    def loss(self) -> objectives.Objective:
        """The objective's loss function. With candidates, the function computes the losses of all candidates
        in parallel."""
        if self.name not in OBJECTIVES:
            return registry.objective(self.name, self.params)
        loss = make_objective(self.name, vars(self))
        return Trials(loss, len(self.candidates)) if self.candidates else loss

    @property
    def step(self) -> float:
        """max_delta_step, or the objective's default; 0 means no limit."""
        own: float = vars(self.loss).get("max_delta_step", 0.0)
        return own if self.max_delta_step is None else self.max_delta_step

    def completed(self, columns: Schema | None) -> "Objective":
        """Return a copy with settings filled in from installed packages, and from the columns if they are
        known."""
        objective = self
        if self.name not in OBJECTIVES:
            try:
                objective = self._as_installed()
            except ConfigError as error:
                raise ValueError(str(error)) from None
        elif self.params or self.package:
            raise ValueError(
                f"objective_params and objective_package are only for objectives of packages, not for "
                f"{self.name}"
            )
        if columns is not None and columns.classes and self.num_class is None:
            return objective.replaced(num_class=len(columns.classes))
        return objective

    def faults(self, columns: Schema) -> Iterator[str]:
        yield from self._faults_of_classes(columns)
        yield from self._faults_of_parameters()
        yield from self._faults_of_groups(columns)
        yield from self._faults_of_intervals(columns)

    def faults_of_start(self, columns: Schema) -> Iterator[str]:
        """Yield an error message unless boosting can start from `columns.base_margin` and base_score."""
        if self.base_score is not None:
            try:
                if abs(self.base_score) > MAX_LABEL:
                    raise ConfigError("terms-base-score", f"base_score {self.base_score} exceeds 2**60")
                self.loss.margin(float(np.float32(self.base_score)))
            except ConfigError as error:
                yield str(error)
                return
        if columns.base_margin is not None and self.loss.outputs > 1:
            each = f"{self.name} needs one per {'candidate' if self.candidates else 'class'}"
            yield f"columns.base_margin has only one number per row, but {each}: remove it"

    def _as_installed(self) -> "Objective":
        here = registry.package_of(self.name)
        if self.package not in (None, here):
            raise ConfigError(
                "objective-package-differs",
                f"objective {self.name} is from {str(self.package)[:MAX_CHARS]!r} in the terms, but from "
                f"{here} on this machine: install the package in the version that the terms name",
            )
        objective = self.replaced(package=here, params=registry.parameters(self.name, self.params))
        _ = objective.loss
        return objective

    def _faults_of_classes(self, columns: Schema) -> Iterator[str]:
        classes_key = OBJECTIVES[self.name].classes_key if self.name in OBJECTIVES else None
        multi, named = classes_key == "classes", len(columns.classes)
        if named and not multi:
            instead = "; for two values, set columns.positive" if classes_key == "positive" else ""
            yield f"columns.classes needs objective multi:softprob, not {self.name}{instead}"
        if named and self.num_class != named:
            yield f"num_class is {self.num_class}, but columns.classes lists {named}: remove num_class"
        if multi and self.num_class is None:
            yield "multi:softprob needs num_class (the number of classes) or columns.classes (their values)"

    def _faults_of_parameters(self) -> Iterator[str]:
        own = parameters_of(self.name) if self.name in OBJECTIVES else {}
        for kind in OBJECTIVES:
            for name in parameters_of(kind):
                if name not in own and name not in _FOR_ALL and vars(self).get(name) is not None:
                    yield f"{name} is for {kind}, not for {self.name}: remove it"
        for name, needed in own.items():
            if needed and vars(self)[name] is None:
                yield f"objective {self.name} needs {name}: set it"

    def _faults_of_groups(self, columns: Schema) -> Iterator[str]:
        rankings = names_of(LabelKind.RELEVANCE)
        ranks = self.name in rankings
        if ranks and columns.group is None:
            yield (
                f"{self.name} needs columns.group, the column whose equal values mark rows that are ranked "
                f"against each other (XGBoost's qid)"
            )
        if not ranks and columns.group is not None:
            yield f"columns.group needs objective {' or '.join(rankings)}, not {self.name}"
        if self.lambdarank_pair_method == "mean":
            yield (
                "lambdarank_pair_method mean samples pairs at random, which would depend on the party that "
                "holds the rows; remove it (default: topk)"
            )

    def _faults_of_intervals(self, columns: Schema) -> Iterator[str]:
        two = columns.label_upper_bound is not None
        if two != (self.loss.xgboost_equivalent.label_kind is LabelKind.INTERVAL):
            yield (
                f"columns.label_upper_bound is only for {', '.join(names_of(LabelKind.INTERVAL))}, but "
                f"{self.name} has one label per row: remove it"
                if two
                else f"{self.name} needs columns.label_upper_bound, the column with the upper bound of a "
                f"time: equal to columns.label if the time is known, infinite or missing if the event has "
                f"not happened yet"
            )

    @field_validator("name")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        if value in OBJECTIVES or value in (others := registry.names()):
            return value
        offered = (
            f"; from installed packages (entry points of group {registry.GROUP}): "
            f"{', '.join(others) or 'none'}"
        )
        raise ValueError(unknown(value, [*OBJECTIVES, *others], OBJECTIVES, "objective") + offered)


# ---- What is measured in each round, on which rows, and when training stops early -----------------------

MAX_METRICS = 1 << 8
MAX_MIN_COUNT = 1_000_000
MAX_SUBGROUPS = 1 << 4
MAX_FIGURES = 1 << 14
"""Maximum number of metric values per round, i.e. metrics x sets of rows."""


class Evaluation(Group):
    """Settings for metrics, for the rows on which they are computed, and for early stopping."""

    eval_metric: Several[str] = Field(
        default=(),
        max_length=MAX_METRICS,
        description="Metrics of each round: one or a list. The default depends on the objective. Available: "
        "`logloss`, `error`, `error@t`, `auc`, `aucpr`, `ks`, `ece`; `mlogloss`, `merror`; `rmse`, `mae`, "
        "`mphe`, `quantile`; `poisson-nloglik`, `gamma-nloglik`, `gamma-deviance`, `tweedie-nloglik@power`; "
        "`aft-nloglik`, `interval-regression-accuracy`; `cox-nloglik`; `ndcg`, `ndcg@k`. With `-` appended "
        "to the last two, groups without a relevant row count as 0 instead of 1. Only in evaluations: "
        "`cindex`, `auc@t`, `brier@t`.",
    )
    party_metrics: bool = Field(
        default=False,
        description="Whether to also report metrics of each party's own rows, e.g. `north:logloss`. Every "
        "site's policy must [allow it](policy.md).",
    )
    validation_fraction: float = Field(
        default=0.0,
        ge=0,
        le=0.9,
        description="Fraction of the rows that are held out from training. Their metrics are named "
        f"`validation-...`. Either 0 for none, or at least {MIN_SHARE:g}.",
    )
    early_stopping_rounds: OrNone[int] = Field(
        ge=1,
        le=MAX_ROUNDS,
        description="Stop once the last metric of the validation rows has not improved for this many "
        "rounds, and keep the rounds up to the best one. By default, all rounds are trained.",
    )

    min_count: int = Field(
        default=10,
        ge=1,
        le=MAX_MIN_COUNT,
        description='With `program = "describe"` or `"evaluate"`: the analyst receives only counts of at '
        "least this many rows. With `columns.target_means`: minimum number of rows that a level needs to "
        "get its own mean; with `survival:cox`: minimum number of events in a bin of times. The aggregator "
        "sees all counts over all parties together. A site may require [more](policy.md).",
    )
    subgroups: Several[str] = Field(
        default=(),
        max_length=MAX_SUBGROUPS,
        description='With `program = "evaluate"`: categorical features, or columns of `columns.subgroups`, '
        'e.g. `["sex"]`. Metrics and rates are also reported for the rows of each level. Every site\'s '
        "policy must [allow](policy.md) it.",
    )
    level_names: Several[str] = Field(
        default=(),
        max_length=MAX_SUBGROUPS,
        description='With `program = "describe"`: categorical features of which sites '
        "[name their levels](lifecycle.md#the-levels-of-all-sites), if at least `min_count` rows in each of "
        "two groups of sites have them. Every site's policy must [allow](policy.md) it.",
    )
    threshold: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description='With `program = "evaluate"` and `binary:logistic`: rows with a larger probability are '
        "predicted positive. Every site's policy must [allow](policy.md) a threshold other than 0.5.",
    )

    evaluate_rows: Literal["all", "held-out", "new"] = Field(
        default="all",
        description='With `program = "evaluate"`: the rows on which the model is evaluated. `held-out`: the '
        "validation rows of its training, which no tree was trained on. `new`: rows that were added to the "
        "table since. Every site's policy must [allow](policy.md) these two (`validation`).",
    )

    reference: bool = Field(
        default=False,
        description="Whether to count the rows in each bin of each feature and of the score after the last "
        "round, and store the counts in the model file as a reference distribution. `fedboost drift` "
        "[compares other rows](lifecycle-evaluate.md#drift) with it. Counts of fewer than `min_count` rows "
        "are omitted.",
    )

    def validates(self, columns: Schema) -> bool:
        return self.validation_fraction > 0.0 or columns.validation is not None

    def faults_of_metrics(
        self, objective: Objective, names: tuple[str, ...], sets: int, measures: bool
    ) -> Iterator[str]:
        """Yield an error message for each metric that does not apply to the objective, and an error message
        if there are too many metrics. names: names of the metrics; sets: number of sets of rows; measures:
        True if the terms evaluate a model."""
        equivalent = objective.loss.xgboost_equivalent
        with_metrics = objective.loss if objective.name in OBJECTIVES else equivalent
        shown = ("",) if measures else with_metrics.metrics
        fitting = [name for name in metrics_for(with_metrics) if name.startswith(shown)]
        for name in names:
            if not is_metric(name):
                require_known(name, fitting, "eval_metric")
                yield f"eval_metric {name[:MAX_CHARS]!r} needs a number after the @, e.g. 0.5 or 1.5"
            if not fits(name, with_metrics):
                yield (
                    f"eval_metric {name} does not apply to objective {objective.name}; use one of: "
                    f"{', '.join(fitting)}"
                )
            elif is_metric(name) and time_of(name) is not None and not measures:
                yield f"eval_metric {name} is not computed in rounds; use fedboost evaluate"
        if len(names) * sets > MAX_FIGURES:
            yield (
                f"a round has {len(names) * sets} metrics, but at most {MAX_FIGURES} are allowed: remove "
                f"party_metrics"
            )

    def faults_of_rows(self, columns: Schema) -> Iterator[str]:
        """Yield an error message if the terms choose validation rows in two ways, or if early stopping needs
        validation rows and there are none."""
        if columns.validation is not None and self.validation_fraction:
            yield (
                f"validation_fraction samples validation rows, but column {columns.validation!r} also marks "
                f"them: set only one"
            )
        if self.early_stopping_rounds is not None and not self.validates(columns):
            yield (
                "early_stopping_rounds needs validation rows: set validation_fraction or columns.validation"
            )

    def faults_of_counts(self, inexact: Iterable[str]) -> Iterator[str]:
        """Yield an error message for each setting in `inexact` if a reference distribution, which needs exact
        counts, is requested. inexact: settings of the terms that prevent exact counts."""
        if self.reference:
            yield from (
                f"reference = true with {setting}: a reference distribution needs exact counts of all columns"
                for setting in inexact
            )

    def faults_of_subgroups(self, columns: Schema) -> Iterator[str]:
        """Yield an error message for each subgroup column that has no declared levels or is listed twice, and
        an error message if rows are ranked in groups."""
        for number, name in enumerate(self.subgroups):
            if name not in columns.levels:
                near, known = nearest(name, columns.levels), ", ".join(columns.levels) or "none"
                why = f"is not a categorical column of the terms{near}; known: {known}"
                yield f"subgroups: {name[:MAX_CHARS]!r} {why}; or declare its levels (--by NAME=A,B)"
            if name in self.subgroups[:number]:
                yield f"subgroups names {name!r} more than once"
            if elsewhere := next((party for party, held in columns.held.items() if name in held), ""):
                yield f"subgroups: only the label holder can split results, but {elsewhere} has {name!r}"
        if self.subgroups and columns.group is not None:
            yield "subgroups with columns.group: rows of a group are ranked across all levels; remove one"

    def faults_of_levels(self, columns: Schema, parties: int, colluding: int) -> Iterator[str]:
        """Yield an error message if a column has no levels to be named, or if there are too few parties."""
        for name in self.level_names:
            if name not in columns.categorical or self.level_names.count(name) > 1:
                yield f"level_names: {name[:MAX_CHARS]!r} is not in columns.categorical, or is named twice"
            for party in (each for each, lacks in columns.absent.items() if name in lacks):
                told = f"{party[:MAX_CHARS]!r} lacks {name[:MAX_CHARS]!r} (columns.absent)"
                yield f"level_names: {told}; describe without this party, or without these levels"
        if 0 < parties < (least := 2 * (colluding + 2)):
            hint = "set colluding = 0, or add parties" if colluding and parties > 3 else "add parties"
            yield f"level_names needs two groups of {least // 2} parties if {colluding} may collude; {hint}"

    _one_or_several = field_validator("eval_metric", mode="before")(one_or_several)

    def _faults(self) -> Iterator[str]:
        if 0.0 < self.validation_fraction < MIN_SHARE:
            yield f"validation_fraction must be 0, or between {MIN_SHARE:g} and 0.9"
