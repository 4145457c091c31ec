"""Tables to float32 columns: every value in its place, and one clear line for everything else."""

import decimal
import gzip
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from fedboost.errors import ConfigError, Misfit, Refused
from fedboost.horizontal.holder import holder_of
from fedboost.protocol.messages import Admit, Leave
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.runtime.data.features import to_base_margin, to_features, undeclared
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table, read_table
from fedboost.runtime.data.values import numbers, texts
from fedboost.terms.columns import Schema
from fedboost.terms.terms import Terms

NAN = float("nan")
STAMP = datetime(2020, 1, 1)


def terms(objective: str = "binary:logistic", **columns: Any) -> Terms:
    return Terms.read({"objective": objective, "columns": {"label": "y", **columns}})


NUMERIC = terms(numeric=["x"])
REGRESSION = terms("reg:squarederror", numeric=["x"])
WEIGHTED = terms(numeric=["x"], weight="w")
COLOURS = terms(categorical={"c": ["red", "green"]})


def bits(values: Any) -> list[int]:
    """Float32 values as bits, so that NaN equals NaN and 0 is not -0."""
    array = np.asarray(values)
    assert array.dtype == np.float32
    return np.where(np.isnan(array), np.float32(NAN), array).view(np.uint32).tolist()


def same(got: Any, want: Any) -> bool:
    return bits(got) == bits(np.array(want, np.float32))


def feature(values: Any, agreed: Terms = NUMERIC) -> Any:
    """The shard's only feature column."""
    name = agreed.columns.features[0]
    label = [0, 1] * (len(values) // 2) + [0] * (len(values) % 2)
    (column,) = to_shard(pa.table({name: values, "y": label}), agreed, "north").columns
    return column


NEUTRAL = "party north: its rows do not fit the terms; its own log says which column and why"


def refusal(table: pa.Table, agreed: Terms) -> str:
    """What the site itself reads of rows that do not fit; what others read is always the same."""
    with pytest.raises(Misfit) as caught:
        to_shard(table, agreed, "north")
    error = caught.value
    assert error.public == NEUTRAL
    assert str(error) == f"{NEUTRAL}: {error.detail}"
    assert "\n" not in str(error)
    return error.detail


def absence(table: pa.Table, agreed: Terms) -> str:
    """What the site itself reads of a column that is absent."""
    with pytest.raises(Refused) as caught:
        to_shard(table, agreed, "north")
    assert not isinstance(caught.value, Misfit)
    message = str(caught.value)
    assert message.startswith("party north: ")
    assert "\n" not in message
    return message.removeprefix("party north: ")


def config_error(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# Files


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
        "column 'x' is string here, the terms say numeric: "
        f"the first value that is not a number is 'abc' in row {rows + 1}"
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", "the file is empty"),
        ("t.parquet", b"", "the file is empty"),
        ("t.xlsx", b"x", "unknown suffix '.xlsx'; known: .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .pq"),
        ("t", b"x", "unknown suffix ''"),
        ("t.parquet", b"not a parquet file", "cannot be read as Parquet: "),
        ("t.csv", b"a,b\n1,2\n3\n", "cannot be read as CSV: "),
        ("t.csv", b"\n\n", "cannot be read as CSV: "),
        ("t.csv.gz", b"not compressed", "cannot be read as CSV: "),
        ("t.csv", b"a\xff,b\n1,2\n", "cannot be read as CSV: "),
        ("t.csv", b"a,b,a\n1,2,3\n", "there are two columns named 'a'"),
        ("t.csv", b"a;b\n1;2\n", "semicolons stand between the columns; put commas there in a .csv"),
        ("t.csv.gz", gzip.compress(b'"a";"b"\n1,5;2\n', mtime=0), "semicolons stand between the columns"),
        ("t.tsv", b"a;b\n1;2\n", "semicolons stand between the columns"),
        ("t.csv", b"a\tb\n1\t2\n", "tabs stand between the columns"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16"), "is UTF-16, or no text; save it as UTF-8"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16-be"), "is UTF-16, or no text; save it as UTF-8"),
        (
            "t.csv",
            b'a,b\n1,"2\n' + b"3,4\n" * (1 << 20),
            "a row is longer than 1 MiB; close a quote left open",
        ),
        ("t.csv", b"a,b\n1," + b"z" * (3 << 20) + b"\n2,u\n", "a row is longer than 1 MiB; close a quote"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert config_error(lambda: read_table(path)).startswith(f"{path}: {said}")


def test_absent_files_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    assert config_error(lambda: read_table("t.csv")) == f"{tmp_path / 't.csv'}: no such file"
    assert config_error(lambda: read_table("folder.csv")).endswith("is a directory, not a file")


def test_two_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table([[1], [2]], names=["a", "a"]), path)
    assert "'a'" in config_error(lambda: read_table(path))


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
    assert "column 'c' is binary (not UTF-8 text) here" in refusal(read_table(path), COLOURS)


def test_importing_needs_neither_pyarrow_nor_pandas() -> None:
    imports = "import sys, fedboost.runtime.data.shard, fedboost.runtime.data.draft"
    check = f"{imports}; print({{'pyarrow', 'pandas'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Tables in memory


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
        (3, "cannot make a table of builtins.int"),
        ([[1, 2]], "cannot make a table of builtins.list"),
        (np.zeros((2, 2)), "cannot make a table of numpy.ndarray"),
        (pd.Series([1]), "cannot make a table of pandas."),
        ({"a": [1, 2], "b": [1]}, "cannot make a table of this dict: "),
        ({"a": np.zeros((2, 2))}, "cannot make a table of this dict: "),
        ({"a": 3}, "cannot make a table of this dict: "),
        (pd.DataFrame({"a": [1, "u"]}), "cannot make a table of this DataFrame: "),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "cannot make a table of this DataFrame: "),
        (pa.table([[1], [2]], names=["a", "a"]), "the table: there are two columns named 'a'"),
    ],
)
def test_what_is_no_table(data: object, said: str) -> None:
    assert config_error(lambda: as_table(data)).startswith(said)


# Numbers


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.int64(),
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(5, 2),
        pa.decimal256(50, 2),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
    ],
    ids=str,
)
def test_numbers_of_every_type(kind: pa.DataType) -> None:
    values = ["3", None, "0"] if "string" in str(kind) else [3, None, 0]
    if pa.types.is_decimal(kind):
        values = [None if value is None else decimal.Decimal(value) for value in values]
    elif pa.types.is_float16(kind):
        values = [None if value is None else np.float16(value) for value in values]
    array = pa.array(values, kind)
    assert same(feature(array), [3, NAN, 0])
    pieces = pa.chunked_array([array.slice(0, 1), array.slice(1)])
    assert same(feature(pieces), [3, NAN, 0])
    encoded = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0, 1], pa.int8()), pa.array(values[::2], kind)
    )
    assert same(feature(encoded), [0, NAN, 3, 0])


def test_booleans_and_nulls_are_numbers() -> None:
    assert same(feature(pa.array([True, None, False])), [1, NAN, 0])
    assert same(feature(pa.nulls(2)), [NAN, NAN])
    assert same(feature(pa.nulls(2, pa.float64())), [NAN, NAN])
    assert same(feature(np.array([1.5, NAN])), [1.5, NAN])


def test_text_that_spells_numbers() -> None:
    spelled = [" 1.5", "-2e3\t", "+7", "", "NA", "NaN", "nan", "null", "?", " ? ", None]
    assert same(feature(spelled), [1.5, -2000, 7, *[NAN] * 8])


@given(
    st.lists(st.none() | st.floats(-3e38, 3e38), min_size=1, max_size=20),
    st.sampled_from(["", " ", "\t"]),
    st.sampled_from([pa.string(), pa.large_string()]),
)
def test_a_number_is_the_same_as_its_text(values: list[float | None], pad: str, kind: pa.DataType) -> None:
    spelled = pa.array([None if value is None else f"{pad}{value!r}{pad}" for value in values], kind)
    want = np.array([NAN if value is None else value for value in values], np.float64).astype(np.float32)
    assert bits(feature(spelled)) == bits(want)
    assert bits(feature(pa.array(values, pa.float64()))) == bits(want)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
@example([2**60 + 2**36 + 1])  # rounds otherwise where float64 is left out
def test_an_integer_is_the_same_in_every_type(values: list[int]) -> None:
    want = bits(np.array(values, np.float64).astype(np.float32))
    decimals = pa.array([decimal.Decimal(value) for value in values], pa.decimal128(38, 0))
    for column in (pa.array(values, pa.int64()), decimals, pa.array([str(value) for value in values])):
        assert bits(feature(column)) == want


def test_arrays_are_new_contiguous_and_writable() -> None:
    given_values = np.array([1, 2, 3, 4], np.float32)
    table = pa.table({"x": given_values, "y": np.array([0, 1, 0, 1], np.float32)})
    shard = to_shard(table, NUMERIC, "north")
    for array in (*shard.columns, shard.label, shard.weight):
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[:] = 9
    assert table.column("x").to_pylist() == [1, 2, 3, 4] == given_values.tolist()


def test_features_stand_in_the_order_of_the_schema() -> None:
    table = pa.table({"c": ["red", "green"], "b": [1, 2], "y": [0, 1], "a": [3, 4]})
    agreed = terms(numeric=["a", "b"], categorical={"c": ["red", "green"]})
    shard = to_shard(table, agreed, "north")
    assert [column.tolist() for column in shard.columns] == [[3, 4], [1, 2], [0, 1]]
    assert shard.label.tolist() == [0, 1]
    assert to_features(table, agreed.columns, "t").tolist() == [[3, 1, 0], [4, 2, 1]]


@pytest.mark.parametrize("size", [1, 2, 3, 17, 100])
@pytest.mark.parametrize("chunks", [1, 3])
def test_the_first_text_that_is_no_number_is_found(size: int, chunks: int) -> None:
    for row in sorted({1, size // 2 + 1, size}):
        values = ["1"] * size
        values[row - 1] = values[-1] = "abc"
        parts = [pa.array(part, pa.string()) for part in np.array_split(values, chunks)]
        table = pa.table({"x": pa.chunked_array(parts), "y": [0] * size})
        assert refusal(table, NUMERIC) == (
            "column 'x' is string here, the terms say numeric: "
            f"the first value that is not a number is 'abc' in row {row}"
        )


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([STAMP], pa.timestamp("us")), "timestamp[us]"),
        (pa.array([STAMP], pa.timestamp("us")).dictionary_encode(), "timestamp[us]"),
        (pa.array([[1]]), "list"),
        (pa.array([b"1"]), "binary (not UTF-8 text)"),
        (pa.array([STAMP.date()]), "date32[day]"),
        (pa.array([{f"a_rather_long_name_{i}": 1 for i in range(9)}]), "struct"),
    ],
    ids=["timestamp", "dictionary", "list", "binary", "date", "struct"],
)
def test_other_types_are_named_with_what_the_terms_say(values: pa.Array, kind: str) -> None:
    message = refusal(pa.table({"x": values, "y": [1]}), NUMERIC)
    assert message == f"column 'x' is {kind} here, the terms say numeric"
    message = refusal(pa.table({"c": values, "y": [1]}), COLOURS)
    assert message == f"column 'c' is {kind} here, categorical takes text, numbers or booleans"


def test_long_names_of_types_are_shortened() -> None:
    values = pa.array([STAMP], pa.timestamp("us", "+00:00" * 20))
    message = refusal(pa.table({"x": values, "y": [1]}), NUMERIC)
    shown = message.removeprefix("column 'x' is ").removesuffix(" here, the terms say numeric")
    assert len(shown) == 40
    assert shown.startswith("timestamp[us, tz=+00:00")


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e300, "inf", "1e300", "-1e999"])
def test_infinite_and_too_large_values(value: float | str) -> None:
    values = ["1", "2", value] if isinstance(value, str) else [1.0, 2.0, value]
    message = refusal(pa.table({"x": values, "y": [0, 1, 1]}), NUMERIC)
    assert message == (
        f"column 'x' has a value that is infinite or too large for a 32-bit float: it is {value!r} in row 3"
    )


def test_long_values_are_shortened_and_line_breaks_escaped() -> None:
    message = refusal(pa.table({"x": ["a\nb" * 100], "y": [1]}), NUMERIC)
    shown = message.split("number is ")[1].split(" in row")[0]
    assert len(shown) == 40
    assert shown.startswith("'a\\nba")


# Missing columns, no rows


def test_an_absent_column_names_the_nearest_or_the_columns() -> None:
    table = pa.table({"ages": [1], "y": [1]})
    assert absence(table, terms(numeric=["age"])) == "column 'age' is missing: did you mean ages?"
    assert absence(table, terms(numeric=["zzz"])) == "column 'zzz' is missing: the columns are 'ages', 'y'"
    assert "column 'w' is missing" in absence(pa.table({"x": [1], "y": [1]}), WEIGHTED)
    assert "column 'y' is missing" in absence(pa.table({"x": [1]}), NUMERIC)
    many = pa.table({f"a{i}": [1] for i in range(20)})
    assert absence(many, NUMERIC).endswith("'a6', 'a7', … (20 in all)")


@pytest.mark.timeout(10)
def test_many_columns_are_found_at_once() -> None:
    names = [f"x{i}" for i in range(8_000)]
    table = as_table(pa.table({"y": [0, 1], **{name: [i, i + 1] for i, name in enumerate(names)}}))
    shard = to_shard(table, terms(numeric=names), "north")
    assert [column[0] for column in shard.columns] == list(range(8_000))


def test_a_table_without_rows() -> None:
    table = pa.schema([("x", pa.float64()), ("y", pa.int64())]).empty_table()
    assert refusal(table, NUMERIC) == "the table has no rows"
    assert to_features(table, NUMERIC.columns, "t").shape == (0, 1)
    text = pa.schema([("c", pa.string()), ("x", pa.string())]).empty_table()
    both = terms(numeric=["x"], categorical={"c": ["red"]})
    for empty in (text, pa.table({"c": pa.array([], pa.string()).dictionary_encode(), "x": pa.nulls(0)})):
        features = to_features(empty, both.columns, "t")
        assert (features.shape, features.dtype) == ((0, 2), np.float32)


# Categories


@pytest.mark.parametrize(
    ("values", "levels", "codes"),
    [
        (["b", "a", None, "", "b"], ["a", "b"], [1, 0, NAN, NAN, 1]),
        (pa.array(["b", None, "a"], pa.string_view()), ["a", "b"], [1, NAN, 0]),
        (pa.array(["b", None, "a"]).dictionary_encode(), ["a", "b"], [1, NAN, 0]),
        ([1, 2, None], ["2", "1"], [1, 0, NAN]),
        (pa.array([1, 2], pa.uint8()).dictionary_encode(), ["2", "1"], [1, 0]),
        ([True, False, None], ["false", "true"], [1, 0, NAN]),
        ([1.0, -2.0, 0.5, NAN, -0.0], ["1", "-2", "0.5", "0"], [0, 1, 2, NAN, 3]),
        (pa.array([0.1, 2.0], pa.float32()), ["0.1", "2"], [0, 1]),
        ([decimal.Decimal("1.50"), decimal.Decimal("2.00")], ["1.5", "2"], [0, 1]),
        ([np.float16(0.5), None], ["0.5"], [0, NAN]),
        ([1e-7, 1e22], ["1e-07", "1" + "0" * 22], [0, 1]),
        (pa.nulls(2), ["a"], [NAN, NAN]),
        (["NA", "?"], ["?", "NA"], [1, 0]),
        (["True", "01"], ["01", "True"], [1, 0]),
    ],
)
def test_categories_are_matched_as_text(values: Any, levels: list[str], codes: list[float]) -> None:
    assert same(feature(values, terms(categorical={"c": levels})), codes)


def test_levels_as_a_csv_spells_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("zip,smokes,y\n01,True,1\n02,False,0\n")
    agreed = terms(categorical={"smokes": ["False", "True"], "zip": ["02", "01"]})
    shard = to_shard(read_table(path), agreed, "north")
    assert {
        name: column.tolist() for name, column in zip(agreed.columns.features, shard.columns, strict=True)
    } == {
        "smokes": [1, 0],
        "zip": [1, 0],
    }


def test_the_exact_level_goes_before_another_spelling() -> None:
    assert same(feature([1, 2], terms(categorical={"c": ["01", "1", "2"]})), [1, 2])
    assert same(feature(["1"], terms(categorical={"c": ["01"]})), [NAN])


@given(st.data())
def test_codes_are_places_of_levels(data: st.DataObject) -> None:
    words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=5)
    levels = data.draw(st.lists(words, min_size=1, max_size=8, unique=True))
    places = data.draw(st.lists(st.none() | st.integers(0, len(levels) - 1), min_size=1, max_size=30))
    values = pa.array([None if place is None else levels[place] for place in places], pa.string())
    want = [NAN if place is None else place for place in places]
    agreed = terms(categorical={"c": levels})
    cut = len(places) // 2
    for column in (values, values.dictionary_encode(), pa.chunked_array([values[:cut], values[cut:]])):
        assert same(feature(column, agreed), want)
    parts = pa.chunked_array([values[:cut].dictionary_encode(), values[cut:].dictionary_encode()])
    assert same(feature(parts, agreed), want)


def test_an_undeclared_level_is_missing_in_training_and_in_prediction() -> None:
    table = pa.table({"c": ["red", None, "blue", "pink", "blue"], "y": [0, 1, 1, 1, 0]})
    (column,) = to_shard(table, COLOURS, "north").columns
    assert same(column, [0, NAN, NAN, NAN, NAN])
    features = to_features(table, COLOURS.columns, "t")
    assert same(features[:, 0], [0, NAN, NAN, NAN, NAN])
    assert list(undeclared(table, COLOURS.columns)) == [("c", "blue", 3)]


def test_levels_as_a_csv_spells_them_are_declared() -> None:
    table = pa.table({"zip": [1, 2, 3, None], "smokes": [True, False, None, True]})
    agreed = terms(categorical={"smokes": ["False", "True"], "zip": ["02", "01"]})
    assert list(undeclared(table, agreed.columns)) == [("zip", "3", 1)]


def test_texts_gives_codes_and_the_texts_they_stand_for() -> None:
    codes, found = texts(pa.chunked_array([pa.array(["v", "u"]), pa.array([None, "v"])]), "c")
    assert (codes.tolist(), found) == ([0, 1, -1, 0], ("v", "u"))


# Labels


def test_numeric_labels() -> None:
    for values in ([0, 1], [False, True], ["0", " 1"], pa.array([0.0, 1.0], pa.float32())):
        assert to_shard(pa.table({"x": [1, 2], "y": values}), NUMERIC, "north").label.tolist() == [0, 1]
    shard = to_shard(pa.table({"x": [1, 2], "y": [-1.5, 1e6]}), REGRESSION, "north")
    assert same(shard.label, [-1.5, 1e6])


@pytest.mark.parametrize("missing", [[0.0, None], [0.0, NAN], ["0", ""], ["0", "NA"]])
def test_a_missing_label(missing: list[Any]) -> None:
    said = "label 'y' has missing values, fill them in or drop their rows: the first is in row 2"
    assert refusal(pa.table({"x": [1, 2], "y": missing}), NUMERIC) == said
    assert refusal(pa.table({"x": [1, 2], "y": missing}), REGRESSION) == said


@pytest.mark.parametrize("missing", [["no", None], ["no", ""], [1.0, NAN]])
def test_a_missing_label_where_words_are_labels(missing: list[Any]) -> None:
    message = refusal(pa.table({"x": [1, 2], "y": missing}), terms(numeric=["x"], positive="no"))
    assert message == ("label 'y' has missing values, fill them in or drop their rows: the first is in row 2")


def test_labels_the_objective_cannot_have() -> None:
    message = refusal(pa.table({"x": [1, 2, 3], "y": [0, 1, 2]}), NUMERIC)
    assert message == (
        "column 'y' is the label of binary:logistic, which takes 0 or 1; "
        "set positive under [columns] to the label value that counts as 1: it is 2 in row 3"
    )
    message = refusal(pa.table({"x": [1, 2], "y": [1.0, float("inf")]}), REGRESSION)
    assert message == (
        "label column 'y' has a value that is infinite or too large for a 32-bit float: it is inf in row 2"
    )
    message = refusal(pa.table({"x": [1, 2], "y": [1.0, 1e30]}), REGRESSION)
    assert message == (
        "column 'y' is the label of reg:squarederror, which takes a number of magnitude at most 2**60: "
        "it is 1e+30 in row 2"
    )


def test_words_as_labels_need_positive() -> None:
    table = pa.table({"x": [1, 2], "y": ["1", "yes"]})
    assert refusal(table, NUMERIC) == (
        "label column 'y' is string here, the terms say numeric; "
        "set positive under [columns] to the label value that counts as 1: "
        "the first value that is not a number is 'yes' in row 2"
    )
    assert refusal(table, REGRESSION) == (
        "label column 'y' is string here, the terms say numeric: "
        "the first value that is not a number is 'yes' in row 2"
    )


@pytest.mark.parametrize(
    ("values", "positive", "label"),
    [
        (["yes", "no", "yes"], "yes", [1, 0, 1]),
        (["no", "no"], "yes", [0, 0]),
        (["yes"], "yes", [1]),
        ([1, 2], "2", [0, 1]),
        ([1.0, 2.0], "2", [0, 1]),
        ([True, False], "false", [0, 1]),
        ([True, False], "True", [1, 0]),
        (pa.array(["u", "v"]).dictionary_encode(), "v", [0, 1]),
    ],
)
def test_the_positive_value_is_1_and_others_0(values: Any, positive: str, label: list[int]) -> None:
    table = pa.table({"x": [1] * len(values), "y": values})
    assert to_shard(table, terms(numeric=["x"], positive=positive), "north").label.tolist() == label


def test_labels_that_do_not_fit_positive() -> None:
    agreed = terms(numeric=["x"], positive="yes")
    table = pa.table({"x": [1, 2, 3], "y": ["yes", "no", "No"]})
    assert refusal(table, agreed) == "label 'y' has more than two values: 'yes', 'no', 'No'"
    table = pa.table({"x": [1, 2], "y": ["Yes", "No"]})
    assert refusal(table, agreed) == "positive = 'yes' is neither value of label 'y': 'Yes', 'No'"
    table = pa.table({"x": [1], "y": pa.array([STAMP])})
    assert (
        refusal(table, agreed)
        == "column 'y' is timestamp[us] here, categorical takes text, numbers or booleans"
    )


KINDS = terms("multi:softprob", numeric=["x"], classes=["b", "a", "10", "true"])


@pytest.mark.parametrize(
    ("values", "label"),
    [
        (["a", "b", "10", "a"], [1, 0, 2, 1]),
        (["a"], [1]),
        ([10, 10], [2, 2]),
        ([10.0, 10.0], [2, 2]),
        ([True], [3]),
        (pa.array(["10", "b", "10"]).dictionary_encode(), [2, 0, 2]),
    ],
)
def test_a_label_is_the_place_of_its_class(values: Any, label: list[int]) -> None:
    table = pa.table({"x": [1] * len(values), "y": values})
    assert same(to_shard(table, KINDS, "north").label, label)


def test_labels_that_are_no_class() -> None:
    table = pa.table({"x": [1, 2, 3], "y": ["b", "a", "A"]})
    assert refusal(table, KINDS) == (
        "column 'y' is the label, and has a value that is none of columns.classes ('b', 'a', '10', 'true'); "
        "add it there, or drop its rows: it is 'A' in row 3"
    )
    for missing in (["b", None], ["b", ""], [10.0, NAN]):
        assert refusal(pa.table({"x": [1, 2], "y": missing}), KINDS) == (
            "label 'y' has missing values, fill them in or drop their rows: the first is in row 2"
        )


def test_classes_that_are_numbers_or_words() -> None:
    of = Terms.read(
        {"objective": "multi:softprob", "num_class": 3, "columns": {"label": "y", "numeric": ["x"]}}
    )
    assert to_shard(pa.table({"x": [1, 2], "y": [2.0, 0.0]}), of, "north").label.tolist() == [2, 0]
    hint = "; set classes under [columns] to the list of label values"
    assert refusal(pa.table({"x": [1, 2], "y": [1, 3]}), of) == (
        f"column 'y' is the label of multi:softprob, which takes whole numbers from 0 to 2{hint}: "
        "it is 3 in row 2"
    )
    assert refusal(pa.table({"x": [1], "y": ["u"]}), of) == (
        f"label column 'y' is string here, the terms say numeric{hint}: "
        "the first value that is not a number is 'u' in row 1"
    )


# Weights


HELD_OUT = terms(numeric=["x"], validation="v")


@pytest.mark.parametrize("flags", [[0, 1, 0], [0.0, 1.0, 0.0], [False, True, False], ["0", "1", "0"]])
def test_validation_rows_of_a_column(flags: list[Any]) -> None:
    table = pa.table({"x": [1, 2, 3], "y": [0, 1, 0], "v": flags})
    found = to_shard(table, HELD_OUT, "north").validation
    assert found is not None
    assert found.tolist() == [False, True, False]
    assert to_shard(table, NUMERIC, "north").validation is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([0, 2], "column 'v' says neither 0 nor 1, false nor true: it is 2 in row 2"),
        (
            [0, None],
            "validation 'v' has missing values, fill them in or drop their rows: the first is in row 2",
        ),
        (
            [True, None],
            "validation 'v' has missing values, fill them in or drop their rows: the first is in row 2",
        ),
    ],
)
def test_validation_columns_that_are_none(flags: list[Any], said: str) -> None:
    assert refusal(pa.table({"x": [1, 2], "y": [0, 1], "v": flags}), HELD_OUT) == said


RANKED = Terms.read(
    {
        "objective": "rank:ndcg",
        "columns": {"label": "y", "group": "q", "weight": "w", "validation": "v", "numeric": ["x"]},
    }
)


def test_groups_have_the_key_of_their_name_whatever_stands_between_their_rows() -> None:
    rows = {"x": [1, 2, 3, 4], "y": [0, 4, 2, 31], "w": [2, 3, 2, 3], "v": [0, 1, 0, 1]}
    found = [
        to_shard(pa.table({**rows, "q": groups}), RANKED, site).group
        for groups, site in (
            (["a", "b", "a", "b"], "north"),
            ([7, 8, 7, 8], "north"),
            ([7.0, 8, 7, 8], "south"),
        )
    ]
    for group in found:
        assert group is not None
        assert group.tolist() == [group[0], group[1]] * 2
        assert group[0] != group[1]
    assert found[1].tolist() == found[2].tolist()  # type: ignore[union-attr]
    assert found[0].tolist() != found[1].tolist()  # type: ignore[union-attr]
    assert to_shard(pa.table(rows), REGRESSION, "north").group is None


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        (
            "q",
            ["a", "b", None, "a"],
            "group 'q' has missing values, fill them in or drop their rows: the first",
        ),
        (
            "w",
            [1, 1, 1, 2],
            "column 'w' differs within a group of 'q': make it one value: row 4 differs from row 1, of",
        ),
        (
            "v",
            [0, 0, 1, 0],
            "column 'v' differs within a group of 'q': make it one value: row 3 differs from row 2, of",
        ),
        (
            "y",
            [0, 1.5, 0, 1],
            "rank:ndcg, which takes whole numbers from 0 to 31; with ndcg_exp_gain = false any",
        ),
        (
            "y",
            [0, 32, 0, 1],
            "rank:ndcg, which takes whole numbers from 0 to 31; with ndcg_exp_gain = false any",
        ),
    ],
)
def test_groups_that_do_not_fit(column: str, values: list[Any], said: str) -> None:
    rows = {"x": [1, 2, 3, 4], "y": [0, 1, 0, 1], "w": [1.0] * 4, "v": [0] * 4, "q": ["a", "b", "b", "a"]}
    assert said in refusal(pa.table({**rows, column: values}), RANKED)


def test_rows_have_the_keys_of_their_ids_at_every_site() -> None:
    drawn = Terms.read({"columns": {"label": "y", "row_id": "i", "numeric": ["x"]}, "subsample": 0.5})
    rows = {"x": [1, 2, 3], "y": [0, 1, 0]}
    one = to_shard(pa.table({**rows, "i": ["a", "b", "c"]}), drawn, "north").keys
    other = to_shard(pa.table({**rows, "i": ["c", "a", "b"]}), drawn, "south").keys
    assert one is not None
    assert other is not None
    assert one[[2, 0, 1]].tolist() == other.tolist()
    assert len(set(one.tolist())) == 3
    numbers = [
        to_shard(pa.table({**rows, "i": ids}), drawn, "north").keys for ids in ([7, 8, 9], [7.0, 8.0, 9.0])
    ]
    assert numbers[0] is not None
    assert numbers[0].tolist() == [*map(int, numbers[1])]  # type: ignore[arg-type]
    without = drawn.changed(columns={"label": "y", "numeric": ["x"]})
    north, south = (to_shard(pa.table(rows), without, site).keys for site in ("north", "south"))
    assert not {*north.tolist()} & {*south.tolist()}  # type: ignore[union-attr]
    assert "row_id 'i' has missing values" in refusal(pa.table({**rows, "i": ["a", None, "c"]}), drawn)


def test_weights() -> None:
    table = pa.table({"x": [1, 2], "y": [0, 1], "w": [0.0, 2.5]})
    assert to_shard(table, WEIGHTED, "north").weight.tolist() == [0, 2.5]
    assert same(to_shard(table, NUMERIC, "north").weight, [1, 1])


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (
            [1.0, None],
            "weight 'w' has missing values, fill them in or drop their rows: the first is in row 2",
        ),
        ([1.0, NAN], "weight 'w' has missing values, fill them in or drop their rows: the first is in row 2"),
        ([1.0, -0.5], "column 'w' has a weight below 0: it is -0.5 in row 2"),
        (
            [1.0, 1e39],
            "column 'w' has a value that is infinite or too large for a 32-bit float: it is 1e+39 in row 2",
        ),
        (
            ["1", "u"],
            "column 'w' is string here, the terms say numeric: "
            "the first value that is not a number is 'u' in row 2",
        ),
    ],
)
def test_weights_that_are_none(weight: list[Any], said: str) -> None:
    assert refusal(pa.table({"x": [1, 2], "y": [0, 1], "w": weight}), WEIGHTED) == said


BASED = Terms.read(
    {
        "objective": "count:poisson",
        "columns": {"label": "y", "numeric": ["x"], "base_margin": "m"},
    }
)


def test_base_margins() -> None:
    table = pa.table({"x": [1, 2], "y": [0, 1], "m": [-0.5, 2.5]})
    found = to_shard(table, BASED, "north").base_margin
    assert found is not None
    assert same(found, [-0.5, 2.5])
    assert same(to_base_margin(table, BASED, "here"), [-0.5, 2.5])
    assert to_shard(table, NUMERIC, "north").base_margin is None
    assert to_base_margin(table, NUMERIC, "here") is None


@pytest.mark.parametrize(
    ("margin", "said"),
    [
        (
            [1.0, None],
            "base margin 'm' has missing values, fill them in or drop their rows: the first is in row 2",
        ),
        (
            [1.0, -math.inf],
            "column 'm' has a value that is infinite or too large for a 32-bit float: it is -inf in row 2",
        ),
        ([1.0, 50.0], "column 'm' has a base margin that predicts more than 2**60: it is 50.0 in row 2"),
        (
            ["1", "u"],
            "column 'm' is string here, the terms say numeric: "
            "the first value that is not a number is 'u' in row 2",
        ),
    ],
)
def test_base_margins_that_are_none(margin: list[Any], said: str) -> None:
    table = pa.table({"x": [1, 2], "y": [0, 1], "m": margin})
    assert refusal(table, BASED) == said
    with pytest.raises(ConfigError) as caught:
        to_base_margin(table, BASED, "rows.csv")
    assert str(caught.value) == f"rows.csv: {said}"


TIMES = Terms.read(
    {
        "objective": "survival:aft",
        "columns": {"label": "y", "label_upper_bound": "z", "numeric": ["x"]},
    }
)


@pytest.mark.parametrize("upper", [[2.0, 5.0, math.inf], [2.0, 5.0, None], ["2", "5", ""], ["2", "5", "inf"]])
def test_labels_that_are_intervals(upper: list[Any]) -> None:
    table = pa.table({"x": [1, 2, 3], "y": [2, 0, 7], "z": upper})
    shard = to_shard(table, TIMES, "north")
    assert shard.rows == 3
    assert shard.label.dtype == np.float32
    assert shard.label.tolist() == [[2, 0, 7], [2, 5, math.inf]]


@pytest.mark.parametrize(
    ("lower", "upper", "said"),
    [
        (
            [1, 3],
            [1, 2],
            "columns 'y' and 'z' are the label of survival:aft, which takes a lower bound from 0 to 2**60 "
            "and an upper one above 0 that is not below it, or infinite or missing; not 0 and infinity, "
            "which say nothing: they are 3 and 2 in row 2",
        ),
        (
            [1, None],
            [1, 2],
            "label 'y' has missing values, fill them in or drop their rows: the first is in row 2",
        ),
        (
            [1, math.inf],
            [1, math.inf],
            "column 'y' has a value that is infinite or too large for a 32-bit float: it is inf in row 2",
        ),
        (
            [1, 1],
            ["1", "later"],
            "column 'z' is string here, the terms say numeric: "
            "the first value that is not a number is 'later' in row 2",
        ),
    ],
)
def test_intervals_that_are_none(lower: list[Any], upper: list[Any], said: str) -> None:
    assert refusal(pa.table({"x": [1, 2], "y": lower, "z": upper}), TIMES) == said


# What may leave the site

SECRET, ROW = "SECRET-4711", 317
TOO_LARGE = "has a value that is infinite or too large for a 32-bit float"
HINT = "; set positive under [columns] to the label value that counts as 1"
MISSING = "has missing values, fill them in or drop their rows"
FIRST = f"the first is in row {ROW}"
NO_NUMBER = f"the first value that is not a number is '{SECRET}' in row {ROW}"
WORDS = terms(numeric=["x"], positive="yes")


def planted(name: str, cell: object, usual: object = 1) -> pa.Table:
    """400 rows that every terms here could use, but for one cell of the column `name`."""
    columns: dict[str, list[object]] = {column: [1] * 400 for column in ("x", "y", "w")}
    columns |= {"c": ["red"] * 400, name: [usual] * 400}
    columns[name][ROW - 1] = cell
    return pa.table(columns)


@pytest.mark.parametrize(
    ("table", "agreed", "why", "where"),
    [
        (planted("x", 1).slice(0, 0), NUMERIC, "the table has no rows", ""),
        (planted("x", SECRET, "1"), NUMERIC, "column 'x' is string here, the terms say numeric", NO_NUMBER),
        (
            planted("x", {SECRET: 4711.25}, None),
            NUMERIC,
            "column 'x' is struct here, the terms say numeric",
            "",
        ),
        (
            planted("x", [{SECRET: 4711.25}], None),
            NUMERIC,
            "column 'x' is list here, the terms say numeric",
            "",
        ),
        (planted("x", 4711e300, 1.5), NUMERIC, f"column 'x' {TOO_LARGE}", f"it is 4.711e+303 in row {ROW}"),
        (
            planted("x", "4711e300", "1"),
            NUMERIC,
            f"column 'x' {TOO_LARGE}",
            f"it is '4711e300' in row {ROW}",
        ),
        (
            planted("c", {SECRET: 4711.25}, None),
            COLOURS,
            "column 'c' is struct here, categorical takes text, numbers or booleans",
            "",
        ),
        (
            planted("y", SECRET, "1"),
            NUMERIC,
            f"label column 'y' is string here, the terms say numeric{HINT}",
            NO_NUMBER,
        ),
        (
            planted("y", SECRET, "1"),
            REGRESSION,
            "label column 'y' is string here, the terms say numeric",
            NO_NUMBER,
        ),
        (
            planted("y", 4711.25, 1.0),
            NUMERIC,
            f"column 'y' is the label of binary:logistic, which takes 0 or 1{HINT}",
            f"it is 4711.25 in row {ROW}",
        ),
        (
            planted("y", 4711e20, 1.0),
            REGRESSION,
            "column 'y' is the label of reg:squarederror, which takes a number of magnitude at most 2**60",
            f"it is 4.711e+23 in row {ROW}",
        ),
        (
            planted("y", 4711e300, 1.0),
            REGRESSION,
            f"label column 'y' {TOO_LARGE}",
            f"it is 4.711e+303 in row {ROW}",
        ),
        (planted("y", None), NUMERIC, f"label 'y' {MISSING}", FIRST),
        (planted("y", None, SECRET), WORDS, f"label 'y' {MISSING}", FIRST),
        (
            pa.table({"x": [1, 1, 1], "y": ["yes", "no", SECRET]}),
            WORDS,
            "label 'y' has more than two values",
            f"'yes', 'no', '{SECRET}'",
        ),
        (
            planted("y", SECRET, "no"),
            WORDS,
            "positive = 'yes' is neither value of label 'y'",
            f"'no', '{SECRET}'",
        ),
        (
            planted("y", {SECRET: 4711.25}, None),
            WORDS,
            "column 'y' is struct here, categorical takes text, numbers or booleans",
            "",
        ),
        (
            planted("y", SECRET, "a"),
            KINDS,
            "column 'y' is the label, and has a value that is none of columns.classes "
            "('b', 'a', '10', 'true'); add it there, or drop its rows",
            f"it is '{SECRET}' in row {ROW}",
        ),
        (planted("w", None), WEIGHTED, f"weight 'w' {MISSING}", FIRST),
        (
            planted("w", -4711.25, 1.0),
            WEIGHTED,
            "column 'w' has a weight below 0",
            f"it is -4711.25 in row {ROW}",
        ),
        (planted("w", SECRET, "1"), WEIGHTED, "column 'w' is string here, the terms say numeric", NO_NUMBER),
        (
            planted("w", 4711e300, 1.0),
            WEIGHTED,
            f"column 'w' {TOO_LARGE}",
            f"it is 4.711e+303 in row {ROW}",
        ),
    ],
)
def test_the_others_read_one_sentence_whatever_does_not_fit(
    table: pa.Table, agreed: Terms, why: str, where: str
) -> None:
    assert refusal(table, agreed) == (f"{why}: {where}" if where else why)


@pytest.mark.parametrize(
    ("agreed", "public", "detail"),
    [
        (NUMERIC, "column 'x' is missing", f"the columns are '{SECRET}', 'y'"),
        (terms(numeric=["SECRET-471"]), "column 'SECRET-471' is missing", f"did you mean {SECRET}?"),
    ],
)
def test_the_others_read_which_column_is_absent_and_no_other(agreed: Terms, public: str, detail: str) -> None:
    for values in ([1], [float("inf")], ["no"], [None]):  # whatever the rows hold
        with pytest.raises(Refused) as caught:
            to_shard(pa.table({SECRET: [1], "y": values}), agreed, "north")
        error = caught.value
        assert (error.public, error.detail) == (f"party north: {public}", detail)


@pytest.mark.parametrize(
    ("table", "agreed", "value"),
    [(planted("x", SECRET, "1"), NUMERIC, SECRET), (planted("w", -4711.25, 1.0), WEIGHTED, "-4711.25")],
)
def test_a_party_leaves_without_quoting_its_table(table: pa.Table, agreed: Terms, value: str) -> None:
    agreed = agreed.with_parties(["north", "south", "east"])
    session = PartySession(
        Site("north", holder_of(lambda wanted: to_shard(table, wanted, "north"), "north"), bytes)
    )
    assert list(session.handle(Admit("s", agreed))) == [Leave(NEUTRAL, "s")]
    assert session.ended is not None
    assert session.ended.startswith(f"{NEUTRAL}: column ")
    assert value in session.ended
    assert session.ended.endswith(f" in row {ROW}")


# Prediction


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"c": ["red"]}, "new.csv: column 'x' is missing"),
        (
            {"x": ["u"], "c": ["red"]},
            "new.csv: column 'x' is string here, the terms say numeric: "
            "the first value that is not a number is 'u' in row 1",
        ),
        (
            {"x": [float("inf")], "c": ["red"]},
            "new.csv: column 'x' has a value that is infinite or too large for a 32-bit float: "
            "it is inf in row 1",
        ),
        ({"x": [1], "c": [[1]]}, "new.csv: column 'c' is list here"),
    ],
)
def test_rows_that_cannot_be_predicted(columns: dict[str, list[Any]], said: str) -> None:
    schema = Schema(label="y", numeric=("x",), categorical={"c": ("red",)})
    assert config_error(lambda: to_features(pa.table(columns), schema, "new.csv")).startswith(said)


def test_prediction_needs_no_label_and_sees_what_training_saw() -> None:
    table = pa.table({"c": ["green", None], "x": ["1.5", "?"]})
    agreed = terms(numeric=["x"], categorical={"c": ["red", "green"]})
    features = to_features(table, agreed.columns, "t")
    trained = to_shard(table.append_column("y", pa.array([0, 1])), agreed, "north").columns
    assert features.flags.c_contiguous
    assert [bits(features[:, place]) for place in range(2)] == [bits(column) for column in trained]


def test_numbers_too_large_for_float32_make_no_warning() -> None:
    assert np.isinf(numbers(pa.chunked_array([[1e300]]), "x")).all()
