"""Terms of single columns, and what a table's error says at the site and to the others."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedboost.errors import ConfigError, SchemaMismatch
from fedboost.runtime.data.shard import to_shard
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


NEUTRAL = "party north: its rows do not fit the terms"


def refusal(table: pa.Table, agreed: Terms) -> str:
    """What the site itself reads of rows that do not fit; what others read is always the same."""
    with pytest.raises(SchemaMismatch) as caught:
        to_shard(table, agreed, "north")
    error = caught.value
    assert error.public == NEUTRAL
    assert str(error) == f"{NEUTRAL}: {error.detail}"
    assert "\n" not in str(error)
    return error.detail


def config_error(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


KINDS = terms("multi:softprob", numeric=["x"], classes=["b", "a", "10", "true"])
