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
        {"rows.csv": SEMICOLONS},
    ),
    "decimal commas": Mistake(
        f"{SIMULATE} rows.csv --separator ';'",
        {"rows.csv": COMMAS_IN_NUMBERS},
    ),
    "latin-1 read as UTF-8": Mistake(
        f"{SIMULATE} rows.csv",
        {"rows.csv": "\n".join(["age,ward", "50,Süd", ""]).encode("latin-1")},
    ),
    "a folder without a table": Mistake(f"{SIMULATE} folder"),
    "an unknown suffix": Mistake(
        f"{SIMULATE} rows.sav",
        {"rows.sav": b"x"},
    ),
    "a column to keep that is not there": Mistake(
        "predict model.json rows.csv --keep sight --out new.csv",
    ),
    "predictions as a workbook": Mistake(
        "predict model.json rows.csv --out new.xlsx",
    ),
    "predictions over a part of the rows": Mistake(
        "predict model.json all --out all/part-0.parquet",
        prepare=folder_of(ROWS),
    ),
    "a point among decimal commas": Mistake(
        "simulate terms.toml --data eu.csv --separator ';' --decimal , --out new.json",
        {"eu.csv": "age;dose;ward;y\n1,5;2,5;a;0\n2;3;b;1\n3;1.500;a;0\n4,5;2;b;1\n"},
    ),
    "a database without a query": Mistake(f"{TERMS} sqlite:///rows.db"),
    "a query of a file": Mistake(f"{TERMS} rows.csv {SELECT}"),
    "a database's file instead of its URI": Mistake(f"{TERMS} rows.db"),
    "two slashes": Mistake(f"{TERMS} sqlite://rows.db {SELECT}"),
    "a file of a database that is not there": Mistake(f"{TERMS} sqlite:///nowhere.db {SELECT}"),
    "a file that is no database": Mistake(f"{TERMS} duckdb:///rows.csv {SELECT}"),
    "a table that the database has not": Mistake(
        f'{TERMS} sqlite:///rows.db --query "SELECT * FROM patients"',
        prepare=_write,
    ),
    "a table that DuckDB has not": Mistake(
        f'{TERMS} duckdb:///rows.duckdb --query "SELECT * FROM patients"',
        prepare=_write,
    ),
    "a query that writes": Mistake(
        f'{TERMS} sqlite:///rows.db --query "DELETE FROM rows"',
        prepare=_write,
    ),
    "a query that writes behind a WITH": Mistake(
        f'{TERMS} sqlite:///rows.db --query "WITH x AS (SELECT 1) DELETE FROM rows"',
        prepare=_write,
    ),
    "two statements": Mistake(f'{TERMS} sqlite:///rows.db --query "SELECT 1; SELECT 2"'),
    "an empty query": Mistake(
        f"{TERMS} sqlite:///rows.db --query-file query.sql",
        {"query.sql": "-- later\n"},
    ),
    "a query file that is not there": Mistake(f"{TERMS} sqlite:///rows.db --query-file nowhere.sql"),
    "a query and its file": Mistake(
        f"{TERMS} sqlite:///rows.db --query-file terms.toml {SELECT}",
    ),
    "two columns of one name": Mistake(
        f'{TERMS} duckdb:///rows.duckdb --query "SELECT age, dose AS age FROM rows"',
        prepare=_write,
    ),
    "a query without rows": Mistake(
        f'{TERMS} sqlite:///rows.db --query "SELECT * FROM rows WHERE age > 500"',
        prepare=_write,
    ),
    "a column of another kind": Mistake(
        f'{TERMS} duckdb:///rows.duckdb --query "SELECT *, [age] AS ages FROM rows"',
        prepare=_write,
    ),
    "a column of several kinds": Mistake(
        f"{TERMS} sqlite:///rows.db {SELECT}",
        prepare=_write_mixed,
    ),
    "a server that is not there": Mistake(
        f"{TERMS} postgresql://marie:{SECRET}@127.0.0.1:1/registry {SELECT}",
    ),
    "a password with a sign in it": Mistake(
        f"{TERMS} postgresql://marie:{SECRET}@x@127.0.0.1/registry {SELECT}",
    ),
    "another database": Mistake(
        f"{TERMS} mysql://marie:{SECRET}@127.0.0.1/registry {SELECT}",
    ),
    "a connection string that is no URI": Mistake(f'{TERMS} "host=localhost password={SECRET}" {SELECT}'),
    "a site's file without a query": Mistake(
        "party --config site.toml --insecure-loopback",
        {"site.toml": f'{SITE}data = "sqlite:///rows.db"\n'},
    ),
    "a site's file with a query of a file": Mistake(
        "party --config site.toml --insecure-loopback",
        {"site.toml": f'{SITE}data = "rows.csv"\nquery = "SELECT 1"\n'},
    ),
    "a database for a command that reads files": Mistake(
        f"check postgresql://marie:{SECRET}@127.0.0.1/registry --label y",
    ),
    "a query of no rows": Mistake(f"explain model.json {SELECT}"),
    "the site as a feature, but no site": Mistake(
        "terms rows.csv --label y --site-feature",
    ),
    "a column that is missing": Mistake(
        f"{TERMS} rows.csv", {"rows.csv": as_text(ROWS.drop_columns(["dose"]))}
    ),
    "words in a column": Mistake(f"{TERMS} rows.csv", {"rows.csv": constant(0, "sixty")}),
    "a constant label": Mistake(f"{TERMS} rows.csv", {"rows.csv": constant(4, 1)}),
    "one row": Mistake(f"{TERMS} rows.csv", {"rows.csv": as_text(ROWS.slice(0, 1))}),
    "fewer groups than parties": Mistake(
        "simulate ranks.toml --data rows.csv --out new.json",
        {"ranks.toml": RANKS, "rows.csv": constant(2, "a")},
    ),
    "a comparison of rankings": Mistake(
        "compare ranks.toml --data rows.csv --site site",
        {"ranks.toml": RANKS},
    ),
}
