"""Whatever a user gets wrong ends in one line that says what, where and what to do; nothing stays behind."""

import json

import pyarrow as pa
import pytest
from orderly import write_all
from pyarrow import csv, parquet
from refusals import refused
from sites import fedboost, rows, terms

from fedboost.runtime.tasks import terms_to_toml

AGE, DOSE, WARD, LABEL = 0, 1, 2, 4


def changed(column, place, value):
    """The rows with another value in one column and row (from 1), written as CSV would have it."""
    table = rows()
    values = table.column(column).to_pylist()
    values[place - 1] = value
    return table.set_column(column, table.column_names[column], pa.array(values))


def constant(column, value, kind=None):
    table = rows()
    return table.set_column(column, table.column_names[column], pa.array([value] * table.num_rows, kind))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with everything in order: rows.csv, terms.toml, party.toml, aggregator.toml, model.json."""
    monkeypatch.chdir(tmp_path)
    return write_all(tmp_path)


SIMULATE = ("simulate", "terms.toml", "--data", "rows.csv", "--out", "new.json")
TABLES = {
    "column missing": (rows().drop_columns(["dose"]), ["'dose'", "missing"]),
    "label missing": (rows().drop_columns(["y"]), ["'y'", "missing"]),
    "words in a column": (constant(AGE, "sixty"), ["'age'", "string", "numeric", "row 1"]),
    "a word in a row": (
        rows().set_column(
            AGE, "age", pa.array([*map(str, range(6)), "n.n.", *map(str, range(rows().num_rows - 7))])
        ),
        ["'age'", "'n.n.'", "numeric", "row "],
    ),
    "no rows": (rows().slice(0, 0), ["rows"]),
    "constant label": (constant(LABEL, 1), ["nothing to learn"]),
    "label without a value": (changed(LABEL, 5, None), ["'y'", "missing", "row "]),
    "label that is no class": (changed(LABEL, 5, 7), ["'y'", "7", "0 or 1", "row "]),
    "infinite label": (changed(LABEL, 5, float("inf")), ["'y'", "inf", "row "]),
    "infinite feature": (changed(AGE, 5, float("-inf")), ["'age'", "inf", "row "]),
    "too large a feature": (changed(AGE, 5, 1e300), ["'age'", "1e+300", "32-bit float", "row "]),
    "one row": (rows().slice(0, 1), ["1 row", "2 parties"]),
}


@pytest.mark.parametrize(("table", "said"), TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_that_do_not_fit(folder, form, table, said):
    if form == "csv":
        csv.write_csv(table, "rows.csv")
    else:
        parquet.write_table(table, "rows.parquet")
    refused(folder, (*SIMULATE[:3], f"rows.{form}", *SIMULATE[4:]), *said)


RANKINGS = {
    "group missing": ({}, rows(), ["'ward of'", "missing"]),
    "group without a name": (
        {},
        rows().append_column("ward of", [[None, *["a"] * (rows().num_rows - 1)]]),
        ["'ward of'", "names no group in row 1"],
    ),
    "label of no relevance": (
        {},
        changed(LABEL, 5, 32).append_column("ward of", rows().column("ward")),
        ["'y'", "32", "whole numbers from 0 to 31", "row "],
    ),
    "one label in each group": (
        {},
        rows().append_column("ward of", rows().column("y")),
        ["rows of different labels", "nothing to learn"],
    ),
    "groups of two weights": (
        {"weight": "age"},
        rows().append_column("ward of", rows().column("ward")),
        ["'age' differs within a group of 'ward of'", "row "],
    ),
    "fewer groups than parties": (
        {},
        rows().append_column("ward of", [["a"] * rows().num_rows]),
        ["1 groups cannot be split among 2 parties"],
    ),
}


@pytest.mark.parametrize(("columns", "table", "said"), RANKINGS.values(), ids=RANKINGS)
def test_rankings_that_cannot_be(folder, columns, table, said):
    parquet.write_table(table, "rows.parquet")
    named = {"label": "y", "group": "ward of", "numeric": ["dose"], **columns}
    ranking = terms(["north", "south"], objective="rank:ndcg", columns=named)
    (folder / "terms.toml").write_text(terms_to_toml(ranking))
    refused(folder, ("simulate", "terms.toml", "--data", "rows.parquet", "--out", "new.json"), *said)


def test_rankings_are_not_compared(folder):
    named = {"label": "y", "group": "ward", "numeric": ["dose"]}
    (folder / "terms.toml").write_text(terms_to_toml(terms(objective="rank:ndcg", columns=named)))
    compare = ("compare", "terms.toml", "--data", "rows.csv", "--site", "site")
    refused(folder, compare, "terms.toml", "rank:ndcg ranks whole groups")


FILES = {
    "empty": ("rows.csv", b"", "the file is empty"),
    "header only": ("rows.csv", b"age,dose,ward,site,y\n", "rows"),
    "noise as CSV": ("rows.csv", b"\x00\xff\xfe,\n\x81\n" * 40, "rows.csv"),
    "ragged": ("rows.csv", b"age,dose,ward,site,y\n1,2\n", "rows.csv"),
    "twice the same column": ("rows.csv", b"age,age,dose,ward,y\n1,2,3,a,0\n", "two columns named 'age'"),
    "noise as Parquet": ("rows.parquet", b"PAR1" + b"\x00" * 40, "rows.parquet"),
    "no known suffix": ("rows.sas7bdat", b"x", "unknown suffix"),
}


@pytest.mark.parametrize(("name", "content", "said"), FILES.values(), ids=FILES)
def test_files_that_are_no_tables(folder, name, content, said):
    (folder / name).write_bytes(content)
    refused(folder, (*SIMULATE[:3], name, *SIMULATE[4:]), said)


TERMS = {
    "unknown key": ("max_dept = 3\n", ["terms.toml", "'max_dept'", "did you mean max_depth?"]),
    "a key of another library": ("n_estimators = 3\n", ["'n_estimators'", "did you mean rounds?"]),
    "unknown key below": (
        "[columns]\nlabel = 'y'\nnumerics = ['age']\n",
        ["'columns.numerics'", "did you mean numeric?"],
    ),
    "typo in a key that must be": (
        "[columns]\nlable = 'y'\nnumeric = ['age']\n",
        ["'columns.lable'", "did you mean label?"],
    ),
    "unknown objective": ("objective = 'binary:logistics'\n", ["'binary:logistics'", "binary:logistic?"]),
    "unknown metric": ("eval_metric = 'f1'\n", ["'f1'", "auc"]),
    "metric of another objective": ("eval_metric = 'rmse'\n", ["rmse", "binary:logistic"]),
    "no rounds": ("rounds = 0\n", ["terms.toml", "rounds", "1"]),
    "a word for a number": ("max_depth = 'deep'\n", ["max_depth", "'deep'"]),
    "not a number": ("reg_lambda = nan\n", ["reg_lambda"]),
    "party named twice": ("parties = ['a', 'a']\n", ["parties", "more than once"]),
    "party without a name": ("parties = ['']\n", ["parties"]),
    "no columns": ("rounds = 1\n", ["terms.toml", "columns", "missing"]),
    "bad TOML": ("rounds = = 3\n", ["terms.toml", "not TOML", "line 1"]),
    "a line feed in a key": ('"a\\nb" = 1\n', ["a\\nb"]),
    "a line feed in a column": (
        "[columns]\nlabel = 'y'\ncategorical = {\"a\\nb\" = 1}\n",
        ["categorical"],
    ),
    "program of this process": ("program = 'lab:own'\n", ["'lab:own'", "program"]),
}


@pytest.mark.parametrize(("text", "said"), TERMS.values(), ids=TERMS)
def test_terms_that_cannot_be(folder, text, said):
    whole = "columns" in text or text == TERMS["no columns"][0]
    columns = "" if whole else "[columns]\nlabel = 'y'\nnumeric = ['age']\n"
    (folder / "terms.toml").write_text(text + columns)
    refused(folder, SIMULATE, *said)


def test_terms_that_are_no_text(folder):
    (folder / "terms.toml").write_bytes(b"rounds = 3 # \xff\n")
    refused(folder, SIMULATE, "terms.toml", "not TOML")


ARGUMENTS = {
    "no terms": (("simulate", "nowhere.toml", "--data", "rows.csv"), ["nowhere.toml", "No such file"]),
    "terms are a folder": (("simulate", "folder", "--data", "rows.csv"), ["folder", "directory"]),
    "no data": (("simulate", "terms.toml", "--data", "nowhere.csv"), ["nowhere.csv", "no such file"]),
    "out without its folder": ((*SIMULATE[:-1], "nowhere/new.json"), ["nowhere", "does not exist"]),
    "out is a folder": ((*SIMULATE[:-1], "folder"), ["folder", "is a directory"]),
    "site column missing": ((*SIMULATE, "--site", "sites"), ["'sites'", "missing", "site"]),
    "sites that are not the parties": (
        (*SIMULATE, "--site", "site"),
        ["terms.toml names the parties 'north', 'south'", "names 'east', 'north', 'south'"],
    ),
    "terms over terms": (
        ("terms", "rows.csv", "--label", "y", "--out", "terms.toml"),
        ["terms.toml", "exists already"],
    ),
    "site and party": (
        ("terms", "rows.csv", "--label", "y", "--site", "site", "--party", "north"),
        ["--site or --party"],
    ),
    "demo of another label": (("demo", "--label", "y"), ["--data"]),
    "data is a folder": (("simulate", "alone.toml", "--data", "folder"), ["folder", "no Parquet file"]),
    "site and parties": ((*SIMULATE, "--site", "site", "--parties", "2"), ["--site or --parties"]),
    "a seed below 0": ((*SIMULATE, "--parties", "3", "--seed", "-1"), ["seed", "0 or more", "-1"]),
    "out over the data": ((*SIMULATE[:-1], "./rows.csv"), ["rows.csv", "read by this very command"]),
    "out over the terms": ((*SIMULATE[:-1], "terms.toml"), ["terms.toml", "read by this very command"]),
    "train over the terms": (
        ("train", "terms.toml", "--aggregator", "localhost:1", "--out", "terms.toml"),
        ["terms.toml", "read by this very command"],
    ),
    "predictions over the rows": (
        ("predict", "model.json", "rows.csv", "--out", "rows.csv"),
        ["rows.csv", "read by this very command"],
    ),
    "predictions over the model": (
        ("predict", "model.json", "rows.csv", "--out", "model.json"),
        ["model.json", "read by this very command"],
    ),
    "demo over its table": (
        ("demo", "--data", "site-1.csv", "--label", "y", "--out", "."),
        ["site-1.csv", "read by this very command"],
    ),
    "a URL for an address": (
        ("train", "terms.toml", "--aggregator", "http://127.0.0.1:1", "--out", "new.json"),
        ["--aggregator", "'http://127.0.0.1:1'", "HOST:PORT"],
    ),
    "more parties than rows": ((*SIMULATE, "--parties", "200"), ["180 rows", "200 parties"]),
    "address without a port": (
        ("train", "terms.toml", "--aggregator", "localhost", "--out", "new.json"),
        ["--aggregator", "'localhost'", "HOST:PORT"],
    ),
    "port out of range": (
        ("train", "terms.toml", "--aggregator", "localhost:70000", "--out", "new.json"),
        ["'localhost:70000'", "HOST:PORT"],
    ),
    "a port of odd digits": (
        ("train", "terms.toml", "--aggregator", "localhost:7²", "--out", "new.json"),
        ["HOST:PORT"],
    ),
    "terms without parties": (
        ("train", "alone.toml", "--aggregator", "localhost:1", "--out", "new.json", "--insecure-loopback"),
        ["parties"],
    ),
    "train to a folder": (
        ("train", "terms.toml", "--aggregator", "localhost:1", "--out", "folder"),
        ["folder", "is a directory"],
    ),
    "no model": (("predict", "nowhere.json", "rows.csv", "--out", "new.csv"), ["nowhere.json"]),
    "model is a folder": (("predict", "folder", "rows.csv", "--out", "new.csv"), ["folder"]),
    "model is a table": (("predict", "rows.csv", "rows.csv", "--out", "new.csv"), ["rows.csv", "not a"]),
    "no rows to predict": (("predict", "model.json", "nowhere.csv"), ["nowhere.csv", "no such file"]),
    "draft without its label": (("terms", "rows.csv", "--label", "yy", "--out", "new.toml"), ["'yy'", "y"]),
    "draft without its weight": (
        ("terms", "rows.csv", "--label", "y", "--weight", "w", "--out", "new.toml"),
        ["'w'", "missing"],
    ),
    "draft without what to exclude": (
        ("terms", "rows.csv", "--label", "y", "--exclude", "agee", "--out", "new.toml"),
        ["'agee'", "age"],
    ),
    "draft of a category": (
        ("terms", "rows.csv", "--label", "ward", "--objective", "binary:logistic", "--out", "new.toml"),
        ["'ward'", "multi:softprob is for more"],
    ),
    "draft of the same party twice": (
        ("terms", "rows.csv", "--label", "y", "--party", "a", "--party", "a", "--out", "new.toml"),
        ["more than once"],
    ),
    "demo without a label": (("demo", "--data", "rows.csv", "--out", "new"), ["--label"]),
    "demo of few rows": (("demo", "--data", "few.csv", "--label", "y", "--out", "new"), ["few"]),
    "demo of no table": (("demo", "--data", "nowhere.csv", "--label", "y", "--out", "new"), ["nowhere.csv"]),
    "demo of no label": (("demo", "--data", "rows.csv", "--label", "yy", "--out", "new"), ["'yy'"]),
    "demo of no site": (
        ("demo", "--data", "rows.csv", "--label", "y", "--site", "sight", "--out", "new"),
        ["'sight'"],
    ),
    "no config of a party": (("party", "--config", "nowhere.toml"), ["nowhere.toml"]),
    "no config of an aggregator": (("aggregator", "--config", "nowhere.toml"), ["nowhere.toml"]),
    "terms as config": (("party", "--config", "terms.toml"), ["terms.toml: is terms", "site's file"]),
    "nobody listens for a party": (
        ("party", "--config", "party.toml", "--wait", "0.1", "--insecure-loopback"),
        ["localhost:1", "no aggregator answers", "0.1 s"],
    ),
}


@pytest.mark.parametrize(("arguments", "said"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_cannot_be(folder, arguments, said):
    refused(folder, arguments, *said[:1] if "few.csv" in arguments else said)


CONFIGS = {
    "unknown key of a party": (
        "party",
        'party = "a"\ndata = "x"\naggregator = "a:1"\nagregator = "a:1"',
        ["'agregator'", "did you mean aggregator?"],
    ),
    "typo in a key of a party": (
        "party",
        'party = "a"\ndata = "x"\nagregator = "a:1"',
        ["'agregator'", "did you mean aggregator?"],
    ),
    "missing key of a party": ("party", "", ["missing"]),
    "address of a party": ("party", 'party = "a"\ndata = "x"\naggregator = "here"', ["'here'", "HOST:PORT"]),
    "table of a party": (
        "party",
        'party = "a"\ndata = "nowhere.csv"\naggregator = "localhost:1"',
        ["nowhere.csv", "no such file"],
    ),
    "null byte in a path": (
        "party",
        'party = "a"\ndata = "x\\u0000.csv"\naggregator = "a:1"',
        ["bad.toml", "data", "null byte"],
    ),
    "port 0 of a party": ("party", 'party = "a"\ndata = "x"\naggregator = "a:0"', ["'a:0'", "port 0"]),
    "unknown key of an aggregator": ("aggregator", 'listn = "a:1"', ["'listn'", "did you mean listen?"]),
    "address of an aggregator": ("aggregator", 'listen = "7070"', ["'7070'", "HOST:PORT"]),
    "program of an aggregator": ("aggregator", 'programs = ["nowhere:train"]', ["'nowhere:train'"]),
    "TOML of an aggregator": ("aggregator", "listen", ["not TOML"]),
}


@pytest.mark.parametrize(("role", "text", "said"), CONFIGS.values(), ids=CONFIGS)
def test_configs_that_cannot_be(folder, role, text, said):
    (folder / "bad.toml").write_text(text)
    refused(folder, (role, "--config", "bad.toml", "--insecure-loopback"), *said)


def with_feature(model, name):
    learner = json.loads(model)
    learner["learner"]["feature_names"][0] = name
    return json.dumps(learner)


MODELS = {
    "noise": lambda model: b"\x00\xff" * 50,
    "text": lambda model: "no model",
    "other JSON": lambda model: "[1, 2, 3]",
    "nested": lambda model: "[" * 100_000,
    "cut off": lambda model: model[:-40],
    "without facts": lambda model: json.dumps(without_facts(json.loads(model))),
    "with facts of another": lambda model: with_feature(model, "height"),
    "empty": lambda model: "",
}


def without_facts(model):
    model["learner"]["attributes"] = {}
    return model


@pytest.mark.parametrize("spoil", MODELS.values(), ids=MODELS)
def test_models_that_are_none(folder, spoil):
    content = spoil((folder / "model.json").read_text())
    (folder / "bad.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(folder, ("predict", "bad.json", "rows.csv", "--out", "new.csv"), "bad.json")


def test_a_model_of_xgboost_itself_lacks_the_facts(folder):
    xgboost = pytest.importorskip("xgboost")
    numbers = rows().select(["age", "dose"]).to_pandas()
    label = rows().column("y").to_numpy()
    xgboost.train({}, xgboost.DMatrix(numbers, label), 2).save_model("theirs.json")
    refused(folder, ("predict", "theirs.json", "rows.csv", "--out", "new.csv"), "theirs.json", "fedboost")


def test_predicting_without_a_column_the_model_needs(folder):
    csv.write_csv(rows().drop_columns(["dose", "y"]), "few.csv")
    refused(folder, ("predict", "model.json", "few.csv", "--out", "new.csv"), "few.csv", "'dose'", "missing")


def test_a_level_that_nobody_declared_is_no_error(folder):
    csv.write_csv(changed(WARD, 3, "z"), "rows.csv")
    end = fedboost(*SIMULATE)
    assert end.code == 0
    assert end.err == "ward has 1 rows with a category nobody declared ('z', ...): they count as missing\n"
    csv.write_csv(changed(WARD, 3, None), "rows.csv")
    assert fedboost(*SIMULATE[:-1], "same.json").code == 0
    assert (folder / "same.json").read_bytes() == (folder / "new.json").read_bytes()


def test_groups_with_rows_at_several_sites_are_told(folder):
    named = {"label": "y", "group": "ward", "numeric": ["dose"]}
    ranking = terms(objective="rank:ndcg", columns=named)
    (folder / "terms.toml").write_text(terms_to_toml(ranking))
    end = fedboost(*SIMULATE, "--site", "site")
    assert end.code == 0
    assert end.err.startswith("groups of ward with rows at several sites: 3 (")
    own = pa.array(
        [f"{w} {s}" for w, s in zip(*(rows()[c].to_pylist() for c in ("ward", "site")), strict=True)]
    )
    csv.write_csv(rows().set_column(rows().column_names.index("ward"), "ward", own), "rows.csv")
    assert fedboost(*SIMULATE, "--site", "site", "--force").err == ""


def test_a_feature_without_any_value_is_no_error(folder):
    csv.write_csv(constant(DOSE, None, pa.float64()), "rows.csv")
    end = fedboost(*SIMULATE)
    assert end.code == 0
    assert end.err == ""
    assert (folder / "new.json").exists()
