"""A model trained on columns that are held apart is the model of pooled rows, bit for bit."""

import pytest
from columns_apart import LAYOUTS, pooled, train_apart, train_pooled

IDS = {"columns": {"row_id": "id"}}
SETTINGS = {
    "logistic": ("binary", {}),
    "deep": ("binary", {"max_depth": 6, "rounds": 3}),
    "squared": ("number", {"objective": "reg:squarederror"}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "poisson": ("count", {"objective": "count:poisson"}),
    "absolute": ("number", {"objective": "reg:absoluteerror"}),
    "lossguide": ("binary", {"grow_policy": "lossguide", "max_leaves": 7, "max_depth": 5}),
    "symmetric": ("classes", {"objective": "multi:softprob", "num_class": 3, "grow_policy": "symmetric"}),
    "validation": ("binary", {"columns": {"validation": "held_out"}, "early_stopping_rounds": 2}),
    "subsample": ("binary", {"subsample": 0.6, "colsample_bytree": 0.7, **IDS}),
    "forest": ("binary", {"num_parallel_tree": 3, "subsample": 0.7, "learning_rate": 1.0, **IDS}),
    "known base score": ("binary", {"base_score": 0.3}),
    "base margins": ("binary", {"columns": {"base_margin": "margin"}}),
    "monotone": ("binary", {"monotone_constraints": {"age": 1, "visits": -1}}),
}
PAIRS = [
    (setting, layout)
    for s, setting in enumerate(SETTINGS)
    for at, layout in enumerate(LAYOUTS)
    if setting == "logistic" or (s + at) % len(LAYOUTS) in (0, 2)
]
"""One setting with every layout, every other one with two."""


@pytest.mark.parametrize(("setting", "layout"), PAIRS)
def test_the_model_is_that_of_pooled_rows(setting, layout):
    label, settings = SETTINGS[setting]
    table = pooled(label=label)
    whole, apart = train_pooled(table, **settings), train_apart(LAYOUTS[layout], table, **settings)
    assert apart.model.booster == whole.model.booster
    assert [_metrics(row) for row in apart.history] == [_metrics(row) for row in whole.history]


def _metrics(row):
    return {name: value for name, value in row.items() if name not in ("seconds", "bytes")}
