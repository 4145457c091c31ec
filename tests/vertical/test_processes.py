"""Parties with different columns as processes of their own, with keys: whoever is killed, the model is that
of pooled rows."""

import pytest
from crashes import crashed
from sites import written

from fedboost.runtime.local.cluster import ANYTHING, LocalCluster
from tests.helpers.columns_apart import LAYOUTS, pooled, terms_of, train_pooled

KILLS, ROWS = 10, 4_000
SETTINGS = {"rounds": 40, "max_depth": 5}


def apart(folder, layout):
    """Terms, the parties' tables as files, and the model file of pooled rows."""
    table = pooled(ROWS)
    tables = LAYOUTS[layout].tables(table)
    terms = terms_of(LAYOUTS[layout], **SETTINGS).with_parties(list(tables))
    return terms, written(folder, tables), train_pooled(table, **SETTINGS).model


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["two holders", "blocks"])
def test_the_model_over_grpc_is_that_of_pooled_rows(tmp_path, layout):
    terms, files, whole = apart(tmp_path, layout)
    with LocalCluster(tmp_path, files, policy=ANYTHING) as one:
        model = one.analyst.train(terms).model
    assert model.booster.to_xgboost() == whole.booster.to_xgboost()
    assert set(model.attestations) == set(files)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("victim", ["aggregator", "bank", "shop", None])
def test_killed_processes_that_come_back_change_nothing(tmp_path, victim):
    terms, files, whole = apart(tmp_path, "three holders")
    among = None if victim is None else [victim]
    model, kills, _ = crashed(tmp_path, files, terms, KILLS, 1, ANYTHING, among)
    assert kills == KILLS
    assert model.booster.to_xgboost() == whole.booster.to_xgboost()
    assert set(model.attestations) == set(files)
