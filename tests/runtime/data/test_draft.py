"""Drafted schemas fit their table; splits lose and double no row."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from columns import config_error
from hypothesis import given
from hypothesis import strategies as st

from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.runtime.data.draft import (
    FEW_NUMBERS,
    MAX_CLASSES,
    MEDIAN,
    draft_schema,
    split_by_site,
    split_by_weights,
)
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import as_table, read_table
from fedboost.terms.terms import Terms


def test_columns_become_what_they_can_be() -> None:
    table = pa.table(
        {
            "number": [1, 2, 3],
            "flag": [True, False, None],
            "word": ["v", "", "u"],
            "spelled": ["1", " 2.5", "?"],
            "encoded": pa.array(["b", "a", "b"]).dictionary_encode(),
            "encoded_number": pa.array([7, 5, 7]).dictionary_encode(),
            "y": [0, 1, 1],
        }
    )
    draft = draft_schema(table, "y")
    assert draft.columns.numeric == ("number", "flag", "spelled")
    assert draft.columns.categorical == {
        "word": ("u", "v"),
        "encoded": ("a", "b"),
        "encoded_number": ("5", "7"),
    }
    assert (draft.columns.label, draft.columns.weight, draft.left_out) == ("y", None, {})


def test_a_draft_fits_its_table() -> None:
    table = pa.table({"word": ["v", "", "u"], "n": [1, None, 2.5], "y": ["no", "yes", "no"], "w": [1, 2, 3]})
    draft = draft_schema(table, "y", "w")
    terms = Terms.read({"objective": draft.objective, "columns": draft.columns.model_dump(mode="json")})
    shard = to_shard(table, terms, "north")
    assert shard.label.tolist() == [0, 1, 0]
    assert shard.weight.tolist() == [1, 2, 3]
    assert len(shard.columns) == 2


def test_columns_that_can_be_no_feature_are_left_out_with_the_reason() -> None:
    rows = MAX_CATEGORIES + 1
    names = [f"name {i}" for i in range(rows)]
    columns = {
        "few": ["only", *names[2:], None],
        "many": names,
        "time": [datetime(2020, 1, 1)] * rows,
        "list": [[1]] * rows,
        "null": pa.nulls(rows),
        "blank": [""] * rows,
        "nan": [float("nan")] * rows,
        "huge": [1e300] * rows,
        "": range(rows),
        "n" * 257: range(rows),
        "a[0]": range(rows),
        "a\nb": range(rows),
        "notes": ["u", "v\0"] * (rows // 2) + ["u"] * (rows % 2),
        "__index_level_0__": range(rows),
        "x": range(rows),
        "y": [i % 2 for i in range(rows)],
    }
    draft = draft_schema(pa.table({name: pa.array(values) for name, values in columns.items()}), "y")
    assert draft.columns.features == ("x", "few")
    assert len(draft.columns.categorical["few"]) == MAX_CATEGORIES
    assert draft.left_out == {
        "many": "has 256 distinct values, more than the limit of 255 categories",
        "time": "has type timestamp[us], neither numeric nor text",
        "list": "has type list, neither numeric nor text",
        "null": "has no values",
        "blank": "has no values",
        "nan": "has no values",
        "huge": "has values that are infinite or too large for a 32-bit float",
        "": "has no name",
        "n" * 257: "has a name longer than 256 characters",
        "a[0]": "has the character '[' in its name and must be renamed",
        "a\nb": "has the character '\\n' in its name and must be renamed",
        "notes": "has the character '\\x00' in a value",
        "__index_level_0__": "is the index of a pandas DataFrame",
    }


def test_label_weight_and_excluded_columns_are_no_features() -> None:
    table = pa.table({"id": [1, 2], "x": [1, 2], "w": [1, 2], "y": [0, 1]})
    based = draft_schema(table, "y", "w", base_margin="id")
    assert (based.columns.features, based.columns.base_margin) == (("x",), "id")
    times = draft_schema(table, "y", None, objective="survival:aft", label_upper_bound="w")
    assert (times.columns.features, times.columns.label_upper_bound) == (("id", "x"), "w")
    draft = draft_schema(table, "y", "w", ["id"])
    assert draft.columns.features == ("x",)
    assert draft.columns.weight == "w"
    assert draft.left_out == {}


def test_an_index_that_pandas_wrote_to_csv_is_no_feature(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": [1.5, 2.5], "y": [0, 1]}).to_csv(path)
    assert draft_schema(read_table(path), "y").columns.features == ("x",)


@pytest.mark.parametrize(
    ("label", "objective", "positive"),
    [
        ([0, 1, 1], "binary:logistic", None),
        ([0.0, 1.0, None], "binary:logistic", None),
        ([True, False, None], "binary:logistic", None),
        (["0", "1", ""], "binary:logistic", None),
        (["yes", "no", "no"], "binary:logistic", "yes"),
        (["no", "yes", "yes"], "binary:logistic", "no"),
        (["yes", "no", None], "binary:logistic", "yes"),
        (["b", "a", None], "binary:logistic", "b"),
        (["a", "b", ""], "binary:logistic", "b"),
        ([1, 2, 1], "binary:logistic", "2"),
        ([1.0, 2.0, float("nan")], "binary:logistic", "2"),
        (["1", "2", "2"], "binary:logistic", "1"),
        ([0.5, -1, 1], "reg:squarederror", None),
        ([0, 1, 2], "reg:squarederror", None),
        (["1", "2", "3"], "reg:squarederror", None),
        (["a", "b", "c"], "multi:softprob", None),
    ],
)
def test_the_label_decides_the_objective(label: list[Any], objective: str, positive: str | None) -> None:
    draft = draft_schema(as_table({"x": [1, 2, 3], "y": label}), "y")
    assert (draft.objective, draft.columns.positive) == (objective, positive)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ([1, 1, None], "label 'y' is constant: '1' in every row"),
        (["a", "a", ""], "label 'y' is constant: 'a' in every row"),
        ([None, None, None], "label 'y' has no values"),
        ([datetime(2020, 1, 1)] * 3, "column 'y' has type timestamp[us],"),
    ],
)
def test_labels_no_objective_fits(label: list[Any], said: str) -> None:
    assert config_error(lambda: draft_schema(as_table({"x": [1, 2, 3], "y": label}), "y")).startswith(said)


def drafted(label: Any, **given: Any) -> Terms:
    """Terms drafted from a table with this label, which they fit."""
    table = as_table({"x": list(range(len(label))), "y": label})
    draft = draft_schema(table, "y", **given)
    terms = Terms.read(draft.settings())
    to_shard(table, terms, "north")
    return terms


def test_words_are_classes_in_their_order() -> None:
    words = drafted(["c", "b", "a", "b"])
    assert words.columns.classes == ("a", "b", "c")
    assert words.objective.num_class == 3
    assert drafted(["10", "9", "?"]).columns.classes == ("9", "10", "?")
    many = [f"name {number}" for number in range(MAX_CLASSES)]
    assert drafted(many).objective.num_class == MAX_CLASSES
    assert config_error(lambda: drafted([*many, "one more"])) == (
        "label 'y' has too many values to be classes: 'name 0', 'name 1', 'name 2', … (101 in total); check "
        "the column, or set columns.classes (at most 100 are drafted)"
    )


def test_numbers_are_classes_where_that_is_said() -> None:
    given = {"objective": "multi:softprob"}
    assert drafted([10.0, 9.0, 2.5], **given).columns.classes == ("2.5", "9", "10")
    counted = drafted([2, 0, 1], **given)
    assert (counted.objective.num_class, counted.columns.classes) == (3, ())
    assert drafted(pa.array([7, 5, 3]).dictionary_encode()).columns.classes == ("3", "5", "7")
    assert drafted(["no", "yes"], **given).columns.classes == ("no", "yes")
    assert drafted([0, 1, 2], objective="reg:squarederror").columns.classes == ()


def test_a_quantile_is_drafted_to_be_edited() -> None:
    assert drafted([0.5, 1.5, 2.5], objective="reg:quantileerror").objective.quantile_alpha == MEDIAN
    assert drafted([0.5, 1.5, 2.5], objective="reg:absoluteerror").objective.quantile_alpha is None


def test_few_whole_numbers_may_be_meant_as_classes() -> None:
    def few(label: list[float]) -> int:
        return draft_schema(as_table({"x": label, "y": label}), "y").few_numbers

    assert few([0, 1, 2, 2]) == 3
    assert few([*range(FEW_NUMBERS)]) == FEW_NUMBERS
    assert few([*range(FEW_NUMBERS + 1)]) == 0
    assert few([0, 1, 2.5]) == few([0, 1]) == 0


@pytest.mark.parametrize(
    ("label", "objective", "said"),
    [
        (
            ["a", "b", "c"],
            "binary:logistic",
            "label 'y' has 3 values ('a', 'b', 'c'), but binary:logistic needs two; use multi:softprob",
        ),
        (
            ["a", "b", "c"],
            "reg:squarederror",
            "column 'y' has type string, but the terms declare it numeric: ",
        ),
        (["a", "a", None], "multi:softprob", "label 'y' is constant: 'a' in every row"),
        (
            ["a", "b", "c"],
            "multi:softmix",
            "terms: objective: unknown objective 'multi:softmix' (did you mean ",
        ),
    ],
)
def test_labels_that_do_not_fit_the_objective(label: list[Any], objective: str, said: str) -> None:
    assert config_error(lambda: drafted(label, objective=objective)).startswith(said)


def test_absent_columns_are_named() -> None:
    table = pa.table({"x": [1, 2], "target": [0, 1]})
    assert config_error(lambda: draft_schema(table, "targe")) == (
        "column 'targe' is missing: did you mean target?"
    )
    assert "column 'w' is missing" in config_error(lambda: draft_schema(table, "target", "w"))
    assert "column 'id' is missing" in config_error(lambda: draft_schema(table, "target", None, ["id"]))


def test_a_table_without_features() -> None:
    table = pa.table({"t": [datetime(2020, 1, 1)] * 2, "y": [0, 1]})
    assert config_error(lambda: draft_schema(table, "y")) == (
        "no column can be a feature; 't' has type timestamp[us], neither numeric nor text"
    )
    assert config_error(lambda: draft_schema(table, "y", exclude=["t"])) == "no column can be a feature"


# Splits


def test_rows_go_to_the_site_they_name() -> None:
    table = pa.table({"site": ["s", "n", "s", "n"], "x": [1, 2, 3, 4]})
    parts = split_by_site(table, "site")
    assert list(parts) == ["n", "s"]
    assert {name: part.to_pydict() for name, part in parts.items()} == {
        "n": {"x": [2, 4]},
        "s": {"x": [1, 3]},
    }


def test_sites_may_be_numbers() -> None:
    parts = split_by_site(pa.table({"site": [2.0, 10.0, 2.0], "x": [1, 2, 3]}), "site")
    assert {name: part.column("x").to_pylist() for name, part in parts.items()} == {"10": [2], "2": [1, 3]}


@given(st.lists(st.sampled_from(["u", "v", "w"]), min_size=1, max_size=30))
def test_every_row_has_one_site(sites: list[str]) -> None:
    parts = split_by_site(pa.table({"site": sites, "x": range(len(sites))}), "site")
    assert list(parts) == sorted(set(sites))
    for name, part in parts.items():
        assert part.column("x").to_pylist() == [row for row, site in enumerate(sites) if site == name]


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        (["u", None, None], "column 'site' has no site in row 2; fill it in, or drop the row"),
        (["u", ""], "column 'site' has no site in row 2; fill it in, or drop the row"),
        ([datetime(2020, 1, 1)], "column 'site' has type timestamp[us],"),
        (pa.array([], pa.string()), "the table has no rows"),
    ],
)
def test_sites_without_a_name(sites: Any, said: str) -> None:
    assert config_error(lambda: split_by_site(as_table({"site": sites}), "site")).startswith(said)


def test_an_absent_site_column() -> None:
    assert "did you mean site?" in config_error(lambda: split_by_site(pa.table({"site": ["u"]}), "sites"))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(0, 60), st.integers(0, 2**32))
def test_weights_share_out_every_row(weights: list[float], more: int, seed: int) -> None:
    names = [f"p{i}" for i in range(len(weights))]
    rows = len(names) + more
    parts = split_by_weights(pa.table({"x": range(rows)}), names, weights, seed)
    assert list(parts) == names
    assert sorted(x for part in parts.values() for x in part.column("x").to_pylist()) == list(range(rows))
    exact = np.array(weights) / np.sum(weights) * rows
    sizes = [part.num_rows for part in parts.values()]
    assert min(sizes) >= 1
    if min(exact) >= 1:
        assert max(abs(exact - sizes)) <= 1


def test_splits_follow_weights_and_seed() -> None:
    table = pa.table({"x": range(600)})
    parts = split_by_weights(table, ["a", "b", "c"], [1, 2, 3], 7)
    assert [part.num_rows for part in parts.values()] == [100, 200, 300]
    assert parts["a"].column("x").to_pylist() != list(range(100))
    assert parts == split_by_weights(table, ["a", "b", "c"], [1, 2, 3], 7)
    assert parts != split_by_weights(table, ["a", "b", "c"], [1, 2, 3], 8)
    assert [p.num_rows for p in split_by_weights(table, ["a", "b"], [1, 1e9], 7).values()] == [1, 599]


def test_groups_are_shared_out_whole_and_in_their_order() -> None:
    table = pa.table({"x": range(600), "q": [f"{x * x % 61}" for x in range(600)]})
    parts = split_by_weights(table, ["a", "b"], [1, 3], 7, "q")
    groups = [set(part.column("q").to_pylist()) for part in parts.values()]
    assert not groups[0] & groups[1]
    assert abs(3 * len(groups[0]) - len(groups[1])) <= 4
    found = [part.column("x").to_pylist() for part in parts.values()]
    assert sorted(found[0] + found[1]) == list(range(600))
    assert all(part == sorted(part) for part in found)
    assert parts != split_by_weights(table, ["a", "b"], [1, 3], 8, "q")
    missing = pa.table({"q": ["a", None]})
    said = config_error(lambda: split_by_weights(missing, ["a", "b"], [1, 1], 7, "q"))
    assert said == "column 'q' has no group in row 2; fill it in, or drop the row"


@pytest.mark.parametrize(
    ("names", "weights", "said"),
    [
        (["a", "b", "c"], [1, 1, 1], "cannot split 2 rows among 3 parties; each needs at least one"),
        (["a", "a"], [1, 1], "each party needs a unique name and a weight"),
        (["a", "b"], [1], "each party needs a unique name and a weight"),
        ([], [], "each party needs a unique name and a weight"),
        (["a", "b"], [1, 0], "the weights of the parties must be positive numbers, not [1, 0]"),
        (["a", "b"], [1, float("inf")], "the weights of the parties must be positive numbers"),
        (["a", "b"], [1, float("nan")], "the weights of the parties must be positive numbers"),
    ],
)
def test_splits_that_cannot_be(names: list[str], weights: list[float], said: str) -> None:
    assert config_error(lambda: split_by_weights(pa.table({"x": [1, 2]}), names, weights, 0)).startswith(said)


def test_a_split_needs_a_seed_that_is_not_negative() -> None:
    table = pa.table({"x": [1, 2]})
    assert config_error(lambda: split_by_weights(table, ["a", "b"], [1, 1], -1)) == (
        "the seed of a split must be at least 0, not -1"
    )
