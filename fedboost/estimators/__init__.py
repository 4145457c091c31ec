"""Federated training as scikit-learn's estimators, to try it with the tools that expect those.

Promises: parameters have the names and defaults of `Terms`, but for `n_estimators` (its `rounds`),
`random_state` (its `seed`) and `n_jobs` (threads of a party).
Refuses: arrays, labels and weights that scikit-learn refuses, in its words (ValueError, TypeError); what the
terms cannot have, and use without scikit-learn 1.6 or newer (ConfigError).
"""

from fedboost.errors import ConfigError

try:
    from sklearn.utils.validation import validate_data  # noqa: F401 - the newest name that is needed
except ImportError:
    raise ConfigError(
        "FederatedClassifier, FederatedRegressor and FederatedRanker need scikit-learn 1.6 or newer: "
        "pip install 'fedboost[sklearn]'"
    ) from None

from fedboost.estimators.learners import FederatedClassifier, FederatedRanker, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRanker", "FederatedRegressor"]
