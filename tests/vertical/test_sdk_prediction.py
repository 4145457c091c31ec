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
