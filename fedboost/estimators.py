"""scikit-learn estimators that train federated models on rows in this process.

Guarantees: parameters have the names and defaults of `Terms`, except `n_estimators` (`rounds`),
`random_state` (`seed`) and `n_jobs` (threads per party). However the rows are assigned to sites, the model is
bit-for-bit identical to the model that `simulate` returns, and to a model trained on the pooled rows.
Evaluation rows are used to choose cut points, but not to train trees. Numbers are converted to float32; text
is kept.
Raises: ValueError or TypeError for arrays, labels and weights that scikit-learn rejects. ConfigError for
settings that terms do not accept, and if scikit-learn is older than 1.6.
"""

from fedboost.errors import ConfigError

try:
    from sklearn.utils.validation import validate_data  # the newest name that this module needs
except ImportError:
    raise ConfigError(
        "estimator-sklearn-missing",
        "FederatedClassifier, FederatedRegressor and FederatedRanker need scikit-learn 1.6 or newer: "
        "pip install 'fedboost[sklearn]'",
    ) from None

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d

from fedboost.fixedpoint import Float64
from fedboost.gbdt import metrics
from fedboost.gbdt.objectives import registry
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.protocol.run import Callback
from fedboost.results.model import metrics_of
from fedboost.runtime.data.draft import draft_features, split_by_site
from fedboost.runtime.data.table import as_table, is_collection
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.data.values import text_of as spelled
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import text_of
from fedboost.terms.reading import name_here, setting_hint
from fedboost.terms.terms import Terms

# ---- Rows as scikit-learn checks them: arrays, sparse matrices and DataFrames ---------------------------


_FLOATS = {
    "dtype": (np.float64, np.float32),
    "ensure_all_finite": "allow-nan",
    "accept_sparse": ("csr", "csc"),
}
_WEIGHTS = {
    "ensure_2d": False,
    "dtype": np.float64,
    "ensure_non_negative": True,
    "input_name": "sample_weight",
}


@dataclass(frozen=True)
class Rows:
    """Validated rows to train or evaluate on, with the label, weight and group of each row.

    Attributes:
        features: numbers [rows, features], a sparse matrix, or a DataFrame with text columns.
        numbers: True if the labels are numeric.
        X, y: the original arguments, by which training rows are recognised in an eval_set.
    """

    features: Any
    label: npt.NDArray[Any]
    weight: Float64 | None
    numbers: bool
    X: Any
    y: Any
    group: npt.NDArray[Any] | None = None

    def classes(self) -> npt.NDArray[Any]:
        """Return the sorted distinct labels. Raises ValueError if the labels are not class labels."""
        check_classification_targets(self.label)
        return np.unique(self.label)


def checked(estimator: Any, X: Any, y: Any, sample_weight: Any, numbers: bool, reset: bool = True) -> Rows:
    """Validate rows with scikit-learn's own checks and convert features to float32.

    Args:
        numbers: True if the labels must be numeric.
        reset: True for the rows of `fit`, False for other rows with the same features.

    Raises:
        ValueError: scikit-learn rejects the rows, or nothing can be learned from them, e.g. because all
            labels are the same.
        ConfigError: X is a Dask collection.
    """
    if is_collection(X):
        raise ConfigError(
            "estimator-dask-collection",
            "X is a Dask collection: pass a Dask DataFrame that includes the label to fedboost.simulate",
        )
    given, X = X, as_pandas(X)
    if has_words(X):
        label = validate_data(estimator, y=y, y_numeric=numbers) if reset else column_or_1d(y, warn=True)
        check_consistent_length(X, label)
        features = validate_data(estimator, X, skip_check_array=True, reset=reset)
    else:
        least = {"ensure_min_samples": 2 if reset else 1}
        features, label = validate_data(estimator, X, y, **_FLOATS, y_numeric=numbers, reset=reset, **least)
        features = _float32(features)
    weight = None
    if sample_weight is not None:
        weight = column_or_1d(check_array(sample_weight, **_WEIGHTS))
        check_consistent_length(label, weight)
        if not weight.any():
            raise ValueError("sample_weight is zero in every row: there is nothing to learn")
    if reset:
        if len(label) < 2:
            raise ValueError(f"X has {len(label)} rows: there is nothing to learn")
        counted = label if weight is None else label[weight > 0]
        if (counted == counted[0]).all():
            what = f"is {counted[0]!s} in every row" if numbers else f"has one class, {counted[0]!r}"
            raise ValueError(f"y {what}: there is nothing to learn")
    return Rows(features, label, weight, numbers, given, y)


def joined(first: Rows, second: Rows) -> Rows:
    """Concatenate two sets of rows. If only one set has weights, rows of the other set get weight 1."""
    weight = None
    if first.weight is not None or second.weight is not None:
        weights = (
            np.ones(len(rows.label)) if rows.weight is None else rows.weight for rows in (first, second)
        )
        weight = np.concatenate([*weights])
    group = None
    if first.group is not None and second.group is not None:  # shifted: the sets never share a group
        group = np.concatenate([first.group, second.group + first.group.max() + 1])
    label = np.concatenate([first.label, second.label])
    features = _stacked(first.features, second.features)
    return Rows(features, label, weight, first.numbers, first.X, first.y, group)


def _stacked(first: Any, second: Any) -> Any:
    if is_frame(first):
        import pandas as pd

        # Evaluation rows must not add categories to the training's: their unknown categories become missing.
        kinds = {name: kind for name, kind in first.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
        known = {
            name: second[name].astype("category").cat.set_categories(kind.categories)
            for name, kind in kinds.items()
        }
        return pd.concat([first, second.assign(**known)], ignore_index=True)
    if hasattr(first, "tocsc") or hasattr(second, "tocsc"):
        from scipy import sparse

        return sparse.vstack([sparse.csr_matrix(first), sparse.csr_matrix(second)])
    return np.concatenate([first, second])


def names_of(estimator: Any) -> list[str]:
    """Return the feature names in column order: the DataFrame's columns in `fit`, or else x0, x1, ..."""
    if hasattr(estimator, "feature_names_in_"):
        return list(estimator.feature_names_in_)
    return [f"x{index}" for index in range(estimator.n_features_in_)]


def is_frame(X: Any) -> bool:
    """Return whether X is a pandas DataFrame."""
    return type(X).__module__.split(".")[0] == "pandas" and hasattr(X, "dtypes") and hasattr(X, "columns")


def has_words(X: Any) -> bool:
    """Return whether X is a pandas or polars DataFrame with a column that is neither numeric nor boolean."""
    if _is_of_polars(X):
        return any(not kind.is_numeric() and str(kind) != "Boolean" for kind in X.dtypes)
    return is_frame(X) and X.select_dtypes(exclude=["number", "bool"]).shape[1] > 0


def as_pandas(X: Any) -> Any:
    """Return X, converted to pandas if it is a polars DataFrame with text columns. Raises ConfigError if that
    requires pandas and pandas is not installed."""
    if not (_is_of_polars(X) and has_words(X)):
        return X
    try:
        return X.to_pandas()
    except ImportError:
        raise ConfigError(
            "estimator-pandas-missing",
            "X is a polars DataFrame with text columns, which requires pandas; install pandas",
        ) from None


def _is_of_polars(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "polars" and hasattr(X, "dtypes") and hasattr(X, "to_pandas")


def _float32(rows: Any) -> Any:
    with np.errstate(over="ignore"):
        out = rows.astype(np.float32, copy=False)
    before, after = (rows.data, out.data) if hasattr(rows, "tocsc") else (rows, out)
    if np.isinf(after).any():
        raise ValueError(f"X has a value too large for a 32-bit float: {before[np.isinf(after)][0]:g}")
    return out


# ---- Base class of the estimators: parameters, and training in this process ------------------------------


ONE_SITE = "all"
"""Name of the only party if `sites` is not passed."""
_BESIDE = ("label", "weight", "row", "validation", "group", "sites")
"""Names of the table columns that are not features. `_unused` makes them distinct from feature names."""
_IN_TERMS = {"n_estimators": "rounds", "random_state": "seed"}
_WATCHED = f"{metrics.VALIDATION}-"


def names_others(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate a constructor so that an unknown parameter raises a TypeError that suggests the most similar
    known parameter."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked_init(self: Any, **parameters: Any) -> None:
        for name in parameters:
            if name not in known:
                here = {_IN_TERMS.get(own, own): own for own in known}
                hint = setting_hint(name, [*known, *here])
                for in_terms, own in here.items():
                    hint = hint.replace(f"mean {in_terms}?", f"mean {own}?")
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}{hint}")
        init(self, **parameters)

    return checked_init


@dataclass(frozen=True)
class Options:
    """Arguments of `fit` other than the training rows.

    Attributes:
        held_out: rows that are used only for evaluation.
        evaluated: for each pair in eval_set, its name and the prefix of its metrics in the history.
        verbose: the number n if metrics are printed after every n-th round; 0 to print none.
    """

    sites: Any = None
    xgb_model: Any = None
    held_out: Rows | None = None
    evaluated: tuple[tuple[str, str], ...] = ()
    verbose: int = 0


class Federated(BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators. It handles the parameters and trains on a table."""

    @names_others
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
        lambdarank_num_pair_per_sample: int | None = None,
        lambdarank_normalization: bool | None = None,
        lambdarank_score_normalization: bool | None = None,
        ndcg_exp_gain: bool | None = None,
        eval_metric: str | Sequence[str] | None = None,
        party_metrics: bool = False,
        validation_fraction: float = 0.0,
        early_stopping_rounds: int | None = None,
        gradient_bits: int | None = None,
        vote_top_k: int = 0,
        protection: str = "plain",
        colluding: int | None = None,
        allow_two_parties: bool = False,
        n_jobs: int | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        given = locals()
        for name in self._get_param_names():  # unchanged: scikit-learn's clone compares them by identity
            setattr(self, name, given[name])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags

    @property
    def feature_importances_(self) -> Float64:
        """Mean split gain per feature, normalised to sum to 1, float64 [features]."""
        check_is_fitted(self)
        gains = self.model_.importance()
        out = np.array([gains.get(name, 0.0) for name in names_of(self)])
        return out / out.sum() if out.any() else out

    @property
    def best_iteration(self) -> int:
        """Index of the last round that early stopping kept, starting at 0. Raises AttributeError if the
        estimator was fitted without early_stopping_rounds."""
        model = getattr(self, "model_", None)
        if model is None or model.terms.evaluation.early_stopping_rounds is None:
            raise AttributeError("best_iteration requires a fit with early_stopping_rounds")
        return int(model.kept - 1)

    def _options(
        self, rows: Rows, sites: Any, xgb_model: Any, eval_set: Any, weights: Any, verbose: bool | int
    ) -> Options:
        pairs = [*(eval_set or ())]
        if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
            raise ValueError("eval_set must be a list of pairs (X, y)")
        names = [f"validation_{number}" for number in range(len(pairs))]
        is_train = [X is rows.X and y is rows.y for X, y in pairs]
        others = [number for number, train in enumerate(is_train) if not train]
        if len(others) > 1:
            raise ConfigError(
                "estimator-eval-sets",
                f"{type(self).__name__}: eval_set has {len(others)} pairs that are not the training rows, "
                "but only one is allowed; concatenate them. To evaluate on the training rows, pass the same "
                "X and y objects as to fit",
            )
        evaluated = tuple(zip(names, ("" if train else _WATCHED for train in is_train), strict=True))
        held_out = None
        if others:
            X, y = pairs[others[0]]
            if has_words(X) != has_words(rows.X):
                raise ValueError("X and the X of eval_set must both be DataFrames with text, or neither")
            weight = None if weights is None else weights[others[0]]
            held_out = checked(self, X, y, weight, rows.numbers, reset=False)
        return Options(sites, text_of(xgb_model), held_out, evaluated, int(verbose))

    def _label_column(self, values: npt.NDArray[Any]) -> pa.Array:
        """Return the label column in the form that the terms require."""
        return pa.array(values.astype(np.float64))

    def _fit(self, rows: Rows, follows: dict[str, Any], options: Options) -> Self:
        """Fit the model. follows: terms settings derived from the labels, including `columns`."""
        everything = rows if options.held_out is None else joined(rows, options.held_out)
        names, size, all_rows = names_of(self), len(rows.label), len(everything.label)
        label_name, weight_name, row_name, held_out_name, group_name, site_name = (
            _unused(name, names) for name in _BESIDE
        )
        numeric, categorical = self._drafted(rows)
        columns: dict[str, Any] = {"label": label_name, "numeric": numeric, "categorical": categorical}
        beside: dict[str, pa.Array] = {label_name: self._label_column(everything.label)}
        if everything.weight is not None:
            beside[weight_name], columns["weight"] = pa.array(everything.weight), weight_name
        if everything.group is not None:
            beside[group_name], columns["group"] = pa.array(everything.group), group_name
        if options.held_out is not None:
            held_out = np.arange(all_rows) >= size
            beside[held_out_name], columns["validation"] = pa.array(held_out), held_out_name
        if self._draws:  # a row id makes the drawn rows independent of where the rows are
            beside[row_name], columns["row_id"] = pa.array(np.arange(all_rows)), row_name
        terms = self._terms(columns, follows, options.xgb_model)
        if options.sites is not None:
            check_consistent_length(rows.label, options.sites)
            sites = column_or_1d(options.sites)  # any site serves for evaluation rows: it changes no result
            sites = np.concatenate([sites, np.repeat(sites[:1], all_rows - size)])
            named = as_table({site_name: sites})
            if not isinstance(named, pa.Table):
                raise ConfigError(
                    "estimator-sites", "sites must be an array of shape [rows] with the site of each row"
                )
            beside[site_name] = named.column(0)
        table = self._table(everything.features, beside)
        parties = {ONE_SITE: table} if options.sites is None else split_by_site(table, site_name)
        self._train(terms, parties, options)
        return self

    @property
    def _draws(self) -> bool:
        return bool(self.subsample != 1 or self.sampling_method != "uniform" or self.validation_fraction)

    def _train(self, terms: Terms, parties: Mapping[str, Any], options: Options) -> None:
        results: dict[str, dict[str, list[float]]] = {name: {} for name, _ in options.evaluated}

        def record(number: int, values: Mapping[str, float]) -> None:
            own = metrics.of_all(values)
            for name, prefix in options.evaluated:
                for metric in terms.metrics:
                    if prefix + metric in own:
                        results[name].setdefault(metric, []).append(own[prefix + metric])

        def show(row: Mapping[str, float]) -> None:
            number = int(row["round"])
            if options.verbose and (number % options.verbose == 0 or number == terms.trees.rounds - 1):
                values = (f"{name}:{value:.5f}" for name, value in metrics_of(row).items())
                print("\t".join((f"[{number}]", *values)), flush=True)

        result = simulate(
            terms,
            parties,
            nthread=effective_n_jobs(self.n_jobs),
            callbacks=(*(self.callbacks or ()), record),
            on_round=show,
        )
        self.model_, self.history_, self.traffic_ = result.model, result.history, result.traffic
        self.evals_result_ = results

    def _terms(self, columns: Mapping[str, Any], follows: Mapping[str, Any], xgb_model: object) -> Terms:
        """Return terms built from the parameters, the columns and the settings derived from the labels."""
        settings = {**self._settings(), **follows, "columns": {**columns, **follows.get("columns", {})}}
        settings |= {} if xgb_model is None else {"xgb_model": xgb_model}
        try:
            return Terms.read(settings, type(self).__name__)
        except ConfigError as error:
            fault = str(error).replace(*_VALIDATION_ROWS)
            for name, in_terms in _IN_TERMS.items():
                fault = fault.replace(f": {in_terms}: ", f": {name}: ")
            raise ConfigError("estimator-parameters-invalid", fault) from None

    def _settings(self) -> dict[str, Any]:
        """Return the estimator's parameters, renamed to the keys of the terms."""
        settings = {_IN_TERMS.get(name, name): value for name, value in self.get_params(deep=False).items()}
        del settings["n_jobs"], settings["callbacks"]
        if isinstance(self.random_state, np.random.RandomState):
            settings["seed"] = self.random_state.randint(1 << 31)
        # Hyperparameter searches set numpy scalars; the terms expect Python numbers.
        plain = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()
        }
        return {name: value for name, value in plain.items() if value is not None}

    def _drafted(self, rows: Rows) -> tuple[list[str], dict[str, list[str]]]:
        """Return the numeric features, and feature -> categories in the training rows for the others."""
        if not has_words(rows.features):
            return names_of(self), {}
        table = as_table(rows.features.set_axis(names_of(self), axis="columns"))
        drafted = draft_features(table)
        for name, reason in drafted.left_out.items():
            raise ConfigError(
                "estimator-column-unusable",
                f"X: column {name!r} cannot be a feature, because it {reason}; change or drop it",
            )
        return drafted.numeric, drafted.categorical

    def _table(self, features: Any, beside: Mapping[str, pa.Array]) -> pa.Table | SparseTable:
        """Return a table of the features, followed by the columns in `beside`."""
        names = names_of(self)
        if hasattr(features, "tocsc"):
            return SparseTable.from_matrices(pa.table(dict(beside)), {"x": features})
        table: Any
        if is_frame(features):
            table = as_table(features.set_axis(names, axis="columns"))
        else:
            table = pa.table(list(features.T), names)
        for name, column in beside.items():
            table = table.append_column(name, column)
        return table

    def _predicted(self, X: Any) -> Float64:
        check_is_fitted(self)
        categorical = list(self.model_.terms.columns.categorical)
        X = as_pandas(X)
        if categorical and not is_frame(X):
            raise ValueError(
                f"X must be a pandas or polars DataFrame, as in fit: {categorical[0]!r} has categories"
            )
        if has_words(X) or categorical:
            features = validate_data(self, X, reset=False, skip_check_array=True)
        else:
            features = _float32(validate_data(self, X, **_FLOATS, reset=False))
        if is_frame(features) or hasattr(features, "tocsc"):
            return self.model_.predict(self._table(features, {}))
        return self.model_.predict(features)


_VALIDATION_ROWS = (
    "set validation_fraction, or columns.validation",
    "pass an eval_set that differs from X to fit, or set validation_fraction",
)
"""The advice in an error about terms, and the estimator's own advice that replaces it."""


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name


# ---- A classifier, a regressor and a ranker -------------------------------------------------------------


class LabelEstimator(Federated):
    """Base class of the estimators that predict a label for each row."""

    _numbers = True
    """True if the labels are numeric."""

    def fit(
        self,
        X: Any,
        y: Any,
        sites: Any = None,
        sample_weight: Any = None,
        xgb_model: Any = None,
        eval_set: Any = None,
        sample_weight_eval_set: Any = None,
        verbose: bool | int = False,
    ) -> Self:
        """Fit the model.

        Args:
            X: numbers [rows, features] with NaN for missing values, a SciPy sparse matrix, or a pandas or
                polars DataFrame. Text and categorical columns of a DataFrame become categorical features.
            y: labels [rows], numeric for a regressor.
            sites: site name of each row [rows] (default: a single site).
            sample_weight: non-negative weight of each row [rows].
            xgb_model: model to continue training from: a `Model`, e.g. an estimator's model_, or a file path.
            eval_set: list of (X, y) pairs. At most one may differ from the training rows; it is used only for
                validation. Its metrics are computed after every round and drive early stopping.
            sample_weight_eval_set: list of weight arrays, one per pair in eval_set.
            verbose: if True, print the metrics after every round; if an integer n, after every n-th round and
                after the last one.
        """
        rows = checked(self, X, y, sample_weight, numbers=self._numbers)
        follows = self._follows(rows)
        options = self._options(rows, sites, xgb_model, eval_set, sample_weight_eval_set, verbose)
        return self._fit(rows, follows, options)

    def _follows(self, rows: Rows) -> dict[str, Any]:
        """Return the terms settings that are derived from the labels, at least the objective. Raises
        ConfigError if the chosen objective does not suit the labels."""
        raise NotImplementedError


class FederatedClassifier(ClassifierMixin, LabelEstimator):  # type: ignore[misc]
    """Classifier trained by simulating a federation in this process (default objective: binary:logistic, or
    multi:softprob for more than two classes).

    All rows are in this process, so nothing is hidden from anyone. The model is identical to the model that a
    federation of these sites would train. To train across sites that keep their rows, use `fedboost.connect`.
    Parameters are the same as in `Terms`, but three have scikit-learn's names: n_estimators (rounds),
    random_state (seed, default: 0) and n_jobs (threads per party, default: 1; -1 for one per core).
    protection defaults to "plain"; "masked" trains the same model but takes longer. callbacks are as in
    `fedboost.simulate`.

    Attributes: classes_ holds the sorted labels. n_features_in_, feature_names_in_ and feature_importances_
    are as in scikit-learn. model_ is the `fedboost.Model`; history_ and traffic_ are as in `fedboost.Result`.
    evals_result_ maps set name -> metric -> value per round, like XGBoost's evals_result(). best_iteration is
    the last round that early stopping kept.
    """

    _numbers = False

    def _label_column(self, values: npt.NDArray[Any]) -> pa.Array:
        codes = np.searchsorted(self.classes_, values).clip(max=len(self.classes_) - 1)
        if (strange := self.classes_[codes] != values).any():
            raise ValueError(f"eval_set: no training row has the class {values[strange][0]!s}")
        return pa.DictionaryArray.from_arrays(
            codes.astype(np.int32), pa.array([*map(spelled, self.classes_.tolist())])
        )

    def _follows(self, rows: Rows) -> dict[str, Any]:
        self.classes_ = rows.classes()
        names, objective = [*map(spelled, self.classes_.tolist())], self.objective
        if objective is None:
            objective = "binary:logistic" if len(names) == 2 else "multi:softprob"
        if objective not in (classifiers := registry.names_of(LabelKind.CLASS)):
            here = name_here(objective, classifiers)
            hint = f" (did you mean {here}?)" if here else ""
            raise ConfigError(
                "estimator-objective",
                f"FederatedClassifier: objective is {objective!r}{hint}; use {' or '.join(classifiers)}",
            )
        if objective == "binary:logistic" and len(names) > 2:
            raise ConfigError(
                "estimator-classes-many",
                f"FederatedClassifier: binary:logistic is for two classes, but y has {len(names)}; "
                "omit the objective",
            )
        if len(names) < 2:
            raise ValueError(f"y has one class, {names[0]!r}: there is nothing to learn")
        columns = {"positive": names[1]} if objective == "binary:logistic" else {"classes": names}
        return {"objective": objective, "columns": columns}

    def predict_proba(self, X: Any) -> Float64:
        """Return class probabilities, float64 [rows, classes], with columns in the order of `classes_`."""
        predicted = self._predicted(X)
        return predicted if predicted.ndim == 2 else np.column_stack([1.0 - predicted, predicted])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row [rows]. On a tie, this is the first in `classes_`."""
        best = np.argmax(self.predict_proba(X), axis=1)
        chosen: npt.NDArray[Any] = self.classes_[best]
        return chosen


class FederatedRegressor(RegressorMixin, LabelEstimator):  # type: ignore[misc]
    """Regressor trained by simulating a federation in this process (default objective: reg:squarederror).

    All rows are in this process, so nothing is hidden from anyone. Parameters and attributes are the same as
    in `FederatedClassifier`, except classes_.
    """

    def _follows(self, rows: Rows) -> dict[str, Any]:
        objective = self.objective or "reg:squarederror"
        if objective in registry.names_of(LabelKind.CLASS):
            raise ConfigError(
                "estimator-objective",
                f"FederatedRegressor: objective {objective!r} is for classification: use FederatedClassifier",
            )
        if objective in registry.names_of(LabelKind.RELEVANCE):
            raise ConfigError(
                "estimator-objective",
                f"FederatedRegressor: objective {objective!r} is for ranking: use FederatedRanker",
            )
        return {"objective": objective}

    def predict(self, X: Any) -> Float64:
        """Return the predicted value of each row, float64 [rows]."""
        return self._predicted(X)


class FederatedRanker(Federated):
    """Ranker trained by simulating a federation in this process. Its scores order the rows within a group
    (default objective: rank:ndcg).

    All rows are in this process, so nothing is hidden from anyone. Parameters and attributes are the same as
    in `FederatedClassifier`, except classes_.
    """

    def fit(
        self,
        X: Any,
        y: Any,
        group: Any = None,
        qid: Any = None,
        sites: Any = None,
        sample_weight: Any = None,
        xgb_model: Any = None,
        eval_set: Any = None,
        eval_group: Any = None,
        eval_qid: Any = None,
        verbose: bool | int = False,
    ) -> Self:
        """Fit the model. All rows of a group must be at one site. Other arguments are as in
        `FederatedClassifier.fit`.

        Args:
            y: relevance of each row [rows], integers from 0 to 31 inclusive.
            group: sizes of consecutive groups of rows [groups]. Pass either group or qid.
            qid: group id of each row [rows].
            sample_weight: weight of each group [groups], in the order of `group`, or by increasing qid.
            eval_group: list of group arrays, one per pair in eval_set. Pass either eval_group or eval_qid.
            eval_qid: list of qid arrays, one per pair in eval_set.
        """
        rows = checked(self, X, y, None, numbers=True)
        objective = self.objective or "rank:ndcg"
        if objective not in (rankings := registry.names_of(LabelKind.RELEVANCE)):
            takes = " or ".join(rankings)
            raise ConfigError(
                "estimator-objective", f"FederatedRanker: objective is {objective!r}; use {takes}"
            )
        groups = _groups(rows, group, qid, "group", "qid")
        rows = replace(rows, group=groups)
        if sample_weight is not None:
            weight, count = column_or_1d(sample_weight), int(groups.max()) + 1
            if len(weight) != count:
                raise ValueError(f"sample_weight has {len(weight)} weights, but there are {count} groups")
            rows = replace(rows, weight=weight.astype(np.float64)[groups])
        if sites is not None:
            _check_sites(rows, sites)
        options = self._options(rows, sites, xgb_model, eval_set, None, verbose)
        if options.held_out is not None:
            index = [prefix != "" for _, prefix in options.evaluated].index(True)
            own, own_qid = (None if each is None else each[index] for each in (eval_group, eval_qid))
            codes = _groups(options.held_out, own, own_qid, "eval_group", "eval_qid")
            options = replace(options, held_out=replace(options.held_out, group=codes))
        return self._fit(rows, {"objective": objective}, options)

    def predict(self, X: Any) -> Float64:
        """Return the score of each row, float64 [rows]. Within a group, higher scores rank first."""
        return self._predicted(X)


def _groups(rows: Rows, group: Any, qid: Any, group_name: str, qid_name: str) -> npt.NDArray[np.int64]:
    """Return each row's group index, starting at 0, int64 [rows]."""
    if (group is None) == (qid is None):
        raise ValueError(f"pass either {group_name}, the group sizes, or {qid_name}, the group of each row")
    if qid is not None:
        check_consistent_length(rows.label, qid)
        return np.unique(column_or_1d(qid), return_inverse=True)[1].astype(np.int64)
    sizes = column_or_1d(group)
    if sizes.sum() != len(rows.label) or (sizes < 0).any():
        raise ValueError(
            f"the sizes in {group_name} add up to {sizes.sum()} rows, but X has {len(rows.label)}"
        )
    return np.repeat(np.arange(len(sizes)), sizes)


def _check_sites(rows: Rows, sites: Any) -> None:
    """Raise ConfigError if a group's rows are at different sites: such rows cannot be ranked together."""
    check_consistent_length(rows.label, sites)
    names = column_or_1d(sites)
    assert rows.group is not None
    _, first = np.unique(rows.group, return_index=True)
    away = names != names[first][rows.group]
    if away.any():
        row = int(np.argmax(away))
        raise ConfigError(
            "estimator-group-split",
            f"FederatedRanker: the group of row {row + 1} is at {names[first][rows.group][row]!r} and at "
            f"{names[row]!r}; put all rows of a group at one site",
        )
