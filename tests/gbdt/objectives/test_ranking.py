"""Ranking: gradients are XGBoost's, of each group alone; labels and parameters."""

import json
from itertools import pairwise

import numpy as np
import pytest
import xgboost
from ranked_rows import ROWS, SIZES, STARTS, rows

from fedboost.gbdt.objectives.built_in import in_groups
from fedboost.gbdt.objectives.registry import OBJECTIVES, make_objective
from fedboost.gbdt.sampling import blocks

RANKINGS = ("rank:ndcg", "rank:pairwise")
SETTINGS = [
    {},
    {"lambdarank_num_pair_per_sample": 5},
    {"lambdarank_normalization": False},
    {"lambdarank_score_normalization": False},
    {"ndcg_exp_gain": False},
]


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
