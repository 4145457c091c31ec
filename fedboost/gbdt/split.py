"""The gain of a split, the best split of a node, the value of a leaf: XGBoost's formulas on exact sums.

Promises: the best split depends on the integer sums alone; ties go to the lowest feature, then the lowest
bin, then to sending missing values right. A split by a categorical feature sends a subset of its categories
right: one if there are few, else those with the lowest leaf values, as many as gain most; ties go to the
fewest, then to sending missing values left.
Refuses nothing: a node without a split that is allowed has none.

Source of the formulas: Chen and Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016, section 2.2;
as in XGBoost the gain is not halved, and `gamma` is compared with it. That no other subset of categories can
gain more than the first or the last ones in the order of their leaf values, without penalties, is shown in
Fisher, "On Grouping for Maximum Homogeneity", JASA 53, 1958."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt.histogram import STATS, Layout, Total
from fedboost.gbdt.kernels import split as split_kernels
from fedboost.gbdt.kernels.split import best_gains, categories_right

_NUMBERS = (
    "node root depth slot gradient hessian positive feature bin missing_left left_gradient left_hessian"
)
LEAF = np.dtype(
    [(name, np.int64) for name in f"{_NUMBERS} left open_left open_right sign".split()]
    + [(name, np.float64) for name in ["gain", "lower", "upper", "middle"]]
)
"""A leaf of a growing tree: its node, the root it is below, the splits above it; the slot of its histogram;
its sums, and that of the gradients above 0; the bounds of the values of leaves below it. Its best split:
gain, feature, bin, where missing values go, the sums of the left child. Once it is split: the left child,
which children may split again, the constraint of the feature, and the middle of the children's values.

feature: -1 without a split that gains; bin: by a categorical feature the number of the partition, 0 once it
is split."""
Leaves = npt.NDArray[np.void]
Bounds = tuple[float, float]
FREE: Bounds = (-math.inf, math.inf)
"""Bounds of leaf values, before the learning rate."""
MIN_GAIN = 1e-6
"""XGBoost's kRtEps: a split must gain more than this."""


@dataclass(frozen=True)
class SplitRule:
    """The parameters of splits and leaf values, under XGBoost's names; and the scales of the sums."""

    reg_lambda: float
    reg_alpha: float
    gamma: float
    min_child_weight: float
    max_delta_step: float
    learning_rate: float
    gradient: Scale
    hessian: Scale
    max_cat_to_onehot: int = 4
    max_cat_threshold: int = 64
    monotone: tuple[int, ...] = ()
    """For each feature 1, -1 or 0, if there is a constraint."""

    @property
    def _max_step(self) -> float:
        return self.max_delta_step or math.inf

    def scaled(self, share: float) -> "SplitRule":
        """The rule for a share of the rows alone, with penalties scaled by that share as sums are: it finds
        the splits of all rows, as far as the rows are alike."""
        return dataclasses.replace(
            self,
            reg_lambda=self.reg_lambda * share,
            reg_alpha=self.reg_alpha * share,
            min_child_weight=self.min_child_weight * share,
        )

    def gains(self, histogram: Int64, layout: Layout, total: Total) -> Float64:
        """The highest gain of a split by each feature, 0 where none has a gain: float64 [features]."""
        gains: Float64 = best_gains(*self._kernel_arguments(histogram, layout, total))
        return gains

    @cached_property
    def signs(self) -> Int64:
        """The constraint of each feature, if there is any."""
        return np.array(self.monotone, np.int64)

    def _kernel_arguments(self, histogram: Int64, layout: Layout, total: Total) -> tuple[Any, ...]:
        """The arguments of both kernels: the node and the rule."""
        features = layout.offsets, layout.value_bins, layout.missing, layout.categorical
        max_categories = self.max_cat_to_onehot, self.max_cat_threshold
        return histogram, *features, *self.scales, max_categories, total

    @cached_property
    def scales(self) -> tuple[tuple[float, float], tuple[float, float, float, float]]:
        """The units and the penalties, in the form of the kernels."""
        penalties = (
            float(self.reg_lambda),
            float(self.reg_alpha),
            float(self.min_child_weight),
            float(self._max_step),
        )
        return (self.gradient.factor, self.hessian.factor), penalties

    def best_split(
        self, histogram: Int64, layout: Layout, total: Total, bounds: Bounds = FREE
    ) -> "BestSplit | None":
        """The split of highest gain by the features of a layout, or None if none gains enough. bounds: of the
        values of leaves below, where there are constraints."""
        limits = None
        if self.monotone:
            limits = (*bounds, np.array([self.monotone[feature] for feature in layout.features], np.int64))
        arguments = *self._kernel_arguments(histogram, layout, total), limits
        best = split_kernels.best_split(*arguments)
        gain, feature, bin_, missing_left, left_gradient, left_hessian = best
        if feature < 0 or gain <= MIN_GAIN or gain < self.gamma:
            return None
        left = int(left_gradient), int(left_hessian)
        right = total[0] - left[0], total[1] - left[1]
        number, categories = layout.features[feature], 0
        if layout.categorical[feature]:
            bin_, categories = 0, self._categories_right(histogram, bin_, layout, feature)
        return BestSplit(float(gain), number, int(bin_), bool(missing_left), left, right, categories)

    def _categories_right(self, histogram: Int64, partition: int, layout: Layout, feature: int) -> int:
        first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
        cells, one_hot = histogram[STATS * first : STATS * (first + count)], count < self.max_cat_to_onehot
        right: Int64 = categories_right(cells, partition, one_hot, *self.scales)
        return sum(1 << category for category in right.tolist())


@dataclass(frozen=True)
class BestSplit:
    """A split of a node and the sums of the two children; bin and categories as in `tree.Split`."""

    gain: float
    feature: int
    bin: int
    missing_left: bool
    left: Total
    right: Total
    categories: int = 0
