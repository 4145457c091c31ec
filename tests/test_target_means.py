"""Columns of any number of levels as means of the label: `columns.target_means`."""

import asyncio
import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from anything import ANYTHING
from crashes import bare, crashed
from encoded import BEFOREHAND, BUCKETS, COLUMNS, TABLE, agreed, among, encoded, trained
from pyarrow import csv
from sites import bundles_of, consortium, fedboost, written
from sklearn import metrics

import fedboost as fb
from fedboost.gbdt import sampling


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


@pytest.mark.slow
async def test_over_grpc_by_command_and_in_the_audit_log(tmp_path):
    parts = among(3)
    terms = agreed(
        protection="masked", reference=True, validation_fraction=0.2, eval_metric="auc"
    ).with_parties(parts)
    bundles = bundles_of(tmp_path / "keys", terms.parties)
    table = tmp_path / "new.csv"
    csv.write_csv(TABLE, table)
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        for name, rows in parts.items():
            one.start_party(name, rows)
        model = (await one.train(terms)).model
        model.save(tmp_path / "m.json")
        known = await asyncio.to_thread(one.analyst.evaluate, tmp_path / "m.json", rows="all")
        drifted = await asyncio.to_thread(one.analyst.drift, tmp_path / "m.json")
    due = fb.simulate(terms, parts).model
    assert model.booster == due.booster
    assert model.summary == due.summary
    assert set(model.attestations) == set(parts)
    roots = bundles["analyst"].roots
    assert set(model.verify(roots, datetime.now(UTC))) == set(parts)
    label = TABLE["y"].to_numpy()
    auc = metrics.roc_auc_score(label, model.predict(TABLE))
    assert known.summary["metrics"]["auc"] == pytest.approx(auc, abs=1e-3)
    assert known.summary["shares"]["trained"] > 0.7
    here = fb.evaluate(tmp_path / "m.json", parts, rows="all").summary
    assert json.dumps(known.summary) == json.dumps(here | {"shares": known.summary["shares"]})
    assert {column["name"] for column in drifted.summary["columns"]} == {"x", "shop", "ward", "score"}
    assert max(column["psi"] for column in drifted.summary["columns"]) < 0.01  # the same rows
    predicted = fedboost("predict", tmp_path / "m.json", table, "--out", tmp_path / "p.csv")
    assert predicted.code == 0, predicted.err
    values = csv.read_csv(tmp_path / "p.csv")["prediction"].to_numpy()
    np.testing.assert_allclose(values, model.predict(TABLE), rtol=1e-6)
    explained = fedboost("explain", tmp_path / "m.json", "--shap", table, "--out", tmp_path / "s.csv")
    assert explained.code == 0, explained.err
    told = fedboost("audit", tmp_path / "c" / "state" / "p0" / "memory.sqlite").out
    assert "sums of labels by level of a column" in told
    assert "No warnings" in told


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(120)
def test_processes_that_are_killed_come_back_and_change_nothing(tmp_path):
    parts = among(3)
    terms = agreed(protection="masked", rounds=12).with_parties(parts)
    model, kills, _ = crashed(tmp_path, written(tmp_path, parts), terms, 4, 1, ANYTHING)
    assert kills == 4
    assert bare(model) == bare(fb.simulate(terms, parts).model)


@pytest.mark.slow
def test_a_hundred_thousand_levels():
    draw = np.random.default_rng(0)
    count, levels, buckets = 600_000, 100_000, 1 << 17
    level, effect = draw.integers(0, levels, count), draw.normal(0, 1.5, levels)
    x = draw.normal(size=count).astype(np.float32)
    label = (x + effect[level] + draw.logistic(size=count) > 0).astype(np.int64)
    table = pa.table({"x": x, "shop": level, "y": label, "id": np.arange(count)})
    columns = {"target_means": {"shop": buckets}, "categorical": {}}
    settings = {"protection": "masked", "min_count": 1, "eval_metric": "auc", "validation_fraction": 0.2}
    terms = agreed(columns, **settings)
    parts = {f"p{number}": table.slice(number * 200_000, 200_000) for number in range(3)}
    result = fb.simulate(terms, parts)
    assert result.model.booster.buckets == {"shop": buckets}
    assert result.model.booster.importance()["shop"] > 0
    assert (
        fb.simulate(terms.changed(protection="plain"), {"all": table}).model.booster == result.model.booster
    )
    without = fb.simulate(terms.changed(columns={**COLUMNS, **columns, "target_means": {}}), parts)
    gained = result.history[-1]["validation-auc"] - without.history[-1]["validation-auc"]
    assert gained > 0.03
