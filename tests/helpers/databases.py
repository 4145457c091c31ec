"""Tables of tests in databases."""

import sqlite3


def write_sqlite(path, table, name="rows"):
    """A table of an SQLite file, with the types of its columns."""
    kinds = {"double": "REAL", "int64": "INTEGER"}
    columns = [f'"{field.name}" {kinds.get(str(field.type), "TEXT")}' for field in table.schema]
    with sqlite3.connect(path) as file:
        file.execute(f'CREATE TABLE "{name}" ({", ".join(columns)})')
        marks = ", ".join("?" * table.num_columns)
        file.executemany(
            f'INSERT INTO "{name}" VALUES ({marks})', zip(*table.to_pydict().values(), strict=True)
        )
    file.close()


def write_duckdb(path, table, name="rows"):
    """A table of a DuckDB file."""
    import duckdb

    with duckdb.connect(str(path)) as file:
        file.register("given", table)
        file.execute(f'CREATE TABLE "{name}" AS SELECT * FROM given')


def write_postgres(uri, table, name="rows"):
    """A table of a PostgreSQL server, in the place of one of that name."""
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest(name, table, mode="replace")
        connection.commit()


def run_postgres(uri, *statements):
    """Run statements that return nothing."""
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
