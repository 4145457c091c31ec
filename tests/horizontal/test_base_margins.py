"""Base margins: the same model for every partition, as XGBoost's adds them."""

import numpy as np
import pytest
import xgboost
from inprocess import model_of, one_party, randomly, run
from trainings import BASED, PARTITIONS, ROWS, SMALL, based, matrix


@pytest.mark.parametrize("partition", ["one row", "3 at random"])
@pytest.mark.parametrize("name", BASED)
def test_with_base_margins_every_partition_gives_the_model_of_the_pooled_rows(name, partition):
    X, y, weight, base, settings = based(name)
    pooled = model_of(X, y, one_party(ROWS), weight, base_margin=base, **settings)
    for protection in ("plain", "masked"):
        if protection == "plain" or partition == "3 at random":
            many = {"base_margin": base, "protection": protection, **settings}
            assert model_of(X, y, PARTITIONS[partition], weight, **many) == pooled
    assert pooled != model_of(X, y, one_party(ROWS), weight, **settings)


@pytest.mark.parametrize("name", BASED)
def test_xgboost_adds_the_trees_to_base_margins_as_training_did(name):
    X, y, weight, base, settings = based(name)
    session = run(X, y, PARTITIONS["3 at random"], weight, base_margin=base, **settings)
    booster = session.booster
    assert len(booster.trees) == (SMALL["rounds"] + 1) * booster.num_parallel_tree
    assert booster.begins_with_a_leaf
    theirs = xgboost.Booster()
    theirs.load_model(bytearray(booster.to_xgboost().encode()))
    names = list(booster.features)
    of_xgboost = matrix(X, y, weight=weight, base_margin=base, feature_names=names)
    margins = theirs.predict(of_xgboost, output_margin=True)
    scale = max(1.0, np.abs(margins).max())
    assert np.abs(booster.margins(X, base) - margins).max() <= 1e-6 * scale
    plain = theirs.predict(xgboost.DMatrix(X, feature_names=names), output_margin=True)
    assert np.abs(booster.margins(X) - plain).max() <= 1e-6 * scale
    (metric,) = session.history[-1].metrics
    if name == "times":  # the file says it to the objective, and not to the metric
        theirs.set_param({"aft_loss_distribution_scale": 0.7, "eval_metric": metric})
    said = float(theirs.eval(of_xgboost).split(":")[-1])
    assert session.history[-1].metrics[metric] == pytest.approx(said, rel=1e-3)
    constant = booster.trees[0].value[0]
    if name == "logistic, base_score":
        assert constant == pytest.approx(np.log(1 / 3))


def test_exposures_make_a_rate_of_counts():
    """Twice the exposure, twice the count: the trees learn the rate, the constant is counts by exposure."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(2000, 3)).astype(np.float32)
    exposure = rng.uniform(0.05, 1, 2000)
    y = rng.poisson(exposure * np.exp(X[:, 0] - 1))
    base = np.log(exposure).astype(np.float32)
    session = run(
        X, y, randomly(2000, 3), base_margin=base, objective="count:poisson", rounds=20, max_depth=3
    )
    booster = session.booster
    assert np.exp(booster.trees[0].value[0]) == pytest.approx(y.sum() / exposure.sum(), rel=1e-5)
    rates = booster.predict(X, np.zeros(2000, np.float32))
    assert booster.predict(X, base) == pytest.approx(rates * exposure, rel=1e-6)
    assert np.corrcoef(np.log(rates), X[:, 0])[0, 1] > 0.9
