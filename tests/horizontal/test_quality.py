"""Models as good as XGBoost's, for every objective."""

import numpy as np
import pytest
import xgboost
from inprocess import one_party, randomly, run
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss, roc_auc_score
from trainings import (
    PARTITIONS,
    REGRESSION,
    ROWS,
    SMALL,
    censored,
    data,
    matrix,
    split_in_two,
    spoiling,
    turns_of,
)

from fedboost.boosting.queries.labels import ResidualQuery
from fedboost.gbdt.metrics import grows


def test_auc_is_xgboosts_on_breast_cancer():
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    X[::7, 3] = np.nan
    X, y, X_test, y_test = split_in_two(X, y)
    session = run(X, y, randomly(len(y), 3), rounds=30)
    ours = roc_auc_score(y_test, session.booster.predict(X_test))
    same = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.3, "tree_method": "hist", "nthread": 1}
    theirs_model = xgboost.train(same, xgboost.DMatrix(X, y), 30)
    theirs = roc_auc_score(y_test, theirs_model.predict(xgboost.DMatrix(X_test)))
    assert theirs > 0.97
    assert abs(ours - theirs) < 0.01


@pytest.mark.slow
def test_rmse_is_xgboosts_on_a_regression():
    """The mean over paired seeds: a single one of these small tables scatters by 8 %."""
    ratios = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 6)).astype(np.float32)
        y = (3 * X[:, 0] + X[:, 1] ** 2 + X[:, 2] * X[:, 3] + 0.3 * rng.normal(size=3000)).astype(np.float32)
        X, y, X_test, y_test = split_in_two(X, y)
        session = run(X, y, randomly(len(y), 3), rounds=30, objective="reg:squarederror")
        same = {
            "objective": "reg:squarederror",
            "max_depth": 6,
            "eta": 0.3,
            "tree_method": "hist",
            "nthread": 1,
        }
        theirs = xgboost.train(same, xgboost.DMatrix(X, y), 30).predict(xgboost.DMatrix(X_test))
        ours_rmse, theirs_rmse = (
            float(np.sqrt(np.mean((predicted - y_test) ** 2)))
            for predicted in (session.booster.predict(X_test), theirs)
        )
        assert theirs_rmse < np.std(y_test) / 2
        ratios.append(ours_rmse / theirs_rmse)
    assert abs(np.mean(ratios) - 1) < 0.05


@pytest.mark.slow
def test_probabilities_of_classes_are_xgboosts():
    """The mean over paired seeds of the log loss; three classes, one of them rare."""
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 6)).astype(np.float32)
        y = np.digitize(X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=3000), [-1.0, 2.0])
        X, y, X_test, y_test = split_in_two(X, y.astype(np.float32))
        settings = {"objective": "multi:softprob", "num_class": 3}
        session = run(X, y, randomly(len(y), 3), rounds=20, **settings)
        same = {**settings, "max_depth": 6, "eta": 0.3, "tree_method": "hist", "nthread": 1}
        theirs = xgboost.train(same, xgboost.DMatrix(X, y), 20).predict(xgboost.DMatrix(X_test))
        losses = [log_loss(y_test, p) for p in (session.booster.predict(X_test), theirs)]
        assert losses[1] < 0.5
        ratios.append(losses[0] / losses[1])
    assert abs(np.mean(ratios) - 1) < 0.05


def drawn(objective, rate, rng):
    """Labels for an objective, about these rates."""
    match objective:
        case "count:poisson":
            return rng.poisson(rate)
        case "reg:gamma":
            return np.maximum(rng.gamma(2, rate), 1e-3)
        case "reg:tweedie":
            return rng.poisson(rate) * rng.gamma(4, 100 * np.sqrt(rate))
        case "reg:pseudohubererror" | "reg:absoluteerror" | "reg:quantileerror":
            return np.log(rate) + 0.3 * rng.standard_t(2, rate.size)
        case "binary:logistic":
            return np.log(rate) + rng.normal(size=rate.size) > 1
        case "survival:aft":
            return censored(rate * rng.exponential(1, rate.size), rng)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "own", "metric"),
    [
        ("count:poisson", {}, "poisson-nloglik"),
        ("reg:gamma", {}, "gamma-deviance"),
        ("reg:tweedie", {"tweedie_variance_power": 1.3}, "tweedie-nloglik@1.3"),
        ("reg:pseudohubererror", {"huber_slope": 0.5}, "mphe"),
        ("reg:absoluteerror", {}, "mae"),
        ("reg:quantileerror", {"quantile_alpha": 0.2}, "quantile"),
        ("binary:logistic", {"scale_pos_weight": 5.0}, "aucpr"),
        ("binary:logistic", {"max_delta_step": 0.3}, "logloss"),
        ("survival:aft", {"aft_loss_distribution_scale": 0.8}, "aft-nloglik"),
        ("survival:aft", {"aft_loss_distribution": "logistic"}, "aft-nloglik"),
        ("survival:aft", {"aft_loss_distribution": "extreme"}, "interval-regression-accuracy"),
    ],
)
def test_other_losses_are_as_good_as_xgboosts(objective, own, metric):
    """The mean over paired seeds of XGBoost's own metric, on rows neither saw, of both model files."""
    ratios, settings = [], {"objective": objective, **own}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 6)).astype(np.float32)
        y = drawn(objective, np.exp(X[:, 0] + X[:, 1] * X[:, 2] / 2), rng)
        X, y, X_test, y_test = split_in_two(X, y.astype(np.float32))
        session = run(X, y, randomly(len(X), 3), rounds=20, eval_metric=[metric], **settings)
        same = {**settings, "max_depth": 6, "eta": 0.3, "tree_method": "hist", "nthread": 1}
        theirs = xgboost.train(same, matrix(X, y), 20)
        ours = xgboost.Booster()
        ours.load_model(bytearray(session.booster.to_xgboost().encode()))
        theirs.feature_names = list(session.booster.features)
        wanted = {**own, "eval_metric": metric, "disable_default_eval_metric": 1}

        def score(booster, X, y, wanted=wanted, names=theirs.feature_names):
            booster.set_param(wanted)
            return float(booster.eval(matrix(X, y, feature_names=names)).split(":")[-1])

        assert session.history[-1].metrics[metric] == pytest.approx(score(ours, X, y), rel=1e-3)
        ratios.append(score(ours, X_test, y_test) / score(theirs, X_test, y_test))
    better = [1 / ratio for ratio in ratios] if grows(metric) else ratios
    assert 0.8 < np.mean(better) < 1.03  # XGBoost's Tweedie overfits so few rows more than ours


def test_amounts_far_beyond_the_others_leave_them_their_gradients():
    """One row of ten thousand times the usual amount: in 16 bits the gradients of the others would be 0."""
    X, y, _ = data("amount or nothing")
    settings = {**SMALL, "objective": "reg:tweedie", "eval_metric": "tweedie-nloglik@1.5", "rounds": 20}
    y[0] = 1e5 * y.mean()
    weight = np.ones(ROWS, np.float32)
    weight[0] = 1e-6
    found = run(X, y, PARTITIONS["3 at random"], weight, **settings)
    without = run(X[1:], y[1:], one_party(ROWS - 1), **settings)
    losses = [session.history[-1].metrics["tweedie-nloglik@1.5"] for session in (found, without)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_leaf_values_are_quantiles_of_the_residuals_in_the_leaf(alpha, weighted):
    """The constant of the labels, the values of a tree of what that leaves, both to one part in 2**15."""
    X, y, weight = data("number")
    weight = np.ceil(weight).astype(np.float32)
    settings = {"objective": "reg:quantileerror", "quantile_alpha": alpha, "rounds": 1, "learning_rate": 1.0}
    given = weight if weighted else None
    booster = run(X, y, PARTITIONS["3 at random"], given, max_depth=2, gradient_bits=24, **settings).booster
    weight = weight if weighted else np.ones(ROWS)

    def lower_quantile(values, weight):
        order = np.argsort(values)
        until = np.cumsum(weight[order])
        return values[order][np.searchsorted(until, alpha * until[-1] * (1 - 1e-6))]

    assert booster.base_score == pytest.approx(lower_quantile(y, weight), rel=2**-15)
    leaf = booster.margins(X) - booster.constant
    values = np.unique(leaf)
    assert 3 <= values.size <= 4
    for value in values:
        rows = leaf == value
        residual = (y - np.float32(booster.constant))[rows]
        assert value == pytest.approx(lower_quantile(residual, weight[rows]), rel=2**-14, abs=1e-5)


def test_weights_of_residuals_that_do_not_add_up_fail_the_session():
    X, y, _ = data("number")
    parts = PARTITIONS["3 at random"]
    settings = {**SMALL, "objective": "reg:absoluteerror"}
    asked = turns_of(X, y, parts, **settings)
    turns = [turn for turn, query in asked.items() if isinstance(query, ResidualQuery)]
    assert len(turns) == 3 * (SMALL["rounds"] + 1)
    for turn in (turns[1], turns[5]):
        session = run(X, y, parts, spoil=spoiling(turn, asked[turn], 3), **settings)
        assert f"turn {turn}: the residual weights in a cell's parts do not sum" in str(session.error)


@pytest.mark.slow
def test_auc_is_xgboosts_where_sets_of_levels_tell_the_label():
    """Means over paired seeds; as numbers the levels tell less in as many trees."""
    ours, theirs, as_numbers = [], [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = np.column_stack([rng.normal(size=3000), *(rng.integers(0, size, 3000) for size in (3, 20, 60))])
        effect = [rng.normal(size=size) for size in (3, 20, 60)]
        signal = sum(of[X[:, f].astype(int)] for f, of in enumerate(effect, 1)) + 0.3 * X[:, 0]
        X[rng.random(X.shape) < 0.05] = np.nan
        y = (signal + 0.5 * rng.normal(size=3000) > 0).astype(np.float32)
        X, y, X_test, y_test = split_in_two(X.astype(np.float32), y)
        for levels, scores in (((3, 20, 60), ours), ((), as_numbers)):
            session = run(X, y, randomly(len(y), 3), rounds=10, max_depth=4, levels=levels)
            scores.append(roc_auc_score(y_test, session.booster.predict(X_test)))
        same = {"objective": "binary:logistic", "max_depth": 4, "tree_method": "hist", "nthread": 1}
        kinds = {"feature_types": ["q", "c", "c", "c"], "enable_categorical": True}
        model = xgboost.train(same, xgboost.DMatrix(X, y, **kinds), 10)
        theirs.append(roc_auc_score(y_test, model.predict(xgboost.DMatrix(X_test, **kinds))))
    assert np.mean(theirs) > 0.85
    assert abs(np.mean(ours) - np.mean(theirs)) < 0.005
    assert np.mean(ours) > np.mean(as_numbers) + 0.02


def test_each_round_learns_what_the_last_one_left():
    X, y, _ = data("number")
    session = run(X, y, PARTITIONS["5 at random"], **{**REGRESSION, "rounds": 12})
    rmse = [round_.metrics["rmse"] for round_ in session.history]
    assert rmse == sorted(rmse, reverse=True)
    assert rmse[-1] < np.std(y) / 3
