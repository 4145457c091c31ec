"""Orders of rows within groups, as XGBoost's XGBRanker.

Promises: `group` and `qid` mean what they mean there.
Refuses: a group whose rows are at several sites, an objective that is not for groups (ConfigError); sizes of
groups that are not those of the rows (ValueError).
"""

from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.utils.validation import check_consistent_length, column_or_1d

from fedboost.errors import ConfigError
from fedboost.estimators.base import Federated
from fedboost.estimators.rows import Rows, checked
from fedboost.fixedpoint import Float64
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import names_of
from fedboost.runtime.workers.collections import is_collection


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
