"""Rows for the estimators, as scikit-learn checks them: arrays, sparse matrices and DataFrames.

Promises: numbers become 32-bit floats, as everywhere in fedboost; words stay words.
Refuses: what scikit-learn refuses, in its words (ValueError, TypeError); rows of which nothing can be learnt.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d, validate_data

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64

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
    """Rows to train or to evaluate on: numbers [rows, features], a sparse matrix of them or a DataFrame with
    words; labels [rows]; weights [rows]; groups [rows]. numbers: the labels are; X, y: as they were given."""

    features: Any
    label: npt.NDArray[Any]
    weight: Float64 | None
    numbers: bool
    X: Any
    y: Any
    group: npt.NDArray[Any] | None = None


def checked(estimator: Any, X: Any, y: Any, sample_weight: Any, numbers: bool, reset: bool = True) -> Rows:
    """The rows, checked as scikit-learn does: those of `fit`, or with reset=False others of the same
    features. ValueError if there is nothing to learn from."""
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
        _check_learnable(label, weight, numbers)
    return Rows(features, label, weight, numbers, given, y)


def _check_learnable(label: npt.NDArray[Any], weight: Float64 | None, numbers: bool) -> None:
    if len(label) < 2:
        raise ValueError(f"X has {len(label)} rows: there is nothing to learn")
    counted = label if weight is None else label[weight > 0]
    if not numbers and len(set(counted.tolist())) == 1:
        raise ValueError(f"y has one class, {counted[0]!r}: there is nothing to learn")
    if numbers and (counted == counted[0]).all():
        raise ValueError(f"y is {counted[0]!s} in every row: there is nothing to learn")


def checked_features(estimator: Any, X: Any, as_words: bool) -> Any:
    """The features of rows to predict."""
    X = as_pandas(X)
    if has_words(X) or as_words:
        return validate_data(estimator, X, reset=False, skip_check_array=True)
    return _float32(validate_data(estimator, X, **_FLOATS, reset=False))


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of both, the first ones first. A row without a weight weighs 1."""
    weight = None
    if first.weight is not None or second.weight is not None:
        weights = (
            np.ones(len(rows.label)) if rows.weight is None else rows.weight for rows in (first, second)
        )
        weight = np.concatenate([*weights])
    group = None
    if first.group is not None and second.group is not None:  # no group is in both
        group = np.concatenate([first.group, second.group + first.group.max() + 1])
    label = np.concatenate([first.label, second.label])
    features = _stacked(first.features, second.features)
    return Rows(features, label, weight, first.numbers, first.X, first.y, group)


def _stacked(first: Any, second: Any) -> Any:
    if is_frame(first):
        import pandas as pd

        # Categories of its own are none of the training's: those that it lacks count as missing.
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
    """Names of the features, in the order of X: those of a DataFrame, else x0, x1, ..."""
    if hasattr(estimator, "feature_names_in_"):
        return list(estimator.feature_names_in_)
    return [f"x{index}" for index in range(estimator.n_features_in_)]


def is_frame(X: Any) -> bool:
    """Tell if X is a pandas DataFrame."""
    return type(X).__module__.split(".")[0] == "pandas" and hasattr(X, "dtypes") and hasattr(X, "columns")


def has_words(X: Any) -> bool:
    """Tell if X is a DataFrame (pandas, polars) with a column that is neither of numbers nor of booleans."""
    if _is_of_polars(X):
        return any(not kind.is_numeric() and str(kind) != "Boolean" for kind in X.dtypes)
    return is_frame(X) and X.select_dtypes(exclude=["number", "bool"]).shape[1] > 0


def as_pandas(X: Any) -> Any:
    """X; a DataFrame of polars with words as one of pandas. ConfigError without pandas."""
    if not (_is_of_polars(X) and has_words(X)):
        return X
    try:
        return X.to_pandas()
    except ImportError:
        raise ConfigError("X: a polars DataFrame with columns of words needs pandas: install it") from None


def _is_of_polars(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "polars" and hasattr(X, "dtypes") and hasattr(X, "to_pandas")


def _float32(rows: Any) -> Any:
    with np.errstate(over="ignore"):
        out = rows.astype(np.float32, copy=False)
    before, after = (rows.data, out.data) if hasattr(rows, "tocsc") else (rows, out)
    if np.isinf(after).any():
        raise ValueError(f"X has a value too large for a 32-bit float: {before[np.isinf(after)][0]:g}")
    return out


# ---- Rows of Dask for the estimators: a DataFrame, or arrays, as one site whose rows are on workers -----
# Promises: nothing but counts, labels that differ and sums leave the workers; a row is drawn as it would be
# if all rows were here.
# Refuses: what is for rows that are here (`sites`, `eval_set`), columns of words that are not categories,
# rows and labels of different partitions (ConfigError, ValueError).


Names = tuple[str, str, str]
"""Of the columns of labels, weights and places."""


@dataclass(frozen=True)
class Collected:
    """Rows of Dask: a DataFrame with a column of labels, and of weights and places where there are any."""

    frame: Any
    y: Any
    numeric: list[str]
    categorical: dict[str, list[str]]

    def classes(self) -> npt.NDArray[Any]:
        """The labels that there are, sorted."""
        import dask.array as da

        labels = da.unique(self.y) if hasattr(self.y, "chunks") else self.y.unique()
        return np.unique(np.asarray(labels.compute()))


def collected(estimator: Any, X: Any, y: Any, weight: Any, beside: Names, draws: bool) -> Collected:
    """The rows, with columns of labels, of weights if there are any, and of places if rows are drawn, which
    have these names. Sets what scikit-learn says of features."""
    import dask.dataframe as dd
    from dask.base import compute
    from dask.delayed import delayed

    is_array = not hasattr(X, "columns")
    names = [f"x{number}" for number in range(X.shape[1])] if is_array else [str(name) for name in X.columns]
    numeric, categorical = (names, {}) if is_array else _features(X)
    parts, labels = _parts(X), _parts(y)
    weights = [None] * len(parts) if weight is None else _parts(weight)
    if not len(parts) == len(labels) == len(weights):
        raise ValueError(
            f"X has {len(parts)} partitions, y {len(labels)} and sample_weight {len(weights)}: give them the "
            f"same, with repartition or rechunk"
        )
    begins = [0] * len(parts)
    if draws:  # the same rows are drawn wherever they are
        rows = compute(*(delayed(len)(part) for part in parts))  # type: ignore[no-untyped-call]
        begins = list(accumulate(rows, initial=0))[:-1]
    joined = [
        delayed(_joined)(part, label, own, begin if draws else None, names, beside)
        for part, label, own, begin in zip(parts, labels, weights, begins, strict=True)
    ]
    estimator.n_features_in_ = len(names)
    if is_array:
        vars(estimator).pop("feature_names_in_", None)
    else:
        estimator.feature_names_in_ = np.array(names, object)
    meta = _joined(*_without_rows(X, y, weight, names), 0 if draws else None, names, beside)
    return Collected(dd.from_delayed(joined, meta=meta), y, numeric, categorical)


def refuse_beside(estimator: Any, **given: Any) -> None:
    """Raise ConfigError for arguments of `fit` that are for rows which are here."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{type(estimator).__name__}: {name} is for rows that are here, and X is a collection of "
                f"Dask: leave it out (validation_fraction holds rows out)"
            )


def _features(X: Any) -> tuple[list[str], dict[str, list[str]]]:
    """The numeric columns, and the categories of the others."""
    import pandas as pd

    numeric, categorical = [], {}
    for name, kind in X.dtypes.items():
        if isinstance(kind, pd.CategoricalDtype):
            if not X[name].cat.known:
                raise ConfigError(
                    f"X: the categories of column {name!r} are not known: X.categorize() finds them"
                )
            categorical[str(name)] = [str(category) for category in X[name].cat.categories]
        elif pd.api.types.is_numeric_dtype(kind):
            numeric.append(str(name))
        else:
            raise ConfigError(
                f"X: column {name!r} is {kind}: make it categorical, X.categorize(columns=[{name!r}]), or "
                f"drop it"
            )
    return numeric, categorical


def _parts(values: Any) -> list[Any]:
    """Its partitions, delayed."""
    delayed = values.to_delayed()
    return list(delayed.ravel()) if isinstance(delayed, np.ndarray) else list(delayed)


def _joined(part: Any, label: Any, weight: Any, begin: int | None, names: list[str], beside: Names) -> Any:
    """A partition with the columns beside its features."""
    import pandas as pd

    if len(label) != len(part) or (weight is not None and len(weight) != len(part)):
        raise ValueError("X, y and sample_weight have other numbers of rows in the same partition")
    frame = part.reset_index(drop=True) if hasattr(part, "columns") else pd.DataFrame(part)
    columns = {beside[0]: label.reset_index(drop=True) if hasattr(label, "reset_index") else label}
    if weight is not None:
        columns[beside[1]] = np.asarray(weight, np.float64)
    if begin is not None:
        columns[beside[2]] = np.arange(begin, begin + len(frame))
    return frame.set_axis(names, axis="columns").assign(**columns)


def _without_rows(X: Any, y: Any, weight: Any, names: list[str]) -> tuple[Any, Any, Any]:
    """A partition of each, without rows."""
    part = X._meta if hasattr(X, "columns") else np.empty((0, len(names)), X.dtype)
    return part, y._meta, None if weight is None else np.empty(0)
