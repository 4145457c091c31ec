"""Numbers to float32: every type and every text, exactly."""

import decimal

import numpy as np
import pyarrow as pa
import pytest
from columns import COLOURS, NAN, NUMERIC, STAMP, WEIGHTED, bits, feature, refusal, same, terms
from hypothesis import example, given
from hypothesis import strategies as st

from fedboost.errors import Refused, SchemaMismatch
from fedboost.runtime.data.shard import to_features, to_shard
from fedboost.runtime.data.table import as_table
from fedboost.terms.terms import Terms


def absence(table: pa.Table, agreed: Terms) -> str:
    """What the site itself reads of a column that is absent."""
    with pytest.raises(Refused) as caught:
        to_shard(table, agreed, "north")
    assert not isinstance(caught.value, SchemaMismatch)
    message = str(caught.value)
    assert message.startswith("party north: ")
    assert "\n" not in message
    return message.removeprefix("party north: ")


# ---- Numbers ----------------------------------------------------------------------------------------


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
            "column 'x' has type string, but the terms declare it numeric: "
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
    assert message == f"column 'x' has type {kind}, but the terms declare it numeric; convert it to numbers"
    message = refusal(pa.table({"c": values, "y": [1]}), COLOURS)
    assert (
        message == f"column 'c' has type {kind}, but a categorical column must be text, numbers or booleans"
    )


def test_long_names_of_types_are_shortened() -> None:
    values = pa.array([STAMP], pa.timestamp("us", "+00:00" * 20))
    message = refusal(pa.table({"x": values, "y": [1]}), NUMERIC)
    advice = ", but the terms declare it numeric; convert it to numbers"
    shown = message.removeprefix("column 'x' has type ").removesuffix(advice)
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


# ---- Missing columns, no rows -----------------------------------------------------------------------


def test_an_absent_column_names_the_nearest_or_the_columns() -> None:
    table = pa.table({"ages": [1], "y": [1]})
    fix = "if north does not have it, add it to columns.absent in the terms"
    near = absence(table, terms(numeric=["age"]))
    assert near == f"column 'age' is missing; {fix}: did you mean ages?"
    two = pa.table({"lab_13": [1], "y": [1]})
    assert "lab_13?" in absence(two, terms(numeric=["lab_12"]))
    both = absence(two, terms(numeric=["lab_12", "lab_13"]))  # which is a column of its own
    assert both == f"column 'lab_12' is missing; {fix}: the columns are 'lab_13', 'y'"
    assert "is missing: the" in absence(pa.table({"x": [1], "z": [1]}), NUMERIC)  # the label has no such fix
    assert "column 'w' is missing" in absence(pa.table({"x": [1], "y": [1]}), WEIGHTED)
    assert "column 'y' is missing" in absence(pa.table({"x": [1]}), NUMERIC)
    many = pa.table({f"a{i}": [1] for i in range(20)})
    assert absence(many, NUMERIC).endswith("'a6', 'a7', … (20 in total)")


@pytest.mark.slow
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
