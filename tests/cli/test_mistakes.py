"""The table of mistakes: each ends in one line that says what, where and what to do, and loses nothing; and
what looks like one, and is none."""

import pyarrow as pa
import pytest
from mistakes import all_mistakes, golden, line_of
from orderly import write_all
from pyarrow import csv
from refusals import refused
from sites import fedboost, rows, terms

from fedboost.runtime.tasks import terms_to_toml

MISTAKES, LINES = all_mistakes(), golden()
SIMULATE = "simulate", "terms.toml", "--data", "rows.csv", "--out"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with everything in order."""
    monkeypatch.chdir(tmp_path)
    return write_all(tmp_path)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert line_of(MISTAKES[name], tmp_path) == LINES[name]


def test_each_line_is_of_a_mistake():
    assert [*LINES] == [*MISTAKES]


def test_a_model_of_xgboost_itself_lacks_the_facts(folder):
    xgboost = pytest.importorskip("xgboost")
    numbers = rows().select(["age", "dose"]).to_pandas()
    label = rows().column("y").to_numpy()
    xgboost.train({}, xgboost.DMatrix(numbers, label), 2).save_model("theirs.json")
    refused(folder, ("predict", "theirs.json", "rows.csv", "--out", "new.csv"), "theirs.json", "fedboost")


def with_column(name, values):
    """The rows with another column."""
    return rows().set_column(rows().column_names.index(name), name, pa.array(values))


def test_a_level_that_nobody_declared_is_no_error(folder):
    ward = rows().column("ward").to_pylist()
    for value, out in (("z", "new.json"), (None, "same.json")):
        csv.write_csv(with_column("ward", [*ward[:2], value, *ward[3:]]), "rows.csv")
        end = fedboost(*SIMULATE, out)
        assert end.code == 0
        said = "ward has 1 row with undeclared categories ('z', ...), which are treated as missing\n"
        assert end.err == (said if value else "")
    assert (folder / "same.json").read_bytes() == (folder / "new.json").read_bytes()


def test_groups_with_rows_at_several_sites_are_told(folder):
    named = {"label": "y", "group": "ward", "numeric": ["dose"]}
    (folder / "terms.toml").write_text(terms_to_toml(terms(objective="rank:ndcg", columns=named)))
    end = fedboost(*SIMULATE, "new.json", "--site", "site")
    assert end.code == 0
    assert end.err.startswith("several sites have rows of the same 3 groups of ward (")
    own = [f"{row['ward']} {row['site']}" for row in rows().to_pylist()]
    csv.write_csv(with_column("ward", own), "rows.csv")
    assert fedboost(*SIMULATE, "new.json", "--site", "site", "--force").err == ""
