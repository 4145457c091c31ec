"""Rows of Dask for the estimators: a DataFrame, or arrays, as one site whose rows are on workers.

Promises: nothing but counts, labels that differ and sums leave the workers; a row is drawn as it would be if
all rows were here.
Refuses: what is for rows that are here (`sites`, `eval_set`), columns of words that are not categories, rows
and labels of different partitions (ConfigError, ValueError).
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError

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
