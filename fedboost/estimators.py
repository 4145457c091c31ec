"""Federated training as scikit-learn's estimators, to try it with the tools that expect those.

Promises: the model is that of `simulate` over the same rows, so that of the pooled rows, bit for bit, at
whichever sites they are; parameters have the names and defaults of `Terms`, but for `n_estimators` (its
`rounds`), `random_state` (its `seed`) and `n_jobs` (threads of a party).
Refuses: arrays, labels and weights that scikit-learn refuses, in its words (ValueError, TypeError); what the
terms cannot have, and use without scikit-learn 1.6 or newer (ConfigError).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.objectives.labels import LabelKind
from fedboost.gbdt.objectives.registry import names_of
from fedboost.protocol.run import Callback
from fedboost.runtime.continuation import text_of
from fedboost.runtime.data.draft import draft_features, split_by_site
from fedboost.runtime.data.table import as_table
from fedboost.runtime.local.simulation import simulate
from fedboost.terms.terms import Terms

try:
    from joblib import effective_n_jobs
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        check_array,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError:
    raise ConfigError(
        "FederatedClassifier and FederatedRegressor need scikit-learn 1.6 or newer: "
        "pip install 'fedboost[sklearn]'"
    ) from None

ONE_SITE = "all"
"""What the party is called where no sites are named."""
_FLOATS = {"dtype": (np.float64, np.float32), "ensure_all_finite": "allow-nan"}
_WEIGHTS = {
    "ensure_2d": False,
    "dtype": np.float64,
    "ensure_non_negative": True,
    "input_name": "sample_weight",
}
_BESIDE = ("label", "weight", "row", "sites")
"""What the columns are called that are no features, unless a feature is."""
_IN_TERMS = {"n_estimators": "rounds", "random_state": "seed"}


@dataclass(frozen=True)
class _Rows:
    """Rows to train on: numbers [rows, features] or a DataFrame with words; labels [rows]; weights [rows]."""

    features: Any
    label: npt.NDArray[Any]
    weight: Float64 | None


class _Federated(BaseEstimator):  # type: ignore[misc]
    """The base of both estimators: parameters, and training on a table."""

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_depth: int = 6,
        learning_rate: float = 0.3,
        objective: str | None = None,
        objective_params: Mapping[str, int | float | str] | None = None,
        max_bin: int = 256,
        max_cat_to_onehot: int = 4,
        max_cat_threshold: int = 64,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        grow_policy: str = "depthwise",
        max_leaves: int = 0,
        num_parallel_tree: int = 1,
        subsample: float = 1.0,
        sampling_method: str = "uniform",
        colsample_bytree: float = 1.0,
        colsample_bylevel: float = 1.0,
        colsample_bynode: float = 1.0,
        monotone_constraints: Mapping[str, int] | None = None,
        interaction_constraints: Sequence[Sequence[str]] | None = None,
        random_state: int | np.random.RandomState | None = None,
        max_delta_step: float | None = None,
        base_score: float | None = None,
        scale_pos_weight: float | None = None,
        tweedie_variance_power: float | None = None,
        huber_slope: float | None = None,
        quantile_alpha: float | None = None,
        eval_metric: str | Sequence[str] | None = None,
        party_metrics: bool = False,
        validation_fraction: float = 0.0,
        early_stopping_rounds: int | None = None,
        cut_points: str = "grid",
        gradient_bits: int | None = None,
        vote_top_k: int = 0,
        protection: str = "plain",
        colluding: int | None = None,
        allow_two_parties: bool = False,
        n_jobs: int | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.objective = objective
        self.objective_params = objective_params
        self.max_bin = max_bin
        self.max_cat_to_onehot = max_cat_to_onehot
        self.max_cat_threshold = max_cat_threshold
        self.reg_lambda = reg_lambda
        self.reg_alpha = reg_alpha
        self.gamma = gamma
        self.min_child_weight = min_child_weight
        self.grow_policy = grow_policy
        self.max_leaves = max_leaves
        self.num_parallel_tree = num_parallel_tree
        self.subsample = subsample
        self.sampling_method = sampling_method
        self.colsample_bytree = colsample_bytree
        self.colsample_bylevel = colsample_bylevel
        self.colsample_bynode = colsample_bynode
        self.monotone_constraints = monotone_constraints
        self.interaction_constraints = interaction_constraints
        self.random_state = random_state
        self.max_delta_step = max_delta_step
        self.base_score = base_score
        self.scale_pos_weight = scale_pos_weight
        self.tweedie_variance_power = tweedie_variance_power
        self.huber_slope = huber_slope
        self.quantile_alpha = quantile_alpha
        self.eval_metric = eval_metric
        self.party_metrics = party_metrics
        self.validation_fraction = validation_fraction
        self.early_stopping_rounds = early_stopping_rounds
        self.cut_points = cut_points
        self.gradient_bits = gradient_bits
        self.vote_top_k = vote_top_k
        self.protection = protection
        self.colluding = colluding
        self.allow_two_parties = allow_two_parties
        self.n_jobs = n_jobs
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def feature_importances_(self) -> Float64:
        """Mean gain of the splits of each feature, as shares of 1: float64 [features]."""
        check_is_fitted(self)
        gains = self.model_.importance()
        out = np.array([gains.get(name, 0.0) for name in self._names()])
        return out / out.sum() if out.any() else out

    def _fit(self, rows: "_Rows", label: pa.Array, follows: dict[str, Any], sites: Any) -> Self:
        """Train. follows: the settings of the terms, and of the schema, that follow from the label."""
        names = self._names()
        label_name, weight_name, row_name, site_name = (_unused(name, names) for name in _BESIDE)
        if _has_words(rows.features):
            table = self._table(rows.features)
            numeric, categorical, left_out = draft_features(table)
            for name, reason in left_out.items():
                raise ConfigError(f"X: column {name!r} can be no feature, change it or drop it: it {reason}")
        else:
            table, numeric, categorical = pa.table(list(rows.features.T), names), names, {}
        columns = {"label": label_name, "numeric": numeric, "categorical": categorical}
        table = table.append_column(label_name, label)
        if rows.weight is not None:
            table = table.append_column(weight_name, pa.array(rows.weight))
            columns["weight"] = weight_name
        draws = self.subsample != 1 or self.sampling_method != "uniform" or self.validation_fraction
        if draws:  # the same rows are drawn wherever they are
            table = table.append_column(row_name, pa.array(np.arange(table.num_rows)))
            columns["row_id"] = row_name
        columns |= follows.pop("columns", {})
        try:
            terms = Terms.read({**self._settings(), **follows, "columns": columns}, type(self).__name__)
        except ConfigError as error:
            fault = str(error)
            for name, in_terms in _IN_TERMS.items():
                fault = fault.replace(f": {in_terms}: ", f": {name}: ")
            raise ConfigError(fault) from None
        parties = {ONE_SITE: table}
        if sites is not None:
            check_consistent_length(label, sites)
            named = as_table({site_name: column_or_1d(sites)})
            if not isinstance(named, pa.Table):
                raise ConfigError("sites must be the name of each row's site, [rows]")
            parties = split_by_site(table.append_column(site_name, named.column(0)), site_name)
        nthread = effective_n_jobs(self.n_jobs)
        result = simulate(terms, parties, nthread=nthread, callbacks=self.callbacks or ())
        self.model_, self.history_, self.traffic_ = result.model, result.history, result.traffic
        return self

    def _settings(self) -> dict[str, Any]:
        """The parameters as the terms have them."""
        settings = {_IN_TERMS.get(name, name): value for name, value in self.get_params(deep=False).items()}
        del settings["n_jobs"], settings["callbacks"]
        if isinstance(self.random_state, np.random.RandomState):
            settings["seed"] = self.random_state.randint(1 << 31)
        # Searches over parameters draw numpy's numbers.
        plain = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()
        }
        return {name: value for name, value in plain.items() if value is not None}

    def _checked(self, X: Any, y: Any, sample_weight: Any, numbers: bool) -> "_Rows":
        """The rows, checked as scikit-learn does. ValueError if there is nothing to learn from."""
        if _has_words(X):
            label = validate_data(self, y=y, y_numeric=numbers)
            check_consistent_length(X, label)
            features = validate_data(self, X, skip_check_array=True)
        else:
            features, label = validate_data(self, X, y, **_FLOATS, y_numeric=numbers, ensure_min_samples=2)
            features = _float32(features)
        if len(label) < 2:
            raise ValueError(f"X has {len(label)} rows: there is nothing to learn")
        weight = None
        if sample_weight is not None:
            weight = column_or_1d(check_array(sample_weight, **_WEIGHTS))
            check_consistent_length(label, weight)
            if not weight.any():
                raise ValueError("sample_weight is zero in every row: there is nothing to learn")
        counted = label if weight is None else label[weight > 0]
        if not numbers and len(set(counted.tolist())) == 1:
            raise ValueError(f"y has one class, {counted[0]!r}: there is nothing to learn")
        if numbers and (counted == counted[0]).all():
            raise ValueError(f"y is {counted[0]!s} in every row: there is nothing to learn")
        return _Rows(features, label, weight)

    def _predicted(self, X: Any) -> Float64:
        """The model's prediction for each row."""
        check_is_fitted(self)
        categorical = list(self.model_.terms.columns.categorical)
        if _has_words(X) or (categorical and _is_frame(X)):
            X = validate_data(self, X, reset=False, skip_check_array=True)
            return self.model_.predict(self._table(X))
        if categorical:
            raise ValueError(f"X must be a pandas DataFrame, as in fit: {categorical[0]!r} has categories")
        return self.model_.predict(_float32(validate_data(self, X, **_FLOATS, reset=False)))

    def _table(self, X: Any) -> pa.Table:
        """The table of a DataFrame with words."""
        return as_table(X.set_axis(self._names(), axis="columns"))

    def _names(self) -> list[str]:
        """Names of the features, in the order of X: those of a DataFrame, else x0, x1, ..."""
        if hasattr(self, "feature_names_in_"):
            return list(self.feature_names_in_)
        return [f"x{index}" for index in range(self.n_features_in_)]


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Classes from trees that sites grow together: binary:logistic for two, multi:softprob for more.

    All rows are here, so nothing is hidden from anybody: this tries what a federation would learn, and makes
    the model it would have. `fedboost.connect` is for sites that keep their rows.
    Parameters: those of `Terms`; n_estimators: its rounds; random_state: its seed, 0 unless given; n_jobs:
    threads of a party, one unless given (-1: one a core); protection: "plain" unless "masked" is to be tried,
    which makes the same model with more work; callbacks: as of `fedboost.simulate`.

    classes_: the labels, sorted; n_features_in_, feature_names_in_, feature_importances_: as everywhere in
    scikit-learn; model_: the `fedboost.Model`; history_, traffic_: as of `fedboost.Result`.
    """

    def fit(
        self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None, xgb_model: Any = None
    ) -> Self:
        """Train. X: numbers [rows, features], NaN for what is missing, or a pandas DataFrame, whose columns
        of text and categories are categorical features; y: [rows]; sites: the name of each row's site, [rows]
        (one site unless given); sample_weight: [rows], not below 0; xgb_model: a Model to continue, such as
        the model_ of an estimator, or the path of its file."""
        rows = self._checked(X, y, sample_weight, numbers=False)
        check_classification_targets(rows.label)
        self.classes_, codes = np.unique(rows.label, return_inverse=True)
        names, objective = [_spelled(label) for label in self.classes_.tolist()], self.objective
        if objective is None:
            objective = "binary:logistic" if len(names) == 2 else "multi:softprob"
        if objective not in (classifiers := names_of(LabelKind.CLASS)):
            raise ConfigError(
                f"FederatedClassifier: objective is {objective!r}; it takes {' or '.join(classifiers)}"
            )
        if objective == "binary:logistic" and len(names) > 2:
            raise ConfigError(
                f"FederatedClassifier: binary:logistic is for two classes, y has {len(names)}: leave it out"
            )
        label_columns = {"positive": names[1]} if objective == "binary:logistic" else {"classes": names}
        label = pa.DictionaryArray.from_arrays(codes.astype(np.int32), pa.array(names))
        follows = {"objective": objective, "columns": label_columns, "xgb_model": text_of(xgb_model)}
        return self._fit(rows, label, follows, sites)

    def predict_proba(self, X: Any) -> Float64:
        """The probability of each of `classes_`: float64 [rows, classes]."""
        predicted = self._predicted(X)
        return predicted if predicted.ndim == 2 else np.column_stack([1.0 - predicted, predicted])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable of `classes_`, [rows]; of equal ones the first."""
        best = np.argmax(self.predict_proba(X), axis=1)
        chosen: npt.NDArray[Any] = self.classes_[best]
        return chosen


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Amounts from trees that sites grow together: reg:squarederror unless objective says otherwise.

    All rows are here, so nothing is hidden from anybody; see `FederatedClassifier`, whose parameters and
    attributes it has, but for classes_.
    """

    def fit(
        self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None, xgb_model: Any = None
    ) -> Self:
        """Train. y: numbers [rows]; the others are those of `FederatedClassifier.fit`."""
        rows = self._checked(X, y, sample_weight, numbers=True)
        objective = self.objective or "reg:squarederror"
        if objective in names_of(LabelKind.CLASS):
            raise ConfigError(
                f"FederatedRegressor: objective {objective!r} is for classes: use FederatedClassifier"
            )
        if objective in names_of(LabelKind.RELEVANCE):
            raise ConfigError(
                f"FederatedRegressor: objective {objective!r} is for groups of rows: use fedboost.simulate"
            )
        follows = {"objective": objective, "xgb_model": text_of(xgb_model)}
        return self._fit(rows, pa.array(rows.label.astype(np.float64)), follows, sites)

    def predict(self, X: Any) -> Float64:
        """The prediction of each row: float64 [rows]."""
        return self._predicted(X)


def _is_frame(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "pandas" and hasattr(X, "dtypes") and hasattr(X, "columns")


def _has_words(X: Any) -> bool:
    """Tell if X is a pandas DataFrame with a column that is neither of numbers nor of booleans."""
    return _is_frame(X) and X.select_dtypes(exclude=["number", "bool"]).shape[1] > 0


def _spelled(label: object) -> str:
    """A label's text in the terms: that of a table's cell."""
    if isinstance(label, bool):
        return str(label).lower()
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _float32(rows: npt.NDArray[Any]) -> Float32:
    with np.errstate(over="ignore"):
        out = rows.astype(np.float32, copy=False)
    if np.isinf(out).any():
        raise ValueError(f"X has a value too large for a 32-bit float: {rows[np.isinf(out)][0]:g}")
    return out


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name
