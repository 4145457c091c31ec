"""The real tables of `privacy.py` and the declared ranges of their columns.

All ranges are constants; none is computed from rows when the benchmark runs. They are round numbers at or
beyond the minimum and maximum of these public tables, as a consortium would take them from a data
dictionary. Category names come from the whole table. Epsilon covers neither, in fedboost and in the
compared programs.
"""

from pathlib import Path

import common
import numpy as np
import pyarrow as pa

import fedboost as fb
from fedboost.runtime.data.draft import draft_schema

Ranges = dict[str, tuple[float, float]]

ADULT: Ranges = {
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "educational-num": (1, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}
DEFAULT_CREDIT: Ranges = {
    "LIMIT_BAL": (0, 1_000_000),
    "SEX": (1, 2),
    "EDUCATION": (0, 6),
    "MARRIAGE": (0, 3),
    "AGE": (18, 80),
    **{f"PAY_{month}": (-2, 9) for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": (-400_000, 2_000_000) for month in range(1, 7)},
    **{f"PAY_AMT{month}": (0, 2_000_000) for month in range(1, 7)},
}
BANK_MARKETING: Ranges = {
    "age": (17, 100),
    "campaign": (1, 60),
    "pdays": (0, 1_000),
    "previous": (0, 10),
    "emp.var.rate": (-4, 2),
    "cons.price.idx": (92, 95),
    "cons.conf.idx": (-60, -20),
    "euribor3m": (0, 6),
    "nr.employed": (4_900, 5_300),
}
HEART_DISEASE: Ranges = {
    "age": (18, 90),
    "sex": (0, 1),
    "cp": (1, 4),
    "trestbps": (0, 250),
    "chol": (0, 700),
    "fbs": (0, 1),
    "restecg": (0, 2),
    "thalach": (0, 220),
    "exang": (0, 1),
    "oldpeak": (-3, 7),
    "slope": (0, 3),
    "ca": (0, 3),
    "thal": (0, 7),
}
HEART = common.Dataset("heart_disease", "num", ("site",))
"""The label is whether `num` is above 0."""
DECLARED = {
    common.ADULT: ADULT,
    common.DEFAULT_CREDIT: DEFAULT_CREDIT,
    common.BANK_MARKETING: BANK_MARKETING,
    HEART: HEART_DISEASE,
}


def load(folder: Path, dataset: common.Dataset) -> pa.Table:
    """The table with a binary label."""
    table = common.load(folder, dataset)
    if dataset is HEART:
        place = table.column_names.index(HEART.label)
        sick = table.column(place).to_numpy() > 0
        table = table.set_column(place, HEART.label, pa.array(sick.astype(np.float32)))
    return table


def terms_of(table: pa.Table, dataset: common.Dataset, **settings: object) -> fb.Terms:
    """The terms of a training, with the declared ranges."""
    schema = draft_schema(table, dataset.label).columns
    ranges = {name: DECLARED[dataset][name] for name in schema.numeric}
    return fb.Terms.read({"columns": {**schema.model_dump(), "ranges": ranges}, **settings})


def split(table: pa.Table, seed: int) -> tuple[pa.Table, pa.Table]:
    """70 % and 30 % of the rows, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(table.num_rows)
    cut = table.num_rows * 7 // 10
    return table.take(order[:cut]), table.take(order[cut:])
