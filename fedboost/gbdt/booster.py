"""Boosted trees as a model: prediction, feature importance, SHAP values, and XGBoost's JSON format.

Guarantees: `to_xgboost` returns a model file that `xgboost.Booster` loads, with the same predictions up to
float32 rounding. The same trees always produce the same bytes, and `from_xgboost` reads them back without
loss.
Raises: ConfigError if a file is not such a model.

The format: https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedboost.errors import Altered, ConfigError
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.kernels import predict
from fedboost.gbdt.kernels.predict import predict_margins
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective
from fedboost.gbdt.target_means import TargetMeans, from_json, to_json
from fedboost.gbdt.tree import BITMAP_BYTES, Tree, all_nodes, inner_nodes, tree_from_json, tree_to_json

# ---- SHAP values: what each feature contributes to the margin of each row -------------------------------
# Shapley values as in XGBoost's `pred_contribs`, but in float64. Unknown features of a row are distributed as
# in the training rows, according to the covers of the tree's nodes. The contributions of a row add up to its
# margin.


def add_contributions(
    features: Float32,
    nodes: tuple[npt.NDArray[Any], ...],
    cover: Float64,
    output: int,
    out: Float64,
    group: Int64 | None = None,
) -> None:
    """Compute the SHAP values of one output (the contribution of each group of features to its margin), and
    add them to `out`.

    Args:
        features: float32 [rows, features].
        nodes: trees of this output, as returned by `node_columns`.
        cover: float64 [nodes], sum of hessians at each node.
        output: index of the output.
        out: float64 [rows, outputs, groups + 1], with the bias last; updated in place.
        group: int64 [nodes], the group of each node's feature; None if each feature is a group.
    """
    roots, left, _, feature, *_ = nodes
    factors = min(int(predict.depth_of(roots, left)), out.shape[2] - 1)
    points, weights = np.polynomial.legendre.leggauss(
        max(1, (factors + 1) // 2)
    )  # exact for this many factors
    add: Any = predict.add_contributions
    group = feature if group is None else group
    add(features, *nodes, cover, group, (points + 1.0) / 2.0, weights / 2.0, output, out)


# ---- Partial dependence: the mean prediction as one feature varies and the others do not ----------------
# Computed by its definition, like scikit-learn's "brute" method: every row is predicted with every grid
# value.


Rows: TypeAlias = tuple[Float32, Float32 | None]
"""Features, float32 [rows, features], and base margins, float32 [rows], or None."""
MAX_GRID_VALUES = 100
"""Maximum number of values in a default grid for partial dependence."""
_BETWEEN = (0.05, 0.95)


def usual_grid(values: Float32) -> list[float]:
    """Return the default grid for partial dependence: the column's distinct non-NaN values, if there are at
    most MAX_GRID_VALUES of them, otherwise MAX_GRID_VALUES evenly spaced values between its 5th and 95th
    percentiles. values: float32 [rows]."""
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    if distinct.size > MAX_GRID_VALUES:
        low, high = np.quantile(present, _BETWEEN)
        distinct = np.linspace(low, high, MAX_GRID_VALUES).astype(np.float32)
    grid: list[float] = distinct.tolist()
    return grid


def mean_predictions(
    predict: Callable[[Float32, Float32 | None], Float64], parts: Iterable[Rows], column: int, grid: Float32
) -> Float64:
    """Compute a partial dependence: for each grid value, the mean prediction over all rows with one column
    set to this value.

    Args:
        predict: function that returns predictions from features and base margins.
        parts: the rows, in several parts.
        column: index of the column to change.
        grid: float32 [values].

    Returns:
        float64 [values], or [values, outputs] if there are several outputs.

    Raises:
        ConfigError: if there are no rows.
    """
    rows, totals = 0, None
    for features, base_margin in parts:
        changed, sums = features.copy(), []
        for value in grid:
            changed[:, column] = value
            sums.append(predict(changed, base_margin).sum(axis=0))
        rows += len(features)
        totals = np.array(sums, np.float64) + (0.0 if totals is None else totals)
    if totals is None or not rows:
        raise ConfigError("prediction-no-rows", "there are no rows to predict")
    means: Float64 = totals / rows
    return means


# ---- The ensemble and its model file --------------------------------------------------------------------


FORMAT_VERSION = [2, 0, 0]
"""Version of XGBoost whose model format is written. Later versions can read this format, too."""
IMPORTANCES = ("gain", "cover", "weight")
TARGET_MEANS = "fedboost.target_means"
"""Name of the model attribute that stores the target means."""
NUMERIC, CATEGORICAL = "float", "c"


@dataclass(frozen=True)
class Booster:
    """A trained model: boosted trees over named features.

    Trees are ordered by round, then by output, then by parallel tree (num_parallel_tree per output).
    `base_score` is the constant prediction from which boosting starts. Values of `categorical` features are
    category numbers, starting at 0; values of `target_means` features are target means."""

    loss: Objective
    base_score: float
    features: tuple[str, ...]
    trees: tuple[Tree, ...] = field(repr=False)
    num_parallel_tree: int = 1
    categorical: tuple[str, ...] = ()
    target_means: TargetMeans = field(default_factory=dict, repr=False)

    @property
    def buckets(self) -> dict[str, int]:
        return {name: means.buckets for name, means in self.target_means.items()}

    @property
    def roots(self) -> int:
        """Number of trees in a round."""
        return self.loss.outputs * self.num_parallel_tree

    @cached_property
    def _trees_by_output(self) -> list[list[Tree]]:
        trees: list[list[Tree]] = [[] for _ in range(self.loss.outputs)]
        for number, tree in enumerate(self.trees):
            trees[self.output_of(number)].append(tree)
        return trees

    @cached_property
    def _nodes(self) -> Any:
        """The trees of each output, as returned by `node_columns`."""
        return [node_columns(trees) for trees in self._trees_by_output]

    @cached_property
    def _covers(self) -> list[Float64]:
        # Copies are contiguous: one array type for numba.
        return [all_nodes(trees)["cover"].copy() for trees in self._trees_by_output]

    @property
    def _is_categorical(self) -> list[bool]:
        categorical = {*self.categorical}
        return [name in categorical for name in self.features]

    @property
    def objective(self) -> str:
        return self.loss.name

    @property
    def begins_with_a_leaf(self) -> bool:
        """True if each tree of the first round is a single leaf. In a model trained with base margins, these
        trees contain the initial constant, because base margins replace the base score."""
        first = self.trees[: self.roots]
        return bool(first) and all(len(tree) == 1 for tree in first)

    @property
    def constant(self) -> float:
        return self.loss.margin(self.base_score)

    def margins(self, features: Float32, base_margin: Float64 | Float32 | None = None) -> Float64:
        """Compute the margin of each row: the sum of its leaf values, plus the margin of the base score.

        Returns float64 [rows], or [outputs, rows] if there are several outputs. features: float32 [rows,
        features], NaN if missing; base_margin: [rows], replaces the margin of the base score, as in XGBoost.
        """
        outputs = self.loss.outputs
        margin = np.empty((outputs, features.shape[0]), np.float64)
        margin[:] = self.constant if base_margin is None else base_margin
        if self.trees:
            rows = np.ascontiguousarray(features, np.float32)
            for number, output_margin in enumerate(margin):
                add: Any = predict_margins
                add(rows, *self._nodes[number], output_margin)
        return margin if outputs > 1 else margin[0]

    def predict(self, features: Float32, base_margin: Float32 | None = None) -> Float64:
        """Predict a probability or a value for each row. Returns float64 [rows], or [rows, outputs] if there
        are several outputs.

        The arguments are as in `margins`. As in XGBoost, a value that is not a category of its feature
        goes left at every split."""
        return self.loss.predict(self.margins(features, base_margin))

    def importance(self, kind: str = "gain") -> dict[str, float]:
        """Return the importance of each feature that occurs in a split, by name, highest first.

        kind: `gain` or `cover` (mean over the feature's splits) or `weight` (number of splits), as in
        XGBoost. Raises ConfigError for any other kind."""
        if kind not in IMPORTANCES:
            raise ConfigError(
                "importance-unknown",
                f"importance {kind!r} does not exist; use one of {', '.join(IMPORTANCES)}",
            )
        nodes = inner_nodes(self.trees)
        count = np.bincount(nodes["feature"])
        total = count if kind == "weight" else np.bincount(nodes["feature"], nodes[kind])
        score = total / (1 if kind == "weight" else np.maximum(count, 1))
        order = np.argsort(-score, kind="stable")
        return {self.features[f]: float(score[f]) for f in order[count[order] > 0].tolist()}

    def contributions(self, features: Float32, base_margin: Float32 | None = None) -> Float64:
        """Compute SHAP values: the contribution of each feature to each row's margin. The arguments are as
        in `margins`.

        Returns float64 [rows, features + 1], or [rows, outputs, features + 1] if there are several outputs.
        The last column is the expected margin if no feature is known. A row's values add up to its margin."""
        rows = np.ascontiguousarray(features, np.float32)
        out = np.zeros((rows.shape[0], self.loss.outputs, rows.shape[1] + 1), np.float64)
        out[:, :, -1] = self.constant if base_margin is None else base_margin[:, np.newaxis]
        if self.trees:
            for number, (nodes, cover) in enumerate(zip(self._nodes, self._covers, strict=True)):
                add_contributions(rows, nodes, cover, number, out)
        return out if self.loss.outputs > 1 else out[:, 0]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 digest, in hex, of the model file. Target means are the only model attribute that is
        included. Equal models have equal fingerprints."""
        return hashlib.sha256(self.to_xgboost().encode()).hexdigest()

    def to_xgboost(self, attributes: Mapping[str, str] | None = None) -> str:
        """Return the model in XGBoost's JSON format. attributes: stored, without effect on predictions."""
        width, outputs = len(self.features), self.loss.outputs
        equivalent = self.loss.xgboost_equivalent
        means = {TARGET_MEANS: to_json(self.target_means)} if self.target_means else {}
        count = len(self.trees)
        # XGBoost's quirks: numbers of its parameter tables are strings; num_class is "0" for a single output;
        # `tree_info` is the output of each tree, and `iteration_indptr` the first tree of each round.
        # `from_xgboost` compares this text with the file, so each key matters.
        return json.dumps(
            {
                "learner": {
                    "attributes": means | dict(attributes or {}),
                    "feature_names": list(self.features),
                    "feature_types": [CATEGORICAL if c else NUMERIC for c in self._is_categorical],
                    "gradient_booster": {
                        "model": {
                            "gbtree_model_param": {
                                "num_parallel_tree": str(self.num_parallel_tree),
                                "num_trees": str(count),
                            },
                            "iteration_indptr": list(range(0, count + 1, self.roots)),
                            "tree_info": [self.output_of(number) for number in range(count)],
                            "trees": [tree_to_json(i, tree, width) for i, tree in enumerate(self.trees)],
                        },
                        "name": "gbtree",
                    },
                    "learner_model_param": {
                        "base_score": repr(self.base_score),
                        "boost_from_average": "1",
                        "num_class": str(outputs) if outputs > 1 else "0",
                        "num_feature": str(width),
                        "num_target": "1",
                    },
                    "objective": {"name": equivalent.name, **equivalent.xgboost_params},
                },
                "version": FORMAT_VERSION,
            },
            separators=(",", ":"),
            allow_nan=False,
            ensure_ascii=False,  # XGBoost's reader does not decode \uXXXX
        )

    @classmethod
    def from_xgboost(
        cls, text: str, source: str = "model", holders: int = 0
    ) -> "tuple[Booster, dict[str, str]]":
        """Read a model and its attributes from the output of `to_xgboost`.

        Args:
            text: the model in JSON.
            source: name of the model in error messages.
            holders: number of parties whose feature names are undisclosed. A node may refer to such a party
                instead of a feature; parties are numbered after all features.

        Raises:
            Altered: if the text differs from what `to_xgboost` writes.
            ConfigError: if the text is not a model that fedboost supports.
        """
        booster, attributes = cls.from_any_xgboost(text, source, holders)
        if json.loads(booster.to_xgboost(attributes)) != json.loads(text):
            # XGBoost might read such a file differently and predict other values.
            raise Altered(
                "model-altered",
                f"{source} is not as fedboost wrote it: it was changed, or saved by another program",
            )
        return booster, attributes

    @classmethod
    def from_any_xgboost(
        cls, text: str, source: str = "model", holders: int = 0
    ) -> "tuple[Booster, dict[str, str]]":
        """Read a model and its attributes from JSON written by fedboost or by XGBoost itself. The arguments
        are as in `from_xgboost`. Raises ConfigError if the text is not a model that fedboost supports."""
        try:
            learner = json.loads(text)["learner"]
            objective = dict(learner["objective"])
            name = str(objective.pop("name"))
            settings = {key: value for params in objective.values() for key, value in params.items()}
            parameters, model = learner["learner_model_param"], learner["gradient_booster"]["model"]
            parallel = int(model["gbtree_model_param"]["num_parallel_tree"])
            features = tuple(str(name) for name in learner["feature_names"])
            types = learner["feature_types"] or [NUMERIC] * len(features)  # XGBoost may save none
            kinds = zip(features, types, strict=True)
            categorical = tuple(name for name, kind in kinds if kind == CATEGORICAL)
            with np.errstate(over="ignore"):
                trees = tuple(tree_from_json(t) for t in model["trees"])
            # XGBoost may save a list with one score for each output; equal scores are one constant.
            scores = {float(score) for score in str(parameters["base_score"]).strip("[]").split(",")}
            attributes = {str(k): str(v) for k, v in learner["attributes"].items()}
            encoded = bool(model.get("cats", {}).get("enc"))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            why = (
                "it is not JSON"
                if isinstance(error, json.JSONDecodeError)
                else f"{type(error).__name__}: {error}"
            )
            raise ConfigError("model-not-readable", f"{source} is not a fedboost model: {why}") from None
        if name not in OBJECTIVES:
            raise ConfigError(
                "model-objective-unknown",
                f"{source} uses objective {name!r}, but fedboost supports only {', '.join(OBJECTIVES)}",
            )
        if not features:
            raise ConfigError(
                "model-features-unnamed",
                f"{source}: the features have no names; set feature_names before saving the model",
            )
        try:
            loss = make_objective(name, settings)
        except (LookupError, TypeError, ValueError):
            raise ConfigError(
                "model-objective-parameters",
                f"{source}: the parameters of objective {name} are missing or invalid",
            ) from None
        if len(scores) > 1 or encoded:
            what = "a base_score for each class" if len(scores) > 1 else "levels encoded by XGBoost"
            raise ConfigError("model-unsupported", f"{source} has {what}, which fedboost does not support")
        (score,) = scores
        means = from_json(attributes.pop(TARGET_MEANS, "{}"), source)
        if not {*means} <= {*features} - {*categorical}:
            raise ConfigError(
                "model-target-means",
                f"{source} has target means for a column that is not one of its numeric features",
            )
        booster = cls(loss, score, features, trees, parallel, categorical, means)
        for number, tree in enumerate(trees):
            _check_tree(tree, number, booster._is_categorical + [False] * holders, source)
        try:
            sound = math.isfinite(loss.margin(score)) and parallel > 0
            sound = sound and len(trees) % (loss.outputs * parallel) == 0
        except ConfigError:
            sound = False
        if not sound:
            raise ConfigError(
                "model-score",
                f"{source}: base_score {score} or the number of trees is not valid for objective {name}",
            )
        if model.get("tree_info") != [booster.output_of(number) for number in range(len(trees))]:
            raise ConfigError(
                "model-tree-order",
                f"{source} has trees that are not in fedboost's order: by round, then by class",
            )
        return booster, attributes

    def output_of(self, number: int) -> int:
        return number % self.roots // self.num_parallel_tree


def node_columns(trees: Sequence[Tree]) -> tuple[npt.NDArray[Any], ...]:
    """Convert trees to node columns, the arguments `roots` to `sets` of `predict.predict_margins`."""
    nodes = all_nodes(trees)
    left = nodes["left"].copy()
    by_category = np.concatenate([np.zeros(0, np.bool_), *(tree.by_category for tree in trees)])
    sets = [np.zeros((1, BITMAP_BYTES), np.uint8), *(tree.categories[tree.by_category] for tree in trees)]
    return (
        np.cumsum([0, *map(len, trees)])[:-1].astype(np.int64),
        left,
        np.where(left >= 0, left + 1, left),
        nodes["feature"].copy(),
        # No comparison with NaN is true: the categories alone decide, and missing values by `missing_left`.
        np.where(by_category, np.float32(np.nan), nodes["threshold"].astype(np.float32)),
        nodes["missing_left"].copy(),
        nodes["value"].copy(),
        np.where(by_category, np.cumsum(by_category), 0).astype(np.uint64),
        np.concatenate(sets).view("<u8").astype(np.uint64),
    )


def _check_tree(tree: Tree, number: int, is_categorical: list[bool], source: str) -> None:
    features, inner, left = len(is_categorical), np.flatnonzero(tree.inner), tree.left[tree.inner]
    children = np.sort(np.append(left, left + 1))
    sound = (
        len(tree) > 0
        and np.array_equal(children, np.arange(1, len(tree)))  # each but the root has one parent
        and (left > inner).all()
        and ((tree.feature >= 0) & (tree.feature < features)).all()
    )
    if not sound:
        raise ConfigError(
            "model-bad-tree", f"{source}: tree {number} is not a valid tree over {features} features"
        )
    if not np.isfinite(tree.leaf_values.value).all():
        raise ConfigError("model-leaf-value", f"{source}: tree {number} has a leaf whose value is not finite")
    if (tree.by_category != tree.inner & np.array(is_categorical)[tree.feature]).any():
        raise ConfigError(
            "model-split-kind",
            f"{source}: tree {number} splits a numeric feature by levels or a categorical one by threshold",
        )
