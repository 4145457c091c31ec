"""Mistakes with databases."""

import sqlite3

from databases import write_duckdb, write_sqlite
from mistakes import Mistake
from sites import rows

SITE = 'party = "north"\naggregator = "localhost:1"\n'
SECRET = "s3cret-word"
SIMULATE = "simulate terms.toml --out new.json --data"
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
    "a database without a query": Mistake(
        f"{SIMULATE} sqlite:///rows.db", ("sqlite:///rows.db", "is a database", '--query "SELECT')
    ),
    "a query of a file": Mistake(f"{SIMULATE} rows.csv {SELECT}", ("rows.csv", "--query is for a database")),
    "a database's file instead of its URI": Mistake(
        f"{SIMULATE} rows.db", ("rows.db", 'write sqlite:///rows.db --query "SELECT ..."')
    ),
    "two slashes": Mistake(f"{SIMULATE} sqlite://rows.db {SELECT}", ("sqlite:///FILE", "three slashes")),
    "a file of a database that is not there": Mistake(
        f"{SIMULATE} sqlite:///nowhere.db {SELECT}", ("nowhere.db", "no such file", "four slashes")
    ),
    "a file that is no database": Mistake(
        f"{SIMULATE} duckdb:///rows.csv {SELECT}", ("rows.csv", "is no duckdb database")
    ),
    "a table that the database has not": Mistake(
        f'{SIMULATE} sqlite:///rows.db --query "SELECT * FROM patients"',
        ("sqlite:///rows.db", "no such table: patients"),
        prepare=_write,
    ),
    "a table that DuckDB has not": Mistake(
        f'{SIMULATE} duckdb:///rows.duckdb --query "SELECT * FROM patients"',
        ("duckdb:///rows.duckdb", "patients does not exist"),
        prepare=_write,
    ),
    "a query that writes": Mistake(
        f'{SIMULATE} sqlite:///rows.db --query "DELETE FROM rows"',
        ("--query", "a query reads rows", "'DELETE'"),
        prepare=_write,
    ),
    "a query that writes behind a WITH": Mistake(
        f'{SIMULATE} sqlite:///rows.db --query "WITH x AS (SELECT 1) DELETE FROM rows"',
        ("sqlite:///rows.db", "a query only reads here"),
        prepare=_write,
    ),
    "two statements": Mistake(
        f'{SIMULATE} sqlite:///rows.db --query "SELECT 1; SELECT 2"', ("--query", "several statements")
    ),
    "an empty query": Mistake(
        f"{SIMULATE} sqlite:///rows.db --query-file query.sql",
        ("query.sql", "the query is empty"),
        {"query.sql": "-- later\n"},
    ),
    "a query file that is not there": Mistake(
        f"{SIMULATE} sqlite:///rows.db --query-file nowhere.sql", ("nowhere.sql", "cannot read the query")
    ),
    "a query and its file": Mistake(
        f"{SIMULATE} sqlite:///rows.db --query-file terms.toml {SELECT}",
        ("--query or --query-file, not both",),
    ),
    "two columns of one name": Mistake(
        f'{SIMULATE} duckdb:///rows.duckdb --query "SELECT age, dose AS age FROM rows"',
        ("duckdb:///rows.duckdb", "two columns named 'age'", "AS another_name"),
        prepare=_write,
    ),
    "a query without rows": Mistake(
        f'{SIMULATE} sqlite:///rows.db --query "SELECT * FROM rows WHERE age > 500"',
        ("sqlite:///rows.db", "there are no rows"),
        prepare=_write,
    ),
    "a column of another kind": Mistake(
        f'{SIMULATE} duckdb:///rows.duckdb --query "SELECT *, [age] AS ages FROM rows"',
        ("column 'ages' is list", "CAST(ages AS text)"),
        prepare=_write,
    ),
    "a column of several kinds": Mistake(
        f"{SIMULATE} sqlite:///rows.db {SELECT}",
        ("column 'age' holds values of several types", "CAST(age AS REAL)"),
        prepare=_write_mixed,
    ),
    "a server that is not there": Mistake(
        f"{SIMULATE} postgresql://marie:{SECRET}@127.0.0.1:1/registry {SELECT}",
        ("postgresql://marie:***@127.0.0.1:1/registry", "Connection refused"),
    ),
    "a password with a sign in it": Mistake(
        f"{SIMULATE} postgresql://marie:{SECRET}@x@127.0.0.1/registry {SELECT}",
        ("a sign in the URI's password", "%40 for @"),
    ),
    "another database": Mistake(
        f"{SIMULATE} mysql://marie:{SECRET}@127.0.0.1/registry {SELECT}",
        ("mysql: there is no driver of this database", "export the rows to Parquet"),
    ),
    "a connection string that is no URI": Mistake(
        f'{SIMULATE} "host=localhost password={SECRET}" {SELECT}', ("postgresql://USER@HOST:PORT/DATABASE",)
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
}
