"""The estimators: a classifier, a regressor and a ranker.

Promises: `classes_` are the labels of the training rows, sorted.
Refuses: an objective that is not for classes (ConfigError); classes to evaluate on that no training row has
(ValueError).
"""

from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from fedboost.errors import ConfigError
from fedboost.estimators.base import Federated
from fedboost.estimators.rows import Rows, checked
from fedboost.fixedpoint import Float64
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import names_of
from fedboost.runtime.workers.holder import is_collection
from fedboost.terms.reading import name_here


class FederatedClassifier(ClassifierMixin, Federated):  # type: ignore[misc]
    """Classes from trees that sites grow together: binary:logistic for two, multi:softprob for more.

    All rows are here, so nothing is hidden from anybody: this tries what a federation would learn, and makes
    the model it would have. `fedboost.connect` is for sites that keep their rows.
    Parameters: those of `Terms`; n_estimators: its rounds; random_state: its seed, 0 unless given; n_jobs:
    threads of a party, one unless given (-1: one a core); protection: "plain" unless "masked" is to be tried,
    which makes the same model with more work; callbacks: as of `fedboost.simulate`.

    classes_: the labels, sorted; n_features_in_, feature_names_in_, feature_importances_: as everywhere in
    scikit-learn; model_: the `fedboost.Model`; history_, traffic_: as of `fedboost.Result`; evals_result_:
    the metrics of each round by set and name, as of XGBoost's evals_result(); best_iteration: the last round
    that early stopping kept.
    """

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
        """Train. X: numbers [rows, features], NaN for what is missing, a sparse matrix of scipy's, or a
        DataFrame of pandas or polars, whose columns of text and categories are categorical features; y:
        [rows]; or both are collections of Dask, with the same partitions, whose rows stay on the workers;
        sites: the name of each row's site, [rows] (one site unless given); sample_weight: [rows], not below
        0; xgb_model: a Model to continue, such as the model_ of an estimator, or the path of its file;
        eval_set: [(X, y)], rows that no tree grows on: they get metrics, and early stopping watches them;
        sample_weight_eval_set: [sample_weight]; verbose: print the metrics of each round, or of each n-th."""
        if is_collection(X):
            given = {"sites": sites, "eval_set": eval_set, "sample_weight_eval_set": sample_weight_eval_set}
            collected = self._collected(X, y, sample_weight, **given)
            self.classes_ = collected.classes()
            return self._fit_collected(collected, self._follows(), xgb_model, verbose)
        rows = checked(self, X, y, sample_weight, numbers=False)
        check_classification_targets(rows.label)
        self.classes_ = np.unique(rows.label)
        names, follows = self._names, self._follows()
        options = self._options(rows, sites, xgb_model, eval_set, sample_weight_eval_set, verbose)

        def label(values: npt.NDArray[Any]) -> pa.Array:
            codes = np.searchsorted(self.classes_, values).clip(max=len(names) - 1)
            if (strange := self.classes_[codes] != values).any():
                raise ValueError(f"eval_set: no training row has the class {values[strange][0]!s}")
            return pa.DictionaryArray.from_arrays(codes.astype(np.int32), pa.array(names))

        return self._fit(rows, label, follows, options)

    @property
    def _names(self) -> list[str]:
        """The classes as the terms spell them."""
        return [_spelled(label) for label in self.classes_.tolist()]

    def _follows(self) -> dict[str, Any]:
        """The objective, and what of the schema follows from the classes. ConfigError."""
        names, objective = self._names, self.objective
        if objective is None:
            objective = "binary:logistic" if len(names) == 2 else "multi:softprob"
        if objective not in (classifiers := names_of(LabelKind.CLASS)):
            here = name_here(objective, classifiers)
            hint = f" (did you mean {here}?)" if here else ""
            raise ConfigError(
                f"FederatedClassifier: objective is {objective!r}{hint}; it takes {' or '.join(classifiers)}"
            )
        if objective == "binary:logistic" and len(names) > 2:
            raise ConfigError(
                f"FederatedClassifier: binary:logistic is for two classes, y has {len(names)}: leave it out"
            )
        if len(names) < 2:
            raise ValueError(f"y has one class, {names[0]!r}: there is nothing to learn")
        columns = {"positive": names[1]} if objective == "binary:logistic" else {"classes": names}
        return {"objective": objective, "columns": columns}

    def predict_proba(self, X: Any) -> Float64:
        """The probability of each of `classes_`: float64 [rows, classes]."""
        predicted = self._predicted(X)
        return predicted if predicted.ndim == 2 else np.column_stack([1.0 - predicted, predicted])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable of `classes_`, [rows]; of equal ones the first."""
        best = np.argmax(self.predict_proba(X), axis=1)
        chosen: npt.NDArray[Any] = self.classes_[best]
        return chosen


def _spelled(label: object) -> str:
    """A label's text in the terms: that of a table's cell."""
    if isinstance(label, bool):
        return str(label).lower()
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


# ---- Amounts as a scikit-learn regressor ----------------------------------------------------------------
# Promises: predictions are float64 [rows].
# Refuses: an objective that is for classes or for groups of rows (ConfigError).


class FederatedRegressor(RegressorMixin, Federated):  # type: ignore[misc]
    """Amounts from trees that sites grow together: reg:squarederror unless objective says otherwise.

    All rows are here, so nothing is hidden from anybody; see `FederatedClassifier`, whose parameters and
    attributes it has, but for classes_.
    """

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
        """Train. y: numbers [rows]; the others are those of `FederatedClassifier.fit`."""
        if is_collection(X):
            given = {"sites": sites, "eval_set": eval_set, "sample_weight_eval_set": sample_weight_eval_set}
            collected = self._collected(X, y, sample_weight, **given)
            return self._fit_collected(collected, self._follows(), xgb_model, verbose)
        rows = checked(self, X, y, sample_weight, numbers=True)
        follows = self._follows()
        options = self._options(rows, sites, xgb_model, eval_set, sample_weight_eval_set, verbose)
        return self._fit(rows, lambda y: pa.array(y.astype(np.float64)), follows, options)

    def _follows(self) -> dict[str, Any]:
        """The objective. ConfigError."""
        objective = self.objective or "reg:squarederror"
        if objective in names_of(LabelKind.CLASS):
            raise ConfigError(
                f"FederatedRegressor: objective {objective!r} is for classes: use FederatedClassifier"
            )
        if objective in names_of(LabelKind.RELEVANCE):
            raise ConfigError(
                f"FederatedRegressor: objective {objective!r} is for groups of rows: use FederatedRanker"
            )
        return {"objective": objective}

    def predict(self, X: Any) -> Float64:
        """The prediction of each row: float64 [rows]."""
        return self._predicted(X)


# ---- Orders of rows within groups, as XGBoost's XGBRanker -----------------------------------------------
# Promises: `group` and `qid` mean what they mean there.
# Refuses: a group whose rows are at several sites, an objective that is not for groups (ConfigError); sizes
# of groups that are not those of the rows (ValueError).


class FederatedRanker(Federated):
    """Scores that order the rows of a group, from trees that sites grow together: rank:ndcg unless objective
    says otherwise.

    All rows are here, so nothing is hidden from anybody; see `FederatedClassifier`, whose parameters and
    attributes it has, but for classes_.
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
        """Train. y: relevance, whole numbers from 0 to 31, [rows]; group: the sizes of the groups, one behind
        the other in the rows; or qid: the group of each row, [rows]; sample_weight: of each group, in their
        order or in that of increasing qid; eval_group, eval_qid: [group], [qid] of eval_set. The others are
        those of `FederatedClassifier.fit`. The rows of a group are at one site."""
        if is_collection(X):
            raise ConfigError(
                "FederatedRanker takes no collections of Dask: give fedboost.simulate a DataFrame with a "
                "column of groups"
            )
        rows = checked(self, X, y, None, numbers=True)
        objective = self.objective or "rank:ndcg"
        if objective not in (rankings := names_of(LabelKind.RELEVANCE)):
            takes = " or ".join(rankings)
            raise ConfigError(f"FederatedRanker: objective is {objective!r}; it takes {takes}")
        groups = _groups(rows, group, qid, "group", "qid")
        rows = replace(rows, group=groups)
        if sample_weight is not None:
            weight, count = column_or_1d(sample_weight), int(groups.max()) + 1
            if len(weight) != count:
                raise ValueError(f"sample_weight has {len(weight)} weights, {count} groups need one each")
            rows = replace(rows, weight=weight.astype(np.float64)[groups])
        if sites is not None:
            _check_sites(rows, sites)
        options = self._options(rows, sites, xgb_model, eval_set, None, verbose)
        if options.held_out is not None:
            index = [prefix != "" for _, prefix in options.evaluated].index(True)
            own, own_qid = (None if each is None else each[index] for each in (eval_group, eval_qid))
            codes = _groups(options.held_out, own, own_qid, "eval_group", "eval_qid")
            options = replace(options, held_out=replace(options.held_out, group=codes))
        return self._fit(rows, lambda y: pa.array(y.astype(np.float64)), {"objective": objective}, options)

    def predict(self, X: Any) -> Float64:
        """The score of each row, float64 [rows]: the higher, the further ahead in its group."""
        return self._predicted(X)


def _groups(rows: Rows, group: Any, qid: Any, group_name: str, qid_name: str) -> npt.NDArray[np.int64]:
    """The number of the group of each row, from 0."""
    if (group is None) == (qid is None):
        raise ValueError(f"give {group_name}, the sizes of the groups, or {qid_name}, the group of each row")
    if qid is not None:
        check_consistent_length(rows.label, qid)
        return np.unique(column_or_1d(qid), return_inverse=True)[1].astype(np.int64)
    sizes = column_or_1d(group)
    if sizes.sum() != len(rows.label) or (sizes < 0).any():
        raise ValueError(f"{group_name} adds up to {sizes.sum()} rows, X has {len(rows.label)}")
    return np.repeat(np.arange(len(sizes)), sizes)


def _check_sites(rows: Rows, sites: Any) -> None:
    """Raise ConfigError if a group is at several sites, where its rows would not be ranked against each
    other."""
    check_consistent_length(rows.label, sites)
    names = column_or_1d(sites)
    assert rows.group is not None
    _, first = np.unique(rows.group, return_index=True)
    away = names != names[first][rows.group]
    if away.any():
        row = int(np.argmax(away))
        raise ConfigError(
            f"FederatedRanker: the group of row {row + 1} is at {names[first][rows.group][row]!r} and at "
            f"{names[row]!r}: a group is at one site"
        )
