"""Every element-wise kernel equals its numpy reference bit for bit, and is close to libm's function."""

import math

import numpy as np
import pytest
from kernel_cases import ROOT_EPS, margins, same_bits

from fedboost.gbdt.kernels import objectives
from fedboost.gbdt.kernels.objectives import exps, log_factorials, logs, sigmoids
from tests.gbdt.reference import elementwise as reference


def test_exps():
    x = margins()
    same_bits(exps(x), reference.exps(x))
    inside = x[np.abs(x) <= 700]
    libm = np.exp(inside)
    assert (np.abs(exps(inside) - libm) <= ROOT_EPS * libm).all()
    assert exps(np.array([701.0, 1e9])).tolist() == exps(np.array([700.0, 700.0])).tolist()


def test_logs():
    rng = np.random.default_rng(0)
    near_one = 1.0 + rng.uniform(-0.3, 1.1, 2000)
    smallest, root = np.finfo(np.float64).tiny, math.sqrt(2.0)
    edges = [
        1.0,
        np.nextafter(1, 0),
        np.nextafter(1, 2),
        0.5,
        2.0,
        root,
        np.nextafter(root, 2),
        smallest,
        1e308,
    ]
    x = np.concatenate([near_one, edges, 10.0 ** rng.uniform(-300, 300, 2000)])
    same_bits(logs(x), reference.logs(x))
    libm = np.log(x)
    assert (np.abs(logs(x) - libm) <= ROOT_EPS * np.abs(libm)).all()
    assert logs(np.array([1.0])).tolist() == [0.0]


def test_sigmoids():
    x = margins()
    same_bits(sigmoids(x), reference.sigmoids(x))
    inside = x[np.abs(x) <= 700]
    libm = 1.0 / (1.0 + np.exp(-inside))
    assert (np.abs(sigmoids(inside) - libm) <= ROOT_EPS * libm).all()
    assert sigmoids(np.array([0.0])).tolist() == [0.5]


def test_log_factorials():
    x = np.concatenate([np.arange(200.0), np.random.default_rng(5).exponential(4, 300), [1e3, 1e9, 2.0**60]])
    found = log_factorials(x)
    same_bits(found, reference.log_factorials(x))
    libm = np.array([math.lgamma(value + 1) for value in x])
    assert (np.abs(found - libm) <= 1e-13 * np.maximum(libm, 1)).all()


@pytest.mark.parametrize("name", ["exps", "logs", "sigmoids"])
def test_no_rows_no_values(name):
    assert getattr(objectives, name)(np.zeros(0)).shape == (0,)
