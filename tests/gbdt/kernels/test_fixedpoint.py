"""Every kernel of integer sums equals its numpy reference bit for bit."""

import numpy as np
import pytest
from kernel_cases import same_bits

from fedboost.gbdt.kernels.histogram import LIMBS, add_limbs, gradient_norms, quantise, sum_units
from tests.gbdt.reference import fixedpoint as reference

# ---- element-wise functions -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 700])
def test_add_limbs(count):
    rng = np.random.default_rng(count)
    values = rng.normal(0, 1, count) * 2.0 ** rng.integers(-250, 140, count)
    values[:9] = [0.0, -0.0, np.inf, -np.inf, 5e-324, 2.0**-184, -(2.0**-185), 2.0**127, np.nan][:count]
    weight = (2.0 ** rng.integers(-60, 61, count)).astype(np.float32)
    weight[::7] = 0
    out = np.zeros(LIMBS, np.int64)
    add_limbs(values, weight, out)
    assert out.tolist() == reference.add_limbs(values, weight)
    add_limbs(values, weight, out)
    assert out.tolist() == [2 * limb for limb in reference.add_limbs(values, weight)]


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradient_sizes(outputs):
    rng = np.random.default_rng(outputs)
    gradient = rng.normal(0, 1, (outputs, 500)) * np.exp(rng.normal(0, 20, 500))
    hessian = rng.random((outputs, 500)) * np.exp(rng.normal(0, 20, 500))
    gradient[:, :9] = 0.0
    hessian[:, 5:20] = 0.0
    for reg_lambda in (0.0, 0.3, 1e6):
        found = gradient_norms(gradient, hessian, reg_lambda)
        same_bits(found, reference.gradient_norms(gradient, hessian, reg_lambda))
        assert (found >= np.abs(gradient).max(axis=0) * (1 - 1e-15)).all()


# ---- gradients to packed integers -------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_quantise(bits):
    rng = np.random.default_rng(bits)
    limit, unit = 1 << (bits - 1), 2.0 ** (1 - bits)
    ties = (np.arange(-9, 9) + 0.5) * unit
    gradient = np.concatenate([rng.uniform(-1, 1, 500), ties, [0.0, -0.0, 1, -1, 1.5, -1.5, 1e9, -1e9]])
    hessian = np.concatenate([rng.uniform(0, 0.3, 500), np.abs(ties), [0.0, 0.25, 0.26, 1e9, 0, 0, 0, 0]])
    arguments = gradient, hessian, float(limit), 4.0 * limit, float(limit)
    out = np.empty(gradient.size, np.int64)
    quantise(*arguments, out)
    assert out.tolist() == reference.quantise(*arguments).tolist()


@pytest.mark.parametrize("count", [0, 1, 500])
def test_sum_units(count):
    rng = np.random.default_rng(count)
    values = np.concatenate([rng.normal(0, 1, count), [1e9, -1e9, 0.25, -0.25, 0.75, np.inf, -0.0][:count]])
    for factor, limit in ((2.0, 8), (2.0**31, 2**31), (2.0**-3, 4)):
        assert sum_units(values, factor, float(limit)) == reference.sum_units(values, factor, limit)
