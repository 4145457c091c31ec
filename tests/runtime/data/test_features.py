"""Categories to codes, in training and in prediction."""

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from columns import COLOURS, NAN, bits, config_error, feature, same, terms
from hypothesis import given
from hypothesis import strategies as st

from fedboost.runtime.data.shard import to_features, to_shard, undeclared
from fedboost.runtime.data.table import read_table
from fedboost.runtime.data.values import numbers, texts
from fedboost.terms.columns import Schema

# ---- Categories -------------------------------------------------------------------------------------


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


# ---- Prediction -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"c": ["red"]}, "new.csv: column 'x' is missing"),
        (
            {"x": ["u"], "c": ["red"]},
            "new.csv: column 'x' has type string, but the terms declare it numeric: "
            "the first value that is not a number is 'u' in row 1",
        ),
        (
            {"x": [float("inf")], "c": ["red"]},
            "new.csv: column 'x' has a value that is infinite or too large for a 32-bit float: "
            "it is inf in row 1",
        ),
        ({"x": [1], "c": [[1]]}, "new.csv: column 'c' has type list,"),
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
