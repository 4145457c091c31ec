"""Rows of databases that are files, and of objects in Python: one model, whatever holds the rows."""

import errno
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from databases import write_duckdb, write_sqlite
from pyarrow import csv, parquet
from raised import raised
from refusals import refusal
from sites import fedboost, rows, terms

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.runtime.data import parquet as stream
from fedboost.runtime.data.database import Database, database_of
from fedboost.runtime.data.parquet import keep
from fedboost.runtime.data.table import as_table, read_table, site_table
from fedboost.runtime.site.config import read_party

QUERY = "SELECT * FROM rows"
SITE = 'party = "north"\naggregator = "localhost:1"\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The same rows in files of five kinds and in a folder."""
    monkeypatch.chdir(tmp_path)
    csv.write_csv(rows(), "rows.csv")
    parquet.write_table(rows(), "rows.parquet")
    (tmp_path / "parts").mkdir()
    for first in range(0, rows().num_rows, 50):
        parquet.write_table(rows().slice(first, 50), f"parts/{first:04}.parquet")
    write_sqlite(tmp_path / "rows.db", rows())
    write_duckdb(tmp_path / "rows.duckdb", rows())
    return tmp_path


def reader(table):
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=7))


def model_of(data):
    return fb.simulate(terms(), {"north": data}).model.to_bytes()


SOURCES = {
    "parquet": lambda: "rows.parquet",
    "parquet folder": lambda: "parts",
    "sqlite": lambda: Database("sqlite:///rows.db", QUERY),
    "duckdb": lambda: Database("duckdb:///rows.duckdb", QUERY),
    "arrow": rows,
    "reader": lambda: reader(rows()),
    "record batch": lambda: rows().combine_chunks().to_batches()[0],
    "struct": lambda: rows().to_struct_array().combine_chunks(),
    "pandas": lambda: rows().to_pandas(),
    "pandas nullable": lambda: rows().to_pandas().convert_dtypes(),
    "pandas arrow": lambda: rows().to_pandas(types_mapper=pd.ArrowDtype),
    "pandas categories": lambda: rows().to_pandas().astype({"ward": "category", "y": "boolean"}),
    "polars": lambda: pl.from_arrow(rows()),
    "polars categories": lambda: pl.from_arrow(rows()).with_columns(pl.col("ward").cast(pl.Categorical)),
    "relation": lambda: duckdb.sql("SELECT * FROM 'rows.parquet'"),
    "numpy": lambda: {
        name: column.to_numpy() for name, column in zip(rows().column_names, rows().columns, strict=True)
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_the_same_rows_give_one_model(folder, source):
    assert model_of(SOURCES[source]()) == model_of("rows.csv")


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["sqlite:///rows.db", "duckdb:///rows.duckdb"])
def test_every_command_that_takes_a_table_takes_a_query(folder, uri):
    (folder / "query.sql").write_text("-- all of them\nSELECT * FROM rows;\n")
    asked = (uri, "--query-file", "query.sql")
    assert fedboost("terms", *asked, "--label", "y", "--site", "site", "--out", "terms.toml").code == 0
    text = (
        (folder / "terms.toml")
        .read_text()
        .replace('"masked"', '"plain"')
        .replace("rounds = 100", "rounds = 2")
    )
    (folder / "terms.toml").write_text(text)
    for data, out in ((("rows.csv",), "1.json"), (asked, "2.json")):
        end = fedboost("simulate", "terms.toml", "--data", *data, "--site", "site", "--out", out)
        assert end.code == 0, end.err
    assert (folder / "1.json").read_bytes() == (folder / "2.json").read_bytes()
    for command in (("predict", "1.json"), ("explain", "1.json", "--shap")):
        one, other = fedboost(*command, "rows.csv"), fedboost(*command, uri, "--query", QUERY)
        assert (one.code, one.out) == (other.code, other.out) == (0, one.out)
    assert fedboost("compare", "terms.toml", "--data", *asked, "--site", "site", "--seeds", "1").code == 0


def test_a_sites_file_names_a_database_beside_it(folder, monkeypatch):
    (folder / "query.sql").write_text(QUERY)
    site = folder / "party.toml"
    monkeypatch.chdir("/")
    for keys in (f'query = "{QUERY}"', 'query_file = "query.sql"'):
        site.write_text(f'{SITE}data = "sqlite:///rows.db"\n{keys}\n')
        config = read_party(site)
        assert isinstance(config.data, Database)
        table = site_table(config.data, config.scratch)
        assert table.num_rows == rows().num_rows
        assert model_of(table) == model_of(rows())


def unnamed_files(folder):
    """The numbers of this process's open files that were made in a folder, and have no name any more."""
    opened = {number: Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd")}
    links = {
        number: os.readlink(path) for number, path in opened.items() if path.exists() or path.is_symlink()
    }
    return [int(number) for number, link in links.items() if link.startswith(f"{folder}/")]


def test_rows_of_a_query_stay_in_a_file_without_a_name(folder, monkeypatch):
    monkeypatch.setattr(stream, "GROUP_ROWS", 11)
    (folder / "scratch").mkdir()
    table = keep(Database("duckdb:///rows.duckdb", QUERY), folder / "scratch")
    assert len(table.ends) - 1 == 1  # a batch of DuckDB's is one group at least
    assert [*(folder / "scratch").iterdir()] == []
    modes = [stat.S_IMODE(os.fstat(number).st_mode) for number in unnamed_files(folder / "scratch")]
    assert modes
    assert {*modes} == {0o600}
    assert model_of(table) == model_of(rows())
    parts = keep(reader(rows()), folder / "scratch")
    assert len(parts.ends) - 1 == -(-rows().num_rows // 14)
    assert model_of(parts) == model_of(rows())


def test_a_scratch_folder_that_is_none_is_named(folder):
    with raised(ConfigError, "scratch-missing"):
        keep(reader(rows()), folder / "scratch")
    (folder / "scratch").write_text("no folder")
    with raised(ConfigError, "scratch-missing"):
        keep(reader(rows()), folder / "scratch")


def test_a_folder_without_room_is_named(folder, monkeypatch):
    def full(batches, file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stream, "_write", full)
    with raised(ConfigError, "scratch-full"):
        keep(reader(rows()), folder)


@pytest.mark.parametrize("uri", ["sqlite:///rows.db", "duckdb:///rows.duckdb"])
def test_nothing_is_written(folder, uri):
    file = folder / uri.rpartition("/")[2]
    before = file.read_bytes()
    for query in (
        "WITH x AS (SELECT 1) DELETE FROM rows",
        "ATTACH 'other.db' AS o",
        "CREATE TABLE t (a int)",
    ):
        with pytest.raises(ConfigError):
            read_table(Database(uri, query))
    assert file.read_bytes() == before
    assert not (folder / "other.db").exists()


@pytest.mark.parametrize(
    "begin",
    ["SELECT E'\\'' AS a FROM rows", "SELECT y é$$ FROM rows", "SELECT y a$$ FROM rows", "FROM rows --\r"],
)
def test_no_second_statement_hides_in_quotes(folder, begin):
    """What looks like a text or a comment, and is none to the database, hides nothing from the check."""
    query = f"{begin}; COPY (SELECT 1) TO '{folder}/written.csv' -- $$ '"
    for check in (nullcontext(), mock.patch.object(stream, "check_query", lambda query, source: query)):
        with check, raised(ConfigError, "query-not-select", "query-several"):
            read_table(Database("duckdb:///rows.duckdb", query))
        assert not (folder / "written.csv").exists()


@pytest.mark.parametrize(
    ("uri", "module", "extra"),
    [
        ("postgresql://localhost/db", "adbc_driver_postgresql.dbapi", "sql"),
        ("sqlite:///rows.db", "adbc_driver_sqlite.dbapi", "sql"),
        ("duckdb:///rows.duckdb", "duckdb", "duckdb"),
    ],
)
def test_a_driver_that_is_missing_is_named_with_its_extra(folder, uri, module, extra):
    with mock.patch.dict(sys.modules, {module: None}):
        end = fedboost("predict", "model.json", uri, "--query", QUERY)
        with pytest.raises(ConfigError) as error:
            read_table(Database(uri, QUERY))
    assert end.code == 2
    assert str(error.value).endswith(f" driver: run pip install 'fedboost[{extra}]'")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://marie:s3cret@host/db", "postgresql://marie:***@host/db"),
        ("postgres://marie:s3cret@host/db", "postgresql://marie:***@host/db"),
        ("postgresql+psycopg://marie:s3cret@host/db", "postgresql://marie:***@host/db"),
        ("postgresql://:s3cret@host/db", "postgresql://:***@host/db"),
        ("postgresql://host/db?user=m&password=s3cret", "postgresql://host/db?user=m&password=***"),
        ("postgresql://host/db?sslpassword=s3cret&user=m", "postgresql://host/db?sslpassword=***&user=m"),
        ("postgresql://marie@host/db", "postgresql://marie@host/db"),
    ],
)
def test_passwords_are_in_no_text(uri, shown):
    database = database_of(uri)
    assert str(database) == shown
    assert "s3cret" not in f"{database!r} {database} {database.name}"


@pytest.mark.parametrize(
    "uri",
    ["postgresql://m:s3cret@x@host/db", "postgresql://m:s3/cret@host/db", "postgresql://m:s3#cret@host"],
)
def test_a_password_that_cannot_be_told_from_the_rest_is_not_printed(uri):
    with raised(ConfigError, "source-uri-password") as error:
        database_of(uri)
    assert "cret" not in str(error.value)


@pytest.mark.parametrize(
    "uri",
    [
        "ftp://u:secret@h/x.csv",
        "gs://u:secret@h/x.csv",
        " postgresql://u:secret@h/x",
        "https://u:secret@h/x ",
    ],
)
def test_an_address_that_cannot_be_read_is_not_printed(uri):
    """A path of that name would be, with the password."""
    with pytest.raises(ConfigError) as error:
        database_of(uri)
    assert "cret" not in str(error.value)
    assert "cret" not in refusal("check", uri, "--label", "y")


def test_a_semicolon_or_a_comment_in_quotes_ends_no_query(folder):
    query = "SELECT *, ';' AS \"a;b\", '--' AS c FROM rows -- to the end;"
    for uri in ("sqlite:///rows.db", "duckdb:///rows.duckdb"):
        assert read_table(Database(uri, query)).column("a;b").to_pylist()[0] == ";"


def test_a_column_of_several_kinds_is_named_with_a_cast(folder):
    query = "SELECT 1 AS one, CASE WHEN rowid < 180 THEN 1 ELSE 'x' END AS kind FROM rows"
    with mock.patch("fedboost.runtime.data.parquet.BATCH_ROWS", 100), pytest.raises(ConfigError) as error:
        read_table(Database("sqlite:///rows.db", query))
    assert "column 'kind' has values of several types" in str(error.value)
    assert "CAST(kind AS TEXT)" in str(error.value)


def test_types_of_duckdb_become_numbers_and_text(folder):
    query = (
        "SELECT 1.50::DECIMAL(10, 2) AS d, 'a'::ENUM('a', 'b') AS e, uuid() AS u, 7::HUGEINT AS h, "
        "true AS b, NULL AS n, DATE '2020-01-01' AS day"
    )
    table = read_table(Database("duckdb:///rows.duckdb", query))
    assert table.column("e").to_pylist() == ["a"]
    assert len(table.column("u").to_pylist()[0]) == 36
    kept = keep(Database("duckdb:///rows.duckdb", query))
    assert kept.head.schema.equals(table.schema)
    with raised(ConfigError, "query-column-type"):
        read_table(Database("duckdb:///rows.duckdb", "SELECT INTERVAL 1 DAY AS i"))


def test_one_table_is_split_by_the_column_of_sites(folder):
    frame = rows().to_pandas()
    drafted = fb.Terms.draft(frame, label="y", exclude=["site"], rounds=2, protection="plain")
    assert "site" not in drafted.columns.features
    result = fb.simulate(drafted, frame, site="site")
    assert result.model.terms.parties == ("east", "north", "south")
    apart = {name: frame[frame["site"] == name] for name in ("east", "north", "south")}
    assert result.model.to_bytes() == fb.simulate(drafted, apart).model.to_bytes()
    asked = fb.Terms.draft(frame, label="y", rounds=2, protection="plain")
    assert "site" in asked.columns.features
    assert fb.simulate(asked, frame, site="site").model.booster.features == asked.columns.features
    with raised(ConfigError, "simulate-site-list"):
        fb.simulate(drafted, [frame, frame], site="site")
    with raised(ConfigError, "simulate-one-table"):
        fb.simulate(drafted, frame)


def test_the_column_of_sites_is_a_feature_if_asked(folder):
    for option, names in (((), False), (("--site-feature",), True)):
        out = fedboost("terms", "rows.csv", "--label", "y", "--site", "site", *option).out
        assert ('"site" = ' in out) == names
    (folder / "terms.toml").write_text(
        out.replace('"masked"', '"plain"').replace("rounds = 100", "rounds = 2")
    )
    assert fedboost("simulate", "terms.toml", "--data", "rows.csv", "--site", "site").code == 0


def test_columns_of_a_matrix_are_called_by_their_number():
    matrix = np.arange(6.0).reshape(3, 2)
    assert as_table({"f": matrix, "y": [0, 1, 0]}).to_pydict() == {
        "f0": [0.0, 2.0, 4.0],
        "f1": [1.0, 3.0, 5.0],
        "y": [0, 1, 0],
    }
    for data in ({"f": matrix, "f1": [1, 2, 3]}, {"f1": [1, 2, 3], "f": matrix}):
        with raised(ConfigError, "table-column-twice"):
            as_table(data)


def test_nullable_types_of_pandas_keep_what_is_missing():
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "flag": pd.array([True, None, False], dtype="boolean"),
            "word": pd.array(["x", None, "y"], dtype="string"),
            "class": pd.Categorical(["u", None, "v"]),
            "arrow": pd.array([1.5, None, 2.0], dtype=pd.ArrowDtype(pa.float32())),
            "day": pd.to_datetime(["2020-01-01", None, "2021-01-01"]),
        }
    )
    table = as_table(frame)
    assert table.column("whole").to_pylist() == [1, None, 3]
    assert table.column("flag").to_pylist() == [True, None, False]
    assert all(column.null_count == 1 for column in table.columns)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pl.LazyFrame({"a": [1]}), "a LazyFrame has no rows yet; pass the result of its .collect()"),
        (pl.Series([1]), "cannot read a table from polars"),
        (pa.chunked_array([[1]]), "cannot read a table from pyarrow"),
        (pl.DataFrame({"a": [1]}).lazy(), "pass the result of its .collect()"),
        (pd.DataFrame({"a": [1, "x"]}), "Conversion failed for column a with type object"),
        (
            "postgresql://marie:s3cret@host/db",
            "postgresql://marie:***@host/db is a database and needs a query; in Python, use",
        ),
    ],
)
def test_what_is_no_table_in_python(data, says):
    with pytest.raises(ConfigError) as error:
        as_table(data)
    assert says in str(error.value)
    assert "s3cret" not in str(error.value)


def test_naming_a_database_imports_no_driver():
    code = "import sys, fedboost; fedboost.Database('sqlite:///x.db', 'SELECT 1'); print({*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not any(
        name in done.stdout for name in ("'pyarrow'", "'adbc_driver_manager'", "'duckdb'", "'numpy'")
    )
