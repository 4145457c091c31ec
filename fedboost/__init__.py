"""fedboost: gradient-boosted trees trained on data that cannot be pooled.

    import fedboost as fb

    terms = fb.Terms.draft("hospital.csv", label="diagnosis", rounds=50)
    result = fb.simulate(terms, {"north": "north.csv", "south": "south.csv", "east": "east.csv"})
    result.model.save("model.json")            # a standard XGBoost model file

Guarantees: importing this package is fast, because each name is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedboost.version import VERSION

__version__ = VERSION

_HOMES = {
    "Database": "fedboost.runtime.data.database", "FederatedClassifier": "fedboost.estimators",
    "FederatedRanker": "fedboost.estimators", "FederatedRegressor": "fedboost.estimators",
    "MLflowCallback": "fedboost.runtime.tracking", "Terms": "fedboost.sdk",
    "Model": "fedboost.runtime.model", "PartyModel": "fedboost.runtime.signed_model",
    "Result": "fedboost.runtime.model", "Training": "fedboost.runtime.analyst",
    "assemble": "fedboost.runtime.model", "connect": "fedboost.runtime.analyst",
    "describe": "fedboost.runtime.tasks", "Description": "fedboost.runtime.tasks",
    "drift": "fedboost.runtime.tasks", "Drift": "fedboost.runtime.tasks",
    "evaluate": "fedboost.runtime.tasks", "Evaluation": "fedboost.runtime.tasks",
    "predict_jointly": "fedboost.runtime.local.simulation", "simulate": "fedboost.sdk",
    "tune": "fedboost.runtime.tasks", "Tuning": "fedboost.runtime.tasks",
    "FedboostError": "fedboost.errors", "ConfigError": "fedboost.errors", "PeerError": "fedboost.errors",
    "Refused": "fedboost.errors", "SessionFailed": "fedboost.errors", "TableWarning": "fedboost.errors",
}  # fmt: skip

if TYPE_CHECKING:
    from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, SessionFailed, TableWarning
    from fedboost.estimators import FederatedClassifier, FederatedRanker, FederatedRegressor
    from fedboost.runtime.analyst import Training, connect
    from fedboost.runtime.data.database import Database
    from fedboost.runtime.local.simulation import predict_jointly
    from fedboost.runtime.model import Model, Result, assemble
    from fedboost.runtime.signed_model import PartyModel
    from fedboost.runtime.tasks import Description, Drift, Evaluation, Tuning, describe, drift, evaluate, tune
    from fedboost.runtime.tracking import MLflowCallback
    from fedboost.sdk import Terms, simulate

__all__ = [
    "ConfigError", "Database", "Description", "Drift", "Evaluation", "FedboostError",
    "FederatedClassifier", "FederatedRanker", "FederatedRegressor", "MLflowCallback", "Model",
    "PartyModel", "PeerError", "Refused", "Result", "SessionFailed", "TableWarning", "Terms", "Training",
    "Tuning", "assemble", "connect", "describe", "drift", "evaluate", "predict_jointly", "simulate",
    "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedboost' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
