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
    "noise, local": columns({"noise": {**NOISE, "placement": "local"}}, ranges=RANGES),
    "noise on numbers": columns(
        {"noise": {**NOISE, "epsilon": 8.0}, "objective": REGRESSION}, ranges=RANGES, label_range=[0, 100]
    ),
    "absent columns": {"parties": FOUR, "colluding": 0, **columns(absent={"west": ["a", "c"]})},
    "target means": columns({"min_count": 25}, target_means={"t": 4096, "u": 8}),
    "a reference": {"reference": True},
    "continued": {"xgb_model": MODEL, "rounds": 5},
    "another program": {"program": "forest"},
    "described": {"program": "describe", "min_count": 30},
    "described by site, levels named": {
        **{"program": "describe", "parties": FOUR, "colluding": 0},
        **{"party_metrics": True, "level_names": ["c"]},
    },
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
    "nothing": "6b1c208b3c0f064e",
    "no parties": "5b12424abbc86659",
    "trees": "615ba0732b5fbf70",
    "best leaves first": "814025ebc6236f92",
    "symmetric": "788e1bb6f3aeb357",
    "forest": "67255908d4d56aa1",
    "draws": "cad7dc6789320401",
    "columns drawn": "61fde631d5b33f51",
    "monotone": "e03799b0e5148a76",
    "interactions": "1df0b6698ffaebed",
    "elected features": "7f8fab02b65eca0c",
    "validation": "25456fac11239f2b",
    "rows held out by a column": "d1d410ca97b1870a",
    "words": "965ee0d381f7a5c3",
    "heavier ones": "898566ee1c603aeb",
    "classes": "da7bd33c5cdc6168",
    "numbered classes": "f8411d8a06e403ae",
    "squared error": "8866e807831dc397",
    "huber": "cf84a9d7222e488d",
    "medians": "53c44c623ed2c227",
    "quantiles": "c66021b9c75ab847",
    "counts": "caadf152137ff87c",
    "amounts": "efdae7cbc1dbdd6c",
    "amounts or nothing": "c1494c82bc7c18b5",
    "times": "ab2b1c09b9184753",
    "ranking": "22ad05cc3a9e854a",
    "pairs": "18985e9613f7c87e",
    "plain": "691d84b326c860c3",
    "masks": "deb1a6856d89445a",
    "masks of two": "7e99819609e2d901",
    "losses": "61652367a3747e8d",
    "paillier": "b52ac7fb2ef607e7",
    "paillier, a key holder without rows": "f0f47c562012de59",
    "noise": "5e9a51e55c39ffed",
    "noise, local": "d0219f49c87fbc39",
    "noise on numbers": "31430286c71f08c3",
    "absent columns": "7fe639e87a88eb07",
    "target means": "da1a1eeb1904fc94",
    "a reference": "75b2cdbe335c0845",
    "continued": "740bf481485f1163",
    "another program": "5e91bcf75e393a42",
    "described": "d1b9e7a437be3c4d",
    "described by site, levels named": "d5ebe06250f0ac8f",
    "tuned": "397efc501a6f8e22",
    "evaluated": "dd05669a6860292a",
    "evaluated, rows added": "9ac37f98c27db655",
    "apart, in order": "200f6b4ff443f157",
    "apart, by id": "a581727e6cc3c105",
    "apart, noise on labels": "e2b2a9234abe8161",
    "apart, ids repeated": "07315db91348db75",
    "apart, hidden": "fdc1d1ecde54a492",
    "apart, predicted": "2a10ab3936726dd8",
    "blocks": "ac278b9f46646520",
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
