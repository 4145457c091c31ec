"""Mistakes with files and databases that tables are in."""

import io
import sqlite3

import pyarrow as pa
from databases import write_duckdb, write_sqlite
from mistakes import Mistake
from pyarrow import csv, parquet
from sites import rows, terms

from fedboost.runtime.tasks import terms_to_toml

ROWS = rows()


def as_text(table=ROWS, **options):
    """A table as CSV."""
    file = io.BytesIO()
    csv.write_csv(table, file, csv.WriteOptions(**options))
    return file.getvalue()


def folder_of(*tables):
    """A function that writes the tables to a folder, one after the other."""

    def write(path):
        (path / "all").mkdir()
        for number, table in enumerate(tables):
            parquet.write_table(table, path / "all" / f"part-{number}.parquet")

    return write


SEMICOLONS = as_text(delimiter=";")
COMMAS_IN_NUMBERS = SEMICOLONS.replace(b".", b",")
SIMULATE = "simulate alone.toml --out new.json --data"


def constant(column, value):
    """The rows as CSV, with one value in a column."""
    name = ROWS.column_names[column]
    return as_text(ROWS.set_column(column, name, pa.array([value] * ROWS.num_rows)))


RANKED = {"label": "y", "group": "ward", "numeric": ["dose"]}
RANKS = terms_to_toml(terms(["north", "south"], objective="rank:ndcg", columns=RANKED))
SITE = 'party = "north"\naggregator = "localhost:1"\n'
SECRET = "s3cret-word"
TERMS = "simulate terms.toml --out new.json --data"
SELECT = '--query "SELECT * FROM rows"'


def _write(folder):
    write_sqlite(folder / "rows.db", rows())
    write_duckdb(folder / "rows.duckdb", rows())


def _write_mixed(folder):
    with sqlite3.connect(folder / "rows.db") as file:
        file.execute("CREATE TABLE rows (age, y)")
        file.executemany("INSERT INTO rows VALUES (?, ?)", [(1, 0)] * 20_000 + [("old", 1)])
    file.close()


MISTAKES = {
    "semicolons": Mistake(
        f"{SIMULATE} rows.csv",
        ("rows.csv: semicolons", "--separator ';'", "[read]"),
        {"rows.csv": SEMICOLONS},
    ),
    "decimal commas": Mistake(
        f"{SIMULATE} rows.csv --separator ';'",
        ("rows.csv: ", "column 'age'", "a decimal comma (--decimal ,", "row 1 (line 2 of the file)"),
        {"rows.csv": COMMAS_IN_NUMBERS},
    ),
    "latin-1 read as UTF-8": Mistake(
        f"{SIMULATE} rows.csv",
        ("rows.csv: line 2 is not UTF-8", "S\\xfcd", "--encoding latin-1"),
        {"rows.csv": "\n".join(["age,ward", "50,Süd", ""]).encode("latin-1")},
    ),
    "a folder without a table": Mistake(f"{SIMULATE} folder", ("folder: holds no Parquet file", "*.parquet")),
    "an unknown suffix": Mistake(
        f"{SIMULATE} rows.sav",
        ("rows.sav: unknown suffix '.sav'", ".csv", ".xlsx", ".gz"),
        {"rows.sav": b"x"},
    ),
    "a column to keep that is not there": Mistake(
        "predict model.json rows.csv --keep sight --out new.csv",
        ("rows.csv: column 'sight' is missing", "site"),
    ),
    "predictions as a workbook": Mistake(
        "predict model.json rows.csv --out new.xlsx",
        ("new.xlsx: predictions are written as .csv or .parquet",),
    ),
    "predictions over a part of the rows": Mistake(
        "predict model.json all --out all/part-0.parquet",
        ("part-0.parquet: is read by this very command",),
        prepare=folder_of(ROWS),
    ),
    "a point among decimal commas": Mistake(
        "simulate terms.toml --data eu.csv --separator ';' --decimal , --out new.json",
        ("eu.csv", "'dose' has a number with a point", "decimal comma", "'1.500'", "row 3"),
        {"eu.csv": "age;dose;ward;y\n1,5;2,5;a;0\n2;3;b;1\n3;1.500;a;0\n4,5;2;b;1\n"},
    ),
    "a database without a query": Mistake(
        f"{TERMS} sqlite:///rows.db", ("sqlite:///rows.db", "is a database", '--query "SELECT')
    ),
    "a query of a file": Mistake(f"{TERMS} rows.csv {SELECT}", ("rows.csv", "--query is for a database")),
    "a database's file instead of its URI": Mistake(
        f"{TERMS} rows.db", ("rows.db", 'write sqlite:///rows.db --query "SELECT ..."')
    ),
    "two slashes": Mistake(f"{TERMS} sqlite://rows.db {SELECT}", ("sqlite:///FILE", "three slashes")),
    "a file of a database that is not there": Mistake(
        f"{TERMS} sqlite:///nowhere.db {SELECT}", ("nowhere.db", "no such file", "four slashes")
    ),
    "a file that is no database": Mistake(
        f"{TERMS} duckdb:///rows.csv {SELECT}", ("rows.csv", "is no duckdb database")
    ),
    "a table that the database has not": Mistake(
        f'{TERMS} sqlite:///rows.db --query "SELECT * FROM patients"',
        ("sqlite:///rows.db", "no such table: patients"),
        prepare=_write,
    ),
    "a table that DuckDB has not": Mistake(
        f'{TERMS} duckdb:///rows.duckdb --query "SELECT * FROM patients"',
        ("duckdb:///rows.duckdb", "patients does not exist"),
        prepare=_write,
    ),
    "a query that writes": Mistake(
        f'{TERMS} sqlite:///rows.db --query "DELETE FROM rows"',
        ("--query", "a query reads rows", "'DELETE'"),
        prepare=_write,
    ),
    "a query that writes behind a WITH": Mistake(
        f'{TERMS} sqlite:///rows.db --query "WITH x AS (SELECT 1) DELETE FROM rows"',
        ("sqlite:///rows.db", "a query only reads here"),
        prepare=_write,
    ),
    "two statements": Mistake(
        f'{TERMS} sqlite:///rows.db --query "SELECT 1; SELECT 2"', ("--query", "several statements")
    ),
    "an empty query": Mistake(
        f"{TERMS} sqlite:///rows.db --query-file query.sql",
        ("query.sql", "the query is empty"),
        {"query.sql": "-- later\n"},
    ),
    "a query file that is not there": Mistake(
        f"{TERMS} sqlite:///rows.db --query-file nowhere.sql", ("nowhere.sql", "cannot read the query")
    ),
    "a query and its file": Mistake(
        f"{TERMS} sqlite:///rows.db --query-file terms.toml {SELECT}",
        ("--query or --query-file, not both",),
    ),
    "two columns of one name": Mistake(
        f'{TERMS} duckdb:///rows.duckdb --query "SELECT age, dose AS age FROM rows"',
        ("duckdb:///rows.duckdb", "two columns named 'age'", "AS another_name"),
        prepare=_write,
    ),
    "a query without rows": Mistake(
        f'{TERMS} sqlite:///rows.db --query "SELECT * FROM rows WHERE age > 500"',
        ("sqlite:///rows.db", "there are no rows"),
        prepare=_write,
    ),
    "a column of another kind": Mistake(
        f'{TERMS} duckdb:///rows.duckdb --query "SELECT *, [age] AS ages FROM rows"',
        ("column 'ages' is list", "CAST(ages AS text)"),
        prepare=_write,
    ),
    "a column of several kinds": Mistake(
        f"{TERMS} sqlite:///rows.db {SELECT}",
        ("column 'age' holds values of several types", "CAST(age AS REAL)"),
        prepare=_write_mixed,
    ),
    "a server that is not there": Mistake(
        f"{TERMS} postgresql://marie:{SECRET}@127.0.0.1:1/registry {SELECT}",
        ("postgresql://marie:***@127.0.0.1:1/registry", "Connection refused"),
    ),
    "a password with a sign in it": Mistake(
        f"{TERMS} postgresql://marie:{SECRET}@x@127.0.0.1/registry {SELECT}",
        ("a sign in the URI's password", "%40 for @"),
    ),
    "another database": Mistake(
        f"{TERMS} mysql://marie:{SECRET}@127.0.0.1/registry {SELECT}",
        ("mysql: there is no driver of this database", "export the rows to Parquet"),
    ),
    "a connection string that is no URI": Mistake(
        f'{TERMS} "host=localhost password={SECRET}" {SELECT}', ("postgresql://USER@HOST:PORT/DATABASE",)
    ),
    "a site's file without a query": Mistake(
        "party --config site.toml --insecure-loopback",
        ("site.toml", "sqlite:///rows.db is a database", 'query = "SELECT'),
        {"site.toml": f'{SITE}data = "sqlite:///rows.db"\n'},
    ),
    "a site's file with a query of a file": Mistake(
        "party --config site.toml --insecure-loopback",
        ("site.toml", "query is for a database", "take query away"),
        {"site.toml": f'{SITE}data = "rows.csv"\nquery = "SELECT 1"\n'},
    ),
    "a database for a command that reads files": Mistake(
        f"check postgresql://marie:{SECRET}@127.0.0.1/registry --label y",
        ("is a database", '--query "SELECT', "marie:***@"),
    ),
    "a query of no rows": Mistake(
        f"explain model.json {SELECT}", ("--query is for the rows of --shap or --data",)
    ),
    "the site as a feature, but no site": Mistake(
        "terms rows.csv --label y --site-feature",
        ("--site-feature makes a feature of the column of --site",),
    ),
    "a column that is missing": Mistake(
        f"{TERMS} rows.csv", ("'dose'", "missing"), {"rows.csv": as_text(ROWS.drop_columns(["dose"]))}
    ),
    "words in a column": Mistake(
        f"{TERMS} rows.csv", ("'age'", "string", "numeric", "row 1"), {"rows.csv": constant(0, "sixty")}
    ),
    "a constant label": Mistake(f"{TERMS} rows.csv", ("nothing to learn",), {"rows.csv": constant(4, 1)}),
    "one row": Mistake(f"{TERMS} rows.csv", ("1 row", "2 parties"), {"rows.csv": as_text(ROWS.slice(0, 1))}),
    "fewer groups than parties": Mistake(
        "simulate ranks.toml --data rows.csv --out new.json",
        ("1 groups cannot be split among 2 parties",),
        {"ranks.toml": RANKS, "rows.csv": constant(2, "a")},
    ),
    "a comparison of rankings": Mistake(
        "compare ranks.toml --data rows.csv --site site",
        ("ranks.toml", "rank:ndcg ranks whole groups"),
        {"ranks.toml": RANKS},
    ),
}
