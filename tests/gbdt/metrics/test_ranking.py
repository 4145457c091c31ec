"""The metric of rankings is scikit-learn's and XGBoost's."""

from itertools import pairwise

import numpy as np
import pytest
import xgboost
from ranked_rows import ROWS, SIZES, STARTS, rows
from sklearn.metrics import ndcg_score

from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt import metrics
from fedboost.gbdt.metrics import Ndcg, grows, is_metric, metric_of
from fedboost.gbdt.objectives.built_in import in_groups
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective


def value(name, margin, label, weight, of, starts=STARTS, **settings):
    loss = in_groups(make_objective("rank:ndcg", settings), starts)
    total = metrics.sums((name,), loss, margin, label, weight, of)
    return metrics.values((name,), total, of)[name]


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize("name", ["ndcg@1", "ndcg@5", "ndcg@5-", "ndcg@32", "ndcg@1000-"])
def test_the_metric_is_xgboosts(name, exponential):
    for margins in ("apart", "equal", "tied"):
        margin, label, weight = rows(margins)
        data = xgboost.DMatrix(np.zeros((ROWS, 1)), label, base_margin=margin, group=SIZES)
        told = {"objective": "rank:ndcg", "eval_metric": name, "ndcg_exp_gain": exponential}
        due = float(xgboost.Booster(told, [data]).eval(data).split(":")[-1])
        found = value(name, margin, label, np.ones_like(weight), UNIT, ndcg_exp_gain=exponential)
        assert found == pytest.approx(due, rel=1e-6)


@pytest.mark.parametrize("name", ["ndcg", "ndcg@7-"])
def test_the_metric_is_scikit_learns_weighted_by_group(name):
    margin, label, weight = rows()
    most = int(name[5:-1]) if "@" in name else None
    found = []
    for first, size in zip(STARTS[:-1], SIZES, strict=True):
        own = slice(int(first), int(first) + size)
        if not label[own].any():
            found.append(0.0 if name.endswith("-") else 1.0)
        elif size == 1:  # which scikit-learn does not take
            found.append(1.0)
        else:
            found.append(ndcg_score([2.0 ** label[own] - 1.0], [margin[own]], k=most))
    due = np.average(found, weights=weight[STARTS[:-1]])
    assert value(name, margin, label, weight, Scale(1, 24)) == pytest.approx(due, rel=1e-6)


def test_sums_of_groups_add_and_stay_within_the_limit():
    margin, label, weight = rows()
    names, of = ("ndcg", "ndcg@3"), Scale(2, 16)
    loss = OBJECTIVES["rank:ndcg"]()
    added = np.zeros(metrics.cells(names), np.int64)
    for first, end in pairwise(STARTS):
        own = slice(int(first), int(end))
        part = metrics.sums(names, loss, margin[own], label[own], weight[own], of)
        assert part[1:].max() <= metrics.limit(names, of)
        added += part
    pooled = metrics.sums(names, in_groups(loss, STARTS), margin, label, weight, of)
    assert added.tolist() == pooled.tolist()
    none = np.zeros(1, np.int64)
    empty = metrics.sums(names, in_groups(loss, none), margin[:0], label[:0], weight[:0], of)
    assert not empty.any()


def test_names_of_the_metric():
    assert metric_of("ndcg@5-") == Ndcg(5, 0.0)
    assert metric_of("ndcg") == Ndcg(None, 1.0)
    for name in ("ndcg@0", "ndcg@", "ndcg@05", "ndcg@x", "ndcg@1.5", "ndcg--", "ndcg@-5", "ndcg@1234567890"):
        assert not is_metric(name)
    assert all(grows(name) for name in ("ndcg", "ndcg-", "ndcg@5", "ndcg@5-", "auc"))
    assert not any(grows(name) for name in ("logloss", "error@0.5", "mae"))
