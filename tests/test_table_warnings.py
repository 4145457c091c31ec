"""Warnings in Python, and notices of the commands that are given tables, about what is odd in them."""

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from commands import done
from orderly import write_all
from pyarrow import csv
from sites import rows, shared_out, terms

import fedboost as fb


def odd():
    """The rows of `sites.rows`, with an identifier, words among numbers and a text for each row."""
    table = rows().drop_columns(["site"])
    count = table.num_rows
    words = [*map(str, range(count - 2)), "-", "unknown"]
    table = table.append_column("id", [range(count)]).append_column("lab", [words])
    return table.append_column("when", pa.array([86_400] * count, pa.timestamp("s")))


def test_a_draft_in_python_warns_of_what_is_odd_and_left_out():
    with pytest.warns(fb.TableWarning) as seen:
        drafted = fb.Terms.draft(odd(), label="y")
    said = [str(warning.message) for warning in seen]
    assert len(said) == 3
    assert said[0].startswith("lab: 2 of 180 values in a numeric column are text: '-' (1), 'unknown' (1); if")
    assert said[1].startswith(
        "when: the values are dates or times (1970-01-02 00:00:00), which cannot be used as features "
    )
    assert "the column is omitted; convert the values to numbers" in said[1]
    assert said[2].startswith(
        "id: there are 180 distinct values in 180 rows (0, 1, 2), as in an identifier or row number; "
    )
    assert "when" not in drafted.columns.features
    assert {Path(warning.filename).name for warning in seen} == {Path(__file__).name}  # the line that asked


def test_a_draft_of_a_table_in_order_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted = fb.Terms.draft(rows(), label="y")
        again = fb.Terms.draft(odd(), label="y", exclude=["id", "lab", "when"])
    assert again.columns.features == ("age", "dose", "ward")
    assert drafted.columns.features == ("age", "dose", "ward", "site")


def test_a_draft_warns_which_value_is_the_positive_one():
    label = np.where(np.array(rows().column("y")) > 0, "ill", "well")
    with pytest.warns(
        fb.TableWarning, match=r"y: '\w+' \(\d+ of 180 rows\) is label 1, because it is the rarer"
    ):
        fb.Terms.draft(rows().set_column(4, "y", [label]), label="y")


def test_a_simulation_warns_once_of_what_is_odd_at_the_sites():
    tables = shared_out(3, rows(900))
    tables = {name: table.append_column("told", table.column("y")) for name, table in tables.items()}
    tables = {("East " if name == "east" else name): table for name, table in tables.items()}
    tables["EAST"] = tables["north"]
    columns = {"label": "y", "numeric": ["age", "told"], "categorical": {"ward": ["a", "b"]}}
    with pytest.warns(fb.TableWarning) as seen:
        result = fb.simulate(terms(columns=columns), tables)
    assert result.model is not None
    said = [str(warning.message) for warning in seen]
    sites = [line for line in said if "the names of this site" in line]
    assert sites == [
        "EAST: the names of this site and of site 'East ' differ only in whitespace or case; use one "
        "spelling if both names are for the same site"
    ]
    told = [line for line in said if "told: the column reveals the label" in line]
    assert len(told) == 1
    assert told[0].startswith("party ")
    (ward,) = (line for line in said if "ward: " in line)
    assert "have a category that the terms do not declare ('c' (" in ward
    assert {Path(warning.filename).name for warning in seen} == {Path(__file__).name}


def test_a_simulation_of_many_rows_looks_at_a_sample(monkeypatch):
    monkeypatch.setattr("fedboost.runtime.data.check.MAX_WATCHED_ROWS", 120)
    monkeypatch.setattr("fedboost.runtime.data.check.MIN_WATCHED_ROWS", 120)
    columns = {"label": "y", "numeric": ["age", "told"]}
    table = rows().append_column("told", rows().column("y"))
    with pytest.warns(
        fb.TableWarning, match="^party north, in a sample of its 180 rows: told: the column reveals the label"
    ):
        fb.simulate(terms(columns=columns), {"north": table})


def test_a_simulation_of_tables_in_order_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fb.simulate(terms(), shared_out(2)).model
    assert model.fingerprint
    assert fb.simulate.__doc__.startswith("Train a model in this process")


def test_notices_of_a_draft(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    csv.write_csv(odd(), "odd.csv")
    said = done("terms", "odd.csv", "--label", "y", "--exclude", "dose").err.splitlines()[:-1]
    assert [line.split(":")[0] for line in said] == ["lab", "when", "id"]
    assert "the column is omitted" in said[1]


@pytest.mark.slow
def test_sites_that_differ_in_case_alone_are_said_by_each_command(tmp_path, monkeypatch):
    monkeypatch.chdir(write_all(tmp_path))
    sites = np.array(["North", "north ", "south"])[np.arange(rows().num_rows) % 3]
    csv.write_csv(rows().set_column(3, "site", [sites]), "rows.csv")
    drafted = done("terms", "rows.csv", "--label", "y", "--site", "site", "--out", "drafted.toml").err
    assert drafted.startswith(
        "site: 60 of 180 values differ from another value only in whitespace or case: 'North' (60), "
    )
    notice = "\"north \": the names of this site and of site 'North' differ only in whitespace or case"
    assert notice in done("simulate", "alone.toml", "--data", "rows.csv", "--site", "site").err
    assert notice in done("compare", "alone.toml", "--data", "rows.csv", "--site", "site", "--seeds", "1").err
    (tmp_path / "north.csv").write_text((tmp_path / "rows.csv").read_text().replace("North", "West"))
    assert "whitespace" not in done("simulate", "alone.toml", "--data", "north.csv", "--site", "site").err
