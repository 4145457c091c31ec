"""Rows that are sampled: by share, by gradient, with replacement."""

import numpy as np
import pytest
from inprocess import model_of, one_party, randomly, run, terms_of
from sklearn.metrics import log_loss, roc_auc_score
from trainings import PARTITIONS, ROWS, SMALL, data, split_in_two

from fedboost.boosting.programs.initialisation import Scales
from fedboost.fixedpoint import exponent_counts
from fedboost.gbdt import sampling


def test_trees_of_a_share_of_the_rows_cover_that_share():
    X, y, _ = data()
    trees = run(X, y, one_party(ROWS), subsample=0.5, objective="reg:squarederror", **SMALL).booster.trees
    covers = [tree.cover[0] for tree in trees]
    assert len(set(covers)) == SMALL["rounds"]
    assert all(0.4 * ROWS < cover < 0.6 * ROWS for cover in covers)


@pytest.mark.parametrize("method", ["gradient_based", "bootstrap"])
def test_what_rows_weigh_makes_up_for_those_that_are_not_drawn(method):
    """Squared error: hessians are 1, so the cover of a root is the rows, each as often as it counts."""
    X, y, _ = data("number")
    settings = {"objective": "reg:squarederror", "sampling_method": method, "subsample": 0.5}
    rounds = {"rounds": 20, "max_depth": 2, "reg_lambda": 0.01}
    trees = run(X, y, PARTITIONS["3 at random"], **settings, **rounds).booster.trees
    covers = np.array([tree.cover[0] for tree in trees])
    due = ROWS if method == "gradient_based" else ROWS / 2
    assert len(set(covers)) > 10
    assert abs(covers.mean() - due) < 4 * covers.std() / np.sqrt(20)
    assert 2 < covers.std() < 0.2 * due


@pytest.mark.parametrize("reg_lambda", [0.0, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
def test_scales_hold_gradients_that_are_divided_by_the_chances_of_their_rows(reg_lambda, spread):
    rng = np.random.default_rng(2)
    gradient = np.exp(spread * rng.normal(size=3000)) * rng.choice([-1, 1], 3000)
    hessian = np.exp(spread * rng.normal(size=3000))
    settings = {"sampling_method": "gradient_based", "subsample": 0.2, "reg_lambda": reg_lambda}
    terms = terms_of(np.zeros((1, 1)), 1, objective="reg:gamma", **settings)
    exponents = [exponent_counts(values) for values in (gradient, hessian, np.ones(1))]
    before = Scales.of(terms, np.concatenate(exponents))
    sizes = sampling.gradient_norms(gradient, hessian, reg_lambda)
    after = before.for_sampling(terms, sampling.count_norms(sizes))
    chances = sampling.sampling_probabilities(sizes, after.threshold, 0.2)
    for values, scale, narrow in (
        (np.abs(gradient), after.gradient, before.gradient),
        (hessian, after.hessian, before.hessian),
    ):
        assert (values / chances).max() <= 2.0**scale.exponent
        assert 0 <= scale.exponent - narrow.exponent <= 6  # 2**6 is beyond 8 / 0.2
        assert scale.bits == narrow.bits


@pytest.mark.parametrize("method", ["gradient_based", "bootstrap"])
def test_margins_move_once_and_validation_rows_are_not_drawn(method):
    X, y, _ = data()
    held_out = np.random.default_rng(3).random(ROWS) < 0.4
    settings = {"validation": held_out, "sampling_method": method, "subsample": 0.5, **SMALL}
    session = run(X, y, PARTITIONS["3 at random"], **settings)
    other = run(X, np.where(held_out, 1 - y, y), PARTITIONS["3 at random"], **settings)
    assert session.booster.trees == other.booster.trees
    for rows, name in ((~held_out, "logloss"), (held_out, "validation-logloss")):
        due = log_loss(y[rows], session.booster.predict(X[rows]))
        assert session.history[-1].metrics[name] == pytest.approx(due, rel=1e-3)


@pytest.mark.slow
def test_rows_of_large_gradients_teach_more_than_rows_drawn_alike():
    """At a share at which most rows of a uniform draw say little."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(6000, 6)).astype(np.float32)
    y = (np.abs(X[:, 0]) + X[:, 1] * X[:, 2] > 2.2).astype(np.float32)
    X, y, X_test, y_test = split_in_two(X, y)
    lost = {}
    for method in ("uniform", "gradient_based"):
        settings = {"subsample": 0.1, "sampling_method": method, "rounds": 40, "max_depth": 4}
        lost[method] = []
        for seed in range(3):
            booster = run(X, y, one_party(len(y)), seed=seed, **settings).booster
            lost[method].append(log_loss(y_test, booster.predict(X_test)))
    assert max(lost["gradient_based"]) < min(lost["uniform"])


def test_a_forest_of_bootstraps_is_as_good_as_one_of_all_rows_and_no_tree_is_like_another():
    X, y, _ = data()
    X_train, y_train, X_test, y_test = split_in_two(X, y)
    forest = {"rounds": 1, "learning_rate": 1.0, "sampling_method": "bootstrap", "max_depth": 8}
    found = []
    for trees in (1, 60):
        settings = {"num_parallel_tree": trees, "colsample_bynode": 0.6, **forest}
        booster = run(X_train, y_train, randomly(len(y_train), 3), **settings).booster
        assert len({tuple(tree.threshold) for tree in booster.trees}) == trees
        found.append(roc_auc_score(y_test, booster.predict(X_test)))
    assert found[1] > found[0] + 0.02


def test_sums_of_rows_that_count_most_often_fit_their_cells(monkeypatch):
    """Were every row drawn as often as any can be, of gradients that all are the largest."""
    monkeypatch.setattr(
        sampling,
        "bootstrap_counts",
        lambda keys, *_: np.full(keys.size, sampling.MAX_BOOTSTRAP_COUNT, np.uint8),
    )
    X, _, _ = data()
    y = np.arange(ROWS) % 2
    settings = {"sampling_method": "bootstrap", "gradient_bits": 24, "base_score": 0.999999, **SMALL}
    pooled = model_of(X, y, one_party(ROWS), **settings)
    assert model_of(X, y, PARTITIONS["3 at random"], protection="masked", **settings) == pooled
    covers = [tree.cover[0] for tree in run(X, y, one_party(ROWS), **settings).booster.trees]
    monkeypatch.undo()
    once = run(X, y, one_party(ROWS), **{**settings, "sampling_method": "uniform"}).booster.trees[0].cover[0]
    assert covers[0] == pytest.approx(sampling.MAX_BOOTSTRAP_COUNT * once, rel=1e-6)
