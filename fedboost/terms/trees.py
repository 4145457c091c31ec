"""Settings of trees, of the histograms they grow from, and of draws of rows and columns."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from fedboost.gbdt.sampling import MAX_BOOTSTRAP_COUNT
from fedboost.terms.columns import MAX_CLASSES, Schema
from fedboost.terms.reading import MAX_CHARS, MAX_FEATURES, Group, Name, Several, Table, nearest

MAX_ROUNDS = 100_000
MAX_DEPTH = 16
MAX_ROOTS = 1 << 10
"""Trees of a round: a party keeps the rows of each."""
MAX_LEAVES = 1 << 16
"""Of a round."""


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
    learning_rate: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="Factor on the value of every leaf. Lower it together with more `rounds`.",
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
    reg_lambda: float = Field(
        default=1.0,
        ge=0,
        description="L2 penalty on the values of leaves. Raise it against overfitting.",
    )
    reg_alpha: float = Field(
        default=0.0,
        ge=0,
        description="L1 penalty on the values of leaves. Raise it to bring the values of weak leaves to 0.",
    )
    gamma: float = Field(
        default=0.0,
        ge=0,
        description="Least gain of a split. Raise it to leave out splits that gain little.",
    )
    min_child_weight: float = Field(
        default=1.0,
        ge=0,
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
    monotone_constraints: Table[Literal[-1, 0, 1]] = Field(
        default_factory=dict,
        max_length=MAX_FEATURES,
        description="Direction of numeric features, such as `{ age = 1, dose = -1 }`: with 1 predictions "
        "never fall as the feature rises, with -1 predictions never rise.",
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

    def check_names(self, columns: Schema) -> None:
        """Raise ValueError unless constraints name features that can have them."""
        if not self.interaction_constraints and not self.monotone_constraints:
            return
        ordered, features = {*columns.ordered}, {*columns.features}
        for name in {name for group in self.interaction_constraints for name in group}:
            if name not in features:
                raise ValueError(
                    f"interaction_constraints names {name[:MAX_CHARS]!r}, which is no feature"
                    f"{nearest(name, columns.features)}"
                )
        for name in self.monotone_constraints:
            if name not in ordered:
                what = "has levels, which have no order" if name in features else "is no feature"
                hint = nearest(name, columns.ordered)
                raise ValueError(f"monotone_constraints names {name[:MAX_CHARS]!r}, which {what}{hint}")

    def check_size(self, roots: int, max_leaves_per_round: int) -> None:
        """Raise ValueError if a round with this number of trees, or of their leaves together, is too
        large."""
        if roots > MAX_ROOTS:
            raise ValueError(f"{roots} trees a round are too many: at most {MAX_ROOTS}")
        if roots > 1 and max_leaves_per_round > MAX_LEAVES:
            raise ValueError(
                f"{roots} trees a round of depth {self.max_depth} are too many: at most {MAX_LEAVES} leaves; "
                f"lower max_depth, or set max_leaves"
            )

    @model_validator(mode="after")
    def _splits_once(self) -> Self:
        if self.max_leaves == 1:
            raise ValueError("max_leaves 1 is a tree without a split; 0 is no limit")
        return self


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

    def check_votes(self, columns: Schema) -> None:
        """Raise ValueError for votes on more features than there are."""
        if self.vote_top_k > len(columns.features):
            raise ValueError(
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
    colsample_bytree: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the features a tree may split by. Lower it against overfitting.",
    )
    colsample_bylevel: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the features of the tree that each level may split by.",
    )
    colsample_bynode: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the features of the level that each node may split by. Lower it, to 0.5 say, "
        "for random forests.",
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

    @model_validator(mode="after")
    def _leaves_rows_out(self) -> Self:
        if self.by_gradient_norm and self.subsample == 1.0:
            raise ValueError("sampling_method gradient_based with subsample 1 would draw every row: lower it")
        return self
