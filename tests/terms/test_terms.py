"""Terms: a digest that says all that decides the model, and errors of one line that name the key."""

import json

import pytest
from all_terms import (
    BASE,
    CLASSES,
    COLUMNS,
    RANGES,
    RANKING,
    REGRESSION,
    refusal_of,
    terms,
    with_columns,
)

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.built_in import Logistic
from fedboost.terms import continuation
from fedboost.terms.columns import Schema
from fedboost.terms.terms import Terms

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
NEEDS_SHRINK = {"quorum": 2}
NEEDS_CLASSES = {"num_class": 4}
NEEDS_VALIDATION = {"early_stopping_rounds": 3}
NEEDS_KEYS = {"keyholder": "south", "keyholder_rows": False, "key_bits": 2048}
NEEDS_RANGES = {"noise": {"epsilon": 1.0, "delta": 1e-6}}
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
    {"subgroups": {"s": ["F", "M"]}},
    {"subgroups": {"s": ["M", "F"]}},
    {"target_means": {"t": 8}},
    {"target_means": {"t": 9}},
    {"absent": {"north": ["a"]}},
    {"absent": {"south": ["a"]}},
    {"ranges": {"a": [0, 1]}},
    {"ranges": {"a": [0, 2]}},
    {"label_range": [0, 1]},
]

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
    installed = {"objective_params", "objective_package"}  # tests/gbdt/objectives/test_plugins.py
    needs = {*installed, *NEEDS_SHRINK, *NEEDS_CLASSES, *NEEDS_VALIDATION, *NEEDS_OBJECTIVE}
    needs |= {*NEEDS_GROUPS, *NEEDS_RANGES, *NEEDS_KEYS, "label_holder", "blocks"}  # test_vertical.py
    needs |= {
        "rows",
        "min_common_rows",
        "max_ids",
        "repeated_ids",
        "id_form",
        "model",
        "predict_with",
        "predict_rows",
        "label_epsilon",
    }
    needs |= {"alone_rounds", "min_rows_per_bin", "min_count", "candidates"}
    needs |= {"subgroups", "threshold", "reference", "evaluate_rows", "level_names"}
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
    digests = {terms().digest}
    digests |= {terms(**{key: value}).digest for key, value in (OTHER | ALONE).items()}
    assert len(digests) == 1 + len(OTHER | ALONE)


def test_a_roster_that_cannot_shrink_is_refused():
    assert "needs all 3 parties in a sum" in refusal_of(on_loss="shrink")
    plain = {"on_loss": "shrink", "protection": "plain"}
    assert terms(**plain).min_roster == 2
    assert "so no party may be lost" in refusal_of(**plain, quorum=3)
    assert "quorum 4 is larger than the number of parties, 3" in refusal_of(**plain, quorum=4)
    assert "quorum needs on_loss" in refusal_of(quorum=2)
    five = {"on_loss": "shrink", "parties": ["a", "b", "c", "d", "e"]}
    assert terms(**five).min_roster == 4
    assert "quorum 3 of 5 parties is too small: protection masked needs at least 4" in refusal_of(
        **five, quorum=3
    )


def test_every_column_changes_the_digest():
    alone = {"classes", "group", "label_upper_bound", "held"}  # the last: test_vertical.py
    assert {*alone, *(key for change in OTHER_COLUMNS for key in change)} == set(Schema.model_fields)
    digests = {terms().digest, *(with_columns(**change).digest for change in OTHER_COLUMNS)}
    assert len(digests) == 1 + len(OTHER_COLUMNS)
    other = {**CLASSES, "columns": {**COLUMNS, "classes": ["v", "u", "w"]}}
    unnamed = {**CLASSES, "columns": COLUMNS, "num_class": 3}
    assert len({terms(**one).digest for one in (CLASSES, other, unnamed)}) == 3
    times = [{**COLUMNS, "label_upper_bound": upper} for upper in ("z", "zz")]
    assert len({terms(objective="survival:aft", columns=one).digest for one in times}) == 2


@pytest.mark.parametrize("key", ["turn_timeout", "rejoin_timeout"])
def test_a_session_waits_for_a_party_a_day_at_most(key):
    assert terms(**{key: 86_400}).canonical()
    assert f"{key}: input should be less than or equal to 86400" in refusal_of(**{key: 86_401})


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
        "terms: survival:aft needs columns.label_upper_bound, the column with the upper bound of a time: "
        "equal to columns.label if the time is known, infinite or missing if the event has not happened yet"
    )
    assert refusal_of(**BOUNDS) == (
        "terms: columns.label_upper_bound is only for survival:aft, survival:cox, but binary:logistic has "
        "one label per row: remove it"
    )
    assert "column 'a' is named more than once" in refusal_of(columns={**COLUMNS, "label_upper_bound": "a"})
    assert "aft_loss_distribution" in refusal_of(
        objective="survival:aft", aft_loss_distribution="cauchy", **BOUNDS
    )
    assert refusal_of(aft_loss_distribution="normal") == (
        "terms: aft_loss_distribution is for survival:aft, not for binary:logistic: remove it"
    )


COX = {"objective": "survival:cox", **BOUNDS}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sampling_method": "gradient_based"}, "sampling_method gradient_based"),
        ({"on_loss": "shrink"}, 'on_loss = "shrink"'),
        ({"party_metrics": True}, "party_metrics"),
        ({"parties": ["p", "q"], "protection": "masked", "allow_two_parties": True}, "two parties"),
        ({"base_score": 0.0}, "base_score"),
    ],
)
def test_what_risk_sets_exclude(settings, named):
    assert terms(**COX).metrics == ("cox-nloglik",)
    assert named in refusal_of(**{**COX, **settings})


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


# ---- votes ------------------------------------------------------------------------------------------


def test_no_more_features_are_elected_than_there_are():
    features = len(terms().columns.features)
    assert terms(vote_top_k=features).histograms.vote_top_k == features
    with pytest.raises(
        ConfigError, match=f"vote_top_k = {features + 1} is larger than the number of features, {features}"
    ):
        terms(vote_top_k=features + 1)
    with pytest.raises(ConfigError, match="vote_top_k: "):
        terms(vote_top_k=-1)


def test_votes_are_questions_of_a_tree_as_well():
    assert terms(max_depth=4).max_turns_per_tree == 4
    assert terms(max_depth=4, grow_policy="symmetric").max_turns_per_tree == 4
    assert terms(max_depth=4, vote_top_k=1).max_turns_per_tree == 7
    assert terms(max_depth=1, vote_top_k=1).max_turns_per_tree == 1
