"""Terms: a digest that says all that decides the model, and errors of one line that name the key."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.classification import Logistic
from fedboost.terms import continuation
from fedboost.terms.columns import Schema
from fedboost.terms.reading import nearest
from fedboost.terms.terms import Terms

COLUMNS = {"label": "y", "numeric": ["a", "b"], "categorical": {"c": ["red", "green"]}}
BASE = {"columns": COLUMNS, "parties": ["north", "south", "east"]}
REGRESSION = "reg:squarederror"
CLASSES = {"objective": "multi:softprob", "columns": {**COLUMNS, "classes": ["u", "v", "w"]}}

OTHER = {
    "columns": {"label": "y", "numeric": ["b", "a"]},
    "parties": ["south", "north", "east"],
    "objective": REGRESSION,
    "rounds": 7,
    "max_depth": 3,
    "learning_rate": 0.1,
    "max_bin": 64,
    "max_cat_to_onehot": 9,
    "max_cat_threshold": 32,
    "reg_lambda": 2.0,
    "reg_alpha": 0.5,
    "gamma": 0.25,
    "min_child_weight": 3.0,
    "max_delta_step": 0.5,
    "scale_pos_weight": 2.0,
    "base_score": 0.25,
    "eval_metric": ["auc"],
    "party_metrics": True,
    "gradient_bits": 12,
    "protection": "plain",
    "colluding": 1,
    "allow_two_parties": True,
    "on_loss": "stop",
    "turn_timeout": 60.0,
    "rejoin_timeout": 60.0,
    "vote_top_k": 1,
    "program": "forest",
    "grow_policy": "lossguide",
    "max_leaves": 9,
    "num_parallel_tree": 2,
    "interaction_constraints": [["a", "b"]],
    "subsample": 0.5,
    "sampling_method": "bootstrap",
    "seed": 7,
    "validation_fraction": 0.25,
}
ALONE = {
    "monotone_constraints": {"a": 1},
    "colsample_bytree": 0.5,
    "colsample_bylevel": 0.5,
    "colsample_bynode": 0.5,
    "xgb_model": continuation.written(Booster(Logistic(), 0.5, ("a", "b", "c"), (), 1, ("c",)), None),
}
"""Settings that do not go together with all of the above."""
NEEDS_NOISE = {"cut_points": "even"}
NEEDS_SHRINK = {"quorum": 2}
NEEDS_CLASSES = {"num_class": 4}
NEEDS_VALIDATION = {"early_stopping_rounds": 3}
NEEDS_KEYS = {"keyholder": "south", "keyholder_rows": False, "key_bits": 2048}
NEEDS_RANGES = {"noise": {"epsilon": 1.0, "delta": 1e-6}}
RANGES = {"a": [0, 1], "b": [0, 1]}
NEEDS_OBJECTIVE = {
    "tweedie_variance_power": ("reg:tweedie", 1.2),
    "huber_slope": ("reg:pseudohubererror", 2.0),
    "quantile_alpha": ("reg:quantileerror", 0.9),
    "aft_loss_distribution": ("survival:aft", "logistic"),
    "aft_loss_distribution_scale": ("survival:aft", 2.0),
}
NEEDS_GROUPS = {
    "lambdarank_pair_method": "topk",
    "lambdarank_num_pair_per_sample": 5,
    "lambdarank_normalization": False,
    "lambdarank_score_normalization": False,
    "ndcg_exp_gain": False,
}
RANKING = {"objective": "rank:ndcg", "columns": {**COLUMNS, "group": "q"}}
BOUNDS = {"columns": {**COLUMNS, "label_upper_bound": "z"}}
OTHER_COLUMNS = [
    {"label": "z"},
    {"positive": "yes"},
    {"weight": "w"},
    {"validation": "v"},
    {"row_id": "i"},
    {"base_margin": "m"},
    {"numeric": ["a"]},
    {"numeric": ["b", "a"]},
    {"categorical": {}},
    {"categorical": {"c": ["green", "red"]}},
    {"categorical": {"c": ["red"]}},
    {"categorical": {"d": ["red", "green"]}},
    {"ranges": {"a": [0, 1]}},
    {"ranges": {"a": [0, 2]}},
    {"label_range": [0, 1]},
]


def terms(**settings):
    return Terms.read({**BASE, **settings})


def with_columns(**columns):
    return terms(columns={**COLUMNS, **columns})


# ---- digest and canonical form ----------------------------------------------------------------------


def test_the_digest_is_stable():
    assert terms().digest == terms().digest == Terms.read(dict(reversed(BASE.items()))).digest
    assert len(terms().digest) == 64
    # Saying the default says nothing new; a list and a tuple, a metric and a list of it are the same.
    assert terms(max_depth=6, objective="binary:logistic").digest == terms().digest
    assert terms(eval_metric="auc").digest == terms(eval_metric=["auc"]).digest
    assert terms(reg_lambda=1).digest == terms(reg_lambda=1.0).digest


def test_every_setting_changes_the_digest():
    ranged = with_columns(ranges=RANGES)
    assert (
        ranged.changed(**NEEDS_RANGES, rounds=20, max_depth=3).digest
        != ranged.changed(rounds=20, max_depth=3).digest
    )
    installed = {"objective_params", "objective_package"}  # tests/shell/test_objectives.py
    needs = {*installed, *NEEDS_NOISE, *NEEDS_SHRINK, *NEEDS_CLASSES, *NEEDS_VALIDATION, *NEEDS_OBJECTIVE}
    needs |= {*NEEDS_GROUPS, *NEEDS_RANGES, *NEEDS_KEYS}
    assert {*OTHER, *ALONE, *needs} == set(Terms.file_keys())
    validated = terms(validation_fraction=0.25)
    assert validated.changed(**NEEDS_VALIDATION).digest != validated.digest
    for name, (objective, value) in NEEDS_OBJECTIVE.items():
        columns = BOUNDS if objective == "survival:aft" else {}
        given = terms(objective=objective, **{name: value}, **columns)
        other = {} if name != "quantile_alpha" else {name: 0.5}
        assert given.digest != terms(objective=objective, **other, **columns).digest
        assert vars(given.objective.loss)[name] == value
    for name, value in NEEDS_GROUPS.items():
        given = terms(**RANKING, **{name: value})
        assert given.digest != terms(**RANKING).digest
        assert vars(given.objective.loss)[name] == value
    other = {**RANKING, "columns": {**COLUMNS, "group": "qid"}}
    assert terms(**RANKING).digest != terms(**other).digest
    three = terms(objective="multi:softprob", num_class=3)
    assert three.changed(**NEEDS_CLASSES).digest != three.digest
    shrinking = terms(on_loss="shrink", protection="plain")
    assert shrinking.changed(**NEEDS_SHRINK).digest != shrinking.digest
    encrypted = terms(protection="paillier", keyholder="north", parties=["north", "south", "east", "far"])
    for name, value in NEEDS_KEYS.items():
        assert encrypted.changed(**{name: value}).digest != encrypted.digest
    assert noisy(**NEEDS_NOISE).digest != noisy().digest
    digests = {terms().digest}
    digests |= {terms(**{key: value}).digest for key, value in (OTHER | ALONE).items()}
    assert len(digests) == 1 + len(OTHER | ALONE)


def refusal_of(**settings):
    with pytest.raises(ConfigError) as caught:
        terms(**settings)
    return str(caught.value)


def test_a_roster_that_cannot_shrink_is_refused():
    assert "opens no sum of fewer than 3 parties" in refusal_of(on_loss="shrink")
    plain = {"on_loss": "shrink", "protection": "plain"}
    assert terms(**plain).min_roster == 2
    assert "so the roster cannot shrink" in refusal_of(**plain, quorum=3)
    assert "quorum 4 is more than the 3 parties" in refusal_of(**plain, quorum=4)
    assert "quorum needs on_loss" in refusal_of(quorum=2)
    five = {"on_loss": "shrink", "parties": ["a", "b", "c", "d", "e"]}
    assert terms(**five).min_roster == 4
    assert "quorum 3 of 5 parties: protection masked opens no sum of fewer than 4" in refusal_of(
        **five, quorum=3
    )


def test_every_column_changes_the_digest():
    alone = {"classes", "group", "label_upper_bound"}
    assert {*alone, *(key for change in OTHER_COLUMNS for key in change)} == set(Schema.model_fields)
    digests = {terms().digest, *(with_columns(**change).digest for change in OTHER_COLUMNS)}
    assert len(digests) == 1 + len(OTHER_COLUMNS)
    other = {**CLASSES, "columns": {**COLUMNS, "classes": ["v", "u", "w"]}}
    unnamed = {**CLASSES, "columns": COLUMNS, "num_class": 3}
    assert len({terms(**one).digest for one in (CLASSES, other, unnamed)}) == 3
    times = [{**COLUMNS, "label_upper_bound": upper} for upper in ("z", "zz")]
    assert len({terms(objective="survival:aft", columns=one).digest for one in times}) == 2


def test_the_number_of_classes_follows_from_their_names():
    named = terms(**CLASSES)
    assert named.objective.num_class == named.objective.loss.outputs == 3
    assert named.digest == terms(**CLASSES, num_class=3).digest
    assert Terms.from_canonical(named.canonical()) == named
    assert named.changed(rounds=3).objective.num_class == 3


def test_labels_that_are_intervals():
    one = terms(objective="survival:aft", **BOUNDS)
    assert one.columns.others == ("y", "z")
    assert one.metrics == ("aft-nloglik",)
    assert refusal_of(objective="survival:aft") == (
        "terms: survival:aft needs columns.label_upper_bound, the column of upper bounds: what columns.label "
        "says where a time is known, infinite or missing where it is not over"
    )
    assert refusal_of(**BOUNDS) == (
        "terms: columns.label_upper_bound is for survival:aft; binary:logistic has one label a row"
    )
    assert "column 'a' is named more than once" in refusal_of(columns={**COLUMNS, "label_upper_bound": "a"})
    assert "aft_loss_distribution" in refusal_of(
        objective="survival:aft", aft_loss_distribution="cauchy", **BOUNDS
    )
    assert refusal_of(aft_loss_distribution="normal") == (
        "terms: aft_loss_distribution is for survival:aft; binary:logistic has none"
    )


def test_an_objective_of_xgboosts_that_does_not_fit_says_why():
    assert refusal_of(objective="survival:cox") == (
        "terms: objective: survival:cox is not built: the gradient of a row needs sums over all rows, of all "
        "parties, that are at risk at its time; survival:aft is for such times, too"
    )


TWO_CATEGORICAL = {"z": ["1", "2"], "c": ["1", "2"]}


@pytest.mark.parametrize("settings", [{}, OTHER | {"eval_metric": ["rmse"], "scale_pos_weight": None}])
def test_canonical_text_is_read_back(settings):
    one = terms(**settings)
    assert Terms.from_canonical(one.canonical()) == one
    assert Terms.from_canonical(one.canonical()).canonical() == one.canonical()
    assert json.loads(one.canonical())["rounds"] == one.trees.rounds


def test_the_order_of_features_survives_the_canonical_text():
    one = with_columns(categorical=TWO_CATEGORICAL)
    assert one.columns.features == ("a", "b", "z", "c")
    assert Terms.from_canonical(one.canonical()).columns.features == one.columns.features


def test_the_order_of_features_is_in_the_digest():
    one = with_columns(categorical=TWO_CATEGORICAL)
    other = with_columns(categorical=dict(reversed(TWO_CATEGORICAL.items())))
    assert one.columns.features != other.columns.features
    assert one.digest != other.digest


@pytest.mark.parametrize(
    "text", ["", "{", "nul", "3", "[]", "null", '"x"', '{"rounds": 3}', '{"columns": 1}']
)
def test_other_text_is_a_config_error(text):
    with pytest.raises(ConfigError, match=r"^terms: [^\n]+$"):
        Terms.from_canonical(text)


def test_changed_terms_are_checked_anew():
    assert terms().changed(rounds=3).trees.rounds == 3
    assert terms(protection="plain").with_parties(["x"]).parties == ("x",)
    with pytest.raises(ConfigError, match="rounds"):
        terms().changed(rounds=0)


def test_terms_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        terms().trees.rounds = 3


# ---- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        # unknown keys name the nearest known one
        ({"max_dept": 3}, "unknown key 'max_dept' (did you mean max_depth?)"),
        ({"eta": 0.1}, "unknown key 'eta' (did you mean learning_rate?)"),
        ({"num_boost_round": 10}, "unknown key 'num_boost_round' (did you mean rounds?)"),
        ({"lambda": 1}, "unknown key 'lambda' (did you mean reg_lambda?)"),
        ({"metric": "auc"}, "unknown key 'metric' (did you mean eval_metric?)"),
        ({"xyzzy": 1}, "unknown key 'xyzzy'"),
        (
            {"columns": {**COLUMNS, "numerics": ["a"]}},
            "unknown key 'columns.numerics' (did you mean numeric?)",
        ),
        ({"columns": {**COLUMNS, "target": "y"}}, "unknown key 'columns.target' (did you mean label?)"),
        ({"columns": {**COLUMNS, "max_dept": 1}}, "unknown key 'columns.max_dept'"),
        # missing keys, wrong kinds, out of range
        ({"columns": {"numeric": ["a"]}}, "key 'columns.label' is missing"),
        ({"columns": 5}, "columns: "),
        ({"rounds": 0}, "rounds: input should be greater than or equal to 1, got 0"),
        ({"rounds": "many"}, "rounds: input should be a valid integer"),
        ({"max_depth": 17}, "max_depth: input should be less than or equal to 16, got 17"),
        ({"rounds": True}, "rounds: should be a number, got True"),
        ({"max_depth": "6"}, "max_depth: should be a number, got '6'"),
        ({"max_delta_step": "1.5"}, "max_delta_step: should be a number, got '1.5'"),
        ({"parties": "a"}, "parties: should be a list, in brackets, got 'a'"),
        ({"monotone_constraints": "(1,0)"}, "monotone_constraints: should be a table, { key = value }, got"),
        ({"label": "y"}, "unknown key 'label': it belongs under [columns]"),
        ({"learning_rate": 0}, "learning_rate: input should be greater than 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate: input should be a finite number, got nan"),
        ({"reg_lambda": -1}, "reg_lambda: "),
        ({"reg_alpha": float("inf")}, "reg_alpha: input should be a finite number, got inf"),
        ({"max_bin": 257}, "max_bin: "),
        ({"parties": ["a", "b", "c\nd"]}, "cannot be a party's name"),
        ({"parties": ["a", "b", "c" * 65]}, "cannot be a party's name"),
        ({"parties": ["a", "b"]}, "protection masked needs 3 parties, the terms name 2"),
        ({"parties": ["a", "b"]}, "add parties, or set allow_two_parties = true, which hides from the"),
        (
            {"parties": ["a"], "allow_two_parties": True},
            "protection masked needs 2 parties, the terms name 1",
        ),
        ({"colluding": 2}, "of which 2 collude"),
        ({"max_bin": 1}, "max_bin: "),
        ({"gradient_bits": 25}, "gradient_bits: "),
        ({"cut_points": "exact"}, "cut_points: input should be 'grid' or 'even', got 'exact'"),
        ({"parties": ["a", ""]}, "parties: '' cannot be"),
        ({"parties": ["a", "b", "a"]}, "parties: a party is named more than once"),
        # names that are not known
        ({"objective": "binary:logistics"}, "objective: unknown objective 'binary:logistics' (did you mean "),
        (
            {"eval_metric": "aucc"},
            "unknown eval_metric 'aucc' (did you mean auc?); "
            "known: logloss, error, auc, aucpr, ks, ece, error@t",
        ),
        # combinations that cannot be trained
        (
            {"columns": {**COLUMNS, "base_margin": "m"}, "objective": "multi:softprob", "num_class": 3},
            "columns.base_margin is one number a row; multi:softprob would need one for each class",
        ),
        ({"columns": {**COLUMNS, "base_margin": "b"}}, "column 'b' is named more than once"),
        ({"columns": {**COLUMNS, "base_margin": "m\n"}}, r"column 'm\n' cannot have the character '\n'"),
        ({"eval_metric": "rmse"}, "eval_metric rmse does not fit objective binary:logistic; use logloss"),
        (
            {"objective": REGRESSION, "eval_metric": ["auc"]},
            "does not fit objective reg:squarederror; use rmse",
        ),
        (
            {"interaction_constraints": [["a", "bb"]]},
            "interaction_constraints names 'bb', which is no feature (did you mean b?)",
        ),
        (
            {"monotone_constraints": {"aa": 1}},
            "monotone_constraints names 'aa', which is no feature (did you mean a?)",
        ),
        ({"monotone_constraints": {"c": 1}}, "names 'c', which has levels, which have no order"),
        ({"monotone_constraints": {"a": 2}}, "monotone_constraints.a: input should be -1, 0 or 1, got 2"),
        (
            {"monotone_constraints": {"a": 1}, "vote_top_k": 1},
            "vote_top_k elects features without a look at monotone_constraints",
        ),
        ({"num_parallel_tree": 1024, "objective": "multi:softprob", "num_class": 2}, "2048 trees a round"),
        (
            {"objective": "reg:absoluteerror", "on_loss": "shrink", "protection": "plain"},
            'reg:absoluteerror with on_loss = "shrink": its gradients are signs',
        ),
        ({"max_leaves": 1}, "max_leaves 1 is a tree without a split; 0 is no limit"),
        ({"num_leaves": 31}, "unknown key 'num_leaves' (did you mean max_leaves?)"),
        ({"subsample": 0.01}, "subsample: input should be greater than or equal to 0.05, got 0.01"),
        ({"sampling_method": "goss"}, "sampling_method: input should be 'uniform', 'gradient_based' or"),
        ({"sampling_method": "gradient_based"}, "gradient_based with subsample 1 would draw every row"),
        (
            {"sampling_method": "gradient_based", "subsample": 0.5, "objective": "reg:absoluteerror"},
            "those of reg:absoluteerror are signs and say nothing: set uniform",
        ),
        (
            {"sampling_method": "gradient_based", "subsample": 0.5, "vote_top_k": 1},
            "vote_top_k elects features by each party's own rows, and sampling_method gradient_based may",
        ),
        ({"validation_fraction": 0.01}, "validation_fraction must be 0, or 0.05 to 0.9"),
        ({"early_stopping_rounds": 5}, "early_stopping_rounds needs validation rows"),
        (
            {"validation_fraction": 0.2, "columns": {**COLUMNS, "validation": "v"}},
            "validation_fraction draws validation rows, and column 'v' names them: give one",
        ),
        ({"vote_top_k": 1, "colsample_bynode": 0.5}, "vote_top_k elects features, and colsample_* draws"),
        ({"columns": {**COLUMNS, "row_id": "a"}}, "column 'a' is named more than once"),
        ({"columns": {**COLUMNS, "validation": "v\n"}}, r"column 'v\n' cannot have the character '\n'"),
        ({"random_state": 1}, "unknown key 'random_state' (did you mean seed?)"),
        ({"objective": "multi:softprob"}, "multi:softprob needs num_class"),
        ({"num_class": 3}, "num_class is for multi:softprob; binary:logistic has none"),
        ({"objective": "reg:quantileerror"}, "reg:quantileerror needs quantile_alpha"),
        (
            {"objective": "reg:quantileerror", "quantile_alpha": 1},
            "quantile_alpha: input should be less",
        ),
        ({"huber_slope": 3}, "huber_slope is for reg:pseudohubererror; binary:logistic has none"),
        (
            {"objective": "count:poisson", "scale_pos_weight": 3},
            "scale_pos_weight is for binary:logistic; count:poisson has none",
        ),
        (
            {"objective": "reg:tweedie", "tweedie_variance_power": 2},
            "tweedie_variance_power: input should be",
        ),
        ({"objective": "reg:gamma", "base_score": 0}, "base_score 0.0 must be above 0 for reg:gamma"),
        ({"eval_metric": "error@1.5"}, "unknown eval_metric 'error@1.5'"),
        ({"eval_metric": "error@t"}, "eval_metric 'error@t' takes a number for t"),
        ({"eval_metric": "mae"}, "eval_metric mae does not fit objective binary:logistic; use logloss"),
        (
            {"columns": {**COLUMNS, "classes": ["u", "v"]}},
            "columns.classes needs objective multi:softprob, not binary:logistic; for two values set",
        ),
        (
            {"columns": {**COLUMNS, "classes": ["u", "v"]}, "objective": REGRESSION},
            "columns.classes needs objective multi:softprob, not reg:squarederror",
        ),
        (
            {**CLASSES, "num_class": 4},
            "num_class is 4, columns.classes names 3: leave num_class out",
        ),
        ({"columns": {**COLUMNS, "classes": ["u"]}}, "columns: classes must be two label values or more"),
        (
            {"columns": {**COLUMNS, "classes": ["u", "u"]}},
            "columns: classes must be two label values or more",
        ),
        ({"columns": {**COLUMNS, "classes": ["u", ""]}}, "class '' is no label value: it counts as missing"),
        ({"columns": {**COLUMNS, "classes": ["u", "v\n"]}}, r"class 'v\n' is not one line of text"),
        (
            {"columns": {**COLUMNS, "classes": ["u", "v"], "positive": "u"}},
            "columns: positive is for labels of two values, classes for more: take one away",
        ),
        (
            {"objective": "multi:softprob", "num_class": 100, "max_depth": 12},
            "100 trees a round of depth 12 are too many",
        ),
        # rankings
        ({"objective": "rank:ndcg"}, "rank:ndcg needs columns.group, the column that says which rows are"),
        (
            {"columns": {**COLUMNS, "group": "q"}},
            "columns.group needs objective rank:ndcg or rank:pairwise, not binary:logistic",
        ),
        ({**RANKING, "columns": {**COLUMNS, "group": "a"}}, "column 'a' is named more than once"),
        ({"columns": {**COLUMNS, "qid": "q"}}, "unknown key 'columns.qid' (did you mean group?)"),
        (
            {**RANKING, "lambdarank_pair_method": "mean"},
            "lambdarank_pair_method mean draws pairs at random, and draws would depend on who holds the rows",
        ),
        (
            {"objective": "survival:aft", "columns": {**COLUMNS, "label_upper_bound": "z", "group": "q"}},
            "columns.group needs objective rank:ndcg or rank:pairwise, not survival:aft",
        ),
        (
            {**RANKING, "columns": {**COLUMNS, "label_upper_bound": "z", "group": "q"}},
            "columns.label_upper_bound is for survival:aft; rank:ndcg has one label a row",
        ),
        ({**RANKING, "lambdarank_unbiased": True}, "unknown key 'lambdarank_unbiased'"),
        ({**RANKING, "lambdarank_num_pair_per_sample": 0}, "lambdarank_num_pair_per_sample: input should be"),
        ({"ndcg_exp_gain": False}, "ndcg_exp_gain is for rank:ndcg; binary:logistic has none"),
        ({"objective": "rank:map"}, "unknown objective 'rank:map'; known: "),
        (
            {**RANKING, "eval_metric": "auc"},
            "eval_metric auc does not fit objective rank:ndcg; use ndcg, ndcg-, ndcg@k, ndcg@k-",
        ),
        ({**RANKING, "eval_metric": "ndcg@0"}, "unknown eval_metric 'ndcg@0'"),
        ({"eval_metric": "ndcg@5"}, "eval_metric ndcg@5 does not fit objective binary:logistic"),
        ({"base_score": 1.0}, "base_score 1.0 must lie strictly between 0 and 1"),
        (
            {"objective": REGRESSION, "columns": {**COLUMNS, "positive": "yes"}},
            "columns.positive needs objective binary:logistic, not reg:squarederror",
        ),
        ({"columns": {"label": "y"}}, "columns: no features: name at least one column"),
        ({"columns": {"label": "a", "numeric": ["a"]}}, "columns: column 'a' is named more than once"),
        ({"columns": {"label": "y", "weight": "a", "numeric": ["a"]}}, "'a' is named more than once"),
        ({"columns": {"label": "y", "numeric": ["a", "a"]}}, "'a' is named more than once"),
        ({"columns": {**COLUMNS, "categorical": {"a": ["x"]}}}, "'a' is named more than once"),
        ({"columns": {**COLUMNS, "categorical": {"c": []}}}, "levels of 'c' must be at least one, each once"),
        ({"columns": {**COLUMNS, "categorical": {"c": ["x", "x"]}}}, "levels of 'c'"),
        (
            {"columns": {**COLUMNS, "categorical": {"c": [f"{level}" for level in range(256)]}}},
            "column 'c' has 256 levels, at most 255 can be: group the rare ones in the tables, or give them "
            "as numbers and declare the column numeric",
        ),
        ({"max_cat_to_onehot": 0}, "max_cat_to_onehot: input should be greater than or equal to 1, got 0"),
        ({"max_cat_threshold": 1}, "max_cat_threshold: input should be greater than or equal to 2, got 1"),
        # names that no file or no reader of the model takes
        (
            {"columns": {"label": "y", "numeric": ["ok", "a[0]"]}},
            "column 'a[0]' cannot have the character '['",
        ),
        ({"columns": {**COLUMNS, "categorical": {"c]": ["x"]}}}, "column 'c]' cannot have the character ']'"),
        ({"columns": {"label": "y", "numeric": ["a<b"]}}, "column 'a<b' cannot have the character '<'"),
        ({"columns": {"label": "y", "numeric": ["\x01"]}}, r"column '\x01' cannot have the character '\x01'"),
        ({"columns": {**COLUMNS, "label": "y\n"}}, r"column 'y\n' cannot have the character '\n'"),
        ({"columns": {**COLUMNS, "weight": "w\x85"}}, r"column 'w\x85' cannot have the character '\x85'"),
        (
            {"columns": {"label": "y", "numeric": ["\ud800"]}},
            "columns.numeric.0: input should be a valid string",
        ),
        (
            {"columns": {**COLUMNS, "categorical": {"c": ["x", "a\tb"]}}},
            r"a level of 'c' has the character '\t'",
        ),
        ({"columns": {**COLUMNS, "categorical": {"c": ["\udfff"]}}}, r"a level of 'c' has the character"),
    ],
)
def test_one_line_that_names_the_key(settings, says):
    with pytest.raises(ConfigError) as caught:
        Terms.read({**BASE, **settings}, "train.toml")
    message = str(caught.value)
    assert message.startswith("train.toml: ")
    assert says in message
    assert "\n" not in message


@given(
    st.dictionaries(
        st.sampled_from([*Terms.file_keys(), "etaa", "x"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=4),
            st.lists(st.text(max_size=2), max_size=3),
            st.dictionaries(st.text(max_size=3), st.text(max_size=2), max_size=2),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_settings_are_read_or_refused_with_one_line(settings):
    message = "terms: "
    try:
        terms(**settings)
    except ConfigError as error:
        message = str(error)
    assert message.startswith("terms: ")
    assert "\n" not in message


def test_only_features_are_named_as_xgboost_wants_it():
    schema = {"label": "y[0]", "weight": "<w>", "numeric": ["ä 1"], "categorical": {"c": ["[<]"]}}
    assert terms(columns=schema).columns.features == ("ä 1", "c")


@pytest.mark.timeout(5)
def test_many_columns_are_checked_at_once():
    names = [f"x{i}" for i in range(40_000)]
    assert with_columns(numeric=names).columns.numeric == tuple(names)
    with pytest.raises(ConfigError, match="'x7' is named more than once"):
        with_columns(numeric=[*names, "x7"])


def test_what_hangs_on_the_objective():
    poisson = {"objective": "count:poisson"}
    assert terms().objective.step == 0.0
    assert terms(max_delta_step=2).objective.step == 2.0
    assert terms(**poisson).objective.step == terms(**poisson).objective.loss.max_delta_step == 0.7
    assert terms(**poisson, max_delta_step=0).objective.step == 0.0
    assert terms(**poisson, max_delta_step=0).objective.loss.max_delta_step == 0.0
    assert (terms().bits, terms(**poisson).bits, terms(**poisson, gradient_bits=12).bits) == (16, 24, 12)
    assert terms(objective="reg:tweedie", tweedie_variance_power=1.2).metrics == ("tweedie-nloglik@1.2",)


def test_nearest():
    assert nearest("max_dept", ["max_depth", "rounds"]) == " (did you mean max_depth?)"
    assert nearest("eta", ["max_depth"]) == ""
    assert nearest("qqq", ["max_depth"]) == ""


# ---- votes ------------------------------------------------------------------------------------------


def test_no_more_features_are_elected_than_there_are():
    features = len(terms().columns.features)
    assert terms(vote_top_k=features).histograms.vote_top_k == features
    with pytest.raises(ConfigError, match=f"vote_top_k {features + 1} is more than the {features} features"):
        terms(vote_top_k=features + 1)
    with pytest.raises(ConfigError, match="vote_top_k: "):
        terms(vote_top_k=-1)


def test_votes_are_questions_of_a_tree_as_well():
    assert terms(max_depth=4).max_turns_per_tree == 4
    assert terms(max_depth=4, vote_top_k=1).max_turns_per_tree == 7
    assert terms(max_depth=1, vote_top_k=1).max_turns_per_tree == 1


# ---- noise ------------------------------------------------------------------------------------------


def noisy(columns=None, **settings):
    noise = settings.pop("noise", {"epsilon": 1.0, "delta": 1e-6})
    return terms(columns={**COLUMNS, "ranges": RANGES, **(columns or {})}, noise=noise, **settings)


def test_noise_has_its_own_defaults():
    one = noisy()
    assert (one.trees.rounds, one.trees.max_depth) == (4 * 3, 3)
    assert (one.metrics, one.sets, one.needs_exponent_counts) == ((), (), False)
    assert noisy(rounds=7, max_depth=5).trees.rounds == 7
    assert noisy(rounds=12, max_depth=3).digest == one.digest
    assert Terms.from_canonical(one.canonical()).digest == one.digest
    without = with_columns(ranges=RANGES)
    assert without.changed(noise={"epsilon": 1.0, "delta": 1e-6}).digest == one.digest
    assert one.changed(noise=None).digest == without.digest


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise": {"epsilon": 1.0}}, "'noise.delta' is missing"),
        ({"noise": {"epsilon": True, "delta": 1e-6}}, "noise.epsilon: should be a number, got True"),
        ({"noise": 1.0}, r"noise: should be a table, \{ key = value \}, got 1.0"),
        (
            {"noise": {"epsilon": 1.0, "delta": 1e-6, "method": "hist"}, "monotone_constraints": {"a": 1}},
            "monotone_constraints with noise: it is not built for trees of noise.method hist; leave it out",
        ),
        ({"noise": {"epsilon": 0.0, "delta": 1e-6}}, "noise.epsilon"),
        ({"noise": {"epsilon": 100.0, "delta": 1e-6}}, "noise.epsilon"),
        ({"noise": {"epsilon": 1.0, "delta": 0.01}}, "noise.delta"),
        ({"noise": {"epsilon": 1.0, "delta": 1e-6, "placment": "local"}}, "did you mean placement"),
        ({"columns": {"ranges": {"a": [0, 1]}}}, "'b' has none: columns.ranges ="),
        ({"columns": {"ranges": {"a": [0, 1], "b": [1, 1]}}}, "the lower first"),
        ({"columns": {"ranges": {"a": [0, 1], "bb": [0, 1]}}}, r"'bb', which is no numeric column"),
        ({"columns": {"weight": "w"}}, "columns.weight with noise"),
        ({"columns": {"base_margin": "m"}}, "columns.base_margin with noise"),
        ({"objective": "reg:gamma"}, "reg:gamma has no bound"),
        ({"objective": "reg:squarederror"}, "columns.label_range = "),
        ({"objective": "reg:squarederror", "columns": {"label_range": [0, 5e-324]}}, "so narrow that"),
        ({"objective": "count:poisson", "columns": {"label_range": [0, 1e-300]}}, "so narrow that"),
        ({"objective": "count:poisson", "columns": {"label_range": [-1, 9]}}, "begins at -1, and no label"),
        ({"eval_metric": "auc"}, "eval_metric with noise: metrics of private rows"),
        ({"validation_fraction": 0.2}, "validation_fraction with noise"),
        ({"subsample": 0.5}, "subsample with noise"),
        ({"vote_top_k": 1}, "vote_top_k with noise"),
        ({"max_leaves": 5}, "max_leaves with noise"),
        ({"on_loss": "shrink"}, "one more release"),
        ({"protection": "plain"}, "share of the noise"),
    ],
)
def test_what_noise_cannot_go_with_says_why(settings, said):
    with pytest.raises(ConfigError, match=said) as raised:
        noisy(**settings)
    assert "\n" not in str(raised.value)


def test_even_cut_points_are_for_noise():
    with pytest.raises(ConfigError, match="which only noise asks for"):
        terms(cut_points="even")
    assert noisy(cut_points="even").histograms.cut_points == "even"


@pytest.mark.parametrize(("parties", "colluding", "honest"), [(3, None, 2), (4, None, 3), (6, 3, 3)])
def test_one_party_always_may_subtract_its_own_noise(parties, colluding, honest):
    names = [f"p{number}" for number in range(parties)]
    assert noisy(parties=names, colluding=colluding).honest == honest


@pytest.mark.parametrize("protection", ["paillier", "bfv"])
@pytest.mark.parametrize(("parties", "colluding", "honest"), [(3, None, 2), (4, None, 3), (6, 3, 3)])
def test_a_key_holder_without_rows_draws_no_share_of_noise(protection, parties, colluding, honest):
    """Beside so many parties with rows, the plan is as without it: as many shares, as many of them honest."""
    names = [f"p{number}" for number in range(parties)]
    encrypted = {"protection": protection, "colluding": colluding, "keyholder": "keys"}
    without = noisy(parties=[*names, "keys"], keyholder_rows=False, **encrypted)
    assert without.holders == tuple(names)
    assert without.honest == honest
    assert without.plan == noisy(parties=names, colluding=colluding).plan
    assert noisy(parties=[*names, "keys"], **encrypted).honest == honest + 1


FOUR = ["north", "south", "east", "keys"]


@pytest.mark.parametrize("protection", ["paillier", "bfv"])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"parties": ["north", "south", "keys"], "keyholder_rows": False},
            "needs 3 parties with rows, the terms name 2 beside the key holder keys (a party can",
        ),
        ({"parties": ["north", "keys"]}, "needs 3 parties with rows, the terms name 2 (a party can"),
        (
            {"parties": ["north", "keys"], "keyholder_rows": False, "allow_two_parties": True},
            "needs 2 parties with rows, the terms name 1 beside the key holder keys; add parties",
        ),
        (
            {"parties": FOUR, "keyholder_rows": False, "colluding": 2},
            "with 3 parties with rows of which 2 collude, the key holder counted first, hides nobody: it"
            " takes two that do not, so colluding is at most 1",
        ),
        (
            {"parties": FOUR, "colluding": 3},
            "with 4 parties with rows of which 3 collude, the key holder counted",
        ),
        ({"parties": [*(f"p{n}" for n in range(100)), "keys"]}, "with 101 parties: 100 is the most"),
    ],
)
def test_parties_without_rows_hide_nobody(protection, settings, says):
    refused = refusal_of(protection=protection, keyholder="keys", **settings)
    assert f"protection {protection} {says}" in refused
    assert "\n" not in refused
    assert "masked" not in refused


@pytest.mark.parametrize("protection", ["paillier", "bfv"])
def test_encrypted_sums_take_three_parties_with_rows_or_two_that_are_allowed(protection):
    encrypted = {"protection": protection, "keyholder": "keys"}
    assert terms(**encrypted, parties=["north", "south", "keys"]).holders == ("north", "south", "keys")
    without = {**encrypted, "keyholder_rows": False}
    assert terms(**without, parties=FOUR, colluding=1).holders == ("north", "south", "east")
    two = terms(**without, parties=["north", "south", "keys"], allow_two_parties=True)
    assert two.holders == ("north", "south")


@pytest.mark.parametrize("protection", ["masked", "plain"])
def test_whether_a_key_holder_has_rows_is_for_encrypted_sums(protection):
    assert "keyholder_rows is for protection paillier or bfv" in refusal_of(
        protection=protection, keyholder_rows=False
    )
