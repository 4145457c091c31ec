"""Ids of rows: the same bytes from every type, form and file; faults with a count and without a value."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from fedboost.errors import ConfigError
from fedboost.runtime.data.shard import check_distinct, ids_of
from fedboost.runtime.data.table import as_table, read_table


def ids(array, form=None):
    """Of one column."""
    return ids_of(pa.table({"id": array}), ["id"], form)


def refusal(table, names=("id",), form=None):
    with pytest.raises(ConfigError) as caught:
        ids_of(table, names, form)
    assert "\n" not in str(caught.value)
    return caught.value


# ---- Types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.decimal128(5, 0), pa.decimal256(50, 0)),
        *(pa.string(), pa.large_string(), pa.string_view()),
    ],
    ids=str,
)
def test_one_person_has_one_id_in_every_type(kind):
    numbers = [123, 0, 7]
    if "string" in str(kind):
        numbers = ["123", "0", "7"]
    elif pa.types.is_decimal(kind):
        numbers = [decimal.Decimal(number) for number in numbers]
    array = pa.array(numbers, kind)
    assert ids(array) == [b"123", b"0", b"7"]
    assert ids(pa.chunked_array([array.slice(0, 1), array.slice(1)])) == [b"123", b"0", b"7"]
    assert ids(array, "digits") == ids(array, "lower") == ids(array)


@pytest.mark.parametrize("values", [[123, 7, 123], ["123", " 7", "0123"]])
def test_encoded_columns(values):
    assert ids(pa.array(values).dictionary_encode()) == [b"123", b"7", b"123"]


def test_the_ends_of_whole_numbers():
    assert ids(pa.array([-(2**63), 2**63 - 1])) == [b"-9223372036854775808", b"9223372036854775807"]
    assert ids(pa.array([2**64 - 1], pa.uint64())) == ids(pa.array(["18446744073709551615"]))
    assert ids(pa.array([decimal.Decimal(10**37)], pa.decimal128(38, 0))) == [b"1" + 37 * b"0"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(0, 5))
def test_texts_of_whole_numbers_are_the_numbers(numbers, zeros):
    spelled = [f" {'-' if number < 0 else ''}{zeros * '0'}{abs(number)}\t" for number in numbers]
    assert ids(pa.array(spelled, pa.string())) == ids(pa.array(numbers, pa.int64()))
    assert ids(pa.array(numbers, pa.int64())) == [b"%d" % number for number in numbers]


def test_what_is_no_whole_number_keeps_its_zeros():
    kept = ["-", "--1", "0-1", "00a", "+05", "0.50", "1e3", "0x1F"]
    assert ids(pa.array(kept)) == [text.encode() for text in kept]
    assert ids(pa.array(["-0", "000", "-007", "007"])) == [b"0", b"0", b"-7", b"7"]


def test_dates_are_their_text():
    day = datetime.date(1970, 2, 3)
    assert ids(pa.array([day])) == ids(pa.array(["1970-02-03 "])) == [b"1970-02-03"]
    assert ids(pa.array([day]), "digits") == ids(pa.array(["1970-02-03"]), "digits") == [b"19700203"]


# ---- Texts ------------------------------------------------------------------------------------------


def test_texts_are_composed_and_without_outer_spaces():
    spelled = pa.array(["  Zoe\u0308 Ma\u0301\u3000", "\ufeff1"])
    assert ids(spelled) == ["Zoë Má".encode(), "\ufeff1".encode()]


def test_lower_folds_and_composes():
    spelled = pa.array(["STRASSE", "Straße", "ΣΊΣΥΦΟΣ", "\u0390", "\u03b9\u0308\u0301", "İ", " A-12"])
    lower = ids(spelled, "lower")
    assert lower[0] == lower[1] == b"strasse"
    assert lower[2] == "σίσυφοσ".encode()
    assert lower[3] == lower[4] == "\u0390".encode()
    assert lower[6] == b"a-12"
    assert ids(pa.array([text.decode() for text in lower]), "lower") == lower


def test_digits_keeps_digits_without_leading_zeros():
    spelled = pa.array(["+49 (151) 12-3", "0049151123", "49/151/123", "-0"])
    assert ids(spelled, "digits") == [b"49151123"] * 3 + [b"0"]
    assert ids(pa.array([-5, 5]), "digits") == [b"5", b"5"]


def test_columns_are_joined_in_the_order_of_their_names():
    table = pa.table(
        {"name": ["Ann ", "ann"], "born": [datetime.date(1970, 2, 3)] * 2, "n": pa.array([1, 2], pa.int8())}
    )
    assert ids_of(table, ["name", "born", "n"], "lower") == [
        b"ann\x1f1970-02-03\x1f1",
        b"ann\x1f1970-02-03\x1f2",
    ]
    assert ids_of(table, ["n", "name"], None) == [b"1\x1fAnn", b"2\x1fann"]


def test_a_table_without_rows_has_no_ids():
    assert ids(pa.array([], pa.string())) == ids(pa.array([], pa.null())) == []


# ---- Sources ----------------------------------------------------------------------------------------


def test_files_have_the_ids_of_memory(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "t.csv").write_text(
        "id,who,born\n" + "".join(f" 0{n}, W{n},1970-01-0{n}\n" for n in range(1, 9))
    )
    table = pa.table(
        {
            "id": pa.array(range(1, 9), pa.uint16()),
            "who": [f"W{n}" for n in range(1, 9)],
            "born": [datetime.date(1970, 1, n) for n in range(1, 9)],
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=3)
    names = ["who", "id", "born"]
    expected = ids_of(table, names, None)
    assert expected[2] == b"W3\x1f3\x1f1970-01-03"
    stored = read_table(tmp_path / "t.parquet", tmp_path / "scratch")
    assert ids_of(stored, names, None) == expected
    assert ids_of(read_table(tmp_path / "t.csv"), names, None) == expected


def test_dense_columns_of_a_sparse_table():
    table = as_table({"id": ["b", "a"], "x": scipy.sparse.csc_matrix(np.eye(2))})
    assert ids_of(table, ["id"], None) == [b"b", b"a"]


# ---- Faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1.0, 2.0]), "double"),
        (pa.array([1.0], pa.float32()), "float"),
        (pa.array([1.0]).dictionary_encode(), "double"),
        (pa.array([decimal.Decimal("1.50")]), "decimal"),
        (pa.array([decimal.Decimal(100)], pa.decimal128(5, -2)), "decimal"),
        (pa.array([True]), "bool"),
        (pa.array([datetime.datetime(1970, 1, 1)]), "timestamp"),
        (pa.array([datetime.time(1, 2)]), "time64"),
        (pa.array([b"x"]), "binary"),
        (pa.array([["x"]]), "list"),
    ],
)
def test_other_types_are_refused(array, kind):
    error = str(refusal(pa.table({"id": array})))
    assert error.startswith(f"id column 'id' has type {kind}")
    fraction = kind in ("float", "double")
    gap = "which allows fractions (often because of a missing value); convert it to integers"
    assert error.endswith(gap if fraction else "integers, text or dates; convert it to one of these")


@pytest.mark.parametrize(
    ("array", "form", "count"),
    [
        (pa.array([1, None, 3, None]), None, "2 of 4"),
        (pa.array(["x", " \t", None, ""]), None, "3 of 4"),
        (pa.array([None, None]), "lower", "2 of 2"),
        (pa.array(["1", "private", "2"]), "digits", "1 of 3"),
        (pa.array([None, datetime.date(1970, 2, 3)]), None, "1 of 2"),
    ],
)
def test_missing_ids_are_counted(array, form, count):
    error = refusal(pa.table({"id": array}), form=form)
    assert error.detail == count
    assert error.public.startswith("id column 'id' has rows without")
    assert "private" not in str(error)


def test_missing_ids_of_all_groups_of_rows_are_counted(tmp_path):
    table = pa.table({"id": ["a", None, "b", "", "c", None], "n": [1, 2, 3, 4, 5, 6]})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    stored = read_table(tmp_path / "t.parquet", tmp_path)
    assert refusal(stored, ["n", "id"]).detail == "3 of 6"


def test_a_separator_within_an_id_is_refused():
    error = refusal(pa.table({"id": ["secret\x1f1", "b"], "n": [1, 2]}), ["id", "n"])
    assert "U+001F" in error.public
    assert error.detail == "1 of 2"
    assert "secret" not in str(error)


def test_absent_columns_and_forms_are_named():
    table = pa.table({"id": ["a"]})
    assert str(refusal(table, ["ib"])).startswith("column 'ib' is missing")
    assert "digits, lower" in str(refusal(table, form="upper"))


def test_ids_in_several_rows_are_counted():
    check_distinct([], "row_id 'id'")
    check_distinct([b"a", b"b"], "row_id 'id'")
    with pytest.raises(ConfigError) as caught:
        check_distinct([b"anna", b"b", b"anna", b"c", b"c", b"anna"], "row_id 'id'")
    assert caught.value.public == "row_id 'id' must be unique, so keep one row per id"
    assert caught.value.detail == "2 ids occur in 5 rows"
    assert "anna" not in str(caught.value)
