"""Rows of a real PostgreSQL server: the same model, read-only, its types, its refusals, and little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import postgres
import pytest
from approvals import write_site
from databases import run_postgres, write_postgres
from pyarrow import csv
from sites import fedboost, rows, terms

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.parquet import keep
from fedboost.runtime.data.table import read_table
from fedboost.runtime.site.config import read_party

pytestmark = pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "PostgreSQL is there")
SOURCES = Path(__file__).parents[3] / "benchmarks" / "speed" / "sources.py"
QUERY = "SELECT * FROM rows"


@pytest.fixture(scope="module")
def uri():
    """A server with a table `rows`, and a role `site` that may read it alone."""
    with postgres.server() as uri:
        write_postgres(uri, rows())
        run_postgres(uri, "CREATE ROLE site LOGIN PASSWORD 'another-word'", "GRANT SELECT ON rows TO site")
        yield uri


def without_password(uri):
    return uri.replace(f":{postgres.PASSWORD}@", "@")


def error_of(uri, query=QUERY):
    with pytest.raises(ConfigError) as error:
        read_table(Database(uri, query))
    assert postgres.PASSWORD not in str(error.value)
    return str(error.value)


def test_the_same_rows_give_one_model(uri, tmp_path):
    csv.write_csv(rows(), tmp_path / "rows.csv")
    expected = fb.simulate(terms(), {"north": tmp_path / "rows.csv"}).model.to_bytes()
    assert fb.simulate(terms(), {"north": Database(uri, QUERY)}).model.to_bytes() == expected
    assert fb.simulate(terms(), {"north": read_table(Database(uri, QUERY))}).model.to_bytes() == expected


def test_a_site_approves_terms_for_the_rows_of_a_query(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(write_site(tmp_path))
    text = (tmp_path / "party.toml").read_text()
    data = next(line for line in text.splitlines() if line.startswith("data"))
    text = text.replace(data, f'data = "{uri}"\nquery = "{QUERY}"')
    (tmp_path / "party.toml").write_text(text)
    assert isinstance(read_party(tmp_path / "party.toml").data, Database)
    end = fedboost("approve", "terms.toml", "--config", "party.toml", "--yes")
    assert end.code == 0, end.err
    assert f"{rows().num_rows} rows" in end.out
    assert "reader:***@" in end.out
    assert postgres.PASSWORD not in end.out + end.err


def test_types_of_columns(uri):
    query = """SELECT 1.50::numeric(10, 2) AS n, 'NaN'::numeric AS nan, '{"a": 1}'::jsonb AS j, true AS b,
        '0123456789abcdef0123456789abcdef'::uuid AS u, 'x'::varchar(3) AS v, 7::smallint AS s, now() AS t,
        DATE '2020-01-01' AS d, NULL::numeric AS empty, 'Infinity'::float8 AS f"""
    table = read_table(Database(uri, query))
    values = {name: column[0] for name, column in table.to_pydict().items()}
    assert (values["n"], values["s"], values["b"], values["v"]) == (1.5, 7, True, "x")
    assert (values["j"], values["u"]) == ('{"a": 1}', "01234567-89ab-cdef-0123-456789abcdef")
    assert values["nan"] != values["nan"]
    assert values["empty"] is None
    assert keep(Database(uri, query)).head.schema.equals(table.schema)


@pytest.mark.parametrize(
    ("expression", "kind", "cast"),
    [
        ("'x'::bytea", "bytea", "text"),
        ("12.5::money", "money", "numeric"),
        ("'1 day'::interval", "interval", "text"),
        ("ARRAY[1, 2]", "int4[]", "text"),
        ("'10.0.0.1'::inet", "inet", "text"),
        ("'(1, 2)'::point", "point", "text"),
    ],
)
def test_a_type_without_a_meaning_is_named_with_a_cast(uri, expression, kind, cast):
    message = error_of(uri, f"SELECT 1 AS a, {expression} AS odd")
    assert f"column 'odd' has type {kind}, " in message
    assert f"write CAST(odd AS {cast}) in the query" in message
    read_table(Database(uri, f"SELECT CAST({expression} AS {cast}) AS odd"))


def test_nothing_is_written(uri):
    message = error_of(uri, "WITH gone AS (DELETE FROM rows RETURNING *) SELECT * FROM gone")
    assert message.endswith("in a read-only transaction; the query may only read")
    run_postgres(uri, "CREATE SEQUENCE IF NOT EXISTS numbers")
    assert "read-only transaction" in error_of(uri, "SELECT nextval('numbers')")
    assert "begins with 'DELETE'" in error_of(uri, "DELETE FROM rows")
    assert "several" in error_of(uri, "SELECT 1; DROP TABLE rows")
    assert read_table(Database(uri, QUERY)).num_rows == rows().num_rows


def test_what_the_server_refuses_is_one_line(uri):
    assert error_of(uri, "SELECT * FROM nowhere").endswith('relation "nowhere" does not exist')
    assert error_of(uri, "SELECT nowhere FROM rows").endswith('column "nowhere" does not exist')
    assert error_of(uri, "SELECT FROM WHERE").endswith('syntax error at or near "WHERE"')
    assert error_of(uri, "SELECT 1 / (x - 9) FROM generate_series(1, 9) x").endswith("division by zero")
    assert error_of(uri, f"{QUERY} WHERE age > 500").endswith("postgres: the query returned no rows")
    assert "two columns are named 'a'" in error_of(uri, "SELECT 1 AS a, 2 AS a")
    assert error_of(f"{uri}x").endswith('database "postgresx" does not exist')
    assert "invalid URI query parameter" in error_of(f"{uri}?colour=1")
    site = uri.replace(f"{postgres.USER}:{postgres.PASSWORD}", "site:another-word")
    assert "permission denied" in error_of(site, "SELECT * FROM pg_authid")
    assert read_table(Database(site, QUERY)).num_rows == rows().num_rows


def test_a_comment_may_end_the_query(uri):
    assert read_table(Database(uri, f"{QUERY}; -- all of them")).num_rows == rows().num_rows


def test_passwords_come_from_where_libpq_looks(uri, tmp_path):
    asked = without_password(uri)
    assert "no password supplied; set PGPASSWORD, or PGPASSFILE" in error_of(asked)
    wrong = error_of(uri.replace(postgres.PASSWORD, "a-wrong-one"))
    assert "reader:***@" in wrong
    assert "password authentication failed" in wrong
    assert "a-wrong-one" not in wrong
    with mock.patch.dict(os.environ, PGPASSWORD=postgres.PASSWORD):
        assert read_table(Database(asked, QUERY)).num_rows == rows().num_rows
    words, service = tmp_path / "pgpass", tmp_path / "pg_service.conf"
    words.write_text(f"127.0.0.1:*:*:{postgres.USER}:{postgres.PASSWORD}\n")
    words.chmod(0o600)
    port = asked.rpartition(":")[2].partition("/")[0]
    service.write_text(f"[registry]\nhost=127.0.0.1\nport={port}\nuser={postgres.USER}\ndbname=postgres\n")
    with mock.patch.dict(os.environ, PGPASSFILE=str(words), PGSERVICEFILE=str(service)):
        assert read_table(Database(asked, QUERY)).num_rows == rows().num_rows
        named = Database("postgresql:///?service=registry", QUERY)
        assert read_table(named).num_rows == rows().num_rows


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_party_takes_little_memory(uri):
    count, features = 400_000, 30
    columns = ", ".join(f"random() AS f{i}" for i in range(features))
    run_postgres(
        uri,
        f"CREATE TABLE many AS SELECT id, {columns}, (random() > 0.5)::int AS label "
        f"FROM generate_series(1, {count}) id",
    )
    query = "SELECT * FROM many ORDER BY id"
    command = [sys.executable, str(SOURCES), "--train", uri, "--features", str(features), "--query", query]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    bins = count * features
    assert figures["read"] < 0.9 * 8 * bins, "as much as the rows themselves"
    assert figures["most"] - bins < 90e6
