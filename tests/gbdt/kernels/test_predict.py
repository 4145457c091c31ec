"""Predictions: the kernel equals its numpy reference bit for bit."""

import math

import numpy as np
import pytest
from kernel_cases import random_tree

from fedboost.gbdt.kernels.predict import predict_margins
from tests.gbdt.reference import predict as reference

LEVELS = [0.5, 1.7, 63, 64, 200, 255, 256, 1e30, np.inf, -np.inf, -0.5]


@pytest.mark.parametrize("by_level", [0.0, 0.4])
@pytest.mark.parametrize("count", [0, 1, 12])
def test_predict_margins(count, by_level):
    rng = np.random.default_rng(count)
    trees = [random_tree(rng, 4, 4, by_level) for _ in range(count)]
    found = [-2, -1, -0.0, 0, 0.1, 0.25, 1, 3, np.nan, *(LEVELS if by_level else [])]
    features = rng.choice(np.array(found, np.float32), (200, 4))
    columns = list(zip(*[one for tree in trees for one in tree], strict=True)) or [()] * 6
    sets = [one if isinstance(one, set) else None for one in columns[3]]
    columns[3] = [math.nan if isinstance(one, set) else one for one in columns[3]]
    kinds = (np.int64, np.int64, np.int64, np.float32, np.bool_, np.float64)
    arrays = [np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    roots = np.cumsum([0, *map(len, trees)])[:-1].astype(np.int64)
    is_set = np.array([one is not None for one in sets], np.bool_)
    bits = [[level in one for level in range(256)] for one in (set(), *sets) if one is not None]
    words = np.packbits(np.array(bits, np.bool_).reshape(-1, 256), axis=1, bitorder="little")
    arrays += [np.where(is_set, np.cumsum(is_set), 0).astype(np.uint64), words.view(np.uint64)]
    for values in (
        features,
        np.nan_to_num(features, nan=1.0),
    ):  # a block without missing values is another loop
        margin = rng.normal(size=200)
        due = reference.predict_margins(values, trees, margin)
        predict_margins(values, roots, *arrays, margin)
        assert margin.tolist() == due
