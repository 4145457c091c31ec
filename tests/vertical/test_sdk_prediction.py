"""Parts of a model in Python: `Result.party_models`, `fb.assemble`, `fb.predict_jointly`."""

import numpy as np
import pytest
from columns_apart import LAYOUTS, matched, pooled, scattered
from raised import raised

import fedboost as fb

LAYOUT = LAYOUTS["three holders"]


@pytest.fixture(scope="module")
def trained():
    tables, _ = scattered(LAYOUT, pooled())
    return fb.simulate(matched(LAYOUT, model="parties"), tables), tables


def test_parties_predict_together_what_the_whole_model_predicts(trained):
    result, tables = trained
    predicted = fb.predict_jointly(result.party_models, tables)
    everyone = dict(zip(pooled()["id"].to_pylist(), pooled().to_pylist(), strict=True))
    known = {name: {*table["id"].to_pylist()} for name, table in tables.items()}
    rows = []
    for i in tables["bank"]["id"].to_pylist():
        away = [name for party, names in LAYOUT.held.items() if i not in known[party] for name in names]
        rows.append({name: None if name in away else value for name, value in everyone[i].items()})
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert predicted.tolist() == result.model.predict(columns).tolist()
    assert np.isfinite(predicted).all()


@pytest.mark.parametrize("label", ["binary", "classes"])
def test_reasons_are_asked_for(label):
    settings = {"objective": "multi:softprob", "num_class": 3} if label == "classes" else {}
    tables, _ = scattered(LAYOUT, pooled(label=label))
    parts = fb.simulate(matched(LAYOUT, model="parties", **settings), tables).party_models
    predicted, reasons = fb.predict_jointly(parts, tables, reasons=True)
    assert predicted.tolist() == fb.predict_jointly(parts, tables).tolist()
    rows = len(tables["bank"]["id"])
    assert reasons.shape == ((rows, 3, 4) if settings else (rows, 4))
    assert (np.abs(reasons).max(axis=0) > 0).all()
    margins = reasons.sum(axis=-1)
    odds = np.exp(margins)
    due = odds / odds.sum(axis=1, keepdims=True) if settings else odds / (1 + odds)
    assert np.allclose(predicted, due, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"protection": "paillier", "key_bits": 2048}, {"alone_rounds": 2}])
def test_every_label_holder_is_told_covers(settings):
    """Also where gradients are encrypted, and where the first trees are the label holder's alone."""
    tables, _ = scattered(LAYOUT, pooled(150))
    settings = {"rounds": 3, "max_depth": 2, "max_bin": 8, "min_common_rows": 50, **settings}
    result = fb.simulate(matched(LAYOUT, model="parties", **settings), tables)
    covers = [tree.cover.tolist() for tree in result.party_models["bank"].booster.trees]
    assert covers == [tree.cover.tolist() for tree in result.model.booster.trees]
    assert all(min(own) > 0 for own in covers)
    predicted, reasons = fb.predict_jointly(result.party_models, tables, reasons=True)
    assert np.allclose(predicted, 1 / (1 + np.exp(-reasons.sum(axis=1))), rtol=1e-9)


def test_what_lacks_is_named(trained):
    result, tables = trained
    parts = {name: part for name, part in result.party_models.items() if name != "telco"}
    with raised(fb.ConfigError, "predict-input-missing"):
        fb.predict_jointly(parts, tables)
    with raised(fb.ConfigError, "predict-table-missing"):
        fb.predict_jointly(result.party_models, {"telco": tables["telco"]})
    with raised(fb.ConfigError, "model-parts-missing"):
        fb.predict_jointly({}, tables)


def test_parties_that_know_few_rows_do_not_predict(trained):
    result, tables = trained
    rows = len(tables["bank"]["id"])
    with pytest.raises(
        fb.SessionFailed, match=f"rows in common, but the terms require min_common_rows = {rows}"
    ):
        fb.predict_jointly(result.party_models, tables, min_common_rows=rows)
