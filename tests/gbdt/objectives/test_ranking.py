"""Ranking: gradients are XGBoost's, of each group alone; the metric is scikit-learn's and XGBoost's."""

import json
from itertools import pairwise

import numpy as np
import pytest
import xgboost
from sklearn.metrics import ndcg_score

from fedboost.fixedpoint import UNIT, Scale
from fedboost.gbdt.groups import blocks
from fedboost.gbdt.kernels.ranking import lambda_gradients, ndcgs
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.metrics.ranking import Ndcg
from fedboost.gbdt.metrics.registry import grows, is_metric, metric_of
from fedboost.gbdt.objectives.ranking import in_groups
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective
from tests.gbdt.reference import split as reference

SIZES = (40, 1, 9, 100, 2)
STARTS = np.cumsum([0, *SIZES]).astype(np.int64)
ROWS = int(STARTS[-1])
RANKINGS = ("rank:ndcg", "rank:pairwise")


def rows(margins="apart"):
    rng = np.random.default_rng(3)
    margin = {
        "apart": rng.normal(size=ROWS),
        "equal": np.zeros(ROWS),
        "tied": rng.integers(0, 4, ROWS).astype(np.float64),
        "far": 1e3 * rng.normal(size=ROWS),
    }[margins]
    label = rng.integers(0, 5, ROWS).astype(np.float32)
    label[STARTS[2] : STARTS[3]] = 0  # nothing to rank there
    weight = np.repeat(rng.uniform(0.5, 2, len(SIZES)), SIZES).astype(np.float32)
    return margin.astype(np.float32).astype(np.float64), label, weight


SETTINGS = [
    {},
    {"lambdarank_num_pair_per_sample": 5},
    {"lambdarank_normalization": False},
    {"lambdarank_score_normalization": False},
    {"ndcg_exp_gain": False},
]


def same(found, due):
    assert [value.hex() for value in found.tolist()] == [float(value).hex() for value in due]


@pytest.mark.parametrize("margins", ["apart", "equal", "tied", "far"])
@pytest.mark.parametrize("by_ndcg", [False, True])
@pytest.mark.parametrize("normal", [False, True])
def test_the_kernel_is_its_twin(margins, by_ndcg, normal):
    margin, label, weight = rows(margins)
    given = margin, label, np.exp2(label.astype(np.float64)) - 1.0, weight, STARTS
    for most in (1, 7, 1000):
        found = lambda_gradients(*given, most, by_ndcg, normal, normal)
        due = reference.lambda_gradients(*given, most, by_ndcg, normal, normal)
        same(found[0], due[0])
        same(found[1], due[1])
        same(ndcgs(margin, *given[2::2], most, 0.5), reference.ndcgs(margin, *given[2::2], most, 0.5))


def of_xgboost(objective, margin, label, **settings):
    """Gradients, hessians and which rows have a leaf of their own, where both can be read off it."""
    data = xgboost.DMatrix(np.arange(ROWS)[:, None], label, base_margin=margin, group=SIZES)
    told = {"objective": objective, "max_depth": 0, "reg_lambda": 0, "min_child_weight": 0}
    booster = xgboost.train({**told, "learning_rate": 1, "max_bin": 512, **settings}, data, 1)
    (tree,) = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    leaf = booster.predict(data, pred_leaf=True).ravel().astype(int)
    hessian = np.array(tree["sum_hessian"])[leaf]
    return -np.array(tree["split_conditions"])[leaf] * hessian, hessian, np.bincount(leaf)[leaf] == 1


@pytest.mark.parametrize("margins", ["apart", "equal", "tied"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("objective", RANKINGS)
def test_gradients_are_xgboosts(objective, settings, margins):
    margin, label, weight = rows(margins)
    gradient, hessian, alone = of_xgboost(objective, margin, label, **settings)
    assert alone.sum() > ROWS // 2
    loss = in_groups(make_objective(objective, settings), STARTS)
    found = loss.gradients(margin, label, np.ones_like(weight))
    for own, due in zip(found, (gradient, hessian), strict=True):
        assert np.abs(own - due)[alone].max() <= 3e-6 * np.abs(own).max()
    weighted = loss.gradients(margin, label, weight)
    assert weighted[0].tolist() == (found[0] * weight).tolist()


@pytest.mark.parametrize("objective", RANKINGS)
def test_settings_change_gradients(objective):
    margin, label, weight = rows()
    found = [
        in_groups(make_objective(objective, s), STARTS).gradients(margin, label, weight)[0] for s in SETTINGS
    ]
    assert len({one.tobytes() for one in found}) == len(SETTINGS) - (objective == "rank:pairwise")


@pytest.mark.parametrize("margins", ["apart", "tied"])
@pytest.mark.parametrize("objective", RANKINGS)
def test_the_gradients_of_a_group_are_those_of_its_rows_alone(objective, margins):
    margin, label, weight = rows(margins)
    together = in_groups(OBJECTIVES[objective](), STARTS).gradients(margin, label, weight)
    for first, end in pairwise(STARTS):
        own = slice(int(first), int(end))
        alone = OBJECTIVES[objective]().gradients(margin[own], label[own], weight[own])
        for found, due in zip(together, alone, strict=True):
            assert found[own].tolist() == due.tolist()


def test_blocks_have_whole_groups_in_the_order_of_the_table():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 3000, 50_000).astype(np.uint64)
    found = blocks(keys.size, keys)
    assert len(found) == 4
    seen = []
    for block in found:
        assert block.rows.size < 17_000
        for first, end in zip(block.starts[:-1], block.starts[1:], strict=True):
            own = block.rows[first:end]
            assert own.tolist() == np.flatnonzero(keys == keys[own[0]]).tolist()
            seen.append(int(keys[own[0]]))
    assert sorted(seen) == sorted(set(keys.tolist()))
    chosen = keys % np.uint64(3) == 0
    some = [block.only(chosen) for block in found]
    assert np.sort(np.concatenate([block.rows for block in some])).tolist() == np.flatnonzero(chosen).tolist()
    for block in some:
        assert (np.diff(keys[block.rows]) != 0).nonzero()[0].tolist() == (block.starts[1:-1] - 1).tolist()
        assert block.starts[-1] == block.rows.size
    assert [block.only(keys > 5000).starts.tolist() for block in found] == [[0]] * 4


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


@pytest.mark.parametrize("objective", RANKINGS)
def test_labels_and_parameters(objective):
    loss = OBJECTIVES[objective]()
    assert loss.first_invalid_label(np.array([0, 31, 5], np.float32)) is None
    for bad in (-1, 0.5, 32, np.nan, np.inf):
        assert loss.first_invalid_label(np.array([0, bad], np.float32))[0] == 1
    graded = make_objective(objective, {"ndcg_exp_gain": False})
    assert graded.first_invalid_label(np.array([0, 0.5, 1e6], np.float32)) is None
    assert graded.first_invalid_label(np.array([0, -0.5], np.float32))[0] == 1
    assert loss.default_metric == "ndcg@32"
    other = make_objective(
        objective, {"lambdarank_num_pair_per_sample": 7, "lambdarank_normalization": False}
    )
    assert other.default_metric == "ndcg@7"
    assert make_objective(objective, other.xgboost_params["lambdarank_param"]) == other != loss
    assert (loss.bounds, loss.base_score(3.0, 2.0), loss.margin(0.25)) == (None, 0.0, 0.25)
