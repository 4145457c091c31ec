"""A model that is continued: named by a path in a terms file, in Python, over the network."""

import dataclasses
import json
import os
import threading

import numpy as np
import pytest
import xgboost
from raised import raised
from refusals import refusal
from sites import bundles_of, consortium, fedboost, rows, shared_out, terms, written

import fedboost as fb
from fedboost.runtime.model import MAX_FILE_BYTES
from fedboost.runtime.tasks import read_terms, terms_to_toml

TABLES = shared_out(3)
COLUMNS = ("age", "dose")


def drafted(**settings):
    table = rows().drop_columns(["site"])
    return fb.Terms.draft(table, label="y", max_depth=3, max_bin=16, protection="plain", **settings)


def agreement(folder, model, **settings):
    """A terms file that continues the model of a file, named from the folder of the terms."""
    own = terms(TABLES, **settings)
    path = folder / "terms.toml"
    path.write_text(f'xgb_model = "{model}"\n{terms_to_toml(own)}')
    return path


def test_three_rounds_in_python_and_three_more_from_their_file_are_six(tmp_path):
    whole = fb.simulate(drafted(rounds=6), TABLES).model
    first = fb.simulate(drafted(rounds=3), TABLES).model
    first.save(tmp_path / "first.json")
    for earlier in (
        first,
        tmp_path / "first.json",
        str(tmp_path / "first.json"),
        fb.Model.load(tmp_path / "first.json"),
    ):
        again = drafted(rounds=3, xgb_model=earlier)
        assert fb.simulate(again, TABLES).model.fingerprint == whole.fingerprint
        assert again.digest == drafted(rounds=3).changed(xgb_model=first).digest
    assert again.digest != drafted(rounds=3).digest
    assert "learner" not in repr(again)


def test_a_continued_model_is_one_to_hold_save_and_continue(tmp_path):
    first = fb.simulate(drafted(rounds=2), TABLES).model
    second = fb.simulate(drafted(rounds=2, xgb_model=first), TABLES).model
    second.save(tmp_path / "second.json")
    loaded = fb.Model.load(tmp_path / "second.json")
    assert (loaded.kept, len(loaded.rounds), len(loaded.booster.trees)) == (2, 2, 4)
    assert loaded.to_bytes() == second.to_bytes()
    third = fb.simulate(drafted(rounds=2, xgb_model=tmp_path / "second.json"), TABLES).model
    assert third.fingerprint == fb.simulate(drafted(rounds=6), TABLES).model.fingerprint
    assert len(third.terms.xgb_model) < 2 * len(second.booster.to_xgboost())  # no model within a model
    theirs = xgboost.Booster(model_file=str(tmp_path / "second.json"))
    assert theirs.num_boosted_rounds() == 4
    other = second.booster.trees[0].changed(value=9.0)
    changed = dataclasses.replace(second.booster, trees=(other, *second.booster.trees[1:]))
    with raised(fb.ConfigError, "model-altered"):
        fb.Model.from_bytes(dataclasses.replace(second, booster=changed).to_bytes())


def test_a_path_in_a_terms_file_counts_from_it(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    first = fb.simulate(terms(TABLES), TABLES).model
    first.save(tmp_path / "models" / "first.json")
    monkeypatch.chdir("/")
    file = agreement(tmp_path, "models/first.json")
    assert (
        read_terms(file).digest
        == fb.Terms.load(file).digest
        == drafted().changed(**{**terms(TABLES).model_dump(mode="json"), "xgb_model": first}).digest
    )
    data = written(tmp_path, {"all": rows()})["all"]
    told = fedboost(
        "simulate", file, "--data", data, "--site", "site", "--out", tmp_path / "m.json", "--json"
    )
    assert told.code == 0, told.err
    both = fb.Model.load(tmp_path / "m.json")
    sites = {name: rows().filter(np.array(rows()["site"]) == name) for name in TABLES}
    first_here = fb.simulate(terms(TABLES), sites).model
    assert len(both.booster.trees) == len(first.booster.trees) + 3
    assert both.booster.trees[:3] == first.booster.trees
    assert first_here.fingerprint == first.fingerprint
    digest = fedboost("terms", file, "--digest")
    assert "3 rounds of depth 3, continuing a model of 3 trees" in " ".join(digest.out.split())
    assert both.terms.with_parties(TABLES).digest in digest.out


def test_a_file_of_xgboost_itself(tmp_path):
    table = rows()
    values = np.column_stack([np.array(table[name].to_numpy(), np.float32) for name in COLUMNS])
    data = xgboost.DMatrix(values, np.array(table["y"]), feature_names=list(COLUMNS))
    theirs = xgboost.train({"objective": "binary:logistic", "max_depth": 3}, data, 3)
    theirs.save_model(tmp_path / "theirs.json")
    numeric = {"label": "y", "numeric": COLUMNS}
    own = {**terms(TABLES).model_dump(mode="json"), "columns": numeric, "xgb_model": tmp_path / "theirs.json"}
    model = fb.simulate(fb.Terms(**own), TABLES).model
    assert len(model.booster.trees) == 6
    fb.Model.from_bytes(model.to_bytes()).save(tmp_path / "both.json")
    both = xgboost.Booster(model_file=str(tmp_path / "both.json"))
    assert np.abs(both.predict(data) - model.predict(values)).max() < 1e-6
    assert np.abs(both.predict(data, iteration_range=(0, 3)) - theirs.predict(data)).max() < 1e-6


def test_what_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "odd.json").write_text("{}")
    (tmp_path / "linear.json").write_bytes(
        xgboost.train({"booster": "gblinear"}, xgboost.DMatrix(np.eye(3), np.arange(3)), 1).save_raw("json")
    )
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    words = {
        "none.json": "none.json: cannot read the model: No such file",
        "odd.json": "odd.json is not a fedboost model",
        "linear.json": "linear.json is not a fedboost model",
        "binary.json": "binary.json: cannot read the model: it is not text; save it as JSON",
    }
    for name, said in words.items():
        refused = refusal("terms", agreement(tmp_path, name), "--digest")
        assert said in refused.replace(str(tmp_path), "")
    first = fb.simulate(terms(TABLES), TABLES).model
    first.save(tmp_path / "first.json")
    file = agreement(tmp_path, "first.json", objective="reg:squarederror")
    assert "terms.toml: xgb_model cannot be continued: its objective is binary:logistic" in refusal(
        "simulate", file, "--data", tmp_path / "no.csv"
    )


def test_a_path_in_terms_that_is_no_regular_file_is_not_read(tmp_path):
    """Terms with xgb_model = "/dev/zero" ended `fedboost approve` for want of memory; with the path of a
    pipe it waited for ever."""
    os.mkfifo(tmp_path / "pipe")

    def end_waiting():
        os.close(os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK))

    waiting = threading.Timer(5, end_waiting)
    waiting.start()
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", MAX_FILE_BYTES + 1)
    (tmp_path / "folder").mkdir()
    words = {
        "pipe": "pipe: cannot read the model: not a regular file\n",
        os.devnull: f"{os.devnull}: cannot read the model: not a regular file\n",
        "folder": "folder: cannot read the model: not a regular file\n",
        "large.json": "large.json: cannot read the model: it has more than 12,582,912 bytes",
        "a\\u0000b": "b: cannot read the model: embedded null byte",
    }
    for name, said in words.items():
        assert said in refusal("approve", agreement(tmp_path, name), "--config", tmp_path / "party.toml")
    waiting.cancel()


def test_a_model_of_a_class_for_each_base_score_is_refused(tmp_path):
    data = xgboost.DMatrix(np.eye(6), np.arange(6) % 3, feature_names=list("abcdef"))
    theirs = xgboost.train({"objective": "multi:softprob", "num_class": 3}, data, 1)
    text = theirs.save_raw("json").decode()
    scores = json.loads(text)["learner"]["learner_model_param"]["base_score"]
    (tmp_path / "m.json").write_text(text.replace(scores, "[1E0,0E0,0E0]"))
    own = {"objective": "multi:softprob", "num_class": 3, "xgb_model": tmp_path / "m.json"}
    with raised(fb.ConfigError, "model-unsupported"):
        fb.Terms(columns={"label": "y", "numeric": tuple("abcdef")}, **own)


@pytest.mark.slow
async def test_parties_sign_a_continued_model(tmp_path):
    bundles = bundles_of(tmp_path / "keys", TABLES)
    first = fb.simulate(terms(TABLES), TABLES).model
    again = drafted(rounds=3).changed(parties=list(TABLES), protection="masked", xgb_model=first)
    async with consortium(tmp_path / "c", TABLES, (), bundles) as one:
        model = (await one.train(again)).model
    assert set(model.attestations) == set(TABLES)
    assert model.fingerprint == fb.simulate(drafted(rounds=6), TABLES).model.fingerprint
