"""The rows of a site under the names that it gives its columns and levels."""

import sqlite3

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from raised import raised
from sites import Log

from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import dense_of, parts_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.rows import SiteRows, site_rows
from fedboost.terms.terms import Terms

NAMES = """
row_id = "customer_no"
[names]
"telco.1" = "minutes"
"telco.2" = "plan"
[levels]
"telco.2" = { "1" = "max", "2" = "basic" }
"""
CODES = {"max": "1", "basic": "2"}
COLUMNS = {
    "label": "y",
    "row_id": "customer",
    "numeric": ["age", "telco.1"],
    "categorical": {"telco.2": ["1", "2"]},
    "held": {"telco": ["telco.1", "telco.2"]},
}


def terms(**columns):
    """Terms by which telco has two columns, under aliases."""
    apart = {"parties": ["bank", "telco"], "label_holder": "bank", "protection": "plain", "rounds": 2}
    return Terms.read({**apart, "columns": {**COLUMNS, **columns}})


def own_table():
    """The table by its own names: row 0 has a level that is not named, row 1 none."""
    draw = np.random.default_rng(3)
    plans = ["1", None, *draw.choice(["max", "basic"], 98).tolist()]
    ids = [f"c{number}" for number in range(100)]
    return pa.table({"customer_no": ids, "minutes": draw.normal(size=100), "plan": plans, "secret": ids})


def config(folder, form, names=NAMES, table=None):
    """A site's file over the table in this form."""
    (folder / "names.toml").write_text(names)
    table, path = own_table() if table is None else table, folder / f"rows.{form}"
    source, scratch = path, None
    if form == "csv":
        csv.write_csv(table, path)
    elif form == "parquet":
        parquet.write_table(table, path, row_group_size=30)
        scratch = folder
    else:
        with sqlite3.connect(path) as database:
            database.execute("create table t (customer_no text, minutes real, plan text, secret text)")
            columns = (table.column(name).to_pylist() for name in table.column_names)
            database.executemany("insert into t values (?, ?, ?, ?)", zip(*columns, strict=True))
        source = Database(f"sqlite:///{path}", "select * from t")
    values = {"party": "telco", "aggregator": "localhost:1", "data": source, "scratch": scratch}
    return PartyConfig(**values, names=folder / "names.toml", state=folder / "state")


@pytest.mark.parametrize("form", ["csv", "parquet", "sqlite"])
def test_rows_by_names_are_those_of_a_table_renamed_by_hand(tmp_path, form):
    if form == "sqlite":
        pytest.importorskip("adbc_driver_sqlite")
    table, log = own_table(), Log()
    by_hand = pa.table(
        {
            "customer": table.column("customer_no"),
            "telco.1": table.column("minutes"),
            "telco.2": [CODES.get(plan) for plan in table.column("plan").to_pylist()],
        }
    )
    shard = SiteRows(config(tmp_path, form), log).read(terms())
    wanted = to_shard(by_hand, terms(), "telco")
    for column, expected in zip(shard.columns, wanted.columns, strict=True):
        np.testing.assert_array_equal(column[0:100], expected[0:100])
    assert shard.ids == wanted.ids
    (warned,) = log.named("categories that the terms do not declare count as missing")
    assert warned == {"column": "telco.2 (plan)", "category": "1 (not named)", "rows": 1}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["customer", "client"])
def test_row_ids_are_found_whatever_the_terms_call_them(tmp_path, form, name):
    table = site_rows(config(tmp_path, form)).under(terms(row_id=name).columns)
    assert dense_of(table).column_names == ["telco.1", "telco.2", name]
    ids = [text for part in parts_of(table, name) for text in part.column(name).to_pylist()]
    assert ids == own_table().column("customer_no").to_pylist()


def test_without_names_of_columns_all_keep_their_own(tmp_path):
    table = site_rows(config(tmp_path, "csv", 'row_id = "customer_no"\n')).under(terms().columns)
    assert dense_of(table).column_names == ["customer_no", "minutes", "plan", "secret", "customer"]


def test_columns_without_a_name_are_missing_to_others(tmp_path):
    rows = SiteRows(config(tmp_path, "csv"), Log())
    stranger = terms(numeric=["age", "secret"], held={"telco": ["secret", "telco.2"]})
    (sentence,) = rows.faults(stranger)
    assert sentence == "column 'secret' is missing"
    with pytest.raises(Refused) as refusal:
        rows.read(stranger)
    assert refusal.value.public == "party telco: column 'secret' is missing"


@pytest.mark.parametrize("name", ["customer", "client"])
def test_the_sites_own_people_get_the_names_of_all_its_columns(tmp_path, name):
    rows = SiteRows(config(tmp_path, "csv"), Log())
    named = {"telco.1": "minutes", "telco.2": "plan", name: "customer_no"}
    assert rows.names_under(terms(row_id=name)) == named
    bare = SiteRows(PartyConfig(party="telco", aggregator="localhost:1", data=tmp_path / "rows.csv"), Log())
    assert bare.names_under(terms(row_id=name)) == {}


def test_a_site_that_names_nothing_is_told_how_it_could(tmp_path):
    site = config(tmp_path, "csv")
    said = {}
    bare = site.model_copy(update={"names": None})
    bare._file = tmp_path / "party.toml"
    for which in (site, bare):
        with pytest.raises(Refused) as refusal:
            SiteRows(which, Log()).read(
                terms(held={"telco": ["secret", "telco.2"]}, numeric=["age", "secret"])
            )
        said[which.names is None] = str(refusal.value)
        assert "names in" not in refusal.value.public
    assert (
        "; if the column has a different name at this site, rename it in the table, or map it in "
        f"{site.names}; " in said[False]
    )
    names = f"[columns] of {tmp_path / 'party.toml'}; "
    assert f"map it in {names}if the site does not have it, ask the analyst to declare that" in said[True]


def test_others_read_names_of_the_terms_alone_and_the_site_both(tmp_path):
    minutes = pa.array(["12", *["many"] * 99])
    table = own_table().set_column(1, "minutes", minutes)
    rows = SiteRows(config(tmp_path, "csv", table=table), Log())
    with pytest.raises(SchemaMismatch) as refusal:
        rows.read(terms())
    assert "column 'telco.1' (in the table 'minutes') has type string," in refusal.value.detail
    assert "'many' in row 2 (line 3 of the file)" in refusal.value.detail
    assert "minutes" not in refusal.value.public


def test_levels_of_numbers_are_named_as_the_table_spells_them(tmp_path):
    plans = pa.array(["01", "02"] * 50)
    names = NAMES.replace('"max"', '"01"').replace('"basic"', '"02"')
    table = site_rows(config(tmp_path, "csv", names, own_table().set_column(2, "plan", plans))).table
    assert dense_of(table).column("telco.2").to_pylist() == ["1", "2"] * 50


def test_names_are_for_tables_with_a_header(tmp_path):
    (tmp_path / "rows.svm").write_text("1 0:2\n")
    site = config(tmp_path, "csv").model_copy(update={"data": tmp_path / "rows.svm"})
    with raised(ConfigError, "table-sparse-unnamed"):
        site_rows(site)
