"""Weights, validation rows, groups, base margins, intervals: every value in its place."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from columns import NAN, NUMERIC, REGRESSION, WEIGHTED, refusal, same, terms

from fedboost.errors import ConfigError
from fedboost.runtime.data.shard import to_base_margin, to_shard
from fedboost.terms.terms import Terms

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
        ([0, 2], "column 'v' must contain only 0 and 1, or false and true: it is 2 in row 2"),
        (
            [0, None],
            "validation 'v' has missing values; fill them in or drop these rows: the first is in row 2",
        ),
        (
            [True, None],
            "validation 'v' has missing values; fill them in or drop these rows: the first is in row 2",
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
            "group 'q' has missing values; fill them in or drop these rows: the first",
        ),
        (
            "w",
            [1, 1, 1, 2],
            "column 'w' differs within a group of 'q'; use one value per group: row 4 differs from row 1 of",
        ),
        (
            "v",
            [0, 0, 1, 0],
            "column 'v' differs within a group of 'q'; use one value per group: row 3 differs from row 2 of",
        ),
        (
            "y",
            [0, 1.5, 0, 1],
            "rank:ndcg takes whole numbers from 0 to 31 (with ndcg_exp_gain = false, any",
        ),
        (
            "y",
            [0, 32, 0, 1],
            "rank:ndcg takes whole numbers from 0 to 31 (with ndcg_exp_gain = false, any",
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
            "weight 'w' has missing values; fill them in or drop these rows: the first is in row 2",
        ),
        ([1.0, NAN], "weight 'w' has missing values; fill them in or drop these rows: the first is in row 2"),
        ([1.0, -0.5], "column 'w' has a negative weight: it is -0.5 in row 2"),
        (
            [1.0, 1e39],
            "column 'w' has a value that is infinite or too large for a 32-bit float: it is 1e+39 in row 2",
        ),
        (
            ["1", "u"],
            "column 'w' has type string, but the terms declare it numeric: "
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
            "base margin 'm' has missing values; fill them in or drop these rows: the first is in row 2",
        ),
        (
            [1.0, -math.inf],
            "column 'm' has a value that is infinite or too large for a 32-bit float: it is -inf in row 2",
        ),
        (
            [1.0, 50.0],
            "column 'm' has a base margin that corresponds to a prediction above 2**60: it is 50.0 in row 2",
        ),
        (
            ["1", "u"],
            "column 'm' has type string, but the terms declare it numeric: "
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
            "columns 'y' and 'z' have an invalid label: survival:aft takes a lower bound from 0 to 2**60 "
            "and an upper bound that is above 0 and not below the lower one (the upper bound may be infinite "
            "or missing, but not if the lower one is 0): their values are 3 and 2 in row 2",
        ),
        (
            [1, None],
            [1, 2],
            "label 'y' has missing values; fill them in or drop these rows: the first is in row 2",
        ),
        (
            [1, math.inf],
            [1, math.inf],
            "column 'y' has a value that is infinite or too large for a 32-bit float: it is inf in row 2",
        ),
        (
            [1, 1],
            ["1", "later"],
            "column 'z' has type string, but the terms declare it numeric: "
            "the first value that is not a number is 'later' in row 2",
        ),
    ],
)
def test_intervals_that_are_none(lower: list[Any], upper: list[Any], said: str) -> None:
    assert refusal(pa.table({"x": [1, 2], "y": lower, "z": upper}), TIMES) == said
