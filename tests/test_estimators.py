"""The estimators are scikit-learn's kind, and their model is that of a simulation."""

import inspect
import os
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from raised import raised
from sites import rows
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedboost as fb

NOT_TRUE = {
    "check_sample_weight_equivalence_on_dense_data": "gradients are rounded to gradient_bits: that of a row "
    "of weight 2 once, those of two rows twice",
    "check_sample_weight_equivalence_on_sparse_data": "as of dense data",
}
"""The checks of scikit-learn that do not hold, and why: docs/estimators.md has them, too."""
OF_A_NETWORK = {
    "columns",
    "parties",
    "num_class",
    "on_loss",
    "turn_timeout",
    "rejoin_timeout",
    "quorum",
    "program",
    "objective_package",
}
"""Terms that follow from the rows, or that only parties of their own have."""
OF_A_RANKING = {"lambdarank_pair_method"}
"""Of which one is built."""
SMALL = {"n_estimators": 3, "max_depth": 3, "max_bin": 16}


@pytest.mark.slow
@parametrize_with_checks(
    [fb.FederatedClassifier(n_estimators=20), fb.FederatedRegressor(n_estimators=20)],
    expected_failed_checks=lambda estimator: NOT_TRUE,
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def numbers():
    """Features [180, 2] with gaps, the name of each row's site."""
    table = rows()
    features = np.column_stack([table.column(name).to_numpy() for name in ("age", "dose")])
    return features, table.column("site").to_pylist()


def frame():
    return rows().select(["age", "ward", "dose"]).to_pandas()


Y = rows().column("y").to_numpy()
WARDS = rows().column("ward").to_numpy(zero_copy_only=False)


OF_FIT = {"xgb_model"}
OF_TIMES = {"aft_loss_distribution", "aft_loss_distribution_scale"}
"""Whose labels are no y of scikit-learn's."""


OF_DESCRIPTIONS = {"min_count", "candidates", "subgroups", "threshold", "reference", "evaluate_rows"} | {
    "level_names"
}
OF_KEYS = {"keyholder", "keyholder_rows", "key_bits"}
OF_COLUMNS_APART = {
    "label_holder",
    "blocks",
    "rows",
    "min_common_rows",
    "max_ids",
    "repeated_ids",
    "id_form",
    "model",
    "alone_rounds",
    "min_rows_per_bin",
    "label_epsilon",
    "predict_with",
    "predict_rows",
}
"""X has all columns."""
OF_NOISE = {"noise"}
"""Needs ranges and levels that are declared and not looked for, which scikit-learn has no place for."""


def test_parameters_are_those_of_the_terms():
    for kind in (fb.FederatedClassifier, fb.FederatedRegressor, fb.FederatedRanker):
        parameters = dict(inspect.signature(kind).parameters)
        assert parameters.pop("n_jobs").default is None
        parameters["rounds"], parameters["seed"] = (
            parameters.pop("n_estimators"),
            parameters.pop("random_state"),
        )
        assert parameters.pop("callbacks").default is None
        others = (
            OF_COLUMNS_APART
            | OF_A_NETWORK
            | OF_A_RANKING
            | OF_TIMES
            | OF_FIT
            | OF_NOISE
            | OF_KEYS
            | OF_DESCRIPTIONS
        )
        assert set(parameters) == set(fb.Terms.file_keys()) - others
        for name, parameter in parameters.items():
            if parameter.default is not None and name != "protection":
                assert parameter.default == fb.Terms.file_keys()[name].default, name


def test_rankings_need_groups():
    X, _ = numbers()
    with raised(fb.ConfigError, "estimator-objective"):
        fb.FederatedRegressor(objective="rank:ndcg").fit(X, Y)


def test_every_parameter_reaches_the_model():
    X, sites = numbers()
    given = {
        **SMALL,
        "learning_rate": np.float32(0.25),
        "reg_lambda": 2,
        "gamma": 0.5,
        "eval_metric": "auc",
        "protection": "masked",
        "max_depth": np.int64(2),
        "random_state": 5,
        "interaction_constraints": [["x0"], ["x1"]],
    }
    terms = fb.FederatedClassifier(**given).fit(X, Y, sites=sites).model_.terms
    assert (terms.trees.rounds, terms.trees.max_depth, terms.trees.learning_rate, terms.trees.reg_lambda) == (
        3,
        2,
        0.25,
        2,
    )
    assert (terms.trees.gamma, terms.evaluation.eval_metric, terms.hiding.protection) == (
        0.5,
        ("auc",),
        "masked",
    )
    assert (terms.draws.seed, terms.trees.interaction_constraints) == (5, (("x0",), ("x1",)))
    assert terms.parties == ("east", "north", "south")
    numbered = [fb.FederatedClassifier(**SMALL, random_state=np.random.RandomState(0)) for _ in range(2)]
    assert len({one.fit(X, Y).model_.terms.draws.seed for one in numbered}) == 1
    assert numbered[0].fit(X, Y).model_.terms.draws.seed != numbered[1].model_.terms.draws.seed


def test_the_rows_that_are_drawn_do_not_depend_on_where_they_are():
    X, sites = numbers()
    given = {**SMALL, "subsample": 0.5, "validation_fraction": 0.2, "colsample_bytree": 0.5}
    boosters = [
        fb.FederatedClassifier(**given, random_state=seed).fit(X, Y, sites=where).model_.booster
        for seed in (0, 1)
        for where in (None, sites)
    ]
    assert boosters[0] == boosters[1] != boosters[2] == boosters[3]
    stopped = fb.FederatedClassifier(validation_fraction=0.3, early_stopping_rounds=2).fit(X, Y)
    assert len(stopped.model_.booster.trees) < len(stopped.history_) < 100


def test_the_model_is_that_of_a_simulation_wherever_the_rows_are():
    X, sites = numbers()
    columns = {"label": "y", "numeric": ["x0", "x1"]}
    terms = fb.Terms(columns=columns, rounds=3, max_depth=3, max_bin=16)
    wanted = fb.simulate(terms.changed(protection="plain"), [{"x0": X[:, 0], "x1": X[:, 1], "y": Y}]).model
    for where in (sites, None, pd.Series(np.arange(180) % 7), np.arange(180) // 60):
        one = fb.FederatedClassifier(**SMALL).fit(X, Y, sites=where)
        assert one.model_.booster == wanted.booster
        assert len(one.traffic_) == (1 if where is None else len(set(where)))
    assert one.predict_proba(X)[:, 1].tolist() == wanted.predict(X).tolist()
    assert len(one.history_) == 3


def test_weights_are_those_of_a_simulation():
    X, _ = numbers()
    weight = np.random.default_rng(0).exponential(1, 180)
    terms = fb.Terms(
        objective="reg:squarederror", columns={"label": "y", "numeric": ["x0"], "weight": "w"}, rounds=3
    )
    table = {"x0": X[:, 0], "y": (X[:, 0] - 50) ** 2, "w": weight}
    wanted = fb.simulate(terms.changed(protection="plain"), [table]).model
    got = fb.FederatedRegressor(n_estimators=3).fit(X[:, :1], table["y"], sample_weight=weight)
    assert got.model_.booster == wanted.booster
    assert got.predict(X[:, :1]).tolist() == wanted.predict(X[:, :1]).tolist()


@pytest.mark.parametrize(
    "labels", [np.array([7, -1, 3]), np.array([2.0, 5.0, 1.0]), np.array(["u", "v w", "1"])], ids=str
)
def test_classes_are_the_labels(labels, tmp_path):
    X = frame()
    y = labels[np.searchsorted(["a", "b", "c"], WARDS)]
    X["noise"] = np.random.default_rng(0).normal(size=180)
    one = fb.FederatedClassifier(n_estimators=10).fit(X, y)
    assert one.classes_.tolist() == sorted(labels.tolist())
    shares = one.predict_proba(X)
    assert shares.shape == (180, 3)
    assert one.predict(X).tolist() == y.tolist()
    assert one.score(X, y) == 1.0
    # The model file names them, too.
    one.model_.save(tmp_path / "model.json")
    loaded = fb.Model.load(tmp_path / "model.json")
    assert loaded.classes == tuple(
        f"{label:g}" if labels.dtype == float else str(label) for label in one.classes_
    )
    assert loaded.predict_class(X).tolist() == [f"{of:g}" if labels.dtype == float else str(of) for of in y]


@pytest.mark.parametrize("two", [["no", "yes"], [False, True], [1, 2], [0, 1]])
def test_two_classes(two):
    X, _ = numbers()
    y = np.array(two)[Y]
    one = fb.FederatedClassifier(**SMALL).fit(X, y)
    assert one.model_.terms.objective.name == "binary:logistic"
    assert one.classes_.tolist() == two
    assert one.predict(X).dtype == y.dtype
    assert one.predict_proba(X).sum(axis=1).tolist() == [1.0] * 180
    assert one.score(X, y) > 0.7
    both = fb.FederatedClassifier(**SMALL, objective="multi:softprob").fit(X, y)
    assert both.model_.terms.objective.num_class == 2
    assert both.score(X, y) > 0.7


def test_columns_of_words_are_categories_wherever_they_stand():
    X = frame()
    one = fb.FederatedClassifier(**SMALL).fit(X, Y, sites=numbers()[1])
    schema = {
        "label": "label",
        "positive": "1",
        "numeric": ["age", "dose"],
        "categorical": {"ward": ["a", "b", "c"]},
    }
    assert one.model_.terms.columns == fb.Terms(columns=schema).columns
    assert one.feature_names_in_.tolist() == ["age", "ward", "dose"]
    table = rows().append_column("label", rows().column("y"))
    assert one.model_.booster == fb.simulate(one.model_.terms, [table]).model.booster
    assert one.predict_proba(X)[:, 1].tolist() == one.model_.predict(rows()).tolist()
    category = X.assign(ward=X["ward"].astype("category"))
    assert one.predict(category).tolist() == one.predict(X).tolist()
    unknown = one.predict_proba(X.assign(ward="never seen"))
    assert unknown.tolist() == one.predict_proba(X.assign(ward=None)).tolist()
    gains = one.model_.importance()
    shares = one.feature_importances_
    assert shares.sum() == pytest.approx(1)
    assert (shares * sum(gains.values())).tolist() == pytest.approx([gains.get(n, 0) for n in X.columns])
    assert shares[0] == max(shares)


def test_names_of_columns_may_be_those_of_the_label():
    X, sites = numbers()
    X = pd.DataFrame(X, columns=["label", "sites"])
    one = fb.FederatedClassifier(**SMALL).fit(X, Y, sites=sites, sample_weight=np.ones(180))
    assert one.model_.terms.columns.label == "label_"
    assert one.feature_names_in_.tolist() == ["label", "sites"]


def test_searches_folds_clones_and_pickles():
    X, sites = numbers()
    one = fb.FederatedClassifier(**SMALL)
    search = GridSearchCV(
        one, {"max_depth": np.arange(1, 3), "learning_rate": np.geomspace(0.1, 0.5, 2)}, cv=2
    )
    search.fit(X, Y, sites=sites)
    assert search.best_score_ > 0.6
    assert search.best_estimator_.model_.parties == ("east", "north", "south")
    assert cross_val_score(one, X, Y, cv=2, params={"sites": sites}).min() > 0.6
    fitted = clone(one).set_params(max_depth=2).fit(X, Y)
    assert fitted.model_.terms.trees.max_depth == 2
    assert pickle.loads(pickle.dumps(fitted)).predict_proba(X).tolist() == fitted.predict_proba(X).tolist()
    assert clone(fitted).get_params() == fitted.get_params()


def test_threads_do_not_change_the_model():
    X, _ = numbers()
    models = [fb.FederatedClassifier(**SMALL, n_jobs=jobs).fit(X, Y).model_ for jobs in (None, 2, -1)]
    assert models[0] == models[1] == models[2]


def fitted_on_words():
    return fb.FederatedClassifier(**SMALL).fit(frame(), Y)


X, SITES = numbers()
CLASSIFIER, REGRESSOR = fb.FederatedClassifier, fb.FederatedRegressor


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (
            lambda: CLASSIFIER(n_estimators=0).fit(X, Y),
            fb.ConfigError,
            "^FederatedClassifier: n_estimators: input",
        ),
        (lambda: REGRESSOR(max_depth=0).fit(X, Y), fb.ConfigError, "^FederatedRegressor: max_depth: input"),
        (lambda: CLASSIFIER(protection="masked").fit(X, Y), fb.ConfigError, "masked needs 3 parties"),
        (
            lambda: CLASSIFIER(objective="reg:squarederror").fit(X, Y),
            fb.ConfigError,
            "use binary:logistic or",
        ),
        (
            lambda: CLASSIFIER(objective="binary:logistic").fit(X, WARDS),
            fb.ConfigError,
            "y has 3; omit the objective",
        ),
        (lambda: REGRESSOR(objective="binary:logistic").fit(X, Y), fb.ConfigError, "use FederatedClassifier"),
        (
            lambda: REGRESSOR(objective="reg:square").fit(X, Y),
            fb.ConfigError,
            "did you mean reg:squarederror",
        ),
        (lambda: CLASSIFIER().fit(X, np.zeros(180)), ValueError, "y has one class"),
        (lambda: REGRESSOR().fit(X, np.ones(180)), ValueError, "y is 1.0 in every row"),
        (lambda: CLASSIFIER().fit(X, Y, sites=SITES[1:]), ValueError, "inconsistent numbers of samples"),
        (
            lambda: CLASSIFIER().fit(X, Y, sites=[*SITES[1:], None]),
            fb.ConfigError,
            "has no site in row 180",
        ),
        (lambda: CLASSIFIER().fit(X, Y, sample_weight=-Y), ValueError, "Negative values"),
        (
            lambda: CLASSIFIER().fit(X, Y, sample_weight=0 * Y),
            ValueError,
            "sample_weight is zero in every row",
        ),
        (lambda: CLASSIFIER().fit(X, Y, sample_weight=Y), ValueError, "y has one class"),
        (lambda: CLASSIFIER().fit(X * 1e300, Y), ValueError, "too large for a 32-bit float: [0-9.]+e"),
        (
            lambda: CLASSIFIER(**SMALL).fit(X, Y).predict(X * 1e300),
            ValueError,
            "too large for a 32-bit float",
        ),
        (
            lambda: CLASSIFIER().fit(frame().head(1), Y[:1]),
            ValueError,
            "X has 1 rows: there is nothing to learn",
        ),
        (
            lambda: CLASSIFIER().fit(frame().assign(t=pd.Timestamp(0)), Y),
            fb.ConfigError,
            "'t' cannot be a feature.*type timestamp",
        ),
        (
            lambda: CLASSIFIER().fit(frame().rename(columns={"age": "a["}), Y),
            fb.ConfigError,
            "cannot be a feature.*it has the character",
        ),
        (
            lambda: fitted_on_words().predict(np.zeros((2, 3))),
            ValueError,
            "DataFrame, as in fit: 'ward' has categ",
        ),
        (
            lambda: fitted_on_words().predict(frame()[["ward", "age", "dose"]]),
            ValueError,
            "names should match",
        ),
    ],
)
def test_what_is_refused(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


@pytest.mark.slow
def test_without_scikit_learn_everything_else_works():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import fedboost as fb\n"
        "assert fb.Terms.draft({'x': [1, 2], 'y': [0, 1]}, label='y').trees.rounds == 100\n"
        "try:\n    fb.FederatedRegressor\n"
        "except fb.ConfigError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    end = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )
    assert end.stdout == (
        "FederatedClassifier, FederatedRegressor and FederatedRanker need scikit-learn 1.6 or newer: "
        "pip install 'fedboost[sklearn]'\n"
    ), end.stderr
