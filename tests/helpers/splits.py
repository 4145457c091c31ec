"""Rules of splits, and layouts of histograms."""

import numpy as np

from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout


def layout_of(*sizes, missing=()):
    cuts = tuple(np.arange(size - 1, dtype=np.float32) for size in sizes)
    return Layout.of(CutPoints.of(cuts, tuple(f in missing for f in range(len(sizes)))))


def only(layout, features):
    """The layout of a histogram of these features alone; features: increasing."""
    if features == layout.features:
        return layout
    indices = [layout.features.index(feature) for feature in features]
    return Layout._made(
        layout.value_bins[indices], layout.missing[indices], layout.categorical[indices], features
    )


def among(layout, features):
    """The positions of these features in a histogram of all; features: increasing."""
    indices = [layout.features.index(feature) for feature in features]
    kinds = (column[indices] for column in (layout.offsets, layout.value_bins, layout.missing))
    return Layout(*kinds, layout.categorical[indices], layout.bins, features)
