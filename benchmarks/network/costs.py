"""Fits the constants of `fedboost estimate` (`fedboost.results.estimate`) to the runs of `parties.py`."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls


def fit(counts: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, float]:
    """Fit nonnegative constants that minimise the relative errors."""
    names = list(counts[0])
    table = np.array([[one[name] for name in names] for one in counts])
    measured = np.array(seconds)
    scaled = table / measured[:, None]
    sizes = np.where(scaled.max(axis=0) > 0, scaled.max(axis=0), 1.0)
    found, _ = nnls(scaled / sizes, np.ones(len(measured)))
    return dict(zip(names, (found / sizes).tolist(), strict=True))
