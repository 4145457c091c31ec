"""Golden digests of terms: parties of two versions agree only if both hash the same terms to the same digest.
Whoever means to change one prints the new digests with `python tests/terms/test_golden.py`.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from all_terms import BASE, CLASSES, COLUMNS, RANGES, RANKING, REGRESSION
from fixed import table_of_digests

from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.built_in import Logistic
from fedboost.terms import continuation
from fedboost.terms.columns import Schema
from fedboost.terms.terms import Terms

FEW = ["north", "south"]
FOUR = ["north", "south", "east", "west"]
NOISE = {"epsilon": 1.0, "delta": 1e-6}
APART = {"parties": FEW, "protection": "plain", "label_holder": "north"}
BLOCKS = [{"parties": FOUR[at : at + 2], "label_holder": FOUR[at]} for at in (0, 2)]
MODEL = continuation.written(Booster(Logistic(), 0.5, ("a", "b", "c"), (), 1, ("c",)), None)
COUNTED = {"xgb_model": MODEL, "rounds": 1, "min_count": 20}


def columns(base=None, **more):
    return {**(base or {}), "columns": {**COLUMNS, **((base or {}).get("columns", {})), **more}}


def apart(columns_of=None, **settings):
    """Settings of parties that hold different columns; by row ids unless they say in which order."""
    own = {"held": {"south": ["b"]}, **({} if settings.get("rows") == "in_order" else {"row_id": "i"})}
    return {**APART, **columns(**own, **(columns_of or {})), **settings}


SETTINGS = {
    "nothing": {},
    "no parties": {"parties": []},
    "trees": {
        **{"rounds": 7, "max_depth": 3, "learning_rate": 0.1, "max_bin": 64, "reg_lambda": 2.0},
        **{"reg_alpha": 0.5, "gamma": 0.25, "min_child_weight": 3.0, "max_delta_step": 0.5},
        **{"max_cat_to_onehot": 9, "max_cat_threshold": 32},
    },
    "best leaves first": {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 5},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 4},
    "forest": {"num_parallel_tree": 9, "sampling_method": "bootstrap", "learning_rate": 1.0},
    "draws": {"subsample": 0.5, "sampling_method": "gradient_based", "seed": 7},
    "columns drawn": {"colsample_bytree": 0.5, "colsample_bylevel": 0.6, "colsample_bynode": 0.7},
    "monotone": {"monotone_constraints": {"a": 1, "b": -1}},
    "interactions": {"interaction_constraints": [["a", "b"], ["c"]]},
    "elected features": {"vote_top_k": 1, "gradient_bits": 12},
    "validation": {
        **{"validation_fraction": 0.25, "early_stopping_rounds": 3},
        **{"eval_metric": ["logloss", "error@0.25", "auc"], "party_metrics": True},
    },
    "rows held out by a column": columns(validation="v", weight="w", row_id="i", base_margin="m"),
    "words": columns(positive="yes"),
    "heavier ones": {"scale_pos_weight": 2.0, "base_score": 0.25},
    "classes": CLASSES,
    "numbered classes": {"objective": "multi:softprob", "num_class": 4},
    "squared error": {"objective": REGRESSION},
    "huber": {"objective": "reg:pseudohubererror", "huber_slope": 2.0},
    "medians": {"objective": "reg:absoluteerror"},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": 0.9},
    "counts": {"objective": "count:poisson"},
    "amounts": {"objective": "reg:gamma"},
    "amounts or nothing": {"objective": "reg:tweedie", "tweedie_variance_power": 1.2},
    "times": {
        **columns({"objective": "survival:aft"}, label_upper_bound="z"),
        **{"aft_loss_distribution": "logistic", "aft_loss_distribution_scale": 2.0},
    },
    "ranking": {
        **RANKING,
        **{"lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 5, "ndcg_exp_gain": False},
        **{"lambdarank_normalization": False, "lambdarank_score_normalization": False},
    },
    "pairs": {**RANKING, "objective": "rank:pairwise"},
    "plain": {"protection": "plain", "parties": ["north"]},
    "masks": {"protection": "masked", "parties": FOUR, "colluding": 2},
    "masks of two": {"protection": "masked", "parties": FEW, "allow_two_parties": True},
    "losses": {
        **{"on_loss": "shrink", "quorum": 3, "parties": FOUR, "colluding": 0},
        **{"turn_timeout": 60.0, "rejoin_timeout": 30.0},
    },
    "paillier": {"protection": "paillier", "keyholder": "north", "key_bits": 2048},
    "paillier, a key holder without rows": {
        **{"protection": "paillier", "keyholder": "west", "keyholder_rows": False, "parties": FOUR},
    },
    "noise": columns({"noise": NOISE}, ranges=RANGES),
    "noise, even cut points": columns(
        {"noise": {**NOISE, "placement": "local"}, "cut_points": "even"}, ranges=RANGES
    ),
    "noise, central": columns({"noise": {**NOISE, "placement": "central"}}, ranges=RANGES),
    "noise on numbers": columns(
        {"noise": {**NOISE, "epsilon": 8.0}, "objective": REGRESSION}, ranges=RANGES, label_range=[0, 100]
    ),
    "target means": columns({"min_count": 25}, target_means={"t": 4096, "u": 8}),
    "a reference": {"reference": True},
    "continued": {"xgb_model": MODEL, "rounds": 5},
    "another program": {"program": "forest"},
    "described": {"program": "describe", "min_count": 30},
    "tuned": {
        **{"program": "tune", "candidates": [{"learning_rate": 0.1, "max_depth": 4}, {"reg_lambda": 2.0}]},
        "validation_fraction": 0.2,
    },
    "evaluated": {
        **columns({**COUNTED, "program": "evaluate", "threshold": 0.25}, subgroups={"s": ["F", "M"]}),
        **{"subgroups": ["s", "c"], "party_metrics": True},
    },
    "evaluated, rows added": {**COUNTED, "program": "evaluate", "evaluate_rows": "all"},
    "apart, in order": apart(rows="in_order", alone_rounds=2, min_rows_per_bin=10),
    "apart, by id": apart(min_common_rows=500, max_ids=20_000, id_form="digits", model="parties"),
    "apart, noise on labels": apart(label_epsilon=2.0, alone_rounds=1),
    "apart, ids repeated": apart(rows="label_holder", repeated_ids=True),
    "apart, hidden": {**apart(), "protection": "paillier", "key_bits": 2048, "model": "whole"},
    "apart, predicted": apart(model="parties", predict_with="5" * 64, predict_rows=1234),
    "blocks": {
        **columns(held={"south": ["b"], "west": ["a"]}, row_id="i"),
        **{"parties": FOUR, "protection": "plain", "blocks": BLOCKS},
    },
}
GOLDEN = {
    "nothing": "170b798f678b84de",
    "no parties": "4082ce4fae2d54a6",
    "trees": "965ab7f3b0b20471",
    "best leaves first": "0c12424fe7afc915",
    "symmetric": "562ca3141abd2d73",
    "forest": "957b60845942a788",
    "draws": "1b6cfe857bd5abb7",
    "columns drawn": "1ed12d0f6231c05a",
    "monotone": "c751fb491def3743",
    "interactions": "9c43382480d244e4",
    "elected features": "d7dec1a5f7df1372",
    "validation": "ec12a3da40fdfe66",
    "rows held out by a column": "c470a928041d8704",
    "words": "5fb9f76daf8095e5",
    "heavier ones": "45d3cc7d5f3dced0",
    "classes": "5a2905c133ff78f7",
    "numbered classes": "85b629a53dd5106f",
    "squared error": "5ffba23301da6fb7",
    "huber": "a14c63e7a276e820",
    "medians": "8ee0829e88a6bafe",
    "quantiles": "40c8d06c1c403406",
    "counts": "08a90265aa73467c",
    "amounts": "05bc1550a26b0c62",
    "amounts or nothing": "30af56a11af06e07",
    "times": "a488939a0cae9647",
    "ranking": "1073f27c288cedca",
    "pairs": "9bd20e78f33ecc12",
    "plain": "b94dbf8a47811cbc",
    "masks": "8c9519f309bdd40e",
    "masks of two": "a3ac2cf16aa09b55",
    "losses": "684ce4f68c5aac77",
    "paillier": "06733f86d8f95f97",
    "paillier, a key holder without rows": "b23bf1a314d7373d",
    "noise": "cbd6ded21b06dbbe",
    "noise, even cut points": "d03545ca6d3bba80",
    "noise, central": "1c92b12a381fcc9d",
    "noise on numbers": "cbf9b143bd4ef959",
    "target means": "da9bf99cf454c8e8",
    "a reference": "f0e212183608ecc2",
    "continued": "e758d4191d394690",
    "another program": "e6b010f8454bfdad",
    "described": "16a416868bad3e64",
    "tuned": "dc5d587c8b1ba400",
    "evaluated": "37e3e67bba7b6c58",
    "evaluated, rows added": "0cd1f9661244d5d3",
    "apart, in order": "8d482c5bdf815142",
    "apart, by id": "daf9d9e1e1fdb50e",
    "apart, noise on labels": "10bee7789722e1a3",
    "apart, ids repeated": "02b59b1810f2974e",
    "apart, hidden": "ac1a91265d3c43dd",
    "apart, predicted": "496872d838053911",
    "blocks": "e813f24033408f87",
}


def terms_of(name):
    return Terms.read({**BASE, **SETTINGS[name]})


def digest_of(name):
    """The first 16 digits of the digest of the terms."""
    terms = terms_of(name)
    assert Terms.from_canonical(terms.canonical()) == terms
    return terms.digest[:16]


@pytest.mark.parametrize("name", SETTINGS)
def test_digests_of_terms_are_as_they_were(name):
    assert digest_of(name) == GOLDEN[name]


def test_all_keys_are_in_some_of_them():
    """Those of objectives that are installed are in tests/gbdt/objectives/test_plugins.py."""
    installed = {"objective_params", "objective_package"}
    assert {*BASE}.union(*SETTINGS.values()) == {*Terms.file_keys()} - installed
    assert {*COLUMNS}.union(*(one.get("columns", ()) for one in SETTINGS.values())) == {*Schema.model_fields}


if __name__ == "__main__":
    table_of_digests((name, digest_of(name)) for name in SETTINGS)
