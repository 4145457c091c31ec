"""Forms of files and options of reading: the same values whole and in parts, the remedy in each message."""

import bz2
import datetime
import gzip
import io
import json
import re
import sys

import pyarrow as pa
import pytest
from columns import config_error
from pyarrow import feather
from raised import after

from fedboost.runtime.data import text
from fedboost.runtime.data.database import ReadOptions
from fedboost.runtime.data.table import read_table, source_at

GERMAN = {"separator": ";", "decimal": ",", "encoding": "latin-1"}
WIDE = {"separator": "tab", "encoding": "utf-16", "na": ["-", "?"]}
MARKED = [["a", "b"], [1.5, "x"], ["-", "ü"], [], [-2, "-"]]
VALUES = {"a": [1.5, None, -2.0], "b": ["x", "ü", None]}
CUT_OFF = gzip.compress(b"a,b\n" + b"1,2\n" * 99, mtime=0)[
    :-9
]  # the same in each process: it is in names of tests
LINES = b'{"a": 1.5, "b": "x"}\n\n{"b": "\xc3\xbc"}\n{"a": -2}\n'


def in_feather(table):
    file = io.BytesIO()
    feather.write_feather(table, file, compression="zstd")
    return file.getvalue()


def in_excel(*sheets):
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets:
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def read_both(path, **options):
    """The table, read whole; in parts it is the same."""
    known = ReadOptions(**options)
    table = read_table(path, None, known)
    parts = source_at(path, known).in_parts(table.column_names)
    assert [row for part in parts for row in part.to_pylist()] == table.to_pylist()
    return table


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("t.csv", "a,b\n1.5,x\n,ü\n-2,\n".encode(), {}),
        ("t.csv", "a;b\n1,5;x\n\n;ü\n-2;\n".encode("latin-1"), GERMAN),
        ("t.csv", "a\tb\n1.5\tx\n-\tü\n-2\t?\n".encode("utf-16"), WIDE),
        ("t.tsv", "a|b\n1.5|x\nunknown|ü\n-2|unknown\n".encode(), {"separator": "|", "na": ["unknown"]}),
        ("t.csv.gz", gzip.compress("a,b\n1.5,x\n,ü\n-2,\n".encode(), mtime=0), {}),
        ("t.tsv.bz2", bz2.compress("a\tb\n1.5\tx\n\tü\n-2\t\n".encode()), {}),
        ("t.csv.zst", pa.compress("a,b\n1.5,x\n,ü\n-2,\n".encode(), "zstd", asbytes=True), {}),
        ("t.zst", pa.compress("a,b\n1.5,x\n,ü\n-2,\n".encode(), "zstd", asbytes=True), {}),
        ("t.jsonl", LINES, {}),
        ("T.NDJSON", LINES, {}),
        ("t.jsonl.gz", gzip.compress(LINES, mtime=0), {}),
        ("t.feather", in_feather(pa.table(VALUES)), {}),
        ("t.arrow", in_feather(pa.table(VALUES)), {}),
        ("t.xlsx", in_excel(("s", [["a", "b"], [1.5, "x"], [None, "ü"], [-2, None]])), {}),
        ("t.xlsx", in_excel(("z", [["z"]]), ("s", MARKED)), {"sheet": "s", "na": ["-"]}),
    ],
)  # fmt: skip
def test_each_form_gives_the_same_table(tmp_path, name, content, options):
    (tmp_path / name).write_bytes(content)
    assert read_both(tmp_path / name, **options).to_pydict() == VALUES


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5"], pa.float64()),
        (["", "7"], pa.int64()),
        (["0", "true"], pa.bool_()),
        (["5", "true"], pa.string()),
        (["1", "x"], pa.string()),
        (["2024-01-01", "n"], pa.string()),
        (["1", "2024-01-01"], pa.string()),
        (["01", "02"], pa.int64()),
        (["1", "a,b"], pa.string()),
        (["1", 'a"b'], pa.string()),
    ],
)
def test_a_column_in_parts_has_the_type_of_the_whole_column(tmp_path, monkeypatch, values, kind):
    """The first value stands in the first parts, the second late."""
    monkeypatch.setattr(text, "_BLOCK", 64)
    quoted = ['"' + value.replace('"', '""') + '"' if set(value) & {",", '"'} else value for value in values]
    early, late = (f"1,{value}\n" for value in quoted)
    (tmp_path / "t.csv").write_text("k,v\n" + early * 100 + late + early * 9)
    assert read_both(tmp_path / "t.csv").column("v").type == kind
    parts = list(source_at(tmp_path / "t.csv").in_parts(["v"]))
    assert len(parts) > 3
    assert {part.schema.types[0] for part in parts} == {kind}
    texts = [
        v
        for part in source_at(tmp_path / "t.csv").in_parts(["v"], ["v"])
        for v in part.column("v").to_pylist()
    ]
    assert texts == [value or None for value in [values[0]] * 100 + [values[1]] + [values[0]] * 9]


def test_json_lines_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_PART", 50)
    lines = [{"a": n, "b": f"{n}"} if n % 5 else {"c": n / 2} for n in range(40)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    parts = list(source_at(tmp_path / "t.jsonl").in_parts(["a", "b", "c"], ["a"]))
    assert len(parts) > 3
    rows = [row for part in parts for row in part.to_pylist()]
    shown = [{"a": None, "b": None, "c": None, **line} for line in lines]
    assert rows == [row | {"a": None if row["a"] is None else str(row["a"])} for row in shown]


def test_cells_of_a_workbook(tmp_path):
    day = datetime.date(2024, 5, 6)
    rows = [
        ["n", 2020, "d", "f", None],
        [1, "x", day, True, None],
        [2.5, 3, day, False, None],
        ["n.n.", 0.5, day, None, None],
    ]
    (tmp_path / "t.xlsx").write_bytes(in_excel(("s", rows)))
    table = read_both(tmp_path / "t.xlsx")
    assert table.column("n").to_pylist() == ["1", "2.5", "n.n."]
    assert table.column("2020").to_pylist() == ["x", "3", "0.5"]
    assert table.column("f").to_pylist() == [True, False, None]
    assert table.column("d").to_pylist() == ["2024-05-06"] * 3
    assert table.column_names == ["n", "2020", "d", "f"]


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("t.csv", b"a,b\n1,2\n", {"decimal": ","}, "',' cannot be both the column and the decimal separator"),
        ("t.csv", b"a,b\n1,2\n", {"encoding": "utf-16"}, "cannot be decoded as utf-16: "),
        ("t.csv", b"a,b\n1,\x81\n", {"encoding": "cp1252"}, "cannot be decoded as cp1252: "),
        ("t.csv", b"a|b\n1|2\n", {"separator": ";"}, "the columns are separated by bars; use --separator"),
        ("t.csv", b"a,b\n1,2\n", {"separator": ";"}, "the columns are separated by commas; use --s"),
        ("t.parquet", b"x", {"na": ["-"]}, "na applies only to .csv, .tsv, .xlsx files; remove it"),
        ("t.csv", b"x", {"sheet": "s"}, "sheet applies only to .xlsx files; remove it"),
        ("t.csv.gz", CUT_OFF, {}, "cannot be read as CSV: Truncated"),
        ("t.jsonl", LINES + b"{", {}, "line 5 is not JSON: "),
        ("t.jsonl", b'{"a": 1}\n{"a": "1"}\n', {}, "line 2 has text for 'a', but earlier lines have a"),
        ("t.jsonl", b'[{"a": 1}]\n', {}, 'line 1 is not an object; write {"column": value, ...}'),
        ("t.feather", b"x" * 20, {}, "cannot be read as Feather: "),
        ("t.xlsx", b"x", {}, "cannot be read as an Excel workbook: "),
        ("t.xlsx", in_excel(("one", [["a"]]), ("two", [])), {"sheet": "x"}, "has no sheet 'x'; its sheets"),
        ("t.xlsx", in_excel(("one", []), ("two", [])), {}, "sheet 'one' is empty; choose another with"),
    ],
)  # fmt: skip
def test_files_and_options_that_do_not_fit(tmp_path, name, content, options, said):
    (tmp_path / name).write_bytes(content)
    known = ReadOptions(**options)
    whole = config_error(lambda: read_table(tmp_path / name, None, known))
    assert after(tmp_path / name, whole).startswith(said)

    def in_parts():
        parts = source_at(tmp_path / name, known)
        parts.check_known(["a"])
        list(parts.in_parts(["a", "b"]))

    assert config_error(in_parts) == whole


def test_a_workbook_without_the_extra(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").write_bytes(in_excel(("s", MARKED)))
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    said = (
        "t.xlsx: reading a workbook requires python-calamine: run pip install 'fedboost[excel]', or save the "
        "sheet as CSV"
    )
    assert config_error(lambda: read_table(tmp_path / "t.xlsx")).endswith(said)


def test_a_damaged_file_is_to_be_copied_again(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(CUT_OFF)
    assert config_error(lambda: read_table(tmp_path / "t.csv.gz")).endswith(
        "truncated or damaged, so copy it again"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"separator": ";;"}, "';;' must be one character"),
        ({"separator": ""}, "'' must be one character"),
        ({"decimal": "'"}, "should be '.' or ','"),
        ({"encoding": "utf9"}, "'utf9' is not a text encoding; use e.g. utf-8"),
        ({"encoding": "rot13"}, "'rot13' is not a text encoding"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        ReadOptions(**options)
