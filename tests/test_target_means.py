"""Columns of any number of levels as means of the label: `columns.target_means`."""

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from encoded import encoded, level_rows

import fedboost as fb
from fedboost.gbdt import sampling
from fedboost.terms.terms import Terms

TABLE = level_rows()
BUCKETS = 64
COLUMNS = {
    "label": "y",
    "numeric": ["x"],
    "target_means": {"shop": BUCKETS},
    "categorical": {"ward": ["a", "b", "c"]},
    "row_id": "id",
}
BEFOREHAND = {**COLUMNS, "numeric": ["x", "shop"], "target_means": {}}
"""The same columns where levels are means in the table."""


def agreed(columns=(), **settings):
    small = {"rounds": 4, "max_depth": 3, "max_bin": 32, "protection": "plain"}
    return Terms.read({"columns": {**COLUMNS, **dict(columns)}, **small, **settings})


def among(parties, table=TABLE, seed=3):
    """The rows shared out among so many parties."""
    owner = np.random.default_rng(seed).integers(0, parties, table.num_rows)
    return {f"p{number}": table.filter(pa.array(owner == number)) for number in range(parties)}


def trained(tables=None, columns=(), **settings):
    return fb.simulate(agreed(columns, **settings), tables or {"all": TABLE}).model


def held_out(share, seed=0):
    keys = np.array([sampling.key_of(text) for text in TABLE["id"].to_pylist()], np.uint64)
    return sampling.sampled(keys, share, seed, "validation")


CASES = {
    "classes": ({}, {}, {}),
    "weights": ({"weight": "w"}, {}, {"weight": "w"}),
    "numbers": ({"label": "amount"}, {"objective": "reg:squarederror"}, {"label": "amount"}),
    "amounts": ({"label": "amount"}, {"objective": "reg:gamma"}, {"label": "amount"}),
    "validation": ({}, {"validation_fraction": 0.25}, {"trained": ~held_out(0.25)}),
    "another seed": ({}, {"seed": 5, "subsample": 0.5}, {"seed": 5}),
    "few rows count": ({}, {"min_count": 1}, {"floor": 1}),
    "many rows count": ({}, {"min_count": 60}, {"floor": 60}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_that_of_a_table_that_was_encoded_beforehand(case):
    columns, settings, of_twin = CASES[case]
    table, means = encoded(TABLE, BUCKETS, **of_twin)
    own = trained(columns=columns, **settings).booster
    told = own.target_means["shop"].values
    assert len({*told.tolist()}) > 5
    np.testing.assert_array_equal(told, means[:, -1])
    beforehand = trained({"all": table}, columns={**BEFOREHAND, **columns}, **settings).booster
    assert own.trees == beforehand.trees
    assert own.base_score == beforehand.base_score
    assert "shop" in own.importance()


@pytest.mark.parametrize("parties", [1, 3, 7])
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_the_model_is_the_same_whoever_holds_the_rows(parties, protection):
    if protection == "masked" and parties < 3:
        pytest.skip("masks hide a party among three")
    settings = {"validation_fraction": 0.2, "weight": "w"}
    columns = {"weight": settings.pop("weight")}
    own = trained(among(parties), columns, protection=protection, **settings)
    pooled = trained(columns=columns, **settings)
    assert own.booster == pooled.booster
    assert own.rounds == pooled.rounds


@pytest.fixture(scope="module")
def model():
    return trained(among(3))


def test_xgboost_loads_it_and_predicts_the_same(model, tmp_path):
    model.save(tmp_path / "m.json")
    booster = xgboost.Booster(model_file=tmp_path / "m.json")
    types = ["float", "float", "c"]
    names = [*model.booster.features]
    features = model.features(TABLE)
    rows = xgboost.DMatrix(features, feature_names=names, feature_types=types, enable_categorical=True)
    np.testing.assert_allclose(booster.predict(rows), model.predict(TABLE), atol=1e-6)
    np.testing.assert_array_equal(model.predict(features), model.predict(TABLE))
    again = fb.Model.load(tmp_path / "m.json")
    assert again.booster == model.booster
    np.testing.assert_array_equal(again.predict(TABLE), model.predict(TABLE))
    unknown = TABLE.slice(0, 1).set_column(1, "shop", pa.array(["never seen"]))
    assert np.isfinite(again.predict(unknown)).all()


def test_levels_are_numbers_or_text_and_missing_stays_missing(model):
    numbers = np.arange(TABLE.num_rows) % 50
    as_numbers = TABLE.set_column(1, "shop", pa.array(numbers))
    as_text = TABLE.set_column(1, "shop", pa.array(numbers.astype(str)))
    assert trained({"a": as_numbers}).booster == trained({"a": as_text}).booster
    assert np.isnan(model.features(TABLE)[:, 1]).tolist() == TABLE["shop"].is_null().to_pylist()


def test_two_columns_of_levels_stand_behind_the_numbers():
    two = {"target_means": {"shop": BUCKETS, "ward": 8}, "categorical": {}}
    model = trained(among(3), two)
    alone = trained(columns={"target_means": {"ward": 8}, "categorical": {}, "numeric": ["x"]}, min_count=10)
    assert model.booster.features == ("x", "shop", "ward")
    assert model.booster.buckets == {"shop": BUCKETS, "ward": 8}
    assert model.booster.target_means["ward"] == alone.booster.target_means["ward"]
    assert model.booster == trained(columns=two).booster
