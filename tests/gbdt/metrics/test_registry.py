"""Metrics: what the sums come to, against scikit-learn; and that the sums of parties add."""

import math

import numpy as np
import pytest
import xgboost
from inprocess import randomly
from sklearn import metrics as sklearn

from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import metrics
from fedboost.gbdt.metrics import METRICS, fits, grows, is_metric, metric_of, metrics_for
from fedboost.gbdt.objectives.objective import LOG, LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective

PARAMETERS = {"error": 0.3, "tweedie-nloglik": 1.3}
SETTINGS = {
    **{"num_class": 4, "quantile_alpha": 0.3},
    **{"aft_loss_distribution": "extreme", "aft_loss_distribution_scale": 2.5},
}


def names_of(kind):
    """The metrics of an objective, those with a parameter with one."""
    names = [name for name in kind.metrics if name in METRICS]
    return (*names, *(f"{name}@{PARAMETERS[name]}" for name in kind.metrics if name in PARAMETERS))


NAMES = {
    name: names_of(kind)
    for name, kind in OBJECTIVES.items()
    # others are in test_ranking.py and test_cox.py, because a row's loss depends on other rows
    if kind.label_kind is not LabelKind.RELEVANCE and not kind.has_risk_sets
}
EVERY = [(objective, name) for objective, names in NAMES.items() for name in names]
ROWS = 5000
WEIGHTED = Scale(3, 16)
PLAIN = UNIT


def loss(objective):
    return make_objective(objective, SETTINGS)


def rows(objective):
    rng, kind = np.random.default_rng(0), OBJECTIVES[objective]
    margin = rng.normal(0, 1.5, ROWS)
    match kind.label_kind, kind.classes_key:
        case LabelKind.CLASS, "classes":
            margin = rng.normal(0, 1.5, (4, ROWS))
            label = np.argmax(margin + rng.gumbel(size=margin.shape), axis=0)
        case LabelKind.CLASS, _:
            label = rng.random(ROWS) < 1 / (1 + np.exp(-margin))
        case LabelKind.COUNT, _:
            label = rng.poisson(np.exp(margin))
        case LabelKind.POSITIVE, _:
            label = np.maximum(np.exp(margin) * rng.exponential(1, ROWS), 1e-3)
        case LabelKind.INTERVAL, _:
            time, censored = np.exp(margin + rng.logistic(size=ROWS)), rng.integers(0, 4, ROWS)
            lower = np.where(censored < 3, time, 0)
            label = np.array([lower, np.where(censored == 0, time, time + rng.exponential(2, ROWS))])
            label[1, censored == 1] = np.inf
        case _:
            label = margin + rng.normal(0, 2, ROWS)
    weight = np.round(rng.uniform(0, 8, ROWS) * 4) / 4  # exact in the scale of WEIGHTED
    return margin, label.astype(np.float32), weight.astype(np.float32)


def value(name, margin, label, weight, of, objective=None):
    objective = objective or next(known for known, kind in OBJECTIVES.items() if fits(name, kind))
    total = metrics.sums((name,), loss(objective), margin, label, weight, of)
    return metrics.values((name,), total, of)[name]


def of_xgboost(objective, name, margin, label, weight):
    """What XGBoost says of these margins: a booster of no trees evaluates base margins."""
    equivalent = loss(objective).xgboost_equivalent
    groups = equivalent.xgboost_params.values()
    own = {key: value.strip("[]") for group in groups for key, value in group.items()}
    labels = {"label": label}
    if label.ndim == 2:
        labels = {"label_lower_bound": label[0], "label_upper_bound": label[1]}
    data = xgboost.DMatrix(np.zeros((ROWS, 1)), weight=weight, base_margin=margin.T, **labels)
    told = {"objective": equivalent.name, "eval_metric": name, "disable_default_eval_metric": 1, **own}
    booster = xgboost.Booster(told, [data])
    return float(booster.eval(data).split(":")[-1])


def calibration_error(probability, label, weight):
    """By the definition: bins of the probability, in each the means, all weighed by what is in it."""
    of, found = np.digitize(probability, np.linspace(0, 1, 16)[1:-1]), 0.0
    for rows in (of == number for number in range(15)):
        if weight[rows].any():
            apart = np.average(probability[rows], weights=weight[rows]) - np.average(
                label[rows], weights=weight[rows]
            )
            found += abs(apart) * weight[rows].sum() / weight.sum()
    return found


def due(objective, name, margin, label, weight):
    probability = 1 / (1 + np.exp(-margin))
    rate = np.exp(margin) if OBJECTIVES[objective].link == LOG else margin
    shares = (np.exp(margin) / np.exp(margin).sum(axis=0)).T
    match name:
        case "logloss":
            return sklearn.log_loss(label, probability, sample_weight=weight)
        case "mlogloss":
            return sklearn.log_loss(label, shares, sample_weight=weight)
        case "merror":
            return 1 - sklearn.accuracy_score(label, shares.argmax(axis=1), sample_weight=weight)
        case "error":
            return 1 - sklearn.accuracy_score(label, margin > 0, sample_weight=weight)
        case "auc":
            return sklearn.roc_auc_score(label, np.floor(margin * 32), sample_weight=weight)
        case "rmse":
            return math.sqrt(sklearn.mean_squared_error(label, rate, sample_weight=weight))
        case "mae":
            return sklearn.mean_absolute_error(label, rate, sample_weight=weight)
        case "ks":
            false, true, _ = sklearn.roc_curve(label, np.floor(margin * 32), sample_weight=weight)
            return np.abs(true - false).max()
        case "ece":
            return calibration_error(probability, label, weight)
        case "gamma-deviance":
            return sklearn.mean_gamma_deviance(label, rate, sample_weight=weight)
        case "aucpr":
            return of_xgboost(objective, name, np.floor(margin * 32) / 32, label, weight)
        case _:
            return of_xgboost(objective, name, margin, label, weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("objective", "name"), EVERY)
def test_each_metric_is_scikit_learns_or_xgboosts(objective, name, weighted):
    margin, label, weight = rows(objective)
    weight = weight if weighted else np.ones(ROWS, np.float32)
    of = WEIGHTED if weighted else PLAIN
    found = value(name, margin, label, weight, of, objective)
    assert found == pytest.approx(due(objective, name, margin, label, weight), rel=1e-5)


def test_every_metric_is_tested():
    ranking = {"ndcg", "ndcg-"}  # in test_ranking.py
    survival = {"cindex", "cox-nloglik"}  # in test_survival.py and test_cox.py
    assert {name for _, name in EVERY if "@" not in name} == set(METRICS) - ranking - survival
    for objective, kind in OBJECTIVES.items():
        if objective.startswith("rank:"):
            assert metrics_for(kind) == [*sorted(ranking), "ndcg@k", "ndcg@k-"]
            continue
        if kind.has_risk_sets:
            continue
        shown = metrics_for(kind)
        assert all(name in shown or name.partition("@")[0] + "@t" in shown for name in NAMES[objective])
        assert fits(loss(objective).default_metric, kind), kind


@pytest.mark.parametrize(
    "name", ["aucc", "auc@0", "brier@x", "error@", "error@0", "error@nan", "tweedie-nloglik@2", "@"]
)
def test_what_is_no_metric(name):
    assert not is_metric(name)
    with pytest.raises(KeyError):
        metric_of(name)


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e18])
@pytest.mark.parametrize("name", ["rmse", "mae"])
def test_means_of_numbers_of_any_size_lose_nothing(name, size):
    margin, label, weight = rows("reg:squarederror")
    margin, label = margin * size, (label * size).astype(np.float32)
    label[0] = 2.0**60  # one row far beyond the others takes nothing from what they add
    weight[0] = 0
    found = value(name, margin, label, weight, WEIGHTED)
    rest = slice(1, None)
    residual = np.abs(margin[rest] - label[rest])
    power = 2 if name == "rmse" else 1
    assert found == pytest.approx(np.average(residual**power, weights=weight[rest]) ** (1 / power), rel=1e-9)


def test_margins_that_went_to_infinity_give_a_large_number():
    label, ones = np.array([1.0, 2.0], np.float32), np.ones(2, np.float32)
    for objective, names in NAMES.items():
        kind = OBJECTIVES[objective]
        if kind.link == LOG and kind.label_kind is not LabelKind.INTERVAL:
            for name in names:
                for margin in (1e6, -1e6):
                    assert math.isfinite(value(name, np.full(2, margin), label, ones, PLAIN, objective))


def test_auc_of_scores_rounded_to_a_32nd_is_close_to_the_auc():
    margin, label, weight = rows("binary:logistic")
    exact = sklearn.roc_auc_score(label, margin, sample_weight=weight)
    assert abs(value("auc", margin, label, weight, WEIGHTED) - exact) < 1e-3


def test_auc_takes_margins_of_any_size_and_one_class():
    label = np.array([0, 0, 1, 1], np.float32)
    ones = np.ones(4, np.float32)
    assert value("auc", np.array([-1e9, -9.0, 9.0, 1e9]), label, ones, PLAIN) == 1.0
    assert value("auc", np.array([1e9, 9.0, -9.0, -1e9]), label, ones, PLAIN) == 0.0
    assert value("auc", np.zeros(4), label, ones, PLAIN) == 0.5
    assert math.isnan(value("auc", np.zeros(4), np.zeros(4, np.float32), ones, PLAIN))


def test_calibration_of_certain_and_of_honest_predictions():
    label, ones = np.array([1, 0, 1, 0], np.float32), np.ones(4, np.float32)
    assert value("ece", np.array([1e9, -1e9, 1e9, -1e9]), label, ones, PLAIN) == 0.0
    assert value("ece", np.array([-1e9, 1e9, -1e9, 1e9]), label, ones, PLAIN) == 1.0
    assert value("ece", np.zeros(4), label, ones, PLAIN) == 0.0  # half of them are 1
    assert value("ece", np.zeros(4), ones, ones, PLAIN) == 0.5
    assert not grows("ece")


def test_error_counts_margin_zero_as_the_label_0():
    margin, label = np.array([0.0, 0.0, 1e-9, -1e-9]), np.array([0, 0, 1, 1], np.float32)
    assert value("error", margin, label, np.ones(4, np.float32), PLAIN) == 0.25


def test_log_loss_of_extreme_margins_is_finite_and_clipped():
    margin, label = np.array([1e9, -1e9, 30.0]), np.array([1, 1, 0], np.float32)
    found = value("logloss", margin, label, np.ones(3, np.float32), PLAIN)
    assert found == pytest.approx((0 + 2**10 + 30) / 3)


@pytest.mark.parametrize("parties", [2, 3, 7])
@pytest.mark.parametrize(("objective", "names"), [*NAMES.items()])
def test_sums_of_parties_add_to_the_sums_of_the_pooled_rows(objective, names, parties):
    margin, label, weight = rows(objective)
    pooled = metrics.sums(names, loss(objective), margin, label, weight, WEIGHTED)
    assert pooled.shape == (metrics.cells(names),)
    shares = randomly(ROWS, parties)
    of = [(np.ascontiguousarray(margin[..., s]), label[..., s], weight[s]) for s in shares]
    added = sum(metrics.sums(names, loss(objective), *share, WEIGHTED) for share in of)
    assert added.tolist() == pooled.tolist()


@pytest.mark.parametrize("of", [PLAIN, WEIGHTED])
@pytest.mark.parametrize(("objective", "names"), [*NAMES.items()])
def test_no_row_contributes_more_than_the_limit(objective, names, of):
    margin, label, weight = rows(objective)
    margin = margin * 1e6
    limit = metrics.limit(names, of)
    for row in range(0, ROWS, 50):
        one = slice(row, row + 1)
        share = np.ascontiguousarray(margin[..., one]), label[..., one], weight[one] * 1e9
        assert np.abs(metrics.sums(names, loss(objective), *share, of)).max() <= limit


def test_several_metrics_are_read_back_by_name():
    margin, label, weight = rows("binary:logistic")
    names = ("auc", "logloss", "error")
    total = metrics.sums(names, loss("binary:logistic"), margin, label, weight, WEIGHTED)
    together = metrics.values(names, total, WEIGHTED)
    assert together == {name: value(name, margin, label, weight, WEIGHTED) for name in names}
