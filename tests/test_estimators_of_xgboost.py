"""What users of XGBoost's and LightGBM's estimators look for in ours: eval_set, verbose, sparse rows, a
ranker, and other names of parameters."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from raised import raised
from sites import rows

import fedboost as fb
from fedboost.errors import ConfigError

SMALL = {"n_estimators": 4, "max_depth": 3, "max_bin": 16}
TABLE = rows()
X = np.column_stack([TABLE.column(name).to_numpy() for name in ("age", "dose")])
Y = TABLE.column("y").to_numpy()
SITES = TABLE.column("site").to_pylist()
HELD_OUT = rows(60, seed=5)
X2 = np.column_stack([HELD_OUT.column(name).to_numpy() for name in ("age", "dose")])
Y2 = HELD_OUT.column("y").to_numpy()
WORDS, WORDS2 = (table.select(["age", "ward"]).to_pandas() for table in (TABLE, HELD_OUT))


# ---- rows to evaluate on ----------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [None, SITES], ids=["one site", "three"])
@pytest.mark.parametrize("weights", [None, np.linspace(0.5, 2, 180)], ids=["no weights", "weights"])
def test_rows_to_evaluate_on_change_no_tree(sites, weights):
    """Their values are among those that cut points are made of; their labels are not learnt from."""
    fits = [
        fb.FederatedClassifier(**SMALL, subsample=0.7).fit(X, Y, sites, weights, eval_set=[(X2, label)])
        for label in (Y2, 1 - Y2)
    ]
    assert fits[0].model_.booster == fits[1].model_.booster
    one = fits[0]
    assert [*one.evals_result_] == ["validation_0"]
    p = one.predict_proba(X2)[:, 1]
    due = -np.mean(np.where(Y2, np.log(p), np.log(1 - p)))
    assert one.evals_result_["validation_0"]["logloss"][-1] == pytest.approx(due, abs=1e-6)
    assert len(one.evals_result_["validation_0"]["logloss"]) == 4


def test_training_rows_may_be_evaluated_too():
    y = X[:, 0]
    one = fb.FederatedRegressor(**SMALL, eval_metric=["rmse", "mae"]).fit(
        X, y, eval_set=[(X, y), (X2, X2[:, 0])]
    )
    assert {name: [*values] for name, values in one.evals_result_.items()} == {
        "validation_0": ["rmse", "mae"],
        "validation_1": ["rmse", "mae"],
    }
    for name, features, label in (("validation_0", X, y), ("validation_1", X2, X2[:, 0])):
        error = one.predict(features) - label
        assert one.evals_result_[name]["rmse"][-1] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-4)
        assert one.evals_result_[name]["mae"][-1] == pytest.approx(np.abs(error).mean(), rel=1e-4)


def test_early_stopping_watches_them():
    one = fb.FederatedClassifier(n_estimators=200, early_stopping_rounds=3).fit(X, Y, eval_set=[(X2, Y2)])
    watched = one.evals_result_["validation_0"]["logloss"]
    assert one.best_iteration == int(np.argmin(watched)) == len(watched) - 4
    assert len(one.model_.booster.trees) == one.best_iteration + 1
    with raised(ConfigError, "estimator-parameters-invalid"):
        fb.FederatedClassifier(early_stopping_rounds=3).fit(X, Y, eval_set=[(X, Y)])
    with pytest.raises(AttributeError, match="early_stopping_rounds"):
        _ = fb.FederatedClassifier(**SMALL).fit(X, Y).best_iteration


def test_words_to_evaluate_on():
    strange = WORDS2.assign(ward=["never seen", *WORDS2["ward"][1:]])
    for kind in ("object", "category"):
        train, held_out = WORDS.astype({"ward": kind}), strange.astype({"ward": kind})
        one = fb.FederatedClassifier(**SMALL).fit(train, Y, eval_set=[(held_out, Y2)])
        assert one.model_.terms.columns.categorical == {"ward": ("a", "b", "c")}
        p = one.predict_proba(held_out)[:, 1]
        due = -np.mean(np.where(Y2, np.log(p), np.log(1 - p)))
        assert one.evals_result_["validation_0"]["logloss"][-1] == pytest.approx(due, abs=1e-6)


def test_weights_of_rows_to_evaluate_on():
    weight = np.arange(60) % 2
    both = fb.FederatedClassifier(**SMALL).fit(X, Y, eval_set=[(X2, Y2)], sample_weight_eval_set=[weight])
    p = both.predict_proba(X2)[1::2, 1]
    due = -np.mean(np.where(Y2[1::2], np.log(p), np.log(1 - p)))
    assert both.evals_result_["validation_0"]["logloss"][-1] == pytest.approx(due, abs=1e-6)


def test_verbose_prints_the_rounds(capsys):
    fb.FederatedClassifier(**SMALL).fit(X, Y, eval_set=[(X2, Y2)])
    assert capsys.readouterr().out == ""
    fb.FederatedClassifier(**SMALL).fit(X, Y, eval_set=[(X2, Y2)], verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["[0]", "[1]", "[2]", "[3]"]
    assert [part.split(":")[0] for part in lines[0].split("\t")[1:]] == ["logloss", "validation-logloss"]
    fb.FederatedClassifier(**SMALL).fit(X, Y, verbose=2)
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["[0]", "[2]", "[3]"]


# ---- sparse rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix])
def test_sparse_rows_are_those_with_zeros(form):
    draw = np.random.default_rng(0)
    dense = np.where(draw.random((180, 6)) < 0.7, 0, draw.normal(size=(180, 6)))
    dense[:5, 0] = np.nan
    y = (dense[:, 1] + dense[:, 2] + draw.normal(size=180) > 0).astype(int)
    sparse, weight = form(dense), np.linspace(1, 2, 180)
    one = fb.FederatedClassifier(**SMALL).fit(dense, y, SITES, weight, eval_set=[(dense[:50], y[:50])])
    for held_out in (sparse.tocsr()[:50], dense[:50]):
        two = fb.FederatedClassifier(**SMALL).fit(sparse, y, SITES, weight, eval_set=[(held_out, y[:50])])
        assert two.model_.booster == one.model_.booster
        assert two.evals_result_ == one.evals_result_
    assert two.predict_proba(sparse).tolist() == one.predict_proba(dense).tolist()
    with pytest.raises(ValueError, match="too large for a 32-bit float"):
        two.predict(sparse * 1e300)


# ---- rankings ---------------------------------------------------------------------------------------

DRAW = np.random.default_rng(3)
QID = np.repeat(np.arange(18), 10)
RANKED = DRAW.normal(size=(180, 3))
RELEVANCE = np.clip(np.digitize(RANKED[:, 0] + 0.3 * DRAW.normal(size=180), [-0.5, 0.5, 1.2]), 0, 3)
AT = np.array(["north", "south", "east"])[QID % 3]


@pytest.mark.parametrize("objective", [None, "rank:pairwise"])
def test_a_ranker_is_a_simulation_with_groups(objective):
    columns = {"label": "y", "numeric": ["x0", "x1", "x2"], "group": "q"}
    terms = fb.Terms(columns=columns, objective=objective or "rank:ndcg", rounds=4, max_depth=3, max_bin=16)
    table = {**{f"x{i}": RANKED[:, i] for i in range(3)}, "y": RELEVANCE, "q": QID}
    due = fb.simulate(terms.changed(protection="plain"), [table]).model
    for groups in ({"qid": QID}, {"group": np.full(18, 10)}, {"qid": QID, "sites": AT}):
        one = fb.FederatedRanker(objective=objective, **SMALL).fit(RANKED, RELEVANCE, **groups)
        assert one.model_.booster == due.booster
    assert one.model_.parties == ("east", "north", "south")
    assert one.predict(RANKED).tolist() == due.predict(table).tolist()
    settings = {"lambdarank_num_pair_per_sample": 3, "ndcg_exp_gain": False}
    other = fb.FederatedRanker(**settings, **SMALL).fit(RANKED, RELEVANCE, qid=QID)
    assert other.model_.terms.objective.lambdarank_num_pair_per_sample == 3


def test_a_ranker_evaluates_and_weighs_groups():
    given = {"qid": QID[:120], "sample_weight": np.linspace(1, 2, 12)}
    train, held_out = (RANKED[:120], RELEVANCE[:120]), (RANKED[120:], RELEVANCE[120:])
    one = fb.FederatedRanker(**SMALL).fit(*train, **given, eval_set=[held_out], eval_qid=[QID[120:]])
    two = fb.FederatedRanker(**SMALL).fit(
        *train, **given, eval_set=[train, held_out], eval_group=[None, [10] * 6]
    )
    assert one.model_.booster == two.model_.booster
    assert one.evals_result_["validation_0"] == two.evals_result_["validation_1"]
    assert 0.5 < one.evals_result_["validation_0"]["ndcg@32"][-1] <= 1


# ---- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"eta": 0.1}, "FederatedClassifier has no parameter 'eta' (did you mean learning_rate?)"),
        ({"num_boost_round": 5}, "has no parameter 'num_boost_round' (did you mean n_estimators?)"),
        ({"rounds": 5}, "has no parameter 'rounds' (did you mean n_estimators?)"),
        ({"seed": 5}, "has no parameter 'seed' (did you mean random_state?)"),
        ({"nthread": 5}, "has no parameter 'nthread' (did you mean n_jobs?)"),
        ({"booster": "dart"}, "has no parameter 'booster': the booster is always gbtree (gbdt)"),
        ({"max_dept": 3}, "has no parameter 'max_dept' (did you mean max_depth?)"),
        ({"verbose": 1}, "has no parameter 'verbose': verbosity is not part of the terms"),
        ({"xyzzy": 1}, "FederatedClassifier has no parameter 'xyzzy'"),
    ],
    ids=str,
)
def test_other_names_of_parameters(given, says):
    with pytest.raises(TypeError) as error:
        fb.FederatedClassifier(**given)
    assert says in str(error.value)


RANKER, CLASSIFIER = fb.FederatedRanker, fb.FederatedClassifier


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (
            lambda: CLASSIFIER().fit(X, Y, eval_set=[(X2, Y2), (X2, Y2)]),
            fb.ConfigError,
            "eval_set has 2 pairs .* concatenate them. To .* pass the same X and y objects as to fit",
        ),
        (lambda: CLASSIFIER().fit(X, Y, eval_set=(X2, Y2)), ValueError, "must be a list of pairs"),
        (lambda: CLASSIFIER().fit(X, Y, eval_set=[(X2[:, :1], Y2)]), ValueError, "X has 1 features, but"),
        (
            lambda: CLASSIFIER().fit(X, Y, eval_set=[(X2, Y2 + 1)]),
            ValueError,
            "no training row has the class 2",
        ),
        (lambda: CLASSIFIER().fit(X, Y, eval_set=[(X2, Y2[1:])]), ValueError, "inconsistent numbers"),
        (
            lambda: CLASSIFIER().fit(WORDS, Y, eval_set=[(WORDS2.to_numpy(), Y2)]),
            ValueError,
            "must both be DataFrames with text",
        ),
        (
            lambda: CLASSIFIER(validation_fraction=0.2).fit(X, Y, eval_set=[(X2, Y2)]),
            fb.ConfigError,
            "validation_fraction",
        ),
        (lambda: CLASSIFIER(objective="binary").fit(X, Y), fb.ConfigError, "did you mean binary:logistic"),
        (lambda: RANKER().fit(RANKED, RELEVANCE), ValueError, "pass either group, the group sizes, or qid"),
        (
            lambda: RANKER().fit(RANKED, RELEVANCE, group=[10]),
            ValueError,
            "group add up to 10 rows, but X has 180",
        ),
        (
            lambda: RANKER().fit(RANKED, RELEVANCE, qid=QID, sites=SITES),
            fb.ConfigError,
            "put all rows of a group at one site",
        ),
        (
            lambda: RANKER(objective="reg:squarederror").fit(RANKED, RELEVANCE, qid=QID),
            fb.ConfigError,
            "use rank:ndcg or rank:pairwise",
        ),
        (
            lambda: RANKER().fit(RANKED, RELEVANCE, qid=QID, sample_weight=np.ones(180)),
            ValueError,
            "180 weights, but there are 18 groups",
        ),
        (
            lambda: RANKER().fit(RANKED, RELEVANCE, qid=QID, eval_set=[(RANKED[:20], RELEVANCE[:20])]),
            ValueError,
            "pass either eval_group",
        ),
    ],
)
def test_what_is_refused(call, kind, says):
    with pytest.raises(kind, match=says):
        call()


def test_frames_of_numbers_are_evaluated_by_name():
    frame = pd.DataFrame(X, columns=["age", "dose"])
    one = fb.FederatedClassifier(**SMALL).fit(
        frame, Y, eval_set=[(pd.DataFrame(X2, columns=["age", "dose"]), Y2)]
    )
    assert one.evals_result_ == fb.FederatedClassifier(**SMALL).fit(X, Y, eval_set=[(X2, Y2)]).evals_result_
