"""Amounts as a scikit-learn regressor.

Promises: predictions are float64 [rows].
Refuses: an objective that is for classes or for groups of rows (ConfigError).
"""

from typing import Any, Self

import numpy as np
import pyarrow as pa
from sklearn.base import RegressorMixin

from fedboost.errors import ConfigError
from fedboost.estimators.base import Federated
from fedboost.estimators.rows import checked
from fedboost.fixedpoint import Float64
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import names_of
from fedboost.runtime.workers.collections import is_collection


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
