"""`fedboost predict`, as a user types it."""

import io
import subprocess
from csv import reader

import numpy as np
import pyarrow as pa
import pytest
from commands import WARD, done, objects, start
from pyarrow import csv
from sites import fedboost, rows

from fedboost.runtime.model import Model
from fedboost.runtime.tasks import read_terms
from fedboost.views.approval import summary


@pytest.mark.slow
def test_base_margins_are_drafted_trained_with_and_predicted_from(folder):
    csv.write_csv(rows().append_column("known", [np.linspace(-1, 1, rows().num_rows)]), "based.csv")
    done("terms", "based.csv", "--label", "y", "--base-margin", "known", "--out", "based.toml")
    assert read_terms(folder / "based.toml").columns.base_margin == "known"
    done("simulate", "based.toml", "--data", "based.csv", "--out", "m.json")
    _, *values = done("predict", "m.json", "based.csv").out.splitlines()
    expected = Model.load("m.json").predict("based.csv").tolist()
    assert list(map(float, values)) == expected
    assert "column 'known' is missing" in fedboost("predict", "m.json", "rows.csv").err


@pytest.mark.slow
def test_times_are_drafted_trained_with_and_predicted(folder):
    of_times = rows().append_column("from", [np.linspace(1, 9, rows().num_rows)])
    late = np.where(np.arange(rows().num_rows) % 3, 9.5, np.inf)
    csv.write_csv(of_times.append_column("to", [late]), "times.csv")
    given = "--label", "from", "--label-upper-bound", "to", "--objective", "survival:aft", "--exclude", "y"
    done("terms", "times.csv", *given, "--out", "times.toml")
    columns = read_terms(folder / "times.toml").columns
    assert columns.others == ("from", "to")
    assert not {"from", "to", "y"} & {*columns.features}
    done("simulate", "times.toml", "--data", "times.csv", "--out", "m.json")
    _, *values = done("predict", "m.json", "times.csv").out.splitlines()
    assert min(map(float, values)) > 0
    assert "aft-nloglik" in Model.load("m.json").rounds[-1]


def test_predict_writes_what_the_model_predicts(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    expected = Model.load("m.json").predict("rows.csv")
    assert len(set(expected.tolist())) > 3
    printed = done("predict", "m.json", "rows.csv").out
    header, *values = printed.splitlines()
    assert header == "prediction"
    assert np.array(list(map(float, values))).tolist() == expected.tolist()
    end = done("predict", "m.json", "rows.csv", "--out", "p.csv")
    assert end.out == ""
    assert (folder / "p.csv").read_text() == printed


def test_classes_from_drafted_terms_to_predictions(folder):
    """The names are those of the label, however a CSV has to spell them."""
    names = {"a": "north, east", "b": 'the "b"', "c": "prediction"}
    wards = [names[ward] for ward in rows().column("ward").to_pylist()]
    csv.write_csv(rows().set_column(WARD, "ward", pa.array(wards)), "rows.csv")
    end = done("terms", "rows.csv", "--label", "ward", "--site", "site", "--out", "new.toml")
    assert "ward has 3 classes: 'north, east', 'prediction', 'the \"b\"'" in end.err
    text = (folder / "new.toml").read_text()
    assert "num_class" not in text
    (folder / "new.toml").write_text(text.replace("rounds = 100", "rounds = 2"))
    done("simulate", "new.toml", "--data", "rows.csv", "--site", "site", "--out", "m.json")
    model = Model.load("m.json")
    assert len(model.booster.trees) == 6
    header, *lines = reader(io.StringIO(done("predict", "m.json", "rows.csv").out))
    assert header == ["prediction_", "north, east", "prediction", 'the "b"']
    assert [[float(cell) for cell in line[1:]] for line in lines] == model.predict("rows.csv").tolist()
    assert [line[0] for line in lines] == model.predict_class("rows.csv").tolist()
    done("predict", "m.json", "rows.csv", "--out", "p.csv")
    assert len((folder / "p.csv").read_text().splitlines()) == rows().num_rows + 1


def test_a_ranking_from_drafted_terms_to_predictions(folder):
    table = rows().append_column("case", [[f"case {i % 31}" for i in range(rows().num_rows)]])
    csv.write_csv(table, "rows.csv")
    options = ("--label", "y", "--group", "case", "--objective", "rank:ndcg", "--exclude", "site")
    done("terms", "rows.csv", *options, "--out", "ranking.toml")
    drafted = read_terms(folder / "ranking.toml")
    assert (drafted.columns.group, drafted.columns.features) == ("case", ("age", "dose", "ward"))
    text = (folder / "ranking.toml").read_text().replace("rounds = 100", "rounds = 4")
    settings = "validation_fraction = 0.3\neval_metric = 'ndcg@3'\n"
    (folder / "ranking.toml").write_text(settings + text)
    simulate = ("simulate", "ranking.toml", "--data", "rows.csv", "--json")
    events = objects(done(*simulate, "--parties", "3", "--seed", "2", "--out", "one.json").out)
    rounds = [event for event in events if "ndcg@3" in event]
    assert len(rounds) == 4
    assert all(0 < row["validation-ndcg@3"] <= 1 for row in rounds)
    done(*simulate, "--parties", "5", "--out", "other.json")  # groups are shared out whole
    assert Model.load("one.json").fingerprint == Model.load("other.json").fingerprint
    done("predict", "one.json", "rows.csv", "--out", "scores.csv")
    scores = csv.read_csv("scores.csv").column("prediction").to_numpy()
    label = table.column("y").to_numpy()
    assert scores[label == 1].mean() > scores[label == 0].mean() + 0.1
    assert "group        case: rows that are ranked against each other" in summary(drafted)


def test_numbers_are_drafted_as_classes_only_when_told(folder):
    scores = pa.array(np.arange(rows().num_rows) % 4)
    csv.write_csv(rows().append_column("score", scores), "rows.csv")
    asked = ("terms", "rows.csv", "--label", "score")
    end = done(*asked)
    assert 'objective = "reg:squarederror"' in end.out
    assert "score: there are 4 distinct integers, which are treated as numeric" in end.err
    end = done(*asked, "--objective", "multi:softprob")
    assert "num_class = 4" in end.out
    assert "amounts" not in end.err
    assert "did you mean" in fedboost(*asked, "--objective", "multi:softprop").err


def test_predict_needs_no_label_and_takes_new_levels_for_missing(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    table = rows().drop_columns(["y", "site"])
    for name, ward in (("new", "never seen"), ("none", None)):
        wards = pa.array([ward] * table.num_rows, pa.string())
        csv.write_csv(table.set_column(2, "ward", wards), f"{name}.csv")
    assert done("predict", "m.json", "new.csv").out == done("predict", "m.json", "none.csv").out


@pytest.mark.slow
def test_a_reader_who_leaves_early_hears_no_complaint(folder):
    done("simulate", "terms.toml", "--data", "rows.csv", "--out", "m.json")
    csv.write_csv(pa.concat_tables([rows()] * 200), "rows.csv")
    process = start("predict", "m.json", "rows.csv", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) != 0
