"""Mistakes with the files that tables are in."""

import gzip
import io
from pathlib import Path

import pyarrow as pa
from mistakes import Mistake
from pyarrow import csv, parquet
from sites import rows

ROWS = rows()


def as_text(**options: object) -> bytes:
    """The rows as CSV."""
    file = io.BytesIO()
    csv.write_csv(ROWS, file, csv.WriteOptions(**options))
    return file.getvalue()


def workbook(path: Path) -> None:
    """A workbook with the sheets 2023 and 2024."""
    from openpyxl import Workbook

    book = Workbook()
    book.active.title = "2023"
    book.create_sheet("2024")
    for sheet in book:
        sheet.append(ROWS.column_names)
    book.save(path / "rows.xlsx")


def folder_of(*tables: pa.Table):
    """A function that writes the tables to a folder, one after the other."""

    def write(path: Path) -> None:
        (path / "all").mkdir()
        for number, table in enumerate(tables):
            parquet.write_table(table, path / "all" / f"part-{number}.parquet")

    return write


SEMICOLONS = as_text(delimiter=";")
COMMAS_IN_NUMBERS = SEMICOLONS.replace(b".", b",")
WARDS = ROWS.set_column(2, "ward", pa.array(["Kinderstation Süd"] * ROWS.num_rows))
LINES = b'{"age": 50, "y": 1}\n'
SIMULATE = "simulate alone.toml --out new.json --data"

MISTAKES = {
    "semicolons": Mistake(
        f"{SIMULATE} rows.csv",
        ("rows.csv: semicolons", "--separator ';'", "[read]"),
        {"rows.csv": SEMICOLONS},
    ),
    "another separator than there is": Mistake(
        f"{SIMULATE} rows.csv --separator ';'",
        ("rows.csv: commas stand between the columns", "--separator ,"),
    ),
    "decimal commas": Mistake(
        f"{SIMULATE} rows.csv --separator ';'",
        ("rows.csv: ", "column 'age'", "a decimal comma (--decimal ,", "row 1 (line 2 of the file)"),
        {"rows.csv": COMMAS_IN_NUMBERS},
    ),
    "decimal commas between commas": Mistake(
        f"{SIMULATE} rows.csv --decimal ,", ("rows.csv: ',' cannot stand", "--separator ';'")
    ),
    "latin-1 read as UTF-8": Mistake(
        f"{SIMULATE} rows.csv",
        ("rows.csv: line 2 is not UTF-8", "S\\xfcd", "--encoding latin-1"),
        {"rows.csv": "\n".join(["age,ward", "50,Süd", ""]).encode("latin-1")},
    ),
    "an encoding that does not exist": Mistake(
        f"{SIMULATE} rows.csv --encoding utf9", ("--encoding: 'utf9' is no encoding", "latin-1")
    ),
    "a row with a value too few": Mistake(
        f"{SIMULATE} rows.csv",
        ("rows.csv: line 4 has 2 values, the header names 3 columns",),
        {"rows.csv": "a,b,c\n1,2,3\n\n1,2\n"},
    ),
    "an option of another form": Mistake(
        f"{SIMULATE} rows.csv --sheet 2024", ("rows.csv: sheet is an option for .xlsx", "leave it out")
    ),
    "a sheet that is not there": Mistake(
        f"{SIMULATE} rows.xlsx --sheet 2025",
        ("rows.xlsx: has no sheet '2025'", "'2023', '2024'"),
        prepare=workbook,
    ),
    "a compressed file that is cut off": Mistake(
        f"{SIMULATE} rows.csv.gz",
        ("rows.csv.gz: cannot be read as CSV", "cut off or damaged: copy it again"),
        {"rows.csv.gz": gzip.compress(as_text())[:-100]},
    ),
    "a folder without a table": Mistake(f"{SIMULATE} folder", ("folder: holds no Parquet file", "*.parquet")),
    "a glob without a match": Mistake(
        f"{SIMULATE} 'parts/*.parquet'", ("*.parquet: no file has such a name",)
    ),
    "files of two schemas": Mistake(
        f"{SIMULATE} all",
        ("part-1.parquet: column 'dose' is missing, which", "part-0.parquet has"),
        prepare=folder_of(ROWS, ROWS.drop_columns(["dose"])),
    ),
    "files of two types": Mistake(
        f"{SIMULATE} all",
        ("part-1.parquet: column 'y' is string here, int64 in", "part-0.parquet", "as one type"),
        prepare=folder_of(ROWS, ROWS.set_column(4, "y", pa.array(["1"] * ROWS.num_rows))),
    ),
    "a broken line of JSON": Mistake(
        f"{SIMULATE} rows.jsonl",
        ("rows.jsonl: line 3 is no JSON",),
        {"rows.jsonl": LINES * 2 + LINES[:9] + b"\n"},
    ),
    "no encryption": Mistake(
        f"{SIMULATE} http://marie:secret@data.example/rows.csv",
        ("http://***@data.example/rows.csv: http:// is not encrypted; use https://",),
    ),
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
}
