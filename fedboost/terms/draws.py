"""Sampling of the rows and the features that a tree grows on."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from fedboost.gbdt.sampling import MAX_BOOTSTRAP_COUNT
from fedboost.terms.flat import Group

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
