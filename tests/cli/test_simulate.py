"""`fedboost simulate`, as a user types it."""

import pyarrow as pa
import pytest
from commands import LABEL, WARD, done, objects
from pyarrow import csv
from sites import NAMES, rows, terms

from fedboost.runtime.data.draft import split_by_site
from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.model import Model
from fedboost.runtime.tasks import read_terms, terms_to_toml


def test_terms_by_site_name_the_parties_and_say_what_counts_as_1(folder):
    words = rows().set_column(LABEL, "y", pa.array(["no", "yes", "no"] * 60))
    csv.write_csv(words, "words.csv")
    end = done("terms", "words.csv", "--label", "y", "--site", "site", "--out", "new.toml")
    drafted = read_terms(folder / "new.toml")
    assert drafted.parties == ("east", "north", "south")
    assert drafted.columns.features == ("age", "dose", "ward")
    assert drafted.columns.positive == "yes"
    assert "y: 'yes' (60 of 180 rows) is label 1, because it is the rarer value" in end.err


def test_predict_says_which_levels_count_as_missing(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    wards = rows()["ward"].to_pylist()
    strange = rows().set_column(WARD, "ward", pa.array(["x", "z", *wards[2:]]))
    csv.write_csv(strange, "strange.csv")
    end = done("predict", "m.json", "strange.csv")
    assert "ward has 2 rows with undeclared categories ('x', ...)" in end.err
    missing = rows().set_column(WARD, "ward", pa.array([None, None, *wards[2:]]))
    csv.write_csv(missing, "missing.csv")
    assert done("predict", "m.json", "missing.csv").out == end.out


def test_simulate_by_site_makes_the_model_of_the_sites(folder):
    (folder / "any.toml").write_text(terms_to_toml(terms()))
    end = done("simulate", "any.toml", "--data", "rows.csv", "--site", "site", "--out", "m.json", "--json")
    *rounds, last = objects(end.out)
    assert [list(line) for line in rounds] == [["event", "round", "logloss", "seconds", "bytes"]] * 3
    assert [line["round"] for line in rounds] == [0, 1, 2]
    assert {line["event"] for line in rounds} == {"round"}
    assert set(last) == {
        "event",
        "model",
        "fingerprint",
        "terms",
        "metrics",
        "traffic",
        "protection",
        "signed_by",
    }
    assert last["event"] == "done"
    assert last["model"] == "m.json"
    assert last["metrics"] == {"logloss": rounds[-1]["logloss"]}
    assert set(last["traffic"]) == set(NAMES[:3])
    assert all(set(sums) == {"sent", "received"} for sums in last["traffic"].values())
    model = Model.load("m.json")
    assert model.fingerprint == last["fingerprint"]
    assert model.terms.digest == last["terms"]
    assert model.to_bytes() == simulate(terms(), split_by_site(rows(), "site")).model.to_bytes()
    assert end.err == ""


@pytest.mark.parametrize(
    ("options", "parties"),
    [
        ((), ("north", "south")),
        (("--parties", "4"), ("party-1", "party-2", "party-3", "party-4")),
        (("--parties", "1", "--seed", "5"), ("party-1",)),
    ],
)
def test_simulate_shares_the_rows_out(folder, options, parties):
    done("simulate", "terms.toml", "--data", "rows.csv", *options, "--out", "m.json")
    model = Model.load("m.json")
    assert model.parties == parties
    assert model.fingerprint == simulate(terms(), [rows()]).model.fingerprint


def test_simulate_speaks_to_people_too(folder):
    end = done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    for part in ("3 trees", "logloss", "north", "south", "received", "m.json (XGBoost JSON)"):
        assert part in end.out
    assert "not saved" in done("simulate", "terms.toml", "--data", "rows.csv").out
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_a_model_file_is_replaced_whole(folder):
    (folder / "m.json").write_text("an older file")
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json", "--force")
    assert len(Model.load("m.json").booster.trees) == 3
