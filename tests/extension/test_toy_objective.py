"""An objective from outside: a class and one call that registers it."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedboost as fb
from fedboost.gbdt.kernels.objectives import exps
from fedboost.gbdt.metrics import metrics_for
from fedboost.gbdt.objectives.built_in import SquaredError
from fedboost.gbdt.objectives.objective import LabelKind, Objective
from fedboost.gbdt.objectives.registry import OBJECTIVES, register


@dataclass(frozen=True)
class LogCosh(Objective):
    """Log-cosh: squared error near the label, absolute error far off."""

    name = "toy:logcosh"
    label_kind = LabelKind.NUMBER
    metrics = "mae", "rmse"
    start = SquaredError()
    xgboost_equivalent = SquaredError()

    def gradients(self, margin, label, weight):
        decay = exps(-2.0 * np.abs(margin - label))
        tanh = np.sign(margin - label) * (1.0 - decay) / (1.0 + decay)
        return weight * tanh, weight * (1.0 - tanh * tanh)


@pytest.fixture(autouse=True)
def registered():
    register(LogCosh)
    yield
    del OBJECTIVES[LogCosh.name]


def tables():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300))
    rows = {"a": a, "b": b, "y": 5 * a + rng.standard_t(2, size=300)}
    return rows, {f"p{i}": {name: values[i::3] for name, values in rows.items()} for i in range(3)}


def terms(**settings):
    columns = {"label": "y", "numeric": ["a", "b"]}
    return fb.Terms.read(
        {"columns": columns, "objective": LogCosh.name, "rounds": 5, "max_depth": 3, **settings}
    )


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_the_federated_model_is_the_pooled_one(protection):
    rows, parts = tables()
    federated = terms(protection=protection)
    result = fb.simulate(federated, parts)
    pooled = fb.simulate(federated.changed(protection="plain"), {"all": rows})
    assert result.model.booster == pooled.model.booster
    assert result.model.booster.loss == LogCosh()
    assert list(result.history[-1])[:2] == ["round", "mae"]
    assert result.history[-1]["mae"] < result.history[0]["mae"]


def test_its_facts_are_looked_up():
    assert metrics_for(LogCosh) == ["rmse", "mae"]
    assert fb.Terms.draft(tables()[0], "y", objective=LogCosh.name).objective.name == LogCosh.name
    with pytest.raises(
        fb.ConfigError, match=r"auc does not apply to objective toy:logcosh; use one of: rmse, mae$"
    ):
        terms(eval_metric="auc")
    with pytest.raises(fb.ConfigError, match="toy:logcosh does not limit a row's influence"):
        terms(noise={"epsilon": 1.0, "delta": 1e-6})
    with pytest.raises(
        fb.ConfigError, match="huber_slope is for reg:pseudohubererror, not for toy:logcosh: remove it"
    ):
        terms(huber_slope=2.0)


def test_what_cannot_be_registered():
    with pytest.raises(ValueError, match="objective toy:logcosh is already registered"):
        register(dataclass(frozen=True)(type("Other", (LogCosh,), {})))
    with pytest.raises(TypeError, match="is not a dataclass derived from Objective"):
        register(object)
