"""Tables from files and from memory: every value in its place, and one clear line for everything else."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from columns import COLOURS, NAN, NUMERIC, config_error, refusal, same
from pyarrow import csv, parquet
from raised import after

from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table, read_table

# ---- Files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "T.CSV", "t.csv.gz", "t.gz", "t.tsv", "t.tsv.gz"])
def test_text_files_are_read_by_their_suffix(tmp_path: Path, name: str) -> None:
    text = "a,b\n1,u\n2.5,v\n".replace(",", "\t" if "tsv" in name else ",")
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read_table(tmp_path / name).to_pydict() == {"a": [1.0, 2.5], "b": ["u", "v"]}


@pytest.mark.parametrize("name", ["t.parquet", "t.pq"])
def test_parquet_files_are_read_and_folder_names_are_no_columns(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "site=north"
    folder.mkdir()
    table = pa.table({"a": [1, 2]})
    parquet.write_table(table, folder / name)
    assert read_table(str(folder / name)).equals(table)


def test_null_spellings_and_empty_strings_of_a_csv_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('n,s\n1,u\nNA,\nnan,""\n,NA\n"",v\n')
    table = read_table(path)
    assert table.column("n").to_pylist() == [1, None, None, None, None]
    assert table.column("s").to_pylist() == ["u", None, None, None, "v"]


def test_a_quoted_line_break_is_part_of_a_value(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = 100_000  # several of pyarrow's blocks of 1 MiB: some begin within a value
    path.write_text("s,n\n" + '"uuuuuuuu\nvvvvvvvv\nw",1\n' * rows)
    assert read_table(path).column("s").unique().to_pylist() == ["uuuuuuuu\nvvvvvvvv\nw"]


def test_a_late_value_of_another_type_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = 400_000  # several of pyarrow's blocks of 1 MiB
    path.write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(rows)) + "abc,1\n")
    message = refusal(read_table(path), NUMERIC)
    assert message == (
        "column 'x' has type string, but the terms declare it numeric: "
        f"the first value that is not a number is 'abc' in row {rows + 1} (line {rows + 2} of the file)"
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", "the file is empty"),
        ("t.parquet", b"", "the file is empty"),
        (
            "t.sas7bdat",
            b"x",
            "has the unknown suffix '.sas7bdat'; use one of .csv, .tsv, .parquet, .pq, .feather",
        ),
        ("t.xlsx", b"x", "cannot be read as an Excel workbook: "),
        ("t", b"x", "has the unknown suffix ''"),
        ("t.parquet", b"not a parquet file", "cannot be read as Parquet: "),
        ("t.csv", b"a,b\n1,2\n\n3\n", "line 4 has 1 value, but the header has 2 columns"),
        ("t.csv", b"\n\n", "cannot be read as CSV: "),
        ("t.csv.gz", b"not compressed", "cannot be read as CSV: "),
        (
            "t.csv",
            b"a\xff,b\n1,2\n",
            "line 1 is not UTF-8 ('a\\xff,b\\n'); specify its encoding: --e",
        ),
        ("t.csv", b"a,b,a\n1,2,3\n", "two columns are named 'a'"),
        (
            "t.csv",
            b"a;b\n1;2\n",
            "the columns are separated by semicolons; use --separator ';', or separator = ",
        ),
        ("t.csv.gz", gzip.compress(b'"a";"b"\n1,5;2\n', mtime=0), "the columns are separated by semicolons"),
        ("t.tsv", b"a;b\n1;2\n", "the columns are separated by semicolons"),
        ("t.csv", b"a\tb\n1\t2\n", "the columns are separated by tabs"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16"), "is UTF-16 or not text; try --encoding utf-16"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16-be"), "is UTF-16 or not text; try --encoding utf-16"),
        (
            "t.csv",
            b'a,b\n1,"2\n' + b"3,4\n" * (1 << 20),
            "a row is longer than 1 MiB; close an open quote",
        ),
        (
            "t.csv",
            b"a,b\n1," + b"z" * (3 << 20) + b"\n2,u\n",
            "a row is longer than 1 MiB; close an open quote",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert after(path, config_error(lambda: read_table(path))).startswith(said)


def test_absent_files_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    assert config_error(lambda: read_table("t.csv")) == f"{tmp_path / 't.csv'}: no such file"
    assert config_error(lambda: read_table("t")) == f"{tmp_path / 't'}: no such file or folder"
    assert config_error(lambda: read_table("folder.csv")).endswith(
        "no Parquet files (*.parquet, *.pq) in this folder"
    )


def test_two_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table([[1], [2]], names=["a", "a"]), path)
    assert "'a'" in config_error(lambda: read_table(path))


@pytest.mark.slow
def test_a_row_of_many_columns_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    names = [f"x{i}" for i in range(22_000)]
    row = ",".join(["0.5".ljust(100, "0")] * len(names))  # 2.2 MB
    path.write_text("\n".join([",".join(names), row, row, ""]))
    table = read_table(path)
    assert table.column_names == names
    assert table.column("x21999").to_pylist() == [0.5, 0.5]


@pytest.mark.parametrize("header", ['"a;b",c', '"a; b\nd",c', 'c,"a\tb"', '"a;b"', "a"])
def test_other_separators_in_a_name_are_part_of_it(tmp_path: Path, header: str) -> None:
    path = tmp_path / "t.csv"
    width = header.count(",") + 1
    path.write_text(header + "\n" + ",".join("1" * width) + "\n")
    assert read_table(path).column_names == [name.strip('"') for name in header.split(",")]


def test_text_that_is_not_utf8_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"c,y\nr\xe9d,1\n")
    said = "line 2 is not UTF-8 ('r\\xe9d,1\\n'); specify its encoding: --encoding latin-1"
    assert said in config_error(lambda: read_table(path))


@pytest.mark.slow
def test_importing_needs_no_pandas() -> None:
    imports = "import sys, fedboost.runtime.data.shard, fedboost.runtime.data.draft"
    check = f"{imports}; print({{'pandas'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---- Tables in memory -------------------------------------------------------------------------------


def test_tables_are_made_of_paths_arrow_pandas_and_mappings(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": ["u", None]})
    csv.write_csv(table, tmp_path / "t.csv")
    frame = pd.DataFrame({"a": [1, 2], "b": ["u", None]}, index=[7, 8])
    for data in (
        table,
        tmp_path / "t.csv",
        str(tmp_path / "t.csv"),
        frame,
        {"a": np.arange(1, 3), "b": ["u", None]},
    ):
        assert as_table(data).to_pydict() == table.to_pydict()


def test_pandas_categories_are_levels() -> None:
    frame = pd.DataFrame(
        {"c": pd.Categorical(["green", None, "red"], ["red", "green", "blue"]), "y": [0, 1, 1]}
    )
    (column,) = to_shard(as_table(frame), COLOURS, "north").columns
    assert same(column, [1, NAN, 0])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (3, "cannot read a table from int"),
        ([[1, 2]], "cannot read a table from list"),
        (np.zeros((2, 2)), "a matrix (ndarray) has no column names; pass {'x': matrix, 'y': labels}"),
        (np.zeros(2), "cannot read a table from numpy.ndarray"),
        (pd.Series([1]), "cannot read a table from pandas."),
        ({"a": [1, 2], "b": [1]}, "cannot convert this dict to a table: "),
        ({"a": np.zeros((2, 2, 2))}, "cannot convert this dict to a table: "),
        ({"a": 3}, "cannot convert this dict to a table: "),
        (pd.DataFrame({"a": [1, "u"]}), "cannot convert this DataFrame to a table: "),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "cannot convert this DataFrame to a table: "),
        (pa.table([[1], [2]], names=["a", "a"]), "the table: two columns are named 'a'"),
    ],
)
def test_what_is_no_table(data: object, said: str) -> None:
    assert config_error(lambda: as_table(data)).startswith(said)
