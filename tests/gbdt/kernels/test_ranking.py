"""Every kernel of rankings equals its numpy reference bit for bit."""

import numpy as np
import pytest
from ranked_rows import STARTS, rows

from fedboost.gbdt.kernels.objectives import lambda_gradients, ndcgs
from tests.gbdt.reference import ranking as reference


def same(found, due):
    assert [value.hex() for value in found.tolist()] == [float(value).hex() for value in due]


@pytest.mark.slow
@pytest.mark.parametrize("margins", ["apart", "equal", "tied", "far"])
@pytest.mark.parametrize("by_ndcg", [False, True])
@pytest.mark.parametrize("normal", [False, True])
def test_the_kernel_is_its_reference(margins, by_ndcg, normal):
    margin, label, weight = rows(margins)
    given = margin, label, np.exp2(label.astype(np.float64)) - 1.0, weight, STARTS
    for most in (1, 7, 1000):
        found = lambda_gradients(*given, most, by_ndcg, normal, normal)
        due = reference.lambda_gradients(*given, most, by_ndcg, normal, normal)
        same(found[0], due[0])
        same(found[1], due[1])
        same(ndcgs(margin, *given[2::2], most, 0.5), reference.ndcgs(margin, *given[2::2], most, 0.5))
