"""Metrics: what the sums come to, against scikit-learn; and that the sums of parties add."""

import math

import numpy as np
import pytest
from inprocess import randomly
from sklearn import metrics as sklearn

from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import metrics
from fedboost.gbdt.metrics import METRICS, MetricScale

BINARY = ("logloss", "error", "auc")
ROWS = 5000
WEIGHTED = MetricScale(Scale(3, 16), 4)
PLAIN = MetricScale(UNIT, 4)


def rows(objective):
    rng = np.random.default_rng(0)
    margin = rng.normal(0, 1.5, ROWS)
    if objective == "multi:softprob":
        margin = rng.normal(0, 1.5, (4, ROWS))
        label = np.argmax(margin + rng.gumbel(size=margin.shape), axis=0)
    elif objective == "binary:logistic":
        label = rng.random(ROWS) < 1 / (1 + np.exp(-margin))
    else:
        label = margin + rng.normal(0, 2, ROWS)
    weight = np.round(rng.uniform(0, 8, ROWS) * 4) / 4  # exact in the scale of WEIGHTED
    return margin, label.astype(np.float32), weight.astype(np.float32)


def value(name, margin, label, weight, of):
    return metrics.values((name,), metrics.sums((name,), margin, label, weight, of), of)[name]


def due(name, margin, label, weight):
    probability = 1 / (1 + np.exp(-margin))
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
            return math.sqrt(sklearn.mean_squared_error(label, margin, sample_weight=weight))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", METRICS)
def test_each_metric_is_scikit_learns(name, weighted):
    margin, label, weight = rows(METRICS[name].objectives[0])
    weight = weight if weighted else np.ones(ROWS, np.float32)
    of = WEIGHTED if weighted else PLAIN
    assert value(name, margin, label, weight, of) == pytest.approx(due(name, margin, label, weight), rel=1e-5)


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


def test_error_counts_margin_zero_as_the_label_0():
    margin, label = np.array([0.0, 0.0, 1e-9, -1e-9]), np.array([0, 0, 1, 1], np.float32)
    assert value("error", margin, label, np.ones(4, np.float32), PLAIN) == 0.25


def test_log_loss_of_extreme_margins_is_finite_and_clipped():
    margin, label = np.array([1e9, -1e9, 30.0]), np.array([1, 1, 0], np.float32)
    found = value("logloss", margin, label, np.ones(3, np.float32), PLAIN)
    assert found == pytest.approx((0 + 2**10 + 30) / 3)


@pytest.mark.parametrize("parties", [2, 3, 7])
@pytest.mark.parametrize(
    ("objective", "names"), [("binary:logistic", BINARY), ("reg:squarederror", ("rmse",))]
)
def test_sums_of_parties_add_to_the_sums_of_the_pooled_rows(objective, names, parties):
    margin, label, weight = rows(objective)
    pooled = metrics.sums(names, margin, label, weight, WEIGHTED)
    assert pooled.shape == (metrics.cells(names),)
    shares = randomly(ROWS, parties)
    added = sum(metrics.sums(names, margin[s], label[s], weight[s], WEIGHTED) for s in shares)
    assert added.tolist() == pooled.tolist()


@pytest.mark.parametrize("of", [PLAIN, WEIGHTED])
@pytest.mark.parametrize(
    ("objective", "names"), [("binary:logistic", BINARY), ("reg:squarederror", ("rmse",))]
)
def test_no_row_contributes_more_than_the_limit(objective, names, of):
    margin, label, weight = rows(objective)
    margin = margin * 1e6
    limit = metrics.limit(names, of)
    for row in range(0, ROWS, 50):
        one = slice(row, row + 1)
        assert np.abs(metrics.sums(names, margin[one], label[one], weight[one] * 1e9, of)).max() <= limit


def test_several_metrics_are_read_back_by_name():
    margin, label, weight = rows("binary:logistic")
    names = ("auc", "logloss", "error")
    together = metrics.values(names, metrics.sums(names, margin, label, weight, WEIGHTED), WEIGHTED)
    assert together == {name: value(name, margin, label, weight, WEIGHTED) for name in names}
