"""Terms with every setting."""

import pytest

from fedboost.errors import ConfigError
from fedboost.terms.terms import Terms

COLUMNS = {"label": "y", "numeric": ["a", "b"], "categorical": {"c": ["red", "green"]}}
BASE = {"columns": COLUMNS, "parties": ["north", "south", "east"]}
REGRESSION = "reg:squarederror"
CLASSES = {"objective": "multi:softprob", "columns": {**COLUMNS, "classes": ["u", "v", "w"]}}
RANGES = {"a": [0, 1], "b": [0, 1]}
RANKING = {"objective": "rank:ndcg", "columns": {**COLUMNS, "group": "q"}}


def terms(**settings):
    return Terms.read({**BASE, **settings})


def with_columns(**columns):
    return terms(columns={**COLUMNS, **columns})


def refusal_of(**settings):
    with pytest.raises(ConfigError) as caught:
        terms(**settings)
    return str(caught.value)


def noisy(columns=None, **settings):
    noise = settings.pop("noise", {"epsilon": 1.0, "delta": 1e-6})
    return terms(columns={**COLUMNS, "ranges": RANGES, **(columns or {})}, noise=noise, **settings)
