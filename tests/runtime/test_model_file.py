"""The model file: written whole, read back without loss, an ordinary XGBoost model."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from raised import raised
from sites import rows, shared_out, terms

from fedboost import __version__
from fedboost.errors import ConfigError
from fedboost.runtime.data.shard import to_features
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.terms.terms import Terms


@pytest.fixture(scope="module")
def model():
    return simulate(terms(eval_metric=["auc", "logloss"]), shared_out(2)).model


def test_a_model_that_was_saved_and_loaded_is_the_same_file_again(model, tmp_path):
    model.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    assert loaded.to_bytes() == model.to_bytes() == (tmp_path / "model.json").read_bytes()
    assert loaded == model
    assert Model.load(str(tmp_path / "model.json")) == model


def test_the_file_carries_the_facts(model):
    attributes = json.loads(model.to_bytes())["learner"]["attributes"]
    assert set(attributes) == {
        f"fedboost.{fact}"
        for fact in ("version", "terms", "terms_digest", "protection", "parties", "history")
    }
    assert attributes["fedboost.version"] == __version__
    assert attributes["fedboost.terms"] == model.terms.canonical()
    assert attributes["fedboost.terms_digest"] == model.terms.digest
    assert json.loads(attributes["fedboost.parties"]) == ["north", "south"]
    assert attributes["fedboost.protection"] == "plain"
    history = json.loads(attributes["fedboost.history"])
    assert [list(row) for row in history] == [["round", "auc", "logloss"]] * 3


def test_the_fingerprint_is_of_the_trees_alone(model):
    others = simulate(model.terms, shared_out(3)).model
    assert others.to_bytes() != model.to_bytes()
    assert others.fingerprint == model.fingerprint
    assert simulate(model.terms.changed(rounds=2), shared_out(2)).model.fingerprint != model.fingerprint


def test_xgboost_reads_the_file_and_predicts_the_same(model, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    model.save(tmp_path / "model.json")
    booster = xgboost.Booster(model_file=tmp_path / "model.json")
    assert booster.attributes()["fedboost.terms_digest"] == model.terms.digest
    ward = np.searchsorted(["a", "b", "c"], rows().column("ward").to_numpy(zero_copy_only=False))
    columns = [rows().column("age").to_numpy(), rows().column("dose").to_numpy(zero_copy_only=False), ward]
    features = np.column_stack(columns).astype(np.float32)
    theirs = booster.predict(xgboost.DMatrix(features, feature_names=["age", "dose", "ward"]))
    ours = model.predict(features)
    assert np.abs(theirs - ours).max() < 1e-6
    assert ours.tolist() == model.predict(rows()).tolist()


def test_predictions_take_tables_of_any_kind_and_arrays(model, tmp_path):
    csv.write_csv(rows(), tmp_path / "rows.csv")
    expected = model.predict(rows())
    assert expected.dtype == np.float64
    assert expected.shape == (rows().num_rows,)
    assert 0 < expected.min() < expected.max() < 1
    for data in (tmp_path / "rows.csv", str(tmp_path / "rows.csv"), rows().to_pandas(), rows().to_pydict()):
        assert model.predict(data).tolist() == expected.tolist()


def based(table):
    """The same rows with base margins."""
    margin = np.linspace(-1, 1, table.num_rows)
    return table.append_column("known", [margin])


def test_a_table_brings_its_base_margins_and_an_array_is_given_them(model, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    columns = {**model.terms.columns.model_dump(mode="json"), "base_margin": "known"}
    terms = model.terms.changed(columns=columns)
    own = simulate(terms, {name: based(table) for name, table in shared_out(2).items()}).model
    own.save(tmp_path / "own.json")
    assert Model.load(tmp_path / "own.json") == own
    table, known = based(rows()), based(rows()).column("known").to_numpy()
    expected = own.predict(table)
    csv.write_csv(table, tmp_path / "rows.csv")
    assert own.predict(tmp_path / "rows.csv").tolist() == expected.tolist()
    with raised(ConfigError, "table-column-missing"):
        own.predict(rows())
    assert own.predict(rows(), known).tolist() == expected.tolist()
    features = to_features(rows(), terms.columns, "rows")
    assert own.predict(features, known).tolist() == expected.tolist()
    with raised(ConfigError, "model-margin-missing"):
        own.predict(features)
    with raised(ConfigError, "model-margin-shape"):
        own.predict(features, known[:3])
    theirs = xgboost.Booster(model_file=tmp_path / "own.json")
    names = list(terms.columns.features)
    data = xgboost.DMatrix(features, base_margin=known, feature_names=names)
    assert np.abs(theirs.predict(data) - expected).max() < 1e-6
    # On a model without base margins they take the place of the base score, as in XGBoost.
    model.save(tmp_path / "other.json")
    theirs = xgboost.Booster(model_file=tmp_path / "other.json")
    assert np.abs(theirs.predict(data) - model.predict(features, known)).max() < 1e-6


def test_terms_with_base_margins_want_a_model_that_begins_with_its_constant(model):
    document = json.loads(model.to_bytes())
    attributes = document["learner"]["attributes"]
    terms = json.loads(attributes["fedboost.terms"])
    terms["columns"]["base_margin"] = "known"
    attributes["fedboost.terms"] = json.dumps(terms)
    attributes["fedboost.terms_digest"] = Terms.read(terms).digest
    with raised(ConfigError, "model-altered"):
        Model.from_bytes(json.dumps(document, separators=(",", ":")).encode())


WARDS = {"label": "ward", "numeric": ["age", "dose"], "classes": ["c", "a", "b"]}


def test_classes_are_named_and_chosen(tmp_path):
    of_wards = simulate(terms(objective="multi:softprob", columns=WARDS), shared_out(2)).model
    of_wards.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    assert loaded.classes == ("c", "a", "b")
    shares = loaded.predict(rows())
    assert shares.shape == (rows().num_rows, 3)
    assert np.abs(shares.sum(axis=1) - 1).max() < 1e-12
    chosen = [("c", "a", "b")[row.index(max(row))] for row in shares.tolist()]
    assert loaded.predict_class(rows()).tolist() == chosen
    assert len(set(chosen)) == 3
    table = rows().append_column("kind", pa.array(np.arange(rows().num_rows) % 3))
    columns = {"label": "kind", "numeric": ["age"]}
    numbered = simulate(terms(objective="multi:softprob", num_class=4, columns=columns), [table]).model
    assert numbered.classes == (0, 1, 2, 3)
    chosen = numbered.predict_class(table)
    assert chosen.tolist() == np.argmax(numbered.predict(table), axis=1).tolist()


def test_two_classes_and_none(model):
    assert model.classes == (0, 1)
    chosen = model.predict_class(rows())
    assert chosen.tolist() == [int(share > 0.5) for share in model.predict(rows()).tolist()]
    assert set(chosen.tolist()) == {0, 1}
    amounts = simulate(terms(objective="reg:squarederror"), shared_out(2)).model
    for ask in (lambda: amounts.classes, lambda: amounts.predict_class(rows())):
        with raised(ConfigError, "model-no-classes"):
            ask()


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 4), (1, 3, 1)])
def test_arrays_of_another_shape_are_refused(model, shape):
    with raised(ConfigError, "model-array-shape"):
        model.predict(np.zeros(shape, np.float32))


def test_what_is_missing_from_a_table_to_predict_is_named(model, tmp_path):
    csv.write_csv(rows().drop_columns(["age"]), tmp_path / "rows.csv")
    with raised(ConfigError, "table-column-missing"):
        model.predict(tmp_path / "rows.csv")


def test_importance_names_features(model):
    assert set(model.importance()) <= {"age", "dose", "ward"}
    assert "age" in model.importance("weight")
    with raised(ConfigError, "importance-unknown"):
        model.importance("luck")


def test_saving_replaces_a_file_at_once_or_leaves_it_alone(model, tmp_path, monkeypatch):
    file = tmp_path / "model.json"
    file.write_text("an older model")

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigError, match=r"model\.json: cannot write: No space left"):
        model.save(file)
    assert file.read_text() == "an older model"
    monkeypatch.undo()
    model.save(file)
    assert file.read_bytes() == model.to_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def test_the_file_has_the_rights_any_new_file_has(model, tmp_path):
    model.save(tmp_path / "model.json")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "model.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_saving_where_there_is_no_folder_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match="cannot write: No such file or directory"):
        model.save(tmp_path / "nowhere" / "model.json")


def spoiled(model, change):
    content = json.loads(model.to_bytes())
    change(content["learner"]["attributes"])
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.pop("fedboost.terms"),
        lambda facts: facts.pop("fedboost.history"),
        lambda facts: facts.update({"fedboost.terms": "{}"}),
        lambda facts: facts.update({"fedboost.terms": "[" * 50_000}),
        lambda facts: facts.update({"fedboost.history": "3"}),
        lambda facts: facts.update({"fedboost.history": '[{"round": "one"}]'}),
        lambda facts: facts.update({"fedboost.history": '["one"]'}),
        lambda facts: facts.update({"fedboost.history": "[" * 50_000}),
    ],
)
def test_facts_that_cannot_be_are_refused(model, change):
    with pytest.raises(ConfigError) as caught:
        Model.from_bytes(spoiled(model, change), "model.json")
    assert "\n" not in str(caught.value)
