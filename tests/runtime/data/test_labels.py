"""Labels: numbers, classes, and what the objective cannot have."""

from typing import Any

import pyarrow as pa
import pytest
from columns import KINDS, NAN, NUMERIC, REGRESSION, STAMP, refusal, same, terms

from fedboost.runtime.data.shard import to_shard
from fedboost.terms.terms import Terms


def test_numeric_labels() -> None:
    for values in ([0, 1], [False, True], ["0", " 1"], pa.array([0.0, 1.0], pa.float32())):
        assert to_shard(pa.table({"x": [1, 2], "y": values}), NUMERIC, "north").label.tolist() == [0, 1]
    shard = to_shard(pa.table({"x": [1, 2], "y": [-1.5, 1e6]}), REGRESSION, "north")
    assert same(shard.label, [-1.5, 1e6])


@pytest.mark.parametrize("missing", [[0.0, None], [0.0, NAN], ["0", ""], ["0", "NA"]])
def test_a_missing_label(missing: list[Any]) -> None:
    said = "label 'y' has missing values; fill them in or drop these rows: the first is in row 2"
    assert refusal(pa.table({"x": [1, 2], "y": missing}), NUMERIC) == said
    assert refusal(pa.table({"x": [1, 2], "y": missing}), REGRESSION) == said


@pytest.mark.parametrize("missing", [["no", None], ["no", ""], [1.0, NAN]])
def test_a_missing_label_where_words_are_labels(missing: list[Any]) -> None:
    message = refusal(pa.table({"x": [1, 2], "y": missing}), terms(numeric=["x"], positive="no"))
    assert message == ("label 'y' has missing values; fill them in or drop these rows: the first is in row 2")


def test_labels_the_objective_cannot_have() -> None:
    message = refusal(pa.table({"x": [1, 2, 3], "y": [0, 1, 2]}), NUMERIC)
    assert message == (
        "column 'y' has an invalid label: binary:logistic takes 0 or 1; "
        "set positive under [columns] to the label value that counts as 1: it is 2 in row 3"
    )
    message = refusal(pa.table({"x": [1, 2], "y": [1.0, float("inf")]}), REGRESSION)
    assert message == (
        "label column 'y' has a value that is infinite or too large for a 32-bit float: it is inf in row 2"
    )
    message = refusal(pa.table({"x": [1, 2], "y": [1.0, 1e30]}), REGRESSION)
    assert message == (
        "column 'y' has an invalid label: reg:squarederror takes a number of magnitude at most 2**60: "
        "it is 1e+30 in row 2"
    )


def test_words_as_labels_need_positive() -> None:
    table = pa.table({"x": [1, 2], "y": ["1", "yes"]})
    assert refusal(table, NUMERIC) == (
        "label column 'y' has type string, but the terms declare it numeric; "
        "set positive under [columns] to the label value that counts as 1: "
        "the first value that is not a number is 'yes' in row 2"
    )
    assert refusal(table, REGRESSION) == (
        "label column 'y' has type string, but the terms declare it numeric: "
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
    assert refusal(table, agreed) == "label 'y' must have two values, but has more: 'yes', 'no', 'No'"
    table = pa.table({"x": [1, 2], "y": ["Yes", "No"]})
    assert refusal(table, agreed) == "positive = 'yes' is not one of the values of label 'y': 'Yes', 'No'"
    table = pa.table({"x": [1], "y": pa.array([STAMP])})
    assert (
        refusal(table, agreed)
        == "column 'y' has type timestamp[us], but a categorical column must be text, numbers or booleans"
    )


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
        "column 'y' is the label, but has a value that is not in columns.classes ('b', 'a', '10', 'true'); "
        "add the value there, or drop these rows: it is 'A' in row 3"
    )
    for missing in (["b", None], ["b", ""], [10.0, NAN]):
        assert refusal(pa.table({"x": [1, 2], "y": missing}), KINDS) == (
            "label 'y' has missing values; fill them in or drop these rows: the first is in row 2"
        )


def test_classes_that_are_numbers_or_words() -> None:
    of = Terms.read(
        {"objective": "multi:softprob", "num_class": 3, "columns": {"label": "y", "numeric": ["x"]}}
    )
    assert to_shard(pa.table({"x": [1, 2], "y": [2.0, 0.0]}), of, "north").label.tolist() == [2, 0]
    hint = "; set classes under [columns] to the list of label values"
    assert refusal(pa.table({"x": [1, 2], "y": [1, 3]}), of) == (
        f"column 'y' has an invalid label: multi:softprob takes whole numbers from 0 to 2{hint}: "
        "it is 3 in row 2"
    )
    assert refusal(pa.table({"x": [1], "y": ["u"]}), of) == (
        f"label column 'y' has type string, but the terms declare it numeric{hint}: "
        "the first value that is not a number is 'u' in row 1"
    )
